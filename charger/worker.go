package charger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"chargeonce/sql/queries"
)

// maxStepsPerJob bounds what one run of a job does with its intent: decline, read, cancel and finish are four.
const maxStepsPerJob = 8

// triesShown is how many tries of an intent that cannot be sent yet are shown in River UI as errors.
const triesShown = 10

// ChargeArgs are a job's arguments: the intent, and what an operator must see to find it. They hold no amount and no
// secret: every operator sees them.
type ChargeArgs struct {
	IntentID       int64  `json:"intent_id"`
	Namespace      string `json:"namespace"`
	BillingPeriod  string `json:"billing_period"`
	CustomerID     string `json:"customer_id"`
	IdempotencyKey string `json:"idempotency_key"`
}

// Kind is the job's name on the wire; jobs in the database carry it.
func (ChargeArgs) Kind() string { return "charge_intent" }

// worker works intents off. It keeps nothing about them: every step begins with reading the row.
type worker struct {
	river.WorkerDefaults[ChargeArgs]
	*Charger
	retryAt sync.Map // job id -> time.Time, from Work to NextRetry
}

// Work takes an intent step by step until it is finished or must wait. It returns nil when nothing is left to do for this
// job, a snooze while another claim is alive, and otherwise an error that says what happened and what comes next and when.
func (w *worker) Work(ctx context.Context, job *river.Job[ChargeArgs]) error {
	for range maxStepsPerJob {
		intent, err := w.queries.IntentForWork(ctx, w.pool, queries.IntentForWorkParams{ID: job.Args.IntentID, WindowSeconds: Window.Seconds()})
		if errors.Is(err, pgx.ErrNoRows) {
			return river.JobCancel(fmt.Errorf("no_such_intent: intent %d is not in the database; next: nothing", job.Args.IntentID))
		}
		if err != nil {
			return w.later(job, retryPauseLeast, fmt.Errorf("database_away: read intent %d: %w", job.Args.IntentID, err))
		}
		next := nextStep(intent, job.ID, w.way.reaches(), w.cfg.LookUpFirst)
		switch next.action {
		case actionDone:
			return nil
		case actionWait:
			return w.wait(job, intent, next)
		case actionRelease:
			return w.release(ctx, job, intent, next)
		case actionPark:
			return w.park(ctx, job, intent, next)
		case actionCreate, actionLookUp, actionRead, actionCancel:
			if done, err := w.call(ctx, job, intent, next.action); done || err != nil {
				return err
			}
		}
	}
	return w.later(job, retryPauseLeast, fmt.Errorf("many_steps: intent %d took %d steps; next: goes on", job.Args.IntentID, maxStepsPerJob))
}

// wait gives the job back until the step's time. While nothing is wrong (a claim is alive) the job is snoozed; a doubt is an
// error, so that an operator sees it and its next step in River UI.
func (w *worker) wait(job *river.Job[ChargeArgs], intent queries.IntentForWorkRow, next step) error {
	if intent.Unresolved == 0 || intent.LeaseAlive || intent.OtherLeaseAlive {
		return river.JobSnooze(max(next.wait, leaseGrace))
	}
	return w.later(job, next.wait, fmt.Errorf("in_doubt: %s; key %s; next in %s: %s",
		deref(intent.StatusDetail), intent.FrozenKey, next.wait.Round(time.Second), next.detail))
}

// release gives a pending intent back to the dispatcher without a job. It keeps its reservation and, if it was ever sent,
// its key and bytes.
func (w *worker) release(ctx context.Context, job *river.Job[ChargeArgs], intent queries.IntentForWorkRow, next step) error {
	rows, err := w.queries.IntentRelease(ctx, w.pool, queries.IntentReleaseParams{
		StatusReason: string(next.reason), ID: intent.ID, ClaimNumber: intent.ClaimNumber, RiverJobID: &job.ID,
	})
	if err != nil {
		return w.later(job, retryPauseLeast, fmt.Errorf("database_away: release intent %d: %w", intent.ID, err))
	}
	if rows == 0 {
		return river.JobSnooze(leaseGrace) // somebody moved it meanwhile: look again
	}
	return nil
}

func (w *worker) park(ctx context.Context, job *river.Job[ChargeArgs], intent queries.IntentForWorkRow, next step) error {
	rows, err := w.queries.IntentPark(ctx, w.pool, queries.IntentParkParams{
		StatusReason: string(next.reason), StatusDetail: &next.detail, ID: intent.ID, ClaimNumber: intent.ClaimNumber,
	})
	if err != nil {
		return w.later(job, retryPauseLeast, fmt.Errorf("database_away: park intent %d: %w", intent.ID, err))
	}
	if rows == 0 {
		return river.JobSnooze(leaseGrace)
	}
	w.log.WarnContext(ctx, "intent parked", slog.Int64("intent_id", intent.ID), slog.String("reason", string(next.reason)), slog.String("detail", next.detail))
	w.metrics.parked.WithLabelValues(string(next.reason)).Inc()
	return nil
}

// later makes River run the job again after the pause.
func (w *worker) later(job *river.Job[ChargeArgs], pause time.Duration, err error) error {
	w.retryAt.Store(job.ID, time.Now().Add(max(pause, 0)))
	return err
}

// unsent waits for something outside the intent (its vault key, its customer's page) that must answer before anything can be
// sent. The first tries are errors, for an operator to see; after those the job is snoozed, which River does not count: an
// outage of days must not use up the job's attempts.
func (w *worker) unsent(ctx context.Context, job *river.Job[ChargeArgs], pause time.Duration, err error) error {
	if job.Attempt <= triesShown {
		return w.later(job, pause, err)
	}
	w.log.WarnContext(ctx, "intent cannot be sent yet", slog.Int64("intent_id", job.Args.IntentID), slog.Any("error", err))
	return river.JobSnooze(pause)
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// NextRetry is River's question when Work returned an error.
func (w *worker) NextRetry(job *river.Job[ChargeArgs]) time.Time {
	if at, ok := w.retryAt.LoadAndDelete(job.ID); ok {
		if t, ok := at.(time.Time); ok {
			// River takes a time that has passed for none, and waits attempt^4 seconds.
			return latest(t, time.Now().Add(100*time.Millisecond))
		}
	}
	return time.Now().Add(retryPauseMost)
}

// Timeout ends a job's context; nothing that touches money listens to it (a call and its finish have deadlines of their own).
func (w *worker) Timeout(*river.Job[ChargeArgs]) time.Duration { return w.jobTimeout() }

// insertOpts are the same for every charge job.
func insertOpts() *river.InsertOpts {
	return &river.InsertOpts{Queue: Queue, MaxAttempts: maxJobAttempts}
}
