package eventhubs_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/stretchr/testify/require"

	"chargeonce/ingest/eventhubs"
	"chargeonce/sql"
	"chargeonce/sql/sqltest"
)

func TestStoreKeepsTheContractOfTheSDK(t *testing.T) {
	t.Parallel()
	db := sqltest.New(t)
	store := eventhubs.NewStore(db.Pool(t, sql.RoleIngest), time.Second, slog.New(slog.DiscardHandler))
	claim := func(partition, owner string, tag *azcore.ETag) azeventhubs.Ownership {
		return azeventhubs.Ownership{
			FullyQualifiedNamespace: "NS.example", EventHubName: "Billing", ConsumerGroup: "$Default",
			PartitionID: partition, OwnerID: owner, ETag: tag,
		}
	}
	list := func() map[string]azeventhubs.Ownership {
		all, err := store.ListOwnership(t.Context(), "ns.EXAMPLE", "billing", "$default", nil) // another spelling of the same
		require.NoError(t, err)
		out := map[string]azeventhubs.Ownership{}
		for _, o := range all {
			out[o.PartitionID] = o
		}
		return out
	}

	won, err := store.ClaimOwnership(t.Context(), []azeventhubs.Ownership{claim("1", "a", nil), claim("0", "a", nil)}, nil)
	require.NoError(t, err)
	require.Len(t, won, 2)

	won, err = store.ClaimOwnership(t.Context(), []azeventhubs.Ownership{
		claim("0", "b", nil), claim("1", "b", new(azcore.ETag("99"))), claim("1", "b", new(azcore.ETag("no number"))), claim("2", "b", nil),
	}, nil)
	require.NoError(t, err, "a refused claim is no error")
	require.Len(t, won, 1)
	require.Equal(t, "2", won[0].PartitionID)

	// The database's clock is ten minutes behind ours, or so it seems: what counts is the age.
	_, err = db.Pool(t, "").Exec(t.Context(), "UPDATE billing.eventhub_ownership SET modified_at = clock_timestamp() - interval '40 s' WHERE partition_id = '1'")
	require.NoError(t, err)
	owned := list()
	require.Len(t, owned, 3)
	require.WithinDuration(t, time.Now().Add(-40*time.Second), owned["1"].LastModifiedTime, 10*time.Second)
	require.WithinDuration(t, time.Now(), owned["0"].LastModifiedTime, 10*time.Second)

	won, err = store.ClaimOwnership(t.Context(), []azeventhubs.Ownership{claim("0", "", owned["0"].ETag)}, nil)
	require.NoError(t, err)
	require.Len(t, won, 1)
	require.Empty(t, list()["0"].OwnerID, "a partition that was given up is listed all the same")
	require.Len(t, list(), 3)

	won, err = store.ClaimOwnership(t.Context(), []azeventhubs.Ownership{claim("0", "b", won[0].ETag)}, nil)
	require.NoError(t, err)
	require.Len(t, won, 1, "and can be had with the etag it was given up with")
}

// A claim that gives up partitions happens at the end of a process and must not hold it up.
func TestGivingUpPartitionsDoesNotWaitForTheDatabase(t *testing.T) {
	t.Parallel()
	db := sqltest.New(t)
	pool := db.Pool(t, sql.RoleIngest)
	store := eventhubs.NewStore(pool, 100*time.Millisecond, slog.New(slog.DiscardHandler))
	blocker, err := db.Pool(t, "").Begin(t.Context())
	require.NoError(t, err)
	_, err = blocker.Exec(t.Context(), "LOCK TABLE billing.eventhub_ownership IN ACCESS EXCLUSIVE MODE")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err = store.ClaimOwnership(ctx, []azeventhubs.Ownership{{PartitionID: "0", ETag: new(azcore.ETag("1"))}}, nil)
	require.Error(t, err)
	require.NoError(t, ctx.Err(), "it gave up by itself")
	require.NoError(t, blocker.Rollback(t.Context()))
}
