package sql_test

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"chargeonce/sql"
	"chargeonce/sql/sqltest"
)

func TestMigrateSeveralAtOnceOnOneDatabaseDoNotMeet(t *testing.T) {
	t.Parallel()
	const rounds, atOnce = 10, 4
	for round := range rounds {
		t.Run(strconv.Itoa(round), func(t *testing.T) {
			t.Parallel()
			db := sqltest.NewEmpty(t)
			applied := make([]int, atOnce)
			group, ctx := errgroup.WithContext(t.Context())
			for i := range atOnce {
				group.Go(func() error {
					versions, err := sql.Migrate(ctx, db.URL, discard())
					applied[i] = len(versions)
					return err
				})
			}
			require.NoError(t, group.Wait())
			sum := 0
			for _, n := range applied {
				sum += n
			}
			require.Len(t, status(t, db), sum, "each version is applied by exactly one of them: %v", applied)
			requireMigrated(t, db)
		})
	}
}

func TestMigrateSeveralDatabasesOfOneClusterAtOnce(t *testing.T) {
	t.Parallel()
	const databases = 6
	group, ctx := errgroup.WithContext(t.Context())
	dbs := make([]*sqltest.DB, databases)
	for i := range dbs {
		dbs[i] = sqltest.NewEmpty(t)
	}
	for _, db := range dbs {
		group.Go(func() error {
			_, err := sql.Migrate(ctx, db.URL, discard())
			return err
		})
	}
	require.NoError(t, group.Wait())
	for _, db := range dbs {
		requireMigrated(t, db)
	}
}

// Managed servers give nobody a superuser, and some do not even let the owner of a database make roles.
func TestMigrateAsAnOwnerWhoMayNotMakeRoles(t *testing.T) {
	t.Parallel()
	sqltest.New(t) // the server's roles exist from here on
	db := sqltest.NewEmpty(t)
	admin := db.Pool(t, "")
	owner := "owner_of_" + db.Name
	mustExec(t, admin, "CREATE ROLE "+quote(owner)+" NOLOGIN NOSUPERUSER NOCREATEROLE")
	mustExec(t, admin, "ALTER DATABASE "+quote(db.Name)+" OWNER TO "+quote(owner))
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		conn, err := pgx.Connect(ctx, db.URL)
		if err != nil {
			t.Errorf("connect to drop the owner: %v", err)
			return
		}
		defer func() { _ = conn.Close(ctx) }()
		for _, statement := range []string{
			"REASSIGN OWNED BY " + quote(owner) + " TO CURRENT_USER", "DROP OWNED BY " + quote(owner), "DROP ROLE " + quote(owner),
		} {
			if _, err := conn.Exec(ctx, statement); err != nil {
				t.Errorf("%s: %v", statement, err)
			}
		}
	})
	_, err := sql.Migrate(t.Context(), db.As(owner), discard())
	require.NoError(t, err)
	requireMigrated(t, db)
	// The rights were given by that owner, and hold.
	_, err = db.Pool(t, sql.RoleFinance).Exec(t.Context(), "SELECT * FROM finance.period_summary")
	require.NoError(t, err)
}

func TestMigrateRefusesADatabaseThatIsNotUTF8(t *testing.T) {
	t.Parallel()
	db := sqltest.NewWithOptions(t, "TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'")
	applied, err := sql.Migrate(t.Context(), db.URL, discard())
	require.ErrorIs(t, err, sql.ErrNotUTF8)
	require.ErrorContains(t, err, "SQL_ASCII")
	require.Empty(t, applied)
	require.Zero(t, count(t, db.Pool(t, ""), "SELECT count(*) FROM pg_namespace WHERE nspname IN ('river', 'billing')"), "nothing was touched")
}

func TestStatusBeforeAndAfter(t *testing.T) {
	t.Parallel()
	db := sqltest.NewEmpty(t)
	before := status(t, db)
	require.NotEmpty(t, before)
	for _, v := range before {
		require.Nil(t, v.AppliedAt, "%s %d", v.Line, v.Version)
	}
	applied, err := sql.Migrate(t.Context(), db.URL, discard())
	require.NoError(t, err)
	after := status(t, db)
	require.Len(t, after, len(before))
	require.Len(t, applied, len(after))
	lines := map[string]bool{}
	for i, v := range after {
		require.NotNil(t, v.AppliedAt, "%s %d", v.Line, v.Version)
		require.Equal(t, [2]any{v.Line, v.Version}, [2]any{applied[i].Line, applied[i].Version}, "applied in the order of the list")
		require.Equal(t, v.Name, applied[i].Name)
		lines[v.Line] = true
	}
	require.Equal(t, map[string]bool{"river": true, "billing": true}, lines)
}

func TestMigrateAgainAppliesNothing(t *testing.T) {
	t.Parallel()
	db := sqltest.New(t)
	before := status(t, db)
	applied, err := sql.Migrate(t.Context(), db.URL, discard())
	require.NoError(t, err)
	require.Empty(t, applied)
	require.Equal(t, before, status(t, db))
}

func TestMigrateCompletesWhatWasHalfApplied(t *testing.T) {
	t.Parallel()
	for _, riverSteps := range []int{3, 0} { // 0: all of River's, none of ours
		t.Run(fmt.Sprintf("after %d of River's", riverSteps), func(t *testing.T) {
			t.Parallel()
			db := sqltest.NewEmpty(t)
			pool := db.Pool(t, "")
			mustExec(t, pool, "CREATE SCHEMA river")
			migrator := riverMigrator(t, pool)
			first, err := migrator.Migrate(t.Context(), rivermigrate.DirectionUp, &rivermigrate.MigrateOpts{MaxSteps: riverSteps})
			require.NoError(t, err)
			require.ErrorIs(t, sql.Check(t.Context(), pool), sql.ErrNotMigrated)
			applied, err := sql.Migrate(t.Context(), db.URL, discard())
			require.NoError(t, err)
			require.Len(t, applied, len(status(t, db))-len(first.Versions), "only what was missing")
			requireMigrated(t, db)
		})
	}
}

func TestCheckNamesAnUnmigratedDatabase(t *testing.T) {
	t.Parallel()
	empty := sqltest.NewEmpty(t)
	require.ErrorIs(t, sql.Check(t.Context(), empty.Pool(t, "")), sql.ErrNotMigrated)

	migrated := sqltest.New(t)
	owner := migrated.Pool(t, "")
	require.NoError(t, sql.Check(t.Context(), owner))
	for _, role := range []string{sql.RoleIngest, sql.RoleCharger, sql.RoleConsole} {
		require.NoError(t, sql.Check(t.Context(), migrated.Pool(t, role)), role)
	}
	// pg_monitor has no right here at all: it cannot even tell whether the table exists.
	require.ErrorIs(t, sql.Check(t.Context(), migrated.Pool(t, "pg_monitor")), sql.ErrNotMigrated)

	mustExec(t, owner, "INSERT INTO billing.schema_migrations (version_id, is_applied) VALUES (99999, true)")
	require.NoError(t, sql.Check(t.Context(), owner), "a database that is ahead is fine")
	applied, err := sql.Migrate(t.Context(), migrated.URL, discard())
	require.NoError(t, err, "and so is an older release's migrate, run again")
	require.Empty(t, applied)
	mustExec(t, owner, "DELETE FROM billing.schema_migrations WHERE version_id >= 3")
	err = sql.Check(t.Context(), owner)
	require.ErrorIs(t, err, sql.ErrNotMigrated)
	require.ErrorContains(t, err, "stands at version 2")
}

// The stub is what sqlc believes about tables that are not ours.
func TestStubMatchesTheMigratedDatabase(t *testing.T) {
	t.Parallel()
	migrated, stub := sqltest.New(t), sqltest.NewEmpty(t)
	mustExec(t, stub.Pool(t, ""), readFile(t, "stub/river.sql"))
	want, got := columnsOf(t, stub.Pool(t, "")), columnsOf(t, migrated.Pool(t, ""))
	require.NotEmpty(t, want)
	for name, column := range want {
		require.Equal(t, column, got[name], "column %s", name)
	}
	for name := range got {
		// River's SQLite twin of pg_notify is not used here, and no query of ours may.
		require.True(t, want[name] != "" || name == "" || isForeignTable(name), "the stub lacks column %s", name)
	}
	const labels = "SELECT array_agg(enumlabel::text ORDER BY enumlabel) FROM pg_enum WHERE enumtypid = 'river.river_job_state'::regtype"
	require.Equal(t, one[[]string](t, stub.Pool(t, ""), labels), one[[]string](t, migrated.Pool(t, ""), labels))
	for _, pool := range []*pgxpool.Pool{stub.Pool(t, ""), migrated.Pool(t, "")} {
		require.NotNil(t, one[*string](t, pool, "SELECT to_regclass('river.river_job_id_seq')::text"))
	}
}

func columnsOf(t *testing.T, pool *pgxpool.Pool) map[string]string {
	t.Helper()
	rows, err := pool.Query(t.Context(), `
		SELECT c.relname || '.' || a.attname, format_type(a.atttypid, a.atttypmod) || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END
		FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
		WHERE c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
		  AND (c.relnamespace = 'river'::regnamespace OR c.oid = 'billing.schema_migrations'::regclass)`)
	require.NoError(t, err)
	columns := map[string]string{}
	var name, column string
	_, err = pgx.ForEachRow(rows, []any{&name, &column}, func() error {
		columns[name] = column
		return nil
	})
	require.NoError(t, err)
	return columns
}

func isForeignTable(column string) bool {
	return len(column) > len("river_notification.") && column[:len("river_notification.")] == "river_notification."
}

func requireMigrated(t *testing.T, db *sqltest.DB) {
	t.Helper()
	pool := db.Pool(t, "")
	require.NoError(t, sql.Check(t.Context(), pool))
	result, err := riverMigrator(t, pool).Validate(t.Context(), nil)
	require.NoError(t, err)
	require.True(t, result.OK, "%v", result.Messages)
	for _, v := range status(t, db) {
		require.NotNil(t, v.AppliedAt, "%s %d", v.Line, v.Version)
	}
}

func riverMigrator(t *testing.T, pool *pgxpool.Pool) *rivermigrate.Migrator[pgx.Tx] {
	t.Helper()
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Schema: sql.RiverSchema, Logger: discard()})
	require.NoError(t, err)
	return migrator
}

func status(t *testing.T, db *sqltest.DB) []sql.Version {
	t.Helper()
	versions, err := sql.Status(t.Context(), db.URL, discard())
	require.NoError(t, err)
	return versions
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }
