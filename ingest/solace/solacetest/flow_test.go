package solacetest

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWindowIsNeverExceeded(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	put(t, s, 0, 20)
	c := logIn(t, s, "c")
	c.bind(queueName, 0)
	c.silent() // a window of 0 sends nothing
	c.ack(0, 5)
	got := c.receiveAll(5)
	c.silent()
	require.EqualValues(t, 5, s.Queue(queueName).Delivered)
	c.ack(got[1].id, 5) // takes two over, acknowledges none
	got = append(got, c.receiveAll(2)...)
	c.silent()
	c.ack(got[6].id, 0) // all taken over, but closed
	c.silent()
	c.ack(got[6].id, 255)
	got = append(got, c.receiveAll(13)...)
	for i, r := range got {
		require.Equal(t, uint64(i+1), r.spoolID)
		if i > 0 {
			require.Equal(t, got[i-1].id, r.previous, "each delivery names the one before it on the flow")
		}
	}
	require.Equal(t, 20, s.Queue(queueName).Unacked)
}

func TestAckRangesMayStartAtZeroOverlapAndRepeat(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	put(t, s, 0, 10)
	c := logIn(t, s, "c")
	c.bind(queueName, 255)
	got := c.receiveAll(10)
	c.ack(got[9].id, 255, ackRange{got[7].id, got[7].id, outcomeAccepted})
	c.ack(got[9].id, 255, ackRange{0, got[2].id, outcomeAccepted}, ackRange{0, got[2].id, outcomeAccepted})
	c.ack(got[9].id, 255, ackRange{got[1].id, got[4].id, outcomeAccepted})
	c.silent()
	q := s.Queue(queueName)
	require.EqualValues(t, 6, q.Acked)
	require.Equal(t, 4, q.Unacked)
	require.EqualValues(t, 1, s.Counters().AcksUnmatched, "the range that came again")
	c.ack(got[9].id, 255, ackRange{0, 1 << 63, outcomeAccepted})
	c.silent()
	require.EqualValues(t, 10, s.Queue(queueName).Acked)
	require.Zero(t, s.Queue(queueName).OnQueue)
}

func TestAckOfAnOldDeliverySettlesNothing(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	put(t, s, 0, 1)
	first := logIn(t, s, "first")
	first.bind(queueName, 255)
	old := first.receive()
	first.send(appendAssured(nil, nil, assuredUnbind, appendParam32(nil, discardUnknown, adFlowID, first.flow)))
	first.assured(assuredUnbind)
	first.ack(old.id, 255, ackRange{0, old.id, outcomeAccepted}) // on the flow that is gone
	first.bind(queueName, 255)
	again := first.receive()
	require.True(t, again.redelivered)
	require.EqualValues(t, 1, again.earlier)
	require.Equal(t, old.spoolID, again.spoolID)
	require.Greater(t, again.id, old.id)
	first.ack(again.id, 255, ackRange{0, old.id, outcomeAccepted}) // the old id on the new flow
	first.silent()
	require.Zero(t, s.Queue(queueName).Acked)
	require.EqualValues(t, 2, s.Counters().AcksUnmatched)
}

func TestFailedKeepsItsPlaceBeforeWhatWasNeverSent(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	put(t, s, 0, 5)
	c := logIn(t, s, "c")
	c.bind(queueName, 2)
	got := c.receiveAll(2)
	c.ack(got[1].id, 1, ackRange{got[1].id, got[1].id, outcomeFailed}, ackRange{got[0].id, got[0].id, outcomeFailed})
	require.Equal(t, "0", c.receive().applicationID)
	require.EqualValues(t, 2, s.Queue(queueName).Failed)
}

func TestRejectedIsMovedOrDeletedByTheBrokersAge(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		queue    Queue
		eligible bool
		moved    int
	}{
		"without a dead message queue":  {Queue{}, true, 0},
		"new broker, not eligible":      {Queue{DeadMessageQueue: "dead"}, false, 1},
		"old broker, not eligible":      {Queue{DeadMessageQueue: "dead", EligibleOnly: true}, false, 0},
		"old broker, eligible":          {Queue{DeadMessageQueue: "dead", EligibleOnly: true}, true, 1},
		"dead message queue is missing": {Queue{DeadMessageQueue: "absent"}, true, 0},
		"dead message queue of its own": {Queue{DeadMessageQueue: queueName}, true, 0},
		"exclusive queue":               {Queue{DeadMessageQueue: "dead", Exclusive: true}, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.queue.Name = queueName
			s := start(t, Config{Queues: []Queue{c.queue, {Name: "dead"}}})
			require.NoError(t, s.PublishQueue(queueName, Message{Bytes: []byte("x"), DMQEligible: c.eligible}))
			client := logIn(t, s, "c")
			client.bind(queueName, 255)
			id := client.receive().id
			client.ack(id, 255, ackRange{id, id, outcomeRejected})
			client.silent()
			require.Zero(t, s.Queue(queueName).OnQueue)
			require.Equal(t, c.moved, s.Queue("dead").OnQueue)
			require.EqualValues(t, c.moved, s.Queue(queueName).Moved)
			require.EqualValues(t, 1-c.moved, s.Queue(queueName).Discarded)
		})
	}
}

func TestExclusiveQueueTellsTheHeir(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Queues: []Queue{{Name: queueName, Exclusive: true}}})
	put(t, s, 0, 1)
	first, second, third := logIn(t, s, "first"), logIn(t, s, "second"), logIn(t, s, "third")
	first.bind(queueName, 255)
	first.receive()
	second.send(bindFrame(queueName, 255))
	_, answer := second.assured(assuredBind)
	require.Equal(t, []byte{0}, answer.find(adActive))
	second.flow = uint32Of(answer.find(adFlowID))
	third.bind(queueName, 255)
	require.True(t, s.Queue(queueName).Flows[0].Active)
	require.False(t, s.Queue(queueName).Flows[1].Active)
	require.NoError(t, s.Inject(Fault{Kind: FaultDropConnections, Client: "first"}))
	_, change := second.assured(assuredFlowState)
	require.Equal(t, []byte{1}, change.find(adActive))
	require.Equal(t, second.flow, uint32Of(change.find(adFlowID)))
	require.True(t, second.receive().redelivered)
	third.silent()
	require.Equal(t, []string{"second", "third"}, []string{s.Queue(queueName).Flows[0].Client, s.Queue(queueName).Flows[1].Client})
}

func TestAnswerToOurUnbindIsNotAnswered(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	put(t, s, 0, 1)
	c := logIn(t, s, "c")
	flow := c.bind(queueName, 255)
	c.receive()
	require.Equal(t, 1, s.Unbind(queueName, Refusal{Code: 503, Text: "Replay Started"}))
	f, a := c.assured(assuredUnbind)
	code, text := f.response()
	require.EqualValues(t, 503, code)
	require.Equal(t, "Replay Started", text)
	require.Equal(t, flow, uint32Of(a.find(adFlowID)))
	c.send(appendAssured(nil, nil, assuredUnbind, appendParam32(nil, discardUnknown, adFlowID, flow)))
	c.silent()
	c.bind(queueName, 255)
	require.True(t, c.receive().redelivered)
	require.EqualValues(t, 1, s.Counters().BrokerUnbinds)
}

func TestForbiddenRequestsAreRefusedAndRecorded(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	c := logIn(t, s, "c")
	for kind, name := range map[byte]string{assuredUnsub: "UNSUBSCRIBE", assuredCreate: "CREATE", assuredDelete: "DELETE"} {
		before := len(s.Violations())
		c.send(appendAssured(nil, nil, kind, appendText(nil, discardUnknown, adQueue, "q")))
		f, _ := c.assured(kind)
		code, _ := f.response()
		require.EqualValues(t, 403, code)
		require.Contains(t, s.Violations()[before], name)
	}
	c.send(bindFrame(queueName, 0, appendParam(nil, discardUnknown, adReplayStart, []byte{0})...))
	f, _ := c.assured(assuredBind)
	_, text := f.response()
	require.Equal(t, "Replay Disabled", text)
	require.Contains(t, s.Violations()[3], `client "c": BIND to queue "billing" asks for a replay`)
	require.Empty(t, s.Queue(queueName).Flows)
	for range maxViolations {
		c.send(bindFrame(queueName, 0, appendParam(nil, discardUnknown, adReplayStart, []byte{0})...))
		c.assured(assuredBind)
	}
	require.Len(t, s.Violations(), maxViolations)
	require.EqualValues(t, maxViolations+4, s.Ledger(false).ViolationCount)
}

func TestLimitsOfAQueueAreKept(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Queues: []Queue{{Name: queueName, MaxUnacked: 3, MaxBinds: 2, MaxRedelivery: 1}}})
	put(t, s, 0, 6)
	c := logIn(t, s, "c")
	c.bind(queueName, 255)
	got := c.receiveAll(3)
	c.ack(got[2].id, 255)
	c.silent() // all taken over, none acknowledged
	c.ack(got[2].id, 255, ackRange{got[0].id, got[0].id, outcomeFailed})
	again := c.receive()
	require.Equal(t, "0", again.applicationID)
	c.ack(again.id, 255, ackRange{again.id, again.id, outcomeFailed})
	require.Equal(t, "3", c.receive().applicationID, "the first was delivered again once and is buried")
	require.EqualValues(t, 1, s.Queue(queueName).Discarded)
	c.bind(queueName, 0)
	c.send(bindFrame(queueName, 0))
	f, _ := c.assured(assuredBind)
	_, text := f.response()
	require.Equal(t, "Max clients exceeded for queue", text)
}

func TestFlowsTakeTurns(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	clients := []*client{logIn(t, s, "a"), logIn(t, s, "b"), logIn(t, s, "c")}
	for _, c := range clients {
		c.bind(queueName, 2)
	}
	put(t, s, 0, 7)
	for i, c := range clients {
		got := c.receiveAll(2)
		require.Equal(t, []uint64{uint64(i + 1), uint64(i + 4)}, []uint64{got[0].spoolID, got[1].spoolID})
	}
	clients[1].ack(1<<62, 2)
	require.EqualValues(t, 7, clients[1].receive().spoolID, "whoever has room, whatever the turn")
}

func TestWindowThatClosesGivesBackWhatWasNotSent(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	for range 60 {
		require.NoError(t, s.PublishQueue(queueName, Message{Bytes: make([]byte, 200_000)}))
	}
	stuck, other := logIn(t, s, "stuck"), logIn(t, s, "other")
	require.NoError(t, stuck.nc.(*net.TCPConn).SetReadBuffer(4096))
	stuck.bind(queueName, 60) // and reads none: 12 MB are more than the sockets hold
	stuck.ack(0, 0)
	eventually(t, func() bool { return s.Queue(queueName).Flows[0].Window == 0 }, "the window is closed")
	other.bind(queueName, 1)
	require.False(t, other.receive().redelivered)
}
