package main

import (
	"bufio"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestCtrlCReachesTheCommandOnceAndLeavesNothing(t *testing.T) {
	t.Parallel()
	keyboard, screen := openTerminal(t)
	l := newCommand(t, "--", "sh", "-c", `read -r answer && echo "got $answer"; `+countInterrupts)
	l.cmd.Stdin, l.cmd.Stdout, l.cmd.Stderr = screen, screen, screen
	l.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, l.cmd.Start())
	require.NoError(t, screen.Close())
	l.lines = bufio.NewReader(keyboard)

	// A command in the background of its terminal could not read this.
	_, err := keyboard.WriteString("hello\n")
	require.NoError(t, err)
	awaitLine(t, l.lines, "got hello")
	awaitLine(t, l.lines, "ready")
	_, err = keyboard.Write([]byte{0x1A}) // Ctrl-Z must not stop it for ever
	require.NoError(t, err)
	_, err = keyboard.Write([]byte{0x03}) // Ctrl-C
	require.NoError(t, err)
	require.Equal(t, 41, l.wait(t), "40 plus the number of signals; screen: %s", l.stdout.String())
	l.requireNothingLeft(t)
}

func openTerminal(t *testing.T) (keyboard, screen *os.File) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = keyboard.Close() })
	fd := int(keyboard.Fd())
	require.NoError(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	require.NoError(t, err)
	screen, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	return keyboard, screen
}
