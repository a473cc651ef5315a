package charger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/riverqueue/river"

	"chargeonce/charger/stripecharge"
	"chargeonce/schema"
	"chargeonce/sql/queries"
)

// Hold points: where a test may stop or kill the process. Production has none.
const (
	HoldAfterClaim  = "after_claim"
	HoldAfterCall   = "after_call"
	HoldAfterFinish = "after_finish"
)

// call takes one step with Stripe: token, claim, call, finish. done says that the job has nothing more to do.
func (w *worker) call(ctx context.Context, job *river.Job[ChargeArgs], intent queries.IntentForWorkRow, act action) (done bool, err error) {
	readAt := time.Now()
	acc, err := w.keys.access(ctx, intent)
	if err != nil {
		return w.withoutKey(ctx, job, intent, nil, err)
	}
	if act == actionCreate && intent.Unresolved > 0 && acc.replaces(intent.LastCreateVaultKeyID) {
		next := createAfterAbsence(intent)
		if next.action == actionWait {
			return true, w.wait(job, intent, next)
		}
		act = next.action
	}
	request, read, err := w.requestFor(ctx, act, intent, acc)
	switch {
	case errors.Is(err, stripecharge.ErrNoPaymentMethod):
		return w.declineWithoutCard(ctx, job, intent, acc, read)
	case errors.Is(err, errNoToken):
		return true, river.JobSnooze(time.Second)
	case errors.Is(err, errCustomerUnread):
		return w.customerUnread(ctx, job, intent, acc, read)
	case isKeyError(err):
		return w.withoutKey(ctx, job, intent, acc, err)
	case errors.Is(err, errUnsendable):
		return true, w.park(ctx, job, intent, step{action: actionPark, reason: schema.ReasonInvalidRequest, detail: err.Error()})
	case err != nil:
		return true, w.later(job, retryPauseLeast, fmt.Errorf("database_away: intent %d: %w", intent.ID, err))
	}
	op := operationOf(act)
	if err := w.rate.take(ctx, budgetOf(op)); errors.Is(err, errNoToken) {
		return true, river.JobSnooze(time.Second)
	} else if err != nil {
		return true, w.later(job, retryPauseLeast, fmt.Errorf("database_away: intent %d: %w", intent.ID, err))
	}
	c, err := w.claim(ctx, job.ID, intent, op, acc, request)
	if errors.Is(err, errRefused) {
		return false, nil // read again what changed
	}
	if err != nil {
		return true, w.later(job, retryPauseLeast, fmt.Errorf("database_away: %w", err))
	}
	w.hold(ctx, HoldAfterClaim, intent.ID)
	answer, found := w.send(ctx, c)
	w.hold(ctx, HoldAfterCall, intent.ID)
	e := endingOf(c, answer, found)
	if skew := clockSkew(answer.Date, intent.DatabaseNow, readAt); skew > maxClockSkew && e.pauseRun == "" {
		e.pauseRun, e.pauseDetail = "clock_skew", fmt.Sprintf("Stripe's clock and the database's are %s apart", skew.Round(time.Second))
	}
	w.watchKey(ctx, c, answer, &e)
	if err := w.finish(ctx, c, answer, e); err != nil {
		return true, w.later(job, retryPauseLeast, fmt.Errorf("finish_failed: the call ended as %s; next: the same key again: %w", e.result, err))
	}
	w.tellDoubt(ctx, c, answer, e)
	if answer.Class == stripecharge.ClassDenied || answer.Class == stripecharge.ClassUnauthorized {
		if err := w.keys.denied(ctx, intent, acc, answer.HTTPStatus); err != nil {
			w.log.WarnContext(ctx, "end a denied vault key", slog.Any("error", err))
		}
	}
	w.hold(ctx, HoldAfterFinish, intent.ID)
	if e.slowDown {
		if err := w.rate.shrink(ctx, budgetOf(op)); err != nil {
			w.log.WarnContext(ctx, "shrink the request budget", slog.Any("error", err))
		}
	}
	return !e.again, nil
}

// send makes the one call that the claim permits. A shutdown does not cut it short: a call that was cut is a doubt.
func (w *worker) send(ctx context.Context, c claimed) (stripecharge.Answer, stripecharge.Found) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), w.sendWithin()+w.cfg.CallTimeout,
		fmt.Errorf("%s of intent %d: no answer within %s", c.op, c.intent.ID, w.sendWithin()+w.cfg.CallTimeout))
	defer cancel()
	began := time.Now()
	defer func() { w.metrics.callSeconds.WithLabelValues(string(c.op)).Observe(time.Since(began).Seconds()) }()
	switch c.op {
	case stripecharge.OpRead:
		return c.access.client.Read(ctx, c.intent.ObjectID), stripecharge.Found{}
	case stripecharge.OpCancel:
		return c.access.client.Cancel(ctx, c.intent.ObjectID), stripecharge.Found{}
	case stripecharge.OpLookUp:
		found, answer := c.access.client.LookUp(ctx, stripecharge.LookUp{
			Customer: c.request.Customer, IntentKey: c.intent.IntentKey,
			CreatedFrom: lookUpFrom(c.intent), FirstSentAt: c.intent.FirstSentAt,
			AmountCents: c.request.AmountCents, Currency: c.request.Currency,
		})
		return answer, found
	case stripecharge.OpCreate, stripecharge.OpAccount, stripecharge.OpCustomer:
	}
	return c.access.client.Create(ctx, c.request, c.sendBefore), stripecharge.Found{}
}

// maxClockSkew is how far Stripe's clock and the database's may be apart: the key's window is counted on the one and kept on
// the other.
const maxClockSkew = 5 * time.Minute

// clockSkew compares Stripe's Date header with the database's clock, which was read a little earlier.
func clockSkew(date, databaseNow, readAt time.Time) time.Duration {
	if date.IsZero() {
		return 0
	}
	// The answer was written at some time since the reading.
	return max(databaseNow.Sub(date), date.Sub(databaseNow.Add(time.Since(readAt))), 0)
}

const (
	// lookUpBefore is how far before the first send a look-up begins: clocks and a restored database may be behind.
	lookUpBefore = 24 * time.Hour
	// lookUpBeforeUnsent is how far before it was known, as far as the database knows, an intent that was never sent may have been
	// charged: events are replayed, and come with a later time then.
	lookUpBeforeUnsent = 400 * 24 * time.Hour
)

func lookUpFrom(intent queries.IntentForWorkRow) time.Time {
	if !intent.Frozen {
		return intent.KnownSince.Add(-lookUpBeforeUnsent)
	}
	return intent.FirstSentAt.Add(-lookUpBefore)
}

func operationOf(act action) stripecharge.Op {
	switch act {
	case actionLookUp:
		return stripecharge.OpLookUp
	case actionRead:
		return stripecharge.OpRead
	case actionCancel:
		return stripecharge.OpCancel
	case actionCreate, actionDone, actionWait, actionRelease, actionPark:
	}
	return stripecharge.OpCreate
}

func budgetOf(op stripecharge.Op) string {
	if op == stripecharge.OpCreate {
		return rateCreate
	}
	return rateRead
}

// declineWithoutCard ends an intent whose customer has nothing to pay with: no create is made, since a payment intent without
// a payment method would only stay open.
func (w *worker) declineWithoutCard(ctx context.Context, job *river.Job[ChargeArgs], intent queries.IntentForWorkRow, acc *access, read stripecharge.Answer) (bool, error) {
	key := schema.IdempotencyKey(intent.CustomerID, intent.BillingPeriod, intent.Namespace, int(intent.KeyGeneration))
	c, err := w.claim(ctx, job.ID, intent, stripecharge.OpRead, acc, stripecharge.Request{IdempotencyKey: key})
	if errors.Is(err, errRefused) {
		return false, nil
	}
	if err != nil {
		return true, w.later(job, retryPauseLeast, fmt.Errorf("database_away: %w", err))
	}
	e := ending{
		result: "failed", resolution: notMoved, status: schema.StatusCardDeclined, reason: schema.ReasonNoPaymentMethod,
		detail: "the customer has no default payment method at Stripe, and the event names none", giveBack: true,
	}
	if err := w.finish(ctx, c, read, e); err != nil {
		return true, w.later(job, retryPauseLeast, fmt.Errorf("finish_failed: %w", err))
	}
	return true, nil
}

// customerUnread: the customer's payment method could not be read, so nothing was sent.
func (w *worker) customerUnread(ctx context.Context, job *river.Job[ChargeArgs], intent queries.IntentForWorkRow, acc *access, read stripecharge.Answer) (bool, error) {
	detail := fmt.Sprintf("read customer %s: %s", intent.StripeCustomerID, explain(read))
	switch read.Class { //nolint:exhaustive // every other class passes by itself
	case stripecharge.ClassInvalidRequest, stripecharge.ClassLocalError:
		return true, w.park(ctx, job, intent, step{action: actionPark, reason: schema.ReasonInvalidRequest, detail: detail})
	case stripecharge.ClassDenied, stripecharge.ClassUnauthorized:
		done, err := w.withoutKey(ctx, job, intent, acc, &keyError{reason: "vault_denied", err: errors.New(detail)})
		return done, errors.Join(err, w.keys.denied(ctx, intent, acc, read.HTTPStatus))
	case stripecharge.ClassRateLimited:
		if err := w.rate.shrink(ctx, rateRead); err != nil {
			w.log.WarnContext(ctx, "shrink the request budget", slog.Any("error", err))
		}
	default:
	}
	return true, w.unsent(ctx, job, readPause, fmt.Errorf("customer_unread: intent %d: %s; next: tried again in %s", intent.ID, detail, readPause))
}

// withoutKey: no vault key of this run can be used. A refusal pauses the run, once; anything else is waited for. The intent
// keeps its reservation and loses no attempt.
func (w *worker) withoutKey(ctx context.Context, job *river.Job[ChargeArgs], intent queries.IntentForWorkRow, acc *access, cause error) (bool, error) {
	if errors.Is(cause, errIssuing) {
		return true, river.JobSnooze(time.Second)
	}
	refused, ok := errors.AsType[*keyError](cause)
	if !ok {
		return true, w.unsent(ctx, job, readPause, fmt.Errorf("vault_unavailable: intent %d: %w; next: tried again in %s", intent.ID, cause, readPause))
	}
	c := claimed{intent: intent, access: acc}
	c.RunResumeCount = intent.RunResumeCount
	if err := w.pauseRun(ctx, c, ending{pauseRun: refused.reason, detail: refused.Error()}); err != nil {
		return true, w.later(job, retryPauseLeast, fmt.Errorf("database_away: %w", err))
	}
	if intent.Unresolved > 0 || intent.ObjectID != "" {
		return true, w.unsent(ctx, job, retryPauseMost, fmt.Errorf("%s: intent %d in doubt: %w; next: tried again in %s", refused.reason, intent.ID, cause, retryPauseMost))
	}
	return true, w.release(ctx, job, intent, step{action: actionRelease, reason: schema.ReasonRunPaused, detail: refused.Error()})
}
