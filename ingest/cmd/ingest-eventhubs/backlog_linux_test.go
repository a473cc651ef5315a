package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"chargeonce/ingest/eventhubs/eventhubstest"
	"chargeonce/ingest/sourcetest"
	"chargeonce/sql/sqltest"
)

// A backlog that waits for a slow database must stay in the hub: clients that fetch ahead of what is recorded grow until they are
// killed, and then fetch it all again (azure-sdk-for-js#27253, azure-sdk-for-java#20790).
//
// The program is the one that is delivered: a race-built one needs several times the memory.
func TestBacklogBehindASlowDatabaseStaysInTheHub(t *testing.T) {
	t.Parallel()
	const backlog, eventBytes, slowness, maxResident = 100_000, 300, 200 * time.Millisecond, 100 << 20
	file := filepath.Join(t.TempDir(), name)
	built, err := exec.CommandContext(t.Context(), "go", "build", "-race=false", "-o", file, ".").CombinedOutput() //nolint:gosec // fixed but for the folder
	require.NoError(t, err, string(built))
	hub := startHub(t, eventhubstest.Config{})
	for i := range backlog {
		body := fmt.Sprintf(`{"customer_id":"cus_%d","billing_period":"2026-08","amount_cents":5,"note":"`, i)
		body += strings.Repeat("x", eventBytes-len(body)-2) + `"}`
		_, err := hub.Publish(hubName, strconv.Itoa(i%partitions), []byte(body), nil)
		require.NoError(t, err)
	}
	db := sqltest.New(t)
	owner := db.Pool(t, "")
	slowURL, proxy := sourcetest.Through(t, db.URL)
	proxy.SlowDown(slowness)
	env := settings(hub, slowURL)
	env["LOG_FORMAT"] = "json"

	p := startFile(t, file, env)
	url := "http://" + listenAddress(t, p) + "/metrics"
	var seen float64
	require.True(t, waitFor(t.Context(), func() bool {
		var all bool
		_, metrics := get(t, url)
		seen, all = lag(t, metrics)
		return all
	}))
	// What an autoscaler asks the database for is known while it is slow, too.
	var waiting, read int64
	require.NoError(t, owner.QueryRow(t.Context(), `SELECT sum(greatest(last_enqueued_seq - sequence_number, 0))::bigint,
		sum(sequence_number + 1)::bigint FROM billing.eventhub_checkpoints`).Scan(&waiting, &read))
	require.EqualValues(t, backlog, waiting+read)
	require.Positive(t, waiting)
	for tenth := range int64(10) {
		awaitRead(t, owner, backlog/10*(tenth+1))
	}
	var metrics string
	require.True(t, waitFor(t.Context(), func() bool {
		_, metrics = get(t, url)
		left, all := lag(t, metrics)
		return all && left == 0
	}))
	peak := peakResident(t, p.Process.Pid)
	batches, _ := figure(t, metrics, "ingest_batch_seconds_count")
	t.Logf("%d MiB at the most for %d events; %.0f events per transaction, %d transactions slowed down; backlog at first sight %.0f",
		peak>>20, backlog, backlog/batches, proxy.Delayed(), seen)
	await(t, owner, backlog, "SELECT count(*) FROM billing.intents")
	await(t, owner, backlog, "SELECT sum(intents)::bigint FROM billing.source_counters")
	await(t, owner, 0, "SELECT sum(duplicates + redeliveries + conflicts + quarantined)::bigint FROM billing.source_counters")
	require.Less(t, peak, int64(maxResident))
	require.Positive(t, seen)
	require.GreaterOrEqual(t, float64(proxy.Delayed()), batches)
	p.signal(t, syscall.SIGTERM)
	require.Zero(t, p.exit(t))
}

// lag is that of all partitions in the text of /metrics; false while it is not known of all.
func lag(t *testing.T, metrics string) (sum float64, all bool) {
	t.Helper()
	for p := range partitions {
		value, there := figure(t, metrics, fmt.Sprintf(`ingest_eventhub_lag_events{partition="%d"}`, p))
		if !there {
			return 0, false
		}
		sum += value
	}
	return sum, true
}

// figure is one value in the text of /metrics.
func figure(t *testing.T, metrics, series string) (value float64, there bool) {
	t.Helper()
	for line := range strings.Lines(metrics) {
		if text, found := strings.CutPrefix(line, series+" "); found {
			value, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			require.NoError(t, err, line)
			return value, true
		}
	}
	return 0, false
}
