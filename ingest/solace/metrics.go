//go:build cgo

package solace

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are what only Solace has to tell.
type Metrics struct {
	bound       prometheus.Gauge
	active      prometheus.Gauge
	lastMessage prometheus.Gauge
	sessions    prometheus.Counter
	restarts    prometheus.Counter
	received    prometheus.Counter
	redelivered prometheus.Counter
	acked       prometheus.Counter
	ackFailures prometheus.Counter
	panics      prometheus.Counter
}

// NewMetrics registers the metrics; a nil registry keeps them to themselves.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &Metrics{
		bound:       gauge("ingest_solace_bound", "1 while this process is bound to the queue."),
		active:      gauge("ingest_solace_active", "1 while the broker gives messages to this process; 0 while it stands by at an exclusive queue."),
		lastMessage: gauge("ingest_solace_last_message_timestamp_seconds", "When this process last received a message; 0 before the first."),
		sessions:    counter("ingest_solace_sessions_total", "Sessions with the broker that were begun."),
		restarts:    counter("ingest_solace_restarts_total", "Sessions that ended or failed to begin and were followed by another."),
		received:    counter("ingest_solace_received_total", "Messages received."),
		redelivered: counter("ingest_solace_redelivered_total", "Messages received that the broker had delivered before, to whomever."),
		acked:       counter("ingest_solace_acked_total", "Messages acknowledged after their commit, as far as the client knows."),
		ackFailures: counter("ingest_solace_ack_failures_total", "Messages that could not be acknowledged after their commit, and come again."),
		panics:      counter("ingest_solace_panics_total", "Panics while recording, each of which cost a session."),
	}
	if registry != nil {
		registry.MustRegister(m.bound, m.active, m.lastMessage, m.sessions, m.restarts, m.received, m.redelivered, m.acked, m.ackFailures, m.panics)
	}
	return m
}

func (m *Metrics) receive(again bool, at time.Time) {
	m.received.Inc()
	m.lastMessage.Set(float64(at.UnixMilli()) / 1e3)
	if again {
		m.redelivered.Inc()
	}
}
