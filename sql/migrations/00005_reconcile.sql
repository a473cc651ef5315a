-- +goose Up
-- Reconciling: one row for each time that a run's charges at Stripe were held against its intents, and what was found.
CREATE TABLE billing.reconciliations (
    id             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id         bigint      NOT NULL REFERENCES billing.runs,
    actor          text        NOT NULL CONSTRAINT reconciliations_actor_given CHECK (actor <> ''),
    installation   text        NOT NULL,
    -- Who is at it: as with a claim, whoever takes over after the lease raises the number, and the one before is refused.
    worker         text        NOT NULL,
    claim_number   integer     NOT NULL DEFAULT 1,
    lease_until    timestamptz NOT NULL,
    -- The books are compared as they were at this moment: every charge recorded before it is in the lists that are read after it.
    started_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    listed_from    timestamptz NOT NULL,
    -- How far the lists are read, so that whoever takes over goes on there.
    stage          text        NOT NULL DEFAULT 'payment_intents'
        CONSTRAINT reconciliations_stage_known CHECK (stage IN ('payment_intents', 'charges', 'compare')),
    list_cursor    text        NOT NULL DEFAULT '',
    listed         jsonb       NOT NULL DEFAULT '{}',
    finished_at    timestamptz,
    outcome        text        CONSTRAINT reconciliations_outcome_known CHECK (outcome IN ('clean', 'found', 'abandoned')),
    -- How many of which kind; result holds the first ones whole, with the totals.
    finding_counts jsonb       NOT NULL DEFAULT '{}',
    result         jsonb,
    CONSTRAINT reconciliations_finished_has_outcome CHECK ((finished_at IS NULL) = (outcome IS NULL)),
    CONSTRAINT reconciliations_outcome_is_that_of_findings CHECK (CASE outcome
        WHEN 'clean' THEN finding_counts = '{}' AND result IS NOT NULL
        WHEN 'found' THEN finding_counts <> '{}' AND result IS NOT NULL
        ELSE finding_counts = '{}' AND result IS NULL END)
);
CREATE UNIQUE INDEX reconciliations_one_at_a_time ON billing.reconciliations (run_id) WHERE finished_at IS NULL;
CREATE INDEX reconciliations_by_run ON billing.reconciliations (run_id, id);

-- The payments of our own that the lists showed, for the time of one reconciliation: millions of them are compared without
-- being held in memory. One row a payment: a payment intent with its charge, or a charge.
CREATE TABLE billing.reconciliation_payments (
    reconciliation_id bigint      NOT NULL REFERENCES billing.reconciliations,
    object_id         text        NOT NULL,
    charge_id         text        NOT NULL,
    payment_intent_id text        NOT NULL,
    status            text        NOT NULL,
    captured          boolean     NOT NULL,
    customer          text        NOT NULL,
    amount_cents      bigint      NOT NULL,
    refunded_cents    bigint      NOT NULL,
    refunded          boolean     NOT NULL,
    disputed          boolean     NOT NULL,
    currency          text        NOT NULL,
    created_at        timestamptz NOT NULL,
    -- The metadata that names the intent, as the object has it.
    intent_key        text        NOT NULL,
    charge_intent_key text        NOT NULL,
    key_generation    text        NOT NULL,
    namespace         text        NOT NULL,
    billing_period    text        NOT NULL,
    customer_id       text        NOT NULL,
    -- Whose payment it is: looked up once the lists are read. No foreign key: checking it would lock, and so rewrite, every intent.
    intent_id         bigint,
    PRIMARY KEY (reconciliation_id, object_id)
);
CREATE INDEX reconciliation_payments_by_intent ON billing.reconciliation_payments (reconciliation_id, intent_id);

GRANT SELECT, INSERT, UPDATE (actor, worker, claim_number, lease_until, stage, list_cursor, listed, finished_at, outcome, finding_counts, result)
    ON billing.reconciliations TO chargeonce_charger;
GRANT SELECT, INSERT, UPDATE (intent_id), DELETE ON billing.reconciliation_payments TO chargeonce_charger;
GRANT SELECT ON billing.reconciliations TO chargeonce_console;
