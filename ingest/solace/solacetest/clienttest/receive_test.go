//go:build cgo

package clienttest_test

import (
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"solace.dev/go/messaging/pkg/solace"
	"solace.dev/go/messaging/pkg/solace/config"

	"chargeonce/ingest/solace/solacetest"
)

func TestPublishedMessagesAreReceivedInOrderAndAcked(t *testing.T) {
	t.Parallel()
	s := start(t, solacetest.Config{})
	svc := connect(t, s)
	p, r := publisher(t, svc), receiver(t, svc)
	for i := range 600 {
		require.NoError(t, send(svc, p, "billing/eu", strconv.Itoa(i)))
	}
	for i := range 600 {
		m := receive(t, r)
		require.Equal(t, strconv.Itoa(i), textOf(t, m))
		require.Equal(t, "billing/eu", m.GetDestinationName())
		require.False(t, m.IsRedelivered())
		require.NoError(t, r.Ack(m))
	}
	require.NoError(t, r.Terminate(time.Second))
	require.NoError(t, svc.Disconnect())
	q := s.Queue(queueName)
	require.Equal(t, solacetest.QueueCounters{Spooled: 600, Delivered: 600, Acked: 600}, q.QueueCounters)
	require.Zero(t, q.OnQueue)
	require.Equal(t, "599", q.Messages[599].ApplicationMessageID)
	require.Empty(t, s.Violations())
}

func TestReaderThatDoesNotReadGetsOneWindow(t *testing.T) {
	t.Parallel()
	s := start(t, solacetest.Config{})
	put(t, s, 0, 2000)
	r := receiver(t, connect(t, s))
	eventually(t, func() bool { return s.Queue(queueName).Delivered >= 255 }, "the first window")
	put(t, s, 2000, 1)
	require.EqualValues(t, 255, s.Queue(queueName).Delivered, "no more than the window, although more is there")
	require.Equal(t, numbers(2001), receiveAll(t, r, 2001), "who reads on gets all, acknowledged or not")
	require.Equal(t, 2001, s.Queue(queueName).Unacked)
}

func TestUnackedLimitStopsAReaderThatDoesNotAck(t *testing.T) {
	t.Parallel()
	s := start(t, solacetest.Config{Queues: []solacetest.Queue{{Name: queueName, MaxUnacked: 20}}})
	put(t, s, 0, 50)
	r := receiver(t, connect(t, s))
	first := receive(t, r)
	receiveAll(t, r, 19)
	_, err := r.ReceiveMessage(50 * time.Millisecond)
	requireError[*solace.TimeoutError](t, err)
	require.NoError(t, r.Ack(first))
	require.Equal(t, []string{"20"}, receiveAll(t, r, 1))
}

func TestDropRedeliversUnderTheSameGroupID(t *testing.T) {
	t.Parallel()
	s := start(t, solacetest.Config{})
	put(t, s, 0, 3)
	r := receiver(t, connect(t, s))
	ids := map[string]string{}
	for range 3 {
		m := receive(t, r)
		id, ok := m.GetReplicationGroupMessageID()
		require.True(t, ok)
		ids[textOf(t, m)] = id.String()
	}
	s.DropConnections()
	wait(t, r.gone)
	r = receiver(t, connect(t, s))
	for i := range 3 {
		m := receive(t, r)
		id, ok := m.GetReplicationGroupMessageID()
		require.True(t, ok)
		require.Equal(t, strconv.Itoa(i), textOf(t, m))
		require.Equal(t, ids[textOf(t, m)], id.String())
		require.Equal(t, id.String(), s.Queue(queueName).Messages[i].ReplicationGroupID)
		require.True(t, m.IsRedelivered())
		require.NoError(t, r.Ack(m))
	}
	acked(t, s, 3)
	require.EqualValues(t, 3, s.Queue(queueName).Redelivered)
}

func TestFailedComesAgainAtOnceAndRejectedIsBuried(t *testing.T) {
	t.Parallel()
	s := start(t, solacetest.Config{Queues: []solacetest.Queue{{Name: queueName, DeadMessageQueue: "dead"}, {Name: "dead"}}})
	put(t, s, 0, 2)
	r := receiver(t, connect(t, s))
	m, second := receive(t, r), receive(t, r)
	require.NoError(t, r.Settle(m, config.PersistentReceiverFailedOutcome))
	again := receive(t, r)
	require.Equal(t, "0", textOf(t, again))
	require.True(t, again.IsRedelivered())
	require.NoError(t, r.Ack(again))
	require.NoError(t, r.Settle(second, config.PersistentReceiverRejectedOutcome))
	eventually(t, func() bool { return s.Queue("dead").OnQueue == 1 }, "the rejected one is moved")
	dead, from := s.Queue("dead").Messages[0], s.Queue(queueName).Messages[1]
	require.Equal(t, "1", dead.ApplicationMessageID)
	require.NotEqual(t, from.ReplicationGroupID, dead.ReplicationGroupID)
	acked(t, s, 1)
	require.Equal(t, solacetest.QueueCounters{
		Spooled: 2, Delivered: 3, Redelivered: 1, Acked: 1, Failed: 1, Rejected: 1, Moved: 1,
	}, s.Queue(queueName).QueueCounters)
}

func TestMessageDeliveredTooOftenIsBuried(t *testing.T) {
	t.Parallel()
	s := start(t, solacetest.Config{Queues: []solacetest.Queue{{Name: queueName, MaxRedelivery: 3}}})
	put(t, s, 0, 1)
	r := receiver(t, connect(t, s))
	for range 4 {
		require.NoError(t, r.Settle(receive(t, r), config.PersistentReceiverFailedOutcome))
	}
	eventually(t, func() bool { return s.Queue(queueName).OnQueue == 0 }, "buried after three redeliveries")
	require.EqualValues(t, 1, s.Queue(queueName).Discarded)
	require.Equal(t, 4, s.Queue(queueName).Messages[0].Deliveries)
}

func TestExclusiveQueueIsHandedOver(t *testing.T) {
	t.Parallel()
	s := start(t, solacetest.Config{Queues: []solacetest.Queue{{Name: queueName, Exclusive: true}}})
	states := make(chan solace.ReceiverState, 10)
	first := receiver(t, connect(t, s))
	second := build(t, builder(connect(t, s)).
		WithActivationPassivationSupport(func(_, now solace.ReceiverState, _ time.Time) { states <- now }))
	require.NoError(t, second.Start())
	put(t, s, 0, 5)
	require.Equal(t, numbers(5), receiveAll(t, first, 5), "all to the one that bound first")
	require.NoError(t, first.Terminate(0))
	state := wait(t, states)
	for state != solace.ReceiverActive {
		state = wait(t, states)
	}
	require.Equal(t, numbers(5), receiveAll(t, second, 5), "the heir gets what was unacked")
	require.NoError(t, second.Terminate(0))
}

func TestNonExclusiveQueueGivesToAllInTurn(t *testing.T) {
	t.Parallel()
	s := start(t, solacetest.Config{})
	one, two := receiver(t, connect(t, s)), receiver(t, connect(t, s))
	eventually(t, func() bool {
		flows := s.Queue(queueName).Flows
		return len(flows) == 2 && flows[0].Window > 0 && flows[1].Window > 0
	}, "both have opened their windows")
	put(t, s, 0, 10)
	got := append(receiveAll(t, one, 5), receiveAll(t, two, 5)...)
	slices.Sort(got)
	require.Equal(t, numbers(10), got)
}

func TestEightWorkersGetEveryMessageOnceAndAckIt(t *testing.T) {
	t.Parallel()
	const n, workers = 5000, 8
	s := start(t, solacetest.Config{})
	svc := connect(t, s)
	r := receiver(t, svc)
	put(t, s, 0, n)
	var taken atomic.Int64
	var working sync.WaitGroup
	seen := make([]atomic.Int32, n)
	for range workers {
		working.Go(func() {
			for taken.Add(1) <= n {
				m, err := r.ReceiveMessage(patience)
				if err != nil {
					t.Errorf("receive: %v", err)
					return
				}
				text, _ := m.GetPayloadAsString()
				i, err := strconv.Atoi(text)
				if err != nil {
					t.Errorf("text %q: %v", text, err)
					return
				}
				seen[i].Add(1)
				if err := r.Ack(m); err != nil {
					t.Errorf("ack: %v", err)
				}
				m.Dispose()
			}
		})
	}
	working.Wait()
	acked(t, s, n)
	for i := range seen {
		require.EqualValues(t, 1, seen[i].Load(), i)
	}
	require.Equal(t, solacetest.QueueCounters{Spooled: n, Delivered: n, Acked: n}, s.Queue(queueName).QueueCounters)
}

func TestDropsInARowLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	const drops = 100
	s := start(t, solacetest.Config{})
	put(t, s, 0, 5)
	goroutines := 0
	for i := range drops {
		svc := service(t, properties(s))
		require.NoError(t, svc.Connect())
		r := receiver(t, svc)
		m := receive(t, r)
		require.Equal(t, i > 0, m.IsRedelivered())
		require.Equal(t, "0", textOf(t, m))
		s.DropConnections()
		wait(t, r.gone)
		_ = r.Terminate(0)
		_ = svc.Disconnect()
		if i == 20 {
			goroutines = runtime.NumGoroutine()
		}
	}
	c := s.Counters()
	require.EqualValues(t, drops, c.Logins)
	require.Zero(t, c.Connections)
	require.Zero(t, c.Flows)
	q := s.Queue(queueName)
	require.Equal(t, 5, q.OnQueue)
	require.Zero(t, q.Unacked)
	require.Equal(t, drops, q.Messages[0].Deliveries)
	require.Less(t, runtime.NumGoroutine(), goroutines+20, "neither server nor client keeps one per drop")
}
