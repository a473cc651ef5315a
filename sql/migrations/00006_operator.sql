-- +goose Up
-- What people decide about intents, conflicts and quarantined events, and what the database refuses them.

-- Whose raw bytes of quarantined events may be read: those are customers' data, and no process that runs by itself needs them.
-- +goose StatementBegin
DO $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'chargeonce_quarantine') THEN
        CREATE ROLE chargeonce_quarantine NOLOGIN;
    END IF;
EXCEPTION WHEN duplicate_object OR unique_violation THEN
    NULL; -- made by an earlier or a concurrent migration
END $$;
-- +goose StatementEnd
GRANT USAGE ON SCHEMA billing TO chargeonce_quarantine;
GRANT SELECT ON billing.schema_migrations TO chargeonce_quarantine;
GRANT SELECT (id, raw) ON billing.quarantined_events TO chargeonce_quarantine;
GRANT INSERT ON billing.operator_actions TO chargeonce_quarantine; -- each look at them is recorded

-- How long they are can be told without reading them.
ALTER TABLE billing.quarantined_events ADD COLUMN raw_bytes integer NOT NULL GENERATED ALWAYS AS (octet_length(raw)) STORED;
GRANT SELECT (raw_bytes) ON billing.quarantined_events TO chargeonce_charger;

-- Terms that an intent had until a person replaced them are kept beside the conflicts: when their event comes again it is known,
-- and opens nothing.
ALTER TABLE billing.conflicts DROP CONSTRAINT conflicts_resolution_known;
ALTER TABLE billing.conflicts ADD CONSTRAINT conflicts_resolution_known CHECK (resolution IN ('kept_first', 'took_other', 'replaced'));
GRANT INSERT (intent_id, amount_cents, currency, stripe_customer_id, payment_method, description, deliveries, first_source,
    first_position, first_detail, last_source, last_position, resolved_at, resolution, resolved_by)
    ON billing.conflicts TO chargeonce_charger;

-- What a person decides about money or data has a reason.
ALTER TABLE billing.operator_actions ADD CONSTRAINT operator_actions_reason_given CHECK (
    btrim(reason) <> '' OR action !~ '^(intent|conflict|quarantine)_');

-- Whether the next key generation may follow this one: nothing of it can have left, or Stripe has definitively refused it (a
-- decline, an object seen cancelled, or 400 or 404 with a request id). What a proxy refuses says nothing about the key.
CREATE FUNCTION billing.generation_is_over(intent bigint, generation integer) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT NOT coalesce(bool_or(a.operation = 'create' AND (a.result IS NULL
                OR NOT (a.result = 'not_sent' OR (a.result = 'invalid' AND a.http_status IS NULL)))), false)
        OR coalesce(bool_or(a.result IN ('declined', 'canceled')
                OR (a.result = 'invalid' AND a.http_status IN (400, 404) AND a.request_id LIKE 'req\_%')), false)
    FROM billing.charge_attempts a
    WHERE a.intent_id = intent AND a.key_generation = generation
$$;
-- A payment intent at Stripe that can still be paid, of whatever generation; NULL for none.
CREATE FUNCTION billing.open_object(intent bigint) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT min(q.object_id) FROM billing.charge_requests q
    WHERE q.intent_id = intent AND q.object_id LIKE 'pi\_%' AND q.object_canceled_at IS NULL
$$;
REVOKE EXECUTE ON FUNCTION billing.generation_is_over, billing.open_object FROM PUBLIC;
GRANT EXECUTE ON FUNCTION billing.generation_is_over, billing.open_object TO chargeonce_charger;

-- As before, and: nothing ends while an object can still be paid, and whoever makes an intent charging takes its fence.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION billing.check_intent_move() RETURNS trigger LANGUAGE plpgsql AS $$
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
    IF NEW.status IN ('card_declined', 'voided') AND billing.open_object(NEW.id) IS NOT NULL THEN
        RAISE EXCEPTION 'intent % has an object at Stripe that can still be paid', OLD.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'intents_open_object';
    END IF;
    -- Parked and taken up again, an intent must not be movable by a call that was claimed before.
    IF NEW.status = 'charging' THEN
        NEW.claim_number := greatest(NEW.claim_number, OLD.claim_number + 1);
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd

-- As before, and: the next generation is the next one, begins an intent that stood still, and follows only what is over.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION billing.check_intent_terms() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.key_generation = OLD.key_generation AND EXISTS (
        SELECT 1 FROM billing.charge_requests q WHERE q.intent_id = OLD.id AND q.key_generation = OLD.key_generation) THEN
        RAISE EXCEPTION 'intent %: generation % was sent with other terms', OLD.id, OLD.key_generation
            USING ERRCODE = 'check_violation', CONSTRAINT = 'intents_terms';
    END IF;
    IF NEW.key_generation = OLD.key_generation THEN
        RETURN NEW;
    END IF;
    IF EXISTS (
        SELECT 1 FROM billing.charge_attempts a
        WHERE a.intent_id = OLD.id AND a.operation = 'create' AND a.resolved_at IS NULL) THEN
        RAISE EXCEPTION 'intent % has an unresolved charge attempt', OLD.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'intents_unresolved_attempt';
    END IF;
    IF billing.open_object(OLD.id) IS NOT NULL THEN
        RAISE EXCEPTION 'intent % has an object at Stripe that can still be paid', OLD.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'intents_open_object';
    END IF;
    IF NEW.key_generation <> OLD.key_generation + 1 OR NEW.status <> 'pending'
        OR OLD.status NOT IN ('card_declined', 'voided', 'nothing_due', 'parked')
        OR NOT billing.generation_is_over(OLD.id, OLD.key_generation) THEN
        RAISE EXCEPTION 'intent %: generation % cannot follow generation %', OLD.id, NEW.key_generation, OLD.key_generation
            USING ERRCODE = 'check_violation', CONSTRAINT = 'intents_generation';
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd
