package solacetest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
)

// Types of structured data.
const (
	sdtNull   = 0x00
	sdtBool   = 0x01
	sdtInt    = 0x02
	sdtUint   = 0x03
	sdtFloat  = 0x04
	sdtBytes  = 0x06
	sdtString = 0x07
	sdtMapTag = 0x0a
	sdtStream = 0x0b
)

const maxDepth = 32 // of maps and streams within each other

// Kinds of content in a payload with a content summary.
const (
	contentXML      = 1
	contentBinary   = 2
	contentMetadata = 4
)

// First byte of a metadata block's preamble: what the attachment is.
const (
	preambleBinary = 0x80
	preambleText   = 0x07
	preambleMap    = 0x0a
)

// sdtMap keeps the order of its pairs, as the encoding does.
type sdtMap []sdtPair

type sdtPair struct {
	key   string
	value any
}

func (m sdtMap) find(key string) any {
	for _, p := range m {
		if p.key == key {
			return p.value
		}
	}
	return nil
}

// sortedMap checks and orders properties.
func sortedMap(values map[string]any) (sdtMap, error) {
	var out sdtMap
	for _, key := range slices.Sorted(maps.Keys(values)) {
		switch v := values[key].(type) {
		case nil, string, bool, int64, float64, []byte:
			out = append(out, sdtPair{key, v})
		case int:
			out = append(out, sdtPair{key, int64(v)})
		default:
			return nil, fmt.Errorf("%q is a %T", key, v)
		}
	}
	return out, nil
}

// appendSDT encodes a value: those of sortedMap, sdtMap, or []any for a stream.
func appendSDT(dst []byte, value any) []byte {
	switch v := value.(type) {
	case nil:
		return append(dst, sdtNull<<2, 2)
	case bool:
		b := byte(0)
		if v {
			b = 1
		}
		return append(dst, sdtBool<<2, 3, b)
	case int64:
		return binary.BigEndian.AppendUint64(append(dst, sdtInt<<2, 10), uint64(v)) //nolint:gosec // two's complement is the encoding
	case float64:
		return binary.BigEndian.AppendUint64(append(dst, sdtFloat<<2, 10), math.Float64bits(v))
	case []byte:
		return appendElement(dst, sdtBytes, v)
	case string:
		return appendElement(dst, sdtString, append([]byte(v), 0))
	case sdtMap:
		var body []byte
		for _, p := range v {
			body = appendSDT(appendSDT(body, p.key), p.value)
		}
		return appendContainer(dst, sdtMapTag, body)
	case []any:
		var body []byte
		for _, element := range v {
			body = appendSDT(body, element)
		}
		return appendContainer(dst, sdtStream, body)
	default:
		panic(fmt.Sprintf("internal error: no structured data for %T", value))
	}
}

// appendElement writes the shortest length.
func appendElement(dst []byte, kind byte, body []byte) []byte {
	switch n := len(body); {
	case n+2 <= math.MaxUint8:
		dst = append(dst, kind<<2, byte(n+2))
	case n+3 <= math.MaxUint16:
		dst = binary.BigEndian.AppendUint16(append(dst, kind<<2|1), uint16(n+3))
	default:
		dst = binary.BigEndian.AppendUint32(append(dst, kind<<2|3), uint32(n+5)) //nolint:gosec // within the limit of a message
	}
	return append(dst, body...)
}

// appendContainer writes a length of four bytes, as the clients do for maps, streams and the text of a message.
func appendContainer(dst []byte, kind byte, body []byte) []byte {
	dst = binary.BigEndian.AppendUint32(append(dst, kind<<2|3), uint32(len(body)+5)) //nolint:gosec // within the limit of a message
	return append(dst, body...)
}

// splitSDT splits one element from the rest.
func splitSDT(data []byte) (kind byte, body, rest []byte, err error) {
	if len(data) < 2 {
		return 0, nil, nil, errors.New("structured data is cut short")
	}
	kind = data[0] >> 2
	start := 2 + int(data[0]&3)
	if len(data) < start {
		return 0, nil, nil, errors.New("length of structured data is cut short")
	}
	size, _ := uintOf(data[1:start])
	if size < uint64(start) || size > uint64(len(data)) {
		return 0, nil, nil, fmt.Errorf("structured data of type %#x: length %d is outside %d..%d", kind, size, start, len(data))
	}
	return kind, data[start:size], data[size:], nil
}

// parseSDT decodes one element: nil, bool, int64, uint64, float64, []byte, string, sdtMap or []any. Types that the ledger
// does not show stay []byte.
func parseSDT(data []byte, depth int) (value any, rest []byte, err error) {
	kind, body, rest, err := splitSDT(data)
	if err != nil {
		return nil, nil, err
	}
	if depth > maxDepth {
		return nil, nil, fmt.Errorf("structured data is deeper than %d", maxDepth)
	}
	switch kind {
	case sdtNull:
		return nil, rest, nil
	case sdtBool:
		return len(body) > 0 && body[0] != 0, rest, nil
	case sdtInt, sdtUint:
		n, ok := uintOf(body)
		if !ok {
			return nil, nil, fmt.Errorf("number of %d bytes", len(body))
		}
		if kind == sdtUint {
			return n, rest, nil
		}
		shift := 64 - 8*len(body)
		return int64(n<<shift) >> shift, rest, nil //nolint:gosec // two's complement is the encoding
	case sdtFloat:
		switch len(body) {
		case 4:
			return float64(math.Float32frombits(binary.BigEndian.Uint32(body))), rest, nil
		case 8:
			return math.Float64frombits(binary.BigEndian.Uint64(body)), rest, nil
		}
		return nil, nil, fmt.Errorf("floating-point number of %d bytes", len(body))
	case sdtString:
		return textOf(body), rest, nil
	case sdtMapTag:
		value, err = parseMap(body, depth)
	case sdtStream:
		value, err = parseStream(body, depth)
	default:
		value = body
	}
	return value, rest, err
}

func parseStream(body []byte, depth int) ([]any, error) {
	var out []any
	for len(body) > 0 {
		value, rest, err := parseSDT(body, depth+1)
		if err != nil {
			return nil, fmt.Errorf("stream: %w", err)
		}
		out, body = append(out, value), rest
	}
	return out, nil
}

func parseMap(body []byte, depth int) (sdtMap, error) {
	var out sdtMap
	for len(body) > 0 {
		kind, key, rest, err := splitSDT(body)
		if err != nil || kind != sdtString {
			return nil, fmt.Errorf("map: key of type %#x: %w", kind, err)
		}
		value, rest, err := parseSDT(rest, depth+1)
		if err != nil {
			return nil, fmt.Errorf("map: value of %.40q: %w", textOf(key), err)
		}
		out, body = append(out, sdtPair{textOf(key), value}), rest
	}
	return out, nil
}

// appendSummary encodes one element of a content summary.
func appendSummary(dst []byte, kind byte, size int) []byte {
	switch {
	case size <= math.MaxUint8:
		return append(dst, kind<<4|2, byte(size)) //nolint:gosec // checked in the case
	case size <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, kind<<4|3), uint16(size))
	default:
		return binary.BigEndian.AppendUint32(append(dst, kind<<4|5), uint32(size)) //nolint:gosec // within the limit of a message
	}
}

// content is one part of a payload.
type content struct {
	kind byte
	body []byte
}

// splitContent takes a payload apart by its content summary; without one all of it is a binary attachment.
func splitContent(summary, payload []byte) ([]content, error) {
	if summary == nil {
		if len(payload) == 0 {
			return nil, nil
		}
		return []content{{contentBinary, payload}}, nil
	}
	var out []content
	for len(summary) > 0 {
		kind, n := summary[0]>>4, int(summary[0]&15)
		if n < 2 || n > 5 || n > len(summary) {
			return nil, fmt.Errorf("content summary has an element of %d bytes", n)
		}
		size, _ := uintOf(summary[1:n])
		if size > uint64(len(payload)) {
			return nil, fmt.Errorf("content of %d bytes in a payload of %d", size, len(payload))
		}
		out = append(out, content{kind, payload[:size:size]})
		summary, payload = summary[n:], payload[size:]
	}
	return out, nil
}

// appendMetadata encodes a binary metadata block: one chunk, a stream of a preamble and the two maps.
func appendMetadata(dst []byte, kind byte, properties, header sdtMap) []byte {
	var maps sdtMap
	if len(header) > 0 {
		maps = append(maps, sdtPair{"h", header})
	}
	if len(properties) > 0 {
		maps = append(maps, sdtPair{"p", properties})
	}
	stream := []any{[]byte{kind, 0}}
	if maps != nil {
		stream = append(stream, maps)
	}
	chunk := appendSDT(nil, stream)
	length := binary.BigEndian.AppendUint32(nil, uint32(len(chunk))) //nolint:gosec // within the limit of a message
	dst = append(dst, 1, 0)
	return append(append(dst, length[1:]...), chunk...)
}

// parseMetadata decodes the first chunk of a binary metadata block.
func parseMetadata(block []byte) (kind byte, maps sdtMap, err error) {
	if len(block) < 5 || block[0] == 0 || block[1] != 0 {
		return 0, nil, errors.New("metadata block without a chunk of structured data")
	}
	size := int(block[2])<<16 | int(block[3])<<8 | int(block[4])
	if size > len(block)-5 {
		return 0, nil, fmt.Errorf("metadata of %d bytes in a block of %d", size, len(block))
	}
	value, _, err := parseSDT(block[5:5+size], 0)
	if err != nil {
		return 0, nil, fmt.Errorf("metadata: %w", err)
	}
	stream, ok := value.([]any)
	if !ok {
		return 0, nil, fmt.Errorf("metadata is a %T, not a stream", value)
	}
	for _, element := range stream {
		switch v := element.(type) {
		case []byte:
			if len(v) > 0 {
				kind = v[0]
			}
		case sdtMap:
			maps = v
		}
	}
	return kind, maps, nil
}

// inspect reads what the ledger shows of a message; what it cannot read it leaves out, for the message is the consumer's.
func inspect(f frame) messageInfo {
	parts, err := splitContent(f.find(headSummary), f.payload)
	if err != nil {
		return messageInfo{}
	}
	var out messageInfo
	for _, part := range parts {
		if part.kind != contentMetadata {
			continue
		}
		if _, maps, err := parseMetadata(part.body); err == nil {
			if header, ok := maps.find("h").(sdtMap); ok {
				out.applicationID, _ = header.find("mi").(string)
			}
		}
	}
	return out
}
