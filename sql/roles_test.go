package sql_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"chargeonce/schema"
	"chargeonce/sql"
)

const insufficientPrivilege = "42501"

// rights are statements that a role must be able to run, and others that it must not.
type rights struct{ allowed, forbidden []string }

func TestRolesMayDoTheirWorkAndNothingElse(t *testing.T) {
	t.Parallel()
	tables := map[string]rights{
		sql.RoleIngest: ingestRights(), sql.RoleCharger: chargerRights(), sql.RoleConsole: consoleRights(), sql.RoleFinance: financeRights(),
		sql.RoleQuarantine: quarantineRights(),
	}
	for role, table := range tables {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			run := f.usualRun(t)
			for _, status := range schema.Statuses() {
				f.bring(t, run, owed{}, status, status.Reasons()[0])
			}
			f.conflict(t, 1, 5)
			pool := f.db.Pool(t, role)
			require.Equal(t, role, one[string](t, pool, "SELECT current_user::text"))
			for _, statement := range table.allowed {
				tx, err := pool.Begin(t.Context())
				require.NoError(t, err)
				_, err = tx.Exec(t.Context(), statement)
				require.NoError(t, err, statement)
				require.NoError(t, tx.Rollback(t.Context()))
			}
			if role != sql.RoleQuarantine {
				table.forbidden = append(table.forbidden, "SELECT raw FROM billing.quarantined_events")
			}
			for _, statement := range append(table.forbidden, forbiddenToAll()...) {
				_, err := pool.Exec(t.Context(), statement)
				requireForbidden(t, err, statement)
			}
		})
	}
}

func requireForbidden(t *testing.T, err error, statement string) {
	t.Helper()
	pgErr, ok := err.(*pgconn.PgError) //nolint:errorlint // Exec returns it unwrapped
	require.True(t, ok, "allowed, or another error: %s: %v", statement, err)
	require.Equal(t, insufficientPrivilege, pgErr.Code, "%s: %v", statement, err)
}

func forbiddenToAll() []string {
	return []string{
		"ALTER TABLE billing.intents ADD COLUMN x integer", "DROP TABLE billing.intents", "DROP TRIGGER intents_moves ON billing.intents",
		"ALTER TABLE billing.intents DISABLE TRIGGER ALL", "ALTER TABLE billing.intents DROP CONSTRAINT intents_amount_range",
		"TRUNCATE billing.intents", "TRUNCATE billing.charge_attempts", "CREATE TABLE billing.x ()", "CREATE TABLE finance.x ()",
		"CREATE TABLE river.x ()", "DROP VIEW finance.intents", "CREATE OR REPLACE VIEW finance.quarantine AS SELECT 1",
		"DROP SCHEMA billing CASCADE", "DROP SCHEMA finance CASCADE", "DROP FUNCTION billing.check_intent_move", "DROP INDEX billing.intents_charge_id_once",
		"CREATE INDEX ON billing.intents (id)", "CREATE TRIGGER x BEFORE UPDATE ON billing.intents FOR EACH ROW EXECUTE FUNCTION billing.check_intent_move()",
		"DELETE FROM billing.schema_migrations", "INSERT INTO billing.schema_migrations (version_id, is_applied) VALUES (9, true)",
		"DELETE FROM billing.intents", "DELETE FROM billing.charge_attempts", "DELETE FROM billing.charge_requests", "DELETE FROM billing.conflicts",
		"DELETE FROM billing.runs", "DELETE FROM billing.vault_keys", "DELETE FROM billing.operator_actions", "DELETE FROM billing.quarantined_events",
		"DELETE FROM billing.reconciliations", "UPDATE billing.reconciliations SET run_id = 1", "UPDATE billing.reconciliations SET started_at = now()",
		"UPDATE billing.reconciliation_payments SET amount_cents = 1", "TRUNCATE billing.reconciliation_payments",
		"UPDATE billing.reconciliation_findings SET kind = 'refunded'", "DELETE FROM billing.reconciliation_findings",
		"DELETE FROM billing.charging_switch", "DELETE FROM billing.rate_budgets", "DELETE FROM billing.namespaces", "UPDATE billing.operator_actions SET reason = ''",
		"SELECT * FROM billing.quarantined_events", "GRANT SELECT ON billing.intents TO PUBLIC; SELECT * FROM billing.quarantined_events", "CREATE ROLE somebody",
		"DELETE FROM finance.quarantine", "UPDATE finance.quarantine SET reason = ''", "SELECT billing.check_intent_terms()",
		"DELETE FROM river.river_migration",
	}
}

func ingestRights() rights {
	const conflict = `INSERT INTO billing.conflicts (intent_id, amount_cents, currency, stripe_customer_id, payment_method, description, first_source,
		first_position, last_source, last_position) VALUES (1, 5, 'usd', 'cus_0', NULL, NULL, 'file', '2', 'file', '2')
		ON CONFLICT (intent_id, amount_cents, currency, stripe_customer_id) DO UPDATE SET deliveries = conflicts.deliveries + 1, last_position = '2'`
	return rights{
		allowed: []string{
			intentInsert(nil) + " ON CONFLICT DO NOTHING RETURNING id",
			intentInsert(map[string]string{"amount_cents": "0", "status": "'nothing_due'", "status_reason": "'zero_amount'"}),
			"SELECT id, amount_cents, currency, stripe_customer_id, source, source_position FROM billing.intents WHERE namespace = 'usage' AND billing_period = '2026-08' AND customer_id = 'x'",
			"INSERT INTO billing.namespaces (namespace, period_format) VALUES ('new', 'day') ON CONFLICT DO NOTHING",
			"INSERT INTO billing.namespace_sources (namespace, source, mapping, mapping_fingerprint) VALUES ('usage', 'solace', '{}', 'f')",
			conflict,
			`INSERT INTO billing.quarantined_events (namespace, object_sha256, reason_code, reason, raw, first_source, first_position, last_source, last_position)
				VALUES ('usage', sha256('x'), 'not_json', 'no', 'x', 'file', '1', 'file', '1') ON CONFLICT (namespace, object_sha256, reason_code)
				DO UPDATE SET deliveries = quarantined_events.deliveries + 1`,
			"INSERT INTO billing.source_counters (namespace, source, source_partition, intents) VALUES ('usage', 'file', '0', 1) ON CONFLICT (namespace, source, source_partition) DO UPDATE SET intents = source_counters.intents + 1",
			"INSERT INTO billing.eventhub_ownership VALUES ('ns', 'hub', '$default', '0', 'me')",
			"UPDATE billing.eventhub_checkpoints SET sequence_number = 5",
			"SELECT max(version_id) FROM billing.schema_migrations",
		},
		forbidden: []string{
			"UPDATE billing.intents SET status = 'voided'", "UPDATE billing.intents SET amount_cents = 1", "UPDATE billing.intents SET source_position = '2'",
			intentInsert(map[string]string{"charge_id": "'ch_1'"}), intentInsert(map[string]string{"run_id": "1"}),
			intentInsert(map[string]string{"reserved_cents": "100"}), intentInsert(map[string]string{"river_job_id": "1"}),
			intentInsert(map[string]string{"key_generation": "2"}), intentInsert(map[string]string{"created_at": "now()"}),
			"SELECT status FROM billing.intents", "SELECT charge_id FROM billing.intents", "SELECT * FROM billing.intents FOR UPDATE",
			"SELECT * FROM billing.vault_keys", "SELECT * FROM billing.reconciliations", "SELECT * FROM billing.runs", "SELECT * FROM billing.charge_requests", "SELECT * FROM billing.charge_attempts",
			"UPDATE billing.conflicts SET resolved_at = NULL", "UPDATE billing.conflicts SET amount_cents = 1", "UPDATE billing.quarantined_events SET raw = ''",
			"UPDATE billing.namespaces SET period_format = 'day'", "UPDATE billing.charging_switch SET stopped = false", "SELECT billing.take_tokens('create', 1, 1)",
			"INSERT INTO river.river_job (args, kind) VALUES ('{}', 'charge')", "SELECT * FROM river.river_job", "SELECT * FROM finance.intents",
			"INSERT INTO billing.operator_actions (actor, action) VALUES ('x', 'y')", "DELETE FROM billing.eventhub_checkpoints", "DELETE FROM billing.source_counters",
		},
	}
}

func chargerRights() rights {
	return rights{
		allowed: []string{
			"SELECT * FROM billing.intents", "SELECT * FROM billing.vault_keys", "SELECT * FROM billing.charge_requests", "SELECT * FROM billing.conflicts",
			"SELECT id, reason, resolved_at FROM billing.quarantined_events", "SELECT * FROM finance.intents", "SELECT * FROM finance.run_status",
			"SELECT id FROM billing.intents FOR NO KEY UPDATE", "SELECT id FROM billing.runs FOR UPDATE SKIP LOCKED",
			"UPDATE billing.intents SET status = 'voided', status_reason = 'by_operator', reserved_cents = NULL, updated_at = now() WHERE status = 'pending'",
			"INSERT INTO billing.runs (namespace, billing_period, currency, expected_total_cents, headroom_percent, cap_cents, opened_by) VALUES ('usage', '2026-09', 'usd', 1, '0', 1, 'o') RETURNING id",
			"UPDATE billing.runs SET status = 'paused', status_reason = 'paused_by_operator', cap_cents = cap_cents + 1, resume_count = 1",
			"UPDATE billing.charge_attempts SET detail = 'x'", "UPDATE billing.charge_requests SET advice_code = 'x'",
			"UPDATE billing.charging_switch SET stopped = true", "SELECT billing.take_tokens('create', 1, 1)",
			"UPDATE billing.conflicts SET resolved_at = now(), resolution = 'kept_first', resolved_by = 'o'",
			`INSERT INTO billing.conflicts (intent_id, amount_cents, currency, stripe_customer_id, first_source, first_position, last_source, last_position,
				resolved_at, resolution, resolved_by) VALUES (1, 7, 'usd', 'cus_0', 'file', '1', 'file', '1', now(), 'replaced', 'o')`,
			"SELECT raw_bytes FROM billing.quarantined_events", "SELECT billing.open_object(1), billing.generation_is_over(1, 1)",
			"UPDATE billing.quarantined_events SET resolved_at = now(), resolution = 'gone', resolved_by = 'o'",
			"INSERT INTO billing.vault_keys (run_id, state, label, usd_cap_cents, lease_until, expires_at) SELECT id, 'issuing', 'l', 1, now(), now() FROM billing.runs RETURNING id",
			"INSERT INTO billing.operator_actions (actor, action) VALUES ('o', 'void')",
			"INSERT INTO billing.reconciliations (run_id, actor, installation, worker, lease_until, listed_from) SELECT id, 'o', 'i', 'w', now(), now() FROM billing.runs RETURNING id",
			"UPDATE billing.reconciliations SET finished_at = now(), outcome = 'clean', counted = '{}'", "DELETE FROM billing.reconciliation_payments",
			"SELECT * FROM billing.reconciliation_findings",
			"INSERT INTO river.river_job (args, kind) VALUES ('{}', 'charge') RETURNING id", "UPDATE river.river_job SET priority = 2", "DELETE FROM river.river_job",
			"INSERT INTO river.river_queue (name, updated_at) VALUES ('q', now())", "DELETE FROM river.river_queue", "DELETE FROM river.river_leader",
			"SELECT * FROM river.river_migration", "SELECT max(version_id) FROM billing.schema_migrations",
		},
		forbidden: []string{
			intentInsert(nil), "UPDATE billing.intents SET source_position = '2'", "UPDATE billing.intents SET source = 'solace'",
			"UPDATE billing.intents SET customer_id = 'x'", "UPDATE billing.intents SET created_at = now()", "UPDATE billing.intents SET idempotency_key = 'x'",
			"UPDATE billing.runs SET currency = 'eur'", "UPDATE billing.runs SET billing_period = '2026-09'", "UPDATE billing.runs SET opened_by = 'x'",
			"UPDATE billing.charge_requests SET body = 'x'", "UPDATE billing.charge_requests SET idempotency_key = 'x'", "UPDATE billing.charge_requests SET first_sent_at = now()",
			"UPDATE billing.charge_attempts SET operation = 'read'", "UPDATE billing.charge_attempts SET intent_id = 2", "UPDATE billing.charge_attempts SET started_at = now()",
			"UPDATE billing.conflicts SET amount_cents = 5", "UPDATE billing.quarantined_events SET reason = 'x'", "INSERT INTO billing.conflicts (created_at) VALUES (now())",
			"INSERT INTO billing.quarantined_events (namespace) VALUES ('usage')", "UPDATE billing.namespaces SET many_per_stripe_customer = true",
			"INSERT INTO billing.charging_switch DEFAULT VALUES", "INSERT INTO billing.rate_budgets (kind) VALUES ('read')", "UPDATE billing.eventhub_checkpoints SET sequence_number = 0",
			"UPDATE billing.source_counters SET intents = 0",
		},
	}
}

func consoleRights() rights {
	return rights{
		allowed: []string{
			"SELECT * FROM billing.runs", "SELECT * FROM billing.charging_switch", "SELECT * FROM billing.source_counters", "SELECT * FROM billing.reconciliations", "SELECT * FROM finance.intents",
			"SELECT * FROM finance.period_summary", "SELECT * FROM finance.run_status", "SELECT * FROM finance.conflicts", "SELECT * FROM finance.quarantine",
			"SELECT * FROM river.river_job", "UPDATE river.river_job SET priority = 2", "DELETE FROM river.river_job", "UPDATE river.river_queue SET paused_at = now()",
			"SELECT * FROM river.river_leader", "SELECT max(version_id) FROM billing.schema_migrations", "INSERT INTO billing.operator_actions (actor, action) VALUES ('o', 'pause')",
		},
		forbidden: []string{
			"SELECT ciphertext FROM billing.vault_keys", "SELECT id FROM billing.vault_keys", "SELECT body FROM billing.charge_requests", "SELECT * FROM billing.charge_attempts",
			"SELECT * FROM billing.intents", "UPDATE billing.intents SET status = 'voided'", intentInsert(nil), "UPDATE billing.runs SET status = 'paused'",
			"UPDATE billing.charging_switch SET stopped = true", "INSERT INTO river.river_job (args, kind) VALUES ('{}', 'charge')", "SELECT billing.take_tokens('create', 1, 1)",
			"SELECT * FROM billing.reconciliation_payments", "UPDATE billing.reconciliations SET outcome = 'clean'",
			"UPDATE river.river_leader SET leader_id = 'x'", "DELETE FROM river.river_queue", "SELECT * FROM billing.operator_actions",
		},
	}
}

func quarantineRights() rights {
	return rights{
		allowed: []string{
			"SELECT id, raw FROM billing.quarantined_events", "SELECT max(version_id) FROM billing.schema_migrations",
			"INSERT INTO billing.operator_actions (actor, action, reason) VALUES ('o', 'quarantine_read', 'a producer asks')",
		},
		forbidden: []string{
			"SELECT reason FROM billing.quarantined_events", "UPDATE billing.quarantined_events SET resolved_at = now(), resolution = 'x', resolved_by = 'x'",
			"SELECT id FROM billing.intents", "SELECT id FROM billing.runs", "SELECT * FROM billing.vault_keys", "SELECT * FROM billing.conflicts", "SELECT * FROM billing.operator_actions",
			"SELECT * FROM finance.intents", "SELECT * FROM river.river_job", intentInsert(nil), "SELECT billing.open_object(1)",
		},
	}
}

func financeRights() rights {
	return rights{
		allowed: []string{
			"SELECT * FROM finance.intents", "SELECT * FROM finance.period_summary WHERE namespace = 'usage' AND billing_period = '2026-08'",
			"SELECT * FROM finance.run_status", "SELECT * FROM finance.conflicts", "SELECT * FROM finance.quarantine", "SELECT finance.amount(5, 'kwd'), finance.decimals('jpy')",
		},
		forbidden: []string{
			"SELECT * FROM billing.intents", "SELECT id FROM billing.runs", "SELECT * FROM billing.vault_keys", "SELECT * FROM billing.charge_requests",
			"SELECT * FROM billing.charge_attempts", "SELECT * FROM billing.conflicts", "SELECT * FROM billing.source_counters", "SELECT * FROM billing.schema_migrations",
			"SELECT * FROM billing.operator_actions", "SELECT * FROM billing.reconciliations", "SELECT * FROM billing.reconciliation_payments",
			"SELECT * FROM river.river_job", "SELECT * FROM river.river_migration", "SELECT billing.take_tokens('create', 1, 1)",
			intentInsert(nil), "UPDATE billing.intents SET amount_cents = 1", "INSERT INTO river.river_job (args, kind) VALUES ('{}', 'charge')",
		},
	}
}

func TestPublicHasNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for what, query := range map[string]string{
		"schemas": `SELECT count(*) FROM pg_namespace n, aclexplode(coalesce(nspacl, acldefault('n', nspowner))) a
			WHERE n.nspname IN ('billing', 'finance', 'river') AND a.grantee = 0`,
		"tables, views and sequences": `SELECT count(*) FROM pg_class c, aclexplode(coalesce(relacl, acldefault(CASE relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", relowner))) a
			WHERE c.relnamespace IN ('billing'::regnamespace, 'finance'::regnamespace, 'river'::regnamespace) AND a.grantee = 0`,
		"columns": `SELECT count(*) FROM pg_attribute t JOIN pg_class c ON c.oid = t.attrelid, aclexplode(t.attacl) a
			WHERE c.relnamespace IN ('billing'::regnamespace, 'finance'::regnamespace, 'river'::regnamespace) AND a.grantee = 0`,
		// River's own functions are its own affair: its schema is closed, and its index needs them.
		"functions": `SELECT count(*) FROM pg_proc p, aclexplode(coalesce(proacl, acldefault('f', proowner))) a
			WHERE p.pronamespace IN ('billing'::regnamespace, 'finance'::regnamespace) AND a.grantee = 0`,
	} {
		require.Zero(t, count(t, f, query), what)
	}
	// A role of the cluster without any right here.
	stranger := f.db.Pool(t, "pg_monitor")
	for _, statement := range []string{
		"SELECT * FROM finance.intents", "SELECT * FROM billing.intents", "SELECT * FROM river.river_job", "SELECT finance.decimals('usd')",
		"SELECT billing.take_tokens('create', 1, 1)", "SELECT * FROM billing.schema_migrations",
	} {
		_, err := stranger.Exec(t.Context(), statement)
		requireForbidden(t, err, statement)
	}
}

func TestRolesCannotLogInOrRule(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, role := range []string{sql.RoleIngest, sql.RoleCharger, sql.RoleConsole, sql.RoleFinance, sql.RoleQuarantine} {
		require.Equal(t, int64(1), count(t, f, `SELECT count(*) FROM pg_roles WHERE rolname = $1 AND NOT rolcanlogin AND NOT rolsuper
			AND NOT rolcreaterole AND NOT rolcreatedb AND NOT rolbypassrls AND NOT rolreplication`, role), role)
		require.Zero(t, count(t, f, "SELECT count(*) FROM pg_auth_members WHERE member = $1::text::regrole", role), "%s is a member of nothing", role)
		require.Zero(t, count(t, f, `SELECT count(*) FROM pg_shdepend d WHERE d.refobjid = $1::text::regrole AND d.deptype = 'o'
			AND d.dbid = (SELECT oid FROM pg_database WHERE datname = current_database())`, role), "%s owns nothing", role)
	}
}
