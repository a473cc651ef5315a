package solacetest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
)

// message is a stored message: what its publisher sent, unchanged, but for what belongs to one delivery. It is not changed
// after it was made and may be on several queues.
type message struct {
	word     uint32
	head     []byte // header parameters of the publisher, encoded
	extended []byte // extended header parameters of the publisher, encoded
	payload  []byte
	topic    string
	info     messageInfo
}

// messageInfo is what the ledger shows of a message's metadata.
type messageInfo struct {
	applicationID string
}

// messageOverheadBytes is what one stored message is charged beyond its bytes.
const messageOverheadBytes = 256

func (m *message) size() int64 {
	return int64(len(m.head)+len(m.extended)+len(m.payload)) + messageOverheadBytes
}

// Delivery modes.
const (
	modeNonPersistent = 0
	modePersistent    = 1
	modeDirect        = 2
)

// newMessage keeps of a publisher's frame what a consumer gets to see.
func newMessage(f frame) (*message, error) {
	m := &message{word: f.word&^uint32(wordDiscarded) | wordADF, payload: f.payload, topic: textOf(f.find(headTopic))}
	direct := !f.isADF()
	for _, p := range f.params {
		switch p.kind {
		case headPublisherID, headPublisherMsgID, headMessageID, headPreviousID, headRedelivered, headFlowID,
			headFlowRedeliver, headResponse, headUsername, headPassword:
			continue // of the way from the publisher to here
		case headExtended:
			m.extended = append(m.extended, p.value...)
			continue
		case headDeliveryMode:
			continue
		}
		m.head = appendParam(m.head, p.unknown, narrow(p.kind), p.value)
	}
	mode := byte(modePersistent)
	if given := f.find(headDeliveryMode); len(given) == 1 && given[0] == modeNonPersistent || direct {
		mode = modeNonPersistent
	}
	m.head = appendParam(m.head, ignoreUnknown, headDeliveryMode, []byte{mode})
	if err := validName("topic", m.topic); err != nil {
		return nil, err
	}
	if _, err := parseExtended(m.extended); err != nil {
		return nil, err
	}
	m.info = inspect(f)
	return m, nil
}

// deliveryHeader is what belongs to one delivery.
type deliveryHeader struct {
	flow              uint32
	id, previous      uint64
	spoolID, uniqueID uint64
	earlier           int  // deliveries before this one
	anonymous         bool // without a replication group message id
}

// appendDelivery encodes the message as sent to a consumer.
func (m *message) appendDelivery(dst []byte, d deliveryHeader) []byte {
	start := len(dst)
	dst = append(dst, make([]byte, frameHeaderBytes)...)
	dst = append(dst, m.head...)
	dst = appendParam64(dst, discardUnknown, headMessageID, d.id)
	dst = appendParam64(dst, discardUnknown, headPreviousID, d.previous)
	dst = appendParam32(dst, discardUnknown, headFlowID, d.flow)
	if d.earlier > 0 {
		dst = appendParam(dst, ignoreUnknown, headRedelivered, nil)
	}
	extended := make([]byte, 0, len(m.extended)+30)
	extended = append(extended, m.extended...)
	if !d.anonymous {
		extended = appendExtended64(extended, extSpoolID, d.spoolID)
		extended = appendExtended64(extended, extUniqueID, d.uniqueID)
	}
	if d.earlier > 0 {
		extended = appendExtended32(extended, extRedelivered, uint32(min(d.earlier, math.MaxInt32)))
	}
	dst = appendParam(dst, ignoreUnknown, headExtended, extended)
	header := len(dst) - start
	dst = append(dst, m.payload...)
	binary.BigEndian.PutUint32(dst[start:], m.word&^0xff|ttlMessage)
	binary.BigEndian.PutUint32(dst[start+4:], uint32(header))         //nolint:gosec // within the limit of a message
	binary.BigEndian.PutUint32(dst[start+8:], uint32(len(dst)-start)) //nolint:gosec // within the limit of a message
	return dst
}

// Message is what a test publishes without a client. It is encoded as the real client does. At most one of the payloads
// Text, Bytes and Map may be set; XML may stand beside any, as a second payload.
type Message struct {
	Text  *string
	Bytes []byte
	Map   map[string]any // structured data, which is neither text nor bytes; values as in Properties
	XML   []byte
	// Properties are the user properties. Values are string, bool, int, int64, float64, []byte or nil.
	Properties map[string]any

	ApplicationMessageID   string
	ApplicationMessageType string
	CorrelationID          string
	SenderID               string
	SenderTimestamp        time.Time
	SequenceNumber         *int64
	HTTPContentType        string
	HTTPContentEncoding    string
	Priority               *byte
	// DMQEligible lets a dead message queue with EligibleOnly take it.
	DMQEligible bool
}

// frame encodes the message as a guaranteed one to a topic.
func (m Message) frame(topic string) (frame, error) {
	f := frame{word: wordADF | smfVersion<<24 | protoMessage<<16 | ttlMessage}
	if m.DMQEligible {
		f.word |= wordDMQ
	}
	f.params = append(f.params, param{discardUnknown, headTopic, append([]byte(topic), 0)})
	if m.Priority != nil {
		f.params = append(f.params, param{ignoreUnknown, headPriority, []byte{*m.Priority}})
	}
	kind, attachment, err := m.attachment()
	if err != nil {
		return frame{}, err
	}
	metadata, err := m.metadata(kind)
	if err != nil {
		return frame{}, err
	}
	var summary []byte
	part := func(kind byte, content []byte) {
		if content != nil {
			summary = appendSummary(summary, kind, len(content))
			f.payload = append(f.payload, content...)
		}
	}
	part(contentXML, m.XML)
	part(contentBinary, attachment)
	part(contentMetadata, metadata)
	if m.XML != nil || metadata != nil {
		f.params = append(f.params, param{discardUnknown, headSummary, summary})
	}
	return f, nil
}

// attachment encodes the payload and says what it is.
func (m Message) attachment() (kind byte, encoded []byte, err error) {
	given := 0
	kind = preambleBinary
	if m.Bytes != nil {
		given++
		encoded = m.Bytes
	}
	if m.Text != nil {
		given++
		kind, encoded = preambleText, appendContainer(nil, sdtString, append([]byte(*m.Text), 0))
	}
	if m.Map != nil {
		given++
		values, err := sortedMap(m.Map)
		if err != nil {
			return 0, nil, fmt.Errorf("map: %w", err)
		}
		kind, encoded = preambleMap, appendSDT(nil, values)
	}
	if given > 1 {
		return 0, nil, errors.New("message has more than one of text, bytes and map")
	}
	return kind, encoded, nil
}

// metadata encodes the binary metadata block; kind says what the attachment is.
func (m Message) metadata(kind byte) ([]byte, error) {
	header := sdtMap{}
	text := func(key, value string) {
		if value != "" {
			header = append(header, sdtPair{key, value})
		}
	}
	text("ci", m.CorrelationID)
	text("mi", m.ApplicationMessageID)
	text("mt", m.ApplicationMessageType)
	text("si", m.SenderID)
	text("ct", m.HTTPContentType)
	text("ce", m.HTTPContentEncoding)
	if !m.SenderTimestamp.IsZero() {
		header = append(header, sdtPair{"ts", m.SenderTimestamp.UnixMilli()})
	}
	if m.SequenceNumber != nil {
		header = append(header, sdtPair{"sn", *m.SequenceNumber})
	}
	properties, err := sortedMap(m.Properties)
	if err != nil {
		return nil, fmt.Errorf("user properties: %w", err)
	}
	if len(properties) == 0 && len(header) == 0 && kind == preambleBinary {
		return nil, nil // the client writes no block then
	}
	return appendMetadata(nil, kind, properties, header), nil
}
