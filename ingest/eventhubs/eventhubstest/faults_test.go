package eventhubstest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/Azure/go-amqp"
	"github.com/stretchr/testify/require"

	"chargeonce/ingest/eventhubs/eventhubstest"
)

func TestLostAcknowledgementLeavesTwoCopies(t *testing.T) {
	t.Parallel()
	s := start(t, eventhubstest.Config{})
	require.NoError(t, s.Inject(eventhubstest.Fault{Kind: eventhubstest.FaultLoseAck, Times: 1}))
	send(t, producer(t, s), azeventhubs.EventDataBatchOptions{PartitionID: new("1")}, "charge")
	held := s.Events(hubName, "1")
	require.Len(t, held, 2, "the retry publishes a second copy")
	require.Equal(t, held[0].Body, held[1].Body)
	require.Equal(t, held[0].MessageID, held[1].MessageID)
	require.Less(t, held[0].SequenceNumber, held[1].SequenceNumber)
	require.NotEqual(t, held[0].Offset, held[1].Offset)
	require.EqualValues(t, 1, s.Counters().AcksLost)
}

func TestReceiverNeitherSkipsNorRepeatsAfterADroppedConnection(t *testing.T) {
	t.Parallel()
	s := start(t, eventhubstest.Config{})
	publish(t, s, "0", 30)
	opts := earliest()
	opts.Prefetch = -1 // what is prefetched dies with the connection and must come again
	pc := receiver(t, consumer(t, s, "$default"), "0", opts)
	var got []*azeventhubs.ReceivedEventData
	for _, cut := range []func(){
		s.DropConnections,
		func() { require.Equal(t, 1, s.DetachReceivers(hubName, "0")) },
		s.DropConnections,
	} {
		got = append(got, receive(t, pc, 5)...)
		cut()
	}
	got = append(got, receive(t, pc, 15)...)
	for i, e := range got {
		require.EqualValues(t, i, e.SequenceNumber)
	}
	require.Len(t, got, 30)
}

func TestRefusedSendIsNotStored(t *testing.T) {
	t.Parallel()
	s := start(t, eventhubstest.Config{})
	p := producer(t, s)
	require.NoError(t, s.Inject(eventhubstest.Fault{
		Kind: eventhubstest.FaultRejectSend, Hub: hubName, Condition: string(amqp.ErrCondResourceLimitExceeded), Description: "quota",
	}))
	requireCondition(t, trySend(t.Context(), p, azeventhubs.EventDataBatchOptions{}, "x"), amqp.ErrCondResourceLimitExceeded, "quota")
	require.Zero(t, s.Counters().Stored)
	require.NoError(t, s.Inject(eventhubstest.Fault{Kind: eventhubstest.FaultClear}))
	require.NoError(t, s.Inject(eventhubstest.Fault{Kind: eventhubstest.FaultRejectSend, Times: 2}))
	send(t, p, azeventhubs.EventDataBatchOptions{}, "x") // busy twice, then taken
	require.EqualValues(t, 1, s.Counters().Stored)
	require.EqualValues(t, 3, s.Counters().SendsRejected)
}

func TestMemoryStaysWithinTheLimit(t *testing.T) {
	t.Parallel()
	s := start(t, eventhubstest.Config{MaxBytes: 100_000})
	p := producer(t, s)
	send(t, p, azeventhubs.EventDataBatchOptions{PartitionID: new("0")}, strings.Repeat("x", 60_000))
	err := trySend(t.Context(), p, azeventhubs.EventDataBatchOptions{}, strings.Repeat("x", 60_000))
	requireCondition(t, err, amqp.ErrCondResourceLimitExceeded, "takes at most 100000")
	_, err = s.Publish(hubName, "0", make([]byte, 60_000), nil)
	require.ErrorContains(t, err, "takes at most 100000")
	require.NoError(t, s.Trim(hubName, "0", 1))
	send(t, p, azeventhubs.EventDataBatchOptions{}, strings.Repeat("x", 60_000))
}

// An attach that is never answered must hold its caller until the caller gives up, and nobody else.
func TestHeldAttachIsNeverAnswered(t *testing.T) {
	t.Parallel()
	attached := make(chan string, 10) // the hook is asked before the fault strikes
	s := start(t, eventhubstest.Config{Hooks: eventhubstest.Hooks{OnAttach: func(a eventhubstest.Attach) error {
		if a.Receiver && a.Hub != "" {
			attached <- a.PartitionID
		}
		return nil
	}}})
	require.NoError(t, s.Inject(eventhubstest.Fault{Kind: eventhubstest.FaultHoldAttach, Partition: "0", Times: 1}))
	publish(t, s, "0", 1)
	publish(t, s, "1", 1)
	c := consumer(t, s, "$default")
	held := receiver(t, c, "0", earliest())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := held.ReceiveEvents(ctx, 1, nil)
		ended <- err
	}()
	require.Equal(t, "0", <-attached)
	require.Len(t, receive(t, receiver(t, c, "1", earliest()), 1), 1)
	require.Empty(t, ended, "the held attach has no answer")
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.Len(t, receive(t, held, 1), 1, "the next attach is answered")
}

func TestHooksSeeTheOperation(t *testing.T) {
	t.Parallel()
	attaches := make(chan eventhubstest.Attach, 100)
	sends := make(chan eventhubstest.Send, 100)
	s := start(t, eventhubstest.Config{Hooks: eventhubstest.Hooks{
		OnAttach: func(a eventhubstest.Attach) error { attaches <- a; return nil },
		OnSend:   func(m eventhubstest.Send) error { sends <- m; return nil },
	}})
	send(t, producer(t, s), azeventhubs.EventDataBatchOptions{PartitionID: new("3")}, "x", "y")
	require.Equal(t, eventhubstest.Send{Hub: hubName, PartitionID: "3", Events: 2}, <-sends)
	opts := earliest()
	opts.OwnerLevel = new(int64(7))
	require.Len(t, receive(t, receiver(t, consumer(t, s, "$Default"), "3", opts), 2), 2)
	for a := range attaches {
		if a.Hub != "" && a.Receiver {
			require.Equal(t, "$Default", a.ConsumerGroup)
			require.Equal(t, "3", a.PartitionID)
			require.EqualValues(t, 7, *a.Epoch)
			require.Equal(t, "amqp.annotation.x-opt-offset > '-1'", a.Selector)
			return
		}
	}
}

func TestRefusedTokenKeepsTheClientOut(t *testing.T) {
	t.Parallel()
	s := start(t, eventhubstest.Config{Hooks: eventhubstest.Hooks{
		OnToken: func(string) (int, string) { return 401, "no claims" },
	}})
	_, err := consumer(t, s, "$default").GetEventHubProperties(t.Context(), nil)
	require.ErrorContains(t, err, "no claims")
	s.SetHooks(eventhubstest.Hooks{OnManagement: func(string, string) (int, string) { return 404, "gone" }})
	_, err = consumer(t, s, "$default").GetEventHubProperties(t.Context(), nil)
	require.ErrorContains(t, err, "gone")
	require.Positive(t, s.Counters().TokensRefused)
}

// One event whose partition key is no string takes the good ones of the same call along: a fault of the SDK that an
// ingestor must notice by the gap in sequence numbers.
func TestSpoiledPartitionKeyDoesNotReachTheClient(t *testing.T) {
	t.Parallel()
	s := start(t, eventhubstest.Config{})
	publish(t, s, "0", 5)
	require.NoError(t, s.Inject(eventhubstest.Fault{
		Kind: eventhubstest.FaultSpoilKey, Partition: "0", SequenceNumber: new(int64(2)), Times: 1,
	}))
	pc := receiver(t, consumer(t, s, "$default"), "0", earliest())
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	events, err := pc.ReceiveEvents(ctx, 5, nil)
	require.NoError(t, err)
	require.NotContains(t, sequences(events), int64(2))
	require.Equal(t, []int64{0, 1, 2, 3, 4}, sequences(receive(t, receiver(t, consumer(t, s, "$default"), "0", earliest()), 5)))
}

// A partition that stops silently: the hub counts its events and sends none.
func TestSilentPartitionCountsEventsAndSendsNone(t *testing.T) {
	t.Parallel()
	s := start(t, eventhubstest.Config{})
	silence := eventhubstest.Fault{Kind: eventhubstest.FaultSilence, Partition: "0"}
	require.NoError(t, s.Inject(silence))
	publish(t, s, "0", 5)
	publish(t, s, "1", 5)
	c := consumer(t, s, "$default")
	silent := receiver(t, c, "0", earliest())
	require.Equal(t, []int64{0, 1, 2, 3, 4}, sequences(receive(t, receiver(t, c, "1", earliest()), 5)))
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err := silent.ReceiveEvents(ctx, 5, nil)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	properties, err := c.GetPartitionProperties(t.Context(), "0", nil)
	require.NoError(t, err)
	require.EqualValues(t, 4, properties.LastEnqueuedSequenceNumber)
	require.NoError(t, s.Inject(eventhubstest.Fault{Kind: eventhubstest.FaultClear}))
	require.Equal(t, []int64{0, 1, 2, 3, 4}, sequences(receive(t, silent, 5)))
	silence.Times = 1
	require.Error(t, s.Inject(silence))
}

func TestMutateReachesTheClient(t *testing.T) {
	t.Parallel()
	s := start(t, eventhubstest.Config{Hooks: eventhubstest.Hooks{
		Mutate: func(d eventhubstest.Delivery, a amqp.Annotations) amqp.Annotations {
			a["x-test"] = fmt.Sprintf("%s/%s/%s/%d", d.Hub, d.PartitionID, d.ConsumerGroup, d.SequenceNumber)
			return a
		},
	}})
	publish(t, s, "0", 1)
	events := receive(t, receiver(t, consumer(t, s, "$default"), "0", earliest()), 1)
	require.Equal(t, hubName+"/0/$default/0", events[0].SystemProperties["x-test"])
}

func TestAddedPartitionsAreVisible(t *testing.T) {
	t.Parallel()
	s := start(t, eventhubstest.Config{})
	c := consumer(t, s, "$default")
	require.NoError(t, s.AddPartitions(hubName, 2))
	props, err := c.GetEventHubProperties(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, []string{"0", "1", "2", "3", "4", "5"}, props.PartitionIDs)
	send(t, producer(t, s), azeventhubs.EventDataBatchOptions{PartitionID: new("5")}, "x")
	require.Len(t, receive(t, receiver(t, c, "5", earliest()), 1), 1)
	require.Error(t, s.AddPartitions("absent", 1))
}

func TestRecreatedHubForgetsItsPast(t *testing.T) {
	t.Parallel()
	s := start(t, eventhubstest.Config{})
	publish(t, s, "0", 20)
	c := consumer(t, s, "$default")
	before, err := c.GetEventHubProperties(t.Context(), nil)
	require.NoError(t, err)
	pc := receiver(t, c, "0", earliest())
	require.Len(t, receive(t, pc, 20), 20)

	require.NoError(t, s.RecreateHub(hubName))
	after, err := c.GetEventHubProperties(t.Context(), nil)
	require.NoError(t, err)
	require.True(t, after.CreatedOn.After(before.CreatedOn))
	publish(t, s, "0", 1)
	require.EqualValues(t, 0, s.Events(hubName, "0")[0].SequenceNumber)

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err = pc.ReceiveEvents(ctx, 1, nil)
	require.ErrorContains(t, err, "is invalid", "the old position lies beyond the new end")
	require.Len(t, receive(t, receiver(t, c, "0", earliest()), 1), 1)
	send(t, producer(t, s), azeventhubs.EventDataBatchOptions{PartitionID: new("0")}, "x")
	require.Len(t, s.Events(hubName, "0"), 2)
}

func TestConnectionIsRefusedDuringAnOutage(t *testing.T) {
	t.Parallel()
	s := start(t, eventhubstest.Config{})
	publish(t, s, "0", 1)
	pc := receiver(t, consumer(t, s, "$default"), "0", earliest())
	var refused atomic.Int64
	s.SetHooks(eventhubstest.Hooks{OnConnect: func(string) error { refused.Add(1); return errors.New("down") }})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := pc.ReceiveEvents(ctx, 1, nil)
	ehErr, ok := errors.AsType[*azeventhubs.Error](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, azeventhubs.ErrorCodeConnectionLost, ehErr.Code)
	require.GreaterOrEqual(t, refused.Load(), int64(4), "first try and three more")
	s.SetHooks(eventhubstest.Hooks{})
	require.Len(t, receive(t, pc, 1), 1)
}

func TestHeldConnectionDoesNotKeepCloseWaiting(t *testing.T) {
	t.Parallel()
	s := start(t, eventhubstest.Config{Hooks: eventhubstest.Hooks{OnConnect: func(string) error { return eventhubstest.ErrHold }}})
	var d net.Dialer
	nc, err := d.DialContext(t.Context(), "tcp", s.Addr())
	require.NoError(t, err)
	defer func() { _ = nc.Close() }()
	_, err = nc.Write([]byte("AMQP\x03\x01\x00\x00"))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return s.Counters().Connections == 1 }, 10*time.Second, time.Millisecond)
	require.NoError(t, s.Close())
	_, err = io.ReadAll(nc)
	_ = err // a reset is as good as an end
	require.Zero(t, s.Counters().Connections)
}

// A client that takes nothing from its socket must neither hold up another client nor stay for ever.
func TestSlowReaderDoesNotStallTheOthers(t *testing.T) {
	t.Parallel()
	s := start(t, eventhubstest.Config{WriteTimeout: 500 * time.Millisecond})
	body := strings.Repeat("x", 500_000)
	for range 40 {
		_, err := s.Publish(hubName, "0", []byte(body), nil)
		require.NoError(t, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stuck := &stuckConn{stop: make(chan struct{})}
	stuck.read.Store(true)
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", s.Addr())
	require.NoError(t, err)
	stuck.Conn = nc
	client, err := amqp.NewConn(ctx, stuck, &amqp.ConnOptions{SASLType: amqp.SASLTypeAnonymous()})
	require.NoError(t, err)
	defer func() { close(stuck.stop); _ = client.Close() }()
	session, err := client.NewSession(ctx, nil)
	require.NoError(t, err)
	_, err = session.NewReceiver(ctx, hubName+"/ConsumerGroups/$default/Partitions/0", &amqp.ReceiverOptions{Credit: 1000})
	require.NoError(t, err)
	stuck.read.Store(false)

	send(t, producer(t, s), azeventhubs.EventDataBatchOptions{PartitionID: new("1")}, "quick")
	require.Len(t, receive(t, receiver(t, consumer(t, s, "$default"), "1", earliest()), 1), 1)
	require.Len(t, receive(t, receiver(t, consumer(t, s, "$default"), "0", earliest()), 40), 40)
	require.Eventually(t, func() bool { return s.Counters().SlowDropped == 1 }, 10*time.Second, 5*time.Millisecond)
}

// stuckConn stops reading when told to.
type stuckConn struct {
	net.Conn
	read atomic.Bool
	stop chan struct{}
}

func (c *stuckConn) Read(b []byte) (int, error) {
	if !c.read.Load() {
		<-c.stop
		return 0, io.EOF
	}
	return c.Conn.Read(b[:min(len(b), 512)])
}

func TestDrainIsHeeded(t *testing.T) {
	t.Parallel()
	s := start(t, eventhubstest.Config{})
	publish(t, s, "0", 2)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	client, err := amqp.Dial(ctx, "amqp://"+s.Addr(), nil) // no SASL layer at all
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	session, err := client.NewSession(ctx, nil)
	require.NoError(t, err)
	r, err := session.NewReceiver(ctx, hubName+"/ConsumerGroups/$default/Partitions/0", &amqp.ReceiverOptions{Credit: -1})
	require.NoError(t, err)
	require.NoError(t, r.IssueCredit(10))
	for range 2 {
		_, err = r.Receive(ctx, nil)
		require.NoError(t, err)
	}
	require.NoError(t, r.DrainCredit(ctx, nil))
	publish(t, s, "0", 2)
	require.NoError(t, r.IssueCredit(1))
	_, err = r.Receive(ctx, nil)
	require.NoError(t, err)
	require.NoError(t, r.DrainCredit(ctx, nil)) // its answer comes after anything sent before
	require.Nil(t, r.Prefetched(), "the credit of before the drain is used up")
	require.EqualValues(t, 3, s.Counters().Deliveries)
}

func TestIdleClientIsKeptAlive(t *testing.T) {
	t.Parallel()
	s := start(t, eventhubstest.Config{})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	client, err := amqp.Dial(ctx, "amqp://"+s.Addr(), &amqp.ConnOptions{
		SASLType: amqp.SASLTypeAnonymous(), IdleTimeout: 400 * time.Millisecond,
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	session, err := client.NewSession(ctx, nil)
	require.NoError(t, err)
	r, err := session.NewReceiver(ctx, hubName+"/ConsumerGroups/$default/Partitions/0", nil)
	require.NoError(t, err)
	quiet, stop := context.WithTimeout(ctx, 1500*time.Millisecond)
	defer stop()
	_, err = r.Receive(quiet, nil)
	require.ErrorIs(t, err, context.DeadlineExceeded, "the connection outlives several idle time-outs")
	publish(t, s, "0", 1)
	_, err = r.Receive(ctx, nil)
	require.NoError(t, err)
}

func TestFivePlainReceiversShareAPartitionAtMost(t *testing.T) {
	t.Parallel()
	s := start(t, eventhubstest.Config{Hubs: []eventhubstest.Hub{{Name: hubName, Partitions: 1, ConsumerGroups: []string{"other"}}}})
	publish(t, s, "0", 1)
	c := consumer(t, s, "$default")
	for range 5 {
		require.Len(t, receive(t, receiver(t, c, "0", earliest()), 1), 1)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := receiver(t, c, "0", earliest()).ReceiveEvents(ctx, 1, nil)
	requireCondition(t, err, amqp.ErrCondResourceLimitExceeded, "which is 5")
	require.Len(t, receive(t, receiver(t, consumer(t, s, "other"), "0", earliest()), 1), 1)
}
