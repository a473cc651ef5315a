package eventhubs_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"chargeonce/ingest"
	"chargeonce/ingest/eventhubs"
)

func TestEventsSentBeforeTheFirstStartAreRead(t *testing.T) {
	t.Parallel()
	b := setup(t, 2)
	b.publish(t, "0", 0, 50)
	b.publish(t, "1", 0, 50)
	s, stop := b.run(t, b.quick())
	b.await(t, 100, countIntents)
	b.await(t, 100, sumOfSequences)
	require.NoError(t, s.Check(t.Context()))
	b.publish(t, "0", 50, 10)
	b.await(t, 110, countIntents)
	stop()
	require.EqualValues(t, 0, b.number(t, "SELECT count(*) FROM billing.eventhub_ownership WHERE owner_id <> ''"), "partitions are given up at the end")
	require.Equal(t, ingest.Counts{Intents: 110}, b.counters(t))
	require.EqualValues(t, 110, b.number(t, sumOfSequences))

	// Started again, it goes on where it was.
	b.publish(t, "1", 50, 10)
	b.run(t, b.quick())
	b.await(t, 120, countIntents)
	require.Equal(t, ingest.Counts{Intents: 120}, b.counters(t))
}

// Years later somebody asks which event a charge came from.
func TestIntentSaysWhichEventItCameFrom(t *testing.T) {
	t.Parallel()
	b := setup(t, 3)
	b.publish(t, "2", 0, 10)
	b.run(t, b.quick())
	b.await(t, 10, sumOfSequences)
	sent := b.hub.Events(hubName, "2")[7]
	require.NotEqual(t, "7", sent.Offset, "an offset is no sequence number")
	var source, position, offset string
	var enqueued time.Time
	err := b.owner.QueryRow(t.Context(), `SELECT source, source_position, source_detail ->> 'offset', source_enqueued_at
		FROM billing.intents WHERE customer_id = 'cus_2-7'`).Scan(&source, &position, &offset, &enqueued)
	require.NoError(t, err)
	require.Equal(t, eventhubs.SourceName, source)
	require.Equal(t, "billing/2/7/0", position, "hub, partition, sequence number, and the number of the object in the body")
	require.Equal(t, sent.Offset, offset)
	require.True(t, sent.EnqueuedTime.Equal(enqueued), "%s, %s", sent.EnqueuedTime, enqueued)
}
