package charger

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"chargeonce/charger/stripecharge/stripetest"
	"chargeonce/schema"
)

// Three chargers that are told 50 a second send 50 a second together. How near they come to it from below depends on the machine;
// the test logs it, and fails when not even half of the budget is used.
func TestRateOfThreeChargersIsOneBudget(t *testing.T) {
	t.Parallel()
	const perSecond, window = 50, 10 * time.Second
	b := setup(t, stripetest.Config{Latency: 10 * time.Millisecond})
	ids := b.intend(t, 100, "usd", customers(perSecond*14)...)
	b.open(t, "1000.00", "usd")
	for i := range 3 {
		cfg := b.config(t)
		cfg.ID, cfg.RatePerSecond = fmt.Sprintf("%s-%d", cfg.ID, i), perSecond
		start(t, cfg)
	}
	b.untilStatus(t, schema.StatusCharged, ids...)
	var at []time.Time
	for _, r := range b.stripe.Requests() {
		if r.Method == "POST" {
			at = append(at, r.At)
		}
	}
	slices.SortFunc(at, time.Time.Compare)
	require.Len(t, at, len(ids))
	most := 0
	for i := range at {
		end, _ := slices.BinarySearchFunc(at, at[i].Add(window), time.Time.Compare)
		most = max(most, end-i)
	}
	mean := float64(len(at)) / at[len(at)-1].Sub(at[0]).Seconds()
	t.Logf("at most %.1f a second over %s, %.1f on average", float64(most)/window.Seconds(), window, mean)
	require.LessOrEqual(t, float64(most)/window.Seconds(), 55.0)
	require.Greater(t, mean, perSecond/2.0)
	b.once(t, 100, ids...)
}
