package solacetest

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// AssuredCtrl messages.
const (
	assuredVersion   = 3
	assuredOpenPub   = 0x00
	assuredAck       = 0x03
	assuredBind      = 0x04
	assuredUnbind    = 0x05
	assuredUnsub     = 0x06
	assuredClosePub  = 0x07
	assuredCreate    = 0x08
	assuredDelete    = 0x09
	assuredFlowState = 0x0c
)

// Parameters of AssuredCtrl messages.
const (
	adLastSent      = 0x01
	adLastAcked     = 0x02
	adWindow        = 0x03
	adAppAck        = 0x05
	adFlowID        = 0x06
	adQueue         = 0x07
	adTopicEndpoint = 0x08
	adFlowName      = 0x0a
	adDurability    = 0x0b
	adAccess        = 0x0c
	adLastReceived  = 0x10
	adPermissions   = 0x15
	adActive        = 0x20
	adWantActive    = 0x21
	adPublisherID   = 0x23
	adMaxUnacked    = 0x31
	adReplayStart   = 0x33
	adErrorID       = 0x34
	adUniqueID      = 0x36
)

const (
	durabilityNone     = 2
	accessExclusive    = 1
	accessNonExclusive = 2
	permissionConsume  = 3
)

// assured is a decoded AssuredCtrl message.
type assured struct {
	kind   byte
	params []param
}

func (a assured) find(kind uint16) []byte { return findParam(a.params, kind) }

func (a assured) uint64(kind uint16) (uint64, bool) { return uintOf(a.find(kind)) }

func parseAssured(payload []byte) (assured, error) {
	if len(payload) < 6 {
		return assured{}, errors.New("AssuredCtrl is cut short")
	}
	if version := payload[0] & 0x3f; version != assuredVersion {
		return assured{}, fmt.Errorf("AssuredCtrl of version %d, not %d", version, assuredVersion)
	}
	if n := binary.BigEndian.Uint32(payload[2:]); uint64(n) != uint64(len(payload)) {
		return assured{}, fmt.Errorf("AssuredCtrl announces %d bytes of %d", n, len(payload))
	}
	out := assured{kind: payload[1]}
	for rest := payload[6:]; len(rest) > 0; {
		kind := rest[0] & 0x3f
		if kind == 0 {
			rest = rest[1:]
			continue
		}
		value, after, err := splitLength(rest)
		if err != nil {
			return assured{}, fmt.Errorf("AssuredCtrl parameter %#x: %w", kind, err)
		}
		if len(out.params) == maxParams {
			return assured{}, fmt.Errorf("AssuredCtrl has more than %d parameters", maxParams)
		}
		out.params = append(out.params, param{rest[0] >> 6, uint16(kind), value})
		rest = after
	}
	return out, nil
}

// appendAssured encodes a frame with an AssuredCtrl message of encoded parameters.
func appendAssured(dst, head []byte, kind byte, params []byte) []byte {
	payload := append(make([]byte, 0, 6+len(params)), assuredVersion, kind)
	payload = binary.BigEndian.AppendUint32(payload, uint32(6+len(params))) //nolint:gosec // our own messages are small
	return appendFrame(dst, controlWord(protoAssured), head, append(payload, params...))
}

// outcome is what a client says became of a message.
type outcome byte

const (
	outcomeAccepted outcome = 0
	outcomeFailed   outcome = 1
	outcomeReleased outcome = 2
	outcomeRejected outcome = 3
)

func (o outcome) String() string {
	switch o {
	case outcomeAccepted:
		return "accepted"
	case outcomeFailed:
		return "failed"
	case outcomeReleased:
		return "released"
	case outcomeRejected:
		return "rejected"
	}
	return fmt.Sprintf("outcome %d", byte(o))
}

// ackRange is one application acknowledgement: all unacked deliveries of the flow from min to max.
type ackRange struct {
	min, max uint64
	outcome  outcome
}

func parseAckRange(value []byte) (ackRange, error) {
	if len(value) != 16 && len(value) != 17 {
		return ackRange{}, fmt.Errorf("application acknowledgement of %d bytes", len(value))
	}
	r := ackRange{min: binary.BigEndian.Uint64(value), max: binary.BigEndian.Uint64(value[8:])}
	if len(value) == 17 {
		r.outcome = outcome(value[16])
	}
	if r.outcome > outcomeRejected {
		return ackRange{}, fmt.Errorf("application acknowledgement with %s", r.outcome)
	}
	if r.min > r.max {
		return ackRange{}, fmt.Errorf("application acknowledgement of %d to %d", r.min, r.max)
	}
	return r, nil
}

// ClientCtrl messages and their parameters.
const (
	clientLogin  = 0
	clientUpdate = 1

	ccPlatform     = 0x02
	ccUserID       = 0x03
	ccDescription  = 0x04
	ccClientName   = 0x05
	ccVPN          = 0x06
	ccP2PTopic     = 0x08
	ccCapabilities = 0x09
	ccRouterName   = 0x0c
	ccAuthScheme   = 0x11
	ccExtended     = 0x13

	authClientCert = 0x01
	authKerberos   = 0x02
	authOAuth2     = 0x0a
)

// clientCtrl is a decoded ClientCtrl message.
type clientCtrl struct {
	kind   byte
	params []param
}

func (c clientCtrl) find(kind uint16) []byte { return findParam(c.params, kind) }

func parseClientCtrl(payload []byte) (clientCtrl, error) {
	if len(payload) < 6 {
		return clientCtrl{}, errors.New("ClientCtrl is cut short")
	}
	if version := payload[0] & 7; version != 1 {
		return clientCtrl{}, fmt.Errorf("ClientCtrl of version %d, not 1", version)
	}
	if n := binary.BigEndian.Uint32(payload[2:]); uint64(n) != uint64(len(payload)) {
		return clientCtrl{}, fmt.Errorf("ClientCtrl announces %d bytes of %d", n, len(payload))
	}
	out := clientCtrl{kind: payload[1]}
	for rest := payload[6:]; len(rest) > 0; {
		if len(rest) < 5 {
			return clientCtrl{}, errors.New("ClientCtrl parameter is cut short")
		}
		size := uint64(binary.BigEndian.Uint32(rest[1:]))
		if size < 5 || size > uint64(len(rest)) {
			return clientCtrl{}, fmt.Errorf("ClientCtrl parameter %#x: length %d is outside 5..%d", rest[0]&0x7f, size, len(rest))
		}
		if len(out.params) == maxParams {
			return clientCtrl{}, fmt.Errorf("ClientCtrl has more than %d parameters", maxParams)
		}
		out.params = append(out.params, param{rest[0] >> 7, uint16(rest[0] & 0x7f), rest[5:size:size]})
		rest = rest[size:]
	}
	return out, nil
}

func appendClientParam(dst []byte, kind byte, value []byte) []byte {
	dst = binary.BigEndian.AppendUint32(append(dst, kind), uint32(5+len(value))) //nolint:gosec // our own values are small
	return append(dst, value...)
}

// appendClientCtrl encodes a frame with a ClientCtrl message.
func appendClientCtrl(head []byte, kind byte, params []byte) []byte {
	payload := binary.BigEndian.AppendUint32([]byte{1, kind}, uint32(6+len(params))) //nolint:gosec // our own messages are small
	return appendFrame(nil, controlWord(protoClient), head, append(payload, params...))
}

// SMP messages and flags.
const (
	smpAdd         = 0
	smpRemove      = 1
	smpAddQueue    = 2
	smpRemoveQueue = 3
)

// subscription is a decoded SMP message.
type subscription struct {
	kind  byte
	flags byte
	queue string // of smpAddQueue and smpRemoveQueue
	topic string
}

func parseSubscription(payload []byte) (subscription, error) {
	if len(payload) < 6 {
		return subscription{}, errors.New("SMP is cut short")
	}
	if n := binary.BigEndian.Uint32(payload[1:]); uint64(n) != uint64(len(payload)) {
		return subscription{}, fmt.Errorf("SMP announces %d bytes of %d", n, len(payload))
	}
	out := subscription{kind: payload[0] & 0x7f, flags: payload[5]}
	rest := payload[6:]
	if out.kind < smpAddQueue {
		out.topic = textOf(rest)
		return out, nil
	}
	for _, field := range []*string{&out.queue, &out.topic} {
		if len(rest) < 1 || int(rest[0]) > len(rest)-1 {
			return subscription{}, errors.New("SMP for a queue is cut short")
		}
		end := 1 + int(rest[0])
		*field = textOf(rest[1:end])
		rest = rest[end:]
	}
	return out, nil
}
