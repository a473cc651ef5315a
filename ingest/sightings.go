package ingest

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"

	"chargeonce/schema"
	"chargeonce/sql/queries"
)

// record inserts the sightings that are new, judges every object of all of them, and counts further deliveries of known ones.
// Like intents they are compared in a statement after the insert, and like intents they are taken in one order.
func (w *writing) record(ctx context.Context, t table, as result) error {
	for start, end := 0, 0; start < t.rows(); start = end {
		end = endOfStatement(t, start)
		inserted, err := t.insert(ctx, w, start, end)
		if err != nil {
			return err
		}
		isNew := make(map[int64]bool, len(inserted))
		for _, id := range inserted {
			isNew[id] = true
		}
		found, err := t.standing(ctx, w, start, end)
		if err != nil {
			return err
		}
		var more raised
		for _, s := range found {
			n, last := w.judgeSighting(s, isNew[s.id], as)
			if n > 0 {
				more.ids, more.deliveries, more.positions = append(more.ids, s.id), append(more.deliveries, n), append(more.positions, last)
			}
		}
		if len(more.ids) == 0 {
			continue
		}
		if err := t.raise(ctx, w, more); err != nil {
			return err
		}
	}
	return nil
}

// endOfStatement returns where a statement that begins with the row at start ends, within the limits.
func endOfStatement(t table, start int) int {
	end, bytes := start, 0
	for end < t.rows() && end-start < maxRowsPerStatement {
		bytes += t.rawBytes(end)
		if end > start && bytes > maxBytesPerStatement {
			break
		}
		end++
	}
	return end
}

// table is what record works on: rows of conflicts or of quarantined events, sorted by their unique columns.
type table interface {
	rows() int
	rawBytes(row int) int
	insert(ctx context.Context, w *writing, start, end int) (ids []int64, err error)
	standing(ctx context.Context, w *writing, start, end int) ([]sighting, error)
	raise(ctx context.Context, w *writing, more raised) error
}

// sighting is a row that stands now, and the objects of this batch that belong to it, in order of delivery.
type sighting struct {
	id            int64
	firstSource   string
	firstPosition string
	items         []*item
}

// raised are rows with how often they were delivered more, and where last.
type raised struct {
	ids        []int64
	deliveries []int64
	positions  []string
}

// judgeSighting sets the results: the first position again is a redelivery, any other one counts once more.
func (w *writing) judgeSighting(s sighting, inserted bool, as result) (more int64, last string) {
	for i, it := range s.items {
		switch {
		case i == 0 && inserted:
			it.result = as
		case s.firstSource == w.recorder.cfg.Source && s.firstPosition == it.position:
			it.result = resultRedelivery
		default:
			it.result = as
			more, last = more+1, it.position
		}
	}
	return more, last
}

// conflict is an object whose key is taken with other terms.
type conflict struct {
	intentID int64
	item     *item
}

func (w *writing) recordConflicts(ctx context.Context, conflicts []conflict) error {
	var t conflictTable
	places := map[conflictKey]int{}
	for _, c := range conflicts {
		k := conflictKey{c.intentID, c.item.event.Terms()}
		place, known := places[k]
		if !known {
			place = len(t)
			places[k] = place
			t = append(t, conflictRow{key: k})
		}
		t[place].items = append(t[place].items, c.item)
	}
	slices.SortFunc(t, func(a, b conflictRow) int {
		return cmp.Or(cmp.Compare(a.key.intentID, b.key.intentID),
			cmp.Compare(a.key.terms.AmountCents, b.key.terms.AmountCents),
			cmp.Compare(a.key.terms.Currency, b.key.terms.Currency),
			cmp.Compare(a.key.terms.StripeCustomerID, b.key.terms.StripeCustomerID))
	})
	return w.record(ctx, t, resultConflict)
}

type conflictKey struct {
	intentID int64
	terms    schema.Terms
}

type conflictRow struct {
	key   conflictKey
	items []*item
}

type conflictTable []conflictRow

func (t conflictTable) rows() int { return len(t) }

func (t conflictTable) rawBytes(int) int { return 0 }

func (t conflictTable) insert(ctx context.Context, w *writing, start, end int) ([]int64, error) {
	keys := t.keys(start, end)
	arg := queries.ConflictsInsertParams{
		Source: w.recorder.cfg.Source, IntentIds: keys.IntentIds, AmountsCents: keys.AmountsCents,
		Currencies: keys.Currencies, StripeCustomerIds: keys.StripeCustomerIds,
	}
	for _, row := range t[start:end] {
		first := row.items[0]
		arg.PaymentMethods = append(arg.PaymentMethods, first.event.PaymentMethod)
		arg.Descriptions = append(arg.Descriptions, first.event.Description)
		arg.FirstPositions = append(arg.FirstPositions, first.position)
		arg.FirstDetails = append(arg.FirstDetails, first.detail)
	}
	ids, err := w.q.ConflictsInsert(ctx, w.tx, arg)
	if err != nil {
		return nil, fmt.Errorf("insert %d conflicts: %w", end-start, err)
	}
	return ids, nil
}

func (t conflictTable) standing(ctx context.Context, w *writing, start, end int) ([]sighting, error) {
	found, err := w.q.ConflictsStanding(ctx, w.tx, t.keys(start, end))
	if err != nil {
		return nil, fmt.Errorf("look for %d conflicts: %w", end-start, err)
	}
	sightings := make([]sighting, len(found))
	for i, f := range found {
		items := t[start+int(f.Ordinal)-1].items
		sightings[i] = sighting{id: f.ID, firstSource: f.FirstSource, firstPosition: f.FirstPosition, items: items}
	}
	return sightings, nil
}

func (t conflictTable) raise(ctx context.Context, w *writing, more raised) error {
	if err := w.q.ConflictsLock(ctx, w.tx, more.ids); err != nil {
		return fmt.Errorf("lock %d conflicts: %w", len(more.ids), err)
	}
	err := w.q.ConflictsRaise(ctx, w.tx, queries.ConflictsRaiseParams{
		Source: w.recorder.cfg.Source, Ids: more.ids, Deliveries: more.deliveries, LastPositions: more.positions,
	})
	if err != nil {
		return fmt.Errorf("count %d conflicts once more: %w", len(more.ids), err)
	}
	return nil
}

func (t conflictTable) keys(start, end int) queries.ConflictsStandingParams {
	var arg queries.ConflictsStandingParams
	for _, row := range t[start:end] {
		arg.IntentIds = append(arg.IntentIds, row.key.intentID)
		arg.AmountsCents = append(arg.AmountsCents, row.key.terms.AmountCents)
		arg.Currencies = append(arg.Currencies, row.key.terms.Currency)
		arg.StripeCustomerIds = append(arg.StripeCustomerIds, row.key.terms.StripeCustomerID)
	}
	return arg
}

// quarantine records every object with a fault: the parser's, the source's, or Postgres' refusal in this attempt.
func (w *writing) quarantine(ctx context.Context) error {
	var t quarantineTable
	places := map[quarantineKey]int{}
	for _, it := range w.items {
		fault := it.fault
		if fault == nil {
			fault = it.refusal
		}
		if fault == nil {
			continue
		}
		k := quarantineKey{sha256.Sum256(it.raw), string(fault.Code)}
		place, known := places[k]
		if !known {
			place = len(t)
			places[k] = place
			t = append(t, quarantineRow{key: k, fault: fault})
		}
		t[place].items = append(t[place].items, it)
	}
	slices.SortFunc(t, func(a, b quarantineRow) int {
		return cmp.Or(slices.Compare(a.key.sha256[:], b.key.sha256[:]), cmp.Compare(a.key.code, b.key.code))
	})
	return w.record(ctx, t, resultQuarantined)
}

type quarantineKey struct {
	sha256 [sha256.Size]byte
	code   string
}

type quarantineRow struct {
	key   quarantineKey
	fault *schema.Fault
	items []*item
}

type quarantineTable []quarantineRow

func (t quarantineTable) rows() int { return len(t) }

func (t quarantineTable) rawBytes(row int) int { return len(t[row].items[0].raw) }

func (t quarantineTable) insert(ctx context.Context, w *writing, start, end int) ([]int64, error) {
	keys := t.keys(w, start, end)
	arg := queries.QuarantinedEventsInsertParams{
		Namespace: keys.Namespace, Source: w.recorder.cfg.Source, ObjectsSha256: keys.ObjectsSha256, ReasonCodes: keys.ReasonCodes,
	}
	for _, row := range t[start:end] {
		arg.Fields = append(arg.Fields, clean(row.fault.Field))
		arg.Reasons = append(arg.Reasons, clean(row.fault.Message))
		raw := row.items[0].raw
		if raw == nil {
			raw = []byte{} // nil would be NULL
		}
		arg.Raws = append(arg.Raws, raw)
		arg.FirstPositions = append(arg.FirstPositions, row.items[0].position)
		arg.FirstDetails = append(arg.FirstDetails, row.items[0].detail)
	}
	ids, err := w.q.QuarantinedEventsInsert(ctx, w.tx, arg)
	if err != nil {
		return nil, fmt.Errorf("insert %d quarantined events: %w", end-start, err)
	}
	return ids, nil
}

func (t quarantineTable) standing(ctx context.Context, w *writing, start, end int) ([]sighting, error) {
	found, err := w.q.QuarantinedEventsStanding(ctx, w.tx, t.keys(w, start, end))
	if err != nil {
		return nil, fmt.Errorf("look for %d quarantined events: %w", end-start, err)
	}
	sightings := make([]sighting, len(found))
	for i, f := range found {
		items := t[start+int(f.Ordinal)-1].items
		sightings[i] = sighting{id: f.ID, firstSource: f.FirstSource, firstPosition: f.FirstPosition, items: items}
	}
	return sightings, nil
}

func (t quarantineTable) raise(ctx context.Context, w *writing, more raised) error {
	if err := w.q.QuarantinedEventsLock(ctx, w.tx, more.ids); err != nil {
		return fmt.Errorf("lock %d quarantined events: %w", len(more.ids), err)
	}
	err := w.q.QuarantinedEventsRaise(ctx, w.tx, queries.QuarantinedEventsRaiseParams{
		Source: w.recorder.cfg.Source, Ids: more.ids, Deliveries: more.deliveries, LastPositions: more.positions,
	})
	if err != nil {
		return fmt.Errorf("count %d quarantined events once more: %w", len(more.ids), err)
	}
	return nil
}

func (t quarantineTable) keys(w *writing, start, end int) queries.QuarantinedEventsStandingParams {
	arg := queries.QuarantinedEventsStandingParams{Namespace: w.recorder.cfg.Namespace}
	for i := start; i < end; i++ {
		arg.ObjectsSha256 = append(arg.ObjectsSha256, t[i].key.sha256[:])
		arg.ReasonCodes = append(arg.ReasonCodes, t[i].key.code)
	}
	return arg
}
