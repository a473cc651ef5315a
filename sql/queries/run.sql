-- What operators do with a billing run after it was opened, and what they ask before.

-- name: RunLockByKey :one
SELECT id, namespace, billing_period, currency, status, status_reason, status_detail, expected_total_cents, expected_count,
       headroom_percent, cap_cents, allocated_cents, resume_count, vault_usd_cap_cents, stripe_account, livemode, opened_by,
       opened_at, updated_at, closed_at
FROM billing.runs
WHERE namespace = @namespace AND billing_period = @billing_period AND currency = @currency
FOR UPDATE;

-- name: RunRaiseCap :exec
-- The resume count makes every charger read the run's key anew: it was issued for what was left of the old cap.
UPDATE billing.runs SET cap_cents = @cap_cents, vault_usd_cap_cents = coalesce(sqlc.narg(vault_usd_cap_cents), vault_usd_cap_cents),
    resume_count = resume_count + 1, updated_at = now()
WHERE id = @id;

-- name: VaultKeyExpireNow :exec
-- Whoever opens the run's key next revokes this one and issues another. One that is being issued at this moment is nobody's: its issuer
-- finds its row failed, and revokes it.
UPDATE billing.vault_keys SET
    expires_at = clock_timestamp(),
    state = CASE state WHEN 'issuing' THEN 'failed' ELSE state END,
    ended_at = CASE state WHEN 'issuing' THEN clock_timestamp() ELSE ended_at END
WHERE run_id = @run_id AND state IN ('issuing', 'active');

-- name: RunClose :exec
UPDATE billing.runs SET status = 'closed', status_reason = 'closed_by_operator', status_detail = @status_detail, closed_at = now(), updated_at = now()
WHERE id = @id;

-- name: RunReopen :exec
UPDATE billing.runs SET status = 'open', status_reason = 'reopened', status_detail = @status_detail, closed_at = NULL,
    resume_count = resume_count + 1, updated_at = now()
WHERE id = @id;

-- name: QuarantineCountOpen :one
SELECT count(*) FROM billing.quarantined_events WHERE namespace = @namespace AND resolved_at IS NULL;

-- name: VaultKeyListOfClosedRuns :many
SELECT k.id, k.run_id, k.provider_key_id, (k.expires_at > clock_timestamp())::boolean AS alive
FROM billing.vault_keys k JOIN billing.runs r ON r.id = k.run_id
WHERE k.state = 'active' AND r.status = 'closed'
  AND NOT EXISTS (SELECT 1 FROM billing.intents i WHERE i.run_id = r.id AND i.status = 'charging');

-- name: IntentListUndispatched :many
-- All that waits without a job, whatever it waits for, in the order in which a dispatcher would take it; reserved ones are in flight
-- as far as the cap is concerned.
SELECT i.id, i.customer_id, i.stripe_customer_id, i.idempotency_key, i.amount_cents, i.reserved_cents, i.guards_customer, i.status_reason,
       EXISTS (SELECT 1 FROM billing.charge_requests q WHERE q.intent_id = i.id) AS was_sent,
       EXISTS (SELECT 1 FROM billing.conflicts c WHERE c.intent_id = i.id AND c.resolved_at IS NULL) AS open_conflict,
       EXISTS (SELECT 1 FROM billing.intents o
               WHERE o.stripe_customer_id = i.stripe_customer_id AND o.billing_period = i.billing_period AND o.currency = i.currency
                 AND o.guards_customer AND o.id <> i.id) AS customer_taken
FROM billing.intents i
WHERE i.namespace = @namespace AND i.billing_period = @billing_period AND i.currency = @currency
  AND i.status = 'pending' AND i.river_job_id IS NULL AND i.id > @after
ORDER BY i.id
LIMIT @max_rows;

-- name: IntentSums :one
-- What came for a run's key, and what of it is or may be charged already.
SELECT count(*) AS ingested, coalesce(sum(amount_cents), 0)::bigint AS ingested_cents,
       count(*) FILTER (WHERE status NOT IN ('pending', 'nothing_due', 'voided') OR river_job_id IS NOT NULL) AS begun,
       coalesce(sum(amount_cents) FILTER (WHERE status NOT IN ('pending', 'nothing_due', 'voided') OR river_job_id IS NOT NULL), 0)::bigint AS begun_cents
FROM billing.intents WHERE namespace = @namespace AND billing_period = @billing_period AND currency = @currency;

-- name: NamespaceManyPerStripeCustomer :one
SELECT many_per_stripe_customer FROM billing.namespaces WHERE namespace = @namespace;
