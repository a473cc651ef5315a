package ingest

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"chargeonce/schema"
	"chargeonce/sql/queries"
)

// Preview foretells what a Recorder would make of deliveries, in their order, and writes nothing: it looks into the database in
// READ ONLY transactions and remembers what the deliveries before would have recorded. It agrees with Record as long as nobody else
// writes, but for objects that Postgres alone would refuse. Its memory is 40 to 85 bytes (measured) for each intent, conflict and
// quarantined event that is not in the database yet. It is not safe for concurrent use.
type Preview struct {
	recorder *Recorder
	limit    int
	seen     map[digest]sight // of intents, conflicts and quarantined events that the deliveries so far would have recorded
}

// MaxPreviewed bounds the intents, conflicts and quarantined events that one Preview remembers, unless it is given another limit.
const MaxPreviewed = 10_000_000

// ErrPreviewFull says that a Preview has seen more new things than it may remember.
var ErrPreviewFull = errors.New("too many new objects for one preview")

// NewPreview makes a Preview of what r would record. limit bounds what it remembers; 0: MaxPreviewed.
func (r *Recorder) NewPreview(limit int) *Preview {
	return &Preview{recorder: r, limit: cmp.Or(limit, MaxPreviewed), seen: map[digest]sight{}}
}

// RecordEach foretells what Recorder.RecordEach would return and tell each (may be nil); inTx is not called. While the database is
// away it tries again until ctx ends; then it returns ctx's cause.
func (p *Preview) RecordEach(ctx context.Context, batch []Delivery, _ InTx, each func(ObjectResult)) (Counts, error) {
	if err := checkSize(batch); err != nil {
		return Counts{}, err
	}
	var counts Counts
	for next := 0; next < len(batch); {
		// One delivery at a time would cost a transaction each, all at once would hold every object of a batch of large arrays.
		var items []*item
		for ; next < len(batch) && len(items) < maxRowsPerStatement; next++ {
			items = p.recorder.appendItems(items, &batch[next])
		}
		for part := range slices.Chunk(items, maxRowsPerStatement) {
			if err := p.foretell(ctx, part); err != nil {
				return counts, fmt.Errorf("preview %d deliveries: %w", len(batch), err)
			}
			for _, it := range part {
				counts.add(it.result)
			}
			tell(each, part)
		}
	}
	return counts, nil
}

// CheckRegistered returns what Register would, and registers nothing: a namespace or source that is not registered yet is fine.
func (p *Preview) CheckRegistered(ctx context.Context) error {
	r, q := p.recorder, queries.New()
	ns := r.cfg.Namespace
	return pgx.BeginTxFunc(ctx, r.pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		registered, err := q.NamespaceGet(ctx, tx, ns)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return nil // and so no source of it is either
		case err != nil:
			return fmt.Errorf("read namespace %s: %w", ns, err)
		}
		if registered.PeriodFormat != string(r.periods) {
			return fmt.Errorf("%w: namespace %s is registered with period format %q, this ingestor is set to %q",
				ErrDisagreement, ns, registered.PeriodFormat, r.periods)
		}
		if registered.ManyPerStripeCustomer != r.cfg.ManyPerStripeCustomer {
			return fmt.Errorf("%w: namespace %s is registered with many-per-stripe-customer %t, this ingestor is set to %t",
				ErrDisagreement, ns, registered.ManyPerStripeCustomer, r.cfg.ManyPerStripeCustomer)
		}
		mapping, err := q.NamespaceSourceGet(ctx, tx, queries.NamespaceSourceGetParams{Namespace: ns, Source: r.cfg.Source})
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return nil
		case err != nil:
			return fmt.Errorf("read source %s of namespace %s: %w", r.cfg.Source, ns, err)
		}
		if mapping.MappingFingerprint != r.fingerprint {
			return fmt.Errorf("%w: source %s of namespace %s is registered with field mapping %s (fingerprint %s), this ingestor is set to %s (fingerprint %s)",
				ErrDisagreement, r.cfg.Source, ns, mapping.Mapping, mapping.MappingFingerprint, r.mapping, r.fingerprint)
		}
		return nil
	})
}

// foretell sets the items' results.
func (p *Preview) foretell(ctx context.Context, items []*item) error {
	r := p.recorder
	delay := r.cfg.RetryDelay
	for tries := 1; ; tries++ {
		var stands standingRecords
		err := p.attempt(ctx, items, &stands)
		if err == nil {
			return p.judgeAll(items, &stands)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if refused(err) {
			return err
		}
		r.logger.WarnContext(ctx, "reading what is recorded failed, trying again", slog.Int("tries", tries),
			slog.Duration("delay", delay), slog.String("error", err.Error()))
		timer := time.NewTimer(delay)
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
		}
		delay = min(2*delay, r.cfg.MaxRetryDelay)
	}
}

// previewQuery opens the transaction: one snapshot for its look-ups, and Postgres itself refuses every write.
const previewQuery = `BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SET LOCAL enable_seqscan = off;
SET LOCAL enable_bitmapscan = off;
SET LOCAL jit = off`

func (p *Preview) attempt(ctx context.Context, items []*item, stands *standingRecords) error {
	ctx, cancel := context.WithTimeoutCause(ctx, p.recorder.cfg.AttemptTimeout, errAttemptTooLong)
	defer cancel()
	return pgx.BeginTxFunc(ctx, p.recorder.pool, pgx.TxOptions{BeginQuery: previewQuery}, func(tx pgx.Tx) error {
		w := newWriting(p.recorder, tx, items)
		if err := p.readIntents(ctx, w, stands); err != nil {
			return err
		}
		if err := p.readConflicts(ctx, w, stands); err != nil {
			return err
		}
		return p.readQuarantined(ctx, w, stands)
	})
}

// standingRecords is what the database holds of the things that a few items are about.
type standingRecords struct {
	intents     map[intentKey]standingIntent
	conflicts   map[conflictKey]place
	quarantined map[quarantineKey]place
}

type intentKey struct{ period, customer string }

// place is where a conflict or quarantined event was seen first.
type place struct{ source, position string }

func keyOf(it *item) intentKey { return intentKey{it.event.BillingPeriod, it.event.CustomerID} }

func (p *Preview) readIntents(ctx context.Context, w *writing, stands *standingRecords) error {
	stands.intents = map[intentKey]standingIntent{}
	var unknown []group
	for _, g := range groupByKey(w.items) {
		if _, seen := p.seen[intentDigest(keyOf(g[0]))]; !seen {
			unknown = append(unknown, g)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	found, err := w.standing(ctx, unknown)
	if err != nil {
		return err
	}
	for i, g := range unknown {
		if found[i].exists {
			stands.intents[keyOf(g[0])] = found[i]
		}
	}
	return nil
}

func (p *Preview) readConflicts(ctx context.Context, w *writing, stands *standingRecords) error {
	stands.conflicts = map[conflictKey]place{}
	var t conflictTable
	listed := map[conflictKey]bool{}
	for _, it := range w.items {
		if it.fault != nil {
			continue
		}
		s, known := stands.intents[keyOf(it)]
		k := conflictKey{s.id, it.event.Terms()}
		if known && k.terms != s.terms && !listed[k] {
			listed[k] = true
			t = append(t, conflictRow{key: k, items: []*item{it}})
		}
	}
	if len(t) == 0 {
		return nil
	}
	found, err := t.standing(ctx, w, 0, len(t))
	if err != nil {
		return err
	}
	for _, f := range found {
		it := f.items[0]
		stands.conflicts[conflictKey{stands.intents[keyOf(it)].id, it.event.Terms()}] = place{f.firstSource, f.firstPosition}
	}
	return nil
}

func (p *Preview) readQuarantined(ctx context.Context, w *writing, stands *standingRecords) error {
	stands.quarantined = map[quarantineKey]place{}
	var t quarantineTable
	listed := map[quarantineKey]bool{}
	for _, it := range w.items {
		if it.fault == nil {
			continue
		}
		k := quarantineKey{sha256.Sum256(it.raw), string(it.fault.Code)}
		if _, seen := p.seen[k.digest()]; !seen && !listed[k] {
			listed[k] = true
			t = append(t, quarantineRow{key: k, items: []*item{it}})
		}
	}
	if len(t) == 0 {
		return nil
	}
	found, err := t.standing(ctx, w, 0, len(t))
	if err != nil {
		return err
	}
	for _, f := range found {
		it := f.items[0]
		stands.quarantined[quarantineKey{sha256.Sum256(it.raw), string(it.fault.Code)}] = place{f.firstSource, f.firstPosition}
	}
	return nil
}

// judgeAll decides as a Recorder does, one item after the other: what a batch decides at once comes to the same.
func (p *Preview) judgeAll(items []*item, stands *standingRecords) error {
	for _, it := range items {
		if it.fault != nil {
			k := quarantineKey{sha256.Sum256(it.raw), string(it.fault.Code)}
			at, stored := stands.quarantined[k]
			it.result = p.judgeSighting(k.digest(), it, at, stored, resultQuarantined)
		} else {
			it.result = p.judgeEvent(it, stands)
		}
	}
	if len(p.seen) > p.limit {
		return fmt.Errorf("%w: at most %d are remembered, preview the files in parts", ErrPreviewFull, p.limit)
	}
	return nil
}

func (p *Preview) judgeEvent(it *item, stands *standingRecords) result {
	key, terms := keyOf(it), it.event.Terms()
	d := intentDigest(key)
	same, again := false, false
	if s, stored := stands.intents[key]; stored {
		same = s.terms == terms
		again = s.source == p.recorder.cfg.Source && s.position == it.position
		if !same {
			at, stored := stands.conflicts[conflictKey{s.id, terms}]
			return p.judgeSighting(conflictDigest(key, terms), it, at, stored, resultConflict)
		}
	} else {
		mine := sight{terms: termsHash(terms), position: textHash(it.position)}
		first, seen := p.seen[d]
		if !seen {
			p.seen[d] = mine
			return resultIntent
		}
		if first.terms != mine.terms {
			return p.judgeSighting(conflictDigest(key, terms), it, place{}, false, resultConflict)
		}
		again = first.position == mine.position
	}
	if again {
		return resultRedelivery
	}
	return resultDuplicate
}

// judgeSighting is for conflicts and quarantined events, which are unique too: their first position again is a redelivery.
func (p *Preview) judgeSighting(d digest, it *item, at place, stored bool, as result) result {
	if stored {
		if at.source == p.recorder.cfg.Source && at.position == it.position {
			return resultRedelivery
		}
		return as
	}
	position := textHash(it.position)
	if first, seen := p.seen[d]; seen {
		if first.position == position {
			return resultRedelivery
		}
		return as
	}
	p.seen[d] = sight{position: position}
	return as
}

// digest is half of a SHA-256: two things that differ have the same one with a probability of 2^-128.
type digest [16]byte

// sight is what must be known of a thing seen first. Two terms or positions that differ have the same hash with 2^-64.
type sight struct{ terms, position uint64 }

func intentDigest(k intentKey) digest { return digestOf('i', k.period, k.customer) }

func conflictDigest(k intentKey, t schema.Terms) digest {
	return digestOf('c', k.period, k.customer, fmt.Sprint(t.AmountCents), t.Currency, t.StripeCustomerID)
}

func (k quarantineKey) digest() digest { return digestOf('q', string(k.sha256[:]), k.code) }

func digestOf(kind byte, parts ...string) digest {
	text := append(make([]byte, 0, 512), kind)
	for _, part := range parts {
		text = binary.AppendUvarint(text, uint64(len(part))) // a part may contain anything
		text = append(text, part...)
	}
	sum := sha256.Sum256(text)
	return digest(sum[:16])
}

func termsHash(t schema.Terms) uint64 {
	d := digestOf('t', fmt.Sprint(t.AmountCents), t.Currency, t.StripeCustomerID)
	return binary.LittleEndian.Uint64(d[:8])
}

func textHash(text string) uint64 {
	sum := sha256.Sum256([]byte(text))
	return binary.LittleEndian.Uint64(sum[:8])
}
