// Package sourcetest is the one suite that every source of billing events passes, on its real client and on real Postgres.
package sourcetest

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"chargeonce/ingest"
	"chargeonce/sql"
	"chargeonce/sql/sqltest"
)

// Run runs the suite. newBroker makes an empty broker, for one test, whose source records under the given name.
func Run(t *testing.T, source string, newBroker func(t *testing.T) Broker) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, *harness){
		"EachEventOnce":                    eachEventOnce,
		"RedeliveredEventsAddNothing":      redeliveredEventsAddNothing,
		"PoisonInTheMiddle":                poisonInTheMiddle,
		"StoppedAndStartedAgain":           stoppedAndStartedAgain,
		"CrashBetweenCommitAndCheckpoint":  crashBetweenCommitAndCheckpoint,
		"AnswerToCommitLost":               answerToCommitLost,
		"DatabaseAwayForAWhile":            databaseAwayForAWhile,
		"StopWhileTheDatabaseIsAway":       stopWhileTheDatabaseIsAway,
		"NothingIsPassedOverWhenItIsAway":  nothingIsPassedOver,
		"TwoReadersAtOnceRecordEachOnce":   twoReadersAtOnce,
		"ObjectThatTheDatabaseRefusesOnly": refusedObject,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newHarness(t, source, newBroker(t)))
		})
	}
}

// Broker is a broker and the source that reads it.
type Broker interface {
	// Publish hands messages to the broker, and returns when it has taken them.
	Publish(t *testing.T, bodies ...string)
	// Redeliver makes the broker deliver everything again, as after a lost checkpoint or acknowledgement. No source runs.
	Redeliver(t *testing.T, owner *pgxpool.Pool)
	// RunSource reads the broker until ctx ends, and then ends within 10 s, whatever state the database is in.
	RunSource(ctx context.Context, recorder *ingest.Recorder, pool *pgxpool.Pool, logger *slog.Logger) error
}

// Timeless is implemented by brokers whose messages carry no time of their own, as the lines of a file. Of their intents the suite asks
// that no time is made up, instead of that each has one.
type Timeless interface{ Timeless() }

const (
	namespace = "usage"
	// patience is for anything that must happen.
	patience = 60 * time.Second
	beat     = 20 * time.Millisecond
)

type harness struct {
	Broker
	source string
	db     *sqltest.DB
	owner  *pgxpool.Pool
	pool   *pgxpool.Pool // as the ingestor's role, by way of the proxy
	proxy  *Proxy
	logs   *logBuffer
}

func newHarness(t *testing.T, source string, broker Broker) *harness {
	t.Helper()
	db := sqltest.New(t)
	url, proxy := Through(t, db.As(sql.RoleIngest))
	config, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	config.ConnConfig.ConnectTimeout = patience / 2
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	h := &harness{Broker: broker, source: source, db: db, owner: db.Pool(t, ""), pool: pool, proxy: proxy, logs: &logBuffer{}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(h.logs.String())
		}
	})
	return h
}

// start runs the source until stop, which returns once it has ended.
func (h *harness) start(t *testing.T) (stop func()) {
	t.Helper()
	logger := slog.New(slog.NewTextHandler(h.logs, nil))
	recorder, err := ingest.NewRecorder(ingest.Config{
		Namespace: namespace, Source: h.source, RetryDelay: 10 * time.Millisecond, MaxRetryDelay: 200 * time.Millisecond,
		AttemptTimeout: 2 * time.Second,
	}, h.pool, nil, logger)
	require.NoError(t, err)
	require.NoError(t, recorder.Register(t.Context()))
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- h.RunSource(ctx, recorder, h.pool, logger) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			select {
			case err := <-ended:
				if err != nil {
					t.Errorf("the source ended with: %v", err)
				}
			case <-time.After(patience):
				t.Error("the source did not end")
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

func (h *harness) await(t *testing.T, want int64, query string) {
	t.Helper()
	var got int64
	var err error
	require.Eventually(t, func() bool {
		got, err = h.number(t.Context(), query)
		return err == nil && got == want
	}, patience, beat, "%s must give %d", query, want)
}

func (h *harness) number(ctx context.Context, query string) (int64, error) {
	var n int64
	err := h.owner.QueryRow(ctx, query).Scan(&n)
	return n, err
}

func (h *harness) counters(t *testing.T) ingest.Counts {
	t.Helper()
	return Counters(t, h.owner)
}

// Counters are the durable ones, over all namespaces, sources and partitions.
func Counters(t *testing.T, owner *pgxpool.Pool) ingest.Counts {
	t.Helper()
	var c ingest.Counts
	err := owner.QueryRow(t.Context(), `SELECT coalesce(sum(intents), 0), coalesce(sum(duplicates), 0), coalesce(sum(redeliveries), 0),
		coalesce(sum(conflicts), 0), coalesce(sum(quarantined), 0) FROM billing.source_counters`).
		Scan(&c.Intents, &c.Duplicates, &c.Redeliveries, &c.Conflicts, &c.Quarantined)
	require.NoError(t, err)
	return c
}

const (
	intents  = "SELECT count(*) FROM billing.intents"
	objects  = "SELECT coalesce(sum(intents + duplicates + redeliveries + conflicts + quarantined), 0)::bigint FROM billing.source_counters"
	distinct = "SELECT count(DISTINCT customer_id) FROM billing.intents"
)

// bodies are n events of customers of their own.
func bodies(name string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = body(fmt.Sprintf("%s_%d", name, i), 100)
	}
	return all
}

func body(customer string, amount int) string {
	return fmt.Sprintf(`{"customer_id":"cus_%s","billing_period":"2026-08","amount_cents":%d}`, customer, amount)
}
