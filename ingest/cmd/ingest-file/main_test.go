package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

	"chargeonce/ingest/file/filetest"
	"chargeonce/sql/sqltest"
)

// asProgram makes the test binary be the program: what is tested is main itself, in a process of its own.
const asProgram = "INGEST_FILE_TEST_RUN_MAIN"

// asMeasure makes it be a process that measures the program, into the file that it names.
const asMeasure = "INGEST_FILE_TEST_MEASURE"

// testRun lets sqltest stop its server after the scripts; testscript makes the test binary the program itself.
type testRun struct{ m *testing.M }

func (r testRun) Run() int { return sqltest.Run(r.m) }

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		if path := os.Getenv(asMeasure); path != "" {
			measure(path)
		}
		main()
		return
	}
	testscript.Main(testRun{m}, map[string]func(){name: main})
}

// TestScripts shows what a person types and sees; each script is one story with a database of its own.
func TestScripts(t *testing.T) {
	t.Parallel()
	empty := sqltest.NewEmpty(t)
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exit": exitWith,
			// sql QUERY WANT compares the one value that a query gives.
			"sql": func(ts *testscript.TestScript, _ bool, args []string) {
				if got := query(ts.Getenv("DATABASE_URL"), args[0]); got != args[1] {
					ts.Fatalf("%s: got %s, want %s", args[0], got, args[1])
				}
			},
			// capture FILE FIRST COUNT writes a Capture file of so many events from that customer on.
			"capture": func(ts *testscript.TestScript, _ bool, args []string) {
				var first, count int
				_, err := fmt.Sscan(args[1]+" "+args[2], &first, &count)
				ts.Check(err)
				ts.Check(os.MkdirAll(filepath.Dir(ts.MkAbs(args[0])), 0o700))
				content, err := filetest.Capture("deflate", 2, captured(first, count)...)
				ts.Check(err)
				ts.Check(os.WriteFile(ts.MkAbs(args[0]), content, 0o600))
			},
			// cut FILE BYTES takes as many bytes off the end of a file.
			"cut": func(ts *testscript.TestScript, _ bool, args []string) {
				var n int
				_, err := fmt.Sscan(args[1], &n)
				ts.Check(err)
				content, err := os.ReadFile(ts.MkAbs(args[0]))
				ts.Check(err)
				ts.Check(os.WriteFile(ts.MkAbs(args[0]), content[:len(content)-n], 0o600)) //nolint:gosec // in the script's own folder
			},
		},
		Setup: func(env *testscript.Env) error {
			env.Setenv("DATABASE_URL", sqltest.New(t).URL)
			env.Setenv("EMPTY", empty.URL)
			env.Setenv("BILLING_NAMESPACE", "usage")
			return nil
		},
	})
}

// exitWith is exit CODE COMMAND...: the command must end with that code.
func exitWith(ts *testscript.TestScript, _ bool, args []string) {
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v: %v", args, err)
		}
		got = exit.ExitCode()
	}
	if fmt.Sprint(got) != args[0] {
		ts.Fatalf("%v: want exit code %s, got %d", args, args[0], got)
	}
}

func query(url, text string) string {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err.Error()
	}
	defer pool.Close()
	var got string
	if err := pool.QueryRow(ctx, "SELECT ("+text+")::text").Scan(&got); err != nil {
		return err.Error()
	}
	return got
}

func captured(first, count int) []filetest.Event {
	events := make([]filetest.Event, count)
	for i := range events {
		n := first + i
		events[i] = filetest.Event{
			SequenceNumber: int64(n), Offset: fmt.Sprint(1000 * n), Enqueued: time.Date(2026, 8, 31, 12, 0, n, 0, time.UTC),
			SystemProperties: map[string]any{"x-opt-partition-key": "tenant"},
			Body:             fmt.Appendf(nil, `{"customer_id":"cus_%d","billing_period":"2026-08","amount_cents":%d}`, n, 100*n),
		}
	}
	return events
}

const (
	patience = 3 * time.Minute
	beat     = 20 * time.Millisecond
)

// program is one process of the program.
type program struct {
	*exec.Cmd
	stdout, stderr *output
	ended          chan struct{}
}

// command prepares a process; what it says on stderr is in the log of a test that fails.
func command(t *testing.T, databaseURL string, args ...string) *program {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	p := &program{Cmd: exec.CommandContext(context.WithoutCancel(t.Context()), self, args...), stdout: &output{}, stderr: &output{}, ended: make(chan struct{})} //nolint:gosec // this very binary
	p.Env = []string{asProgram + "=1", "PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "DATABASE_URL=" + databaseURL, "BILLING_NAMESPACE=usage"}
	p.Stdout, p.Stderr, p.WaitDelay = p.stdout, p.stderr, time.Second
	return p
}

func (p *program) start(t *testing.T) *program {
	t.Helper()
	require.NoError(t, p.Start())
	go func() {
		_ = p.Wait() // the state is read from ProcessState
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.Process.Kill() // most have ended
		<-p.ended
		if t.Failed() {
			t.Logf("process %d (%s):\n%s\n%s", p.Process.Pid, p.ProcessState, p.stdout, p.stderr)
		}
	})
	return p
}

// exit waits for the end and returns the code.
func (p *program) exit(t *testing.T) int {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		t.Fatalf("the program did not end: %s", p.stderr)
	}
	return p.ProcessState.ExitCode()
}

func (p *program) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	require.NoError(t, p.Process.Signal(s))
	p.exit(t)
}

type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}
