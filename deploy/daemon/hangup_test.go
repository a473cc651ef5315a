package daemon_test

import (
	"bufio"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestClosedTerminalIsNotAnOrderlyEnd(t *testing.T) {
	t.Parallel()
	p := start(t, "wait")
	p.await(t, "ready\n")
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGHUP))
	require.Zero(t, p.wait(t), p.stderr.String())
	require.Contains(t, p.stderr.String(), "ending in good order")
}

func TestSecondSignalOfAClosedTerminalCutsTheEndShort(t *testing.T) {
	t.Parallel()
	p := start(t, "hang")
	p.await(t, "ready\n")
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGHUP))
	p.await(t, "ending\n")
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGHUP))
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 128+int(syscall.SIGTERM), p.wait(t))
	require.Equal(t, 1, strings.Count(p.stderr.String(), "ending in good order"), p.stderr.String())
}

// Who read the output, such as tee, went with the terminal. The program "hang" writes once more after the signal.
func TestOutputThatNobodyReadsCutsTheEndShort(t *testing.T) {
	t.Parallel()
	p := &process{cmd: command(t, nil, "hang")}
	reader, writer, err := os.Pipe()
	require.NoError(t, err)
	p.out, p.cmd.Stdout, p.cmd.Stderr = bufio.NewReader(reader), writer, &p.stderr
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() { _ = p.cmd.Process.Kill() }) // already ended unless the test failed early
	require.NoError(t, writer.Close())
	p.await(t, "ready\n")
	require.NoError(t, reader.Close())
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGHUP))
	require.Equal(t, 1, p.wait(t), "1: the program was told that it could not write; -1: SIGPIPE ended it")
	require.Contains(t, p.stderr.String(), "broken pipe")
}

func TestNohupIsNotHeeded(t *testing.T) {
	t.Parallel()
	p := &process{cmd: command(t, nil)}
	p.cmd.Path, p.cmd.Args = "/bin/sh", []string{"sh", "-c", `trap "" HUP; exec "$0" wait`, os.Args[0]}
	reader, writer, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, reader.Close()) })
	p.out, p.cmd.Stdout, p.cmd.Stderr = bufio.NewReader(reader), writer, &p.stderr
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() { _ = p.cmd.Process.Kill() }) // already ended unless the test failed early
	require.NoError(t, writer.Close())
	p.await(t, "ready\n")
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGHUP))
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.Zero(t, p.wait(t), p.stderr.String())
	require.Contains(t, p.stderr.String(), `"signal":"terminated"`)
	require.NotContains(t, p.stderr.String(), "hangup")
}
