package main

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"chargeonce/schema"
)

// Shares of the events that are published, in thousandths. The first four are promised to be at least that.
const (
	shareDuplicates = 80 // beside the producer's own retries, which may repeat poison as well
	shareConflicts  = 21
	sharePoison     = 21
	shareDeclines   = 31
	shareZero       = 5
	shareArrays     = 30
	shareEnvelopes  = 60 // CloudEvents, structured and binary
	shareLines      = 10 // newline-delimited objects
	shareYen        = 40
	shareEuro       = 8  // nobody opens a run for them
	shareBoth       = 50 // sent over Solace as well as over Event Hubs
	shareSolace     = 50 // sent over Solace alone

	// retriedShare: for so many duplicates the producer itself sends one more message again, for want of an acknowledgement.
	retriedShare = 4
)

const (
	namespace = "usage-billing"
	period    = "2026-08"
	// batchEvents is how many events a producer collects for one partition before it sends.
	batchEvents = 40
	// minEvents is the fewest that leave something of everything to be killed in the middle of.
	minEvents = 20
	maxEvents = 5_000_000
	junkBytes = 100_000
)

// makePlan decides what is published, the same for the same seed: exactly events events in all, counting those that the
// producer sends twice because an acknowledgement was lost. Without solace all go to the hub.
func makePlan(seed uint64, events, partitions int, solace bool) *plan {
	g := &generator{
		rng:  rand.New(rand.NewPCG(seed, 0x6f6e6365)), //nolint:gosec // G404: a demonstration that can be repeated, no secret
		plan: &plan{Customers: map[string]*customer{}}, partitions: partitions,
	}
	duplicates, conflicts, poison := atLeast(events, shareDuplicates), atLeast(events, shareConflicts), atLeast(events, sharePoison)
	retried := max(1, duplicates/retriedShare)
	first := events - duplicates - retried - conflicts - poison
	if solace {
		first -= g.solace(events)
	}
	g.firsts(first, events)
	g.poison(poison)
	g.again(duplicates)
	g.conflicts(conflicts)
	if solace {
		g.overBoth(atLeast(events, shareBoth))
	}
	g.batches(retried)
	g.expect()
	return g.plan
}

// plan is what is published and what must come of it.
type plan struct {
	Batches   []batch
	Solace    []*message           // a line each
	Customers map[string]*customer // by customer id
	Published published
}

// published counts what is sent, the producer's own second copies included.
type published struct {
	Events     int // messages
	Objects    int // billing events in them, good or bad
	Intents    int // different customers
	Duplicates int // objects that repeat what was sent before
	Conflicts  int // objects that contradict what was sent before
	Poison     int // objects that are no billing event
	Declines   int // customers whose bank says no
	Retried    int // messages that the producer sent again by itself
	OverSolace int // messages over Solace, of one billing event each
	OverBoth   int // of those, the ones that are in the hub too
}

// hub is what of it goes over Event Hubs.
func (p published) hub() published {
	p.Events -= p.OverSolace
	p.Objects -= p.OverSolace
	return p
}

// batch is what the producer sends at once, to one partition.
type batch struct {
	Partition int
	Messages  []*message
	// LoseAck: it is stored, but the producer is not told, and sends it again.
	LoseAck bool
}

// message is one event of the hub.
type message struct {
	Body       []byte
	Properties map[string]any
	objects    []object
	partition  int
	at         float64 // place in the order of sending
	overBoth   bool
}

// object is one billing event in a message, as its producer means it; poison is one that cannot be understood.
type object struct {
	customer string
	terms    schema.Terms
	poison   bool
}

// customer is one obligation: who owes what, and what can come of it.
type customer struct {
	ID    string
	Terms schema.Terms // of the first event
	// Ends are the only states in which the customer may come to rest: "charged", or "pending conflict".
	Ends []string
	kind customerKind
}

type customerKind int

const (
	plain customerKind = iota
	declines
	zero
	unopened // in a currency that nobody opened a run for
	shared   // two customers pay from one Stripe customer
)

type generator struct {
	rng        *rand.Rand
	plan       *plan
	partitions int
	messages   []*message
	firstOnes  []*message // of single customers that are charged
	twoShapes  *customer  // known over Solace by the Stripe customer alone
	nextID     int
	nextPoison int
}

// firsts makes every customer's first event.
func (g *generator) firsts(count, events int) {
	left := count
	add := func(kind customerKind, n int, currency string) {
		for range min(n, left) {
			g.single(kind, currency)
			left--
		}
	}
	add(declines, atLeast(events, shareDeclines), "usd")
	add(zero, atLeast(events, shareZero), "usd")
	add(unopened, atLeast(events, shareEuro), "eur")
	add(plain, atLeast(events, shareYen), "jpy")
	if left >= 2 {
		g.pair()
		left -= 2
	}
	if g.twoShapes != nil {
		g.otherShape()
		left--
	}
	for range min(left, atLeast(events, shareArrays)) {
		g.several(jsonArray)
		left--
	}
	for range min(left, atLeast(events, shareLines)) {
		g.several(jsonLines)
		left--
	}
	add(plain, left, "usd")
}

// single is a message with one customer's event; some of them come in a CloudEvent.
func (g *generator) single(kind customerKind, currency string) *message {
	c := g.customer(kind, currency)
	m := &message{Body: g.encode(c.ID, c.Terms), objects: []object{{customer: c.ID, terms: c.Terms}}}
	switch n := g.rng.IntN(1000); {
	case n < shareEnvelopes/3:
		m.Properties = map[string]any{"cloudEvents:specversion": "1.0", "cloudEvents:type": "usage.billed", "cloudEvents:source": "/metering", "cloudEvents:id": c.ID}
	case n < 2*shareEnvelopes/3:
		m.Body = fmt.Appendf(nil, `{"specversion":"1.0","type":"usage.billed","source":"/metering","id":%q,"data":%s}`, c.ID, m.Body)
	case n < shareEnvelopes:
		m.Body = fmt.Appendf(nil, `{"specversion":"1.0","type":"usage.billed","source":"/metering","id":%q,"data_base64":%q}`,
			c.ID, base64.StdEncoding.EncodeToString(m.Body))
	}
	g.add(m, g.rng.Float64())
	if kind == plain {
		g.firstOnes = append(g.firstOnes, m)
	}
	return m
}

// pair is two customers behind one Stripe customer: one is charged, the other waits for a person.
func (g *generator) pair() {
	one, two := g.customer(shared, "usd"), g.customer(shared, "usd")
	two.Terms.StripeCustomerID = one.Terms.StripeCustomerID
	for _, c := range []*customer{one, two} {
		g.add(&message{Body: g.encode(c.ID, c.Terms), objects: []object{{customer: c.ID, terms: c.Terms}}}, g.rng.Float64())
	}
}

// solace makes what is sent over Solace alone, and returns how many messages of the plan go over Solace in all.
func (g *generator) solace(events int) int {
	alone := atLeast(events, shareSolace)
	for range alone {
		c := g.customer(plain, "usd")
		g.addToSolace(&message{Body: g.encode(c.ID, c.Terms), objects: []object{{customer: c.ID, terms: c.Terms}}, at: g.rng.Float64()})
	}
	// A producer that knows customers by their Stripe id only; the other one's event is otherShape.
	c := g.customer(shared, "usd")
	delete(g.plan.Customers, c.ID)
	c.ID = c.Terms.StripeCustomerID
	g.plan.Customers[c.ID] = c
	g.twoShapes = c
	g.addToSolace(&message{Body: g.encode(c.ID, c.Terms), objects: []object{{customer: c.ID, terms: c.Terms}}, at: g.rng.Float64()})
	return alone + 1 + atLeast(events, shareBoth)
}

// otherShape is the event of the customer that another producer sends over the hub, by the account: one of the two is charged, the other
// waits for a person.
func (g *generator) otherShape() {
	c := g.customer(shared, "usd")
	c.Terms = g.twoShapes.Terms
	g.add(&message{Body: g.encode(c.ID, c.Terms), objects: []object{{customer: c.ID, terms: c.Terms}}}, g.rng.Float64())
}

// overBoth sends events of the hub over Solace as well, earlier or later.
func (g *generator) overBoth(count int) {
	for i := range count {
		of := g.firstOnes[(i*11)%len(g.firstOnes)]
		g.addToSolace(&message{Body: of.Body, objects: of.objects, at: g.rng.Float64(), overBoth: true})
	}
	slices.SortStableFunc(g.plan.Solace, func(a, b *message) int { return cmp.Compare(a.at, b.at) })
}

func (g *generator) addToSolace(m *message) { g.plan.Solace = append(g.plan.Solace, m) }

// several is a message with more than one customer's event.
func (g *generator) several(join func(bodies []string) string) {
	m := &message{}
	var bodies []string
	for range 2 + g.rng.IntN(3) {
		c := g.customer(plain, "usd")
		m.objects = append(m.objects, object{customer: c.ID, terms: c.Terms})
		bodies = append(bodies, string(g.encode(c.ID, c.Terms)))
	}
	m.Body = []byte(join(bodies))
	g.add(m, g.rng.Float64())
}

func jsonArray(bodies []string) string { return "[" + strings.Join(bodies, ",") + "]" }
func jsonLines(bodies []string) string { return strings.Join(bodies, "\n") + "\n" }

func (g *generator) customer(kind customerKind, currency string) *customer {
	g.nextID++
	c := &customer{ID: fmt.Sprintf("acct-%07d", g.nextID), kind: kind}
	c.Terms = schema.Terms{AmountCents: g.amount(currency), Currency: currency, StripeCustomerID: fmt.Sprintf("cus_%s%d", g.letters(10), g.nextID)}
	switch {
	case kind == declines:
		// The Stripe stand-in reads from the id how the card behaves.
		behaviours := []string{"_decline_insufficient_funds", "_decline_expired_card", "_decline_do_not_honor", "_decline_lost_card", "_nocard", "_sca"}
		c.Terms.StripeCustomerID += behaviours[g.nextID%len(behaviours)]
	case kind == zero:
		c.Terms.AmountCents = 0
	case kind == plain && g.rng.IntN(20) == 0:
		c.ID = c.Terms.StripeCustomerID // producers that know customers by their Stripe id only
	}
	g.plan.Customers[c.ID] = c
	return c
}

// amount is a subscription's price and some usage, in the currency's minor unit.
func (g *generator) amount(currency string) int64 {
	prices := []int64{900, 1900, 1900, 2900, 4900, 4900, 9900, 29900}
	amount := prices[g.rng.IntN(len(prices))] + int64(g.rng.ExpFloat64()*1500)
	if schema.Decimals(currency) == 0 {
		return amount / 100 * 150 // yen
	}
	return amount
}

func (g *generator) letters(n int) string {
	const alphabet = "BCDFGHJKLMNPQRSTVWXZ" // none of the stand-in's words can come up
	text := make([]byte, n)
	for i := range text {
		text[i] = alphabet[g.rng.IntN(len(alphabet))]
	}
	return string(text)
}

// encode writes an event as a producer would, without what may be left out.
func (g *generator) encode(id string, t schema.Terms) []byte {
	event := struct {
		CustomerID       string `json:"customer_id"`
		BillingPeriod    string `json:"billing_period"`
		AmountCents      int64  `json:"amount_cents"`
		Currency         string `json:"currency,omitempty"`
		StripeCustomerID string `json:"stripe_customer_id,omitempty"`
		Description      string `json:"description,omitempty"`
	}{CustomerID: id, BillingPeriod: period, AmountCents: t.AmountCents}
	if t.Currency != "usd" || g.rng.IntN(2) == 0 {
		event.Currency = t.Currency
	}
	if t.StripeCustomerID != id {
		event.StripeCustomerID = t.StripeCustomerID
	}
	if g.rng.IntN(2) == 0 {
		event.Description = "Usage in August 2026"
	}
	body, err := json.Marshal(event)
	if err != nil {
		panic("internal error: encode a billing event: " + err.Error()) // strings and numbers always encode
	}
	return body
}

// poison makes messages that hold something which can never become an intent.
func (g *generator) poison(count int) {
	for range count {
		m := &message{objects: []object{{poison: true}}}
		g.nextPoison++
		n := g.nextPoison
		switch n % 8 {
		case 0:
			m.Body = fmt.Appendf(nil, "<event number=\"%d\"/>", n)
		case 1:
			m.Body = fmt.Appendf(nil, `{"customer_id":"twice-%d","customer_id":"twice-too","billing_period":%q,"amount_cents":100,"stripe_customer_id":"cus_x"}`, n, period)
		case 2:
			m.Body = fmt.Appendf(nil, `{"customer_id":"text-%d","billing_period":%q,"amount_cents":"49.00","stripe_customer_id":"cus_x"}`, n, period)
		case 3:
			m.Body = fmt.Appendf(nil, `{"customer_id":"eu:west:%d","billing_period":%q,"amount_cents":100,"stripe_customer_id":"cus_x"}`, n, period)
		case 4:
			m.Body = fmt.Appendf(nil, `{"customer_id":"credit-%d","billing_period":%q,"amount_cents":-100,"stripe_customer_id":"cus_x"}`, n, period)
		case 5:
			m.Body = []byte{}
		case 6:
			m.Body = fmt.Appendf(nil, `{"customerId":"camel-%d","billing_period":%q,"amount_cents":100}`, n, period)
		case 7: // the good neighbours of a bad object
			g.poisonAmongGood(m, n)
		}
		if n == 1 {
			m.Body = g.junk()
		}
		g.add(m, g.rng.Float64())
	}
}

func (g *generator) poisonAmongGood(m *message, n int) {
	one, two := g.customer(plain, "usd"), g.customer(plain, "usd")
	bad := fmt.Sprintf(`{"customer_id":"rock-%d","billing_period":%q,"amount_cents":100,"currency":"rocks","stripe_customer_id":"cus_x"}`, n, period)
	m.objects = []object{{customer: one.ID, terms: one.Terms}, {poison: true}, {customer: two.ID, terms: two.Terms}}
	m.Body = []byte(jsonArray([]string{string(g.encode(one.ID, one.Terms)), bad, string(g.encode(two.ID, two.Terms))}))
}

// junk is one long event without meaning, and without a line end that would make several of it.
func (g *generator) junk() []byte {
	const alphabet = "!#$%&()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ^_abcdefghijklmnopqrstuvwxyz|~"
	body := make([]byte, junkBytes)
	for i := range body {
		body[i] = alphabet[g.rng.IntN(len(alphabet))]
	}
	body[0] = '#' // neither an object nor an array
	return body
}

// again repeats messages of before, byte for byte.
func (g *generator) again(count int) {
	for range count {
		of := g.firstOnes[g.rng.IntN(len(g.firstOnes))]
		g.addTo(&message{Body: of.Body, Properties: of.Properties, objects: of.objects}, of.partition, g.later(of))
	}
}

// conflicts are second events of a customer, with another amount. They come after the first one, in its partition, so that it
// is certain which of the two is the intent.
func (g *generator) conflicts(count int) {
	for i := range count {
		of := g.firstOnes[(i*7)%len(g.firstOnes)]
		c := g.plan.Customers[of.objects[0].customer]
		terms := c.Terms
		terms.AmountCents += 100 + int64(i)
		g.addTo(&message{Body: g.encode(c.ID, terms), objects: []object{{customer: c.ID, terms: terms}}}, of.partition, g.later(of))
	}
}

// later is a place in the order after a message.
func (g *generator) later(m *message) float64 { return m.at + (1-m.at)*g.rng.Float64() }

func (g *generator) add(m *message, at float64) { g.addTo(m, g.rng.IntN(g.partitions), at) }

func (g *generator) addTo(m *message, partition int, at float64) {
	m.partition, m.at = partition, at
	g.messages = append(g.messages, m)
}

// batches puts the messages in order and cuts them into batches, some of which the producer sends again: retried messages
// in all.
func (g *generator) batches(retried int) {
	slices.SortStableFunc(g.messages, func(a, b *message) int { return cmp.Compare(a.at, b.at) })
	open := make([]batch, g.partitions)
	var cut []batch
	for _, m := range g.messages {
		b := &open[m.partition]
		b.Partition = m.partition
		b.Messages = append(b.Messages, m)
		if len(b.Messages) == batchEvents {
			cut = append(cut, *b)
			*b = batch{}
		}
	}
	for _, b := range open {
		if len(b.Messages) > 0 {
			cut = append(cut, b)
		}
	}
	g.plan.Batches = loseAcks(g.rng, cut, retried)
}

// loseAcks marks batches of just so many messages in all; one that is too long is cut in two.
func loseAcks(rng *rand.Rand, batches []batch, messages int) []batch {
	lost := map[int]bool{}
	cutAt, rest := -1, 0
	for messages > 0 {
		i := rng.IntN(len(batches))
		if lost[i] {
			continue
		}
		lost[i] = true
		if size := len(batches[i].Messages); size > messages {
			cutAt, rest = i, messages
		}
		messages -= min(messages, len(batches[i].Messages))
	}
	var out []batch
	for i, b := range batches {
		b.LoseAck = lost[i]
		if i == cutAt {
			head, tail := b, b
			head.Messages, tail.Messages, tail.LoseAck = b.Messages[:rest], b.Messages[rest:], false
			out = append(out, head, tail)
			continue
		}
		out = append(out, b)
	}
	return out
}

// expect counts what is sent, and says how each customer must end.
func (g *generator) expect() {
	p := &g.plan.Published
	c := census{published: p, customers: g.plan.Customers, sent: map[string]bool{}, contradicted: map[string]bool{}}
	for _, b := range g.plan.Batches {
		copies := 1
		if b.LoseAck {
			copies = 2
			p.Retried += len(b.Messages)
		}
		for range copies {
			for _, m := range b.Messages {
				c.count(m)
			}
		}
	}
	for _, m := range g.plan.Solace {
		c.count(m)
		p.OverSolace++
		if m.overBoth {
			p.OverBoth++
		}
	}
	for _, one := range g.plan.Customers {
		if one.kind == declines {
			p.Declines++
		}
		one.Ends = ends(one.kind, c.contradicted[one.ID])
	}
}

// census counts messages as they are sent.
type census struct {
	*published
	customers          map[string]*customer
	sent, contradicted map[string]bool
}

func (c *census) count(m *message) {
	c.Events++
	for _, o := range m.objects {
		c.Objects++
		switch {
		case o.poison:
			c.Poison++
		case !c.sent[o.customer]:
			c.sent[o.customer] = true
			c.Intents++
		case o.terms == c.customers[o.customer].Terms:
			c.Duplicates++
		default:
			c.Conflicts++
			c.contradicted[o.customer] = true
		}
	}
}

// ends are the states in which a customer may come to rest. One with a contradiction is charged if that came too late, and
// else waits for a person.
func ends(kind customerKind, contradicted bool) []string {
	switch kind {
	case declines:
		return []string{"card_declined"}
	case zero:
		return []string{"nothing_due"}
	case unopened:
		return []string{"pending no_run"}
	case shared:
		return []string{"charged", "pending same_customer"}
	case plain:
		if contradicted {
			return []string{"charged", "pending conflict"}
		}
	}
	return []string{"charged"}
}

// atLeast is a share of n in thousandths, rounded up, and 1 at least.
func atLeast(n, thousandths int) int { return max(1, (n*thousandths+999)/1000) }

// expectation is what the customer's contract system knows of a run before any event arrives.
type expectation struct {
	Currency   string
	Count      int64
	TotalCents int64
}

// expected sums the obligations by currency, of those for which a run is opened.
func (p *plan) expected() []expectation {
	byCurrency := map[string]*expectation{"usd": {Currency: "usd"}, "jpy": {Currency: "jpy"}}
	for _, c := range p.Customers {
		if e := byCurrency[c.Terms.Currency]; e != nil {
			e.Count++
			e.TotalCents += c.Terms.AmountCents
		}
	}
	return []expectation{*byCurrency["usd"], *byCurrency["jpy"]}
}
