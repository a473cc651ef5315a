package charger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"chargeonce/sql/queries"
)

// ReconcileQueue is the River queue of the scheduled comparisons: a full run does not keep them waiting.
const ReconcileQueue = "reconcile"

const (
	// reconcileSlice is how long one job compares: it goes on as the next, so that a stopped process is never waited for long and
	// no job looks stuck.
	reconcileSlice = 10 * time.Minute
	// reconcileLookEvery is how often it is looked which runs are due, at most: the schedule itself is in the database, since
	// River's begins anew with every process.
	reconcileLookEvery = 15 * time.Minute
)

// ReconcileArgs are the arguments of a scheduled comparison: there are none, the database says which runs are due.
type ReconcileArgs struct{}

// Kind is the job's name on the wire.
func (ReconcileArgs) Kind() string { return "reconcile_runs" }

func (c *Charger) reconcileSchedule() []*river.PeriodicJob {
	return []*river.PeriodicJob{river.NewPeriodicJob(river.PeriodicInterval(c.reconcileLookEvery()),
		func() (river.JobArgs, *river.InsertOpts) {
			return ReconcileArgs{}, &river.InsertOpts{Queue: ReconcileQueue, MaxAttempts: maxJobAttempts, UniqueOpts: river.UniqueOpts{
				ByQueue: true,
				ByState: []rivertype.JobState{
					rivertype.JobStateAvailable, rivertype.JobStatePending, rivertype.JobStateRunning, rivertype.JobStateRetryable, rivertype.JobStateScheduled,
				},
			}}
		}, &river.PeriodicJobOpts{ID: "reconcile", RunOnStart: true})}
}

func (c *Charger) reconcileLookEvery() time.Duration {
	return max(time.Second, min(c.cfg.ReconcileEvery, reconcileLookEvery))
}

// reconcileWorker compares the runs that are due.
type reconcileWorker struct {
	river.WorkerDefaults[ReconcileArgs]
	*Charger
}

// Work compares one due run after the other. One that cannot be compared does not keep the others from it.
func (w *reconcileWorker) Work(ctx context.Context, _ *river.Job[ReconcileArgs]) error {
	ctx, cancel := context.WithTimeout(ctx, reconcileSlice)
	defer cancel()
	go func() {
		select {
		case <-ctx.Done():
		case <-w.stopping:
			cancel()
		}
	}()
	due, err := w.queries.ReconcileRunListDue(ctx, w.pool, w.cfg.ReconcileEvery.Seconds())
	switch {
	case ctx.Err() != nil:
		return river.JobSnooze(0) // a stop is no failure: the next process looks at once
	case err != nil:
		return fmt.Errorf("database_away: look which runs are to be reconciled: %w; next: tried again in %s", err, w.reconcileLookEvery())
	}
	var failed error
	for _, run := range due {
		key := queries.RunGetParams{Namespace: run.Namespace, BillingPeriod: run.BillingPeriod, Currency: run.Currency}
		done, err := w.Reconcile(ctx, key, ReconcileOptions{Actor: "schedule"})
		_, refused := errors.AsType[*RefusedError](err)
		switch {
		case ctx.Err() != nil:
			return river.JobSnooze(0) // what was read is kept
		case refused: // somebody else is at it
		case err != nil:
			failed = errors.Join(failed, err)
		default:
			w.tellReconciled(ctx, run.ID, done)
		}
	}
	if len(due) > 0 {
		failed = errors.Join(failed, w.observeReconciled(ctx)) // not only at the next look
	}
	if ctx.Err() != nil {
		return river.JobSnooze(0)
	}
	if failed != nil {
		return fmt.Errorf("not_reconciled: %w; next: tried again in %s", failed, w.reconcileLookEvery())
	}
	return nil
}

// Timeout is for River: the slice, and the time to let go.
func (w *reconcileWorker) Timeout(*river.Job[ReconcileArgs]) time.Duration {
	return reconcileSlice + w.lease()
}

// NextRetry is River's question when Work returned an error.
func (w *reconcileWorker) NextRetry(*river.Job[ReconcileArgs]) time.Time {
	return time.Now().Add(w.reconcileLookEvery())
}

// tellReconciled writes the line that an alert waits for.
func (c *Charger) tellReconciled(ctx context.Context, runID int64, done Reconciliation) {
	attrs := []slog.Attr{
		slog.Int64("run_id", runID), slog.Int64("reconciliation_id", done.ID), slog.String("namespace", done.Namespace),
		slog.String("billing_period", done.BillingPeriod), slog.String("currency", done.Currency), slog.Int64("intents", done.Counted.Intents),
		slog.Int64("payments", done.Counted.RunPayments),
	}
	if done.Clean {
		c.log.LogAttrs(ctx, slog.LevelInfo, "run reconciled: Stripe's books and the intents agree", attrs...)
		return
	}
	c.log.LogAttrs(ctx, slog.LevelError, "run reconciled: Stripe's books and the intents differ; `charger reconcile --last` shows where",
		append(attrs, slog.Any("findings", done.Findings))...)
}

// observeReconciled sets the gauges of what the last comparisons found, whoever made them.
func (c *Charger) observeReconciled(ctx context.Context) error {
	counts, err := c.queries.ReconcileFindingCounts(ctx, c.pool)
	if err != nil {
		return fmt.Errorf("count what was found by reconciling: %w", err)
	}
	found := map[string]int64{}
	for _, row := range counts {
		found[row.Kind] = row.Findings
	}
	for _, kind := range FindingKinds() {
		c.metrics.reconcileFindings.WithLabelValues(kind).Set(float64(found[kind]))
	}
	runs, err := c.queries.ReconcileRunListDue(ctx, c.pool, 0)
	if err != nil {
		return fmt.Errorf("look when runs were reconciled: %w", err)
	}
	oldest := 0.0
	if len(runs) > 0 {
		oldest = runs[0].AgeSeconds
	}
	c.metrics.reconcileOldest.Set(oldest)
	return nil
}
