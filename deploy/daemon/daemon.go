// Package daemon is what every chargeonce program does alike: settings, logging, signals, exit codes, the connection to
// Postgres, health and metrics.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"github.com/lmittmann/tint"
	"github.com/prometheus/client_golang/prometheus"
)

// Exit codes of every program. A second signal exits with 128 plus its number.
const (
	exitFine    = 0
	exitWrong   = 1
	exitSetting = 2
	exitSignal  = 128
)

// ErrFound makes the program exit with 1 and without a further line: it has already shown what it found wrong.
var ErrFound = errors.New("found something wrong")

// Main reads the settings, runs the program and exits: 0 fine (also after an orderly end on a signal), 1 found
// something wrong or failed, 2 usage or settings. It never returns.
//
// ctx ends with the first SIGTERM, SIGINT or, unless started under nohup, SIGHUP; run then finishes what it must and returns.
// A second SIGTERM or SIGINT exits at once.
// C is the program's settings as a struct with kong tags; if it has a method Validate() error, that is asked before run.
// Fields of type Secret can also be given as a file, see Secret.
func Main[C any](about About, run func(ctx context.Context, env Env, cfg *C) error) {
	os.Exit(execute(about, os.Args[1:], os.Stdout, os.Stderr, run))
}

// About is what a program says of itself.
type About struct {
	// Name of the program, as in its help, its logs and Postgres' application_name.
	Name string
	// Help is one or two sentences.
	Help string
	// Listen is the default of HTTP.Listen, such as 127.0.0.1:9464.
	Listen string
	// Vars are further ${name} in kong tags.
	Vars kong.Vars
}

// Env is what Main made for run.
type Env struct {
	Log      *slog.Logger
	Registry *prometheus.Registry // with the process's own figures already in it
	Name     string
	Command  string        // chosen subcommand with its positional arguments, as kong names it: "run open"
	Kong     *kong.Context // for programs whose subcommands are kong commands with a Run method
	Stdout   io.Writer     // for what the user asked to see; the log goes to stderr
}

// common settings stand in the help of every program, after its own.
type common struct {
	LogLevel    string `help:"Least important messages to log: ${enum}." enum:"debug,info,warn,error" default:"info" env:"LOG_LEVEL"`
	LogFormat   string `help:"How to log: ${enum}; auto is text on a terminal." enum:"auto,json,text" default:"auto" env:"LOG_FORMAT"`
	CheckConfig bool   `help:"Check the settings and exit."`
}

type settings[C any] struct {
	Program C      `embed:""`
	Common  common `embed:""`
}

func execute[C any](about About, args []string, stdout, stderr io.Writer, run func(context.Context, Env, *C) error) int {
	var cfg settings[C]
	parsed, done, err := parse(about, &cfg, args, stdout, stderr)
	switch {
	case done:
		return exitFine
	case err != nil:
		say(stderr, about.Name, err)
		return exitSetting
	case cfg.Common.CheckConfig:
		fmt.Fprintf(stdout, "%s: the settings are fine\n", about.Name)
		return exitFine
	}
	log := newLogger(stderr, cfg.Common).With(slog.String("program", about.Name))
	ctx, signalled, stop := untilSignal(context.Background(), log)
	defer stop()
	err = run(ctx, Env{
		Log: log, Registry: newRegistry(), Name: about.Name, Command: parsed.Command(), Kong: parsed, Stdout: stdout,
	}, &cfg.Program)
	return exitCode(about.Name, stderr, err, signalled())
}

func exitCode(name string, stderr io.Writer, err error, signalled bool) int {
	_, setting := errors.AsType[*SettingError](err)
	switch {
	case err == nil, signalled && errors.Is(err, context.Canceled):
		return exitFine
	case setting:
		say(stderr, name, err)
		return exitSetting
	case errors.Is(err, ErrFound):
		return exitWrong
	default:
		say(stderr, name, err)
		return exitWrong
	}
}

// say writes one line, whatever line breaks and indents the error has.
func say(stderr io.Writer, name string, err error) {
	var text strings.Builder
	for line := range strings.FieldsFuncSeq(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }) {
		line = strings.Join(strings.FieldsFunc(line, func(r rune) bool { return r == '\t' }), " ")
		switch before := text.String(); {
		case before == "":
		case strings.HasSuffix(before, ":"): // a heading of what follows
			text.WriteString(" ")
		default:
			text.WriteString("; ")
		}
		text.WriteString(line)
	}
	fmt.Fprintf(stderr, "%s: %s\n", name, text.String())
}

// untilSignal ends the context at the first signal and the process at the second. A terminal that closes sends SIGHUP twice,
// by the shell and by the kernel, and takes the readers of our output with it: neither may cut the orderly end short.
func untilSignal(parent context.Context, log *slog.Logger) (ctx context.Context, signalled func() bool, stop func()) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	if !signal.Ignored(syscall.SIGHUP) { // nohup
		signal.Notify(signals, syscall.SIGHUP)
	}
	var seen atomic.Bool
	go func() {
		for {
			select {
			case <-parent.Done():
				return
			case s, open := <-signals:
				if !open {
					return
				}
				if s == syscall.SIGHUP {
					signal.Ignore(syscall.SIGPIPE)
					if seen.Load() {
						continue
					}
				}
				if sig, ok := s.(syscall.Signal); ok && seen.Swap(true) {
					log.WarnContext(ctx, "second signal: exiting at once", slog.String("signal", sig.String()))
					os.Exit(exitSignal + int(sig))
				}
				log.InfoContext(ctx, "signal: ending in good order", slog.String("signal", s.String()))
				cancel()
			}
		}
	}()
	return ctx, seen.Load, func() {
		signal.Stop(signals)
		close(signals)
		cancel()
	}
}

func newLogger(stderr io.Writer, c common) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		level = slog.LevelInfo // cannot happen: kong checked the enum
	}
	if c.LogFormat == "text" || c.LogFormat == "auto" && isTerminal(stderr) {
		return slog.New(tint.NewTextHandler(stderr, &tint.Options{
			Level: level, TimeFormat: time.TimeOnly, NoColor: !isTerminal(stderr) || os.Getenv("NO_COLOR") != "",
		}))
	}
	return slog.New(slog.NewJSONHandler(stderr, &slog.HandlerOptions{Level: level}))
}

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
