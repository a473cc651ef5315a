package ingest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"chargeonce/schema"
)

// Record commits what the batch contains and, with the last of it, what inTx (may be nil) adds. When it returns nil the broker may
// be told to go on: every object stands as an intent, a counted duplicate or redelivery, a conflict or a quarantined event.
//
// A batch of more than maxPartObjects objects is committed in parts, in order of delivery, and inTx runs in the transaction of the
// last: however many objects a few bytes make, no transaction grows with them.
//
// While the database is away it tries again until ctx ends. That is safe even when a commit's answer was lost: if the
// transaction did commit, the repetition finds every object recorded at its own position and adds nothing but to the count of
// redeliveries. inTx must bear being repeated in the same way.
//
// It returns ctx's cause, ErrBatchTooLarge, or an error that repeating cannot mend; then inTx has not been committed, and parts
// before may have been.
func (r *Recorder) Record(ctx context.Context, batch []Delivery, inTx InTx) (Counts, error) {
	started := time.Now()
	if err := checkSize(batch); err != nil {
		return Counts{}, err
	}
	var counts Counts
	var items []*item
	for i := range batch {
		items = r.appendItems(items, &batch[i])
		for len(items) > maxPartObjects {
			if err := r.recordPart(ctx, items[:maxPartObjects], nil, &counts); err != nil {
				return Counts{}, fmt.Errorf("record %d deliveries: %w", len(batch), err)
			}
			items = items[maxPartObjects:]
		}
	}
	if err := r.recordPart(ctx, items, inTx, &counts); err != nil {
		return Counts{}, fmt.Errorf("record %d deliveries: %w", len(batch), err)
	}
	r.metrics.recorded(counts, time.Since(started))
	return counts, nil
}

// Limits of one transaction.
const (
	// maxPartObjects bounds the objects of one transaction. A batch of ordinary deliveries is far below it.
	maxPartObjects = 20_000
	// maxIsolatedObjects bounds the objects of one transaction while one that Postgres refuses is looked for: each may need savepoints
	// of its own.
	maxIsolatedObjects = 500
	// maxAttemptTimeout bounds the time of one transaction, however often it was too short before.
	maxAttemptTimeout = 15 * time.Minute
)

// recordPart commits the items and adds to counts what became of them. Where Postgres refuses one, it is looked for in smaller
// transactions, of which the last has inTx, so that the search progresses too.
func (r *Recorder) recordPart(ctx context.Context, items []*item, inTx InTx, counts *Counts) error {
	err := r.repeat(ctx, items, inTx, false, counts)
	if !refused(err) {
		return err
	}
	r.logger.WarnContext(ctx, "the database refused an object, looking for it", slog.Int("objects", len(items)), slog.String("error", err.Error()))
	for len(items) > maxIsolatedObjects {
		if err := r.repeat(ctx, items[:maxIsolatedObjects], nil, true, counts); err != nil {
			return fmt.Errorf("one by one: %w", err)
		}
		items = items[maxIsolatedObjects:]
	}
	if err := r.repeat(ctx, items, inTx, true, counts); err != nil {
		return fmt.Errorf("one by one: %w", err)
	}
	return nil
}

// repeat tries one transaction until it commits, is refused, or ctx ends. One that had begun and took too long gets twice the time
// at the next try: repeated unchanged it could stand still for ever.
func (r *Recorder) repeat(ctx context.Context, items []*item, inTx InTx, isolate bool, counts *Counts) error {
	limit := r.cfg.AttemptTimeout
	wait := waiting{recorder: r}
	defer wait.end()
	for {
		now, err := r.attempt(ctx, limit, items, inTx, isolate)
		switch {
		case err == nil:
			counts.addAll(now)
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, errUnaccounted), refused(err):
			return err
		case errors.Is(err, errAttemptTooLong):
			limit = max(limit, min(2*limit, maxAttemptTimeout))
		}
		if err := wait.pause(ctx, err); err != nil {
			return err
		}
	}
}

// ErrBatchTooLarge says that a batch exceeds MaxBatchDeliveries or MaxBatchBytes; Batches cuts deliveries to size.
var ErrBatchTooLarge = errors.New("batch too large")

// errUnaccounted says that the objects of a batch and the sum of what became of them differ. It is our own error, found
// before the commit.
var errUnaccounted = errors.New("internal error: not every object of the batch is accounted for")

// FaultRefusedByDatabase is the fault of an object that passed every check here but that Postgres refused.
const FaultRefusedByDatabase schema.FaultCode = "refused_by_database"

// beginQuery opens the transaction in one round trip. No setting of the server or the role may let a commit return before it is
// durable. The look-ups must use the unique indexes whatever the statistics say, which for a table that fills from empty is that it
// is empty; the look-ups themselves are written so that no join can read the table instead (measured: 10 s instead of 3 ms a batch).
const beginQuery = `BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SET LOCAL synchronous_commit = on;
SET LOCAL idle_in_transaction_session_timeout = '60s';
SET LOCAL enable_seqscan = off;
SET LOCAL enable_bitmapscan = off;
SET LOCAL jit = off`

// attempt is one transaction. It returns errAttemptTooLong when one that had begun took longer than limit.
func (r *Recorder) attempt(ctx context.Context, limit time.Duration, items []*item, inTx InTx, isolate bool) (Counts, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errAttemptTooLong)
	defer cancel()
	var counts Counts
	begun := false
	err := pgx.BeginTxFunc(ctx, r.pool, pgx.TxOptions{BeginQuery: beginQuery}, func(tx pgx.Tx) error {
		begun = true
		w := newWriting(r, tx, items)
		if err := w.recordAll(ctx, isolate); err != nil {
			return err
		}
		counts = w.counts()
		if counts.Objects() != int64(len(items)) {
			return fmt.Errorf("%w: %d objects, %+v", errUnaccounted, len(items), counts)
		}
		if err := w.addCounters(ctx); err != nil {
			return err
		}
		if inTx == nil {
			return nil
		}
		return inTx(ctx, tx)
	})
	if err != nil && begun && errors.Is(context.Cause(ctx), errAttemptTooLong) {
		err = fmt.Errorf("%w: %d objects, %s: %w", errAttemptTooLong, len(items), limit, err)
	}
	return counts, err
}

// errAttemptTooLong says that one transaction was given up.
var errAttemptTooLong = errors.New("recording took too long")

// refused tells whether Postgres refused a value or a row: data exception or integrity violation. Anything else, such as a
// deadlock, a full disk or a fail-over, says nothing about the objects.
func refused(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (strings.HasPrefix(pgErr.Code, "22") || strings.HasPrefix(pgErr.Code, "23"))
}

// result is what became of an object.
type result int

const (
	resultNone result = iota
	resultIntent
	resultDuplicate
	resultRedelivery
	resultConflict
	resultQuarantined
)

// item is one object of the batch.
type item struct {
	event      schema.BillingEvent
	fault      *schema.Fault
	raw        []byte
	partition  string
	position   string // the delivery's, and the object's place in it
	detail     string // the delivery's, as JSON; empty for none
	enqueuedAt time.Time

	// Of the present attempt:
	result  result
	refusal *schema.Fault // Postgres refused the object
}

func checkSize(batch []Delivery) error {
	bytes := 0
	for i := range batch {
		bytes += len(batch[i].Body)
	}
	if len(batch) > MaxBatchDeliveries || (len(batch) > 1 && bytes > MaxBatchBytes) {
		return fmt.Errorf("%w: %d deliveries of %d bytes, at most %d of %d", ErrBatchTooLarge,
			len(batch), bytes, MaxBatchDeliveries, MaxBatchBytes)
	}
	return nil
}

// appendItems parses a delivery and appends its objects in their order.
func (r *Recorder) appendItems(items []*item, d *Delivery) []*item {
	objects := []schema.Object{{Raw: d.Body, Fault: d.Unreadable}}
	if d.Unreadable == nil {
		objects = r.parser.Parse(d.Body, d.Attrs)
	}
	detail := encodeDetail(d.Detail)
	for _, o := range objects {
		items = append(items, &item{
			event: o.Event, fault: o.Fault, raw: o.Raw, partition: clean(d.Partition),
			position: clean(d.Position) + "/" + strconv.Itoa(o.Index), detail: detail, enqueuedAt: d.EnqueuedAt,
		})
	}
	return items
}

// group is all objects of one key in order of delivery: the first may become the intent, the others are judged by it.
type group []*item

// groupByKey sorts the groups by the columns of the unique constraint: two writers that meet the same keys take them in the
// same order and cannot deadlock.
func groupByKey(items []*item) []group {
	type key struct{ period, customer string }
	places := make(map[key]int, len(items))
	groups := make([]group, 0, len(items))
	for _, it := range items {
		if it.fault != nil {
			continue
		}
		k := key{it.event.BillingPeriod, it.event.CustomerID}
		place, known := places[k]
		if !known {
			place = len(groups)
			places[k] = place
			groups = append(groups, nil)
		}
		groups[place] = append(groups[place], it)
	}
	slices.SortFunc(groups, func(a, b group) int {
		return cmp.Or(
			cmp.Compare(a[0].event.BillingPeriod, b[0].event.BillingPeriod),
			cmp.Compare(a[0].event.CustomerID, b[0].event.CustomerID),
		)
	})
	return groups
}

// waiting is the back-off of one transaction.
type waiting struct {
	recorder *Recorder
	tries    int
	since    time.Time
	back     func() // set once the database counts as away
}

// pause waits before the next try; it returns ctx's cause when that comes first.
func (w *waiting) pause(ctx context.Context, err error) error {
	w.tries++
	if w.since.IsZero() {
		w.since = time.Now()
	}
	r := w.recorder
	// A lost race is over at the next try and says nothing about the database's health.
	if w.back == nil && (!lostRace(err) || w.tries > 3) {
		w.back = r.metrics.away.begin(w.since)
	}
	delay := r.cfg.MaxRetryDelay
	if w.tries < 16 {
		delay = min(delay, r.cfg.RetryDelay<<(w.tries-1))
	}
	delay = delay/2 + rand.N(delay/2+1) //nolint:gosec // jitter, not a secret
	r.logger.WarnContext(ctx, "recording failed, trying again", slog.Int("tries", w.tries),
		slog.Duration("delay", delay), slog.String("error", err.Error()))
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

func (w *waiting) end() {
	if w.since.IsZero() {
		return
	}
	if w.back != nil {
		w.back()
	}
	w.recorder.metrics.databaseAway(time.Since(w.since))
}

// lostRace tells a deadlock or a serialization failure.
func lostRace(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pgErr.Code == "40001" || pgErr.Code == "40P01")
}

// maxTextBytes bounds a text that comes from outside the billing event and is stored beside it, in bytes.
const maxTextBytes = 2000

// clean makes text storable: valid UTF-8, no NUL, bounded.
func clean(text string) string {
	if utf8.ValidString(text) && len(text) <= maxTextBytes && strings.IndexByte(text, 0) < 0 {
		return text
	}
	text = strings.ReplaceAll(text[:min(len(text), maxTextBytes)], "\x00", "\uFFFD")
	return strings.ToValidUTF8(text, "\uFFFD")
}

// maxDetailBytes bounds what is kept of a delivery's detail, in bytes of JSON.
const maxDetailBytes = 4000

// encodeDetail makes a JSON object, in the order of the names. What no longer fits is left out, and that is said in the object: it
// is for tracing only, and a producer that sends hundreds of properties must not fill the table with them.
func encodeDetail(detail map[string]string) string {
	if len(detail) == 0 {
		return ""
	}
	out := []byte{'{'}
	for _, name := range slices.Sorted(maps.Keys(detail)) {
		field := appendQuoted(nil, clean(name))
		field = appendQuoted(append(field, ':'), clean(detail[name]))
		if len(out)+len(field) > maxDetailBytes {
			out = append(out, `"left_out":"true",`...)
			break
		}
		out = append(append(out, field...), ',')
	}
	out[len(out)-1] = '}'
	return string(out)
}

func appendQuoted(out []byte, text string) []byte {
	quoted, err := json.Marshal(text)
	if err != nil {
		return append(out, `""`...) // cannot happen: a string can be encoded
	}
	return append(out, quoted...)
}
