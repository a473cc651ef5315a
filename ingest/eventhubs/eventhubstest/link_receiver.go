package eventhubstest

import (
	"errors"
	"fmt"

	"github.com/Azure/go-amqp"
)

// transfer takes one transfer frame; the last of a message stores its events or answers its request.
func (c *conn) transfer(f frame) error {
	l, d, err := c.gather(f)
	if err != nil || l == nil {
		return err
	}
	if l.kind == linkEvents {
		c.storeDelivery(l, d)
		return nil
	}
	return c.serveRequest(l, d)
}

// receiveLink is a link on which the server receives: events of a producer, or requests. Guarded by Server.mu.
type receiveLink struct {
	Attach
	session       *session
	handle        uint32
	credit        uint32
	deliveryCount uint32
	underWay      *delivery
}

// delivery is one message of a client.
type delivery struct {
	id      uint32
	format  uint32
	settled bool
	payload []byte
}

// gather adds the frame to its message and returns the message when it is complete, a nil link otherwise.
func (c *conn) gather(f frame) (*receiveLink, delivery, error) {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	sess := c.sessions[f.channel]
	handle, ok := f.fields.uint32(0)
	if sess == nil || !ok {
		return nil, delivery{}, fmt.Errorf("transfer on channel %d without session or handle", f.channel)
	}
	sess.nextIncoming++
	if sess.taken++; sess.taken >= sessionWindow/2 {
		c.queue(sess.channel, sess.flowFrame(nil, nil, nil, false))
	}
	l := sess.receivers[handle]
	if l == nil {
		if sess.detaching[handle] > 0 {
			return nil, delivery{}, nil // sent before our detach arrived
		}
		return nil, delivery{}, fmt.Errorf("transfer on handle %d without a link", handle)
	}
	if l.underWay == nil {
		id, ok := f.fields.uint32(1)
		if !ok {
			return nil, delivery{}, errors.New("first transfer of a message without delivery-id")
		}
		format, _ := f.fields.uint32(3)
		l.underWay = &delivery{id: id, format: format}
	}
	d := l.underWay
	if f.fields.bool(9) { // aborted
		l.underWay = nil
		return nil, delivery{}, nil
	}
	d.settled = d.settled || f.fields.bool(4)
	if int64(len(d.payload)+len(f.payload)) > c.server.cfg.MaxMessageBytes {
		sess.detachLink(handle, amqpError(amqp.ErrCondMessageSizeExceeded,
			"The received message exceeds the limit of %d bytes on this link.", c.server.cfg.MaxMessageBytes))
		return nil, delivery{}, nil
	}
	d.payload = append(d.payload, f.payload...)
	if f.fields.bool(5) { // more
		return nil, delivery{}, nil
	}
	l.underWay = nil
	l.deliveryCount++
	if l.credit--; l.credit <= linkCredit/2 {
		l.credit = linkCredit
		c.queue(sess.channel, sess.flowFrame(l.handle, l.deliveryCount, l.credit, false))
	}
	return l, *d, nil
}

// storeDelivery stores a producer's message and acknowledges it, unless a hook has it otherwise.
func (c *conn) storeDelivery(l *receiveLink, d delivery) {
	s := c.server
	key, events, err := splitBatch(d.format, d.payload)
	if err != nil {
		c.settle(l, d, amqpError(amqp.ErrCondDecodeError, "%v", err))
		return
	}
	for i := range events {
		if events[i].key == "" {
			events[i].key = key
		}
	}
	s.mu.Lock()
	p := s.target(l, key)
	s.mu.Unlock()
	if p == nil {
		c.settle(l, d, s.notFound(l.Address))
		return
	}
	verdict := s.onSend(Send{Hub: p.hub.name, PartitionID: p.id, PartitionKey: key, Events: len(events)})
	loseAck := errors.Is(verdict, ErrLoseAck)
	if errors.Is(verdict, ErrHold) {
		return
	}
	if verdict == nil || loseAck {
		s.mu.Lock()
		verdict = s.store(p, events)
		if verdict == nil {
			s.counters.Sends++
		}
		if loseAck {
			s.counters.AcksLost++
		}
		s.mu.Unlock()
	}
	if loseAck {
		c.drop()
		return
	}
	c.settle(l, d, verdict)
}

// target is where a producer's message goes; called with Server.mu held.
func (s *Server) target(l *receiveLink, key string) *partition {
	h := s.hub(l.Hub)
	if h == nil {
		return nil
	}
	if l.PartitionID != "" {
		return h.partition(l.PartitionID)
	}
	return h.route(key)
}

// settle accepts the message, or rejects it for a reason.
func (c *conn) settle(l *receiveLink, d delivery, reason error) {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	state := composite{stateAccepted, nil}
	if reason != nil {
		state = composite{stateRejected, list{errorValue(reason)}}
		if l.kind == linkEvents {
			c.server.counters.SendsRejected++
		}
	}
	if l.session.receivers[l.handle] != l || d.settled {
		return // the link is gone, or nobody waits
	}
	c.queue(l.session.channel, composite{performDisposition, list{true, d.id, d.id, true, state}})
}
