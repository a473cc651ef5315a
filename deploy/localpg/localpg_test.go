package localpg_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"chargeonce/deploy/localpg"
)

const (
	ownerEnv = "LOCALPG_TEST_OWNER_DIR"
	patience = 30 * time.Second
	interval = 10 * time.Millisecond
)

// TestMain lets the test program stand for a process that owns a server and is then killed.
func TestMain(m *testing.M) {
	if dir, ok := os.LookupEnv(ownerEnv); ok {
		ownServer(dir)
	}
	goleak.VerifyTestMain(m)
}

// ownServer starts a server, prints its pid and folder, and waits to be killed.
func ownServer(dir string) {
	s, err := localpg.Start(context.Background(), localpg.Config{Dir: dir})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Fprintln(os.Stdout, s.PID(), s.Dir())
	select {}
}

func TestClusterIsWhatWasAskedFor(t *testing.T) {
	t.Parallel()
	s := startServer(t, localpg.Config{Settings: map[string]string{"work_mem": "7MB"}})
	conn := connect(t, s)
	for setting, want := range map[string]string{ //nolint:gosec // no credentials
		"server_encoding": "UTF8", "max_connections": "300", "fsync": "off", "listen_addresses": "127.0.0.1",
		"unix_socket_directories": "", "TimeZone": "UTC", "work_mem": "7MB", "password_encryption": "scram-sha-256",
	} {
		var got string
		require.NoError(t, conn.QueryRow(t.Context(), "select current_setting($1)", setting).Scan(&got))
		require.Equal(t, want, got, setting)
	}
	var collate string
	require.NoError(t, conn.QueryRow(t.Context(), "select datcollate from pg_database where datname = 'postgres'").Scan(&collate))
	require.Equal(t, "C", collate)
}

func TestDurableClusterKeepsFsync(t *testing.T) {
	t.Parallel()
	s := startServer(t, localpg.Config{Durable: true})
	var fsync, commit, pages string
	require.NoError(t, connect(t, s).QueryRow(t.Context(),
		"select current_setting('fsync'), current_setting('synchronous_commit'), current_setting('full_page_writes')").Scan(&fsync, &commit, &pages))
	require.Equal(t, []string{"on", "on", "on"}, []string{fsync, commit, pages})
}

func TestStrangerCannotLogInWithoutThePassword(t *testing.T) {
	t.Parallel()
	s := startServer(t, localpg.Config{})
	cfg, err := pgx.ParseConfig(s.URL())
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(cfg.Password), 20)
	cfg.Password = "postgres"
	_, err = pgx.ConnectConfig(t.Context(), cfg)
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, "28P01", pgErr.Code)
}

func TestStopLeavesNeitherFolderNorProcess(t *testing.T) {
	t.Parallel()
	s := startServer(t, localpg.Config{})
	pid := s.PID()
	require.True(t, alive(pid))
	require.DirExists(t, s.Dir())
	require.NoError(t, s.Stop(t.Context()))
	require.False(t, alive(pid))
	require.NoDirExists(t, s.Dir())
	require.NoError(t, s.Stop(t.Context()), "a second Stop")
	require.ErrorIs(t, s.StartAgain(t.Context()), localpg.ErrStopped)
}

func TestDataOutlivesShutdownAndKill(t *testing.T) {
	t.Parallel()
	s := startServer(t, localpg.Config{})
	url := s.URL()
	conn := connect(t, s)
	_, err := conn.Exec(t.Context(), "create table kept (n int)")
	require.NoError(t, err)

	for n, takeAway := range []func() error{
		func() error { return s.Shutdown(t.Context()) },
		s.Kill,
		func() error { return syscall.Kill(s.PID(), syscall.SIGKILL) },
	} {
		_, err = connect(t, s).Exec(t.Context(), "insert into kept values ($1)", n)
		require.NoError(t, err)
		open := connect(t, s)
		require.NoError(t, takeAway())
		require.Eventually(t, func() bool { return s.PID() == 0 }, patience, interval)
		require.Eventually(t, func() bool { return open.Ping(t.Context()) != nil }, patience, interval, "a connection outlived its server")
		require.Eventually(t, func() bool { // a process that a killed postmaster was just starting still holds its port for a moment
			_, err := pgx.Connect(t.Context(), url)
			return errors.Is(err, syscall.ECONNREFUSED)
		}, patience, interval)

		require.NoError(t, s.StartAgain(t.Context()))
		require.Equal(t, url, s.URL())
		var rows int
		require.NoError(t, connect(t, s).QueryRow(t.Context(), "select count(*) from kept").Scan(&rows))
		require.Equal(t, n+1, rows)
	}
	pid := s.PID()
	require.NoError(t, s.StartAgain(t.Context()), "on a running server")
	require.Equal(t, pid, s.PID())
}

func TestKilledBackendsDoNotFinishTheirStatement(t *testing.T) {
	t.Parallel()
	s := startServer(t, localpg.Config{})
	conn := connect(t, s)
	backend := int(conn.PgConn().PID())
	done := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.WithoutCancel(t.Context()), "select count(*) from generate_series(1, 1000000000)")
		done <- err
	}()
	watch := connect(t, s)
	require.Eventually(t, func() bool {
		var busy bool
		err := watch.QueryRow(t.Context(), "select state = 'active' from pg_stat_activity where pid = $1", backend).Scan(&busy)
		return err == nil && busy
	}, patience, interval)
	require.NoError(t, s.Kill())
	require.Error(t, <-done)
	require.Eventually(t, func() bool { return !alive(backend) }, patience, interval)
}

func TestKeptFolderKeepsDataAndPassword(t *testing.T) {
	t.Parallel()
	dir := reachableDir(t)
	first := startServer(t, localpg.Config{Dir: dir})
	_, err := connect(t, first).Exec(t.Context(), "create table kept as select 1 as n")
	require.NoError(t, err)
	require.NoError(t, first.Stop(t.Context()))
	require.FileExists(t, filepath.Join(dir, "data", "PG_VERSION"))

	second := startServer(t, localpg.Config{Dir: dir})
	var n int
	require.NoError(t, connect(t, second).QueryRow(t.Context(), "select n from kept").Scan(&n))
	require.Equal(t, 1, n)
}

func TestTwoOwnersCannotShareOneFolder(t *testing.T) {
	t.Parallel()
	dir := reachableDir(t)
	first := startServer(t, localpg.Config{Dir: dir})
	_, err := localpg.Start(t.Context(), localpg.Config{Dir: dir})
	require.ErrorContains(t, err, "in use by another running localpg")
	require.NoError(t, connect(t, first).Ping(t.Context()), "the refused owner disturbed the first")
}

func TestForeignFolderIsNotTakenOver(t *testing.T) {
	t.Parallel()
	dir := reachableDir(t)
	precious := filepath.Join(dir, "letter.txt")
	require.NoError(t, os.WriteFile(precious, []byte("dear"), 0o600))
	_, err := localpg.Start(t.Context(), localpg.Config{Dir: dir})
	require.ErrorContains(t, err, "holds other files")
	require.FileExists(t, precious)
	require.NoDirExists(t, filepath.Join(dir, "data"))
}

func TestTakenPortIsNamed(t *testing.T) {
	t.Parallel()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	addr, ok := l.Addr().(*net.TCPAddr)
	require.True(t, ok)
	_, err = localpg.Start(t.Context(), localpg.Config{Port: addr.Port})
	require.ErrorContains(t, err, fmt.Sprintf("port %d: port is taken", addr.Port))
}

func TestBadSettingShowsPostgresOwnWords(t *testing.T) {
	t.Parallel()
	_, err := localpg.Start(t.Context(), localpg.Config{Settings: map[string]string{"no_such_setting": "1"}})
	require.ErrorContains(t, err, `unrecognized configuration parameter "no_such_setting"`)
}

func TestCancelledStartLeavesNoFolder(t *testing.T) {
	t.Parallel()
	temp := reachableDir(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := localpg.Start(ctx, localpg.Config{Dir: filepath.Join(temp, "pg")})
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, leftoverPostmasters(t, temp))
}

// The owner gets no chance to clean up.
func TestServerDoesNotOutliveItsKilledOwner(t *testing.T) {
	t.Parallel()
	owner, pid, dir := startOwner(t, "")
	require.True(t, alive(pid))
	require.NoError(t, owner.Process.Kill())
	_ = owner.Wait()
	require.Eventually(t, func() bool { return !alive(pid) }, patience, interval)
	require.Eventually(t, func() bool {
		_, err := os.Stat(dir)
		return errors.Is(err, os.ErrNotExist)
	}, patience, interval)
}

func TestNextStartIsFreeOfAKilledOwnersServer(t *testing.T) {
	t.Parallel()
	dir := reachableDir(t)
	owner, pid, _ := startOwner(t, dir)
	require.NoError(t, owner.Process.Kill())
	_ = owner.Wait()
	s := startServer(t, localpg.Config{Dir: dir}) // at once, while the old one may still be running
	require.False(t, alive(pid))
	require.NoError(t, connect(t, s).Ping(t.Context()))
}

// Both the owner and its keeper were killed, so nobody ends the old server but the next owner.
func TestNextStartIsFreeOfAnOrphanedServer(t *testing.T) {
	t.Parallel()
	dir := reachableDir(t)
	owner, pid, _ := startOwner(t, dir)
	for _, child := range childrenOf(t, owner.Process.Pid) {
		if child != pid {
			require.NoError(t, syscall.Kill(child, syscall.SIGKILL))
		}
	}
	require.NoError(t, owner.Process.Kill())
	_ = owner.Wait()
	require.True(t, alive(pid))
	s := startServer(t, localpg.Config{Dir: dir})
	require.False(t, alive(pid))
	require.NoError(t, connect(t, s).Ping(t.Context()))
}

// A root's TMPDIR is often one that no other account may enter.
func TestUnreachableTemporaryFolderDoesNotFailTheStart(t *testing.T) {
	t.Parallel()
	temp := t.TempDir()
	require.NoError(t, os.Chmod(temp, 0o700)) //nolint:gosec // the point of the test
	owner, pid, dir := startOwner(t, "", "TMPDIR="+temp)
	require.True(t, alive(pid))
	require.Equal(t, os.Geteuid() != 0, strings.HasPrefix(dir, temp), "%s", dir)
	require.NoError(t, owner.Process.Kill())
	_ = owner.Wait()
	require.Eventually(t, func() bool { return !alive(pid) }, patience, interval)
	require.Eventually(t, func() bool {
		_, err := os.Stat(dir)
		return errors.Is(err, os.ErrNotExist)
	}, patience, interval)
}

func startServer(t *testing.T, cfg localpg.Config) *localpg.Server {
	t.Helper()
	s, err := localpg.Start(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop(context.WithoutCancel(t.Context()))) })
	return s
}

func connect(t *testing.T, s *localpg.Server) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) }) // the server may be gone by then
	return conn
}

func startOwner(t *testing.T, dir string, env ...string) (owner *exec.Cmd, pid int, serverDir string) {
	t.Helper()
	owner = exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0]) //nolint:gosec // ourselves
	owner.Env = append(append(os.Environ(), ownerEnv+"="+dir), env...)
	owner.Stderr = os.Stderr
	out, err := owner.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, owner.Start())
	t.Cleanup(func() { _ = owner.Process.Kill() }) // already dead unless the test failed early
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	_, err = fmt.Sscan(line, &pid, &serverDir)
	require.NoError(t, err)
	return owner, pid, serverDir
}

// reachableDir is a folder whose parents any account may enter; t.TempDir's are root's alone.
func reachableDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "localpg-test-") //nolint:usetesting // see above
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755)) //nolint:gosec // see above
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// alive does not count a process that has ended and was not yet collected by its parent.
func alive(pid int) bool {
	state, err := exec.CommandContext(context.Background(), "ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output() //nolint:gosec // a number
	return err == nil && !strings.HasPrefix(strings.TrimSpace(string(state)), "Z")
}

func childrenOf(t *testing.T, parent int) []int {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ps", "-A", "-o", "pid=,ppid=").Output()
	require.NoError(t, err)
	var children []int
	for line := range strings.Lines(string(out)) {
		var pid, ppid int
		_, err := fmt.Sscan(line, &pid, &ppid)
		require.NoError(t, err)
		if ppid == parent {
			children = append(children, pid)
		}
	}
	return children
}

func leftoverPostmasters(t *testing.T, dir string) int {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ps", "-A", "-o", "args=").Output()
	require.NoError(t, err)
	n := 0
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, dir) {
			n++
		}
	}
	return n
}
