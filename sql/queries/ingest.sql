-- name: NamespaceRegister :exec
INSERT INTO billing.namespaces (namespace, period_format, many_per_stripe_customer)
VALUES (@namespace, @period_format, @many_per_stripe_customer)
ON CONFLICT (namespace) DO NOTHING;

-- name: NamespaceGet :one
SELECT period_format, many_per_stripe_customer, created_at FROM billing.namespaces WHERE namespace = @namespace;

-- name: NamespaceSourceRegister :exec
INSERT INTO billing.namespace_sources (namespace, source, mapping, mapping_fingerprint)
VALUES (@namespace, @source, @mapping, @mapping_fingerprint)
ON CONFLICT (namespace, source) DO NOTHING;

-- name: NamespaceSourceGet :one
SELECT mapping, mapping_fingerprint FROM billing.namespace_sources WHERE namespace = @namespace AND source = @source;

-- name: IntentsStanding :many
-- What stands under each of these keys. ordinal is the key's place in the arrays, from 1.
-- LATERAL with LIMIT leaves the planner no choice but one look into the unique index per key. While a table fills from empty its
-- statistics still say that it has one row, and a plain join then reads all of it once per batch.
SELECT t.ordinal::bigint AS ordinal, i.id, i.stripe_customer_id, i.amount_cents, i.currency, i.source, i.source_position
FROM ROWS FROM (unnest(@billing_periods::text[]), unnest(@customer_ids::text[])) WITH ORDINALITY
    AS t(billing_period, customer_id, ordinal)
CROSS JOIN LATERAL (
    SELECT n.id, n.stripe_customer_id, n.amount_cents, n.currency, n.source, n.source_position
    FROM billing.intents n
    WHERE n.namespace = @namespace AND n.billing_period = t.billing_period AND n.customer_id = t.customer_id
    LIMIT 1
) i;

-- name: IntentsInsert :many
-- The arrays are sorted by key: two writers that meet each other's keys in opposite order would deadlock.
INSERT INTO billing.intents (namespace, customer_id, billing_period, idempotency_key, stripe_customer_id, amount_cents, currency,
    payment_method, description, status, status_reason, source, source_position, source_enqueued_at, source_detail)
SELECT @namespace, t.customer_id, t.billing_period, t.idempotency_key, t.stripe_customer_id, t.amount_cents, t.currency,
    nullif(t.payment_method, ''), nullif(t.description, ''),
    CASE t.amount_cents WHEN 0 THEN 'nothing_due' ELSE 'pending' END,
    CASE t.amount_cents WHEN 0 THEN 'zero_amount' ELSE 'no_run' END,
    @source, t.source_position, nullif(t.source_enqueued_at, '0001-01-01 00:00:00+00'), nullif(t.source_detail, '')::jsonb
FROM ROWS FROM (unnest(@customer_ids::text[]), unnest(@billing_periods::text[]), unnest(@idempotency_keys::text[]),
    unnest(@stripe_customer_ids::text[]), unnest(@amounts_cents::bigint[]), unnest(@currencies::text[]),
    unnest(@payment_methods::text[]), unnest(@descriptions::text[]), unnest(@source_positions::text[]),
    unnest(@sources_enqueued_at::timestamptz[]), unnest(@source_details::text[]))
    AS t(customer_id, billing_period, idempotency_key, stripe_customer_id, amount_cents, currency, payment_method, description,
        source_position, source_enqueued_at, source_detail)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: ConflictsInsert :many
INSERT INTO billing.conflicts (intent_id, amount_cents, currency, stripe_customer_id, payment_method, description, deliveries,
    first_source, first_position, first_detail, last_source, last_position)
SELECT t.intent_id, t.amount_cents, t.currency, t.stripe_customer_id, nullif(t.payment_method, ''), nullif(t.description, ''), 1,
    @source, t.first_position, nullif(t.first_detail, '')::jsonb, @source, t.first_position
FROM ROWS FROM (unnest(@intent_ids::bigint[]), unnest(@amounts_cents::bigint[]), unnest(@currencies::text[]),
    unnest(@stripe_customer_ids::text[]), unnest(@payment_methods::text[]), unnest(@descriptions::text[]),
    unnest(@first_positions::text[]), unnest(@first_details::text[]))
    AS t(intent_id, amount_cents, currency, stripe_customer_id, payment_method, description, first_position, first_detail)
ON CONFLICT (intent_id, amount_cents, currency, stripe_customer_id) DO NOTHING
RETURNING id;

-- name: ConflictsStanding :many
-- As IntentsStanding.
SELECT t.ordinal::bigint AS ordinal, c.id, c.first_source, c.first_position
FROM ROWS FROM (unnest(@intent_ids::bigint[]), unnest(@amounts_cents::bigint[]), unnest(@currencies::text[]),
    unnest(@stripe_customer_ids::text[])) WITH ORDINALITY
    AS t(intent_id, amount_cents, currency, stripe_customer_id, ordinal)
CROSS JOIN LATERAL (
    SELECT n.id, n.first_source, n.first_position FROM billing.conflicts n
    WHERE n.intent_id = t.intent_id AND n.amount_cents = t.amount_cents AND n.currency = t.currency
        AND n.stripe_customer_id = t.stripe_customer_id
    LIMIT 1
) c;

-- name: ConflictsLock :exec
-- An update alone takes its rows in whatever order, and two writers would deadlock.
SELECT id FROM billing.conflicts WHERE id = ANY(@ids::bigint[]) ORDER BY id FOR NO KEY UPDATE;

-- name: ConflictsRaise :exec
UPDATE billing.conflicts c
SET deliveries = c.deliveries + t.deliveries, last_source = @source, last_position = t.last_position, last_seen_at = now()
FROM ROWS FROM (unnest(@ids::bigint[]), unnest(@deliveries::bigint[]), unnest(@last_positions::text[]))
    AS t(id, deliveries, last_position)
WHERE c.id = t.id AND c.id = ANY(@ids::bigint[]);

-- name: QuarantinedEventsInsert :many
INSERT INTO billing.quarantined_events (namespace, object_sha256, reason_code, field, reason, raw, deliveries,
    first_source, first_position, first_detail, last_source, last_position)
SELECT @namespace, t.object_sha256, t.reason_code, t.field, t.reason, t.raw, 1, @source, t.first_position,
    nullif(t.first_detail, '')::jsonb, @source, t.first_position
FROM ROWS FROM (unnest(@objects_sha256::bytea[]), unnest(@reason_codes::text[]), unnest(@fields::text[]), unnest(@reasons::text[]),
    unnest(@raws::bytea[]), unnest(@first_positions::text[]), unnest(@first_details::text[]))
    AS t(object_sha256, reason_code, field, reason, raw, first_position, first_detail)
ON CONFLICT (namespace, object_sha256, reason_code) DO NOTHING
RETURNING id;

-- name: QuarantinedEventsStanding :many
-- As IntentsStanding.
SELECT t.ordinal::bigint AS ordinal, q.id, q.first_source, q.first_position
FROM ROWS FROM (unnest(@objects_sha256::bytea[]), unnest(@reason_codes::text[])) WITH ORDINALITY
    AS t(object_sha256, reason_code, ordinal)
CROSS JOIN LATERAL (
    SELECT n.id, n.first_source, n.first_position FROM billing.quarantined_events n
    WHERE n.namespace = @namespace AND n.object_sha256 = t.object_sha256 AND n.reason_code = t.reason_code
    LIMIT 1
) q;

-- name: QuarantinedEventsLock :exec
-- As ConflictsLock.
SELECT id FROM billing.quarantined_events WHERE id = ANY(@ids::bigint[]) ORDER BY id FOR NO KEY UPDATE;

-- name: QuarantinedEventsRaise :exec
UPDATE billing.quarantined_events q
SET deliveries = q.deliveries + t.deliveries, last_source = @source, last_position = t.last_position, last_seen_at = now()
FROM ROWS FROM (unnest(@ids::bigint[]), unnest(@deliveries::bigint[]), unnest(@last_positions::text[]))
    AS t(id, deliveries, last_position)
WHERE q.id = t.id AND q.id = ANY(@ids::bigint[]);

-- name: SourceCountersAdd :exec
-- The arrays are sorted by partition, for the same reason as the keys of IntentsInsert.
INSERT INTO billing.source_counters (namespace, source, source_partition, intents, duplicates, redeliveries, conflicts, quarantined)
SELECT @namespace, @source, t.source_partition, t.intents, t.duplicates, t.redeliveries, t.conflicts, t.quarantined
FROM ROWS FROM (unnest(@source_partitions::text[]), unnest(@intents::bigint[]), unnest(@duplicates::bigint[]),
    unnest(@redeliveries::bigint[]), unnest(@conflicts::bigint[]), unnest(@quarantined::bigint[]))
    AS t(source_partition, intents, duplicates, redeliveries, conflicts, quarantined)
ON CONFLICT (namespace, source, source_partition) DO UPDATE SET
    intents = source_counters.intents + excluded.intents,
    duplicates = source_counters.duplicates + excluded.duplicates,
    redeliveries = source_counters.redeliveries + excluded.redeliveries,
    conflicts = source_counters.conflicts + excluded.conflicts,
    quarantined = source_counters.quarantined + excluded.quarantined,
    updated_at = now();

-- name: EventHubOwnershipList :many
-- Relinquished rows (owner '') are listed too: without them a partition that was given up would be claimed without its etag.
-- The age is taken by the database's clock; the caller's may be minutes off.
SELECT partition_id, owner_id, etag, extract(epoch FROM clock_timestamp() - modified_at)::float8 AS age_seconds
FROM billing.eventhub_ownership
WHERE eventhub_namespace = @eventhub_namespace AND eventhub = @eventhub AND consumer_group = @consumer_group
ORDER BY partition_id;

-- name: EventHubOwnershipInsert :one
-- No row: somebody else was first.
INSERT INTO billing.eventhub_ownership (eventhub_namespace, eventhub, consumer_group, partition_id, owner_id)
VALUES (@eventhub_namespace, @eventhub, @consumer_group, @partition_id, @owner_id)
ON CONFLICT (eventhub_namespace, eventhub, consumer_group, partition_id) DO NOTHING
RETURNING etag;

-- name: EventHubOwnershipUpdate :one
-- No row: somebody else changed it since it was listed.
UPDATE billing.eventhub_ownership
SET owner_id = @owner_id, etag = etag + 1, modified_at = clock_timestamp()
WHERE eventhub_namespace = @eventhub_namespace AND eventhub = @eventhub AND consumer_group = @consumer_group
    AND partition_id = @partition_id AND etag = @etag
RETURNING etag;

-- name: EventHubCheckpointList :many
SELECT partition_id, hub_created_at, sequence_number, event_offset, last_enqueued_seq
FROM billing.eventhub_checkpoints
WHERE eventhub_namespace = @eventhub_namespace AND eventhub = @eventhub AND consumer_group = @consumer_group
ORDER BY partition_id;

-- name: EventHubCheckpointSet :one
-- Writes the checkpoint if the owner is still the owner and the checkpoint still stands where this reader left it or beyond,
-- and never moves it back within one generation of the hub (hub_created_at); another generation begins anew, be it older: the name
-- may lead to an earlier hub again, as after a geo-disaster pairing was turned. Owners change with the generation.
--
-- owned: the partition is still this owner's. Every owner was one when it began to read. unfenced takes that for granted: where
-- ownerships are kept elsewhere, the row is evidence of what this database has recorded, whoever recorded it.
-- intact: what this reader wrote before (previous_seq, -1 when nothing) is still there. After an asynchronous fail-over or a
-- restore it is not, and then the events since the older checkpoint must be read again.
-- stands: the sequence number that stood before, of the same generation; -1 for none.
WITH owner AS (
    SELECT @unfenced::boolean OR EXISTS (
        SELECT 1 FROM billing.eventhub_ownership o
        WHERE o.eventhub_namespace = @eventhub_namespace AND o.eventhub = @eventhub AND o.consumer_group = @consumer_group
            AND o.partition_id = @partition_id AND o.owner_id = @owner_id
    ) AS owned
), standing AS (
    SELECT coalesce(max(c.sequence_number), -1) AS stands, @previous_seq::bigint <= coalesce(max(c.sequence_number), -1) AS intact
    FROM billing.eventhub_checkpoints c
    WHERE c.eventhub_namespace = @eventhub_namespace AND c.eventhub = @eventhub AND c.consumer_group = @consumer_group
        AND c.partition_id = @partition_id AND c.hub_created_at = @hub_created_at
), written AS (
    INSERT INTO billing.eventhub_checkpoints AS c (eventhub_namespace, eventhub, consumer_group, partition_id, hub_created_at,
        sequence_number, event_offset, last_enqueued_seq)
    SELECT @eventhub_namespace, @eventhub, @consumer_group, @partition_id, @hub_created_at,
        @sequence_number, @event_offset, greatest(@last_enqueued_seq::bigint, @sequence_number::bigint)
    FROM owner, standing WHERE owner.owned AND standing.intact
    ON CONFLICT (eventhub_namespace, eventhub, consumer_group, partition_id) DO UPDATE SET
        hub_created_at = excluded.hub_created_at, sequence_number = excluded.sequence_number, event_offset = excluded.event_offset,
        last_enqueued_seq = CASE WHEN c.hub_created_at = excluded.hub_created_at
            THEN greatest(c.last_enqueued_seq, excluded.last_enqueued_seq) ELSE excluded.last_enqueued_seq END,
        updated_at = now()
        WHERE c.hub_created_at <> excluded.hub_created_at OR c.sequence_number < excluded.sequence_number
    RETURNING 1
)
SELECT owner.owned::boolean AS owned, standing.intact::boolean AS intact, EXISTS (SELECT 1 FROM written)::boolean AS moved,
    standing.stands::bigint AS stands
FROM owner, standing;

-- name: EventHubLastEnqueuedSet :exec
-- What an autoscaler reads as lag; only the generation that the reader saw.
UPDATE billing.eventhub_checkpoints
SET last_enqueued_seq = @last_enqueued_seq
WHERE eventhub_namespace = @eventhub_namespace AND eventhub = @eventhub AND consumer_group = @consumer_group
    AND partition_id = @partition_id AND hub_created_at = @hub_created_at AND last_enqueued_seq < @last_enqueued_seq;
