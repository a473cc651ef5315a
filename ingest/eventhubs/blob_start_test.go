package eventhubs_test

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"chargeonce/ingest"
	"chargeonce/ingest/eventhubs/azuritetest"
)

// putCheckpoint writes a checkpoint of partition 0 as somebody else would, with an offset that leads nowhere.
func (b *blobBundle) putCheckpoint(t *testing.T, sequence int64) {
	t.Helper()
	b.storage.Put(t, b.checkpointName("0"), map[string]string{"sequencenumber": strconv.FormatInt(sequence, 10), "offset": "987654321"})
}

// runThenStop reads 20 events of partition 0 and ends in good order.
func (b *blobBundle) runThenStop(t *testing.T) {
	t.Helper()
	b.publish(t, "0", 0, 20)
	_, stop := b.run(t, b.quickBlob())
	b.await(t, 20, sumOfSequences)
	stop()
	b.requireCheckpoint(t, 19)
}

func TestCheckpointMovedBackCostsReadingAgainOnly(t *testing.T) {
	t.Parallel()
	b := setupBlob(t, 1)
	b.runThenStop(t)
	b.putCheckpoint(t, 4)
	b.publish(t, "0", 20, 5)
	b.run(t, b.quickBlob())
	b.await(t, 25, countIntents)
	b.awaitCheckpoint(t, 24, "0")
	require.Equal(t, ingest.Counts{Intents: 25, Redeliveries: 15}, b.counters(t))
}

func TestCheckpointLostIsMadeUpForByTheDatabase(t *testing.T) {
	t.Parallel()
	b := setupBlob(t, 1)
	b.runThenStop(t)
	_, err := b.storage.Client.NewBlobClient(b.checkpointName("0")).Delete(t.Context(), nil)
	require.NoError(t, err)
	b.publish(t, "0", 20, 5)
	b.run(t, b.quickBlob())
	b.awaitCheckpoint(t, 24, "0")
	require.Equal(t, ingest.Counts{Intents: 25}, b.counters(t))
}

// A restore brings an older database back; the checkpoint knows nothing of it.
func TestCheckpointAheadOfARestoredDatabaseLosesNothing(t *testing.T) {
	t.Parallel()
	b := setupBlob(t, 1)
	b.runThenStop(t)
	tx, err := b.owner.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "DELETE FROM billing.intents WHERE amount_cents >= 110")
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "UPDATE billing.eventhub_checkpoints SET sequence_number = 9, event_offset = $1", b.offset("0", 9))
	require.NoError(t, err)
	require.NoError(t, tx.Commit(t.Context()))
	b.run(t, b.quickBlob())
	b.await(t, 20, countIntents)
	b.await(t, 20, sumOfSequences)
	b.awaitLog(t, "is ahead of what this database has recorded")
	require.Zero(t, b.counters(t).Redeliveries, "nor is anything read again")
}

// The same while the reader goes on: an asynchronous fail-over takes committed batches back.
func TestDatabaseThatFellBackIsFilledAgainWithBlobToo(t *testing.T) {
	t.Parallel()
	b := setupBlob(t, 1)
	b.publish(t, "0", 0, 20)
	b.run(t, b.quickBlob())
	b.awaitCheckpoint(t, 19, "0")
	tx, err := b.owner.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "DELETE FROM billing.intents WHERE amount_cents >= 105")
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "UPDATE billing.eventhub_checkpoints SET sequence_number = 4, event_offset = $1", b.offset("0", 4))
	require.NoError(t, err)
	require.NoError(t, tx.Commit(t.Context()))
	b.publish(t, "0", 20, 5)
	b.await(t, 25, countIntents)
	b.awaitCheckpoint(t, 24, "0")
	b.awaitLog(t, "fell back")
}

// A container that another installation used, or a new database.
func TestCheckpointOfAnotherDatabaseDoesNotCount(t *testing.T) {
	t.Parallel()
	b := setupBlob(t, 2)
	b.publish(t, "0", 0, 20)
	b.publish(t, "1", 0, 20)
	b.putCheckpoint(t, 15)
	b.run(t, b.quickBlob())
	b.await(t, 40, countIntents)
	b.awaitCheckpoint(t, 19, "0")
	b.awaitLog(t, "has recorded nothing of a partition that has a checkpoint")
}

// A hub that was deleted and made anew while nobody read it, be it shorter or longer than the checkpoint of the old one.
func TestHubCreatedAnewWhileStoppedIsReadFromItsBeginning(t *testing.T) {
	t.Parallel()
	azuritetest.Start(t)
	for title, test := range map[string]struct {
		blob   bool
		events int
	}{
		"postgres, shorter": {false, 10},
		"postgres, longer":  {false, 50},
		"blob, shorter":     {true, 10},
		"blob, longer":      {true, 50},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			b := setupBlob(t, 1)
			cfg := b.quick()
			if test.blob {
				cfg = b.quickBlob()
			}
			b.publish(t, "0", 0, 20)
			_, stop := b.run(t, cfg)
			b.await(t, 20, sumOfSequences)
			stop()
			require.NoError(t, b.hub.RecreateHub(hubName))
			b.publish(t, "0", 100, test.events)
			_, stop = b.run(t, cfg)
			b.await(t, int64(20+test.events), countIntents)
			b.await(t, int64(test.events), sumOfSequences)
			b.awaitLog(t, "created anew")
			stop()
			// From then on it is a hub like any other, whatever its checkpoint in Blob Storage says.
			if test.blob {
				b.requireCheckpoint(t, int64(test.events-1))
				b.putCheckpoint(t, 19)
			}
			b.publish(t, "0", 200, 5)
			b.run(t, cfg)
			b.await(t, int64(25+test.events), countIntents)
			require.Zero(t, b.counters(t).Duplicates)
		})
	}
}

// Change of the setting alone: the database knows how far reading has come.
func TestChangeOfTheStoreReadsNothingAgain(t *testing.T) {
	t.Parallel()
	b := setupBlob(t, 2)
	b.publish(t, "0", 0, 10)
	_, stop := b.run(t, b.quick())
	b.await(t, 10, sumOfSequences)
	stop()
	b.publish(t, "0", 10, 10)
	_, stop = b.run(t, b.quickBlob())
	b.await(t, 20, sumOfSequences)
	stop()
	b.publish(t, "0", 20, 10)
	b.run(t, b.quick())
	b.await(t, 30, sumOfSequences)
	require.Equal(t, ingest.Counts{Intents: 30}, b.counters(t))
}

// One blob that another program wrote in another form makes the SDK's list fail, for every partition and for ever.
func TestCheckpointThatCannotBeReadKeepsNoPartitionFromBeingRead(t *testing.T) {
	t.Parallel()
	b := setupBlob(t, 2)
	b.runThenStop(t)
	b.storage.Put(t, b.checkpointName("1"), map[string]string{"position": "7"})
	b.publish(t, "0", 20, 5)
	b.publish(t, "1", 0, 5)
	b.run(t, b.quickBlob())
	b.await(t, 30, countIntents)
	b.awaitCheckpoint(t, 4, "1")
	b.awaitLog(t, "cannot be read: going on behind what this database has recorded")
	require.Equal(t, ingest.Counts{Intents: 30}, b.counters(t))
}

// Events that were recorded and have expired since are no loss, even if the checkpoint is older.
func TestExpiredEventsBehindAnOldCheckpointAreNoLoss(t *testing.T) {
	t.Parallel()
	b := setupBlob(t, 1)
	b.runThenStop(t)
	b.putCheckpoint(t, 2)
	require.NoError(t, b.hub.Trim(hubName, "0", 12))
	b.publish(t, "0", 20, 5)
	b.run(t, b.quickBlob())
	b.awaitCheckpoint(t, 24, "0")
	require.Zero(t, b.number(t, countQuarantine))
	require.Equal(t, ingest.Counts{Intents: 25, Redeliveries: 8}, b.counters(t))
}

// The owner of before, late with its batch.
func TestCheckpointOfASuccessorIsNotTakenBack(t *testing.T) {
	t.Parallel()
	b := setupBlob(t, 1)
	b.publish(t, "0", 0, 5)
	_, stop := b.run(t, b.quickBlob())
	b.awaitCheckpoint(t, 4, "0")
	blocker, err := b.owner.Begin(t.Context())
	require.NoError(t, err)
	_, err = blocker.Exec(t.Context(), "LOCK TABLE billing.intents IN ACCESS EXCLUSIVE MODE")
	require.NoError(t, err)
	b.publish(t, "0", 5, 5)
	b.await(t, 1, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
	_, err = b.owner.Exec(t.Context(), "UPDATE billing.eventhub_checkpoints SET sequence_number = 50")
	require.NoError(t, err)
	b.putCheckpoint(t, 50)
	require.NoError(t, blocker.Rollback(t.Context()))
	b.await(t, 10, countIntents)
	stop()
	b.requireCheckpoint(t, 50)
	b.await(t, 50, "SELECT sequence_number FROM billing.eventhub_checkpoints")
}
