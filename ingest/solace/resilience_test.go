//go:build cgo

package solace_test

import (
	"context"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"chargeonce/ingest"
	"chargeonce/ingest/solace"
	"chargeonce/ingest/solace/solacetest"
	"chargeonce/ingest/sourcetest"
	"chargeonce/sql"
)

// panicker panics in the middle of a transaction, the first few times.
type panicker struct {
	left atomic.Int32
}

func (p *panicker) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.Contains(data.SQL, "INSERT INTO billing.intents") && p.left.Add(-1) >= 0 {
		panic("a message's text: topsecret")
	}
	return ctx
}

func (*panicker) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestPanicWhileRecordingCostsASessionAndNoMessage(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{})
	config, err := pgxpool.ParseConfig(b.db.As(sql.RoleIngest))
	require.NoError(t, err)
	p := &panicker{}
	p.left.Store(3)
	config.ConnConfig.Tracer = p
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	b.put(t, "a", 50)
	r := b.runOn(t, quick(b.Server), pool)
	b.acked(t, 50)
	require.EqualValues(t, 50, b.counters(t).Intents)
	require.Equal(t, 3, r.metric(t, "panics_total"))
	require.NotContains(t, b.logs.String(), "topsecret")
	b.recovers(t, r, 50, 10)
}

func TestProbeSaysWhatWaitingDoesNotMend(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{Users: map[string]string{"ingest": "password"}})
	for title, test := range map[string]struct {
		change func(*solace.Config)
		want   error
	}{
		"password":     {func(c *solace.Config) { c.Secret = secret("wrong") }, solace.ErrUnauthorized},
		"vpn":          {func(c *solace.Config) { c.VPN = "nothere" }, solace.ErrUnknownVPN},
		"queue":        {func(c *solace.Config) { c.Queue = "nothere" }, solace.ErrUnknownQueue},
		"nothing":      {func(*solace.Config) {}, nil},
		"away":         {func(c *solace.Config) { c.Hosts = "tcp://127.0.0.1:1" }, nil},
		"no such host": {func(c *solace.Config) { c.Hosts = "tcp://nothere.invalid:1" }, nil},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			cfg := quick(b.Server)
			test.change(&cfg)
			s, err := solace.New(cfg, b.recorder(t, b.pool), nil, b.logger())
			require.NoError(t, err)
			t.Cleanup(s.Close)
			require.ErrorIs(t, s.Probe(t.Context()), test.want)
			require.Error(t, s.Check(t.Context()), "nothing is read yet")
		})
	}
}

func TestRunGoesOnWithWhatProbeBound(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{})
	b.put(t, "a", 10)
	s, err := solace.New(quick(b.Server), b.recorder(t, b.pool), nil, b.logger())
	require.NoError(t, err)
	require.NoError(t, s.Probe(t.Context()))
	runUntilTheEnd(t, s.Run)
	b.acked(t, 10)
	require.EqualValues(t, 1, b.Counters().Logins)
	require.Zero(t, b.queue(queueName).Redelivered, "a start costs no delivery")
}

func TestStopDoesNotWaitForABrokerThatIsSilent(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{})
	for _, kind := range []solacetest.FaultKind{solacetest.FaultHoldConnection, solacetest.FaultHoldLogin, solacetest.FaultHoldBind} {
		s := startBroker(t, solacetest.Config{})
		require.NoError(t, s.Inject(solacetest.Fault{Kind: kind}))
		cfg := quick(s)
		cfg.CloseTimeout = 200 * time.Millisecond
		r := b.run(t, cfg)
		eventually(t, func() bool { return s.Counters().Accepted > 0 }, "connecting")
		r.stop()
	}
}

func TestDatabaseAwayStopsReadingAndIsNotReady(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{})
	url, proxy := sourcetest.Through(t, b.db.As(sql.RoleIngest))
	config, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	config.ConnConfig.ConnectTimeout = 5 * time.Second
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	r := b.runOn(t, quick(b.Server), pool)
	r.ready(t)
	proxy.Cut()
	b.put(t, "a", 5000)
	eventually(t, func() bool { return r.Check(t.Context()) != nil }, "not ready")
	require.ErrorContains(t, r.Check(t.Context()), "database")
	require.LessOrEqual(t, r.metric(t, "received_total"), ingest.MaxBatchDeliveries, "no more than the batch in hand")
	proxy.Mend()
	b.acked(t, 5000)
	require.Equal(t, ingest.Counts{Intents: 5000}, b.counters(t))
	r.ready(t)
}

func TestBatchThatIsGivenUpIsToldWithTheReason(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{})
	url, proxy := sourcetest.Through(t, b.db.As(sql.RoleIngest))
	pool, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	cfg := quick(b.Server)
	cfg.StopGrace = 100 * time.Millisecond
	r := b.runOn(t, cfg, pool)
	r.ready(t)
	proxy.Cut()
	b.put(t, "a", 10)
	away := func() bool {
		err := r.Check(t.Context())
		return err != nil && strings.Contains(err.Error(), "database")
	}
	eventually(t, away, "a batch waits for the database")
	b.DropConnections()
	eventually(t, func() bool { return r.metric(t, "restarts_total") > 0 }, "given up with its connection")
	givenUp := regexp.MustCompile("the grace for the batch in hand is over: the (connection|flow) ended: ")
	eventually(t, func() bool { return givenUp.MatchString(b.logs.String()) }, "and the log says so")
	eventually(t, away, "the next one waits too")
	r.stop()
	require.Contains(t, b.logs.String(), "ending without the batch in hand, which comes again")
	proxy.Mend()
	b.run(t, quick(b.Server))
	b.acked(t, 10)
	require.EqualValues(t, 10, b.counters(t).Intents)
}

// One that dies in a batch of many must not have them all come again, and one consumer may not hold what others could record.
func TestUnacknowledgedMessagesAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{})
	url, proxy := sourcetest.Through(t, b.db.As(sql.RoleIngest))
	pool, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	b.put(t, "a", 5000)
	proxy.SlowDown(300 * time.Millisecond)
	b.runOn(t, quick(b.Server), pool)
	most := 0
	eventually(t, func() bool {
		q := b.queue(queueName)
		most = max(most, q.Unacked)
		return q.OnQueue < 2000
	}, "more than half of it")
	require.LessOrEqual(t, most, 3*ingest.MaxBatchDeliveries, "a batch, what the client holds ready, and acknowledgements under way")
	proxy.SlowDown(0)
	b.acked(t, 5000)
}
