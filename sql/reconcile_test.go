package sql_test

import (
	"testing"
)

// addReconciliation is one under way, with one payment listed and one thing found.
func addReconciliation(t *testing.T, f *fixture, run int64) {
	t.Helper()
	mustExec(t, f, `INSERT INTO billing.reconciliations (run_id, actor, installation, worker, lease_until, listed_from)
		VALUES ($1, 'operator', 'default', 'w', now(), now())`, run)
	mustExec(t, f, `INSERT INTO billing.reconciliation_payments (reconciliation_id, object_id, payment_intent_id, moved, customer,
		amount_cents, refunded_cents, currency, created_at, intent_key, namespace, billing_period, customer_id, installation)
		SELECT id, 'ch_1', 'pi_1', true, 'cus_1', 1, 0, 'usd', now(), 'k', 'usage', '2026-08', 'c', 'default' FROM billing.reconciliations`)
	mustExec(t, f, `INSERT INTO billing.reconciliation_findings (reconciliation_id, kind, customer_id, stripe_customer, object_ids, amount_cents, currency, detail)
		SELECT id, 'charge_without_intent', 'c', 'cus_1', '{ch_1}', 1, 'usd', 'd' FROM billing.reconciliations`)
}

func impossibleReconciliations() []impossibleRow {
	set := func(what string) string { return "UPDATE billing.reconciliations SET " + what }
	insert := func(run, actor string) string {
		return `INSERT INTO billing.reconciliations (run_id, actor, installation, worker, lease_until, listed_from)
			VALUES (` + run + `, ` + actor + `, 'default', 'w', now(), now())`
	}
	return []impossibleRow{
		{"reconciliations_run_id_fkey", insert("-1", "'operator'")},
		{"reconciliations_actor_given", set("finished_at = now(), outcome = 'abandoned'") + ";" + insert("{RUN}", "''")},
		{"reconciliations_one_at_a_time", insert("{RUN}", "'operator'")},
		{"reconciliations_stage_known", set("stage = 'nap'")},
		{"reconciliations_outcome_known", set("finished_at = now(), outcome = 'maybe'")},
		{"reconciliations_finished_has_outcome", set("finished_at = now()")},
		{"reconciliations_finished_has_outcome", set("outcome = 'clean'")},
		{"reconciliation_payments_pkey", "INSERT INTO billing.reconciliation_payments SELECT * FROM billing.reconciliation_payments"},
		{"reconciliation_payments_reconciliation_id_fkey", "UPDATE billing.reconciliation_payments SET reconciliation_id = -1"},
		{"reconciliation_findings_kind_known", "UPDATE billing.reconciliation_findings SET kind = 'nothing'"},
		{"reconciliation_findings_reconciliation_id_fkey", "UPDATE billing.reconciliation_findings SET reconciliation_id = -1"},
		{"reconciliation_findings_intent_id_fkey", "UPDATE billing.reconciliation_findings SET intent_id = -1"},
	}
}
