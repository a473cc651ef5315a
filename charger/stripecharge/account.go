package stripecharge

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/stripe/stripe-go/v76"
	"github.com/stripe/stripe-go/v76/form"
)

// Account reads which Stripe account the key leads to. The info is empty unless the answer's class is
// ClassAnswered.
func (c *Client) Account(ctx context.Context) (AccountInfo, Answer) {
	var w wireAccount
	answer := c.run(ctx, &exchange{op: OpAccount, secret: c.key}, func(ctx context.Context) (*Object, error) {
		err := c.backend.CallRaw(http.MethodGet, "/v1/account", c.key, &form.Values{}, &stripe.Params{Context: ctx}, &w)
		if err == nil && (w.Object != "account" || w.ID == "") {
			err = errors.New("the answer is not an account")
		}
		return nil, err
	}, Request{})
	if answer.Class != ClassAnswered {
		return AccountInfo{}, answer
	}
	return AccountInfo{
		ID: w.ID, Country: w.Country, DefaultCurrency: w.DefaultCurrency, ChargesEnabled: w.ChargesEnabled, Livemode: w.Livemode,
	}, answer
}

// Customer reads how a customer pays. The info is empty unless the answer's class is ClassAnswered; a
// customer that Stripe does not know is ClassInvalidRequest with ErrorCode resource_missing.
func (c *Client) Customer(ctx context.Context, id string) (CustomerInfo, Answer) {
	if !isID(id, stripeCustomerPrefix) {
		return CustomerInfo{}, refusedHere(OpCustomer, fmt.Errorf("customer id %q is not one of Stripe's", shortened(id)))
	}
	var w wireCustomer
	answer := c.run(ctx, &exchange{op: OpCustomer, secret: c.key}, func(ctx context.Context) (*Object, error) {
		err := c.backend.CallRaw(http.MethodGet, "/v1/customers/"+id, c.key, &form.Values{}, &stripe.Params{Context: ctx}, &w)
		if err == nil && (w.Object != "customer" || w.ID != id) {
			err = errors.New("the answer is not that customer")
		}
		return nil, err
	}, Request{})
	if answer.Class != ClassAnswered {
		return CustomerInfo{}, answer
	}
	return CustomerInfo{
		ID: w.ID, DefaultPaymentMethod: string(w.InvoiceSettings.DefaultPaymentMethod), DefaultSource: string(w.DefaultSource),
		Livemode: w.Livemode, Deleted: w.Deleted,
	}, answer
}

// AccountInfo is the Stripe account behind a key.
type AccountInfo struct {
	ID              string // acct_...
	Country         string
	DefaultCurrency string
	ChargesEnabled  bool
	Livemode        *bool // nil: Stripe's account object does not say, a customer does
}

// CustomerInfo is what a customer pays with. A deleted customer pays with nothing and has no livemode.
type CustomerInfo struct {
	ID                   string
	DefaultPaymentMethod string // of the invoice settings: what payment intents take
	DefaultSource        string // what the charges API takes
	Livemode             bool
	Deleted              bool
}

// PaymentMethod is what a charge through api is made with, empty when there is nothing.
func (i CustomerInfo) PaymentMethod(api API) string {
	if api == APICharges || i.DefaultPaymentMethod == "" {
		return i.DefaultSource
	}
	return i.DefaultPaymentMethod
}

type wireAccount struct {
	stripe.APIResource
	ID              string `json:"id"`
	Object          string `json:"object"`
	Country         string `json:"country"`
	DefaultCurrency string `json:"default_currency"`
	ChargesEnabled  bool   `json:"charges_enabled"`
	Livemode        *bool  `json:"livemode"`
}

type wireCustomer struct {
	stripe.APIResource
	ID              string     `json:"id"`
	Object          string     `json:"object"`
	DefaultSource   idOrObject `json:"default_source"`
	InvoiceSettings struct {
		DefaultPaymentMethod idOrObject `json:"default_payment_method"`
	} `json:"invoice_settings"`
	Livemode bool `json:"livemode"`
	Deleted  bool `json:"deleted"`
}
