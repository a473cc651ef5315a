package solacetest

import (
	"container/heap"
	"slices"
)

// Queue is a durable queue. Whoever binds to it may consume.
type Queue struct {
	Name string `json:"name"`
	// Exclusive delivers to the flow that bound first, until it goes; otherwise to all flows in turn.
	Exclusive bool `json:"exclusive,omitempty"`
	// Subscriptions are topics; a level "*" or "abc*" matches any rest of one level, a last level ">" one or more levels.
	Subscriptions []string `json:"subscriptions,omitempty"`
	// MaxUnacked is how many delivered messages one flow may leave unacknowledged, default 10,000.
	MaxUnacked int `json:"max_unacked,omitempty"`
	// MaxBinds is how many flows may bind, default 1000.
	MaxBinds int `json:"max_binds,omitempty"`
	// MaxRedelivery is how often a message is delivered again before it is buried; 0 is for ever.
	MaxRedelivery int `json:"max_redelivery,omitempty"`
	// DeadMessageQueue takes the messages that are buried: rejected, or delivered too often. Without one they are deleted.
	DeadMessageQueue string `json:"dead_message_queue,omitempty"`
	// EligibleOnly deletes buried messages that their publisher did not mark as eligible for a dead message queue, as brokers
	// up to 10.25.9 do.
	EligibleOnly bool `json:"eligible_only,omitempty"`
}

// dispatch hands ready messages to flows that can take them. Called with mu held, whenever a message or a flow may have
// become ready.
func (q *queue) dispatch() {
	for !q.shut && q.ready() {
		f := q.nextFlow()
		if f == nil {
			return
		}
		e := q.take()
		e.state = entryAssigned
		f.outbox = append(f.outbox, e)
		f.conn.poke()
	}
}

// queue is a queue's state; all of it is guarded by spool.mu.
type queue struct {
	Queue
	spool    *spool
	flows    []*flow // in the order of their binds
	turn     int
	fresh    []*entry // never assigned, oldest first
	returned byID     // came back from a flow
	shut     bool
	onQueue  int
	bytes    int64
	counters QueueCounters
	finished []MessageState // a ring of the last ones
	oldest   int            // of the ring
}

// QueueCounters count since the queue was made, but for each message at most one of Acked, Moved and Discarded counts.
type QueueCounters struct {
	Spooled     int64 `json:"spooled"`
	Delivered   int64 `json:"delivered"`   // deliveries, the first and all others
	Redelivered int64 `json:"redelivered"` // deliveries with the redelivered flag
	Acked       int64 `json:"acked"`
	AckedAgain  int64 `json:"acked_again"` // acknowledgements of what was gone already
	Failed      int64 `json:"failed"`      // acknowledged as failed and so delivered again
	Rejected    int64 `json:"rejected"`    // acknowledged as rejected and so buried
	Moved       int64 `json:"moved"`       // to the dead message queue
	Discarded   int64 `json:"discarded"`   // buried without a dead message queue, or cleared by a replay
	Replayed    int64 `json:"replayed"`    // put on the queue once more
}

func newQueue(s *spool, cfg Queue) *queue {
	if cfg.MaxUnacked == 0 {
		cfg.MaxUnacked = defaultMaxUnacked
	}
	if cfg.MaxBinds == 0 {
		cfg.MaxBinds = defaultMaxBinds
	}
	cfg.Subscriptions = slices.Clone(cfg.Subscriptions)
	return &queue{Queue: cfg, spool: s}
}

func (q *queue) ready() bool { return len(q.fresh) > 0 || len(q.returned) > 0 }

// take removes the oldest ready entry.
func (q *queue) take() *entry {
	if len(q.returned) > 0 && (len(q.fresh) == 0 || q.returned[0].id < q.fresh[0].id) {
		return heap.Pop(&q.returned).(*entry)
	}
	e := q.fresh[0]
	q.fresh[0] = nil
	q.fresh = q.fresh[1:]
	return e
}

// nextFlow is the flow whose turn it is among those that can take a message.
func (q *queue) nextFlow() *flow {
	if q.Exclusive {
		if len(q.flows) > 0 && q.flows[0].hasRoom() {
			return q.flows[0]
		}
		return nil
	}
	for i := range q.flows {
		at := (q.turn + i) % len(q.flows)
		if q.flows[at].hasRoom() {
			q.turn = at + 1
			return q.flows[at]
		}
	}
	return nil
}

// giveBack makes an entry ready again, in its old place, or buries it.
func (q *queue) giveBack(e *entry) {
	if q.MaxRedelivery > 0 && e.deliveries > q.MaxRedelivery {
		q.bury(e)
		return
	}
	e.state = entryReady
	heap.Push(&q.returned, e)
}

// settle applies what a client said of an entry that was delivered to it.
func (q *queue) settle(e *entry, o outcome) {
	if e.state != entryUnacked {
		q.counters.AckedAgain++ // the fault of a duplicate delivery is the only way here
		return
	}
	switch o {
	case outcomeAccepted:
		q.counters.Acked++
		q.remove(e, StateAcked)
	case outcomeFailed, outcomeReleased:
		q.counters.Failed++
		q.giveBack(e)
	case outcomeRejected:
		q.counters.Rejected++
		q.bury(e)
	}
}

// bury moves an entry to the dead message queue, where it gets another id, or deletes it.
func (q *queue) bury(e *entry) {
	dead := q.spool.queues[q.DeadMessageQueue]
	if dead == nil || dead == q || q.EligibleOnly && e.message.word&wordDMQ == 0 {
		q.counters.Discarded++
		q.remove(e, StateDiscarded)
		return
	}
	q.counters.Moved++
	q.remove(e, StateMoved)
	q.spool.put(dead, e.message)
	dead.dispatch()
}

func (q *queue) remove(e *entry, state State) {
	e.state = entryGone
	q.spool.held -= e.message.size()
	q.bytes -= e.message.size()
	q.onQueue--
	q.keep(e.view(state))
}

// unacked counts what flows hold.
func (q *queue) unacked() int {
	n := 0
	for _, f := range q.flows {
		n += f.live
	}
	return n
}

// ShutQueue stops a queue's deliveries and unbinds its flows with "Queue Shutdown", until OpenQueue. It says whether there
// is such a queue.
func (s *Server) ShutQueue(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queues[name]
	if q == nil {
		return false
	}
	q.shut = true
	s.unbindAll(q, refusalShutdown)
	return true
}

// OpenQueue ends ShutQueue.
func (s *Server) OpenQueue(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queues[name]
	if q == nil {
		return false
	}
	q.shut = false
	q.dispatch()
	return true
}

// DeleteQueue unbinds a queue's flows with "Queue Deleted" and forgets the queue and its messages.
func (s *Server) DeleteQueue(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queues[name]
	if q == nil {
		return false
	}
	q.shut = true
	s.unbindAll(q, &Refusal{Code: 503, Text: "Queue Deleted"})
	s.held -= q.bytes
	delete(s.queues, name)
	s.names = slices.DeleteFunc(s.names, func(n string) bool { return n == name })
	return true
}
