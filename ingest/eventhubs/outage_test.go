package eventhubs_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"chargeonce/ingest"
	"chargeonce/ingest/eventhubs/eventhubstest"
)

// Renewals that waited behind batches would hand the partitions to a process that then waits as well.
func TestBatchesThatWaitForALockKeepTheirPartitions(t *testing.T) {
	t.Parallel()
	b := setup(t, 2)
	b.publish(t, "0", 0, 5)
	b.run(t, b.quick())
	b.await(t, 5, countIntents)
	blocker, err := b.owner.Begin(t.Context())
	require.NoError(t, err)
	_, err = blocker.Exec(t.Context(), "LOCK TABLE billing.intents IN ACCESS EXCLUSIVE MODE")
	require.NoError(t, err)
	b.publish(t, "0", 5, 5)
	b.publish(t, "1", 0, 5)
	renewals := b.number(t, "SELECT sum(etag)::bigint FROM billing.eventhub_ownership")
	require.True(t, waitFor(t.Context(), func() bool {
		now, err := b.tryNumber(t.Context(), "SELECT sum(etag)::bigint FROM billing.eventhub_ownership")
		return err == nil && now > renewals+40 // twice as long as an ownership lasts
	}))
	require.NoError(t, blocker.Rollback(t.Context()))
	b.await(t, 15, countIntents)
	require.NotContains(t, b.logs.String(), "partition is closed")
	require.Equal(t, ingest.Counts{Intents: 15}, b.counters(t))
}

func TestHubAwayForAWhileIsReadOn(t *testing.T) {
	t.Parallel()
	b := setup(t, 2)
	b.publish(t, "0", 0, 5)
	b.run(t, b.quick())
	b.await(t, 5, countIntents)
	require.NoError(t, b.hub.Inject(eventhubstest.Fault{Kind: eventhubstest.FaultRefuseConnection}))
	b.hub.DropConnections()
	b.publish(t, "0", 5, 5)
	accepted := b.hub.Counters().Accepted
	require.True(t, waitFor(t.Context(), func() bool { return b.hub.Counters().Accepted >= accepted+3 }), "it keeps trying")
	require.NoError(t, b.hub.Inject(eventhubstest.Fault{Kind: eventhubstest.FaultClear}))
	b.await(t, 10, countIntents)
	require.Equal(t, ingest.Counts{Intents: 10}, b.counters(t))
}

func TestStopEndsThoughTheHubNeverAnswers(t *testing.T) {
	t.Parallel()
	b := setup(t, 2)
	b.publish(t, "0", 0, 5)
	_, stop := b.run(t, b.quick())
	b.await(t, 5, sumOfSequences)
	var held atomic.Int64
	b.hub.SetHooks(eventhubstest.Hooks{OnConnect: func(string) error {
		held.Add(1)
		return eventhubstest.ErrHold
	}})
	b.hub.DropConnections()
	require.True(t, waitFor(t.Context(), func() bool { return held.Load() > 0 }))
	ended := make(chan struct{})
	go func() {
		stop()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("Run did not return")
	}
	b.await(t, 0, "SELECT count(*) FROM billing.eventhub_ownership WHERE owner_id <> ''")
}
