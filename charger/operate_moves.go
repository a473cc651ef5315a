package charger

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"chargeonce/schema"
	"chargeonce/sql/queries"
)

// Void takes an obligation back: nothing will be charged for the intent. It is refused while anything that was sent may have been
// carried out or can still be paid. The reservation goes back to the run; a job that still lives ends without doing anything, and
// another intent of the same Stripe customer may be dispatched.
func (o Operator) Void(ctx context.Context, id int64) error {
	if err := o.checkReason(); err != nil {
		return err
	}
	return o.change(ctx, id, "", func(ctx context.Context, tx pgx.Tx, in locked) error {
		if err := in.voidRefusal(); err != nil {
			return err
		}
		q := queries.New()
		if _, err := q.IntentWakeSameCustomer(ctx, tx, in.ID); err != nil {
			return fmt.Errorf("wake intents of the same Stripe customer: %w", err)
		}
		if err := in.giveBack(ctx, tx); err != nil {
			return err
		}
		rows, err := q.IntentVoid(ctx, tx, queries.IntentVoidParams{ID: in.ID, SeenClaimNumber: in.ClaimNumber, StatusDetail: o.said("voided")})
		if err := one(fmt.Sprintf("void intent %d", in.ID), rows, err); err != nil {
			return err
		}
		return o.record(ctx, tx, "intent_void", &in.ID, in.RunID, map[string]any{"before": in.stood()})
	})
}

func (in locked) voidRefusal() error {
	if err := in.moveRefusal(); err != nil {
		return err
	}
	switch schema.Status(in.Status) {
	case schema.StatusPending, schema.StatusCardDeclined, schema.StatusParked:
		return nil
	case schema.StatusVoided:
		return &RefusedError{Problem: in.stands() + " already", Cure: "nothing is left to do"}
	case schema.StatusNothingDue, schema.StatusCharging, schema.StatusCharged:
	}
	return &RefusedError{Problem: in.stands() + ", and only pending, declined and parked intents are voided", Cure: "nothing is charged for it as it stands"}
}

// Park takes an intent out of charging until a person decides. It is refused while a call is on its way. The reservation stays: in
// doubt the money may have moved.
func (o Operator) Park(ctx context.Context, id int64) error {
	if err := o.checkReason(); err != nil {
		return err
	}
	return o.change(ctx, id, "", func(ctx context.Context, tx pgx.Tx, in locked) error {
		if err := in.parkRefusal(); err != nil {
			return err
		}
		rows, err := queries.New().IntentParkByOperator(ctx, tx, queries.IntentParkByOperatorParams{
			ID: in.ID, SeenClaimNumber: in.ClaimNumber, StatusDetail: o.said("parked"),
		})
		if err := one(fmt.Sprintf("park intent %d", in.ID), rows, err); err != nil {
			return err
		}
		return o.record(ctx, tx, "intent_park", &in.ID, in.RunID, map[string]any{"before": in.stood(), "unresolved": in.Unresolved})
	})
}

func (in locked) parkRefusal() error {
	switch status := schema.Status(in.Status); {
	case status == schema.StatusCharged:
		return in.chargedRefusal()
	case in.LeaseAlive:
		return in.leaseRefusal()
	case status == schema.StatusParked:
		return &RefusedError{Problem: in.stands() + " already", Cure: fmt.Sprintf("`charger intents show %d` says what can be done", in.ID)}
	case status != schema.StatusPending && status != schema.StatusCharging:
		return &RefusedError{Problem: in.stands() + ", and only pending and charging intents are parked", Cure: "nothing is charged for it as it stands"}
	}
	return nil
}

// Unpark gives a parked intent back to charging as it was: the same key, the same terms, the reservation kept. What is in doubt goes
// on being looked up, unless it was parked because a look-up found something a person must decide. inDoubt tells which it was.
func (o Operator) Unpark(ctx context.Context, id int64) (inDoubt bool, err error) {
	if err := o.checkReason(); err != nil {
		return false, err
	}
	err = o.change(ctx, id, "", func(ctx context.Context, tx pgx.Tx, in locked) error {
		if err := in.unparkRefusal(); err != nil {
			return err
		}
		inDoubt = in.Unresolved > 0
		rows, err := queries.New().IntentUnpark(ctx, tx, queries.IntentUnparkParams{
			ID: in.ID, SeenClaimNumber: in.ClaimNumber, InDoubt: inDoubt, StatusDetail: o.said("unparked"),
		})
		if err := one(fmt.Sprintf("unpark intent %d", in.ID), rows, err); err != nil {
			return err
		}
		return o.record(ctx, tx, "intent_unpark", &in.ID, in.RunID, map[string]any{
			"before": in.stood(), "was_sent": in.Frozen, "unresolved": in.Unresolved, "object_id": in.ObjectID,
		})
	})
	return inDoubt, err
}

func (in locked) unparkRefusal() error {
	status, reason := schema.Status(in.Status), schema.StatusReason(in.StatusReason)
	switch {
	case status == schema.StatusCharged:
		return in.chargedRefusal()
	case status != schema.StatusParked:
		return &RefusedError{Problem: in.stands() + ", not parked", Cure: fmt.Sprintf("`charger intents show %d` says what can be done", in.ID)}
	case in.LeaseAlive:
		return in.leaseRefusal()
	case in.Unresolved == 0, reason == schema.ReasonCancelledByOperator, reason == schema.ReasonRedispatchLimit:
		return nil
	}
	return &RefusedError{
		Problem: fmt.Sprintf("%s, which a look-up does not mend, and Stripe may have carried out %s", in.stands(), calls(in.Unresolved)),
		Cure:    in.doubtCure(),
	}
}
