package charger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"chargeonce/charger/stripecharge"
	"chargeonce/charger/stripecharge/stripetest"
	"chargeonce/schema"
)

// A worker is paused past its lease after Stripe charged, and its job is cancelled in River UI, so that the intent is parked in
// doubt. It wakes up with the success and cannot record it: the row is locked for longer than a finish tries. The doubt must
// still stand then, else a person could void the intent over a charge.
func TestM13LateSuccessThatCannotBeRecordedStaysInDoubt(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	id := b.intend(t, 1000, "usd", "cus_1")[0]
	b.open(t, "100.00", "usd")
	h := byHand(t, b, id)
	stale := h.claims(t, id, stripecharge.OpCreate)
	answer := stale.access.client.Create(t.Context(), stale.request, stale.sendBefore)
	require.Equal(t, stripecharge.ClassSucceeded, answer.Class)
	// Its lease ends, and a person cancels the job.
	b.exec(t, `UPDATE billing.intents SET lease_until = now() - interval '1 minute' WHERE id = $1`, id)
	b.exec(t, `UPDATE billing.charge_attempts SET lease_until = now() - interval '1 minute' WHERE intent_id = $1`, id)
	b.exec(t, `UPDATE river.river_job SET state = 'cancelled', finalized_at = now()`)
	require.NoError(t, h.sweepRun(t.Context(), b.run(t).ID))
	require.Equal(t, "parked", b.intent(t, id).Status)
	require.Equal(t, 1, b.intent(t, id).Unresolved)
	// Somebody holds the row for longer than the finish tries.
	tx, err := b.owner.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `SELECT 1 FROM billing.intents WHERE id = $1 FOR UPDATE`, id)
	require.NoError(t, err)
	err = h.finish(t.Context(), stale, answer, endingOf(stale, answer, stripecharge.Found{}))
	require.Error(t, err, "the finish gave up")
	require.NoError(t, tx.Rollback(t.Context()))
	// From here on nobody comes again: the intent is parked.
	c, err := New(b.config(t))
	require.NoError(t, err)
	require.NoError(t, c.dispatchAll(t.Context(), true, true))
	require.Len(t, b.stripe.Charges(), 1, "money moved")
	if in := b.intent(t, id); in.Status != "charged" {
		_, err = b.owner.Exec(t.Context(), `UPDATE billing.intents SET status = 'voided', status_reason = 'by_operator', reserved_cents = NULL, lease_until = NULL WHERE id = $1`, id)
		require.Error(t, err, "%s/%s with %d unresolved, %v: voided over a charge", in.Status, in.Reason, in.Unresolved, in.Results)
	}
}

// A proxy answers a cancel with somebody else's cancelled payment intent, while ours is still open.
func TestM06CancelAnsweredWithAnotherObjectIsNoDecline(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	id := b.intend(t, 1000, "usd", "cus_1_decline_do_not_honor")[0]
	b.open(t, "100.00", "usd")
	h := byHand(t, b, id)
	create := h.claims(t, id, stripecharge.OpCreate)
	answer, found := h.send(t.Context(), create)
	h.ends(t, create, answer, found)
	require.Equal(t, "cancelling", b.intent(t, id).Reason)
	require.NoError(t, b.stripe.AddFaults(stripetest.Fault{
		Do: stripetest.Answer, Status: 200, Match: stripetest.Match{Method: "POST"},
		Body: `{"id":"pi_of_somebody_else","object":"payment_intent","status":"canceled","amount":5,"currency":"eur","customer":"cus_other","metadata":{}}`,
	}))
	cancel := h.claims(t, id, stripecharge.OpCancel)
	answer, found = h.send(t.Context(), cancel)
	h.ends(t, cancel, answer, found)
	var canceled int
	for _, effect := range b.stripe.Ledger() {
		if effect.Kind == stripetest.IntentCanceled {
			canceled++
		}
	}
	require.Zero(t, canceled, "Stripe never cancelled anything")
	in := b.intent(t, id)
	require.Equal(t, "charging", in.Status, "%s, reserved %v, %v", in.Reason, in.Reserved, in.Results)
}

// After days an object is read once an hour. A person who parks the intent and gives it back is told that it is read, and must not
// wait for that hour.
func TestM06UnparkedIntentsObjectIsReadAtOnce(t *testing.T) {
	t.Parallel()
	for customer, want := range map[string]schema.Status{
		"cus_1_decline_do_not_honor": schema.StatusCardDeclined, "cus_1_processing": schema.StatusCharged,
	} {
		t.Run(customer, func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripetest.Config{ProcessingFor: 100 * time.Hour})
			id := b.intend(t, 1000, "usd", customer)[0]
			b.open(t, "100.00", "usd")
			h := byHand(t, b, id)
			create := h.claims(t, id, stripecharge.OpCreate)
			answer, found := h.send(t.Context(), create)
			h.ends(t, create, answer, found)
			b.later(t, id, 73*time.Hour)
			require.NoError(t, b.stripe.AddFaults(stripetest.Fault{Do: stripetest.APIError, Match: stripetest.Match{Method: "GET"}}))
			read := h.claims(t, id, stripecharge.OpRead)
			answer, found = h.send(t.Context(), read)
			h.ends(t, read, answer, found)
			b.stripe.ClearFaults()
			b.stripe.Advance(100 * time.Hour)
			require.NoError(t, b.person(t).Park(t.Context(), id))
			_, err := b.person(t).Unpark(t.Context(), id)
			require.NoError(t, err)
			start(t, b.config(t))
			b.untilStatus(t, want, id)
		})
	}
}

// A cancel whose end nobody knows leaves a payment intent that its payer may still pay: only one seen cancelled is a decline.
func TestM06CancelWithoutAnAnswerIsNoDecline(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]stripetest.Fault{
		"bad_gateway":  {Do: stripetest.BadGateway},
		"api_error":    {Do: stripetest.APIError},
		"rate_limit":   {Do: stripetest.RateLimit},
		"empty_object": {Do: stripetest.EmptyObject},
		"cut_body":     {Do: stripetest.CutBody},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripetest.Config{})
			id := b.intend(t, 1000, "usd", "cus_1_decline_do_not_honor")[0]
			b.open(t, "100.00", "usd")
			h := byHand(t, b, id)
			create := h.claims(t, id, stripecharge.OpCreate)
			answer, found := h.send(t.Context(), create)
			h.ends(t, create, answer, found)
			fault.Match = stripetest.Match{Method: "POST"}
			fault.Trigger = stripetest.Trigger{Count: 1}
			require.NoError(t, b.stripe.AddFaults(fault))
			cancel := h.claims(t, id, stripecharge.OpCancel)
			answer, found = h.send(t.Context(), cancel)
			h.ends(t, cancel, answer, found)
			in := b.intent(t, id)
			require.Equal(t, "charging/cancelling", in.Status+"/"+in.Reason)
			require.NotNil(t, in.Reserved, "money can still follow")
			start(t, b.config(t))
			in = b.until(t, id, func(in intentNow) bool { return in.Status == "card_declined" })
			require.Equal(t, "cancel:canceled", in.Results[len(in.Results)-1])
			require.Nil(t, in.Reserved)
		})
	}
}

// An object that was made after the key's window says nothing about an earlier send, by whatever way it is refused.
func TestM07ProcessingThatFailsAfterTheWindowDoesNotResolveTheFirstSend(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	id := b.intend(t, 1000, "usd", "cus_1_processing_fails")[0]
	b.open(t, "100.00", "usd")
	h := byHand(t, b, id)
	first := h.claims(t, id, stripecharge.OpCreate)
	h.ends(t, first, unknown(), stripecharge.Found{})
	b.later(t, id, 25*time.Hour)
	for _, op := range []stripecharge.Op{stripecharge.OpLookUp, stripecharge.OpCreate} {
		c := h.claims(t, id, op)
		answer, found := h.send(t.Context(), c)
		h.ends(t, c, answer, found)
	}
	require.Equal(t, "processing", b.intent(t, id).Reason)
	b.stripe.Advance(2 * time.Hour)
	for _, op := range []stripecharge.Op{stripecharge.OpRead, stripecharge.OpCancel} {
		c := h.claims(t, id, op)
		answer, found := h.send(t.Context(), c)
		h.ends(t, c, answer, found)
	}
	in := b.intent(t, id)
	require.NotEqual(t, "card_declined", in.Status, "reserved %v, results %v", in.Reserved, in.Results)
	require.Equal(t, "parked", in.Status)
	require.Equal(t, string(schema.ReasonDoubtExpired), in.Reason)
	require.NotNil(t, in.Reserved)
	require.GreaterOrEqual(t, in.Unresolved, 1, "the first send stays in doubt")
}

// The look-up of a retried intent also finds the first generation's cancelled payment intent.
func TestM08LookUpOfASecondGenerationAdoptsItsCharge(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	id := b.intend(t, 1000, "usd", "cus_1")[0]
	b.exec(t, `UPDATE billing.intents SET payment_method = 'pm_1_decline_do_not_honor' WHERE id = $1`, id)
	b.open(t, "100.00", "usd")
	h := byHand(t, b, id)
	for _, op := range []stripecharge.Op{stripecharge.OpCreate, stripecharge.OpCancel} {
		c := h.claims(t, id, op)
		answer, found := h.send(t.Context(), c)
		h.ends(t, c, answer, found)
	}
	require.Equal(t, "card_declined", b.intent(t, id).Status)
	// What `intents retry` does: the next generation, with a good card.
	b.exec(t, `UPDATE billing.intents SET status = 'pending', status_reason = 'queued', key_generation = 2, river_job_id = NULL, lease_until = NULL, payment_method = 'pm_good' WHERE id = $1`, id)
	h = byHand(t, b, id)
	create := h.claims(t, id, stripecharge.OpCreate)
	require.Equal(t, stripecharge.ClassSucceeded, create.access.client.Create(t.Context(), create.request, create.sendBefore).Class)
	h.ends(t, create, unknown(), stripecharge.Found{})
	lookUp := h.claims(t, id, stripecharge.OpLookUp)
	answer, found := h.send(t.Context(), lookUp)
	h.ends(t, lookUp, answer, found)
	in := b.intent(t, id)
	require.Equal(t, "charged", in.Status, "%+v", in)
}

// A person corrects the terms while the dispatcher holds what it has read.
func TestM21ReservationIsWhatWasAllocated(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	id := b.intend(t, 1000, "usd", "cus_1")[0]
	b.open(t, "10.00", "usd") // cap 11.00
	c, err := New(b.config(t))
	require.NoError(t, err)
	tx, err := b.owner.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `UPDATE billing.intents SET amount_cents = 500000 WHERE id = $1`, id) // not committed yet
	require.NoError(t, err)
	dispatched := make(chan error, 1)
	go func() { dispatched <- c.dispatchAll(t.Context(), false, false) }()
	require.Eventually(t, func() bool { // it has read 1000, and waits for the row
		var waiting int
		err := b.owner.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&waiting)
		return err == nil && waiting > 0
	}, patience, 10*time.Millisecond)
	require.NoError(t, tx.Commit(t.Context()))
	require.Error(t, <-dispatched, "it must read again")
	var reserved, allocated, capCents int64
	require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT coalesce(sum(i.reserved_cents), 0)::bigint, r.allocated_cents, r.cap_cents
		FROM billing.runs r LEFT JOIN billing.intents i ON i.run_id = r.id GROUP BY r.id`).Scan(&reserved, &allocated, &capCents))
	require.Equal(t, allocated, reserved, "sum(reserved_cents) against allocated_cents; cap %d", capCents)
	require.LessOrEqual(t, reserved, capCents)
}

// The key's window is counted on the database's clock and kept on Stripe's.
func TestM09ClocksApartStopCreates(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	require.NoError(t, b.stripe.AddFaults(stripetest.Fault{Do: stripetest.DateSkew, Skew: stripetest.Duration(30 * time.Hour)}))
	b.intend(t, 1000, "usd", customers(3)...)
	b.open(t, "100.00", "usd")
	start(t, b.config(t))
	require.Eventually(t, func() bool { return b.run(t).StatusReason == "clock_skew" }, patience, 20*time.Millisecond, "run open, %d charges", len(b.stripe.Charges()))
	require.Zero(t, b.creates())
}

// The clocks drift apart in the middle of a run: the answer that shows it counts, and is the last one to a create.
func TestM09SkewShownByAnAnswerStopsTheNextCreate(t *testing.T) {
	t.Parallel()
	for _, skew := range []time.Duration{-10 * time.Minute, 10 * time.Minute, time.Minute} {
		b := setup(t, stripetest.Config{})
		s := b.stepper(t, b.config(t), "skew", "cus_1")
		s.fault(t, stripetest.Fault{Do: stripetest.DateSkew, Skew: stripetest.Duration(skew)})
		require.NoError(t, s.work(t).err)
		s.requireOnce(t)
		second := s.another(t, "cus_2")
		second.work(t)
		if skew < maxClockSkew && skew > -maxClockSkew {
			require.Equal(t, "open", s.runNow(t).Status)
			second.requireOnce(t)
			continue
		}
		require.Equal(t, "paused/clock_skew", s.runNow(t).Status+"/"+s.runNow(t).StatusReason)
		require.Empty(t, second.posts(t))
	}
}

// M07's property by another way: the object that was made after the window was not seen in the create's answer but in a look-up.
func TestM07ObjectFoundByLookUpAfterTheWindowDoesNotResolveTheFirstSend(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	id := b.intend(t, 1000, "usd", "cus_1_processing_fails")[0]
	b.open(t, "100.00", "usd")
	h := byHand(t, b, id)
	first := h.claims(t, id, stripecharge.OpCreate)
	h.ends(t, first, unknown(), stripecharge.Found{})
	b.later(t, id, 25*time.Hour)
	lookUp := h.claims(t, id, stripecharge.OpLookUp)
	answer, found := h.send(t.Context(), lookUp)
	h.ends(t, lookUp, answer, found)
	again := h.claims(t, id, stripecharge.OpCreate)
	answer, _ = h.send(t.Context(), again)
	require.Equal(t, stripecharge.ClassProcessing, answer.Class)
	h.ends(t, again, unknown(), stripecharge.Found{}) // its answer is lost
	lookUp = h.claims(t, id, stripecharge.OpLookUp)
	answer, found = h.send(t.Context(), lookUp)
	h.ends(t, lookUp, answer, found)
	require.Equal(t, "processing", b.intent(t, id).Reason)
	b.stripe.Advance(2 * time.Hour)
	for _, op := range []stripecharge.Op{stripecharge.OpRead, stripecharge.OpCancel} {
		if b.intent(t, id).Status != "charging" {
			break
		}
		c := h.claims(t, id, op)
		answer, found := h.send(t.Context(), c)
		h.ends(t, c, answer, found)
	}
	in := b.intent(t, id)
	require.NotEqual(t, "card_declined", in.Status, "unresolved %d, reserved %v, results %v", in.Unresolved, in.Reserved, in.Results)
	require.GreaterOrEqual(t, in.Unresolved, 1)
}

// A worker that stood still (frozen container) between the answer and the comparison: Stripe's clock is right.
func TestM09FrozenWorkerIsNoClockSkew(t *testing.T) {
	t.Parallel()
	now := time.Now()
	readAt := now.Add(-10 * time.Minute) // both clocks agree: the answer came at once, the worker then stood still
	require.LessOrEqual(t, clockSkew(readAt.Add(time.Second), readAt, readAt), maxClockSkew)
}

// A run paused by clock_skew: what is known at Stripe is still read, also by a process that was restarted.
func TestM09ClockSkewDoesNotStopReads(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	id := b.intend(t, 1000, "usd", "cus_1")[0]
	b.open(t, "100.00", "usd")
	h := byHand(t, b, id)
	c := h.claims(t, id, stripecharge.OpCreate)
	answer, _ := h.send(t.Context(), c)
	require.Equal(t, stripecharge.ClassSucceeded, answer.Class)
	h.ends(t, c, unknown(), stripecharge.Found{})
	b.exec(t, `UPDATE billing.runs SET status = 'paused', status_reason = 'clock_skew'`)
	b.exec(t, `UPDATE billing.charge_requests SET object_id = $1`, answer.Object.ID)
	require.NoError(t, b.stripe.AddFaults(stripetest.Fault{Do: stripetest.DateSkew, Skew: stripetest.Duration(10 * time.Minute)}))
	b.exec(t, `UPDATE river.river_job SET scheduled_at = now(), state = 'available'`)
	start(t, b.config(t))
	b.untilStatus(t, schema.StatusCharged, id)
}
