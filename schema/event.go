package schema

import (
	"fmt"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// BillingEvent is one obligation as a producer states it: this customer owes this amount for this
// period. It comes out of a Parser checked and complete.
type BillingEvent struct {
	CustomerID       string // 1-200 bytes, no ':'
	BillingPeriod    string // in the namespace's one format
	AmountCents      int64  // in the currency's minor unit: whole yen for jpy; never multiplied or divided
	Currency         string // lower-case, "usd" when the event named none
	StripeCustomerID string // cus_..., taken from CustomerID when the event named none
	PaymentMethod    string // pm_, card_ or src_ id; empty: the customer's default
	Description      string // at most 500 characters; may be empty
}

// Terms are what one key may be charged with.
type Terms struct {
	AmountCents      int64 // minor unit
	Currency         string
	StripeCustomerID string
}

// Terms returns the part of the event that must not differ between two events of one key.
func (e BillingEvent) Terms() Terms {
	return Terms{AmountCents: e.AmountCents, Currency: e.Currency, StripeCustomerID: e.StripeCustomerID}
}

// Key returns the event's idempotency key of generation 1 in a namespace.
func (e BillingEvent) Key(namespace string) string {
	return IdempotencyKey(e.CustomerID, e.BillingPeriod, namespace, 1)
}

// AppendJSON appends the event as the JSON object that a parser of the same period format, without
// a mapping, reads back as this event. It fails on text that is not UTF-8.
func (e BillingEvent) AppendJSON(dst []byte) ([]byte, error) {
	fields := []struct{ name, value string }{
		{FieldCustomerID, e.CustomerID},
		{FieldBillingPeriod, e.BillingPeriod},
		{FieldCurrency, e.Currency},
		{FieldStripeCustomerID, e.StripeCustomerID},
		{FieldPaymentMethod, e.PaymentMethod},
		{FieldDescription, e.Description},
	}
	dst = append(dst, `{"`+FieldAmountCents+`":`...)
	dst = strconv.AppendInt(dst, e.AmountCents, 10)
	for _, f := range fields {
		if f.value == "" {
			continue
		}
		dst = append(dst, `,"`+f.name+`":`...)
		var err error
		if dst, err = jsontext.AppendQuote(dst, f.value); err != nil {
			return nil, fmt.Errorf("encode field %s: %w", f.name, err)
		}
	}
	return append(dst, '}'), nil
}

// Verdict is what a second event of a key that is already recorded turns out to be.
type Verdict string

// The two verdicts on a second event.
const (
	VerdictDuplicate Verdict = "duplicate" // same terms: counted and dropped
	VerdictConflict  Verdict = "conflict"  // other terms: the first stays, this one is kept for a person
)

// Compare judges the terms of a later event against the recorded ones of the same key. Payment
// method and description are no terms: they may be corrected without making another obligation.
func Compare(a, b Terms) Verdict {
	if a == b {
		return VerdictDuplicate
	}
	return VerdictConflict
}
