// Package sqltest gives every test a migrated Postgres database of its own.
//
// A package that uses it starts with
//
//	func TestMain(m *testing.M) { sqltest.Main(m) }
//
// The server is the one of TEST_DATABASE_URL, else one that the package starts for itself; where neither works the
// tests fail, they are never skipped. Every database is cloned from a template that is migrated once per server.
package sqltest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"runtime/debug"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"chargeonce/deploy/localpg"
	"chargeonce/sql"
)

// templateLock is the advisory lock, in the server's maintenance database, under which templates are made.
const templateLock int64 = 0x73716c74657374 // "sqltest"

// DB is one test's own database.
type DB struct {
	URL  string // as the owner of everything
	Name string
}

// server is this process's Postgres: made by the first test that asks.
type server struct {
	once  sync.Once
	admin string // URL of the maintenance database
	local *localpg.Server
	err   error
}

// shared is the one piece of state that outlives a test: starting a Postgres per test would cost seconds each.
var shared server //nolint:gochecknoglobals // see above

// Main runs the package's tests, stops the server that they started, and exits with the tests' code.
func Main(m *testing.M) {
	os.Exit(Run(m))
}

// Run is Main for a package whose TestMain has more to do: it returns the tests' exit code.
func Run(m *testing.M) int {
	code := m.Run()
	if shared.local != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := shared.local.Stop(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "sqltest: stop Postgres:", err)
			return max(code, 1)
		}
	}
	return code
}

// New makes the test's own migrated database and drops it at the test's end, unless the test failed: then it is left
// on a given server, and its URL is logged.
func New(tb testing.TB) *DB {
	tb.Helper()
	copied, err := templateOf(tb.Context())
	require.NoError(tb, err, "a migrated template database")
	return create(tb, copied)
}

// NewEmpty makes the test's own database without any migration.
func NewEmpty(tb testing.TB) *DB {
	tb.Helper()
	return create(tb, "TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'")
}

// NewWithOptions makes the test's own database with the given options of CREATE DATABASE.
func NewWithOptions(tb testing.TB, options string) *DB {
	tb.Helper()
	return create(tb, options)
}

func create(tb testing.TB, options string) *DB {
	tb.Helper()
	admin, err := Server(tb.Context())
	require.NoError(tb, err, "a Postgres server for tests")
	name := fmt.Sprintf("test_%s_%d", shortHash(tb.Name()), time.Now().UnixNano())
	require.NoError(tb, execRetrying(tb.Context(), admin, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()+" "+options))
	db := &DB{Name: name, URL: withDatabase(admin, name)}
	tb.Cleanup(func() {
		if tb.Failed() && os.Getenv("TEST_DATABASE_URL") != "" {
			tb.Logf("the test's database is left: %s", name)
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), 30*time.Second)
		defer cancel()
		if err := execRetrying(ctx, admin, "DROP DATABASE IF EXISTS "+pgx.Identifier{name}.Sanitize()+" WITH (FORCE)"); err != nil {
			tb.Logf("drop the test's database: %v", err)
		}
	})
	return db
}

// As returns the database's URL under one of the product's roles, with that role's rights and no more.
func (db *DB) As(role string) string {
	u, err := url.Parse(db.URL)
	if err != nil {
		panic("internal error: sqltest made a bad URL: " + err.Error())
	}
	q := u.Query()
	q.Set("role", role)
	u.RawQuery = q.Encode()
	return u.String()
}

// Pool opens a pool under the role ("" is the owner) that closes with the test.
func (db *DB) Pool(tb testing.TB, role string) *pgxpool.Pool {
	tb.Helper()
	databaseURL := db.URL
	if role != "" {
		databaseURL = db.As(role)
	}
	config, err := pgxpool.ParseConfig(databaseURL)
	require.NoError(tb, err)
	config.MaxConns = 20
	pool, err := pgxpool.NewWithConfig(tb.Context(), config)
	require.NoError(tb, err)
	tb.Cleanup(func() {
		// A test that fails inside a transaction keeps its connection, and Close would wait for that until the whole package times out.
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			pool.Close()
		}()
		select {
		case <-closed:
		case <-time.After(closeWithin):
			tb.Error("a connection of the pool was not given back")
		}
	})
	return pool
}

// closeWithin is how long connections in use may take to be given back at a test's end.
const closeWithin = 30 * time.Second

// Server returns the URL of the maintenance database of the tests' server, and starts one if none is given.
func Server(ctx context.Context) (string, error) {
	shared.once.Do(func() {
		if given := os.Getenv("TEST_DATABASE_URL"); given != "" {
			shared.admin = given
			return
		}
		// The server outlives the test that happens to start it.
		local, err := localpg.Start(context.WithoutCancel(ctx), localpg.Config{})
		if err != nil {
			shared.err = err
			return
		}
		shared.local, shared.admin = local, local.URL()
	})
	return shared.admin, shared.err
}

// templateOf returns the options that copy the migrated template, and makes it if this server has none yet for this program's
// migrations. Another process may want it at the same moment: one makes it, under a lock.
func templateOf(ctx context.Context) (string, error) {
	admin, err := Server(ctx)
	if err != nil {
		return "", err
	}
	fingerprint, err := sql.Fingerprint()
	if err != nil {
		return "", err
	}
	name := "chargeonce_template_" + shortHash(fingerprint+riverVersion())
	conn, err := pgx.Connect(ctx, admin)
	if err != nil {
		return "", fmt.Errorf("connect to the tests' server: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", templateLock); err != nil {
		return "", fmt.Errorf("wait for the template's lock: %w", err)
	}
	var ready, picks bool
	if err := conn.QueryRow(ctx, "SELECT coalesce((SELECT datistemplate FROM pg_database WHERE datname = $1), false), current_setting('server_version_num')::int >= 150000",
		name).Scan(&ready, &picks); err != nil {
		return "", fmt.Errorf("look for the template: %w", err)
	}
	quoted := pgx.Identifier{name}.Sanitize()
	options := "TEMPLATE " + quoted
	if picks { // which Postgres 15 learnt: page by page, its default, takes two to three times as long
		options += " STRATEGY file_copy"
	}
	if ready {
		return options, nil
	}
	// A template that is not marked as one was left half made by a process that died.
	for _, statement := range []string{
		"DROP DATABASE IF EXISTS " + quoted + " WITH (FORCE)",
		"CREATE DATABASE " + quoted + " TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'",
	} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return "", fmt.Errorf("make the template: %w", err)
		}
	}
	if _, err := sql.Migrate(ctx, withDatabase(admin, name), slog.New(slog.DiscardHandler)); err != nil {
		return "", fmt.Errorf("migrate the template: %w", err)
	}
	if _, err := conn.Exec(ctx, "ALTER DATABASE "+quoted+" IS_TEMPLATE true"); err != nil {
		return "", fmt.Errorf("mark the template: %w", err)
	}
	return options, nil
}

// execRetrying runs one statement on a connection of its own. CREATE DATABASE refuses a template that somebody is
// connected to, and autovacuum is somebody.
func execRetrying(ctx context.Context, databaseURL, statement string) error {
	const tries, pause = 50, 100 * time.Millisecond
	for try := 1; ; try++ {
		err := exec(ctx, databaseURL, statement)
		pgErr, ok := errors.AsType[*pgconn.PgError](err)
		if err == nil || !ok || pgErr.Code != "55006" || try == tries {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

func exec(ctx context.Context, databaseURL, statement string) error {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return fmt.Errorf("connect to the tests' server: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, statement); err != nil {
		return fmt.Errorf("run %q: %w", statement, err)
	}
	return nil
}

func withDatabase(databaseURL, name string) string {
	u, err := url.Parse(databaseURL)
	if err != nil {
		panic("TEST_DATABASE_URL must be a URL (postgres://user:password@host:port/database): " + err.Error())
	}
	u.Path = "/" + name
	return u.String()
}

// riverVersion is part of the template's name: another River may bring other tables.
func riverVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, m := range info.Deps {
		if m.Path == "github.com/riverqueue/river" {
			return m.Version + m.Sum
		}
	}
	return ""
}

func shortHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:5])
}
