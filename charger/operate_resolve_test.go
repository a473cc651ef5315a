package charger

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"chargeonce/charger/stripecharge"
	"chargeonce/charger/stripecharge/stripetest"
	"chargeonce/schema"
)

// asker is a charger that only answers a person's questions: nothing runs in it.
func (b *bundle) asker(t *testing.T) *Charger {
	t.Helper()
	c, err := New(b.config(t))
	require.NoError(t, err)
	return c
}

// reads counts the requests that a person's question makes: of lists and of objects.
func (b *bundle) reads() int {
	n := 0
	for _, r := range b.stripe.Requests() {
		if r.Method == "GET" && r.Path != "/v1/account" {
			n++
		}
	}
	return n
}

// requireLeaseOver checks that a refused question leaves nothing behind that keeps others from the intent.
func (b *bundle) requireLeaseOver(t *testing.T, id int64) {
	t.Helper()
	var alive, unfinished int
	require.NoError(t, b.owner.QueryRow(t.Context(), `
		SELECT count(*) FILTER (WHERE i.lease_until > clock_timestamp()), (SELECT count(*) FROM billing.charge_attempts a WHERE a.intent_id = $1 AND a.finished_at IS NULL)
		FROM billing.intents i WHERE i.id = $1`, id).Scan(&alive, &unfinished))
	require.Zero(t, alive)
	require.Zero(t, unfinished)
}

func TestM12ResolveIsRefusedWhileALeaseRuns(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	id := b.intend(t, 1000, "usd", "cus_1")[0]
	b.open(t, "100.00", "usd")
	h := byHand(t, b, id)
	h.claims(t, id, stripecharge.OpCreate)
	before := b.reads()
	_, err := b.asker(t).ResolveCharged(t.Context(), b.person(t), id, "ch_1")
	requireRefused(t, err, "lease of a call")
	_, err = b.asker(t).ResolveNotCharged(t.Context(), b.person(t), id)
	requireRefused(t, err, "lease of a call")
	require.Equal(t, before, b.reads(), "Stripe was not even asked")
	require.Equal(t, "charging/sent", b.intent(t, id).Status+"/"+b.intent(t, id).Reason)
}

func TestM12ChargedRecordsAValidatedCharge(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		byIntent bool // by the payment intent's id instead of the charge's
		park     bool
	}{"charge": {false, false}, "payment intent": {true, false}, "parked": {false, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripetest.Config{})
			id := b.intend(t, 1000, "usd", "cus_1")[0]
			b.open(t, "100.00", "usd")
			b.doubt(t, id, true)
			if test.park {
				require.NoError(t, b.person(t).Park(t.Context(), id))
			}
			charge := b.stripe.Charges()[0]
			object := charge.ID
			if test.byIntent {
				object = charge.PaymentIntent
			}
			resolved, err := b.asker(t).ResolveCharged(t.Context(), b.person(t), id, object)
			require.NoError(t, err)
			require.Equal(t, charge.ID, resolved.ChargeID)
			in := b.intent(t, id)
			require.Equal(t, "charged/adopted", in.Status+"/"+in.Reason)
			require.Zero(t, in.Unresolved)
			require.Equal(t, []string{"create:unknown", "read:charged"}, in.Results)
			b.once(t, 1000, id)
			b.requireAllocated(t)
			require.Equal(t, "open", b.run(t).Status)
			require.Equal(t, "intent_resolve_charged by alice: ticket 7", b.actions(t, id)[len(b.actions(t, id))-1])
			_, err = b.asker(t).ResolveCharged(t.Context(), b.person(t), id, object)
			requireRefused(t, err, "is charged")
		})
	}
}

func TestM12ChargedRefusesWhatIsNotTheIntentsCharge(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault  stripetest.Fault
		object string // empty: the intent's own charge
		words  []string
	}{
		"amount":     {fault: stripetest.Fault{Do: stripetest.Alter, Set: map[string]any{"amount": 999}}, words: []string{"amount 999 instead of 1000"}},
		"customer":   {fault: stripetest.Fault{Do: stripetest.Alter, Set: map[string]any{"customer": "cus_9"}}, words: []string{`customer "cus_9" instead of "cus_1"`}},
		"currency":   {fault: stripetest.Fault{Do: stripetest.Alter, Set: map[string]any{"currency": "eur"}}, words: []string{`currency "eur"`}},
		"metadata":   {fault: stripetest.Fault{Do: stripetest.Alter, Set: map[string]any{"metadata": map[string]string{}}}, words: []string{"intent_key"}},
		"pending":    {fault: stripetest.Fault{Do: stripetest.Alter, Set: map[string]any{"status": "pending"}}, words: []string{"is pending, not succeeded"}},
		"failed":     {fault: stripetest.Fault{Do: stripetest.Alter, Set: map[string]any{"status": "failed"}}, words: []string{"is failed, not succeeded"}},
		"uncaptured": {fault: stripetest.Fault{Do: stripetest.Alter, Set: map[string]any{"captured": false}}, words: []string{"not captured"}},
		"other id":   {fault: stripetest.Fault{Do: stripetest.WrongObject}, words: []string{"could not be read"}},
		"no object":  {object: "ch_nobodys", words: []string{"could not be read", "http 404"}},
		"no id":      {object: "cus_1", words: []string{"could not be read", "ch_..."}},
		"empty":      {fault: stripetest.Fault{Do: stripetest.EmptyObject}, words: []string{"could not be read"}},
		"5xx":        {fault: stripetest.Fault{Do: stripetest.BadGateway}, words: []string{"could not be read"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripetest.Config{})
			id := b.intend(t, 1000, "usd", "cus_1")[0]
			b.open(t, "100.00", "usd")
			b.doubt(t, id, true)
			object := test.object
			if object == "" {
				object = b.stripe.Charges()[0].ID
				test.fault.Match = stripetest.Match{Method: "GET", Path: "/v1/charges/"}
				require.NoError(t, b.stripe.AddFaults(test.fault))
			}
			_, err := b.asker(t).ResolveCharged(t.Context(), b.person(t), id, object)
			requireRefused(t, err, test.words...)
			in := b.intent(t, id)
			require.Equal(t, "charging/in_doubt", in.Status+"/"+in.Reason)
			require.Equal(t, 1, in.Unresolved)
			require.NotNil(t, in.Reserved)
			require.Len(t, in.Results, 2, "the question stands in the story")
			require.Empty(t, b.actions(t, id))
			b.requireLeaseOver(t, id)
		})
	}
}

func TestM12ChargedRefusesAChargeOfAnotherIntent(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 1000, "usd", "cus_1", "cus_2")
	b.open(t, "100.00", "usd")
	b.doubt(t, ids[0], true)
	charge := b.stripe.Charges()[0].ID
	// Another row already says that this is its charge.
	b.exec(t, `UPDATE billing.intents SET status = 'charged', status_reason = 'adopted', charge_id = $2 WHERE id = $1`, ids[1], charge)
	_, err := b.asker(t).ResolveCharged(t.Context(), b.person(t), ids[0], charge)
	requireRefused(t, err, "recorded for another intent")
	require.Equal(t, 1, b.intent(t, ids[0]).Unresolved)
	b.requireLeaseOver(t, ids[0])
}

// The charge of a key that was given up: it is recorded, for money moved, and what that contradicts pauses the run.
func TestM12ChargedOfAnEarlierGenerationPausesTheRun(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	id := b.intend(t, 1000, "usd", "cus_1")[0]
	b.open(t, "100.00", "usd")
	h := byHand(t, b, id)
	c := h.claims(t, id, stripecharge.OpCreate)
	require.Equal(t, stripecharge.ClassSucceeded, c.access.client.Create(t.Context(), c.request, c.sendBefore).Class)
	// A proxy that answers with a decline of its own making.
	h.ends(t, c, stripecharge.Answer{Op: stripecharge.OpCreate, Class: stripecharge.ClassDeclined, HTTPStatus: 402, RequestID: "req_1", ErrorType: "card_error", ErrorCode: "card_declined", Sent: true}, stripecharge.Found{})
	require.Equal(t, "card_declined", b.intent(t, id).Status)
	_, err := b.person(t).Correct(t.Context(), id, NewTerms{Amount: new("8.00")})
	require.NoError(t, err)
	resolved, err := b.asker(t).ResolveCharged(t.Context(), b.person(t), id, b.stripe.Charges()[0].ID)
	require.NoError(t, err)
	require.Contains(t, resolved.Detail, "earlier_generation_charged")
	require.Equal(t, "charged", b.intent(t, id).Status)
	require.Equal(t, "paused", b.run(t).Status)
	require.Equal(t, "late_success", b.run(t).StatusReason)
	b.requireAllocated(t)
}

func TestM12ChargedOfAVoidedIntentPausesTheRun(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	id := b.intend(t, 1000, "usd", "cus_1")[0]
	b.open(t, "100.00", "usd")
	h := byHand(t, b, id)
	c := h.claims(t, id, stripecharge.OpCreate)
	require.Equal(t, stripecharge.ClassSucceeded, c.access.client.Create(t.Context(), c.request, c.sendBefore).Class)
	h.ends(t, c, stripecharge.Answer{Op: stripecharge.OpCreate, Class: stripecharge.ClassDeclined, HTTPStatus: 402, RequestID: "req_1", ErrorType: "card_error", ErrorCode: "card_declined", Sent: true}, stripecharge.Found{})
	require.NoError(t, b.person(t).Void(t.Context(), id))
	require.Zero(t, b.run(t).AllocatedCents)
	resolved, err := b.asker(t).ResolveCharged(t.Context(), b.person(t), id, b.stripe.Charges()[0].PaymentIntent)
	require.NoError(t, err)
	require.Contains(t, resolved.Detail, "voided_but_charged")
	require.Equal(t, "paused", b.run(t).Status)
	require.Equal(t, int64(1000), b.run(t).AllocatedCents)
	b.requireAllocated(t)
	b.once(t, 1000, id)
}

func TestM11ResolveInAnotherAccountIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	id := b.intend(t, 1000, "usd", "cus_1")[0]
	b.open(t, "100.00", "usd")
	b.doubt(t, id, false)
	b.later(t, id, 80*time.Hour)
	b.stripe.SetAccount("acct_other", false)
	_, err := b.asker(t).ResolveNotCharged(t.Context(), b.person(t), id)
	require.ErrorContains(t, err, "acct_other")
	require.Equal(t, 1, b.intent(t, id).Unresolved)
}

func TestM12NotChargedIsRefusedTooEarly(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 1000, "usd", "cus_1", "cus_2")
	b.open(t, "100.00", "usd")
	b.doubt(t, ids[0], false)
	b.later(t, ids[0], 71*time.Hour+50*time.Minute)
	before := b.reads()
	_, err := b.asker(t).ResolveNotCharged(t.Context(), b.person(t), ids[0])
	requireRefused(t, err, "71h50m0s ago", "72h0m0s", "try again in 10m")
	require.Equal(t, before, b.reads())
	require.Equal(t, 1, b.intent(t, ids[0]).Unresolved)
	_, err = b.asker(t).ResolveNotCharged(t.Context(), b.person(t), ids[1])
	requireRefused(t, err, "pending", "nothing that was sent for it is in doubt")
}

// The first send is days old, the last one is not.
func TestM12NotChargedCountsFromTheLastSendInDoubt(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	id := b.intend(t, 1000, "usd", "cus_1")[0]
	b.open(t, "100.00", "usd")
	b.doubt(t, id, false)
	b.later(t, id, 80*time.Hour)
	b.doubt(t, id, false)
	require.Equal(t, 2, b.intent(t, id).Unresolved)
	_, err := b.asker(t).ResolveNotCharged(t.Context(), b.person(t), id)
	requireRefused(t, err, "72h0m0s", "try again in 72h")
	require.Equal(t, 2, b.intent(t, id).Unresolved)
	b.later(t, id, 73*time.Hour)
	_, err = b.asker(t).ResolveNotCharged(t.Context(), b.person(t), id)
	require.NoError(t, err)
	require.Zero(t, b.intent(t, id).Unresolved)
}

func TestM12NotChargedIsRefusedOnAnythingFound(t *testing.T) {
	t.Parallel()
	failing := func(path string, do stripetest.Action) *stripetest.Fault {
		return &stripetest.Fault{Do: do, Match: stripetest.Match{Method: "GET", Path: path}}
	}
	for name, test := range map[string]struct {
		effect bool
		fault  *stripetest.Fault // while Stripe is asked
		sent   *stripetest.Fault // while the intent was sent
		words  []string
	}{
		"its charge":         {effect: true, words: []string{"Stripe has pi_", "--charged"}},
		"unmarked":           {effect: true, fault: &stripetest.Fault{Do: stripetest.Answer, Status: 200, Body: unmarkedList, Match: stripetest.Match{Method: "GET", Path: "/v1/charges"}}, words: []string{"unmarked"}},
		"payment intents":    {fault: failing("/v1/payment_intents", stripetest.APIError), words: []string{"could not be read to its end"}},
		"charges":            {fault: failing("/v1/charges", stripetest.BadGateway), words: []string{"could not be read to its end"}},
		"cut":                {fault: failing("/v1/charges", stripetest.CutBody), words: []string{"could not be read to its end"}},
		"not a list":         {fault: failing("/v1/charges", stripetest.EmptyObject), words: []string{"could not be read to its end"}},
		"clocks":             {fault: &stripetest.Fault{Do: stripetest.DateSkew, Skew: stripetest.Duration(10 * time.Minute), Match: stripetest.Match{Method: "GET", Path: "/v1/charges"}}, words: []string{"clocks"}},
		"an object is known": {effect: true, sent: &stripetest.Fault{Do: stripetest.Latency}, words: []string{"Stripe has shown an object of it (pi_", "--charged pi_"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripetest.Config{})
			id := b.intend(t, 1000, "usd", "cus_1")[0]
			b.open(t, "100.00", "usd")
			b.doubt(t, id, test.effect)
			if test.sent != nil {
				b.exec(t, `UPDATE billing.charge_requests SET object_id = $1`, b.stripe.Charges()[0].PaymentIntent)
			}
			b.later(t, id, 80*time.Hour)
			if test.fault != nil {
				require.NoError(t, b.stripe.AddFaults(*test.fault))
			}
			_, err := b.asker(t).ResolveNotCharged(t.Context(), b.person(t), id)
			requireRefused(t, err, test.words...)
			in := b.intent(t, id)
			require.Equal(t, "charging/in_doubt", in.Status+"/"+in.Reason)
			require.Equal(t, 1, in.Unresolved)
			require.Empty(t, b.actions(t, id))
			b.requireLeaseOver(t, id)
		})
	}
}

// unmarkedList is a charge of the same customer, amount and currency whose metadata something dropped.
const unmarkedList = `{"object":"list","has_more":false,"data":[{"id":"ch_unmarked","object":"charge","status":"succeeded","amount":1000,"currency":"usd",
	"customer":"cus_1","metadata":{},"captured":true,"created":4102444800}]}`

func TestM12NotChargedKeepsTheKeyAndTheEvidence(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	id := b.intend(t, 1000, "usd", "cus_1")[0]
	b.open(t, "100.00", "usd")
	b.doubt(t, id, false)
	b.later(t, id, 73*time.Hour)
	o := b.person(t)
	resolved, err := b.asker(t).ResolveNotCharged(t.Context(), o, id)
	require.NoError(t, err)
	require.Equal(t, "parked", resolved.Status)
	in := b.intent(t, id)
	require.Equal(t, "parked/cancelled_by_operator", in.Status+"/"+in.Reason)
	require.Zero(t, in.Unresolved)
	require.NotNil(t, in.Reserved, "nothing was given up yet")
	require.Equal(t, 1, b.generation(t, id))
	b.requireLeaseOver(t, id)
	b.requireAllocated(t)
	var detail []byte
	require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT detail FROM billing.operator_actions WHERE action = 'intent_resolve_not_charged'`).Scan(&detail))
	var evidence struct {
		Listed   stripecharge.Listed `json:"listed"`
		ListedAt time.Time           `json:"listed_at"`
		Customer string              `json:"customer"`
		Hours    float64             `json:"hours_since_last_send"`
		Resolved int                 `json:"resolved_attempts"`
	}
	require.NoError(t, json.Unmarshal(detail, &evidence))
	require.NotEmpty(t, evidence.Listed.ChargesRequestID)
	require.NotEmpty(t, evidence.Listed.IntentsRequestID)
	require.False(t, evidence.ListedAt.IsZero())
	require.Equal(t, "cus_1", evidence.Customer)
	require.InDelta(t, 73, evidence.Hours, 0.1)
	require.Equal(t, 1, evidence.Resolved)

	_, err = o.Retry(t.Context(), id)
	requireRefused(t, err, "not definitively refused", "intents unpark")
	_, err = o.Unpark(t.Context(), id)
	require.NoError(t, err)
	start(t, b.config(t))
	b.untilStatus(t, schema.StatusCharged, id)
	b.once(t, 1000, id)
	require.Equal(t, 1, b.generation(t, id))
	require.Equal(t, []string{"create:unknown", "look_up:absent", "create:charged"}, b.intent(t, id).Results, "the person's own look-up permits the send")
}

func TestM12NotChargedCanBeVoided(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	id := b.intend(t, 1000, "usd", "cus_1")[0]
	b.open(t, "100.00", "usd")
	b.doubt(t, id, false)
	b.later(t, id, 73*time.Hour)
	_, err := b.asker(t).ResolveNotCharged(t.Context(), b.person(t), id)
	require.NoError(t, err)
	require.NoError(t, b.person(t).Void(t.Context(), id))
	require.Zero(t, b.run(t).AllocatedCents)
	_, err = b.person(t).Retry(t.Context(), id)
	requireRefused(t, err, "voided", "not definitively refused")
}

// Gone generations leave dead objects at Stripe; they are no match.
func TestM12NotChargedOfASecondGenerationLooksPastTheFirst(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	b.stripe.AddCustomer(stripetest.Customer{ID: "cus_1", DefaultPaymentMethod: "pm_1", Decline: "do_not_honor"})
	id := b.intend(t, 1000, "usd", "cus_1")[0]
	b.open(t, "100.00", "usd")
	b.declined(t, id)
	_, err := b.person(t).Retry(t.Context(), id)
	require.NoError(t, err)
	b.doubt(t, id, false)
	b.later(t, id, 73*time.Hour)
	_, err = b.asker(t).ResolveNotCharged(t.Context(), b.person(t), id)
	require.NoError(t, err)
	require.Equal(t, 2, b.generation(t, id))
	require.Zero(t, b.intent(t, id).Unresolved)
}

// While a person reads Stripe's lists the answer of the send itself comes in, late.
func TestM12NotChargedLosesToALateSuccess(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	id := b.intend(t, 1000, "usd", "cus_1")[0]
	b.open(t, "100.00", "usd")
	h := byHand(t, b, id)
	stale := h.claims(t, id, stripecharge.OpCreate)
	b.later(t, id, 73*time.Hour)
	b.exec(t, `UPDATE billing.charge_attempts SET finished_at = lease_until, result = 'unknown'`)
	require.NoError(t, b.stripe.AddFaults(stripetest.Fault{Do: stripetest.HoldAfterEffect, Match: stripetest.Match{Method: "GET", Path: "/v1/charges"}}))
	cfg := b.config(t)
	cfg.CallTimeout = 30 * time.Second
	c, err := New(cfg)
	require.NoError(t, err)
	o := b.person(t)
	asked := make(chan error, 1)
	go func() {
		_, err := c.ResolveNotCharged(t.Context(), o, id)
		asked <- err
	}()
	require.Eventually(t, func() bool { return len(b.stripe.Held()) == 1 }, 20*time.Second, 10*time.Millisecond)
	// Nobody else may ask or send meanwhile.
	_, err = b.asker(t).ResolveNotCharged(t.Context(), b.person(t), id)
	requireRefused(t, err, "lease of a call")
	requireRefused(t, o.Park(t.Context(), id), "lease of a call")
	answer := stale.access.client.Create(t.Context(), stale.request, time.Now().Add(time.Minute))
	require.Equal(t, stripecharge.ClassSucceeded, answer.Class)
	h.ends(t, stale, answer, stripecharge.Found{})
	b.stripe.Release()
	requireRefused(t, <-asked, "charged", "took it up while")
	b.once(t, 1000, id)
	require.Zero(t, b.intent(t, id).Unresolved)
	b.requireLeaseOver(t, id)
}
