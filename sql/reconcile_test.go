package sql_test

import (
	"testing"
)

// addReconciliation is one under way, with one payment listed.
func addReconciliation(t *testing.T, f *fixture, run int64) {
	t.Helper()
	mustExec(t, f, `INSERT INTO billing.reconciliations (run_id, actor, installation, worker, lease_until, listed_from)
		VALUES ($1, 'operator', 'default', 'w', now(), now())`, run)
	mustExec(t, f, `INSERT INTO billing.reconciliation_payments (reconciliation_id, object_id, charge_id, payment_intent_id, status, captured, customer,
		amount_cents, refunded_cents, refunded, disputed, currency, created_at, intent_key, charge_intent_key, key_generation, namespace, billing_period, customer_id)
		SELECT id, 'pi_1', 'ch_1', 'pi_1', 'succeeded', true, 'cus_1', 1, 0, false, false, 'usd', now(), 'k', '', '1', 'usage', '2026-08', 'c'
		FROM billing.reconciliations`)
}

func impossibleReconciliations() []impossibleRow {
	set := func(what string) string { return "UPDATE billing.reconciliations SET " + what }
	insert := func(run, actor string) string {
		return `INSERT INTO billing.reconciliations (run_id, actor, installation, worker, lease_until, listed_from)
			VALUES (` + run + `, ` + actor + `, 'default', 'w', now(), now())`
	}
	const ended = "finished_at = now(), "
	return []impossibleRow{
		{"reconciliations_run_id_fkey", insert("-1", "'operator'")},
		{"reconciliations_actor_given", set(ended+"outcome = 'abandoned'") + ";" + insert("{RUN}", "''")},
		{"reconciliations_one_at_a_time", insert("{RUN}", "'operator'")},
		{"reconciliations_stage_known", set("stage = 'nap'")},
		{"reconciliations_outcome_known", "ALTER TABLE billing.reconciliations DROP CONSTRAINT reconciliations_outcome_is_that_of_findings;" + set(ended+"outcome = 'maybe'")},
		{"reconciliations_finished_has_outcome", set("finished_at = now()")},
		{"reconciliations_finished_has_outcome", set("outcome = 'clean', result = '{}'")},
		{"reconciliations_outcome_is_that_of_findings", set(ended + "outcome = 'clean'")},
		{"reconciliations_outcome_is_that_of_findings", set(ended + `outcome = 'clean', result = '{}', finding_counts = '{"double_charge": 1}'`)},
		{"reconciliations_outcome_is_that_of_findings", set(ended + "outcome = 'found', result = '{}'")},
		{"reconciliations_outcome_is_that_of_findings", set(ended + "outcome = 'abandoned', result = '{}'")},
		{"reconciliation_payments_pkey", "INSERT INTO billing.reconciliation_payments SELECT * FROM billing.reconciliation_payments"},
		{"reconciliation_payments_reconciliation_id_fkey", "UPDATE billing.reconciliation_payments SET reconciliation_id = -1"},
	}
}
