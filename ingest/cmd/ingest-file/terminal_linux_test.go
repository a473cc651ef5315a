package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"chargeonce/sql/sqltest"
)

// TestProgressIsShownOnATerminalAlone: a bar on stderr while it runs, and the summary alone on stdout.
func TestProgressIsShownOnATerminalAlone(t *testing.T) {
	t.Parallel()
	db := sqltest.New(t)
	folder := writeEvents(t, 40_000)
	keyboard, screen := openTerminal(t)
	p := command(t, db.URL, folder)
	p.Stderr = screen
	p.Env = append(p.Env, "TERM=xterm")
	p.start(t)
	require.NoError(t, screen.Close())
	shown := &output{}
	_, _ = io.Copy(shown, keyboard) // ends with an error when the program closes its side
	require.Zero(t, p.exit(t))
	require.Regexp(t, `[0-9]+ events +[0-9]+% \|[^|]*\| \([0-9.]+/[0-9.]+ [kM]B, [0-9.]+ [kM]B/s\) \[[0-9a-z]+:[0-9a-z]+\]`, shown.String())
	require.True(t, strings.HasPrefix(p.stdout.String(), "namespace usage, from"), p.stdout)
	require.Contains(t, p.stdout.String(), "40000  new intents")
}

func openTerminal(t *testing.T) (keyboard, screen *os.File) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = keyboard.Close() })
	fd := int(keyboard.Fd())
	require.NoError(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	require.NoError(t, unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 25, Col: 120}))
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	require.NoError(t, err)
	screen, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	return keyboard, screen
}
