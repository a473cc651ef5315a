package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"chargeonce/charger/stripecharge/stripetest"
	"chargeonce/schema"
)

// judge holds what the database says against what was published and what the stand-ins' ledgers show. Without problems all
// is well.
func judge(e evidence) (*summary, []string) {
	s := &summary{
		Events: e.Stored + e.Spooled, Intents: len(e.Intents), OverBoth: e.Plan.Published.OverBoth, LeftOut: e.LeftOut,
		Brokers:    map[string]brokerSummary{sourceHub: {e.Stored, e.FirstPass.Sources[sourceHub]}},
		Duplicates: e.FirstPass.Counters.Duplicates, Redeliveries: e.Final.Counters.Redeliveries,
		Conflicts: e.FirstPass.Counters.Conflicts, Quarantined: e.FirstPass.Counters.Quarantined,
		PendingReasons: map[string]int{}, Published: publishedShares{
			Duplicates: e.Plan.Published.Duplicates, Conflicts: e.Plan.Published.Conflicts,
			Poison: e.Plan.Published.Poison, Declines: e.Plan.Published.Declines,
		},
		reasons: map[string]int{}, expected: e.Plan.Published, final: e.Final,
	}
	if e.LeftOut == "" {
		s.Brokers[sourceSolace] = brokerSummary{e.Spooled, e.FirstPass.Sources[sourceSolace]}
	}
	for _, in := range e.Intents {
		s.countIntent(in)
	}
	var problems []string
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	s.checkRecorded(e, wrong)
	s.checkCustomers(e, wrong)
	s.checkMoney(e, wrong)
	return s, problems
}

// evidence is all that the verdict is made from.
type evidence struct {
	Plan      *plan
	Stored    int // events in the hub, by its ledger
	Spooled   int // messages that the Solace queue got, by its broker's ledger
	LeftOut   string
	Effects   []stripetest.Effect
	Intents   []intent
	Runs      []runFigures
	FirstPass figures // before the replay
	Final     figures
	Replayed  bool
}

// summary is what DEMO_JSON gets.
type summary struct {
	Events         int             `json:"events"`
	Intents        int             `json:"intents"`
	Pending        int             `json:"pending"`
	Charging       int             `json:"charging"`
	Charged        int             `json:"charged"`
	CardDeclined   int             `json:"card_declined"`
	Parked         int             `json:"parked"`
	Voided         int             `json:"voided"`
	NothingDue     int             `json:"nothing_due"`
	Duplicates     int             `json:"duplicates"`
	Redeliveries   int             `json:"redeliveries"`
	Conflicts      int             `json:"conflicts"`
	Quarantined    int             `json:"quarantined"`
	StripeCharges  int             `json:"stripe_charges"`
	DoubleCharges  int             `json:"double_charges"`
	Lost           int             `json:"lost"`
	PendingReasons map[string]int  `json:"pending_reasons"`
	Published      publishedShares `json:"published"`
	Seconds        float64         `json:"seconds"`
	Runs           []runSummary    `json:"runs"`
	// Brokers are "eventhubs" and "solace", without the replay; Solace is missing, with the reason in LeftOut, where its client is.
	Brokers  map[string]brokerSummary `json:"brokers"`
	OverBoth int                      `json:"over_both"` // events sent over both
	LeftOut  string                   `json:"left_out,omitempty"`

	reasons  map[string]int // by "status (reason)"
	sums     []currencySum
	expected published
	final    figures
}

// brokerSummary is what came over one broker.
type brokerSummary struct {
	Events int `json:"events"` // by its ledger
	counters
}

type publishedShares struct {
	Duplicates int `json:"duplicates"`
	Conflicts  int `json:"conflicts"`
	Poison     int `json:"poison"`
	Declines   int `json:"declines"`
}

// runSummary is a billing run: sums in the currency's minor unit.
type runSummary struct {
	Namespace          string `json:"namespace"`
	Period             string `json:"period"`
	Currency           string `json:"currency"`
	Status             string `json:"status"`
	ExpectedCount      int64  `json:"expected_count"`
	IngestedCount      int64  `json:"ingested_count"`
	ExpectedTotalCents int64  `json:"expected_total_cents"`
	IngestedCents      int64  `json:"ingested_cents"`
	CapCents           int64  `json:"cap_cents"`
	AllocatedCents     int64  `json:"allocated_cents"`
	ChargedCents       int64  `json:"charged_cents"`
	LedgerCents        int64  `json:"ledger_cents"`
}

// currencySum is what was charged in a currency, by both sides.
type currencySum struct {
	currency         string
	database, ledger int64 // minor unit
}

func (s *summary) countIntent(in intent) {
	place := map[string]*int{
		"pending": &s.Pending, "charging": &s.Charging, "charged": &s.Charged, "card_declined": &s.CardDeclined,
		"parked": &s.Parked, "voided": &s.Voided, "nothing_due": &s.NothingDue,
	}[in.Status]
	if place != nil { // else the statuses do not add up, and that is said
		*place++
	}
	s.reasons[in.Status+" ("+in.Reason+")"]++
	if in.Status == "pending" {
		s.PendingReasons[in.Reason]++
	}
}

// checkRecorded: everything published was recorded, as what it is.
func (s *summary) checkRecorded(e evidence, wrong func(string, ...any)) {
	want, counted := e.Plan.Published, e.FirstPass.Counters
	if e.Stored != want.hub().Events {
		wrong("the hub holds %d events, %d were published", e.Stored, want.hub().Events)
	}
	if e.Spooled != want.OverSolace {
		wrong("the Solace queue got %d messages, %d were published", e.Spooled, want.OverSolace)
	}
	if s.Intents != want.Intents || counted.Intents != want.Intents {
		wrong("%d customers were published; there are %d intents, and the ingestors counted %d", want.Intents, s.Intents, counted.Intents)
	}
	// More than was published can be counted: what was read again after a process was killed. Less is a loss.
	for _, c := range []struct {
		what              string
		counted, expected int
	}{
		{"duplicates", counted.Duplicates + counted.Redeliveries, want.Duplicates},
		{"conflicts", counted.Conflicts + counted.Redeliveries, want.Conflicts},
		{"quarantined", counted.Quarantined + counted.Redeliveries, want.Poison},
		{"objects over Event Hubs", e.FirstPass.Sources[sourceHub].objects(), want.hub().Objects},
		{"objects over Solace", e.FirstPass.Sources[sourceSolace].objects(), want.OverSolace},
	} {
		if c.counted < c.expected {
			wrong("%s: %d were published, %d are counted", c.what, c.expected, c.counted)
		}
	}
	if !e.Replayed {
		return
	}
	if again := e.Final.Counters.objects() - counted.objects(); again < want.hub().Objects {
		wrong("the replay read %d objects, %d were published", again, want.hub().Objects)
	}
	// What came over Solace first, or alone, is no redelivery when the hub is read again.
	if again := e.Final.Counters.Redeliveries - counted.Redeliveries; again < want.Intents-want.OverSolace {
		wrong("the replay counted %d redeliveries for %d intents", again, want.Intents-want.OverSolace)
	}
	if before, after := e.FirstPass, e.Final; after.Intents != before.Intents || after.ConflictRows != before.ConflictRows || after.QuarantineRows != before.QuarantineRows {
		wrong("the replay changed something: intents %d -> %d, conflicts %d -> %d, quarantined %d -> %d", before.Intents, after.Intents,
			before.ConflictRows, after.ConflictRows, before.QuarantineRows, after.QuarantineRows)
	}
}

// checkCustomers: every customer stands where its events lead, and none is lost.
func (s *summary) checkCustomers(e evidence, wrong func(string, ...any)) {
	if sum := s.Pending + s.Charging + s.Charged + s.CardDeclined + s.Parked + s.Voided + s.NothingDue; sum != s.Intents {
		wrong("the statuses add up to %d of %d intents", sum, s.Intents)
	}
	if s.Charging != 0 {
		wrong("%d intents are still charging", s.Charging)
	}
	byCustomer := make(map[string]intent, len(e.Intents))
	for _, in := range e.Intents {
		byCustomer[in.Customer] = in
		if in.Status == "pending" && !needsPerson(in.Reason) {
			wrong("%s is pending (%s): nobody knows what it waits for", in.Customer, in.Reason)
		}
		if e.Plan.Customers[in.Customer] == nil {
			wrong("%s has an intent and was never published", in.Customer)
		}
	}
	var elsewhere []string
	for _, id := range slices.Sorted(maps.Keys(e.Plan.Customers)) {
		c := e.Plan.Customers[id]
		in, recorded := byCustomer[id]
		switch {
		case !recorded || in.Status == "charging" || in.Status == "pending" && !needsPerson(in.Reason):
			s.Lost++
		case in.AmountCents != c.Terms.AmountCents || in.Currency != c.Terms.Currency || in.StripeCustomer != c.Terms.StripeCustomerID:
			wrong("%s: the first event says %d %s, the intent %d %s", id, c.Terms.AmountCents, c.Terms.Currency, in.AmountCents, in.Currency)
		case !slices.Contains(c.Ends, in.place()):
			elsewhere = append(elsewhere, fmt.Sprintf("%s is %s (%s), not %s", id, in.Status, in.Reason, strings.Join(c.Ends, " or ")))
		}
	}
	if s.Lost > 0 {
		wrong("%d customers are lost", s.Lost)
	}
	if n := len(elsewhere); n > 0 {
		wrong("%d intents do not stand where their events lead: %s", n, strings.Join(elsewhere[:min(n, 5)], "; "))
	}
}

// checkMoney: the ledger of the Stripe stand-in and the database tell the same, charge by charge.
func (s *summary) checkMoney(e evidence, wrong func(string, ...any)) {
	database, ledger := map[string]int64{}, map[string]int64{}
	charged := map[string]intent{} // by charge id
	for _, in := range e.Intents {
		if in.Status == "charged" {
			charged[in.ChargeID] = in
			database[in.Currency] += in.AmountCents
		}
	}
	byObligation, byStripeCustomer := map[string]int{}, map[string]int{}
	for _, f := range e.Effects {
		if f.Kind != stripetest.ChargeSucceeded {
			continue
		}
		s.StripeCharges++
		ledger[f.Currency] += f.Amount
		byObligation[f.Metadata["customer_id"]+"\n"+f.Metadata["billing_period"]]++
		byStripeCustomer[f.Customer+" in "+f.Currency]++
		in, known := charged[f.ID]
		switch {
		case !known:
			wrong("charge %s of %d %s (customer %s) is on no intent", f.ID, f.Amount, f.Currency, f.Customer)
		case in.AmountCents != f.Amount || in.Currency != f.Currency || in.StripeCustomer != f.Customer:
			wrong("charge %s is %d %s of %s, its intent %d says %d %s of %s", f.ID, f.Amount, f.Currency, f.Customer, in.ID, in.AmountCents, in.Currency, in.StripeCustomer)
		}
	}
	for _, n := range byObligation {
		if n > 1 {
			s.DoubleCharges += n - 1
		}
	}
	for _, customer := range slices.Sorted(maps.Keys(byStripeCustomer)) {
		if n := byStripeCustomer[customer]; n > 1 {
			wrong("Stripe customer %s is charged %d times", customer, n)
		}
	}
	if s.DoubleCharges != 0 {
		wrong("%d double charges", s.DoubleCharges)
	}
	if s.StripeCharges != s.Charged {
		wrong("Stripe has %d charges, %d intents are charged", s.StripeCharges, s.Charged)
	}
	s.compareSums(e.Runs, database, ledger, wrong)
}

func (s *summary) compareSums(runs []runFigures, database, ledger map[string]int64, wrong func(string, ...any)) {
	currencies := maps.Clone(database)
	maps.Copy(currencies, ledger)
	for _, currency := range slices.Sorted(maps.Keys(currencies)) {
		s.sums = append(s.sums, currencySum{currency, database[currency], ledger[currency]})
		if database[currency] != ledger[currency] {
			wrong("%s: the intents sum up to %d, Stripe's charges to %d", currency, database[currency], ledger[currency])
		}
	}
	for _, r := range runs {
		run := runSummary(r)
		run.LedgerCents = ledger[r.Currency]
		s.Runs = append(s.Runs, run)
		if run.LedgerCents > run.CapCents {
			wrong("%s: %d charged, the run's cap is %d", r.Currency, run.LedgerCents, run.CapCents)
		}
		if run.Status != "open" {
			wrong("the run in %s is %s", r.Currency, run.Status)
		}
	}
}

// print writes the table and the verdict.
func (s *summary) print(out io.Writer, problems []string) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(what string, n any, note string) { fmt.Fprintf(w, "%s\t%v\t%s\n", what, n, note) }
	fmt.Fprintln(w)
	row("events", s.Events, fmt.Sprintf("%d billing events in them, good or bad; %d sent twice by the producer itself", s.expected.Objects, s.expected.Retried))
	row("  over Event Hubs", s.Brokers[sourceHub].Events, s.Brokers[sourceHub].String())
	if s.LeftOut == "" {
		row("  over Solace", s.Brokers[sourceSolace].Events, s.Brokers[sourceSolace].String())
		row("  over both", s.OverBoth, "one intent each")
	} else {
		row("  over Solace", "left out", s.LeftOut)
	}
	row("intents", s.Intents, "one for each customer and period")
	for _, key := range slices.Sorted(maps.Keys(s.reasons)) {
		row("  "+key, s.reasons[key], "")
	}
	row("duplicates", s.Duplicates, fmt.Sprintf("%d published", s.expected.Duplicates))
	row("conflicts", s.Conflicts, fmt.Sprintf("%d published; the first event stays, a person decides", s.expected.Conflicts))
	row("quarantined", s.Quarantined, fmt.Sprintf("%d published; kept with the reason", s.expected.Poison))
	row("redeliveries", s.Redeliveries, fmt.Sprintf("the ingestors read %d billing events in all; what was no intent was known again as what it is", s.final.Counters.objects()))
	row("charges at Stripe", s.StripeCharges, "by the stand-in's ledger")
	row("double charges", s.DoubleCharges, "")
	row("lost", s.Lost, "")
	for _, sum := range s.sums {
		row("charged "+sum.currency, schema.FormatAmount(sum.database, sum.currency), "by the ledger "+schema.FormatAmount(sum.ledger, sum.currency))
	}
	for _, r := range s.Runs {
		amount := func(minor int64) string { return schema.FormatAmount(minor, r.Currency) }
		row("run "+r.Period+" "+r.Currency, r.Status, fmt.Sprintf("expected %d customers and %s; ingested %d and %s; cap %s; charged %s",
			r.ExpectedCount, amount(r.ExpectedTotalCents), r.IngestedCount, amount(r.IngestedCents), amount(r.CapCents), amount(r.ChargedCents)))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if len(problems) == 0 {
		_, err := fmt.Fprintf(out, "\nAll is well after %.0f s: every event is accounted for, nobody was charged twice, and the books agree to the cent.\n", s.Seconds)
		return err
	}
	_, err := fmt.Fprintf(out, "\nNOT WELL after %.0f s:\n  %s\n", s.Seconds, strings.Join(problems, "\n  "))
	return err
}

func (b brokerSummary) String() string {
	return fmt.Sprintf("%d intents came so, %d duplicates, %d redeliveries, %d conflicts, %d quarantined", b.Intents, b.Duplicates, b.Redeliveries, b.Conflicts, b.Quarantined)
}

// write writes the JSON, all of it or nothing.
func (s *summary) write(path string) error {
	encoded, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the summary: %w", err)
	}
	if err := os.WriteFile(path+".new", append(encoded, '\n'), 0o644); err != nil { //nolint:gosec // G306: a summary without secrets, for others to read
		return fmt.Errorf("write the summary: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write the summary: %w", err)
	}
	return nil
}
