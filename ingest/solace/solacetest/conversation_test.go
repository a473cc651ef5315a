package solacetest

import (
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// FuzzConversation plays a client that says anything after a right login; the server must end the connection or go on, keep
// nothing of it, and keep its books.
func FuzzConversation(f *testing.F) {
	s, err := Start(Config{Queues: []Queue{
		{Name: queueName, Subscriptions: []string{"billing/>"}, MaxRedelivery: 3, DeadMessageQueue: "dead"}, {Name: "dead", Exclusive: true},
	}})
	require.NoError(f, err)
	f.Cleanup(func() { require.NoError(f, s.Close()) })
	put(f, s, 0, 3)
	frames := realFrames(f)
	for _, names := range [][]string{
		{"subscribe", "bind", "open_window", "ack", "unbind", "keep_alive"},
		{"open_publisher", "publish_text", "publish_bytes_to_queue", "publish_empty", "publish_map"},
		{"bind_again", "bind", "ack_failed", "unbind_answer", "bind_after_unbind"},
		{"open_publisher_again", "login"},
	} {
		var seed []byte
		for _, name := range names {
			seed = append(seed, frames[name]...)
		}
		f.Add(seed)
	}
	f.Add(slices.Concat(bindFrame(queueName, 255), bindFrame("dead", 255), ackFrame(1, 0, 255, ackRange{0, 1 << 62, outcomeRejected})))
	f.Fuzz(func(t *testing.T, data []byte) {
		client, ended := pipe(s)
		go func() { _, _ = io.Copy(io.Discard, client) }()
		_ = client.SetDeadline(time.Now().Add(patience))
		_, _ = client.Write(append(loginFrame("fuzz"), data...))
		require.NoError(t, client.Close())
		select {
		case <-ended:
		case <-time.After(patience):
			require.Fail(t, "the connection does not end")
		}
		checkBooks(t, s)
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, name := range s.names {
			q := s.queues[name]
			require.Empty(t, q.flows)
			for q.ready() && q.onQueue > 100 {
				q.counters.Discarded++
				q.remove(q.take(), StateDiscarded)
			}
		}
		s.violations = nil
	})
}

// pipe gives the server a connection without a socket; ended is closed when the server has let go of it.
func pipe(s *Server) (client net.Conn, ended <-chan struct{}) {
	client, server := net.Pipe()
	c := newConn(s, server)
	s.mu.Lock()
	s.conns[c] = true
	s.mu.Unlock()
	done := make(chan struct{})
	s.running.Go(func() {
		defer close(done)
		c.read()
	})
	return client, done
}

// checkBooks holds every queue's counters against what it has.
func checkBooks(t require.TestingT, s *Server) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var held int64
	for _, name := range s.names {
		q := s.queues[name]
		c := q.counters
		require.Equal(t, c.Spooled+c.Replayed, int64(q.onQueue)+c.Acked+c.Moved+c.Discarded, name)
		require.GreaterOrEqual(t, c.Delivered, c.Redelivered)
		there, bytes := 0, int64(0)
		count := func(e *entry, state entryState) {
			require.Equal(t, state, e.state)
			there++
			bytes += e.message.size()
		}
		for _, e := range slices.Concat(q.fresh, q.returned) {
			count(e, entryReady)
		}
		for _, f := range q.flows {
			require.LessOrEqual(t, len(f.inFlight)+len(f.outbox), defaultWindow)
			for _, e := range f.outbox {
				count(e, entryAssigned)
			}
			live := 0
			for _, d := range f.sent {
				if d.entry != nil {
					live++
					count(d.entry, entryUnacked)
				}
			}
			require.Equal(t, f.live, live)
		}
		require.Equal(t, q.onQueue, there, name)
		require.Equal(t, q.bytes, bytes, name)
		held += bytes
	}
	require.Equal(t, s.held, held)
}

// player is one client of the random play below.
type player struct {
	*client
	unacked map[uint64]string // deliveries of its flow
}

// TestRandomPlayLosesNothingAndRepeatsNothingAcked lets three clients bind, take, acknowledge, fail, and vanish at random,
// while messages come in and the broker unbinds them. In the end everything that was not acknowledged is still there.
func TestRandomPlayLosesNothingAndRepeatsNothingAcked(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		s, err := Start(Config{Queues: []Queue{{Name: queueName, MaxUnacked: 20, Exclusive: rapid.Bool().Draw(rt, "exclusive")}}})
		require.NoError(rt, err)
		defer func() { require.NoError(rt, s.Close()) }()
		published, done := 0, settled{}
		players := make([]*player, 3)
		pick := func() *player {
			i := rapid.IntRange(0, len(players)-1).Draw(rt, "player")
			if players[i] == nil {
				players[i] = &player{client: logIn(t, s, strconv.Itoa(i))}
			}
			return players[i]
		}
		rt.Repeat(map[string]func(*rapid.T){
			"publish": func(rt *rapid.T) {
				n := rapid.IntRange(1, 30).Draw(rt, "n")
				put(t, s, published, n)
				published += n
			},
			"bind": func(rt *rapid.T) {
				if p := pick(); p.flow == 0 {
					p.bind(queueName, rapid.ByteRange(1, 10).Draw(rt, "window"))
					p.unacked = map[uint64]string{}
				}
			},
			"take": func(rt *rapid.T) { pick().take(rt, done) },
			"ack": func(rt *rapid.T) {
				p := pick()
				p.take(rt, done)
				p.settle(rt, done)
			},
			"vanish": func(rt *rapid.T) {
				p := pick()
				require.NoError(rt, p.nc.Close())
				players[slices.Index(players, p)] = nil
			},
			"unbind by the broker": func(*rapid.T) { s.Unbind(queueName, Refusal{Code: 503, Text: "Replay Started"}) },
			"":                     func(rt *rapid.T) { checkBooks(rt, s) },
		})
		s.DropConnections()
		last := logIn(t, s, "last")
		last.bind(queueName, 20)
		for len(done) < published {
			r := last.receive()
			done.check(rt, r.applicationID, r.id)
			done[r.applicationID] = r.id
			last.ack(r.id, 20, ackRange{r.id, r.id, outcomeAccepted})
		}
		last.silent()
		require.Zero(rt, s.Queue(queueName).OnQueue)
		require.EqualValues(rt, published, s.Queue(queueName).Acked)
		checkBooks(rt, s)
	})
}

// settled has, by message, the id of the delivery that was acknowledged.
type settled map[string]uint64

// check finds a delivery that was sent after the message was acknowledged; one that was sent before may be read later.
func (s settled) check(rt *rapid.T, applicationID string, id uint64) {
	if acked, ok := s[applicationID]; ok {
		require.LessOrEqual(rt, id, acked, "acknowledged and here again: %s", applicationID)
	}
}

// take reads what has come so far.
func (p *player) take(rt *rapid.T, done settled) {
	p.send(keepAliveFrame())
	for {
		f, err := p.read()
		require.NoError(rt, err)
		switch f.protocol() {
		case protoKeepAlive:
			return
		case protoMessage:
			id, _ := uintOf(f.find(headMessageID))
			applicationID := inspect(f).applicationID
			done.check(rt, applicationID, id)
			p.unacked[id] = applicationID
		case protoAssured:
			a, err := parseAssured(f.payload)
			require.NoError(rt, err)
			if a.kind == assuredUnbind {
				p.send(appendAssured(nil, nil, assuredUnbind, appendParam32(nil, discardUnknown, adFlowID, uint32Of(a.find(adFlowID)))))
				p.flow, p.unacked = 0, nil
			}
		}
	}
}

// settle acknowledges some of what the player has, or fails it, and takes all of it over. The broker may have unbound the
// flow in between: then nothing of it counts.
func (p *player) settle(rt *rapid.T, done settled) {
	if p.flow == 0 || len(p.unacked) == 0 {
		return
	}
	var ranges []ackRange
	last := uint64(0)
	accepted := settled{}
	for id, applicationID := range p.unacked {
		last = max(last, id)
		o := outcomeAccepted
		switch rapid.IntRange(0, 2).Draw(rt, "outcome") {
		case 0:
			continue
		case 1:
			o = outcomeFailed
		default:
			accepted[applicationID] = id
		}
		ranges = append(ranges, ackRange{id, id, o})
		delete(p.unacked, id)
	}
	p.ack(last, 10, ranges...)
	flow := p.flow
	p.take(rt, done)
	if p.flow == flow {
		maps.Copy(done, accepted)
	}
}
