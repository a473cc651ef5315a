package eventhubs_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"chargeonce/ingest"
	"chargeonce/sql"
	"chargeonce/sql/queries"
	"chargeonce/sql/sqltest"
)

func TestCheckpointIsFencedAndNeverMovesBack(t *testing.T) {
	t.Parallel()
	db := sqltest.New(t)
	pool := db.Pool(t, sql.RoleIngest)
	q := queries.New()
	_, err := q.EventHubOwnershipInsert(t.Context(), pool, queries.EventHubOwnershipInsertParams{
		EventHubNamespace: "ns", EventHub: "hub", ConsumerGroup: "$default", PartitionID: "0", OwnerID: "me",
	})
	require.NoError(t, err)
	born := time.Date(2026, 8, 1, 0, 0, 0, 0, time.UTC)
	row := func(owned, intact, moved bool, stands int64) queries.EventHubCheckpointSetRow {
		return queries.EventHubCheckpointSetRow{Owned: owned, Intact: intact, Moved: moved, Stands: stands}
	}
	for _, step := range []struct {
		why      string
		owner    string
		hub      time.Time
		previous int64
		seq      int64
		want     queries.EventHubCheckpointSetRow
		stands   int64
	}{
		{"the first one", "me", born, -1, 10, row(true, true, true, -1), 10},
		{"forward", "me", born, 10, 20, row(true, true, true, 10), 20},
		{"the same again, as after an unknown commit", "me", born, 10, 20, row(true, true, false, 20), 20},
		{"back", "me", born, 10, 15, row(true, true, false, 20), 20},
		{"forward, but not the owner", "other", born, 20, 30, row(false, true, false, 20), 20},
		{"forward, but given up", "", born, 20, 30, row(false, true, false, 20), 20},
		{"forward, but what I wrote before is gone", "me", born, 25, 30, row(true, false, false, 20), 20},
		{"of a hub created anew, by another", "other", born.Add(time.Hour), -1, 3, row(false, true, false, -1), 20},
		{"of a hub created anew", "me", born.Add(time.Hour), -1, 3, row(true, true, true, -1), 3},
		{"of the hub before, late", "me", born, 20, 99, row(true, false, false, -1), 3},
		{"of an older hub that the name leads to now", "me", born.Add(-time.Hour), -1, 99, row(true, true, true, -1), 99},
		{"of that, forward", "me", born.Add(-time.Hour), 99, 100, row(true, true, true, 99), 100},
	} {
		got, err := q.EventHubCheckpointSet(t.Context(), pool, queries.EventHubCheckpointSetParams{
			EventHubNamespace: "ns", EventHub: "hub", ConsumerGroup: "$default", PartitionID: "0", OwnerID: step.owner,
			HubCreatedAt: step.hub, PreviousSeq: step.previous, SequenceNumber: step.seq, EventOffset: "x", LastEnqueuedSeq: -1,
		})
		require.NoError(t, err, step.why)
		require.Equal(t, step.want, got, step.why)
		list, err := q.EventHubCheckpointList(t.Context(), pool, queries.EventHubCheckpointListParams{
			EventHubNamespace: "ns", EventHub: "hub", ConsumerGroup: "$default",
		})
		require.NoError(t, err)
		require.Len(t, list, 1)
		require.Equal(t, step.stands, list[0].SequenceNumber, step.why)
	}
}

func TestStaleOwnerRecordsButCannotMoveTheCheckpoint(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	b.publish(t, "0", 0, 10)
	b.run(t, b.quick())
	b.await(t, 10, sumOfSequences)
	// Another process claims the partition, and stays alive for an hour, but does not read it yet.
	_, err := b.owner.Exec(t.Context(), "UPDATE billing.eventhub_ownership SET owner_id = 'other', etag = etag + 1, modified_at = now() + interval '1 hour'")
	require.NoError(t, err)
	b.publish(t, "0", 10, 10)
	b.await(t, 20, countIntents)
	require.EqualValues(t, 10, b.number(t, sumOfSequences))
	require.True(t, waitFor(t.Context(), func() bool { return b.hub.Counters().Receivers == 0 }), "the partition's client is closed")
	// It dies: the events since the checkpoint are read again, and are no news.
	_, err = b.owner.Exec(t.Context(), "UPDATE billing.eventhub_ownership SET modified_at = now() - interval '1 hour'")
	require.NoError(t, err)
	b.await(t, 20, sumOfSequences)
	require.Equal(t, ingest.Counts{Intents: 20, Redeliveries: 10}, b.counters(t))
}

// An asynchronous fail-over or a restore takes committed batches back while the reader goes on.
func TestDatabaseThatFellBackIsFilledAgain(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	b.publish(t, "0", 0, 20)
	b.run(t, b.quick())
	b.await(t, 20, sumOfSequences)
	tx, err := b.owner.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "DELETE FROM billing.intents WHERE amount_cents >= 105")
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "UPDATE billing.eventhub_checkpoints SET sequence_number = 4, event_offset = $1", b.offset("0", 4))
	require.NoError(t, err)
	require.NoError(t, tx.Commit(t.Context()))
	b.publish(t, "0", 20, 5)
	b.await(t, 25, countIntents)
	b.await(t, 25, sumOfSequences)
	b.awaitLog(t, "fell back")
}

// The name of a hub may lead to an older one again, as when a geo-disaster pairing is turned back.
func TestHubOlderThanItsCheckpointIsReadAndCheckpointed(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	b.publish(t, "0", 0, 20)
	_, stop := b.run(t, b.quick())
	b.await(t, 20, sumOfSequences)
	stop()
	_, err := b.owner.Exec(t.Context(), "UPDATE billing.eventhub_checkpoints SET hub_created_at = hub_created_at + interval '1 day', sequence_number = 5")
	require.NoError(t, err)
	_, stop = b.run(t, b.quick())
	b.await(t, 20, sumOfSequences)
	b.publish(t, "0", 20, 20)
	b.await(t, 40, sumOfSequences)
	stop()
	require.Equal(t, ingest.Counts{Intents: 40, Redeliveries: 20}, b.counters(t))
}

func TestCheckpointThatDoesNotMoveIsToldOf(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	b.publish(t, "0", 0, 5)
	b.run(t, b.quick())
	b.await(t, 5, sumOfSequences)
	require.NotContains(t, b.logs.String(), "did not move")
	_, err := b.owner.Exec(t.Context(), `CREATE FUNCTION public.stay() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
		CREATE TRIGGER stay BEFORE UPDATE OF sequence_number ON billing.eventhub_checkpoints FOR EACH ROW EXECUTE FUNCTION public.stay()`)
	require.NoError(t, err)
	b.publish(t, "0", 5, 5)
	b.await(t, 10, countIntents)
	b.awaitLog(t, "did not move")
}
