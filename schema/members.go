package schema

import (
	"bytes"
	"encoding/base64"
	"errors"
	"io"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// readMembers reads one object's top level into m. Without options the whole object is held to the
// strict rules: UTF-8, no unpaired surrogate, no repeated key at any depth, nothing behind it.
func (s *scanner) readMembers(m *members, text []byte, opts ...jsontext.Options) error {
	*m = members{}
	d := s.reset(text, opts...)
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	for d.PeekKind() != '}' {
		name, err := readRaw(d, text)
		if err != nil {
			return err
		}
		value, err := readRaw(d, text)
		if err != nil {
			return err
		}
		if value[0] == '{' || value[0] == '[' {
			m.depth = max(m.depth, depth(value))
		}
		m.put(unquote(name), value)
	}
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	if rest := bytes.Trim(text[d.InputOffset():], jsonSpace); len(rest) > 0 {
		return errTrailing
	}
	if m.depth+1 > maxDepth {
		return errTooDeep
	}
	return nil
}

// scanner is a decoder for one object after the other: a new one for each costs four times the
// allocations.
type scanner struct {
	buffer  bytes.Buffer
	decoder jsontext.Decoder
}

func (s *scanner) reset(text []byte, opts ...jsontext.Options) *jsontext.Decoder {
	s.buffer = *bytes.NewBuffer(text)
	s.decoder.Reset(&s.buffer, opts...)
	return &s.decoder
}

// members are the parts of one object that matter; values are raw JSON, nil when absent.
type members struct {
	fields      [fieldCount][]byte
	like        [fieldCount][]byte // first unknown name that is the field's in other letters or separators
	near        [fieldCount][]byte // first unknown name that is one slip away from the field's
	specVersion []byte
	data        []byte
	dataBase64  []byte
	depth       int // of the deepest value
}

// Sentinels for what the decoder itself does not find.
var (
	errTrailing = errors.New("data behind the object")
	errTooDeep  = errors.New("nested too deep")
)

func (m *members) put(name, value []byte) {
	if i := fieldIndex(name); i >= 0 {
		m.fields[i] = value
		return
	}
	switch string(name) {
	case "specversion":
		m.specVersion = value
	case "data":
		m.data = value
	case "data_base64":
		m.dataBase64 = value
	default:
		m.putUnknown(name)
	}
}

// putUnknown judges the name at once: an object may have any number of them, and the misspelt one may be the last.
func (m *members) putUnknown(name []byte) {
	for i, field := range fieldNames {
		switch {
		case m.like[i] == nil && sameLetters(name, field):
			m.like[i] = name
		case m.near[i] == nil && isNear(name, field):
			m.near[i] = name
		}
	}
}

// isEnvelope reports whether the object calls itself a CloudEvent. A producer's own field of that
// name that holds no text makes none, nor does one beside a whole billing event.
func (m *members) isEnvelope() bool {
	if m.specVersion == nil || m.specVersion[0] != '"' {
		return false
	}
	return m.data != nil || m.dataBase64 != nil || m.fields[fieldCustomerID] == nil
}

// content returns the bytes that an envelope carries.
func (m *members) content() ([]byte, *Fault) {
	version := unquote(m.specVersion)
	hasData := m.data != nil && m.data[0] != 'n'
	hasBase64 := m.dataBase64 != nil && m.dataBase64[0] != 'n'
	switch {
	case !bytes.HasPrefix(version, []byte("1.")):
		return nil, faultf(FaultBadCloudEvent, "specversion is not 1.x: send CloudEvents 1.0")
	case hasData && hasBase64:
		return nil, faultf(FaultBadCloudEvent, "the CloudEvent has both data and data_base64: send one of them")
	case !hasData && !hasBase64:
		return nil, faultf(FaultBadCloudEvent, "the CloudEvent has no data: put the billing event there")
	case hasBase64:
		if m.dataBase64[0] != '"' {
			return nil, faultf(FaultBadCloudEvent, "data_base64 is %s: send a string", kindName(m.dataBase64))
		}
		decoded, err := base64.StdEncoding.DecodeString(string(unquote(m.dataBase64)))
		if err != nil {
			return nil, faultf(FaultBadCloudEvent, "data_base64 is not standard base64 with padding")
		}
		return decoded, nil
	case m.data[0] == '"':
		return unquote(m.data), nil
	}
	return m.data, nil
}

// onlyDataIsBad reports whether an object breaks the strict rules nowhere but inside its data: the
// same object with null for data must pass them.
func (s *scanner) onlyDataIsBad(text []byte) bool {
	d := newDecoder(text, tolerant()...)
	if _, err := d.ReadToken(); err != nil {
		return false
	}
	var bare []byte
	from := 0
	for d.PeekKind() != '}' {
		name, err := readRaw(d, text)
		if err != nil {
			return false
		}
		value, err := readRaw(d, text)
		if err != nil {
			return false
		}
		if string(unquote(name)) == "data" {
			end := int(d.InputOffset())
			bare = append(bare, text[from:end-len(value)]...)
			bare = append(bare, "null"...)
			from = end
		}
	}
	return s.readMembers(&members{}, append(bare, text[from:]...)) == nil
}

// brokenFault names what keeps text from being read strictly.
func brokenFault(text []byte, err error) *Fault {
	var at string
	syntactic, isSyntactic := errors.AsType[*jsontext.SyntacticError](err)
	if isSyntactic {
		at = " near byte " + strconv.FormatInt(syntactic.ByteOffset+1, 10)
	}
	switch {
	case errors.Is(err, errTrailing):
		return faultf(FaultTrailingData, "more data follows the object on its line: put each object on a line of its own or into an array")
	case errors.Is(err, errTooDeep) || depth(text) > maxDepth:
		return faultf(FaultTooDeep, "the object is nested deeper than %d levels: send a flat one", maxDepth)
	case !utf8.Valid(text):
		return faultf(FaultNotUTF8, "the text is not UTF-8%s: encode it as UTF-8", at)
	case errors.Is(err, jsontext.ErrDuplicateName):
		return faultf(FaultRepeatedKey, "a key is repeated in one object%s: which value counts cannot be told, send it once", at)
	case isOneValue(text):
		return faultf(FaultUnpairedSurrogate, "a \\u escape is half of a surrogate pair%s: send both halves or the character itself", at)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return faultf(FaultNotJSON, "the JSON ends too early, after %d bytes: it is cut off or a bracket or quote is missing", len(text))
	}
	return faultf(FaultNotJSON, "the text is not JSON%s: check quotes, commas and brackets", at)
}

func notAnObjectFault(text []byte) *Fault {
	if !isOneValue(text) {
		if !utf8.Valid(text) {
			return faultf(FaultNotUTF8, "the text is not UTF-8 and not JSON: send JSON objects in UTF-8")
		}
		return faultf(FaultNotJSON, "the text is not JSON: send one JSON object for each billing event")
	}
	return faultf(FaultNotAnObject, "found %s where an object belongs: send {...} for each billing event", kindName(text))
}

func newDecoder(text []byte, opts ...jsontext.Options) *jsontext.Decoder {
	return jsontext.NewDecoder(bytes.NewBuffer(text), opts...)
}

// tolerant reads past what faults one object but does not break the syntax around it.
func tolerant() []jsontext.Options {
	return []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}
}

// isOneValue reports whether text is one JSON value and nothing more, by syntax alone.
func isOneValue(text []byte) bool {
	return jsontext.Value(text).IsValid(tolerant()...)
}

// readRaw returns the next value as a part of text: what the decoder returns itself is only lent.
func readRaw(d *jsontext.Decoder, text []byte) ([]byte, error) {
	value, err := d.ReadValue()
	if err != nil {
		return nil, err
	}
	end := int(d.InputOffset())
	return text[end-len(value) : end : end], nil
}

// unquote returns the text of a JSON string that the decoder has accepted.
func unquote(quoted []byte) []byte {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return quoted[1 : len(quoted)-1]
	}
	// The error can only be bad UTF-8, which a tolerant read accepted: the replacement is good enough
	// for the names and envelopes that are read so.
	plain, _ := jsontext.AppendUnquote(nil, quoted)
	return plain
}

func skipSeparator(text []byte, at int) int {
	for at < len(text) && (text[at] == ',' || bytes.IndexByte([]byte(jsonSpace), text[at]) >= 0) {
		at++
	}
	return at
}

// depth returns how deep brackets nest in text, strings left out.
func depth(text []byte) int {
	level, deepest, inString := 0, 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			level++
			deepest = max(deepest, level)
		case c == '}' || c == ']':
			level--
		}
	}
	return deepest
}

func kindName(value []byte) string {
	switch value[0] {
	case '"':
		return "a string"
	case '{':
		return "an object"
	case '[':
		return "an array"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}
