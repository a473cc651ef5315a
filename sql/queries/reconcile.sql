-- The statements of reconciling, in their order: begin, list, compare, read a suspicion again, finish.

-- name: ReconcileWindow :one
-- When the run's first charge was sent (before any: when the run was opened), how many intents it has, and a Stripe customer
-- that something was sent for, empty for none.
SELECT coalesce(min(q.first_sent_at), r.opened_at)::timestamptz AS first_sent_at, count(DISTINCT i.id) AS intents, coalesce(min(q.customer), '')::text AS customer
FROM billing.runs r
LEFT JOIN billing.intents i ON i.namespace = r.namespace AND i.billing_period = r.billing_period AND i.currency = r.currency
LEFT JOIN billing.charge_requests q ON q.intent_id = i.id
WHERE r.id = @run_id
GROUP BY r.id;

-- name: ReconciliationAbandon :execrows
-- An unfinished one that nobody is at any more, and that is too old, or not what is asked for, to go on with.
UPDATE billing.reconciliations SET finished_at = clock_timestamp(), outcome = 'abandoned'
WHERE run_id = @run_id AND finished_at IS NULL AND lease_until < clock_timestamp()
  AND (installation <> @installation OR started_at < clock_timestamp() - (@max_age_seconds::double precision) * interval '1 second'
       OR listed_from <> coalesce(sqlc.narg(listed_from)::timestamptz, listed_from));

-- name: ReconciliationBegin :one
-- A new one, or the unfinished one whose lease has ended. No row: another process is at it.
INSERT INTO billing.reconciliations AS r (run_id, actor, installation, worker, listed_from, lease_until)
VALUES (@run_id, @actor, @installation, @worker, @listed_from, clock_timestamp() + (@lease_seconds::double precision) * interval '1 second')
ON CONFLICT (run_id) WHERE finished_at IS NULL DO UPDATE SET
    actor = excluded.actor, worker = excluded.worker, claim_number = r.claim_number + 1, lease_until = excluded.lease_until
WHERE r.lease_until < clock_timestamp()
RETURNING id, claim_number, started_at, listed_from, stage, stage_cursor, counted;

-- name: ReconciliationUnfinished :one
SELECT actor, worker, started_at, extract(epoch FROM lease_until - clock_timestamp())::double precision AS lease_seconds_left
FROM billing.reconciliations WHERE run_id = @run_id AND finished_at IS NULL;

-- name: ReconciliationHold :execrows
-- 0 seconds let go of it.
UPDATE billing.reconciliations SET lease_until = clock_timestamp() + (@lease_seconds::double precision) * interval '1 second'
WHERE id = @id AND claim_number = @claim_number AND finished_at IS NULL;

-- name: ReconciliationSave :execrows
-- How far it is, in one transaction with what came of it.
UPDATE billing.reconciliations SET stage = @stage, stage_cursor = @stage_cursor, counted = @counted
WHERE id = @id AND claim_number = @claim_number AND finished_at IS NULL;

-- name: ReconciliationPaymentAddMany :exec
-- A charge that its payment intent showed already is the same payment.
INSERT INTO billing.reconciliation_payments (reconciliation_id, object_id, payment_intent_id, moved, customer, amount_cents, refunded_cents,
    currency, created_at, intent_key, namespace, billing_period, customer_id, installation)
SELECT @reconciliation_id, t.object_id, t.payment_intent_id, t.moved, t.customer, t.amount_cents, t.refunded_cents,
    t.currency, t.created_at, t.intent_key, t.namespace, t.billing_period, t.customer_id, t.installation
FROM ROWS FROM (unnest(@object_ids::text[]), unnest(@payment_intent_ids::text[]), unnest(@moved::boolean[]), unnest(@customers::text[]),
    unnest(@amounts_cents::bigint[]), unnest(@refunded_cents::bigint[]), unnest(@currencies::text[]), unnest(@created_at::timestamptz[]),
    unnest(@intent_keys::text[]), unnest(@namespaces::text[]), unnest(@billing_periods::text[]), unnest(@customer_ids::text[]), unnest(@installations::text[]))
    AS t(object_id, payment_intent_id, moved, customer, amount_cents, refunded_cents, currency, created_at, intent_key, namespace,
         billing_period, customer_id, installation)
ON CONFLICT DO NOTHING;

-- name: ReconcileIntentList :many
-- The run's intents, a part at a time, as the database has them now: after the lists were read.
SELECT i.id, i.namespace, i.billing_period, i.customer_id, i.idempotency_key, i.stripe_customer_id, i.amount_cents, i.currency, i.status, i.status_reason,
       coalesce(i.charge_id, '')::text AS charge_id, (i.status = 'charged' AND i.updated_at <= @as_of::timestamptz)::boolean AS charged_by_then
FROM billing.intents i
WHERE i.namespace = @namespace AND i.billing_period = @billing_period AND i.currency = @currency AND i.customer_id > @after
ORDER BY i.customer_id LIMIT @max_rows;

-- name: ReconciliationPaymentListOfIntents :many
-- Payments that carry one of the keys or are one of the charges.
SELECT p.object_id, p.payment_intent_id, p.moved, p.customer, p.amount_cents, p.refunded_cents, p.currency, p.created_at, p.intent_key,
       p.namespace, p.billing_period, p.customer_id, p.installation
FROM billing.reconciliation_payments p
WHERE p.reconciliation_id = @reconciliation_id AND (p.intent_key = ANY(@intent_keys::text[]) OR p.object_id = ANY(@charge_ids::text[]))
ORDER BY p.created_at, p.object_id;

-- name: ReconciliationPaymentListOwnerless :many
-- Payments of this installation that say they are the run's and that no intent stands behind. Another currency than the run's is
-- here only if that currency has no run of its own, which would tell.
SELECT p.object_id, p.payment_intent_id, p.moved, p.customer, p.amount_cents, p.refunded_cents, p.currency, p.created_at, p.intent_key,
       p.namespace, p.billing_period, p.customer_id, p.installation
FROM billing.reconciliation_payments p
WHERE p.reconciliation_id = @reconciliation_id AND p.object_id > @after AND p.intent_key <> '' AND p.installation IN ('', @installation)
  AND p.namespace = @namespace AND p.billing_period = @billing_period
  AND (p.currency = @currency OR NOT EXISTS (SELECT 1 FROM billing.runs o
       WHERE o.namespace = p.namespace AND o.billing_period = p.billing_period AND o.currency = p.currency))
  AND NOT EXISTS (SELECT 1 FROM billing.intents i WHERE i.charge_id = p.object_id)
  AND NOT EXISTS (SELECT 1 FROM billing.intents i
       WHERE i.namespace = p.namespace AND i.billing_period = p.billing_period AND i.customer_id = p.customer_id AND i.idempotency_key = p.intent_key)
  AND NOT EXISTS (SELECT 1 FROM billing.charge_requests q WHERE q.idempotency_key = p.intent_key AND q.key_generation = 1)
ORDER BY p.object_id LIMIT @max_rows;

-- name: ReconcileIntentGet :one
-- One intent read again, with how long a call for it may still be on its way.
SELECT i.id, i.namespace, i.billing_period, i.customer_id, i.idempotency_key, i.stripe_customer_id, i.amount_cents, i.currency, i.status, i.status_reason,
       coalesce(i.charge_id, '')::text AS charge_id, i.claim_number,
       greatest(0, extract(epoch FROM i.lease_until - clock_timestamp()), (SELECT max(extract(epoch FROM a.lease_until - clock_timestamp()))
           FROM billing.charge_attempts a WHERE a.intent_id = i.id AND a.finished_at IS NULL))::double precision AS lease_seconds_left
FROM billing.intents i WHERE i.id = @id;

-- name: ReconcileOwnerOf :one
-- Whose payment an object is that was read again; 0 for nobody's.
SELECT coalesce(
    (SELECT i.id FROM billing.intents i WHERE i.charge_id = @charge_id::text),
    (SELECT i.id FROM billing.intents i WHERE i.namespace = @namespace AND i.billing_period = @billing_period AND i.idempotency_key = @intent_key::text),
    (SELECT q.intent_id FROM billing.charge_requests q WHERE q.idempotency_key = @intent_key::text AND q.key_generation = 1), 0)::bigint AS intent_id;

-- name: ReconciliationFindingAdd :exec
INSERT INTO billing.reconciliation_findings (reconciliation_id, kind, intent_id, customer_id, stripe_customer, object_ids, amount_cents, currency, detail)
VALUES (@reconciliation_id, @kind, @intent_id, @customer_id, @stripe_customer, @object_ids, @amount_cents, @currency, @detail);

-- name: ReconciliationPaymentCount :one
-- How many of the listed payments are whose: this run's, other runs' and other installations'. A charge is its intent's; any other
-- payment that of the intent whose key it carries, else of the run that its metadata names.
SELECT count(*) FILTER (WHERE o.ours AND o.here) AS run_payments,
       coalesce(sum(o.amount_cents) FILTER (WHERE o.ours AND o.here AND o.moved AND o.currency = @currency::text), 0)::bigint AS run_cents,
       coalesce(sum(o.refunded_cents) FILTER (WHERE o.ours AND o.here AND o.currency = @currency::text), 0)::bigint AS refunded_cents,
       count(*) FILTER (WHERE o.ours AND NOT o.here) AS other_runs,
       count(*) FILTER (WHERE NOT o.ours) AS other_installations
FROM (
    SELECT p.moved, p.currency, p.amount_cents, p.refunded_cents, p.installation IN ('', @installation) OR i.id IS NOT NULL AS ours,
           CASE WHEN i.id IS NOT NULL THEN i.namespace = @namespace AND i.billing_period = @billing_period AND i.currency = @currency::text
                WHEN k.id IS NOT NULL THEN k.currency = @currency::text
                ELSE p.namespace = @namespace AND p.billing_period = @billing_period END AS here
    FROM billing.reconciliation_payments p
    LEFT JOIN billing.intents i ON i.charge_id = p.object_id
    LEFT JOIN billing.intents k ON k.namespace = @namespace AND k.billing_period = @billing_period AND k.idempotency_key = p.intent_key
    WHERE p.reconciliation_id = @reconciliation_id) o;

-- name: ReconciliationFinish :one
-- No row: another process has taken over.
UPDATE billing.reconciliations r SET finished_at = clock_timestamp(), counted = @counted, outcome = CASE WHEN EXISTS (
    SELECT 1 FROM billing.reconciliation_findings f WHERE f.reconciliation_id = r.id AND f.kind <> 'refunded') THEN 'found' ELSE 'clean' END
WHERE r.id = @id AND r.claim_number = @claim_number AND r.finished_at IS NULL
RETURNING r.id;

-- name: ReconciliationPaymentDelete :exec
-- Those of finished ones: what was found is in the findings.
DELETE FROM billing.reconciliation_payments p
WHERE p.reconciliation_id IN (SELECT r.id FROM billing.reconciliations r WHERE r.run_id = @run_id AND r.finished_at IS NOT NULL);

-- name: ReconciliationLatest :one
-- The run's last finished one.
SELECT id, actor, started_at, listed_from, counted, finished_at::timestamptz AS finished_at, outcome::text AS outcome FROM billing.reconciliations
WHERE run_id = @run_id AND outcome IN ('clean', 'found') ORDER BY id DESC LIMIT 1;

-- name: ReconciliationFindingCount :many
SELECT kind, count(*) AS findings FROM billing.reconciliation_findings WHERE reconciliation_id = @reconciliation_id GROUP BY kind ORDER BY kind;

-- name: ReconciliationFindingList :many
SELECT id, kind, intent_id, customer_id, stripe_customer, object_ids, amount_cents, currency, detail FROM billing.reconciliation_findings
WHERE reconciliation_id = @reconciliation_id AND id > @after ORDER BY id LIMIT @max_rows;

-- name: ReconcileRunListDue :many
-- Runs whose books were not compared for so long, and that charge, or did in the last 40 days. One that was closed and then found
-- clean has nothing to come.
SELECT r.id, r.namespace, r.billing_period, r.currency,
       extract(epoch FROM clock_timestamp() - coalesce(last.started_at, r.opened_at))::double precision AS age_seconds
FROM billing.runs r
LEFT JOIN LATERAL (
    SELECT c.started_at, c.outcome FROM billing.reconciliations c
    WHERE c.run_id = r.id AND c.outcome IN ('clean', 'found') ORDER BY c.id DESC LIMIT 1) last ON true
WHERE (r.updated_at > clock_timestamp() - interval '40 days'
       OR EXISTS (SELECT 1 FROM billing.intents i WHERE i.run_id = r.id AND (i.status = 'charging' OR (i.status = 'pending' AND i.river_job_id IS NOT NULL))))
  AND coalesce(last.started_at, r.opened_at) < clock_timestamp() - (@every_seconds::double precision) * interval '1 second'
  AND NOT coalesce(r.status = 'closed' AND last.outcome = 'clean' AND last.started_at > r.closed_at, false)
ORDER BY age_seconds DESC, r.id;

-- name: ReconcileFindingCounts :many
-- What the last comparison of each run found.
SELECT f.kind, count(*) AS findings
FROM (SELECT DISTINCT ON (c.run_id) c.id FROM billing.reconciliations c
      WHERE c.outcome IN ('clean', 'found') ORDER BY c.run_id, c.id DESC) AS latest
JOIN billing.reconciliation_findings f ON f.reconciliation_id = latest.id
GROUP BY f.kind ORDER BY f.kind;
