package solacetest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// queuePrefix begins the topics that name a queue.
const queuePrefix = "#P2P/QUE/"

// publish takes a message from a client.
func (c *conn) publish(f frame) error {
	m, err := newMessage(f)
	if err != nil {
		return err
	}
	direct := !f.isADF()
	verdict := c.server.onPublish(Publication{Client: c.client, Topic: m.topic, Direct: direct, ApplicationMessageID: m.info.applicationID})
	if errors.Is(verdict, ErrDrop) {
		return errDropped
	}
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	if direct {
		c.server.promote(m, verdict)
		return nil
	}
	flowID := uint32Of(f.find(headFlowID))
	id, ok := uintOf(f.find(headMessageID))
	at := slices.IndexFunc(c.publishers, func(p *publisher) bool { return p.id == flowID })
	if at < 0 || !ok {
		return fmt.Errorf("guaranteed message without an id or on publisher flow %d, which is not open", flowID)
	}
	return c.take(c.publishers[at], id, m, verdict)
}

// take stores a guaranteed message, once, and acknowledges it. Called with mu held.
func (c *conn) take(p *publisher, id uint64, m *message, verdict error) error {
	s := c.server
	if id <= p.last {
		s.counters.Republished++
		p.due = true
		c.poke()
		return nil
	}
	if errors.Is(verdict, ErrHold) || errors.Is(verdict, ErrLose) {
		s.counters.PublishLost++
		return nil
	}
	refusal := refusalOf(verdict)
	if refusal == nil {
		refusal = s.spoolTo(m)
	}
	p.last = id
	if refusal != nil {
		c.refusePublish(p, id, refusal)
		return nil
	}
	s.counters.Published++
	if errors.Is(verdict, ErrDropAfter) {
		return errDropped
	}
	p.due = true
	c.poke()
	return nil
}

func (c *conn) refusePublish(p *publisher, id uint64, r *Refusal) {
	c.server.counters.PublishRefused++
	c.control = p.appendAck(c.control) // of what came before
	c.queue(appendAssured(nil, appendResponse(nil, r.Code, r.Text), assuredAck, p.ackParams(id)))
}

// promote spools a direct message that a queue subscribes to. Called with mu held.
func (s *Server) promote(m *message, verdict error) {
	if verdict != nil || s.cfg.NoPromotion {
		s.counters.PublishLost++
		return
	}
	before := s.lastID
	if s.spoolTo(m) != nil {
		s.counters.PublishLost++ // a direct publisher is told nothing
		return
	}
	if s.lastID > before {
		s.counters.Promoted++
	}
}

// spoolTo stores a message on every queue that its topic names or that subscribes to it. Called with mu held.
func (s *Server) spoolTo(m *message) *Refusal {
	var targets []*queue
	if name, ok := strings.CutPrefix(m.topic, queuePrefix); ok {
		q := s.queues[name]
		if q == nil {
			return refusalUnknownQueue
		}
		targets = append(targets, q)
	} else {
		for _, name := range s.names {
			if q := s.queues[name]; slices.ContainsFunc(q.Subscriptions, func(pattern string) bool { return topicMatches(pattern, m.topic) }) {
				targets = append(targets, q)
			}
		}
	}
	if len(targets) == 0 {
		s.counters.Unmatched++ // accepted all the same, as by a broker with default settings
		return nil
	}
	if len(m.payload) > s.cfg.MaxMessageBytes {
		return &Refusal{Code: 400, Text: "Document Is Too Large"}
	}
	if !s.hasRoom(m, len(targets)) {
		return &Refusal{Code: 503, Text: "Spool Over Quota"}
	}
	for _, q := range targets {
		s.put(q, m)
		q.dispatch()
	}
	return nil
}

// topicMatches compares level by level: "*" at the end of a level matches the rest of it, ">" alone at the end one or more.
func topicMatches(pattern, topic string) bool {
	for {
		p, patternRest, patternMore := strings.Cut(pattern, "/")
		t, topicRest, topicMore := strings.Cut(topic, "/")
		if p == ">" && !patternMore {
			return true
		}
		if prefix, ok := strings.CutSuffix(p, "*"); ok {
			if !strings.HasPrefix(t, prefix) {
				return false
			}
		} else if p != t {
			return false
		}
		if patternMore != topicMore {
			return false
		}
		if !patternMore {
			return true
		}
		pattern, topic = patternRest, topicRest
	}
}

// PublishQueue stores a message on a queue, as a publisher to the queue would.
func (s *Server) PublishQueue(queueName string, m Message) error {
	return s.PublishTopic(queuePrefix+queueName, m)
}

// PublishTopic stores a message on every queue that subscribes to the topic, as a publisher of guaranteed messages would.
func (s *Server) PublishTopic(topic string, m Message) error {
	f, err := m.frame(topic)
	if err != nil {
		return fmt.Errorf("publish to %.80q: %w", topic, err)
	}
	return s.publishFrame(topic, f)
}

// PublishDirect publishes a direct message to a topic: queues that subscribe to it get it as non-persistent, unless
// Config.NoPromotion.
func (s *Server) PublishDirect(topic string, m Message) error {
	f, err := m.frame(topic)
	if err != nil {
		return fmt.Errorf("publish to %.80q: %w", topic, err)
	}
	f.word &^= wordADF
	return s.publishFrame(topic, f)
}

func (s *Server) publishFrame(topic string, f frame) error {
	stored, err := newMessage(f)
	if err != nil {
		return fmt.Errorf("publish to %.80q: %w", topic, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !f.isADF() {
		s.promote(stored, nil)
	} else if refusal := s.spoolTo(stored); refusal != nil {
		return fmt.Errorf("publish to %.80q: %w", topic, refusal)
	}
	return nil
}

// publisher is a flow of guaranteed messages to us; guarded by spool.mu.
type publisher struct {
	id   uint32
	name string
	last uint64 // id of the last message that was answered
	due  bool   // an acknowledgement is
}

// appendAck encodes the acknowledgement that is due, if one is: for the last message and all before it.
func (p *publisher) appendAck(dst []byte) []byte {
	if !p.due {
		return dst
	}
	p.due = false
	return appendAssured(dst, appendResponse(nil, 200, "OK"), assuredAck, p.ackParams(p.last))
}

func (p *publisher) ackParams(id uint64) []byte {
	params := appendParam32(nil, discardUnknown, adFlowID, p.id)
	params = appendParam64(params, discardUnknown, adLastAcked, id)
	return appendParam(params, ignoreUnknown, adWindow, []byte{defaultWindow})
}

// openPublisher answers an OPENPUBFLOW: a new flow, or the one that the client names and had before its connection broke.
func (c *conn) openPublisher(f frame, a assured) error {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(c.publishers) >= maxFlows {
		c.answer(f, assuredOpenPub, &Refusal{Code: 503, Text: "Too Many Publishers"}, nil)
		return nil
	}
	name := textOf(a.find(adFlowName))
	p := s.publishers[name]
	if name != "" && p == nil {
		c.answer(f, assuredOpenPub, &Refusal{Code: 400, Text: "Unknown Flow Name"}, nil)
		return nil
	}
	s.lastFlow++
	if p == nil {
		p = &publisher{name: fmt.Sprintf("%s/%d", routerName, s.lastFlow)}
		s.remember(p)
	}
	for other := range s.conns {
		other.publishers = slices.DeleteFunc(other.publishers, func(o *publisher) bool { return o == p })
	}
	p.id, p.due = s.lastFlow, false
	c.publishers = append(c.publishers, p)
	params := appendParam32(nil, discardUnknown, adFlowID, p.id)
	params = appendText(params, discardUnknown, adFlowName, p.name)
	params = appendParam64(params, discardUnknown, adLastSent, p.last)
	params = appendParam64(params, discardUnknown, adLastAcked, p.last)
	params = appendParam(params, ignoreUnknown, adWindow, []byte{defaultWindow})
	params = binary.BigEndian.AppendUint32(append(params, adPublisherID, 6), p.id)
	c.answer(f, assuredOpenPub, nil, params)
	return nil
}

func (s *spool) remember(p *publisher) {
	s.publishers[p.name] = p
	s.publisherNames = append(s.publisherNames, p.name)
	if len(s.publisherNames) > maxPublishers {
		delete(s.publishers, s.publisherNames[0])
		s.publisherNames = s.publisherNames[1:]
	}
}

func (c *conn) closePublisher(f frame, a assured) error {
	id := uint32Of(a.find(adFlowID))
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	c.publishers = slices.DeleteFunc(c.publishers, func(p *publisher) bool { return p.id == id })
	c.answer(f, assuredClosePub, nil, appendParam32(nil, discardUnknown, adFlowID, id))
	return nil
}

// subscribe answers an SMP message. The only subscription that a client of ours makes is the one for its own topic, which
// the client library adds by itself.
func (c *conn) subscribe(f frame) error {
	sub, err := parseSubscription(f.payload)
	if err != nil {
		return err
	}
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if sub.kind != smpAdd || sub.topic != c.p2pTopic()+"/>" {
		c.violate("subscription of kind %d to topic %.80q for queue %.80q", sub.kind, sub.topic, sub.queue)
	}
	head := appendResponse(appendTag(f.tag), 200, "OK")
	c.queue(appendFrame(nil, controlWord(protoSMP), head, f.payload))
	return nil
}
