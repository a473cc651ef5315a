//go:build cgo

package main

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"chargeonce/ingest/solace/solacetest"
	"chargeonce/sql/sqltest"
)

func publish(t *testing.T, broker *solacetest.Server, from, n int) {
	t.Helper()
	for i := from; i < from+n; i++ {
		text := fmt.Sprintf(`{"customer_id":"cus_%d","billing_period":"2026-08","amount_cents":%d}`, i, 100+i)
		require.NoError(t, broker.PublishQueue(queueName, solacetest.Message{Text: &text}))
	}
}

// kills is how often the process is killed between commit and acknowledgement.
const kills = 20

// The client sends acknowledgements up to a second after they were given. A process that is killed in between, again and again, brings
// every message of that second back, and none may be lost or be recorded twice.
func TestKilledBetweenCommitAndAcknowledgement(t *testing.T) {
	t.Parallel()
	broker, db := startBroker(t), sqltest.New(t)
	owner := db.Pool(t, "")
	const each = 120 // fewer than the 153 that make the client send acknowledgements at once
	for round := range kills {
		p := start(t, rightSettings(broker, db.URL))
		publish(t, broker, round*each, each)
		// Committed, at least in part, and the acknowledgements are a second away.
		require.True(t, waitFor(t.Context(), func() bool {
			var n int
			err := owner.QueryRow(t.Context(), countIntents).Scan(&n)
			return err == nil && n > round*each
		}), p.stderr)
		p.kill()
	}
	redelivered := broker.Queue(queueName).Redelivered
	p := start(t, rightSettings(broker, db.URL))
	require.True(t, waitFor(t.Context(), func() bool { return broker.Queue(queueName).OnQueue == 0 }))
	await(t, owner, kills*each, countIntents)
	await(t, owner, kills*each, "SELECT count(DISTINCT source_position) FROM billing.intents")
	await(t, owner, 0, "SELECT sum(duplicates + conflicts + quarantined)::bigint FROM billing.source_counters")
	require.Positive(t, broker.Queue(queueName).Redelivered)
	t.Logf("%d messages redelivered over %d kills", redelivered, kills)
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 0, p.exit(t))
	require.Zero(t, broker.Counters().Connections, "it left in good order")
}
