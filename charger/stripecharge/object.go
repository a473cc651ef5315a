package stripecharge

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stripe/stripe-go/v76"
)

// Validate reports why o is not the successful charge that r asked for; nil is the only proof that
// the money moved as it should. An object found by look-up is held against the frozen request alike.
func Validate(o Object, r Request) error {
	differences := Differences(o, r)
	switch {
	case len(differences) > 0:
		return fmt.Errorf("%s %s is not what was asked for: %s", o.Kind, shortened(o.ID), strings.Join(differences, ", "))
	case o.Status != StatusSucceeded:
		return fmt.Errorf("%s %s is %s, not %s", o.Kind, o.ID, shortened(o.Status), StatusSucceeded)
	case !o.Captured:
		return fmt.Errorf("%s %s is not captured in full", o.Kind, o.ID)
	case !isChargeID(o.ChargeID):
		return fmt.Errorf("%s %s succeeded without a charge id", o.Kind, o.ID)
	}
	return nil
}

// Differences lists in what o is not the object that r asks for, whatever its status; empty when it is.
func Differences(o Object, r Request) []string {
	var differences []string
	differ := func(format string, args ...any) { differences = append(differences, fmt.Sprintf(format, args...)) }
	if err := o.checkKind(); err != nil {
		differ("%s", err)
	}
	asked, err := r.terms()
	if err != nil {
		differ("%s", err)
	}
	if o.AmountCents != r.AmountCents {
		differ("amount %d instead of %d", o.AmountCents, r.AmountCents)
	}
	if o.Currency != r.Currency {
		differ("currency %q instead of %q", shortened(o.Currency), r.Currency)
	}
	if o.Customer != r.Customer {
		differ("customer %q instead of %q", shortened(o.Customer), r.Customer)
	}
	if o.IntentKey != asked.intentKey {
		differ("%s %q instead of %q", MetadataIntentKey, shortened(o.IntentKey), asked.intentKey)
	}
	if generation := o.Metadata[MetadataKeyGeneration]; generation != asked.keyGeneration {
		differ("%s %q instead of %q", MetadataKeyGeneration, shortened(generation), asked.keyGeneration)
	}
	if r.Livemode != nil && o.Livemode != *r.Livemode {
		differ("livemode %t instead of %t", o.Livemode, *r.Livemode)
	}
	return differences
}

// Kinds of objects, as Stripe names them.
const (
	KindPaymentIntent = "payment_intent"
	KindCharge        = "charge"
)

// Statuses of objects, as Stripe names them: charges are succeeded, pending or failed.
const (
	StatusSucceeded             = "succeeded"
	StatusPending               = "pending"
	StatusFailed                = "failed"
	StatusProcessing            = "processing"
	StatusRequiresAction        = "requires_action"
	StatusRequiresPaymentMethod = "requires_payment_method"
	StatusCanceled              = "canceled"
)

// Object is a payment intent or a charge as Stripe showed it.
type Object struct {
	Kind            string // KindPaymentIntent or KindCharge
	ID              string
	Status          string
	ChargeID        string // a charge's own id, or a payment intent's latest charge; empty while it has none
	PaymentIntentID string // a payment intent's own id, or that of the charge's; empty for a charge by itself
	Customer        string
	Currency        string
	IntentKey       string // metadata intent_key, empty for an unmarked object
	Metadata        map[string]string
	AmountCents     int64
	Livemode        bool
	Refunded        bool // in full or in part; of a payment intent known only after Read and LookUp
	Disputed        bool // likewise
	Captured        bool // all of the amount
	CreatedAt       time.Time

	failureCode, declineCode, adviceCode, failureMessage string
}

// Moved reports whether money moved by this object, given back or not.
func (o Object) Moved() bool { return o.Status == StatusSucceeded }

// Dead reports whether no money moved by this object and none can: it failed for good or was cancelled.
func (o Object) Dead() bool {
	return o.Status == StatusCanceled || (o.Kind == KindCharge && o.Status == StatusFailed)
}

func (o Object) checkKind() error {
	switch {
	case o.Kind == KindPaymentIntent && strings.HasPrefix(o.ID, prefixIntent), o.Kind == KindCharge && isChargeID(o.ID):
		return nil
	case o.ID == "":
		return errors.New("no object id")
	}
	return fmt.Errorf("object %q with id %q", shortened(o.Kind), shortened(o.ID))
}

func isChargeID(id string) bool {
	return strings.HasPrefix(id, prefixCharge) || strings.HasPrefix(id, prefixPayment)
}

// wireObject is a payment intent or a charge on the wire: the fields that are looked at, so that a
// charge costs little to read. A list page or an empty answer decodes into one without kind or id.
type wireObject struct {
	stripe.APIResource
	ID               string            `json:"id"`
	Kind             string            `json:"object"`
	Status           string            `json:"status"`
	Amount           int64             `json:"amount"`
	AmountReceived   int64             `json:"amount_received"` // payment intent
	AmountCaptured   *int64            `json:"amount_captured"` // charge
	AmountRefunded   int64             `json:"amount_refunded"` // charge
	Captured         bool              `json:"captured"`        // charge
	Refunded         bool              `json:"refunded"`        // charge
	Disputed         bool              `json:"disputed"`        // charge
	Currency         string            `json:"currency"`
	Customer         idOrObject        `json:"customer"`
	PaymentIntent    idOrObject        `json:"payment_intent"` // charge
	LatestCharge     latestCharge      `json:"latest_charge"`  // payment intent
	Livemode         bool              `json:"livemode"`
	Metadata         map[string]string `json:"metadata"`
	Created          int64             `json:"created"`
	FailureCode      string            `json:"failure_code"`    // charge
	FailureMessage   string            `json:"failure_message"` // charge
	Outcome          *wireOutcome      `json:"outcome"`         // charge
	LastPaymentError *wireError        `json:"last_payment_error"`
}

type wireOutcome struct {
	Reason     string `json:"reason"`
	AdviceCode string `json:"advice_code"`
}

type wireError struct {
	Code        string `json:"code"`
	DeclineCode string `json:"decline_code"`
	AdviceCode  string `json:"advice_code"`
	Message     string `json:"message"`
}

func (w *wireObject) object() *Object {
	o := &Object{
		Kind: w.Kind, ID: w.ID, Status: w.Status, Customer: string(w.Customer), Currency: w.Currency, AmountCents: w.Amount,
		Metadata: w.Metadata, IntentKey: w.Metadata[MetadataIntentKey], Livemode: w.Livemode,
	}
	if w.Created > 0 {
		o.CreatedAt = time.Unix(w.Created, 0).UTC()
	}
	if w.Kind == KindPaymentIntent {
		o.PaymentIntentID, o.ChargeID = w.ID, w.LatestCharge.ID
		o.Captured = w.Status == StatusSucceeded && w.AmountReceived == w.Amount
		o.Refunded, o.Disputed = w.LatestCharge.Refunded || w.LatestCharge.AmountRefunded > 0, w.LatestCharge.Disputed
		if e := w.LastPaymentError; e != nil {
			o.failureCode, o.declineCode, o.adviceCode, o.failureMessage = shortened(e.Code), shortened(e.DeclineCode), shortened(e.AdviceCode), e.Message
		}
		return o
	}
	o.ChargeID, o.PaymentIntentID = w.ID, string(w.PaymentIntent)
	o.Captured = w.Captured && (w.AmountCaptured == nil || *w.AmountCaptured == w.Amount)
	o.Refunded, o.Disputed = w.Refunded || w.AmountRefunded > 0, w.Disputed
	o.failureCode, o.failureMessage = shortened(w.FailureCode), w.FailureMessage
	if w.Outcome != nil && w.FailureCode != "" {
		o.declineCode, o.adviceCode = shortened(w.Outcome.Reason), shortened(w.Outcome.AdviceCode)
	}
	return o
}

// idOrObject is a field that holds an id, or the whole object where it was expanded.
type idOrObject string

// UnmarshalJSON takes both forms, and null.
func (f *idOrObject) UnmarshalJSON(b []byte) error {
	id, err := idOf(b, nil)
	*f = idOrObject(id)
	return err
}

// latestCharge is the charge of a payment intent: its id, and what happened to it where it was expanded.
type latestCharge struct {
	ID             string `json:"id"`
	Refunded       bool   `json:"refunded"`
	AmountRefunded int64  `json:"amount_refunded"`
	Disputed       bool   `json:"disputed"`
}

// UnmarshalJSON takes both forms, and null.
func (c *latestCharge) UnmarshalJSON(b []byte) error {
	type bare latestCharge
	id, err := idOf(b, (*bare)(c))
	c.ID = id
	return err
}

func idOf(b []byte, whole any) (string, error) {
	if slices.Equal(b, []byte("null")) {
		return "", nil
	}
	if len(b) > 0 && b[0] == '"' {
		var id string
		err := json.Unmarshal(b, &id)
		return id, err
	}
	var object struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal(b, &object); err != nil {
		return "", err
	}
	if whole == nil {
		return object.ID, nil
	}
	return object.ID, json.Unmarshal(b, whole)
}
