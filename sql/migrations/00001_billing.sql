-- +goose Up
-- The tables of the product, in schema billing; that schema (it holds the list of applied migrations) and River's
-- own tables exist before this file runs.

-- One row per business stream. The first ingestor registers it, and every later one must agree.
CREATE TABLE billing.namespaces (
    namespace                text        PRIMARY KEY
        CONSTRAINT namespaces_namespace_form CHECK (namespace ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
    period_format            text        NOT NULL
        CONSTRAINT namespaces_period_format_known CHECK (period_format IN ('month', 'day', 'week', 'quarter', 'year')),
    many_per_stripe_customer boolean     NOT NULL DEFAULT false,
    created_at               timestamptz NOT NULL DEFAULT now()
);

-- The field mapping a source uses for a namespace: two ingestors with different mappings would make
-- different intents of one event.
CREATE TABLE billing.namespace_sources (
    namespace           text        NOT NULL REFERENCES billing.namespaces,
    source              text        NOT NULL CONSTRAINT namespace_sources_source_form CHECK (source ~ '^[a-z]{1,32}$'),
    mapping             jsonb       NOT NULL,
    mapping_fingerprint text        NOT NULL,
    created_at          timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (namespace, source)
);

-- A billing run: all intents of one namespace, period and currency. One row for ever (a second run row
-- would be a second cap).
CREATE TABLE billing.runs (
    id                      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace               text        NOT NULL REFERENCES billing.namespaces,
    billing_period          text        NOT NULL,
    currency                text        NOT NULL CONSTRAINT runs_currency_form CHECK (currency ~ '^[a-z]{3}$'),
    status                  text        NOT NULL DEFAULT 'open'
        CONSTRAINT runs_status_known CHECK (status IN ('open', 'paused', 'closed')),
    status_reason           text        NOT NULL DEFAULT 'opened'
        CONSTRAINT runs_status_reason_known CHECK (status_reason IN (
            'opened', 'resumed', 'reopened', 'paused_by_operator', 'vault_denied', 'vault_unavailable', 'over_cap',
            'wrong_account', 'mismatch', 'late_success', 'clock_skew', 'closed_by_operator')),
    status_detail           text        NOT NULL DEFAULT '',
    expected_total_cents    bigint      NOT NULL CONSTRAINT runs_expected_total_positive CHECK (expected_total_cents > 0),
    expected_count          bigint      CONSTRAINT runs_expected_count_positive CHECK (expected_count > 0),
    headroom_percent        text        NOT NULL,
    cap_cents               bigint      NOT NULL,
    -- Reserved or charged. Only the dispatcher raises it, within the cap; a real charge beyond the cap is
    -- recorded all the same, but then the run stands paused as over_cap.
    allocated_cents         bigint      NOT NULL DEFAULT 0 CONSTRAINT runs_allocated_not_negative CHECK (allocated_cents >= 0),
    resume_count            integer     NOT NULL DEFAULT 0,
    vault_usd_cap_cents     bigint      CONSTRAINT runs_vault_usd_cap_positive CHECK (vault_usd_cap_cents > 0),
    stripe_account          text,
    livemode                boolean,
    opened_by               text        NOT NULL,
    opened_at               timestamptz NOT NULL DEFAULT now(),
    updated_at              timestamptz NOT NULL DEFAULT now(),
    closed_at               timestamptz,
    CONSTRAINT runs_one_per_period UNIQUE (namespace, billing_period, currency),
    CONSTRAINT runs_cap_covers_expected CHECK (cap_cents >= expected_total_cents),
    CONSTRAINT runs_allocated_within_cap CHECK (
        allocated_cents <= cap_cents OR (status = 'paused' AND status_reason = 'over_cap')),
    CONSTRAINT runs_closed_has_time CHECK ((status = 'closed') = (closed_at IS NOT NULL))
);

-- A billing intent: what one customer owes for one period. The unique constraint is the one authority
-- for "each customer and period once".
CREATE TABLE billing.intents (
    id                    bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace             text        NOT NULL CONSTRAINT intents_namespace_form CHECK (namespace ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
    customer_id           text        NOT NULL CONSTRAINT intents_customer_id_form CHECK (
        octet_length(customer_id) BETWEEN 1 AND 200 AND position(':' IN customer_id) = 0 AND customer_id = btrim(customer_id, ' ')),
    billing_period        text        NOT NULL CONSTRAINT intents_billing_period_form CHECK (
        billing_period ~ '^[0-9]{4}(-([0-9]{2}(-[0-9]{2})?|W[0-9]{2}|Q[1-4]))?$'),
    idempotency_key       text        NOT NULL,
    stripe_customer_id    text        NOT NULL CONSTRAINT intents_stripe_customer_id_form CHECK (stripe_customer_id LIKE 'cus\_%'),
    amount_cents          bigint      NOT NULL CONSTRAINT intents_amount_range CHECK (amount_cents BETWEEN 0 AND 999999999999),
    currency              text        NOT NULL CONSTRAINT intents_currency_form CHECK (currency ~ '^[a-z]{3}$'),
    payment_method        text        CONSTRAINT intents_payment_method_form CHECK (payment_method ~ '^(pm|card|src)_'),
    description           text        CONSTRAINT intents_description_length CHECK (char_length(description) <= 500),
    status                text        NOT NULL DEFAULT 'pending',
    status_reason         text        NOT NULL DEFAULT 'no_run',
    status_detail         text,
    charge_id             text        CONSTRAINT intents_charge_id_form CHECK (charge_id ~ '^(ch|py)_'),
    payment_intent_id     text        CONSTRAINT intents_payment_intent_id_form CHECK (payment_intent_id LIKE 'pi\_%'),
    key_generation        integer     NOT NULL DEFAULT 1 CONSTRAINT intents_key_generation_positive CHECK (key_generation >= 1),
    run_id                bigint      REFERENCES billing.runs,
    -- What this intent holds of its run's cap: nothing, or all of its amount. Charged intents keep it.
    reserved_cents        bigint      CONSTRAINT intents_reserved_is_amount CHECK (reserved_cents = amount_cents),
    -- Set when the intent is first dispatched, unless its namespace opted out: one Stripe customer is
    -- charged once a period and currency, whatever the namespace.
    guards_customer       boolean     NOT NULL DEFAULT false,
    river_job_id          bigint,
    redispatches          integer     NOT NULL DEFAULT 0,
    -- The fencing number: raised by every claim; a finish must still hold it.
    claim_number          integer     NOT NULL DEFAULT 0,
    lease_until           timestamptz,
    source                text        NOT NULL CONSTRAINT intents_source_form CHECK (source ~ '^[a-z]{1,32}$'),
    source_position       text        NOT NULL CONSTRAINT intents_source_position_length CHECK (char_length(source_position) BETWEEN 1 AND 1000),
    source_enqueued_at    timestamptz,
    created_at            timestamptz NOT NULL DEFAULT now(),
    updated_at            timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT intents_one_per_customer_and_period UNIQUE (namespace, billing_period, customer_id),
    -- Written out here, not called: sha256 over the bytes of "customer:period:namespace" (1 us a row).
    CONSTRAINT intents_idempotency_key_formula CHECK (idempotency_key =
        left(encode(sha256(convert_to(customer_id || ':' || billing_period || ':' || namespace, 'UTF8')), 'hex'), 32)),
    CONSTRAINT intents_status_and_reason CHECK (CASE status
        WHEN 'pending'       THEN status_reason IN ('no_run', 'queued', 'run_paused', 'run_capped', 'stopped', 'conflict', 'same_customer')
        WHEN 'nothing_due'   THEN status_reason = 'zero_amount'
        WHEN 'charging'      THEN status_reason IN ('sent', 'in_doubt', 'processing', 'cancelling')
        WHEN 'charged'       THEN status_reason IN ('charged', 'adopted')
        WHEN 'card_declined' THEN status_reason IN ('card_declined', 'authentication_required', 'no_payment_method')
        WHEN 'voided'        THEN status_reason = 'by_operator'
        WHEN 'parked'        THEN status_reason IN ('invalid_request', 'mismatch', 'doubt_expired', 'cancelled_by_operator',
            'redispatch_limit', 'requires_action', 'idempotency_error', 'charge_id_taken', 'wrong_account')
        ELSE false END),
    CONSTRAINT intents_nothing_due_is_zero CHECK ((status = 'nothing_due') = (amount_cents = 0)),
    CONSTRAINT intents_charged_has_charge CHECK ((status = 'charged') = (charge_id IS NOT NULL)),
    CONSTRAINT intents_charging_is_claimed CHECK (
        status <> 'charging' OR (claim_number > 0 AND lease_until IS NOT NULL AND run_id IS NOT NULL AND reserved_cents IS NOT NULL)),
    CONSTRAINT intents_declined_and_voided_hold_nothing CHECK (
        status NOT IN ('card_declined', 'voided', 'nothing_due') OR reserved_cents IS NULL),
    CONSTRAINT intents_reservation_has_run CHECK (reserved_cents IS NULL OR run_id IS NOT NULL)
) WITH (fillfactor = 85);

-- One Stripe charge finishes one intent.
CREATE UNIQUE INDEX intents_charge_id_once ON billing.intents (charge_id) WHERE charge_id IS NOT NULL;
-- One Stripe customer, period and currency is dispatched once.
CREATE UNIQUE INDEX intents_one_per_stripe_customer ON billing.intents (stripe_customer_id, billing_period, currency)
    WHERE guards_customer;
-- What the dispatcher picks from.
CREATE INDEX intents_waiting ON billing.intents (namespace, billing_period, currency, status_reason, id)
    WHERE status = 'pending' AND river_job_id IS NULL;
-- What has a job or a claim: the dispatcher's window and its sweep.
CREATE INDEX intents_in_flight ON billing.intents (run_id, id)
    WHERE status = 'charging' OR (status = 'pending' AND river_job_id IS NOT NULL);
-- What a person must look at.
CREATE INDEX intents_parked ON billing.intents (id) WHERE status = 'parked';

-- The frozen request: made by the first send of a key generation, sent again byte for byte or not at all.
CREATE TABLE billing.charge_requests (
    intent_id          bigint      NOT NULL REFERENCES billing.intents,
    key_generation     integer     NOT NULL CONSTRAINT charge_requests_key_generation_positive CHECK (key_generation >= 1),
    idempotency_key    text        NOT NULL CONSTRAINT charge_requests_idempotency_key_once UNIQUE,
    stripe_api         text        NOT NULL CONSTRAINT charge_requests_stripe_api_known CHECK (stripe_api IN ('payment_intents', 'charges')),
    path               text        NOT NULL,
    body               bytea       NOT NULL,
    api_version        text        NOT NULL,
    stripe_account     text        NOT NULL,
    livemode           boolean,
    customer           text        NOT NULL,
    amount_cents       bigint      NOT NULL CONSTRAINT charge_requests_amount_positive CHECK (amount_cents > 0),
    currency           text        NOT NULL,
    payment_method     text,
    first_sent_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Known once any answer or look-up showed it; from then on this generation is only read, never created again.
    object_id          text        CONSTRAINT charge_requests_object_id_form CHECK (object_id ~ '^(pi|ch|py)_'),
    object_canceled_at timestamptz,
    -- A Stripe-origin 5xx: Stripe may still roll the charge forward, so it is never posted again past the window.
    saw_server_error   boolean     NOT NULL DEFAULT false,
    decline_code       text,
    advice_code        text,
    PRIMARY KEY (intent_id, key_generation)
);

-- Every call to Stripe for an intent. A create without resolved_at is money whose fate is unknown.
CREATE TABLE billing.charge_attempts (
    id               bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    intent_id        bigint      NOT NULL REFERENCES billing.intents,
    key_generation   integer     NOT NULL,
    claim_number     integer     NOT NULL,
    operation        text        NOT NULL
        CONSTRAINT charge_attempts_operation_known CHECK (operation IN ('create', 'look_up', 'read', 'cancel')),
    idempotency_key  text        NOT NULL,
    river_job_id     bigint,
    worker           text        NOT NULL,
    vault_key_id     bigint,
    run_resume_count integer     NOT NULL,
    started_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease_until      timestamptz NOT NULL,
    finished_at      timestamptz,
    result           text
        CONSTRAINT charge_attempts_result_known CHECK (result IN (
            'charged', 'processing', 'requires_action', 'declined', 'invalid', 'denied', 'unauthorized', 'rate_limited', 'key_in_use',
            'not_sent', 'unknown', 'server_error', 'idempotency_error', 'mismatch', 'found', 'absent', 'failed', 'canceled', 'open')),
    http_status      integer,
    request_id       text,
    replayed         boolean     NOT NULL DEFAULT false,
    error_type       text,
    error_code       text,
    decline_code     text,
    object_id        text,
    detail           text,
    -- When it became certain what this call did to the money; look-ups and reads are certain when they end.
    resolved_at      timestamptz,
    resolution       text
        CONSTRAINT charge_attempts_resolution_known CHECK (resolution IN ('moved', 'not_moved', 'superseded')),
    CONSTRAINT charge_attempts_finished_has_result CHECK ((finished_at IS NULL) = (result IS NULL)),
    CONSTRAINT charge_attempts_resolution_complete CHECK ((resolved_at IS NULL) = (resolution IS NULL))
);
CREATE INDEX charge_attempts_by_intent ON billing.charge_attempts (intent_id, id);
CREATE INDEX charge_attempts_unresolved ON billing.charge_attempts (intent_id)
    WHERE operation = 'create' AND resolved_at IS NULL;

-- Same key, other terms: the first one stays the intent, the other is kept here for a person.
CREATE TABLE billing.conflicts (
    id                  bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    intent_id           bigint      NOT NULL REFERENCES billing.intents,
    amount_cents        bigint      NOT NULL,
    currency            text        NOT NULL,
    stripe_customer_id  text        NOT NULL,
    payment_method      text,
    description         text,
    deliveries          bigint      NOT NULL DEFAULT 1,
    first_source        text        NOT NULL,
    first_position      text        NOT NULL,
    last_source         text        NOT NULL,
    last_position       text        NOT NULL,
    created_at          timestamptz NOT NULL DEFAULT now(),
    last_seen_at        timestamptz NOT NULL DEFAULT now(),
    resolved_at         timestamptz,
    resolution          text CONSTRAINT conflicts_resolution_known CHECK (resolution IN ('kept_first', 'took_other')),
    resolved_by         text,
    CONSTRAINT conflicts_once_per_terms UNIQUE (intent_id, amount_cents, currency, stripe_customer_id),
    CONSTRAINT conflicts_resolution_complete CHECK (
        (resolved_at IS NULL) = (resolution IS NULL) AND (resolved_at IS NULL) = (resolved_by IS NULL))
);
CREATE INDEX conflicts_open ON billing.conflicts (intent_id) WHERE resolved_at IS NULL;

-- What cannot become an intent: kept whole, with the reason.
CREATE TABLE billing.quarantined_events (
    id             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace      text        NOT NULL,
    object_sha256  bytea       NOT NULL CONSTRAINT quarantined_events_sha256_length CHECK (octet_length(object_sha256) = 32),
    reason_code    text        NOT NULL CONSTRAINT quarantined_events_reason_code_form CHECK (reason_code ~ '^[a-z0-9_]{1,63}$'),
    field          text        NOT NULL DEFAULT '',
    reason         text        NOT NULL,
    raw            bytea       NOT NULL,
    deliveries     bigint      NOT NULL DEFAULT 1,
    first_source   text        NOT NULL,
    first_position text        NOT NULL,
    last_source    text        NOT NULL,
    last_position  text        NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT now(),
    last_seen_at   timestamptz NOT NULL DEFAULT now(),
    resolved_at    timestamptz,
    resolved_by    text,
    resolution     text,
    CONSTRAINT quarantined_events_once UNIQUE (namespace, object_sha256, reason_code),
    CONSTRAINT quarantined_events_resolution_complete CHECK (
        (resolved_at IS NULL) = (resolution IS NULL) AND (resolved_at IS NULL) = (resolved_by IS NULL))
);

-- How many objects each source partition delivered, and as what they ended. One row a partition, never one hot row.
CREATE TABLE billing.source_counters (
    namespace        text        NOT NULL,
    source           text        NOT NULL,
    source_partition text        NOT NULL,
    intents          bigint      NOT NULL DEFAULT 0,
    duplicates       bigint      NOT NULL DEFAULT 0,
    redeliveries     bigint      NOT NULL DEFAULT 0,
    conflicts        bigint      NOT NULL DEFAULT 0,
    quarantined      bigint      NOT NULL DEFAULT 0,
    updated_at       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (namespace, source, source_partition)
);

CREATE TABLE billing.eventhub_checkpoints (
    eventhub_namespace text        NOT NULL,
    eventhub           text        NOT NULL,
    consumer_group     text        NOT NULL CONSTRAINT eventhub_checkpoints_group_lower CHECK (consumer_group = lower(consumer_group)),
    partition_id       text        NOT NULL,
    -- When the hub was created: another time is another hub under the same name, and begins at its beginning.
    hub_created_at     timestamptz NOT NULL,
    sequence_number    bigint      NOT NULL CONSTRAINT eventhub_checkpoints_sequence_number_range CHECK (sequence_number >= 0),
    event_offset       text        NOT NULL,
    last_enqueued_seq  bigint      NOT NULL DEFAULT -1,
    updated_at         timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (eventhub_namespace, eventhub, consumer_group, partition_id)
);

CREATE TABLE billing.eventhub_ownership (
    eventhub_namespace text        NOT NULL,
    eventhub           text        NOT NULL,
    consumer_group     text        NOT NULL CONSTRAINT eventhub_ownership_group_lower CHECK (consumer_group = lower(consumer_group)),
    partition_id       text        NOT NULL,
    owner_id           text        NOT NULL,
    etag               bigint      NOT NULL DEFAULT 1,
    modified_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (eventhub_namespace, eventhub, consumer_group, partition_id)
);

-- Vault keys: written as 'issuing' before the proxy is called, so that a crash leaves a trace.
CREATE TABLE billing.vault_keys (
    id                bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id            bigint      NOT NULL REFERENCES billing.runs,
    state             text        NOT NULL CONSTRAINT vault_keys_state_known CHECK (state IN ('issuing', 'active', 'revoked', 'expired', 'failed')),
    label             text        NOT NULL,
    provider_key_id   text,
    ciphertext        bytea,
    encryption_key_id text,
    usd_cap_cents     bigint      NOT NULL,
    lease_until       timestamptz NOT NULL,
    issued_at         timestamptz,
    expires_at        timestamptz NOT NULL,
    ended_at          timestamptz,
    created_at        timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT vault_keys_active_is_complete CHECK (
        state <> 'active' OR (ciphertext IS NOT NULL AND encryption_key_id IS NOT NULL AND issued_at IS NOT NULL))
);
CREATE UNIQUE INDEX vault_keys_one_living_per_run ON billing.vault_keys (run_id) WHERE state IN ('issuing', 'active');

-- Whatever a person did, with who, when and why.
CREATE TABLE billing.operator_actions (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL DEFAULT now(),
    actor      text        NOT NULL CONSTRAINT operator_actions_actor_given CHECK (actor <> ''),
    action     text        NOT NULL,
    run_id     bigint      REFERENCES billing.runs,
    intent_id  bigint      REFERENCES billing.intents,
    reason     text        NOT NULL DEFAULT '',
    detail     jsonb       NOT NULL DEFAULT '{}'
);
CREATE INDEX operator_actions_by_intent ON billing.operator_actions (intent_id) WHERE intent_id IS NOT NULL;

-- The global kill switch: one row for ever, read inside every claim.
CREATE TABLE billing.charging_switch (
    only_row   boolean     PRIMARY KEY DEFAULT true CONSTRAINT charging_switch_one_row CHECK (only_row),
    stopped    boolean     NOT NULL DEFAULT false,
    reason     text        NOT NULL DEFAULT '',
    actor      text        NOT NULL DEFAULT '',
    changed_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO billing.charging_switch DEFAULT VALUES;

-- The account-wide request budget: tokens belong to one second of the database's clock and lapse with it.
CREATE TABLE billing.rate_budgets (
    kind        text    PRIMARY KEY CONSTRAINT rate_budgets_kind_known CHECK (kind IN ('create', 'read')),
    slot        bigint  NOT NULL DEFAULT 0,
    taken       integer NOT NULL DEFAULT 0,
    -- Share of the configured rate that is in use, in percent: shrinks when Stripe answers 429, recovers by and by.
    percent     integer NOT NULL DEFAULT 100 CONSTRAINT rate_budgets_percent_range CHECK (percent BETWEEN 1 AND 100),
    percent_at  timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 10);
INSERT INTO billing.rate_budgets (kind) VALUES ('create'), ('read');

-- Grants up to wanted tokens of the current second; the row lock makes the chargers take turns, and the clock is read
-- after the lock was given. A pace that was halved grows back by a tenth every ten seconds.
-- +goose StatementBegin
CREATE FUNCTION billing.take_tokens(budget_kind text, wanted integer, per_second integer, OUT granted integer, OUT seconds_left double precision)
LANGUAGE plpgsql AS $$
DECLARE
    b     billing.rate_budgets%ROWTYPE;
    at    numeric;
BEGIN
    SELECT * INTO STRICT b FROM billing.rate_budgets WHERE kind = budget_kind FOR UPDATE;
    at := extract(epoch FROM clock_timestamp());
    IF b.slot <> floor(at) THEN -- also when the clock was set back
        b.slot := floor(at);
        b.taken := 0;
    END IF;
    IF b.percent < 100 AND b.percent_at < clock_timestamp() - interval '10 seconds' THEN
        b.percent := least(100, b.percent + 10);
        b.percent_at := clock_timestamp();
    END IF;
    -- Never negative: a negative grant would give tokens back that somebody has already spent.
    granted := greatest(0, least(wanted, greatest(1, per_second * b.percent / 100) - b.taken));
    seconds_left := greatest(0, b.slot + 1 - at);
    UPDATE billing.rate_budgets SET slot = b.slot, taken = b.taken + granted, percent = b.percent, percent_at = b.percent_at
    WHERE kind = budget_kind;
END $$;
-- +goose StatementEnd

-- An intent begins as pending, or as nothing_due when its amount is 0; later it moves only as the table
-- in package schema says. Column rights cannot say this: an ingestor must be able to write both.
-- +goose StatementBegin
CREATE FUNCTION billing.refuse_intent_beginning() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'an intent cannot begin as %', NEW.status USING ERRCODE = 'check_violation', CONSTRAINT = 'intents_beginning';
END $$;
-- +goose StatementEnd
CREATE TRIGGER intents_beginning BEFORE INSERT ON billing.intents FOR EACH ROW
    WHEN (NEW.status <> CASE NEW.amount_cents WHEN 0 THEN 'nothing_due' ELSE 'pending' END OR NEW.claim_number <> 0)
    EXECUTE FUNCTION billing.refuse_intent_beginning();

-- +goose StatementBegin
CREATE FUNCTION billing.check_intent_move() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.status = 'charged' THEN
        RAISE EXCEPTION 'intent % is charged: that is final', OLD.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'intents_moves';
    END IF;
    IF NEW.status <> 'charged' AND NOT (CASE OLD.status
        WHEN 'pending'       THEN NEW.status IN ('charging', 'voided', 'parked')
        WHEN 'charging'      THEN NEW.status IN ('card_declined', 'parked', 'pending')
        WHEN 'card_declined' THEN NEW.status IN ('voided', 'pending')
        WHEN 'parked'        THEN NEW.status IN ('voided', 'charging', 'pending')
        WHEN 'voided'        THEN NEW.status = 'pending'
        WHEN 'nothing_due'   THEN NEW.status = 'pending'
        ELSE false END) THEN
        RAISE EXCEPTION 'intent % cannot move from % to %', OLD.id, OLD.status, NEW.status
            USING ERRCODE = 'check_violation', CONSTRAINT = 'intents_moves';
    END IF;
    -- Doubt is sticky: nothing declines, voids or frees an intent while a call's effect on the money is unknown.
    IF NEW.status IN ('pending', 'card_declined', 'voided') AND EXISTS (
        SELECT 1 FROM billing.charge_attempts a
        WHERE a.intent_id = NEW.id AND a.operation = 'create' AND a.resolved_at IS NULL) THEN
        RAISE EXCEPTION 'intent % has an unresolved charge attempt', OLD.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'intents_unresolved_attempt';
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER intents_moves BEFORE UPDATE OF status ON billing.intents FOR EACH ROW
    WHEN (OLD.status IS DISTINCT FROM NEW.status)
    EXECUTE FUNCTION billing.check_intent_move();

-- What an intent is can only change with the next key generation; what was charged never changes.
-- +goose StatementBegin
CREATE FUNCTION billing.refuse_intent_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'intent %: its identity, or the terms of a generation that was sent, cannot change', OLD.id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'intents_identity';
END $$;
-- +goose StatementEnd
CREATE TRIGGER intents_identity BEFORE UPDATE ON billing.intents FOR EACH ROW
    WHEN (NEW.namespace <> OLD.namespace OR NEW.customer_id <> OLD.customer_id OR NEW.billing_period <> OLD.billing_period
        OR NEW.key_generation < OLD.key_generation OR NEW.claim_number < OLD.claim_number
        OR (OLD.status IN ('charging', 'charged') AND (NEW.amount_cents <> OLD.amount_cents OR NEW.currency <> OLD.currency
            OR NEW.stripe_customer_id <> OLD.stripe_customer_id OR NEW.key_generation <> OLD.key_generation))
        OR (OLD.status = 'charged' AND NEW.charge_id IS DISTINCT FROM OLD.charge_id))
    EXECUTE FUNCTION billing.refuse_intent_change();

-- Terms that went out under a key stay with it: other terms need the next generation, and the next generation needs
-- certainty about all that was sent before.
-- +goose StatementBegin
CREATE FUNCTION billing.check_intent_terms() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.key_generation = OLD.key_generation AND EXISTS (
        SELECT 1 FROM billing.charge_requests q WHERE q.intent_id = OLD.id AND q.key_generation = OLD.key_generation) THEN
        RAISE EXCEPTION 'intent %: generation % was sent with other terms', OLD.id, OLD.key_generation
            USING ERRCODE = 'check_violation', CONSTRAINT = 'intents_terms';
    END IF;
    IF NEW.key_generation <> OLD.key_generation AND EXISTS (
        SELECT 1 FROM billing.charge_attempts a
        WHERE a.intent_id = OLD.id AND a.operation = 'create' AND a.resolved_at IS NULL) THEN
        RAISE EXCEPTION 'intent % has an unresolved charge attempt', OLD.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'intents_unresolved_attempt';
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER intents_terms BEFORE UPDATE OF amount_cents, currency, stripe_customer_id, key_generation ON billing.intents FOR EACH ROW
    WHEN (NEW.amount_cents <> OLD.amount_cents OR NEW.currency <> OLD.currency
        OR NEW.stripe_customer_id <> OLD.stripe_customer_id OR NEW.key_generation <> OLD.key_generation)
    EXECUTE FUNCTION billing.check_intent_terms();

-- What is frozen is what the intent says at this moment: between a worker's look at an intent and its claim a person may
-- have corrected the terms, and the bytes of the old ones must not go out under the new ones' name.
-- +goose StatementBegin
CREATE FUNCTION billing.check_request_terms() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (
        SELECT 1 FROM billing.intents i
        WHERE i.id = NEW.intent_id AND i.key_generation = NEW.key_generation AND i.amount_cents = NEW.amount_cents
          AND i.currency = NEW.currency AND i.stripe_customer_id = NEW.customer
          AND NEW.idempotency_key = CASE i.key_generation WHEN 1 THEN i.idempotency_key ELSE left(encode(sha256(convert_to(
              i.customer_id || ':' || i.billing_period || ':' || i.namespace || ':' || i.key_generation, 'UTF8')), 'hex'), 32) END) THEN
        RAISE EXCEPTION 'charge request of intent % generation % does not have the intent''s key and terms', NEW.intent_id, NEW.key_generation
            USING ERRCODE = 'check_violation', CONSTRAINT = 'charge_requests_terms';
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER charge_requests_terms BEFORE INSERT ON billing.charge_requests FOR EACH ROW
    EXECUTE FUNCTION billing.check_request_terms();

-- The frozen request stays frozen: the key, the bytes and the first send never change.
-- +goose StatementBegin
CREATE FUNCTION billing.refuse_request_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'charge request of intent % generation % is frozen', OLD.intent_id, OLD.key_generation
        USING ERRCODE = 'check_violation', CONSTRAINT = 'charge_requests_frozen';
END $$;
-- +goose StatementEnd
CREATE TRIGGER charge_requests_frozen BEFORE UPDATE ON billing.charge_requests FOR EACH ROW
    WHEN ((NEW.intent_id, NEW.key_generation, NEW.idempotency_key, NEW.stripe_api, NEW.path, NEW.body, NEW.api_version, NEW.stripe_account,
           NEW.customer, NEW.amount_cents, NEW.currency, NEW.payment_method, NEW.first_sent_at)
        IS DISTINCT FROM
          (OLD.intent_id, OLD.key_generation, OLD.idempotency_key, OLD.stripe_api, OLD.path, OLD.body, OLD.api_version, OLD.stripe_account,
           OLD.customer, OLD.amount_cents, OLD.currency, OLD.payment_method, OLD.first_sent_at)
        OR (OLD.livemode IS NOT NULL AND NEW.livemode IS DISTINCT FROM OLD.livemode)
        OR (OLD.object_id IS NOT NULL AND NEW.object_id IS DISTINCT FROM OLD.object_id)
        OR (OLD.saw_server_error AND NOT NEW.saw_server_error))
    EXECUTE FUNCTION billing.refuse_request_change();
