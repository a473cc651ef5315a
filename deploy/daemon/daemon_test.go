package daemon_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"chargeonce/deploy/daemon"
)

const programEnv = "DAEMON_TEST_PROGRAM"

// TestMain lets the test program stand for a chargeonce program, as a real process.
func TestMain(m *testing.M) {
	if os.Getenv(programEnv) != "" {
		daemon.Main(daemon.About{Name: "example", Help: "Example of a program.", Listen: "127.0.0.1:9999"}, runExample)
	}
	os.Exit(m.Run())
}

type example struct {
	daemon.HTTP `embed:""`

	DatabaseURL daemon.Secret `help:"Where Postgres is." env:"DATABASE_URL" name:"database-url"`
	Workers     int           `help:"How many." default:"3" env:"WORKERS"`
	Do          string        `arg:"" help:"What to do." optional:""`
}

func (e *example) Validate() error {
	if e.Workers < 1 {
		return &daemon.SettingError{Setting: "WORKERS", Problem: "is less than 1", Cure: "give at least 1"}
	}
	return nil
}

func runExample(ctx context.Context, env daemon.Env, cfg *example) error {
	switch cfg.Do {
	case "fail":
		return errors.Join(errors.New("first"), errors.New("second"))
	case "find":
		return daemon.ErrFound
	case "missetting":
		return &daemon.SettingError{Setting: "SOLACE_QUEUE", Problem: "is not there", Cure: "create it"}
	case "log":
		env.Log.Info("the settings", slog.Any("cfg", cfg), slog.Any("url", cfg.DatabaseURL)) //nolint:sloglint // no context wanted
		return nil
	case "reveal":
		_, err := io.WriteString(env.Stdout, cfg.DatabaseURL.Reveal())
		return err
	case "measure":
		families, err := env.Registry.Gather()
		for _, family := range families {
			_, err = io.WriteString(env.Stdout, family.GetName()+"\n")
		}
		return err
	case "wait":
		if _, err := io.WriteString(env.Stdout, "ready\n"); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	case "hang":
		if _, err := io.WriteString(env.Stdout, "ready\n"); err != nil {
			return err
		}
		<-ctx.Done()
		if _, err := io.WriteString(env.Stdout, "ending\n"); err != nil {
			return err
		}
		select {}
	}
	return nil
}

func TestExitCodeAndSentenceOfEveryEnd(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args   []string
		env    []string
		code   int
		stderr string
	}{
		"fine":                 {code: 0},
		"settings are fine":    {args: []string{"--check-config", "fail"}, code: 0},
		"failed":               {args: []string{"fail"}, code: 1, stderr: "example: first; second\n"},
		"found":                {args: []string{"find"}, code: 1},
		"setting at run time":  {args: []string{"missetting"}, code: 2, stderr: "example: SOLACE_QUEUE is not there: create it\n"},
		"Validate":             {env: []string{"WORKERS=0"}, code: 2, stderr: "example: WORKERS is less than 1: give at least 1\n"},
		"Validate when asked":  {args: []string{"--check-config"}, env: []string{"WORKERS=0"}, code: 2, stderr: "example: WORKERS is less than 1: give at least 1\n"},
		"unknown flag":         {args: []string{"--wrokers=1"}, code: 2, stderr: "example: unknown flag --wrokers, did you mean \"--workers\"? (see example --help)\n"},
		"wrong level":          {args: []string{"--log-level=loud"}, code: 2, stderr: "example: --log-level must be one of \"debug\",\"info\",\"warn\",\"error\" but got \"loud\" (see example --help)\n"},
		"missing secret file":  {env: []string{"DATABASE_URL_FILE=/no/such/file"}, code: 2, stderr: "example: DATABASE_URL_FILE names /no/such/file, which cannot be read (no such file or directory): mount or write the file, or unset DATABASE_URL_FILE\n"},
		"secret twice":         {env: []string{"DATABASE_URL_FILE=/no/such/file", "DATABASE_URL=x"}, code: 2, stderr: "example: DATABASE_URL and DATABASE_URL_FILE are both given: give one of them\n"},
		"secret twice by flag": {args: []string{"--database-url=x"}, env: []string{"DATABASE_URL_FILE=/no/such/file"}, code: 2, stderr: "example: --database-url and DATABASE_URL_FILE are both given: give one of them\n"},
		"secret file too long": {env: []string{"DATABASE_URL_FILE=/dev/zero"}, code: 2, stderr: "example: DATABASE_URL_FILE names /dev/zero, which is longer than 65536 bytes: name the file that holds the secret alone\n"},
		"secret file empty":    {env: []string{"DATABASE_URL_FILE=/dev/null"}, code: 2, stderr: "example: DATABASE_URL_FILE names /dev/null, which is empty: write the secret into it\n"},
		"secret file a folder": {env: []string{"DATABASE_URL_FILE=/"}, code: 2, stderr: "example: DATABASE_URL_FILE names /, which cannot be read (is a directory): mount or write the file, or unset DATABASE_URL_FILE\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, _, stderr := run(t, c.env, c.args...)
			require.Equal(t, c.code, code, stderr)
			require.Equal(t, c.stderr, stderr)
		})
	}
}

func TestHelpShowsSecretFilesAndDefaults(t *testing.T) {
	t.Parallel()
	code, stdout, _ := run(t, nil, "--help")
	require.Zero(t, code)
	stdout = strings.Join(strings.Fields(stdout), " ")
	for _, want := range []string{
		"Example of a program.", "Where Postgres is ($DATABASE_URL), or a file named by $DATABASE_URL_FILE.",
		`--listen="127.0.0.1:9999"`, "--log-level", "--log-format", "--check-config",
	} {
		require.Contains(t, stdout, want)
	}
}

func TestSecretFileIsReadUnchanged(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]string{
		"a": "a", "a\r\n": "a", "a\n\n": "a\n", "\ta\n": "\ta", "--a,b=c": "--a,b=c", `"q"`: `"q"`,
	} {
		path := filepath.Join(t.TempDir(), "secret")
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		// Compose files like to set variables to nothing.
		code, stdout, stderr := run(t, []string{"DATABASE_URL=", "DATABASE_URL_FILE=" + path}, "reveal")
		require.Zero(t, code, stderr)
		require.Equal(t, want, stdout)
	}
}

func TestLogNeverShowsASecret(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"json", "text", "auto"} {
		code, stdout, stderr := run(t, []string{"DATABASE_URL=hunter2"}, "log", "--log-format="+format)
		require.Zero(t, code)
		require.NotContains(t, stdout+stderr, "hunter2", format)
		require.Equal(t, 2, strings.Count(stderr, "[redacted]"), "%s: %s", format, stderr)
		if format != "text" {
			var record map[string]any
			require.NoError(t, json.Unmarshal([]byte(stderr), &record), stderr)
			require.Equal(t, "example", record["program"])
		}
	}
}

func TestSignalIsAnOrderlyEnd(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		p := start(t, "wait")
		p.await(t, "ready\n")
		require.NoError(t, p.cmd.Process.Signal(sig))
		require.Zero(t, p.wait(t), p.stderr.String())
		require.Contains(t, p.stderr.String(), "ending in good order")
	}
}

func TestSecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	p := start(t, "hang")
	p.await(t, "ready\n")
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	p.await(t, "ending\n")
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGINT))
	require.Equal(t, 128+2, p.wait(t))
	require.Contains(t, p.stderr.String(), "second signal: exiting at once")
}

func requireSetting(t *testing.T, err error) {
	t.Helper()
	_, ok := errors.AsType[*daemon.SettingError](err)
	require.True(t, ok, "%v", err)
}

func TestProgramHasFiguresOfItsOwnProcess(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := run(t, nil, "measure")
	require.Zero(t, code, stderr)
	require.Subset(t, strings.Fields(stdout), []string{"go_goroutines", "process_start_time_seconds", "go_build_info"})
}

type process struct {
	cmd    *exec.Cmd
	out    *bufio.Reader
	stderr bytes.Buffer
}

func command(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0], args...) //nolint:gosec // ourselves
	cmd.Env = append([]string{programEnv + "=1"}, env...)
	return cmd
}

func run(t *testing.T, env []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := command(t, env, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	code = exitCode(t, cmd, cmd.Run())
	return code, out.String(), errs.String()
}

func start(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{cmd: command(t, nil, args...)}
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.out = bufio.NewReader(out)
	p.cmd.Stderr = &p.stderr
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() { _ = p.cmd.Process.Kill() }) // already ended unless the test failed early
	return p
}

func (p *process) await(t *testing.T, want string) {
	t.Helper()
	line, err := p.out.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, want, line)
}

func (p *process) wait(t *testing.T) int {
	t.Helper()
	return exitCode(t, p.cmd, p.cmd.Wait())
}

func exitCode(t *testing.T, cmd *exec.Cmd, err error) int {
	t.Helper()
	if _, ok := errors.AsType[*exec.ExitError](err); !ok {
		require.NoError(t, err)
	}
	return cmd.ProcessState.ExitCode()
}
