package charger

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"chargeonce/schema"
	"chargeonce/sql/queries"
)

// Retry gives an intent back to the dispatcher with the next key generation: Stripe has definitively refused the one before,
// nothing of it is in doubt and nothing of it can still be paid. The customer's payment method is read anew. A key under which
// nothing was ever sent is not used up, and stays.
func (o Operator) Retry(ctx context.Context, id int64) (Renewed, error) {
	return o.renew(ctx, id, "", "intent_retry", func(in locked) (terms, any, error) {
		switch {
		case schema.Status(in.Status) == schema.StatusPending:
			return terms{}, nil, &RefusedError{Problem: in.stands() + " and waits to be charged already", Cure: in.pendingCure()}
		case schema.Status(in.Status) == schema.StatusNothingDue:
			return terms{}, nil, &RefusedError{Problem: in.stands() + ", and an amount of 0 is no charge", Cure: fmt.Sprintf("give it an amount: `charger intents correct %d --amount ...`", in.ID)}
		case in.OpenConflicts > 0:
			return terms{}, nil, &RefusedError{
				Problem: fmt.Sprintf("%s, and its open conflicts (%d) are not decided", in.stands(), in.OpenConflicts),
				Cure:    "decide them first: `charger conflicts list`, then keep or take",
			}
		}
		return in.terms(), nil, nil
	})
}

// Correct gives an intent other terms, under the same rule as Retry. One that was never sent keeps its key.
func (o Operator) Correct(ctx context.Context, id int64, to NewTerms) (Renewed, error) {
	currency, err := to.check()
	if err != nil {
		return Renewed{}, err
	}
	return o.renew(ctx, id, currency, "intent_correct", func(in locked) (terms, any, error) {
		t, err := to.apply(in.terms())
		if err == nil && t == in.terms() {
			err = &RefusedError{Problem: fmt.Sprintf("intent %d has these terms already", in.ID), Cure: fmt.Sprintf("to charge it again with them: `charger intents retry %d`", in.ID)}
		}
		return t, to, err
	})
}

// NewTerms are what a person gives an intent instead; nil leaves a field as it is.
type NewTerms struct {
	Amount         *string `json:"amount,omitempty"` // in units of the currency: 12.50
	Currency       *string `json:"currency,omitempty"`
	StripeCustomer *string `json:"stripe_customer,omitempty"`
	PaymentMethod  *string `json:"payment_method,omitempty"` // DefaultPaymentMethod for the customer's own
	Description    *string `json:"description,omitempty"`
}

// DefaultPaymentMethod stands for whatever the customer's default at Stripe is when the intent is sent.
const DefaultPaymentMethod = "default"

// Renewed is how an intent stands after Retry, Correct or Take.
type Renewed struct {
	IntentID       int64  `json:"intent_id"`
	Status         string `json:"status"`
	KeyGeneration  int32  `json:"key_generation"`
	IdempotencyKey string `json:"idempotency_key"`
	AmountCents    int64  `json:"amount_cents"`
	Currency       string `json:"currency"`
	StripeCustomer string `json:"stripe_customer_id"`
	OpenConflicts  int64  `json:"open_conflicts"` // it waits until they are decided
}

// terms are what an intent is charged by. Comparable: an absent text is empty.
type terms struct {
	amountCents                int64
	currency, stripeCustomer   string
	paymentMethod, description string
}

func (in locked) terms() terms {
	return terms{
		amountCents: in.AmountCents, currency: in.Currency, stripeCustomer: in.StripeCustomerID,
		paymentMethod: deref(in.PaymentMethod), description: deref(in.Description),
	}
}

// sameObligation compares what a conflict is told by.
func (t terms) sameObligation(o terms) bool {
	return t.amountCents == o.amountCents && t.currency == o.currency && t.stripeCustomer == o.stripeCustomer
}

// renew moves an intent to pending with the terms that decide returns, if the rules allow it; decide refuses what is its own
// business. detail of decide goes into the recorded action.
func (o Operator) renew(ctx context.Context, id int64, currency, action string, decide func(locked) (terms, any, error)) (Renewed, error) {
	if err := o.checkReason(); err != nil {
		return Renewed{}, err
	}
	var renewed Renewed
	err := o.change(ctx, id, currency, func(ctx context.Context, tx pgx.Tx, in locked) error {
		if err := in.renewRefusal(); err != nil {
			return err
		}
		to, asked, err := decide(in)
		if err != nil {
			return err
		}
		runID, err := in.openRun(to.currency)
		if err != nil {
			return err
		}
		if err := o.replaceTerms(ctx, tx, in, to); err != nil {
			return err
		}
		generation := in.KeyGeneration
		if in.Frozen {
			generation++
		}
		if err := o.giveToDispatcher(ctx, tx, in, to, generation, runID); err != nil {
			return err
		}
		after, err := queries.New().IntentEvidence(ctx, tx, in.ID)
		if err != nil {
			return fmt.Errorf("read intent %d: %w", in.ID, err)
		}
		renewed = Renewed{
			IntentID: in.ID, Status: after.Status, KeyGeneration: generation, AmountCents: to.amountCents, Currency: to.currency, StripeCustomer: to.stripeCustomer,
			IdempotencyKey: schema.IdempotencyKey(in.CustomerID, in.BillingPeriod, in.Namespace, int(generation)), OpenConflicts: after.OpenConflicts,
		}
		return o.record(ctx, tx, action, &in.ID, &runID, map[string]any{"before": in.stood(), "asked": asked, "after": renewed})
	})
	return renewed, err
}

// renewRefusal is why an intent may get neither another key nor other terms.
func (in locked) renewRefusal() error {
	if err := in.moveRefusal(); err != nil {
		return err
	}
	if !in.Frozen {
		return nil
	}
	if schema.Status(in.Status) == schema.StatusPending {
		return &RefusedError{
			Problem: fmt.Sprintf("%s, and was sent to Stripe under its key", in.stands()),
			Cure:    fmt.Sprintf("take it out of charging first: `charger intents park %d`", in.ID),
		}
	}
	if in.GenerationIsOver {
		return nil
	}
	cure := fmt.Sprintf("`charger intents unpark %d` sends the same key again, `charger intents void %d` ends it", in.ID, in.ID)
	if schema.Status(in.Status) == schema.StatusVoided {
		cure = "it stays voided; bill it under another period or namespace"
	}
	return &RefusedError{
		Problem: fmt.Sprintf("%s; it was sent, and Stripe has not definitively refused it (a decline, or 400 or 404 with a request id)", in.stands()),
		Cure:    cure,
	}
}

func (in locked) pendingCure() string {
	switch schema.StatusReason(in.StatusReason) { //nolint:exhaustive // every other reason passes by itself
	case schema.ReasonConflict:
		return "decide the conflict: `charger conflicts list`, then keep or take"
	case schema.ReasonSameCustomer:
		return "another intent bills this Stripe customer for the period: void the one that is wrong"
	case schema.ReasonRunCapped:
		return "the run's cap leaves no room for it: raise the cap"
	}
	return fmt.Sprintf("`charger intents show %d` says what it waits for", in.ID)
}

// replaceTerms keeps the old terms beside the conflicts, so that their event is known when it comes again, and closes the one
// conflict whose terms these are. Any other conflict stays open.
func (o Operator) replaceTerms(ctx context.Context, tx pgx.Tx, in locked, to terms) error {
	if in.terms().sameObligation(to) {
		return nil
	}
	q := queries.New()
	if err := q.ConflictKeepReplaced(ctx, tx, queries.ConflictKeepReplacedParams{IntentID: in.ID, ResolvedBy: &o.Actor}); err != nil {
		return fmt.Errorf("keep the replaced terms of intent %d: %w", in.ID, err)
	}
	if _, err := q.ConflictTookTerms(ctx, tx, queries.ConflictTookTermsParams{
		IntentID: in.ID, AmountCents: to.amountCents, Currency: to.currency, StripeCustomerID: to.stripeCustomer, ResolvedBy: &o.Actor,
	}); err != nil {
		return fmt.Errorf("resolve the conflict whose terms intent %d took: %w", in.ID, err)
	}
	return nil
}

// giveToDispatcher returns the reservation and moves the intent, so that the dispatcher reserves the new amount under the cap.
func (o Operator) giveToDispatcher(ctx context.Context, tx pgx.Tx, in locked, to terms, generation int32, runID int64) error {
	q := queries.New()
	if to.stripeCustomer != in.StripeCustomerID || to.currency != in.Currency {
		if _, err := q.IntentWakeSameCustomer(ctx, tx, in.ID); err != nil {
			return fmt.Errorf("wake intents of the same Stripe customer: %w", err)
		}
	}
	if err := in.giveBack(ctx, tx); err != nil {
		return err
	}
	rows, err := q.IntentRenew(ctx, tx, queries.IntentRenewParams{
		ID: in.ID, SeenClaimNumber: in.ClaimNumber, KeyGeneration: generation, RunID: &runID, StatusDetail: o.said("given back to charging"),
		AmountCents: to.amountCents, Currency: to.currency, StripeCustomerID: to.stripeCustomer,
		PaymentMethod: optional(to.paymentMethod), Description: optional(to.description),
	})
	return one(fmt.Sprintf("give intent %d back to charging", in.ID), rows, err)
}

func optional(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// check refuses what no intent can have, and returns the new currency, if there is one.
func (n NewTerms) check() (currency string, err error) {
	if n == (NewTerms{}) {
		return "", &RefusedError{Problem: "no new terms are given", Cure: "give --amount, --currency, --stripe-customer, --payment-method or --description"}
	}
	if n.Currency == nil {
		return "", nil
	}
	if n.Amount == nil {
		return "", &RefusedError{Problem: "a new currency changes what the amount means", Cure: "give --amount with --currency"}
	}
	currency, err = schema.CheckCurrency(*n.Currency)
	if err != nil {
		return "", &RefusedError{Problem: "--currency: " + err.Error(), Cure: "give one that Stripe takes, like usd"}
	}
	return currency, nil
}

// apply puts the new terms in the place of the old ones, by the rules that an event's terms are held to.
func (n NewTerms) apply(t terms) (terms, error) {
	if n.Currency != nil {
		lower, err := schema.CheckCurrency(*n.Currency)
		if err != nil {
			return t, &RefusedError{Problem: "--currency: " + err.Error(), Cure: "give one that Stripe takes, like usd"}
		}
		t.currency = lower
	}
	if n.Amount != nil {
		cents, err := schema.ParseAmount(*n.Amount, t.currency)
		if err == nil {
			err = schema.CheckAmount(cents, t.currency)
		}
		if err != nil {
			return t, &RefusedError{Problem: "--amount: " + err.Error(), Cure: "give the sum in units of the currency, like 12.50"}
		}
		if cents == 0 {
			return t, &RefusedError{Problem: "--amount is 0, and an amount of 0 is no charge", Cure: "void the intent instead: `charger intents void`"}
		}
		t.amountCents = cents
	}
	if n.StripeCustomer != nil {
		t.stripeCustomer = *n.StripeCustomer
	}
	if n.PaymentMethod != nil {
		if t.paymentMethod = *n.PaymentMethod; t.paymentMethod == DefaultPaymentMethod {
			t.paymentMethod = ""
		}
	}
	if n.Description != nil {
		t.description = *n.Description
	}
	return t, t.check()
}

// check refuses what an event could not have said either.
func (t terms) check() error {
	switch {
	case !isStripeID(t.stripeCustomer, "cus_"):
		return &RefusedError{Problem: fmt.Sprintf("--stripe-customer %q is no Stripe customer", t.stripeCustomer), Cure: "give its id, like cus_..."}
	case t.paymentMethod != "" && !isStripeID(t.paymentMethod, "pm_", "card_", "src_"):
		return &RefusedError{
			Problem: fmt.Sprintf("--payment-method %q is no Stripe payment method", t.paymentMethod),
			Cure:    "give its id, like pm_..., or " + DefaultPaymentMethod + " for the customer's own",
		}
	case utf8.RuneCountInString(t.description) > maxDescriptionRunes:
		return &RefusedError{Problem: "--description is too long", Cure: fmt.Sprintf("give at most %d characters; customers see it", maxDescriptionRunes)}
	}
	return nil
}

const (
	maxDescriptionRunes = 500
	maxStripeIDBytes    = 255
)

func isStripeID(id string, prefixes ...string) bool {
	return len(id) <= maxStripeIDBytes && slices.ContainsFunc(prefixes, func(prefix string) bool {
		rest, found := strings.CutPrefix(id, prefix)
		return found && rest != "" && !strings.ContainsFunc(rest, func(c rune) bool {
			return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '-'
		})
	})
}
