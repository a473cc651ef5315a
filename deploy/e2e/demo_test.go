package e2e_test

import (
	"bufio"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// demoPatience bounds the whole demonstration on a busy machine, Postgres being away for 30 s in the middle.
const demoPatience = 5 * time.Minute

// TestDemoSurvivesKillsAndThirtySecondsWithoutPostgres runs the demonstration as a person does, with everything that can go
// wrong in it: an ingestor and a charger killed, Postgres away for 30 s, the hub replayed. Then it looks at what a person
// would: the summary's file, the console in a browser, and that Ctrl-C leaves nothing behind.
func TestDemoSurvivesKillsAndThirtySecondsWithoutPostgres(t *testing.T) {
	t.Parallel()
	bin, summary := buildPrograms(t), filepath.Join(t.TempDir(), "demo.json")
	demo := startDemo(t, filepath.Join(bin, "demo"), "--events=2000", "--stop-postgres=30s", "--timeout=240s", "--json="+summary)
	console := demo.await(t, regexp.MustCompile(`^The console: (\S+)  user (\S+)  password (\S+)$`))
	requireGoodSummary(t, summary)

	at, given := givenTarget(t, func(name string) string {
		return map[string]string{"E2E_CONSOLE_URL": console[1], "CONSOLE_USER": console[2], "CONSOLE_PASSWORD": console[3], "E2E_JOB_STATE": "completed"}[name]
	})
	require.True(t, given)
	stranger, operator := startBrowser(t), startBrowser(t)
	refuseStranger(t, stranger, at)
	seeJob(t, operator, at)

	logs := demo.await(t, regexp.MustCompile(`^Logs: +(\S+)$`))[1]
	demo.interrupt(t)
	require.NoDirExists(t, logs)
	require.Empty(t, processesOf(t, bin), "programs that outlived the demonstration")
}

// demoSummary are the fields of the summary's file that other programs read.
type demoSummary struct {
	Events        int            `json:"events"`
	Intents       int            `json:"intents"`
	Pending       int            `json:"pending"`
	Charging      int            `json:"charging"`
	Charged       int            `json:"charged"`
	CardDeclined  int            `json:"card_declined"`
	Parked        int            `json:"parked"`
	Voided        int            `json:"voided"`
	NothingDue    int            `json:"nothing_due"`
	Duplicates    int            `json:"duplicates"`
	Redeliveries  int            `json:"redeliveries"`
	Conflicts     int            `json:"conflicts"`
	Quarantined   int            `json:"quarantined"`
	StripeCharges int            `json:"stripe_charges"`
	DoubleCharges int            `json:"double_charges"`
	Lost          int            `json:"lost"`
	OverBoth      int            `json:"over_both"`
	Reasons       map[string]int `json:"pending_reasons"`
	Brokers       map[string]struct {
		Events  int `json:"events"`
		Intents int `json:"intents"`
	} `json:"brokers"`
}

func requireGoodSummary(t *testing.T, path string) {
	t.Helper()
	content, err := os.ReadFile(path) //nolint:gosec // in the test's own folder
	require.NoError(t, err)
	var s demoSummary
	require.NoError(t, json.Unmarshal(content, &s))
	require.Equal(t, 2000, s.Events)
	require.Equal(t, s.Intents, s.Pending+s.Charging+s.Charged+s.CardDeclined+s.Parked+s.Voided+s.NothingDue, "the statuses add up")
	require.Zero(t, s.Charging)
	require.Equal(t, s.Charged, s.StripeCharges)
	require.Zero(t, s.DoubleCharges)
	require.Zero(t, s.Lost)
	reasons := 0
	for reason, n := range s.Reasons {
		require.NotEmpty(t, reason)
		reasons += n
	}
	require.Equal(t, s.Pending, reasons, "everything pending has a reason")
	require.GreaterOrEqual(t, s.Duplicates, s.Events*5/100)
	require.GreaterOrEqual(t, s.Conflicts, s.Events/100)
	require.GreaterOrEqual(t, s.Quarantined, s.Events/100)
	require.GreaterOrEqual(t, s.CardDeclined, s.Events*2/100)
	require.Positive(t, s.Redeliveries)
	requireBothBrokers(t, s)
}

func requireBothBrokers(t *testing.T, s demoSummary) {
	t.Helper()
	cgo, err := exec.CommandContext(t.Context(), "go", "env", "CGO_ENABLED").Output()
	require.NoError(t, err)
	if strings.TrimSpace(string(cgo)) == "0" {
		require.NotContains(t, s.Brokers, "solace", "its client is a C library")
		return
	}
	require.GreaterOrEqual(t, s.OverBoth, 50)
	require.Equal(t, s.Events, s.Brokers["eventhubs"].Events+s.Brokers["solace"].Events)
	require.Greater(t, s.Brokers["solace"].Events, s.OverBoth)
	require.Positive(t, s.Brokers["solace"].Intents)
	require.Equal(t, s.Intents, s.Brokers["eventhubs"].Intents+s.Brokers["solace"].Intents)
}

// buildPrograms builds what the demonstration runs.
func buildPrograms(t *testing.T) string {
	t.Helper()
	// Go's test cache sees what this process looks at, not what the build below reads: look at every source.
	require.NoError(t, filepath.WalkDir("../..", func(path string, _ fs.DirEntry, err error) error {
		if err == nil && (strings.HasSuffix(path, ".go") || strings.HasSuffix(path, ".sql")) {
			_, err = os.Stat(path)
		}
		return err
	}))
	bin := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", bin+"/", //nolint:gosec // in the test's own folder
		"chargeonce/sql/cmd/migrate", "chargeonce/ingest/cmd/ingest-eventhubs", "chargeonce/ingest/cmd/ingest-solace",
		"chargeonce/ingest/solace/cmd/publish-solace", "chargeonce/charger/cmd/charger",
		"chargeonce/deploy/standin", "chargeonce/deploy/demo")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	return bin
}

// runningDemo is the demonstration's process and what it has said so far.
type runningDemo struct {
	cmd *exec.Cmd

	mu    sync.Mutex
	lines []string
	ended chan struct{}
}

func startDemo(t *testing.T, program string, args ...string) *runningDemo {
	t.Helper()
	d := &runningDemo{cmd: exec.CommandContext(t.Context(), program, args...), ended: make(chan struct{})} //nolint:gosec // built by this test
	out, err := d.cmd.StdoutPipe()
	require.NoError(t, err)
	d.cmd.Stderr = d.cmd.Stdout
	require.NoError(t, d.cmd.Start())
	go func() {
		defer close(d.ended)
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			d.mu.Lock()
			d.lines = append(d.lines, scanner.Text())
			d.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(d.said())
		}
	})
	return d
}

func (d *runningDemo) said() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.lines, "\n")
}

// await waits for a line that the pattern matches, and returns its groups.
func (d *runningDemo) await(t *testing.T, pattern *regexp.Regexp) []string {
	t.Helper()
	var groups []string
	require.Eventually(t, func() bool {
		for line := range strings.SplitSeq(d.said(), "\n") {
			if groups = pattern.FindStringSubmatch(line); groups != nil {
				return true
			}
		}
		select {
		case <-d.ended:
			return true
		default:
			return false
		}
	}, demoPatience, 200*time.Millisecond, "the demonstration never said %s", pattern)
	require.NotNil(t, groups, "the demonstration ended without saying %s:\n%s", pattern, d.said())
	return groups
}

// interrupt is a person's Ctrl-C.
func (d *runningDemo) interrupt(t *testing.T) {
	t.Helper()
	require.NoError(t, d.cmd.Process.Signal(syscall.SIGINT))
	<-d.ended
	require.NoError(t, d.cmd.Wait(), d.said())
}

// processesOf lists what still runs from the folder.
func processesOf(t *testing.T, bin string) []string {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/exe")
	require.NoError(t, err)
	var running []string
	for _, link := range links {
		if program, err := os.Readlink(link); err == nil && strings.HasPrefix(program, bin) {
			running = append(running, program)
		}
	}
	return running
}
