package localpg

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"
)

const (
	pollInterval = 20 * time.Millisecond
	// leftoverGrace is how long a server whose owner was killed may take to end by itself before it is told to.
	leftoverGrace = 5 * time.Second

	// Free ports come from below the ranges that Linux and macOS use for outgoing connections, else one of those could
	// take the port while the server is shut down.
	firstPort, lastPort = 15000, 32000
	portTries           = 50
)

// launch starts the postmaster and waits until it lets us in. A taken port is exchanged while the port is still ours
// to choose; what a killed predecessor still holds is waited for.
func (s *Server) launch(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errors.New("the server did not answer in time"))
	defer cancel()
	choosePort := s.port == 0
	for {
		if choosePort {
			port, err := freePort(ctx)
			if err != nil {
				return err
			}
			s.port = port
		}
		err := s.launchOnce(ctx)
		switch {
		case err == nil:
			s.log.DebugContext(ctx, "local Postgres is up", slog.Int("port", s.port), slog.String("dir", s.dir), slog.String("bin_dir", s.binDir))
			return nil
		case errors.Is(err, errPortTaken) && choosePort, errors.Is(err, errStillHeld):
		default:
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		case <-time.After(pollInterval):
		}
	}
}

var (
	errPortTaken = errors.New("port is taken")
	errStillHeld = errors.New("data folder is still held by the last server's processes")
)

func (s *Server) launchOnce(ctx context.Context) error {
	p, err := s.spawn(ctx, "postgres", s.serverArgs()...)
	if err != nil {
		return err
	}
	s.proc = p
	if err = s.awaitReady(ctx, p); err == nil {
		return nil
	}
	if p.ended() {
		s.keeper.tell("forget")
		s.proc = nil
		tail := p.logTail()
		switch {
		case strings.Contains(tail, "ddress already in use"):
			return fmt.Errorf("port %d: %w", s.port, errPortTaken)
		case strings.Contains(tail, "pre-existing shared memory block"), strings.Contains(tail, `"postmaster.pid" already exists`):
			return fmt.Errorf("%s: %w", s.dir, errStillHeld)
		}
		return fmt.Errorf("postgres ended at once: %w: %s", p.err, tail)
	}
	gone, cancel := context.WithCancel(context.WithoutCancel(ctx))
	cancel()
	return errors.Join(fmt.Errorf("%w (last try: %w): %s", context.Cause(ctx), err, p.logTail()), s.halt(gone, syscall.SIGQUIT))
}

// awaitReady returns once a client can log in; the password is this cluster's own, so nobody else's server can answer.
func (s *Server) awaitReady(ctx context.Context, p *process) error {
	// Without this, a stranger on a taken port that accepts and says nothing would hold us after the postmaster gave up.
	dial, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-p.done:
			cancel()
		case <-dial.Done():
		}
	}()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		conn, err := pgconn.Connect(dial, s.URL())
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-p.done:
			return err
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

func (s *Server) serverArgs() []string {
	settings := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"unix_socket_directories": "",
		"max_connections":         strconv.Itoa(maxConnections),
		"timezone":                "UTC",
		"log_timezone":            "UTC",
		"fsync":                   onOff(s.cfg.Durable),
	}
	maps.Copy(settings, s.cfg.Settings)
	args := []string{"-D", s.dataDir(), "-p", strconv.Itoa(s.port)}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	return args
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

func freePort(ctx context.Context) (int, error) {
	for range portTries {
		port := firstPort + rand.IntN(lastPort-firstPort) //nolint:gosec // a port is no secret
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:"+strconv.Itoa(port))
		if err != nil {
			continue
		}
		return port, l.Close()
	}
	return 0, fmt.Errorf("no free port on 127.0.0.1 in %d tries between %d and %d", portTries, firstPort, lastPort)
}

// endLeftover waits for a server that a killed owner left on this folder, which its keeper is ending just now, and ends
// it if the keeper was killed too. We hold the folder's lock, so the server is nobody's.
func (s *Server) endLeftover(ctx context.Context) error {
	deadline := time.NewTimer(leftoverGrace)
	defer deadline.Stop()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		pid := runningPostmaster(s.dataDir())
		if pid == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the left-over server %d on %s: %w", pid, s.dir, context.Cause(ctx))
		case <-deadline.C:
			s.log.WarnContext(ctx, "ending a left-over Postgres server", slog.Int("pid", pid), slog.String("dir", s.dir))
			_ = syscall.Kill(pid, syscall.SIGINT)
		case <-tick.C:
		}
	}
}

// runningPostmaster is the pid that postmaster.pid names if that process lives and is not another program that got the
// same number; where /proc tells (Linux), a postmaster's working folder is its data folder.
func runningPostmaster(dataDir string) int {
	content, err := os.ReadFile(filepath.Join(dataDir, "postmaster.pid")) //nolint:gosec // our own folder
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(content), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil || pid <= 1 || errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return 0
	}
	if _, err := os.Stat("/proc/self/cwd"); err == nil {
		cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
		want, wantErr := filepath.EvalSymlinks(dataDir)
		if err != nil || wantErr != nil || cwd != want {
			return 0
		}
	}
	return pid
}

// removeSharedMemory frees the small System V segment that a killed server leaves; macOS has room for 32 of them. The
// seventh line of postmaster.pid is its key and id.
func (s *Server) removeSharedMemory() {
	const line = 7
	content, err := os.ReadFile(filepath.Join(s.dataDir(), "postmaster.pid"))
	if err != nil {
		return
	}
	lines := strings.Split(string(content), "\n")
	if len(lines) < line {
		return
	}
	fields := strings.Fields(lines[line-1])
	if len(fields) != 2 {
		return
	}
	id, err := strconv.Atoi(fields[1])
	if err != nil {
		return
	}
	if _, err := unix.SysvShmCtl(id, unix.IPC_RMID, nil); err != nil {
		s.log.Debug("shared memory segment not removed", slog.Int("segment", id), slog.Any("error", err))
	}
}
