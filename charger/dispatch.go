package charger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"chargeonce/schema"
	"chargeonce/sql/queries"
)

const (
	// Queue is the River queue of all charge jobs.
	Queue = "charge"
	// maxJobAttempts is River's bound; an intent that is waited for that often is dispatched anew by the sweep.
	maxJobAttempts = 250
	// dispatchBatch bounds one transaction of the dispatcher.
	dispatchBatch = 500
	// cappedEvery is how often intents that did not fit under the cap are looked at again: declines give room back, and a person
	// may have raised it. As long as some fit, they are looked at in every round.
	cappedEvery = 10 * time.Second
	// sweepEvery is how often what lost its job is looked for.
	sweepEvery = 2 * time.Second
)

// dispatchLoop runs in every charger, side by side: the run's row lock lets one at a time dispatch a run.
func (c *Charger) dispatchLoop(ctx context.Context) error {
	ticker := time.NewTicker(c.cfg.DispatchEvery)
	defer ticker.Stop()
	var cappedAt, sweptAt time.Time
	for {
		now := time.Now()
		capped, sweep := c.cappedDue.Swap(false) || now.Sub(cappedAt) >= cappedEvery, now.Sub(sweptAt) >= sweepEvery
		if capped {
			cappedAt = now
		}
		if sweep {
			sweptAt = now
		}
		if err := c.dispatchAll(ctx, capped, sweep); err != nil && ctx.Err() == nil {
			c.log.WarnContext(ctx, "dispatch failed; next: tried again", slog.Any("error", err))
			c.metrics.dispatchErrors.Inc()
		} else if err == nil {
			c.dispatched.Store(now.UnixNano())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// dispatchAll gives each open run's waiting intents jobs, as far as cap and window allow.
func (c *Charger) dispatchAll(ctx context.Context, capped, sweep bool) error {
	runs, err := c.queries.RunListIDs(ctx, c.pool)
	if err != nil {
		return fmt.Errorf("list runs: %w", err)
	}
	var failed error
	for _, run := range runs {
		if run.Status == "open" {
			failed = errors.Join(failed, c.dispatchRun(ctx, run.ID, capped))
		}
		if sweep {
			failed = errors.Join(failed, c.sweepRun(ctx, run.ID))
		}
	}
	return failed
}

// dispatchRun fills the run's window of live jobs, a batch a transaction.
func (c *Charger) dispatchRun(ctx context.Context, runID int64, capped bool) error {
	reasons := []schema.StatusReason{schema.ReasonRunPaused, schema.ReasonStopped, schema.ReasonQueued, schema.ReasonNoRun}
	if capped {
		reasons = append(reasons, schema.ReasonRunCapped)
	}
	for _, reason := range reasons {
		for {
			more, err := c.dispatchBatch(ctx, runID, reason)
			if err != nil {
				return fmt.Errorf("dispatch run %d: %w", runID, err)
			}
			if !more || ctx.Err() != nil {
				break
			}
		}
	}
	return nil
}

// dispatchBatch takes one batch of waiting intents: each gets its sum reserved and a job, or its reason to wait, in one
// transaction under the run's row lock. more tells whether another batch may follow at once.
func (c *Charger) dispatchBatch(ctx context.Context, runID int64, reason schema.StatusReason) (more bool, err error) {
	err = c.inTx(ctx, func(tx pgx.Tx) error {
		run, err := c.queries.RunLock(ctx, tx, runID)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil // another charger is at it
		}
		if err != nil {
			return fmt.Errorf("lock the run: %w", err)
		}
		if run.Status != "open" || run.Stopped {
			return nil
		}
		inFlight, err := c.queries.IntentCountInFlight(ctx, tx, &runID)
		if err != nil {
			return fmt.Errorf("count intents in flight: %w", err)
		}
		room := min(int64(c.cfg.Window)-inFlight, dispatchBatch)
		if room <= 0 {
			if reason == schema.ReasonRunCapped {
				c.cappedDue.Store(true)
			}
			return nil
		}
		waiting, err := c.queries.IntentListWaiting(ctx, tx, queries.IntentListWaitingParams{
			Namespace: run.Namespace, BillingPeriod: run.BillingPeriod, Currency: run.Currency,
			StatusReason: string(reason), MaxCents: mostCents(run, reason), MaxRows: int32(room),
		})
		if err != nil {
			return fmt.Errorf("list waiting intents: %w", err)
		}
		plan := planDispatch(run, waiting, map[string]bool{})
		more = int64(len(waiting)) == room && len(plan.dispatch) > 0 && reason != schema.ReasonRunCapped
		if reason == schema.ReasonRunCapped && len(plan.dispatch) > 0 {
			c.cappedDue.Store(true)
		}
		return c.applyDispatch(ctx, tx, run, plan)
	})
	if violated(err) == "intents_one_per_stripe_customer" {
		// Another run's dispatcher took the same Stripe customer at this moment: the next round sees it.
		return false, nil
	}
	return more, err
}

// inTx runs a transaction that Postgres ends by itself should this process stand still in the middle of it, as one on a frozen
// machine does: its row locks would stop the run for every other charger.
func (c *Charger) inTx(ctx context.Context, do func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL idle_in_transaction_session_timeout = '10s'`); err != nil {
			return fmt.Errorf("bound the transaction's idle time: %w", err)
		}
		return do(tx)
	})
}

// mostCents keeps intents that cannot fit from hiding those that can, when capped ones are looked at again.
func mostCents(run queries.RunLockRow, reason schema.StatusReason) int64 {
	if reason == schema.ReasonRunCapped {
		return run.CapCents - run.AllocatedCents
	}
	return schema.MaxAmountCents
}

// dispatchPlan says what becomes of a batch of waiting intents.
type dispatchPlan struct {
	dispatch     []queries.IntentListWaitingRow
	reserveCents int64 // to be added to the run's allocation
	conflict     []int64
	sameCustomer []int64
	capped       []int64
}

// planDispatch decides, intent by intent in their order: an intent with an open conflict, or whose Stripe customer is
// taken, waits for a person; one that does not fit under the cap waits for room. taken are the Stripe customers of intents
// decided on before and not written yet; those of this batch are added.
func planDispatch(run queries.RunLockRow, waiting []queries.IntentListWaitingRow, taken map[string]bool) dispatchPlan {
	var plan dispatchPlan
	left := run.CapCents - run.AllocatedCents
	for _, in := range waiting {
		guard := !run.ManyPerStripeCustomer
		switch {
		case in.OpenConflict && !in.WasSent:
			plan.conflict = append(plan.conflict, in.ID)
		case guard && !in.GuardsCustomer && (in.CustomerTaken || taken[in.StripeCustomerID]):
			plan.sameCustomer = append(plan.sameCustomer, in.ID)
		case in.ReservedCents == nil && in.AmountCents > left:
			plan.capped = append(plan.capped, in.ID)
		default:
			if in.ReservedCents == nil {
				left -= in.AmountCents
				plan.reserveCents += in.AmountCents
			}
			taken[in.StripeCustomerID] = true
			plan.dispatch = append(plan.dispatch, in)
		}
	}
	return plan
}

func (c *Charger) applyDispatch(ctx context.Context, tx pgx.Tx, run queries.RunLockRow, plan dispatchPlan) error {
	for reason, ids := range map[schema.StatusReason][]int64{
		schema.ReasonConflict: plan.conflict, schema.ReasonSameCustomer: plan.sameCustomer, schema.ReasonRunCapped: plan.capped,
	} {
		if len(ids) == 0 {
			continue
		}
		if _, err := c.queries.IntentSetWaiting(ctx, tx, queries.IntentSetWaitingParams{Ids: ids, StatusReason: string(reason)}); err != nil {
			return fmt.Errorf("set %d intents waiting for %s: %w", len(ids), reason, err)
		}
	}
	if len(plan.dispatch) == 0 {
		return nil
	}
	if plan.reserveCents > 0 {
		rows, err := c.queries.RunAllocate(ctx, tx, queries.RunAllocateParams{ID: run.ID, AmountCents: plan.reserveCents})
		if err != nil {
			return fmt.Errorf("reserve %d under the cap: %w", plan.reserveCents, err)
		}
		if rows != 1 {
			return fmt.Errorf("reserve %d under the cap: the run has %d of %d allocated", plan.reserveCents, run.AllocatedCents, run.CapCents)
		}
	}
	jobIDs, err := c.insertJobs(ctx, tx, run, plan.dispatch)
	if err != nil {
		return err
	}
	ids, amounts := make([]int64, len(plan.dispatch)), make([]int64, len(plan.dispatch))
	for i, in := range plan.dispatch {
		ids[i], amounts[i] = in.ID, in.AmountCents
	}
	rows, err := c.queries.IntentDispatchMany(ctx, tx, queries.IntentDispatchManyParams{
		RunID: &run.ID, GuardsCustomer: !run.ManyPerStripeCustomer, Ids: ids, JobIds: jobIDs, AmountsCents: amounts, Currency: run.Currency,
	})
	if err != nil {
		return fmt.Errorf("give %d intents their jobs: %w", len(ids), err)
	}
	if rows != int64(len(ids)) {
		return fmt.Errorf("give %d intents their jobs: only %d still wait; next: tried again", len(ids), rows)
	}
	c.metrics.dispatched.Add(float64(len(ids)))
	return nil
}

func (c *Charger) insertJobs(ctx context.Context, tx pgx.Tx, run queries.RunLockRow, intents []queries.IntentListWaitingRow) ([]int64, error) {
	params := make([]river.InsertManyParams, len(intents))
	for i, in := range intents {
		params[i] = river.InsertManyParams{Args: ChargeArgs{
			IntentID: in.ID, Namespace: run.Namespace, BillingPeriod: run.BillingPeriod, CustomerID: in.CustomerID, IdempotencyKey: in.IdempotencyKey,
		}, InsertOpts: insertOpts()}
	}
	results, err := c.river.InsertManyTx(ctx, tx, params)
	if err != nil {
		return nil, fmt.Errorf("insert %d jobs: %w", len(params), err)
	}
	jobIDs := make([]int64, len(results))
	for i, r := range results {
		var args ChargeArgs
		if err := json.Unmarshal(r.Job.EncodedArgs, &args); err != nil || args.IntentID != intents[i].ID {
			return nil, fmt.Errorf("internal error: job %d is not that of intent %d", r.Job.ID, intents[i].ID)
		}
		jobIDs[i] = r.Job.ID
	}
	return jobIDs, nil
}
