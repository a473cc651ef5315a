package sql_test

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"chargeonce/schema"
	"chargeonce/sql/queries"
	"chargeonce/sql/sqltest"
)

// fixture makes rows only by the ways that the programs have: recorded, dispatched, claimed, finished.
type fixture struct {
	*pgxpool.Pool // the owner's

	db *sqltest.DB
	q  *queries.Queries
}

// owed is what an intent says; empty fields get the fixture's usual values.
type owed struct {
	namespace, period, customer, stripeCustomer, currency string
	cents                                                 int64
}

const (
	usualNamespace = "usage"
	usualPeriod    = "2026-08"
	usualCents     = 1000
)

func newFixture(t *testing.T) *fixture {
	t.Helper()
	db := sqltest.New(t)
	f := &fixture{Pool: db.Pool(t, ""), db: db, q: queries.New()}
	f.namespace(t, usualNamespace)
	return f
}

func (f *fixture) namespace(t *testing.T, name string) {
	t.Helper()
	mustExec(t, f, "INSERT INTO billing.namespaces (namespace, period_format) VALUES ($1, 'month')", name)
}

// run opens a run of the usual period whose cap is twice what is expected.
func (f *fixture) run(t *testing.T, namespace, currency string, expectedCents int64) int64 {
	t.Helper()
	id, err := f.q.RunOpen(t.Context(), f, queries.RunOpenParams{
		Namespace: namespace, BillingPeriod: usualPeriod, Currency: currency, ExpectedTotalCents: expectedCents,
		HeadroomPercent: "100", CapCents: 2 * expectedCents, OpenedBy: "operator",
	})
	require.NoError(t, err)
	return id
}

func (f *fixture) usualRun(t *testing.T) int64 {
	t.Helper()
	return f.run(t, usualNamespace, "usd", 1_000_000)
}

func (f *fixture) intent(t *testing.T, o owed) int64 {
	t.Helper()
	o = o.complete(f.serial(t))
	status, reason := schema.StatusPending, schema.ReasonNoRun
	if o.cents == 0 {
		status, reason = schema.StatusNothingDue, schema.ReasonZeroAmount
	}
	return one[int64](t, f, `
		INSERT INTO billing.intents (namespace, customer_id, billing_period, idempotency_key, stripe_customer_id, amount_cents,
			currency, status, status_reason, source, source_position)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 'file', 'august.ndjson:1') RETURNING id`,
		o.namespace, o.customer, o.period, schema.IdempotencyKey(o.customer, o.period, o.namespace, 1), o.stripeCustomer, o.cents,
		o.currency, status, reason)
}

// serial names customers apart.
func (f *fixture) serial(t *testing.T) string {
	t.Helper()
	return strconv.FormatInt(count(t, f, "SELECT count(*) FROM billing.intents"), 10)
}

// complete fills in what is not given. An amount of 0 is said as -1.
func (o owed) complete(serial string) owed {
	for field, usual := range map[*string]string{
		&o.namespace: usualNamespace, &o.period: usualPeriod, &o.customer: "customer-" + serial, &o.stripeCustomer: "cus_" + serial, &o.currency: "usd",
	} {
		if *field == "" {
			*field = usual
		}
	}
	switch o.cents {
	case 0:
		o.cents = usualCents
	case -1:
		o.cents = 0
	}
	return o
}

// dispatch reserves the intent's amount and gives it a job.
func (f *fixture) dispatch(t *testing.T, run, intent int64) {
	t.Helper()
	require.NoError(t, pgx.BeginFunc(t.Context(), f, func(tx pgx.Tx) error {
		amount := count(t, tx, "SELECT amount_cents FROM billing.intents WHERE id = $1 AND reserved_cents IS NULL", intent)
		rows, err := f.q.RunAllocate(t.Context(), tx, queries.RunAllocateParams{AmountCents: amount, ID: run})
		if err != nil || rows != 1 {
			return fmt.Errorf("allocate %d: %d rows: %w", amount, rows, err)
		}
		rows, err = f.q.IntentDispatchMany(t.Context(), tx, queries.IntentDispatchManyParams{
			RunID: &run, Ids: []int64{intent}, JobIds: []int64{jobOf(intent)}, AmountsCents: []int64{amount}, Currency: one[string](t, tx, "SELECT currency FROM billing.intents WHERE id = $1", intent),
		})
		if err != nil || rows != 1 {
			return fmt.Errorf("dispatch: %d rows: %w", rows, err)
		}
		return nil
	}))
}

func jobOf(intent int64) int64 { return 1_000_000 + intent }

// createClaim is the first send of an intent as it stands now.
func (f *fixture) createClaim(t *testing.T, intent int64) queries.IntentClaimParams {
	t.Helper()
	work, err := f.q.IntentForWork(t.Context(), f, queries.IntentForWorkParams{ID: intent, WindowSeconds: 82800})
	require.NoError(t, err)
	return queries.IntentClaimParams{
		Operation: "create", IdempotencyKey: schema.IdempotencyKey(work.CustomerID, work.BillingPeriod, work.Namespace, int(work.KeyGeneration)),
		RiverJobID: work.RiverJobID, Worker: "worker-1", IntentID: intent, SeenClaimNumber: work.ClaimNumber, FirstSend: !work.Frozen,
		StatusReason: string(schema.ReasonSent), LeaseSeconds: 60, StripeAPI: "payment_intents", Path: "/v1/payment_intents",
		Body: []byte("amount=" + strconv.FormatInt(work.AmountCents, 10)), APIVersion: "2024-04-10", StripeAccount: "acct_1",
		Livemode: new(false), Customer: work.StripeCustomerID, AmountCents: work.AmountCents, Currency: work.Currency, KeyGeneration: work.KeyGeneration,
	}
}

func (f *fixture) send(t *testing.T, intent int64) queries.IntentClaimRow {
	t.Helper()
	claim, err := f.q.IntentClaim(t.Context(), f, f.createClaim(t, intent))
	require.NoError(t, err)
	return claim
}

// endLease lets the intent's lease lie in the past, as if time had gone by.
func (f *fixture) endLease(t *testing.T, intent int64) {
	t.Helper()
	mustExec(t, f, "UPDATE billing.intents SET lease_until = now() - interval '1 second' WHERE id = $1", intent)
	mustExec(t, f, "UPDATE billing.charge_attempts SET lease_until = now() - interval '1 second' WHERE intent_id = $1", intent)
}

func charged(attempt, intent int64) queries.IntentFinishParams {
	return queries.IntentFinishParams{
		AttemptID: attempt, Result: new("charged"), Resolution: "moved", OthersResolution: "superseded", Status: string(schema.StatusCharged),
		StatusReason: string(schema.ReasonCharged), ChargeID: fmt.Sprintf("ch_%d", intent), ObjectID: fmt.Sprintf("pi_%d", intent),
		PaymentIntentID: fmt.Sprintf("pi_%d", intent), RequestID: "req_1",
	}
}

func declined(attempt int64, reason schema.StatusReason) queries.IntentFinishParams {
	return queries.IntentFinishParams{
		AttemptID: attempt, Result: new("declined"), Resolution: "not_moved", Status: string(schema.StatusCardDeclined),
		StatusReason: string(reason), DeclineCode: "insufficient_funds", GiveBack: true, DropJob: true,
	}
}

func inDoubt(attempt int64, reason schema.StatusReason) queries.IntentFinishParams {
	return queries.IntentFinishParams{
		AttemptID: attempt, Result: new("unknown"), Status: string(schema.StatusCharging), StatusReason: string(reason), Detail: "no answer in 30 s",
	}
}

func parked(attempt int64, reason schema.StatusReason) queries.IntentFinishParams {
	return queries.IntentFinishParams{
		AttemptID: attempt, Result: new("invalid"), Resolution: "not_moved", Status: string(schema.StatusParked), StatusReason: string(reason), DropJob: true,
	}
}

// of completes a finish with whose it is: the attempt's intent and claim.
func (f *fixture) of(t *testing.T, params queries.IntentFinishParams) queries.IntentFinishParams {
	t.Helper()
	require.NoError(t, f.QueryRow(t.Context(), `SELECT i.id, i.idempotency_key, a.claim_number
		FROM billing.charge_attempts a JOIN billing.intents i ON i.id = a.intent_id WHERE a.id = $1`, params.AttemptID).
		Scan(&params.IntentID, &params.IntentKey, &params.ClaimNumber))
	return params
}

func (f *fixture) finish(t *testing.T, params queries.IntentFinishParams) {
	t.Helper()
	row, err := f.q.IntentFinish(t.Context(), f, f.of(t, params))
	require.NoError(t, err)
	require.True(t, row.Held)
}

// bring makes an intent that stands at the status and reason, and nothing about it is unresolved but where that is what
// the reason says. Whatever was dispatched belongs to the run.
func (f *fixture) bring(t *testing.T, run int64, o owed, status schema.Status, reason schema.StatusReason) int64 {
	t.Helper()
	if status == schema.StatusNothingDue {
		o.cents = -1
	}
	id := f.intent(t, o)
	switch status {
	case schema.StatusNothingDue:
	case schema.StatusPending:
		mustExec(t, f, "UPDATE billing.intents SET status_reason = $2 WHERE id = $1", id, reason)
	case schema.StatusVoided:
		mustExec(t, f, "UPDATE billing.intents SET status = 'voided', status_reason = $2 WHERE id = $1", id, reason)
	case schema.StatusCharging:
		f.dispatch(t, run, id)
		if claim := f.send(t, id); reason != schema.ReasonSent {
			f.finish(t, inDoubt(claim.AttemptID, reason))
		}
	case schema.StatusCharged:
		f.dispatch(t, run, id)
		params := charged(f.send(t, id).AttemptID, id)
		params.StatusReason = string(reason)
		f.finish(t, params)
	case schema.StatusCardDeclined:
		f.dispatch(t, run, id)
		f.finish(t, declined(f.send(t, id).AttemptID, reason))
	case schema.StatusParked:
		f.dispatch(t, run, id)
		f.finish(t, parked(f.send(t, id).AttemptID, reason))
	}
	return id
}

// resolve makes certain what every call of the intent did.
func (f *fixture) resolve(t *testing.T, intent int64) {
	t.Helper()
	mustExec(t, f, `UPDATE billing.charge_attempts SET finished_at = now(), result = 'unknown', resolved_at = now(), resolution = 'not_moved'
		WHERE intent_id = $1 AND resolved_at IS NULL`, intent)
}

func (f *fixture) statusOf(t *testing.T, intent int64) schema.Status {
	t.Helper()
	return one[schema.Status](t, f, "SELECT status FROM billing.intents WHERE id = $1", intent)
}

func (f *fixture) allocated(t *testing.T, run int64) int64 {
	t.Helper()
	return count(t, f, "SELECT allocated_cents FROM billing.runs WHERE id = $1", run)
}
