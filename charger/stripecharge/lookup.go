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

// LookUp lists every payment intent and every charge of a customer and picks those of one intent. It
// is complete or an error: the answer's class is ClassAnswered only after both lists were read to
// their end, and only then may nothing found be taken for absence.
func (c *Client) LookUp(ctx context.Context, q LookUp) (Found, Answer) {
	if err := q.check(); err != nil {
		return Found{}, refusedHere(OpLookUp, err)
	}
	// Payment intents first: one made meanwhile still shows by its charge, which carries its metadata.
	intents, answer := c.list(ctx, "/v1/payment_intents", "data.latest_charge", q)
	if answer.Class != ClassAnswered {
		return Found{}, answer
	}
	charges, answer := c.list(ctx, "/v1/charges", "", q)
	if answer.Class != ClassAnswered {
		return Found{}, answer
	}
	return q.pick(intents, charges), answer
}

// LookUp says whose charge is looked for.
type LookUp struct {
	Customer    string // cus_...
	IntentKey   string // metadata intent_key, the generation-1 key
	CreatedFrom time.Time
	FirstSentAt time.Time // objects without intent_key count from here, less the clock skew allowed

	// Terms by which an unmarked object is suspected to be ours.
	AmountCents int64
	Currency    string
}

// Found is what a complete look-up found; nothing in either slice is absence.
type Found struct {
	// Matches carry the intent's key, whatever their terms and status. A charge that belongs to a
	// payment intent among them is left out, unless it moved money that the payment intent does not show.
	Matches []Object
	// Unmarked carry no intent key but the customer, amount and currency looked for, and were made
	// since the first send.
	Unmarked []Object
}

// Any reports whether anything was found that is not absence.
func (f Found) Any() bool { return len(f.Matches)+len(f.Unmarked) > 0 }

// Result is the word for the look-up attempt's row in the database.
func (f Found) Result(a Answer) string {
	if a.Class == ClassAnswered && f.Any() {
		return "found"
	}
	return a.Result()
}

// Limits of a look-up.
const (
	pageSize = 100
	maxPages = 200 // of one list: 20,000 objects of one customer; past it the look-up fails rather than ends

	// clockSkew is how far Stripe's clock may be behind the one that wrote FirstSentAt before no POST is made at all.
	clockSkew = 5 * time.Minute
)

func (q LookUp) check() error {
	switch {
	case !strings.HasPrefix(q.Customer, stripeCustomerPrefix):
		return fmt.Errorf("look-up: customer %q does not begin with %s", shortened(q.Customer), stripeCustomerPrefix)
	case q.IntentKey == "":
		return errors.New("look-up: no intent key")
	case q.CreatedFrom.IsZero() || q.FirstSentAt.IsZero():
		return errors.New("look-up: no time from which to list, or none of the first send")
	case q.CreatedFrom.After(q.FirstSentAt):
		return errors.New("look-up: would begin after the first send")
	}
	return nil
}

// list reads one list to its end. Created has no upper bound: what was made last matters most.
func (c *Client) list(ctx context.Context, path, expand string, q LookUp) ([]Object, Answer) {
	var objects []Object
	var last Answer
	after := ""
	for range maxPages {
		query := &form.Values{}
		query.Add("customer", q.Customer)
		query.Add("created[gte]", strconv.FormatInt(q.CreatedFrom.Unix(), 10))
		query.Add("limit", strconv.Itoa(pageSize))
		if after != "" {
			query.Add("starting_after", after)
		}
		if expand != "" {
			query.Add("expand[]", expand)
		}
		var page wirePage
		last = c.run(ctx, &exchange{op: OpLookUp, secret: c.key}, func(ctx context.Context) (*Object, error) {
			err := c.backend.CallRaw(http.MethodGet, path, c.key, query, &stripe.Params{Context: ctx}, &page)
			return nil, errors.Join(err, page.check(after))
		}, Request{})
		if last.Class != ClassAnswered {
			return nil, last
		}
		for _, o := range page.Data {
			objects = append(objects, *o.object())
		}
		if !*page.HasMore {
			return objects, last
		}
		after = page.Data[len(page.Data)-1].ID
	}
	last.Class, last.Err = ClassUnparsable, fmt.Errorf("look-up of customer %s: more than %d pages of %s", q.Customer, maxPages, path)
	return nil, last
}

type wirePage struct {
	stripe.APIResource
	Object  string        `json:"object"`
	HasMore *bool         `json:"has_more"`
	Data    []*wireObject `json:"data"`
}

// pick sorts what was listed; intents and charges are all of the customer's.
func (q LookUp) pick(intents, charges []Object) Found {
	var found Found
	shown := map[string]Object{}
	unmarked := map[string]bool{}
	for _, o := range intents {
		switch {
		case o.IntentKey == q.IntentKey:
			shown[o.ID] = o
			found.Matches = append(found.Matches, o)
		case q.suspects(o):
			unmarked[o.ID] = true
			found.Unmarked = append(found.Unmarked, o)
		}
	}
	for _, o := range charges {
		intent, known := shown[o.PaymentIntentID]
		switch {
		case o.PaymentIntentID != "" && known:
			if o.Moved() && (!intent.Moved() || intent.ChargeID != o.ID) {
				found.Matches = append(found.Matches, o)
			}
		case o.IntentKey == q.IntentKey:
			found.Matches = append(found.Matches, o)
		case q.suspects(o) && !unmarked[o.PaymentIntentID]:
			found.Unmarked = append(found.Unmarked, o)
		}
	}
	return found
}

// suspects reports whether an object without our mark could still be the charge: something between
// here and Stripe may have dropped the metadata.
func (q LookUp) suspects(o Object) bool {
	return o.IntentKey == "" && o.Customer == q.Customer && o.AmountCents == q.AmountCents && o.Currency == q.Currency &&
		!o.CreatedAt.Before(q.FirstSentAt.Add(-clockSkew))
}

// check reports why a page is not one: an answer that is not a whole list must not read as an empty one.
func (p *wirePage) check(after string) error {
	switch {
	case p.Object != "list" || p.Data == nil || p.HasMore == nil:
		return errors.New("the answer is not a list")
	case *p.HasMore && len(p.Data) == 0:
		return errors.New("an empty page says that more follow")
	case slices.ContainsFunc(p.Data, func(o *wireObject) bool { return o == nil || o.object().checkKind() != nil || o.ID == after }):
		return errors.New("the list holds something that is neither a payment intent nor a charge, or repeats itself")
	}
	return nil
}
