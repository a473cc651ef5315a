package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"chargeonce/ingest/eventhubs/eventhubstest"
	"chargeonce/sql/sqltest"
)

// What a process holds must not depend on how much waits in the hub, nor on how large its events are.
func TestMemoryIsBoundedWhileLargeEventsWait(t *testing.T) {
	t.Parallel()
	const each, eventBytes, maxResident = 80, 1_000_000, 200 << 20
	hub := startHub(t, eventhubstest.Config{})
	db := sqltest.New(t)
	pad := strings.Repeat("x", eventBytes)
	for i := range partitions * each {
		body := fmt.Sprintf(`{"customer_id":"cus_%d","billing_period":"2026-08","amount_cents":5,"note":"%s"}`, i, pad)
		_, err := hub.Publish(hubName, strconv.Itoa(i%partitions), []byte(body), nil)
		require.NoError(t, err)
	}
	p := start(t, settings(hub, db.URL))
	await(t, db.Pool(t, ""), partitions*each, "SELECT coalesce(sum(sequence_number + 1), 0) FROM billing.eventhub_checkpoints")
	peak := peakResident(t, p.Process.Pid)
	t.Logf("%d MiB at the most for %d MB of events", peak>>20, partitions*each*eventBytes/1_000_000)
	require.Less(t, peak, int64(maxResident))
}

// peakResident is the most memory that a process had at once, in bytes.
func peakResident(t *testing.T, pid int) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(status), "VmHWM:")
	require.True(t, found)
	kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	require.NoError(t, err)
	return kib << 10
}
