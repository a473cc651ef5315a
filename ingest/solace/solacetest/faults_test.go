package solacetest

import (
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDropComesAfterSoManyDeliveries(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	put(t, s, 0, 10)
	require.NoError(t, s.Inject(Fault{Kind: FaultDropAfterDeliveries, Queue: queueName, After: 4, Times: 1}))
	c := logIn(t, s, "c")
	c.bind(queueName, 255)
	c.receiveAll(4)
	_, err := c.read()
	require.ErrorIs(t, err, io.EOF)
	require.EqualValues(t, 4, s.Queue(queueName).Delivered)
	c = logIn(t, s, "c")
	c.bind(queueName, 255)
	got := c.receiveAll(10)
	require.True(t, got[3].redelivered)
	require.False(t, got[4].redelivered, "not sent before the drop")
}

func TestDropComesAfterSoManyAcks(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	put(t, s, 0, 10)
	require.NoError(t, s.Inject(Fault{Kind: FaultDropAfterAcks, After: 3, Times: 1}))
	c := logIn(t, s, "c")
	c.bind(queueName, 255)
	got := c.receiveAll(10)
	c.ack(got[9].id, 255, ackRange{got[0].id, got[0].id, outcomeAccepted})
	c.silent()
	c.ack(got[9].id, 255, ackRange{0, got[9].id, outcomeAccepted}) // two of these count
	c.closed()
	eventually(t, func() bool { return s.Queue(queueName).Unacked == 0 }, "all others are given back")
	require.EqualValues(t, 3, s.Queue(queueName).Acked)
	require.Equal(t, 7, s.Queue(queueName).OnQueue)
}

func TestAckFrameIsLostOrFollowedByADrop(t *testing.T) {
	t.Parallel()
	for kind, want := range map[FaultKind]struct {
		acked   int64
		dropped bool
	}{
		FaultLoseAcks:      {0, false},
		FaultDropBeforeAck: {0, true},
		FaultDropAfterAck:  {1, true},
	} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := start(t, Config{})
			put(t, s, 0, 2)
			require.NoError(t, s.Inject(Fault{Kind: kind, Times: 1}))
			c := logIn(t, s, "c")
			c.bind(queueName, 1)
			id := c.receive().id
			c.ack(0, 1) // no application acknowledgement: not what the fault is about
			c.silent()
			c.ack(id, 1, ackRange{id, id, outcomeAccepted})
			if want.dropped {
				c.closed()
			} else {
				require.Equal(t, "1", c.receive().applicationID, "the window moves on all the same")
			}
			eventually(t, func() bool { return s.Counters().AckFrames == 1 }, "the frame is read")
			require.Equal(t, want.acked, s.Queue(queueName).Acked)
			require.Equal(t, 1-want.acked, s.Counters().AckFramesLost)
		})
	}
}

func TestDuplicateDeliveryIsOneMessage(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	put(t, s, 0, 2)
	require.NoError(t, s.Inject(Fault{Kind: FaultDuplicate, After: 1, Times: 1}))
	c := logIn(t, s, "c")
	c.bind(queueName, 255)
	got := c.receiveAll(3)
	require.Equal(t, got[1].spoolID, got[2].spoolID)
	require.False(t, got[1].redelivered)
	require.True(t, got[2].redelivered)
	c.ack(got[2].id, 255, ackRange{got[1].id, got[1].id, outcomeAccepted}, ackRange{got[2].id, got[2].id, outcomeAccepted})
	c.silent()
	q := s.Queue(queueName)
	require.Equal(t, QueueCounters{Spooled: 2, Delivered: 3, Redelivered: 1, Acked: 1, AckedAgain: 1}, q.QueueCounters)
	require.Equal(t, 1, q.OnQueue)
}

func TestMuteConnectionReadsOnAndDoesNothing(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	put(t, s, 0, 1)
	mute, other := logIn(t, s, "mute"), logIn(t, s, "other")
	mute.bind(queueName, 255)
	id := mute.receive().id
	require.NoError(t, s.Inject(Fault{Kind: FaultMute, Client: "mute"}))
	mute.ack(id, 255, ackRange{id, id, outcomeAccepted})
	mute.send(keepAliveFrame())
	other.silent()
	require.Zero(t, s.Queue(queueName).Acked)
	require.NoError(t, mute.nc.Close())
	other.bind(queueName, 255)
	require.True(t, other.receive().redelivered)
}

func TestFaultIsForOneQueueOrClientAndSoManyTimes(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Queues: []Queue{{Name: queueName}, {Name: "other"}}})
	require.NoError(t, s.Inject(Fault{Kind: FaultRefuseBind, Queue: queueName, Client: "a", After: 1, Times: 2, Code: 403, Text: "No"}))
	a, b := logIn(t, s, "a"), logIn(t, s, "b")
	a.bind("other", 0)
	b.bind(queueName, 0)
	a.bind(queueName, 0) // let pass
	for range 2 {
		a.send(bindFrame(queueName, 0))
		f, _ := a.assured(assuredBind)
		code, text := f.response()
		require.EqualValues(t, 403, code)
		require.Equal(t, "No", text)
	}
	a.bind(queueName, 0)
	require.NoError(t, s.Inject(Fault{Kind: FaultHoldBind}))
	a.send(bindFrame(queueName, 0))
	a.silent()
	require.NoError(t, s.Inject(Fault{Kind: FaultClear}))
	a.bind(queueName, 0)
}

func TestHooksDecideOnEverything(t *testing.T) {
	t.Parallel()
	type call struct {
		name string
		arg  any
	}
	calls := make(chan call, 100)
	verdicts := make(chan error, 100)
	decide := func(name string, arg any) error {
		calls <- call{name, arg}
		select {
		case err := <-verdicts:
			return err
		default:
			return nil
		}
	}
	s := start(t, Config{})
	s.SetHooks(Hooks{
		OnConnect: func(string) error { return decide("connect", nil) },
		OnLogin:   func(l Login) error { return decide("login", l.Client) },
		OnBind:    func(b Bind) error { return decide("bind", b) },
		OnAck:     func(a Ack) error { return decide("ack", a) },
		OnPublish: func(p Publication) error { return decide("publish", p) },
		OnDeliver: func(d Delivery) error { return decide("deliver", d) },
	})
	verdicts <- nil
	verdicts <- errors.New("not today")
	c := dial(t, s)
	c.send(loginFrame("c"))
	code, text := c.next(protoClient).response()
	require.EqualValues(t, 503, code)
	require.Equal(t, "not today", text)
	c.send(loginFrame("c"))
	c.next(protoClient)
	verdicts <- &Refusal{Code: 400, Text: "Queue Not Found"}
	c.send(bindFrame(queueName, 255))
	f, _ := c.assured(assuredBind)
	_, text = f.response()
	require.Equal(t, "Queue Not Found", text)
	c.bind(queueName, 255)
	c.openPublisher("")
	c.publish(1, Message{Bytes: []byte("1"), ApplicationMessageID: "one"})
	c.assured(assuredAck)
	id := c.receive().id
	c.ack(id, 255, ackRange{0, id, outcomeFailed})
	verdicts <- nil // the redelivery
	c.receive()
	for range 2 {
		<-calls
	}
	var got []call
	for len(calls) > 0 {
		got = append(got, <-calls)
	}
	require.Equal(t, []call{
		{"login", "c"},
		{"bind", Bind{"c", queueName}},
		{"bind", Bind{"c", queueName}},
		{"publish", Publication{Client: "c", Topic: "billing/x", ApplicationMessageID: "one"}},
		{"deliver", Delivery{"c", queueName, 1, "one", 1}},
		{"ack", Ack{"c", queueName, []AckedMessage{{1, "one", "failed"}}}},
		{"deliver", Delivery{"c", queueName, 1, "one", 2}},
	}, got)
}

func TestHookDropsBeforeOrAfterADelivery(t *testing.T) {
	t.Parallel()
	for name, verdict := range map[string]error{"before": ErrDrop, "after": ErrDropAfter} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, Config{Hooks: Hooks{OnDeliver: func(d Delivery) error {
				if d.ApplicationMessageID == "2" {
					return verdict
				}
				return nil
			}}})
			put(t, s, 0, 5)
			c := logIn(t, s, "c")
			c.bind(queueName, 255)
			n := 0
			for ; ; n++ {
				if _, err := c.read(); err != nil {
					break
				}
			}
			require.Equal(t, map[string]int{"before": 2, "after": 3}[name], n)
		})
	}
}

func TestReplayBringsBackWhatWasAcked(t *testing.T) {
	t.Parallel()
	s := start(t, Config{ReplayLog: true})
	put(t, s, 0, 3)
	c := logIn(t, s, "c")
	c.bind(queueName, 255)
	got := c.receiveAll(3)
	c.ack(got[2].id, 255, ackRange{0, got[1].id, outcomeAccepted})
	c.silent()
	require.NoError(t, s.Inject(Fault{Kind: FaultReplay, Queue: queueName}))
	f, _ := c.assured(assuredUnbind)
	_, text := f.response()
	require.Equal(t, "Replay Started", text)
	c.bind(queueName, 255)
	for i, r := range c.receiveAll(3) {
		require.Equal(t, got[i].spoolID, r.spoolID)
	}
	q := s.Queue(queueName)
	require.Equal(t, QueueCounters{Spooled: 3, Delivered: 6, Acked: 2, Discarded: 1, Replayed: 3}, q.QueueCounters)
	require.Equal(t, 3, q.OnQueue)
	require.Error(t, s.Replay("absent"))
	require.Error(t, start(t, Config{}).Replay(queueName))
}

func TestReplayLogForgetsTheOldest(t *testing.T) {
	t.Parallel()
	s := start(t, Config{ReplayLog: true, MaxBytes: 20_000})
	for i := range 100 {
		put(t, s, i, 1)
		c := logIn(t, s, "c")
		c.bind(queueName, 255)
		r := c.receive()
		c.ack(r.id, 255, ackRange{0, r.id, outcomeAccepted})
		c.silent()
		require.NoError(t, c.nc.Close())
		eventually(t, func() bool { return len(s.Queue(queueName).Flows) == 0 }, "unbound")
	}
	require.NoError(t, s.Replay(queueName))
	q := s.Queue(queueName)
	require.Less(t, q.OnQueue, 100)
	require.LessOrEqual(t, q.Bytes, int64(10_000))
	require.Equal(t, "99", q.Messages[len(q.Messages)-1].ApplicationMessageID)
}
