package charger

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"chargeonce/sql/queries"
)

// Keep resolves a conflict: the intent's terms stay, the other event was wrong. With its last open conflict resolved the intent no
// longer waits.
func (o Operator) Keep(ctx context.Context, conflictID int64) error {
	if err := o.checkReason(); err != nil {
		return err
	}
	conflict, err := o.conflict(ctx, o.Pool, conflictID)
	if err != nil {
		return err
	}
	return o.change(ctx, conflict.IntentID, "", func(ctx context.Context, tx pgx.Tx, in locked) error {
		q := queries.New()
		rows, err := q.ConflictResolve(ctx, tx, queries.ConflictResolveParams{ID: conflictID, Resolution: new("kept_first"), ResolvedBy: &o.Actor})
		if err != nil {
			return fmt.Errorf("resolve conflict %d: %w", conflictID, err)
		}
		if rows == 0 {
			return o.resolvedAlready(ctx, tx, conflictID)
		}
		if _, err := q.IntentWakeFromConflict(ctx, tx, in.ID); err != nil {
			return fmt.Errorf("let intent %d go on: %w", in.ID, err)
		}
		return o.record(ctx, tx, "conflict_keep", &in.ID, in.RunID, map[string]any{"conflict_id": conflictID, "kept": in.stood(), "dropped": termsOf(conflict)})
	})
}

// Take resolves a conflict the other way: its terms become the intent's, under the rule of Retry. The terms that they replace are
// kept as a resolved conflict, so that their event opens nothing when it comes again; any other open conflict stays open.
func (o Operator) Take(ctx context.Context, conflictID int64) (Renewed, error) {
	if err := o.checkReason(); err != nil {
		return Renewed{}, err
	}
	conflict, err := o.conflict(ctx, o.Pool, conflictID)
	if err != nil {
		return Renewed{}, err
	}
	return o.renew(ctx, conflict.IntentID, conflict.Currency, "conflict_take", func(in locked) (terms, any, error) {
		to := terms{
			amountCents: conflict.AmountCents, currency: conflict.Currency, stripeCustomer: conflict.StripeCustomerID,
			paymentMethod: deref(conflict.PaymentMethod), description: deref(conflict.Description),
		}
		switch {
		case to.sameObligation(in.terms()):
			return to, nil, &RefusedError{Problem: fmt.Sprintf("the terms of conflict %d are those of intent %d already", conflictID, in.ID), Cure: "keep them: `charger conflicts keep`"}
		case to.amountCents == 0:
			return to, nil, &RefusedError{Problem: fmt.Sprintf("the other amount of conflict %d is 0, and an amount of 0 is no charge", conflictID), Cure: fmt.Sprintf("void the intent instead: `charger intents void %d`", in.ID)}
		}
		return to, map[string]any{"conflict_id": conflictID, "resolution_before": conflict.Resolution}, nil
	})
}

func (o Operator) conflict(ctx context.Context, db queries.DBTX, id int64) (queries.ConflictGetRow, error) {
	conflict, err := queries.New().ConflictGet(ctx, db, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return conflict, &RefusedError{Problem: fmt.Sprintf("there is no conflict %d", id), Cure: "see `charger conflicts list`"}
	}
	if err != nil {
		return conflict, fmt.Errorf("read conflict %d: %w", id, err)
	}
	return conflict, nil
}

func (o Operator) resolvedAlready(ctx context.Context, tx pgx.Tx, id int64) error {
	conflict, err := o.conflict(ctx, tx, id)
	if err != nil {
		return err
	}
	return &RefusedError{
		Problem: fmt.Sprintf("conflict %d is resolved already (%s by %s)", id, deref(conflict.Resolution), deref(conflict.ResolvedBy)),
		Cure:    "to decide otherwise, take its terms: `charger conflicts take`",
	}
}

func termsOf(c queries.ConflictGetRow) map[string]any {
	return map[string]any{
		"amount_cents": c.AmountCents, "currency": c.Currency, "stripe_customer_id": c.StripeCustomerID,
		"payment_method": c.PaymentMethod, "description": c.Description,
	}
}

// ResolveQuarantined closes a quarantined event: what became of it is the operator's reason. The event itself stays.
func (o Operator) ResolveQuarantined(ctx context.Context, id int64) error {
	if err := o.checkReason(); err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, o.Pool, func(tx pgx.Tx) error {
		q := queries.New()
		rows, err := q.QuarantineResolve(ctx, tx, queries.QuarantineResolveParams{ID: id, Resolution: &o.Reason, ResolvedBy: &o.Actor})
		if err != nil {
			return fmt.Errorf("resolve quarantined event %d: %w", id, err)
		}
		found, err := q.QuarantineList(ctx, tx, queries.QuarantineListParams{ID: id, ResolvedToo: true, MaxRows: 1})
		if err != nil {
			return fmt.Errorf("read quarantined event %d: %w", id, err)
		}
		switch {
		case len(found) == 0:
			return noQuarantined(id)
		case rows == 0:
			return &RefusedError{
				Problem: fmt.Sprintf("quarantined event %d is resolved already (by %s: %s)", id, deref(found[0].ResolvedBy), deref(found[0].Resolution)),
				Cure:    "nothing is left to do",
			}
		}
		return o.record(ctx, tx, "quarantine_resolve", nil, nil, map[string]any{
			"quarantined_event_id": id, "namespace": found[0].Namespace, "reason_code": found[0].ReasonCode,
		})
	})
}

// QuarantinedRaw reads the bytes of a quarantined event. They are a customer's data: the pool acts as chargeonce_quarantine, the one
// role that may read them, and each look is recorded with its reason.
func (o Operator) QuarantinedRaw(ctx context.Context, pool *pgxpool.Pool, id int64) ([]byte, error) {
	if err := o.checkReason(); err != nil {
		return nil, err
	}
	var raw []byte
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		var err error
		if raw, err = queries.New().QuarantineRaw(ctx, tx, id); errors.Is(err, pgx.ErrNoRows) {
			return noQuarantined(id)
		} else if err != nil {
			return fmt.Errorf("read the bytes of quarantined event %d: %w", id, err)
		}
		return o.record(ctx, tx, "quarantine_read", nil, nil, map[string]any{"quarantined_event_id": id})
	})
	return raw, err
}

func noQuarantined(id int64) *RefusedError {
	return &RefusedError{Problem: fmt.Sprintf("there is no quarantined event %d", id), Cure: "see `charger quarantine list`"}
}
