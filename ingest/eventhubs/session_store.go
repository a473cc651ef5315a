package eventhubs

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"

	"chargeonce/sql/queries"
)

// ListCheckpoints gives the Processor the checkpoints that can be used. Of one that lies past the end of its partition, or that
// belongs to an earlier hub of this name, the SDK would try to open the partition for ever and tell nobody; such a partition is
// read from its beginning instead, which is safe because recording is.
func (s *sessionStore) ListCheckpoints(ctx context.Context, _, _, _ string, _ *azeventhubs.ListCheckpointsOptions) ([]azeventhubs.Checkpoint, error) {
	x := s.session
	hub, err := bounded(ctx, propertiesTimeout, func(ctx context.Context) (azeventhubs.EventHubProperties, error) {
		return x.client.GetEventHubProperties(ctx, nil)
	})
	if err == nil {
		if err := x.changed(hub); err != nil {
			x.end(err) // the session that follows begins with the hub as it now is
		}
	}
	s.touch() // the Processor lives, it is the hub that is slow
	rows, err := s.checkpoints(ctx, x.key)
	if err != nil {
		return nil, err
	}
	stored := make(map[string]queries.EventHubCheckpointListRow, len(rows))
	for _, row := range rows {
		stored[row.PartitionID] = row
	}
	var wg sync.WaitGroup
	starts := make([]start, len(x.hub.PartitionIDs))
	for i, partition := range x.hub.PartitionIDs {
		wg.Go(func() { starts[i] = s.startOf(ctx, partition, stored[partition]) })
	}
	wg.Wait()
	s.touch()
	var out []azeventhubs.Checkpoint
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, partition := range x.hub.PartitionIDs {
		s.starts[partition] = starts[i]
		if starts[i].checkpoint < 0 {
			continue
		}
		row := stored[partition]
		out = append(out, azeventhubs.Checkpoint{
			FullyQualifiedNamespace: x.key.namespace, EventHubName: x.key.hub, ConsumerGroup: x.key.group,
			PartitionID: partition, SequenceNumber: new(row.SequenceNumber), Offset: new(row.EventOffset),
		})
	}
	return out, nil
}

// sessionStore is the Store as one Processor sees it. It remembers what it told the Processor, for the readers and the watch.
type sessionStore struct {
	*Store
	session *session

	mu      sync.Mutex
	starts  map[string]start
	owned   []string
	renewal time.Time
}

// start is where a partition's reading begins.
type start struct {
	checkpoint   int64 // sequence number of the checkpoint in use; -1: from the beginning
	next         int64 // sequence number of the first event expected; -1: unknown
	lastEnqueued int64
}

func newSessionStore(x *session) *sessionStore {
	return &sessionStore{
		Store: NewStore(x.pool, x.cfg.StoreTimeout, x.logger), session: x, starts: map[string]start{}, renewal: time.Now(),
	}
}

// startOf judges one partition's checkpoint; the zero row means that there is none.
func (s *sessionStore) startOf(ctx context.Context, partition string, row queries.EventHubCheckpointListRow) start {
	x := s.session
	at := start{checkpoint: -1, next: -1, lastEnqueued: -1}
	log := x.logger.With(slog.String("partition", partition))
	props, err := x.partitionProperties(ctx, partition)
	if err != nil {
		log.WarnContext(ctx, "a partition's properties cannot be read, its checkpoint is used unchecked", slog.String("error", err.Error()))
	} else {
		at.next, at.lastEnqueued = props.BeginningSequenceNumber, props.LastEnqueuedSequenceNumber
	}
	switch {
	case row.PartitionID == "":
	case !row.HubCreatedAt.Equal(x.hub.CreatedOn):
		x.metrics.anew.Inc()
		log.ErrorContext(ctx, "the hub was created anew: reading from its beginning, the old checkpoint does not count",
			slog.Time("checkpoint_hub_created_at", row.HubCreatedAt), slog.Time("hub_created_at", x.hub.CreatedOn))
	case err == nil && row.SequenceNumber > props.LastEnqueuedSequenceNumber:
		x.metrics.anew.Inc()
		log.ErrorContext(ctx, "the checkpoint lies past the end of the partition: reading from its beginning",
			slog.Int64("checkpoint", row.SequenceNumber), slog.Int64("last_enqueued", props.LastEnqueuedSequenceNumber))
	default:
		at.checkpoint, at.next = row.SequenceNumber, row.SequenceNumber+1
	}
	return at
}

func (s *sessionStore) start(partition string) start {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, known := s.starts[partition]; known {
		return at
	}
	return start{checkpoint: -1, next: -1, lastEnqueued: -1}
}

// ClaimOwnership notes what the Processor now owns.
func (s *sessionStore) ClaimOwnership(ctx context.Context, claims []azeventhubs.Ownership, opts *azeventhubs.ClaimOwnershipOptions) ([]azeventhubs.Ownership, error) {
	won, err := s.Store.ClaimOwnership(ctx, claims, opts)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.renewal = time.Now()
	s.owned = s.owned[:0]
	for _, o := range won {
		if o.OwnerID != "" {
			s.owned = append(s.owned, o.PartitionID)
		}
	}
	s.session.metrics.owned.Set(float64(len(s.owned)))
	return won, nil
}

// SetCheckpoint is what the SDK's UpdateCheckpoint would call. Nothing here does: a checkpoint is written in the transaction of its
// batch, and any other way would pass over events that are not yet recorded.
func (s *sessionStore) SetCheckpoint(context.Context, azeventhubs.Checkpoint, *azeventhubs.SetCheckpointOptions) error {
	return errCheckpointAlone
}

var errCheckpointAlone = errors.New("a checkpoint is written with its batch or not at all")

func (s *sessionStore) ownedPartitions() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.owned)
}

// renewed is when ownerships were last claimed with success.
func (s *sessionStore) renewed() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.renewal
}
