package file

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"chargeonce/ingest"
	"chargeonce/schema"
)

// csvRows makes a JSON object of each row, with the header's names: text for every cell but the amount, nothing for an empty one. Blank
// lines stand for nothing. Quoting is RFC 4180's.
type csvRows struct {
	in        *input
	limit     int // of a row, in bytes
	delimiter byte
	names     [][]byte // of the columns, as JSON strings with the colon
	amount    int      // the column of amount_cents
	lines     int64
	done      bool
}

func (c *csvRows) next() (record, error) {
	for !c.done {
		from, line := c.in.at, c.lines+1
		text, size, end, err := c.row()
		if errors.Is(err, io.EOF) {
			break
		}
		r := record{Delivery: ingest.Delivery{Body: text, Position: ":" + strconv.FormatInt(line, 10)}, from: from, to: c.in.at}
		switch {
		case err != nil:
			if r.Unreadable = unreadable(err, c.in.at); r.Unreadable == nil {
				return record{}, err
			}
		case end == rowUnclosed:
			r.Unreadable = faultf(faultQuote, "a quoted field that begins in this row does not end within %d bytes, and what follows is not read: close the quote, and import the file again", size)
		case size > int64(c.limit):
			r.Unreadable = tooLong("row", size, c.limit)
			return r, nil
		case len(bytes.Trim(text, jsonSpace)) == 0:
			continue
		default:
			r.Body, r.Unreadable = c.object(text)
			return r, nil
		}
		c.done, r.to, r.lost = true, toEnd, true
		return r, nil
	}
	return record{}, io.EOF
}

// newCSV reads the header. A file that cannot be decompressed so far is no error: the reader then says so.
func newCSV(in *input, cfg *Config) (reader, error) {
	c := &csvRows{in: in, limit: cfg.MaxBodyBytes, delimiter: cfg.CSVDelimiter}
	text, size, end, err := c.row()
	switch {
	case errors.Is(err, io.EOF):
		return nil, headerError("the header row is missing", "write the column names into the first row")
	case err != nil:
		return orBroken(err, in.at)
	case end == rowUnclosed:
		return nil, headerError("the header row opens a quote and does not close it", "close it")
	case size > int64(c.limit):
		return nil, headerError(fmt.Sprintf("the header row has %d bytes, at most %d are read", size, c.limit), "check that this is CSV")
	}
	columns, fault := c.split(text)
	if fault != nil {
		return nil, headerError("the header row cannot be read: "+fault.Message, "")
	}
	if err := c.takeColumns(columns, cfg); err != nil {
		return nil, err
	}
	return c, nil
}

// ErrHeader says that a CSV file's columns cannot give billing events.
var ErrHeader = errors.New("the columns do not fit")

func headerError(problem, cure string) error {
	if cure == "" {
		return fmt.Errorf("%w: %s", ErrHeader, problem)
	}
	return fmt.Errorf("%w: %s: %s", ErrHeader, problem, cure)
}

func (c *csvRows) takeColumns(columns []string, cfg *Config) error {
	if len(columns) == 1 {
		for _, other := range []byte{';', '\t', '|', ','} {
			if other != c.delimiter && strings.IndexByte(columns[0], other) >= 0 {
				return headerError(fmt.Sprintf("the header is one column %q", cutText(columns[0])),
					fmt.Sprintf("give its delimiter, as in --csv-delimiter %s", delimiterName(other)))
			}
		}
	}
	for i, name := range columns {
		switch {
		case name == "":
			return headerError(fmt.Sprintf("column %d has no name", i+1), "name it, or take it out")
		case slices.Contains(columns[:i], name):
			return headerError(fmt.Sprintf("column %q is there twice", cutText(name)), "which one counts cannot be told, take one out")
		}
		quoted, err := jsontext.AppendQuote(nil, name)
		if err != nil {
			return headerError(fmt.Sprintf("column %d has a name that is not UTF-8", i+1), "save the file as UTF-8")
		}
		c.names = append(c.names, append(quoted, ':'))
	}
	for _, field := range schema.Fields() {
		column, mapped, err := columnOf(field, cfg.Mapping)
		if err != nil {
			return err
		}
		at := slices.Index(columns, column)
		if field == schema.FieldAmountCents {
			c.amount = at
		}
		if at < 0 && (mapped || isRequired(field)) {
			return headerError(fmt.Sprintf("column %q for field %s is missing among %s", cutText(column), field, listOf(columns)),
				fmt.Sprintf("name it so, or say which one it is, as in --map %s=/COLUMN", field))
		}
	}
	return c.checkSpelling(columns, cfg)
}

// checkSpelling finds an optional field's name in another spelling: each single row would be quarantined for it.
func (c *csvRows) checkSpelling(columns []string, cfg *Config) error {
	cells := make([]string, len(columns))
	for i := range cells {
		cells[i] = "1"
	}
	body, fault := c.join(cells)
	if fault != nil {
		return headerError(fault.Message, "")
	}
	parser, err := schema.NewParser(schema.ParserConfig{Namespace: "header", Mapping: cfg.Mapping, MaxBodyBytes: len(body) + 1})
	if err != nil {
		return fmt.Errorf("check the header row: %w", err)
	}
	if fault := parser.Parse(body, nil)[0].Fault; fault != nil && fault.Code == schema.FaultMisspeltField {
		return headerError(fault.Message, "")
	}
	return nil
}

// columnOf is where the mapping says that a field stands.
func columnOf(field string, m schema.Mapping) (column string, mapped bool, err error) {
	pointer, mapped := m[field]
	if !mapped {
		return field, false, nil
	}
	column = strings.TrimPrefix(pointer, "/")
	if strings.Contains(column, "/") {
		return "", true, headerError(fmt.Sprintf("--map %s=%s leads into an object, and a row has none", field, pointer),
			fmt.Sprintf("name a column, as in --map %s=/COLUMN", field))
	}
	return strings.ReplaceAll(strings.ReplaceAll(column, "~1", "/"), "~0", "~"), true, nil
}

func isRequired(field string) bool {
	return field == schema.FieldCustomerID || field == schema.FieldBillingPeriod || field == schema.FieldAmountCents
}

func listOf(columns []string) string {
	const most = 20
	if more := len(columns) - most; more > 0 {
		return cutText(strings.Join(columns[:most], ", ")) + fmt.Sprintf(" and %d more", more)
	}
	return cutText(strings.Join(columns, ", "))
}

func delimiterName(c byte) string {
	if c == '\t' {
		return "tab"
	}
	return "'" + string(c) + "'"
}

// maxShownBytes bounds what a message repeats of a name or cell, in bytes.
const maxShownBytes = 200

func cutText(text string) string {
	if len(text) > maxShownBytes {
		text = text[:maxShownBytes] + "..."
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// object makes the JSON object of a row. A row that makes none stays as it is.
func (c *csvRows) object(row []byte) ([]byte, *schema.Fault) {
	cells, fault := c.split(row)
	if fault != nil {
		return row, fault
	}
	if len(cells) != len(c.names) {
		return row, faultf(faultColumns, "the row has %d fields, the header has %d: quote a field that contains the delimiter or a line break", len(cells), len(c.names))
	}
	body, fault := c.join(cells)
	if body == nil {
		return row, fault
	}
	return body, fault
}

// join writes the object, also where the amount is none; nil where it cannot be written.
func (c *csvRows) join(cells []string) (body []byte, fault *schema.Fault) {
	body = append(body, '{')
	for i, cell := range cells {
		if cell == "" {
			continue
		}
		if len(body) > 1 {
			body = append(body, ',')
		}
		body = append(body, c.names[i]...)
		if i == c.amount {
			if isInteger(cell) {
				body = append(body, cell...)
				continue
			}
			fault = &schema.Fault{Code: schema.FaultWrongType, Field: schema.FieldAmountCents, Message: fmt.Sprintf(
				"field %q is %q: write a whole number of the currency's minor unit, digits alone (12.50 usd is 1250)", schema.FieldAmountCents, cutText(cell))}
		}
		var err error
		if body, err = jsontext.AppendQuote(body, cell); err != nil {
			return nil, faultf(schema.FaultNotUTF8, "the row is not UTF-8: save the file as UTF-8")
		}
	}
	return append(body, '}'), fault
}

// isInteger tells what JSON takes for an integer: no sign but minus, no zero before other digits.
func isInteger(text string) bool {
	digits := strings.TrimPrefix(text, "-")
	if digits == "" || (len(digits) > 1 && digits[0] == '0') {
		return false
	}
	return strings.Trim(digits, "0123456789") == ""
}

// split takes a whole row apart.
func (c *csvRows) split(row []byte) ([]string, *schema.Fault) {
	fields := make([]string, 0, max(len(c.names), 4))
	for rest := row; ; {
		var field string
		if len(rest) > 0 && rest[0] == '"' {
			text, behind, closed := unquote(rest[1:])
			if !closed || (len(behind) > 0 && behind[0] != c.delimiter) {
				return nil, faultf(faultQuote, "field %d of the row has text behind its closing quote: write a quote inside a quoted field twice", len(fields)+1)
			}
			field, rest = text, behind
		} else {
			end := bytes.IndexByte(rest, c.delimiter)
			if end < 0 {
				end = len(rest)
			}
			if bytes.IndexByte(rest[:end], '"') >= 0 {
				return nil, faultf(faultQuote, "field %d of the row has a quote in it and is not quoted: quote the field, and write the quote twice", len(fields)+1)
			}
			field, rest = string(rest[:end]), rest[end:]
		}
		fields = append(fields, field)
		if len(rest) == 0 {
			return fields, nil
		}
		rest = rest[1:]
	}
}

// unquote returns the text up to the closing quote, and what is behind that.
func unquote(text []byte) (field string, behind []byte, closed bool) {
	var out []byte
	for {
		at := bytes.IndexByte(text, '"')
		if at < 0 {
			return "", nil, false
		}
		out = append(out, text[:at]...)
		text = text[at+1:]
		if len(text) == 0 || text[0] != '"' {
			return string(out), text, true
		}
		out = append(out, '"')
		text = text[1:]
	}
}

// rowEnd is how a row ended.
type rowEnd int

const (
	rowWhole    rowEnd = iota
	rowUnclosed        // inside a quoted field, by its size or by the end of the file
)

// row takes the next row, over line breaks that are quoted, and returns it without its line end. Of one longer than the limit it keeps
// the beginning alone. io.EOF only without a row.
func (c *csvRows) row() (text []byte, size int64, end rowEnd, err error) {
	scan := rowScan{delimiter: c.delimiter, state: atFieldStart}
	for {
		part, ended, err := c.in.chunk()
		size += int64(len(part))
		scan.over(part)
		text = keep(text, part, c.limit+2) // and the line end
		if ended {
			c.lines++
		}
		quoted, last := scan.state == inQuotes, errors.Is(err, io.EOF)
		switch {
		case last && size == 0:
			return nil, 0, rowWhole, io.EOF
		case err != nil && !last:
			return cutTo(text, size, c.limit), size, rowUnclosed, err
		case quoted && (last || size > int64(c.limit)):
			return cutTo(text, size, c.limit), size, rowUnclosed, nil
		case last || (ended && !quoted):
			text, size = withoutEnd(text, size, ended)
			return cutTo(text, size, c.limit), size, rowWhole, nil
		}
	}
}

// withoutEnd takes LF, where the row ended with it, and CR off a row; of one that was not kept whole, off its size alone.
func withoutEnd(text []byte, size int64, ended bool) (row []byte, rowSize int64) {
	if ended {
		size--
		text = text[:min(int64(len(text)), size)]
	}
	if n := int64(len(text)); n == size && n > 0 && text[n-1] == '\r' {
		return text[:n-1], size - 1
	}
	return text, size
}

// rowScan follows quotes over the bytes of a row.
type rowScan struct {
	delimiter byte
	state     quoteState
}

type quoteState int

const (
	atFieldStart quoteState = iota
	inPlain
	inQuotes
	behindQuote // closing, or the first of two
)

func (s *rowScan) over(part []byte) {
	for _, b := range part {
		switch {
		case s.state == inQuotes:
			if b == '"' {
				s.state = behindQuote
			}
		case b == '"' && (s.state == atFieldStart || s.state == behindQuote):
			s.state = inQuotes
		case b == s.delimiter:
			s.state = atFieldStart
		default:
			s.state = inPlain
		}
	}
}

// checkDelimiter tells whether rows can be split by it.
func checkDelimiter(c byte) error {
	if c == '"' || c == '\n' || c == '\r' || c == 0 || c >= utf8.RuneSelf {
		return fmt.Errorf("a delimiter is one ASCII character, no quote and no line break")
	}
	return nil
}
