-- +goose Up
-- Reconciling: one row for each time that a run's charges at Stripe were held against its intents.
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
    -- How far it is, so that whoever takes over goes on there: Stripe's two lists, then the intents, then payments without an intent.
    stage          text        NOT NULL DEFAULT 'payment_intents'
        CONSTRAINT reconciliations_stage_known CHECK (stage IN ('payment_intents', 'charges', 'intents', 'payments')),
    stage_cursor   text        NOT NULL DEFAULT '',
    counted        jsonb       NOT NULL DEFAULT '{}',
    finished_at    timestamptz,
    outcome        text        CONSTRAINT reconciliations_outcome_known CHECK (outcome IN ('clean', 'found', 'abandoned')),
    CONSTRAINT reconciliations_finished_has_outcome CHECK ((finished_at IS NULL) = (outcome IS NULL))
);
CREATE UNIQUE INDEX reconciliations_one_at_a_time ON billing.reconciliations (run_id) WHERE finished_at IS NULL;
CREATE INDEX reconciliations_by_run ON billing.reconciliations (run_id, id);

-- The payments that the lists showed, for the time of one reconciliation: millions of them are compared without being held in
-- memory. One row a payment: its charge, or a payment intent that has none yet. Only what moved money or still may.
CREATE TABLE billing.reconciliation_payments (
    reconciliation_id bigint      NOT NULL REFERENCES billing.reconciliations,
    object_id         text        NOT NULL,
    payment_intent_id text        NOT NULL,
    moved             boolean     NOT NULL,
    customer          text        NOT NULL,
    amount_cents      bigint      NOT NULL,
    refunded_cents    bigint      NOT NULL,
    currency          text        NOT NULL,
    created_at        timestamptz NOT NULL,
    -- The metadata by which a charger marks what it makes, as the object has it.
    intent_key        text        NOT NULL,
    namespace         text        NOT NULL,
    billing_period    text        NOT NULL,
    customer_id       text        NOT NULL,
    installation      text        NOT NULL,
    PRIMARY KEY (reconciliation_id, object_id)
);
CREATE INDEX reconciliation_payments_by_key ON billing.reconciliation_payments (reconciliation_id, intent_key);

CREATE TABLE billing.reconciliation_findings (
    id                bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    reconciliation_id bigint  NOT NULL REFERENCES billing.reconciliations,
    kind              text    NOT NULL CONSTRAINT reconciliation_findings_kind_known CHECK (kind IN (
        'double_charge', 'charge_without_intent', 'charge_not_recorded', 'charged_without_charge', 'wrong_amount', 'wrong_currency',
        'wrong_customer', 'refunded')),
    intent_id         bigint  REFERENCES billing.intents,
    customer_id       text    NOT NULL,
    stripe_customer   text    NOT NULL,
    object_ids        text[]  NOT NULL,
    amount_cents      bigint  NOT NULL,
    currency          text    NOT NULL,
    detail            text    NOT NULL
);
CREATE INDEX reconciliation_findings_by_reconciliation ON billing.reconciliation_findings (reconciliation_id, id);

GRANT SELECT, INSERT, UPDATE (actor, worker, claim_number, lease_until, stage, stage_cursor, counted, finished_at, outcome)
    ON billing.reconciliations TO chargeonce_charger;
GRANT SELECT, INSERT, DELETE ON billing.reconciliation_payments TO chargeonce_charger;
GRANT SELECT, INSERT ON billing.reconciliation_findings TO chargeonce_charger;
GRANT SELECT ON billing.reconciliations, billing.reconciliation_findings TO chargeonce_console;
