package eventhubs_test

import (
	"context"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/stretchr/testify/require"

	"chargeonce/ingest/eventhubs"
	"chargeonce/ingest/eventhubs/azuritetest"
)

func blobStore(t *testing.T, p *azuritetest.Proxy, timeout time.Duration) *eventhubs.Store {
	t.Helper()
	store, closeIdle, err := eventhubs.NewBlobStore(eventhubs.BlobConfig{ConnectionString: p.ConnectionString, Container: p.Container},
		timeout, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(closeIdle)
	return store
}

func claimOf(partition, owner string, tag *azcore.ETag) azeventhubs.Ownership {
	return azeventhubs.Ownership{
		FullyQualifiedNamespace: "NS.example", EventHubName: "Billing", ConsumerGroup: "$Default",
		PartitionID: partition, OwnerID: owner, ETag: tag,
	}
}

func TestBlobStoreKeepsTheContractOfTheSDK(t *testing.T) {
	t.Parallel()
	p := azuritetest.Start(t).Through(t)
	p.SetClock(-10 * time.Minute)
	store := blobStore(t, p, 10*time.Second)
	list := func() map[string]azeventhubs.Ownership {
		all, err := store.ListOwnership(t.Context(), "ns.EXAMPLE", "billing", "$default", nil) // another spelling of the same
		require.NoError(t, err)
		out := map[string]azeventhubs.Ownership{}
		for _, o := range all {
			require.Equal(t, "ns.EXAMPLE", o.FullyQualifiedNamespace)
			out[o.PartitionID] = o
		}
		return out
	}
	claim := func(claims ...azeventhubs.Ownership) []azeventhubs.Ownership {
		won, err := store.ClaimOwnership(t.Context(), claims, nil)
		require.NoError(t, err, "a refused claim is no error")
		return won
	}
	require.Len(t, claim(claimOf("1", "a", nil), claimOf("0", "a", nil)), 2)
	won := claim(claimOf("0", "b", nil), claimOf("1", "b", new(azcore.ETag(`"0x99"`))), claimOf("2", "b", nil))
	require.Len(t, won, 1)
	require.Equal(t, "2", won[0].PartitionID)
	require.Equal(t, "NS.example", won[0].FullyQualifiedNamespace)

	blobs, err := p.Blobs(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[string]string{"ownerid": "a"}, blobs["ns.example/billing/$default/ownership/1"].Metadata)

	// The storage's clock is ten minutes behind ours, or so it seems: what counts is the age.
	owned := list()
	require.Len(t, owned, 3)
	require.WithinDuration(t, time.Now(), owned["0"].LastModifiedTime, time.Minute)
	p.SetClock(10 * time.Minute)
	require.WithinDuration(t, time.Now(), list()["0"].LastModifiedTime, time.Minute)

	won = claim(claimOf("0", "", owned["0"].ETag))
	require.Len(t, won, 1)
	require.Empty(t, list()["0"].OwnerID, "a partition that was given up is listed all the same")
	require.Len(t, list(), 3)
	require.Len(t, claim(claimOf("0", "b", won[0].ETag)), 1, "and can be had with the etag it was given up with")
	require.Empty(t, claim(claimOf("0", "c", won[0].ETag)), "once")
}

// A claim that gives up partitions happens at the end of a process and must not hold it up.
func TestGivingUpPartitionsDoesNotWaitForTheStorage(t *testing.T) {
	t.Parallel()
	p := azuritetest.Start(t).Through(t)
	store := blobStore(t, p, 100*time.Millisecond)
	p.Fail(faulty(azuritetest.Fault{Hold: true}, isClaim))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := store.ClaimOwnership(ctx, []azeventhubs.Ownership{claimOf("0", "", new(azcore.ETag("1")))}, nil)
	require.Error(t, err)
	require.NoError(t, ctx.Err(), "it gave up by itself")
	require.Greater(t, p.Met(), 1, "each try had its own time")
}

// The storage took the claim and the answer was lost: the repetition is refused, which is no error, and the next list shows it.
func TestClaimWhoseAnswerWasLostIsFoundInTheNextList(t *testing.T) {
	t.Parallel()
	p := azuritetest.Start(t).Through(t)
	store := blobStore(t, p, 10*time.Second)
	lost := false
	p.Fail(faulty(azuritetest.Fault{Lose: true}, func(*http.Request) bool {
		lost = !lost
		return lost
	}))
	won, err := store.ClaimOwnership(t.Context(), []azeventhubs.Ownership{claimOf("0", "a", nil)}, nil)
	require.NoError(t, err)
	require.Empty(t, won)
	p.Fail(nil)
	owned, err := store.ListOwnership(t.Context(), "ns.example", "billing", "$default", nil)
	require.NoError(t, err)
	require.Len(t, owned, 1)
	require.Equal(t, "a", owned[0].OwnerID)
}
