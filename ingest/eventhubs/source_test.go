package eventhubs_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"chargeonce/ingest"
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
