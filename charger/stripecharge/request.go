package stripecharge

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/stripe/stripe-go/v76"
	"github.com/stripe/stripe-go/v76/form"
)

// NewRequest encodes p once. The same p gives the same bytes with one build of this program; what was
// sent once is stored and sent again as it is, because another build may encode otherwise and Stripe
// refuses a key whose parameters changed.
func NewRequest(p Params) (Request, error) {
	if err := p.check(); err != nil {
		return Request{}, err
	}
	values := &form.Values{}
	switch p.API {
	case APIPaymentIntents:
		form.AppendTo(values, p.paymentIntent())
	case APICharges:
		form.AppendTo(values, p.charge())
	}
	r := Request{
		API: p.API, Path: p.API.path(), Body: []byte(values.Encode()), IdempotencyKey: p.IdempotencyKey, APIVersion: stripe.APIVersion,
		Customer: p.Customer, Currency: p.Currency, PaymentMethod: p.PaymentMethod, AmountCents: p.AmountCents, Livemode: p.Livemode,
	}
	return r, r.check()
}

// API is the part of Stripe's API that a charge is made with; the values are those of STRIPE_API.
type API string

// The two ways to charge.
const (
	APIPaymentIntents API = "payment_intents"
	APICharges        API = "charges" // closed to new Stripe accounts; pays with the customer's default source
)

func (a API) path() string {
	switch a {
	case APIPaymentIntents:
		return "/v1/payment_intents"
	case APICharges:
		return "/v1/charges"
	}
	return ""
}

// Names of the metadata that tell a charge's intent.
const (
	MetadataIntentKey     = "intent_key"     // the generation-1 key of the intent
	MetadataKeyGeneration = "key_generation" // 1, 2, ...
)

// Stripe's limits on what is sent.
const (
	maxMetadata          = 50  // entries
	maxMetadataName      = 40  // characters
	maxMetadataValue     = 500 // characters
	maxIdempotencyKey    = 255 // bytes
	maxRequestBodyBytes  = 64 << 10
	maxAmountCents       = 999_999_999_999
	maxDescriptionRunes  = 500
	maxShownRunes        = 500 // of a message that goes into logs and the database
	stripeCustomerPrefix = "cus_"
)

// ErrNoPaymentMethod says that the customer has nothing to pay with: a payment intent names its payment method.
var ErrNoPaymentMethod = errors.New("no payment method")

// Params are the terms of one charge.
type Params struct {
	API            API
	Customer       string // cus_...
	AmountCents    int64  // in the currency's minor unit
	Currency       string // lower-case
	PaymentMethod  string // pm_, card_ or src_; required for payment intents, never pm_ for charges
	Description    string
	Metadata       map[string]string // must hold MetadataIntentKey and MetadataKeyGeneration
	IdempotencyKey string
	Livemode       *bool // of the key's account, nil where unknown: then it is not compared
}

// Request is one frozen charge: what is stored, and sent byte for byte or not at all. Customer,
// Currency, PaymentMethod and AmountCents repeat what Body says, for the reader; Create refuses a
// request where they disagree.
type Request struct {
	API            API
	Path           string // /v1/payment_intents or /v1/charges
	Body           []byte // form-encoded, never changed
	IdempotencyKey string
	APIVersion     string // sent as Stripe-Version
	Customer       string
	Currency       string
	PaymentMethod  string
	AmountCents    int64
	Livemode       *bool // nil: not compared
}

// terms are what Stripe's object must repeat.
type terms struct {
	intentKey, keyGeneration string
}

// terms reads from the frozen bytes whose intent this is, and that they say what the fields say. It is
// read several times for each charge, and so looks for its fields alone.
func (r Request) terms() (terms, error) {
	var t terms
	var amount, currency, customer string
	wanted := map[string]*string{
		"amount": &amount, "currency": &currency, "customer": &customer,
		"metadata[" + MetadataIntentKey + "]": &t.intentKey, "metadata[" + MetadataKeyGeneration + "]": &t.keyGeneration,
	}
	for pair := range strings.SplitSeq(string(r.Body), "&") {
		name, value, _ := strings.Cut(pair, "=")
		name, err := url.QueryUnescape(name)
		if err != nil {
			return terms{}, errors.New("frozen request: the body is not form-encoded")
		}
		field := wanted[name]
		if field == nil {
			continue
		}
		if *field != "" {
			return terms{}, fmt.Errorf("frozen request: the body says %s twice", name)
		}
		if *field, err = url.QueryUnescape(value); err != nil {
			return terms{}, errors.New("frozen request: the body is not form-encoded")
		}
	}
	switch {
	case t.intentKey == "" || t.keyGeneration == "":
		return t, fmt.Errorf("frozen request: the body lacks metadata %s or %s", MetadataIntentKey, MetadataKeyGeneration)
	case amount != strconv.FormatInt(r.AmountCents, 10), currency != r.Currency, customer != r.Customer:
		return t, errors.New("frozen request: amount, currency or customer are not those of the body")
	}
	return t, nil
}

// check reports why r cannot be sent.
func (r Request) check() error {
	switch {
	case r.API.path() == "":
		return fmt.Errorf("frozen request: unknown API %q", shortened(string(r.API)))
	case r.Path != r.API.path():
		return fmt.Errorf("frozen request: path %q is not that of %s", shortened(r.Path), r.API)
	case r.APIVersion == "":
		return errors.New("frozen request: no API version")
	case r.IdempotencyKey == "" || len(r.IdempotencyKey) > maxIdempotencyKey || strings.ContainsFunc(r.IdempotencyKey, notKeyRune):
		return fmt.Errorf("frozen request: the idempotency key must be 1 to %d printable characters", maxIdempotencyKey)
	case len(r.Body) == 0 || len(r.Body) > maxRequestBodyBytes:
		return fmt.Errorf("frozen request: body of %d bytes, it must have 1 to %d", len(r.Body), maxRequestBodyBytes)
	case r.AmountCents <= 0 || r.AmountCents > maxAmountCents:
		return fmt.Errorf("frozen request: amount %d is not within 1 and %d", r.AmountCents, int64(maxAmountCents))
	}
	_, err := r.terms()
	return err
}

func (p Params) check() error {
	switch {
	case !strings.HasPrefix(p.Customer, stripeCustomerPrefix):
		return fmt.Errorf("charge request: customer %q does not begin with %s", shortened(p.Customer), stripeCustomerPrefix)
	case len(p.Currency) != 3 || strings.ToLower(p.Currency) != p.Currency:
		return fmt.Errorf("charge request: currency %q is not three lower-case letters", shortened(p.Currency))
	case p.API == APIPaymentIntents && p.PaymentMethod == "":
		return fmt.Errorf("charge request for customer %s: %w", shortened(p.Customer), ErrNoPaymentMethod)
	case p.API == APICharges && strings.HasPrefix(p.PaymentMethod, "pm_"):
		return fmt.Errorf("charge request: payment method %s needs payment_intents, the charges API takes card_ and src_", shortened(p.PaymentMethod))
	case len([]rune(p.Description)) > maxDescriptionRunes:
		return fmt.Errorf("charge request: the description is longer than %d characters", maxDescriptionRunes)
	case len(p.Metadata) > maxMetadata:
		return fmt.Errorf("charge request: %d metadata entries, Stripe takes %d", len(p.Metadata), maxMetadata)
	}
	for name, value := range p.Metadata {
		if name == "" || len([]rune(name)) > maxMetadataName || strings.ContainsAny(name, "[]") || len([]rune(value)) > maxMetadataValue {
			return fmt.Errorf("charge request: metadata %q: Stripe takes names of %d and values of %d characters", shortened(name), maxMetadataName, maxMetadataValue)
		}
	}
	return nil
}

// paymentIntent charges in one step and never leaves anything for the cardholder to do later: a card
// that asks for its holder is a decline, not an open payment that may go through at any time.
func (p Params) paymentIntent() *stripe.PaymentIntentParams {
	return &stripe.PaymentIntentParams{
		Amount:                &p.AmountCents,
		Currency:              &p.Currency,
		Customer:              &p.Customer,
		PaymentMethod:         &p.PaymentMethod,
		PaymentMethodTypes:    []*string{new("card")},
		CaptureMethod:         new(string(stripe.PaymentIntentCaptureMethodAutomatic)),
		Confirm:               new(true),
		OffSession:            new(true),
		ErrorOnRequiresAction: new(true),
		Description:           p.description(),
		Metadata:              p.Metadata, // the library writes maps sorted
	}
}

func (p Params) charge() *stripe.ChargeParams {
	charge := &stripe.ChargeParams{
		Amount: &p.AmountCents, Currency: &p.Currency, Customer: &p.Customer, Description: p.description(), Metadata: p.Metadata,
	}
	if p.PaymentMethod != "" {
		charge.Source = &stripe.PaymentSourceSourceParams{Token: &p.PaymentMethod}
	}
	return charge
}

func (p Params) description() *string {
	if p.Description == "" {
		return nil
	}
	return &p.Description
}

func bytesBuffer(b []byte) *bytes.Buffer { return bytes.NewBuffer(bytes.Clone(b)) }

// shortened bounds a text that comes from outside before it goes into an error.
func shortened(text string) string {
	runes := []rune(text)
	if len(runes) <= maxShownRunes {
		return text
	}
	return string(runes[:maxShownRunes]) + "..."
}
