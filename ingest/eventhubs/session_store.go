package eventhubs

import (
	"context"
	"errors"
	"fmt"
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
	claimed bool // owned is known
	renewal time.Time
	back    time.Time // when the store answered again after it had been away; ages count from then on
	foreign int       // partitions whose owners record into another database or billing namespace
}

var _ azeventhubs.CheckpointStore = (*sessionStore)(nil)

func newSessionStore(x *session) *sessionStore {
	return &sessionStore{
		Store: newStore(x.keeper, x.cfg.StoreTimeout, x.logger), session: x, starts: map[string]start{}, renewal: time.Now(),
	}
}

// ListOwnership does not let the Processor judge by what it missed: who could not renew its own ownerships for long must not conclude
// from their age that the others are gone. They could not renew theirs either, and the first one back would take all partitions from
// all (azure-sdk-for-go#22487). They get as long as an ownership lasts to show themselves.
func (s *sessionStore) ListOwnership(ctx context.Context, namespace, hub, group string, opts *azeventhubs.ListOwnershipOptions) ([]azeventhubs.Ownership, error) {
	all, err := s.Store.ListOwnership(ctx, namespace, hub, group, opts)
	if err != nil {
		return nil, err
	}
	s.noteForeign(ctx, all)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noteAnswer(time.Now())
	for i := range all {
		if all[i].LastModifiedTime.Before(s.back) {
			all[i].LastModifiedTime = s.back
		}
	}
	return all, nil
}

// noteAnswer notes whether the store was away until now; called with mu held, before renewal is set.
func (s *sessionStore) noteAnswer(now time.Time) {
	if now.Sub(s.renewal) > s.session.cfg.OwnershipExpiry/2 {
		s.back = now
	}
}

// ClaimOwnership notes what the Processor now owns. A Processor that ends gives up nothing here: giveUp does.
func (s *sessionStore) ClaimOwnership(ctx context.Context, claims []azeventhubs.Ownership, opts *azeventhubs.ClaimOwnershipOptions) ([]azeventhubs.Ownership, error) {
	if givesUp(claims) {
		return nil, nil
	}
	won, err := s.Store.ClaimOwnership(ctx, claims, opts)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.noteAnswer(now)
	s.renewal, s.claimed = now, true
	s.owned = s.owned[:0]
	for _, o := range won {
		s.owned = append(s.owned, o.PartitionID)
	}
	s.session.metrics.owned.Set(float64(len(s.owned)))
	return won, nil
}

// maxGiveUpTries bounds how often what stands in the store is given up: a claim that was under way may still arrive meanwhile.
const maxGiveUpTries = 3

// giveUp gives up whatever the store holds in this session's name, after the Processor's end. The Processor itself would give up what
// it knows of: a claim or renewal that was under way when it was told to end may have succeeded without its knowledge, and then the
// partition would lie idle until it expires (azure-sdk-for-go#21868).
func (s *sessionStore) giveUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, relinquishTimeout, errTooLong)
	defer cancel()
	key := s.session.key
	for range maxGiveUpTries {
		all, err := s.Store.ListOwnership(ctx, key.namespace, key.hub, key.group, nil)
		if err != nil {
			return fmt.Errorf("give up the partitions: %w", err)
		}
		ours := slices.DeleteFunc(all, func(o azeventhubs.Ownership) bool { return o.OwnerID != s.session.owner })
		if len(ours) == 0 {
			break
		}
		for i := range ours {
			ours[i].OwnerID = ""
		}
		if _, err := s.Store.ClaimOwnership(ctx, ours, nil); err != nil {
			return fmt.Errorf("give up %d partitions: %w", len(ours), err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.owned = s.owned[:0]
	s.session.metrics.owned.Set(0)
	return nil
}

// SetCheckpoint is what the SDK's UpdateCheckpoint would call. Nothing here does: a checkpoint is written in the transaction of its
// batch, and to Blob Storage behind it, and any other way would pass over events that are not yet recorded.
func (s *sessionStore) SetCheckpoint(context.Context, azeventhubs.Checkpoint, *azeventhubs.SetCheckpointOptions) error {
	return errCheckpointAlone
}

var errCheckpointAlone = errors.New("a checkpoint is written with its batch or not at all")

// ownedPartitions are those of the last claim; false while there has been none.
func (s *sessionStore) ownedPartitions() (owned []string, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.owned), s.claimed
}

// renewed is when ownerships were last claimed with success.
func (s *sessionStore) renewed() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.renewal
}
