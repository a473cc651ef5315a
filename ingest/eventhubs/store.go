package eventhubs

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
)

// keeper is where ownerships are kept: in Postgres or in Blob Storage. Its methods are single tries and return the first error; the
// names in what they take are lower case.
type keeper interface {
	// ownerships lists who owns what, given-up partitions too, with LastModifiedTime on the local clock. The names of the hub may be
	// left out of the answer.
	ownerships(ctx context.Context, key hubKey) ([]azeventhubs.Ownership, error)
	// claim returns nil when the ownership no longer is as the claim says.
	claim(ctx context.Context, claim azeventhubs.Ownership) (*azcore.ETag, error)
}

// Store gives the SDK's Processor the ownerships. Every call retries until its context ends: one failed call would end the
// Processor, and one failed list of checkpoints would strand a partition for ever. It is safe for concurrent use.
type Store struct {
	keeper  keeper
	timeout time.Duration // of one try
	logger  *slog.Logger

	mu   sync.Mutex
	seen time.Time // last sign of life of the Processor: a call or a try
}

// NewStore makes a store of ownerships in Postgres, whose single tries get timeout.
func NewStore(pool *pgxpool.Pool, timeout time.Duration, logger *slog.Logger) *Store {
	return newStore(postgresKeeper{pool}, timeout, logger)
}

func newStore(k keeper, timeout time.Duration, logger *slog.Logger) *Store {
	return &Store{keeper: k, timeout: timeout, logger: logger, seen: time.Now()}
}

// ListOwnership lists who owns what, given-up partitions too. Times are ages by the store's clock, put on the local clock, with
// which the SDK compares them.
func (s *Store) ListOwnership(ctx context.Context, namespace, hub, group string, _ *azeventhubs.ListOwnershipOptions) ([]azeventhubs.Ownership, error) {
	out, err := retry(ctx, s, "list the ownerships", func(ctx context.Context) ([]azeventhubs.Ownership, error) {
		return s.keeper.ownerships(ctx, lowerKey(namespace, hub, group))
	})
	for i := range out {
		out[i].FullyQualifiedNamespace, out[i].EventHubName, out[i].ConsumerGroup = namespace, hub, group
	}
	return out, err
}

const (
	// relinquishTimeout bounds the claims that give partitions up, for the process is ending: without them others wait for expiry.
	relinquishTimeout = 5 * time.Second
	// maxClaimsAtOnce bounds the claims under way: one after the other, a slow store would let the last ones expire.
	maxClaimsAtOnce = 8
)

// ClaimOwnership claims each partition if it still is as the claim says. Refused claims are left out of the answer.
func (s *Store) ClaimOwnership(ctx context.Context, claims []azeventhubs.Ownership, _ *azeventhubs.ClaimOwnershipOptions) ([]azeventhubs.Ownership, error) {
	if givesUp(claims) {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, relinquishTimeout, errTooLong)
		defer cancel()
	}
	tags := make([]*azcore.ETag, len(claims))
	var claiming errgroup.Group
	claiming.SetLimit(maxClaimsAtOnce)
	for i, claim := range claims {
		claiming.Go(func() (err error) {
			lower := lowerKey(claim.FullyQualifiedNamespace, claim.EventHubName, claim.ConsumerGroup)
			claim.FullyQualifiedNamespace, claim.EventHubName, claim.ConsumerGroup = lower.namespace, lower.hub, lower.group
			tags[i], err = retry(ctx, s, "claim partition "+claim.PartitionID, func(ctx context.Context) (*azcore.ETag, error) {
				return s.keeper.claim(ctx, claim)
			})
			return err
		})
	}
	if err := claiming.Wait(); err != nil {
		return nil, err
	}
	won := make([]azeventhubs.Ownership, 0, len(claims))
	for i, claim := range claims {
		if tags[i] != nil {
			claim.ETag, claim.LastModifiedTime = tags[i], time.Now().UTC()
			won = append(won, claim)
		}
	}
	return won, nil
}

// givesUp tells claims that give partitions up from others.
func givesUp(claims []azeventhubs.Ownership) bool {
	return len(claims) > 0 && !slices.ContainsFunc(claims, func(o azeventhubs.Ownership) bool { return o.OwnerID != "" })
}

func lowerKey(namespace, hub, group string) hubKey {
	return hubKey{strings.ToLower(namespace), strings.ToLower(hub), strings.ToLower(group)}
}

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
		s.touch()
		if err == nil {
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
