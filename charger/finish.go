package charger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"chargeonce/charger/stripecharge"
	"chargeonce/schema"
	"chargeonce/sql/queries"
)

// ending is what a call means for its attempt and its intent; endingOf makes it, finish writes it.
type ending struct {
	result     string // of the attempt
	resolution string // what this call surely did to the money: moved, not_moved; empty while unknown
	others     string // the same for all earlier sends of this generation; empty leaves them as they are

	status schema.Status
	reason schema.StatusReason
	detail string

	chargeID, paymentIntentID, objectID string
	declineCode, adviceCode             string
	serverError, objectCanceled         bool

	giveBack    bool   // the reservation goes back to the run: no money can follow
	dropJob     bool   // the dispatcher shall decide anew
	pauseRun    string // pauses the run, for this reason
	pauseDetail string // why, if it is not the intent's detail
	slowDown    bool   // Stripe said 429

	again bool // go on with the next step at once
}

const (
	moved    = "moved"
	notMoved = "not_moved"
)

// finish writes a call's end: the attempt's result in any case, the intent's move if the claim still holds. A success whose
// claim was lost is recorded all the same. It keeps trying until the database answers or the time for it is over; if that
// fails the attempt stands without a result, and whoever comes next treats it as in doubt.
func (w *worker) finish(ctx context.Context, c claimed, answer stripecharge.Answer, e ending) error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), w.finishWithin(),
		fmt.Errorf("finish attempt %d of intent %d: the database did not answer within %s", c.AttemptID, c.intent.ID, w.finishWithin()))
	defer cancel()
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := w.finishOnce(ctx, c, answer, e)
		if err == nil {
			w.metrics.attempts.WithLabelValues(string(c.op), e.result).Inc()
			return nil
		}
		if _, refused := errors.AsType[*refusedFinish](err); refused {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-timer.C:
		}
	}
}

func (w *worker) finishOnce(ctx context.Context, c claimed, answer stripecharge.Answer, e ending) error {
	row, err := w.queries.IntentFinish(ctx, w.pool, finishParams(c, answer, e))
	if name := violated(err); name != "" {
		return w.finishRefused(ctx, c, answer, e, name, err)
	}
	if err != nil {
		return fmt.Errorf("finish intent %d: %w", c.intent.ID, err)
	}
	if !row.Held {
		w.log.WarnContext(ctx, "claim was lost before its finish", slog.Int64("intent_id", c.intent.ID), slog.Int64("attempt_id", c.AttemptID), slog.String("result", e.result))
		w.metrics.lostClaims.Inc()
		if e.status == schema.StatusCharged {
			err := w.finishLate(ctx, c, e)
			if name := violated(err); name != "" {
				return w.finishRefused(ctx, c, answer, e, name, err)
			}
			return err
		}
	}
	if e.pauseRun != "" {
		return w.pauseRun(ctx, c, e)
	}
	return nil
}

func finishParams(c claimed, answer stripecharge.Answer, e ending) queries.IntentFinishParams {
	p := queries.IntentFinishParams{
		AttemptID: c.AttemptID, IntentID: c.intent.ID, IntentKey: c.intent.IntentKey, ClaimNumber: c.ClaimNumber, Result: &e.result, RequestID: answer.RequestID, Replayed: answer.Replayed,
		ErrorType: answer.ErrorType, ErrorCode: answer.ErrorCode, DeclineCode: e.declineCode, AdviceCode: e.adviceCode,
		ObjectID: e.objectID, Detail: e.detail, Resolution: e.resolution, OthersResolution: e.others,
		SawServerError: e.serverError, ObjectCanceled: e.objectCanceled, Status: string(e.status), StatusReason: string(e.reason),
		ChargeID: e.chargeID, PaymentIntentID: e.paymentIntentID, GiveBack: e.giveBack, DropJob: e.dropJob,
	}
	if answer.HTTPStatus != 0 {
		p.HttpStatus = new(int32(answer.HTTPStatus)) //nolint:gosec // an HTTP status has three digits
	}
	return p
}

// finishLate records a validated success whose claim is no longer the intent's: money moved, whoever sent it.
func (w *worker) finishLate(ctx context.Context, c claimed, e ending) error {
	return w.inTx(ctx, func(tx pgx.Tx) error {
		now, err := w.queries.IntentLockForLateSuccess(ctx, tx, queries.IntentLockForLateSuccessParams{ID: c.intent.ID, IntentKey: c.intent.IntentKey})
		if err != nil {
			return fmt.Errorf("lock intent %d for a late success: %w", c.intent.ID, err)
		}
		if schema.Status(now.Status) == schema.StatusCharged {
			if deref(now.ChargeID) == e.chargeID {
				return nil
			}
			w.metrics.alarms.WithLabelValues("second_charge").Inc()
			w.log.ErrorContext(ctx, "a second charge exists for an intent", slog.Int64("intent_id", c.intent.ID), slog.String("charge_id", deref(now.ChargeID)), slog.String("second_charge_id", e.chargeID))
			return w.pauseRunTx(ctx, tx, now.RunID, "late_success", fmt.Sprintf("intent %d is charged twice: %s and %s", c.intent.ID, deref(now.ChargeID), e.chargeID))
		}
		if _, err := w.queries.IntentResolveAttempts(ctx, tx, queries.IntentResolveAttemptsParams{
			IntentID: c.intent.ID, KeyGeneration: c.intent.KeyGeneration, Resolution: new(moved),
		}); err != nil {
			return fmt.Errorf("resolve the attempts of intent %d: %w", c.intent.ID, err)
		}
		detail := "a late success of claim " + fmt.Sprint(c.ClaimNumber)
		if _, err := w.queries.IntentFinishLate(ctx, tx, queries.IntentFinishLateParams{
			ID: c.intent.ID, ChargeID: &e.chargeID, PaymentIntentID: e.paymentIntentID, StatusDetail: &detail,
		}); err != nil {
			return fmt.Errorf("record the late success of intent %d: %w", c.intent.ID, err)
		}
		if now.ReservedCents == nil && now.RunID != nil {
			if _, err := w.queries.RunAddLate(ctx, tx, queries.RunAddLateParams{ID: *now.RunID, AmountCents: now.AmountCents}); err != nil {
				return fmt.Errorf("add the late success of intent %d to its run: %w", c.intent.ID, err)
			}
		}
		switch {
		case schema.Status(now.Status) == schema.StatusVoided:
			return w.alarmLate(ctx, tx, c, now.RunID, e, "voided_but_charged")
		case now.KeyGeneration != c.intent.KeyGeneration: // its terms may be others by now, and its next key may be on its way
			return w.alarmLate(ctx, tx, c, now.RunID, e, "earlier_generation_charged")
		}
		return nil
	})
}

// alarmLate pauses the run over a late success that contradicts what a person or a newer key has decided meanwhile.
func (w *worker) alarmLate(ctx context.Context, tx pgx.Tx, c claimed, runID *int64, e ending, kind string) error {
	w.metrics.alarms.WithLabelValues(kind).Inc()
	w.log.ErrorContext(ctx, "a late success contradicts the intent", slog.String("kind", kind), slog.Int64("intent_id", c.intent.ID), slog.String("charge_id", e.chargeID))
	return w.pauseRunTx(ctx, tx, runID, "late_success", fmt.Sprintf("%s: intent %d, charge %s", kind, c.intent.ID, e.chargeID))
}

// refusedFinish is a finish that a constraint refused: trying again cannot help.
type refusedFinish struct{ err error }

func (r *refusedFinish) Error() string { return r.err.Error() }
func (r *refusedFinish) Unwrap() error { return r.err }

// finishRefused keeps the attempt's result although the intent could not move as it should have; a charge that another
// intent already holds parks this one.
func (w *worker) finishRefused(ctx context.Context, c claimed, answer stripecharge.Answer, e ending, constraint string, cause error) error {
	w.metrics.alarms.WithLabelValues("finish_refused").Inc()
	w.log.ErrorContext(ctx, "the database refused a finish", slog.Int64("intent_id", c.intent.ID), slog.Int64("attempt_id", c.AttemptID), slog.String("constraint", constraint), slog.String("result", e.result))
	err := w.queries.AttemptFinishUnfenced(ctx, w.pool, queries.AttemptFinishUnfencedParams{
		AttemptID: c.AttemptID, Result: &e.result, RequestID: answer.RequestID, Replayed: answer.Replayed, ObjectID: e.objectID,
		Detail: "refused by " + constraint,
	})
	if err != nil {
		return fmt.Errorf("keep the result of attempt %d: %w", c.AttemptID, err)
	}
	if constraint != "intents_charge_id_once" {
		return &refusedFinish{fmt.Errorf("finish_refused: intent %d: constraint %s; next: look-up: %w", c.intent.ID, constraint, cause)}
	}
	parked := ending{
		result: e.result, resolution: e.resolution, others: e.others, status: schema.StatusParked, reason: schema.ReasonChargeIDTaken,
		detail: "charge " + e.chargeID + " is recorded for another intent", objectID: e.objectID,
		pauseRun: "mismatch",
	}
	if _, err := w.queries.IntentFinish(ctx, w.pool, finishParams(c, answer, parked)); err != nil {
		return fmt.Errorf("park intent %d: %w", c.intent.ID, err)
	}
	return w.pauseRun(ctx, c, parked)
}

// violated returns the name of the constraint that refused a statement, or "".
func violated(err error) string {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || (pgErr.Code != "23505" && pgErr.Code != "23514") {
		return ""
	}
	return pgErr.ConstraintName
}

// deniedKey is the vault key that a denial is about: if another one was issued meanwhile, the denial says nothing about that.
func (c claimed) deniedKey(e ending) *int64 {
	if e.pauseRun != "vault_denied" || c.access == nil {
		return nil
	}
	return c.access.vaultKeyID
}

// pauseRun pauses the run once, and only if it is still as the claim saw it: a denial that arrives after a person resumed the
// run, or after its vault key was replaced, says nothing about the run as it is now.
func (w *worker) pauseRun(ctx context.Context, c claimed, e ending) error {
	if c.intent.RunID == nil {
		return nil
	}
	deniedKey := c.deniedKey(e)
	if deniedKey != nil {
		if over, err := w.keys.atItsEnd(ctx, *c.intent.RunID, *deniedKey); over || err != nil {
			return err
		}
	}
	rows, err := w.queries.RunPause(ctx, w.pool, queries.RunPauseParams{
		ID: *c.intent.RunID, StatusReason: e.pauseRun, StatusDetail: cmp.Or(e.pauseDetail, e.detail), ResumeCount: &c.RunResumeCount, VaultKeyID: deniedKey,
	})
	if err != nil {
		return fmt.Errorf("pause run %d: %w", *c.intent.RunID, err)
	}
	if rows > 0 {
		w.metrics.runsPaused.WithLabelValues(e.pauseRun).Inc()
		w.log.ErrorContext(ctx, "run paused", slog.Int64("run_id", *c.intent.RunID), slog.String("reason", e.pauseRun), slog.String("detail", cmp.Or(e.pauseDetail, e.detail)), slog.Int64("intent_id", c.intent.ID))
	}
	return nil
}

func (w *worker) pauseRunTx(ctx context.Context, tx pgx.Tx, runID *int64, reason, detail string) error {
	if runID == nil {
		return nil
	}
	if _, err := w.queries.RunPause(ctx, tx, queries.RunPauseParams{ID: *runID, StatusReason: reason, StatusDetail: detail}); err != nil {
		return fmt.Errorf("pause run %d: %w", *runID, err)
	}
	return nil
}
