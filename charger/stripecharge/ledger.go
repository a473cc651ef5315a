package stripecharge

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stripe/stripe-go/v76"
	"github.com/stripe/stripe-go/v76/form"
)

// LedgerPage reads one page of what the whole account charged, newest first. It is a page only if the answer's class is
// ClassAnswered; anything else says nothing about what there is. Whoever pages reads on at Next while More is true.
func (c *Client) LedgerPage(ctx context.Context, q LedgerQuery) (LedgerPage, Answer) {
	path, expand, err := q.where()
	if err != nil {
		return LedgerPage{}, refusedHere(OpLookUp, err)
	}
	query := &form.Values{}
	query.Add("created[gte]", strconv.FormatInt(q.CreatedFrom.Unix(), 10)) // no upper bound: what was made last matters most
	query.Add("limit", strconv.Itoa(q.Limit))
	if q.After != "" {
		query.Add("starting_after", q.After)
	}
	if expand != "" {
		query.Add("expand[]", expand)
	}
	var page wireLedgerPage
	answer := c.run(ctx, &exchange{op: OpLookUp, secret: c.key}, func(ctx context.Context) (*Object, error) {
		err := c.backend.CallRaw(http.MethodGet, path, c.key, query, &stripe.Params{Context: ctx}, &page)
		return nil, errors.Join(err, page.check(q))
	}, Request{})
	if answer.Class != ClassAnswered {
		return LedgerPage{}, answer
	}
	found := LedgerPage{More: *page.HasMore, Entries: make([]LedgerEntry, len(page.Data))}
	for i, w := range page.Data {
		found.Entries[i] = w.entry()
	}
	if len(page.Data) > 0 {
		found.Next = page.Data[len(page.Data)-1].ID
	}
	return found, answer
}

// LedgerEntry reads one payment intent or charge by its id, as LedgerPage shows it. known is false only when Stripe itself
// says that there is no such object; unless the answer's class is ClassAnswered, or known is false, nothing was learnt.
func (c *Client) LedgerEntry(ctx context.Context, id string) (entry LedgerEntry, known bool, answer Answer) {
	path, expand, err := pathOfObject(id)
	if err != nil {
		return LedgerEntry{}, true, refusedHere(OpLookUp, err)
	}
	query := &form.Values{}
	if expand != "" {
		query.Add("expand[]", expand)
	}
	var w wireLedgerEntry
	answer = c.run(ctx, &exchange{op: OpLookUp, secret: c.key}, func(ctx context.Context) (*Object, error) {
		err := c.backend.CallRaw(http.MethodGet, path, c.key, query, &stripe.Params{Context: ctx}, &w)
		if err == nil && (w.ID != id || w.object().checkKind() != nil) {
			err = errors.New("the answer is not that object")
		}
		return nil, err
	}, Request{})
	switch {
	case answer.Class == ClassAnswered:
		return w.entry(), true, answer
	case answer.Class == ClassInvalidRequest && answer.HTTPStatus == http.StatusNotFound && answer.ErrorCode == "resource_missing":
		return LedgerEntry{}, false, answer
	}
	return LedgerEntry{}, true, answer
}

// LedgerQuery says which page of which list.
type LedgerQuery struct {
	Kind        string // KindPaymentIntent or KindCharge
	CreatedFrom time.Time
	After       string // the last id of the page before; empty for the first page
	Limit       int    // 1 to LedgerPageMost; less where objects are so large that an answer would not be read
}

// LedgerPageMost is how many objects Stripe puts on one page.
const LedgerPageMost = pageSize

// LedgerPage is one page of a list of the account, newest first.
type LedgerPage struct {
	Entries []LedgerEntry
	More    bool
	Next    string // LedgerQuery.After of the next page
}

// LedgerEntry is one payment as the account's books have it: a payment intent with its latest charge, or a charge.
type LedgerEntry struct {
	Kind            string // KindPaymentIntent or KindCharge
	ID              string
	Status          string // of the payment intent, or of the charge by itself
	ChargeID        string
	PaymentIntentID string // empty for a charge that no payment intent made
	Customer        string
	Currency        string
	AmountCents     int64 // what moved; while nothing has moved, what is asked for
	RefundedCents   int64
	Refunded        bool // in full
	Disputed        bool
	Captured        bool // false: only authorised, or not even that
	Livemode        bool
	CreatedAt       time.Time
	Metadata        map[string]string
	ChargeMetadata  map[string]string // of a payment intent's charge, which has a copy of its own
}

// Moved reports whether money moved, given back or not.
func (e LedgerEntry) Moved() bool { return e.Status == StatusSucceeded && e.Captured }

// Pending reports whether money may still move: it is on its way, or authorised and not yet captured.
func (e LedgerEntry) Pending() bool {
	switch e.Status {
	case StatusPending, StatusProcessing, statusRequiresCapture:
		return true
	case StatusSucceeded:
		return !e.Captured
	}
	return false
}

const statusRequiresCapture = "requires_capture"

func (q LedgerQuery) where() (path, expand string, err error) {
	switch {
	case q.CreatedFrom.IsZero():
		return "", "", errors.New("ledger: no time from which to list")
	case q.Limit < 1 || q.Limit > LedgerPageMost:
		return "", "", fmt.Errorf("ledger: a page of %d objects is not within 1 and %d", q.Limit, LedgerPageMost)
	case q.After != "" && !isID(q.After, prefixIntent, prefixCharge, prefixPayment):
		return "", "", fmt.Errorf("ledger: %q is not the id of a payment intent or a charge", shortened(q.After))
	}
	switch q.Kind {
	case KindPaymentIntent:
		return "/v1/payment_intents", "data.latest_charge", nil
	case KindCharge:
		return "/v1/charges", "", nil
	}
	return "", "", fmt.Errorf("ledger: there is no list of %q", shortened(q.Kind))
}

type wireLedgerPage struct {
	stripe.APIResource
	Object  string             `json:"object"`
	HasMore *bool              `json:"has_more"`
	Data    []*wireLedgerEntry `json:"data"`
}

// check reports why a page is not one: an answer that is not a whole page of this list must not read as its end.
func (p *wireLedgerPage) check(q LedgerQuery) error {
	switch {
	case p.Object != "list" || p.Data == nil || p.HasMore == nil:
		return errors.New("the answer is not a list")
	case *p.HasMore && len(p.Data) == 0:
		return errors.New("an empty page says that more follow")
	case len(p.Data) > q.Limit:
		return errors.New("the page is longer than was asked for")
	case slices.ContainsFunc(p.Data, func(w *wireLedgerEntry) bool {
		return w == nil || w.Kind != q.Kind || w.object().checkKind() != nil || w.ID == q.After
	}):
		return errors.New("the list holds something else than was asked for, or repeats itself")
	}
	return nil
}

// wireLedgerEntry is wireObject with its latest charge whole.
type wireLedgerEntry struct {
	wireObject
	Latest wireLatest `json:"latest_charge"`
}

// wireLatest is the charge of a payment intent: whole where it was expanded, else its id.
type wireLatest struct{ wireObject }

// UnmarshalJSON takes both forms, and null.
func (c *wireLatest) UnmarshalJSON(b []byte) error {
	id, err := idOf(b, &c.wireObject)
	c.ID = id
	return err
}

func (w *wireLedgerEntry) entry() LedgerEntry {
	money := &w.wireObject // the charge that says what moved
	e := LedgerEntry{Kind: w.Kind, ID: w.ID, Status: w.Status, ChargeID: w.ID, PaymentIntentID: string(w.PaymentIntent)}
	if w.Kind == KindPaymentIntent {
		money = &w.Latest.wireObject
		e.ChargeID, e.PaymentIntentID, e.ChargeMetadata = w.Latest.ID, w.ID, clean(money.Metadata)
	}
	e.Customer, e.Currency, e.AmountCents = text(string(w.Customer)), text(w.Currency), w.Amount
	e.Captured = w.Kind == KindPaymentIntent && w.Status == StatusSucceeded || w.Kind == KindCharge && w.Captured
	if e.Moved() {
		e.AmountCents = moved(w, money)
	}
	e.RefundedCents, e.Disputed = money.AmountRefunded, money.Disputed
	e.Refunded = money.Refunded || (e.Moved() && e.RefundedCents > 0 && e.RefundedCents >= e.AmountCents)
	e.Livemode, e.Metadata = w.Livemode, clean(w.Metadata)
	e.CreatedAt = time.Unix(max(w.Created, 0), 0).UTC()
	return e
}

func moved(w *wireLedgerEntry, money *wireObject) int64 {
	switch {
	case w.Kind == KindPaymentIntent:
		return w.AmountReceived
	case money.AmountCaptured != nil:
		return *money.AmountCaptured
	}
	return w.Amount
}

// clean makes foreign metadata fit for the database, whose texts hold no NUL.
func clean(metadata map[string]string) map[string]string {
	for name, value := range metadata {
		metadata[name] = text(value)
	}
	return metadata
}

func text(s string) string { return strings.ReplaceAll(s, "\x00", "\uFFFD") }
