package eventhubs

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"chargeonce/sql/queries"
)

// postgresKeeper keeps ownerships in billing.eventhub_ownership; an etag is a number that every claim raises.
type postgresKeeper struct {
	pool *pgxpool.Pool
}

func (k postgresKeeper) ownerships(ctx context.Context, key hubKey) ([]azeventhubs.Ownership, error) {
	rows, err := queries.New().EventHubOwnershipList(ctx, k.pool, queries.EventHubOwnershipListParams{
		EventHubNamespace: key.namespace, EventHub: key.hub, ConsumerGroup: key.group,
	})
	if err != nil {
		return nil, err
	}
	now := time.Now()
	out := make([]azeventhubs.Ownership, 0, len(rows))
	for _, row := range rows {
		out = append(out, azeventhubs.Ownership{
			PartitionID: row.PartitionID, OwnerID: row.OwnerID, ETag: etag(row.Etag),
			LastModifiedTime: now.Add(-time.Duration(row.AgeSeconds * float64(time.Second))).UTC(),
		})
	}
	return out, nil
}

func (k postgresKeeper) claim(ctx context.Context, claim azeventhubs.Ownership) (*azcore.ETag, error) {
	tag, err := k.write(ctx, claim)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return etag(tag), err
}

func (k postgresKeeper) write(ctx context.Context, claim azeventhubs.Ownership) (int64, error) {
	if claim.ETag == nil {
		return queries.New().EventHubOwnershipInsert(ctx, k.pool, queries.EventHubOwnershipInsertParams{
			EventHubNamespace: claim.FullyQualifiedNamespace, EventHub: claim.EventHubName, ConsumerGroup: claim.ConsumerGroup,
			PartitionID: claim.PartitionID, OwnerID: claim.OwnerID,
		})
	}
	before, err := strconv.ParseInt(string(*claim.ETag), 10, 64)
	if err != nil {
		return 0, pgx.ErrNoRows // not ours, so it cannot be what stands
	}
	return queries.New().EventHubOwnershipUpdate(ctx, k.pool, queries.EventHubOwnershipUpdateParams{
		OwnerID: claim.OwnerID, EventHubNamespace: claim.FullyQualifiedNamespace, EventHub: claim.EventHubName,
		ConsumerGroup: claim.ConsumerGroup, PartitionID: claim.PartitionID, Etag: before,
	})
}

func etag(n int64) *azcore.ETag { return new(azcore.ETag(strconv.FormatInt(n, 10))) }
