package solacetest

import "fmt"

// Replay starts a replay of everything the log has of a queue, as an operator can: its flows are unbound with "Replay
// Started", what it holds is discarded, and all that was ever spooled to it is there again, with the ids of old.
func (s *Server) Replay(queueName string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queues[queueName]
	switch {
	case q == nil:
		return fmt.Errorf("replay: there is no queue %q", queueName)
	case s.log == nil:
		return fmt.Errorf("replay of queue %q: there is no replay log", queueName)
	}
	s.unbindAll(q, &Refusal{Code: 503, Text: "Replay Started"})
	for q.ready() {
		q.counters.Discarded++
		q.remove(q.take(), StateDiscarded)
	}
	for _, l := range s.log.entries {
		if l.queue != queueName {
			continue
		}
		s.held += l.message.size()
		q.bytes += l.message.size()
		q.counters.Replayed++
		q.onQueue++
		q.fresh = append(q.fresh, &entry{id: l.id, message: l.message, queue: q})
	}
	q.dispatch()
	return nil
}

// replayLog keeps messages of all queues; the oldest make room for new ones. Guarded by spool.mu.
type replayLog struct {
	entries  []logged
	bytes    int64
	maxBytes int64
}

type logged struct {
	queue   string
	id      uint64
	message *message
}

func (l *replayLog) add(queueName string, id uint64, m *message) {
	l.entries = append(l.entries, logged{queueName, id, m})
	l.bytes += m.size()
	drop := 0
	for ; l.bytes > l.maxBytes; drop++ {
		l.bytes -= l.entries[drop].message.size()
	}
	clear(l.entries[:drop])
	l.entries = l.entries[drop:]
}
