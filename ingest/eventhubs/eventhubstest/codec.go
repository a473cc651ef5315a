package eventhubstest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// Limits of the decoder. A frame that breaks one ends its connection, whatever its declared counts say.
const (
	maxFrameBytes = 64 << 10 // bytes of one incoming frame, as announced in our open
	maxDepth      = 32       // nested values
	maxElements   = 1 << 16  // list, map and array elements of one decoded value, all levels together
)

// AMQP 1.0 format codes used when encoding or told apart when decoding.
const (
	codeDescribed = 0x00
	codeNull      = 0x40
	codeTrue      = 0x41
	codeFalse     = 0x42
	codeUint0     = 0x43
	codeUlong0    = 0x44
	codeList0     = 0x45
	codeUbyte     = 0x50
	codeSmallUint = 0x52
	codeSmallUlng = 0x53
	codeSmallLong = 0x55
	codeBool      = 0x56
	codeUshort    = 0x60
	codeUint      = 0x70
	codeInt       = 0x71
	codeUlong     = 0x80
	codeLong      = 0x81
	codeTimestamp = 0x83
	codeBin8      = 0xa0
	codeStr8      = 0xa1
	codeSym8      = 0xa3
	codeBin32     = 0xb0
	codeStr32     = 0xb1
	codeSym32     = 0xb3
	codeList8     = 0xc0
	codeMap8      = 0xc1
	codeList32    = 0xd0
	codeMap32     = 0xd1
	codeArray8    = 0xe0
	codeArray32   = 0xf0
)

var (
	errShort    = errors.New("value ends early")
	errTrailing = errors.New("bytes left over inside a compound value")
	errTooDeep  = fmt.Errorf("values nested deeper than %d levels", maxDepth)
	errTooMany  = fmt.Errorf("more than %d elements", maxElements)
)

// splitValue returns the first encoded value of b, checked whole, and what follows it. It allocates nothing.
func splitValue(b []byte) (value, rest []byte, err error) {
	d := decoder{buf: b, elements: maxElements}
	if err := d.skipValue(0); err != nil {
		return nil, nil, err
	}
	n := len(b) - len(d.buf)
	return b[:n], b[n:], nil
}

// decoder walks encoded values without building them; elements is what is left of the element budget.
type decoder struct {
	buf      []byte
	elements int
}

func (d *decoder) next(n int) ([]byte, error) {
	if n < 0 || n > len(d.buf) {
		return nil, errShort
	}
	out := d.buf[:n]
	d.buf = d.buf[n:]
	return out, nil
}

func (d *decoder) size(width int) (int, error) {
	b, err := d.next(width)
	if err != nil {
		return 0, err
	}
	if width == 1 {
		return int(b[0]), nil
	}
	return int(binary.BigEndian.Uint32(b)), nil
}

func (d *decoder) skipValue(depth int) error {
	code, err := d.constructor(depth)
	if err != nil {
		return err
	}
	return d.skipBody(code, depth)
}

// constructor reads a format code and, before it, any descriptor.
func (d *decoder) constructor(depth int) (byte, error) {
	for {
		b, err := d.next(1)
		if err != nil {
			return 0, err
		}
		if b[0] != codeDescribed {
			return b[0], nil
		}
		if depth++; depth > maxDepth {
			return 0, errTooDeep
		}
		if err := d.skipValue(depth); err != nil {
			return 0, err
		}
	}
}

func (d *decoder) skipBody(code byte, depth int) error {
	if depth > maxDepth {
		return errTooDeep
	}
	width := 1
	if code&0x10 != 0 {
		width = 4
	}
	switch {
	case fixedWidth(code) >= 0:
		_, err := d.next(fixedWidth(code))
		return err
	case isOneOf(code, codeBin8, codeStr8, codeSym8, codeBin32, codeStr32, codeSym32):
		n, err := d.size(width)
		if err == nil {
			_, err = d.next(n)
		}
		return err
	case isOneOf(code, codeList8, codeMap8, codeList32, codeMap32, codeArray8, codeArray32):
		return d.skipCompound(code, width, depth+1)
	default:
		return fmt.Errorf("unknown format code %#02x", code)
	}
}

// skipCompound walks a list, map or array inside its own declared size.
func (d *decoder) skipCompound(code byte, width, depth int) error {
	n, err := d.size(width)
	if err != nil {
		return err
	}
	body, err := d.next(n)
	if err != nil {
		return err
	}
	in := decoder{buf: body, elements: d.elements}
	count, err := in.size(width)
	if err != nil {
		return err
	}
	if count > in.elements {
		return errTooMany
	}
	if isOneOf(code, codeMap8, codeMap32) && count%2 != 0 {
		return errors.New("map with a key that has no value")
	}
	in.elements -= count
	if err := in.skipElements(isOneOf(code, codeArray8, codeArray32), count, depth); err != nil {
		return err
	}
	if len(in.buf) != 0 {
		return errTrailing
	}
	d.elements = in.elements
	return nil
}

func (d *decoder) skipElements(array bool, count, depth int) error {
	if !array {
		for range count {
			if err := d.skipValue(depth); err != nil {
				return err
			}
		}
		return nil
	}
	code, err := d.constructor(depth)
	if err != nil {
		return err
	}
	for range count {
		if err := d.skipBody(code, depth); err != nil {
			return err
		}
	}
	return nil
}

// fixedWidth is the number of bytes after a fixed-width format code, or -1.
func fixedWidth(code byte) int {
	switch code {
	case codeNull, codeTrue, codeFalse, codeUint0, codeUlong0, codeList0:
		return 0
	case codeUbyte, 0x51, codeSmallUint, codeSmallUlng, 0x54, codeSmallLong, codeBool:
		return 1
	case codeUshort, 0x61:
		return 2
	case codeUint, codeInt, 0x72, 0x73, 0x74:
		return 4
	case codeUlong, codeLong, 0x82, codeTimestamp, 0x84:
		return 8
	case 0x94, 0x98:
		return 16
	default:
		return -1
	}
}

func isOneOf(code byte, codes ...byte) bool {
	return slices.Contains(codes, code)
}

// splitDescribed takes a described value apart; the descriptor must be a ulong.
func splitDescribed(b []byte) (descriptor uint64, value, rest []byte, err error) {
	whole, rest, err := splitValue(b)
	if err != nil {
		return 0, nil, nil, err
	}
	if whole[0] != codeDescribed {
		return 0, nil, nil, errors.New("value has no descriptor")
	}
	desc, value, err := splitValue(whole[1:])
	if err != nil {
		return 0, nil, nil, err
	}
	n, ok := uintOf(desc)
	if !ok {
		return 0, nil, nil, errors.New("descriptor is not a number")
	}
	return n, value, rest, nil
}

// splitCompound returns the encoded elements of a checked list or map (keys and values in turn).
func splitCompound(b []byte) ([][]byte, error) {
	if len(b) == 0 || b[0] == codeList0 {
		return nil, nil
	}
	var header int
	var count int
	switch {
	case isOneOf(b[0], codeList8, codeMap8) && len(b) >= 3:
		header, count = 3, int(b[2])
	case isOneOf(b[0], codeList32, codeMap32) && len(b) >= 9:
		header, count = 9, int(binary.BigEndian.Uint32(b[5:9]))
	default:
		return nil, fmt.Errorf("format code %#02x is no list or map", b[0])
	}
	if count > maxElements || count > len(b) {
		return nil, errTooMany
	}
	out := make([][]byte, 0, count)
	rest := b[header:]
	for range count {
		value, after, err := splitValue(rest)
		if err != nil {
			return nil, err
		}
		out, rest = append(out, value), after
	}
	return out, nil
}

func uintOf(b []byte) (uint64, bool) {
	if len(b) == 0 {
		return 0, false
	}
	switch b[0] {
	case codeUint0, codeUlong0:
		return 0, true
	case codeUbyte, codeSmallUint, codeSmallUlng:
		return uint64(b[1]), true
	case codeUshort:
		return uint64(binary.BigEndian.Uint16(b[1:])), true
	case codeUint:
		return uint64(binary.BigEndian.Uint32(b[1:])), true
	case codeUlong:
		return binary.BigEndian.Uint64(b[1:]), true
	default:
		return 0, false
	}
}

func intOf(b []byte) (int64, bool) {
	if len(b) == 0 {
		return 0, false
	}
	switch b[0] {
	case 0x51, 0x54, codeSmallLong:
		return int64(int8(b[1])), true //nolint:gosec // two's complement by definition of the format codes
	case 0x61:
		return int64(int16(binary.BigEndian.Uint16(b[1:]))), true //nolint:gosec // as above
	case codeInt:
		return int64(int32(binary.BigEndian.Uint32(b[1:]))), true //nolint:gosec // as above
	case codeLong, codeTimestamp:
		return int64(binary.BigEndian.Uint64(b[1:])), true //nolint:gosec // as above
	default:
		return 0, false
	}
}

// bytesOf is the content of a string, symbol or binary; it shares memory with b.
func bytesOf(b []byte) ([]byte, bool) {
	switch {
	case len(b) >= 2 && isOneOf(b[0], codeBin8, codeStr8, codeSym8):
		return b[2:], true
	case len(b) >= 5 && isOneOf(b[0], codeBin32, codeStr32, codeSym32):
		return b[5:], true
	default:
		return nil, false
	}
}

func stringOf(b []byte) (string, bool) {
	s, ok := bytesOf(b)
	return string(s), ok
}

func boolOf(b []byte) bool {
	return len(b) > 0 && (b[0] == codeTrue || b[0] == codeBool && b[1] == 1)
}

// Types that tell the encoder which AMQP type a Go value becomes.
type (
	symbol string
	ubyte  uint8
	ulong  uint64
	raw    []byte // already encoded
	list   []any
	// composite is a list under a small-ulong descriptor, the only form that go-amqp accepts.
	composite struct {
		code   byte
		fields list
	}
)

// appendValue encodes v after dst. Sizes are always the 32-bit forms: a few bytes more, no second pass.
func appendValue(dst []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(dst, codeNull)
	case bool:
		if v {
			return append(dst, codeTrue)
		}
		return append(dst, codeFalse)
	case ubyte:
		return append(dst, codeUbyte, byte(v))
	case uint16:
		return binary.BigEndian.AppendUint16(append(dst, codeUshort), v)
	case uint32:
		return binary.BigEndian.AppendUint32(append(dst, codeUint), v)
	case ulong:
		return binary.BigEndian.AppendUint64(append(dst, codeUlong), uint64(v))
	case string:
		return append(binary.BigEndian.AppendUint32(append(dst, codeStr32), uint32(len(v))), v...) //nolint:gosec // strings here are short
	case symbol:
		return append(binary.BigEndian.AppendUint32(append(dst, codeSym32), uint32(len(v))), v...) //nolint:gosec // as above
	case []byte:
		return append(binary.BigEndian.AppendUint32(append(dst, codeBin32), uint32(len(v))), v...) //nolint:gosec // as above
	case raw:
		if len(v) == 0 {
			return append(dst, codeNull)
		}
		return append(dst, v...)
	case list:
		return appendList(dst, v)
	case composite:
		return appendList(append(dst, codeDescribed, codeSmallUlng, v.code), v.fields)
	default:
		panic(fmt.Sprintf("internal error: no AMQP encoding for %T", v))
	}
}

func appendList(dst []byte, fields list) []byte {
	if len(fields) == 0 {
		return append(dst, codeList0)
	}
	dst = append(dst, codeList32)
	start := len(dst)
	dst = binary.BigEndian.AppendUint32(dst, 0)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(fields))) //nolint:gosec // at most a dozen fields
	for _, f := range fields {
		dst = appendValue(dst, f)
	}
	binary.BigEndian.PutUint32(dst[start:], uint32(len(dst)-start-4)) //nolint:gosec // bounded by the frame size
	return dst
}
