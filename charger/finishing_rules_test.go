package charger

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"chargeonce/charger/stripecharge"
	"chargeonce/charger/stripecharge/stripetest"
	"chargeonce/charger/vaultkey/vaultkeytest"
)

// M8 at work: what a look-up of the intent's own generation finds is adopted, or read by its id; anything else is evidence for
// a person. None of it is absence: nothing is sent again.
func TestM08WhatALookUpFindsIsNotAbsence(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	for name, c := range map[string]struct {
		customer string
		spoil    func(t *testing.T, s *stepper, charge stripetest.Effect)
		stands   string
		says     string
	}{
		"refunded": {stands: "parked/mismatch", says: "refunded true", spoil: func(t *testing.T, s *stepper, charge stripetest.Effect) {
			t.Helper()
			require.True(t, s.stripe.Refund(charge.ID))
		}},
		"disputed": {stands: "parked/mismatch", says: "disputed true", spoil: func(t *testing.T, s *stepper, charge stripetest.Effect) {
			t.Helper()
			require.True(t, s.stripe.Dispute(charge.ID))
		}},
		"other_terms": {stands: "parked/mismatch", says: "4321 usd", spoil: func(t *testing.T, s *stepper, _ stripetest.Effect) {
			t.Helper()
			s.execAsReplica(t, `UPDATE billing.charge_requests SET amount_cents = 1, body = convert_to(replace(convert_from(body, 'UTF8'), '4321', '1'), 'UTF8') WHERE intent_id = $1`, s.id)
		}},
		"declined": {customer: "decline_do_not_honor", stands: "card_declined/card_declined"},
		"good":     {stands: "charged/adopted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := b.stepper(t, b.config(t), namespaceOf("found-", name), "cus_x"+strings.ReplaceAll(name, "_", "")+"_"+c.customer)
			s.crashes(t)
			if c.spoil != nil {
				c.spoil(t, s, s.charges(t)[0])
			}
			s.age(t, time.Hour)
			s.restart(t, b.config(t))
			require.NoError(t, s.work(t).err)
			in := s.now(t)
			require.Equal(t, c.stands, in.Status+"/"+in.Reason, "%+v", in)
			require.Contains(t, in.Results, "look_up:found")
			require.Contains(t, deref(in.Detail), c.says)
			require.Len(t, s.posts(t), 1)
			from := fmt.Sprint(s.frozen(t).firstSent.Add(-24 * time.Hour).Unix()) // clocks may differ, and a restored database is behind
			for _, r := range s.stripe.Requests() {
				if r.Form.Get("customer") == s.customer(t) && r.Method == http.MethodGet {
					require.Equal(t, from, r.Form.Get("created[gte]"))
				}
			}
			require.Equal(t, 2, s.listings(t))
		})
	}
}

// Somebody charged the customer the same sum by hand, or something dropped our metadata.
func TestM08UnmarkedChargeParksWithTheEvidence(t *testing.T) {
	t.Parallel()
	for _, api := range []stripecharge.API{stripecharge.APIPaymentIntents, stripecharge.APICharges} {
		b := setup(t, stripetest.Config{})
		cfg := b.config(t)
		cfg.StripeAPI = api
		s := b.stepper(t, cfg, "unmarked", "cus_1")
		s.fault(t, stripetest.Fault{Do: stripetest.CloseBeforeEffect})
		require.Error(t, s.work(t).err)
		made := b.chargeByHand(t, "cus_1", steppedAmount)
		s.age(t, time.Hour)
		require.NoError(t, s.work(t).err)
		in := s.now(t)
		require.Equal(t, "parked/mismatch", in.Status+"/"+in.Reason)
		require.Contains(t, *in.Detail, made)
		require.NotNil(t, in.Reserved)
		require.Equal(t, 1, in.Unresolved)
		require.Len(t, s.posts(t), 1)
	}
}

// Ours was charged, and one beside it that nobody marked may be ours too: which one is the payment is for a person.
func TestM08UnmarkedChargeBesideOursParks(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	s := b.stepper(t, b.config(t), "beside", "cus_1")
	s.crashes(t)
	made := b.chargeByHand(t, "cus_1", steppedAmount)
	s.age(t, time.Hour)
	s.restart(t, b.config(t))
	require.NoError(t, s.work(t).err)
	in := s.now(t)
	require.Equal(t, "parked/mismatch", in.Status+"/"+in.Reason)
	require.Contains(t, *in.Detail, made)
	require.Equal(t, 1, in.Unresolved)
}

// The bank says that it saw the payment just before: another one of this sum is looked for before the decline counts.
func TestM08DuplicateTransactionBesideAnotherChargeParks(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	s := b.stepper(t, b.config(t), "duplicate", "cus_1_decline_duplicate_transaction")
	b.stripe.AddCustomer(stripetest.Customer{ID: "cus_1_decline_duplicate_transaction", DefaultSource: "card_1", DefaultPaymentMethod: "pm_1_decline_duplicate_transaction"})
	made := b.chargeByHand(t, "cus_1_decline_duplicate_transaction", steppedAmount)
	require.NoError(t, s.work(t).err)
	in := s.now(t)
	require.Equal(t, "parked/mismatch", in.Status+"/"+in.Reason)
	require.Contains(t, *in.Detail, made)
	require.Equal(t, []string{"create:unknown", "look_up:found"}, in.Results)
}

// What became of an attempt is known to whoever decides about the intent, also when its claim was lost; two different charges
// of one intent are an alarm.
func TestM13SecondChargeOfAnIntentPausesTheRun(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	id := b.intend(t, 1000, "usd", "cus_1")[0]
	b.open(t, "100.00", "usd")
	h := byHand(t, b, id)
	stale := h.claims(t, id, stripecharge.OpCreate)
	first := stale.access.client.Create(t.Context(), stale.request, stale.sendBefore)
	b.stripe.Advance(25 * time.Hour) // Stripe forgets the key: this is what the rules prevent, done by hand
	newer := h.claims(t, id, stripecharge.OpCreate)
	second := newer.access.client.Create(t.Context(), newer.request, time.Now().Add(time.Minute))
	require.NotEqual(t, first.Object.ChargeID, second.Object.ChargeID)
	h.ends(t, newer, second, stripecharge.Found{})
	h.ends(t, stale, first, stripecharge.Found{})
	in := b.intent(t, id)
	require.Equal(t, []string{"create:charged", "create:charged"}, in.Results)
	require.Equal(t, second.Object.ChargeID, *in.ChargeID, "charged is final")
	require.Equal(t, "paused/late_success", b.run(t).Status+"/"+b.run(t).StatusReason)
	require.Contains(t, b.run(t).StatusDetail, first.Object.ChargeID)
	require.Equal(t, int64(1000), b.run(t).AllocatedCents)
}

// The attempt's result is written, and then the intent cannot be: in between nobody may take the attempt for resolved, for the
// intent is parked, and a person could void it over the charge.
func TestM13LateSuccessIsInDoubtUntilTheIntentIsCharged(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	cfg := b.config(t)
	cfg.CallTimeout = 4 * time.Second // and two seconds to finish
	s := b.stepper(t, cfg, "half", "cus_1")
	jobID := s.dispatched(t)
	intent, acc, request := s.reading(t)
	stale, err := s.w.claim(t.Context(), jobID, intent, stripecharge.OpCreate, acc, request)
	require.NoError(t, err)
	answer, found := s.w.send(t.Context(), stale)
	s.age(t, time.Hour)
	b.exec(t, `UPDATE river.river_job SET state = 'cancelled', finalized_at = now()`)
	require.NoError(t, s.w.sweepRun(t.Context(), s.runNow(t).ID))
	require.Equal(t, "parked", s.now(t).Status)
	b.exec(t, `CREATE FUNCTION billing.no_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no space left' USING ERRCODE = 'disk_full'; END $$;
		CREATE TRIGGER no_disk BEFORE UPDATE ON billing.intents FOR EACH ROW WHEN (NEW.status = 'charged') EXECUTE FUNCTION billing.no_disk()`)
	require.Error(t, s.w.finish(t.Context(), stale, answer, endingOf(stale, answer, found)))
	require.Equal(t, []string{"create:charged"}, s.now(t).Results)
	require.Equal(t, 1, s.now(t).Unresolved)
	b.exec(t, `DROP TRIGGER no_disk ON billing.intents`)
	_, err = b.owner.Exec(t.Context(), `UPDATE billing.intents SET status = 'voided', status_reason = 'by_operator', reserved_cents = NULL, lease_until = NULL`)
	require.ErrorContains(t, err, "unresolved charge attempt")
	require.NoError(t, s.w.finish(t.Context(), stale, answer, endingOf(stale, answer, found)))
	s.requireOnce(t)
}

// What is in flight gets a job whatever its run says, and without another reservation.
func TestM14WhatIsInFlightIsTakenUpWhateverTheRunSays(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	for _, status := range []string{"open", "paused", "closed"} {
		s := b.stepper(t, b.config(t), "flight-"+status, "cus_"+status)
		s.crashes(t)
		b.exec(t, `DELETE FROM river.river_job WHERE (args->>'intent_id')::bigint = $1`, s.id)
		b.exec(t, `UPDATE billing.runs SET status = $1, closed_at = CASE WHEN $1 = 'closed' THEN now() END WHERE id = $2`, status, s.runNow(t).ID)
		require.NoError(t, s.w.dispatchAll(t.Context(), false, true))
		require.Zero(t, s.jobs(t), "its lease is alive")
		s.age(t, time.Hour)
		require.NoError(t, s.w.dispatchAll(t.Context(), false, true))
		require.Equal(t, 1, s.jobs(t))
		require.Equal(t, int64(steppedAmount), s.runNow(t).AllocatedCents)
		require.NoError(t, s.work(t).err)
		require.Equal(t, "adopted", s.now(t).Reason, status)
		s.requireOnce(t)
		require.Equal(t, int64(steppedAmount), s.runNow(t).AllocatedCents)
	}
}

// jobs counts the intent's jobs in River.
func (s *stepper) jobs(t *testing.T) (n int) {
	t.Helper()
	require.NoError(t, s.owner.QueryRow(t.Context(), `SELECT count(*) FROM river.river_job WHERE (args->>'intent_id')::bigint = $1`, s.id).Scan(&n))
	return n
}

func TestM14ThirdLostJobWithoutAFinishedCallParks(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	s := b.stepper(t, b.config(t), "lost", "cus_1")
	s.dispatched(t)
	for range 3 {
		b.exec(t, `DELETE FROM river.river_job`)
		require.NoError(t, s.w.sweepRun(t.Context(), s.runNow(t).ID))
		require.Equal(t, 1, s.jobs(t))
		require.Equal(t, "pending", s.now(t).Status)
	}
	b.exec(t, `DELETE FROM river.river_job`)
	require.NoError(t, s.w.sweepRun(t.Context(), s.runNow(t).ID))
	require.Equal(t, "parked/redispatch_limit", s.now(t).Status+"/"+s.now(t).Reason)
	require.NotNil(t, s.now(t).Reserved)
}

// An intent takes every process with it that works on it, before its claim: after a while it comes to rest.
func TestM14IntentThatKillsEveryProcessBeforeItsClaimIsParked(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	s := b.stepper(t, b.config(t), "poison", "cus_1")
	s.dispatched(t)
	deaths := 0
	for ; s.now(t).Status == "pending" && deaths < 100; deaths++ {
		b.exec(t, `UPDATE river.river_job SET state = 'running', attempted_at = now() - interval '1 day' WHERE state = 'available'`)
		require.NoError(t, s.w.sweepRun(t.Context(), s.runNow(t).ID))
	}
	require.Equal(t, "parked/redispatch_limit", s.now(t).Status+"/"+s.now(t).Reason)
	require.Equal(t, maxUnclaimed+1, deaths)
	require.Contains(t, *s.now(t).Detail, "lost its job 20 times")
	require.Empty(t, s.posts(t))
}

// A denial that arrives after a person has resumed the run says nothing about the run as it is now.
func TestM15LateDenialDoesNotPauseAResumedRun(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	id := b.intend(t, 1000, "usd", "cus_1")[0]
	b.open(t, "100.00", "usd")
	h := byHand(t, b, id)
	c := h.claims(t, id, stripecharge.OpCreate)
	_, err := b.runs(t).Pause(t.Context(), usdRun(), "test", "a look at it")
	require.NoError(t, err)
	_, err = b.runs(t).Resume(t.Context(), usdRun(), "test", "the cap was raised")
	require.NoError(t, err)
	h.ends(t, c, stripecharge.Answer{Op: stripecharge.OpCreate, Class: stripecharge.ClassDenied, HTTPStatus: 402, Sent: true}, stripecharge.Found{})
	require.Equal(t, "open", b.run(t).Status)
	require.Equal(t, "pending", b.intent(t, id).Status)
}

// A key that came to its end is revoked at the proxy a moment before the database says so. In that moment somebody is refused
// with it.
func TestM15DenialOfAKeyThatIsBeingReplacedPausesNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		left time.Duration
		run  string
	}{"at_its_end": {keyExpiryMargin - time.Second, "open"}, "in_its_prime": {24 * time.Hour, "paused"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripetest.Config{})
			cfg, _ := b.behindProxy(t, b.config(t), vaultkeytest.Config{})
			s := b.stepper(t, cfg, "rotation", "cus_1")
			jobID := s.dispatched(t)
			intent, acc, request := s.reading(t)
			claim, err := s.w.claim(t.Context(), jobID, intent, stripecharge.OpCreate, acc, request)
			require.NoError(t, err)
			b.exec(t, `UPDATE billing.vault_keys SET expires_at = now() + $1::interval`, c.left)
			denied := stripecharge.Answer{Op: stripecharge.OpCreate, Class: stripecharge.ClassDenied, HTTPStatus: 401, Sent: true}
			require.NoError(t, s.w.finish(t.Context(), claim, denied, endingOf(claim, denied, stripecharge.Found{})))
			require.Equal(t, c.run, s.runNow(t).Status)
			require.Equal(t, "pending/run_paused", s.now(t).Status+"/"+s.now(t).Reason)
		})
	}
}

// The reservation was given back when a person voided the intent, and others have taken the room: the late charge is recorded
// all the same.
func TestM22LateChargeBeyondTheCapIsRecordedAndPausesTheRun(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	id := b.intend(t, 1000, "usd", "cus_1")[0]
	b.open(t, "10.00", "usd") // cap 11.00
	h := byHand(t, b, id)
	c := h.claims(t, id, stripecharge.OpCreate)
	answer := c.access.client.Create(t.Context(), c.request, c.sendBefore)
	b.execAsReplica(t, `UPDATE billing.intents SET status = 'voided', status_reason = 'by_operator', reserved_cents = NULL, lease_until = NULL WHERE id = $1`, id)
	b.exec(t, `UPDATE billing.runs SET allocated_cents = 1100`)
	h.ends(t, c, answer, stripecharge.Found{})
	require.Equal(t, "charged", b.intent(t, id).Status)
	require.Equal(t, int64(2100), b.run(t).AllocatedCents)
	require.Equal(t, "paused/over_cap", b.run(t).Status+"/"+b.run(t).StatusReason)
	b.once(t, 1000, id)
}

// lines is a log that a test reads.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

func TestDoubtIsToldOnceAndCounted(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	log, registry := new(lines), prometheus.NewRegistry()
	cfg := b.config(t)
	cfg.Logger = slog.New(slog.NewJSONHandler(log, nil))
	s := b.stepper(t, cfg, "doubt", "cus_1")
	for range 3 {
		s.fault(t, stripetest.Fault{Do: stripetest.CloseBeforeEffect})
	}
	cfg.Registry = registry
	observer, err := New(cfg)
	require.NoError(t, err)
	require.NoError(t, observer.observe(t.Context()))
	require.Zero(t, gauge(t, registry, "chargeonce_intents_in_doubt"))
	for range 3 {
		require.Error(t, s.work(t).err)
		s.age(t, time.Hour)
	}
	const told = `"msg":"intent in doubt: Stripe may or may not have charged"`
	require.Equal(t, 1, log.count(told))
	require.Equal(t, 1, log.count(`"key_safe_seconds":82800`))
	require.NoError(t, observer.observe(t.Context()))
	require.InDelta(t, 1, gauge(t, registry, "chargeonce_intents_in_doubt"), 0)
	require.GreaterOrEqual(t, gauge(t, registry, "chargeonce_oldest_doubt_seconds"), 3*time.Hour.Seconds())

	// A process that dies cannot tell: the next one does, if the first call after that does not find out.
	crashed := b.stepper(t, cfg, "crashed", "cus_2")
	crashed.restart(t, cfg)
	crashed.crashes(t)
	crashed.age(t, time.Hour)
	require.NoError(t, b.stripe.AddFaults(stripetest.Fault{Do: stripetest.APIError, Match: stripetest.Match{Method: "GET", Customer: "cus_2"}, Trigger: stripetest.Trigger{Count: 1}}))
	require.Error(t, crashed.work(t).err)
	crashed.age(t, time.Minute)
	require.NoError(t, crashed.work(t).err)
	require.Equal(t, 2, log.count(told))
	crashed.requireOnce(t)
	require.NoError(t, s.work(t).err)
	s.requireOnce(t)
	require.Equal(t, 2, log.count(told))
	require.NoError(t, observer.observe(t.Context()))
	require.Zero(t, gauge(t, registry, "chargeonce_intents_in_doubt"))
}

func gauge(t *testing.T, registry *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()[0].GetGauge().GetValue()
		}
	}
	require.Fail(t, "no such metric", name)
	return 0
}

// A process that stands still in the middle of a transaction must not hold its locks for ever.
func TestTransactionsOfAFrozenProcessAreEndedByPostgres(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	s := b.stepper(t, b.config(t), "frozen", "cus_1")
	b.exec(t, `CREATE TABLE billing.seen (setting text); GRANT INSERT ON billing.seen TO PUBLIC;
		CREATE FUNCTION billing.see() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN INSERT INTO billing.seen VALUES (current_setting('idle_in_transaction_session_timeout')); RETURN NEW; END $$;
		CREATE TRIGGER see AFTER UPDATE ON billing.intents FOR EACH ROW EXECUTE FUNCTION billing.see()`)
	s.dispatched(t) // holds the run's row
	b.exec(t, `DELETE FROM river.river_job`)
	require.NoError(t, s.w.sweepRun(t.Context(), s.runNow(t).ID))
	var bounded, all int
	require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE setting = '10s'), count(*) FROM billing.seen`).Scan(&bounded, &all))
	require.Equal(t, 2, all)
	require.Equal(t, all, bounded)
}

// The declined customer's intent says what a person should do.
func TestDeclineSaysWhatAPersonShouldDo(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	for customer, says := range map[string]string{
		"cus_1_decline_insufficient_funds": "declined (insufficient_funds): may go through another day",
		"cus_2_decline_stolen_card":        "say no more than that the card was declined",
		"cus_3_decline_expired_card":       "the customer must correct the card's data",
		"cus_4_sca":                        "the customer must pay once while present",
	} {
		s := b.stepper(t, b.config(t), namespaceOf(customer), customer)
		require.NoError(t, s.work(t).err)
		require.Contains(t, *s.now(t).Detail, says)
		require.Contains(t, *s.now(t).Detail, "request req_")
	}
}
