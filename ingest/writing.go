package ingest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"chargeonce/schema"
	"chargeonce/sql/queries"
)

// Limits of one statement.
const (
	// maxRowsPerStatement bounds its arrays.
	maxRowsPerStatement = 1000
	// maxBytesPerStatement bounds the raw bytes of its arrays when it has more than one row, in bytes.
	maxBytesPerStatement = 4 << 20
)

// recordAll places every object. Tables and rows are taken in one order by every writer: intents by key, conflicts, quarantined
// events. With isolate, objects that Postgres refuses are found and quarantined; without, the first refusal is returned.
func (w *writing) recordAll(ctx context.Context, isolate bool) error {
	groups := groupByKey(w.items)
	place := w.place
	if isolate {
		place = w.placeIsolated
	}
	if err := place(ctx, groups); err != nil {
		return err
	}
	return w.quarantine(ctx)
}

// writing is one attempt to record a batch.
type writing struct {
	recorder *Recorder
	q        *queries.Queries
	tx       pgx.Tx
	items    []*item
}

func newWriting(r *Recorder, tx pgx.Tx, items []*item) *writing {
	for _, it := range items {
		it.result, it.refusal = resultNone, nil
	}
	return &writing{recorder: r, q: queries.New(), tx: tx, items: items}
}

// placeIsolated places the groups in savepoints, halving where Postgres refuses one, down to the single object.
func (w *writing) placeIsolated(ctx context.Context, groups []group) error {
	if len(groups) == 0 {
		return nil
	}
	err := pgx.BeginFunc(ctx, w.tx, func(savepoint pgx.Tx) error {
		inner := *w
		inner.tx = savepoint
		return inner.place(ctx, groups)
	})
	if !refused(err) {
		return err
	}
	if len(groups) > 1 {
		half := len(groups) / 2
		if err := w.placeIsolated(ctx, groups[:half]); err != nil {
			return err
		}
		return w.placeIsolated(ctx, groups[half:])
	}
	if only := groups[0]; len(only) > 1 {
		// The culprit may be the first or a later one; alone, the others still count.
		for _, it := range only {
			if err := w.placeIsolated(ctx, []group{{it}}); err != nil {
				return err
			}
		}
		return nil
	}
	groups[0][0].refuse(err)
	return nil
}

func (it *item) refuse(err error) {
	message := "Postgres refused this object"
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		// Not its detail, which repeats the row.
		message += fmt.Sprintf(": %s (SQLSTATE %s, constraint %q)", pgErr.Message, pgErr.Code, pgErr.ConstraintName)
	}
	it.result, it.refusal = resultNone, &schema.Fault{Code: FaultRefusedByDatabase, Message: message}
}

// place compares the groups with what stands, inserts the rest, and judges whatever the insert did not take.
func (w *writing) place(ctx context.Context, groups []group) error {
	var conflicts []conflict
	for chunk := range slices.Chunk(groups, maxRowsPerStatement) {
		standing, err := w.standing(ctx, chunk)
		if err != nil {
			return err
		}
		if err := w.insertMissing(ctx, chunk, standing); err != nil {
			return err
		}
		for i, g := range chunk {
			conflicts = append(conflicts, w.judge(g, standing[i])...)
		}
	}
	return w.recordConflicts(ctx, conflicts)
}

// standingIntent is what stands under a key; the zero value: nothing.
type standingIntent struct {
	id       int64 // 0 for one just inserted whose id nobody needs
	terms    schema.Terms
	source   string
	position string
	exists   bool
	inserted bool // by this attempt, from the first object of the group
}

func (w *writing) standing(ctx context.Context, groups []group) ([]standingIntent, error) {
	arg := queries.IntentsStandingParams{
		Namespace: w.recorder.cfg.Namespace, BillingPeriods: make([]string, len(groups)), CustomerIds: make([]string, len(groups)),
	}
	for i, g := range groups {
		arg.BillingPeriods[i], arg.CustomerIds[i] = g[0].event.BillingPeriod, g[0].event.CustomerID
	}
	rows, err := w.q.IntentsStanding(ctx, w.tx, arg)
	if err != nil {
		return nil, fmt.Errorf("look for %d intents: %w", len(groups), err)
	}
	found := make([]standingIntent, len(groups))
	for _, row := range rows {
		found[row.Ordinal-1] = standingIntent{
			id: row.ID, source: row.Source, position: row.SourcePosition, exists: true,
			terms: schema.Terms{AmountCents: row.AmountCents, Currency: row.Currency, StripeCustomerID: row.StripeCustomerID},
		}
	}
	return found, nil
}

// insertMissing inserts the first object of each group that nothing stands for, and completes standing. What the insert did not
// take, another writer has committed meanwhile; only a further statement can see it.
func (w *writing) insertMissing(ctx context.Context, groups []group, standing []standingIntent) error {
	var missing []group
	var places []int
	for i, g := range groups {
		if !standing[i].exists {
			missing = append(missing, g)
			places = append(places, i)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	ids, err := w.q.IntentsInsert(ctx, w.tx, w.insertParams(missing))
	if err != nil {
		return fmt.Errorf("insert %d intents: %w", len(missing), err)
	}
	all := len(ids) == len(missing)
	if all && !slices.ContainsFunc(missing, group.hasOtherTerms) {
		for i, g := range missing {
			standing[places[i]] = standingIntent{
				terms: g[0].event.Terms(), source: w.recorder.cfg.Source, position: g[0].position, exists: true, inserted: true,
			}
		}
		return nil
	}
	again, err := w.standing(ctx, missing)
	if err != nil {
		return err
	}
	inserted := make(map[int64]bool, len(ids))
	for _, id := range ids {
		inserted[id] = true
	}
	for i := range missing {
		if !again[i].exists {
			return fmt.Errorf("%w: an intent was neither inserted nor found", errUnaccounted)
		}
		again[i].inserted = inserted[again[i].id]
		standing[places[i]] = again[i]
	}
	return nil
}

func (w *writing) insertParams(groups []group) queries.IntentsInsertParams {
	n := len(groups)
	ns := w.recorder.cfg.Namespace
	arg := queries.IntentsInsertParams{
		Namespace: ns, Source: w.recorder.cfg.Source,
		CustomerIds: make([]string, n), BillingPeriods: make([]string, n), IdempotencyKeys: make([]string, n),
		StripeCustomerIds: make([]string, n), AmountsCents: make([]int64, n), Currencies: make([]string, n),
		PaymentMethods: make([]string, n), Descriptions: make([]string, n), SourcePositions: make([]string, n),
		SourcesEnqueuedAt: make([]time.Time, n), SourceDetails: make([]string, n),
	}
	for i, g := range groups {
		first := g[0]
		e := &first.event
		arg.CustomerIds[i], arg.BillingPeriods[i], arg.IdempotencyKeys[i] = e.CustomerID, e.BillingPeriod, e.Key(ns)
		arg.StripeCustomerIds[i], arg.AmountsCents[i], arg.Currencies[i] = e.StripeCustomerID, e.AmountCents, e.Currency
		arg.PaymentMethods[i], arg.Descriptions[i] = e.PaymentMethod, e.Description
		arg.SourcePositions[i], arg.SourcesEnqueuedAt[i], arg.SourceDetails[i] = first.position, first.enqueuedAt, first.detail
	}
	return arg
}

func (g group) hasOtherTerms() bool {
	return slices.ContainsFunc(g[1:], func(it *item) bool { return it.event.Terms() != g[0].event.Terms() })
}

// judge sets the results of a group and returns its conflicts.
func (w *writing) judge(g group, s standingIntent) []conflict {
	var conflicts []conflict
	for i, it := range g {
		switch {
		case i == 0 && s.inserted:
			it.result = resultIntent
		case schema.Compare(s.terms, it.event.Terms()) == schema.VerdictConflict:
			conflicts = append(conflicts, conflict{intentID: s.id, item: it})
		case s.source == w.recorder.cfg.Source && s.position == it.position:
			it.result = resultRedelivery
		default:
			it.result = resultDuplicate
		}
	}
	return conflicts
}

func (w *writing) counts() Counts {
	var c Counts
	for _, it := range w.items {
		c.add(it.result)
	}
	return c
}

func (c *Counts) addAll(o Counts) {
	c.Intents += o.Intents
	c.Duplicates += o.Duplicates
	c.Redeliveries += o.Redeliveries
	c.Conflicts += o.Conflicts
	c.Quarantined += o.Quarantined
}

func (c *Counts) add(r result) {
	switch r {
	case resultIntent:
		c.Intents++
	case resultDuplicate:
		c.Duplicates++
	case resultRedelivery:
		c.Redeliveries++
	case resultConflict:
		c.Conflicts++
	case resultQuarantined:
		c.Quarantined++
	case resultNone:
	}
}

func (w *writing) addCounters(ctx context.Context) error {
	byPartition := map[string]*Counts{}
	var partitions []string
	for _, it := range w.items {
		c, known := byPartition[it.partition]
		if !known {
			c = new(Counts)
			byPartition[it.partition] = c
			partitions = append(partitions, it.partition)
		}
		c.add(it.result)
	}
	if len(partitions) == 0 {
		return nil
	}
	slices.Sort(partitions)
	arg := queries.SourceCountersAddParams{Namespace: w.recorder.cfg.Namespace, Source: w.recorder.cfg.Source, SourcePartitions: partitions}
	for _, p := range partitions {
		c := byPartition[p]
		arg.Intents = append(arg.Intents, c.Intents)
		arg.Duplicates = append(arg.Duplicates, c.Duplicates)
		arg.Redeliveries = append(arg.Redeliveries, c.Redeliveries)
		arg.Conflicts = append(arg.Conflicts, c.Conflicts)
		arg.Quarantined = append(arg.Quarantined, c.Quarantined)
	}
	if err := w.q.SourceCountersAdd(ctx, w.tx, arg); err != nil {
		return fmt.Errorf("add the counters of %d partitions: %w", len(partitions), err)
	}
	return nil
}
