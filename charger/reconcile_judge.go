package charger

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"chargeonce/charger/stripecharge"
	"chargeonce/schema"
	"chargeonce/sql/queries"
)

// judge says what is wrong between an intent and the payments that carry its key or are its charge. It looks at nothing else, so
// that the same rules judge what was listed and what is read again.
func judge(in booked, payments []payment, installation string) []Finding {
	own := ofIntent(in, payments, installation)
	var findings []Finding
	var recorded *payment
	var live []payment // not given back
	for _, p := range own {
		if p.RefundedCents > 0 {
			findings = append(findings, in.finding(FindingRefunded, p.RefundedCents, fmt.Sprintf("%s of %s given back: %s",
				schema.FormatAmount(p.RefundedCents, p.Currency), schema.FormatAmount(p.AmountCents, p.Currency), p), p))
		}
		if p.ObjectID == in.ChargeID {
			recorded = &p
		}
		if !p.givenBack() {
			live = append(live, p)
		}
	}
	main := recorded
	switch {
	case len(live) > 1:
		findings = append(findings, in.finding(FindingDouble, 0, fmt.Sprintf("%d payments of one intent, of %s; %s: %s",
			len(live), in.owed(), in.stands(), inWords(live)), live...))
	case len(live) == 1 && live[0].ObjectID != in.ChargeID:
		main = &live[0]
		if live[0].Moved || schema.Status(in.Status) != schema.StatusCharging {
			findings = append(findings, in.finding(FindingNotRecorded, 0, fmt.Sprintf("paid at Stripe, and %s: %s", in.stands(), live[0]), live[0]))
		}
	}
	if recorded == nil && in.ChargedByThen {
		f := in.finding(FindingNoCharge, in.AmountCents, fmt.Sprintf("recorded as charged, and Stripe has no such payment: %s of %s", in.ChargeID, in.owed()))
		f.ObjectIDs = []string{in.ChargeID}
		findings = append(findings, f)
	}
	if main != nil && !main.givenBack() {
		findings = append(findings, in.wrongTerms(*main)...)
	}
	return findings
}

// Finding is something that differs between Stripe's books and the intents.
type Finding struct {
	Kind           string   `json:"kind"`
	IntentID       *int64   `json:"intent_id"`
	CustomerID     string   `json:"customer_id"`
	StripeCustomer string   `json:"stripe_customer_id"` // of the payment; without one, the intent's
	ObjectIDs      []string `json:"object_ids"`         // at Stripe
	AmountCents    int64    `json:"amount_cents"`       // of the payments concerned; of a refund what was given back
	Currency       string   `json:"currency"`
	Detail         string   `json:"detail"`
}

// What can be found. FindingRefunded is told beside them: giving money back is nothing wrong.
const (
	FindingDouble        = "double_charge"
	FindingNoIntent      = "charge_without_intent"
	FindingNotRecorded   = "charge_not_recorded"
	FindingNoCharge      = "charged_without_charge"
	FindingWrongAmount   = "wrong_amount"
	FindingWrongCurrency = "wrong_currency"
	FindingWrongCustomer = "wrong_customer"
	FindingRefunded      = "refunded"
)

// FindingKinds lists what is wrong when it is found.
func FindingKinds() []string {
	return []string{
		FindingDouble, FindingNoIntent, FindingNotRecorded, FindingNoCharge, FindingWrongAmount, FindingWrongCurrency, FindingWrongCustomer,
	}
}

func suspicious(findings []Finding) bool {
	return slices.ContainsFunc(findings, func(f Finding) bool { return f.Kind != FindingRefunded })
}

// booked is an intent as the database has it. ChargedByThen: charged, and recorded so before Stripe's lists were read (or its
// charge was read by its id since), so that its charge must be seen.
type booked queries.ReconcileIntentListRow

func (in booked) stands() string {
	return fmt.Sprintf("the intent is %s (%s)", in.Status, in.StatusReason)
}

func (in booked) owed() string {
	return fmt.Sprintf("%s %s for %s", schema.FormatAmount(in.AmountCents, in.Currency), in.Currency, in.StripeCustomerID)
}

// finding is about the intent and the payments; amountCents 0 is what the payments come to in the currency of the first.
func (in booked) finding(kind string, amountCents int64, detail string, payments ...payment) Finding {
	f := Finding{Kind: kind, IntentID: &in.ID, CustomerID: in.CustomerID, StripeCustomer: in.StripeCustomerID, Currency: in.Currency, AmountCents: amountCents, Detail: detail}
	for i, p := range payments {
		if i == 0 {
			f.StripeCustomer, f.Currency = p.Customer, p.Currency
		}
		if amountCents == 0 && p.Currency == f.Currency {
			f.AmountCents += p.AmountCents
		}
		f.ObjectIDs = append(f.ObjectIDs, p.ObjectID)
	}
	return f
}

func (in booked) wrongTerms(p payment) []Finding {
	var findings []Finding
	differ := func(kind string) {
		findings = append(findings, in.finding(kind, p.AmountCents, fmt.Sprintf("owed are %s, and paid is another: %s", in.owed(), p), p))
	}
	if p.AmountCents != in.AmountCents {
		differ(FindingWrongAmount)
	}
	if p.Currency != in.Currency {
		differ(FindingWrongCurrency)
	}
	if p.Customer != in.StripeCustomerID {
		differ(FindingWrongCustomer)
	}
	return findings
}

// payment is a payment at Stripe that moved money or still may: a charge, or a payment intent that has none yet.
type payment queries.ReconciliationPaymentListOfIntentsRow

// givenBack: in full, so that the customer has not paid.
func (p payment) givenBack() bool { return p.Moved && p.RefundedCents >= p.AmountCents }

func (p payment) String() string {
	how := "paid"
	if !p.Moved {
		how = "pending"
	}
	return fmt.Sprintf("%s %s %s %s by %s at %s", p.ObjectID, how, schema.FormatAmount(p.AmountCents, p.Currency), p.Currency, p.Customer, p.CreatedAt.UTC().Format(time.RFC3339))
}

func inWords(payments []payment) string {
	words := make([]string, len(payments))
	for i, p := range payments {
		words[i] = p.String()
	}
	return strings.Join(words, ", ")
}

// ofIntent picks the payments of an intent: its recorded charge, whoever made it, and what carries its key and was made by this
// installation. A payment intent that was listed before it had a charge is the same payment as that charge.
func ofIntent(in booked, payments []payment, installation string) []payment {
	var own []payment
	for _, p := range payments {
		mine := p.IntentKey == in.IdempotencyKey && (p.Installation == installation || p.Installation == "")
		if mine || p.ObjectID == in.ChargeID {
			own = append(own, p)
		}
	}
	return slices.DeleteFunc(own, func(p payment) bool {
		return p.ObjectID == p.PaymentIntentID && slices.ContainsFunc(payments, func(other payment) bool {
			return other.PaymentIntentID == p.PaymentIntentID && other.ObjectID != p.ObjectID
		})
	})
}

// Metadata of every charge, beside the intent's key.
const (
	metadataNamespace    = "namespace"
	metadataCustomer     = "customer_id"
	metadataPeriod       = "billing_period"
	metadataInstallation = "installation"
)

// paymentOf reads an object of Stripe's lists. counts is false for one that moved no money and will not by itself.
func paymentOf(e stripecharge.LedgerEntry) (p payment, counts bool) {
	p = payment{
		ObjectID: firstOf(e.ChargeID, e.ID), PaymentIntentID: e.PaymentIntentID, Moved: e.Moved(), Customer: e.Customer, AmountCents: e.AmountCents,
		RefundedCents: e.RefundedCents, Currency: e.Currency, CreatedAt: e.CreatedAt, IntentKey: e.Metadata[stripecharge.MetadataIntentKey],
		Namespace: e.Metadata[metadataNamespace], BillingPeriod: e.Metadata[metadataPeriod], CustomerID: e.Metadata[metadataCustomer],
		Installation: e.Metadata[metadataInstallation],
	}
	if e.Refunded {
		p.RefundedCents = max(p.RefundedCents, p.AmountCents)
	}
	return p, e.Moved() || e.Pending()
}

func (p payment) addTo(many *queries.ReconciliationPaymentAddManyParams) {
	many.ObjectIds = append(many.ObjectIds, p.ObjectID)
	many.PaymentIntentIds = append(many.PaymentIntentIds, p.PaymentIntentID)
	many.Moved = append(many.Moved, p.Moved)
	many.Customers = append(many.Customers, p.Customer)
	many.AmountsCents = append(many.AmountsCents, p.AmountCents)
	many.RefundedCents = append(many.RefundedCents, p.RefundedCents)
	many.Currencies = append(many.Currencies, p.Currency)
	many.CreatedAt = append(many.CreatedAt, p.CreatedAt)
	many.IntentKeys = append(many.IntentKeys, p.IntentKey)
	many.Namespaces = append(many.Namespaces, p.Namespace)
	many.BillingPeriods = append(many.BillingPeriods, p.BillingPeriod)
	many.CustomerIds = append(many.CustomerIds, p.CustomerID)
	many.Installations = append(many.Installations, p.Installation)
}
