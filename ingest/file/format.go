package file

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Format is how a file holds events.
type Format string

// The formats.
const (
	FormatAuto    Format = "auto"    // by content, and where that does not tell by the name's ending
	FormatNDJSON  Format = "ndjson"  // one JSON value on each line
	FormatJSON    Format = "json"    // arrays, whose elements are taken one by one, or objects over several lines
	FormatCSV     Format = "csv"     // with a header row
	FormatCapture Format = "avro"    // what Event Hubs Capture writes
	formatEmpty   Format = "nothing" // no content: no events
)

// textFormat tells the format by the name's ending, less that of gzip; "" when it does not tell. JSON is told by the content: people
// call newline-delimited JSON and arrays alike.
func textFormat(name string) Format {
	switch ending(name) {
	case ".ndjson", ".jsonl":
		return FormatNDJSON
	case ".csv", ".tsv":
		return FormatCSV
	}
	return ""
}

// ending is the name's last extension, less that of gzip, in lower case.
func ending(name string) string {
	return filepath.Ext(strings.TrimSuffix(strings.ToLower(name), ".gz"))
}

// takes tells whether a file in a folder is taken for one with events.
func takes(name string) bool {
	switch ending(name) {
	case ".ndjson", ".jsonl", ".json", ".csv", ".tsv", ".avro":
		return true
	}
	return false
}

// ErrNoFormat says that neither content nor name tell how a file is to be read: Config.Format can.
var ErrNoFormat = errors.New("the format cannot be told")

// detect tells the format of the file of that name by its first bytes.
func detect(name string, in *input) (Format, error) {
	head, err := in.Peek(bufferBytes)
	if err != nil && !errors.Is(err, io.EOF) {
		if _, system := errors.AsType[*readError](err); system {
			return "", err
		}
	}
	if len(head) == 0 && errors.Is(err, io.EOF) {
		return formatEmpty, nil
	}
	if bytes.HasPrefix(head, []byte(avroMagic)) {
		return FormatCapture, nil
	}
	if bytes.HasPrefix(head, []byte("\xff\xfe")) || bytes.HasPrefix(head, []byte("\xfe\xff")) {
		return "", fmt.Errorf("%w: the text is UTF-16, save it as UTF-8", ErrNoFormat)
	}
	if format := textFormat(name); format != "" {
		return format, nil
	}
	switch text := bytes.TrimLeft(head, jsonSpace); {
	case len(text) == 0 && err == nil:
		return "", fmt.Errorf("%w: it begins with %d bytes of white space", ErrNoFormat, len(head))
	case len(text) == 0:
		return FormatNDJSON, nil // blank or broken from the start: says so itself
	case text[0] == '[':
		return FormatJSON, nil
	case text[0] == '{':
		return linesOrNot(text), nil
	case ending(name) == ".json":
		return FormatNDJSON, nil
	case ending(name) == ".avro":
		return FormatCapture, nil
	}
	return "", fmt.Errorf("%w from its first bytes", ErrNoFormat)
}

const jsonSpace = " \t\r\n"

// linesOrNot tells objects on lines from an object over several lines. Where the first object is broken, lines are the better guess:
// a bad one then costs no other.
func linesOrNot(text []byte) Format {
	d := jsontext.NewDecoder(bytes.NewBuffer(text), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	value, err := d.ReadValue()
	switch {
	case err == nil && bytes.IndexByte(value, '\n') >= 0:
		return FormatJSON
	case errors.Is(err, io.ErrUnexpectedEOF) && bytes.IndexByte(text, '\n') >= 0:
		return FormatJSON
	}
	return FormatNDJSON
}
