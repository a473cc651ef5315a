//go:build cgo

package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"chargeonce/sql/sqltest"
)

// Hundreds of drops under load must leave nothing behind: no thread of the client, no goroutine, no memory, and no message.
func TestHundredsOfDropsLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	const drops, each, maxGrowthKiB, maxMoreThreads, maxMoreGoroutines = 300, 5, 20 << 10, 6, 10
	broker, db := startBroker(t), sqltest.New(t)
	env := rightSettings(broker, db.URL)
	env["SOLACE_RESTART_DELAY"], env["SOLACE_MAX_RESTART_DELAY"] = "5ms", "10ms"
	p := start(t, env)
	owner := db.Pool(t, "")
	publish(t, broker, 0, 1)
	await(t, owner, 1, countIntents)
	var resident, threads, goroutines int
	for i := range drops {
		logins := broker.Counters().Logins
		publish(t, broker, 1+i*each, each)
		broker.DropConnections()
		require.True(t, waitFor(t.Context(), func() bool { return broker.Counters().Logins > logins }))
		if i == drops/4 {
			resident, threads, goroutines = p.status(t, "VmRSS"), p.status(t, "Threads"), p.goroutines(t)
		}
	}
	await(t, owner, 1+drops*each, countIntents)
	require.True(t, waitFor(t.Context(), func() bool { return broker.Queue(queueName).OnQueue == 0 }))
	t.Logf("after %d drops %d KiB, %d threads, %d goroutines; after %d %d KiB, %d threads, %d goroutines", drops/4, resident, threads, goroutines,
		drops, p.status(t, "VmRSS"), p.status(t, "Threads"), p.goroutines(t))
	require.Less(t, p.status(t, "VmRSS"), resident+maxGrowthKiB)
	require.LessOrEqual(t, p.status(t, "Threads"), threads+maxMoreThreads)
	require.LessOrEqual(t, p.goroutines(t), goroutines+maxMoreGoroutines)
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

// goroutines is what the program's metrics say.
func (p *program) goroutines(t *testing.T) int {
	t.Helper()
	address := regexp.MustCompile(`"serving health and metrics".*"address":"([^"]+)"`).FindStringSubmatch(p.stderr.String())
	require.NotNil(t, address)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address[1]+"/metrics", http.NoBody)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	found := regexp.MustCompile(`(?m)^go_goroutines (\d+)$`).FindSubmatch(content)
	require.NotNil(t, found)
	n, err := strconv.Atoi(string(found[1]))
	require.NoError(t, err)
	return n
}
