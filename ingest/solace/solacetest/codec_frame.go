package solacetest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
)

// Bits of a frame's first word, and the protocols that it names.
const (
	frameHeaderBytes = 12
	wordADF          = 1 << 28 // a guaranteed message
	wordDMQ          = 1 << 27 // eligible for a dead message queue
	wordDiscarded    = 1 << 31
	smfVersion       = 3
	ttlControl       = 1
	ttlMessage       = 255

	protoAssured   = 0x09
	protoKeepAlive = 0x0b
	protoClient    = 0x0c
	protoMessage   = 0x0d
	protoSMP       = 0x0f
)

// Header parameters.
const (
	headPublisherID    = 0x01
	headPublisherMsgID = 0x02
	headPriority       = 0x03
	headUserData       = 0x04
	headUsername       = 0x06 // base64
	headPassword       = 0x07 // base64
	headResponse       = 0x08
	headDeliveryMode   = 0x10
	headMessageID      = 0x11
	headPreviousID     = 0x12
	headRedelivered    = 0x13
	headSummary        = 0x16
	headFlowID         = 0x17
	headTopic          = 0x18
	headFlowRedeliver  = 0x19
	headExtended       = 0x1f
)

// Extended parameters, the contents of headExtended.
const (
	extSpoolID     = 0x29
	extUniqueID    = 0x2c
	extMateID      = 0x2d
	extRedelivered = 0x2e
	extIssuer      = 0x2f
	extIDToken     = 0x30
	extAccessToken = 0x31
)

// What a receiver does with a parameter that it does not know.
const (
	ignoreUnknown  = 0
	discardUnknown = 2
)

const (
	// chunkBytes is allocated at once for a frame; more only as its bytes arrive.
	chunkBytes = 64 << 10
	// maxParams bounds the parameters of one frame; a real one has a dozen.
	maxParams = 256
)

// frame is one decoded frame. Its slices share the buffer that it was read into.
type frame struct {
	word    uint32
	tag     []byte // correlation tag of 3 bytes, nil when there is none
	params  []param
	payload []byte
}

// param is an element of any of the parameter lists: of headers, extended headers, and control messages.
type param struct {
	unknown byte // what to do with it when its kind is unknown
	kind    uint16
	value   []byte
}

func (f frame) protocol() byte { return byte(f.word >> 16 & 0x3f) }
func (f frame) isADF() bool    { return f.word&wordADF != 0 }

// find returns a parameter's value, nil when it is absent and not nil when it is empty.
func (f frame) find(kind uint16) []byte { return findParam(f.params, kind) }

func findParam(params []param, kind uint16) []byte {
	for _, p := range params {
		if p.kind == kind {
			return p.value
		}
	}
	return nil
}

// uintOf reads a number of 1 to 8 bytes.
func uintOf(value []byte) (uint64, bool) {
	if len(value) == 0 || len(value) > 8 {
		return 0, false
	}
	var n uint64
	for _, b := range value {
		n = n<<8 | uint64(b)
	}
	return n, true
}

// uint32Of is 0 when there is no number or a larger one.
func uint32Of(value []byte) uint32 {
	n, _ := uintOf(value)
	if n > math.MaxUint32 {
		return 0
	}
	return uint32(n)
}

// textOf reads a text that ends with its first zero byte, if it has one.
func textOf(value []byte) string {
	if end := bytes.IndexByte(value, 0); end >= 0 {
		value = value[:end]
	}
	return string(value)
}

// maxControlBytes bounds all frames that are no messages.
const maxControlBytes = 64 << 10

// readFrame reads and checks one frame; a message may have messageBytes in all. What it allocates follows what arrives, not
// what is announced.
func readFrame(r io.Reader, messageBytes int) (frame, error) {
	var header [frameHeaderBytes]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return frame{}, err
	}
	word, total := binary.BigEndian.Uint32(header[:]), binary.BigEndian.Uint32(header[8:])
	if version := word >> 24 & 7; version != smfVersion {
		return frame{}, fmt.Errorf("frame of SMF version %d, not %d", version, smfVersion)
	}
	limit := maxControlBytes
	if (frame{word: word}).protocol() == protoMessage {
		limit = messageBytes
	}
	if total < frameHeaderBytes || uint64(total) > uint64(limit) {
		return frame{}, fmt.Errorf("frame of %d bytes is outside %d..%d", total, frameHeaderBytes, limit)
	}
	body, err := readBody(r, int(total)-frameHeaderBytes)
	if err != nil {
		return frame{}, err
	}
	return parseFrame(word, binary.BigEndian.Uint32(header[4:]), body)
}

func readBody(r io.Reader, size int) ([]byte, error) {
	if size <= chunkBytes {
		body := make([]byte, size)
		if _, err := io.ReadFull(r, body); err != nil {
			return nil, unexpected(err)
		}
		return body, nil
	}
	var body bytes.Buffer
	if _, err := io.CopyN(&body, r, int64(size)); err != nil {
		return nil, unexpected(err)
	}
	return bytes.Clone(body.Bytes()), nil // a buffer that grew is up to twice as large, and messages are kept
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// parseFrame takes apart what follows the 12 fixed bytes; headerBytes is the header's announced length.
func parseFrame(word, headerBytes uint32, body []byte) (frame, error) {
	size := int64(headerBytes) - frameHeaderBytes
	if size < 0 || size > int64(len(body)) {
		return frame{}, fmt.Errorf("frame header of %d bytes is outside the frame", headerBytes)
	}
	f := frame{word: word, payload: body[size:]}
	for rest := body[:size]; len(rest) > 0; {
		first := rest[0]
		if first&0x20 != 0 { // the light form: up to 3 bytes of value
			n := 1 + int(first&3)
			if n > len(rest) {
				return frame{}, errors.New("light parameter is cut short")
			}
			if first>>2&7 == 0 {
				f.tag = rest[1:n]
			}
			rest = rest[n:]
			continue
		}
		if first&0x1f == 0 {
			break // padding
		}
		value, after, err := splitLength(rest)
		if err != nil {
			return frame{}, fmt.Errorf("header parameter %#x: %w", first&0x1f, err)
		}
		if len(f.params) == maxParams {
			return frame{}, fmt.Errorf("frame has more than %d parameters", maxParams)
		}
		f.params = append(f.params, param{first >> 6, uint16(first & 0x1f), value})
		rest = after
	}
	return f, nil
}

// splitLength splits a parameter of one byte, a length of 1 byte (or 0 and 4 bytes) that counts itself too, and a value.
func splitLength(rest []byte) (value, after []byte, err error) {
	if len(rest) < 2 {
		return nil, nil, errors.New("is cut short")
	}
	start, size := 2, uint64(rest[1])
	if size == 0 {
		if len(rest) < 6 {
			return nil, nil, errors.New("long length is cut short")
		}
		start, size = 6, uint64(binary.BigEndian.Uint32(rest[2:]))
	}
	if size < uint64(start) || size > uint64(len(rest)) {
		return nil, nil, fmt.Errorf("length %d is outside %d..%d", size, start, len(rest))
	}
	return rest[start:size:size], rest[size:], nil
}

// parseExtended takes apart the extended parameters.
func parseExtended(rest []byte) ([]param, error) {
	var out []param
	for len(rest) > 0 {
		if len(rest) < 2 {
			return nil, errors.New("extended parameter is cut short")
		}
		if len(out) == maxParams {
			return nil, fmt.Errorf("more than %d extended parameters", maxParams)
		}
		head := binary.BigEndian.Uint16(rest)
		start, size := 2, 2
		switch mode := head >> 12 & 7; {
		case mode == 0:
		case mode <= 4:
			size += 1 << (mode - 1)
		case mode == 5 && len(rest) >= 3:
			start, size = 3, int(rest[2])
		case mode == 6 && len(rest) >= 4:
			start, size = 4, int(binary.BigEndian.Uint16(rest[2:]))
		default:
			return nil, fmt.Errorf("extended parameter %#x: length mode %d", head&0xfff, mode)
		}
		if size < start || size > len(rest) {
			return nil, fmt.Errorf("extended parameter %#x: length %d is outside %d..%d", head&0xfff, size, start, len(rest))
		}
		out = append(out, param{byte(head >> 15), head & 0xfff, rest[start:size:size]})
		rest = rest[size:]
	}
	return out, nil
}

// controlWord is the first word of our control frames.
func controlWord(protocol byte) uint32 {
	return smfVersion<<24 | uint32(protocol)<<16 | ttlControl
}

// appendFrame encodes one frame from its encoded parameters and payload.
func appendFrame(dst []byte, word uint32, params, payload []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, word)
	dst = binary.BigEndian.AppendUint32(dst, uint32(frameHeaderBytes+len(params)))              //nolint:gosec // our own frames are small
	dst = binary.BigEndian.AppendUint32(dst, uint32(frameHeaderBytes+len(params)+len(payload))) //nolint:gosec // within the limit of a message
	return append(append(dst, params...), payload...)
}

// appendParam encodes a parameter of a header or of an AssuredCtrl message.
func appendParam(dst []byte, unknown, kind byte, value []byte) []byte {
	dst = append(dst, unknown<<6|kind)
	if n := len(value) + 2; n <= 255 {
		dst = append(dst, byte(n))
	} else {
		dst = binary.BigEndian.AppendUint32(append(dst, 0), uint32(n+4)) //nolint:gosec // within the limit of a message
	}
	return append(dst, value...)
}

// narrow is the kind of a parameter that was read from one byte.
func narrow(kind uint16) byte { return byte(kind & 0x3f) }

func appendParam32(dst []byte, unknown, kind byte, n uint32) []byte {
	return binary.BigEndian.AppendUint32(append(dst, unknown<<6|kind, 6), n)
}

func appendParam64(dst []byte, unknown, kind byte, n uint64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, unknown<<6|kind, 10), n)
}

func appendText(dst []byte, unknown, kind byte, s string) []byte {
	return appendParam(dst, unknown, kind, append([]byte(s), 0))
}

// appendTag begins a header with a request's correlation tag.
func appendTag(tag []byte) []byte {
	if tag == nil {
		return nil
	}
	return append([]byte{0x20 | byte(len(tag))}, tag...) //nolint:gosec // 3 bytes at most
}

// appendResponse encodes the verdict on a request.
func appendResponse(dst []byte, code uint32, text string) []byte {
	value := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(text)), code)
	return appendParam(dst, ignoreUnknown, headResponse, append(value, text...))
}

// appendExtended64 encodes an extended parameter of 8 bytes.
func appendExtended64(dst []byte, kind uint16, n uint64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint16(dst, 4<<12|kind), n)
}

func appendExtended32(dst []byte, kind uint16, n uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(dst, 3<<12|kind), n)
}
