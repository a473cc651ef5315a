package solacetest

import (
	"encoding/binary"
	"errors"
	"slices"
	"sort"
)

// flow is a client's bind to a queue; all of it is guarded by spool.mu.
type flow struct {
	id       uint32
	conn     *conn
	queue    *queue
	window   int        // 0 = send nothing
	outbox   []*entry   // to be sent
	sent     []delivery // unacked, ids rising; holes are settled
	live     int        // of sent that are not settled
	inFlight []uint64   // ids that the client has not taken over, rising
	last     uint64     // id sent last
	wants    bool       // to be told when it becomes active
}

type delivery struct {
	id    uint64
	entry *entry // nil once settled
}

// bind answers a BIND.
func (c *conn) bind(f frame, a assured) error {
	name := textOf(a.find(adQueue))
	request := Bind{Client: c.client, Queue: name}
	if verdict := c.server.onBind(request); verdict != nil {
		return c.verdict(verdict, func(r *Refusal) { c.refuseBind(f, r) })
	}
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	q, refusal := c.admitBind(a, name)
	if refusal != nil {
		c.refuseBind(f, refusal)
		return nil
	}
	s.lastFlow++
	fl := &flow{id: s.lastFlow, conn: c, queue: q, wants: a.find(adWantActive) != nil}
	if window, ok := a.uint64(adWindow); ok {
		fl.window = int(min(window, defaultWindow))
	}
	if last, ok := a.uint64(adLastReceived); ok {
		fl.last = last
	}
	c.flows = append(c.flows, fl)
	q.flows = append(q.flows, fl)
	s.counters.Binds++
	active := byte(1)
	if q.Exclusive && q.flows[0] != fl {
		active = 0
	}
	access := byte(accessNonExclusive)
	if q.Exclusive {
		access = accessExclusive
	}
	params := appendParam32(nil, discardUnknown, adFlowID, fl.id) // without the queue's name: the client takes such an answer for none
	params = appendParam64(params, ignoreUnknown, adLastAcked, fl.last)
	params = appendParam(params, ignoreUnknown, adWindow, []byte{defaultWindow})
	params = appendParam(params, ignoreUnknown, adDurability, []byte{1})
	params = appendParam(params, ignoreUnknown, adAccess, []byte{access})
	params = appendParam32(params, ignoreUnknown, adPermissions, permissionConsume)
	params = appendParam(params, ignoreUnknown, adActive, []byte{active})
	params = appendParam32(params, ignoreUnknown, adMaxUnacked, uint32(q.MaxUnacked)) //nolint:gosec // a setting
	if !s.cfg.WithoutGroupIDs {
		params = appendParam64(params, ignoreUnknown, adUniqueID, s.uniqueID)
	}
	c.answer(f, assuredBind, nil, params)
	q.dispatch()
	return nil
}

// admitBind finds the queue of a BIND or says why not. Called with mu held.
func (c *conn) admitBind(a assured, name string) (*queue, *Refusal) {
	if a.find(adReplayStart) != nil {
		c.violate("BIND to queue %.80q asks for a replay", name)
		return nil, &Refusal{Code: 400, Text: "Replay Disabled"}
	}
	q := c.server.queues[name]
	durability, _ := a.uint64(adDurability)
	switch {
	case durability == durabilityNone:
		c.violate("BIND to a temporary queue %.80q", name)
		return nil, refusalUnknownQueue
	case a.find(adTopicEndpoint) != nil:
		c.violate("BIND to a topic endpoint")
		return nil, refusalUnknownQueue
	case q == nil:
		return nil, refusalUnknownQueue
	case q.shut:
		return nil, refusalShutdown
	case len(q.flows) >= q.MaxBinds:
		return nil, &Refusal{Code: 503, Text: "Max clients exceeded for queue"}
	case len(c.flows) >= maxFlows:
		return nil, &Refusal{Code: 503, Text: "Too Many Subscribers"}
	}
	return q, nil
}

func (c *conn) refuseBind(f frame, r *Refusal) {
	c.server.counters.BindsRefused++
	c.answer(f, assuredBind, r, nil)
}

// hasRoom says whether the flow can take one more message.
func (f *flow) hasRoom() bool {
	return f.window > len(f.inFlight)+len(f.outbox) && f.queue.MaxUnacked > f.live+len(f.outbox)
}

// appendNext encodes the next message of the outbox after buf, if there is one. Called with mu held.
func (f *flow) appendNext(buf []byte) []byte {
	if len(f.outbox) == 0 {
		return buf
	}
	e := f.outbox[0]
	f.outbox[0] = nil
	f.outbox = f.outbox[1:]
	m := e.message
	if len(f.conn.server.standing) > 0 {
		if fault := f.conn.server.strike(f.queue.Name, f.conn.client, FaultSpoil); fault != nil {
			m = m.spoil(fault.Spoil)
		}
	}
	return f.deliver(buf, e, m)
}

// deliver encodes one delivery of an entry, whose message is m unless it is spoiled, and takes note of it.
func (f *flow) deliver(buf []byte, e *entry, m *message) []byte {
	s := f.queue.spool
	s.lastSent++
	previous := f.last
	f.last = s.lastSent
	f.sent = append(f.sent, delivery{f.last, e})
	f.live++
	f.inFlight = append(f.inFlight, f.last)
	e.state = entryUnacked
	e.deliveries++
	f.queue.counters.Delivered++
	if e.deliveries > 1 {
		f.queue.counters.Redelivered++
	}
	return m.appendDelivery(buf, deliveryHeader{
		flow: f.id, id: f.last, previous: previous, spoolID: e.id, uniqueID: s.uniqueID, earlier: e.deliveries - 1,
		anonymous: f.conn.server.cfg.WithoutGroupIDs,
	})
}

// ack applies a CLIENTACK: what the client took over, its window, and what it has done with messages.
func (c *conn) ack(a assured) error {
	id := uint32Of(a.find(adFlowID))
	var ranges []ackRange
	for _, p := range a.params {
		if p.kind != adAppAck {
			continue
		}
		r, err := parseAckRange(p.value)
		if err != nil {
			return err
		}
		ranges = append(ranges, r)
	}
	var after error
	if len(ranges) > 0 {
		switch verdict := c.judgeAck(id, ranges); {
		case verdict == nil:
		case errors.Is(verdict, ErrLose):
			ranges = nil
		case errors.Is(verdict, ErrDropAfter):
			after = errDropped
		default:
			return errDropped
		}
	}
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	f := c.flow(id)
	if f == nil {
		c.server.counters.AcksUnmatched += int64(len(ranges)) // of a flow that the broker ended meanwhile
		return after
	}
	f.takeOver(a)
	for _, r := range ranges {
		if !f.apply(r) {
			after = errDropped
			break
		}
	}
	f.queue.dispatch()
	return after
}

// takeOver applies the transport's part of a CLIENTACK.
func (f *flow) takeOver(a assured) {
	if last, ok := a.uint64(adLastAcked); ok {
		n := sort.Search(len(f.inFlight), func(i int) bool { return f.inFlight[i] > last })
		f.inFlight = f.inFlight[n:]
	}
	if window, ok := a.uint64(adWindow); ok {
		f.window = int(min(window, defaultWindow))
	}
	if f.window == 0 {
		for _, e := range f.outbox {
			f.queue.giveBack(e)
		}
		f.outbox = nil
	}
}

// apply settles what is unacked in a range, whose ends need not be deliveries of this flow. It is false when a fault drops
// the connection on the way.
func (f *flow) apply(r ackRange) bool {
	s := f.conn.server
	matched, goOn := false, true
	for i := f.at(r.min); i < len(f.sent) && f.sent[i].id <= r.max && goOn; i++ {
		e := f.sent[i].entry
		if e == nil {
			continue
		}
		matched = true
		f.sent[i].entry = nil
		f.live--
		f.queue.settle(e, r.outcome)
		goOn = len(s.standing) == 0 || s.strike(f.queue.Name, f.conn.client, FaultDropAfterAcks) == nil
	}
	if !matched {
		s.counters.AcksUnmatched++
	}
	for len(f.sent) > 0 && f.sent[0].entry == nil {
		f.sent = f.sent[1:]
	}
	if len(f.sent) > 64 && len(f.sent) > 2*f.live {
		f.sent = slices.DeleteFunc(f.sent, func(d delivery) bool { return d.entry == nil })
	}
	return goOn
}

// at is the index in sent of the first delivery with at least this id.
func (f *flow) at(id uint64) int {
	return sort.Search(len(f.sent), func(i int) bool { return f.sent[i].id >= id })
}

// end takes the flow out of its queue, whose other flows get what it had. Called with mu held.
func (f *flow) end() {
	q := f.queue
	at := slices.Index(q.flows, f)
	q.flows = slices.Delete(q.flows, at, at+1)
	if at < q.turn {
		q.turn--
	}
	f.release()
	if q.Exclusive && at == 0 && len(q.flows) > 0 && q.flows[0].wants {
		heir := q.flows[0]
		params := appendParam32(nil, discardUnknown, adFlowID, heir.id)
		params = appendParam(params, ignoreUnknown, adActive, []byte{1})
		heir.conn.queue(appendAssured(nil, nil, assuredFlowState, params))
	}
	q.dispatch()
}

// release takes the flow off its connection and gives back all that it had.
func (f *flow) release() {
	f.conn.flows = slices.DeleteFunc(f.conn.flows, func(other *flow) bool { return other == f })
	for _, e := range f.outbox {
		f.queue.giveBack(e)
	}
	for _, d := range f.sent {
		if d.entry != nil && d.entry.state == entryUnacked {
			f.queue.giveBack(d.entry)
		}
	}
	f.outbox, f.sent, f.inFlight, f.live = nil, nil, nil, 0
}

// unbind answers an UNBIND, unless it is itself the answer to ours.
func (c *conn) unbind(f frame, a assured) error {
	id := uint32Of(a.find(adFlowID))
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := slices.Index(c.unbinding, id); at >= 0 {
		c.unbinding = slices.Delete(c.unbinding, at, at+1)
		return nil
	}
	name := ""
	if fl := c.flow(id); fl != nil {
		name = fl.queue.Name
	}
	if s.strike(name, c.client, FaultHoldUnbind) != nil {
		s.counters.Held++
		return nil
	}
	if fl := c.flow(id); fl != nil {
		fl.end()
		s.counters.Unbinds++
	}
	c.answer(f, assuredUnbind, nil, appendParam32(nil, discardUnknown, adFlowID, id))
	return nil
}

func (c *conn) flow(id uint32) *flow {
	for _, f := range c.flows {
		if f.id == id {
			return f
		}
	}
	return nil
}

// Unbind ends the flows of a queue, or of all queues when it is empty, from the broker's side. It returns how many.
func (s *Server) Unbind(queueName string, reason Refusal) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, name := range s.names {
		if queueName == "" || queueName == name {
			n += s.unbindAll(s.queues[name], &reason)
		}
	}
	return n
}

// unbindAll ends a queue's flows; called with mu held.
func (s *Server) unbindAll(q *queue, reason *Refusal) int {
	flows := q.flows
	q.flows, q.turn = nil, 0
	for _, f := range flows {
		f.release()
		f.conn.server.counters.BrokerUnbinds++
		f.conn.unbinding = append(f.conn.unbinding, f.id)
		head := appendResponse(nil, reason.Code, reason.Text)
		params := appendParam32(nil, discardUnknown, adFlowID, f.id)
		params = binary.BigEndian.AppendUint64(append(params, adErrorID, 10), uint64(f.id))
		f.conn.queue(appendAssured(nil, head, assuredUnbind, params))
	}
	return len(flows)
}
