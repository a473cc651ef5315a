// Package localpg runs a Postgres server of this process's own, for tests, the demonstration and a first try on a laptop.
package localpg

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	superuser = "postgres"

	// startTimeout bounds one start of the server, crash recovery included.
	startTimeout = 60 * time.Second
	// quitTimeout is what an immediate shutdown gets before SIGKILL. Postgres itself kills its children after 5 s.
	quitTimeout = 8 * time.Second
	// maxConnections is enough for a few chargers and ingestors, or a package of parallel tests, on one machine.
	maxConnections = 300
)

// ErrStopped is returned by calls on a server that Stop has ended for good.
var ErrStopped = errors.New("local Postgres is stopped for good")

// Start makes a cluster (UTF8, locale C) unless Config.Dir holds one, starts Postgres on 127.0.0.1 and returns when it
// answers. The server outlives ctx, which only bounds the start; it ends at Stop, or by itself when this process dies,
// however that happens. Started as root, everything runs as user postgres, or else nobody.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	return start(ctx, cfg, localBinDirs())
}

// Config says where and how the server runs; the zero value is a throw-away server on a free port.
type Config struct {
	// Dir keeps the cluster between runs. Empty: a temporary folder, removed by Stop.
	Dir string
	// Port on 127.0.0.1; 0 takes a free one and keeps it for the life of the Server.
	Port int
	// Durable switches fsync on, as in production. Without it a crash of the machine (not of Postgres) may lose the data.
	Durable bool
	// Settings are further server settings, such as "log_statement": "all"; they win over localpg's own.
	Settings map[string]string
	// BinDir is the folder of initdb and postgres to use. Empty: PATH, then the usual places, then a download.
	BinDir string
	// Version (three numbers, such as 17.5.0) and FetchURL (a Maven repository) direct the download; empty: DefaultVersion
	// and the public repository. CacheDir keeps it; empty: the user's cache folder.
	Version, FetchURL, CacheDir string
	// Logger may be nil.
	Logger *slog.Logger
}

// Server is one running, or for a time shut down, cluster. Its methods may be called from any goroutine.
type Server struct {
	cfg      Config
	log      *slog.Logger
	account  *account
	binDir   string
	dir      string
	lock     *os.File
	keeper   *keeper
	password string
	port     int

	mu      sync.Mutex
	proc    *process // nil while shut down
	stopped bool
}

// URL reaches the database postgres as superuser. It stays the same across Shutdown and StartAgain, and contains a
// password that was made for this cluster.
func (s *Server) URL() string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(superuser, s.password),
		Host:     "127.0.0.1:" + strconv.Itoa(s.port),
		Path:     "/postgres",
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Dir is the server's folder; postgres.log in it is the server's log.
func (s *Server) Dir() string { return s.dir }

// PID is the postmaster's process id, or 0 while it is not running.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil || s.proc.ended() {
		return 0
	}
	return s.proc.pid
}

// Stop ends the server, and removes its folder if it is a temporary one. A second Stop does nothing. The end does not
// wait for clients; when ctx ends first, harder means are used, so Stop always ends it.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil
	}
	s.stopped = true
	return s.close(ctx)
}

// Shutdown takes the database away in good order (fast shutdown: open transactions are rolled back) and keeps folder,
// port and password for StartAgain.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return ErrStopped
	}
	return s.halt(ctx, syscall.SIGINT)
}

// Kill takes the database away like a crash: postmaster and backends get SIGKILL, clients see their connection reset.
// What was committed survives, for the machine itself did not crash.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return ErrStopped
	}
	if s.proc == nil {
		return nil
	}
	err := s.proc.killTree()
	s.keeper.tell("forget")
	s.proc = nil
	return err
}

// StartAgain starts the server on the same folder, port and password after Shutdown, Kill or a crash. On a running
// server it does nothing.
func (s *Server) StartAgain(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return ErrStopped
	}
	if s.proc != nil && !s.proc.ended() {
		return nil
	}
	return s.launch(ctx)
}

func start(ctx context.Context, cfg Config, localDirs []string) (*Server, error) {
	s := &Server{cfg: cfg, log: cfg.Logger, port: cfg.Port}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout+fetchTimeout, errors.New("start of local Postgres took too long"))
	defer cancel()
	if err := s.open(ctx, localDirs); err != nil {
		return nil, errors.Join(fmt.Errorf("start local Postgres: %w", err), s.close(context.WithoutCancel(ctx)))
	}
	return s, nil
}

func (s *Server) open(ctx context.Context, localDirs []string) (err error) {
	if s.account, err = serviceAccount(ctx); err != nil {
		return err
	}
	if s.binDir, err = locate(ctx, s.cfg, s.account, localDirs, s.log); err != nil {
		return err
	}
	if s.dir, err = makeFolder(ctx, s.cfg.Dir, s.account); err != nil {
		return err
	}
	if s.lock, err = lockFolder(s.dir); err != nil {
		return err
	}
	if s.keeper, err = startKeeper(ctx, s.cfg.Dir == "", s.dir); err != nil {
		return err
	}
	if err = s.endLeftover(ctx); err != nil {
		return err
	}
	if err = s.makeCluster(ctx); err != nil {
		return err
	}
	return s.launch(ctx)
}

// close undoes whatever part of open was done. A temporary cluster needs no checkpoint: its folder is about to go.
func (s *Server) close(ctx context.Context) error {
	how := syscall.SIGINT
	if s.cfg.Dir == "" {
		how = syscall.SIGQUIT
	}
	errs := []error{s.halt(ctx, how)}
	if s.dir != "" && s.cfg.Dir == "" {
		s.removeSharedMemory()
		errs = append(errs, removeFolder(ctx, s.dir))
	}
	if s.keeper != nil {
		errs = append(errs, s.keeper.dismiss())
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

// removeFolder tries again for a while, because a backend that just got SIGKILL may still be writing its last file.
func removeFolder(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), quitTimeout)
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		err := os.RemoveAll(dir)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("remove the temporary folder: %w", err)
		case <-tick.C:
		}
	}
}

// halt ends the postmaster with sig, then with harder means once ctx has ended. The caller holds mu or is alone.
func (s *Server) halt(ctx context.Context, sig syscall.Signal) error {
	p := s.proc
	if p == nil {
		return nil
	}
	p.signal(sig)
	if !p.wait(ctx) {
		p.signal(syscall.SIGQUIT)
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), quitTimeout)
		defer cancel()
		if !p.wait(grace) {
			if err := p.killTree(); err != nil {
				return err
			}
		}
	}
	s.keeper.tell("forget")
	s.proc = nil
	return nil
}

// makeCluster runs initdb beside the final place and renames, so that a killed initdb never leaves half a cluster.
func (s *Server) makeCluster(ctx context.Context) error {
	passwordFile := filepath.Join(s.dir, "password")
	if _, err := os.Stat(filepath.Join(s.dataDir(), "PG_VERSION")); err == nil {
		password, err := os.ReadFile(passwordFile) //nolint:gosec // our own folder
		if err != nil {
			return fmt.Errorf("read the password of the cluster in %s: %w", s.dir, err)
		}
		s.password = strings.TrimSpace(string(password))
		return nil
	}
	s.password = rand.Text()
	if err := os.WriteFile(passwordFile, []byte(s.password+"\n"), 0o600); err != nil {
		return fmt.Errorf("write the password: %w", err)
	}
	if err := s.account.own(passwordFile); err != nil {
		return err
	}
	fresh := s.dataDir() + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return fmt.Errorf("remove half a cluster: %w", err)
	}
	args := []string{
		"-D", fresh, "-U", superuser, "-A", "scram-sha-256", "--pwfile", passwordFile,
		"-E", "UTF8", "--locale=C", "--no-instructions",
	}
	if !s.cfg.Durable {
		args = append(args, "--no-sync")
	}
	p, err := s.spawn(ctx, "initdb", args...)
	if err != nil {
		return err
	}
	if !p.wait(ctx) {
		return errors.Join(fmt.Errorf("initdb: %w", context.Cause(ctx)), p.killTree())
	}
	s.keeper.tell("forget")
	if p.err != nil {
		return fmt.Errorf("initdb: %w: %s", p.err, p.logTail())
	}
	if err := os.Rename(fresh, s.dataDir()); err != nil {
		return fmt.Errorf("move the new cluster into place: %w", err)
	}
	return nil
}

func (s *Server) dataDir() string { return filepath.Join(s.dir, "data") }
