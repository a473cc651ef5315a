package charger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"chargeonce/charger/stripecharge"
	"chargeonce/sql/queries"
)

// Reconcile holds what Stripe charged for a run against the run's intents, and says where the two differ. Stripe's lists are read
// first, into the database, then the intents; whatever looks wrong is read again, one by one, before it is said.
//
// What is done is kept page by page: after a failure, a stop or a killed process the next call goes on there. While one process
// is at it, another one is refused.
func (c *Charger) Reconcile(ctx context.Context, key queries.RunGetParams, o ReconcileOptions) (Reconciliation, error) {
	runs := Runs{Pool: c.pool}
	run, err := runs.get(ctx, key)
	if err != nil {
		return Reconciliation{}, err
	}
	r := &reconciler{Charger: c, run: run, o: o}
	if err := r.begin(ctx); err != nil {
		return Reconciliation{}, err
	}
	working, cancel := context.WithCancelCause(ctx)
	var holding sync.WaitGroup
	holding.Go(func() { r.keepLease(working, cancel) })
	err = r.work(working)
	if cause := context.Cause(working); err != nil && cause != nil {
		err = cause
	}
	cancel(nil)
	holding.Wait()
	if err != nil {
		return Reconciliation{}, fmt.Errorf("reconcile the run of %s %s %s: %w; what was read is kept, the next reconcile goes on there",
			run.Namespace, run.BillingPeriod, run.Currency, errors.Join(err, r.letGo(ctx)))
	}
	return runs.LastReconciliation(ctx, key)
}

// ReconcileOptions says who reconciles, and how.
type ReconcileOptions struct {
	Actor    string
	From     *time.Time              // list from here instead of 24 hours before the run's first send
	Progress func(ReconcileProgress) // told after each part; may be nil
}

// ReconcileProgress is how far a reconciliation is.
type ReconcileProgress struct {
	Stage string // payment_intents, charges, intents, payments; waiting: for the end of a call that may be on its way
	Done  int64  // of this stage: objects or rows
	Share float64
}

// Reconciliation is a finished comparison.
type Reconciliation struct {
	ID            int64            `json:"reconciliation_id"`
	Namespace     string           `json:"namespace"`
	BillingPeriod string           `json:"billing_period"`
	Currency      string           `json:"currency"`
	Actor         string           `json:"actor"`
	StartedAt     time.Time        `json:"started_at"`
	FinishedAt    time.Time        `json:"finished_at"`
	ListedFrom    time.Time        `json:"listed_from"`
	Counted       Counted          `json:"counted"`
	Findings      map[string]int64 `json:"finding_counts"` // by kind; FindingRefunded is none of them
	Refunds       int64            `json:"refunds"`
	Clean         bool             `json:"clean"`
}

// Counted is how much was compared.
type Counted struct {
	PaymentIntents     int64 `json:"payment_intents"` // on Stripe's lists, anybody's and whatever their status
	Charges            int64 `json:"charges"`
	Unmarked           int64 `json:"unmarked_charges"` // of these, paid or pending and not made by a charger
	Intents            int64 `json:"intents"`          // of the run
	RunPayments        int64 `json:"run_payments"`     // paid or pending payments that carry the run's marks
	RunCents           int64 `json:"run_cents"`        // what they moved in the run's currency, refunds not taken off
	RefundedCents      int64 `json:"refunded_cents"`
	OtherRuns          int64 `json:"other_runs_payments"`
	OtherInstallations int64 `json:"other_installations_payments"`
}

// LastReconciliation is the last finished comparison of a run.
func (r Runs) LastReconciliation(ctx context.Context, key queries.RunGetParams) (Reconciliation, error) {
	run, err := r.get(ctx, key)
	if err != nil {
		return Reconciliation{}, err
	}
	last, err := r.queries().ReconciliationLatest(ctx, r.Pool, run.ID)
	if errors.Is(err, pgx.ErrNoRows) {
		return Reconciliation{}, &RefusedError{Problem: fmt.Sprintf("run %d was never reconciled", run.ID), Cure: "reconcile it without --last"}
	}
	if err != nil {
		return Reconciliation{}, fmt.Errorf("read the last reconciliation of run %d: %w", run.ID, err)
	}
	done := Reconciliation{
		ID: last.ID, Namespace: run.Namespace, BillingPeriod: run.BillingPeriod, Currency: run.Currency, Actor: last.Actor, StartedAt: last.StartedAt,
		FinishedAt: last.FinishedAt, ListedFrom: last.ListedFrom, Findings: map[string]int64{}, Clean: last.Outcome == "clean",
	}
	if err := json.Unmarshal(last.Counted, &done.Counted); err != nil {
		return Reconciliation{}, fmt.Errorf("read the figures of reconciliation %d: %w", last.ID, err)
	}
	counts, err := r.queries().ReconciliationFindingCount(ctx, r.Pool, last.ID)
	if err != nil {
		return Reconciliation{}, fmt.Errorf("count the findings of reconciliation %d: %w", last.ID, err)
	}
	for _, row := range counts {
		if row.Kind == FindingRefunded {
			done.Refunds = row.Findings
			continue
		}
		done.Findings[row.Kind] = row.Findings
	}
	return done, nil
}

// ReconcileFindings reads what a reconciliation found, a page at a time.
func (r Runs) ReconcileFindings(ctx context.Context, reconciliationID int64) iter.Seq2[Finding, error] {
	return func(yield func(Finding, error) bool) {
		p := queries.ReconciliationFindingListParams{ReconciliationID: reconciliationID, MaxRows: comparePage}
		for {
			rows, err := r.queries().ReconciliationFindingList(ctx, r.Pool, p)
			if err != nil {
				yield(Finding{}, fmt.Errorf("read the findings of reconciliation %d: %w", reconciliationID, err))
				return
			}
			for _, row := range rows {
				p.After = row.ID
				if !yield(Finding{
					Kind: row.Kind, IntentID: row.IntentID, CustomerID: row.CustomerID, StripeCustomer: row.StripeCustomer,
					ObjectIDs: row.ObjectIds, AmountCents: row.AmountCents, Currency: row.Currency, Detail: row.Detail,
				}, nil) {
					return
				}
			}
			if len(rows) < comparePage {
				return
			}
		}
	}
}

func (r Runs) get(ctx context.Context, key queries.RunGetParams) (queries.BillingRun, error) {
	run, err := r.queries().RunGet(ctx, r.Pool, key)
	if errors.Is(err, pgx.ErrNoRows) {
		return run, &RefusedError{Problem: fmt.Sprintf("there is no run of %s, %s, %s", key.Namespace, key.BillingPeriod, key.Currency), Cure: "see `charger run list`"}
	}
	if err != nil {
		return run, fmt.Errorf("read the run: %w", err)
	}
	return run, nil
}

const (
	// comparePage is how many rows are compared, or read, at a time.
	comparePage = 500
	// reconcileLease is how soon another process may go on with what a dead one left.
	reconcileLease = 30 * time.Second
	// reconcileKeep is how old an unfinished one may be to be gone on with: what it listed is as old.
	reconcileKeep = 24 * time.Hour
)

// The stages, in their order.
const (
	stagePaymentIntents = "payment_intents"
	stageCharges        = "charges"
	stageIntents        = "intents"
	stagePayments       = "payments"

	stageWaiting = "waiting" // told alone: for the end of a call
)

// reconciler works one reconciliation off. How far it is stands in the database as well.
type reconciler struct {
	*Charger
	run queries.BillingRun
	o   ReconcileOptions

	id          int64
	claimNumber int32
	startedAt   time.Time
	listedFrom  time.Time
	customer    string // that something was sent for
	stage       string
	cursor      string
	counted     Counted
}

// begin claims the run's reconciliation: a new one, or the one that another process left unfinished.
func (r *reconciler) begin(ctx context.Context) error {
	if _, err := r.queries.ReconciliationAbandon(ctx, r.pool, queries.ReconciliationAbandonParams{
		RunID: r.run.ID, Installation: r.cfg.Installation, MaxAgeSeconds: reconcileKeep.Seconds(), ListedFrom: r.o.From,
	}); err != nil {
		return fmt.Errorf("give up the old reconciliation of run %d: %w", r.run.ID, err)
	}
	// What earlier ones listed is not needed any more, should they have died before they cleared it.
	if err := r.queries.ReconciliationPaymentDelete(ctx, r.pool, r.run.ID); err != nil {
		return fmt.Errorf("clear the earlier reconciliations of run %d: %w", r.run.ID, err)
	}
	window, err := r.queries.ReconcileWindow(ctx, r.pool, r.run.ID)
	if err != nil {
		return fmt.Errorf("read the first send of run %d: %w", r.run.ID, err)
	}
	from := window.FirstSentAt.Add(-lookUpBefore)
	if r.o.From != nil {
		from = *r.o.From
	}
	begun, err := r.queries.ReconciliationBegin(ctx, r.pool, queries.ReconciliationBeginParams{
		RunID: r.run.ID, Actor: r.o.Actor, Installation: r.cfg.Installation, Worker: r.cfg.ID, ListedFrom: from, LeaseSeconds: reconcileLease.Seconds(),
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return r.taken(ctx)
	}
	if err != nil {
		return fmt.Errorf("begin the reconciliation of run %d: %w", r.run.ID, err)
	}
	r.id, r.claimNumber, r.startedAt, r.listedFrom = begun.ID, begun.ClaimNumber, begun.StartedAt, begun.ListedFrom
	r.stage, r.cursor = begun.Stage, begun.StageCursor
	if err := json.Unmarshal(begun.Counted, &r.counted); err != nil {
		return fmt.Errorf("read the figures of reconciliation %d: %w", r.id, err)
	}
	r.counted.Intents, r.customer = window.Intents, window.Customer
	return nil
}

// taken names whoever is at it.
func (r *reconciler) taken(ctx context.Context) error {
	other, err := r.queries.ReconciliationUnfinished(ctx, r.pool, r.run.ID)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("read who reconciles run %d: %w", r.run.ID, err)
	}
	return &RefusedError{
		Problem: fmt.Sprintf("run %d is being reconciled by %s (process %s, begun at %s)", r.run.ID, other.Actor, other.Worker, other.StartedAt.UTC().Format(time.RFC3339)),
		Cure:    fmt.Sprintf("wait for it; should that process be dead, the same command goes on where it ended in %s", max(time.Second, seconds(other.LeaseSecondsLeft).Round(time.Second))),
	}
}

var errReconcileTaken = errors.New("another process has taken it over")

// keepLease holds the reconciliation until ctx ends. Should it be lost, all of the work stops; saving would be refused anyway.
func (r *reconciler) keepLease(ctx context.Context, cancel context.CancelCauseFunc) {
	ticker := time.NewTicker(reconcileLease / 3)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		rows, err := r.queries.ReconciliationHold(ctx, r.pool, queries.ReconciliationHoldParams{
			ID: r.id, ClaimNumber: r.claimNumber, LeaseSeconds: reconcileLease.Seconds(),
		})
		if err == nil && rows == 0 {
			cancel(errReconcileTaken)
			return
		}
	}
}

// letGo lets the next call go on at once.
func (r *reconciler) letGo(ctx context.Context) error {
	ctx, cancel := r.finishContext(ctx)
	defer cancel()
	if _, err := r.queries.ReconciliationHold(ctx, r.pool, queries.ReconciliationHoldParams{ID: r.id, ClaimNumber: r.claimNumber}); err != nil {
		return fmt.Errorf("let go of reconciliation %d: %w", r.id, err)
	}
	return nil
}

// work goes through the stages from where the reconciliation stands.
func (r *reconciler) work(ctx context.Context) error {
	if err := r.checkMode(ctx); err != nil {
		return err
	}
	for {
		var err error
		switch r.stage {
		case stagePaymentIntents:
			err = r.list(ctx, stripecharge.KindPaymentIntent, stageCharges)
		case stageCharges:
			err = r.list(ctx, stripecharge.KindCharge, stageIntents)
		case stageIntents:
			err = r.compareIntents(ctx)
		case stagePayments:
			if err = r.comparePayments(ctx); err == nil {
				return r.finish(ctx)
			}
		}
		if err != nil {
			return err
		}
	}
}

// list reads one of Stripe's lists to its end, and keeps what it shows of payments that chargers made.
func (r *reconciler) list(ctx context.Context, kind, next string) error {
	for done := int64(0); ; {
		page, err := r.page(ctx, kind)
		if err != nil {
			return err
		}
		listed := queries.ReconciliationPaymentAddManyParams{ReconciliationID: r.id}
		counted := r.counted
		for _, e := range page.Entries {
			if p, counts := paymentOf(e); counts && p.IntentKey != "" {
				p.addTo(&listed)
			} else if counts && kind == stripecharge.KindCharge {
				counted.Unmarked++
			}
		}
		n := int64(len(page.Entries))
		if kind == stripecharge.KindCharge {
			counted.Charges += n
		} else {
			counted.PaymentIntents += n
		}
		listing, stage, cursor, share := r.stage, next, "", 1.0
		if page.More {
			stage, cursor = r.stage, page.Next
			share = float64(r.startedAt.Sub(page.Entries[n-1].CreatedAt)) / float64(max(r.startedAt.Sub(r.listedFrom), 1))
		}
		err = r.save(ctx, stage, cursor, counted, func(tx pgx.Tx) error { return r.queries.ReconciliationPaymentAddMany(ctx, tx, listed) })
		if err != nil {
			return err
		}
		done += n
		r.tell(listing, done, share)
		if !page.More {
			return nil
		}
	}
}

func (r *reconciler) tell(stage string, done int64, share float64) {
	if r.o.Progress == nil {
		return
	}
	r.o.Progress(ReconcileProgress{Stage: stage, Done: done, Share: min(max(share, 0), 1)})
}

// save keeps a part's yield together with how far the reconciliation is then. Whoever has lost the reconciliation keeps nothing.
func (r *reconciler) save(ctx context.Context, stage, cursor string, counted Counted, yield func(pgx.Tx) error) error {
	encoded, err := json.Marshal(counted)
	if err != nil {
		return fmt.Errorf("encode the figures of reconciliation %d: %w", r.id, err)
	}
	err = r.inTx(ctx, func(tx pgx.Tx) error {
		rows, err := r.queries.ReconciliationSave(ctx, tx, queries.ReconciliationSaveParams{
			ID: r.id, ClaimNumber: r.claimNumber, Stage: stage, StageCursor: cursor, Counted: encoded,
		})
		if err != nil {
			return err
		}
		if rows == 0 {
			return errReconcileTaken
		}
		return yield(tx)
	})
	if err != nil {
		return fmt.Errorf("save how far reconciliation %d is: %w", r.id, err)
	}
	r.stage, r.cursor, r.counted = stage, cursor, counted
	return nil
}

// compareIntents looks at each of the run's intents with the payments that are its own.
func (r *reconciler) compareIntents(ctx context.Context) error {
	for done := int64(0); ; {
		intents, err := r.queries.ReconcileIntentList(ctx, r.pool, queries.ReconcileIntentListParams{
			AsOf: r.startedAt, Namespace: r.run.Namespace, BillingPeriod: r.run.BillingPeriod, Currency: r.run.Currency, After: r.cursor, MaxRows: comparePage,
		})
		if err != nil {
			return fmt.Errorf("read the intents of run %d: %w", r.run.ID, err)
		}
		payments, err := r.paymentsOf(ctx, intents)
		if err != nil {
			return err
		}
		var found []Finding
		for i, in := range intents {
			findings, err := r.judgeIntent(ctx, booked(in), payments[i])
			if err != nil {
				return err
			}
			found = append(found, findings...)
		}
		stage, cursor := stagePayments, ""
		if len(intents) == comparePage {
			stage, cursor = r.stage, intents[len(intents)-1].CustomerID
		}
		if err := r.save(ctx, stage, cursor, r.counted, r.add(ctx, found)); err != nil {
			return err
		}
		done += int64(len(intents))
		r.tell(stageIntents, done, float64(done)/float64(max(r.counted.Intents, 1)))
		if stage == stagePayments {
			return nil
		}
	}
}

// judgeIntent judges by what was listed, and if anything looks wrong again by what is read now.
func (r *reconciler) judgeIntent(ctx context.Context, in booked, payments []payment) ([]Finding, error) {
	findings := judge(in, payments, r.cfg.Installation)
	if !suspicious(findings) {
		return findings, nil
	}
	ids := make([]string, len(payments))
	for i, p := range payments {
		ids[i] = p.ObjectID
	}
	return r.readAgain(ctx, in.ID, ids)
}

// paymentsOf finds for each intent what carries its key or is its charge.
func (r *reconciler) paymentsOf(ctx context.Context, intents []queries.ReconcileIntentListRow) ([][]payment, error) {
	p := queries.ReconciliationPaymentListOfIntentsParams{ReconciliationID: r.id}
	byKey, byCharge := map[string]int{}, map[string]int{}
	for i, in := range intents {
		p.IntentKeys, byKey[in.IdempotencyKey] = append(p.IntentKeys, in.IdempotencyKey), i
		if in.ChargeID != "" {
			p.ChargeIds, byCharge[in.ChargeID] = append(p.ChargeIds, in.ChargeID), i
		}
	}
	rows, err := r.queries.ReconciliationPaymentListOfIntents(ctx, r.pool, p)
	if err != nil {
		return nil, fmt.Errorf("read the listed payments of %d intents: %w", len(intents), err)
	}
	payments := make([][]payment, len(intents))
	for _, row := range rows {
		keyed, isKeyed := byKey[row.IntentKey]
		recorded, isRecorded := byCharge[row.ObjectID]
		if isKeyed {
			payments[keyed] = append(payments[keyed], payment(row))
		}
		if isRecorded && (!isKeyed || recorded != keyed) {
			payments[recorded] = append(payments[recorded], payment(row))
		}
	}
	return payments, nil
}

// comparePayments looks at payments that say they are the run's and that no intent stands behind.
func (r *reconciler) comparePayments(ctx context.Context) error {
	for done := int64(0); ; {
		rows, err := r.queries.ReconciliationPaymentListOwnerless(ctx, r.pool, queries.ReconciliationPaymentListOwnerlessParams{
			ReconciliationID: r.id, After: r.cursor, Installation: r.cfg.Installation, Namespace: r.run.Namespace, BillingPeriod: r.run.BillingPeriod,
			Currency: r.run.Currency, MaxRows: comparePage,
		})
		if err != nil {
			return fmt.Errorf("read payments without an intent of run %d: %w", r.run.ID, err)
		}
		if len(rows) == 0 {
			return nil
		}
		var found []Finding
		for _, row := range rows {
			findings, err := r.judgeOwnerless(ctx, payment(row))
			if err != nil {
				return err
			}
			found = append(found, findings...)
		}
		if err := r.save(ctx, r.stage, rows[len(rows)-1].ObjectID, r.counted, r.add(ctx, found)); err != nil {
			return err
		}
		done += int64(len(rows))
		r.tell(stagePayments, done, 1)
	}
}

// add writes findings.
func (r *reconciler) add(ctx context.Context, findings []Finding) func(pgx.Tx) error {
	return func(tx pgx.Tx) error {
		for _, f := range findings {
			if err := r.queries.ReconciliationFindingAdd(ctx, tx, queries.ReconciliationFindingAddParams{
				ReconciliationID: r.id, Kind: f.Kind, IntentID: f.IntentID, CustomerID: f.CustomerID, StripeCustomer: f.StripeCustomer,
				ObjectIds: f.ObjectIDs, AmountCents: f.AmountCents, Currency: f.Currency, Detail: f.Detail,
			}); err != nil {
				return fmt.Errorf("write what was found: %w", err)
			}
		}
		return nil
	}
}

func (r *reconciler) finish(ctx context.Context) error {
	count, err := r.queries.ReconciliationPaymentCount(ctx, r.pool, queries.ReconciliationPaymentCountParams{
		ReconciliationID: r.id, Installation: r.cfg.Installation, Namespace: r.run.Namespace, BillingPeriod: r.run.BillingPeriod, Currency: r.run.Currency,
	})
	if err != nil {
		return fmt.Errorf("count what reconciliation %d listed: %w", r.id, err)
	}
	r.counted.RunPayments, r.counted.RunCents, r.counted.RefundedCents = count.RunPayments, count.RunCents, count.RefundedCents
	r.counted.OtherRuns, r.counted.OtherInstallations = count.OtherRuns, count.OtherInstallations
	encoded, err := json.Marshal(r.counted)
	if err != nil {
		return fmt.Errorf("encode the figures of reconciliation %d: %w", r.id, err)
	}
	_, err = r.queries.ReconciliationFinish(ctx, r.pool, queries.ReconciliationFinishParams{ID: r.id, ClaimNumber: r.claimNumber, Counted: encoded})
	if errors.Is(err, pgx.ErrNoRows) {
		return errReconcileTaken
	}
	if err != nil {
		return fmt.Errorf("finish reconciliation %d: %w", r.id, err)
	}
	if err := r.queries.ReconciliationPaymentDelete(ctx, r.pool, r.run.ID); err != nil { // the next one does it
		r.log.WarnContext(ctx, "clear what a finished reconciliation listed", slog.Int64("reconciliation_id", r.id), slog.Any("error", err))
	}
	return nil
}
