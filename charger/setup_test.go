package charger

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"chargeonce/charger/stripecharge"
	"chargeonce/charger/stripecharge/stripetest"
	"chargeonce/charger/vaultkey"
	"chargeonce/schema"
	"chargeonce/sql"
	"chargeonce/sql/queries"
	"chargeonce/sql/sqltest"
)

func TestMain(m *testing.M) {
	if databaseURL := os.Getenv(holdProcessEnv); databaseURL != "" {
		os.Exit(holdProcess(databaseURL))
	}
	// Most of these tests wait, for leases, pauses and times that Stripe takes, and keep no processor busy meanwhile.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	sqltest.Main(m)
}

// patience is how long a test waits for what must come. Nothing waits that long unless something is broken.
const patience = 3 * time.Minute

const (
	testNamespace = "usage"
	testPeriod    = "2026-08"
)

// bundle is one test's world: its database, a stand-in for Stripe, and the run that intents belong to.
type bundle struct {
	db     *sqltest.DB
	owner  *pgxpool.Pool // reads and rigs
	stripe *stripetest.Server
}

func setup(t *testing.T, stripe stripetest.Config) *bundle {
	t.Helper()
	db := sqltest.New(t)
	stripe.AutoCustomers = true
	server, err := stripetest.Start(stripe)
	require.NoError(t, err)
	t.Cleanup(server.Close)
	b := &bundle{db: db, owner: db.Pool(t, ""), stripe: server}
	b.exec(t, `INSERT INTO billing.namespaces (namespace, period_format) VALUES ($1, 'month')`, testNamespace)
	return b
}

func (b *bundle) exec(t *testing.T, statement string, args ...any) {
	t.Helper()
	_, err := b.owner.Exec(t.Context(), statement, args...)
	require.NoError(t, err)
}

// intend records intents as an ingestor does, one for each Stripe customer, and returns their ids.
func (b *bundle) intend(t *testing.T, amountCents int64, currency string, stripeCustomers ...string) []int64 {
	t.Helper()
	var ids []int64
	for i, cus := range stripeCustomers {
		customer := fmt.Sprintf("customer-%s-%d", cus, i)
		var id int64
		require.NoError(t, b.owner.QueryRow(t.Context(), `
			INSERT INTO billing.intents (namespace, customer_id, billing_period, idempotency_key, stripe_customer_id, amount_cents, currency, source, source_position)
			VALUES ($1, $2, $3, $4, $5, $6, $7, 'test', $2) RETURNING id`,
			testNamespace, customer, testPeriod, schema.IdempotencyKey(customer, testPeriod, testNamespace, 1), cus, amountCents, currency).Scan(&id))
		ids = append(ids, id)
	}
	return ids
}

// nudge makes the intent's waiting job due now. It waits for River to have put the job to wait: a moment before, the worker
// that decided so is still returning, or it has moved the intent on meanwhile.
func (b *bundle) nudge(t *testing.T, id int64) {
	t.Helper()
	require.Eventually(t, func() bool {
		tag, err := b.owner.Exec(t.Context(), `UPDATE river.river_job SET scheduled_at = now(), state = 'available'
			WHERE state IN ('retryable', 'scheduled') AND (args->>'intent_id')::bigint = $1`, id)
		require.NoError(t, err)
		return tag.RowsAffected() == 1 || b.intent(t, id).Status != "charging"
	}, patience, 10*time.Millisecond)
}

func customers(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("cus_%04d", i)
	}
	return names
}

// open opens the run as an operator does.
func (b *bundle) open(t *testing.T, expectedTotal, currency string) queries.BillingRun {
	t.Helper()
	run, _, err := Runs{Pool: b.db.Pool(t, sql.RoleCharger)}.Open(t.Context(), OpenRun{
		Namespace: testNamespace, BillingPeriod: testPeriod, Currency: currency, ExpectedTotal: expectedTotal, Headroom: "10%", Actor: "test",
	})
	require.NoError(t, err)
	return run
}

// config is a charger with times short enough for a test.
func (b *bundle) config(t *testing.T) Config {
	t.Helper()
	given, err := vaultkey.NewStatic("sk_test_standin")
	require.NoError(t, err)
	return Config{
		Pool: b.db.Pool(t, sql.RoleCharger), RiverPool: b.db.Pool(t, sql.RoleCharger),
		Keys: KeysConfig{Issuer: given, StripeURL: b.stripe.URL, Transport: stripecharge.NewTransport()},
		ID:   fmt.Sprintf("%s-%d", t.Name(), time.Now().UnixNano()), Workers: 20, RatePerSecond: 10_000,
		CallTimeout: 5 * time.Second, DispatchEvery: 100 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
}

// start runs a charger until the test ends, or stop is called.
func start(t *testing.T, cfg Config) (stop func()) {
	t.Helper()
	c, err := New(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		require.NoError(t, <-done)
	}
	t.Cleanup(stop)
	return stop
}

// intentNow is what tests look at.
type intentNow struct {
	Status, Reason string
	Detail         *string
	ChargeID       *string
	Reserved       *int64
	Unresolved     int
	Creates        int
	Results        []string
}

func (b *bundle) intent(t *testing.T, id int64) intentNow {
	t.Helper()
	var in intentNow
	require.NoError(t, b.owner.QueryRow(t.Context(), `
		SELECT i.status, i.status_reason, i.status_detail, i.charge_id, i.reserved_cents,
		       count(a.id) FILTER (WHERE a.operation = 'create' AND a.resolved_at IS NULL),
		       count(a.id) FILTER (WHERE a.operation = 'create'),
		       coalesce(array_agg(a.operation || ':' || coalesce(a.result, '-') ORDER BY a.id) FILTER (WHERE a.id IS NOT NULL), '{}')
		FROM billing.intents i LEFT JOIN billing.charge_attempts a ON a.intent_id = i.id WHERE i.id = $1 GROUP BY i.id`, id).
		Scan(&in.Status, &in.Reason, &in.Detail, &in.ChargeID, &in.Reserved, &in.Unresolved, &in.Creates, &in.Results))
	return in
}

// until waits for the condition on the intent.
func (b *bundle) until(t *testing.T, id int64, condition func(intentNow) bool) intentNow {
	t.Helper()
	var in intentNow
	require.Eventuallyf(t, func() bool {
		in = b.intent(t, id)
		return condition(in)
	}, patience, 20*time.Millisecond, "intent %d", id)
	return in
}

func (b *bundle) untilStatus(t *testing.T, status schema.Status, ids ...int64) {
	t.Helper()
	var now []string
	require.Eventuallyf(t, func() bool {
		rows, err := b.owner.Query(t.Context(), `SELECT DISTINCT status || '/' || status_reason FROM billing.intents WHERE id = ANY($1) AND status <> $2`, ids, string(status))
		require.NoError(t, err)
		now, err = pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		return len(now) == 0
	}, patience, 20*time.Millisecond, "intents did not all become %s: %v", status, &now)
}

// once asserts the product's promise on the stand-in's ledger: one charge of the right amount for each of the intents.
func (b *bundle) once(t *testing.T, amountCents int64, ids ...int64) {
	t.Helper()
	require.Empty(t, b.stripe.DoubleCharges())
	var keys, chargeIDs []string
	for _, id := range ids {
		var key, chargeID string
		require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT idempotency_key, charge_id FROM billing.intents WHERE id = $1`, id).Scan(&key, &chargeID))
		keys, chargeIDs = append(keys, key), append(chargeIDs, chargeID)
	}
	for _, charge := range b.stripe.Charges() {
		require.Equal(t, amountCents, charge.Amount)
		i := slices.Index(keys, charge.Metadata[stripecharge.MetadataIntentKey])
		require.GreaterOrEqual(t, i, 0, "a charge of no intent: %v", charge)
		require.Equal(t, chargeIDs[i], charge.ID)
	}
	require.Len(t, b.stripe.Charges(), len(ids))
}

// later moves all of the intent's times into the past, as if this much time had passed; the stand-in's clock moves too.
func (b *bundle) later(t *testing.T, id int64, d time.Duration) {
	t.Helper()
	b.stripe.Advance(d)
	b.ageRows(t, id, d)
}

// ageRows moves the intent's times alone.
func (b *bundle) ageRows(t *testing.T, id int64, d time.Duration) {
	t.Helper()
	interval := fmt.Sprintf("%d microseconds", d.Microseconds())
	tx, err := b.owner.Begin(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, tx.Commit(t.Context())) }()
	for _, statement := range []string{
		`SET LOCAL session_replication_role = replica`, // the frozen request's first send may not change otherwise
		`UPDATE billing.charge_requests SET first_sent_at = first_sent_at - $2::interval WHERE intent_id = $1`,
		`UPDATE billing.charge_attempts SET started_at = started_at - $2::interval, finished_at = finished_at - $2::interval, lease_until = lease_until - $2::interval WHERE intent_id = $1`,
		`UPDATE billing.intents SET lease_until = lease_until - $2::interval WHERE id = $1`,
	} {
		args := []any{id, interval}
		if strings.HasPrefix(statement, "SET") {
			args = nil
		}
		_, err := tx.Exec(t.Context(), statement, args...)
		require.NoError(t, err)
	}
}
