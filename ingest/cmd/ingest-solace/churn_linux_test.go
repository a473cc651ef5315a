//go:build cgo

package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"chargeonce/sql/sqltest"
)

// Hundreds of drops under load must leave nothing behind: no threads of the client, no memory, and no message.
func TestHundredsOfDropsLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	const drops, each, maxGrowthKiB, maxMoreThreads = 400, 5, 20 << 10, 6
	broker, db := startBroker(t), sqltest.New(t)
	env := rightSettings(broker, db.URL)
	env["SOLACE_RESTART_DELAY"], env["SOLACE_MAX_RESTART_DELAY"] = "5ms", "10ms"
	p := start(t, env)
	owner := db.Pool(t, "")
	publish(t, broker, 0, 1)
	await(t, owner, 1, countIntents)
	var resident, threads int
	for i := range drops {
		logins := broker.Counters().Logins
		publish(t, broker, 1+i*each, each)
		broker.DropConnections()
		require.True(t, waitFor(t.Context(), func() bool { return broker.Counters().Logins > logins }))
		if i == drops/4 {
			resident, threads = p.status(t, "VmRSS"), p.status(t, "Threads")
		}
	}
	await(t, owner, 1+drops*each, countIntents)
	require.True(t, waitFor(t.Context(), func() bool { return broker.Queue(queueName).OnQueue == 0 }))
	t.Logf("after %d drops %d KiB and %d threads, after %d %d KiB and %d threads", drops/4, resident, threads, drops, p.status(t, "VmRSS"), p.status(t, "Threads"))
	require.Less(t, p.status(t, "VmRSS"), resident+maxGrowthKiB)
	require.LessOrEqual(t, p.status(t, "Threads"), threads+maxMoreThreads)
	await(t, owner, 0, "SELECT sum(duplicates + conflicts + quarantined)::bigint FROM billing.source_counters")
}

// status is a number of /proc/PID/status.
func (p *program) status(t *testing.T, name string) int {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Process.Pid))
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(content), "\n"+name+":")
	require.True(t, found)
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	require.NoError(t, err)
	return n
}
