package eventhubstest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/Azure/go-amqp"
)

// Descriptors of the performatives, SASL frames, delivery states and message sections.
const (
	performOpen        = 0x10
	performBegin       = 0x11
	performAttach      = 0x12
	performFlow        = 0x13
	performTransfer    = 0x14
	performDisposition = 0x15
	performDetach      = 0x16
	performEnd         = 0x17
	performClose       = 0x18

	saslMechanisms = 0x40
	saslInit       = 0x41
	saslOutcome    = 0x44

	typeError     = 0x1d
	stateAccepted = 0x24
	stateRejected = 0x25

	sectionHeader      = 0x70
	sectionAnnotations = 0x72
	sectionProperties  = 0x73
	sectionData        = 0x75
	sectionFooter      = 0x78
)

const (
	frameHeaderBytes = 8
	frameTypeAMQP    = 0
	frameTypeSASL    = 1
)

// frame is one decoded frame: the performative's fields still encoded, and what follows them.
type frame struct {
	kind    byte
	channel uint16
	code    uint64 // 0 for an empty (keep-alive) frame
	fields  fields
	payload []byte
}

// readFrame reads and checks one frame of at most maxFrameBytes. Its contents share one new buffer.
func readFrame(r io.Reader) (frame, error) {
	var header [frameHeaderBytes]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return frame{}, err
	}
	size := binary.BigEndian.Uint32(header[:4])
	if size < frameHeaderBytes || size > maxFrameBytes {
		return frame{}, fmt.Errorf("frame of %d bytes is outside %d..%d", size, frameHeaderBytes, maxFrameBytes)
	}
	body := make([]byte, size-frameHeaderBytes)
	if _, err := io.ReadFull(r, body); err != nil {
		return frame{}, err
	}
	return parseFrame(header, body)
}

func parseFrame(header [frameHeaderBytes]byte, body []byte) (frame, error) {
	f := frame{kind: header[5], channel: binary.BigEndian.Uint16(header[6:])}
	extended := int(header[4])*4 - frameHeaderBytes
	if extended < 0 || extended > len(body) {
		return frame{}, errors.New("frame's data offset points outside the frame")
	}
	body = body[extended:]
	if len(body) == 0 {
		return f, nil
	}
	code, value, rest, err := splitDescribed(body)
	if err != nil {
		return frame{}, fmt.Errorf("performative: %w", err)
	}
	f.code, f.payload = code, rest
	if f.fields, err = splitCompound(value); err != nil {
		return frame{}, fmt.Errorf("performative %#x: %w", code, err)
	}
	return f, nil
}

// fields are the encoded fields of a performative; absent and null ones read as "not there".
type fields [][]byte

func (f fields) raw(i int) raw {
	if i >= len(f) || f[i][0] == codeNull {
		return nil
	}
	return f[i]
}

func (f fields) uint32(i int) (uint32, bool) {
	n, ok := uintOf(f.raw(i))
	return uint32(n), ok && n <= 1<<32-1 //nolint:gosec // checked in the same expression
}

func (f fields) string(i int) string {
	s, _ := stringOf(f.raw(i))
	return s
}

func (f fields) bool(i int) bool { return boolOf(f.raw(i)) }

// composite returns the fields of a described list such as a source or target.
func (f fields) composite(i int) fields {
	value := f.raw(i)
	if value == nil {
		return nil
	}
	_, body, _, err := splitDescribed(value)
	if err != nil {
		return nil
	}
	inner, err := splitCompound(body)
	if err != nil {
		return nil
	}
	return inner
}

// mapping returns a map field with string or symbol keys, values still encoded.
func (f fields) mapping(i int) map[string][]byte {
	pairs, err := splitCompound(f.raw(i))
	if err != nil {
		return nil
	}
	out := make(map[string][]byte, len(pairs)/2)
	for k := 0; k+1 < len(pairs); k += 2 {
		if key, ok := stringOf(pairs[k]); ok {
			out[key] = pairs[k+1]
		}
	}
	return out
}

// appendFrame encodes one frame after dst.
func appendFrame(dst []byte, kind byte, channel uint16, body composite, payload []byte) []byte {
	start := len(dst)
	dst = binary.BigEndian.AppendUint16(append(dst, 0, 0, 0, 0, 2, kind), channel)
	dst = appendValue(dst, body)
	dst = append(dst, payload...)
	binary.BigEndian.PutUint32(dst[start:], uint32(len(dst)-start)) //nolint:gosec // callers keep to the peer's frame size
	return dst
}

// appendEmptyFrame encodes a keep-alive.
func appendEmptyFrame(dst []byte) []byte {
	return append(dst, 0, 0, 0, frameHeaderBytes, 2, frameTypeAMQP, 0, 0)
}

// errorValue encodes err; whatever is not an *amqp.Error becomes amqp:internal-error.
func errorValue(err error) any {
	if err == nil {
		return nil
	}
	var amqpErr *amqp.Error
	if !errors.As(err, &amqpErr) {
		amqpErr = &amqp.Error{Condition: amqp.ErrCondInternalError, Description: err.Error()}
	}
	return composite{typeError, list{symbol(amqpErr.Condition), amqpErr.Description}}
}

func amqpError(condition amqp.ErrCond, format string, args ...any) *amqp.Error {
	return &amqp.Error{Condition: condition, Description: fmt.Sprintf(format, args...)}
}
