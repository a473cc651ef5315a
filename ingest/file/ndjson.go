package file

import (
	"bytes"
	"errors"
	"io"
	"strconv"

	"chargeonce/ingest"
)

// ndjson reads one body from each line. Blank lines stand for nothing.
type ndjson struct {
	in    *input
	limit int // of a line, in bytes
	lines int64
	done  bool
}

func (n *ndjson) next() (record, error) {
	for !n.done {
		from := n.in.at
		text, size, err := n.in.line(n.limit)
		if errors.Is(err, io.EOF) {
			break
		}
		n.lines++
		r := record{Delivery: ingest.Delivery{Body: text, Position: ":" + strconv.FormatInt(n.lines, 10)}, from: from, to: n.in.at}
		switch {
		case err != nil:
			n.done = true
			if r.Unreadable = unreadable(err, n.in.at); r.Unreadable == nil {
				return record{}, err
			}
			r.to, r.lost = toEnd, true
		case size > int64(n.limit):
			r.Unreadable = tooLong("line", size, n.limit)
		case len(bytes.Trim(text, jsonSpace)) == 0:
			continue
		}
		return r, nil
	}
	return record{}, io.EOF
}
