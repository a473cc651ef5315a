package sql_test

import (
	"context"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// runner is a pool, a connection or a transaction.
type runner interface {
	Exec(ctx context.Context, statement string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, statement string, args ...any) pgx.Row
}

func mustExec(t *testing.T, db runner, statement string, args ...any) {
	t.Helper()
	_, err := db.Exec(t.Context(), statement, args...)
	require.NoError(t, err, statement)
}

func one[T any](t *testing.T, db runner, query string, args ...any) T {
	t.Helper()
	var value T
	require.NoError(t, db.QueryRow(t.Context(), query, args...).Scan(&value), query)
	return value
}

func count(t *testing.T, db runner, query string, args ...any) int64 {
	t.Helper()
	return one[int64](t, db, query, args...)
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

func readFile(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path) //nolint:gosec // a file of this package
	require.NoError(t, err)
	return string(content)
}
