package file

import (
	"errors"
	"fmt"
	"io"
	"strconv"

	"chargeonce/ingest"
	"chargeonce/schema"
)

// jsonValues reads the elements of arrays, and other values whole. It checks the syntax as it goes and holds one element at a time. Where
// the syntax breaks it stops: what follows cannot be told apart safely, and an event must not be made of the parts of another.
type jsonValues struct {
	in      *input
	limit   int // of an element, in bytes
	index   int64
	lines   int64 // line ends taken
	inArray bool
	first   bool // no element of this array was taken yet
	done    bool

	text []byte // of the present element
	size int64
}

// maxNesting bounds the depth of an element. Far less makes no event, which is for the parser to say.
const maxNesting = 10_000

func (j *jsonValues) next() (record, error) {
	if j.done {
		return record{}, io.EOF
	}
	j.text, j.size = nil, 0
	found, err := j.toElement()
	if err == nil && !found {
		return record{}, io.EOF
	}
	from, line := j.in.at-j.size, j.lines+1
	if err == nil {
		err = j.value()
	}
	r := record{from: from, to: j.in.at, Delivery: ingest.Delivery{
		Body: cutTo(j.text, j.size, j.limit), Position: "[" + strconv.FormatInt(j.index, 10) + "]",
		Detail: map[string]string{"line": strconv.FormatInt(line, 10)},
	}}
	j.index++
	if err != nil {
		j.done = true
		if r.Unreadable = j.broken(err); r.Unreadable == nil {
			return record{}, err
		}
		r.to, r.lost = toEnd, true
	} else if j.size > int64(j.limit) {
		r.Unreadable = tooLong("element", j.size, j.limit)
	}
	return r, nil
}

// syntaxError is a break in the syntax, at the byte that was taken last.
type syntaxError struct{ what string }

func (e *syntaxError) Error() string { return e.what }

func (j *jsonValues) broken(err error) *schema.Fault {
	where := fmt.Sprintf("line %d, byte %d of the file", j.lines+1, j.in.at) // byte counted from 1: the one taken last
	if syntax, ok := errors.AsType[*syntaxError](err); ok {
		return faultf(faultBrokenArray, "the JSON breaks at %s (%s), and what follows is not read: mend it there and import the file again", where, syntax.what)
	}
	if errors.Is(err, io.EOF) {
		what := "inside a value"
		if len(j.text) == 0 {
			what = "before the array's closing bracket"
		}
		return faultf(faultBrokenArray, "the JSON ends at %s, %s: the file is cut off, get the whole of it and import that", where, what)
	}
	return unreadable(err, j.in.at)
}

// toElement moves to the first byte of the next element or value; false at the end of the file.
func (j *jsonValues) toElement() (found bool, err error) {
	for {
		c, err := j.skipSpace()
		switch {
		case errors.Is(err, io.EOF) && !j.inArray:
			return false, nil
		case err != nil:
			return false, err
		case !j.inArray && c == '[':
			j.inArray, j.first = true, true
			j.take()
		case j.inArray && c == ']':
			j.inArray = false
			j.take()
		case j.inArray && !j.first:
			if c != ',' {
				return false, j.misplaced("a comma or ] belongs here")
			}
			j.take()
			if c, err = j.skipSpace(); err != nil {
				return false, err
			}
			if c == ']' {
				return false, j.misplaced("an element belongs behind the comma")
			}
			return true, nil
		default:
			j.first = false
			return true, nil
		}
	}
}

// misplaced takes a byte that was peeked at and cannot stand where an element begins.
func (j *jsonValues) misplaced(what string) error {
	if _, err := j.read(); err != nil {
		return err
	}
	return &syntaxError{what}
}

// skipSpace takes white space and returns the byte that follows, untaken.
func (j *jsonValues) skipSpace() (byte, error) {
	for {
		next, err := j.in.Peek(1)
		if err != nil {
			return 0, err
		}
		switch next[0] {
		case '\n':
			j.lines++
		case ' ', '\t', '\r':
		default:
			return next[0], nil
		}
		j.take()
	}
}

// take drops a byte that was peeked at.
func (j *jsonValues) take() {
	if _, err := j.in.readByte(); err != nil {
		panic("file: internal error: a byte that was peeked at cannot be read")
	}
}

// read takes one byte of the element.
func (j *jsonValues) read() (byte, error) {
	c, err := j.in.readByte()
	if err != nil {
		return 0, err
	}
	j.size++
	if len(j.text) <= j.limit {
		j.text = append(j.text, c)
	}
	if c == '\n' {
		j.lines++
	}
	return c, nil
}

// value takes one JSON value.
func (j *jsonValues) value() error {
	var open []byte // the brackets to be closed
	for {
		c, err := j.readPastSpace()
		if err != nil {
			return err
		}
		switch {
		case c == '{' || c == '[':
			if len(open) == maxNesting {
				return &syntaxError{fmt.Sprintf("nested deeper than %d levels", maxNesting)}
			}
			closing := c + 2 // '}' and ']' in ASCII
			empty, err := j.peekPastSpace()
			if err != nil {
				return err
			}
			if empty == closing {
				if _, err := j.read(); err != nil {
					return err
				}
				break
			}
			open = append(open, closing)
			if c == '{' {
				if err := j.key(); err != nil {
					return err
				}
			}
			continue
		case c == '"':
			err = j.stringRest()
		case c == '-' || isDigit(c):
			err = j.numberRest(c)
		default:
			err = j.literalRest(c)
		}
		if err != nil {
			return err
		}
		if open, err = j.afterValue(open); err != nil || len(open) == 0 {
			return err
		}
	}
}

// afterValue takes what stands between a value and the next one. Nothing open any more: the outermost value is complete.
func (j *jsonValues) afterValue(open []byte) ([]byte, error) {
	for len(open) > 0 {
		c, err := j.readPastSpace()
		if err != nil {
			return nil, err
		}
		closing := open[len(open)-1]
		switch {
		case c == closing:
			open = open[:len(open)-1]
		case c != ',':
			return nil, &syntaxError{fmt.Sprintf("a comma or %c belongs here", closing)}
		case closing == '}':
			return open, j.key()
		default:
			return open, nil
		}
	}
	return open, nil
}

// key takes a member's name and the colon.
func (j *jsonValues) key() error {
	c, err := j.readPastSpace()
	if err != nil {
		return err
	}
	if c != '"' {
		return &syntaxError{"a name in quotes belongs here"}
	}
	if err := j.stringRest(); err != nil {
		return err
	}
	if c, err = j.readPastSpace(); err != nil {
		return err
	}
	if c != ':' {
		return &syntaxError{"a colon belongs here"}
	}
	return nil
}

func (j *jsonValues) stringRest() error {
	for {
		if err := j.plain(); err != nil {
			return err
		}
		c, err := j.read()
		switch {
		case err != nil:
			return err
		case c == '"':
			return nil
		case c < ' ':
			return &syntaxError{"a line break or control character stands in a string, or a quote is missing"}
		case c == '\\':
			if err := j.escapeRest(); err != nil {
				return err
			}
		}
	}
}

// plain takes what is buffered of a string up to a byte that means something: most of a file is inside strings.
func (j *jsonValues) plain() error {
	if _, err := j.in.Peek(1); err != nil {
		return err
	}
	buffered, err := j.in.Peek(j.in.Buffered())
	if err != nil {
		return err
	}
	n := 0
	for n < len(buffered) && buffered[n] != '"' && buffered[n] != '\\' && buffered[n] >= ' ' {
		n++
	}
	j.text = keep(j.text, buffered[:n], j.limit)
	j.size += int64(n)
	j.in.at += int64(n)
	_, err = j.in.Discard(n)
	return err
}

func (j *jsonValues) escapeRest() error {
	c, err := j.read()
	if err != nil {
		return err
	}
	switch c {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return nil
	case 'u':
		for range 4 {
			c, err := j.read()
			if err != nil {
				return err
			}
			if !isDigit(c) && (c|0x20 < 'a' || c|0x20 > 'f') {
				return &syntaxError{"\\u takes four hex digits"}
			}
		}
		return nil
	}
	return &syntaxError{"a backslash stands before a character that it cannot escape"}
}

func (j *jsonValues) numberRest(c byte) error {
	if c == '-' {
		var err error
		if c, err = j.read(); err != nil {
			return err
		}
		if !isDigit(c) {
			return &syntaxError{"a digit belongs behind the minus"}
		}
	}
	if c != '0' {
		if err := j.digits(); err != nil {
			return err
		}
	}
	next, err := j.peek()
	if err != nil {
		return err
	}
	if next == '.' {
		if err := j.someDigits(); err != nil {
			return err
		}
		if next, err = j.peek(); err != nil {
			return err
		}
	}
	if next == 'e' || next == 'E' {
		return j.exponent()
	}
	return nil
}

func (j *jsonValues) exponent() error {
	if _, err := j.read(); err != nil {
		return err
	}
	sign, err := j.peek()
	if err != nil {
		return err
	}
	if sign != '+' && sign != '-' {
		return j.firstDigit()
	}
	return j.someDigits()
}

// someDigits takes one byte, whatever it is, and at least one digit.
func (j *jsonValues) someDigits() error {
	if _, err := j.read(); err != nil {
		return err
	}
	return j.firstDigit()
}

func (j *jsonValues) firstDigit() error {
	c, err := j.read()
	if err != nil {
		return err
	}
	if !isDigit(c) {
		return &syntaxError{"a digit belongs here"}
	}
	return j.digits()
}

func (j *jsonValues) digits() error {
	for {
		c, err := j.peek()
		if err != nil || !isDigit(c) {
			return err
		}
		if _, err := j.read(); err != nil {
			return err
		}
	}
}

func (j *jsonValues) literalRest(c byte) error {
	for _, literal := range []string{"true", "false", "null"} {
		if literal[0] != c {
			continue
		}
		for i := 1; i < len(literal); i++ {
			c, err := j.read()
			if err != nil {
				return err
			}
			if c != literal[i] {
				return &syntaxError{"a value belongs here"}
			}
		}
		return nil
	}
	return &syntaxError{"a value belongs here"}
}

// peek returns the next byte, or 0 at the end of the file: that may be the end of a number.
func (j *jsonValues) peek() (byte, error) {
	next, err := j.in.Peek(1)
	switch {
	case errors.Is(err, io.EOF):
		return 0, nil
	case err != nil:
		return 0, err
	}
	return next[0], nil
}

func (j *jsonValues) readPastSpace() (byte, error) {
	if _, err := j.peekPastSpace(); err != nil {
		return 0, err
	}
	return j.read()
}

// peekPastSpace takes white space, as part of the element, and returns the byte that follows.
func (j *jsonValues) peekPastSpace() (byte, error) {
	for {
		next, err := j.in.Peek(1)
		if err != nil {
			return 0, err
		}
		switch next[0] {
		case ' ', '\t', '\r', '\n':
			if _, err := j.read(); err != nil {
				return 0, err
			}
		default:
			return next[0], nil
		}
	}
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }
