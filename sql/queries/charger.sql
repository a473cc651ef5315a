-- The charger's statements, in the order an intent meets them: run, dispatch, claim, finish, sweep.

-- name: RunOpen :one
-- One run row per namespace, period and currency for ever: a second open returns no row, and the caller compares terms.
INSERT INTO billing.runs (namespace, billing_period, currency, expected_total_cents, expected_count, headroom_percent, cap_cents,
    vault_usd_cap_cents, stripe_account, opened_by)
VALUES (@namespace, @billing_period, @currency, @expected_total_cents, sqlc.narg(expected_count), @headroom_percent, @cap_cents,
    sqlc.narg(vault_usd_cap_cents), sqlc.narg(stripe_account), @opened_by)
ON CONFLICT ON CONSTRAINT runs_one_per_period DO NOTHING
RETURNING id;

-- name: RunGet :one
SELECT id, namespace, billing_period, currency, status, status_reason, status_detail, expected_total_cents, expected_count,
       headroom_percent, cap_cents, allocated_cents, resume_count, vault_usd_cap_cents, stripe_account, livemode, opened_by,
       opened_at, updated_at, closed_at
FROM billing.runs
WHERE namespace = @namespace AND billing_period = @billing_period AND currency = @currency;

-- name: RunGetByID :one
SELECT id, namespace, billing_period, currency, status, status_reason, status_detail, expected_total_cents, expected_count,
       headroom_percent, cap_cents, allocated_cents, resume_count, vault_usd_cap_cents, stripe_account, livemode, opened_by,
       opened_at, updated_at, closed_at
FROM billing.runs WHERE id = @id;

-- name: RunStatusList :many
SELECT run_id, namespace, billing_period, currency, status, status_reason, status_detail, expected_count, expected_total_cents, cap_cents,
       allocated_cents, unallocated_cents, ingested_count, ingested_cents, missing_count, missing_cents, charged_count, charged_cents,
       declined_count, declined_cents, pending_count, pending_cents, charging_count, charging_cents, parked_count, parked_cents,
       voided_count, nothing_due_count, in_doubt_count, open_conflicts, opened_by, opened_at, closed_at
FROM finance.run_status ORDER BY opened_at DESC, run_id DESC LIMIT @max_rows;

-- name: RunStatusForPeriod :many
SELECT run_id, namespace, billing_period, currency, status, status_reason, status_detail, expected_count, expected_total_cents, cap_cents,
       allocated_cents, unallocated_cents, ingested_count, ingested_cents, missing_count, missing_cents, charged_count, charged_cents,
       declined_count, declined_cents, pending_count, pending_cents, charging_count, charging_cents, parked_count, parked_cents,
       voided_count, nothing_due_count, in_doubt_count, open_conflicts, opened_by, opened_at, closed_at
FROM finance.run_status
WHERE namespace = @namespace AND billing_period = @billing_period AND (@currency::text = '' OR currency = @currency::text)
ORDER BY currency;

-- name: WithoutRunList :many
SELECT namespace, billing_period, currency, intents, amount_cents, oldest_at::timestamptz AS oldest_at FROM finance.without_run
ORDER BY namespace, billing_period, currency;

-- name: RunStatusReasons :many
SELECT status, status_reason, intents, amount_cents FROM finance.period_summary
WHERE namespace = @namespace AND billing_period = @billing_period AND currency = @currency
ORDER BY status, status_reason;

-- name: RunListIDs :many
-- Runs that may have work: open ones, and any other with something in flight.
SELECT r.id, r.status FROM billing.runs r
WHERE r.status = 'open' OR EXISTS (
    SELECT 1 FROM billing.intents i WHERE i.run_id = r.id
    AND (i.status = 'charging' OR (i.status = 'pending' AND i.river_job_id IS NOT NULL)))
ORDER BY r.id;

-- name: RunLock :one
-- One dispatcher at a time per run; another one that comes meanwhile gets no row.
SELECT r.id, r.namespace, r.billing_period, r.currency, r.status, r.cap_cents, r.allocated_cents,
       coalesce((SELECT w.stopped FROM billing.charging_switch w), true)::boolean AS stopped,
       coalesce(n.many_per_stripe_customer, false)::boolean AS many_per_stripe_customer
FROM billing.runs r
LEFT JOIN billing.namespaces n ON n.namespace = r.namespace
WHERE r.id = @id
FOR UPDATE OF r SKIP LOCKED;

-- name: RunAllocate :execrows
-- 0 rows: the cap does not allow it.
UPDATE billing.runs SET allocated_cents = allocated_cents + @amount_cents, updated_at = now()
WHERE id = @id AND allocated_cents + @amount_cents <= cap_cents;

-- name: RunPause :execrows
-- A late denial pauses only the run as its claim saw it: still open, same resume count, and its vault key still the run's.
UPDATE billing.runs r SET status = 'paused', status_reason = @status_reason, status_detail = @status_detail, updated_at = now()
WHERE r.id = @id AND r.status = 'open'
  AND (sqlc.narg(resume_count)::integer IS NULL OR r.resume_count = sqlc.narg(resume_count)::integer)
  AND (sqlc.narg(vault_key_id)::bigint IS NULL OR EXISTS (
      SELECT 1 FROM billing.vault_keys k WHERE k.id = sqlc.narg(vault_key_id)::bigint AND k.state = 'active'));

-- name: RunPauseByOperator :execrows
UPDATE billing.runs SET status = 'paused', status_reason = 'paused_by_operator', status_detail = @status_detail, updated_at = now()
WHERE id = @id AND status = 'open';

-- name: RunResume :execrows
UPDATE billing.runs SET status = 'open', status_reason = 'resumed', status_detail = @status_detail, resume_count = resume_count + 1, updated_at = now()
WHERE id = @id AND status = 'paused';

-- name: RunBindAccount :one
-- The first key that was verified names the account (and mode) of the run; a later one must be the same.
UPDATE billing.runs SET stripe_account = coalesce(stripe_account, @stripe_account), livemode = coalesce(livemode, sqlc.narg(livemode))
WHERE id = @id
RETURNING stripe_account, livemode;

-- name: RunAddLate :one
-- A real charge is always recorded: beyond the cap the run stands paused.
UPDATE billing.runs SET
    allocated_cents = allocated_cents + @amount_cents,
    status = CASE WHEN allocated_cents + @amount_cents > cap_cents THEN 'paused' ELSE status END,
    status_reason = CASE WHEN allocated_cents + @amount_cents > cap_cents THEN 'over_cap' ELSE status_reason END,
    closed_at = CASE WHEN allocated_cents + @amount_cents > cap_cents THEN NULL ELSE closed_at END,
    updated_at = now()
WHERE id = @id
RETURNING status, allocated_cents, cap_cents;

-- name: IntentCountInFlight :one
-- What fills the window of live jobs. Doubts that wait for their next look-up do not: they would bring the run to a stop.
SELECT count(*) FROM billing.intents
WHERE run_id = @run_id AND (status = 'charging' OR (status = 'pending' AND river_job_id IS NOT NULL))
  AND status_reason IN ('queued', 'sent');

-- name: IntentListWaiting :many
-- Pending intents of one run's key without a job, oldest first, with what decides whether they may go.
SELECT i.id, i.customer_id, i.stripe_customer_id, i.idempotency_key, i.amount_cents, i.reserved_cents, i.guards_customer, i.status_reason,
       EXISTS (SELECT 1 FROM billing.charge_requests q WHERE q.intent_id = i.id) AS was_sent,
       EXISTS (SELECT 1 FROM billing.conflicts c WHERE c.intent_id = i.id AND c.resolved_at IS NULL) AS open_conflict,
       EXISTS (SELECT 1 FROM billing.intents o
               WHERE o.stripe_customer_id = i.stripe_customer_id AND o.billing_period = i.billing_period AND o.currency = i.currency
                 AND o.guards_customer AND o.id <> i.id) AS customer_taken
FROM billing.intents i
WHERE i.namespace = @namespace AND i.billing_period = @billing_period AND i.currency = @currency
  AND i.status = 'pending' AND i.river_job_id IS NULL AND i.status_reason = @status_reason AND i.amount_cents <= @max_cents
ORDER BY i.id
LIMIT @max_rows;

-- name: IntentSetWaiting :execrows
UPDATE billing.intents SET status_reason = @status_reason, updated_at = now()
WHERE id = ANY(@ids::bigint[]) AND status = 'pending' AND river_job_id IS NULL AND status_reason <> @status_reason;

-- name: IntentDispatchMany :execrows
-- Reserves where nothing is reserved yet; the caller has added just that sum to the run, in this transaction.
-- An intent whose terms were corrected after they were read is left out, and the caller rolls back.
UPDATE billing.intents i SET
    run_id = @run_id,
    reserved_cents = t.amount_cents,
    guards_customer = @guards_customer,
    river_job_id = t.job_id,
    status_reason = 'queued',
    updated_at = now()
FROM ROWS FROM (unnest(@ids::bigint[]), unnest(@job_ids::bigint[]), unnest(@amounts_cents::bigint[])) AS t(id, job_id, amount_cents)
-- The ids once more: without them a table that was never analysed is read whole.
WHERE i.id = t.id AND i.id = ANY(@ids::bigint[]) AND i.status = 'pending' AND i.river_job_id IS NULL
  AND i.amount_cents = t.amount_cents AND i.currency = @currency;

-- name: IntentListJobless :many
-- In flight, but its job is gone, cancelled, discarded or completed, or runs without a claim for longer than any does
-- (its process is dead), and no lease is alive: somebody must take it up.
SELECT i.id, i.customer_id, i.idempotency_key, i.status, i.redispatches, i.river_job_id, coalesce(j.state::text, 'deleted')::text AS job_state
FROM billing.intents i
LEFT JOIN river.river_job j ON j.id = i.river_job_id
WHERE i.run_id = @run_id
  AND (i.status = 'charging' OR (i.status = 'pending' AND i.river_job_id IS NOT NULL))
  AND (j.id IS NULL OR j.state IN ('cancelled', 'discarded', 'completed')
       OR (j.state = 'running' AND greatest(j.attempted_at, i.lease_until)
           < clock_timestamp() - (@dead_after_seconds::double precision) * interval '1 second'))
  AND (i.lease_until IS NULL OR i.lease_until < clock_timestamp())
ORDER BY i.id
LIMIT @max_rows;

-- name: IntentRedispatch :execrows
UPDATE billing.intents SET river_job_id = @new_job_id, redispatches = redispatches + @counted::integer, updated_at = now()
WHERE id = @id AND status IN ('pending', 'charging') AND river_job_id IS NOT DISTINCT FROM sqlc.narg(old_job_id)::bigint
  AND (lease_until IS NULL OR lease_until < clock_timestamp());

-- name: IntentParkJobless :execrows
UPDATE billing.intents SET status = 'parked', status_reason = @status_reason, status_detail = @status_detail, updated_at = now()
WHERE id = @id AND status IN ('pending', 'charging') AND river_job_id IS NOT DISTINCT FROM sqlc.narg(old_job_id)::bigint
  AND (lease_until IS NULL OR lease_until < clock_timestamp());

-- name: IntentForWork :one
-- Everything that decides an intent's next step, read at once.
SELECT i.id, i.namespace, i.customer_id, i.billing_period, i.idempotency_key AS intent_key, i.stripe_customer_id, i.amount_cents, i.currency,
       i.payment_method, i.description, i.status, i.status_reason, i.status_detail, i.key_generation, i.run_id, i.claim_number, i.river_job_id,
       i.charge_id,
       coalesce(i.lease_until > clock_timestamp(), false)::boolean AS lease_alive,
       coalesce(extract(epoch FROM i.lease_until - clock_timestamp()), 0)::double precision AS lease_seconds_left,
       coalesce(r.status, '')::text AS run_status, coalesce(r.resume_count, 0)::integer AS run_resume_count,
       coalesce(r.stripe_account, '')::text AS run_stripe_account,
       -- Not a join: a one-row table is never analysed, and the planner takes it for hundreds. Without its row nothing is charged.
       coalesce((SELECT w.stopped FROM billing.charging_switch w), true)::boolean AS stopped,
       EXISTS (SELECT 1 FROM billing.conflicts c WHERE c.intent_id = i.id AND c.resolved_at IS NULL) AS open_conflict,
       (q.intent_id IS NOT NULL)::boolean AS frozen,
       coalesce(q.idempotency_key, '')::text AS frozen_key,
       coalesce(q.stripe_api, '')::text AS frozen_api,
       coalesce(q.path, '')::text AS frozen_path,
       q.body AS frozen_body,
       coalesce(q.api_version, '')::text AS frozen_api_version,
       coalesce(q.stripe_account, '')::text AS frozen_account,
       q.livemode AS frozen_livemode,
       coalesce(q.customer, '')::text AS frozen_customer,
       coalesce(q.amount_cents, 0)::bigint AS frozen_amount_cents,
       coalesce(q.currency, '')::text AS frozen_currency,
       coalesce(q.payment_method, '')::text AS frozen_payment_method,
       coalesce(q.object_id, '')::text AS object_id,
       coalesce(q.saw_server_error, false)::boolean AS saw_server_error,
       coalesce(q.decline_code, '')::text AS decline_code,
       coalesce(q.advice_code, '')::text AS advice_code,
       coalesce(q.first_sent_at, clock_timestamp())::timestamptz AS first_sent_at,
       coalesce(extract(epoch FROM clock_timestamp() - q.first_sent_at), 0)::double precision AS seconds_since_first_send,
       -- Since when the event can have been known, here or in what a restore took away.
       least(i.created_at, i.source_enqueued_at)::timestamptz AS known_since,
       extract(epoch FROM clock_timestamp() - least(i.created_at, i.source_enqueued_at))::double precision AS seconds_since_known,
       a.unresolved, a.creates, a.look_ups,
       coalesce(a.doubt_across_window, false)::boolean AS doubt_across_window,
       coalesce(a.saw_idempotency_error, false)::boolean AS saw_idempotency_error,
       coalesce(a.saw_mismatch, false)::boolean AS saw_mismatch,
       coalesce(a.seconds_since_last_create, 0)::double precision AS seconds_since_last_create,
       coalesce(a.seconds_since_last_look_up, 0)::double precision AS seconds_since_last_look_up,
       coalesce(a.seconds_since_absent, -1)::double precision AS seconds_since_absent,
       coalesce(a.seconds_since_last_read, -1)::double precision AS seconds_since_last_read,
       coalesce(a.seconds_since_last_cancel, -1)::double precision AS seconds_since_last_cancel,
       -- A person's decision raises the claim number without a worker's call.
       (i.claim_number > coalesce(a.last_call_claim_number, 0))::boolean AS decided_since_last_call,
       coalesce(a.seconds_since_doubt, 0)::double precision AS seconds_since_doubt,
       coalesce(a.other_lease_alive, false)::boolean AS other_lease_alive,
       coalesce(a.last_create_vault_key_id, 0)::bigint AS last_create_vault_key_id,
       clock_timestamp()::timestamptz AS database_now
FROM billing.intents i
LEFT JOIN billing.runs r ON r.id = i.run_id
LEFT JOIN billing.charge_requests q ON q.intent_id = i.id AND q.key_generation = i.key_generation
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE c.operation = 'create' AND c.resolved_at IS NULL) AS unresolved,
           count(*) FILTER (WHERE c.operation = 'create') AS creates,
           -- The known object was made after the key's window had passed, and an earlier send without one is still in doubt:
           -- what becomes of the object says nothing about that send.
           (count(*) FILTER (WHERE c.operation = 'create' AND c.resolved_at IS NULL AND c.object_id IS DISTINCT FROM q.object_id) > 0
            AND max(c.started_at) FILTER (WHERE c.operation = 'create') >= q.first_sent_at + (@window_seconds::double precision) * interval '1 second'
            AND coalesce(min(c.started_at) FILTER (WHERE c.operation = 'create' AND c.object_id = q.object_id), 'infinity')
                >= q.first_sent_at + (@window_seconds::double precision) * interval '1 second') AS doubt_across_window,
           count(*) FILTER (WHERE c.operation = 'look_up' AND c.result IS NOT NULL) AS look_ups,
           bool_or(c.operation = 'create' AND c.result = 'idempotency_error') AS saw_idempotency_error,
           bool_or(c.operation = 'create' AND c.result = 'mismatch') AS saw_mismatch,
           extract(epoch FROM clock_timestamp() - max(c.started_at) FILTER (WHERE c.operation = 'create')) AS seconds_since_last_create,
           extract(epoch FROM clock_timestamp() - max(c.finished_at) FILTER (WHERE c.operation = 'look_up')) AS seconds_since_last_look_up,
           -- Absence counts only when the listing began after every create's lease had ended.
           extract(epoch FROM clock_timestamp() - max(c.finished_at) FILTER (WHERE c.operation = 'look_up' AND c.result = 'absent'
               AND c.started_at > (SELECT coalesce(max(l.lease_until), '-infinity') FROM billing.charge_attempts l
                                   WHERE l.intent_id = i.id AND l.operation = 'create'))) AS seconds_since_absent,
           extract(epoch FROM clock_timestamp() - max(c.finished_at) FILTER (WHERE c.operation = 'read')) AS seconds_since_last_read,
           extract(epoch FROM clock_timestamp() - max(c.finished_at) FILTER (WHERE c.operation = 'cancel')) AS seconds_since_last_cancel,
           extract(epoch FROM clock_timestamp() - min(c.started_at) FILTER (WHERE c.operation = 'create' AND c.resolved_at IS NULL)) AS seconds_since_doubt,
           (array_agg(c.vault_key_id ORDER BY c.id DESC) FILTER (WHERE c.operation = 'create'))[1] AS last_create_vault_key_id,
           max(c.claim_number) FILTER (WHERE c.river_job_id IS NOT NULL) AS last_call_claim_number,
           bool_or(c.finished_at IS NULL AND c.lease_until > clock_timestamp()) AS other_lease_alive
    FROM billing.charge_attempts c WHERE c.intent_id = i.id AND c.key_generation = i.key_generation) a
WHERE i.id = @id;

-- name: IntentClaim :one
-- The claim: status, run and kill switch are checked, the fencing number is raised, the request is frozen by the first send,
-- and the attempt stands before the call. No row: refused. Only creates ask the run and the switch (look-ups, reads and
-- cancels go on while charging is stopped).
WITH may AS (
    SELECT i.id, i.key_generation, i.claim_number, r.resume_count
    FROM billing.intents i
    JOIN billing.runs r ON r.id = i.run_id
    WHERE i.id = @intent_id
      AND i.claim_number = @seen_claim_number
      AND i.key_generation = @key_generation
      -- Terms that a person corrected after they were read are read again.
      AND (NOT @first_send::boolean
          OR (i.amount_cents = @amount_cents AND i.currency = @currency AND i.stripe_customer_id = @customer))
      AND i.reserved_cents IS NOT NULL
      AND (i.status = 'pending' OR (i.status = 'charging' AND i.lease_until < clock_timestamp()))
      AND (@operation::text <> 'create' OR (r.status = 'open' AND NOT coalesce((SELECT w.stopped FROM billing.charging_switch w), true)))
      AND (@operation::text <> 'create' OR NOT @first_send::boolean OR NOT EXISTS (
          SELECT 1 FROM billing.conflicts c WHERE c.intent_id = i.id AND c.resolved_at IS NULL))
    FOR NO KEY UPDATE OF i
), claimed AS (
    UPDATE billing.intents i SET
        status = 'charging',
        status_reason = @status_reason,
        status_detail = NULL,
        claim_number = i.claim_number + 1,
        lease_until = clock_timestamp() + (@lease_seconds::double precision) * interval '1 second',
        updated_at = now()
    FROM may WHERE i.id = may.id
    RETURNING i.id, i.key_generation, i.claim_number, i.lease_until, i.idempotency_key
), frozen AS (
    INSERT INTO billing.charge_requests (intent_id, key_generation, idempotency_key, stripe_api, path, body, api_version,
        stripe_account, livemode, customer, amount_cents, currency, payment_method)
    SELECT claimed.id, claimed.key_generation, @idempotency_key, @stripe_api, @path, @body, @api_version,
        @stripe_account, sqlc.narg(livemode)::boolean, @customer, @amount_cents, @currency, nullif(@payment_method::text, '')
    FROM claimed WHERE @first_send::boolean
)
INSERT INTO billing.charge_attempts (intent_id, key_generation, claim_number, operation, idempotency_key, river_job_id, worker,
    vault_key_id, run_resume_count, lease_until)
SELECT claimed.id, claimed.key_generation, claimed.claim_number, @operation::text, @idempotency_key, @river_job_id, @worker,
    sqlc.narg(vault_key_id)::bigint, may.resume_count, claimed.lease_until
FROM claimed JOIN may ON may.id = claimed.id
RETURNING id AS attempt_id, claim_number, run_resume_count, started_at, lease_until;

-- name: IntentFinish :one
-- The end of a call. The attempt's result is written whether or not the claim still holds; the intent moves only under it,
-- and held tells whether it did. The row is locked first, so that both parts see the same answer to that. A success that lost
-- its claim stays unresolved here: IntentFinishLate records and resolves it in one transaction.
WITH holder AS (
    SELECT i.id, (i.claim_number = @claim_number AND i.status = 'charging') AS holds
    FROM billing.intents i WHERE i.id = @intent_id AND i.idempotency_key = @intent_key
    FOR NO KEY UPDATE
), attempt AS (
    UPDATE billing.charge_attempts a SET
        finished_at = clock_timestamp(), lease_until = least(a.lease_until, clock_timestamp()), result = @result, http_status = sqlc.narg(http_status), request_id = nullif(@request_id::text, ''),
        replayed = @replayed, error_type = nullif(@error_type::text, ''), error_code = nullif(@error_code::text, ''),
        decline_code = nullif(@decline_code::text, ''), object_id = nullif(@object_id::text, ''), detail = nullif(@detail::text, ''),
        -- A look-up may have resolved this attempt while its answer was on its way: an unknown does not undo that.
        -- A success whose claim was lost is in doubt until it is recorded, whatever was thought of this attempt before.
        resolved_at = CASE
            WHEN @resolution::text = '' OR (@resolution::text = 'moved' AND NOT holder.holds AND a.resolution = 'moved') THEN a.resolved_at
            WHEN @resolution::text = 'moved' AND NOT holder.holds THEN NULL
            ELSE clock_timestamp() END,
        resolution = CASE
            WHEN @resolution::text = '' OR (@resolution::text = 'moved' AND NOT holder.holds AND a.resolution = 'moved') THEN a.resolution
            WHEN @resolution::text = 'moved' AND NOT holder.holds THEN NULL
            ELSE @resolution::text END
    FROM holder
    WHERE a.id = @attempt_id AND a.intent_id = holder.id AND a.claim_number = @claim_number
    RETURNING a.intent_id, a.key_generation, a.claim_number, holder.holds
), others AS (
    UPDATE billing.charge_attempts a SET resolved_at = clock_timestamp(), resolution = @others_resolution::text
    FROM attempt
    WHERE @others_resolution::text <> '' AND a.intent_id = attempt.intent_id AND a.key_generation = attempt.key_generation
      AND a.id <> @attempt_id AND a.operation = 'create' AND a.resolved_at IS NULL
      -- A call that lost its claim says nothing about a newer send on its way.
      AND attempt.holds
    RETURNING a.id
), request AS (
    UPDATE billing.charge_requests q SET
        object_id = coalesce(q.object_id, nullif(@object_id::text, '')),
        saw_server_error = q.saw_server_error OR @saw_server_error::boolean,
        object_canceled_at = CASE WHEN @object_canceled::boolean THEN clock_timestamp() ELSE q.object_canceled_at END,
        decline_code = coalesce(nullif(@decline_code::text, ''), q.decline_code),
        advice_code = coalesce(nullif(@advice_code::text, ''), q.advice_code)
    FROM attempt
    WHERE q.intent_id = attempt.intent_id AND q.key_generation = attempt.key_generation
      AND (@object_id::text <> '' OR @saw_server_error::boolean OR @object_canceled::boolean OR @decline_code::text <> '')
    RETURNING q.intent_id
), finished AS (
    UPDATE billing.intents i SET
        status = @status,
        status_reason = @status_reason,
        status_detail = nullif(@detail::text, ''),
        charge_id = coalesce(nullif(@charge_id::text, ''), i.charge_id),
        payment_intent_id = coalesce(nullif(@payment_intent_id::text, ''), i.payment_intent_id),
        reserved_cents = CASE WHEN @give_back::boolean THEN NULL ELSE i.reserved_cents END,
        river_job_id = CASE WHEN @drop_job::boolean THEN NULL ELSE i.river_job_id END,
        redispatches = 0,
        lease_until = CASE WHEN @status::text = 'charging' THEN clock_timestamp() ELSE NULL END,
        updated_at = now()
    FROM attempt, (SELECT count(*) FROM others) o, (SELECT count(*) FROM request) q
    WHERE i.id = attempt.intent_id AND attempt.holds AND i.claim_number = attempt.claim_number AND i.status = 'charging'
    RETURNING i.id, i.run_id, i.amount_cents
), run AS (
    UPDATE billing.runs r SET allocated_cents = r.allocated_cents - finished.amount_cents, updated_at = now()
    FROM finished WHERE r.id = finished.run_id AND @give_back::boolean
    RETURNING r.id
)
SELECT (SELECT count(*) FROM finished) > 0 AS held, (SELECT count(*) FROM run) AS runs_touched;

-- name: IntentLockForLateSuccess :one
SELECT i.id, i.status, i.run_id, i.amount_cents, i.reserved_cents, i.charge_id, i.key_generation
FROM billing.intents i WHERE i.id = @id AND i.idempotency_key = @intent_key
FOR UPDATE OF i;

-- name: IntentFinishLate :execrows
-- A validated success finishes any intent that is not final, from whichever attempt.
UPDATE billing.intents SET status = 'charged', status_reason = 'adopted', status_detail = @status_detail, charge_id = @charge_id,
    payment_intent_id = coalesce(nullif(@payment_intent_id::text, ''), payment_intent_id),
    reserved_cents = CASE WHEN run_id IS NULL THEN NULL ELSE amount_cents END, lease_until = NULL, updated_at = now()
WHERE id = @id AND status <> 'charged';

-- name: IntentResolveAttempts :execrows
UPDATE billing.charge_attempts SET resolved_at = clock_timestamp(), resolution = @resolution
WHERE intent_id = @intent_id AND key_generation = @key_generation AND operation = 'create' AND resolved_at IS NULL;

-- name: IntentRelease :execrows
-- Back to waiting without a call: the run is paused, charging is stopped, or a conflict came in. Nothing was sent under this
-- generation, or all of it is resolved (the database refuses otherwise).
UPDATE billing.intents SET status = 'pending', status_reason = @status_reason, river_job_id = NULL, lease_until = NULL, updated_at = now()
WHERE id = @id AND claim_number = @claim_number AND river_job_id = @river_job_id
  AND (status = 'pending' OR (status = 'charging' AND lease_until < clock_timestamp()));

-- name: IntentPark :execrows
UPDATE billing.intents SET status = 'parked', status_reason = @status_reason, status_detail = @status_detail, updated_at = now()
WHERE id = @id AND claim_number = @claim_number
  AND (status = 'pending' OR (status = 'charging' AND lease_until < clock_timestamp()));

-- name: AttemptFinishUnfenced :exec
-- After a finish that the database refused (a charge id already taken): the result is kept all the same.
UPDATE billing.charge_attempts SET finished_at = clock_timestamp(), result = @result, http_status = sqlc.narg(http_status),
    request_id = nullif(@request_id::text, ''), replayed = @replayed, object_id = nullif(@object_id::text, ''), detail = nullif(@detail::text, '')
WHERE id = @attempt_id;

-- name: RateTake :one
SELECT granted::integer AS granted, seconds_left::double precision AS seconds_left
FROM billing.take_tokens(@kind::text, @wanted::integer, @per_second::integer) AS t(granted, seconds_left);

-- name: RateShrink :exec
-- Stripe said 429: half the pace, at most once a second; take_tokens recovers it by and by.
UPDATE billing.rate_budgets SET percent = greatest(5, percent / 2), percent_at = clock_timestamp()
WHERE kind = @kind AND percent_at < clock_timestamp() - interval '1 second';

-- name: ChargingSwitchGet :one
SELECT stopped, reason, actor, changed_at FROM billing.charging_switch;

-- name: ChargingSwitchSet :exec
UPDATE billing.charging_switch SET stopped = @stopped, reason = @reason, actor = @actor, changed_at = now();

-- name: OperatorActionAdd :exec
INSERT INTO billing.operator_actions (actor, action, run_id, intent_id, reason, detail)
VALUES (@actor, @action, sqlc.narg(run_id), sqlc.narg(intent_id), @reason, @detail);

-- name: VaultKeyActive :one
SELECT id, run_id, ciphertext, encryption_key_id, provider_key_id, expires_at, (expires_at > clock_timestamp())::boolean AS alive
FROM billing.vault_keys WHERE run_id = @run_id AND state = 'active';

-- name: VaultKeyBegin :one
-- The leased row before the call. No row: another process is issuing at this moment, or the run was resumed or its cap raised since
-- the key's cap was computed. The run is locked, so that no raise can come in between.
INSERT INTO billing.vault_keys (run_id, state, label, usd_cap_cents, lease_until, expires_at)
SELECT r.id, 'issuing', @label::text, @usd_cap_cents::bigint, clock_timestamp() + (@lease_seconds::double precision) * interval '1 second',
    clock_timestamp() + (@ttl_seconds::double precision) * interval '1 second'
FROM billing.runs r WHERE r.id = @run_id AND r.resume_count = @resume_count
FOR SHARE OF r
ON CONFLICT (run_id) WHERE state IN ('issuing', 'active') DO NOTHING
RETURNING id, expires_at;

-- name: VaultKeyComplete :execrows
UPDATE billing.vault_keys SET state = 'active', provider_key_id = nullif(@provider_key_id::text, ''), ciphertext = @ciphertext,
    encryption_key_id = @encryption_key_id, issued_at = clock_timestamp(),
    expires_at = least(expires_at, sqlc.narg(granted_until)::timestamptz)
WHERE id = @id AND state = 'issuing';

-- name: VaultKeyEnd :execrows
UPDATE billing.vault_keys SET state = @state, ended_at = clock_timestamp()
WHERE id = @id AND state IN ('issuing', 'active');

-- name: VaultKeyExpireLeases :execrows
UPDATE billing.vault_keys SET state = 'failed', ended_at = clock_timestamp()
WHERE run_id = @run_id AND state = 'issuing' AND lease_until < clock_timestamp();

-- name: RunChargedCents :one
SELECT coalesce(sum(amount_cents), 0)::bigint FROM billing.intents WHERE run_id = @run_id AND status = 'charged';

-- name: NamespacePeriodFormat :one
SELECT period_format FROM billing.namespaces WHERE namespace = @namespace;

-- name: NamespaceList :many
SELECT namespace FROM billing.namespaces ORDER BY namespace;

-- name: IntentCountStuck :many
SELECT status, status_reason, count(*) AS intents FROM billing.intents
WHERE status = 'charging' OR (status = 'pending' AND river_job_id IS NOT NULL) OR status = 'parked'
GROUP BY status, status_reason;

-- name: DoubtSummary :one
SELECT count(DISTINCT intent_id) AS intents,
       coalesce(extract(epoch FROM clock_timestamp() - min(started_at)), 0)::double precision AS oldest_seconds
FROM billing.charge_attempts
WHERE operation = 'create' AND resolved_at IS NULL AND (finished_at IS NOT NULL OR lease_until < clock_timestamp());

-- name: DatabaseNow :one
SELECT clock_timestamp()::timestamptz AS database_now;
