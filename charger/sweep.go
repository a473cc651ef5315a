package charger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"

	"chargeonce/schema"
	"chargeonce/sql/queries"
)

const (
	// maxRedispatches is how often an intent gets another job without any call having ended in between.
	maxRedispatches = 3
	// maxUnclaimed is the same for an intent whose process died before its claim: a charger's crash takes all its workers'
	// intents along, so that one intent's bad company must not park it soon.
	maxUnclaimed = 20
)

// sweepRun gives another job to whatever is in flight without one: deleted or discarded in River UI, or left by a process
// that died. It asks neither cap nor run: what may have been sent must be brought to its end. A job that a person cancelled
// means no: the intent is parked.
func (c *Charger) sweepRun(ctx context.Context, runID int64) error {
	jobless, err := c.queries.IntentListJobless(ctx, c.pool, queries.IntentListJoblessParams{
		RunID: &runID, DeadAfterSeconds: c.deadAfter().Seconds(), MaxRows: dispatchBatch,
	})
	if err != nil {
		return fmt.Errorf("look for intents without a job in run %d: %w", runID, err)
	}
	if len(jobless) == 0 {
		return nil
	}
	run, err := c.queries.RunGetByID(ctx, c.pool, runID)
	if err != nil {
		return fmt.Errorf("read run %d: %w", runID, err)
	}
	for _, in := range jobless {
		if err := c.takeUp(ctx, run, in); err != nil {
			return err
		}
	}
	return nil
}

func (c *Charger) takeUp(ctx context.Context, run queries.BillingRun, in queries.IntentListJoblessRow) error {
	switch {
	case in.JobState == "cancelled":
		return c.parkJobless(ctx, in, schema.ReasonCancelledByOperator, "its job was cancelled by a person")
	case in.Redispatches >= limitOf(in):
		return c.parkJobless(ctx, in, schema.ReasonRedispatchLimit, fmt.Sprintf("it lost its job %d times without a call that ended", in.Redispatches))
	}
	err := c.inTx(ctx, func(tx pgx.Tx) error {
		job, err := c.river.InsertTx(ctx, tx, ChargeArgs{
			IntentID: in.ID, Namespace: run.Namespace, BillingPeriod: run.BillingPeriod, CustomerID: in.CustomerID, IdempotencyKey: in.IdempotencyKey,
		}, insertOpts())
		if err != nil {
			return fmt.Errorf("insert another job for intent %d: %w", in.ID, err)
		}
		rows, err := c.queries.IntentRedispatch(ctx, tx, queries.IntentRedispatchParams{
			ID: in.ID, NewJobID: &job.Job.ID, OldJobID: in.RiverJobID, Counted: counted(in),
		})
		if err != nil {
			return fmt.Errorf("give intent %d another job: %w", in.ID, err)
		}
		if rows == 0 {
			return errTakenMeanwhile
		}
		c.metrics.redispatched.WithLabelValues(in.JobState).Inc()
		c.log.InfoContext(ctx, "intent got another job", slog.Int64("intent_id", in.ID), slog.Int64("job_id", job.Job.ID), slog.String("old_job_state", in.JobState))
		return nil
	})
	if errors.Is(err, errTakenMeanwhile) {
		return nil
	}
	return err
}

// limitOf is how many lost jobs park the intent.
func limitOf(in queries.IntentListJoblessRow) int32 {
	if in.JobState == "running" && schema.Status(in.Status) == schema.StatusPending {
		return maxUnclaimed
	}
	return maxRedispatches
}

// counted tells whether losing this job counts towards the limit. A job that was given up while its intent only waited for its
// first claim says nothing about the intent: the vault, the customer's page or the database was away for long. One whose
// process died counts: an intent that kills every process that takes it up must come to rest.
func counted(in queries.IntentListJoblessRow) int32 {
	if in.JobState == "deleted" || in.JobState == "running" || schema.Status(in.Status) == schema.StatusCharging {
		return 1
	}
	return 0
}

// errTakenMeanwhile rolls the new job back: another charger was faster, or the intent was claimed.
var errTakenMeanwhile = errors.New("taken meanwhile")

func (c *Charger) parkJobless(ctx context.Context, in queries.IntentListJoblessRow, reason schema.StatusReason, detail string) error {
	rows, err := c.queries.IntentParkJobless(ctx, c.pool, queries.IntentParkJoblessParams{
		ID: in.ID, StatusReason: string(reason), StatusDetail: &detail, OldJobID: in.RiverJobID,
	})
	if err != nil {
		return fmt.Errorf("park intent %d: %w", in.ID, err)
	}
	if rows > 0 {
		c.metrics.parked.WithLabelValues(string(reason)).Inc()
		c.log.WarnContext(ctx, "intent parked", slog.Int64("intent_id", in.ID), slog.String("reason", string(reason)), slog.String("detail", detail))
	}
	return nil
}
