package charger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"chargeonce/charger/stripecharge"
	"chargeonce/sql/queries"
)

// readAgain reads the payments by their ids and then the intent, once no call for it can be on its way any more, and judges anew.
func (r *reconciler) readAgain(ctx context.Context, intentID int64, ids []string) ([]Finding, error) {
	began := time.Now()
	for time.Since(began) < readAgainWithin {
		in, err := r.queries.ReconcileIntentGet(ctx, r.pool, intentID)
		if err != nil {
			return nil, fmt.Errorf("read intent %d again: %w", intentID, err)
		}
		if in.LeaseSecondsLeft > 0 {
			r.tell(stageWaiting, 1, 0)
			if err := pause(ctx, min(seconds(in.LeaseSecondsLeft)+10*time.Millisecond, time.Second)); err != nil {
				return nil, err
			}
			continue
		}
		if in.ChargeID != "" && !slices.Contains(ids, in.ChargeID) {
			ids = append(ids, in.ChargeID)
		}
		payments, err := r.readAll(ctx, ids)
		if err != nil {
			return nil, err
		}
		now, err := r.queries.ReconcileIntentGet(ctx, r.pool, intentID)
		if err != nil {
			return nil, fmt.Errorf("read intent %d again: %w", intentID, err)
		}
		if now.LeaseSecondsLeft > 0 || now.ClaimNumber != in.ClaimNumber || now.ChargeID != in.ChargeID {
			continue // somebody was at it meanwhile
		}
		return judge(booked{
			ID: now.ID, Namespace: now.Namespace, BillingPeriod: now.BillingPeriod, CustomerID: now.CustomerID, IdempotencyKey: now.IdempotencyKey,
			StripeCustomerID: now.StripeCustomerID, AmountCents: now.AmountCents, Currency: now.Currency, Status: now.Status,
			StatusReason: now.StatusReason, ChargeID: now.ChargeID, ChargedByThen: now.ChargeID != "",
		}, payments, r.cfg.Installation), nil
	}
	r.log.WarnContext(ctx, "reconcile: an intent is worked on without a pause; next: it is compared the next time", slog.Int64("intent_id", intentID))
	return nil, nil
}

// readAgainWithin is how long the end of an intent's calls is waited for.
const readAgainWithin = 15 * time.Minute

// readAll reads payments by their ids. What is not there, or moved nothing, is left out.
func (r *reconciler) readAll(ctx context.Context, ids []string) ([]payment, error) {
	var payments []payment
	for _, id := range ids {
		p, counts, err := r.read(ctx, id)
		if err != nil {
			return nil, err
		}
		if counts && !slices.ContainsFunc(payments, func(other payment) bool { return other.ObjectID == p.ObjectID }) {
			payments = append(payments, p)
		}
	}
	return payments, nil
}

func (r *reconciler) read(ctx context.Context, id string) (p payment, counts bool, err error) {
	var entry stripecharge.LedgerEntry
	known := true
	answer, err := r.ask(ctx, func(ctx context.Context, client *stripecharge.Client) (answer stripecharge.Answer) {
		entry, known, answer = client.LedgerEntry(ctx, id)
		return answer
	})
	switch {
	case err != nil:
		return p, false, fmt.Errorf("read %s again: %w", id, err)
	case !known:
		return p, false, nil
	case answer.Class != stripecharge.ClassAnswered:
		return p, false, fmt.Errorf("read %s again: %s", id, explain(answer))
	}
	p, counts = paymentOf(entry)
	return p, counts, nil
}

// judgeOwnerless reads a payment without an intent again: it may have been given back, or its intent recorded meanwhile.
func (r *reconciler) judgeOwnerless(ctx context.Context, listed payment) ([]Finding, error) {
	p, counts, err := r.read(ctx, listed.ObjectID)
	if err != nil || !counts {
		return nil, err
	}
	owner, err := r.queries.ReconcileOwnerOf(ctx, r.pool, queries.ReconcileOwnerOfParams{
		ChargeID: p.ObjectID, Namespace: p.Namespace, BillingPeriod: p.BillingPeriod, IntentKey: p.IntentKey,
	})
	if err != nil {
		return nil, fmt.Errorf("look for the intent of %s: %w", p.ObjectID, err)
	}
	if owner != 0 {
		return r.readAgain(ctx, owner, []string{p.ObjectID})
	}
	f := Finding{
		Kind: FindingNoIntent, CustomerID: p.CustomerID, StripeCustomer: p.Customer, ObjectIDs: []string{p.ObjectID}, AmountCents: p.AmountCents,
		Currency: p.Currency, Detail: fmt.Sprintf("no intent of %s %s has the key %s: %s", p.Namespace, p.BillingPeriod, p.IntentKey, p),
	}
	if p.givenBack() {
		f.Kind, f.AmountCents, f.Detail = FindingRefunded, p.RefundedCents, "given back, and no intent has its key: "+p.String()
	}
	return []Finding{f}, nil
}

// page reads the next page of a list.
func (r *reconciler) page(ctx context.Context, kind string) (page stripecharge.LedgerPage, err error) {
	q := stripecharge.LedgerQuery{Kind: kind, CreatedFrom: r.listedFrom, After: r.cursor, Limit: stripecharge.LedgerPageMost}
	answer, err := r.ask(ctx, func(ctx context.Context, client *stripecharge.Client) (answer stripecharge.Answer) {
		page, answer = client.LedgerPage(ctx, q)
		if answer.Class == stripecharge.ClassUnparsable {
			q.Limit = max(1, q.Limit/2) // objects with much metadata: the page is larger than an answer may be
		}
		return answer
	})
	if err == nil && answer.Class != stripecharge.ClassAnswered {
		err = errors.New(explain(answer))
	}
	if err != nil {
		return page, fmt.Errorf("list Stripe's %ss: %w", kind, err)
	}
	return page, nil
}

// checkMode sees that the run's key reads the mode that the run is charged in: in the other one nothing would be found, and
// everybody accused. Stripe shows the mode by a customer only. The account is compared when the key is opened.
func (r *reconciler) checkMode(ctx context.Context) error {
	if r.customer == "" {
		return nil // nothing was sent: nobody can be accused
	}
	var info stripecharge.CustomerInfo
	answer, err := r.ask(ctx, func(ctx context.Context, client *stripecharge.Client) (answer stripecharge.Answer) {
		info, answer = client.Customer(ctx, r.customer)
		return answer
	})
	switch {
	case err != nil:
		return fmt.Errorf("read customer %s: %w", r.customer, err)
	case answer.Class != stripecharge.ClassAnswered:
		return fmt.Errorf("customer %s of the run is not to be read with the run's key, which is of another account or mode (%s)", r.customer, explain(answer))
	}
	acc, err := r.keys.access(ctx, r.forKeys())
	if err != nil {
		return err
	}
	return r.keys.sees(ctx, r.forKeys(), acc, info)
}

// forKeys names the run to keys.
func (r *reconciler) forKeys() queries.IntentForWorkRow {
	return queries.IntentForWorkRow{RunID: &r.run.ID, RunResumeCount: r.run.ResumeCount}
}

// ask calls Stripe with the run's key until it answers, or refuses the question itself. Whatever passes by itself is waited for,
// and a key that came to its end is replaced, once.
func (r *reconciler) ask(ctx context.Context, call func(context.Context, *stripecharge.Client) stripecharge.Answer) (stripecharge.Answer, error) {
	denied := false
	for try, wait := 1, failFor; ; try, wait = try+1, 2*wait {
		answer, err := r.askOnce(ctx, call)
		switch {
		case err == nil && (answer.Class == stripecharge.ClassAnswered || answer.Class == stripecharge.ClassInvalidRequest || answer.Class == stripecharge.ClassLocalError):
			return answer, nil
		case ctx.Err() != nil:
			return answer, context.Cause(ctx)
		case err == nil:
			err = errors.New(explain(answer))
		}
		refused := answer.Class == stripecharge.ClassDenied || answer.Class == stripecharge.ClassUnauthorized || isKeyError(err)
		if try == askTries || (refused && denied) {
			return answer, err
		}
		denied = denied || refused
		r.log.WarnContext(ctx, "reconcile: Stripe did not answer; next: asked again", slog.Duration("wait", wait), slog.Any("error", err))
		if err := pause(ctx, wait); err != nil {
			return answer, err
		}
	}
}

// askTries is how often one question is asked.
const askTries = 5

func (r *reconciler) askOnce(ctx context.Context, call func(context.Context, *stripecharge.Client) stripecharge.Answer) (stripecharge.Answer, error) {
	acc, err := r.keys.access(ctx, r.forKeys())
	if err != nil {
		return stripecharge.Answer{}, err
	}
	if err := r.rate.take(ctx, rateRead); err != nil {
		return stripecharge.Answer{}, err
	}
	answer := call(ctx, acc.client)
	switch answer.Class { //nolint:exhaustive // only what something must be done about
	case stripecharge.ClassRateLimited:
		if err := r.rate.shrink(ctx, rateRead); err != nil {
			return answer, fmt.Errorf("shrink the request budget: %w", err)
		}
	case stripecharge.ClassDenied, stripecharge.ClassUnauthorized:
		if err := r.keys.denied(ctx, r.forKeys(), acc, answer.HTTPStatus); err != nil {
			return answer, err
		}
		return answer, fmt.Errorf("the run's key is refused (%s): allow it to read, or give another one", explain(answer))
	}
	return answer, nil
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
