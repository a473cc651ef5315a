package sql_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"chargeonce/schema"
	"chargeonce/sql"
	"chargeonce/sql/queries"
)

// lines runs a query as finance and returns each row as text, columns parted by "|".
func lines(t *testing.T, finance *pgxpool.Pool, query string, args ...any) []string {
	t.Helper()
	rows, err := finance.Query(t.Context(), query, args...)
	require.NoError(t, err)
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		fields := make([]*string, len(row.FieldDescriptions()))
		targets := make([]any, len(fields))
		for i := range fields {
			targets[i] = &fields[i]
		}
		if err := row.Scan(targets...); err != nil {
			return "", err
		}
		texts := make([]string, len(fields))
		for i, field := range fields {
			if texts[i] = "null"; field != nil {
				texts[i] = *field
			}
		}
		return strings.Join(texts, "|"), nil
	})
	require.NoError(t, err)
	return found
}

// texts selects columns as text, in the order given.
func texts(columns, rest string) string {
	parts := strings.Fields(columns)
	for i, column := range parts {
		parts[i] = column + "::text"
	}
	return "SELECT " + strings.Join(parts, ", ") + " " + rest
}

// august is one period of a business: every status and reason once in usd, and some money of other kinds.
func august(t *testing.T) (f *fixture, run int64, ids map[string]int64) {
	t.Helper()
	f = newFixture(t)
	run = f.usualRun(t)
	ids = map[string]int64{}
	cents := int64(100)
	for _, status := range schema.Statuses() {
		for _, reason := range status.Reasons() {
			if status == schema.StatusPending && reason != schema.ReasonQueued && reason != schema.ReasonRunCapped && reason != schema.ReasonSameCustomer {
				continue // why an intent waits is told from its run: TestWhyAnIntentWaits
			}
			ids[string(status)+"/"+string(reason)] = f.bring(t, run, owed{cents: cents}, status, reason)
			cents += 100
		}
	}
	for currency, amount := range map[string]int64{"jpy": 1250, "kwd": 12340, "isk": 4200} {
		other := "in-" + currency
		f.namespace(t, other)
		otherRun := f.run(t, other, currency, 100_000)
		f.bring(t, otherRun, owed{namespace: other, currency: currency, cents: amount, customer: "customer-of-" + currency}, schema.StatusCharged, schema.ReasonCharged)
	}
	f.intent(t, owed{period: "2026-09", cents: 7})
	return f, run, ids
}

func TestFinanceSeesWhatIsChargedDeclinedAndOpenForAPeriod(t *testing.T) {
	t.Parallel()
	f, _, _ := august(t)
	finance := f.db.Pool(t, sql.RoleFinance)
	summary := texts("status status_reason intents amount_cents amount", `FROM finance.period_summary
		WHERE namespace = $1 AND billing_period = $2 ORDER BY status, status_reason`)
	require.Equal(t, []string{
		"card_declined|authentication_required|1|1200|12.00", "card_declined|card_declined|1|1100|11.00", "card_declined|no_payment_method|1|1300|13.00",
		"charged|adopted|1|1000|10.00", "charged|charged|1|900|9.00",
		"charging|cancelling|1|800|8.00", "charging|in_doubt|1|600|6.00", "charging|processing|1|700|7.00", "charging|sent|1|500|5.00",
		"nothing_due|zero_amount|1|0|0.00",
		"parked|cancelled_by_operator|1|1800|18.00", "parked|charge_id_taken|1|2200|22.00", "parked|doubt_expired|1|1700|17.00",
		"parked|idempotency_error|1|2100|21.00", "parked|invalid_request|1|1500|15.00", "parked|mismatch|1|1600|16.00",
		"parked|redispatch_limit|1|1900|19.00", "parked|requires_action|1|2000|20.00", "parked|wrong_account|1|2300|23.00",
		"pending|queued|1|100|1.00", "pending|run_capped|1|200|2.00", "pending|same_customer|1|300|3.00",
		"voided|by_operator|1|1400|14.00",
	}, lines(t, finance, summary, usualNamespace, usualPeriod))
	require.Equal(t, []string{"pending|no_run|1|7|0.07"}, lines(t, finance, summary, usualNamespace, "2026-09"))
	// The minor unit of a currency is Stripe's: none for yen, three digits for dinars, two for kronur.
	require.Equal(t, []string{"charged|charged|1|1250|1250"}, lines(t, finance, summary, "in-jpy", usualPeriod))
	require.Equal(t, []string{"charged|charged|1|12340|12.340"}, lines(t, finance, summary, "in-kwd", usualPeriod))
	require.Equal(t, []string{"charged|charged|1|4200|42.00"}, lines(t, finance, summary, "in-isk", usualPeriod))
	require.Equal(t, []string{"999999999.999|9999999999.99|999999999999|-0.01"}, lines(t, finance, `SELECT finance.amount(999999999999, 'kwd')::text,
		finance.amount(999999999999, 'usd')::text, finance.amount(999999999999, 'jpy')::text, finance.amount(-1, 'usd')::text`))
}

func TestFinanceSeesWhyEachIntentStandsWhereItStands(t *testing.T) {
	t.Parallel()
	f, run, ids := august(t)
	finance := f.db.Pool(t, sql.RoleFinance)
	const query = `SELECT status, status_reason, amount::text, decline_code, charge_id, payment_intent_id, (first_sent_at IS NOT NULL)::text,
		in_doubt::text, charge_attempt_count::text, open_conflict::text, (charged_at IS NOT NULL)::text, run_id::text, source, source_position
		FROM finance.intents WHERE id = $1`
	row := func(key string) string {
		found := lines(t, finance, query, ids[key])
		require.Len(t, found, 1)
		return found[0]
	}
	tail := fmt.Sprintf("|%d|file|august.ndjson:1", run)
	id := ids["charged/charged"]
	require.Equal(t, fmt.Sprintf("charged|charged|9.00|null|ch_%d|pi_%d|true|false|1|false|true", id, id)+tail, row("charged/charged"))
	require.Equal(t, "card_declined|card_declined|11.00|insufficient_funds|null|null|true|false|1|false|false"+tail, row("card_declined/card_declined"))
	require.Equal(t, "charging|in_doubt|6.00|null|null|null|true|true|1|false|false"+tail, row("charging/in_doubt"))
	require.Equal(t, "charging|sent|5.00|null|null|null|true|false|1|false|false"+tail, row("charging/sent"), "a call on its way is no doubt yet")
	require.Equal(t, "nothing_due|zero_amount|0.00|null|null|null|false|false|0|false|false"+tail, row("nothing_due/zero_amount"))
	require.Equal(t, "parked|mismatch|16.00|null|null|null|true|false|1|false|false"+tail, row("parked/mismatch"))

	f.endLease(t, ids["charging/sent"])
	require.Equal(t, "charging|sent|5.00|null|null|null|true|true|1|false|false"+tail, row("charging/sent"), "its process died on the way")
	resolved := one[string](t, f, "SELECT resolved_at::text FROM billing.charge_attempts WHERE intent_id = $1", id)
	require.Equal(t, []string{resolved}, lines(t, finance, "SELECT charged_at::text FROM finance.intents WHERE id = $1", id))
}

func TestWhyAnIntentWaits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	finance := f.db.Pool(t, sql.RoleFinance)
	intent := f.intent(t, owed{})
	reason := func() string {
		found := lines(t, finance, "SELECT status_reason FROM finance.intents WHERE id = $1", intent)
		require.Equal(t, found, lines(t, finance, "SELECT status_reason FROM finance.period_summary WHERE namespace = $1 AND billing_period = $2", usualNamespace, usualPeriod))
		return found[0]
	}
	store := func(reason string) {
		mustExec(t, f, "UPDATE billing.intents SET status_reason = $2 WHERE id = $1", intent, reason)
	}
	require.Equal(t, "no_run", reason())
	f.run(t, usualNamespace, "eur", 1000)
	require.Equal(t, "no_run", reason(), "a run of another currency is not its run")
	run := f.usualRun(t)
	require.Equal(t, "queued", reason(), "the dispatcher will take it")
	mustExec(t, f, "UPDATE billing.runs SET status = 'paused' WHERE id = $1", run)
	require.Equal(t, "run_paused", reason())
	mustExec(t, f, "UPDATE billing.charging_switch SET stopped = true")
	require.Equal(t, "stopped", reason())
	mustExec(t, f, "UPDATE billing.runs SET status = 'closed', closed_at = now() WHERE id = $1", run)
	require.Equal(t, "no_run", reason())
	mustExec(t, f, "UPDATE billing.charging_switch SET stopped = false")
	mustExec(t, f, "UPDATE billing.runs SET status = 'open', closed_at = NULL WHERE id = $1", run)
	store("run_capped")
	require.Equal(t, "run_capped", reason())
	store("same_customer")
	require.Equal(t, "same_customer", reason())
	f.conflict(t, intent, 1)
	require.Equal(t, "conflict", reason(), "even before a dispatcher has seen it")
	store("conflict")
	require.Equal(t, "conflict", reason())
	mustExec(t, f, "UPDATE billing.conflicts SET resolved_at = now(), resolution = 'kept_first', resolved_by = 'operator'")
	require.Equal(t, "queued", reason(), "and no longer once it is resolved")
}

func TestRunStatusHoldsExpectedAgainstIngestedAgainstCharged(t *testing.T) {
	t.Parallel()
	f, run, ids := august(t)
	f.conflict(t, ids["pending/queued"], 5)
	finance := f.db.Pool(t, sql.RoleFinance)
	row := func(columns string) string {
		found := lines(t, finance, texts(columns, "FROM finance.run_status WHERE run_id = $1"), run)
		require.Len(t, found, 1)
		return found[0]
	}
	require.Equal(t, "usage|2026-08|usd|open|opened|null|1000000|2000000", row("namespace billing_period currency status status_reason expected_count expected_total_cents cap_cents"))
	require.Equal(t, "23|27200|null|972800", row("ingested_count ingested_cents missing_count missing_cents"))
	require.Equal(t, "2|1900|3|3600|3|600|4|2600|9|17100|1|1400|1", row(`charged_count charged_cents declined_count declined_cents pending_count pending_cents
		charging_count charging_cents parked_count parked_cents voided_count voided_cents nothing_due_count`))
	require.Equal(t, "3|1|operator|null", row("in_doubt_count open_conflicts opened_by closed_at"))
	// Reserved or charged: what is in flight, charged or parked, but not what was declined.
	require.Equal(t, "21600|1978400", row("allocated_cents unallocated_cents"))
	require.Equal(t, "10000.00|20000.00|216.00|19784.00|272.00|9728.00", row("expected_total_amount cap_amount allocated_amount unallocated_amount ingested_amount missing_amount"))
	require.Equal(t, "19.00|36.00|6.00|26.00|171.00|14.00", row("charged_amount declined_amount pending_amount charging_amount parked_amount voided_amount"))

	mustExec(t, f, "UPDATE billing.runs SET expected_count = 20, expected_total_cents = 20000 WHERE id = $1", run)
	require.Equal(t, "-3|-7200|-72.00", row("missing_count missing_cents missing_amount"), "more came than was expected")
	require.Equal(t, []string{"jpy|1250|100000|1250", "kwd|12.340|100.000|12340", "isk|42.00|1000.00|4200"},
		lines(t, finance, texts("currency charged_amount expected_total_amount charged_cents", `FROM finance.run_status WHERE currency <> 'usd'
			ORDER BY position(currency IN 'jpy kwd isk')`)))
}

// The charger's own queries read these views too: no figure may be too large or absent for them.
func TestRunStatusIsReadByTheCharger(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.run(t, usualNamespace, "usd", 900_000_000_000)
	charger := f.db.Pool(t, sql.RoleCharger)
	period, err := f.q.RunStatusForPeriod(t.Context(), charger, queries.RunStatusForPeriodParams{Namespace: usualNamespace, BillingPeriod: usualPeriod})
	require.NoError(t, err)
	require.Len(t, period, 1)
	status := period[0]
	require.Nil(t, status.MissingCount)
	require.Equal(t, int64(900_000_000_000), status.MissingCents)
	require.Equal(t, int64(1_800_000_000_000), status.UnallocatedCents)
	all, err := f.q.RunStatusList(t.Context(), charger, 10)
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Equal(t, status.RunID, all[0].RunID)
}

func TestConflictsShowBothSides(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	intent := f.intent(t, owed{customer: "first", stripeCustomer: "cus_first"})
	mustExec(t, f, `INSERT INTO billing.conflicts (intent_id, amount_cents, currency, stripe_customer_id, deliveries, first_source, first_position,
		last_source, last_position) VALUES ($1, 1500, 'jpy', 'cus_other', 3, 'eventhubs', '0:17', 'solace', 'm9')`, intent)
	finance := f.db.Pool(t, sql.RoleFinance)
	query := texts(`namespace billing_period customer_id intent_id intent_status intent_amount_cents intent_currency intent_amount intent_stripe_customer_id
		other_amount_cents other_currency other_amount other_stripe_customer_id deliveries intent_source intent_position other_first_source
		other_first_position other_last_source other_last_position resolution resolved_by`, "FROM finance.conflicts")
	want := fmt.Sprintf("usage|2026-08|first|%d|pending|1000|usd|10.00|cus_first|1500|jpy|1500|cus_other|3|file|august.ndjson:1|eventhubs|0:17|solace|m9|", intent)
	require.Equal(t, []string{want + "null|null"}, lines(t, finance, query))
	mustExec(t, f, "UPDATE billing.conflicts SET resolved_at = now(), resolution = 'kept_first', resolved_by = 'operator'")
	require.Equal(t, []string{want + "kept_first|operator"}, lines(t, finance, query))
}

func TestQuarantineShowsReasonsAndNoBytes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	mustExec(t, f, `INSERT INTO billing.quarantined_events (namespace, object_sha256, reason_code, field, reason, raw, deliveries, first_source,
		first_position, last_source, last_position) VALUES ('usage', sha256('{}'), 'missing_field', 'customer_id', 'field "customer_id" is missing', '{}', 2,
		'solace', 'm1', 'eventhubs', '0:4')`)
	finance := f.db.Pool(t, sql.RoleFinance)
	require.Equal(t, []string{`usage|missing_field|customer_id|field "customer_id" is missing|2|solace|m1|eventhubs|0:4|null|null|null`},
		lines(t, finance, texts(`namespace reason_code field reason deliveries first_source first_position last_source last_position resolved_at resolution
			resolved_by`, "FROM finance.quarantine")))
	require.Zero(t, count(t, f, "SELECT count(*) FROM information_schema.columns WHERE table_schema = 'finance' AND data_type = 'bytea'"))
}

func TestSameCustomerInTwoNamespacesIsShown(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, namespace := range []string{"usage-eh", "usage-solace"} {
		f.namespace(t, namespace)
		f.intent(t, owed{namespace: namespace, customer: "twice"})
	}
	f.intent(t, owed{customer: "twice"})
	f.intent(t, owed{customer: "twice", period: "2026-09"})
	f.intent(t, owed{customer: "once"})
	finance := f.db.Pool(t, sql.RoleFinance)
	require.Equal(t, []string{
		"usage|once|2026-08|{}", "usage|twice|2026-08|{usage-eh,usage-solace}", "usage|twice|2026-09|{}",
		"usage-eh|twice|2026-08|{usage,usage-solace}", "usage-solace|twice|2026-08|{usage,usage-eh}",
	}, lines(t, finance, texts("namespace customer_id billing_period also_in_namespaces", "FROM finance.intents ORDER BY 1, 2, 3")))
}

// Columns may be added; one that is gone or changed its type breaks somebody's report.
func TestFinanceColumnsAreAContract(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	got := one[string](t, f, `SELECT string_agg(table_name || '.' || column_name || ' ' || data_type, E'\n' ORDER BY table_name, ordinal_position) || E'\n'
		FROM information_schema.columns WHERE table_schema = 'finance'`)
	have := strings.Split(got, "\n")
	want := strings.Split(strings.TrimSpace(readFile(t, "testdata/finance_columns.txt")), "\n")
	require.Greater(t, len(want), 80)
	for _, column := range want {
		require.Contains(t, have, column)
	}
}

func TestSummaryOfOnePeriodUsesTheUniqueIndex(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	mustExec(t, f, `INSERT INTO billing.intents (namespace, customer_id, billing_period, idempotency_key, stripe_customer_id, amount_cents, currency, source, source_position)
		SELECT 'usage', c::text, p, left(encode(sha256(convert_to(c || ':' || p || ':usage', 'UTF8')), 'hex'), 32), 'cus_' || c, 100, 'usd', 'file', '1'
		FROM generate_series(1, 500) c, (SELECT to_char(make_date(2020 + y, m, 1), 'YYYY-MM') FROM generate_series(1, 3) y, generate_series(1, 12) m) AS t(p)`)
	mustExec(t, f, "ANALYZE billing.intents")
	for _, view := range []string{"finance.period_summary", "finance.intents"} {
		plan := strings.Join(lines(t, f.Pool, "EXPLAIN SELECT * FROM "+view+" WHERE namespace = 'usage' AND billing_period = '2022-08'"), "\n")
		require.Contains(t, plan, "intents_one_per_customer_and_period", plan)
		require.NotContains(t, plan, "Seq Scan on intents i", plan)
	}
}
