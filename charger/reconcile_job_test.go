package charger

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"chargeonce/charger/stripecharge/stripetest"
)

// The schedule compares what was not compared for so long, says loudly what it finds, and shows it until a later comparison, by
// whomever, finds it mended.
func TestM25ScheduledComparisonFindsAndTells(t *testing.T) {
	t.Parallel()
	b := keptBooks(t, stripetest.Config{}, "cus_1")
	double := b.pay(t, paid{customer: "cus_1", marks: b.marks(t, b.ids[0])})
	jobs := func() (done int) {
		require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT count(*) FROM river.river_job WHERE queue = 'reconcile' AND state = 'completed'`).Scan(&done))
		return done
	}
	before := jobs() // of the charger that charged
	log, registry := new(lines), prometheus.NewRegistry()
	cfg := b.config(t)
	cfg.ReconcileEvery, cfg.Registry = time.Hour, registry
	stop := start(t, cfg)
	require.Eventually(t, func() bool { return jobs() > before }, patience, 10*time.Millisecond)
	stop()
	require.Zero(t, b.listed("charges"), "the run was opened less than an hour ago")

	b.exec(t, `UPDATE billing.runs SET opened_at = opened_at - interval '61 minutes'`)
	registry = prometheus.NewRegistry()
	cfg.ID, cfg.Registry, cfg.Logger = cfg.ID+"-2", registry, slog.New(slog.NewJSONHandler(log, nil))
	stop = start(t, cfg)
	require.Eventually(t, func() bool {
		return findingsShown(t, registry, FindingDouble) == 1 && gauge(t, registry, "chargeonce_reconcile_oldest_seconds") < 600
	}, patience, 10*time.Millisecond)
	stop()
	require.Equal(t, 1, log.count(`"level":"ERROR","msg":"run reconciled: Stripe's books and the intents differ`))
	require.Equal(t, 1, log.count(`"findings":{"double_charge":1}`))
	require.Equal(t, 1, b.listed("charges"), "once, not with every look")
	last, err := b.runs(t).LastReconciliation(t.Context(), usdRun())
	require.NoError(t, err)
	require.Equal(t, "schedule", last.Actor)

	require.True(t, b.stripe.Refund(double.ChargeID), "a person mends it, and compares by hand")
	b.reconcile(t)
	registry = prometheus.NewRegistry()
	cfg.ID, cfg.Registry = cfg.ID+"-3", registry
	c, err := New(cfg)
	require.NoError(t, err)
	require.NoError(t, c.observe(t.Context()))
	require.Zero(t, findingsShown(t, registry, FindingDouble))
}

// A job that River keeps for a quarter of an hour would keep every charger from the comparison for so long.
func TestM25StopIsNoFailureOfTheScheduledComparison(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	b.open(t, "100.00", "usd")
	tx, err := b.owner.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `LOCK TABLE billing.reconciliations`)
	require.NoError(t, err)
	state := func() (state string) {
		err := b.owner.QueryRow(t.Context(), `SELECT state FROM river.river_job WHERE queue = 'reconcile'`).Scan(&state)
		require.True(t, err == nil || errors.Is(err, pgx.ErrNoRows), err)
		return state
	}
	stop := start(t, b.config(t))
	require.Eventually(t, func() bool { return state() == "running" }, patience, 10*time.Millisecond)
	stop()
	require.Equal(t, "available", state())
	require.NoError(t, tx.Rollback(t.Context()))
}

// findingsShown reads the metric of what the last comparisons found, -1 while it is not there.
func findingsShown(t *testing.T, registry *prometheus.Registry, kind string) float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == "chargeonce_reconcile_findings" && m.GetLabel()[0].GetValue() == kind {
				return m.GetGauge().GetValue()
			}
		}
	}
	return -1
}
