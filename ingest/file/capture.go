package file

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hamba/avro/v2"

	"chargeonce/ingest"
	"chargeonce/schema"
)

// capture reads what Event Hubs Capture writes: one record for each event, whose Body is the event's. An empty file is ordinary: Capture
// writes one for a window without events.
type capture struct {
	blocks *container
	fields []captureField
	detail map[string]string // of the file, by its path

	data  *avroData // of the present block
	from  int64     // where that begins in the file
	left  int64     // records of it that are not read yet
	index int64     // of the next record in the file
	done  bool
}

func (c *capture) next() (record, error) {
	for !c.done {
		switch {
		case c.left > 0:
			return c.record(), nil
		case c.data != nil && c.data.at < len(c.data.bytes):
			rest := c.data.bytes[c.data.at:]
			c.data = nil
			return c.fault(rest, contentErrorf("a block has %d bytes behind its last record", len(rest)), c.blocks.in.at), nil
		}
		c.from = c.blocks.in.at
		b, skipped, err := c.blocks.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			if _, content := errors.AsType[*contentError](err); !content {
				c.done = true
				return c.systemFault(err)
			}
			to := toEnd
			if skipped {
				to = c.blocks.in.at
			}
			c.done = !skipped
			r := c.fault(b.raw, err, to)
			if skipped {
				c.index += min(b.count, maxBlockBytes) - 1 // the records that the block says it has; no more can be
			}
			return r, nil
		}
		c.data, c.left = newAvroData(b.data), b.count
	}
	return record{}, io.EOF
}

// record decodes one record. Where that fails, the rest of its block cannot be told apart.
func (c *capture) record() record {
	at := c.data.at
	event, err := c.decode()
	if err == nil {
		c.left--
		r := record{Delivery: event, from: c.from, to: c.blocks.in.at}
		r.Position = c.place()
		c.index++
		return r
	}
	rest, lost := c.data.bytes[at:], c.left
	c.data, c.left = nil, 0
	r := c.fault(rest, fmt.Errorf("%w: %d records of its block cannot be read", err, lost), c.blocks.in.at)
	c.index += min(lost, maxBlockBytes) - 1
	return r
}

func (c *capture) place() string { return "[" + strconv.FormatInt(c.index, 10) + "]" }

// fault is a break; what could not be told apart is kept as far as it may be.
func (c *capture) fault(raw []byte, err error, to int64) record {
	what := "what follows is not read"
	if to != toEnd {
		what = "the file is read on behind its block"
	}
	r := record{from: c.from, to: to, lost: true, Delivery: ingest.Delivery{
		Body: bytes.Clone(raw[:min(len(raw), prefixBytes)]), Position: c.place(), Detail: c.detail,
		Unreadable: faultf(faultAvro, "the Capture file is broken at byte %d (%v), and %s: get a whole copy and import that", c.from, err, what),
	}}
	c.index++
	return r
}

func (c *capture) systemFault(err error) (record, error) {
	fault := unreadable(err, c.blocks.in.at)
	if fault == nil {
		return record{}, err
	}
	return record{from: c.from, to: toEnd, lost: true, Delivery: ingest.Delivery{Position: c.place(), Unreadable: fault}}, nil
}

// ErrNotCapture says that an Avro file has other records than Event Hubs Capture writes.
var ErrNotCapture = errors.New("the Avro records are not Event Hubs Capture's")

// newCapture reads the header. A broken one is no error: the reader then says what is wrong.
func newCapture(path string, in *input) (reader, error) {
	blocks, err := openContainer(in)
	if content, ok := errors.AsType[*contentError](err); ok {
		return &brokenFile{faultf(faultAvro, "the Capture file's header is broken (%v), and nothing of it is read: get a whole copy and import that", content)}, nil
	}
	switch {
	case errors.Is(err, errCodec):
		return nil, err
	case err != nil:
		return orBroken(err, in.at)
	}
	parsed, err := avro.ParseBytesWithCache(blocks.schema, "", &avro.SchemaCache{})
	if err != nil {
		return &brokenFile{faultf(faultAvro, "the Capture file's schema cannot be read (%v), and nothing of it is read: get a whole copy and import that", err)}, nil
	}
	fields, err := captureFields(parsed)
	if err != nil {
		return nil, err
	}
	return &capture{blocks: blocks, fields: fields, detail: detailOfPath(path)}, nil
}

// orBroken is the reader of a file whose beginning cannot be decompressed, or the system's error.
func orBroken(err error, at int64) (reader, error) {
	fault := unreadable(err, at)
	if fault == nil {
		return nil, err
	}
	return &brokenFile{fault}, nil
}

// brokenFile is one whose beginning already is unreadable.
type brokenFile struct{ fault *schema.Fault }

func (b *brokenFile) next() (record, error) {
	if b.fault == nil {
		return record{}, io.EOF
	}
	r := record{to: toEnd, lost: true, Delivery: ingest.Delivery{Unreadable: b.fault}}
	b.fault = nil
	return r, nil
}

// The fields of a Capture record. Properties may be missing; others are passed by.
const (
	fieldSequence         = "SequenceNumber"
	fieldOffset           = "Offset"
	fieldEnqueued         = "EnqueuedTimeUtc"
	fieldSystemProperties = "SystemProperties"
	fieldProperties       = "Properties"
	fieldBody             = "Body"
)

// captureField is one field of the file's records, in their order.
type captureField struct {
	name   string // "" for one that is passed by
	schema avro.Schema
}

// captureFields checks that the records are Capture's.
func captureFields(s avro.Schema) ([]captureField, error) {
	rec, ok := s.(*avro.RecordSchema)
	if !ok {
		return nil, fmt.Errorf("%w: they are of type %s, and must be records with the fields %s", ErrNotCapture, s.Type(), strings.Join(neededFields(), ", "))
	}
	var fields []captureField
	var missing []string
	for _, f := range rec.Fields() {
		kept := captureField{schema: f.Type()}
		types, wanted := captureTypes(f.Name())
		if wanted {
			kept.name = f.Name()
			if other := otherType(f.Type(), types); other != "" {
				return nil, fmt.Errorf("%w: field %s of record %s is of type %s, and must be %s", ErrNotCapture, f.Name(), rec.FullName(), other, joinTypes(types))
			}
		}
		fields = append(fields, kept)
	}
	for _, needed := range neededFields() {
		if !slices.ContainsFunc(fields, func(f captureField) bool { return f.name == needed }) {
			missing = append(missing, needed)
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("%w: record %s has no field %s; needed are %s", ErrNotCapture, rec.FullName(), strings.Join(missing, ", "), strings.Join(neededFields(), ", "))
	}
	return fields, nil
}

func neededFields() []string { return []string{fieldSequence, fieldOffset, fieldEnqueued, fieldBody} }

// captureTypes are the types that a field may have, null beside them.
func captureTypes(name string) (types []avro.Type, wanted bool) {
	switch name {
	case fieldSequence:
		return []avro.Type{avro.Long, avro.Int}, true
	case fieldOffset, fieldEnqueued:
		return []avro.Type{avro.String, avro.Long}, true
	case fieldBody:
		return []avro.Type{avro.Bytes, avro.String}, true
	case fieldProperties, fieldSystemProperties:
		return []avro.Type{avro.Map}, true
	}
	return nil, false
}

// otherType returns a type of s that is not among types; "" when there is none.
func otherType(s avro.Schema, types []avro.Type) string {
	branches := avro.Schemas{s}
	if union, ok := s.(*avro.UnionSchema); ok {
		branches = union.Types()
	}
	for _, b := range branches {
		if b.Type() != avro.Null && !slices.Contains(types, b.Type()) {
			return string(b.Type())
		}
	}
	return ""
}

func joinTypes(types []avro.Type) string {
	var names []string
	for _, t := range types {
		names = append(names, string(t))
	}
	return strings.Join(names, " or ")
}

// decode makes the delivery of the next record, without its position.
func (c *capture) decode() (ingest.Delivery, error) {
	d := ingest.Delivery{Detail: map[string]string{}}
	maps.Copy(d.Detail, c.detail)
	var properties, system map[string]any
	for _, f := range c.fields {
		value, err := c.data.value(f.schema, f.name != "", 0)
		if err != nil {
			return d, err
		}
		switch f.name {
		case fieldSequence:
			note(d.Detail, "sequence_number", value)
		case fieldOffset:
			note(d.Detail, "offset", value)
		case fieldEnqueued:
			if d.EnqueuedAt = enqueuedAt(value, f.schema); d.EnqueuedAt.IsZero() {
				note(d.Detail, "enqueued_time", value)
			}
		case fieldProperties:
			properties, _ = value.(map[string]any)
		case fieldSystemProperties:
			system, _ = value.(map[string]any)
		case fieldBody:
			switch body := value.(type) {
			case []byte:
				d.Body = bytes.Clone(body) // the block may be far larger than what is kept of it
			case string:
				d.Body = []byte(body)
			}
		}
	}
	note(d.Detail, "partition_key", system["x-opt-partition-key"])
	d.Attrs = attrs(system, properties)
	return d, nil
}

func note(detail map[string]string, name string, value any) {
	switch value := value.(type) {
	case string:
		if value != "" {
			detail[name] = value
		}
	case int64:
		detail[name] = strconv.FormatInt(value, 10)
	}
}

// attrs are the properties that are text: the producer's own before the system's.
func attrs(system, properties map[string]any) map[string]string {
	if len(system)+len(properties) == 0 {
		return nil
	}
	out := map[string]string{}
	for _, from := range []map[string]any{system, properties} {
		for name, value := range from {
			if text, ok := value.(string); ok {
				out[name] = text
			}
		}
	}
	return out
}

// enqueuedAt reads the time; the zero time where it cannot be read, for nothing but a trace depends on it.
func enqueuedAt(value any, s avro.Schema) time.Time {
	switch value := value.(type) {
	case string:
		for _, layout := range []string{
			"1/2/2006 3:04:05 PM", // what Capture writes (en-US)
			"1/2/2006 15:04:05",
			time.RFC3339Nano,
			"2006-01-02T15:04:05.999999999",
			"2006-01-02 15:04:05.999999999",
		} {
			if t, err := time.Parse(layout, value); err == nil {
				return storable(t)
			}
		}
	case int64:
		return storable(timeOf(value, s))
	}
	return time.Time{}
}

// timeOf takes a number by the unit that its schema names, else by its size: every unit of the last and next centuries has its own.
func timeOf(n int64, s avro.Schema) time.Time {
	logical := logicalType(s)
	switch {
	case logical == avro.TimestampMillis, logical == avro.LocalTimestampMillis:
		return time.UnixMilli(n)
	case logical == avro.TimestampMicros, logical == avro.LocalTimestampMicros:
		return time.UnixMicro(n)
	case n <= 0:
		return time.Time{}
	case n < 1e11:
		return time.Unix(n, 0)
	case n < 1e14:
		return time.UnixMilli(n)
	case n < 1e17:
		return time.UnixMicro(n)
	}
	return time.Time{}
}

func logicalType(s avro.Schema) avro.LogicalType {
	branches := avro.Schemas{s}
	if union, ok := s.(*avro.UnionSchema); ok {
		branches = union.Types()
	}
	for _, b := range branches {
		if typed, ok := b.(avro.LogicalTypeSchema); ok && b.Type() == avro.Long && typed.Logical() != nil {
			return typed.Logical().Type()
		}
	}
	return ""
}

// storable leaves out what no clock of a hub shows, and Postgres might refuse.
func storable(t time.Time) time.Time {
	if t.Year() < 2000 || t.Year() > 9999 {
		return time.Time{}
	}
	return t.UTC()
}

// detailOfPath takes hub and partition from the path that Capture gives its files by default:
// NAMESPACE/HUB/PARTITION/YYYY/MM/DD/HH/mm/SS.avro.
func detailOfPath(path string) map[string]string {
	const parts = 9
	elements := strings.Split(filepath.ToSlash(strings.TrimSuffix(path, filepath.Ext(path))), "/")
	if len(elements) < parts {
		return nil
	}
	elements = elements[len(elements)-parts:]
	for i, digits := range []int{0, 0, -1, 4, 2, 2, 2, 2, 2} {
		if digits != 0 && (strings.Trim(elements[i], "0123456789") != "" || elements[i] == "" || (digits > 0 && len(elements[i]) != digits)) {
			return nil
		}
	}
	return map[string]string{"eventhub_namespace": elements[0], "eventhub": elements[1], "partition": elements[2]}
}
