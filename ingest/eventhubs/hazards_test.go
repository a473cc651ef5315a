package eventhubs_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Azure/go-amqp"
	"github.com/stretchr/testify/require"

	"chargeonce/ingest"
	"chargeonce/ingest/eventhubs/eventhubstest"
)

// Hazard A: one failed list of checkpoints would strand a partition for ever.
func TestCheckpointsThatCannotBeReadAreAskedForAgain(t *testing.T) {
	t.Parallel()
	b := setup(t, 2)
	b.publish(t, "0", 0, 10)
	b.publish(t, "1", 0, 10)
	_, err := b.owner.Exec(t.Context(), "ALTER TABLE billing.eventhub_checkpoints RENAME TO elsewhere")
	require.NoError(t, err)
	b.run(t, b.quick())
	require.True(t, waitFor(t.Context(), func() bool { return strings.Contains(b.logs.String(), "list the checkpoints") }))
	require.Zero(t, b.number(t, countIntents))
	_, err = b.owner.Exec(t.Context(), "ALTER TABLE billing.elsewhere RENAME TO eventhub_checkpoints")
	require.NoError(t, err)
	b.await(t, 20, countIntents)
}

// Hazard A, whatever its cause: a partition that is owned and has no reader.
func TestPartitionThatIsOwnedButNotReadMakesANewProcessor(t *testing.T) {
	t.Parallel()
	b := setup(t, 2)
	b.publish(t, "0", 0, 10)
	b.publish(t, "1", 0, 10)
	var open atomic.Bool
	b.hub.SetHooks(eventhubstest.Hooks{OnAttach: func(a eventhubstest.Attach) error {
		if a.PartitionID == "1" && !open.Load() {
			return &amqp.Error{Condition: amqp.ErrCondNotAllowed, Description: "not now"}
		}
		return nil
	}})
	cfg := b.quick()
	cfg.StrandedAfter = time.Second
	b.run(t, cfg)
	require.True(t, waitFor(t.Context(), func() bool { return strings.Contains(b.logs.String(), "never handed out") }))
	open.Store(true)
	b.await(t, 20, countIntents)
}

// Hazard B: one failed list or claim of ownership would end the Processor.
func TestOwnershipThatCannotBeReadDoesNotEndTheReading(t *testing.T) {
	t.Parallel()
	b := setup(t, 2)
	b.publish(t, "0", 0, 10)
	s, _ := b.run(t, b.quick())
	b.await(t, 10, countIntents)
	_, err := b.owner.Exec(t.Context(), "ALTER TABLE billing.eventhub_ownership RENAME TO elsewhere")
	require.NoError(t, err)
	require.True(t, waitFor(t.Context(), func() bool { return strings.Contains(b.logs.String(), "list the ownerships") }))
	require.True(t, waitFor(t.Context(), func() bool { return s.Check(t.Context()) != nil }), "not ready while ownerships are not renewed")
	_, err = b.owner.Exec(t.Context(), "ALTER TABLE billing.elsewhere RENAME TO eventhub_ownership")
	require.NoError(t, err)
	b.publish(t, "0", 10, 10)
	b.await(t, 20, countIntents)
	require.True(t, waitFor(t.Context(), func() bool { return s.Check(t.Context()) == nil }))
}

// Hazard C: a second close of one partition client would make the Processor steal from itself for ever.
func TestPartitionTakenOverIsClosedOnceAndDoesNotStorm(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	b.publish(t, "0", 0, 10)
	b.run(t, b.quick())
	b.await(t, 10, countIntents)
	// A stranger takes the link; the store still says that it is ours. It may be the late attach of an owner before: no word of it.
	b.takeAway(t)
	b.publish(t, "0", 10, 10)
	b.await(t, 20, countIntents)
	require.NotContains(t, b.logs.String(), "does not use this database")
	// It comes again.
	b.takeAway(t)
	require.True(t, waitFor(t.Context(), func() bool { return strings.Contains(b.logs.String(), "does not use this database") }))

	b.publish(t, "0", 20, 10)
	b.await(t, 30, countIntents)
	settled := b.hub.Counters()
	b.await(t, 1, "SELECT (max(etag) >= $1)::int FROM billing.eventhub_ownership", b.number(t, "SELECT max(etag) FROM billing.eventhub_ownership")+10)
	after := b.hub.Counters()
	require.Equal(t, settled.Stolen, after.Stolen, "ten renewals later nothing was stolen")
	require.Equal(t, settled.Attaches, after.Attaches, "nor opened again")
}

// takeAway reads an event of partition 0 with an epoch of its own, and so closes the partition's reader.
func (b *bundle) takeAway(t *testing.T) {
	t.Helper()
	stolen := b.hub.Counters().Stolen
	pc, err := b.consumer(t).NewPartitionClient("0", epoch(0))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err = pc.ReceiveEvents(ctx, 1, nil)
	require.NoError(t, err)
	require.NoError(t, pc.Close(ctx))
	require.True(t, waitFor(t.Context(), func() bool { return b.hub.Counters().Stolen > stolen }))
}

// Hazard D: one attach that is never answered would stop all renewals.
func TestAttachThatIsNeverAnsweredDoesNotStopTheOthers(t *testing.T) {
	t.Parallel()
	b := setup(t, 2)
	b.publish(t, "0", 0, 10)
	b.publish(t, "1", 0, 10)
	var held atomic.Bool
	b.hub.SetHooks(eventhubstest.Hooks{OnAttach: func(a eventhubstest.Attach) error {
		if a.PartitionID == "1" && held.CompareAndSwap(false, true) {
			return eventhubstest.ErrHold
		}
		return nil
	}})
	b.run(t, b.quick())
	b.await(t, 20, countIntents)
	require.True(t, held.Load())
	require.Contains(t, b.logs.String(), "stopped renewing")
}

// Hazard E: a checkpoint past the end of its partition would be tried for ever, and nobody told.
func TestCheckpointPastTheEndIsReadFromTheBeginning(t *testing.T) {
	t.Parallel()
	b := setup(t, 2)
	b.publish(t, "0", 0, 10)
	b.publish(t, "1", 0, 10)
	created := b.hub.Ledger(false).Hubs[0].CreatedAt
	for _, p := range []string{"0", "1"} {
		seq := map[string]int64{"0": 4, "1": 1000}[p]
		_, err := b.owner.Exec(t.Context(), `INSERT INTO billing.eventhub_checkpoints (eventhub_namespace, eventhub, consumer_group, partition_id,
			hub_created_at, sequence_number, event_offset) VALUES ($1, $2, '$default', $3, $4, $5, $6)`,
			b.hub.Addr(), hubName, p, created, seq, b.offset(p, seq))
		require.NoError(t, err)
	}
	b.run(t, b.quick())
	b.await(t, 15, countIntents)
	require.Contains(t, b.logs.String(), "lies past the end")
	b.await(t, 1000, "SELECT sequence_number FROM billing.eventhub_checkpoints WHERE partition_id = '1'")
}

func (b *bundle) offset(partition string, seq int64) string {
	for _, e := range b.hub.Events(hubName, partition) {
		if e.SequenceNumber == seq {
			return e.Offset
		}
	}
	return "999999999"
}

// Hazard E: the same name is another hub now.
func TestHubCreatedAnewIsReadFromItsBeginning(t *testing.T) {
	t.Parallel()
	b := setup(t, 2)
	b.publish(t, "0", 0, 20)
	b.run(t, b.quick())
	b.await(t, 20, sumOfSequences)
	require.NoError(t, b.hub.RecreateHub(hubName))
	b.publish(t, "0", 100, 5)
	b.publish(t, "1", 0, 5)
	b.await(t, 30, countIntents)
	b.await(t, 10, sumOfSequences) // a new generation begins anew
	require.Contains(t, b.logs.String(), "created anew")
}

// Hazard F: an event that the SDK cannot convert takes the good ones along that were received with it.
func TestUnreadableEventDoesNotTakeItsNeighboursAlong(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	b.publish(t, "0", 0, 40)
	b.hub.SetHooks(eventhubstest.Hooks{Mutate: func(d eventhubstest.Delivery, a amqp.Annotations) amqp.Annotations {
		if d.SequenceNumber == 17 || d.SequenceNumber == 18 {
			a["x-opt-partition-key"] = int64(7)
		}
		return a
	}})
	b.run(t, b.quick())
	b.await(t, 40, sumOfSequences)
	require.Equal(t, ingest.Counts{Intents: 38, Quarantined: 2}, b.counters(t))
	require.EqualValues(t, 2, b.number(t, `SELECT count(*) FROM billing.quarantined_events
		WHERE reason_code = 'unreadable_event' AND first_position IN ('billing/0/17/0', 'billing/0/18/0')`))
	b.publish(t, "0", 40, 100)
	b.await(t, 138, countIntents)
}

// Hazard F, where no later event shows the gap.
func TestUnreadableEventAtTheEndIsQuarantined(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	b.publish(t, "0", 0, 4)
	b.hub.SetHooks(eventhubstest.Hooks{Mutate: func(d eventhubstest.Delivery, a amqp.Annotations) amqp.Annotations {
		if d.SequenceNumber == 2 || d.SequenceNumber == 3 {
			a["x-opt-partition-key"] = int64(7)
		}
		return a
	}})
	cfg := b.quick()
	cfg.IdleWait, cfg.StuckAfter = 500*time.Millisecond, time.Second
	s, stop := b.run(t, cfg)
	b.await(t, 2, countIntents)
	b.await(t, 2, countQuarantine+" WHERE reason_code = 'unreadable_event'")
	require.True(t, waitFor(t.Context(), func() bool { return s.Check(t.Context()) == nil }), "nothing is left to read")
	// Without an offset they have no checkpoint: they are read again, which adds nothing, until an event follows.
	stop()
	b.run(t, cfg)
	b.await(t, 2, "SELECT sum(redeliveries)::bigint FROM billing.source_counters")
	b.publish(t, "0", 4, 3)
	b.await(t, 7, sumOfSequences)
	require.Equal(t, ingest.Counts{Intents: 5, Quarantined: 2, Redeliveries: 2}, b.counters(t))
}

// A hub that counts events and sends none, as while its link is dead, is no reason to give the events up.
func TestSilenceOfADeadLinkQuarantinesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	b.publish(t, "0", 0, 5)
	cfg := b.quick()
	cfg.IdleWait = 500 * time.Millisecond
	b.run(t, cfg)
	b.await(t, 5, sumOfSequences)
	require.NoError(t, b.hub.Inject(eventhubstest.Fault{Kind: eventhubstest.FaultRefuseConnection}))
	b.hub.DropConnections()
	b.publish(t, "0", 5, 5)
	accepted := b.hub.Counters().Accepted
	require.True(t, waitFor(t.Context(), func() bool { return b.hub.Counters().Accepted >= accepted+3 }))
	require.NoError(t, b.hub.Inject(eventhubstest.Fault{Kind: eventhubstest.FaultClear}))
	b.await(t, 10, sumOfSequences)
	require.Zero(t, b.number(t, countQuarantine))
}

// Retention that overtakes the reader is no fault of the events, but it is no secret either.
func TestEventsThatExpiredUnreadAreRecordedFromTo(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	b.publish(t, "0", 0, 10)
	_, stop := b.run(t, b.quick())
	b.await(t, 10, sumOfSequences)
	stop()
	b.publish(t, "0", 10, 20)
	require.NoError(t, b.hub.Trim(hubName, "0", 25))
	b.run(t, b.quick())
	b.await(t, 30, sumOfSequences)
	require.EqualValues(t, 15, b.number(t, countIntents))
	require.EqualValues(t, 1, b.number(t, `SELECT count(*) FROM billing.quarantined_events WHERE reason_code = 'expired_before_reading'
		AND first_position = 'billing/0/10/0' AND reason LIKE '%sequence 10 to 24%'`))
}

// Hazard G: with the SDK's default start, what is sent while an idle partition reconnects is never delivered.
func TestEventSentWhileAnIdlePartitionReconnectsIsRead(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	b.run(t, b.quick())
	require.True(t, waitFor(t.Context(), func() bool { return b.hub.Counters().Receivers == 1 }))
	b.hub.DropConnections()
	b.publish(t, "0", 0, 3)
	b.await(t, 3, countIntents)
}

// Hazard I: the SDK asks for the list of partitions once.
func TestPartitionsAddedLaterAreRead(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	b.publish(t, "0", 0, 5)
	b.run(t, b.quick())
	b.await(t, 5, countIntents)
	require.NoError(t, b.hub.AddPartitions(hubName, 2))
	b.publish(t, "2", 0, 5)
	b.await(t, 10, countIntents)
}

func TestConnectionsCutAgainAndAgainLoseNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, 2)
	b.run(t, b.quick())
	for i := range 10 {
		b.publish(t, fmt.Sprint(i%2), i*100, 100)
		b.hub.DropConnections()
	}
	b.await(t, 1000, countIntents)
	b.await(t, 1000, sumOfSequences)
}

// A producer whose client used another kind of body section.
func TestBodiesOutsideTheOneDataSection(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	text := body("a", 1)
	for _, m := range []*amqp.Message{
		{Data: [][]byte{[]byte(text[:10]), []byte(text[10:])}},
		{Value: body("b", 1)},
		{Value: []byte(body("c", 1))},
		{Value: int64(7)},
		{Sequence: [][]any{{"x"}}},
	} {
		_, err := b.hub.PublishMessage(hubName, "0", m)
		require.NoError(t, err)
	}
	b.run(t, b.quick())
	b.await(t, 5, sumOfSequences)
	require.Equal(t, ingest.Counts{Intents: 3, Quarantined: 2}, b.counters(t))
	require.EqualValues(t, 2, b.number(t, countQuarantine+" WHERE reason_code = 'body_is_no_text'"))
}
