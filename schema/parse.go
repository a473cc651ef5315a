package schema

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// Parse takes one delivered body apart into its objects, in their order, at least one. Each object
// stands for itself: it is either a checked event or a fault, whatever its neighbours are.
//
// A body is one object, an array, newline-delimited objects, or a CloudEvent around one of these.
// attrs are the broker's properties; they are looked at only to recognise a CloudEvent in binary
// mode and give no field its value. The objects' Raw share memory with body, which must not be
// changed while they are in use. Parse is safe for concurrent use.
func (p *Parser) Parse(body []byte, attrs map[string]string) []Object {
	s, _ := p.scanners.Get().(*scanner)
	if s == nil {
		s = &scanner{}
	}
	defer func() {
		s.reset(nil) // the pool must not keep the body alive
		p.scanners.Put(s)
	}()
	r := reading{p: p, s: s, binary: isBinaryCloudEvent(attrs)}
	if len(body) > p.maxBodyBytes {
		r.refuse(body, faultf(FaultBodyTooLarge, "the body has %d bytes, at most %d are read: split it", len(body), p.maxBodyBytes))
		return r.objects
	}
	r.body(bytes.TrimPrefix(body, []byte(byteOrderMark)))
	return r.objects
}

// Object is one element of a body. Exactly one of Event and Fault counts: Fault when it is not nil.
type Object struct {
	Index int    // place in the body, from 0
	Raw   []byte // the exact bytes of the object, or of the part that is none
	Event BillingEvent
	Fault *Fault
}

// Parser turns bytes into billing events of one namespace.
type Parser struct {
	namespace    string
	format       PeriodFormat
	pointers     [fieldCount][]string // nil: the field is read from the top level
	mapped       bool
	maxBodyBytes int
	maxObjects   int
	scanners     sync.Pool // of *scanner
}

// ParserConfig is what a Parser needs to know.
type ParserConfig struct {
	Namespace    string
	PeriodFormat PeriodFormat // empty: PeriodMonth
	Mapping      Mapping      // nil: the events have our own shape
	MaxBodyBytes int          // 0: DefaultMaxBodyBytes
}

// DefaultMaxBodyBytes is the limit on one body, in bytes, when none is configured: 1 MiB.
const DefaultMaxBodyBytes = 1 << 20

const (
	// minEventBytes is below the size of any valid event, in bytes, so that the bound on objects
	// that follows from it never cuts off a valid one.
	minEventBytes = 32
	// maxDepth bounds the nesting of an object.
	maxDepth      = 64
	byteOrderMark = "\xef\xbb\xbf"
	jsonSpace     = " \t\r\n"
)

// NewParser checks the configuration and makes a Parser.
func NewParser(cfg ParserConfig) (*Parser, error) {
	if err := CheckNamespace(cfg.Namespace); err != nil {
		return nil, fmt.Errorf("make parser: %w", err)
	}
	format, err := ParsePeriodFormat(string(cfg.PeriodFormat))
	if err != nil {
		return nil, fmt.Errorf("make parser of namespace %s: %w", cfg.Namespace, err)
	}
	if err := cfg.Mapping.check(); err != nil {
		return nil, fmt.Errorf("make parser of namespace %s: %w", cfg.Namespace, err)
	}
	if cfg.MaxBodyBytes < 0 {
		return nil, fmt.Errorf("make parser of namespace %s: a body limit of %d bytes is negative", cfg.Namespace, cfg.MaxBodyBytes)
	}
	p := &Parser{namespace: cfg.Namespace, format: format, mapped: len(cfg.Mapping) > 0, maxBodyBytes: cfg.MaxBodyBytes}
	if p.maxBodyBytes == 0 {
		p.maxBodyBytes = DefaultMaxBodyBytes
	}
	p.maxObjects = p.maxBodyBytes/minEventBytes + 1
	for target, pointer := range cfg.Mapping {
		steps, err := pointerSteps(pointer)
		if err != nil {
			return nil, fmt.Errorf("make parser of namespace %s: map %s: %w", cfg.Namespace, target, err)
		}
		p.pointers[fieldIndex([]byte(target))] = steps
	}
	return p, nil
}

// Namespace returns the namespace that the parser was made for.
func (p *Parser) Namespace() string {
	return p.namespace
}

// reading is the parse of one body.
type reading struct {
	p       *Parser
	s       *scanner
	objects []Object
	binary  bool // the broker's properties say: CloudEvent in binary mode
	wrapped bool // inside the data of a structured CloudEvent
}

// body reads a whole body, or what a CloudEvent carries as its data.
func (r *reading) body(content []byte) {
	text := bytes.Trim(content, jsonSpace)
	switch {
	case len(text) == 0:
		r.refuse(content, faultf(FaultEmptyBody, "the body is empty: send one JSON object for each billing event"))
	case text[0] == '[':
		r.array(text)
	case bytes.IndexByte(text, '\n') >= 0 && !isOneValue(text):
		r.records(text)
	default:
		r.value(text)
	}
}

// array reads the elements one by one. Where the array's own syntax breaks, the objects before the
// break count and the remainder is one fault: what follows a break cannot be told apart safely.
func (r *reading) array(text []byte) {
	d := newDecoder(text, tolerant()...)
	if _, err := d.ReadToken(); err != nil {
		r.refuse(text, brokenFault(text, err))
		return
	}
	for n := 0; d.PeekKind() != ']'; n++ {
		start := skipSeparator(text, int(d.InputOffset()))
		value, err := d.ReadValue()
		if err != nil {
			r.refuseRest(text, start, brokenFault(text[start:], err))
			return
		}
		if r.full(text[start:]) {
			return
		}
		end := int(d.InputOffset())
		r.value(text[end-len(value) : end])
	}
	empty := d.InputOffset() == 1
	if _, err := d.ReadToken(); err != nil {
		r.refuseRest(text, int(d.InputOffset()), brokenFault(text, err))
		return
	}
	if empty {
		// Not the whole text: what follows is read as well, and must not be kept twice.
		r.refuse(text[:d.InputOffset()], faultf(FaultEmptyArray, "the array has no elements: send nothing when there is nothing to bill"))
	}
	r.afterArray(text[d.InputOffset():])
}

// afterArray reads what stands on further lines behind an array as if it had come alone: lines whose
// first one is a stray array must not be lost with it. On the array's own line nothing may follow.
func (r *reading) afterArray(rest []byte) {
	content := bytes.Trim(rest, jsonSpace)
	switch before, _, _ := bytes.Cut(rest, content); {
	case len(content) == 0 || r.full(content):
	case bytes.IndexByte(before, '\n') >= 0:
		r.body(content)
	default:
		r.refuse(content, faultf(FaultTrailingData, "%d bytes follow the array on its line: a body has one array", len(content)))
	}
}

// records reads newline-delimited objects, compact or over several lines, and finds its place again at a line's start after a broken
// one.
func (r *reading) records(text []byte) {
	strict := false
	for rest := bytes.TrimLeft(text, jsonSpace); len(rest) > 0; rest = bytes.TrimLeft(rest, jsonSpace) {
		if r.full(rest) {
			return
		}
		var n int
		n, strict = recordLength(rest, strict)
		r.value(bytes.Trim(rest[:n], jsonSpace))
		rest = rest[n:]
	}
}

// recordLength returns where the record that begins rest ends. Syntax decides first, so that no inner line of an object is taken for
// a record. Of a broken object everything before its break lies inside it; when its own line does not close it, only a '{' at the
// very start of a line begins another record, and strict asks that for what follows too, until a record is whole: an event must not
// be made of the parts of another. Each call reads little more than the bytes that it returns, whatever the text.
func recordLength(rest []byte, strict bool) (n int, nextStrict bool) {
	line := lineEnd(rest, 0)
	if rest[0] != '{' {
		return line, strict
	}
	d := newDecoder(rest, tolerant()...)
	if _, err := d.ReadValue(); err != nil {
		broken := line
		if syntactic, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
			broken = int(syntactic.ByteOffset)
		}
		if broken < line && rest[len(bytes.TrimRight(rest[:line], jsonSpace))-1] == '}' {
			return line, strict
		}
		return nextObject(rest, broken), true
	}
	whole := lineEnd(rest, int(d.InputOffset()))
	if len(bytes.Trim(rest[d.InputOffset():whole], jsonSpace)) > 0 {
		return whole, strict // more stands on its line
	}
	if next := bytes.TrimLeft(rest[whole:], "\r\n"); strict && len(next) > 0 && next[0] != '{' {
		return nextObject(rest, whole), true
	}
	return whole, false
}

// lineEnd returns where the line that holds the byte at from ends.
func lineEnd(text []byte, from int) int {
	if at := bytes.IndexByte(text[from:], '\n'); at >= 0 {
		return from + at
	}
	return len(text)
}

// nextObject returns where, from the byte before from on, a line begins with '{'.
func nextObject(text []byte, from int) int {
	from = min(max(from-1, 0), len(text))
	if at := bytes.Index(text[from:], []byte("\n{")); at >= 0 {
		return from + at
	}
	return len(text)
}

// value reads what should be one object.
func (r *reading) value(text []byte) {
	if text[0] != '{' {
		r.refuse(text, notAnObjectFault(text))
		return
	}
	var m members
	if err := r.s.readMembers(&m, text); err != nil {
		// A bad element inside a CloudEvent's data must not take the others along: read the envelope
		// alone, the elements are read strictly one by one later.
		if r.tolerantEnvelope(&m, text) {
			r.envelope(text, &m)
			return
		}
		r.refuse(text, brokenFault(text, err))
		return
	}
	if m.isEnvelope() && !r.p.mapped {
		r.envelope(text, &m)
		return
	}
	event, fault := r.event(text, &m)
	r.objects = append(r.objects, Object{Index: len(r.objects), Raw: text, Event: event, Fault: fault})
}

// envelope reads the data of a structured CloudEvent as a body of its own.
func (r *reading) envelope(text []byte, m *members) {
	content, fault := m.content()
	switch {
	case fault != nil:
		r.refuse(text, fault)
	case len(bytes.Trim(content, jsonSpace)) == 0:
		r.refuse(text, faultf(FaultEmptyBody, "the CloudEvent's data is empty: put the billing event there"))
	case r.wrapped:
		r.refuse(text, faultf(FaultBadCloudEvent, "a CloudEvent lies inside the data of another: send one envelope"))
	default:
		r.wrapped = true
		r.body(content)
		r.wrapped = false
	}
}

func (r *reading) tolerantEnvelope(m *members, text []byte) bool {
	if r.p.mapped || r.wrapped {
		return false
	}
	if err := r.s.readMembers(m, text, tolerant()...); err != nil || !m.isEnvelope() || m.data == nil {
		return false
	}
	// Data in a string is out: unquoting would replace its bad bytes and so make another customer.
	kind := m.data[0]
	return (kind == '{' || kind == '[') && r.s.onlyDataIsBad(text)
}

func (r *reading) refuse(raw []byte, fault *Fault) {
	r.objects = append(r.objects, Object{Index: len(r.objects), Raw: raw, Fault: fault})
}

// refuseRest refuses text from start on, or all of it when nothing is left to show.
func (r *reading) refuseRest(text []byte, start int, fault *Fault) {
	rest := bytes.Trim(text[start:], jsonSpace)
	if len(rest) == 0 {
		rest = text
	}
	r.refuse(rest, fault)
}

// full ends the reading of a body that has more parts than any valid one could have.
func (r *reading) full(rest []byte) bool {
	if len(r.objects) < r.p.maxObjects {
		return false
	}
	r.refuse(rest, faultf(FaultTooManyObjects, "the body has more than %d parts: split it", r.p.maxObjects))
	return true
}

// isBinaryCloudEvent knows the names that the AMQP, Kafka, HTTP and MQTT bindings give to the
// attribute that every CloudEvent has.
func isBinaryCloudEvent(attrs map[string]string) bool {
	for name := range attrs {
		switch strings.ToLower(name) {
		case "cloudevents:specversion", "cloudevents_specversion", "ce-specversion", "ce_specversion":
			return true
		}
	}
	return false
}
