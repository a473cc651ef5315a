package eventhubs_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/Azure/go-amqp"
	"github.com/stretchr/testify/require"

	"chargeonce/ingest"
	"chargeonce/ingest/eventhubs"
	"chargeonce/ingest/eventhubs/eventhubstest"
)

// The hazards A to I are faults of the SDK's Processor (azeventhubs v2.0.2), each reproduced on the stand-in. Each has at least one test
// that fails when its cure is taken out.

// Hazard A: a partition whose list of checkpoints failed once stays in the Processor's books: it is owned, renewed and never handed out.
func TestHazardA_FailedListOfCheckpointsStrandsNoPartition(t *testing.T) {
	t.Parallel()
	b := setup(t, 2)
	b.publish(t, "0", 0, 10)
	b.publish(t, "1", 0, 10)
	_, err := b.owner.Exec(t.Context(), "ALTER TABLE billing.eventhub_checkpoints RENAME TO elsewhere")
	require.NoError(t, err)
	s, _ := b.run(t, b.quick())
	require.True(t, waitFor(t.Context(), func() bool {
		// Without the cure nothing is said, and the ownerships are renewed as if all were well.
		renewals, err := b.tryNumber(t.Context(), sumOfRenewals)
		return strings.Contains(b.logs.String(), "list the checkpoints") || (err == nil && renewals > 2*3)
	}))
	require.Zero(t, b.number(t, countIntents))
	_, err = b.owner.Exec(t.Context(), "ALTER TABLE billing.elsewhere RENAME TO eventhub_checkpoints")
	require.NoError(t, err)
	b.await(t, 20, countIntents)
	require.Zero(t, b.count(t, s, "restarts_total"), "the same Processor went on")
}

// Hazard A, whatever its cause: only another Processor can read a partition that this one has stranded.
func TestHazardA_PartitionOwnedButNotReadGetsANewProcessor(t *testing.T) {
	t.Parallel()
	b := setup(t, 2)
	b.publish(t, "0", 0, 10)
	b.publish(t, "1", 0, 10)
	b.hub.SetHooks(eventhubstest.Hooks{OnAttach: func(a eventhubstest.Attach) error {
		if a.PartitionID == "1" && strings.HasSuffix(a.ReceiverName, "-1") { // the first Processor of this source
			return &amqp.Error{Condition: amqp.ErrCondNotAllowed, Description: "not you"}
		}
		return nil
	}})
	cfg := b.quick()
	cfg.StrandedAfter, cfg.OwnershipExpiry = time.Second, time.Minute
	s, _ := b.run(t, cfg)
	b.await(t, 20, countIntents)
	b.awaitLog(t, "never handed out")
	require.Equal(t, 1, b.count(t, s, "restarts_total"))
}

// Hazard B: one failed list or claim of ownerships ends the Processor for good.
func TestHazardB_FailedListOrClaimOfOwnershipEndsNoProcessor(t *testing.T) {
	t.Parallel()
	for step, fault := range map[string]struct{ begin, end string }{
		"list the ownerships": {
			"ALTER TABLE billing.eventhub_ownership RENAME TO elsewhere",
			"ALTER TABLE billing.elsewhere RENAME TO eventhub_ownership",
		},
		"claim partition": {
			"ALTER TABLE billing.eventhub_ownership ADD CONSTRAINT no_claim CHECK (etag < 0) NOT VALID",
			"ALTER TABLE billing.eventhub_ownership DROP CONSTRAINT no_claim",
		},
	} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			b := setup(t, 2)
			b.publish(t, "0", 0, 10)
			cfg := b.quick()
			cfg.OwnershipExpiry = 8 * time.Second // half of it is longer than the longest pause between two tries
			s, _ := b.run(t, cfg)
			b.await(t, 10, sumOfSequences)
			require.True(t, waitFor(t.Context(), func() bool { return b.hub.Counters().Receivers == 2 }))
			attaches := b.hub.Counters().Attaches
			_, err := b.owner.Exec(t.Context(), fault.begin)
			require.NoError(t, err)
			require.True(t, waitFor(t.Context(), func() bool {
				return s.Check(t.Context()) != nil && strings.Contains(b.logs.String(), step) || b.count(t, s, "restarts_total") > 0
			}), "not ready while ownerships are not renewed")
			_, err = b.owner.Exec(t.Context(), fault.end)
			require.NoError(t, err)
			b.publish(t, "0", 10, 10)
			b.await(t, 20, sumOfSequences)
			require.True(t, waitFor(t.Context(), func() bool { return s.Check(t.Context()) == nil }))
			require.Zero(t, b.count(t, s, "restarts_total"), "the same Processor went on")
			require.Equal(t, attaches, b.hub.Counters().Attaches, "on the same links")
		})
	}
}

// Hazard B, whatever its cause: a Processor cannot be run a second time.
func TestHazardB_ProcessorThatEndedIsReplaced(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	b.publish(t, "0", 0, 10)
	var reads atomic.Int64
	b.hub.SetHooks(eventhubstest.Hooks{OnManagement: func(_, partition string) (int, string) {
		// The second read of the hub's properties is the Processor's own, as it starts.
		if partition == "" && reads.Add(1) == 2 {
			return http.StatusUnauthorized, "not now"
		}
		return 0, ""
	}})
	s, _ := b.run(t, b.quick())
	b.await(t, 10, countIntents)
	b.awaitLog(t, "the processor ended")
	require.Equal(t, 1, b.count(t, s, "restarts_total"))
}

// Hazard C: a second close of one partition client takes its successor out of the Processor's books, which then opens the partition
// once more at every interval and steals it from itself.
func TestHazardC_SecondCloseStartsNoStormOfSelfSteals(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	b.publish(t, "0", 0, 10)
	s, _ := b.run(t, b.quick())
	b.await(t, 10, sumOfSequences)
	readers := s.Readers()
	require.Len(t, readers, 1)
	b.takeAway(t, b.consumer(t))
	b.publish(t, "0", 10, 10)
	b.await(t, 20, sumOfSequences) // by the successor
	readers[0].Close()
	b.requireNoStorm(t)
	b.publish(t, "0", 20, 10)
	b.await(t, 30, sumOfSequences)
}

// Hazard C, whatever its cause.
func TestHazardC_PartitionTakenOverIsClosedOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	b.publish(t, "0", 0, 10)
	s, _ := b.run(t, b.quick())
	b.await(t, 10, countIntents)
	// A stranger takes the link; the store still says that it is ours. It may be the late attach of an owner before: no word of it.
	b.takeAway(t, b.consumer(t))
	b.publish(t, "0", 10, 10)
	b.await(t, 20, countIntents)
	require.NotContains(t, b.logs.String(), "does not use this database")
	// It comes again.
	b.takeAway(t, b.consumer(t))
	b.awaitLog(t, "does not use this database")

	b.publish(t, "0", 20, 10)
	b.await(t, 30, countIntents)
	b.requireNoStorm(t)
	require.Zero(t, b.count(t, s, "restarts_total"), "the same Processor went on")
}

// requireNoStorm lets ten renewals pass, in which nothing may be stolen or opened again.
func (b *bundle) requireNoStorm(t *testing.T) {
	t.Helper()
	before := b.hub.Counters()
	renewals := b.number(t, sumOfRenewals)
	require.True(t, waitFor(t.Context(), func() bool {
		now, err := b.tryNumber(t.Context(), sumOfRenewals)
		return err == nil && now >= renewals+10
	}))
	after := b.hub.Counters()
	require.Equal(t, before.Stolen, after.Stolen, "ten renewals later nothing was stolen")
	require.Equal(t, before.Attaches, after.Attaches, "nor opened again")
}

// takeAway reads an event of partition 0 with an epoch of its own, and so closes the partition's reader.
func (b *bundle) takeAway(t *testing.T, stranger *azeventhubs.ConsumerClient) {
	t.Helper()
	stolen := b.hub.Counters().Stolen
	pc, err := stranger.NewPartitionClient("0", epoch(0))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err = pc.ReceiveEvents(ctx, 1, nil)
	if lost, ok := errors.AsType[*azeventhubs.Error](err); !ok || lost.Code != azeventhubs.ErrorCodeOwnershipLost { // ours may be faster
		require.NoError(t, err)
	}
	require.NoError(t, pc.Close(ctx))
	require.True(t, waitFor(t.Context(), func() bool { return b.hub.Counters().Stolen > stolen }))
}

// Hazard D: one attach that is never answered stops all renewals, without limit.
func TestHazardD_AttachNeverAnsweredStopsNoRenewals(t *testing.T) {
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
	cfg := b.quick()
	cfg.StrandedAfter = time.Hour // the watch of hazard A would mend it too, but later than others may take the partitions
	b.run(t, cfg)
	b.await(t, 20, countIntents)
	require.True(t, held.Load())
	b.awaitLog(t, "stopped renewing")
}

// Hazard D: the SDK has no limit on a dial either. The answer that never comes is awaited for no longer than an event.
func TestHazardD_ConnectionNeverAnsweredIsTriedAgain(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	b.publish(t, "0", 0, 5)
	cfg := b.quick()
	cfg.IdleWait, cfg.LookInterval = time.Second, time.Hour
	s, _ := b.run(t, cfg)
	b.await(t, 5, sumOfSequences)
	var held atomic.Bool
	b.hub.SetHooks(eventhubstest.Hooks{OnConnect: func(string) error {
		if held.CompareAndSwap(false, true) {
			return eventhubstest.ErrHold
		}
		return nil
	}})
	b.hub.DropConnections()
	b.publish(t, "0", 5, 5)
	b.await(t, 10, sumOfSequences)
	require.True(t, held.Load())
	require.Zero(t, b.count(t, s, "restarts_total"), "the renewals need no connection to the hub")
}

// Hazard E: a checkpoint past the end of its partition is tried for ever, and nobody is told (azure-sdk-for-net#28244 and #7164,
// azure-sdk-for-java#28990, azure-sdk-for-python#30931, orleans#7256).
func TestHazardE_CheckpointPastTheEndIsReadFromTheBeginning(t *testing.T) {
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
	s, _ := b.run(t, b.quick())
	b.await(t, 15, countIntents)
	b.awaitLog(t, "lies past the end")
	require.Equal(t, 1, b.count(t, s, "restarted_partitions_total"))
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
func TestHazardE_HubCreatedAnewIsReadFromItsBeginning(t *testing.T) {
	t.Parallel()
	b := setup(t, 2)
	b.publish(t, "0", 0, 20)
	s, _ := b.run(t, b.quick())
	b.await(t, 20, sumOfSequences)
	require.NoError(t, b.hub.RecreateHub(hubName))
	b.publish(t, "0", 100, 5)
	b.publish(t, "1", 0, 5)
	b.await(t, 30, countIntents)
	b.await(t, 10, sumOfSequences) // a new generation begins anew
	b.awaitLog(t, "created anew")
	require.Positive(t, b.count(t, s, "restarted_partitions_total"))
}

// Hazard E, while nobody looked: sequence numbers alone cannot tell that the new hub is not the old one, once it has more events.
func TestHazardE_HubCreatedAnewWhileDownIsReadFromItsBeginning(t *testing.T) {
	t.Parallel()
	for name, published := range map[string]int{"shorter than the old checkpoint": 5, "has outgrown the old checkpoint": 50} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, 1)
			b.publish(t, "0", 0, 20)
			_, stop := b.run(t, b.quick())
			b.await(t, 20, sumOfSequences)
			stop()
			require.NoError(t, b.hub.RecreateHub(hubName))
			b.publish(t, "0", 100, published)
			s, _ := b.run(t, b.quick())
			b.await(t, int64(20+published), countIntents)
			b.await(t, int64(published), sumOfSequences)
			b.awaitLog(t, "created anew")
			require.Equal(t, 1, b.count(t, s, "restarted_partitions_total"))
			require.Equal(t, ingest.Counts{Intents: int64(20 + published)}, b.counters(t))
		})
	}
}

// Hazard F: an event that the SDK cannot convert drops the good ones that one call received before it, and the call returns no error.
// When the wait for a batch ends before the SDK has tried again, only the bad ones are missing.
func TestHazardF_UnreadableEventTakesNoNeighboursAlong(t *testing.T) {
	t.Parallel()
	for name, linger := range map[string]time.Duration{"shorter than the SDK's retries": 20 * time.Millisecond, "longer than the SDK's retries": 5 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, 1)
			b.publish(t, "0", 0, 40)
			b.hub.SetHooks(eventhubstest.Hooks{Mutate: func(d eventhubstest.Delivery, a amqp.Annotations) amqp.Annotations {
				if d.SequenceNumber == 17 || d.SequenceNumber == 18 {
					a["x-opt-partition-key"] = int64(7)
				}
				return a
			}})
			cfg := b.quick()
			cfg.Linger = linger
			s, _ := b.run(t, cfg)
			b.await(t, 40, sumOfSequences)
			require.Equal(t, ingest.Counts{Intents: 38, Quarantined: 2}, b.counters(t))
			require.Equal(t, 2, b.count(t, s, "unreadable_events_total"))
			require.EqualValues(t, 2, b.number(t, `SELECT count(*) FROM billing.quarantined_events
				WHERE reason_code = 'unreadable_event' AND first_position IN ('billing/0/17/0', 'billing/0/18/0')`))
			b.publish(t, "0", 40, 100)
			b.await(t, 138, countIntents)
		})
	}
}

// Hazard F, where no later event shows the gap.
func TestHazardF_UnreadableEventAtTheEndIsQuarantined(t *testing.T) {
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

// Hazard F, or only a link that died without a word: it is opened anew before any event is given up.
func TestHazardF_SilenceOfADeadLinkQuarantinesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	b.publish(t, "0", 0, 5)
	cfg := b.quick()
	cfg.IdleWait = 500 * time.Millisecond
	s, _ := b.run(t, cfg)
	b.await(t, 5, sumOfSequences)
	require.NoError(t, b.hub.Inject(eventhubstest.Fault{Kind: eventhubstest.FaultSilence}))
	b.hub.SetHooks(eventhubstest.Hooks{OnAttach: func(a eventhubstest.Attach) error {
		if a.Receiver && a.Hub != "" {
			return b.hub.Inject(eventhubstest.Fault{Kind: eventhubstest.FaultClear}) // the next link is a good one
		}
		return nil
	}})
	b.publish(t, "0", 5, 5)
	b.await(t, 10, sumOfSequences)
	require.Equal(t, ingest.Counts{Intents: 10}, b.counters(t))
	require.Equal(t, 1, b.count(t, s, "gaps_total"))
	require.Zero(t, b.count(t, s, "unreadable_events_total"))
}

// Hazard F, or a hub that keeps silent for longer than that: events given up by mistake are recorded all the same when they come.
func TestHazardF_EventsGivenUpByMistakeAreRecordedWhenTheyCome(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	b.publish(t, "0", 0, 5)
	cfg := b.quick()
	cfg.IdleWait = 500 * time.Millisecond
	s, _ := b.run(t, cfg)
	b.await(t, 5, sumOfSequences)
	require.NoError(t, b.hub.Inject(eventhubstest.Fault{Kind: eventhubstest.FaultSilence}))
	b.publish(t, "0", 5, 5)
	b.await(t, 5, countQuarantine)
	require.NoError(t, b.hub.Inject(eventhubstest.Fault{Kind: eventhubstest.FaultClear}))
	b.await(t, 10, sumOfSequences)
	require.Equal(t, ingest.Counts{Intents: 10, Quarantined: 5}, b.counters(t))
	require.Equal(t, 5, b.count(t, s, "unreadable_events_total"))
}

// Retention that overtakes the reader is no fault of the events, but it is no secret either.
func TestHazardF_EventsThatExpiredUnreadAreRecordedFromTo(t *testing.T) {
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

// Hazard G: the SDK starts at Latest: what was sent before the first start is never delivered.
func TestHazardG_EventSentBeforeTheFirstStartIsRead(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	b.publish(t, "0", 0, 3)
	b.run(t, b.quick())
	b.await(t, 3, countIntents)
}

// Hazard G: nor is what is sent while a partition that has had no event yet reconnects: the link asks for the latest again.
func TestHazardG_EventSentWhileAnIdlePartitionReconnectsIsRead(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	b.run(t, b.quick())
	require.True(t, waitFor(t.Context(), func() bool { return b.hub.Counters().Receivers == 1 }))
	published := make(chan struct{})
	b.hub.SetHooks(eventhubstest.Hooks{OnConnect: func(string) error {
		<-published
		return nil
	}})
	b.hub.DropConnections()
	b.publish(t, "0", 0, 3)
	close(published)
	b.await(t, 3, countIntents)
}

// Hazard H: two deployments with a database each on one consumer group take every partition from each other at every interval, and
// nothing says so.
func TestHazardH_ForeignReaderOfTheGroupIsNamedAndBothProgress(t *testing.T) {
	t.Parallel()
	b := setup(t, 2)
	foreign := setupOn(t, b.hub)
	const events = 100
	b.publish(t, "0", 0, events)
	ours, _ := b.run(t, b.quick())
	theirs, _ := foreign.run(t, foreign.quick())
	for i := range 5 {
		b.publish(t, "1", i*events/5, events/5)
		// Between two lots, each has taken a partition from the other.
		stolen := b.hub.Counters().Stolen
		require.True(t, waitFor(t.Context(), func() bool { return b.hub.Counters().Stolen >= stolen+2 }))
	}
	for side, s := range map[*bundle]*eventhubs.Source{b: ours, foreign: theirs} {
		side.await(t, 2*events, sumOfSequences)
		side.await(t, 2*events, countIntents)
		require.True(t, waitFor(t.Context(), func() bool { return side.count(t, s, "strangers_total") > 0 }))
		side.awaitLog(t, "does not use this database")
		require.Zero(t, side.count(t, s, "restarts_total"))
	}
}

// Hazard H cries no wolf: partitions that move between readers of one database are no strangers' work.
func TestHazardH_ReadersOfOneDatabaseAreNoStrangers(t *testing.T) {
	t.Parallel()
	b := setup(t, 4)
	cfg := b.quick()
	cfg.OwnershipExpiry = time.Minute // a partition held for longer than this begins to count anew
	first, _ := b.run(t, cfg)
	b.await(t, 4, countOwned)
	for range 3 {
		lost := b.count(t, first, "partitions_lost_total")
		_, stop := b.run(t, cfg)
		b.await(t, 2, "SELECT count(DISTINCT owner_id) FROM billing.eventhub_ownership WHERE owner_id <> ''")
		require.True(t, waitFor(t.Context(), func() bool { return b.count(t, first, "partitions_lost_total") >= lost+2 }))
		stop()
		b.await(t, 1, "SELECT count(DISTINCT owner_id) FROM billing.eventhub_ownership WHERE owner_id <> ''")
		b.await(t, 4, countOwned)
	}
	require.Zero(t, b.count(t, first, "strangers_total"))
}

// Hazard I: the SDK asks for the list of partitions once.
func TestHazardI_PartitionsAddedLaterAreRead(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	b.publish(t, "0", 0, 5)
	b.run(t, b.quick())
	b.await(t, 5, countIntents)
	require.NoError(t, b.hub.AddPartitions(hubName, 2))
	b.publish(t, "2", 0, 5)
	b.await(t, 10, countIntents)
	b.awaitLog(t, "partitions have changed")
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
