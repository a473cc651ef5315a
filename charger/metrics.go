package charger

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// observeEvery is how often the gauges that need a query are refreshed.
const observeEvery = 15 * time.Second

// metrics are named for what an operator asks.
type metrics struct {
	attempts       *prometheus.CounterVec
	callSeconds    *prometheus.HistogramVec
	parked         *prometheus.CounterVec
	runsPaused     *prometheus.CounterVec
	alarms         *prometheus.CounterVec
	redispatched   *prometheus.CounterVec
	dispatched     prometheus.Counter
	dispatchErrors prometheus.Counter
	lostClaims     prometheus.Counter
	intents        *prometheus.GaugeVec
	inDoubt        prometheus.Gauge
	oldestDoubt    prometheus.Gauge

	// Set by observeReconciled from the database, so that every charger shows the same, and a comparison made by hand counts.
	reconcileFindings *prometheus.GaugeVec
	reconcileOldest   prometheus.Gauge
}

func newMetrics(registry prometheus.Registerer) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "chargeonce", Name: name, Help: help}, labels)
	}
	m := &metrics{
		attempts: counter("charge_attempts_total", "Calls to Stripe that ended, by operation and result.", "operation", "result"),
		callSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "chargeonce", Name: "stripe_call_seconds", Help: "Time of one call to Stripe, by operation.",
			Buckets: []float64{.05, .1, .2, .3, .5, .75, 1, 2, 5, 10, 20, 30},
		}, []string{"operation"}),
		parked:         counter("intents_parked_total", "Intents parked for a person, by reason.", "reason"),
		runsPaused:     counter("runs_paused_total", "Runs paused by the charger, by reason.", "reason"),
		alarms:         counter("alarms_total", "Things that must never happen, by kind.", "kind"),
		redispatched:   counter("intents_redispatched_total", "Intents that got another job, by what became of the old one.", "old_job"),
		dispatched:     prometheus.NewCounter(prometheus.CounterOpts{Namespace: "chargeonce", Name: "intents_dispatched_total", Help: "Intents that got their sum reserved and a job."}),
		dispatchErrors: prometheus.NewCounter(prometheus.CounterOpts{Namespace: "chargeonce", Name: "dispatch_errors_total", Help: "Rounds of the dispatcher that failed."}),
		lostClaims:     prometheus.NewCounter(prometheus.CounterOpts{Namespace: "chargeonce", Name: "claims_lost_total", Help: "Calls that ended after their claim's lease."}),
		intents: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "chargeonce", Name: "intents_in_flight", Help: "Intents charging or parked, by status and reason.",
		}, []string{"status", "reason"}),
		inDoubt:     prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "chargeonce", Name: "intents_in_doubt", Help: "Intents that Stripe may or may not have charged."}),
		oldestDoubt: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "chargeonce", Name: "oldest_doubt_seconds", Help: "Age of the oldest doubt."}),
	}
	m.reconcileFindings = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "chargeonce", Name: "reconcile_findings",
		Help: "Differences between Stripe's books and the intents that the last comparison of each run found, by kind. Anything above 0 is for a person: charger reconcile --last.",
	}, []string{"kind"})
	m.reconcileOldest = prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "chargeonce", Name: "reconcile_oldest_seconds", Help: "How long ago the run that waits longest for it was compared with Stripe's books, or opened; far above RECONCILE_EVERY, comparing fails.",
	})
	registry.MustRegister(m.reconcileFindings, m.reconcileOldest, m.attempts, m.callSeconds, m.parked, m.runsPaused, m.alarms, m.redispatched, m.dispatched,
		m.dispatchErrors, m.lostClaims, m.intents, m.inDoubt, m.oldestDoubt)
	return m
}

// observeLoop keeps the gauges that count rows.
func (c *Charger) observeLoop(ctx context.Context) error {
	ticker := time.NewTicker(observeEvery)
	defer ticker.Stop()
	for {
		if err := c.observe(ctx); err != nil && ctx.Err() == nil {
			c.log.WarnContext(ctx, "count intents in flight", slog.Any("error", err))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (c *Charger) observe(ctx context.Context) error {
	rows, err := c.queries.IntentCountStuck(ctx, c.pool)
	if err != nil {
		return err
	}
	c.metrics.intents.Reset()
	for _, row := range rows {
		c.metrics.intents.WithLabelValues(row.Status, row.StatusReason).Set(float64(row.Intents))
	}
	doubt, err := c.queries.DoubtSummary(ctx, c.pool)
	if err != nil {
		return err
	}
	c.metrics.inDoubt.Set(float64(doubt.Intents))
	c.metrics.oldestDoubt.Set(doubt.OldestSeconds)
	return c.observeReconciled(ctx)
}
