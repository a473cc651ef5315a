package eventhubs_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Azure/go-amqp"
	"github.com/stretchr/testify/require"

	"chargeonce/ingest"
	"chargeonce/ingest/eventhubs"
	"chargeonce/ingest/eventhubs/eventhubstest"
)

// What users of the SDKs reported in public, each with what keeps it from happening here. Where the cure is shown elsewhere:
//
//   - azure-sdk-for-go#24933, a panic in ReceiveEvents when the hub does not exist: NextPartitionClient gives nil when the Processor stops,
//     which session checks; every test that stops a source passes there. The start-up error that names the hub, or the consumer group, is
//     TestWrongSettingsSayWhichInOneSentence of the program, and TestRunOnAnUnknownHubNeitherPanicsNorEnds below.
//   - azure-sdk-for-go#24195, memory that grows while an unknown group is tried again and again: TestSoakRefusedAttaches.
//   - azure-sdk-for-go#24740, memory that grows by many waits without an event: TestSoakIdlePartitions.
//   - azure-sdk-for-go#24164 and azure-sdk-for-js#15893, ownership lost all the time: by a second close, TestHazardC; by a second deployment
//     on the group, TestHazardH; that each loss leaves nothing behind, TestSoakLostPartitions.
//   - azure-sdk-for-go#19062, two processors that read one partition for a while: TestStaleOwnerRecordsButCannotMoveTheCheckpoint, and
//     TwoReadersAtOnceRecordEachOnce of the one suite. Intents are unique and checkpoints fenced, so that only reading twice is left of it.
//   - azure-sdk-for-net#28244 and #7164, azure-sdk-for-java#28990, azure-sdk-for-python#30931, orleans#7256, an offset that the hub calls
//     invalid: TestHazardE.
//   - azure-sdk-for-net#18850, a poison event that blocks its partition: PoisonInTheMiddle and ObjectThatTheDatabaseRefusesOnly of the one
//     suite.
//   - azure-sdk-for-js#27253 and azure-sdk-for-java#20790, memory that grows with the backlog: TestFetchedAheadIsBounded below, and the
//     program's TestBacklogBehindASlowDatabaseStaysInTheHub.
//   - azure-sdk-for-rust#5095, a refused claim that is an error: TestStoreKeepsTheContractOfTheSDK.
//   - azure-docs#110760, a storage account whose soft delete or versioning slows every claim down: it cannot happen with checkpoints in
//     Postgres; for Blob Storage it is a matter of the account's settings, and a slow store is TestStoreCallThatHangsLosesNoPartition.

// azure-sdk-for-go#24933: the hub is deleted, or its name was wrong and nobody asked. Reading it panicked.
func TestRunOnAnUnknownHubNeitherPanicsNorEnds(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	cfg := b.quick()
	cfg.Hub = "nothere"
	probed := b.source(t, cfg).Probe(t.Context())
	require.ErrorIs(t, probed, eventhubs.ErrUnknownHub)
	require.ErrorContains(t, probed, "nothere")
	s, stop := b.run(t, cfg)
	require.True(t, waitFor(t.Context(), func() bool { return b.count(t, s, "restarts_total") >= 3 }), "it tries again")
	require.Error(t, s.Check(t.Context()))
	stop()
}

// azure-sdk-for-go#21868 and #22097: after a shutdown the partitions lay idle until their ownership expired, here an hour.
func TestPartitionsOfAReaderThatStoppedAreTakenWithinTwoRounds(t *testing.T) {
	t.Parallel()
	b := setup(t, 4)
	b.noteOwners(t)
	cfg := b.quick()
	cfg.OwnershipExpiry = time.Hour
	_, stop := b.run(t, cfg)
	b.await(t, 4, countOwned)
	survivor, _ := b.run(t, cfg)
	b.await(t, 2, countOwners)
	require.True(t, waitFor(t.Context(), func() bool { return b.count(t, survivor, "owned_partitions") == 2 }))
	stop()
	require.True(t, waitFor(t.Context(), func() bool { return b.count(t, survivor, "owned_partitions") == 4 }))
	for p := range 4 {
		b.publish(t, fmt.Sprint(p), 0, 5)
	}
	b.await(t, 20, countIntents)
	rounds := b.number(t, `WITH given_up AS (SELECT max(id) AS id FROM public.owners WHERE owner_id = ''),
		taken AS (SELECT partition_id, min(owners.id) AS id FROM public.owners, given_up
			WHERE owners.id > given_up.id AND partition_id IN (SELECT partition_id FROM public.owners WHERE owner_id = '') GROUP BY 1)
		SELECT count(*) FROM public.owners, given_up
		WHERE owners.id > given_up.id AND owners.id <= (SELECT max(id) FROM taken)
			AND partition_id = (SELECT min(partition_id) FROM public.owners WHERE partition_id NOT IN (SELECT partition_id FROM taken))`)
	require.LessOrEqual(t, rounds, int64(2), "the survivor renewed what it had before, and then had all")
}

// azure-sdk-for-go#21868 too: a renewal was under way at the shutdown and succeeded, but its answer was not awaited. The SDK gives
// partitions up by the last answer it had.
func TestPartitionRenewedWithoutAnAnswerIsGivenUpAllTheSame(t *testing.T) {
	t.Parallel()
	b := setup(t, 2)
	cfg := b.quick()
	cfg.UpdateInterval, cfg.OwnershipExpiry = 10*time.Minute, time.Hour // nothing corrects it meanwhile
	_, stop := b.run(t, cfg)
	b.await(t, 2, countOwned)
	require.True(t, waitFor(t.Context(), func() bool { return b.hub.Counters().Receivers == 2 }))
	_, err := b.owner.Exec(t.Context(), "UPDATE billing.eventhub_ownership SET etag = etag + 1")
	require.NoError(t, err)
	stop()
	b.await(t, 0, countOwned)
}

const countOwners = "SELECT count(DISTINCT owner_id) FROM billing.eventhub_ownership WHERE owner_id <> ''"

// noteOwners keeps every claim in public.owners, in order.
func (b *bundle) noteOwners(t *testing.T) {
	t.Helper()
	_, err := b.owner.Exec(t.Context(), `CREATE TABLE public.owners (id bigint GENERATED ALWAYS AS IDENTITY, partition_id text, owner_id text);
		CREATE FUNCTION public.note_owner() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
		BEGIN INSERT INTO public.owners (partition_id, owner_id) VALUES (NEW.partition_id, NEW.owner_id); RETURN NEW; END $$;
		CREATE TRIGGER note_owner AFTER INSERT OR UPDATE ON billing.eventhub_ownership FOR EACH ROW EXECUTE FUNCTION public.note_owner()`)
	require.NoError(t, err)
}

// changesOfOwner counts the partitions that changed hands.
const changesOfOwner = "SELECT count(*) FROM (SELECT 1 FROM public.owners GROUP BY partition_id HAVING count(DISTINCT owner_id) > 1) AS moved"

// azure-sdk-for-go#22487: one call to the checkpoint store hung for minutes, so that ownerships were not renewed; then all processors
// took each other's partitions at once.
func TestStoreCallThatHangsLosesNoPartition(t *testing.T) {
	t.Parallel()
	b := setup(t, 4)
	behind, proxy := b.behindProxy(t)
	cfg := b.quick()
	// A connection that hangs keeps its place in the pool for 15 s more: the pool closes it in good order. All of them may hang.
	cfg.OwnershipExpiry = 40 * time.Second
	s, other := b.runTwo(t, behind, cfg)
	proxy.Hang()
	behind.awaitLog(t, "the checkpoint store failed")
	b.requireNothingMoved(t, behind, s, other)
}

// azure-sdk-for-go#22487, for everybody at once: the first one that reaches the store again finds that all others have expired.
func TestStoreAwayForLongerThanOwnershipsLastMovesNoPartition(t *testing.T) {
	t.Parallel()
	b := setup(t, 4)
	behind, _ := b.behindProxy(t)
	cfg := b.quick()
	cfg.OwnershipExpiry = 8 * time.Second // half of it is longer than the longest pause between two tries
	s, other := b.runTwo(t, behind, cfg)
	blocker, err := b.owner.Begin(t.Context())
	require.NoError(t, err)
	_, err = blocker.Exec(t.Context(), "LOCK TABLE billing.eventhub_ownership IN ACCESS EXCLUSIVE MODE")
	require.NoError(t, err)
	require.True(t, waitFor(t.Context(), func() bool {
		var expired bool
		err := blocker.QueryRow(t.Context(), `SELECT max(modified_at) < clock_timestamp() - interval '10 s' FROM billing.eventhub_ownership`).Scan(&expired)
		return err == nil && expired
	}))
	require.NoError(t, blocker.Rollback(t.Context()))
	b.requireNothingMoved(t, behind, s, other)
}

// runTwo runs a source on either bundle until each has two of the four partitions, and notes the owners from then on.
func (b *bundle) runTwo(t *testing.T, behind *bundle, cfg eventhubs.Config) (first, second *eventhubs.Source) {
	t.Helper()
	first, _ = behind.run(t, cfg)
	second, _ = b.run(t, cfg)
	require.True(t, waitFor(t.Context(), func() bool {
		return behind.count(t, first, "owned_partitions") == 2 && b.count(t, second, "owned_partitions") == 2
	}))
	b.await(t, 2, countOwners)
	b.noteOwners(t)
	return first, second
}

// requireNothingMoved waits for three renewals of every partition.
func (b *bundle) requireNothingMoved(t *testing.T, behind *bundle, first, second *eventhubs.Source) {
	t.Helper()
	_, err := b.owner.Exec(t.Context(), "CREATE TABLE public.mark AS SELECT coalesce(max(id), 0) AS id FROM public.owners")
	require.NoError(t, err)
	b.await(t, 4, "SELECT count(*) FROM (SELECT 1 FROM public.owners, public.mark WHERE owners.id > mark.id GROUP BY partition_id HAVING count(*) >= 3) AS renewed")
	for p := range 4 {
		b.publish(t, fmt.Sprint(p), 0, 5)
	}
	b.await(t, 20, countIntents)
	require.Zero(t, b.number(t, changesOfOwner))
	for side, s := range map[*bundle]*eventhubs.Source{behind: first, b: second} {
		require.Zero(t, side.count(t, s, "restarts_total"))
	}
}

// azure-sdk-for-net#47303: after a fail-over of a geo-replicated hub the offset of a checkpoint is refused by a condition of its own, and
// the SDK reads the partition from its beginning.
func TestOffsetRefusedByAGeoReplicatedHubIsAReplayThatAddsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	b.publish(t, "0", 0, 20)
	_, stop := b.run(t, b.quick())
	b.await(t, 20, sumOfSequences)
	stop()
	b.hub.SetHooks(eventhubstest.Hooks{OnAttach: func(a eventhubstest.Attach) error {
		if strings.Contains(a.Selector, "x-opt-offset") && !strings.Contains(a.Selector, "'-1'") {
			return &amqp.Error{Condition: "com.microsoft:georeplication:invalid-offset", Description: "The supplied offset is not of this replica."}
		}
		return nil
	}})
	b.publish(t, "0", 20, 5)
	s, _ := b.run(t, b.quick())
	b.await(t, 25, sumOfSequences)
	require.Equal(t, ingest.Counts{Intents: 25, Redeliveries: 20}, b.counters(t))
	b.awaitLog(t, "sequence numbers went back")
	require.Zero(t, b.count(t, s, "unreadable_events_total"))
}

// azure-sdk-for-go#21352 and azure-sdk-for-net#7783: the checkpoint's path keeps the case in which the names were given, so that another
// spelling reads everything again.
func TestSpellingOfTheNamesDoesNotChangeTheCheckpoint(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	b.publish(t, "0", 0, 10)
	for i, spelling := range []struct{ host, hub, group string }{
		{"LocalHost", "Billing", "$Default"}, {"localhost", "billing", "$default"}, {"LOCALHOST", "BILLING", "$DEFAULT"},
	} {
		cfg := b.quick()
		cfg.ConnectionString = strings.Replace(cfg.ConnectionString, "127.0.0.1", spelling.host, 1)
		cfg.Hub, cfg.ConsumerGroup = spelling.hub, spelling.group
		_, stop := b.run(t, cfg)
		b.publish(t, "0", 10+i*5, 5)
		b.await(t, int64(15+i*5), sumOfSequences)
		stop()
	}
	require.Equal(t, ingest.Counts{Intents: 25}, b.counters(t))
	require.EqualValues(t, 1, b.number(t, "SELECT count(*) FROM billing.eventhub_checkpoints"))
	require.EqualValues(t, 1, b.number(t, "SELECT count(*) FROM billing.eventhub_ownership"))
}

// dapr/components-contrib#4562 and #3662, azure-event-hubs-go#155: the checkpoint moved past events whose handler had failed, and they
// were lost without a word, for as long as the database was away.
func TestCheckpointNeverMovesPastEventsThatCannotBeRecorded(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	b.publish(t, "0", 0, 5)
	s, stop := b.run(t, b.quick())
	b.await(t, 5, sumOfSequences)
	_, err := b.owner.Exec(t.Context(), "ALTER TABLE billing.intents RENAME TO elsewhere")
	require.NoError(t, err)
	b.publish(t, "0", 5, 5)
	require.True(t, waitFor(t.Context(), func() bool {
		err := s.Check(t.Context())
		return err != nil && strings.Contains(err.Error(), "database has been away")
	}))
	b.publish(t, "0", 10, 5)
	stop() // also not at the end, when the partition is given up
	require.EqualValues(t, 5, b.number(t, sumOfSequences))
	_, err = b.owner.Exec(t.Context(), "ALTER TABLE billing.elsewhere RENAME TO intents")
	require.NoError(t, err)
	b.run(t, b.quick())
	b.await(t, 15, sumOfSequences)
	require.Equal(t, ingest.Counts{Intents: 15}, b.counters(t))
}

// azure-sdk-for-js#31546: one handler that hung blocked what had nothing to do with it. The partition that waits is named, by readiness
// and by its lag, and an autoscaler sees how much waits.
func TestBatchThatHangsBlocksNoOtherPartition(t *testing.T) {
	t.Parallel()
	b := setup(t, 2)
	b.publish(t, "0", 0, 5)
	b.publish(t, "1", 0, 5)
	cfg := b.quick()
	cfg.StuckAfter = time.Second
	s, _ := b.run(t, cfg)
	b.await(t, 10, sumOfSequences)
	blocker, err := b.owner.Begin(t.Context())
	require.NoError(t, err)
	_, err = blocker.Exec(t.Context(), "SELECT FROM billing.source_counters WHERE source_partition = '0' FOR UPDATE")
	require.NoError(t, err)
	for i := range 3 {
		b.publish(t, "0", 5+i*5, 5)
		b.publish(t, "1", 5+i*5, 5)
		b.await(t, int64(5+10+i*5), sumOfSequences)
	}
	const backlog = "SELECT coalesce(sum(greatest(last_enqueued_seq - sequence_number, 0)), 0)::bigint FROM billing.eventhub_checkpoints"
	b.await(t, 15, backlog)
	b.requireStuck(t, s, "0", 15)
	require.NoError(t, blocker.Rollback(t.Context()))
	b.await(t, 40, sumOfSequences)
	b.await(t, 0, backlog)
	require.True(t, waitFor(t.Context(), func() bool { return s.Check(t.Context()) == nil }))
	require.Equal(t, ingest.Counts{Intents: 40}, b.counters(t))
}

// requireStuck waits until readiness names the partition, and its lag is what waits in it.
func (b *bundle) requireStuck(t *testing.T, s *eventhubs.Source, partition string, events int) {
	t.Helper()
	var err error
	require.True(t, waitFor(t.Context(), func() bool {
		err = s.Check(t.Context())
		return err != nil && strings.HasPrefix(err.Error(), fmt.Sprintf("partition %s has %d events to read", partition, events))
	}), "%v", err)
	lag, there := b.metric(t, s, "lag_events", partition)
	require.True(t, there)
	require.InDelta(t, events, lag, 0)
	progress, there := b.metric(t, s, "last_progress_timestamp_seconds", partition)
	require.True(t, there)
	require.Less(t, progress, float64(time.Now().Unix()))
}

// azure-sdk-for-java#14652 and #18070, azure-sdk-for-net#42358, azure-sdk-for-python#35948: some partitions stopped without a word until
// somebody restarted the process.
func TestPartitionThatStopsSilentlyIsNamed(t *testing.T) {
	t.Parallel()
	b := setup(t, 2)
	cfg := b.quick()
	cfg.StuckAfter, cfg.IdleWait = time.Second, time.Hour // the cure, another link after a wait without an event, is out of reach
	s, _ := b.run(t, cfg)
	b.publish(t, "0", 0, 5)
	b.publish(t, "1", 0, 5)
	b.await(t, 10, sumOfSequences)
	require.NoError(t, b.hub.Inject(eventhubstest.Fault{Kind: eventhubstest.FaultSilence, Partition: "1"}))
	b.publish(t, "0", 5, 5)
	b.publish(t, "1", 5, 5)
	b.await(t, 15, sumOfSequences)
	b.requireStuck(t, s, "1", 5)
	require.NoError(t, b.hub.Inject(eventhubstest.Fault{Kind: eventhubstest.FaultClear}))
	b.await(t, 20, sumOfSequences)
	require.True(t, waitFor(t.Context(), func() bool { return s.Check(t.Context()) == nil }))
}

// The same, of a partition that cannot even be opened: neither another Processor nor time changes it, so a person must hear of it.
func TestPartitionThatCannotBeOpenedIsNamed(t *testing.T) {
	t.Parallel()
	b := setup(t, 2)
	var open atomic.Bool
	b.hub.SetHooks(eventhubstest.Hooks{OnAttach: func(a eventhubstest.Attach) error {
		if a.PartitionID == "1" && !open.Load() {
			return &amqp.Error{Condition: amqp.ErrCondNotAllowed, Description: "not now"}
		}
		return nil
	}})
	cfg := b.quick()
	cfg.StrandedAfter, cfg.OwnershipExpiry, cfg.StuckAfter = time.Second, time.Minute, 5*time.Second
	s, _ := b.run(t, cfg)
	b.publish(t, "0", 0, 5)
	b.publish(t, "1", 0, 5)
	b.await(t, 5, countIntents)
	var err error
	require.True(t, waitFor(t.Context(), func() bool {
		err = s.Check(t.Context())
		return err != nil && strings.Contains(err.Error(), "partition 1 could not be opened for")
	}), "%v", err)
	require.Equal(t, 1, b.count(t, s, "unread_partitions"))
	require.Positive(t, b.count(t, s, "restarts_total"), "it was not for want of trying")
	open.Store(true)
	b.await(t, 10, countIntents)
	require.True(t, waitFor(t.Context(), func() bool { return s.Check(t.Context()) == nil && b.count(t, s, "unread_partitions") == 0 }))
}

// azure-sdk-for-python#31258 and azure-sdk-for-java#31204: a link that was opened again began where the first one had begun, or at the
// latest event.
func TestReconnectGoesOnBehindTheLastEventReceived(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	b.publish(t, "0", 0, 10)
	b.run(t, b.quick())
	b.await(t, 10, sumOfSequences)
	for i := range 3 {
		b.hub.DropConnections()
		b.publish(t, "0", 10+i*10, 10)
		b.await(t, int64(20+i*10), sumOfSequences)
	}
	require.EqualValues(t, 40, b.hub.Counters().Deliveries, "the hub sent every event once")
	require.Equal(t, ingest.Counts{Intents: 40}, b.counters(t))
	require.Equal(t, 1, strings.Count(b.logs.String(), "reading partition"), "by one and the same reader")
}

// azure-sdk-for-js#27253 and azure-sdk-for-java#20790: a client fetched ahead without end while its handler was slow.
func TestFetchedAheadIsBounded(t *testing.T) {
	t.Parallel()
	const partitions, each, batch, prefetch = 4, 1000, 100, 50
	b := setup(t, partitions)
	for p := range partitions {
		b.publish(t, fmt.Sprint(p), 0, each)
	}
	blocker, err := b.owner.Begin(t.Context())
	require.NoError(t, err)
	_, err = blocker.Exec(t.Context(), "LOCK TABLE billing.intents IN ACCESS EXCLUSIVE MODE")
	require.NoError(t, err)
	cfg := b.quick()
	cfg.BatchSize, cfg.Prefetch = batch, prefetch
	b.run(t, cfg)
	b.await(t, partitions, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
	b.requireNoStorm(t) // while ten renewals pass
	require.LessOrEqual(t, b.hub.Counters().Deliveries, int64(partitions*(batch+prefetch)))
	require.NoError(t, blocker.Rollback(t.Context()))
	b.await(t, partitions*each, sumOfSequences)
}
