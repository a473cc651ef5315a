// Command localpg runs another command with a Postgres server of its own in DATABASE_URL.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"golang.org/x/sys/unix"

	"chargeonce/deploy/localpg"
)

const (
	exitFault = 1
	exitUsage = 2
	// exitSignal plus the signal's number is how shells report a command that a signal ended.
	exitSignal = 128

	// stopTimeout is what a kept server gets to write its checkpoint.
	stopTimeout = 30 * time.Second
)

func main() {
	var cfg settings
	parser := kong.Must(&cfg, kong.Name("localpg"), kong.Vars{"version": localpg.DefaultVersion}, kong.Description(
		"Starts Postgres on 127.0.0.1, runs COMMAND with DATABASE_URL set to it, then stops it and leaves nothing behind. "+
			"Exits with the command's exit code."))
	parser.Exit = func(code int) {
		if code != 0 {
			code = exitUsage
		}
		os.Exit(code)
	}
	_, err := parser.Parse(os.Args[1:])
	parser.FatalIfErrorf(err)
	if cfg.Command[0] == "--" {
		cfg.Command = cfg.Command[1:]
	}

	level := slog.LevelInfo
	if cfg.Verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	code, err := run(context.Background(), cfg, log)
	if err != nil {
		fmt.Fprintln(os.Stderr, "localpg:", err)
	}
	os.Exit(code)
}

type settings struct {
	Dir      string            `help:"Folder that keeps the data; without it a temporary one, removed at the end." type:"path"`
	Port     int               `help:"Port on 127.0.0.1; 0 takes a free one."`
	Durable  bool              `help:"Switch fsync on, as in production."`
	Set      map[string]string `help:"Further server settings." placeholder:"NAME=VALUE" mapsep:"none"`
	Env      []string          `help:"Environment variables that get the server's URL." default:"DATABASE_URL" placeholder:"NAME"`
	BinDir   string            `help:"Folder of initdb and postgres." env:"LOCALPG_BIN_DIR" type:"path"`
	Version  string            `help:"Postgres to download if the machine has none." default:"${version}" name:"pg-version"`
	FetchURL string            `help:"Maven repository to download from." env:"LOCALPG_FETCH_URL"`
	Verbose  bool              `help:"Say where the server runs." short:"v"`
	Command  []string          `arg:"" help:"Command and its arguments, after --." passthrough:""`
}

// run returns the exit code, and an error when it is not the command's own.
func run(ctx context.Context, cfg settings, log *slog.Logger) (code int, err error) {
	if len(cfg.Command) == 0 {
		return exitUsage, errors.New("no command after --")
	}
	path, err := exec.LookPath(cfg.Command[0])
	if err != nil {
		return exitUsage, fmt.Errorf("command not found: %w", err)
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	if !signal.Ignored(syscall.SIGHUP) { // nohup
		signal.Notify(signals, syscall.SIGHUP)
	}
	defer signal.Stop(signals)

	server, sig, err := startUnlessSignalled(ctx, cfg, log, signals)
	if sig != 0 {
		return exitSignal + int(sig), nil
	}
	if err != nil {
		return exitFault, err
	}
	code, err = runCommand(ctx, cfg, path, server.URL(), signals)
	stopCtx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	if stopErr := server.Stop(stopCtx); stopErr != nil {
		return max(code, exitFault), errors.Join(err, stopErr)
	}
	return code, err
}

// startUnlessSignalled gives up the start when a signal comes first; localpg.Start then leaves nothing behind.
func startUnlessSignalled(ctx context.Context, cfg settings, log *slog.Logger, signals <-chan os.Signal) (*localpg.Server, syscall.Signal, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type started struct {
		server *localpg.Server
		err    error
	}
	result := make(chan started, 1)
	go func() {
		server, err := localpg.Start(ctx, localpg.Config{
			Dir: cfg.Dir, Port: cfg.Port, Durable: cfg.Durable, Settings: cfg.Set,
			BinDir: cfg.BinDir, Version: cfg.Version, FetchURL: cfg.FetchURL, Logger: log,
		})
		result <- started{server, err}
	}()
	select {
	case r := <-result:
		return r.server, 0, r.err
	case s := <-signals:
		cancel()
		sig, _ := s.(syscall.Signal)
		r := <-result
		if r.err == nil {
			return nil, sig, r.server.Stop(context.WithoutCancel(ctx))
		}
		return nil, sig, nil
	}
}

// runCommand gives the command a process group of its own and passes our signals on to it, so that each signal reaches
// it exactly once: a second one would make many programs give up their orderly end. At a terminal the command's group
// is put into the foreground, as a shell would, and gets Ctrl-C from the terminal itself. Ctrl-Z is switched off there:
// only the shell's own child could be resumed by it.
func runCommand(ctx context.Context, cfg settings, path, url string, signals <-chan os.Signal) (int, error) {
	cmd := exec.CommandContext(context.WithoutCancel(ctx), path, cfg.Command[1:]...) //nolint:gosec // the user's own command
	cmd.Args[0] = cfg.Command[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = os.Environ()
	for _, name := range cfg.Env {
		cmd.Env = append(cmd.Env, name+"="+url)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if inForeground(os.Stdin) {
		cmd.SysProcAttr.Foreground = true
		cmd.SysProcAttr.Ctty = int(os.Stdin.Fd())
		defer takeForeground(os.Stdin)
		signal.Ignore(syscall.SIGTSTP) // the command inherits this
	}
	if err := cmd.Start(); err != nil {
		return exitUsage, fmt.Errorf("start command: %w", err)
	}
	group := -cmd.Process.Pid
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			if sig, ok := s.(syscall.Signal); ok {
				_ = syscall.Kill(group, sig) // may have ended meanwhile
			}
		case err := <-done:
			_ = syscall.Kill(group, syscall.SIGTERM) // background processes that it left behind
			return exitCode(cmd, err)
		}
	}
}

func exitCode(cmd *exec.Cmd, err error) (int, error) {
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		return exitFault, fmt.Errorf("wait for command: %w", err)
	}
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return exitSignal + int(status.Signal()), nil
	}
	return cmd.ProcessState.ExitCode(), nil
}

func inForeground(terminal *os.File) bool {
	group, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// takeForeground brings us back in front of the terminal; a process in the background is stopped for trying unless it
// ignores SIGTTOU.
func takeForeground(terminal *os.File) {
	signal.Ignore(syscall.SIGTTOU)
	defer signal.Reset(syscall.SIGTTOU)
	_ = unix.IoctlSetPointerInt(int(terminal.Fd()), unix.TIOCSPGRP, unix.Getpgrp())
}
