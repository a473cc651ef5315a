//go:build cgo

package solace_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"solace.dev/go/messaging"
	client "solace.dev/go/messaging/pkg/solace"
	"solace.dev/go/messaging/pkg/solace/config"
	"solace.dev/go/messaging/pkg/solace/logging"
	"solace.dev/go/messaging/pkg/solace/resource"

	"chargeonce/ingest"
	"chargeonce/ingest/solace"
	"chargeonce/ingest/solace/solacetest"
	"chargeonce/ingest/sourcetest"
	"chargeonce/sql"
	"chargeonce/sql/sqltest"
)

const (
	queueName = "billing-events"
	topic     = "billing/events/v1"
	namespace = "usage"
	patience  = 60 * time.Second // for anything that must happen
	beat      = 20 * time.Millisecond
)

func TestMain(m *testing.M) {
	logging.SetLogOutput(io.Discard)   // the faults here make the client talk
	_ = flag.Set("test.parallel", "6") // they wait more than they work: the client sends acknowledgements after a second
	code := sqltest.Run(m)
	if code == 0 {
		// Event Hubs' SDK leaves its management link's token renewal waiting.
		err := goleak.Find(goleak.IgnoreTopFunction(
			"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2/internal.(*Namespace).startNegotiateClaimRenewer.func3"))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// bundle is a broker, a database, and a look at it as its owner.
type bundle struct {
	*solacetest.Server
	db    *sqltest.DB
	pool  *pgxpool.Pool // as the ingestor's role
	owner *pgxpool.Pool
	logs  *logBuffer
}

func setup(t *testing.T, cfg solacetest.Config) *bundle {
	t.Helper()
	b := &bundle{Server: startBroker(t, cfg), logs: &logBuffer{}}
	b.openDatabase(t)
	return b
}

func (b *bundle) openDatabase(tb testing.TB) {
	tb.Helper()
	b.db = sqltest.New(tb)
	b.pool, b.owner = b.db.Pool(tb, sql.RoleIngest), b.db.Pool(tb, "")
}

func startBroker(tb testing.TB, cfg solacetest.Config) *solacetest.Server {
	tb.Helper()
	if cfg.Queues == nil && cfg.Mate == nil {
		cfg.Queues = []solacetest.Queue{{Name: queueName, Subscriptions: []string{"billing/events/>"}}}
	}
	s, err := solacetest.Start(cfg)
	require.NoError(tb, err)
	tb.Cleanup(func() {
		require.NoError(tb, s.Close())
		require.Empty(tb, s.Violations(), "no program may start a replay, make a queue or subscribe")
	})
	return s
}

func secret(text string) func() (string, error) {
	return func() (string, error) { return text, nil }
}

// quick is a configuration whose intervals are those of tests.
func quick(s *solacetest.Server) solace.Config {
	return solace.Config{
		Hosts: s.URL(), VPN: s.VPN(), Queue: queueName, User: "ingest", Secret: secret("password"),
		ConnectTimeout: 2 * time.Second, StopGrace: time.Second, RestartDelay: 10 * time.Millisecond, MaxRestartDelay: 100 * time.Millisecond,
	}
}

func (b *bundle) recorder(t *testing.T, pool *pgxpool.Pool) *ingest.Recorder {
	t.Helper()
	recorder, err := ingest.NewRecorder(ingest.Config{
		Namespace: namespace, Source: solace.SourceName, RetryDelay: 10 * time.Millisecond, MaxRetryDelay: 100 * time.Millisecond,
	}, pool, nil, b.logger())
	require.NoError(t, err)
	require.NoError(t, recorder.Register(t.Context()))
	return recorder
}

func (b *bundle) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(b.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// running is a source that runs.
type running struct {
	*solace.Source
	registry *prometheus.Registry
	stop     func()
}

// run runs a source until stop, at the latest at the test's end.
func (b *bundle) run(t *testing.T, cfg solace.Config) *running {
	t.Helper()
	return b.runOn(t, cfg, b.pool)
}

func (b *bundle) runOn(t *testing.T, cfg solace.Config, pool *pgxpool.Pool) *running {
	t.Helper()
	registry := prometheus.NewRegistry()
	s, err := solace.New(cfg, b.recorder(t, pool), solace.NewMetrics(registry), b.logger())
	require.NoError(t, err)
	r := &running{Source: s, registry: registry, stop: runUntilTheEnd(t, s.Run)}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(b.logs.String())
		}
	})
	return r
}

// runUntilTheEnd runs until stop, at the latest at the test's end; stop returns when run has.
func runUntilTheEnd(tb testing.TB, run func(context.Context) error) (stop func()) {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			select {
			case err := <-ended:
				if err != nil {
					tb.Errorf("Run: %v", err)
				}
			case <-time.After(patience):
				tb.Error("the source did not end")
			}
		})
	}
	tb.Cleanup(stop)
	return stop
}

// metric is a value as a scraper would see it.
func (r *running) metric(t *testing.T, name string) int {
	t.Helper()
	families, err := r.registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() == "ingest_solace_"+name {
			m := family.GetMetric()[0]
			return int(m.GetCounter().GetValue() + m.GetGauge().GetValue()) // one of them is 0
		}
	}
	require.Fail(t, "there is no such metric", name)
	return 0
}

// ready waits until the source says that it works.
func (r *running) ready(t *testing.T) {
	t.Helper()
	eventually(t, func() bool { return r.Check(t.Context()) == nil }, "bound")
}

// put stores n events of customers of their own on the queue.
func (b *bundle) put(t *testing.T, name string, n int) {
	t.Helper()
	for i := range n {
		b.putBody(t, body(fmt.Sprintf("%s_%d", name, i), 100))
	}
}

func (b *bundle) putBody(t *testing.T, text string) {
	t.Helper()
	require.NoError(t, b.PublishQueue(queueName, solacetest.Message{Text: &text}))
}

func body(customer string, amount int) string {
	return fmt.Sprintf(`{"customer_id":"cus_%s","billing_period":"2026-08","amount_cents":%d}`, customer, amount)
}

// await waits until the query gives want.
func (b *bundle) await(t *testing.T, want int64, query string) {
	t.Helper()
	var got int64
	var err error
	eventually(t, func() bool {
		err = b.owner.QueryRow(t.Context(), query).Scan(&got)
		return err == nil && got == want
	}, fmt.Sprintf("%s must give %d", query, want))
}

func (b *bundle) counters(t *testing.T) ingest.Counts {
	t.Helper()
	return sourcetest.Counters(t, b.owner)
}

// queue is what the broker counts, without the messages: listing thousands of them again and again would hold it up.
func (b *bundle) queue(name string) solacetest.QueueLedger {
	for _, q := range b.Ledger(false).Queues {
		if q.Name == name {
			return q
		}
	}
	return solacetest.QueueLedger{}
}

// acked waits until the broker has the acknowledgements of n messages and nothing is left.
func (b *bundle) acked(t *testing.T, n int64) {
	t.Helper()
	ok := waitFor(t.Context(), func() bool { q := b.queue(queueName); return q.Acked == n && q.OnQueue == 0 })
	require.True(t, ok, "acknowledgements arrive: %+v, %+v", b.queue(queueName), b.Counters())
}

const (
	countIntents = "SELECT count(*) FROM billing.intents"
	countObjects = "SELECT coalesce(sum(intents + duplicates + redeliveries + conflicts + quarantined), 0)::bigint FROM billing.source_counters"
)

func eventually(t *testing.T, condition func() bool, what string) {
	t.Helper()
	require.Eventually(t, condition, patience, beat, what)
}

// publisher is the real client's, of persistent messages.
type publisher struct {
	service client.MessagingService
	client.PersistentMessagePublisher
}

func newPublisher(t *testing.T, hosts, vpn string) *publisher {
	t.Helper()
	service, err := messaging.NewMessagingServiceBuilder().FromConfigurationProvider(config.ServicePropertyMap{
		config.TransportLayerPropertyHost: hosts, config.ServicePropertyVPNName: vpn,
		config.TransportLayerPropertyReconnectionAttempts: -1,
	}).WithAuthenticationStrategy(config.BasicUserNamePasswordAuthentication("metering", "password")).Build()
	require.NoError(t, err)
	require.NoError(t, service.Connect())
	p, err := service.CreatePersistentMessagePublisherBuilder().OnBackPressureWait(1000).Build()
	require.NoError(t, err)
	require.NoError(t, p.Start())
	t.Cleanup(func() {
		_ = p.Terminate(time.Second)
		_ = service.Disconnect()
	})
	return &publisher{service, p}
}

// send returns when the broker has taken the messages: texts and bytes in turn, and bytes where the client's texts would end at a NUL.
func (p *publisher) send(t *testing.T, bodies ...string) {
	t.Helper()
	for i, text := range bodies {
		m, err := p.service.MessageBuilder().BuildWithStringPayload(text)
		if i%2 == 1 || strings.Contains(text, "\x00") {
			m, err = p.service.MessageBuilder().BuildWithByteArrayPayload([]byte(text))
		}
		require.NoError(t, err)
		require.NoError(t, p.PublishAwaitAcknowledgement(m, resource.TopicOf(topic), patience, nil))
	}
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
