package eventhubs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/jackc/pgx/v5"

	"chargeonce/ingest"
	"chargeonce/schema"
	"chargeonce/sql/queries"
)

// read reads one partition until reading ends, the partition is lost, or it must be opened anew. Batches are recorded under
// recording, which outlives reading by the grace.
func (x *session) read(reading, recording context.Context, client *azeventhubs.ProcessorPartitionClient) {
	r := x.newReader(client)
	x.logger.InfoContext(reading, "reading partition", slog.String("partition", r.partition), slog.Int64("after_sequence", r.expected-1))
	r.writer = x.startWriter(reading, r.partition)
	err := r.run(reading, recording)
	// Before the partition is given up or opened again: who reads on begins behind the last checkpoint.
	r.writer.end(!errors.Is(err, errLost) && !errors.Is(err, errFellBack))
	x.forget(r)
	if reading.Err() != nil {
		return // the Processor closes it: once, after the checkpoint
	}
	level := slog.LevelWarn
	if errors.Is(err, errLost) {
		level = slog.LevelInfo // readers come and go
	}
	x.logger.Log(reading, level, "partition is closed", slog.String("partition", r.partition), slog.String("reason", err.Error()))
	r.close()
}

// reader reads one partition for as long as one partition client lasts.
type reader struct {
	*session
	client    *azeventhubs.ProcessorPartitionClient
	partition string
	writer    *checkpointWriter // nil with Postgres
	expected  int64             // next sequence number; -1 when unknown
	previous  int64             // sequence number of the row that stands; -1 for none
	singly    int64             // read one by one up to this sequence number; 0 when not
	largest   int               // size of the largest event of late, in bytes
	opened    time.Time

	lastEnqueued atomic.Int64
	done         atomic.Int64 // last sequence number committed
	progress     atomic.Int64 // when, in ns since 1970
	closing      sync.Once
}

func (x *session) newReader(client *azeventhubs.ProcessorPartitionClient) *reader {
	start := x.store.start(client.PartitionID())
	r := &reader{
		session: x, client: client, partition: client.PartitionID(),
		expected: start.next, previous: start.recorded, singly: x.readSingly(client.PartitionID()),
		opened: time.Now(),
	}
	r.lastEnqueued.Store(start.lastEnqueued)
	r.done.Store(max(start.next-1, start.after))
	r.progress.Store(time.Now().UnixNano())
	x.mu.Lock()
	defer x.mu.Unlock()
	x.readers[r.partition] = r
	return r
}

func (x *session) forget(r *reader) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.readers[r.partition] == r {
		delete(x.readers, r.partition)
		x.metrics.forget(r.partition)
	}
}

// close closes the client exactly once: a second close would take the partition's next client out of the Processor's books, and
// the Processor would then steal the partition from itself for ever.
func (r *reader) close() {
	r.closing.Do(func() {
		_, err := bounded(context.Background(), closeTimeout, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, r.client.Close(ctx)
		})
		if err != nil {
			r.logger.Debug("closing a partition", slog.String("partition", r.partition), slog.String("error", err.Error()))
		}
	})
}

func (r *reader) lag() int64 { return max(0, r.lastEnqueued.Load()-r.done.Load()) }

// Reasons to close a partition.
var (
	errLost     = errors.New("another reader owns the partition")
	errFellBack = errors.New("the stored checkpoint fell back behind what this reader had committed: the database was restored or failed over")
	errGap      = errors.New("events are missing in what was received: reading them one by one")
	errSilent   = errors.New("events that the hub counts do not arrive: reading them one by one")
)

func (r *reader) run(reading, recording context.Context) error {
	for reading.Err() == nil {
		lastEnqueued := r.lastEnqueued.Load()
		// One short wait for everything could never recover a link whose re-opening takes longer. Events may come with an error.
		events, receiveErr := r.receiveUpTo(reading, r.cfg.IdleWait, 1)
		var err error
		switch {
		case len(events) > 0:
			receiveErr, err = r.fillAndTake(reading, recording, events, receiveErr)
		case receiveErr == nil && reading.Err() == nil:
			err = r.afterSilence(recording, lastEnqueued)
		}
		if err != nil {
			return err
		}
		if receiveErr != nil {
			return r.explain(reading, receiveErr)
		}
	}
	return context.Cause(reading)
}

// fillAndTake waits shortly for as many more events as there are and a batch may have, and records them.
func (r *reader) fillAndTake(reading, recording context.Context, events []*azeventhubs.ReceivedEventData, receiveErr error) (error, error) {
	select {
	case r.batches <- struct{}{}:
	case <-reading.Done():
		return nil, context.Cause(reading)
	}
	defer func() { <-r.batches }()
	if receiveErr == nil && r.singly == 0 {
		events, receiveErr = r.fill(reading, events)
	}
	return receiveErr, r.take(recording, events)
}

// Limits on what is held in memory.
const (
	// maxBatchesAtOnce bounds the batches in the hands of all readers, of ingest.MaxBatchBytes each.
	maxBatchesAtOnce = 8
	// aheadBytes is what a partition may be sent ahead, in bytes, as far as the size of its next events can be told from the last.
	aheadBytes = 1 << 20
	// eventOverheadBytes is what an event costs beside its body, in bytes, roughly.
	eventOverheadBytes = 1024
)

// fill receives more events behind the first until the batch is full, by number or by bytes, or the linger is over. It asks for few
// at a time: what was asked for is sent, and held in memory, whether it is taken or not.
func (r *reader) fill(ctx context.Context, events []*azeventhubs.ReceivedEventData) ([]*azeventhubs.ReceivedEventData, error) {
	until := time.Now().Add(r.cfg.Linger)
	bytes, largest := 0, r.largest/2
	for next := events; ; {
		for _, e := range next {
			size := len(delivery(r.positions, r.partition, e).Body)
			bytes, largest = bytes+size, max(largest, size)
		}
		r.largest = largest
		wait := time.Until(until)
		n := min(r.cfg.Prefetch, r.cfg.BatchSize-len(events), max(1, aheadBytes/(largest+eventOverheadBytes)))
		if n <= 0 || wait <= 0 || bytes+largest > ingest.MaxBatchBytes {
			return events, nil
		}
		var err error
		if next, err = r.receiveUpTo(ctx, wait, n); err != nil || len(next) == 0 {
			return append(events, next...), err
		}
		events = append(events, next...)
	}
}

func (r *reader) receiveUpTo(ctx context.Context, wait time.Duration, n int) ([]*azeventhubs.ReceivedEventData, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	events, err := r.client.ReceiveEvents(ctx, n, nil)
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return events, nil
	}
	return events, err
}

// afterSilence deals with events that the hub counted before a long wait that brought none. The SDK drops an event that it cannot
// convert and tells nobody, and behind the last event of a partition no gap will ever show it. The partition is first opened anew, for
// the link may have been dead; if it is silent again, the events are quarantined. They get no checkpoint, for which the SDK would
// need their offset: until another event comes, a restart reads them again, as redeliveries.
func (r *reader) afterSilence(ctx context.Context, lastEnqueued int64) error {
	if r.expected < 0 || lastEnqueued < r.expected {
		return nil
	}
	props, err := r.partitionProperties(ctx, r.partition)
	if err != nil || (props.IsEmpty && r.previous < 0) {
		// Nothing is known of the events: the hub does not answer, or all had expired before this hub was ever read.
		return nil
	}
	if r.singly == 0 {
		r.setReadSingly(r.partition, r.expected+1)
		r.metrics.gaps.Inc()
		return errSilent
	}
	missing, _ := r.missing(ctx, lastEnqueued+1) // known: they were read one by one
	for batch := range ingest.Batches(missing) {
		if _, err := r.recorder.Record(ctx, batch, nil); err != nil {
			return fmt.Errorf("partition %s: %w", r.partition, err)
		}
	}
	r.expected = lastEnqueued + 1
	r.moved(lastEnqueued)
	r.endSingly()
	return nil
}

func (r *reader) moved(sequence int64) {
	r.progress.Store(time.Now().UnixNano())
	r.done.Store(sequence)
	r.metrics.moved(r.partition, time.Now(), r.lag())
}

func (r *reader) endSingly() {
	if r.singly > 0 && r.expected > r.singly {
		r.singly = 0
		r.setReadSingly(r.partition, 0)
	}
}

// explain tells a lost partition from other errors, and a partition lost to a reader that the store does not know.
func (r *reader) explain(ctx context.Context, err error) error {
	lost, ok := errors.AsType[*azeventhubs.Error](err)
	if !ok || lost.Code != azeventhubs.ErrorCodeOwnershipLost {
		return fmt.Errorf("receive from partition %s: %w", r.partition, err)
	}
	r.metrics.lost.Inc()
	ctx, cancel := context.WithTimeoutCause(ctx, r.cfg.StoreTimeout, errTooLong)
	defer cancel()
	// Not by way of the Store: the reader's call is no sign of life of the Processor.
	owners, ownersErr := r.keeper.ownerships(ctx, r.key)
	isOurs := slices.ContainsFunc(owners, func(o azeventhubs.Ownership) bool { return o.PartitionID == r.partition && o.OwnerID == r.owner })
	if ownersErr == nil && r.takenByStranger(r.partition, isOurs, time.Since(r.opened)) {
		r.metrics.strangers.Inc()
		log := r.logger.With(slog.String("partition", r.partition))
		if r.blob == nil {
			log.WarnContext(ctx, "a partition was taken by a reader that does not use this database: give every deployment a consumer group of its own")
		} else {
			log.WarnContext(ctx, "a partition was taken by a reader that does not use this storage container: give every deployment a consumer group of its own")
		}
	}
	return errLost
}

// take records the events up to the first gap.
func (r *reader) take(ctx context.Context, events []*azeventhubs.ReceivedEventData) error {
	deliveries := make([]ingest.Delivery, 0, len(events))
	var last *azeventhubs.ReceivedEventData
	var stop error
	for _, e := range events {
		if e.SequenceNumber < r.expected {
			// Recording it again is safe, and the checkpoint does not move back.
			r.logger.WarnContext(ctx, "sequence numbers went back", slog.String("partition", r.partition),
				slog.Int64("sequence", e.SequenceNumber), slog.Int64("expected_sequence", r.expected))
		}
		if r.expected >= 0 && e.SequenceNumber > r.expected {
			missing, known := r.missing(ctx, e.SequenceNumber)
			if !known {
				r.setReadSingly(r.partition, e.SequenceNumber)
				r.metrics.gaps.Inc()
				stop = errGap
				break
			}
			deliveries = append(deliveries, missing...)
		}
		deliveries = append(deliveries, delivery(r.positions, r.partition, e))
		last = e
		r.expected = e.SequenceNumber + 1
	}
	if last == nil {
		return stop
	}
	if err := r.record(ctx, deliveries, last); err != nil {
		return err
	}
	r.endSingly()
	return stop
}

// maxMissingRows bounds the rows that one gap leaves; a larger one is one row from-to.
const maxMissingRows = 100

// missing makes deliveries of the sequence numbers from the expected one to the one before next, which retention has taken or
// which cannot be read. It returns false when reading one by one has not yet been tried: the SDK drops good events that it
// received together with one that it cannot convert.
func (r *reader) missing(ctx context.Context, next int64) ([]ingest.Delivery, bool) {
	var out []ingest.Delivery
	from := r.expected
	props, err := r.partitionProperties(ctx, r.partition)
	if err == nil && props.BeginningSequenceNumber > from {
		until := min(props.BeginningSequenceNumber, next)
		out = append(out, r.unreadable(from, until-1, "expired_before_reading", "retention removed events before they were read"))
		r.metrics.expired.Add(float64(until - from))
		r.logger.ErrorContext(ctx, "events expired before they were read",
			slog.String("partition", r.partition), slog.Int64("from_sequence", from), slog.Int64("to_sequence", until-1))
		from = until
	}
	if from == next {
		return out, true
	}
	if r.singly == 0 {
		return nil, false
	}
	const reason = "the event hub has no readable event of this sequence number"
	r.logger.ErrorContext(ctx, "events cannot be read",
		slog.String("partition", r.partition), slog.Int64("from_sequence", from), slog.Int64("to_sequence", next-1))
	r.metrics.unreadable.Add(float64(next - from))
	if next-from > maxMissingRows {
		return append(out, r.unreadable(from, next-1, "unreadable_event", reason)), true
	}
	for seq := from; seq < next; seq++ {
		out = append(out, r.unreadable(seq, seq, "unreadable_event", reason))
	}
	return out, true
}

func (r *reader) unreadable(from, to int64, code schema.FaultCode, reason string) ingest.Delivery {
	raw, err := json.Marshal(map[string]any{
		"eventhub": r.key.hub, "partition": r.partition, "from_sequence": from, "to_sequence": to, "hub_created_at": r.hub.CreatedOn,
	})
	if err != nil {
		raw = []byte(reason) // cannot happen: only texts, numbers and a time
	}
	return ingest.Delivery{
		Body: raw, Partition: r.partition, Position: position(r.positions, r.partition, from),
		Unreadable: &schema.Fault{Code: code, Message: fmt.Sprintf("partition %s, sequence %d to %d: %s", r.partition, from, to, reason)},
	}
}

// record commits the deliveries, in batches within the limits; the last one carries the checkpoint. A crash before it only means
// reading again.
func (r *reader) record(ctx context.Context, deliveries []ingest.Delivery, last *azeventhubs.ReceivedEventData) error {
	recorded := 0
	for batch := range ingest.Batches(deliveries) {
		recorded += len(batch)
		if recorded < len(deliveries) {
			if _, err := r.recorder.Record(ctx, batch, nil); err != nil {
				return fmt.Errorf("partition %s: %w", r.partition, err)
			}
			continue
		}
		var at queries.EventHubCheckpointSetRow
		_, err := r.recorder.Record(ctx, batch, func(ctx context.Context, tx pgx.Tx) (err error) {
			at, err = r.checkpoint(ctx, tx, last)
			return err
		})
		if err != nil {
			return fmt.Errorf("partition %s: %w", r.partition, err)
		}
		r.moved(last.SequenceNumber)
		switch {
		case !at.Owned:
			return errLost // what was recorded stays recorded; the new owner reads it again
		case !at.Intact:
			return errFellBack
		case !at.Moved && last.SequenceNumber > at.Stands:
			// Nothing is lost, but all of it would be read again after a restart.
			r.metrics.unmoved.Inc()
			r.logger.WarnContext(ctx, "the checkpoint did not move although nothing speaks against it",
				slog.String("partition", r.partition), slog.Int64("checkpoint", at.Stands), slog.Int64("sequence", last.SequenceNumber))
		}
		if last.Offset != "" && (at.Moved || at.Stands <= r.previous) {
			// Nobody else has moved it meanwhile. An owner of before must not take the checkpoint back behind its successor's.
			r.writer.put(start{after: last.SequenceNumber, offset: last.Offset}.checkpoint(r.key, r.partition))
		}
		r.previous = at.Stands
		if at.Moved {
			r.previous = last.SequenceNumber
		}
	}
	return nil
}

func (r *reader) checkpoint(ctx context.Context, tx queries.DBTX, last *azeventhubs.ReceivedEventData) (queries.EventHubCheckpointSetRow, error) {
	row, err := queries.New().EventHubCheckpointSet(ctx, tx, queries.EventHubCheckpointSetParams{
		EventHubNamespace: r.key.namespace, EventHub: r.key.hub, ConsumerGroup: r.key.group, PartitionID: r.partition,
		Unfenced: r.blob != nil, OwnerID: r.owner, PreviousSeq: r.previous, HubCreatedAt: r.hub.CreatedOn,
		SequenceNumber: last.SequenceNumber, EventOffset: last.Offset, LastEnqueuedSeq: r.lastEnqueued.Load(),
	})
	if err != nil {
		return row, fmt.Errorf("write the checkpoint of partition %s at %d: %w", r.partition, last.SequenceNumber, err)
	}
	return row, nil
}

// position names an event of one hub: its name, partition and sequence number. A hub that is created anew under the same name begins
// again; recording then still compares keys and terms, and only a count may say redelivery for duplicate.
func position(hub, partition string, sequence int64) string {
	return hub + "/" + partition + "/" + strconv.FormatInt(sequence, 10)
}
