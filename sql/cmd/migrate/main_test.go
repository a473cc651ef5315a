package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"chargeonce/sql"
	"chargeonce/sql/sqltest"
)

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	code := sqltest.Run(m)
	if path, err := program(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
	return code
}

// program is the built program: exit codes and streams are what users and init containers meet.
var program = sync.OnceValues(func() (string, error) { //nolint:gochecknoglobals // built once, for all tests
	dir, err := os.MkdirTemp("", "migrate-test-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "migrate")
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "go", "build", "-o", path, ".").CombinedOutput() //nolint:gosec // our own path
	if err != nil {
		return "", errors.New("build migrate: " + string(out))
	}
	return path, nil
})

func TestUpAndStatusFromEmptyToMigrated(t *testing.T) {
	t.Parallel()
	db := sqltest.NewEmpty(t)

	code, stdout, stderr := migrate(t, db.URL, "status")
	require.Equal(t, 1, code, stderr)
	require.Empty(t, stderr)
	require.Contains(t, stdout, "missing: run migrate up")
	require.Regexp(t, `(?m)^billing +1 +missing +00001_billing.sql$`, stdout)

	code, stdout, stderr = migrate(t, db.URL, "up")
	require.Equal(t, 0, code, stderr)
	require.Contains(t, stdout, "applied river 1 ")
	require.Contains(t, stdout, "applied billing 1 00001_billing.sql\n")

	code, stdout, stderr = migrate(t, db.URL, "status")
	require.Equal(t, 0, code, stderr)
	require.NotContains(t, stdout, "missing")
	require.Regexp(t, `(?m)^billing +1 +20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ +00001_billing.sql$`, stdout)

	code, stdout, stderr = migrate(t, db.URL, "up")
	require.Equal(t, 0, code, stderr)
	require.Equal(t, "nothing to do\n", stdout)
}

func TestJSONIsForPrograms(t *testing.T) {
	t.Parallel()
	db := sqltest.NewEmpty(t)
	lists := func(wantCode int, args ...string) []sql.Version {
		code, stdout, stderr := migrate(t, db.URL, args...)
		require.Equal(t, wantCode, code, stderr)
		var versions []sql.Version
		require.NoError(t, json.Unmarshal([]byte(stdout), &versions), stdout)
		return versions
	}
	before := lists(1, "status", "--json")
	require.NotEmpty(t, before)
	require.Nil(t, before[0].AppliedAt)
	require.Len(t, lists(0, "up", "--json"), len(before))
	after := lists(0, "status", "--json")
	require.Len(t, after, len(before))
	for _, v := range after {
		require.NotNil(t, v.AppliedAt)
	}
	code, stdout, _ := migrate(t, db.URL, "up", "--json")
	require.Equal(t, 0, code)
	require.Equal(t, "[]\n", stdout)
}

func TestWrongDatabaseURLIsOneSentence(t *testing.T) {
	t.Parallel()
	good := sqltest.NewEmpty(t)
	latin := sqltest.NewWithOptions(t, "TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'")
	mustExec(t, good.URL, "CREATE ROLE "+userOf(good)+" LOGIN PASSWORD 'right'")
	t.Cleanup(func() { mustExec(t, good.URL, "DROP ROLE "+userOf(good)) })
	tests := map[string]struct {
		url  string
		args []string
		code int
		says string
	}{
		"missing":        {url: "", code: 2, says: "is not set"},
		"blank":          {url: "  ", code: 2, says: "is not set"},
		"unparsable":     {url: "postgres://u:secret%zz@h/d", code: 2, says: "cannot be read"}, //nolint:gosec // no password
		"no database":    {url: change(t, good.URL, func(u *url.URL) { u.Path = "/no_such_database" }), code: 2, says: "does not exist"},
		"wrong password": {url: change(t, good.URL, func(u *url.URL) { u.User = url.UserPassword(userOf(good), "wrong-secret") }), code: 2, says: "password"},
		"not UTF8":       {url: latin.URL, code: 2, says: "LATIN1"},
		"unreachable":    {url: "postgres://u:secret@" + closedPort(t) + "/d", args: []string{"--wait=1s"}, code: 1, says: "cannot be reached"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := migrate(t, test.url, append([]string{"up"}, test.args...)...)
			require.Equal(t, test.code, code, stderr)
			require.Empty(t, stdout)
			require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
			require.Contains(t, stderr, "DATABASE_URL")
			require.Contains(t, stderr, test.says)
			require.NotContains(t, stderr, "secret")
		})
	}
}

func TestUsageErrorsAreExitCode2(t *testing.T) {
	t.Parallel()
	db := sqltest.NewEmpty(t)
	for _, args := range [][]string{{}, {"down"}, {"up", "--nonsense"}, {"up", "--wait=0s"}, {"up", "--wait=soon"}} {
		code, stdout, stderr := migrate(t, db.URL, args...)
		require.Equal(t, 2, code, "%q: %s", args, stderr)
		require.Empty(t, stdout)
		require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
	}
	code, stdout, _ := migrate(t, "", "--help")
	require.Equal(t, 0, code)
	require.Contains(t, stdout, "DATABASE_URL_FILE")
	code, _, _ = migrate(t, db.URL, "up", "--check-config")
	require.Equal(t, 0, code)
	code, stdout, _ = migrate(t, db.URL, "status")
	require.Equal(t, 1, code)
	require.Contains(t, stdout, "missing", "--check-config changed nothing")
}

func TestDatabaseURLFromAFile(t *testing.T) {
	t.Parallel()
	db := sqltest.NewEmpty(t)
	path := filepath.Join(t.TempDir(), "url")
	require.NoError(t, os.WriteFile(path, []byte(db.URL+"\n"), 0o600))
	cmd := command(t, "up")
	cmd.Env = append(cmd.Env, "DATABASE_URL_FILE="+path)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	code, _, stderr := migrate(t, db.URL, "status")
	require.Equal(t, 0, code, stderr)
}

// A role that may not migrate gets an error with exit code 1, not a half-told success.
func TestUpWithoutRightsFails(t *testing.T) {
	t.Parallel()
	db := sqltest.New(t)
	empty := sqltest.NewEmpty(t)
	_ = db // its migration made the role
	code, stdout, stderr := migrate(t, empty.As(sql.RoleFinance), "up")
	require.Equal(t, 1, code)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "permission denied")
	require.Contains(t, stderr, "DATABASE_URL")
}

// Killed after River's migrations and inside ours: the next run takes it from there.
func TestKilledBetweenRiversAndOursIsCompleted(t *testing.T) {
	t.Parallel()
	db := sqltest.NewEmpty(t)
	conn, err := pgx.Connect(t.Context(), db.URL)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	exec := func(statement string) {
		_, err := conn.Exec(t.Context(), statement)
		require.NoError(t, err, statement)
	}
	// Our migrations begin by making their list; an uncommitted twin of it holds them there.
	exec("CREATE SCHEMA billing")
	exec("BEGIN")
	exec("CREATE TABLE billing.schema_migrations (id integer)")

	cmd := command(t, "up")
	cmd.Env = append(cmd.Env, "DATABASE_URL="+db.URL)
	require.NoError(t, cmd.Start())
	watch, err := pgx.Connect(t.Context(), db.URL)
	require.NoError(t, err)
	defer func() { _ = watch.Close(context.WithoutCancel(t.Context())) }()
	others := func(condition string) (n int) {
		require.NoError(t, watch.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND pid NOT IN (pg_backend_pid(), $1) AND `+condition, conn.PgConn().PID()).Scan(&n))
		return n
	}
	require.Eventually(t, func() bool {
		return others("wait_event_type = 'Lock' AND query LIKE '%schema_migrations%'") > 0
	}, time.Minute, 20*time.Millisecond, "ours wait for the table")
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	exec("ROLLBACK")
	require.Eventually(t, func() bool { return others("backend_type = 'client backend'") == 0 }, time.Minute, 20*time.Millisecond)

	code, stdout, stderr := migrate(t, db.URL, "status")
	require.Equal(t, 1, code, stderr)
	require.Regexp(t, `(?m)^river +6 +20`, stdout)
	require.Regexp(t, `(?m)^billing +1 +missing`, stdout)
	code, stdout, stderr = migrate(t, db.URL, "up")
	require.Equal(t, 0, code, stderr)
	require.NotContains(t, stdout, "applied river")
	require.Contains(t, stdout, "applied billing 1 ")
	code, _, stderr = migrate(t, db.URL, "status")
	require.Equal(t, 0, code, stderr)
}

func migrate(t *testing.T, databaseURL string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := command(t, args...)
	cmd.Env = append(cmd.Env, "DATABASE_URL="+databaseURL)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if _, exited := errors.AsType[*exec.ExitError](err); !exited {
		require.NoError(t, err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// command has no settings from the tests' own environment, and logs only what is wrong.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	path, err := program()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), path, args...) //nolint:gosec // the program under test
	cmd.Env = []string{"LOG_LEVEL=error", "PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}
	return cmd
}

func userOf(db *sqltest.DB) string { return "user_of_" + db.Name }

func mustExec(t *testing.T, databaseURL, statement string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	conn, err := pgx.Connect(ctx, databaseURL)
	require.NoError(t, err)
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, statement)
	require.NoError(t, err)
}

func change(t *testing.T, text string, how func(*url.URL)) string {
	t.Helper()
	u, err := url.Parse(text)
	require.NoError(t, err)
	how(u)
	return u.String()
}

func closedPort(t *testing.T) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	return listener.Addr().String()
}
