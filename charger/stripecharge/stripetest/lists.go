package stripetest

import (
	"net/http"
	"slices"
	"strconv"
)

// listView is one page of a list, newest first.
type listView struct {
	Object  string `json:"object"`
	URL     string `json:"url"`
	HasMore bool   `json:"has_more"`
	Data    []any  `json:"data"`
}

const (
	defaultPage = 10
	maxPage     = 100
)

// page cuts one page out of a shelf: newest first, by customer, created and cursor; admit is a further filter. The caller holds s.mu.
func page[T any, P interface {
	*T
	place() int
}](c *call, shelf *shelf[T], kind string, createdOf func(*T) int64, admit func(*T) bool) (found []*T, more bool, refused *stripeError) {
	limit := defaultPage
	if text := c.form.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxPage {
			return nil, false, invalid("parameter_invalid_integer", "limit", "Invalid limit: must be between 1 and 100, not "+text)
		}
		limit = n
	}
	bounds, refused := c.created()
	if refused != nil {
		return nil, false, refused
	}
	objects := shelf.all
	if customer := c.form.Get("customer"); customer != "" {
		objects = shelf.byCustomer[customer]
	}
	before := -1
	if after := c.form.Get("starting_after"); after != "" {
		last := shelf.byID[after]
		if last == nil {
			return nil, false, invalid("resource_missing", "starting_after", "No such "+kind+": '"+after+"'")
		}
		before = P(last).place()
	}
	for _, object := range slices.Backward(objects) {
		if before >= 0 && P(object).place() >= before || !admit(object) || !admitted(bounds, createdOf(object)) {
			continue
		}
		if len(found) == limit {
			return found, true, nil
		}
		found = append(found, object)
	}
	return found, false, nil
}

func admitted(bounds []bound, created int64) bool {
	for _, b := range bounds {
		if !b.admits(created) {
			return false
		}
	}
	return true
}

func (s *Server) listCharges(c *call) answer {
	if refused := c.unknown("customer", "created", "limit", "starting_after", "payment_intent", "expand"); refused != nil {
		return refusedEarly(refused)
	}
	expand, refused := c.expand("data.payment_intent", "data.customer")
	if refused != nil {
		return refusedEarly(refused)
	}
	b := s.current()
	of := c.form.Get("payment_intent")
	found, more, refused := page(c, &b.charges, "charge", func(o *charge) int64 { return o.created },
		func(o *charge) bool { return of == "" || o.intent == of })
	if refused != nil {
		return refusedEarly(refused)
	}
	list := listView{Object: "list", URL: c.path, HasMore: more, Data: make([]any, 0, len(found))}
	for _, o := range found {
		list.Data = append(list.Data, s.chargeView(b, o, ofData(expand)))
	}
	return answer{status: http.StatusOK, body: list}
}

func (s *Server) listIntents(c *call) answer {
	if refused := c.unknown("customer", "created", "limit", "starting_after", "expand"); refused != nil {
		return refusedEarly(refused)
	}
	expand, refused := c.expand("data.latest_charge", "data.customer", "data.payment_method")
	if refused != nil {
		return refusedEarly(refused)
	}
	b := s.current()
	found, more, refused := page(c, &b.intents, "payment_intent", func(o *intent) int64 { return o.created },
		func(*intent) bool { return true })
	if refused != nil {
		return refusedEarly(refused)
	}
	list := listView{Object: "list", URL: c.path, HasMore: more, Data: make([]any, 0, len(found))}
	for _, o := range found {
		list.Data = append(list.Data, s.intentView(b, o, ofData(expand)))
	}
	return answer{status: http.StatusOK, body: list}
}

// ofData turns data.customer into customer: a list expands the fields of its elements.
func ofData(expand []string) []string {
	fields := make([]string, len(expand))
	for i, field := range expand {
		fields[i] = field[len("data."):]
	}
	return fields
}

func (s *Server) getCharge(c *call, id string) answer {
	expand, refused := c.expand("payment_intent", "customer")
	if refused != nil {
		return refusedEarly(refused)
	}
	b := s.current()
	found := b.charges.byID[id]
	if found == nil {
		return missing("charge", id, "id", http.StatusNotFound)
	}
	return answer{status: http.StatusOK, body: s.chargeView(b, found, expand), objectID: id}
}

func (s *Server) getIntent(c *call, id string) answer {
	expand, refused := c.expand("latest_charge", "customer", "payment_method")
	if refused != nil {
		return refusedEarly(refused)
	}
	b := s.current()
	found := b.intents.byID[id]
	if found == nil {
		return missing("payment_intent", id, "intent", http.StatusNotFound)
	}
	return answer{status: http.StatusOK, body: s.intentView(b, found, expand), objectID: id}
}

type accountView struct {
	ID               string `json:"id"`
	Object           string `json:"object"`
	ChargesEnabled   bool   `json:"charges_enabled"`
	Country          string `json:"country"`
	DefaultCurrency  string `json:"default_currency"`
	DetailsSubmitted bool   `json:"details_submitted"`
	PayoutsEnabled   bool   `json:"payouts_enabled"`
	Type             string `json:"type"`
}

func (s *Server) getAccount() answer {
	return answer{status: http.StatusOK, objectID: s.account.id, body: accountView{
		ID: s.account.id, Object: "account", ChargesEnabled: true, Country: "US", DefaultCurrency: "usd",
		DetailsSubmitted: true, PayoutsEnabled: true, Type: "standard",
	}}
}

type balanceView struct {
	Object    string        `json:"object"`
	Available []balanceLine `json:"available"`
	Livemode  bool          `json:"livemode"`
	Pending   []balanceLine `json:"pending"`
}

type balanceLine struct {
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
}

func (s *Server) getBalance() answer {
	view := balanceView{Object: "balance", Available: []balanceLine{}, Livemode: s.account.livemode, Pending: []balanceLine{}}
	for currency, amount := range s.current().received() {
		view.Pending = append(view.Pending, balanceLine{Amount: amount, Currency: currency})
	}
	return answer{status: http.StatusOK, body: view}
}

// received sums, by currency, what the account's charges brought in and did not give back.
func (b *book) received() map[string]int64 {
	sums := map[string]int64{}
	for _, o := range b.charges.all {
		if o.status == statusSucceeded && o.captured && !o.refunded {
			sums[o.currency] += o.amount
		}
	}
	return sums
}
