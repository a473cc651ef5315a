package charger

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"chargeonce/charger/stripecharge"
	"chargeonce/charger/stripecharge/stripetest"
	"chargeonce/charger/vaultkey/vaultkeytest"
)

// TestMoneyIsAccountedForAtEveryMoment lets chargers come while Stripe, the proxy and people do what they like: at every moment
// the sum of the reservations is what the run has allocated, within its cap, and in the end nobody is charged twice and no
// charge stands behind an intent that says declined, or pending with nothing in doubt.
func TestMoneyIsAccountedForAtEveryMoment(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a test's choices
	b := setup(t, stripetest.Config{Latency: 5 * time.Millisecond, ProcessingFor: 2 * time.Second})
	kinds := []string{"", "", "", "_decline_do_not_honor", "_sca", "_nocard", "_processing", "_processing_fails"}
	names := make([]string, 120)
	for i := range names {
		names[i] = fmt.Sprintf("cus_%03d%s", i, kinds[random.IntN(len(kinds))])
	}
	ids := b.intend(t, 1000, "usd", names...)
	b.open(t, "800.00", "usd") // cap 880.00: 88 of them
	cfg, proxy := b.behindProxy(t, b.config(t), vaultkeytest.Config{Denial: "flat"})
	cfg.CallTimeout, cfg.Workers = 500*time.Millisecond, 10
	b.mishaps(t, random)
	require.NoError(t, proxy.AddFaults(vaultkeytest.Fault{
		Do: vaultkeytest.Deny, Style: "flat_429", Match: stripetest.Match{Method: "POST", Path: "/v1/payment_intents"}, Trigger: stripetest.Trigger{Nth: 15, Count: 5},
	}))
	start(t, cfg)
	pace := time.NewTicker(20 * time.Millisecond)
	defer pace.Stop()
	chargers := 1
	for i := range 400 {
		<-pace.C
		b.requireAllocated(t)
		b.meddle(t, random)
		if i%150 == 149 {
			chargers++
			another := cfg
			another.ID, another.Registry = fmt.Sprintf("%s-%d", cfg.ID, chargers), nil
			start(t, another)
		}
	}
	b.stripe.ClearFaults()
	proxy.ClearFaults()
	b.stripe.Release()
	require.NoError(t, b.runs(t).Switch(t.Context(), false, "test", "the end"))
	_, err := b.runs(t).Resume(t.Context(), usdRun(), "test", "the end")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		b.requireAllocated(t)
		b.stripe.Advance(time.Second)
		var moving int
		err := b.owner.QueryRow(t.Context(), `SELECT count(*) FROM billing.intents WHERE status_reason IN ('queued', 'sent', 'no_run', 'run_paused', 'stopped')`).Scan(&moving)
		return err == nil && moving == 0
	}, patience, 100*time.Millisecond)
	b.requireNothingDenied(t, len(ids))
}

// mishaps scripts what goes wrong at Stripe.
func (b *bundle) mishaps(t *testing.T, random *rand.Rand) {
	t.Helper()
	for _, do := range []stripetest.Action{
		stripetest.HoldAfterEffect, stripetest.HoldBeforeEffect, stripetest.CloseBeforeEffect, stripetest.CloseAfterEffect, stripetest.ResetAfterEffect,
		stripetest.CutBody, stripetest.RateLimit, stripetest.LockTimeout, stripetest.KeyInUse, stripetest.BadGateway, stripetest.Redirect, stripetest.EmptyObject,
	} {
		for range 2 {
			require.NoError(t, b.stripe.AddFaults(stripetest.Fault{
				Do: do, Effect: random.IntN(2) == 0, Delay: stripetest.Duration(700 * time.Millisecond),
				Match: stripetest.Match{Method: "POST"}, Trigger: stripetest.Trigger{Nth: 1 + random.IntN(60), Count: 1},
			}))
		}
	}
}

// meddle is what people do meanwhile; most of the time nothing.
func (b *bundle) meddle(t *testing.T, random *rand.Rand) {
	t.Helper()
	var err error
	switch random.IntN(60) {
	case 0:
		_, err = b.runs(t).Pause(t.Context(), usdRun(), "test", "a look at it")
	case 1, 2, 3, 4, 5, 6:
		_, err = b.runs(t).Resume(t.Context(), usdRun(), "test", "goes on")
	case 7:
		err = b.runs(t).Switch(t.Context(), true, "test", "stop")
	case 8, 9, 10, 11:
		err = b.runs(t).Switch(t.Context(), false, "test", "goes on")
	case 12:
		b.exec(t, `DELETE FROM river.river_job WHERE id = (SELECT id FROM river.river_job WHERE state <> 'running' ORDER BY random() LIMIT 1)`)
	case 13:
		b.exec(t, `UPDATE river.river_job SET state = 'cancelled', finalized_at = now()
			WHERE id = (SELECT id FROM river.river_job WHERE state IN ('available', 'retryable', 'scheduled') ORDER BY random() LIMIT 1)`)
	case 14:
		b.exec(t, `UPDATE river.river_job SET state = 'available', finalized_at = NULL, scheduled_at = now()
			WHERE id = (SELECT id FROM river.river_job WHERE state IN ('completed', 'cancelled', 'retryable') ORDER BY random() LIMIT 1)`)
	case 15:
		b.stripe.Advance(time.Second)
	default:
	}
	require.NoError(t, err)
}

func (b *bundle) requireAllocated(t *testing.T) {
	t.Helper()
	var reserved, allocated, capCents int64
	require.NoError(t, b.owner.QueryRow(t.Context(), `
		SELECT (SELECT coalesce(sum(reserved_cents), 0)::bigint FROM billing.intents WHERE run_id = r.id), r.allocated_cents, r.cap_cents
		FROM billing.runs r`).Scan(&reserved, &allocated, &capCents))
	require.Equal(t, allocated, reserved)
	require.LessOrEqual(t, allocated, capCents)
}

// requireNothingDenied holds every charge of the ledger against its intent.
func (b *bundle) requireNothingDenied(t *testing.T, intents int) {
	t.Helper()
	require.Empty(t, b.stripe.DoubleCharges())
	require.NotEmpty(t, b.stripe.Charges())
	require.LessOrEqual(t, len(b.stripe.Charges()), intents)
	for _, charge := range b.stripe.Charges() {
		var status string
		var unresolved int
		require.NoError(t, b.owner.QueryRow(t.Context(), `
			SELECT i.status, (SELECT count(*) FROM billing.charge_attempts a WHERE a.intent_id = i.id AND a.operation = 'create' AND a.resolved_at IS NULL)
			FROM billing.intents i WHERE i.idempotency_key = $1`, charge.Metadata[stripecharge.MetadataIntentKey]).Scan(&status, &unresolved))
		require.True(t, status == "charged" || unresolved > 0, "%s with %d unresolved over charge %s", status, unresolved, charge.ID)
	}
}
