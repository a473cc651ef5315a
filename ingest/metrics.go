package ingest

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are what every source counts alike.
type Metrics struct {
	objects     *prometheus.CounterVec
	batch       prometheus.Histogram
	awaySeconds prometheus.Counter
	away        awayMeter
}

// NewMetrics registers the metrics; a nil registry keeps them to themselves.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		objects: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ingest_objects_total", Help: "Objects committed, by what became of them.",
		}, []string{"result"}),
		batch: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "ingest_batch_seconds", Help: "Time from a batch in hand to its commit, retries included.",
			Buckets: []float64{.002, .005, .01, .02, .05, .1, .25, .5, 1, 5, 30},
		}),
		awaySeconds: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ingest_database_waited_seconds_total", Help: "Time that batches spent waiting for the database to take them, counted when they were taken.",
		}),
	}
	if registry != nil {
		registry.MustRegister(m.objects, m.batch, m.awaySeconds, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "ingest_database_away_seconds", Help: "How long the longest-waiting batch has been waiting for the database, 0 when none is.",
		}, func() float64 {
			longest, _ := m.away.duration(time.Now())
			return longest.Seconds()
		}))
	}
	m.count(Counts{}) // every result is there from the start, as 0
	return m
}

func (m *Metrics) recorded(c Counts, took time.Duration) {
	m.count(c)
	m.batch.Observe(took.Seconds())
}

func (m *Metrics) count(c Counts) {
	m.objects.WithLabelValues("intent").Add(float64(c.Intents))
	m.objects.WithLabelValues("duplicate").Add(float64(c.Duplicates))
	m.objects.WithLabelValues("redelivery").Add(float64(c.Redeliveries))
	m.objects.WithLabelValues("conflict").Add(float64(c.Conflicts))
	m.objects.WithLabelValues("quarantined").Add(float64(c.Quarantined))
}

func (m *Metrics) databaseAway(d time.Duration) { m.awaySeconds.Add(d.Seconds()) }
