-- +goose Up
-- The contract with finance: views only, changed only by adding.

CREATE SCHEMA finance;

-- How many digits of the minor unit make one unit of the currency, as Stripe counts them.
CREATE FUNCTION finance.decimals(currency text) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE
        WHEN currency IN ('bif', 'clp', 'djf', 'gnf', 'jpy', 'kmf', 'krw', 'mga', 'pyg', 'rwf', 'vnd', 'vuv', 'xaf', 'xof', 'xpf') THEN 0
        WHEN currency IN ('bhd', 'jod', 'kwd', 'omr', 'tnd') THEN 3
        ELSE 2 END
$$;

CREATE FUNCTION finance.amount(minor bigint, currency text) RETURNS numeric LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT round(minor / power(10::numeric, finance.decimals(currency)), finance.decimals(currency))
$$;

-- One row an intent: what is owed, where it stands, and why.
CREATE VIEW finance.intents AS
SELECT i.id,
       i.namespace,
       i.billing_period,
       i.customer_id,
       i.stripe_customer_id,
       i.amount_cents,
       i.currency,
       finance.amount(i.amount_cents, i.currency) AS amount,
       i.status,
       -- Why it waits is a fact of its run (or of an open conflict), so it is read there and not copied into a million rows.
       CASE
           WHEN i.status <> 'pending' THEN i.status_reason
           WHEN q.intent_id IS NULL AND EXISTS (
               SELECT 1 FROM billing.conflicts c WHERE c.intent_id = i.id AND c.resolved_at IS NULL) THEN 'conflict'
           WHEN i.status_reason = 'same_customer' THEN 'same_customer'
           WHEN r.id IS NULL OR r.status = 'closed' THEN 'no_run'
           WHEN (SELECT w.stopped FROM billing.charging_switch w) THEN 'stopped'
           WHEN r.status = 'paused' THEN 'run_paused'
           WHEN i.status_reason = 'run_capped' THEN 'run_capped'
           ELSE 'queued'
       END AS status_reason,
       i.status_detail,
       i.charge_id,
       i.payment_intent_id,
       i.idempotency_key,
       i.key_generation,
       q.first_sent_at,
       q.decline_code,
       EXISTS (SELECT 1 FROM billing.charge_attempts a
               WHERE a.intent_id = i.id AND a.operation = 'create' AND a.resolved_at IS NULL
                 AND (a.finished_at IS NOT NULL OR a.lease_until < now())) AS in_doubt,
       (SELECT count(*) FROM billing.charge_attempts a WHERE a.intent_id = i.id) AS charge_attempt_count,
       EXISTS (SELECT 1 FROM billing.conflicts c WHERE c.intent_id = i.id AND c.resolved_at IS NULL) AS open_conflict,
       -- The same customer and period in another namespace may be one obligation billed twice.
       ARRAY(SELECT n.namespace FROM billing.namespaces n
             WHERE n.namespace <> i.namespace
               AND EXISTS (SELECT 1 FROM billing.intents o
                           WHERE o.namespace = n.namespace AND o.billing_period = i.billing_period AND o.customer_id = i.customer_id)
             ORDER BY n.namespace) AS also_in_namespaces,
       r.id AS run_id,
       i.river_job_id,
       i.source,
       i.source_position,
       i.created_at,
       i.updated_at,
       CASE WHEN i.status = 'charged' THEN coalesce(
           (SELECT min(a.resolved_at) FROM billing.charge_attempts a WHERE a.intent_id = i.id AND a.resolution = 'moved'),
           i.updated_at) END AS charged_at
FROM billing.intents i
LEFT JOIN billing.runs r ON r.namespace = i.namespace AND r.billing_period = i.billing_period AND r.currency = i.currency
LEFT JOIN billing.charge_requests q ON q.intent_id = i.id AND q.key_generation = i.key_generation;

-- How much stands where, for a period: count and sum by status and reason.
CREATE VIEW finance.period_summary AS
SELECT namespace,
       billing_period,
       currency,
       status,
       status_reason,
       count(*) AS intents,
       sum(amount_cents)::bigint AS amount_cents,
       finance.amount(sum(amount_cents)::bigint, currency) AS amount
FROM finance.intents
GROUP BY namespace, billing_period, currency, status, status_reason;

-- One row a billing run: expected against ingested against charged.
CREATE VIEW finance.run_status AS
SELECT r.id AS run_id,
       r.namespace,
       r.billing_period,
       r.currency,
       r.status,
       r.status_reason,
       r.status_detail,
       r.expected_count,
       r.expected_total_cents,
       r.cap_cents,
       r.allocated_cents,
       (r.cap_cents - r.allocated_cents)::bigint AS unallocated_cents,
       coalesce(s.ingested_count, 0) AS ingested_count,
       coalesce(s.ingested_cents, 0) AS ingested_cents,
       s.missing_count,
       (r.expected_total_cents - coalesce(s.ingested_cents, 0))::bigint AS missing_cents,
       coalesce(s.charged_count, 0) AS charged_count,
       coalesce(s.charged_cents, 0) AS charged_cents,
       coalesce(s.declined_count, 0) AS declined_count,
       coalesce(s.declined_cents, 0) AS declined_cents,
       coalesce(s.pending_count, 0) AS pending_count,
       coalesce(s.pending_cents, 0) AS pending_cents,
       coalesce(s.charging_count, 0) AS charging_count,
       coalesce(s.charging_cents, 0) AS charging_cents,
       coalesce(s.parked_count, 0) AS parked_count,
       coalesce(s.parked_cents, 0) AS parked_cents,
       coalesce(s.voided_count, 0) AS voided_count,
       coalesce(s.nothing_due_count, 0) AS nothing_due_count,
       (SELECT count(DISTINCT a.intent_id) FROM billing.charge_attempts a JOIN billing.intents i ON i.id = a.intent_id
        WHERE a.operation = 'create' AND a.resolved_at IS NULL AND (a.finished_at IS NOT NULL OR a.lease_until < now())
          AND i.run_id = r.id) AS in_doubt_count,
       (SELECT count(*) FROM billing.conflicts c JOIN billing.intents i ON i.id = c.intent_id
        WHERE c.resolved_at IS NULL AND i.namespace = r.namespace AND i.billing_period = r.billing_period
          AND i.currency = r.currency) AS open_conflicts,
       r.opened_by,
       r.opened_at,
       r.closed_at,
       coalesce(s.voided_cents, 0) AS voided_cents,
       finance.amount(r.expected_total_cents, r.currency) AS expected_total_amount,
       finance.amount(r.cap_cents, r.currency) AS cap_amount,
       finance.amount(r.allocated_cents, r.currency) AS allocated_amount,
       finance.amount(r.cap_cents - r.allocated_cents, r.currency) AS unallocated_amount,
       finance.amount(coalesce(s.ingested_cents, 0), r.currency) AS ingested_amount,
       finance.amount(r.expected_total_cents - coalesce(s.ingested_cents, 0), r.currency) AS missing_amount,
       finance.amount(coalesce(s.charged_cents, 0), r.currency) AS charged_amount,
       finance.amount(coalesce(s.declined_cents, 0), r.currency) AS declined_amount,
       finance.amount(coalesce(s.pending_cents, 0), r.currency) AS pending_amount,
       finance.amount(coalesce(s.charging_cents, 0), r.currency) AS charging_amount,
       finance.amount(coalesce(s.parked_cents, 0), r.currency) AS parked_amount,
       finance.amount(coalesce(s.voided_cents, 0), r.currency) AS voided_amount
FROM billing.runs r
LEFT JOIN LATERAL (
    SELECT count(*) AS ingested_count,
           (r.expected_count - count(*))::bigint AS missing_count,
           sum(i.amount_cents)::bigint AS ingested_cents,
           count(*) FILTER (WHERE i.status = 'charged') AS charged_count,
           sum(i.amount_cents) FILTER (WHERE i.status = 'charged')::bigint AS charged_cents,
           count(*) FILTER (WHERE i.status = 'card_declined') AS declined_count,
           sum(i.amount_cents) FILTER (WHERE i.status = 'card_declined')::bigint AS declined_cents,
           count(*) FILTER (WHERE i.status = 'pending') AS pending_count,
           sum(i.amount_cents) FILTER (WHERE i.status = 'pending')::bigint AS pending_cents,
           count(*) FILTER (WHERE i.status = 'charging') AS charging_count,
           sum(i.amount_cents) FILTER (WHERE i.status = 'charging')::bigint AS charging_cents,
           count(*) FILTER (WHERE i.status = 'parked') AS parked_count,
           sum(i.amount_cents) FILTER (WHERE i.status = 'parked')::bigint AS parked_cents,
           count(*) FILTER (WHERE i.status = 'voided') AS voided_count,
           sum(i.amount_cents) FILTER (WHERE i.status = 'voided')::bigint AS voided_cents,
           count(*) FILTER (WHERE i.status = 'nothing_due') AS nothing_due_count
    FROM billing.intents i
    WHERE i.namespace = r.namespace AND i.billing_period = r.billing_period AND i.currency = r.currency
) s ON true;

-- Same customer and period, other terms: both sides, for a person to decide.
CREATE VIEW finance.conflicts AS
SELECT c.id,
       i.namespace,
       i.billing_period,
       i.customer_id,
       c.intent_id,
       i.status AS intent_status,
       i.amount_cents AS intent_amount_cents,
       i.currency AS intent_currency,
       finance.amount(i.amount_cents, i.currency) AS intent_amount,
       i.stripe_customer_id AS intent_stripe_customer_id,
       c.amount_cents AS other_amount_cents,
       c.currency AS other_currency,
       finance.amount(c.amount_cents, c.currency) AS other_amount,
       c.stripe_customer_id AS other_stripe_customer_id,
       c.deliveries,
       i.source AS intent_source,
       i.source_position AS intent_position,
       c.first_source AS other_first_source,
       c.first_position AS other_first_position,
       c.last_source AS other_last_source,
       c.last_position AS other_last_position,
       c.created_at,
       c.last_seen_at,
       c.resolved_at,
       c.resolution,
       c.resolved_by
FROM billing.conflicts c
JOIN billing.intents i ON i.id = c.intent_id;

-- Money that waits because nobody has opened its run.
CREATE VIEW finance.without_run AS
SELECT i.namespace,
       i.billing_period,
       i.currency,
       count(*) AS intents,
       sum(i.amount_cents)::bigint AS amount_cents,
       finance.amount(sum(i.amount_cents)::bigint, i.currency) AS amount,
       min(i.created_at)::timestamptz AS oldest_at
FROM billing.intents i
WHERE i.status = 'pending' AND i.river_job_id IS NULL
  AND NOT EXISTS (SELECT 1 FROM billing.runs r
                  WHERE r.namespace = i.namespace AND r.billing_period = i.billing_period AND r.currency = i.currency
                    AND r.status <> 'closed')
GROUP BY i.namespace, i.billing_period, i.currency;

-- What could not become an intent, and why; never the raw bytes.
CREATE VIEW finance.quarantine AS
SELECT id, namespace, reason_code, field, reason, deliveries, first_source, first_position, last_source, last_position,
       created_at, last_seen_at, resolved_at, resolution, resolved_by
FROM billing.quarantined_events;

COMMENT ON VIEW finance.without_run IS 'Money that waits because nobody has opened its billing run.';
COMMENT ON VIEW finance.intents IS 'One row a billing intent: what a customer owes for a period, where it stands, and why.';
COMMENT ON COLUMN finance.intents.amount_cents IS 'In the minor unit of the currency: whole yen for jpy. The column amount has the decimals.';
COMMENT ON COLUMN finance.intents.in_doubt IS 'A call to Stripe ended, or should have, and nobody knows yet whether it charged.';
COMMENT ON COLUMN finance.intents.also_in_namespaces IS 'Other namespaces with the same customer and period: perhaps one obligation billed twice.';
COMMENT ON COLUMN finance.intents.charged_at IS 'When the charge became certain here, by the database clock.';
COMMENT ON VIEW finance.period_summary IS 'How many intents and how much money stand where, for a namespace, period and currency.';
COMMENT ON VIEW finance.run_status IS 'One row a billing run: expected against ingested against charged. Columns in _cents are minor units, in _amount decimal.';
COMMENT ON COLUMN finance.run_status.missing_count IS 'Expected less ingested: negative when more came than was expected; null when no count was expected.';
COMMENT ON COLUMN finance.run_status.missing_cents IS 'Expected less ingested: negative when more came than was expected.';
COMMENT ON VIEW finance.conflicts IS 'Events with the key of an intent but other terms; the first one stays the intent until a person decides.';
COMMENT ON VIEW finance.quarantine IS 'Events that cannot become an intent, with the reason and where they came from.';

REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA finance FROM PUBLIC;
GRANT USAGE ON SCHEMA finance TO chargeonce_finance, chargeonce_charger, chargeonce_console;
GRANT SELECT ON ALL TABLES IN SCHEMA finance TO chargeonce_finance, chargeonce_charger, chargeonce_console;
-- A view checks its reader's right to the functions in it.
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA finance TO chargeonce_finance, chargeonce_charger, chargeonce_console;
