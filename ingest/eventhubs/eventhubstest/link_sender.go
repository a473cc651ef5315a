package eventhubstest

import (
	"encoding/binary"
	"log/slog"
	"slices"

	"github.com/Azure/go-amqp"
)

// transferOverheadBytes bounds a transfer frame's header and performative.
const transferOverheadBytes = 64

// appendNext encodes the link's next message, or what the session window lets through of it, after buf. Called with
// Server.mu held.
func (l *sendLink) appendNext(buf []byte) []byte {
	if l.rest == nil && !l.begin() {
		if l.drain && l.session.window > 0 { // no event is left, or no credit
			l.drain = false
			l.deliveryCount += l.credit
			l.credit = 0
			flow := l.session.flowFrame(l.handle, l.deliveryCount, l.credit, true)
			buf = appendFrame(buf, frameTypeAMQP, l.session.channel, flow, nil)
		}
		return buf
	}
	chunk := l.session.conn.maxFrame - transferOverheadBytes
	for l.rest != nil && l.session.window > 0 && len(buf) < writeChunkBytes {
		part := l.rest[:min(chunk, len(l.rest))]
		more := len(part) < len(l.rest)
		body := composite{performTransfer, list{l.handle, nil, nil, nil, true, more}}
		if l.fresh {
			id := l.session.nextDelivery
			l.session.nextDelivery++
			body.fields[1] = id
			body.fields[2] = binary.BigEndian.AppendUint32(nil, id)
			body.fields[3] = uint32(0)
			l.fresh = false
		}
		buf = appendFrame(buf, frameTypeAMQP, l.session.channel, body, part)
		l.session.nextOutgoing++
		l.session.window--
		if l.rest = l.rest[len(part):]; !more {
			l.rest = nil
		}
	}
	return buf
}

// sendLink is a link on which the server sends: events of a partition, or replies. Guarded by Server.mu.
type sendLink struct {
	Attach
	session       *session
	handle        uint32
	credit        uint32
	deliveryCount uint32
	drain         bool   // the client asked to have its credit used up and waits for a flow
	rest          []byte // of the message under way; nil between messages
	fresh         bool   // nothing of rest was sent

	partition *partition // nil on a reply link
	next      int64      // sequence number delivered next
	replyTo   string
	replies   [][]byte
}

// begin takes the next message if there are one, credit and window.
func (l *sendLink) begin() bool {
	if l.credit == 0 || l.session.window == 0 {
		return false
	}
	l.rest = l.take()
	if l.rest == nil {
		return false
	}
	l.fresh = true
	l.credit--
	l.deliveryCount++
	return true
}

func (l *sendLink) take() []byte {
	if l.partition == nil {
		if len(l.replies) == 0 {
			return nil
		}
		reply := l.replies[0]
		l.replies = l.replies[1:]
		return reply
	}
	l.next = max(l.next, l.partition.first) // retention may have overtaken the reader
	if l.next >= l.partition.end() {
		return nil
	}
	server := l.session.conn.server
	if server.strike(l.partition.hub.name, l.partition.id, l.next, FaultSilence) != nil {
		return nil
	}
	e := l.partition.at(l.next)
	l.next++
	server.counters.Deliveries++
	annotations := e.annotations
	if spoiled := server.mutate(l, e); spoiled != nil {
		if section, err := (&amqp.Message{Annotations: spoiled}).MarshalBinary(); err == nil {
			annotations = section
		} else {
			server.cfg.Logger.Error("annotations from a hook cannot be encoded", slog.Any("error", err))
		}
	}
	return slices.Concat(annotations, e.body)
}

// forget takes the link out of its partition and connection.
func (l *sendLink) forget() {
	c := l.session.conn
	c.senders = slices.DeleteFunc(c.senders, func(other *sendLink) bool { return other == l })
	if l.partition != nil && l.partition.readers[l] {
		delete(l.partition.readers, l)
		c.server.counters.Receivers--
	}
}
