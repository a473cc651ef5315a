package eventhubs_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"chargeonce/sql"
	"chargeonce/sql/queries"
	"chargeonce/sql/sqltest"
)

// Where ownerships are kept elsewhere, the row is evidence of what this database has recorded: no ownership stands in the
// database, and all else holds.
func TestUnfencedCheckpointNeverMovesBackEither(t *testing.T) {
	t.Parallel()
	db := sqltest.New(t)
	pool := db.Pool(t, sql.RoleIngest)
	q := queries.New()
	born := time.Date(2026, 8, 1, 0, 0, 0, 0, time.UTC)
	row := func(intact, moved bool, stands int64) queries.EventHubCheckpointSetRow {
		return queries.EventHubCheckpointSetRow{Owned: true, Intact: intact, Moved: moved, Stands: stands}
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
		{"the first one", "me", born, -1, 10, row(true, true, -1), 10},
		{"forward, by another", "other", born, -1, 20, row(true, true, 10), 20},
		{"back", "me", born, 10, 15, row(true, false, 20), 20},
		{"forward, but what I wrote before is gone", "me", born, 25, 30, row(false, false, 20), 20},
		{"of a hub created anew", "me", born.Add(time.Hour), -1, 3, row(true, true, -1), 3},
		{"of the hub before, late", "other", born, 20, 99, row(false, false, -1), 3},
	} {
		got, err := q.EventHubCheckpointSet(t.Context(), pool, queries.EventHubCheckpointSetParams{
			Unfenced: true, EventHubNamespace: "ns", EventHub: "hub", ConsumerGroup: "$default", PartitionID: "0", OwnerID: step.owner,
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
