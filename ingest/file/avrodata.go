package file

import (
	"encoding/binary"
	"math"

	"github.com/hamba/avro/v2"
)

// avroData decodes values of any schema from the bytes of one block. Every step is bounded by them: neither a length nor a count that the
// bytes do not bear is believed.
type avroData struct {
	bytes []byte
	at    int
	steps int // what is left of the values that these bytes may hold
}

const (
	// maxAvroDepth bounds the nesting of values. Capture's have 3 levels.
	maxAvroDepth = 64
	// stepsBeside is how many values a block may hold beside one for each byte: those of type null take none.
	stepsBeside = 1 << 16
)

func newAvroData(data []byte) *avroData {
	return &avroData{bytes: data, steps: len(data) + stepsBeside}
}

// value decodes one value: nil, bool, int64, float64, string, []byte (a part of the block), or map[string]any. Of other types, and where
// keep is false, it only passes by and returns nil.
func (d *avroData) value(s avro.Schema, keep bool, depth int) (any, error) {
	if d.steps--; d.steps < 0 || depth > maxAvroDepth {
		return nil, contentErrorf("a record holds more values than its bytes can")
	}
	switch s := s.(type) {
	case *avro.NullSchema:
		return nil, nil
	case *avro.PrimitiveSchema:
		return d.primitive(s.Type(), keep)
	case *avro.RefSchema:
		return d.value(s.Schema(), keep, depth+1)
	case *avro.UnionSchema:
		branch, err := d.long()
		if err != nil {
			return nil, err
		}
		if branch < 0 || branch >= int64(len(s.Types())) {
			return nil, contentErrorf("a record chooses a type that its schema does not have")
		}
		return d.value(s.Types()[branch], keep, depth+1)
	case *avro.MapSchema:
		return d.mapping(s, keep, depth)
	case *avro.ArraySchema:
		return nil, d.items(func() error {
			_, err := d.value(s.Items(), false, depth+1)
			return err
		})
	case *avro.RecordSchema:
		for _, field := range s.Fields() {
			if _, err := d.value(field.Type(), false, depth+1); err != nil {
				return nil, err
			}
		}
		return nil, nil
	case *avro.EnumSchema:
		_, err := d.long()
		return nil, err
	case *avro.FixedSchema:
		_, err := d.take(int64(s.Size()))
		return nil, err
	}
	return nil, contentErrorf("a value has a type that is not known here")
}

func (d *avroData) primitive(t avro.Type, keep bool) (any, error) {
	switch t { //nolint:exhaustive // the other types are no primitives
	case avro.Boolean:
		b, err := d.take(1)
		return err == nil && b[0] != 0, err
	case avro.Int, avro.Long:
		return d.long()
	case avro.Float:
		b, err := d.take(4)
		if err != nil {
			return nil, err
		}
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b))), nil
	case avro.Double:
		b, err := d.take(8)
		if err != nil {
			return nil, err
		}
		return math.Float64frombits(binary.LittleEndian.Uint64(b)), nil
	case avro.String, avro.Bytes:
		n, err := d.long()
		if err != nil {
			return nil, err
		}
		b, err := d.take(n)
		if err != nil || !keep {
			return nil, err
		}
		if t == avro.String {
			return string(b), nil
		}
		return b, nil
	}
	return nil, contentErrorf("a value has the type %s, which is not known here", t)
}

func (d *avroData) mapping(s *avro.MapSchema, keep bool, depth int) (any, error) {
	out := map[string]any{}
	err := d.items(func() error {
		key, err := d.primitive(avro.String, keep)
		if err != nil {
			return err
		}
		value, err := d.value(s.Values(), keep, depth+1)
		if err != nil {
			return err
		}
		if name, ok := key.(string); ok {
			out[name] = value
		}
		return nil
	})
	return out, err
}

// items calls each for every item of an array or map.
func (d *avroData) items(each func() error) error {
	for {
		count, err := d.long()
		if err != nil || count == 0 {
			return err
		}
		if count < 0 {
			if count == math.MinInt64 {
				return contentErrorf("a record counts its items wrongly")
			}
			count = -count
			if _, err := d.long(); err != nil { // their size in bytes
				return err
			}
		}
		for ; count > 0; count-- {
			if err := each(); err != nil {
				return err
			}
		}
		if d.steps--; d.steps < 0 {
			return contentErrorf("a record holds more values than its bytes can")
		}
	}
}

func (d *avroData) take(n int64) ([]byte, error) {
	if n < 0 || n > int64(len(d.bytes)-d.at) {
		return nil, contentErrorf("a record ends behind its block")
	}
	from := d.at
	d.at += int(n)
	return d.bytes[from:d.at:d.at], nil
}

func (d *avroData) long() (int64, error) {
	n, size := binary.Varint(d.bytes[d.at:])
	if size <= 0 {
		return 0, contentErrorf("a record ends behind its block")
	}
	d.at += size
	return n, nil
}
