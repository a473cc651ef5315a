package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestReconcileShowsItsProgressOnATerminalAlone: a bar on stderr while it runs, and the result alone on stdout.
func TestReconcileShowsItsProgressOnATerminalAlone(t *testing.T) {
	t.Parallel()
	r := reconcilable(t, 230)
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = keyboard.Close() })
	fd := int(keyboard.Fd())
	require.NoError(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	require.NoError(t, unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 25, Col: 120}))
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	require.NoError(t, err)
	screen, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)

	cmd, out, _ := r.command(t)
	cmd.Stderr = screen
	cmd.Env = append(cmd.Env, "TERM=xterm")
	require.NoError(t, cmd.Start())
	require.NoError(t, screen.Close())
	shown, _ := io.ReadAll(keyboard) // ends with an error when the program closes its side
	require.NoError(t, cmd.Wait())
	for _, stage := range []string{"payment intents listed", "charges listed", "intents compared"} {
		require.Regexp(t, `\d+ `+stage+` +\d+% \|[^|]*\|`, string(shown))
	}
	require.True(t, strings.HasPrefix(out.String(), "reconciliation 1 of usage 2026-08 usd"), out)
}
