package eventhubstest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/Azure/go-amqp"
	"github.com/stretchr/testify/require"

	"chargeonce/ingest/eventhubs/eventhubstest"
)

func TestNoEventIsLostOnTheWayThroughProducerAndProcessor(t *testing.T) {
	t.Parallel()
	s := start(t, eventhubstest.Config{})
	p := producer(t, s)
	for i := range 40 {
		send(t, p, azeventhubs.EventDataBatchOptions{}, fmt.Sprintf("a%d", i), fmt.Sprintf("b%d", i))
	}
	for i := range 4 {
		require.Len(t, s.Events(hubName, fmt.Sprint(i)), 20, "round robin")
	}
	y := newTally()
	process(t, s, newMemoryStore(), y)
	require.Eventually(t, func() bool { return y.distinct() == 80 }, 10*time.Second, 5*time.Millisecond)
	require.EqualValues(t, 80, s.Counters().Deliveries)
}

func TestEventKeepsWhatTheProducerSet(t *testing.T) {
	t.Parallel()
	s := start(t, eventhubstest.Config{})
	p := producer(t, s)
	batch, err := p.NewEventDataBatch(t.Context(), &azeventhubs.EventDataBatchOptions{PartitionKey: new("cus_1")})
	require.NoError(t, err)
	require.NoError(t, batch.AddEventData(&azeventhubs.EventData{
		Body: []byte(`{"a":1}`), ContentType: new("application/json"), MessageID: new("m-1"), CorrelationID: "c-1",
		Properties: map[string]any{"text": "x", "number": int64(1 << 40), "flag": true},
	}, nil))
	require.NoError(t, p.SendEventDataBatch(t.Context(), batch, nil))

	var stored []eventhubstest.Event
	for i := range 4 {
		stored = append(stored, s.Events(hubName, fmt.Sprint(i))...)
	}
	require.Len(t, stored, 1)
	require.Equal(t, "cus_1", stored[0].PartitionKey)
	require.Equal(t, "m-1", stored[0].MessageID)
	require.JSONEq(t, `{"a":1}`, string(stored[0].Body))

	got := receive(t, receiver(t, consumer(t, s, "$Default"), stored[0].PartitionID, earliest()), 1)[0]
	require.Equal(t, `{"a":1}`, string(got.Body))
	require.Equal(t, "application/json", *got.ContentType)
	require.Equal(t, "m-1", *got.MessageID)
	require.Equal(t, "c-1", got.CorrelationID)
	require.Equal(t, map[string]any{"text": "x", "number": int64(1 << 40), "flag": true}, got.Properties)
	require.Equal(t, "cus_1", *got.PartitionKey)
	require.Equal(t, stored[0].Offset, got.Offset)
	require.True(t, stored[0].EnqueuedTime.Equal(*got.EnqueuedTime))
}

func TestOnePartitionKeyEndsInOnePartition(t *testing.T) {
	t.Parallel()
	s := start(t, eventhubstest.Config{})
	p := producer(t, s)
	for range 8 {
		send(t, p, azeventhubs.EventDataBatchOptions{PartitionKey: new("one")}, "x")
	}
	var used []int
	for i := range 4 {
		if n := len(s.Events(hubName, fmt.Sprint(i))); n > 0 {
			used = append(used, n)
		}
	}
	require.Equal(t, []int{8}, used)
}

func TestStartPositionIsKept(t *testing.T) {
	t.Parallel()
	var now time.Time
	base := time.Date(2026, 8, 31, 12, 0, 0, 0, time.UTC)
	s := start(t, eventhubstest.Config{Now: func() time.Time { now = now.Add(time.Second); return base.Add(now.Sub(time.Time{})) }})
	publish(t, s, "0", 10)
	held := s.Events(hubName, "0")
	c := consumer(t, s, "$default")
	for name, tc := range map[string]struct {
		position azeventhubs.StartPosition
		first    int64
	}{
		"earliest":               {azeventhubs.StartPosition{Earliest: new(true)}, 0},
		"after sequence":         {azeventhubs.StartPosition{SequenceNumber: new(int64(4))}, 5},
		"from sequence":          {azeventhubs.StartPosition{SequenceNumber: new(int64(4)), Inclusive: true}, 4},
		"after offset":           {azeventhubs.StartPosition{Offset: &held[6].Offset}, 7},
		"from offset":            {azeventhubs.StartPosition{Offset: &held[6].Offset, Inclusive: true}, 6},
		"after enqueued time":    {azeventhubs.StartPosition{EnqueuedTime: &held[2].EnqueuedTime}, 3},
		"from enqueued time":     {azeventhubs.StartPosition{EnqueuedTime: &held[2].EnqueuedTime, Inclusive: true}, 2},
		"after the one but last": {azeventhubs.StartPosition{SequenceNumber: new(int64(8))}, 9},
	} {
		pc := receiver(t, c, "0", azeventhubs.PartitionClientOptions{StartPosition: tc.position})
		require.Equal(t, tc.first, receive(t, pc, 1)[0].SequenceNumber, name)
		ctx, cancel := bounded()
		require.NoError(t, pc.Close(ctx))
		cancel()
	}
}

func TestLatestDeliversNoOldEvents(t *testing.T) {
	t.Parallel()
	s := start(t, eventhubstest.Config{})
	publish(t, s, "0", 3)
	pc := receiver(t, consumer(t, s, "$default"), "0", azeventhubs.PartitionClientOptions{})
	got := make(chan []*azeventhubs.ReceivedEventData, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	go func() {
		events, _ := pc.ReceiveEvents(ctx, 1, nil)
		got <- events
	}()
	require.Eventually(t, func() bool { return s.Counters().Receivers == 1 }, 10*time.Second, time.Millisecond)
	publish(t, s, "0", 1)
	require.Equal(t, []int64{3}, sequences(<-got))
}

func TestPositionBeyondTheEndIsRefused(t *testing.T) {
	t.Parallel()
	s := start(t, eventhubstest.Config{})
	publish(t, s, "0", 1)
	for _, position := range []azeventhubs.StartPosition{{Offset: new("99999")}, {SequenceNumber: new(int64(17))}} {
		pc := receiver(t, consumer(t, s, "$default"), "0", azeventhubs.PartitionClientOptions{StartPosition: position})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		_, err := pc.ReceiveEvents(ctx, 1, nil)
		cancel()
		require.ErrorContains(t, err, "is invalid. The last")
	}
	pc := receiver(t, consumer(t, s, "$default"), "1", azeventhubs.PartitionClientOptions{StartPosition: azeventhubs.StartPosition{SequenceNumber: new(int64(0))}})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := pc.ReceiveEvents(ctx, 1, nil)
	require.ErrorContains(t, err, "The last sequence number in the system is '-1'")
}

func TestOlderReceiverEndsAtANewEpoch(t *testing.T) {
	t.Parallel()
	s := start(t, eventhubstest.Config{})
	c := consumer(t, s, "$default")
	first := receiver(t, c, "0", azeventhubs.PartitionClientOptions{StartPosition: earliest().StartPosition, OwnerLevel: new(int64(0))})
	publish(t, s, "0", 1)
	require.Len(t, receive(t, first, 1), 1)

	second := receiver(t, c, "0", azeventhubs.PartitionClientOptions{StartPosition: earliest().StartPosition, OwnerLevel: new(int64(0))})
	require.Len(t, receive(t, second, 1), 1)

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := first.ReceiveEvents(ctx, 1, nil)
	var ehErr *azeventhubs.Error
	require.ErrorAs(t, err, &ehErr)
	require.Equal(t, azeventhubs.ErrorCodeOwnershipLost, ehErr.Code)
	require.EqualValues(t, 1, s.Counters().Stolen)
	require.EqualValues(t, 1, s.Counters().Receivers)

	plain := receiver(t, c, "0", earliest())
	_, err = plain.ReceiveEvents(ctx, 1, nil)
	require.ErrorContains(t, err, "higher epoch")
	other := receiver(t, consumer(t, s, "$default"), "1", earliest())
	publish(t, s, "1", 1)
	require.Len(t, receive(t, other, 1), 1, "another partition is free")
}

func TestPartitionsAreSharedByTwoProcessors(t *testing.T) {
	t.Parallel()
	s := start(t, eventhubstest.Config{})
	store, y := newMemoryStore(), newTally()
	process(t, s, store, y)
	require.Eventually(t, func() bool { return s.Counters().Receivers == 4 }, 10*time.Second, 5*time.Millisecond)
	stopSecond := process(t, s, store, y)
	require.Eventually(t, func() bool {
		owners := store.owners()
		for _, n := range owners {
			if n != 2 {
				return false
			}
		}
		return len(owners) == 2 && s.Counters().Receivers == 4
	}, 10*time.Second, 5*time.Millisecond)
	for i := range 100 {
		_, err := s.Publish(hubName, "", fmt.Appendf(nil, "e%d", i), nil)
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return y.distinct() == 100 }, 10*time.Second, 5*time.Millisecond)

	stopSecond()
	for i := range 100 {
		_, err := s.Publish(hubName, "", fmt.Appendf(nil, "f%d", i), nil)
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return y.distinct() == 200 }, 10*time.Second, 5*time.Millisecond)
}

func TestEventLargerThanAFrameIsWhole(t *testing.T) {
	t.Parallel()
	s := start(t, eventhubstest.Config{})
	body := strings.Repeat("0123456789", 30_000)
	send(t, producer(t, s), azeventhubs.EventDataBatchOptions{PartitionID: new("2")}, body, "small", body[:299_999])
	got := receive(t, receiver(t, consumer(t, s, "$default"), "2", earliest()), 3)
	require.Equal(t, body, string(got[0].Body))
	require.Equal(t, "small", string(got[1].Body))
	require.Len(t, got[2].Body, 299_999)
}

func TestReceiveReturnsWhatThereIs(t *testing.T) {
	t.Parallel()
	s := start(t, eventhubstest.Config{})
	publish(t, s, "0", 3)
	pc := receiver(t, consumer(t, s, "$default"), "0", earliest())
	events := receive(t, pc, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	more, err := pc.ReceiveEvents(ctx, 99, nil)
	require.NoError(t, err)
	require.Equal(t, []int64{0, 1, 2}, sequences(append(events, more...)))
}

func TestPrefetchOffKeepsToTheCredit(t *testing.T) {
	t.Parallel()
	s := start(t, eventhubstest.Config{})
	publish(t, s, "0", 100)
	opts := earliest()
	opts.Prefetch = -1
	pc := receiver(t, consumer(t, s, "$default"), "0", opts)
	require.Len(t, receive(t, pc, 7), 7)
	require.EqualValues(t, 7, s.Counters().Deliveries)
	require.Equal(t, []int64{7, 8, 9}, sequences(receive(t, pc, 3)))
	require.EqualValues(t, 10, s.Counters().Deliveries)
}

func TestPropertiesAgreeWithTheLog(t *testing.T) {
	t.Parallel()
	s := start(t, eventhubstest.Config{})
	publish(t, s, "1", 5)
	require.NoError(t, s.Trim(hubName, "1", 2))
	c := consumer(t, s, "$default")
	hub, err := c.GetEventHubProperties(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, hubName, hub.Name)
	require.Equal(t, []string{"0", "1", "2", "3"}, hub.PartitionIDs)
	require.False(t, hub.GeoReplicationEnabled)
	require.WithinDuration(t, time.Now(), hub.CreatedOn, time.Minute)

	p, err := c.GetPartitionProperties(t.Context(), "1", nil)
	require.NoError(t, err)
	require.EqualValues(t, 2, p.BeginningSequenceNumber)
	require.EqualValues(t, 4, p.LastEnqueuedSequenceNumber)
	require.Equal(t, s.Events(hubName, "1")[2].Offset, p.LastEnqueuedOffset)
	require.False(t, p.IsEmpty)
	empty, err := c.GetPartitionProperties(t.Context(), "0", nil)
	require.NoError(t, err)
	require.True(t, empty.IsEmpty)
	require.EqualValues(t, -1, empty.LastEnqueuedSequenceNumber)

	pc := receiver(t, c, "1", earliest())
	require.Equal(t, []int64{2, 3, 4}, sequences(receive(t, pc, 3)))
}

func TestUnknownNamesGetAClearError(t *testing.T) {
	t.Parallel()
	s := start(t, eventhubstest.Config{Hubs: []eventhubstest.Hub{{Name: hubName, Partitions: 1, ConsumerGroups: []string{"Billing-CG"}}}})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()

	_, err := receiver(t, consumer(t, s, "nobody"), "0", earliest()).ReceiveEvents(ctx, 1, nil)
	requireCondition(t, err, amqp.ErrCondNotFound, "consumergroup:nobody' could not be found")
	publish(t, s, "0", 1)
	require.Len(t, receive(t, receiver(t, consumer(t, s, "billing-cg"), "0", earliest()), 1), 1, "case does not matter")

	_, err = receiver(t, consumer(t, s, "$default"), "7", earliest()).ReceiveEvents(ctx, 1, nil)
	requireCondition(t, err, "com.microsoft:argument-out-of-range", "between 0 and 0")

	c, err := azeventhubs.NewConsumerClientFromConnectionString(s.ConnectionString(""), "absent", "$default", &azeventhubs.ConsumerClientOptions{RetryOptions: quick})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close(ctx)) }()
	_, err = c.GetEventHubProperties(ctx, nil)
	require.ErrorContains(t, err, "absent' could not be found")
	_, err = receiver(t, c, "0", earliest()).ReceiveEvents(ctx, 1, nil)
	requireCondition(t, err, amqp.ErrCondNotFound, "absent' could not be found")
}

func requireCondition(t *testing.T, err error, condition amqp.ErrCond, text string) {
	t.Helper()
	amqpErr, ok := errors.AsType[*amqp.Error](err)
	require.True(t, ok, "%T: %v", err, err)
	require.Equal(t, condition, amqpErr.Condition)
	require.Contains(t, amqpErr.Description, text)
}

func TestWrongKeyIsNotLetIn(t *testing.T) {
	t.Parallel()
	s := start(t, eventhubstest.Config{RequireSAS: true, Key: "right"})
	send(t, producer(t, s), azeventhubs.EventDataBatchOptions{}, "x")

	wrong := strings.Replace(s.ConnectionString(hubName), "SharedAccessKey=right", "SharedAccessKey=wrong", 1)
	p, err := azeventhubs.NewProducerClientFromConnectionString(wrong, "", &azeventhubs.ProducerClientOptions{RetryOptions: quick})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	defer func() { require.NoError(t, p.Close(ctx)) }()
	err = trySend(ctx, p, azeventhubs.EventDataBatchOptions{}, "x")
	ehErr, ok := errors.AsType[*azeventhubs.Error](err)
	require.True(t, ok, "%T: %v", err, err)
	require.Equal(t, azeventhubs.ErrorCodeUnauthorizedAccess, ehErr.Code)
	require.ErrorContains(t, err, "401")
	require.EqualValues(t, 1, s.Counters().Sends)
}

func TestTwentyThousandEventsThroughFourPartitions(t *testing.T) {
	t.Parallel()
	const total, perBatch = 20_000, 500
	s := start(t, eventhubstest.Config{})
	p := producer(t, s)
	y := newTally()
	process(t, s, newMemoryStore(), y)
	for i := 0; i < total; i += perBatch {
		bodies := make([]string, perBatch)
		for k := range bodies {
			bodies[k] = fmt.Sprintf("event %d", i+k)
		}
		send(t, p, azeventhubs.EventDataBatchOptions{}, bodies...)
	}
	require.Eventually(t, func() bool { return y.distinct() == total }, 30*time.Second, 10*time.Millisecond)
	require.EqualValues(t, total, s.Counters().Stored)
}

// More messages than link credit and session window hold at first: both must be given anew.
func TestProducerNeverRunsOutOfCredit(t *testing.T) {
	t.Parallel()
	const total = 5_200
	s := start(t, eventhubstest.Config{})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	client, err := amqp.Dial(ctx, "amqp://"+s.Addr(), &amqp.ConnOptions{SASLType: amqp.SASLTypeAnonymous()})
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	session, err := client.NewSession(ctx, nil)
	require.NoError(t, err)
	sender, err := session.NewSender(ctx, hubName+"/Partitions/0", nil)
	require.NoError(t, err)
	receipts := make([]amqp.SendReceipt, total)
	for i := range receipts {
		receipts[i], err = sender.SendWithReceipt(ctx, amqp.NewMessage([]byte("x")), nil)
		require.NoError(t, err)
	}
	for i := range receipts {
		state, err := receipts[i].Wait(ctx)
		require.NoError(t, err)
		require.IsType(t, &amqp.StateAccepted{}, state)
	}
	require.Len(t, s.Events(hubName, "0"), total)
}
