package eventhubs

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are what only Event Hubs has to tell.
type Metrics struct {
	lag        *prometheus.GaugeVec
	progress   *prometheus.GaugeVec
	owned      prometheus.Gauge
	unread     prometheus.Gauge
	restarts   prometheus.Counter
	lost       prometheus.Counter
	strangers  prometheus.Counter
	gaps       prometheus.Counter
	unreadable prometheus.Counter
	expired    prometheus.Counter
	anew       prometheus.Counter
	unmoved    prometheus.Counter
	foreign    prometheus.Gauge
	// Of checkpoints in Blob Storage:
	unconfirmed prometheus.Counter
	unwritten   prometheus.Counter
}

// NewMetrics registers the metrics; a nil registry keeps them to themselves.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"partition"})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &Metrics{
		lag:        gauge("ingest_eventhub_lag_events", "Events in a partition read by this process that are not yet committed."),
		progress:   gauge("ingest_eventhub_last_progress_timestamp_seconds", "When this process last committed events of a partition."),
		owned:      prometheus.NewGauge(prometheus.GaugeOpts{Name: "ingest_eventhub_owned_partitions", Help: "Partitions that this process owns."}),
		unread:     prometheus.NewGauge(prometheus.GaugeOpts{Name: "ingest_eventhub_unread_partitions", Help: "Partitions that this process owns and has not opened; not 0 for long when one cannot be opened."}),
		restarts:   counter("ingest_eventhub_restarts_total", "Processors of the SDK that ended or hung and were replaced."),
		lost:       counter("ingest_eventhub_partitions_lost_total", "Partitions that another reader took over; normal while readers come and go."),
		strangers:  counter("ingest_eventhub_strangers_total", "Partitions taken by a reader outside this checkpoint store: it uses the same consumer group."),
		gaps:       counter("ingest_eventhub_gaps_total", "Gaps in what was received, which were read again one by one."),
		unreadable: counter("ingest_eventhub_unreadable_events_total", "Sequence numbers that could not be read and were quarantined."),
		expired:    counter("ingest_eventhub_expired_events_total", "Events that retention removed before they were read."),
		anew:       counter("ingest_eventhub_restarted_partitions_total", "Partitions read from the beginning because their checkpoint did not fit the hub."),
		unmoved:    counter("ingest_eventhub_unmoved_checkpoints_total", "Batches committed whose checkpoint did not move although it should have."),
		foreign:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "ingest_eventhub_foreign_partitions", Help: "Partitions of this consumer group and checkpoint store whose owners record into another database or billing namespace."}),

		unconfirmed: counter("ingest_eventhub_unconfirmed_checkpoints_total", "Checkpoints in Blob Storage that were ahead of what this database has recorded and were not used."),
		unwritten:   counter("ingest_eventhub_checkpoint_write_failures_total", "Writes of checkpoints to Blob Storage that failed; each is repeated, or superseded by a later one."),
	}
	if registry != nil {
		registry.MustRegister(m.lag, m.progress, m.owned, m.unread, m.restarts, m.lost, m.strangers, m.gaps, m.unreadable, m.expired, m.anew, m.unmoved,
			m.foreign, m.unconfirmed, m.unwritten)
	}
	return m
}

func (m *Metrics) moved(partition string, at time.Time, lag int64) {
	m.progress.WithLabelValues(partition).Set(float64(at.UnixNano()) / 1e9)
	m.lag.WithLabelValues(partition).Set(float64(lag))
}

// forget drops a partition that another process reads now: its last value would stand for ever.
func (m *Metrics) forget(partition string) {
	m.lag.DeleteLabelValues(partition)
	m.progress.DeleteLabelValues(partition)
}
