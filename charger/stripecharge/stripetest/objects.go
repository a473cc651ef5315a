package stripetest

import (
	"slices"
	"strings"
)

// Statuses of charges and payment intents.
const (
	statusSucceeded       = "succeeded"
	statusPending         = "pending"
	statusFailed          = "failed"
	statusProcessing      = "processing"
	statusNeedsMethod     = "requires_payment_method"
	statusNeedsConfirming = "requires_confirmation"
	statusNeedsAction     = "requires_action"
	statusNeedsCapture    = "requires_capture"
	statusCanceled        = "canceled"
)

// charge is the stand-in's own record of a charge; metadata is never changed once set.
type charge struct {
	seq           int
	id            string
	intent        string
	amount        int64
	currency      string
	customer      string
	description   string
	paymentMethod string
	descriptor    string
	created       int64
	status        string
	captured      bool
	refunded      bool
	returned      int64 // what was given back of a charge that is not refunded in full
	disputed      bool
	failure       *cardFailure
	metadata      map[string]string
}

// intent is the stand-in's own record of a payment intent.
type intent struct {
	seq           int
	id            string
	amount        int64
	received      int64
	currency      string
	customer      string
	description   string
	descriptor    string
	paymentMethod string
	methodTypes   []string
	captureMethod string
	created       int64
	canceledAt    int64
	cancelReason  string
	status        string
	latestCharge  string
	lastError     *stripeError
	metadata      map[string]string
}

func (c *charge) place() int { return c.seq }
func (p *intent) place() int { return p.seq }

// shelf keeps objects of one kind in the order they were made, with an index by id and one by customer.
type shelf[T any] struct {
	all        []*T
	byID       map[string]*T
	byCustomer map[string][]*T
}

func (s *shelf[T]) add(id, customer string, object *T) {
	if s.byID == nil {
		s.byID, s.byCustomer = map[string]*T{}, map[string][]*T{}
	}
	s.all = append(s.all, object)
	s.byID[id] = object
	if customer != "" {
		s.byCustomer[customer] = append(s.byCustomer[customer], object)
	}
}

// chargeView is a charge as the wire shows it.
type chargeView struct {
	ID                   string            `json:"id"`
	Object               string            `json:"object"`
	Amount               int64             `json:"amount"`
	AmountCaptured       int64             `json:"amount_captured"`
	AmountRefunded       int64             `json:"amount_refunded"`
	BalanceTransaction   any               `json:"balance_transaction"`
	BillingDetails       struct{}          `json:"billing_details"`
	Captured             bool              `json:"captured"`
	Created              int64             `json:"created"`
	Currency             string            `json:"currency"`
	Customer             any               `json:"customer"`
	Description          any               `json:"description"`
	Disputed             bool              `json:"disputed"`
	FailureCode          any               `json:"failure_code"`
	FailureMessage       any               `json:"failure_message"`
	Invoice              any               `json:"invoice"`
	Livemode             bool              `json:"livemode"`
	Metadata             map[string]string `json:"metadata"`
	Outcome              outcomeView       `json:"outcome"`
	Paid                 bool              `json:"paid"`
	PaymentIntent        any               `json:"payment_intent"`
	PaymentMethod        any               `json:"payment_method"`
	PaymentMethodDetails any               `json:"payment_method_details"`
	ReceiptURL           any               `json:"receipt_url"`
	Refunded             bool              `json:"refunded"`
	Source               any               `json:"source"`
	StatementDescriptor  any               `json:"statement_descriptor"`
	Status               string            `json:"status"`
}

type outcomeView struct {
	NetworkStatus string `json:"network_status"`
	Reason        any    `json:"reason"`
	RiskLevel     string `json:"risk_level"`
	SellerMessage string `json:"seller_message"`
	Type          string `json:"type"`
}

// intentView is a payment intent as the wire shows it.
type intentView struct {
	ID                  string            `json:"id"`
	Object              string            `json:"object"`
	Amount              int64             `json:"amount"`
	AmountCapturable    int64             `json:"amount_capturable"`
	AmountReceived      int64             `json:"amount_received"`
	CanceledAt          any               `json:"canceled_at"`
	CancellationReason  any               `json:"cancellation_reason"`
	CaptureMethod       string            `json:"capture_method"`
	ClientSecret        string            `json:"client_secret"`
	ConfirmationMethod  string            `json:"confirmation_method"`
	Created             int64             `json:"created"`
	Currency            string            `json:"currency"`
	Customer            any               `json:"customer"`
	Description         any               `json:"description"`
	Invoice             any               `json:"invoice"`
	LastPaymentError    *stripeError      `json:"last_payment_error"`
	LatestCharge        any               `json:"latest_charge"`
	Livemode            bool              `json:"livemode"`
	Metadata            map[string]string `json:"metadata"`
	NextAction          any               `json:"next_action"`
	PaymentMethod       any               `json:"payment_method"`
	PaymentMethodTypes  []string          `json:"payment_method_types"`
	StatementDescriptor any               `json:"statement_descriptor"`
	Status              string            `json:"status"`
}

// view is the charge as it stands now. The caller holds s.mu; the view itself never changes afterwards.
func (s *Server) chargeView(b *book, c *charge, expand []string) chargeView {
	v := chargeView{
		ID: c.id, Object: "charge", Amount: c.amount, Captured: c.captured, Created: c.created, Currency: c.currency,
		Customer: orNull(c.customer), Description: orNull(c.description), Disputed: c.disputed, Livemode: b.accountKey.livemode,
		Metadata: c.metadata, Paid: c.status != statusFailed, PaymentIntent: orNull(c.intent),
		PaymentMethod: orNull(c.paymentMethod), Refunded: c.refunded, StatementDescriptor: orNull(c.descriptor), Status: c.status,
		Outcome: outcomeView{
			NetworkStatus: "approved_by_network", RiskLevel: "normal", SellerMessage: "Payment complete.", Type: "authorized",
		},
		PaymentMethodDetails: cardDetails{Type: "card", Card: cardView{Brand: "visa", Last4: "4242", Funding: "credit"}},
	}
	if c.status != statusFailed && c.captured {
		v.AmountCaptured = c.amount
		v.BalanceTransaction = "txn_" + strings.TrimPrefix(c.id, "ch_")
	}
	v.AmountRefunded = c.returned
	if c.refunded {
		v.AmountRefunded = c.amount
	}
	if c.failure != nil {
		v.FailureCode, v.FailureMessage = c.failure.code, c.failure.message
		v.Outcome = outcomeView{
			NetworkStatus: "declined_by_network", Reason: orNull(c.failure.declineCode), RiskLevel: "normal",
			SellerMessage: "The bank did not return any further details with this decline.", Type: "issuer_declined",
		}
	}
	if c.intent == "" && strings.HasPrefix(c.paymentMethod, "card_") {
		v.Source = cardSource{ID: c.paymentMethod, Object: "card", Brand: "Visa", Last4: "4242", Customer: c.customer}
	}
	if slices.Contains(expand, "payment_intent") {
		if p := b.intents.byID[c.intent]; p != nil {
			v.PaymentIntent = s.intentView(b, p, nil)
		}
	}
	if slices.Contains(expand, "customer") {
		v.Customer = s.expandedCustomer(c.customer)
	}
	return v
}

// intentView is the payment intent as it stands now. The caller holds s.mu; the view never changes afterwards.
func (s *Server) intentView(b *book, p *intent, expand []string) intentView {
	v := intentView{
		ID: p.id, Object: "payment_intent", Amount: p.amount, AmountReceived: p.received, CancellationReason: orNull(p.cancelReason),
		CaptureMethod: p.captureMethod, ClientSecret: p.id + "_secret_standin", ConfirmationMethod: "automatic", Created: p.created,
		Currency: p.currency, Customer: orNull(p.customer), Description: orNull(p.description), LastPaymentError: p.lastError,
		LatestCharge: orNull(p.latestCharge), Livemode: b.accountKey.livemode, Metadata: p.metadata,
		PaymentMethod: orNull(p.paymentMethod), PaymentMethodTypes: p.methodTypes,
		StatementDescriptor: orNull(p.descriptor), Status: p.status,
	}
	if p.canceledAt != 0 {
		v.CanceledAt = p.canceledAt
	}
	if p.status == statusNeedsCapture {
		v.AmountCapturable = p.amount
	}
	if p.status == statusNeedsAction {
		v.NextAction = nextAction{Type: "use_stripe_sdk"}
	}
	if slices.Contains(expand, "latest_charge") {
		if c := b.charges.byID[p.latestCharge]; c != nil {
			v.LatestCharge = s.chargeView(b, c, nil)
		}
	}
	if slices.Contains(expand, "customer") {
		v.Customer = s.expandedCustomer(p.customer)
	}
	if slices.Contains(expand, "payment_method") && p.paymentMethod != "" {
		v.PaymentMethod = methodView{ID: p.paymentMethod, Object: "payment_method", Type: "card", Customer: orNull(p.customer)}
	}
	return v
}

type cardDetails struct {
	Type string   `json:"type"`
	Card cardView `json:"card"`
}

type cardView struct {
	Brand   string `json:"brand"`
	Last4   string `json:"last4"`
	Funding string `json:"funding"`
}

type cardSource struct {
	ID       string `json:"id"`
	Object   string `json:"object"`
	Brand    string `json:"brand"`
	Last4    string `json:"last4"`
	Customer string `json:"customer"`
}

type methodView struct {
	ID       string `json:"id"`
	Object   string `json:"object"`
	Type     string `json:"type"`
	Customer any    `json:"customer"`
}

type nextAction struct {
	Type string `json:"type"`
}

// orNull is null on the wire for an empty text.
func orNull(text string) any {
	if text == "" {
		return nil
	}
	return text
}
