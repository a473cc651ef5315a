// Package sql is the database: its migrations, its queries and its roles.
package sql

import (
	"context"
	"crypto/sha256"
	stdsql "database/sql"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// RiverSchema is the Postgres schema that holds River's tables.
const RiverSchema = "river"

// The roles that Migrate makes. They cannot log in: a program's own user is made a member.
const (
	RoleIngest  = "chargeonce_ingest"
	RoleCharger = "chargeonce_charger"
	RoleConsole = "chargeonce_console"
	RoleFinance = "chargeonce_finance"
	// RoleQuarantine may read the raw bytes of quarantined events; people have it, no program does.
	RoleQuarantine = "chargeonce_quarantine"
)

// migrateLock is the advisory lock (of this database) that one migration at a time holds: River's migrator takes none,
// and two at once fail half way.
const migrateLock int64 = 0x6368617267656f6e // "chargeon"

// tooManyOfOneCluster bounds the tries when another database of the cluster is being migrated at the same moment:
// granting touches catalog rows that all databases share.
const tooManyOfOneCluster = 20

//go:embed migrations/*.sql
var migrationFiles embed.FS

// ErrNotUTF8 says that the database stores text in another encoding than the billing events have.
var ErrNotUTF8 = errors.New("the database's encoding is not UTF8: create it with ENCODING 'UTF8'")

// ErrNotMigrated says that the database lacks migrations that this program was built with.
var ErrNotMigrated = errors.New("the database is not migrated: run `migrate up` with the same DATABASE_URL")

// Version is one applied or missing migration.
type Version struct {
	Line      string     `json:"line"` // "river" or "billing"
	Version   int64      `json:"version"`
	Name      string     `json:"name"`
	AppliedAt *time.Time `json:"applied_at"` // nil: missing
}

// Migrate brings the database up to this program's migrations: River's first (ours grant rights on its tables), then
// ours. It may be started several times at once, on one database and on several of one cluster. It returns the
// versions it applied.
func Migrate(ctx context.Context, databaseURL string, logger *slog.Logger) ([]Version, error) {
	config, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		return nil, fmt.Errorf("read the database URL: %w", err)
	}
	config.MaxConns = 4
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	defer pool.Close()

	// The lock is held by a connection of its own: it must survive every transaction of the migrations.
	lock, err := pgx.ConnectConfig(ctx, config.ConnConfig.Copy())
	if err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	defer func() { _ = lock.Close(context.WithoutCancel(ctx)) }()
	if err := checkEncoding(ctx, lock); err != nil {
		return nil, err
	}
	if _, err := lock.Exec(ctx, "SELECT pg_advisory_lock($1)", migrateLock); err != nil {
		return nil, fmt.Errorf("wait for the migration lock: %w", err)
	}
	for _, schema := range []string{RiverSchema, "billing"} {
		if _, err := pool.Exec(ctx, "CREATE SCHEMA IF NOT EXISTS "+pgx.Identifier{schema}.Sanitize()); err != nil {
			return nil, fmt.Errorf("create schema %s: %w", schema, err)
		}
	}
	applied, err := migrateRiver(ctx, pool, logger)
	if err != nil {
		return applied, err
	}
	ours, err := migrateBilling(ctx, pool)
	return append(applied, ours...), err
}

func checkEncoding(ctx context.Context, conn *pgx.Conn) error {
	var encoding string
	if err := conn.QueryRow(ctx, "SHOW server_encoding").Scan(&encoding); err != nil {
		return fmt.Errorf("read the database's encoding: %w", err)
	}
	if encoding != "UTF8" {
		return fmt.Errorf("%w (it is %s)", ErrNotUTF8, encoding)
	}
	return nil
}

func migrateRiver(ctx context.Context, pool *pgxpool.Pool, logger *slog.Logger) ([]Version, error) {
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Schema: RiverSchema, Logger: logger})
	if err != nil {
		return nil, fmt.Errorf("prepare River's migrations: %w", err)
	}
	result, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	if err != nil {
		return nil, fmt.Errorf("apply River's migrations: %w", err)
	}
	now := time.Now()
	applied := make([]Version, 0, len(result.Versions))
	for _, v := range result.Versions {
		applied = append(applied, Version{Line: "river", Version: int64(v.Version), Name: v.Name, AppliedAt: &now})
	}
	return applied, nil
}

func migrateBilling(ctx context.Context, pool *pgxpool.Pool) ([]Version, error) {
	db := stdlib.OpenDBFromPool(pool)
	defer func() { _ = db.Close() }()
	provider, err := newProvider(db)
	if err != nil {
		return nil, err
	}
	var applied []Version
	for try := 1; ; try++ {
		results, err := provider.Up(ctx)
		now := time.Now()
		for _, r := range results {
			if r.Error == nil {
				applied = append(applied, Version{Line: "billing", Version: r.Source.Version, Name: r.Source.Path, AppliedAt: &now})
			}
		}
		if err == nil {
			return applied, nil
		}
		if !sharedCatalogRace(err) || try == tooManyOfOneCluster {
			return applied, fmt.Errorf("apply the billing migrations: %w", err)
		}
	}
}

// sharedCatalogRace tells whether another database's migration changed the same row of a catalog that the whole
// cluster shares (roles): the failed migration was rolled back and may simply run again.
func sharedCatalogRace(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pgErr.Message == "tuple concurrently updated" || pgErr.Code == "23505" || pgErr.Code == "40P01")
}

func newProvider(db *stdsql.DB) (*goose.Provider, error) {
	files, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		return nil, fmt.Errorf("read the embedded migrations: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithTableName("billing.schema_migrations"))
	if err != nil {
		return nil, fmt.Errorf("prepare the billing migrations: %w", err)
	}
	return provider, nil
}

// Status lists every migration this program knows, in order of application.
func Status(ctx context.Context, databaseURL string, logger *slog.Logger) ([]Version, error) {
	pool, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	defer pool.Close()
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Schema: RiverSchema, Logger: logger})
	if err != nil {
		return nil, fmt.Errorf("prepare River's migrations: %w", err)
	}
	appliedRiver, err := riverVersions(ctx, pool)
	if err != nil {
		return nil, err
	}
	var versions []Version
	for _, m := range migrator.AllVersions() {
		versions = append(versions, Version{Line: "river", Version: int64(m.Version), Name: m.Name, AppliedAt: appliedRiver[int64(m.Version)]})
	}
	ours, err := billingVersions(ctx, pool)
	return append(versions, ours...), err
}

func riverVersions(ctx context.Context, pool *pgxpool.Pool) (map[int64]*time.Time, error) {
	applied, err := readApplied(ctx, pool, "SELECT version, created_at FROM river.river_migration WHERE line = 'main'")
	if err != nil {
		return nil, fmt.Errorf("read River's applied migrations: %w", err)
	}
	return applied, nil
}

// readApplied returns version and time of each row; nothing when the table is not there yet.
func readApplied(ctx context.Context, pool *pgxpool.Pool, query string) (map[int64]*time.Time, error) {
	applied := map[int64]*time.Time{}
	rows, err := pool.Query(ctx, query)
	if err == nil {
		var version int64
		var at time.Time
		_, err = pgx.ForEachRow(rows, []any{&version, &at}, func() error {
			applied[version] = new(at)
			return nil
		})
	}
	// A missing table is found when the statement is prepared, so Query itself may report it.
	if err != nil && !missing(err) {
		return nil, err
	}
	return applied, nil
}

func billingVersions(ctx context.Context, pool *pgxpool.Pool) ([]Version, error) {
	applied, err := readApplied(ctx, pool, "SELECT version_id, tstamp FROM billing.schema_migrations WHERE is_applied")
	if err != nil {
		return nil, fmt.Errorf("read the applied billing migrations: %w", err)
	}
	known, err := knownMigrations()
	if err != nil {
		return nil, err
	}
	for i := range known {
		known[i].AppliedAt = applied[known[i].Version]
	}
	return known, nil
}

func knownMigrations() ([]Version, error) {
	entries, err := fs.ReadDir(migrationFiles, "migrations")
	if err != nil {
		return nil, fmt.Errorf("read the embedded migrations: %w", err)
	}
	versions := make([]Version, 0, len(entries))
	for _, e := range entries {
		number, err := goose.NumericComponent(e.Name())
		if err != nil {
			return nil, fmt.Errorf("read the name of migration %s: %w", e.Name(), err)
		}
		versions = append(versions, Version{Line: "billing", Version: number, Name: e.Name()})
	}
	return versions, nil
}

// Check returns ErrNotMigrated when the database lacks a billing migration of this program. A database that is ahead
// is fine: the code of one release runs before and after the next one's migrations.
func Check(ctx context.Context, pool *pgxpool.Pool) error {
	known, err := knownMigrations()
	if err != nil {
		return err
	}
	var newest int64
	err = pool.QueryRow(ctx, "SELECT coalesce(max(version_id), 0) FROM billing.schema_migrations WHERE is_applied").Scan(&newest)
	if err != nil && missing(err) {
		return ErrNotMigrated
	}
	if err != nil {
		return fmt.Errorf("read the applied billing migrations: %w", err)
	}
	if want := known[len(known)-1].Version; newest < want {
		return fmt.Errorf("%w (it stands at version %d, this program needs %d)", ErrNotMigrated, newest, want)
	}
	return nil
}

// missing tells whether a table or schema does not exist, or a role has no right to look: both mean not migrated.
func missing(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pgErr.Code == "42P01" || pgErr.Code == "3F000" || pgErr.Code == "42501")
}

// Fingerprint is a hash of this program's billing migrations, for whoever keeps something made by them.
func Fingerprint() (string, error) {
	known, err := knownMigrations()
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	for _, m := range known {
		content, err := migrationFiles.ReadFile("migrations/" + m.Name)
		if err != nil {
			return "", fmt.Errorf("read migration %s: %w", m.Name, err)
		}
		_, _ = fmt.Fprintf(hash, "%s %d\n", m.Name, len(content))
		_, _ = hash.Write(content)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}
