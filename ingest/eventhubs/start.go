package eventhubs

import (
	"context"
	"log/slog"
	"sync"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"

	"chargeonce/sql/queries"
)

// ListCheckpoints tells the Processor where to begin with each partition.
//
// A partition must never begin behind an event that this database has not recorded: nobody would miss the event. Beginning too early
// only costs reading again, for recording is safe to repeat. What this database has recorded is known from one place alone, the row of
// billing.eventhub_checkpoints, which every batch writes in its own transaction, with both stores. It counts for the hub that it was
// written for: a hub that was deleted and made anew under the same name has another created_at and begins at its beginning, however
// far its sequence numbers have come.
//
// With Postgres the row is the checkpoint. With Blob Storage the checkpoint is written after the commit and may be behind the row,
// because writing it failed or the process died, or because a person moved it back to have events read again: it is used. It may also
// be missing, as when the store was changed or the container was lost: the row is used. And it may be ahead of the row: the database
// was restored, or fell back in a fail-over, or the checkpoint was written for another database or for an earlier hub of this name.
// Then it says nothing about this database, and the row is used, or the beginning where there is no row of this hub. A checkpoint in
// Blob Storage does not say which hub it is of, so only its sequence number is used, which cannot lead past the row; an offset of
// another hub could.
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
	recorded, err := s.recorded(ctx)
	if err != nil {
		return nil, err
	}
	inBlob := s.inBlob(ctx)
	var wg sync.WaitGroup
	starts := make([]start, len(x.hub.PartitionIDs))
	for i, partition := range x.hub.PartitionIDs {
		wg.Go(func() { starts[i] = s.startOf(ctx, partition, recorded[partition], inBlob) })
	}
	wg.Wait()
	s.touch()
	var out []azeventhubs.Checkpoint
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, partition := range x.hub.PartitionIDs {
		s.starts[partition] = starts[i]
		if starts[i].after >= 0 {
			out = append(out, starts[i].checkpoint(x.key, partition))
		}
	}
	return out, nil
}

// start is where a partition's reading begins.
type start struct {
	after        int64  // sequence number of the last event that is not read again; -1: from the beginning
	offset       string // of that event; empty when it is not known
	recorded     int64  // sequence number in the row of this hub; -1: none
	next         int64  // sequence number of the first event expected; -1: unknown
	lastEnqueued int64
}

func fromBeginning() start { return start{after: -1, recorded: -1, next: -1, lastEnqueued: -1} }

func (at start) checkpoint(key hubKey, partition string) azeventhubs.Checkpoint {
	c := azeventhubs.Checkpoint{
		FullyQualifiedNamespace: key.namespace, EventHubName: key.hub, ConsumerGroup: key.group, PartitionID: partition,
		SequenceNumber: new(at.after),
	}
	if at.offset != "" {
		c.Offset = new(at.offset)
	}
	return c
}

// recorded returns the rows by partition.
func (s *sessionStore) recorded(ctx context.Context) (map[string]queries.EventHubCheckpointListRow, error) {
	x := s.session
	rows, err := retry(ctx, s.Store, "list the checkpoints", func(ctx context.Context) ([]queries.EventHubCheckpointListRow, error) {
		return queries.New().EventHubCheckpointList(ctx, x.pool, queries.EventHubCheckpointListParams{
			EventHubNamespace: x.key.namespace, EventHub: x.key.hub, ConsumerGroup: x.key.group,
		})
	})
	out := make(map[string]queries.EventHubCheckpointListRow, len(rows))
	for _, row := range rows {
		out[row.PartitionID] = row
	}
	return out, err
}

// maxBlobListTries is how often the checkpoints in Blob Storage are asked for. What cannot be read, be it for one blob that another
// program wrote in another form, must not keep all partitions from being read: the rows are enough to go on.
const maxBlobListTries = 3

// inBlob returns the sequence numbers in Blob Storage by partition: none with Postgres, nor when they cannot be read.
func (s *sessionStore) inBlob(ctx context.Context) map[string]int64 {
	x := s.session
	if x.blob == nil {
		return nil
	}
	listing, cancel := context.WithTimeoutCause(ctx, maxBlobListTries*s.timeout, errTooLong)
	defer cancel()
	numbers, err := retry(listing, s.Store, "list the checkpoints in Blob Storage", func(ctx context.Context) (map[string]int64, error) {
		return x.blob.checkpoints(ctx, x.key)
	})
	if err != nil && ctx.Err() == nil {
		x.logger.ErrorContext(ctx, "the checkpoints in Blob Storage cannot be read: going on behind what this database has recorded",
			slog.String("error", err.Error()))
	}
	return numbers
}

// startOf judges one partition's checkpoint. The zero row means that there is none.
func (s *sessionStore) startOf(ctx context.Context, partition string, row queries.EventHubCheckpointListRow, inBlob map[string]int64) start {
	x := s.session
	at := fromBeginning()
	log := x.logger.With(slog.String("partition", partition))
	props, err := x.partitionProperties(ctx, partition)
	if err != nil {
		log.WarnContext(ctx, "a partition's properties cannot be read, its checkpoint is used unchecked", slog.String("error", err.Error()))
	} else {
		at.next, at.lastEnqueued = props.BeginningSequenceNumber, props.LastEnqueuedSequenceNumber
	}
	checkpoint, known := inBlob[partition]
	switch {
	case row.PartitionID == "" && known:
		x.metrics.anew.Inc()
		log.ErrorContext(ctx, "this database has recorded nothing of a partition that has a checkpoint in Blob Storage: reading from its beginning",
			slog.Int64("checkpoint", checkpoint))
		return at
	case row.PartitionID == "":
		return at
	case !row.HubCreatedAt.Equal(x.hub.CreatedOn):
		x.metrics.anew.Inc()
		log.ErrorContext(ctx, "the hub was created anew: reading from its beginning, the old checkpoint does not count",
			slog.Time("checkpoint_hub_created_at", row.HubCreatedAt), slog.Time("hub_created_at", x.hub.CreatedOn))
		return at
	case err == nil && row.SequenceNumber > props.LastEnqueuedSequenceNumber:
		x.metrics.anew.Inc()
		log.ErrorContext(ctx, "the checkpoint lies past the end of the partition: reading from its beginning",
			slog.Int64("checkpoint", row.SequenceNumber), slog.Int64("last_enqueued", props.LastEnqueuedSequenceNumber))
		return at
	}
	at.after, at.offset, at.recorded = row.SequenceNumber, row.EventOffset, row.SequenceNumber
	switch {
	case known && checkpoint > row.SequenceNumber:
		x.metrics.unconfirmed.Inc()
		log.ErrorContext(ctx, "the checkpoint in Blob Storage is ahead of what this database has recorded: going on behind that",
			slog.Int64("checkpoint", checkpoint), slog.Int64("recorded", row.SequenceNumber))
	case known && checkpoint < row.SequenceNumber:
		at.after, at.offset = checkpoint, ""
		log.InfoContext(ctx, "the checkpoint in Blob Storage is behind what this database has recorded: reading again from there",
			slog.Int64("checkpoint", checkpoint), slog.Int64("recorded", row.SequenceNumber))
	}
	// Events between the checkpoint and the row may have expired; that they were recorded is known.
	at.next = max(at.after+1, min(at.next, row.SequenceNumber+1))
	return at
}

// start returns what the Processor was last told of a partition.
func (s *sessionStore) start(partition string) start {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, known := s.starts[partition]; known {
		return at
	}
	return fromBeginning()
}
