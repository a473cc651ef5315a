package solacetest

import (
	"cmp"
	"fmt"
	"slices"
)

// Ledger is what the control port shows.
type Ledger struct {
	Counters Counters `json:"counters"`
	Active   bool     `json:"active"`
	// Violations are breaches of the rules that no client of ours may break; the first 1,000, and the count of all.
	Violations     []string      `json:"violations"`
	ViolationCount int64         `json:"violation_count"`
	Queues         []QueueLedger `json:"queues"`
}

// QueueLedger is one queue's part of the ledger. Spooled + Replayed = OnQueue + Acked + Moved + Discarded, always.
type QueueLedger struct {
	Name string `json:"name"`
	QueueCounters
	OnQueue  int            `json:"on_queue"` // with those unacked
	Unacked  int            `json:"unacked"`  // delivered, and neither acknowledged nor given back
	Bytes    int64          `json:"bytes"`
	Flows    []FlowLedger   `json:"flows"`
	Shut     bool           `json:"shut"`
	Messages []MessageState `json:"messages,omitempty"`
}

// FlowLedger is one bind to a queue.
type FlowLedger struct {
	ID      uint32 `json:"id"`
	Client  string `json:"client"`
	Active  bool   `json:"active"` // gets messages; always on a queue that is not exclusive
	Window  int    `json:"window"` // 0 until the client has started the flow, and while it stops it
	Unacked int    `json:"unacked"`
}

// State is what became of a message on a queue.
type State string

// States of messages.
const (
	StateReady     State = "ready"
	StateUnacked   State = "unacked"
	StateAcked     State = "acked"
	StateMoved     State = "moved"
	StateDiscarded State = "discarded"
)

// MessageState is one message as the ledger shows it.
type MessageState struct {
	ID                   uint64 `json:"id"`
	ReplicationGroupID   string `json:"replication_group_message_id"`
	ApplicationMessageID string `json:"application_message_id,omitempty"`
	Topic                string `json:"topic"`
	State                State  `json:"state"`
	Deliveries           int    `json:"deliveries"`
}

// maxFinished bounds the messages that a queue remembers after they are gone.
const maxFinished = 4096

// maxStates bounds the messages on a queue that the ledger lists, oldest first by and large.
const maxStates = 20_000

// Ledger returns counts per queue, and the messages too when asked: at most 20,000 on the queue and the last 4,096 that are
// gone.
func (s *Server) Ledger(messages bool) Ledger {
	out := Ledger{Counters: s.Counters(), Violations: s.Violations()}
	s.mu.Lock()
	defer s.mu.Unlock()
	out.Active, out.ViolationCount = s.active == s, s.violationCount
	for _, name := range s.names {
		out.Queues = append(out.Queues, s.queues[name].ledger(messages))
	}
	return out
}

// Queue returns one queue's part of the ledger, with its messages; a queue that does not exist has no name.
func (s *Server) Queue(name string) QueueLedger {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.queues[name]; q != nil {
		return q.ledger(true)
	}
	return QueueLedger{}
}

// Violations are the breaches of rules so far, at most 1,000: a replay asked for, an endpoint made or deleted, a
// subscription other than the client library's own.
func (s *Server) Violations() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.violations...)
}

func (q *queue) ledger(messages bool) QueueLedger {
	out := QueueLedger{
		Name: q.Name, QueueCounters: q.counters, OnQueue: q.onQueue, Unacked: q.unacked(), Bytes: q.bytes, Flows: []FlowLedger{}, Shut: q.shut,
	}
	for i, f := range q.flows {
		out.Flows = append(out.Flows, FlowLedger{f.id, f.conn.client, !q.Exclusive || i == 0, f.window, f.live})
	}
	if messages {
		out.Messages = q.states()
	}
	return out
}

// states lists messages by id.
func (q *queue) states() []MessageState {
	out := slices.Clone(q.finished)
	seen := map[*entry]bool{} // a duplicate delivery is there twice
	add := func(e *entry) {
		if seen[e] || len(seen) == maxStates {
			return
		}
		seen[e] = true
		switch e.state {
		case entryReady, entryAssigned:
			out = append(out, e.view(StateReady))
		case entryUnacked:
			out = append(out, e.view(StateUnacked))
		case entryGone:
		}
	}
	for _, f := range q.flows {
		for _, e := range f.outbox {
			add(e)
		}
		for _, d := range f.sent {
			if d.entry != nil {
				add(d.entry)
			}
		}
	}
	for _, entries := range [][]*entry{q.returned, q.fresh} {
		for _, e := range entries {
			add(e)
		}
	}
	slices.SortStableFunc(out, func(a, b MessageState) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

func (e *entry) view(state State) MessageState {
	return MessageState{
		ID: e.id, ReplicationGroupID: replicationGroupID(e.queue.spool.uniqueID, e.id),
		ApplicationMessageID: e.message.info.applicationID, Topic: e.message.topic, State: state, Deliveries: e.deliveries,
	}
}

// keep remembers a message that is gone.
func (q *queue) keep(m MessageState) {
	if len(q.finished) < maxFinished {
		q.finished = append(q.finished, m)
		return
	}
	q.finished[q.oldest] = m
	q.oldest = (q.oldest + 1) % maxFinished
}

// replicationGroupID is how the client prints the id.
func replicationGroupID(uniqueID, id uint64) string {
	u, n := fmt.Sprintf("%016x", uniqueID), fmt.Sprintf("%016x", id)
	return fmt.Sprintf("rmid1:%s-%s-%s-%s", u[:5], u[5:], n[:8], n[8:])
}
