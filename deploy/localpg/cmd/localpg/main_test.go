package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	mainEnv  = "LOCALPG_TEST_MAIN"
	patience = 30 * time.Second
	interval = 10 * time.Millisecond

	// countInterrupts ends with 40 plus the number of signals that reached it, a while after the first.
	countInterrupts = `n=0; trap 'n=$((n+1))' INT TERM; echo ready
while [ $n -eq 0 ]; do sleep 0.05; done; for i in 1 2 3 4 5 6; do sleep 0.05; done; exit $((40+n))`
)

// TestMain lets the test program stand for the command itself, as a real process.
func TestMain(m *testing.M) {
	if os.Getenv(mainEnv) != "" {
		_ = os.Unsetenv(mainEnv)
		main()
	}
	os.Exit(m.Run())
}

func TestExitCodeIsTheCommands(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]int{"exit 0": 0, "exit 7": 7, "kill -s KILL $$": 128 + 9} {
		l := newCommand(t, "--", "sh", "-c", script)
		require.Equal(t, want, l.run(t), script)
		l.requireNothingLeft(t)
	}
}

func TestCommandReachesTheServer(t *testing.T) {
	t.Parallel()
	l := newCommand(t, "--env", "DATABASE_URL,TEST_DATABASE_URL", "--", "sh", "-c", `test "$DATABASE_URL" = "$TEST_DATABASE_URL" && echo "$DATABASE_URL" --flag`)
	require.Zero(t, l.run(t))
	require.Regexp(t, `^postgres://postgres:\w{20,}@127\.0\.0\.1:\d+/postgres\?sslmode=disable --flag\n$`, l.stdout.String())
}

func TestUnknownCommandIsToldFromItsOwnFailure(t *testing.T) {
	t.Parallel()
	l := newCommand(t, "--", "no-such-command")
	require.Equal(t, 2, l.run(t))
	require.Equal(t, "localpg: command not found: exec: \"no-such-command\": executable file not found in $PATH\n", l.stderr.String())
	for _, args := range [][]string{nil, {"--"}, {"--no-such-flag", "--", "true"}} {
		require.Equal(t, 2, newCommand(t, args...).run(t), args)
	}
}

func TestFailedStartIsToldFromTheCommands(t *testing.T) {
	t.Parallel()
	l := newCommand(t, "--set", "no_such_setting=1", "--", "sh", "-c", "echo ran")
	require.Equal(t, 1, l.run(t))
	require.Contains(t, l.stderr.String(), "unrecognized configuration parameter")
	require.Empty(t, l.stdout.String())
	l.requireNothingLeft(t)
}

func TestSignalReachesTheCommandOnceAndLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, send := range map[string]func(pid int) error{
		"INT to the process group":  func(pid int) error { return syscall.Kill(-pid, syscall.SIGINT) },
		"TERM to the process group": func(pid int) error { return syscall.Kill(-pid, syscall.SIGTERM) },
		"INT to localpg alone":      func(pid int) error { return syscall.Kill(pid, syscall.SIGINT) },
		"TERM to localpg alone":     func(pid int) error { return syscall.Kill(pid, syscall.SIGTERM) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newCommand(t, "--", "sh", "-c", countInterrupts)
			l.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			l.startAndAwait(t, "ready")
			require.NotZero(t, l.processes(t))
			require.NoError(t, send(l.cmd.Process.Pid))
			require.Equal(t, 41, l.wait(t), "40 plus the number of signals")
			l.requireNothingLeft(t)
		})
	}
}

func TestSignalDuringStartLeavesNothing(t *testing.T) {
	t.Parallel()
	l := newCommand(t, "--", "sh", "-c", "echo ran")
	require.NoError(t, l.cmd.Start())
	require.Eventually(t, func() bool {
		found, err := filepath.Glob(filepath.Join(l.temp, "*", "data.new", "*"))
		return err == nil && len(found) > 0
	}, patience, interval)
	require.NoError(t, l.cmd.Process.Signal(syscall.SIGINT))
	require.Equal(t, 128+2, l.wait(t))
	require.Empty(t, l.stdout.String())
	l.requireNothingLeft(t)
}

func TestBackgroundProcessDoesNotOutliveTheCommand(t *testing.T) {
	t.Parallel()
	l := newCommand(t, "--", "sh", "-c", `sleep 3600 >/dev/null 2>&1 & echo $!`)
	require.Zero(t, l.run(t))
	pid := strings.TrimSpace(l.stdout.String())
	require.Eventually(t, func() bool {
		state, err := exec.CommandContext(t.Context(), "ps", "-o", "stat=", "-p", pid).Output() //nolint:gosec // a number
		return err != nil || strings.HasPrefix(strings.TrimSpace(string(state)), "Z")
	}, patience, interval)
}

func TestTwoAtOnceShareNothing(t *testing.T) {
	t.Parallel()
	first := newCommand(t, "--", "sh", "-c", "echo $DATABASE_URL; "+countInterrupts)
	second := newCommand(t, "--", "sh", "-c", "echo $DATABASE_URL; "+countInterrupts)
	firstURL, secondURL := first.startAndAwait(t, "ready"), second.startAndAwait(t, "ready")
	require.NotEqual(t, firstURL, secondURL)
	require.NoError(t, first.cmd.Process.Signal(syscall.SIGINT))
	require.Equal(t, 41, first.wait(t))
	first.requireNothingLeft(t)
	require.NotZero(t, second.processes(t))
	require.NoError(t, second.cmd.Process.Signal(syscall.SIGINT))
	require.Equal(t, 41, second.wait(t))
	second.requireNothingLeft(t)
}

func TestDirKeepsTheData(t *testing.T) {
	t.Parallel()
	l := newCommand(t, "--", "true")
	dir := filepath.Join(l.temp, "kept")
	l.cmd.Args = append([]string{l.cmd.Args[0], "--dir", dir}, l.cmd.Args[1:]...)
	require.Zero(t, l.run(t))
	require.FileExists(t, filepath.Join(dir, "data", "PG_VERSION"))
	require.Zero(t, l.processes(t))
}

// command is one run of localpg whose temporary files all go to temp.
type command struct {
	cmd            *exec.Cmd
	temp           string
	stdout, stderr bytes.Buffer
	lines          *bufio.Reader
}

func newCommand(t *testing.T, args ...string) *command {
	t.Helper()
	temp, err := os.MkdirTemp("", "localpg-test-") //nolint:usetesting // the server's account must be able to enter it
	require.NoError(t, err)
	require.NoError(t, os.Chmod(temp, 0o711)) //nolint:gosec // see above
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(temp)) })
	l := &command{temp: temp}
	l.cmd = exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0], args...) //nolint:gosec // ourselves
	l.cmd.Env = append(os.Environ(), mainEnv+"=1", "TMPDIR="+temp)
	l.cmd.Stdout, l.cmd.Stderr = &l.stdout, &l.stderr
	return l
}

func (l *command) run(t *testing.T) int {
	t.Helper()
	require.NoError(t, l.cmd.Start())
	return l.wait(t)
}

// startAndAwait returns what the command printed before the awaited line.
func (l *command) startAndAwait(t *testing.T, want string) string {
	t.Helper()
	l.cmd.Stdout = nil
	out, err := l.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, l.cmd.Start())
	l.lines = bufio.NewReader(out)
	return awaitLine(t, l.lines, want)
}

func awaitLine(t *testing.T, lines *bufio.Reader, want string) (before string) {
	t.Helper()
	for {
		line, err := lines.ReadString('\n')
		require.NoError(t, err, "%s%s", before, line)
		if strings.TrimSpace(line) == want {
			return before
		}
		before += line
	}
}

func (l *command) wait(t *testing.T) int {
	t.Helper()
	if l.lines != nil {
		_, _ = io.Copy(&l.stdout, l.lines) // a terminal's end is an error on Linux
	}
	err := l.cmd.Wait()
	if _, ok := errors.AsType[*exec.ExitError](err); !ok {
		require.NoError(t, err)
	}
	return l.cmd.ProcessState.ExitCode()
}

// processes counts those that have a folder of this run in their arguments, as postmaster, initdb and keeper do.
func (l *command) processes(t *testing.T) int {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ps", "-A", "-o", "args=").Output()
	require.NoError(t, err)
	return strings.Count(string(out), l.temp+"/")
}

func (l *command) requireNothingLeft(t *testing.T) {
	t.Helper()
	require.Zero(t, l.processes(t), "processes left")
	left, err := os.ReadDir(l.temp)
	require.NoError(t, err)
	require.Empty(t, left, "folders left; stderr: %s", l.stderr.String())
}
