package eventhubs_test

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/log"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/Azure/go-amqp"
	"github.com/stretchr/testify/require"

	"chargeonce/ingest"
	"chargeonce/ingest/eventhubs/eventhubstest"
	"chargeonce/sql/sqltest"
)

// asAlone says that this process runs one soak test and nothing beside it: goroutines and heap belong to the whole process.
const asAlone = "EVENTHUBS_TEST_ALONE"

// alone runs the test in a process of its own, on the same database server, and returns false; in that process it returns true.
func alone(t *testing.T) bool {
	t.Helper()
	if os.Getenv(asAlone) != "" {
		return true
	}
	server, err := sqltest.Server(t.Context())
	require.NoError(t, err)
	self, err := os.Executable()
	require.NoError(t, err)
	command := exec.CommandContext(t.Context(), self, "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=5m") //nolint:gosec // this very binary
	command.Env = append(os.Environ(), asAlone+"=1", "TEST_DATABASE_URL="+server)
	out, err := command.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "--- PASS: "+t.Name())
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "goroutines") {
			t.Log(strings.TrimSpace(line))
		}
	}
	return false
}

// footprint is what a process holds.
type footprint struct {
	goroutines int
	heapBytes  uint64
}

func measure() footprint {
	runtime.GC()
	runtime.GC() // the first one fills sync.Pools' victims
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return footprint{runtime.NumGoroutine(), m.HeapAlloc}
}

// requireFlat holds what the process has now against what it had before.
func requireFlat(t *testing.T, before footprint) {
	t.Helper()
	now := measure()
	t.Logf("%d goroutines and %d KiB before, %d and %d after", before.goroutines, before.heapBytes>>10, now.goroutines, now.heapBytes>>10)
	require.LessOrEqual(t, now.goroutines, before.goroutines+10)
	require.LessOrEqual(t, now.heapBytes, before.heapBytes+1<<20)
}

// azure-sdk-for-go#24740: memory grew by waits that ended without an event, on partitions where nothing happens for long. A wait of ours
// is 30 s; here it is 1 ms, and there are thousands.
func TestSoakIdlePartitions(t *testing.T) {
	t.Parallel()
	if !alone(t) {
		return
	}
	var waits atomic.Int64
	log.SetEvents(azeventhubs.EventConsumer)
	log.SetListener(func(_ log.Event, message string) {
		if strings.HasPrefix(message, "No events received") {
			waits.Add(1)
		}
	})
	b := setup(t, 4)
	b.publish(t, "0", 0, 5)
	cfg := b.quick()
	cfg.IdleWait = time.Millisecond
	s, _ := b.run(t, cfg)
	b.await(t, 5, sumOfSequences)
	require.True(t, waitFor(t.Context(), func() bool { return waits.Load() > 1000 }))
	before := measure()
	require.True(t, waitFor(t.Context(), func() bool { return waits.Load() > 9000 }), "%d waits", waits.Load())
	requireFlat(t, before)
	attaches := b.hub.Counters().Attaches
	b.publish(t, "3", 0, 5)
	b.await(t, 10, sumOfSequences)
	require.Equal(t, attaches, b.hub.Counters().Attaches, "on the links of the start")
	require.NoError(t, s.Check(t.Context()))
}

// azure-sdk-for-go#24195: memory grew while a consumer group that is not there was tried again and again. A Processor that is replaced
// leaves one goroutine of the SDK behind, which waits for the renewal of a token, some minutes, and then ends; replaced it is once per
// StrandedAfter at most, here never.
func TestSoakRefusedAttaches(t *testing.T) {
	t.Parallel()
	if !alone(t) {
		return
	}
	b := setup(t, 2)
	cfg := b.quick()
	cfg.UpdateInterval, cfg.StrandedAfter = 20*time.Millisecond, time.Hour
	var gone atomic.Bool
	b.hub.SetHooks(eventhubstest.Hooks{OnAttach: func(a eventhubstest.Attach) error {
		if a.Hub != "" && gone.Load() {
			return &amqp.Error{Condition: amqp.ErrCondNotFound, Description: "The messaging entity 'billing:consumergroup:$default' could not be found."}
		}
		return nil
	}})
	b.run(t, cfg)
	require.True(t, waitFor(t.Context(), func() bool { return b.hub.Counters().Receivers == 2 }))
	gone.Store(true)
	b.hub.DropConnections()
	require.True(t, waitFor(t.Context(), func() bool { return b.hub.Counters().Refused > 50 }))
	before := measure()
	require.True(t, waitFor(t.Context(), func() bool { return b.hub.Counters().Refused > 500 }), "%d refused", b.hub.Counters().Refused)
	requireFlat(t, before)
	gone.Store(false)
	b.publish(t, "0", 0, 5)
	b.publish(t, "1", 0, 5)
	b.await(t, 10, sumOfSequences)
}

// azure-sdk-for-go#24164, azure-sdk-for-js#15893: ownership lost again and again. Every loss closes a link and opens another.
func TestSoakLostPartitions(t *testing.T) {
	t.Parallel()
	if !alone(t) {
		return
	}
	b := setup(t, 1)
	b.publish(t, "0", 0, 5)
	cfg := b.quick()
	cfg.UpdateInterval = 20 * time.Millisecond
	s, _ := b.run(t, cfg)
	b.await(t, 5, sumOfSequences)
	stranger := b.consumer(t)
	lose := func(times int) {
		for range times {
			b.takeAway(t, stranger)
			require.True(t, waitFor(t.Context(), func() bool { return b.hub.Counters().Receivers == 1 }), "taken back")
		}
	}
	lose(20)
	before := measure()
	lose(100)
	requireFlat(t, before)
	b.publish(t, "0", 5, 5)
	b.await(t, 10, sumOfSequences)
	require.Equal(t, ingest.Counts{Intents: 10}, b.counters(t))
	require.GreaterOrEqual(t, b.count(t, s, "partitions_lost_total"), 120)
	require.Zero(t, b.count(t, s, "restarts_total"))
}
