-- +goose Up
-- Each program may do what it needs and nothing else. Roles belong to the cluster, not to the database: another
-- database's migration may be making them at this moment.

-- +goose StatementBegin
DO $$
DECLARE role_name text;
BEGIN
    FOREACH role_name IN ARRAY ARRAY['chargeonce_ingest', 'chargeonce_charger', 'chargeonce_console', 'chargeonce_finance'] LOOP
        -- Looked for first: whoever may not make roles can still migrate where somebody else has made them.
        CONTINUE WHEN EXISTS (SELECT 1 FROM pg_roles WHERE rolname = role_name);
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN', role_name);
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL; -- made by an earlier or a concurrent migration
        END;
    END LOOP;
END $$;
-- +goose StatementEnd

-- Postgres lets everybody call a new function.
REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA billing FROM PUBLIC;

-- Every program checks at its start that the database is migrated.
GRANT USAGE ON SCHEMA billing TO chargeonce_ingest, chargeonce_charger, chargeonce_console;
GRANT SELECT ON billing.schema_migrations TO chargeonce_ingest, chargeonce_charger, chargeonce_console;

-- Ingestors record; they cannot touch a status, a charge, a job or a vault key.
GRANT SELECT, INSERT ON billing.namespaces, billing.namespace_sources TO chargeonce_ingest;
GRANT SELECT (id, namespace, customer_id, billing_period, stripe_customer_id, amount_cents, currency, source, source_position)
    ON billing.intents TO chargeonce_ingest;
GRANT INSERT (namespace, customer_id, billing_period, idempotency_key, stripe_customer_id, amount_cents, currency,
    payment_method, description, status, status_reason, source, source_position, source_enqueued_at)
    ON billing.intents TO chargeonce_ingest;
GRANT SELECT (id, intent_id, amount_cents, currency, stripe_customer_id, deliveries, first_source, first_position),
    INSERT (intent_id, amount_cents, currency, stripe_customer_id, payment_method, description, deliveries,
        first_source, first_position, last_source, last_position),
    UPDATE (deliveries, last_source, last_position, last_seen_at)
    ON billing.conflicts TO chargeonce_ingest;
GRANT SELECT (id, namespace, object_sha256, reason_code, deliveries, first_source, first_position),
    INSERT (namespace, object_sha256, reason_code, field, reason, raw, deliveries, first_source, first_position, last_source, last_position),
    UPDATE (deliveries, last_source, last_position, last_seen_at)
    ON billing.quarantined_events TO chargeonce_ingest;
GRANT SELECT, INSERT, UPDATE ON billing.source_counters, billing.eventhub_checkpoints, billing.eventhub_ownership TO chargeonce_ingest;

-- The charger charges; it cannot invent an intent, delete anything that tells a story, or change a recorded event.
GRANT USAGE ON SCHEMA river TO chargeonce_charger;
GRANT SELECT ON ALL TABLES IN SCHEMA billing TO chargeonce_charger;
REVOKE SELECT ON billing.quarantined_events FROM chargeonce_charger;
GRANT SELECT (id, namespace, object_sha256, reason_code, field, reason, deliveries, first_source, first_position,
    last_source, last_position, created_at, last_seen_at, resolved_at, resolved_by, resolution)
    ON billing.quarantined_events TO chargeonce_charger;
GRANT UPDATE (stripe_customer_id, amount_cents, currency, payment_method, description, status, status_reason, status_detail, charge_id,
    payment_intent_id, key_generation, run_id, reserved_cents, guards_customer, river_job_id, redispatches, claim_number, lease_until, updated_at)
    ON billing.intents TO chargeonce_charger;
GRANT INSERT, UPDATE (status, status_reason, status_detail, expected_total_cents, expected_count, headroom_percent, cap_cents,
    allocated_cents, resume_count, vault_usd_cap_cents, stripe_account, livemode, updated_at, closed_at)
    ON billing.runs TO chargeonce_charger;
GRANT INSERT, UPDATE (livemode, object_id, object_canceled_at, saw_server_error, decline_code, advice_code)
    ON billing.charge_requests TO chargeonce_charger;
GRANT INSERT, UPDATE (lease_until, finished_at, result, http_status, request_id, replayed, error_type, error_code, decline_code,
    object_id, detail, resolved_at, resolution)
    ON billing.charge_attempts TO chargeonce_charger;
GRANT INSERT, UPDATE (state, label, provider_key_id, ciphertext, encryption_key_id, usd_cap_cents, lease_until, issued_at, expires_at, ended_at)
    ON billing.vault_keys TO chargeonce_charger;
GRANT EXECUTE ON FUNCTION billing.take_tokens TO chargeonce_charger;
GRANT UPDATE ON billing.charging_switch, billing.rate_budgets TO chargeonce_charger;
GRANT UPDATE (resolved_at, resolution, resolved_by) ON billing.conflicts, billing.quarantined_events TO chargeonce_charger;
GRANT INSERT ON billing.operator_actions TO chargeonce_charger;
GRANT SELECT, INSERT, UPDATE, DELETE ON river.river_job, river.river_leader, river.river_queue TO chargeonce_charger;
GRANT SELECT ON river.river_migration TO chargeonce_charger;
GRANT USAGE ON SEQUENCE river.river_job_id_seq TO chargeonce_charger;

-- The console shows and moves jobs; it sees neither vault keys nor frozen requests nor raw events.
GRANT USAGE ON SCHEMA river TO chargeonce_console;
GRANT SELECT ON billing.runs, billing.charging_switch, billing.source_counters TO chargeonce_console;
GRANT SELECT, UPDATE, DELETE ON river.river_job TO chargeonce_console;
GRANT SELECT, UPDATE ON river.river_queue TO chargeonce_console;
GRANT SELECT ON river.river_migration, river.river_leader TO chargeonce_console;
GRANT INSERT ON billing.operator_actions TO chargeonce_console;
