package charger

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"chargeonce/charger/stripecharge"
	"chargeonce/charger/stripecharge/stripetest"
	"chargeonce/charger/vaultkey/vaultkeytest"
	"chargeonce/schema"
)

// Each of these tests is an incident that others had with Stripe and told in public, brought about here.

// woocommerce-gateway-stripe#489: a webhook's handler and a page's handler each charged with a key of their own. Here: the
// event comes over both brokers, and its intent has two jobs.
func TestIncident01TwoWaysToOneObligation(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 1000, "usd", "cus_1")
	_, err := b.owner.Exec(t.Context(), `
		INSERT INTO billing.intents (namespace, customer_id, billing_period, idempotency_key, stripe_customer_id, amount_cents, currency, source, source_position)
		SELECT namespace, customer_id, billing_period, idempotency_key, stripe_customer_id, amount_cents, currency, 'solace', 'another' FROM billing.intents`)
	require.ErrorContains(t, err, "intents_one_per_customer_and_period", "the database takes an obligation once, from whichever broker")
	b.doubleJobs(t)
	b.open(t, "100.00", "usd")
	start(t, b.config(t))
	b.untilStatus(t, schema.StatusCharged, ids...)
	b.untilNoJobs(t)
	b.once(t, 1000, ids...)
}

// doubleJobs has River insert every job three times, as a worker that was registered more than once would.
func (b *bundle) doubleJobs(t *testing.T) {
	t.Helper()
	b.exec(t, `CREATE FUNCTION river.again() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
		BEGIN
			IF pg_trigger_depth() = 1 THEN
				INSERT INTO river.river_job (args, kind, max_attempts, priority, queue, state, scheduled_at)
				SELECT NEW.args, NEW.kind, NEW.max_attempts, NEW.priority, NEW.queue, NEW.state, NEW.scheduled_at FROM generate_series(1, 2);
			END IF;
			RETURN NULL;
		END $$;
		CREATE TRIGGER again AFTER INSERT ON river.river_job FOR EACH ROW EXECUTE FUNCTION river.again()`)
}

// untilNoJobs waits until River has nothing left to do.
func (b *bundle) untilNoJobs(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		var left int
		err := b.owner.QueryRow(t.Context(), `SELECT count(*) FROM river.river_job WHERE finalized_at IS NULL`).Scan(&left)
		return err == nil && left == 0
	}, patience, 20*time.Millisecond)
}

// woocommerce-gateway-stripe#2474, #4003 and #5540, woocommerce-payments#5615: a handler was registered more than once, and
// every renewal was charged two to eight times.
func TestIncident02EveryJobThreeTimesInTwoChargers(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{Latency: 5 * time.Millisecond})
	ids := b.intend(t, 1000, "usd", customers(20)...)
	b.doubleJobs(t)
	b.open(t, "1000.00", "usd")
	start(t, b.config(t))
	start(t, b.config(t))
	b.untilStatus(t, schema.StatusCharged, ids...)
	b.untilNoJobs(t)
	b.once(t, 1000, ids...)
	require.Equal(t, len(ids), b.creates())
}

// woocommerce-gateway-stripe#2339, #2477 and #3912: the shop's own database failed right after the charge, and the retry had a
// new key.
func TestIncident03DatabaseFailsRightAfterTheCharge(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	cfg := b.config(t)
	cfg.CallTimeout = 4 * time.Second // and two seconds to finish
	s := b.stepper(t, cfg, "no-disk", "cus_1")
	b.exec(t, `CREATE FUNCTION billing.no_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no space left' USING ERRCODE = 'disk_full'; END $$;
		CREATE TRIGGER no_disk BEFORE UPDATE ON billing.charge_attempts FOR EACH ROW EXECUTE FUNCTION billing.no_disk()`)
	require.ErrorContains(t, s.work(t).err, "finish_failed: the call ended as charged; next: the same key again")
	require.Equal(t, "charging", s.now(t).Status)
	b.exec(t, `DROP TRIGGER no_disk ON billing.charge_attempts`)
	s.age(t, 30*time.Second)
	require.NoError(t, s.work(t).err)
	require.Equal(t, []string{"create:-", "create:charged"}, s.now(t).Results)
	require.True(t, s.posts(t)[1].Replayed)
	s.requireOnce(t)
}

// woocommerce-gateway-stripe#541 and #503: the description changed between retries, which ended in idempotency errors for ever;
// and the same key brought the old decline back although the card had been mended.
func TestIncident04TextChangesAndCardIsMended(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	s := b.stepper(t, b.config(t), "text", "cus_1")
	s.fault(t, stripetest.Fault{Do: stripetest.BadGateway, Effect: true})
	require.Error(t, s.work(t).err)
	b.exec(t, `UPDATE billing.intents SET description = 'a text that marketing likes better' WHERE id = $1`, s.id)
	s.w.way.echoed.Store(true)
	s.age(t, 30*time.Second)
	require.NoError(t, s.work(t).err)
	require.Equal(t, []string{"create:unknown", "create:charged"}, s.now(t).Results)
	s.requireOnce(t)

	declined := b.stepper(t, b.config(t), "card", "cus_2_decline_do_not_honor")
	require.NoError(t, declined.work(t).err)
	require.Equal(t, "card_declined", declined.now(t).Status)
	b.stripe.AddCustomer(stripetest.Customer{ID: "cus_2_decline_do_not_honor", DefaultPaymentMethod: "pm_good", DefaultSource: "card_good"})
	require.Equal(t, outcome{}, declined.work(t), "nothing is tried again by itself, for the key would bring the decline back")
	declined.nextGeneration(t)
	require.NoError(t, declined.work(t).err)
	posts := declined.posts(t)
	require.Len(t, posts, 2)
	require.NotEqual(t, posts[0].IdempotencyKey, posts[1].IdempotencyKey)
	require.False(t, posts[1].Replayed)
	declined.requireOnce(t)
}

// nextGeneration is what a person's retry does to the intent's row.
func (s *stepper) nextGeneration(t *testing.T) {
	t.Helper()
	s.exec(t, `UPDATE billing.intents SET status = 'pending', status_reason = 'queued', key_generation = key_generation + 1, river_job_id = NULL, lease_until = NULL WHERE id = $1`, s.id)
}

// akash-network/console#3449: the charge was slow but went through, and the person tried again.
func TestIncident05SlowButSuccessful(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	cfg := b.config(t)
	cfg.CallTimeout = 4 * time.Second
	s := b.stepper(t, cfg, "slow", "cus_1")
	s.fault(t, stripetest.Fault{Do: stripetest.HoldAfterEffect})
	require.ErrorContains(t, s.work(t).err, "in_doubt")
	s.w.way.echoed.Store(true)
	for range 3 { // hours later, and as impatient as one may be
		s.age(t, 30*time.Second)
		s.work(t)
	}
	require.Equal(t, []string{"create:unknown", "create:charged"}, s.now(t).Results)
	s.requireOnce(t)
}

// getlago/lago-api#709: a counter of attempts stood in the key, which turned idempotency off.
func TestIncident06KeyIsTheSameInAllAttempts(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	s := b.stepper(t, b.config(t), "attempts", "cus_1")
	for range 4 {
		s.fault(t, stripetest.Fault{Do: stripetest.CloseBeforeEffect})
	}
	for attempt := 1; s.now(t).Status != "charged"; attempt++ {
		require.Less(t, attempt, 20)
		s.w.way.echoed.Store(true)
		s.workAs(t, attempt)
		s.age(t, 11*time.Minute)
	}
	keys := map[string]bool{}
	for _, post := range s.posts(t) {
		keys[post.IdempotencyKey] = true
	}
	require.Len(t, s.posts(t), 5)
	require.Equal(t, map[string]bool{schema.IdempotencyKey("cus_1", testPeriod, "attempts", 1): true}, keys)
	s.requireOnce(t)
}

// getlago/lago-api#3063, #5963 and #5398: an idempotency error made a pending payment a failed one, and the worker that lost
// the race overwrote what the winner had written.
func TestIncident07LoserOfARaceOverwritesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	lost := []stripecharge.Answer{
		{Op: stripecharge.OpCreate, Class: stripecharge.ClassIdempotencyError, HTTPStatus: 400, Sent: true},
		{Op: stripecharge.OpCreate, Class: stripecharge.ClassDeclined, HTTPStatus: 402, Sent: true, ErrorCode: "card_declined"},
		{Op: stripecharge.OpCreate, Class: stripecharge.ClassInvalidRequest, HTTPStatus: 400, Sent: true},
		unknown(),
	}
	ids := b.intend(t, 1000, "usd", customers(len(lost))...)
	b.open(t, "100.00", "usd")
	h := byHand(t, b, ids[0])
	for i, answer := range lost {
		require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT river_job_id FROM billing.intents WHERE id = $1`, ids[i]).Scan(&h.jobID))
		loser := h.claims(t, ids[i], stripecharge.OpCreate)
		winner := h.claims(t, ids[i], stripecharge.OpCreate)
		h.ends(t, winner, winner.access.client.Create(t.Context(), winner.request, winner.sendBefore), stripecharge.Found{})
		h.ends(t, loser, answer, stripecharge.Found{})
		in := b.intent(t, ids[i])
		require.Equal(t, "charged", in.Status, "%s", answer.Class)
		require.Equal(t, []string{"create:" + answer.Result(), "create:charged"}, in.Results, "what the loser was told is kept all the same")
		require.Equal(t, "open", b.run(t).Status)
	}
	b.once(t, 1000, ids...)
}

// getlago/lago-api#2155: payments whose connection was refused ended as dead jobs.
func TestIncident08RefusedForHoursIsNotLost(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	g := startGateway(t, b.stripe.URL)
	cfg := b.config(t)
	cfg.Keys.StripeURL = g.URL
	s := b.stepper(t, cfg, "refused", "cus_1")
	g.refuse()
	for attempt := 1; attempt <= 3*triesShown; attempt++ {
		o := s.workAs(t, min(attempt, maxJobAttempts))
		require.True(t, o.snoozed || o.err != nil)
		require.Equal(t, attempt > triesShown, o.snoozed, "an outage of hours does not use up the job's attempts")
		s.age(t, time.Hour)
		s.restart(t, cfg)
	}
	require.Equal(t, "pending", s.now(t).Status)
	g.again(t)
	require.NoError(t, s.work(t).err)
	s.requireOnce(t)
}

// tempoxyz/pympp#155: a token that lives for minutes was a part of the key.
func TestIncident09KeyDependsOnNothingThatChanges(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	cfg, proxy := b.behindProxy(t, b.config(t), vaultkeytest.Config{})
	s := b.stepper(t, cfg, "token", "cus_1")
	require.NoError(t, b.stripe.AddFaults(stripetest.Fault{ // which leaves no effect
		Do: stripetest.BadGateway, Match: stripetest.Match{Method: http.MethodPost, Path: "/v1/payment_intents"}, Trigger: stripetest.Trigger{Count: 1},
	}))
	require.Error(t, s.work(t).err)
	b.exec(t, `UPDATE billing.vault_keys SET expires_at = now()`)
	b.exec(t, `UPDATE billing.intents SET payment_method = 'pm_another', source_position = 'another' WHERE id = $1`, s.id)
	cfg.ID = "another"
	s.restart(t, cfg)
	s.w.way.echoed.Store(true)
	s.age(t, 30*time.Second)
	require.NoError(t, s.work(t).err)
	require.Len(t, proxy.Keys(), 2, "another vault key sent the second create")
	posts := s.posts(t)
	require.Len(t, posts, 2)
	require.Equal(t, posts[0].IdempotencyKey, posts[1].IdempotencyKey)
	require.Equal(t, posts[0].BodySHA256, posts[1].BodySHA256)
	s.requireOnce(t)
}

// Medical-Software-Foundation/canvas#243: the key was customer and date, the body was not the same, and the customer was locked
// out for 24 hours. Here a person sees it at once, and the next generation is free of it.
func TestIncident10KeyThatStripeKnowsWithOtherParameters(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	s := b.stepper(t, b.config(t), "locked", "cus_1")
	s.fault(t, stripeError(http.StatusBadRequest, `"type":"idempotency_error"`))
	require.NoError(t, s.work(t).err)
	in := s.now(t)
	require.Equal(t, "parked/idempotency_error", in.Status+"/"+in.Reason)
	require.Equal(t, []string{"create:idempotency_error", "look_up:absent"}, in.Results, "looked up, and not tried again")

	declined := b.stepper(t, b.config(t), "free", "cus_2_decline_expired_card")
	require.NoError(t, declined.work(t).err)
	b.stripe.AddCustomer(stripetest.Customer{ID: "cus_2_decline_expired_card", DefaultPaymentMethod: "pm_new", DefaultSource: "card_new"})
	declined.nextGeneration(t)
	require.NoError(t, declined.work(t).err)
	declined.requireOnce(t)
}

// stripe-ruby#598: the key of one call was left for the next one, to another endpoint.
func TestIncident11KeyStaysWithItsCreate(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	s := b.stepper(t, b.config(t), "leak", "cus_1_decline_do_not_honor")
	s.fault(t, stripetest.Fault{Do: stripetest.CloseAfterEffect})
	require.Error(t, s.work(t).err)
	s.age(t, time.Hour)
	require.NoError(t, s.work(t).err)
	require.Equal(t, []string{"create:unknown", "look_up:found", "read:open", "cancel:canceled"}, s.now(t).Results)
	key, others := s.key(t), 0
	for _, r := range b.stripe.Requests() {
		if r.Form.Get("metadata[intent_key]") != key {
			others++
			require.NotEqual(t, key, r.IdempotencyKey, "%s %s", r.Method, r.Path)
		}
	}
	require.GreaterOrEqual(t, others, 5)
}

// stripe-java#389: after a connection error the retry carried more metadata, and Stripe took it for another request.
func TestIncident12RetryCarriesNoOtherMetadata(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	cfg := b.config(t)
	s := b.stepper(t, cfg, "metadata", "cus_1")
	s.fault(t, stripetest.Fault{Do: stripetest.ResetAfterEffect})
	require.Error(t, s.work(t).err)
	cfg.Installation = "renamed"
	s.restart(t, cfg)
	s.w.way.echoed.Store(true)
	s.age(t, 30*time.Second)
	require.NoError(t, s.work(t).err)
	posts := s.posts(t)
	require.Len(t, posts, 2)
	require.Equal(t, posts[0].Form, posts[1].Form)
	require.True(t, posts[1].Replayed)
	s.requireOnce(t)
}

// inFlight has Stripe work on the first create for longer than its sender waits, sends a second one meanwhile, and then lets
// the first one end.
func inFlight(t *testing.T, b *bundle, namespace string, conflicts int) *stepper {
	t.Helper()
	cfg := b.config(t)
	cfg.CallTimeout = 4 * time.Second
	s := b.stepper(t, cfg, namespace, "cus_"+namespace)
	s.fault(t, stripetest.Fault{Do: stripetest.HoldBeforeEffect, Effect: true})
	require.ErrorContains(t, s.work(t).err, "in_doubt")
	s.w.way.echoed.Store(true)
	var results []string
	for range conflicts {
		s.age(t, 11*time.Minute)
		o := s.work(t)
		require.ErrorContains(t, o.err, "in_doubt", "it is neither declined nor dead")
		results = s.now(t).Results
	}
	require.Contains(t, results, "create:key_in_use")
	require.Empty(t, s.charges(t))
	s.stripe.Release()
	return s
}

// stripe-go#642, #647 and #1523: the retry had an empty body, or met its own first request still running (409).
func TestIncident13RetryMeetsItsFirstRequest(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	s := inFlight(t, b, "running", 1)
	s.toRest(t)
	posts := s.posts(t)
	require.GreaterOrEqual(t, len(posts), 2)
	for _, post := range posts {
		require.Equal(t, posts[0].BodySHA256, post.BodySHA256)
		require.NotEmpty(t, post.Form.Get("amount"))
	}
	s.requireOnce(t)
}

// stripe-terminal-android#470: a timeout, then 409s; the library said declined, the dashboard said paid.
func TestIncident14TimeoutAndConflictsStayUnknown(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	s := inFlight(t, b, "conflicts", 2)
	require.GreaterOrEqual(t, s.now(t).Unresolved, 3)
	s.toRest(t)
	s.requireOnce(t)
}

// stripity-stripe#564: all retries were used up on idempotency_key_in_use.
func TestIncident15ManyConflictsUseUpNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	s := inFlight(t, b, "many", 12)
	s.toRest(t)
	s.requireOnce(t)
}

// pretix#1189, a good example: webhook and poll raced, and the same key made it a line in the log.
func TestIncident16TwoThatFindTheSameChargeAgree(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	id := b.intend(t, 1000, "usd", "cus_1")[0]
	b.open(t, "100.00", "usd")
	h := byHand(t, b, id)
	stale := h.claims(t, id, stripecharge.OpCreate)
	answer := stale.access.client.Create(t.Context(), stale.request, stale.sendBefore)
	lookUp := h.claims(t, id, stripecharge.OpLookUp)
	found, list := h.send(t.Context(), lookUp)
	h.ends(t, lookUp, found, list)
	h.ends(t, stale, answer, stripecharge.Found{})
	require.Equal(t, "open", b.run(t).Status, "nobody is alarmed")
	require.Equal(t, []string{"create:charged", "look_up:found"}, b.intent(t, id).Results)
	b.once(t, 1000, id)
}

// dimagi/commcare-hq#33509: the key was relied on for a day, the retry came the next day, and nothing had been written of the
// first try.
func TestIncident17RetryOnTheNextDay(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	s := b.stepper(t, b.config(t), "day", "cus_1")
	s.crashes(t)
	b.later(t, s.id, 25*time.Hour)
	s.restart(t, b.config(t))
	require.NoError(t, s.work(t).err)
	require.Equal(t, []string{"create:-", "look_up:found"}, s.now(t).Results)
	require.Len(t, s.posts(t), 1)
	s.requireOnce(t)
}

// standing is what the database says at the moment when Stripe has a create in its hands.
type standing struct {
	status, reason    string
	attempts, frozen  int
	openTransactions  int
	unresolvedCreates int
}

// whileStripeWorks reads the database from within the stand-in, before the create's effect.
func whileStripeWorks(t *testing.T) standing {
	t.Helper()
	var b *bundle
	var at standing
	var calls atomic.Int64
	b = setup(t, stripetest.Config{BeforeEffect: func(c stripetest.Call) {
		if c.Method != http.MethodPost {
			return
		}
		calls.Add(1)
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		err := b.owner.QueryRow(ctx, `
			SELECT i.status, i.status_reason, (SELECT count(*) FROM billing.charge_attempts), (SELECT count(*) FROM billing.charge_requests),
			       (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL),
			       (SELECT count(*) FROM billing.charge_attempts WHERE resolved_at IS NULL)
			FROM billing.intents i`).Scan(&at.status, &at.reason, &at.attempts, &at.frozen, &at.openTransactions, &at.unresolvedCreates)
		if err != nil {
			t.Error(err)
		}
	}})
	s := b.stepper(t, b.config(t), "ahead", "cus_1")
	require.NoError(t, s.work(t).err)
	require.EqualValues(t, 1, calls.Load())
	s.requireOnce(t)
	return at
}

// medusa#13301, #12790 and #3146: the order was written when Stripe had answered, and the webhook was faster: paid, and no order.
func TestIncident18IntentStandsBeforeTheCharge(t *testing.T) {
	t.Parallel()
	at := whileStripeWorks(t)
	require.Equal(t, "charging/sent", at.status+"/"+at.reason)
}

// sharetribe#3672, gumroad#7109: the mark against a second charge was written after the call.
func TestIncident19MarkStandsBeforeTheSend(t *testing.T) {
	t.Parallel()
	at := whileStripeWorks(t)
	require.Equal(t, 1, at.attempts)
	require.Equal(t, 1, at.frozen)
	require.Equal(t, 1, at.unresolvedCreates)
	require.Zero(t, at.openTransactions, "no transaction is open while Stripe is called")
}

// spree#8540: a delayed capture, then a second one. Nothing here captures: the create is the whole payment.
func TestIncident20NothingIsCapturedLater(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{ProcessingFor: time.Hour})
	s := b.stepper(t, b.config(t), "capture", "cus_1_processing")
	require.Error(t, s.work(t).err)
	b.later(t, s.id, 2*time.Hour)
	require.NoError(t, s.work(t).err)
	s.requireOnce(t)
	require.Equal(t, "automatic", s.posts(t)[0].Form.Get("capture_method"))
	for _, r := range b.stripe.Requests() {
		require.NotContains(t, r.Path, "capture")
	}
}

// craftcms/commerce-stripe#207: no key at all, and two to four charges.
func TestIncident21EveryCreateCarriesItsKey(t *testing.T) {
	t.Parallel()
	for _, api := range []stripecharge.API{stripecharge.APIPaymentIntents, stripecharge.APICharges} {
		b := setup(t, stripetest.Config{})
		cfg := b.config(t)
		cfg.StripeAPI = api
		s := b.stepper(t, cfg, "key", "cus_1")
		require.NoError(t, s.work(t).err)
		require.Equal(t, s.key(t), s.posts(t)[0].IdempotencyKey)
		intent, acc, request := s.reading(t)
		require.True(t, intent.Frozen)
		request.IdempotencyKey = ""
		answer := acc.client.Create(t.Context(), request, time.Now().Add(time.Minute))
		require.Equal(t, stripecharge.ClassLocalError, answer.Class, "without a key nothing is sent")
		require.Len(t, s.posts(t), 1)
	}
}

// Paymenter#1258, InvoicePlane#1677, cartalyst/stripe#59 and others: amounts a hundred times too high in currencies without
// cents. Here nothing multiplies: the stand-in receives the event's integer.
func TestIncident22AmountIsNeverMultiplied(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	for currency, amount := range map[string]int64{"jpy": 5000, "krw": 70_000, "kwd": 5000, "bhd": 12_340, "isk": 50_000, "usd": 5001} {
		s := b.stepper(t, b.config(t), "currency-"+currency, "cus_"+currency)
		b.exec(t, `UPDATE billing.intents SET amount_cents = $2, currency = $3 WHERE id = $1`, s.id, amount, currency)
		b.exec(t, `UPDATE billing.runs SET currency = $2, cap_cents = 1000000, expected_total_cents = 1000000 WHERE namespace = $1`, s.run.Namespace, currency)
		s.run.Currency = currency
		require.NoError(t, s.work(t).err)
		require.Equal(t, fmt.Sprint(amount), s.posts(t)[0].Form.Get("amount"))
		require.Equal(t, currency, s.posts(t)[0].Form.Get("currency"))
		require.Len(t, s.charges(t), 1)
		require.Equal(t, amount, s.charges(t)[0].Amount)
	}
}

// Kill Bill (docs#69 and #435), the example to follow: a plugin's timeout is UNKNOWN, and a janitor asks until it is known;
// what was surely not sent is no failure.
func TestIncident23JanitorAsksUntilItIsKnown(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	s := b.stepper(t, b.config(t), "janitor", "cus_1")
	s.fault(t, stripetest.Fault{Do: stripetest.CloseAfterEffect})
	require.Error(t, s.work(t).err)
	require.NoError(t, b.stripe.AddFaults(stripetest.Fault{Do: stripetest.Unavailable, Match: stripetest.Match{Method: http.MethodGet, Customer: "cus_1"}}))
	_, err := b.runs(t).Pause(t.Context(), s.run, "test", "nothing is sent meanwhile")
	require.NoError(t, err)
	for range 5 {
		s.age(t, time.Hour)
		require.ErrorContains(t, s.work(t).err, "in_doubt")
	}
	require.Len(t, slices.DeleteFunc(s.now(t).Results, func(r string) bool { return r != "look_up:failed" }), 5)
	b.stripe.ClearFaults()
	s.age(t, time.Hour)
	require.NoError(t, s.work(t).err)
	require.Equal(t, "adopted", s.now(t).Reason)
	s.requireOnce(t)
}
