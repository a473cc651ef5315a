package sql_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"chargeonce/schema"
)

// Each constraint refuses a row that only it can refuse, and no constraint is without such a row.
func TestEachConstraintRefusesItsImpossibleRow(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	run := f.usualRun(t)
	ids := map[string]int64{"RUN": run}
	for _, status := range schema.Statuses() {
		ids[strings.ToUpper(string(status))] = f.bring(t, run, owed{}, status, status.Reasons()[0])
	}
	f.addRowsForConstraints(t, run, ids["PENDING"])
	// Longest first: CHARGING is not CHARGED.
	names := slices.SortedFunc(maps.Keys(ids), func(a, b string) int { return len(b) - len(a) })
	tried := map[string]bool{}
	for _, row := range impossibleRows() {
		statement := row.statement
		for _, name := range names {
			statement = strings.ReplaceAll(statement, "{"+name+"}", fmt.Sprint(ids[name]))
		}
		require.NotContains(t, statement, "{P", row.constraint)
		err := tryAndRollBack(t, f, statement)
		require.Error(t, err, "%s accepts %s", row.constraint, statement)
		require.Equal(t, row.constraint, constraintOf(err), "%s: %v", statement, err)
		tried[row.constraint] = true
	}
	all := one[[]string](t, f, `
		SELECT array_agg(name ORDER BY name) FROM (
			SELECT conname::text FROM pg_constraint WHERE connamespace = 'billing'::regnamespace AND contype IN ('c', 'u', 'f')
			UNION SELECT indexrelid::regclass::text FROM pg_index
			WHERE indisunique AND indpred IS NOT NULL AND indrelid::regclass::text LIKE 'billing.%'
			UNION SELECT tgname FROM pg_trigger WHERE NOT tgisinternal AND tgrelid::regclass::text LIKE 'billing.%'
		) AS t(name)`)
	for _, name := range all {
		require.True(t, tried[strings.TrimPrefix(name, "billing.")], "no row is tried against %s", name)
	}
}

func (f *fixture) addRowsForConstraints(t *testing.T, run, pending int64) {
	t.Helper()
	mustExec(t, f, `INSERT INTO billing.namespace_sources VALUES ('usage', 'file', '{}', 'f')`)
	mustExec(t, f, `INSERT INTO billing.conflicts (intent_id, amount_cents, currency, stripe_customer_id, first_source, first_position, last_source,
		last_position) VALUES ($1, 2, 'usd', 'cus_0', 'file', '1', 'file', '1')`, pending)
	mustExec(t, f, `INSERT INTO billing.quarantined_events (namespace, object_sha256, reason_code, reason, raw, first_source, first_position,
		last_source, last_position) VALUES ('usage', sha256('x'), 'not_json', 'no', 'x', 'file', '1', 'file', '1')`)
	mustExec(t, f, `INSERT INTO billing.vault_keys (run_id, state, label, usd_cap_cents, lease_until, expires_at)
		VALUES ($1, 'issuing', 'l', 1, now(), now())`, run)
	mustExec(t, f, `INSERT INTO billing.eventhub_ownership VALUES ('ns', 'hub', '$default', '0', 'me')`)
	mustExec(t, f, `INSERT INTO billing.eventhub_checkpoints VALUES ('ns', 'hub', '$default', '0', now(), 1, '1')`)
	mustExec(t, f, `INSERT INTO billing.source_counters VALUES ('usage', 'file', '0')`)
	addReconciliation(t, f, run)
}

type impossibleRow struct{ constraint, statement string }

// impossibleRows names rows of the test by {STATUS} and {RUN}.
func impossibleRows() []impossibleRow {
	return slices.Concat(impossibleRuns(), impossibleIntents(), impossibleMoves(), impossibleRequests(), impossibleReconciliations(), impossibleRest())
}

func impossibleRuns() []impossibleRow {
	set := func(what string) string { return "UPDATE billing.runs SET " + what + " WHERE id = {RUN}" }
	insert := func(namespace, currency string) string {
		return fmt.Sprintf(`INSERT INTO billing.runs (namespace, billing_period, currency, expected_total_cents, headroom_percent, cap_cents, opened_by)
			VALUES ('%s', '2026-08', '%s', 1, '0', 1, 'operator')`, namespace, currency)
	}
	return []impossibleRow{
		{"namespaces_pkey", "INSERT INTO billing.namespaces VALUES ('usage', 'month')"},
		{"namespaces_namespace_form", "INSERT INTO billing.namespaces VALUES ('Usage', 'month')"},
		{"namespaces_namespace_form", "INSERT INTO billing.namespaces VALUES ('-usage', 'month')"},
		{"namespaces_namespace_form", "INSERT INTO billing.namespaces VALUES (E'usage\\n', 'month')"},
		{"namespaces_period_format_known", "INSERT INTO billing.namespaces VALUES ('other', 'fortnight')"},
		{"namespace_sources_pkey", "INSERT INTO billing.namespace_sources VALUES ('usage', 'file', '{}', 'other')"},
		{"namespace_sources_source_form", "INSERT INTO billing.namespace_sources VALUES ('usage', 'File', '{}', 'f')"},
		{"namespace_sources_namespace_fkey", "INSERT INTO billing.namespace_sources VALUES ('unknown', 'file', '{}', 'f')"},
		{"runs_namespace_fkey", insert("unknown", "usd")},
		{"runs_one_per_period", insert("usage", "usd")},
		{"runs_currency_form", insert("usage", "USD")},
		{"runs_status_known", set("status = 'gone'")},
		{"runs_status_reason_known", set("status_reason = 'mood'")},
		{"runs_expected_total_positive", set("expected_total_cents = 0")},
		{"runs_expected_count_positive", set("expected_count = 0")},
		{"runs_vault_usd_cap_positive", set("vault_usd_cap_cents = 0")},
		{"runs_allocated_not_negative", set("allocated_cents = -1")},
		{"runs_cap_covers_expected", set("cap_cents = expected_total_cents - 1")},
		{"runs_allocated_within_cap", set("allocated_cents = cap_cents + 1")},
		{"runs_allocated_within_cap", set("allocated_cents = cap_cents + 1, status = 'paused', status_reason = 'paused_by_operator'")},
		{"runs_allocated_within_cap", set("allocated_cents = cap_cents + 1, status_reason = 'over_cap'")},
		{"runs_closed_has_time", set("status = 'closed'")},
		{"runs_closed_has_time", set("closed_at = now()")},
	}
}

func impossibleIntents() []impossibleRow {
	insert := func(column, value string) string { return intentInsert(map[string]string{column: value}) }
	set := func(id, what string) string { return "UPDATE billing.intents SET " + what + " WHERE id = " + id }
	return []impossibleRow{
		{"intents_one_per_customer_and_period", intentInsert(map[string]string{"customer_id": "'customer-0'", "amount_cents": "5"})},
		{"intents_namespace_form", insert("namespace", "'Usage'")},
		{"intents_customer_id_form", insert("customer_id", "''")},
		{"intents_customer_id_form", insert("customer_id", "'a:b'")},
		{"intents_customer_id_form", insert("customer_id", "' a'")},
		{"intents_customer_id_form", insert("customer_id", "repeat('é', 101)")},
		{"intents_billing_period_form", insert("billing_period", "'2026-8'")},
		{"intents_billing_period_form", insert("billing_period", "'2026-Q5'")},
		{"intents_billing_period_form", insert("billing_period", "E'2026-08\\n'")},
		{"intents_idempotency_key_formula", insert("idempotency_key", "'0123456789abcdef0123456789abcdef'")},
		{"intents_stripe_customer_id_form", insert("stripe_customer_id", "'cusx1'")},
		{"intents_amount_range", insert("amount_cents", "-1")},
		{"intents_amount_range", insert("amount_cents", "1000000000000")},
		{"intents_currency_form", insert("currency", "'USD'")},
		{"intents_payment_method_form", insert("payment_method", "'tok_1'")},
		{"intents_description_length", insert("description", "repeat('é', 501)")},
		{"intents_source_form", insert("source", "'event-hubs'")},
		{"intents_source_position_length", insert("source_position", "''")},
		{"intents_source_detail_object", insert("source_detail", "'[]'")},
		{"conflicts_first_detail_object", "UPDATE billing.conflicts SET first_detail = '1'"},
		{"quarantined_events_first_detail_object", "UPDATE billing.quarantined_events SET first_detail = 'null'"},
		{"intents_beginning", insert("status", "'charging'")},
		{"intents_beginning", insert("claim_number", "1")},
		{"intents_key_generation_positive", insert("key_generation", "0")},
		{"intents_run_id_fkey", insert("run_id", "-1")},
		{"intents_status_and_reason", insert("status_reason", "'sent'")},
		{"intents_charge_id_form", set("{CHARGING}", "status = 'charged', status_reason = 'charged', charge_id = 'pi_1'")},
		{"intents_payment_intent_id_form", set("{PENDING}", "payment_intent_id = 'ch_1'")},
		{"intents_reserved_is_amount", set("{PENDING}", "reserved_cents = 1, run_id = {RUN}")},
		{"intents_reservation_has_run", set("{PENDING}", "reserved_cents = amount_cents")},
		{"intents_nothing_due_is_zero", set("{PENDING}", "amount_cents = 0")},
		{"intents_nothing_due_is_zero", set("{NOTHING_DUE}", "amount_cents = 1")},
		{"intents_charged_has_charge", set("{PENDING}", "status = 'charged', status_reason = 'charged'")},
		{"intents_charged_has_charge", set("{PENDING}", "charge_id = 'ch_1'")},
		{"intents_charging_is_claimed", set("{PENDING}", "status = 'charging', status_reason = 'sent'")},
		{"intents_charging_is_claimed", set("{CHARGING}", "lease_until = NULL")},
		{"intents_charging_is_claimed", set("{CHARGING}", "reserved_cents = NULL")},
		{"intents_declined_and_voided_hold_nothing", set("{VOIDED}", "reserved_cents = amount_cents, run_id = {RUN}")},
		{"intents_charge_id_once", set("{PARKED}", "status = 'charged', status_reason = 'adopted', charge_id = (SELECT charge_id FROM billing.intents WHERE id = {CHARGED})")},
		{"intents_one_per_stripe_customer", set("{PENDING}", "guards_customer = true") + ";" + intentInsert(map[string]string{
			"namespace": "'other'", "guards_customer": "true", "stripe_customer_id": "(SELECT stripe_customer_id FROM billing.intents WHERE id = {PENDING})",
		})},
	}
}

func impossibleMoves() []impossibleRow {
	set := func(id, what string) string { return "UPDATE billing.intents SET " + what + " WHERE id = " + id }
	open := func(id string) string {
		return "UPDATE billing.charge_requests SET object_id = 'pi_open' WHERE intent_id = " + id + ";"
	}
	const next = "status = 'pending', status_reason = 'queued', key_generation = 2, reserved_cents = NULL"
	return []impossibleRow{
		{"intents_moves", set("{PENDING}", "status = 'card_declined', status_reason = 'card_declined'")},
		{"intents_moves", set("{CHARGED}", "status = 'parked', status_reason = 'mismatch'")},
		{"intents_unresolved_attempt", set("{CHARGING}", "status = 'pending', status_reason = 'queued'")},
		{"intents_identity", set("{PENDING}", "customer_id = 'somebody-else'")},
		{"intents_identity", set("{PENDING}", "billing_period = '2026-09'")},
		{"intents_identity", set("{PENDING}", "namespace = 'other'")},
		{"intents_identity", set("{PENDING}", "key_generation = 0")},
		{"intents_identity", set("{CHARGING}", "claim_number = 0")},
		{"intents_identity", set("{CHARGING}", "amount_cents = 5, reserved_cents = 5")},
		{"intents_identity", set("{CHARGING}", "currency = 'eur'")},
		{"intents_identity", set("{CHARGING}", "stripe_customer_id = 'cus_other'")},
		{"intents_identity", set("{CHARGING}", "key_generation = 2")},
		{"intents_identity", set("{CHARGED}", "amount_cents = 5, reserved_cents = 5")},
		{"intents_identity", set("{CHARGED}", "charge_id = 'ch_other'")},
		// Sent terms stay with their generation, and a new generation needs certainty about the old one.
		{"intents_terms", set("{CARD_DECLINED}", "amount_cents = 5")},
		{"intents_terms", set("{PARKED}", "currency = 'eur'")},
		{"intents_unresolved_attempt", `UPDATE billing.charge_attempts SET resolved_at = NULL, resolution = NULL WHERE intent_id = {PARKED};
			UPDATE billing.intents SET key_generation = 2, amount_cents = 5, reserved_cents = 5 WHERE id = {PARKED}`},
		// Nothing ends, and nothing begins anew, over an object that can still be paid.
		{"intents_open_object", open("{PARKED}") + set("{PARKED}", "status = 'voided', status_reason = 'by_operator', reserved_cents = NULL")},
		{"intents_open_object", open("{PARKED}") + set("{PARKED}", next)},
		// The next generation begins an intent that stood still, and only after what Stripe has definitively refused.
		{"intents_generation", set("{PENDING}", "key_generation = 2")},
		{"intents_generation", set("{PARKED}", "key_generation = 2")},
		{"intents_generation", set("{CARD_DECLINED}", "status = 'pending', status_reason = 'queued', key_generation = 3")},
		{"intents_generation", "UPDATE billing.charge_attempts SET result = 'denied', http_status = 402 WHERE intent_id = {PARKED};" + set("{PARKED}", next)},
		{"intents_generation", "UPDATE billing.charge_attempts SET result = 'unknown' WHERE intent_id = {PARKED};" + set("{PARKED}", next)},
		{"intents_generation", "UPDATE billing.charge_attempts SET http_status = 400, request_id = NULL WHERE intent_id = {PARKED};" + set("{PARKED}", next)},
	}
}

func impossibleRequests() []impossibleRow {
	// A copy of the charged intent's request with something else in it; what is not the intent's is refused first.
	request := func(change string) string {
		return `CREATE TEMP TABLE copy ON COMMIT DROP AS SELECT * FROM billing.charge_requests WHERE intent_id = {CHARGED};
			UPDATE copy SET intent_id = {PENDING}, (idempotency_key, amount_cents, customer) =
				(SELECT idempotency_key, amount_cents, stripe_customer_id FROM billing.intents WHERE id = {PENDING});
			UPDATE copy SET ` + change + `; INSERT INTO billing.charge_requests SELECT * FROM copy`
	}
	untriggered := func(change string) string {
		return "ALTER TABLE billing.charge_requests DISABLE TRIGGER charge_requests_terms;" + request(change)
	}
	rows := []impossibleRow{
		{"charge_requests_terms", request("intent_id = -1")},
		{"charge_requests_terms", request("key_generation = 2")},
		{"charge_requests_terms", request("idempotency_key = 'k'")},
		{"charge_requests_terms", request("amount_cents = amount_cents + 1")},
		{"charge_requests_terms", request("currency = 'eur'")},
		{"charge_requests_terms", request("customer = 'cus_other'")},
		{"charge_requests_intent_id_fkey", untriggered("intent_id = -1")},
		{"charge_requests_key_generation_positive", untriggered("key_generation = 0")},
		{"charge_requests_idempotency_key_once", untriggered("idempotency_key = (SELECT idempotency_key FROM billing.charge_requests WHERE intent_id = {CHARGED})")},
		{"charge_requests_stripe_api_known", request("stripe_api = 'sources'")},
		{"charge_requests_amount_positive", untriggered("amount_cents = 0")},
		{"charge_requests_object_id_form", "UPDATE billing.charge_requests SET object_id = 'req_1' WHERE intent_id = {CHARGING}"},
		{"charge_requests_frozen", "UPDATE billing.charge_requests SET object_id = 'pi_other' WHERE intent_id = {CHARGED}"},
		{"charge_requests_frozen", "UPDATE billing.charge_requests SET object_id = NULL WHERE intent_id = {CHARGED}"},
		{"charge_requests_frozen", `UPDATE billing.charge_requests SET saw_server_error = true WHERE intent_id = {CHARGED};
			UPDATE billing.charge_requests SET saw_server_error = false WHERE intent_id = {CHARGED}`},
	}
	for _, change := range []string{
		"intent_id = {PENDING}", "key_generation = 2", "idempotency_key = 'k'", "stripe_api = 'charges'", "path = '/other'", "body = 'other'",
		"api_version = 'v2'", "stripe_account = 'acct_other'", "livemode = true", "livemode = NULL", "customer = 'cus_other'", "amount_cents = 5",
		"currency = 'eur'", "payment_method = 'pm_other'", "first_sent_at = now()",
	} {
		rows = append(rows, impossibleRow{"charge_requests_frozen", "UPDATE billing.charge_requests SET " + change + " WHERE intent_id = {CHARGING}"})
	}
	attempt := func(what string) string {
		return "UPDATE billing.charge_attempts SET " + what + " WHERE intent_id = {CHARGING}"
	}
	return append(rows,
		impossibleRow{"charge_attempts_intent_id_fkey", attempt("intent_id = -1")},
		impossibleRow{"charge_attempts_operation_known", attempt("operation = 'refund'")},
		impossibleRow{"charge_attempts_result_known", attempt("result = 'fine', finished_at = now()")},
		impossibleRow{"charge_attempts_finished_has_result", attempt("finished_at = now()")},
		impossibleRow{"charge_attempts_finished_has_result", attempt("result = 'charged'")},
		impossibleRow{"charge_attempts_resolution_known", attempt("resolved_at = now(), resolution = 'perhaps'")},
		impossibleRow{"charge_attempts_resolution_complete", attempt("resolved_at = now()")},
		impossibleRow{"charge_attempts_resolution_complete", attempt("resolution = 'moved'")},
	)
}

func impossibleRest() []impossibleRow {
	conflict := func(intent string) string {
		return `INSERT INTO billing.conflicts (intent_id, amount_cents, currency, stripe_customer_id, first_source, first_position, last_source,
			last_position) VALUES (` + intent + `, 2, 'usd', 'cus_0', 'file', '1', 'file', '1')`
	}
	key := func(run, state string) string {
		return `INSERT INTO billing.vault_keys (run_id, state, label, usd_cap_cents, lease_until, expires_at)
			VALUES (` + run + `, '` + state + `', 'l', 1, now(), now())`
	}
	action := func(values string) string {
		return `INSERT INTO billing.operator_actions (actor, action, run_id, intent_id) VALUES (` + values + `)`
	}
	return []impossibleRow{
		{"conflicts_intent_id_fkey", conflict("-1")},
		{"conflicts_once_per_terms", conflict("{PENDING}")},
		{"conflicts_resolution_known", "UPDATE billing.conflicts SET resolved_at = now(), resolved_by = 'x', resolution = 'later'"},
		{"conflicts_resolution_complete", "UPDATE billing.conflicts SET resolved_at = now(), resolution = 'kept_first'"},
		{"quarantined_events_once", `INSERT INTO billing.quarantined_events (namespace, object_sha256, reason_code, reason, raw, first_source,
			first_position, last_source, last_position) VALUES ('usage', sha256('x'), 'not_json', 'other', 'y', 'file', '2', 'file', '2')`},
		{"quarantined_events_sha256_length", "UPDATE billing.quarantined_events SET object_sha256 = 'x'"},
		{"quarantined_events_reason_code_form", "UPDATE billing.quarantined_events SET reason_code = 'Not JSON'"},
		{"quarantined_events_resolution_complete", "UPDATE billing.quarantined_events SET resolved_at = now()"},
		{"source_counters_pkey", "INSERT INTO billing.source_counters VALUES ('usage', 'file', '0')"},
		{"eventhub_checkpoints_pkey", "INSERT INTO billing.eventhub_checkpoints VALUES ('ns', 'hub', '$default', '0', now(), 1, '1')"},
		{"eventhub_checkpoints_group_lower", "UPDATE billing.eventhub_checkpoints SET consumer_group = '$Default'"},
		{"eventhub_checkpoints_sequence_number_range", "UPDATE billing.eventhub_checkpoints SET sequence_number = -1"},
		{"eventhub_ownership_pkey", "INSERT INTO billing.eventhub_ownership VALUES ('ns', 'hub', '$default', '0', 'you')"},
		{"eventhub_ownership_group_lower", "UPDATE billing.eventhub_ownership SET consumer_group = '$Default'"},
		{"vault_keys_run_id_fkey", key("-1", "issuing")},
		{"vault_keys_state_known", key("{RUN}", "lost")},
		{"vault_keys_one_living_per_run", key("{RUN}", "issuing")},
		{"vault_keys_active_is_complete", "UPDATE billing.vault_keys SET state = 'active', issued_at = now(), encryption_key_id = 'k'"},
		{"operator_actions_actor_given", action("'', 'void', NULL, NULL")},
		{"operator_actions_reason_given", action("'a', 'intent_void', NULL, NULL")},
		{"operator_actions_run_id_fkey", action("'a', 'void', -1, NULL")},
		{"operator_actions_intent_id_fkey", action("'a', 'void', NULL, -1")},
		{"charging_switch_one_row", "INSERT INTO billing.charging_switch (only_row) VALUES (false)"},
		{"charging_switch_pkey", "INSERT INTO billing.charging_switch DEFAULT VALUES"},
		{"rate_budgets_kind_known", "INSERT INTO billing.rate_budgets (kind) VALUES ('refund')"},
		{"rate_budgets_percent_range", "UPDATE billing.rate_budgets SET percent = 0"},
		{"rate_budgets_percent_range", "UPDATE billing.rate_budgets SET percent = 101"},
	}
}
