package eventhubs

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
)

// sessionStore is the Store as one Processor sees it. It remembers what it told the Processor, for the readers and the watch.
type sessionStore struct {
	*Store
	session *session

	mu      sync.Mutex
	starts  map[string]start
	owned   []string
	renewal time.Time
}

var _ azeventhubs.CheckpointStore = (*sessionStore)(nil)

func newSessionStore(x *session) *sessionStore {
	return &sessionStore{
		Store: newStore(x.keeper, x.cfg.StoreTimeout, x.logger), session: x, starts: map[string]start{}, renewal: time.Now(),
	}
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
// batch, and to Blob Storage behind it, and any other way would pass over events that are not yet recorded.
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
