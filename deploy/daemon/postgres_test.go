package daemon_test

import (
	"context"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"chargeonce/deploy/daemon"
	"chargeonce/deploy/localpg"
)

func TestDatabaseURLThatCannotWorkIsExplained(t *testing.T) {
	t.Parallel()
	const example = "postgres://USER:PASSWORD@HOST:5432/DATABASE" //nolint:gosec // an example
	for given, want := range map[string]string{
		"":                                    "DATABASE_URL is not set: set it to " + example + ", or DATABASE_URL_FILE to a file that holds that",
		" ":                                   "DATABASE_URL is not set: set it to " + example + ", or DATABASE_URL_FILE to a file that holds that",
		"postgres://u:hunter2%zz@h/d":         "DATABASE_URL cannot be read as the address of a Postgres database: write " + example + ", with special characters of the password percent-encoded",
		"postgres://u:hunter2@h:port/d":       "DATABASE_URL cannot be read as the address of a Postgres database: write " + example + ", with special characters of the password percent-encoded",
		"postgres://u:hunter2@[h:5432/d":      "DATABASE_URL cannot be read as the address of a Postgres database: write " + example + ", with special characters of the password percent-encoded",
		"password=hunter2 host":               "DATABASE_URL cannot be read as the address of a Postgres database: write " + example + ", with special characters of the password percent-encoded",
		"postgres://u:hunter2@h/d?sslmode=no": "DATABASE_URL cannot be read as the address of a Postgres database: write " + example + ", with special characters of the password percent-encoded",
	} {
		_, err := daemon.OpenPool(t.Context(), daemon.Secret(given), "", 2, "test")
		require.EqualError(t, err, want, given)
		requireSetting(t, err)
		require.Equal(t, err, daemon.CheckDatabaseURL(daemon.Secret(given)))
	}
}

func TestPoolActsWithTheRoleAndSettingsAskedFor(t *testing.T) {
	t.Parallel()
	s, admin := database(t)
	_, err := admin.Exec(t.Context(), "create role worker nologin; alter role postgres set synchronous_commit = off")
	require.NoError(t, err)
	pool := open(t, s.URL()+"&statement_timeout=1234", "worker", "example")
	require.EqualValues(t, 2, pool.Config().MaxConns)
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	for range 2 {
		var got [5]string
		require.NoError(t, conn.QueryRow(t.Context(), `select current_user, session_user, current_setting('synchronous_commit'),
			current_setting('statement_timeout'), current_setting('application_name')`, pgx.QueryExecModeSimpleProtocol).Scan(&got[0], &got[1], &got[2], &got[3], &got[4]))
		require.Equal(t, [5]string{"worker", "postgres", "on", "1234ms", "example"}, got)
		_, err = conn.Exec(t.Context(), "discard all", pgx.QueryExecModeSimpleProtocol) // what a pooler does must not give the administrator's rights back
		require.NoError(t, err)
	}
}

func TestRefusedConnectionIsExplainedWithoutThePassword(t *testing.T) {
	t.Parallel()
	s, admin := database(t)
	_, err := admin.Exec(t.Context(), "create role worker nologin; create role plain login password 'hunter2'")
	require.NoError(t, err)
	address := func(user, password, database string) string {
		u, err := url.Parse(s.URL())
		require.NoError(t, err)
		u.User, u.Path = url.UserPassword(user, password), database
		return u.String()
	}
	for name, c := range map[string]struct{ url, role, want string }{
		"no such role":    {s.URL(), "chargeonce_ingest", "DATABASE_URL names a database without the role chargeonce_ingest: run `migrate up` on it first"},
		"role not his":    {address("plain", "hunter2", "postgres"), "worker", "DATABASE_URL names user plain, who may not act as worker: GRANT worker TO plain, or use another user"},
		"wrong password":  {address("plain", "hunter3", "postgres"), "", `DATABASE_URL is refused by Postgres at 127.0.0.1 for user plain (password authentication failed for user "plain"): correct user or password`},
		"no such user":    {address("nobody", "hunter2", "postgres"), "", `DATABASE_URL is refused by Postgres at 127.0.0.1 for user nobody (password authentication failed for user "nobody"): correct user or password`},
		"no such db":      {address("plain", "hunter2", "billing"), "", "DATABASE_URL names database billing, which does not exist at 127.0.0.1: create it, then run `migrate up`"},
		"may not connect": {address("worker", "hunter2", "postgres"), "", `DATABASE_URL is refused by Postgres at 127.0.0.1 for user worker (password authentication failed for user "worker"): correct user or password`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := daemon.OpenPool(t.Context(), daemon.Secret(c.url), c.role, 2, "test")
			require.EqualError(t, err, c.want)
			requireSetting(t, err)
			require.NotContains(t, err.Error(), "hunter")
		})
	}
}

func TestUnreachableDatabaseNeverShowsThePassword(t *testing.T) {
	t.Parallel()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	require.NoError(t, l.Close())
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = daemon.OpenPool(ctx, daemon.Secret("postgres://someone:hunter2@"+address+"/d?sslmode=disable"), "", 2, "test")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "connection refused")
	require.ErrorContains(t, err, "someone")
	require.NotContains(t, err.Error(), "hunter2")
}

func TestDatabaseThatStartsLaterIsWaitedFor(t *testing.T) {
	t.Parallel()
	s, _ := database(t)
	require.NoError(t, s.Shutdown(t.Context()))
	opened := make(chan error, 1)
	go func() {
		pool, err := daemon.OpenPool(context.WithoutCancel(t.Context()), daemon.Secret(s.URL()), "", 2, "test")
		if err == nil {
			pool.Close()
		}
		opened <- err
	}()
	require.NoError(t, s.StartAgain(t.Context()))
	require.NoError(t, <-opened)
}

func database(t *testing.T) (*localpg.Server, *pgx.Conn) {
	t.Helper()
	s, err := localpg.Start(t.Context(), localpg.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop(context.WithoutCancel(t.Context()))) })
	conn, err := pgx.Connect(t.Context(), s.URL())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) }) // the server may be gone by then
	return s, conn
}

func open(t *testing.T, url, role, app string) *pgxpool.Pool {
	t.Helper()
	require.True(t, strings.HasPrefix(url, "postgres://"))
	pool, err := daemon.OpenPool(t.Context(), daemon.Secret(url), role, 2, app)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}
