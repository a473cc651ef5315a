package charger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"chargeonce/schema"
	"chargeonce/sql/queries"
)

// Operator is a person who looks at intents, conflicts and quarantined events and decides about them. What may be decided is
// looked at again under the locks, in the transaction that changes it and records who did it and why.
type Operator struct {
	Pool   *pgxpool.Pool
	Actor  string // who does it
	Reason string // why; needed for every change
}

// change locks the intent, with the runs that a change of it may touch, and hands over what is known about it. currency is that of
// the intent's new terms, if it gets any.
//
// Runs are locked before the intent, as the dispatcher does it. A finish holds the intent and wants its run, so the intent is not
// waited for: while somebody holds it, all is let go and tried again.
func (o Operator) change(ctx context.Context, id int64, currency string, do func(ctx context.Context, tx pgx.Tx, in locked) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, lockWithin, fmt.Errorf("intent %d is worked on without a pause of %s", id, lockWithin))
	defer cancel()
	for pause := 2 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		err := pgx.BeginFunc(ctx, o.Pool, func(tx pgx.Tx) error {
			in, err := o.lock(ctx, tx, id, currency)
			if err != nil {
				return err
			}
			return do(ctx, tx, in)
		})
		if !isBusy(err) {
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

// lockWithin bounds how long an intent that others work on is tried to be locked.
const lockWithin = 20 * time.Second

// locked is an intent under its lock, what is known about it, and the runs locked with it.
type locked struct {
	queries.IntentEvidenceRow
	runs []queries.RunLockForIntentRow
}

func (o Operator) lock(ctx context.Context, tx pgx.Tx, id int64, currency string) (locked, error) {
	q := queries.New()
	runs, err := q.RunLockForIntent(ctx, tx, queries.RunLockForIntentParams{IntentID: id, Currency: currency})
	if err != nil {
		return locked{}, fmt.Errorf("lock the runs of intent %d: %w", id, err)
	}
	if _, err := q.IntentLockNow(ctx, tx, id); errors.Is(err, pgx.ErrNoRows) {
		return locked{}, noIntent(id)
	} else if err != nil {
		return locked{}, fmt.Errorf("lock intent %d: %w", id, err)
	}
	evidence, err := q.IntentEvidence(ctx, tx, id)
	if err != nil {
		return locked{}, fmt.Errorf("read intent %d: %w", id, err)
	}
	in := locked{IntentEvidenceRow: evidence, runs: runs}
	if in.RunID != nil && in.runByID(*in.RunID) == nil {
		return locked{}, errMoved // it was dispatched between the two locks
	}
	if currency == "" && in.runOf(in.Currency) == nil {
		// No run of its currency, or its currency was corrected between the two locks.
		_, err := q.RunGet(ctx, tx, queries.RunGetParams{Namespace: in.Namespace, BillingPeriod: in.BillingPeriod, Currency: in.Currency})
		if err == nil {
			return locked{}, errMoved
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return locked{}, fmt.Errorf("read the run of intent %d: %w", id, err)
		}
	}
	return in, nil
}

// errMoved says that the intent changed between two looks at it: look again.
var errMoved = errors.New("moved meanwhile")

// isBusy tells whether trying again can help: somebody else holds the row, or the two met in opposite orders.
func isBusy(err error) bool {
	if errors.Is(err, errMoved) {
		return true
	}
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pgErr.Code == pgerrcode.LockNotAvailable || pgErr.Code == pgerrcode.DeadlockDetected || pgErr.Code == pgerrcode.SerializationFailure)
}

func noIntent(id int64) *RefusedError {
	return &RefusedError{Problem: fmt.Sprintf("there is no intent %d", id), Cure: "see `charger intents list`"}
}

func (in locked) runByID(id int64) *queries.RunLockForIntentRow {
	for i := range in.runs {
		if in.runs[i].ID == id {
			return &in.runs[i]
		}
	}
	return nil
}

// runOf is the run of the intent's namespace and period in this currency, nil if there is none.
func (in locked) runOf(currency string) *queries.RunLockForIntentRow {
	for i := range in.runs {
		if in.runs[i].Currency == currency {
			return &in.runs[i]
		}
	}
	return nil
}

// openRun is the run that terms in this currency need.
func (in locked) openRun(currency string) (int64, error) {
	which := fmt.Sprintf("--namespace %s --period %s --currency %s", in.Namespace, in.BillingPeriod, currency)
	run := in.runOf(currency)
	switch {
	case run == nil:
		return 0, &RefusedError{
			Problem: fmt.Sprintf("intent %d needs an open run, and there is none of %s %s %s", in.ID, in.Namespace, in.BillingPeriod, currency),
			Cure:    "open it: `charger run open " + which + "`",
		}
	case run.Status == "paused":
		return 0, &RefusedError{
			Problem: fmt.Sprintf("intent %d needs an open run, and run %d is paused (%s)", in.ID, run.ID, run.StatusReason),
			Cure:    "mend what paused it, then `charger run resume " + which + "`; an intent that must not be charged meanwhile can be parked before that",
		}
	case run.Status != "open":
		return 0, &RefusedError{
			Problem: fmt.Sprintf("intent %d needs an open run, and run %d is %s", in.ID, run.ID, run.Status),
			Cure:    "reopen the run with a reason first",
		}
	}
	return run.ID, nil
}

// stands says where the intent stands, for a refusal.
func (in locked) stands() string {
	return fmt.Sprintf("intent %d is %s (%s)", in.ID, in.Status, in.StatusReason)
}

// moveRefusal is why no person may move the intent at all: it is charged, a call is on its way, or what was sent may have been
// carried out. nil means that everything that was ever sent for it has surely moved nothing, and that nothing can be paid any more.
func (in locked) moveRefusal() error {
	switch {
	case schema.Status(in.Status) == schema.StatusCharged:
		return in.chargedRefusal()
	case in.LeaseAlive:
		return in.leaseRefusal()
	case in.Unresolved > 0 || schema.Status(in.Status) == schema.StatusCharging:
		return &RefusedError{
			Problem: fmt.Sprintf("%s, and Stripe may have carried out %s", in.stands(), calls(in.Unresolved)),
			Cure:    in.doubtCure(),
		}
	case in.OpenObject != "":
		return &RefusedError{
			Problem: fmt.Sprintf("%s, and %s can still be paid at Stripe", in.stands(), in.OpenObject),
			Cure:    in.objectCure(),
		}
	}
	return nil
}

func (in locked) chargedRefusal() error {
	return &RefusedError{
		Problem: fmt.Sprintf("intent %d is charged (%s), and that is final", in.ID, deref(in.ChargeID)),
		Cure:    "money is given back by a refund at Stripe",
	}
}

func (in locked) leaseRefusal() error {
	return &RefusedError{Problem: in.stands() + ", and the lease of a call to Stripe is running", Cure: "try again when it has ended, in a minute at most"}
}

func (in locked) doubtCure() string {
	if schema.Status(in.Status) == schema.StatusCharging {
		return fmt.Sprintf("it is looked up by itself; with evidence a person ends it: `charger intents resolve %d --charged ch_...` or `--not-charged`", in.ID)
	}
	return fmt.Sprintf("resolve it: `charger intents resolve %d --charged ch_...` or `--not-charged`", in.ID)
}

func (in locked) objectCure() string {
	if schema.Status(in.Status) == schema.StatusParked {
		return fmt.Sprintf("`charger intents unpark %d` reads it and cancels it if it is open; if it was paid, `charger intents resolve %d --charged %s`", in.ID, in.ID, in.OpenObject)
	}
	return fmt.Sprintf("it is read and cancelled by itself; if it was paid, `charger intents resolve %d --charged %s`", in.ID, in.OpenObject)
}

func calls(n int64) string {
	if n == 1 {
		return "a call whose end is unknown"
	}
	return fmt.Sprintf("%d calls whose end is unknown", n)
}

// giveBack returns the intent's reservation to its run; the move of the intent in the same transaction ends it there.
func (in locked) giveBack(ctx context.Context, tx pgx.Tx) error {
	if in.ReservedCents == nil || in.RunID == nil {
		return nil
	}
	rows, err := queries.New().RunGiveBack(ctx, tx, queries.RunGiveBackParams{ID: *in.RunID, AmountCents: *in.ReservedCents})
	if err != nil || rows != 1 {
		return fmt.Errorf("give %d back to run %d: %d rows: %w", *in.ReservedCents, *in.RunID, rows, err)
	}
	return nil
}

// one checks that a statement changed the one row that is locked.
func one(what string, rows int64, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if rows != 1 {
		return fmt.Errorf("internal error: %s: %d rows", what, rows)
	}
	return nil
}

// stood is how an intent stood before an action; it goes into the action's detail.
type stood struct {
	Status         string  `json:"status"`
	StatusReason   string  `json:"status_reason"`
	KeyGeneration  int32   `json:"key_generation"`
	AmountCents    int64   `json:"amount_cents"`
	Currency       string  `json:"currency"`
	StripeCustomer string  `json:"stripe_customer_id"`
	PaymentMethod  *string `json:"payment_method,omitempty"`
	Description    *string `json:"description,omitempty"`
	ReservedCents  *int64  `json:"reserved_cents,omitempty"`
}

func (in locked) stood() stood {
	return stood{
		Status: in.Status, StatusReason: in.StatusReason, KeyGeneration: in.KeyGeneration, AmountCents: in.AmountCents, Currency: in.Currency,
		StripeCustomer: in.StripeCustomerID, PaymentMethod: in.PaymentMethod, Description: in.Description, ReservedCents: in.ReservedCents,
	}
}

// checkReason refuses a change without a reason before anything is locked.
func (o Operator) checkReason() error {
	if strings.TrimSpace(o.Reason) == "" {
		return &RefusedError{Problem: "a change needs a reason", Cure: "say why with --reason; it is recorded with the action"}
	}
	return nil
}

// record writes the action into the transaction that does it.
func (o Operator) record(ctx context.Context, tx queries.DBTX, action string, intentID, runID *int64, detail any) error {
	encoded, err := json.Marshal(detail)
	if err != nil {
		return fmt.Errorf("encode the detail of %s: %w", action, err)
	}
	if err := queries.New().OperatorActionAdd(ctx, tx, queries.OperatorActionAddParams{
		Actor: o.Actor, Action: action, Reason: o.Reason, IntentID: intentID, RunID: runID, Detail: encoded,
	}); err != nil {
		return fmt.Errorf("record %s: %w", action, err)
	}
	return nil
}

// said is the operator's word beside an intent's status.
func (o Operator) said(what string) *string {
	return new(what + " by " + o.Actor + ": " + o.Reason)
}
