package eventhubs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"chargeonce/sql/queries"
)

// Store keeps ownerships and checkpoints in Postgres. Every call retries until its context ends: one failed call would end the
// SDK's Processor, and one failed list of checkpoints would strand a partition for ever. It is safe for concurrent use.
type Store struct {
	pool    *pgxpool.Pool
	timeout time.Duration // of one try
	logger  *slog.Logger

	mu   sync.Mutex
	seen time.Time // last sign of life of the Processor: a call or a try
}

var _ azeventhubs.CheckpointStore = (*sessionStore)(nil)

// NewStore makes a store whose single tries get timeout.
func NewStore(pool *pgxpool.Pool, timeout time.Duration, logger *slog.Logger) *Store {
	return &Store{pool: pool, timeout: timeout, logger: logger, seen: time.Now()}
}

// ListOwnership lists who owns what, given-up partitions too. Times are ages by the database's clock, put on the local clock,
// with which the SDK compares them.
func (s *Store) ListOwnership(ctx context.Context, namespace, hub, group string, _ *azeventhubs.ListOwnershipOptions) ([]azeventhubs.Ownership, error) {
	key := lowerKey(namespace, hub, group)
	return retry(ctx, s, "list the ownerships", func(ctx context.Context) ([]azeventhubs.Ownership, error) {
		rows, err := queries.New().EventHubOwnershipList(ctx, s.pool, queries.EventHubOwnershipListParams{
			EventHubNamespace: key.namespace, EventHub: key.hub, ConsumerGroup: key.group,
		})
		if err != nil {
			return nil, err
		}
		now := time.Now()
		out := make([]azeventhubs.Ownership, 0, len(rows))
		for _, row := range rows {
			out = append(out, azeventhubs.Ownership{
				FullyQualifiedNamespace: namespace, EventHubName: hub, ConsumerGroup: group, PartitionID: row.PartitionID,
				OwnerID: row.OwnerID, ETag: etag(row.Etag), LastModifiedTime: now.Add(-time.Duration(row.AgeSeconds * float64(time.Second))).UTC(),
			})
		}
		return out, nil
	})
}

// relinquishTimeout bounds the claims that give partitions up, for the process is ending: without them others wait for expiry.
const relinquishTimeout = 5 * time.Second

// ClaimOwnership claims each partition if it still is as the claim says. Refused claims are left out of the answer.
func (s *Store) ClaimOwnership(ctx context.Context, claims []azeventhubs.Ownership, _ *azeventhubs.ClaimOwnershipOptions) ([]azeventhubs.Ownership, error) {
	if len(claims) > 0 && !slices.ContainsFunc(claims, func(o azeventhubs.Ownership) bool { return o.OwnerID != "" }) {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, relinquishTimeout, errTooLong)
		defer cancel()
	}
	claims = slices.Clone(claims)
	slices.SortFunc(claims, func(a, b azeventhubs.Ownership) int { return cmp.Compare(a.PartitionID, b.PartitionID) })
	won := make([]azeventhubs.Ownership, 0, len(claims))
	for _, claim := range claims {
		tag, err := retry(ctx, s, "claim partition "+claim.PartitionID, func(ctx context.Context) (*azcore.ETag, error) {
			tag, err := s.claim(ctx, claim)
			if errors.Is(err, pgx.ErrNoRows) {
				return nil, nil
			}
			return tag, err
		})
		if err != nil {
			return nil, err
		}
		if tag == nil {
			continue
		}
		claim.ETag, claim.LastModifiedTime = tag, time.Now().UTC()
		won = append(won, claim)
	}
	return won, nil
}

func (s *Store) claim(ctx context.Context, claim azeventhubs.Ownership) (*azcore.ETag, error) {
	key := lowerKey(claim.FullyQualifiedNamespace, claim.EventHubName, claim.ConsumerGroup)
	if claim.ETag == nil {
		tag, err := queries.New().EventHubOwnershipInsert(ctx, s.pool, queries.EventHubOwnershipInsertParams{
			EventHubNamespace: key.namespace, EventHub: key.hub, ConsumerGroup: key.group,
			PartitionID: claim.PartitionID, OwnerID: claim.OwnerID,
		})
		return etag(tag), err
	}
	before, err := strconv.ParseInt(string(*claim.ETag), 10, 64)
	if err != nil {
		return nil, pgx.ErrNoRows // not ours, so it cannot be what stands
	}
	tag, err := queries.New().EventHubOwnershipUpdate(ctx, s.pool, queries.EventHubOwnershipUpdateParams{
		OwnerID: claim.OwnerID, EventHubNamespace: key.namespace, EventHub: key.hub, ConsumerGroup: key.group,
		PartitionID: claim.PartitionID, Etag: before,
	})
	return etag(tag), err
}

func (s *Store) checkpoints(ctx context.Context, key hubKey) ([]queries.EventHubCheckpointListRow, error) {
	return retry(ctx, s, "list the checkpoints", func(ctx context.Context) ([]queries.EventHubCheckpointListRow, error) {
		return queries.New().EventHubCheckpointList(ctx, s.pool, queries.EventHubCheckpointListParams{
			EventHubNamespace: key.namespace, EventHub: key.hub, ConsumerGroup: key.group,
		})
	})
}

func lowerKey(namespace, hub, group string) hubKey {
	return hubKey{strings.ToLower(namespace), strings.ToLower(hub), strings.ToLower(group)}
}

func etag(n int64) *azcore.ETag { return new(azcore.ETag(strconv.FormatInt(n, 10))) }

// Pauses between the tries of a store call.
const (
	storeRetryDelay    = 100 * time.Millisecond
	maxStoreRetryDelay = 2 * time.Second
)

// retry repeats f, each time under the store's timeout, until it succeeds or ctx ends.
func retry[T any](ctx context.Context, s *Store, what string, f func(context.Context) (T, error)) (T, error) {
	delay := storeRetryDelay
	for {
		s.touch()
		try, cancel := context.WithTimeoutCause(ctx, s.timeout, errTooLong)
		value, err := f(try)
		cancel()
		if err == nil {
			s.touch()
			return value, nil
		}
		if ctx.Err() == nil {
			s.logger.WarnContext(ctx, "the checkpoint store failed, trying again", slog.String("step", what), slog.String("error", err.Error()))
		}
		if !sleep(ctx, delay/2+rand.N(delay/2)) { //nolint:gosec // jitter, not a secret
			var none T
			return none, fmt.Errorf("%s: %w: %w", what, context.Cause(ctx), err)
		}
		delay = min(2*delay, maxStoreRetryDelay)
	}
}

func (s *Store) touch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = time.Now()
}

func (s *Store) lastSeen() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen
}
