package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"chargeonce/charger/stripecharge/stripetest"
)

// goodEvidence is a world in which everything went as it must.
func goodEvidence() evidence {
	p := makePlan(3, 400, 4, true)
	e := evidence{Plan: p, Stored: p.Published.hub().Events, Spooled: p.Published.OverSolace, Replayed: true}
	runs := map[string]*runFigures{}
	for _, x := range p.expected() {
		runs[x.Currency] = &runFigures{
			Namespace: namespace, Period: period, Currency: x.Currency, Status: "open", ExpectedCount: x.Count, IngestedCount: x.Count,
			ExpectedTotalCents: x.TotalCents, IngestedCents: x.TotalCents, CapCents: x.TotalCents * 11 / 10,
		}
	}
	for i, id := range slices.Sorted(maps.Keys(p.Customers)) {
		c := p.Customers[id]
		status, reason, _ := strings.Cut(c.Ends[len(c.Ends)-1], " ")
		in := intent{
			ID: int64(i + 1), Customer: id, StripeCustomer: c.Terms.StripeCustomerID, AmountCents: c.Terms.AmountCents, Currency: c.Terms.Currency,
			Status: status, Reason: reason,
		}
		if status == "charged" {
			in.ChargeID = fmt.Sprintf("ch_%d", i)
			e.Effects = append(e.Effects, chargeOf(in))
			runs[in.Currency].ChargedCents += in.AmountCents
		}
		e.Intents = append(e.Intents, in)
	}
	e.Runs = []runFigures{*runs["usd"], *runs["jpy"]}
	e.FirstPass = figures{
		Counters: counters{
			Intents: p.Published.Intents, Duplicates: p.Published.Duplicates, Conflicts: p.Published.Conflicts, Quarantined: p.Published.Poison,
		},
		Intents: len(e.Intents), ConflictRows: 5, QuarantineRows: 5,
	}
	overSolace := counters{Intents: p.Published.OverSolace - p.Published.OverBoth, Duplicates: p.Published.OverBoth}
	e.FirstPass.Sources = map[string]counters{sourceSolace: overSolace, sourceHub: {
		Intents: p.Published.Intents - overSolace.Intents, Duplicates: p.Published.Duplicates - overSolace.Duplicates,
		Conflicts: p.Published.Conflicts, Quarantined: p.Published.Poison,
	}}
	e.Final = e.FirstPass
	e.Final.Counters.Redeliveries = p.Published.hub().Objects
	return e
}

func chargeOf(in intent) stripetest.Effect {
	return stripetest.Effect{
		Kind: stripetest.ChargeSucceeded, ID: in.ChargeID, Amount: in.AmountCents, Currency: in.Currency, Customer: in.StripeCustomer,
		Metadata: map[string]string{"customer_id": in.Customer, "billing_period": period},
	}
}

// first is the first intent with a status.
func (e *evidence) first(status string) *intent {
	return &e.Intents[slices.IndexFunc(e.Intents, func(in intent) bool { return in.Status == status })]
}

func TestGoodWorldIsCalledGood(t *testing.T) {
	t.Parallel()
	e := goodEvidence()
	s, problems := judge(e)
	require.Empty(t, problems)
	require.Equal(t, s.Intents, s.Pending+s.Charging+s.Charged+s.CardDeclined+s.Parked+s.Voided+s.NothingDue)
	require.Equal(t, s.Charged, s.StripeCharges)
	require.Zero(t, s.Lost)
	require.Zero(t, s.DoubleCharges)
	require.Equal(t, e.Plan.Published.Duplicates, s.Duplicates)
	require.Equal(t, e.Plan.Published.hub().Objects, s.Redeliveries)
	require.Equal(t, 400, s.Events)
	require.Equal(t, s.Events, s.Brokers[sourceHub].Events+s.Brokers[sourceSolace].Events)
	require.Equal(t, s.OverBoth, s.Brokers[sourceSolace].Duplicates)
	reasons := 0
	for _, n := range s.PendingReasons {
		reasons += n
	}
	require.Equal(t, s.Pending, reasons)
	require.Len(t, s.Runs, 2)
}

func TestBadWorldIsCalledBad(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil func(e *evidence)
		says  string
	}{
		"event missing in the hub":     {func(e *evidence) { e.Stored-- }, "the hub holds 358 events, 359 were published"},
		"message missing in the queue": {func(e *evidence) { e.Spooled-- }, "the Solace queue got 40 messages, 41 were published"},
		"Solace not recorded": {func(e *evidence) {
			e.FirstPass.Sources[sourceSolace] = counters{Intents: 1}
		}, "objects over Solace: 41 were published, 1 are counted"},
		"hub not recorded": {func(e *evidence) { delete(e.FirstPass.Sources, sourceHub) }, "objects over Event Hubs"},
		"both of one Stripe customer charged": {func(e *evidence) {
			again := e.Effects[0]
			again.ID, again.Metadata = "ch_again", map[string]string{"customer_id": "another"}
			e.Effects = append(e.Effects, again)
		}, "is charged 2 times"},
		"customer lost": {func(e *evidence) {
			i := slices.IndexFunc(e.Intents, func(in intent) bool { return in.Status == "card_declined" })
			e.Intents = slices.Delete(e.Intents, i, i+1)
		}, "1 customers are lost"},
		"customer invented": {func(e *evidence) {
			e.Intents = append(e.Intents, intent{ID: 9999, Customer: "nobody", Status: "card_declined", Reason: "card_declined"})
		}, "nobody has an intent and was never published"},
		"intent still charging": {func(e *evidence) { e.first("card_declined").Status = "charging" }, "1 intents are still charging"},
		"intent without a reason": {func(e *evidence) {
			in := e.first("card_declined")
			in.Status, in.Reason = "pending", "queued"
		}, "nobody knows what it waits for"},
		"unknown status":            {func(e *evidence) { e.first("card_declined").Status = "held" }, "the statuses add up to"},
		"run paused for everything": {func(e *evidence) { e.Runs[0].Status = "paused" }, "the run in usd is paused"},
		"waiting for no good reason": {func(e *evidence) {
			in := e.first("card_declined")
			in.Status, in.Reason = "pending", "run_paused"
		}, "do not stand where their events lead"},
		"other terms than the first event's": {func(e *evidence) { e.first("nothing_due").AmountCents = 1 }, "the first event says"},
		"double charge": {func(e *evidence) {
			again := e.Effects[0]
			again.ID = "ch_again"
			e.Effects = append(e.Effects, again)
		}, "1 double charges"},
		"charge that nobody knows": {func(e *evidence) { e.first("charged").ChargeID = "ch_other" }, "is on no intent"},
		"charge of another amount": {func(e *evidence) { e.Effects[0].Amount++ }, "its intent"},
		"charge that Stripe does not have": {func(e *evidence) {
			e.Effects = e.Effects[1:]
		}, "intents are charged"},
		"sums differ": {func(e *evidence) { e.Effects[0].Amount += 100 }, "the intents sum up to"},
		"beyond the cap": {func(e *evidence) {
			e.Runs[0].CapCents = 1
		}, "the run's cap is 1"},
		"duplicates not counted":  {func(e *evidence) { e.FirstPass.Counters.Duplicates-- }, "duplicates: "},
		"conflicts not counted":   {func(e *evidence) { e.FirstPass.Counters.Conflicts-- }, "conflicts: "},
		"poison not kept":         {func(e *evidence) { e.FirstPass.Counters.Quarantined-- }, "quarantined: "},
		"intent counted twice":    {func(e *evidence) { e.FirstPass.Counters.Intents++ }, "the ingestors counted"},
		"replay that read less":   {func(e *evidence) { e.Final.Counters.Redeliveries-- }, "the replay read"},
		"replay without an alarm": {func(e *evidence) { e.Final.ConflictRows++ }, "the replay changed something"},
		"replay taken for duplicates": {func(e *evidence) {
			e.Final.Counters.Duplicates += e.Final.Counters.Redeliveries
			e.Final.Counters.Redeliveries = 0
		}, "the replay counted 0 redeliveries"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := goodEvidence()
			c.spoil(&e)
			s, problems := judge(e)
			require.Contains(t, strings.Join(problems, "\n"), c.says)

			var out strings.Builder
			require.NoError(t, s.print(&out, problems))
			require.Contains(t, out.String(), "NOT WELL")
			require.NotContains(t, out.String(), "All is well")
		})
	}
}

func TestJSONHasEveryPromisedField(t *testing.T) {
	t.Parallel()
	s, _ := judge(goodEvidence())
	path := filepath.Join(t.TempDir(), "demo.json")
	require.NoError(t, s.write(path))
	content, err := os.ReadFile(path) //nolint:gosec // G304: just written
	require.NoError(t, err)
	var fields map[string]any
	require.NoError(t, json.Unmarshal(content, &fields))
	require.ElementsMatch(t, []string{
		"events", "intents", "pending", "charging", "charged", "card_declined", "parked", "voided", "nothing_due", "duplicates", "redeliveries",
		"conflicts", "quarantined", "stripe_charges", "double_charges", "lost", "pending_reasons", "published", "seconds", "runs",
		"brokers", "over_both",
	}, slices.Collect(maps.Keys(fields)))
	require.InDelta(t, 400, fields["events"], 0)
	over, ok := fields["brokers"].(map[string]any)[sourceSolace].(map[string]any)
	require.True(t, ok)
	require.ElementsMatch(t, []string{"events", "intents", "duplicates", "redeliveries", "conflicts", "quarantined"}, slices.Collect(maps.Keys(over)))
}

func TestSummarySaysThatSolaceIsLeftOut(t *testing.T) {
	t.Parallel()
	e := goodEvidence()
	e.LeftOut = "no compiler"
	s, _ := judge(e)
	var out strings.Builder
	require.NoError(t, s.print(&out, nil))
	require.Regexp(t, `over Solace +left out +no compiler`, out.String())
	require.NotContains(t, s.Brokers, sourceSolace)
}
