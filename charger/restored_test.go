package charger

import (
	"encoding/json"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"chargeonce/charger/stripecharge"
	"chargeonce/charger/stripecharge/stripetest"
	"chargeonce/schema"
)

// back restores what a backup from before the run's first charge holds: the intents and their run, nothing that was sent. The events
// were known for as long as age, by then.
func (b *bundle) back(t *testing.T, age time.Duration) {
	t.Helper()
	tx, err := b.owner.Begin(t.Context())
	require.NoError(t, err)
	for _, statement := range []string{
		`SET LOCAL session_replication_role = replica`, // a restore asks no trigger
		`DELETE FROM river.river_job`,
		`DELETE FROM billing.charge_attempts`,
		`DELETE FROM billing.charge_requests`,
		`UPDATE billing.runs SET allocated_cents = 0`,
		`UPDATE billing.intents SET status = 'pending', status_reason = 'no_run', status_detail = NULL, charge_id = NULL, payment_intent_id = NULL, run_id = NULL,
			reserved_cents = NULL, guards_customer = false, river_job_id = NULL, claim_number = 0, lease_until = NULL`,
	} {
		_, err := tx.Exec(t.Context(), statement)
		require.NoError(t, err)
	}
	_, err = tx.Exec(t.Context(), `UPDATE billing.intents SET created_at = now() - make_interval(secs => $1)`, age.Seconds())
	require.NoError(t, err)
	require.NoError(t, tx.Commit(t.Context()))
}

func TestM03RestoredDatabaseChargesNobodyAgain(t *testing.T) {
	t.Parallel()
	for _, api := range []stripecharge.API{stripecharge.APIPaymentIntents, stripecharge.APICharges} {
		t.Run(string(api), func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripetest.Config{})
			charged := b.intend(t, 4200, "usd", "cus_1", "cus_2", "cus_3")
			b.open(t, "1000.00", "usd")
			cfg := b.config(t)
			cfg.StripeAPI = api
			stop := start(t, cfg)
			b.untilStatus(t, schema.StatusCharged, charged...)
			stop()
			require.Equal(t, 3, b.creates(), "what is new is not looked for")

			b.stripe.Advance(25 * time.Hour) // Stripe has forgotten the keys
			missed := b.intend(t, 4200, "usd", "cus_never_charged")
			b.back(t, 25*time.Hour)
			cfg = b.config(t)
			cfg.StripeAPI = api
			start(t, cfg)
			b.untilStatus(t, schema.StatusCharged, append(charged, missed...)...)
			b.once(t, 4200, append(charged, missed...)...)
			require.Equal(t, 4, b.creates())
			for _, id := range charged {
				in := b.intent(t, id)
				require.Equal(t, string(schema.ReasonAdopted), in.Reason)
				require.Equal(t, []string{"look_up:found"}, in.Results)
			}
			require.Equal(t, []string{"look_up:absent", "create:charged"}, b.intent(t, missed[0]).Results)
			require.Equal(t, "open", b.run(t).Status)
			done, findings := b.reconcile(t)
			require.Empty(t, findings)
			require.True(t, done.Clean)
		})
	}
}

// The database has lost the intent too, and the event comes again from the hub, with the time that it had there.
func TestM03EventThatComesAgainAfterARestoreIsLookedUpFirst(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 4200, "usd", "cus_1")
	b.open(t, "1000.00", "usd")
	stop := start(t, b.config(t))
	b.untilStatus(t, schema.StatusCharged, ids...)
	stop()
	b.stripe.Advance(25 * time.Hour)
	b.back(t, 0)
	b.exec(t, `UPDATE billing.intents SET source_enqueued_at = now() - interval '25 hours'`)
	start(t, b.config(t))
	b.untilStatus(t, schema.StatusCharged, ids...)
	b.once(t, 4200, ids...)
	require.Equal(t, []string{"look_up:found"}, b.intent(t, ids[0]).Results)
	done, findings := b.reconcile(t)
	require.Empty(t, findings, "a run that only found what was charged")
	require.True(t, done.Clean)
	story, err := ReadStory(t.Context(), b.person(t).Pool, ids[0])
	require.NoError(t, err)
	told, err := json.Marshal(story)
	require.NoError(t, err)
	require.Contains(t, string(told), *b.intent(t, ids[0]).ChargeID)
	require.Contains(t, string(told), `"look_up"`)
}

// An event that a producer sends again looks new in every way: whoever restores a database says so.
func TestM03LookUpFirstLooksForWhatIsNew(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 4200, "usd", "cus_1")
	b.open(t, "1000.00", "usd")
	stop := start(t, b.config(t))
	b.untilStatus(t, schema.StatusCharged, ids...)
	stop()
	b.stripe.Advance(25 * time.Hour)
	b.back(t, 0)
	cfg := b.config(t)
	cfg.LookUpFirst = true
	start(t, cfg)
	b.untilStatus(t, schema.StatusCharged, ids...)
	b.once(t, 4200, ids...)
}

func TestM03LookUpBeforeTheFirstSendThatFailsSendsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 4200, "usd", "cus_1")
	b.exec(t, `UPDATE billing.intents SET created_at = now() - interval '2 days'`)
	b.open(t, "1000.00", "usd")
	require.NoError(t, b.stripe.AddFaults(stripetest.Fault{
		Do: stripetest.APIError, Match: stripetest.Match{Method: http.MethodGet, Path: "/v1/payment_intents"}, Trigger: stripetest.Trigger{Count: 1},
	}))
	start(t, b.config(t))
	in := b.until(t, ids[0], func(in intentNow) bool { return len(in.Results) == 1 && in.Status == "pending" })
	require.Equal(t, []string{"look_up:failed"}, in.Results)
	require.Equal(t, string(schema.ReasonQueued), in.Reason)
	require.Zero(t, b.creates())

	b.ageRows(t, ids[0], readPause)
	b.until(t, ids[0], func(in intentNow) bool { // its job waits, or is about to look again by itself
		b.exec(t, `UPDATE river.river_job SET scheduled_at = now(), state = 'available' WHERE state IN ('retryable', 'scheduled')`)
		return in.Status == "charged"
	})
	require.Equal(t, []string{"look_up:failed", "look_up:absent", "create:charged"}, b.intent(t, ids[0]).Results)
	b.once(t, 4200, ids...)
}

// What is refused before the first send moves no money and declines nobody.
func TestM03RefusedLookUpBeforeTheFirstSend(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault     stripetest.Fault
		status    schema.Status
		reason    schema.StatusReason
		result    string
		runStatus string
	}{
		"by the proxy":         {stripetest.Fault{Do: stripetest.FlatDenial, Status: 402}, schema.StatusPending, schema.ReasonRunPaused, "look_up:failed", "paused"},
		"by Stripe, the key":   {stripetest.Fault{Do: stripetest.Forbidden}, schema.StatusPending, schema.ReasonRunPaused, "look_up:failed", "paused"},
		"by Stripe, too fast":  {stripetest.Fault{Do: stripetest.RateLimit}, schema.StatusPending, schema.ReasonQueued, "look_up:failed", "open"},
		"an unknown customer":  {stripetest.Fault{Do: stripetest.Answer, Status: 400, Body: noSuchCustomer, Header: map[string]string{"Request-Id": "req_1"}}, schema.StatusParked, schema.ReasonInvalidRequest, "look_up:failed", "open"},
		"by nothing but noise": {stripetest.Fault{Do: stripetest.Answer, Status: 200, Body: "<html>"}, schema.StatusPending, schema.ReasonQueued, "look_up:failed", "open"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripetest.Config{})
			ids := b.intend(t, 4200, "usd", "cus_1")
			b.exec(t, `UPDATE billing.intents SET created_at = now() - interval '2 days'`)
			b.open(t, "1000.00", "usd")
			test.fault.Match = stripetest.Match{Method: http.MethodGet, Path: "/v1/charges"}
			require.NoError(t, b.stripe.AddFaults(test.fault))
			start(t, b.config(t))
			in := b.until(t, ids[0], func(in intentNow) bool {
				return in.Status == string(test.status) && in.Reason == string(test.reason) && len(in.Results) > 0
			})
			require.Equal(t, test.result, in.Results[0])
			require.NotNil(t, in.Detail)
			require.Eventually(t, func() bool { return b.run(t).Status == test.runStatus }, patience, 10*time.Millisecond)
			require.Zero(t, b.creates())
		})
	}
}

const noSuchCustomer = `{"error":{"type":"invalid_request_error","code":"resource_missing","param":"customer","message":"No such customer: 'cus_1'"}}`

// A conflict that comes between the look-up and the first send is seen before it.
func TestM17ConflictBetweenLookUpAndFirstSendWaits(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 4200, "usd", "cus_1")
	b.exec(t, `UPDATE billing.intents SET created_at = now() - interval '2 days'`)
	b.open(t, "1000.00", "usd")
	require.NoError(t, b.stripe.AddFaults(stripetest.Fault{Do: stripetest.HoldAfterEffect, Match: stripetest.Match{Method: http.MethodGet, Path: "/v1/charges"}}))
	start(t, b.config(t))
	_, err := b.stripe.WaitHeld(t.Context(), 1)
	require.NoError(t, err)
	b.exec(t, `INSERT INTO billing.conflicts (intent_id, amount_cents, currency, stripe_customer_id, first_source, first_position, last_source, last_position)
		VALUES ($1, 4300, 'usd', 'cus_1', 'test', 'p', 'test', 'p')`, ids[0])
	b.stripe.ClearFaults()
	b.stripe.Release()
	in := b.until(t, ids[0], func(in intentNow) bool { return in.Reason == string(schema.ReasonConflict) })
	require.Equal(t, []string{"look_up:absent"}, in.Results)
	require.Equal(t, "pending", in.Status)
	require.Zero(t, b.creates())
}

// A process that dies while it looks leaves an intent that is looked for again.
func TestM03CrashBetweenLookUpAndFirstSendLooksAgain(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 4200, "usd", "cus_1")
	b.exec(t, `UPDATE billing.intents SET created_at = now() - interval '2 days'`)
	b.open(t, "1000.00", "usd")
	victim, _ := b.spawn(t, HoldAfterClaim)
	b.until(t, ids[0], func(in intentNow) bool { return len(in.Results) == 1 })
	kill(t, victim)
	b.ageRows(t, ids[0], time.Hour)
	start(t, b.config(t))
	b.untilStatus(t, schema.StatusCharged, ids...)
	require.Equal(t, []string{"look_up:-", "look_up:absent", "create:charged"}, b.intent(t, ids[0]).Results)
	b.once(t, 4200, ids...)
}

// What the look-up before the first send finds is a success, or decided about by a person; only what is dead is nothing.
func TestM08WhatIsFoundBeforeTheFirstSend(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		customer string
		change   string // of the restored intent
		status   schema.Status
		results  []string
	}{
		"a decline":         {customer: "cus_1_decline_do_not_honor", status: schema.StatusCardDeclined, results: []string{"look_up:absent", "create:declined", "cancel:canceled"}},
		"still processing":  {customer: "cus_1_processing", status: schema.StatusParked, results: []string{"look_up:found"}},
		"of another amount": {customer: "cus_1", change: "amount_cents = 4300", status: schema.StatusParked, results: []string{"look_up:found"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripetest.Config{ProcessingFor: 30 * 24 * time.Hour})
			ids := b.intend(t, 4200, "usd", test.customer)
			b.open(t, "1000.00", "usd")
			stop := start(t, b.config(t))
			b.until(t, ids[0], func(in intentNow) bool { return in.Creates == 1 && in.Reason != "sent" && in.Reason != "cancelling" })
			stop()
			b.stripe.Advance(25 * time.Hour)
			if test.change != "" {
				b.exec(t, `ALTER TABLE billing.intents DISABLE TRIGGER USER`)
				b.back(t, 25*time.Hour)
				b.exec(t, `UPDATE billing.intents SET `+test.change)
				b.exec(t, `ALTER TABLE billing.intents ENABLE TRIGGER USER`)
			} else {
				b.back(t, 25*time.Hour)
			}
			made := b.creates()
			start(t, b.config(t))
			b.untilStatus(t, test.status, ids...)
			in := b.intent(t, ids[0])
			require.Equal(t, test.results, in.Results)
			if test.status == schema.StatusParked {
				require.Equal(t, string(schema.ReasonMismatch), in.Reason)
				require.Contains(t, *in.Detail, "was the database restored?")
				require.Equal(t, made, b.creates())
				require.NotNil(t, in.Reserved, "what may have been charged stays reserved")
			}
			require.Empty(t, b.stripe.DoubleCharges())
		})
	}
}

// A customer may have nothing to pay with by now, and have been charged all the same.
func TestM03LookUpBeforeTheFirstSendNeedsNoPaymentMethod(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 4200, "usd", "cus_1")
	b.open(t, "1000.00", "usd")
	stop := start(t, b.config(t))
	b.untilStatus(t, schema.StatusCharged, ids...)
	stop()
	b.stripe.Advance(25 * time.Hour)
	b.stripe.AddCustomer(stripetest.Customer{ID: "cus_1"})
	b.back(t, 25*time.Hour)
	start(t, b.config(t))
	b.untilStatus(t, schema.StatusCharged, ids...)
	b.once(t, 4200, ids...)
}

// The look-up before the first send goes far back: an event that is replayed has a later time than it had.
func TestM08LookUpBeforeTheFirstSendGoesFarBack(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 4200, "usd", "cus_1")
	b.exec(t, `UPDATE billing.intents SET created_at = now() - interval '2 days'`)
	b.open(t, "1000.00", "usd")
	start(t, b.config(t))
	b.untilStatus(t, schema.StatusCharged, ids...)
	looked := 0
	for _, r := range b.stripe.Requests() {
		if r.Method != "GET" || !r.Form.Has("created[gte]") {
			continue
		}
		from, err := strconv.ParseInt(r.Form.Get("created[gte]"), 10, 64)
		require.NoError(t, err)
		require.Less(t, from, time.Now().AddDate(-1, 0, 0).Unix())
		looked++
	}
	require.Equal(t, 2, looked, "payment intents and charges")
}
