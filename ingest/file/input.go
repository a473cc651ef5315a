package file

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"chargeonce/ingest"
	"chargeonce/schema"
)

// reader takes one file apart.
type reader interface {
	// next returns the next delivery, and io.EOF at the end. A *readError means that the file could not be read; what is wrong with its
	// content comes as records.
	next() (record, error)
}

// record is one delivery, whose Position is only the place in the file yet.
type record struct {
	ingest.Delivery
	// from and to are the bytes of the decompressed content that it stands for; to is toEnd when what follows was not read.
	from, to int64
	// lost says that the file holds more here than could be read.
	lost bool
}

const toEnd = int64(1<<63 - 1)

// input is the content of a file, decompressed where it is gzip.
type input struct {
	*bufio.Reader
	at int64 // bytes of the content that were taken
}

const (
	// bufferBytes is what one read takes from a file, in bytes, and what the format is told by.
	bufferBytes = 64 << 10
	// prefixBytes is what is kept of something too long, in bytes: enough to find it by.
	prefixBytes = 16 << 10
)

// newInput reads raw, whose bytes it adds to read.
func newInput(raw io.Reader, read *atomic.Int64) (*input, error) {
	in := &input{Reader: bufio.NewReaderSize(&counted{raw, read}, bufferBytes)}
	magic, err := in.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if bytes.Equal(magic, []byte("\x1f\x8b")) {
		content, err := gzip.NewReader(in.Reader)
		if err != nil {
			// Not even a header: everything is unreadable, and the reader of the format says so.
			in = &input{Reader: bufio.NewReaderSize(failing{err}, bufferBytes)}
		} else {
			in = &input{Reader: bufio.NewReaderSize(content, bufferBytes)}
		}
	}
	if mark, _ := in.Peek(len(byteOrderMark)); string(mark) == byteOrderMark {
		if _, err := in.Discard(len(byteOrderMark)); err != nil {
			return nil, err
		}
		in.at = int64(len(byteOrderMark))
	}
	return in, nil
}

const byteOrderMark = "\xef\xbb\xbf"

// chunk returns what is buffered up to the next line end, that included, and ended when there was one. The bytes are only lent.
func (in *input) chunk() (text []byte, ended bool, err error) {
	text, err = in.ReadSlice('\n')
	in.at += int64(len(text))
	if errors.Is(err, bufio.ErrBufferFull) {
		return text, false, nil
	}
	return text, err == nil, err
}

// line takes the next line and returns it without its end. Of one longer than limit it keeps the first prefixBytes (and never more than limit) alone; size is that
// of the line, in bytes. The error comes with what was read before it; io.EOF only without a line.
func (in *input) line(limit int) (text []byte, size int64, err error) {
	for {
		part, ended, err := in.chunk()
		size += int64(len(part))
		if ended {
			part = part[:len(part)-1]
			size--
		}
		text = keep(text, part, limit)
		if errors.Is(err, io.EOF) && size > 0 {
			err = nil
			ended = true
		}
		if ended || err != nil {
			return cutTo(text, size, limit), size, err
		}
	}
}

// keep appends part to text, up to one byte above limit.
func keep(text, part []byte, limit int) []byte {
	return append(text, part[:min(len(part), max(0, limit+1-len(text)))]...)
}

// cutTo shortens what was kept of something too long.
func cutTo(text []byte, size int64, limit int) []byte {
	if size <= int64(limit) {
		return text
	}
	return bytes.Clone(text[:min(len(text), prefixBytes, limit)]) // not a part of what it was cut from
}

// readByte takes one byte.
func (in *input) readByte() (byte, error) {
	b, err := in.ReadByte()
	if err == nil {
		in.at++
	}
	return b, err
}

// counted counts the bytes read, and marks errors of the system.
type counted struct {
	raw  io.Reader
	read *atomic.Int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.raw.Read(p)
	c.read.Add(int64(n))
	if err != nil && !errors.Is(err, io.EOF) {
		err = &readError{err}
	}
	return n, err
}

// readError says that the system could not read a file. It says nothing about the content.
type readError struct{ err error }

func (e *readError) Error() string { return e.err.Error() }
func (e *readError) Unwrap() error { return e.err }

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// The faults of files. Those of what the events say are the parser's.
const (
	faultUnreadable  schema.FaultCode = "file_unreadable"
	faultBrokenArray schema.FaultCode = "broken_array"
	faultColumns     schema.FaultCode = "csv_columns"
	faultQuote       schema.FaultCode = "csv_quote"
	faultAvro        schema.FaultCode = "broken_avro"
)

func faultf(code schema.FaultCode, format string, args ...any) *schema.Fault {
	return &schema.Fault{Code: code, Message: fmt.Sprintf(format, args...)}
}

func tooLong(what string, size int64, limit int) *schema.Fault {
	return faultf(schema.FaultBodyTooLarge, "the %s has %d bytes, at most %d are read: split it (its first %d bytes are kept)",
		what, size, limit, min(prefixBytes, limit))
}

// unreadable is the fault of content that cannot be decompressed further; nil when err is the system's.
func unreadable(err error, at int64) *schema.Fault {
	if _, system := errors.AsType[*readError](err); system {
		return nil
	}
	return faultf(faultUnreadable, "the file cannot be decompressed after %d bytes (%v), and what follows is not read: get a whole copy and import that", at, err)
}
