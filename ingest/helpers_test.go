package ingest_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"chargeonce/ingest"
	"chargeonce/ingest/sourcetest"
	"chargeonce/sql"
	"chargeonce/sql/sqltest"
)

const namespace = "usage"

// bundle is a recorder as an ingestor has it, and a look at everything as the database's owner.
type bundle struct {
	*ingest.Recorder
	owner *pgxpool.Pool
	logs  *logBuffer
}

func setup(t *testing.T) *bundle {
	t.Helper()
	db := sqltest.New(t)
	return newBundle(t, db.Pool(t, sql.RoleIngest), db.Pool(t, ""))
}

func newBundle(t *testing.T, pool, owner *pgxpool.Pool) *bundle {
	t.Helper()
	b := &bundle{owner: owner, logs: &logBuffer{}}
	b.Recorder = newRecorder(t, pool, b.logs, ingest.Config{})
	require.NoError(t, b.Register(t.Context()))
	return b
}

func newRecorder(t *testing.T, pool *pgxpool.Pool, logs io.Writer, cfg ingest.Config) *ingest.Recorder {
	t.Helper()
	if cfg.Namespace == "" {
		cfg.Namespace = namespace
	}
	if cfg.Source == "" {
		cfg.Source = "test"
	}
	cfg.RetryDelay, cfg.MaxRetryDelay = 10*time.Millisecond, 100*time.Millisecond
	r, err := ingest.NewRecorder(cfg, pool, nil, slog.New(slog.NewTextHandler(logs, nil)))
	require.NoError(t, err)
	return r
}

func (b *bundle) record(t *testing.T, deliveries ...ingest.Delivery) ingest.Counts {
	t.Helper()
	counts, err := b.Record(t.Context(), deliveries, nil)
	require.NoError(t, err)
	return counts
}

// number is the one number that a query gives.
func (b *bundle) number(t *testing.T, query string, args ...any) int64 {
	t.Helper()
	var n int64
	require.NoError(t, b.owner.QueryRow(t.Context(), query, args...).Scan(&n))
	return n
}

// counters are the durable ones, over all partitions.
func (b *bundle) counters(t *testing.T) ingest.Counts {
	t.Helper()
	return sourcetest.Counters(t, b.owner)
}

func body(customer string, amount int) string {
	return fmt.Sprintf(`{"customer_id":"cus_%s","billing_period":"2026-08","amount_cents":%d}`, customer, amount)
}

func at(position, body string) ingest.Delivery {
	return ingest.Delivery{Partition: "0", Position: position, Body: []byte(body)}
}

// logBuffer keeps what was logged.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }
