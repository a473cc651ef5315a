package charger

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"chargeonce/schema"
	"chargeonce/sql/queries"
)

// Forecast is what a run would do with what has come so far, before anything is charged.
type Forecast struct {
	RunID         int64  `json:"run_id,omitempty"` // 0: not opened yet
	Currency      string `json:"currency"`
	ExpectedCount *int64 `json:"expected_count,omitempty"`
	ExpectedCents int64  `json:"expected_total_cents"`
	CapCents      int64  `json:"cap_cents"`
	LeftCents     int64  `json:"left_cents"` // of the cap, before this forecast

	Ingested Sum `json:"ingested"`
	Begun    Sum `json:"begun"` // dispatched, or past that
	Fits     Sum `json:"fits"`  // would be charged
	NoRoom   Sum `json:"no_room"`
	Conflict Sum `json:"conflict"`
	Same     Sum `json:"same_customer"`

	// Left are those that would not be charged, the first MaxLeftOut of them.
	Left []LeftOut `json:"left_out,omitempty"`
}

// Sum is a number of intents and what they amount to.
type Sum struct {
	Count       int64 `json:"count"`
	AmountCents int64 `json:"amount_cents"`
}

// LeftOut is an intent that would not be charged.
type LeftOut struct {
	IntentID    int64               `json:"intent_id"`
	CustomerID  string              `json:"customer_id"`
	AmountCents int64               `json:"amount_cents"`
	Reason      schema.StatusReason `json:"reason"`
}

// MaxLeftOut bounds Forecast.Left, which may be as long as the period.
const MaxLeftOut = 1000

// Forecast plays the dispatcher through, writing nothing: on the run that stands, or on the terms of one that is not opened yet.
func (r Runs) Forecast(ctx context.Context, o OpenRun) (f Forecast, err error) {
	err = pgx.BeginTxFunc(ctx, r.Pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		run, err := r.forecastRun(ctx, tx, o)
		if err != nil {
			return err
		}
		f = Forecast{
			RunID: run.ID, Currency: run.Currency, ExpectedCount: run.ExpectedCount, ExpectedCents: run.ExpectedTotalCents,
			CapCents: run.CapCents, LeftCents: run.CapCents - run.AllocatedCents,
		}
		sums, err := r.queries().IntentSums(ctx, tx, queries.IntentSumsParams{Namespace: run.Namespace, BillingPeriod: run.BillingPeriod, Currency: run.Currency})
		if err != nil {
			return fmt.Errorf("sum the intents: %w", err)
		}
		f.Ingested, f.Begun = Sum{sums.Ingested, sums.IngestedCents}, Sum{sums.Begun, sums.BegunCents}
		return r.play(ctx, tx, run, &f)
	})
	return f, err
}

// forecastRun is the run that stands, else one of the terms that are given.
func (r Runs) forecastRun(ctx context.Context, tx pgx.Tx, o OpenRun) (queries.BillingRun, error) {
	run, err := r.queries().RunGet(ctx, tx, queries.RunGetParams{Namespace: o.Namespace, BillingPeriod: o.BillingPeriod, Currency: o.Currency})
	if err == nil && o.ExpectedTotal != "" {
		p, err := o.params()
		if err != nil {
			return run, err
		}
		return run, sameTerms(run, p)
	}
	if err == nil {
		return run, nil
	}
	if !errors.Is(err, pgx.ErrNoRows) {
		return run, fmt.Errorf("read the run: %w", err)
	}
	if o.ExpectedTotal == "" {
		return run, &RefusedError{
			Problem: fmt.Sprintf("there is no run of %s, %s, %s", o.Namespace, o.BillingPeriod, o.Currency),
			Cure:    "give --expected-total to see what one would do",
		}
	}
	if err := r.checkNamespace(ctx, o); err != nil {
		return run, err
	}
	p, err := o.params()
	return queries.BillingRun{
		Namespace: o.Namespace, BillingPeriod: o.BillingPeriod, Currency: o.Currency, Status: "open",
		ExpectedTotalCents: p.ExpectedTotalCents, ExpectedCount: p.ExpectedCount, CapCents: p.CapCents,
	}, err
}

// play decides page by page as dispatchers do, by the same function.
func (r Runs) play(ctx context.Context, tx pgx.Tx, run queries.BillingRun, f *Forecast) error {
	many, err := r.queries().NamespaceManyPerStripeCustomer(ctx, tx, run.Namespace)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("read namespace %s: %w", run.Namespace, err)
	}
	as := queries.RunLockRow{CapCents: run.CapCents, AllocatedCents: run.AllocatedCents, ManyPerStripeCustomer: many}
	taken := map[string]bool{}
	for after := int64(0); ; {
		page, err := r.queries().IntentListUndispatched(ctx, tx, queries.IntentListUndispatchedParams{
			Namespace: run.Namespace, BillingPeriod: run.BillingPeriod, Currency: run.Currency, After: after, MaxRows: forecastPage,
		})
		if err != nil {
			return fmt.Errorf("list waiting intents: %w", err)
		}
		if len(page) == 0 {
			return nil
		}
		after = page[len(page)-1].ID
		waiting := make([]queries.IntentListWaitingRow, len(page))
		for i, in := range page {
			waiting[i] = queries.IntentListWaitingRow(in)
		}
		plan := planDispatch(as, waiting, taken)
		as.AllocatedCents += plan.reserveCents
		f.add(plan, waiting)
	}
}

// forecastPage bounds what is held in memory.
const forecastPage = 5000

func (f *Forecast) add(plan dispatchPlan, waiting []queries.IntentListWaitingRow) {
	byID := make(map[int64]queries.IntentListWaitingRow, len(waiting))
	for _, in := range waiting {
		byID[in.ID] = in
	}
	for _, in := range plan.dispatch {
		f.Fits.Count++
		f.Fits.AmountCents += in.AmountCents
	}
	out := func(sum *Sum, ids []int64, reason schema.StatusReason) {
		for _, id := range ids {
			in := byID[id]
			sum.Count++
			sum.AmountCents += in.AmountCents
			if len(f.Left) < MaxLeftOut {
				f.Left = append(f.Left, LeftOut{IntentID: id, CustomerID: in.CustomerID, AmountCents: in.AmountCents, Reason: reason})
			}
		}
	}
	out(&f.NoRoom, plan.capped, schema.ReasonRunCapped)
	out(&f.Conflict, plan.conflict, schema.ReasonConflict)
	out(&f.Same, plan.sameCustomer, schema.ReasonSameCustomer)
}
