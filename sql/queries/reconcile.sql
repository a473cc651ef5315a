-- The statements of reconciling, in their order: take the run, list, find whose each payment is, compare, read again, finish.

-- name: ReconciliationAbandon :many
-- An unfinished one that nobody works at any more, and that is too old, or not what is asked for, to go on with.
UPDATE billing.reconciliations SET finished_at = clock_timestamp(), outcome = 'abandoned'
WHERE run_id = @run_id AND finished_at IS NULL AND lease_until < clock_timestamp()
  AND (@anew::boolean OR installation <> @installation OR started_at < clock_timestamp() - (@max_age_seconds::double precision) * interval '1 second'
       OR (sqlc.narg(listed_from)::timestamptz IS NOT NULL AND listed_from <> sqlc.narg(listed_from)::timestamptz))
RETURNING id;

-- name: ReconciliationBegin :one
-- A new one, or the unfinished one whose worker's lease has ended. No row: another process is at it.
INSERT INTO billing.reconciliations AS r (run_id, actor, installation, worker, listed_from, lease_until)
VALUES (@run_id, @actor, @installation, @worker, @listed_from, clock_timestamp() + (@lease_seconds::double precision) * interval '1 second')
ON CONFLICT (run_id) WHERE finished_at IS NULL DO UPDATE SET
    actor = excluded.actor, worker = excluded.worker, claim_number = r.claim_number + 1, lease_until = excluded.lease_until
WHERE r.lease_until < clock_timestamp()
RETURNING id, claim_number, started_at, listed_from, stage, list_cursor, listed;

-- name: ReconciliationUnfinished :one
SELECT id, actor, worker, started_at, extract(epoch FROM lease_until - clock_timestamp())::double precision AS lease_seconds_left
FROM billing.reconciliations WHERE run_id = @run_id AND finished_at IS NULL;

-- name: ReconciliationHold :execrows
UPDATE billing.reconciliations SET lease_until = clock_timestamp() + (@lease_seconds::double precision) * interval '1 second'
WHERE id = @id AND claim_number = @claim_number AND finished_at IS NULL;

-- name: ReconciliationSavePage :execrows
-- Where the lists are read to, in one transaction with what the page showed.
UPDATE billing.reconciliations SET stage = @stage, list_cursor = @list_cursor, listed = @listed,
    lease_until = clock_timestamp() + (@lease_seconds::double precision) * interval '1 second'
WHERE id = @id AND claim_number = @claim_number AND finished_at IS NULL;

-- name: ReconciliationPaymentAddMany :many
-- A charge whose payment intent is there already is the same payment; the objects that are kept, or were, are returned.
WITH page AS (
    SELECT t.object_id, t.charge_id, t.payment_intent_id, t.status, t.captured, t.customer, t.amount_cents, t.refunded_cents, t.refunded, t.disputed,
           t.currency, t.created_at, t.intent_key, t.charge_intent_key, t.key_generation, t.namespace, t.billing_period, t.customer_id,
           EXISTS (SELECT 1 FROM billing.reconciliation_payments p
                   WHERE p.reconciliation_id = @reconciliation_id AND p.object_id = t.payment_intent_id AND p.charge_id = t.charge_id) AS shown
    FROM ROWS FROM (unnest(@object_ids::text[]), unnest(@charge_ids::text[]), unnest(@payment_intent_ids::text[]), unnest(@statuses::text[]),
        unnest(@captured::boolean[]), unnest(@customers::text[]), unnest(@amounts_cents::bigint[]), unnest(@refunded_cents::bigint[]),
        unnest(@refunded::boolean[]), unnest(@disputed::boolean[]), unnest(@currencies::text[]), unnest(@created_at::timestamptz[]),
        unnest(@intent_keys::text[]), unnest(@charge_intent_keys::text[]), unnest(@key_generations::text[]), unnest(@namespaces::text[]),
        unnest(@billing_periods::text[]), unnest(@customer_ids::text[]))
        AS t(object_id, charge_id, payment_intent_id, status, captured, customer, amount_cents, refunded_cents, refunded, disputed, currency, created_at,
             intent_key, charge_intent_key, key_generation, namespace, billing_period, customer_id)
), added AS (
    INSERT INTO billing.reconciliation_payments (reconciliation_id, object_id, charge_id, payment_intent_id, status, captured, customer, amount_cents,
        refunded_cents, refunded, disputed, currency, created_at, intent_key, charge_intent_key, key_generation, namespace, billing_period, customer_id)
    SELECT @reconciliation_id, object_id, charge_id, payment_intent_id, status, captured, customer, amount_cents, refunded_cents, refunded, disputed,
        currency, created_at, intent_key, charge_intent_key, key_generation, namespace, billing_period, customer_id
    FROM page WHERE NOT shown AND intent_key <> ''
    ON CONFLICT DO NOTHING
    RETURNING object_id
)
SELECT page.object_id::text AS object_id FROM page WHERE page.shown OR EXISTS (SELECT 1 FROM added WHERE added.object_id = page.object_id);

-- name: ReconciliationPaymentFindOwners :one
-- Whose each payment is, a part at a time: the intent that records it, else the one that its metadata describes, else the one
-- whose key it carries. Asked only once the lists are read.
WITH part AS (
    SELECT p.object_id, p.charge_id, p.intent_key, p.namespace, p.billing_period, p.customer_id
    FROM billing.reconciliation_payments p
    WHERE p.reconciliation_id = @reconciliation_id AND p.object_id > @after ORDER BY p.object_id LIMIT @max_rows
), owned AS (
    UPDATE billing.reconciliation_payments p SET intent_id = coalesce(
        (SELECT i.id FROM billing.intents i WHERE i.charge_id = part.charge_id),
        (SELECT i.id FROM billing.intents i WHERE i.namespace = part.namespace AND i.billing_period = part.billing_period
            AND i.customer_id = part.customer_id AND i.idempotency_key = part.intent_key),
        (SELECT q.intent_id FROM billing.charge_requests q WHERE q.idempotency_key = part.intent_key AND q.key_generation = 1))
    FROM part WHERE p.reconciliation_id = @reconciliation_id AND p.object_id = part.object_id
    RETURNING p.object_id
)
SELECT count(*) AS payments, coalesce(max(object_id), '')::text AS last FROM owned;

-- name: ReconciliationPaymentFindByKey :execrows
-- What carries a key of the run although its metadata says something else, and was never sent as far as this database knows.
UPDATE billing.reconciliation_payments p SET intent_id = i.id
FROM billing.intents i
WHERE p.reconciliation_id = @reconciliation_id AND p.intent_id IS NULL
  AND i.namespace = @namespace AND i.billing_period = @billing_period AND i.idempotency_key = p.intent_key;

-- name: ReconciliationPaymentListByIntent :many
SELECT object_id, charge_id, payment_intent_id, status, captured, customer, amount_cents, refunded_cents, refunded, disputed, currency, created_at,
       intent_key, charge_intent_key, key_generation, namespace, billing_period, customer_id, intent_id
FROM billing.reconciliation_payments
WHERE reconciliation_id = @reconciliation_id AND intent_id = ANY(@intent_ids::bigint[])
ORDER BY intent_id, created_at, object_id;

-- name: ReconciliationPaymentListOwnerless :many
-- Payments that say they are the run's and that no intent stands behind. Another currency than the run's is here only if that
-- currency has no run of its own, which would tell.
SELECT p.object_id, p.charge_id, p.payment_intent_id, p.status, p.captured, p.customer, p.amount_cents, p.refunded_cents, p.refunded, p.disputed,
       p.currency, p.created_at, p.intent_key, p.charge_intent_key, p.key_generation, p.namespace, p.billing_period, p.customer_id
FROM billing.reconciliation_payments p
WHERE p.reconciliation_id = @reconciliation_id AND p.intent_id IS NULL AND p.object_id > @after
  AND p.namespace = @namespace AND p.billing_period = @billing_period
  AND (p.currency = @currency OR NOT EXISTS (SELECT 1 FROM billing.runs o
       WHERE o.namespace = p.namespace AND o.billing_period = p.billing_period AND o.currency = p.currency))
ORDER BY p.object_id LIMIT @max_rows;

-- name: ReconciliationPaymentCountElsewhere :one
-- What turned out to be another run's.
SELECT count(*) FROM billing.reconciliation_payments p
LEFT JOIN billing.intents i ON i.id = p.intent_id
WHERE p.reconciliation_id = @reconciliation_id
  AND CASE WHEN i.id IS NOT NULL THEN (i.namespace, i.billing_period, i.currency) <> (@namespace, @billing_period, @currency)
      ELSE (p.namespace, p.billing_period) <> (@namespace, @billing_period)
           OR (p.currency <> @currency AND EXISTS (SELECT 1 FROM billing.runs o
               WHERE o.namespace = p.namespace AND o.billing_period = p.billing_period AND o.currency = p.currency)) END;

-- name: ReconciliationPaymentDeleteMany :execrows
-- Those of finished ones: what was found is in the result.
DELETE FROM billing.reconciliation_payments p
WHERE p.reconciliation_id IN (SELECT r.id FROM billing.reconciliations r WHERE r.run_id = @run_id AND r.finished_at IS NOT NULL);

-- name: ReconcileFirstSend :one
-- When the run's first charge was sent (before any: when the run was opened), and in which mode.
SELECT coalesce(min(q.first_sent_at), r.opened_at)::timestamptz AS first_sent_at, coalesce(r.livemode, bool_or(q.livemode)) AS livemode
FROM billing.runs r
LEFT JOIN billing.intents i ON i.namespace = r.namespace AND i.billing_period = r.billing_period AND i.currency = r.currency
LEFT JOIN billing.charge_requests q ON q.intent_id = i.id
WHERE r.id = @id
GROUP BY r.id;

-- name: ReconcileIntentList :many
-- The run's intents, a part at a time, as the database has them now: after the lists were read.
SELECT i.id, i.customer_id, i.idempotency_key, i.stripe_customer_id, i.amount_cents, i.currency, i.status, i.status_reason,
       coalesce(i.charge_id, '')::text AS charge_id, coalesce(i.payment_intent_id, '')::text AS payment_intent_id, i.key_generation, i.claim_number,
       i.namespace, i.billing_period, (i.status = 'charged' AND i.updated_at <= @as_of::timestamptz)::boolean AS charged_by_then
FROM billing.intents i
WHERE i.namespace = @namespace AND i.billing_period = @billing_period AND i.currency = @currency AND i.customer_id > @after
ORDER BY i.customer_id LIMIT @max_rows;

-- name: ReconcileIntentGet :one
-- One intent read again, with what is in flight for it.
SELECT i.id, i.customer_id, i.idempotency_key, i.stripe_customer_id, i.amount_cents, i.currency, i.status, i.status_reason,
       coalesce(i.charge_id, '')::text AS charge_id, coalesce(i.payment_intent_id, '')::text AS payment_intent_id, i.key_generation, i.claim_number,
       i.namespace, i.billing_period, (i.status = 'charged' AND i.updated_at <= @as_of::timestamptz)::boolean AS charged_by_then,
       (SELECT count(*) FROM billing.charge_attempts a
        WHERE a.intent_id = i.id AND a.operation = 'create' AND a.resolved_at IS NULL) AS unresolved,
       greatest(0, extract(epoch FROM i.lease_until - clock_timestamp()), (SELECT max(extract(epoch FROM a.lease_until - clock_timestamp()))
           FROM billing.charge_attempts a WHERE a.intent_id = i.id AND a.finished_at IS NULL))::double precision AS lease_seconds_left
FROM billing.intents i WHERE i.id = @id;

-- name: ReconcileOwnerOf :one
-- Whose payment an object is that was read again; 0 for nobody's.
SELECT coalesce(
    (SELECT i.id FROM billing.intents i WHERE i.charge_id = @charge_id::text),
    (SELECT i.id FROM billing.intents i WHERE i.namespace = @namespace AND i.billing_period = @billing_period
        AND i.customer_id = @customer_id AND i.idempotency_key = @intent_key::text),
    (SELECT q.intent_id FROM billing.charge_requests q WHERE q.idempotency_key = @intent_key::text AND q.key_generation = 1), 0)::bigint AS intent_id;

-- name: ReconciliationPaymentSetOwner :exec
UPDATE billing.reconciliation_payments SET intent_id = @intent_id WHERE reconciliation_id = @reconciliation_id AND object_id = @object_id;

-- name: ReconciliationFinish :execrows
UPDATE billing.reconciliations SET finished_at = clock_timestamp(), outcome = @outcome::text, finding_counts = @finding_counts, result = @result
WHERE id = @id AND claim_number = @claim_number AND finished_at IS NULL;

-- name: ReconciliationLatest :one
SELECT id, actor, started_at, finished_at, outcome, finding_counts, result FROM billing.reconciliations
WHERE run_id = @run_id AND outcome IN ('clean', 'found') ORDER BY id DESC LIMIT 1;

-- name: ReconcileRunListDue :many
-- Runs whose books were not compared for so long. One that nobody touched for 40 days had no new charge, and one that was closed
-- and then found clean has none to come.
SELECT r.id FROM billing.runs r
LEFT JOIN LATERAL (
    SELECT c.started_at, c.outcome FROM billing.reconciliations c
    WHERE c.run_id = r.id AND c.outcome IN ('clean', 'found') ORDER BY c.id DESC LIMIT 1) last ON true
WHERE r.updated_at > clock_timestamp() - interval '40 days' AND r.allocated_cents > 0
  AND (last.started_at IS NULL OR last.started_at < clock_timestamp() - (@every_seconds::double precision) * interval '1 second')
  AND NOT (r.status = 'closed' AND last.outcome = 'clean' AND last.started_at > r.closed_at)
  AND NOT EXISTS (SELECT 1 FROM billing.reconciliations u WHERE u.run_id = r.id AND u.finished_at IS NULL AND u.lease_until > clock_timestamp())
ORDER BY last.started_at NULLS FIRST, r.id;

-- name: ReconcileFindingCounts :many
-- What the last comparison of each run found.
SELECT f.kind::text AS kind, sum(f.findings::bigint)::bigint AS findings
FROM (SELECT DISTINCT ON (c.run_id) c.finding_counts FROM billing.reconciliations c
      WHERE c.outcome IN ('clean', 'found') ORDER BY c.run_id, c.id DESC) AS latest, jsonb_each_text(latest.finding_counts) AS f(kind, findings)
GROUP BY f.kind ORDER BY f.kind;
