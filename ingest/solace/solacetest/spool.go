package solacetest

import (
	"container/heap"
	"fmt"
	"sync"
	"time"
)

// spool holds the queues of a broker, or of both of a redundant pair.
type spool struct {
	mu sync.Mutex

	pair     []*Server
	active   *Server
	queues   map[string]*queue
	names    []string // of queues, in the order of Config
	uniqueID uint64   // of this spool, part of every replication group message id
	lastID   uint64   // of the last message spooled
	lastSent uint64   // of the last delivery; one counter for all flows, so that no flow's ids ever repeat
	lastFlow uint32
	held     int64 // bytes of messages on queues
	maxBytes int64

	log            *replayLog            // nil without Config.ReplayLog
	publishers     map[string]*publisher // by flow name, so that one that comes back goes on where it was
	publisherNames []string              // oldest first
	violations     []string
	violationCount int64
}

const (
	defaultMaxBytes = 512 << 20
	maxViolations   = 1000 // kept; all are counted
	maxPublishers   = 1000 // remembered
)

// join makes the spool, or takes the mate's.
func (s *Server) join(mate *Server) error {
	if mate != nil {
		if s.cfg.Queues != nil || s.cfg.MaxBytes != 0 || s.cfg.ReplayLog {
			return fmt.Errorf("queues and limits of a pair belong to its first broker, %s", mate.Addr())
		}
		mate.mu.Lock()
		defer mate.mu.Unlock()
		if len(mate.pair) != 1 {
			return fmt.Errorf("broker %s has a mate already", mate.Addr())
		}
		s.spool = mate.spool
		s.pair = append(s.pair, s)
		return nil
	}
	s.spool = &spool{
		pair: []*Server{s}, active: s, queues: map[string]*queue{}, publishers: map[string]*publisher{},
		uniqueID: uint64(time.Now().UnixNano()), maxBytes: s.cfg.MaxBytes,
	}
	if s.maxBytes == 0 {
		s.maxBytes = defaultMaxBytes
	}
	if s.cfg.ReplayLog {
		s.log = &replayLog{maxBytes: s.maxBytes / 2}
	}
	for _, q := range s.cfg.Queues {
		if err := s.addQueue(q); err != nil {
			return err
		}
	}
	return nil
}

// AddQueue makes one more queue.
func (s *Server) AddQueue(q Queue) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addQueue(q)
}

func (s *spool) addQueue(cfg Queue) error {
	if err := validName("queue", cfg.Name); err != nil {
		return err
	}
	if s.queues[cfg.Name] != nil || len(s.queues) >= maxQueues {
		return fmt.Errorf("queue %q exists already, or there are %d", cfg.Name, maxQueues)
	}
	for _, topic := range cfg.Subscriptions {
		if err := validName("subscription", topic); err != nil {
			return fmt.Errorf("queue %q: %w", cfg.Name, err)
		}
	}
	s.queues[cfg.Name] = newQueue(s, cfg)
	s.names = append(s.names, cfg.Name)
	return nil
}

// put stores a message on one queue. Called with mu held, and room checked.
func (s *spool) put(q *queue, m *message) {
	s.lastID++
	s.held += m.size()
	q.bytes += m.size()
	q.counters.Spooled++
	q.onQueue++
	q.fresh = append(q.fresh, &entry{id: s.lastID, message: m, queue: q})
	if s.log != nil {
		s.log.add(q.Name, s.lastID, m)
	}
}

// hasRoom says whether n copies of a message fit in.
func (s *spool) hasRoom(m *message, n int) bool {
	return m.size()*int64(n) <= s.maxBytes-s.held
}

// violate records a breach of a rule that no client of ours may break. Called with mu held.
func (c *conn) violate(format string, args ...any) {
	s := c.server.spool
	s.violationCount++
	if len(s.violations) < maxViolations {
		s.violations = append(s.violations, fmt.Sprintf("client %.80q: ", c.client)+fmt.Sprintf(format, args...))
	}
}

// entry is one message on one queue; its id is stable over every delivery and never used for another.
type entry struct {
	id         uint64
	message    *message
	queue      *queue
	deliveries int
	state      entryState
}

type entryState byte

const (
	entryReady    entryState = iota // waits for a flow
	entryAssigned                   // waits in a flow's outbox
	entryUnacked                    // sent
	entryGone                       // acknowledged, moved or discarded
)

// byID is a heap of entries, oldest first.
type byID []*entry

func (h byID) Len() int           { return len(h) }
func (h byID) Less(i, j int) bool { return h[i].id < h[j].id }
func (h byID) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *byID) Push(x any)        { *h = append(*h, x.(*entry)) }
func (h *byID) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return last
}

var _ heap.Interface = (*byID)(nil)
