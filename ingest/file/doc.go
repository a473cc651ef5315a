// Package file reads billing events from files: newline-delimited JSON, JSON arrays, CSV, and Event Hubs Capture (Avro).
//
// Every line, element, row or record becomes one delivery, which is recorded as a broker's would be: nothing that a file holds is
// passed over in silence. What cannot be read is quarantined where it stands, and what follows is read on; where a break makes the rest
// of a file unreadable, the break is quarantined and reported (Report.Unread), for then the file has more than was recorded.
//
// # Positions
//
// The position of a delivery is the file's absolute, cleaned path and the place in it: PATH:LINE (from 1) in newline-delimited JSON and
// CSV, PATH[INDEX] (from 0) in JSON and Capture. So a file counts as the same one from whatever folder and by whatever relative name it
// is imported, and a person who reads a position finds the bytes. Symbolic links are not resolved: mounted volumes change what they
// lead to from one mount to the next, and the name that was typed is the one that is looked for. A copy under another name is another
// file, whose events are duplicates. What stands at a position may change when a file is replaced: then a duplicate may count as a
// redelivery, and nothing more depends on it. Standard input is named stdin.
//
// The durable counters are kept by format, of which there are four: a row for each of a hundred thousand Capture files would tell nobody
// anything.
//
// # Counts
//
// Each event counts once in a report, with what the database said of it. Where the answer to a commit was lost, a batch that this import
// recorded counts as already recorded, for that is how it was found when it was sent again.
//
// # Limits
//
// Memory does not depend on the size of a file. A line, element or row above the limit on a body is quarantined with its first 16 KiB and
// its size; a quoted CSV field that does not end within the limit makes the rest unreadable, for its end cannot be told. A block of a
// Capture file has at most 64 MiB, before and after decompression; such a one costs some 200 MiB for a moment (measured), other files some
// 30 to 60 MiB whatever their size.
package file
