package charger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"chargeonce/charger/stripecharge"
	"chargeonce/charger/stripecharge/stripetest"
	"chargeonce/schema"
)

func TestIntentsAreChargedOnceByTwoChargers(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{Latency: 5 * time.Millisecond})
	ids := b.intend(t, 2500, "usd", customers(120)...)
	b.open(t, "3000.00", "usd")
	start(t, b.config(t))
	start(t, b.config(t))
	b.untilStatus(t, schema.StatusCharged, ids...)
	b.once(t, 2500, ids...)
}

func TestChargesAPIChargesTheDefaultSource(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 700, "usd", customers(5)...)
	b.open(t, "100.00", "usd")
	cfg := b.config(t)
	cfg.StripeAPI = stripecharge.APICharges
	start(t, cfg)
	b.untilStatus(t, schema.StatusCharged, ids...)
	b.once(t, 700, ids...)
}

func TestM06DeclineIsFinalOnlyWhenItsPaymentIntentIsCancelled(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 900, "usd", "cus_1_decline_insufficient_funds", "cus_2_sca", "cus_3_nocard", "cus_4")
	run := b.open(t, "100.00", "usd")
	start(t, b.config(t))
	b.untilStatus(t, schema.StatusCardDeclined, ids[:3]...)
	b.untilStatus(t, schema.StatusCharged, ids[3])
	for i, reason := range []schema.StatusReason{schema.ReasonCardDeclined, schema.ReasonAuthenticationRequired, schema.ReasonNoPaymentMethod} {
		in := b.intent(t, ids[i])
		require.Equal(t, string(reason), in.Reason, "%v", in)
		require.Nil(t, in.Reserved)
	}
	require.Equal(t, []string{"create:declined", "cancel:canceled"}, b.intent(t, ids[0]).Results)
	var canceled int
	for _, effect := range b.stripe.Ledger() {
		if effect.Kind == stripetest.IntentCanceled {
			canceled++
		}
	}
	require.Equal(t, 2, canceled)
	b.once(t, 900, ids[3])
	var allocated int64
	require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT allocated_cents FROM billing.runs WHERE id = $1`, run.ID).Scan(&allocated))
	require.Equal(t, int64(900), allocated, "declines give their reservation back, a success keeps it")
}

func TestM20CapIsNeverReservedBeyond(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 1000, "usd", customers(20)...)
	b.open(t, "100.00", "usd") // cap 110.00: eleven of them
	for range 3 {
		start(t, b.config(t))
	}
	require.Eventually(t, func() bool { return len(b.stripe.Charges()) == 11 }, patience, 20*time.Millisecond)
	counts := map[string]int{}
	require.Eventually(t, func() bool {
		clear(counts)
		for _, id := range ids {
			in := b.intent(t, id)
			counts[in.Status+"/"+in.Reason]++
		}
		return counts["charged/charged"] == 11 && counts["pending/run_capped"] == 9
	}, patience, 50*time.Millisecond, "%v", &counts)
	require.Empty(t, b.stripe.DoubleCharges())
	require.Len(t, b.stripe.Charges(), 11)
}

func TestTimeoutAfterEffectIsAdoptedUnderTheSameKey(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	require.NoError(t, b.stripe.AddFaults(stripetest.Fault{Do: stripetest.HoldAfterEffect, Match: stripetest.Match{Method: "POST"}, Trigger: stripetest.Trigger{Count: 1}}))
	ids := b.intend(t, 4200, "usd", "cus_slow")
	b.open(t, "100.00", "usd")
	cfg := b.config(t)
	cfg.CallTimeout = 4 * time.Second
	start(t, cfg)
	in := b.until(t, ids[0], func(in intentNow) bool { return in.Reason == string(schema.ReasonInDoubt) })
	require.Equal(t, 1, in.Unresolved)
	b.untilStatus(t, schema.StatusCharged, ids...)
	b.once(t, 4200, ids...)
	require.Zero(t, b.intent(t, ids[0]).Unresolved)
}

func TestM03CrashAfterEffectIsLookedUpAfterTheWindow(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	require.NoError(t, b.stripe.AddFaults(stripetest.Fault{Do: stripetest.HoldAfterEffect, Match: stripetest.Match{Method: "POST"}}))
	ids := b.intend(t, 4200, "usd", "cus_slow")
	b.open(t, "100.00", "usd")
	victim, _ := b.spawn(t, "none")
	require.Eventually(t, func() bool { return len(b.stripe.Held()) == 1 }, patience, 10*time.Millisecond)
	kill(t, victim)
	b.stripe.ClearFaults()
	b.stripe.Release()
	b.later(t, ids[0], 25*time.Hour)
	cfg := b.config(t)
	cfg.CallTimeout = 4 * time.Second
	start(t, cfg)
	b.untilStatus(t, schema.StatusCharged, ids...)
	b.once(t, 4200, ids...)
	in := b.intent(t, ids[0])
	require.Equal(t, string(schema.ReasonAdopted), in.Reason)
	require.Equal(t, []string{"create:-", "look_up:found"}, in.Results)
}

func TestM07AbsenceAfterTheWindowPermitsTheSameBytesOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	require.NoError(t, b.stripe.AddFaults(stripetest.Fault{Do: stripetest.HoldBeforeEffect, Match: stripetest.Match{Method: "POST"}}))
	ids := b.intend(t, 4200, "usd", "cus_slow")
	b.open(t, "100.00", "usd")
	victim, _ := b.spawn(t, "none")
	require.Eventually(t, func() bool { return len(b.stripe.Held()) == 1 }, patience, 10*time.Millisecond)
	kill(t, victim)
	b.stripe.ClearFaults()
	b.later(t, ids[0], 25*time.Hour)
	cfg := b.config(t)
	cfg.CallTimeout = 4 * time.Second
	start(t, cfg)
	b.untilStatus(t, schema.StatusCharged, ids...)
	b.once(t, 4200, ids...)
	require.Equal(t, []string{"create:-", "look_up:absent", "create:charged"}, b.intent(t, ids[0]).Results)
	var hashes []string
	for _, r := range b.stripe.Requests() {
		if r.Method == "POST" {
			hashes = append(hashes, r.IdempotencyKey+r.BodySHA256)
		}
	}
	require.Len(t, hashes, 2)
	require.Equal(t, hashes[0], hashes[1], "the same key and the same bytes")
}
