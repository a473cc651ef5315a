package charger

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"chargeonce/charger/stripecharge"
	"chargeonce/charger/stripecharge/stripetest"
	"chargeonce/schema"
	"chargeonce/sql"
	"chargeonce/sql/queries"
)

// person is whoever operates in these tests.
func (b *bundle) person(t *testing.T) Operator {
	t.Helper()
	return Operator{Pool: b.db.Pool(t, sql.RoleCharger), Actor: "alice", Reason: "ticket 7"}
}

// requireRefused checks that a refusal is one sentence with the state and the cure.
func requireRefused(t *testing.T, err error, words ...string) {
	t.Helper()
	refused := new(RefusedError)
	require.ErrorAs(t, err, &refused)
	require.NotEmpty(t, refused.Problem)
	require.NotEmpty(t, refused.Cure)
	require.NotContains(t, err.Error(), "\n")
	for _, word := range words {
		require.Contains(t, err.Error(), word)
	}
}

// actions are the recorded actions on an intent.
func (b *bundle) actions(t *testing.T, id int64) []string {
	t.Helper()
	var actions []string
	require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT coalesce(array_agg(action || ' by ' || actor || ': ' || reason ORDER BY id), '{}') FROM billing.operator_actions WHERE intent_id = $1`, id).Scan(&actions))
	return actions
}

// doubt sends an intent, with its effect at Stripe or without, and loses the answer; the lease has ended.
func (b *bundle) doubt(t *testing.T, id int64, effect bool) {
	t.Helper()
	h := byHand(t, b, id)
	c := h.claims(t, id, stripecharge.OpCreate)
	if effect {
		require.Equal(t, stripecharge.ClassSucceeded, c.access.client.Create(t.Context(), c.request, c.sendBefore).Class)
	}
	h.ends(t, c, unknown(), stripecharge.Found{})
}

// declined sends an intent that Stripe declines, and sees its payment intent cancelled.
func (b *bundle) declined(t *testing.T, id int64) {
	t.Helper()
	h := byHand(t, b, id)
	for _, op := range []stripecharge.Op{stripecharge.OpCreate, stripecharge.OpCancel} {
		c := h.claims(t, id, op)
		answer, found := h.send(t.Context(), c)
		h.ends(t, c, answer, found)
	}
	require.Equal(t, "card_declined", b.intent(t, id).Status)
}

func (b *bundle) generation(t *testing.T, id int64) (generation int) {
	t.Helper()
	require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT key_generation FROM billing.intents WHERE id = $1`, id).Scan(&generation))
	return generation
}

func TestM16RetryChargesADeclinedIntentUnderTheNextKey(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	b.stripe.AddCustomer(stripetest.Customer{ID: "cus_1", DefaultPaymentMethod: "pm_old", Decline: "insufficient_funds"})
	id := b.intend(t, 1000, "usd", "cus_1")[0]
	b.open(t, "100.00", "usd")
	b.declined(t, id)
	b.stripe.AddCustomer(stripetest.Customer{ID: "cus_1", DefaultPaymentMethod: "pm_new"})
	renewed, err := b.person(t).Retry(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, int32(2), renewed.KeyGeneration)
	in := b.intent(t, id)
	require.Equal(t, "pending/queued", in.Status+"/"+in.Reason)
	require.Nil(t, in.Reserved, "the dispatcher reserves anew, under the cap")
	b.requireAllocated(t)
	start(t, b.config(t))
	b.untilStatus(t, schema.StatusCharged, id)
	b.once(t, 1000, id)
	b.requireAllocated(t)
	key := schema.IdempotencyKey("customer-cus_1-0", testPeriod, testNamespace, 2)
	require.Equal(t, key, renewed.IdempotencyKey)
	var keys, methods []string
	require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT array_agg(idempotency_key ORDER BY key_generation), array_agg(payment_method ORDER BY key_generation) FROM billing.charge_requests`).Scan(&keys, &methods))
	require.Equal(t, key, keys[1])
	require.Equal(t, []string{"pm_old", "pm_new"}, methods, "the payment method is read anew")
	require.Equal(t, []string{"intent_retry by alice: ticket 7"}, b.actions(t, id))
}

func TestM16RetryIsRefusedWithoutADefinitiveRefusal(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 1000, "usd", "cus_denied", "cus_open", "cus_doubt", "cus_charged", "cus_pending", "cus_lease")
	b.open(t, "100.00", "usd")
	o := b.person(t)
	denied := stripecharge.Answer{Op: stripecharge.OpCreate, Class: stripecharge.ClassDenied, HTTPStatus: 402, Sent: true}

	h := byHand(t, b, ids[0])
	h.ends(t, h.claims(t, ids[0], stripecharge.OpCreate), denied, stripecharge.Found{})
	_, err := b.runs(t).Resume(t.Context(), usdRun(), "test", "goes on") // the denial paused it
	require.NoError(t, err)
	_, err = o.Retry(t.Context(), ids[0])
	requireRefused(t, err, "pending", "sent to Stripe under its key", "intents park")
	require.NoError(t, o.Park(t.Context(), ids[0]))
	_, err = o.Retry(t.Context(), ids[0])
	requireRefused(t, err, "parked (cancelled_by_operator)", "not definitively refused", "intents unpark")

	h = byHand(t, b, ids[1])
	h.ends(t, h.claims(t, ids[1], stripecharge.OpCreate), stripecharge.Answer{
		Op: stripecharge.OpCreate, Class: stripecharge.ClassInvalidRequest, HTTPStatus: 400, RequestID: "req_1", ErrorType: "invalid_request_error", Sent: true,
	}, stripecharge.Found{})
	b.exec(t, `UPDATE billing.charge_requests SET object_id = 'pi_open' WHERE intent_id = $1`, ids[1])
	_, err = o.Retry(t.Context(), ids[1])
	requireRefused(t, err, "parked (invalid_request)", "pi_open can still be paid")

	b.doubt(t, ids[2], true)
	_, err = o.Retry(t.Context(), ids[2])
	requireRefused(t, err, "charging (in_doubt)", "a call whose end is unknown", "intents resolve")
	require.NoError(t, o.Park(t.Context(), ids[2]))
	_, err = o.Retry(t.Context(), ids[2])
	requireRefused(t, err, "parked", "a call whose end is unknown", "intents resolve")

	h = byHand(t, b, ids[3])
	c := h.claims(t, ids[3], stripecharge.OpCreate)
	answer, found := h.send(t.Context(), c)
	h.ends(t, c, answer, found)
	_, err = o.Retry(t.Context(), ids[3])
	requireRefused(t, err, "is charged (ch_", "final")

	_, err = o.Retry(t.Context(), ids[4])
	requireRefused(t, err, "pending", "waits to be charged already")

	h = byHand(t, b, ids[5])
	h.claims(t, ids[5], stripecharge.OpCreate) // on its way
	_, err = o.Retry(t.Context(), ids[5])
	requireRefused(t, err, "lease of a call", "try again")
	for _, id := range ids {
		require.Equal(t, 1, b.generation(t, id))
	}
	b.requireAllocated(t)
}

func TestM16NeverSentKeepsItsKey(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	b.stripe.AddCustomer(stripetest.Customer{ID: "cus_1"}) // nothing to pay with
	id := b.intend(t, 1000, "usd", "cus_1")[0]
	b.open(t, "100.00", "usd")
	start(t, b.config(t))
	b.untilStatus(t, schema.StatusCardDeclined, id)
	require.Zero(t, b.creates())
	b.stripe.AddCustomer(stripetest.Customer{ID: "cus_1", DefaultPaymentMethod: "pm_1"})
	renewed, err := b.person(t).Retry(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, int32(1), renewed.KeyGeneration)
	b.untilStatus(t, schema.StatusCharged, id)
	b.once(t, 1000, id)
}

func TestM16NewTermsGoOutUnderTheNextKey(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	b.stripe.AddCustomer(stripetest.Customer{ID: "cus_3", DefaultPaymentMethod: "pm_3", Decline: "insufficient_funds"})
	ids := b.intend(t, 1000, "usd", "cus_1_missing", "cus_2", "cus_3")
	b.open(t, "100.00", "usd")
	stop := start(t, b.config(t))
	b.untilStatus(t, schema.StatusParked, ids[0]) // Stripe does not know the customer
	b.untilStatus(t, schema.StatusCharged, ids[1])
	b.untilStatus(t, schema.StatusCardDeclined, ids[2])
	stop()
	b.stripe.AddCustomer(stripetest.Customer{ID: "cus_3", DefaultPaymentMethod: "pm_3"})
	o := b.person(t)
	_, err := o.Correct(t.Context(), ids[1], NewTerms{Amount: new("9.00")})
	requireRefused(t, err, "is charged")
	renewed, err := o.Correct(t.Context(), ids[0], NewTerms{Amount: new("9.00"), StripeCustomer: new("cus_1"), PaymentMethod: new("pm_given")})
	require.NoError(t, err)
	require.Equal(t, int64(900), renewed.AmountCents)
	require.Equal(t, b.generation(t, ids[0]), int(renewed.KeyGeneration))
	b.requireAllocated(t)
	_, err = o.Correct(t.Context(), ids[0], NewTerms{Amount: new("9.00")})
	requireRefused(t, err, "has these terms already", "intents retry")
	renewed, err = o.Correct(t.Context(), ids[2], NewTerms{Amount: new("8.00")})
	require.NoError(t, err)
	require.Equal(t, int32(2), renewed.KeyGeneration, "generation 1 was sent, with other terms")
	start(t, b.config(t))
	b.untilStatus(t, schema.StatusCharged, ids[0], ids[2])
	var amounts []int64
	for _, charge := range b.stripe.Charges() {
		amounts = append(amounts, charge.Amount)
	}
	require.ElementsMatch(t, []int64{1000, 900, 800}, amounts)
	require.Empty(t, b.stripe.DoubleCharges())
	b.requireAllocated(t)
	var kept string
	require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT amount_cents || ' ' || stripe_customer_id || ' ' || resolution || ' ' || first_source FROM billing.conflicts WHERE intent_id = $1`, ids[0]).Scan(&kept))
	require.Equal(t, "1000 cus_1_missing replaced test", kept)
}

func TestM16WrongTermsAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	id := b.intend(t, 1000, "usd", "cus_1")[0]
	b.open(t, "100.00", "usd")
	o := b.person(t)
	for name, test := range map[string]struct {
		terms NewTerms
		words []string
	}{
		"none":           {NewTerms{}, []string{"no new terms"}},
		"decimals":       {NewTerms{Amount: new("1.234")}, []string{"--amount"}},
		"zero":           {NewTerms{Amount: new("0")}, []string{"amount of 0", "intents void"}},
		"too much":       {NewTerms{Amount: new("99999999999999")}, []string{"--amount"}},
		"step":           {NewTerms{Amount: new("1.001"), Currency: new("kwd")}, []string{"multiple of 10"}},
		"currency":       {NewTerms{Amount: new("1"), Currency: new("zzz")}, []string{"--currency"}},
		"currency alone": {NewTerms{Currency: new("jpy")}, []string{"--amount with --currency"}},
		"customer":       {NewTerms{StripeCustomer: new("acme")}, []string{"--stripe-customer"}},
		"method":         {NewTerms{PaymentMethod: new("tok_1")}, []string{"--payment-method"}},
		"description":    {NewTerms{Description: new(strings.Repeat("é", 501))}, []string{"--description"}},
		"no run":         {NewTerms{Amount: new("10"), Currency: new("eur")}, []string{"needs an open run", "none of usage 2026-08 eur", "run open"}},
	} {
		_, err := o.Correct(t.Context(), id, test.terms)
		requireRefused(t, err, test.words...)
		require.Empty(t, b.actions(t, id), name)
	}
	_, err := Operator{Pool: o.Pool, Actor: "alice", Reason: " "}.Correct(t.Context(), id, NewTerms{Amount: new("2.00")})
	requireRefused(t, err, "needs a reason")
}

// A worker has read the intent and made the request from its payment method; a person gives another one; then the worker claims.
func TestM16PaymentMethodCorrectedBeforeTheClaimIsReadAgain(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	id := b.intend(t, 1000, "usd", "cus_1")[0]
	b.open(t, "100.00", "usd")
	h := byHand(t, b, id)
	intent, err := h.queries.IntentForWork(t.Context(), h.pool, queries.IntentForWorkParams{ID: id, WindowSeconds: Window.Seconds()})
	require.NoError(t, err)
	acc, err := h.keys.access(t.Context(), intent)
	require.NoError(t, err)
	request, _, err := h.requestOf(t.Context(), intent, acc)
	require.NoError(t, err)
	_, err = b.person(t).Correct(t.Context(), id, NewTerms{PaymentMethod: new("pm_right")})
	require.NoError(t, err)
	c, err := New(b.config(t))
	require.NoError(t, err)
	require.NoError(t, c.dispatchAll(t.Context(), false, false)) // it is reserved again
	_, err = h.claim(t.Context(), h.jobID, intent, stripecharge.OpCreate, acc, request)
	require.ErrorIs(t, err, errRefused)
	start(t, b.config(t))
	b.untilStatus(t, schema.StatusCharged, id)
	b.once(t, 1000, id)
	var method string
	require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT payment_method FROM billing.charge_requests`).Scan(&method))
	require.Equal(t, "pm_right", method)
}

// Another currency is another run: its cap is used, the old one's is given back.
func TestM21NewCurrencyMovesTheReservationToItsRun(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	id := b.intend(t, 1000, "usd", "cus_1")[0]
	b.open(t, "100.00", "usd")
	b.open(t, "100.00", "eur")
	c, err := New(b.config(t))
	require.NoError(t, err)
	require.NoError(t, c.dispatchAll(t.Context(), false, false))
	require.Equal(t, int64(1000), b.run(t).AllocatedCents)
	_, err = b.person(t).Correct(t.Context(), id, NewTerms{Amount: new("8.00"), Currency: new("EUR")})
	require.NoError(t, err)
	require.Zero(t, b.run(t).AllocatedCents)
	start(t, b.config(t))
	b.untilStatus(t, schema.StatusCharged, id)
	b.once(t, 800, id)
	var allocated int64
	require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT allocated_cents FROM billing.runs WHERE currency = 'eur'`).Scan(&allocated))
	require.Equal(t, int64(800), allocated)
}

func TestM21VoidGivesBackAndParkKeeps(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 1000, "usd", "cus_dispatched", "cus_doubt", "cus_declined_decline_do_not_honor", "cus_parked")
	b.open(t, "100.00", "usd")
	o := b.person(t)
	c, err := New(b.config(t))
	require.NoError(t, err)
	require.NoError(t, c.dispatchAll(t.Context(), false, false))
	require.Equal(t, int64(4000), b.run(t).AllocatedCents)

	require.NoError(t, o.Void(t.Context(), ids[0]))
	require.Equal(t, int64(3000), b.run(t).AllocatedCents)
	require.Nil(t, b.intent(t, ids[0]).Reserved)
	requireRefused(t, o.Void(t.Context(), ids[0]), "voided", "already")

	b.doubt(t, ids[1], true)
	requireRefused(t, o.Void(t.Context(), ids[1]), "charging (in_doubt)", "intents resolve")
	require.NoError(t, o.Park(t.Context(), ids[1]))
	require.NotNil(t, b.intent(t, ids[1]).Reserved)
	require.Equal(t, int64(3000), b.run(t).AllocatedCents, "the money may have moved")
	requireRefused(t, o.Void(t.Context(), ids[1]), "parked", "a call whose end is unknown")

	b.declined(t, ids[2])
	require.Equal(t, int64(2000), b.run(t).AllocatedCents)
	require.NoError(t, o.Void(t.Context(), ids[2]))
	require.Equal(t, int64(2000), b.run(t).AllocatedCents, "a decline gave it back already")

	require.NoError(t, o.Park(t.Context(), ids[3]))
	requireRefused(t, o.Park(t.Context(), ids[3]), "parked", "already")
	require.Equal(t, int64(2000), b.run(t).AllocatedCents)
	require.NoError(t, o.Void(t.Context(), ids[3]))
	require.Equal(t, int64(1000), b.run(t).AllocatedCents)
	b.requireAllocated(t)
	requireRefused(t, o.Park(t.Context(), ids[3]), "voided")
	requireRefused(t, o.Void(t.Context(), 4711), "no intent 4711")
	require.Equal(t, []string{"intent_park by alice: ticket 7", "intent_void by alice: ticket 7"}, b.actions(t, ids[3]))

	// Their jobs still stand; they end without a call.
	start(t, b.config(t))
	require.Eventually(t, func() bool {
		var live int
		err := b.owner.QueryRow(t.Context(), `SELECT count(*) FROM river.river_job WHERE state <> 'completed'`).Scan(&live)
		return err == nil && live == 0
	}, 20*time.Second, 20*time.Millisecond)
	require.Len(t, b.stripe.Charges(), 1, "that of the doubt")
	for _, i := range []int{0, 2, 3} {
		require.Equal(t, "voided", b.intent(t, ids[i]).Status)
	}
}

func TestM21RetryOfAParkedIntentReservesUnderTheCap(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 1000, "usd", "cus_1", "cus_2")
	b.open(t, "10.00", "usd") // cap 11.00: one of them
	invalid := stripecharge.Answer{
		Op: stripecharge.OpCreate, Class: stripecharge.ClassInvalidRequest, HTTPStatus: 400, RequestID: "req_1", ErrorType: "invalid_request_error", Sent: true,
	}
	h := byHand(t, b, ids[0])
	h.ends(t, h.claims(t, ids[0], stripecharge.OpCreate), invalid, stripecharge.Found{})
	require.NotNil(t, b.intent(t, ids[0]).Reserved, "parked")
	_, err := b.person(t).Retry(t.Context(), ids[0])
	require.NoError(t, err)
	require.Zero(t, b.run(t).AllocatedCents)
	start(t, b.config(t))
	b.untilStatus(t, schema.StatusCharged, ids[0])
	b.until(t, ids[1], func(in intentNow) bool { return in.Reason == "run_capped" })
	b.once(t, 1000, ids[0])
	b.requireAllocated(t)
}

func TestM23RetryAndNewTermsNeedAnOpenRun(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 1000, "usd", "cus_1_decline_do_not_honor", "cus_2")
	o := b.person(t)
	_, err := o.Correct(t.Context(), ids[1], NewTerms{Amount: new("9.00")})
	requireRefused(t, err, "needs an open run", "there is none", "run open")
	b.open(t, "100.00", "usd")
	b.declined(t, ids[0])
	for status, words := range map[string][]string{
		"paused": {"is paused (paused_by_operator)", "run resume"}, "closed": {"is closed", "reopen"},
	} {
		b.exec(t, `UPDATE billing.runs SET status = $1, status_reason = 'paused_by_operator', closed_at = CASE $1 WHEN 'closed' THEN now() END`, status)
		_, err = o.Retry(t.Context(), ids[0])
		requireRefused(t, err, append(words, "needs an open run")...)
		_, err = o.Correct(t.Context(), ids[1], NewTerms{Amount: new("9.00")})
		requireRefused(t, err, append(words, "needs an open run")...)
	}
	require.NoError(t, o.Void(t.Context(), ids[0]), "what ends needs no open run")
	b.exec(t, `UPDATE billing.runs SET status = 'open', status_reason = 'resumed', closed_at = NULL`)
	_, err = o.Correct(t.Context(), ids[1], NewTerms{Amount: new("9.00")})
	require.NoError(t, err)
}

// conflict is an event with other terms, as an ingestor records it; it tells whether one was opened.
func (b *bundle) conflict(t *testing.T, intentID, amountCents int64, stripeCustomer, position string) (id int64, opened bool) {
	t.Helper()
	pool := b.db.Pool(t, sql.RoleIngest)
	tag, err := pool.Exec(t.Context(), `
		INSERT INTO billing.conflicts (intent_id, amount_cents, currency, stripe_customer_id, payment_method, first_source, first_position, last_source, last_position)
		VALUES ($1, $2, 'usd', $3, 'pm_other', 'test', $4, 'test', $4) ON CONFLICT DO NOTHING`, intentID, amountCents, stripeCustomer, position)
	require.NoError(t, err)
	require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT id FROM billing.conflicts WHERE intent_id = $1 AND amount_cents = $2 AND stripe_customer_id = $3`, intentID, amountCents, stripeCustomer).Scan(&id))
	return id, tag.RowsAffected() == 1
}

func (b *bundle) conflicts(t *testing.T, intentID int64) []string {
	t.Helper()
	var all []string
	require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT array_agg(amount_cents || ' ' || coalesce(resolution, 'open') ORDER BY amount_cents) FROM billing.conflicts WHERE intent_id = $1`, intentID).Scan(&all))
	return all
}

func TestM17KeepLetsTheIntentGoOn(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	id := b.intend(t, 1000, "usd", "cus_1")[0]
	first, _ := b.conflict(t, id, 2000, "cus_1", "x")
	second, _ := b.conflict(t, id, 3000, "cus_1", "y")
	b.open(t, "100.00", "usd")
	start(t, b.config(t))
	b.until(t, id, func(in intentNow) bool { return in.Reason == "conflict" })
	o := b.person(t)
	require.NoError(t, o.Keep(t.Context(), first))
	requireRefused(t, o.Keep(t.Context(), first), "resolved already (kept_first by alice)")
	require.Equal(t, "conflict", b.intent(t, id).Reason, "the second one is still open")
	require.Zero(t, b.creates())
	require.NoError(t, o.Keep(t.Context(), second))
	b.untilStatus(t, schema.StatusCharged, id)
	b.once(t, 1000, id)
	requireRefused(t, o.Keep(t.Context(), 4711), "no conflict 4711")
}

func TestM17TakeMakesTheOtherTermsTheIntents(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	id := b.intend(t, 1000, "usd", "cus_1")[0]
	taken, _ := b.conflict(t, id, 2000, "cus_1", "x")
	other, _ := b.conflict(t, id, 3000, "cus_1", "y")
	b.open(t, "100.00", "usd")
	start(t, b.config(t))
	b.until(t, id, func(in intentNow) bool { return in.Reason == "conflict" })
	o := b.person(t)
	renewed, err := o.Take(t.Context(), taken)
	require.NoError(t, err)
	require.Equal(t, int64(1), renewed.OpenConflicts)
	require.Equal(t, int32(1), renewed.KeyGeneration, "nothing was ever sent")
	require.Equal(t, []string{"1000 replaced", "2000 took_other", "3000 open"}, b.conflicts(t, id), "each other conflict is decided by itself")
	// Both events come again, from other positions: nothing opens.
	for _, amount := range []int64{1000, 2000} {
		_, opened := b.conflict(t, id, amount, "cus_1", "again")
		require.False(t, opened)
	}
	b.until(t, id, func(in intentNow) bool { return in.Reason == "conflict" })
	require.Zero(t, b.creates())
	_, err = o.Take(t.Context(), taken)
	requireRefused(t, err, "already")
	require.NoError(t, o.Keep(t.Context(), other))
	b.untilStatus(t, schema.StatusCharged, id)
	b.once(t, 2000, id)
	var method string
	require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT payment_method FROM billing.charge_requests`).Scan(&method))
	require.Equal(t, "pm_other", method)
	_, err = o.Take(t.Context(), other)
	requireRefused(t, err, "is charged")
	require.Equal(t, []string{"conflict_take by alice: ticket 7", "conflict_keep by alice: ticket 7"}, b.actions(t, id))
}

func TestM17ConflictOfADeclinedIntentIsTakenUnderTheNextKey(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	id := b.intend(t, 1000, "usd", "cus_1_decline_do_not_honor")[0]
	b.open(t, "100.00", "usd")
	b.declined(t, id)
	conflict, _ := b.conflict(t, id, 2000, "cus_good", "x")
	_, err := b.person(t).Retry(t.Context(), id)
	requireRefused(t, err, "open conflicts (1) are not decided", "conflicts list")
	renewed, err := b.person(t).Take(t.Context(), conflict)
	require.NoError(t, err)
	require.Equal(t, int32(2), renewed.KeyGeneration)
	start(t, b.config(t))
	b.untilStatus(t, schema.StatusCharged, id)
	b.once(t, 2000, id)
	b.requireAllocated(t)
	_, opened := b.conflict(t, id, 1000, "cus_1_decline_do_not_honor", "again")
	require.False(t, opened)
}

// The second intent of a Stripe customer goes on when a person voids the first, or gives it to another customer.
func TestM17VoidedIntentFreesItsStripeCustomer(t *testing.T) {
	t.Parallel()
	for name, release := range map[string]func(t *testing.T, o Operator, id int64){
		"void": func(t *testing.T, o Operator, id int64) {
			t.Helper()
			require.NoError(t, o.Void(t.Context(), id))
		},
		"another customer": func(t *testing.T, o Operator, id int64) {
			t.Helper()
			_, err := o.Correct(t.Context(), id, NewTerms{StripeCustomer: new("cus_free_decline_do_not_honor")})
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripetest.Config{})
			b.stripe.AddCustomer(stripetest.Customer{ID: "cus_twice", DefaultPaymentMethod: "pm_1", Decline: "do_not_honor"})
			ids := b.intend(t, 1000, "usd", "cus_twice", "cus_twice")
			b.open(t, "100.00", "usd")
			start(t, b.config(t))
			b.untilStatus(t, schema.StatusCardDeclined, ids[0])
			b.until(t, ids[1], func(in intentNow) bool { return in.Reason == "same_customer" })
			_, err := b.person(t).Retry(t.Context(), ids[1])
			requireRefused(t, err, "pending (same_customer)", "void the one that is wrong")
			b.stripe.AddCustomer(stripetest.Customer{ID: "cus_twice", DefaultPaymentMethod: "pm_2"})
			release(t, b.person(t), ids[0])
			b.untilStatus(t, schema.StatusCharged, ids[1])
			b.once(t, 1000, ids[1])
		})
	}
}

func TestUnparkGoesOnUnderTheSameKey(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 1000, "usd", "cus_unsent", "cus_doubt", "cus_mismatch")
	b.open(t, "100.00", "usd")
	o := b.person(t)
	require.NoError(t, o.Park(t.Context(), ids[0]))
	b.doubt(t, ids[1], true)
	require.NoError(t, o.Park(t.Context(), ids[1]))
	b.doubt(t, ids[2], true)
	b.exec(t, `UPDATE billing.intents SET status = 'parked', status_reason = 'mismatch' WHERE id = $1`, ids[2])

	inDoubt, err := o.Unpark(t.Context(), ids[0])
	require.NoError(t, err)
	require.False(t, inDoubt)
	inDoubt, err = o.Unpark(t.Context(), ids[1])
	require.NoError(t, err)
	require.True(t, inDoubt)
	require.Equal(t, "charging/in_doubt", b.intent(t, ids[1]).Status+"/"+b.intent(t, ids[1]).Reason)
	_, err = o.Unpark(t.Context(), ids[2])
	requireRefused(t, err, "parked (mismatch)", "intents resolve")
	_, err = o.Unpark(t.Context(), ids[1])
	requireRefused(t, err, "charging", "not parked")
	b.requireAllocated(t)

	start(t, b.config(t))
	b.untilStatus(t, schema.StatusCharged, ids[0], ids[1])
	require.Empty(t, b.stripe.DoubleCharges())
	require.Len(t, b.stripe.Charges(), 3, "the mismatch's was made before")
	require.Equal(t, 1, b.generation(t, ids[1]))
}

// A worker's success arrives after a person parked the intent, had its doubt still open, and unparked it.
func TestM13SuccessThatComesAfterAPersonsDecisionIsRecorded(t *testing.T) {
	t.Parallel()
	for _, unpark := range []bool{false, true} {
		t.Run(fmt.Sprint(unpark), func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripetest.Config{})
			id := b.intend(t, 1000, "usd", "cus_1")[0]
			b.open(t, "100.00", "usd")
			h := byHand(t, b, id)
			stale := h.claims(t, id, stripecharge.OpCreate)
			answer := stale.access.client.Create(t.Context(), stale.request, stale.sendBefore)
			b.exec(t, `UPDATE billing.intents SET lease_until = now() - interval '1 second' WHERE id = $1`, id)
			b.exec(t, `UPDATE billing.charge_attempts SET lease_until = now() - interval '1 second' WHERE intent_id = $1`, id)
			o := b.person(t)
			require.NoError(t, o.Park(t.Context(), id))
			if unpark {
				_, err := o.Unpark(t.Context(), id)
				require.NoError(t, err)
			}
			h.ends(t, stale, answer, stripecharge.Found{})
			b.once(t, 1000, id)
			b.requireAllocated(t)
			require.Equal(t, "open", b.run(t).Status)
		})
	}
}

func TestM16NothingDueAndVoidedAreTakenUpAgain(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 1000, "usd", "cus_voided")
	b.open(t, "100.00", "usd")
	var zero int64
	require.NoError(t, b.owner.QueryRow(t.Context(), `
		INSERT INTO billing.intents (namespace, customer_id, billing_period, idempotency_key, stripe_customer_id, amount_cents, currency, status, status_reason, source, source_position)
		VALUES ($1, 'zero', $2, $3, 'cus_zero', 0, 'usd', 'nothing_due', 'zero_amount', 'test', 'zero') RETURNING id`,
		testNamespace, testPeriod, schema.IdempotencyKey("zero", testPeriod, testNamespace, 1)).Scan(&zero))
	o := b.person(t)
	requireRefused(t, o.Void(t.Context(), zero), "nothing_due", "only pending, declined and parked")
	requireRefused(t, o.Park(t.Context(), zero), "nothing_due", "only pending and charging")
	_, err := o.Retry(t.Context(), zero)
	requireRefused(t, err, "nothing_due", "amount of 0", "intents correct")
	renewed, err := o.Correct(t.Context(), zero, NewTerms{Amount: new("10")})
	require.NoError(t, err)
	require.Equal(t, int32(1), renewed.KeyGeneration)
	require.NoError(t, o.Void(t.Context(), ids[0]))
	_, err = o.Retry(t.Context(), ids[0])
	require.NoError(t, err)
	start(t, b.config(t))
	b.untilStatus(t, schema.StatusCharged, zero, ids[0])
	b.once(t, 1000, zero, ids[0])
	b.requireAllocated(t)
}

// A finish holds its intent and wants its run; a person's command holds the run and wants the intent. The person gives way.
func TestPersonGivesWayToAFinish(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	id := b.intend(t, 1000, "usd", "cus_1")[0]
	b.open(t, "100.00", "usd")
	c, err := New(b.config(t))
	require.NoError(t, err)
	require.NoError(t, c.dispatchAll(t.Context(), false, false))
	finish, err := b.owner.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = finish.Rollback(context.WithoutCancel(t.Context())) }) // done already, unless the test fails before
	_, err = finish.Exec(t.Context(), `SELECT 1 FROM billing.intents WHERE id = $1 FOR NO KEY UPDATE`, id)
	require.NoError(t, err)
	o := b.person(t)
	voided := make(chan error, 1)
	go func() { voided <- o.Void(t.Context(), id) }()
	require.Eventually(t, func() bool { // it has met the locked row
		var rollbacks int
		err := b.owner.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query ILIKE '%rollback%' AND pid <> pg_backend_pid()`).Scan(&rollbacks)
		return err == nil && rollbacks > 0
	}, 20*time.Second, time.Millisecond)
	_, err = finish.Exec(t.Context(), `UPDATE billing.runs SET updated_at = now()`)
	require.NoError(t, err)
	require.NoError(t, finish.Commit(t.Context()))
	require.NoError(t, <-voided)
	require.Equal(t, "voided", b.intent(t, id).Status)
	b.requireNoDeadlock(t)
}

// requireNoDeadlock asks Postgres whether it ever had to end one.
func (b *bundle) requireNoDeadlock(t *testing.T) {
	t.Helper()
	var deadlocks int
	require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`).Scan(&deadlocks))
	require.Zero(t, deadlocks)
}
