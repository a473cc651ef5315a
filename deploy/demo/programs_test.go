package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The test binary is also the program that the tests start: DEMO_TEST_ROLE says as what.
func TestMain(m *testing.M) {
	switch os.Getenv("DEMO_TEST_ROLE") {
	case "":
		os.Exit(m.Run())
	case "good":
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		fmt.Fprintln(os.Stdout, "listening on 127.0.0.1:1, control on http://127.0.0.1:2")
		<-ctx.Done()
		stop()
	case "deaf":
		signal.Ignore(syscall.SIGTERM)
		fmt.Fprintln(os.Stdout, "listening on http://127.0.0.1:1")
		select {}
	case "failing":
		fmt.Fprintln(os.Stderr, "cannot work")
		os.Exit(3)
	case "parent":
		beParent()
	}
}

// self is a fleet whose programs are the test binary.
func self(t *testing.T) (*fleet, chan error) {
	t.Helper()
	binary, err := os.Executable()
	require.NoError(t, err)
	ended := make(chan error, 1)
	f := &fleet{dir: t.TempDir(), binDir: filepath.Dir(binary), forker: newForker(), onEnd: func(err error) { ended <- err }}
	return f, ended
}

func selfAs(role string) spec {
	return spec{name: role, program: filepath.Base(os.Args[0]), env: []string{"DEMO_TEST_ROLE=" + role}}
}

func TestProgramIsUsedOnlyOnceItListens(t *testing.T) {
	t.Parallel()
	f, _ := self(t)
	p, err := f.start(selfAs("good"))
	require.NoError(t, err)
	address, err := p.await(t.Context(), listeningLine)
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:1", address)
	control, err := p.await(t.Context(), controlLine)
	require.NoError(t, err)
	require.Equal(t, "http://127.0.0.1:2", control)
	require.NoError(t, f.stopAll(10*time.Second))
	require.True(t, p.isDone())
}

func TestRestartedProgramIsToldFromItsPredecessor(t *testing.T) {
	t.Parallel()
	f, ended := self(t)
	p, err := f.start(selfAs("good"))
	require.NoError(t, err)
	_, err = p.await(t.Context(), listeningLine)
	require.NoError(t, err)
	p.kill()

	failing := p.spec
	failing.env = []string{"DEMO_TEST_ROLE=failing"} // the same log, which still has the first one's line
	again, err := f.start(failing)
	require.NoError(t, err)
	_, err = again.await(t.Context(), listeningLine)
	require.ErrorContains(t, err, "ended by itself")
	require.ErrorContains(t, <-ended, "exit status 3")
	require.NoError(t, f.stopAll(10*time.Second))
}

func TestProgramsEndIsNoticed(t *testing.T) {
	t.Parallel()
	f, ended := self(t)
	_, err := f.start(selfAs("failing"))
	require.NoError(t, err)
	var noticed *endedError
	require.ErrorAs(t, <-ended, &noticed)
	require.Equal(t, "failing", noticed.name)
	require.Equal(t, "cannot work", noticed.tail)
	require.NoError(t, f.stopAll(10*time.Second))
}

func TestDeafProgramDoesNotHoldUpTheEnd(t *testing.T) {
	t.Parallel()
	f, _ := self(t)
	p, err := f.start(selfAs("deaf"))
	require.NoError(t, err)
	_, err = p.await(t.Context(), listeningLine)
	require.NoError(t, err)
	require.ErrorContains(t, f.stopAll(50*time.Millisecond), "deaf did not end within")
	require.True(t, p.isDone())
}

func TestFailedCommandIsAFailure(t *testing.T) {
	t.Parallel()
	f, ended := self(t)
	_, err := f.runOnce(t.Context(), selfAs("failing"))
	require.ErrorContains(t, err, "cannot work")
	require.Empty(t, ended)
	require.NoError(t, f.stopAll(10*time.Second))
}

func TestMissingProgramIsFoundOutAtOnce(t *testing.T) {
	t.Parallel()
	_, err := findPrograms(t.TempDir(), "charger", "migrate")
	require.ErrorIs(t, err, errMissing)
	require.ErrorContains(t, err, "charger, migrate")
}

func TestUsersSettingsDoNotReachThePrograms(t *testing.T) {
	t.Setenv("DATABASE_URL", "postgres://production")
	require.NotContains(t, fmt.Sprint(ownEnv()), "production")
}

// beParent starts a program, says its process id and waits to be killed.
func beParent() {
	binary, err := os.Executable()
	if err != nil {
		os.Exit(1)
	}
	f := &fleet{dir: os.Getenv("DEMO_TEST_DIR"), binDir: filepath.Dir(binary), forker: newForker(), onEnd: func(error) {}}
	s := selfAs("deaf")
	s.program = filepath.Base(binary)
	p, err := f.start(s)
	if err != nil {
		os.Exit(1)
	}
	if _, err := p.await(context.Background(), listeningLine); err != nil {
		os.Exit(1)
	}
	fmt.Fprintf(os.Stdout, "child %d\n", p.cmd.Process.Pid)
	select {}
}

// gone tells whether a process has ended. A zombie has: it only waits to be reaped by whoever inherited it.
func gone(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return true
	}
	state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	var id int
	var name, letter string
	_, err = fmt.Sscan(string(state), &id, &name, &letter)
	return err == nil && letter == "Z"
}
