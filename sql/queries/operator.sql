-- What people look at and decide: intents, conflicts, quarantined events. A change locks the runs it may touch, then the intent,
-- reads the evidence, and only then decides; all of it is one transaction with the recorded action.

-- name: RunLockForIntent :many
-- The run that the intent is reserved in, and the run of its terms (of its new currency, if one is given). Runs are locked before
-- intents, as the dispatcher does it, and in one order.
SELECT r.id, r.currency, r.status, r.status_reason
FROM billing.runs r
WHERE r.id IN (
    SELECT i.run_id FROM billing.intents i WHERE i.id = @intent_id
    UNION ALL
    SELECT o.id FROM billing.intents i
    JOIN billing.runs o ON o.namespace = i.namespace AND o.billing_period = i.billing_period
        AND o.currency = coalesce(nullif(@currency::text, ''), i.currency)
    WHERE i.id = @intent_id)
ORDER BY r.id
FOR NO KEY UPDATE OF r;

-- name: IntentLockNow :one
-- Not waited for: a finish holds the intent and waits for its run, which is locked here already.
SELECT id FROM billing.intents WHERE id = @id FOR NO KEY UPDATE NOWAIT;

-- name: IntentEvidence :one
-- What decides whether a person may move an intent. After the lock, in a statement of its own: one that waited would still see
-- the attempts of before.
SELECT i.id, i.namespace, i.customer_id, i.billing_period, i.idempotency_key AS intent_key, i.stripe_customer_id, i.amount_cents, i.currency,
       i.payment_method, i.description, i.status, i.status_reason, i.status_detail, i.key_generation, i.run_id, i.reserved_cents,
       i.river_job_id, i.claim_number, i.charge_id,
       coalesce(r.status, '')::text AS run_status, coalesce(r.status_reason, '')::text AS run_status_reason,
       (coalesce(i.lease_until > clock_timestamp(), false) OR coalesce(a.lease_alive, false))::boolean AS lease_alive,
       (q.intent_id IS NOT NULL)::boolean AS frozen,
       coalesce(q.object_id, '')::text AS object_id,
       coalesce(a.unresolved, 0)::bigint AS unresolved,
       coalesce(a.saw_object, '')::text AS unresolved_object,
       coalesce(extract(epoch FROM clock_timestamp() - a.last_unresolved_at), 0)::double precision AS seconds_since_unresolved,
       billing.generation_is_over(i.id, i.key_generation)::boolean AS generation_is_over,
       coalesce(billing.open_object(i.id), '')::text AS open_object,
       (SELECT count(*) FROM billing.conflicts c WHERE c.intent_id = i.id AND c.resolved_at IS NULL) AS open_conflicts,
       clock_timestamp()::timestamptz AS database_now
FROM billing.intents i
LEFT JOIN billing.runs r ON r.id = i.run_id
LEFT JOIN billing.charge_requests q ON q.intent_id = i.id AND q.key_generation = i.key_generation
CROSS JOIN LATERAL (
    SELECT bool_or(c.finished_at IS NULL AND c.lease_until > clock_timestamp()) AS lease_alive,
           count(*) FILTER (WHERE c.operation = 'create' AND c.resolved_at IS NULL) AS unresolved,
           max(c.started_at) FILTER (WHERE c.operation = 'create' AND c.resolved_at IS NULL) AS last_unresolved_at,
           max(c.object_id) FILTER (WHERE c.operation = 'create' AND c.resolved_at IS NULL) AS saw_object
    FROM billing.charge_attempts c WHERE c.intent_id = i.id) a
WHERE i.id = @id;

-- name: IntentRenew :execrows
-- Back to the dispatcher with the next key generation or with new terms: nothing is reserved, and nobody who read the intent before
-- may claim it.
UPDATE billing.intents SET
    status = 'pending', status_reason = 'queued', status_detail = @status_detail, key_generation = @key_generation,
    amount_cents = @amount_cents, currency = @currency, stripe_customer_id = @stripe_customer_id,
    payment_method = sqlc.narg(payment_method), description = sqlc.narg(description),
    run_id = @run_id, reserved_cents = NULL,
    guards_customer = guards_customer AND stripe_customer_id = @stripe_customer_id AND currency = @currency,
    river_job_id = NULL, redispatches = 0, claim_number = claim_number + 1, lease_until = NULL, updated_at = now()
WHERE id = @id AND claim_number = @seen_claim_number;

-- name: IntentVoid :execrows
-- The Stripe customer is free for another intent.
UPDATE billing.intents SET
    status = 'voided', status_reason = 'by_operator', status_detail = @status_detail, reserved_cents = NULL, guards_customer = false,
    claim_number = claim_number + 1, lease_until = NULL, updated_at = now()
WHERE id = @id AND claim_number = @seen_claim_number;

-- name: IntentParkByOperator :execrows
UPDATE billing.intents SET
    status = 'parked', status_reason = 'cancelled_by_operator', status_detail = @status_detail,
    claim_number = claim_number + 1, lease_until = NULL, updated_at = now()
WHERE id = @id AND claim_number = @seen_claim_number;

-- name: IntentUnpark :execrows
-- The same key and, if they were frozen, the same bytes; the reservation stays. In doubt it goes on being looked up: the sweep gives
-- it a job.
UPDATE billing.intents SET
    status = CASE WHEN @in_doubt::boolean THEN 'charging' ELSE 'pending' END,
    status_reason = CASE WHEN @in_doubt::boolean THEN 'in_doubt' ELSE 'queued' END,
    status_detail = @status_detail, river_job_id = NULL, redispatches = 0, claim_number = claim_number + 1,
    lease_until = CASE WHEN @in_doubt::boolean THEN clock_timestamp() END, updated_at = now()
WHERE id = @id AND claim_number = @seen_claim_number;

-- name: RunGiveBack :execrows
UPDATE billing.runs SET allocated_cents = allocated_cents - @amount_cents, updated_at = now() WHERE id = @id;

-- name: IntentWakeSameCustomer :execrows
-- Those that wait for this Stripe customer are looked at by the dispatcher again.
UPDATE billing.intents o SET status_reason = 'queued', updated_at = now()
FROM billing.intents i
WHERE i.id = @id AND i.guards_customer
  AND o.id <> i.id AND o.stripe_customer_id = i.stripe_customer_id AND o.billing_period = i.billing_period AND o.currency = i.currency
  AND o.status = 'pending' AND o.river_job_id IS NULL AND o.status_reason = 'same_customer';

-- name: IntentWakeFromConflict :execrows
UPDATE billing.intents i SET status_reason = 'queued', updated_at = now()
WHERE i.id = @id AND i.status = 'pending' AND i.river_job_id IS NULL AND i.status_reason = 'conflict'
  AND NOT EXISTS (SELECT 1 FROM billing.conflicts c WHERE c.intent_id = i.id AND c.resolved_at IS NULL);

-- name: IntentClaimByOperator :one
-- A person's read or look-up is a claim like a worker's: nobody else begins a call meanwhile, and what it decides stands only if
-- nobody did. No row: the intent is not as it was read, or a lease runs.
WITH may AS (
    SELECT i.id, i.key_generation, coalesce((SELECT r.resume_count FROM billing.runs r WHERE r.id = i.run_id), 0) AS resume_count
    FROM billing.intents i
    WHERE i.id = @intent_id AND i.claim_number = @seen_claim_number AND i.status <> 'charged'
      AND (i.lease_until IS NULL OR i.lease_until < clock_timestamp())
      AND NOT EXISTS (SELECT 1 FROM billing.charge_attempts a
                      WHERE a.intent_id = i.id AND a.finished_at IS NULL AND a.lease_until > clock_timestamp())
    FOR NO KEY UPDATE OF i
), claimed AS (
    UPDATE billing.intents i SET
        claim_number = i.claim_number + 1, updated_at = now(),
        lease_until = clock_timestamp() + (@lease_seconds::double precision) * interval '1 second'
    FROM may WHERE i.id = may.id
    RETURNING i.id, i.claim_number, i.lease_until
)
INSERT INTO billing.charge_attempts (intent_id, key_generation, claim_number, operation, idempotency_key, worker, vault_key_id,
    run_resume_count, lease_until)
SELECT may.id, may.key_generation, claimed.claim_number, @operation::text, @idempotency_key, @worker,
    sqlc.narg(vault_key_id)::bigint, may.resume_count, claimed.lease_until
FROM claimed JOIN may ON may.id = claimed.id
RETURNING id AS attempt_id, claim_number, started_at;

-- name: IntentEndLeaseByOperator :execrows
UPDATE billing.intents SET lease_until = CASE WHEN status = 'charging' THEN clock_timestamp() END, updated_at = now()
WHERE id = @id AND claim_number = @claim_number AND status <> 'charged';

-- name: AttemptFinishByOperator :execrows
-- A read or a look-up moves nothing.
UPDATE billing.charge_attempts SET
    finished_at = clock_timestamp(), lease_until = least(lease_until, clock_timestamp()), result = @result,
    http_status = sqlc.narg(http_status), request_id = nullif(@request_id::text, ''), replayed = @replayed,
    error_type = nullif(@error_type::text, ''), error_code = nullif(@error_code::text, ''), object_id = nullif(@object_id::text, ''),
    detail = nullif(@detail::text, ''), resolved_at = clock_timestamp(), resolution = 'not_moved'
WHERE id = @attempt_id AND finished_at IS NULL;

-- name: RequestSetObject :execrows
-- What is known of an object stays known.
UPDATE billing.charge_requests SET object_id = @object_id
WHERE intent_id = @intent_id AND key_generation = @key_generation AND object_id IS NULL;

-- name: ConflictGet :one
SELECT id, intent_id, amount_cents, currency, stripe_customer_id, payment_method, description, deliveries, first_source, first_position,
       coalesce(first_detail::text, '')::text AS first_detail, last_source, last_position, created_at, last_seen_at, resolved_at, resolution, resolved_by
FROM billing.conflicts WHERE id = @id;

-- name: ConflictResolve :execrows
UPDATE billing.conflicts SET resolved_at = now(), resolution = @resolution, resolved_by = @resolved_by
WHERE id = @id AND (resolved_at IS NULL OR @again::boolean);

-- name: ConflictKeepReplaced :exec
-- The terms that the intent has now, before others take their place. Those of a person's own (not the first replacement) came with
-- no event.
INSERT INTO billing.conflicts (intent_id, amount_cents, currency, stripe_customer_id, payment_method, description, deliveries,
    first_source, first_position, first_detail, last_source, last_position, resolved_at, resolution, resolved_by)
SELECT i.id, i.amount_cents, i.currency, i.stripe_customer_id, i.payment_method, i.description, 1,
    CASE WHEN o.replaced THEN 'operator' ELSE i.source END, CASE WHEN o.replaced THEN 'operator' ELSE i.source_position END,
    CASE WHEN NOT o.replaced THEN i.source_detail END,
    CASE WHEN o.replaced THEN 'operator' ELSE i.source END, CASE WHEN o.replaced THEN 'operator' ELSE i.source_position END,
    now(), 'replaced', @resolved_by
FROM billing.intents i
CROSS JOIN LATERAL (SELECT EXISTS (SELECT 1 FROM billing.conflicts c WHERE c.intent_id = i.id AND c.resolution = 'replaced') AS replaced) o
WHERE i.id = @intent_id
ON CONFLICT ON CONSTRAINT conflicts_once_per_terms
DO UPDATE SET resolved_at = excluded.resolved_at, resolution = excluded.resolution, resolved_by = excluded.resolved_by;

-- name: ConflictTookTerms :execrows
-- The conflict whose terms became the intent's, if there is one; any other one stays as it is.
UPDATE billing.conflicts SET resolved_at = now(), resolution = 'took_other', resolved_by = @resolved_by
WHERE intent_id = @intent_id AND amount_cents = @amount_cents AND currency = @currency AND stripe_customer_id = @stripe_customer_id;

-- name: ConflictList :many
SELECT c.id, c.intent_id, i.namespace, i.billing_period, i.customer_id, i.status AS intent_status,
       i.amount_cents AS intent_amount_cents, i.currency AS intent_currency, i.stripe_customer_id AS intent_stripe_customer_id,
       i.payment_method AS intent_payment_method, i.description AS intent_description, i.source AS intent_source, i.source_position AS intent_position,
       c.amount_cents AS other_amount_cents, c.currency AS other_currency, c.stripe_customer_id AS other_stripe_customer_id,
       c.payment_method AS other_payment_method, c.description AS other_description,
       c.deliveries, c.first_source, c.first_position, coalesce(c.first_detail::text, '')::text AS first_detail, c.last_source, c.last_position,
       c.created_at, c.last_seen_at, c.resolved_at, c.resolution, c.resolved_by
FROM billing.conflicts c
JOIN billing.intents i ON i.id = c.intent_id
WHERE (@namespace::text = '' OR i.namespace = @namespace::text)
  AND (@billing_period::text = '' OR i.billing_period = @billing_period::text)
  AND (@resolved_too::boolean OR c.resolved_at IS NULL)
  AND (@id::bigint = 0 OR c.id = @id::bigint)
  AND c.id > @after_id
ORDER BY c.id LIMIT @max_rows;

-- name: QuarantineList :many
SELECT id, namespace, encode(object_sha256, 'hex')::text AS object_sha256, reason_code, field, reason, raw_bytes, deliveries, first_source, first_position,
       coalesce(first_detail::text, '')::text AS first_detail, last_source, last_position, created_at, last_seen_at, resolved_at, resolution, resolved_by
FROM billing.quarantined_events
WHERE (@namespace::text = '' OR namespace = @namespace::text)
  AND (@reason_code::text = '' OR reason_code = @reason_code::text)
  AND (@resolved_too::boolean OR resolved_at IS NULL)
  AND (@id::bigint = 0 OR id = @id::bigint)
  AND id > @after_id
ORDER BY id LIMIT @max_rows;

-- name: QuarantineResolve :execrows
UPDATE billing.quarantined_events SET resolved_at = now(), resolution = @resolution, resolved_by = @resolved_by
WHERE id = @id AND resolved_at IS NULL;

-- name: IntentList :many
SELECT i.id, i.namespace, i.billing_period, i.customer_id, i.stripe_customer_id, i.amount_cents, i.currency, i.status, i.status_reason::text AS status_reason,
       i.status_detail, i.decline_code, i.charge_id, i.key_generation, i.in_doubt::boolean AS in_doubt, i.open_conflict::boolean AS open_conflict,
       i.river_job_id, i.created_at, i.updated_at
FROM finance.intents i
WHERE (@namespace::text = '' OR i.namespace = @namespace::text)
  AND (@billing_period::text = '' OR i.billing_period = @billing_period::text)
  AND (@currency::text = '' OR i.currency = @currency::text)
  AND (@status::text = '' OR i.status = @status::text)
  AND (@status_reason::text = '' OR i.status_reason = @status_reason::text)
  AND (@customer::text = '' OR i.customer_id = @customer::text OR (@customer::text LIKE 'cus\_%' AND i.stripe_customer_id = @customer::text))
  AND i.id > @after_id
ORDER BY i.id LIMIT @max_rows;

-- name: IntentListInDoubt :many
-- Intents that Stripe may or may not have charged, the oldest doubt first.
SELECT i.id, i.namespace, i.billing_period, i.customer_id, i.stripe_customer_id, i.amount_cents, i.currency, i.status, i.status_reason, i.status_detail,
       i.key_generation, d.in_doubt_since::timestamptz AS in_doubt_since,
       extract(epoch FROM clock_timestamp() - d.in_doubt_since)::double precision AS in_doubt_seconds,
       q.first_sent_at, coalesce(q.saw_server_error, false)::boolean AS saw_server_error, coalesce(q.object_id, '')::text AS object_id,
       coalesce((@window_seconds::double precision) - extract(epoch FROM clock_timestamp() - q.first_sent_at), 0)::double precision AS key_safe_seconds_left,
       l.operation AS last_operation, l.started_at AS last_started_at, l.result AS last_result, l.http_status AS last_http_status, l.request_id AS last_request_id,
       i.river_job_id, coalesce(j.state::text, '')::text AS job_state, w.scheduled_at AS next_look_at
FROM (
    SELECT a.intent_id, min(a.started_at) AS in_doubt_since
    FROM billing.charge_attempts a
    WHERE a.operation = 'create' AND a.resolved_at IS NULL AND (a.finished_at IS NOT NULL OR a.lease_until < clock_timestamp())
    GROUP BY a.intent_id) d
JOIN billing.intents i ON i.id = d.intent_id
LEFT JOIN billing.charge_requests q ON q.intent_id = i.id AND q.key_generation = i.key_generation
LEFT JOIN river.river_job j ON j.id = i.river_job_id
LEFT JOIN river.river_job w ON w.id = i.river_job_id AND i.status = 'charging' AND w.state IN ('available', 'retryable', 'scheduled')
JOIN LATERAL (
    SELECT c.operation, c.started_at, c.result, c.http_status, c.request_id
    FROM billing.charge_attempts c WHERE c.intent_id = i.id ORDER BY c.id DESC LIMIT 1) l ON true
WHERE (@namespace::text = '' OR i.namespace = @namespace::text)
  AND (@billing_period::text = '' OR i.billing_period = @billing_period::text)
  AND (@currency::text = '' OR i.currency = @currency::text)
  AND (@status::text = '' OR i.status = @status::text)
  AND (@status_reason::text = '' OR i.status_reason = @status_reason::text)
  AND (@customer::text = '' OR i.customer_id = @customer::text OR (@customer::text LIKE 'cus\_%' AND i.stripe_customer_id = @customer::text))
  AND i.id > @after_id
ORDER BY d.in_doubt_since, i.id LIMIT @max_rows;

-- name: IntentFindByKey :many
-- A key of whatever generation, or the id of a charge or payment intent at Stripe.
SELECT i.id, i.namespace, i.billing_period, i.customer_id, i.status FROM billing.intents i
WHERE i.id IN (
    SELECT k.id FROM billing.intents k WHERE k.idempotency_key = @key OR k.charge_id = @key OR k.payment_intent_id = @key
    UNION ALL
    SELECT q.intent_id FROM billing.charge_requests q WHERE q.idempotency_key = @key OR q.object_id = @key)
ORDER BY i.id LIMIT 20;

-- name: IntentFindByCustomer :many
SELECT i.id, i.namespace, i.billing_period, i.customer_id, i.status FROM billing.intents i
WHERE i.billing_period = @billing_period AND (@namespace::text = '' OR i.namespace = @namespace::text)
  AND i.namespace IN (SELECT n.namespace FROM billing.namespaces n)
  AND (i.customer_id = @customer::text OR (@customer::text LIKE 'cus\_%' AND i.stripe_customer_id = @customer::text))
ORDER BY i.namespace, i.id LIMIT 20;

-- name: IntentStory :one
SELECT i.id, i.namespace, i.customer_id, i.billing_period, i.idempotency_key, i.stripe_customer_id, i.amount_cents, i.currency, i.payment_method,
       i.description, i.status, f.status_reason::text AS status_reason, i.status_detail, i.charge_id, i.payment_intent_id, f.charged_at, i.key_generation,
       i.run_id, i.reserved_cents, i.guards_customer, i.river_job_id, i.redispatches, i.claim_number, i.lease_until,
       i.source, i.source_position, coalesce(i.source_detail::text, '')::text AS source_detail, i.source_enqueued_at, i.created_at, i.updated_at,
       f.also_in_namespaces, f.in_doubt::boolean AS in_doubt, clock_timestamp()::timestamptz AS database_now
FROM billing.intents i
JOIN finance.intents f ON f.id = i.id
WHERE i.id = @id;

-- name: RequestList :many
SELECT q.intent_id, q.key_generation, q.idempotency_key, q.stripe_api, q.path, q.body, q.api_version, q.stripe_account, q.livemode, q.customer,
       q.amount_cents, q.currency, q.payment_method, q.first_sent_at, q.object_id, q.object_canceled_at, q.saw_server_error, q.decline_code, q.advice_code
FROM billing.charge_requests q WHERE q.intent_id = @intent_id ORDER BY q.key_generation;

-- name: AttemptList :many
SELECT a.id, a.key_generation, a.claim_number, a.operation, a.idempotency_key, a.river_job_id, a.worker, a.vault_key_id, a.run_resume_count,
       a.started_at, a.lease_until, a.finished_at, a.result, a.http_status, a.request_id, a.replayed, a.error_type, a.error_code, a.decline_code,
       a.object_id, a.detail, a.resolved_at, a.resolution
FROM billing.charge_attempts a WHERE a.intent_id = @intent_id ORDER BY a.id;

-- name: ConflictListOfIntent :many
SELECT id, intent_id, amount_cents, currency, stripe_customer_id, payment_method, description, deliveries, first_source, first_position,
       coalesce(first_detail::text, '')::text AS first_detail, last_source, last_position, created_at, last_seen_at, resolved_at, resolution, resolved_by
FROM billing.conflicts WHERE intent_id = @intent_id ORDER BY id;

-- name: OperatorActionList :many
SELECT id, at, actor, action, run_id, intent_id, reason, detail FROM billing.operator_actions WHERE intent_id = @intent_id ORDER BY id;

-- name: JobGet :one
SELECT id, state::text AS state, attempt, max_attempts, created_at, scheduled_at, attempted_at, finalized_at,
       coalesce(errors[array_upper(errors, 1)] ->> 'error', '')::text AS last_error
FROM river.river_job WHERE id = @id;

-- name: CustomerGuardGet :one
-- The intent that bills this Stripe customer for the period and currency, if it is another one.
SELECT o.id, o.namespace, o.customer_id, o.status FROM billing.intents i
JOIN billing.intents o ON o.stripe_customer_id = i.stripe_customer_id AND o.billing_period = i.billing_period AND o.currency = i.currency
    AND o.guards_customer AND o.id <> i.id
WHERE i.id = @id;
