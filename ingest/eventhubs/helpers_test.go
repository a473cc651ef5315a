package eventhubs_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"chargeonce/ingest"
	"chargeonce/ingest/eventhubs"
	"chargeonce/ingest/eventhubs/eventhubstest"
	"chargeonce/ingest/sourcetest"
	"chargeonce/sql"
	"chargeonce/sql/sqltest"
)

const (
	hubName   = "billing"
	namespace = "usage"
	patience  = 30 * time.Second // for anything that must happen
	beat      = 20 * time.Millisecond
)

// The one leak that is let pass is the SDK's: ConsumerClient.Close leaves its management link's token renewal waiting.
func TestMain(m *testing.M) {
	code := sqltest.Run(m)
	if code == 0 {
		err := goleak.Find(goleak.IgnoreTopFunction(
			"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2/internal.(*Namespace).startNegotiateClaimRenewer.func3"))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// bundle is a hub, a database, and a look at it as its owner.
type bundle struct {
	hub   *eventhubstest.Server
	db    *sqltest.DB
	pool  *pgxpool.Pool // as the ingestor's role
	owner *pgxpool.Pool
	logs  *logBuffer

	metrics map[*eventhubs.Source]*prometheus.Registry
}

func setup(t *testing.T, partitions int) *bundle {
	t.Helper()
	b := setupOn(t, nil)
	b.startHub(t, partitions)
	return b
}

// setupOn makes a database of its own beside a hub that is there.
func setupOn(t *testing.T, hub *eventhubstest.Server) *bundle {
	t.Helper()
	db := sqltest.New(t)
	return &bundle{hub: hub, db: db, pool: db.Pool(t, sql.RoleIngest), owner: db.Pool(t, ""), logs: &logBuffer{}}
}

// behindProxy is the same hub and database, for a process that reaches the database by way of a proxy, on no more connections than the
// program has for ownerships.
func (b *bundle) behindProxy(t *testing.T) (*bundle, *sourcetest.Proxy) {
	t.Helper()
	url, proxy := sourcetest.Through(t, b.db.As(sql.RoleIngest))
	config, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	config.MaxConns = 3
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return &bundle{hub: b.hub, db: b.db, pool: pool, owner: b.owner, logs: &logBuffer{}}, proxy
}

func (b *bundle) startHub(t *testing.T, partitions int) {
	t.Helper()
	var err error
	b.hub, err = eventhubstest.Start(eventhubstest.Config{Hubs: []eventhubstest.Hub{{Name: hubName, Partitions: partitions}}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.hub.Close()) })
}

// quick is a configuration whose intervals are those of tests.
func (b *bundle) quick() eventhubs.Config {
	return eventhubs.Config{
		ConnectionString: b.hub.ConnectionString(""), Hub: hubName, ConsumerGroup: "$Default",
		UpdateInterval: 200 * time.Millisecond, OwnershipExpiry: 3 * time.Second, StrandedAfter: 3 * time.Second,
		LookInterval: 300 * time.Millisecond, RestartDelay: 50 * time.Millisecond, StoreTimeout: time.Second,
	}
}

func (b *bundle) source(t *testing.T, cfg eventhubs.Config) *eventhubs.Source {
	t.Helper()
	logger := slog.New(slog.NewTextHandler(b.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	recorder, err := ingest.NewRecorder(ingest.Config{
		Namespace: namespace, Source: eventhubs.SourceName, RetryDelay: 10 * time.Millisecond, MaxRetryDelay: 100 * time.Millisecond,
	}, b.pool, nil, logger)
	require.NoError(t, err)
	require.NoError(t, recorder.Register(t.Context()))
	registry := prometheus.NewRegistry()
	s, err := eventhubs.New(cfg, recorder, b.pool, eventhubs.NewMetrics(registry), logger)
	require.NoError(t, err)
	if b.metrics == nil {
		b.metrics = map[*eventhubs.Source]*prometheus.Registry{}
	}
	b.metrics[s] = registry
	return s
}

// metric is a value as a scraper would see it; of one partition where the metric has them. False when it is not there.
func (b *bundle) metric(t *testing.T, s *eventhubs.Source, name, partition string) (value float64, there bool) {
	t.Helper()
	families, err := b.metrics[s].Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() != "ingest_eventhub_"+name {
			continue
		}
		for _, m := range family.GetMetric() {
			if labels := m.GetLabel(); len(labels) > 0 && labels[0].GetValue() != partition {
				continue
			}
			return m.GetCounter().GetValue() + m.GetGauge().GetValue(), true // one of them is 0
		}
	}
	return 0, false
}

// count is a metric without partitions.
func (b *bundle) count(t *testing.T, s *eventhubs.Source, name string) int {
	t.Helper()
	value, there := b.metric(t, s, name, "")
	require.True(t, there, name)
	return int(value)
}

// run runs a source until stop is called, at the latest at the test's end; stop returns when Run has.
func (b *bundle) run(t *testing.T, cfg eventhubs.Config) (s *eventhubs.Source, stop func()) {
	t.Helper()
	s = b.source(t, cfg)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() {
		if err := s.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(func() {
		stop()
		if t.Failed() {
			t.Log(b.logs.String())
		}
	})
	return s, stop
}

// publish stores events of n customers in a partition, from the one numbered from.
func (b *bundle) publish(t *testing.T, partition string, from, n int) {
	t.Helper()
	for i := from; i < from+n; i++ {
		_, err := b.hub.Publish(hubName, partition, []byte(body(partition+"-"+fmt.Sprint(i), 100+i)), nil)
		require.NoError(t, err)
	}
}

func body(customer string, amount int) string {
	return fmt.Sprintf(`{"customer_id":"cus_%s","billing_period":"2026-08","amount_cents":%d}`, customer, amount)
}

func (b *bundle) number(t *testing.T, query string) int64 {
	t.Helper()
	n, err := b.tryNumber(t.Context(), query)
	require.NoError(t, err)
	return n
}

func (b *bundle) tryNumber(ctx context.Context, query string) (int64, error) {
	var n int64
	err := b.owner.QueryRow(ctx, query).Scan(&n)
	return n, err
}

// await waits until the query gives want.
func (b *bundle) await(t *testing.T, want int64, query string) {
	t.Helper()
	var last int64
	var err error
	ok := waitFor(t.Context(), func() bool {
		last, err = b.tryNumber(t.Context(), query)
		return err == nil && last == want
	})
	require.True(t, ok, "%s: last %d, %v, want %d", query, last, err, want)
}

func (b *bundle) awaitLog(t *testing.T, words string) {
	t.Helper()
	require.True(t, waitFor(t.Context(), func() bool { return strings.Contains(b.logs.String(), words) }), words)
}

// waitFor polls until the condition holds; false when patience is at its end.
func waitFor(ctx context.Context, condition func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for !condition() {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return true
}

const (
	countIntents    = "SELECT count(*) FROM billing.intents"
	sumOfSequences  = "SELECT coalesce(sum(sequence_number + 1), 0) FROM billing.eventhub_checkpoints"
	countQuarantine = "SELECT count(*) FROM billing.quarantined_events"
	countOwned      = "SELECT count(*) FROM billing.eventhub_ownership WHERE owner_id <> ''"
	sumOfRenewals   = "SELECT coalesce(sum(etag), 0)::bigint FROM billing.eventhub_ownership"
)

func (b *bundle) counters(t *testing.T) ingest.Counts {
	t.Helper()
	return sourcetest.Counters(t, b.owner)
}

func (b *bundle) consumer(t *testing.T) *azeventhubs.ConsumerClient {
	t.Helper()
	c, err := azeventhubs.NewConsumerClientFromConnectionString(b.hub.ConnectionString(hubName), "", "$default", nil)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Second)
		defer cancel()
		_ = c.Close(ctx)
	})
	return c
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

// epoch is how the SDK's Processor opens a partition.
func epoch(level int64) *azeventhubs.PartitionClientOptions {
	return &azeventhubs.PartitionClientOptions{
		OwnerLevel: &level, StartPosition: azeventhubs.StartPosition{Earliest: new(true)},
	}
}
