-- What sqlc must know of River's tables (they are made by River's own migrations, never by this file), and of the
-- list of applied migrations (made by goose). TestStubMatchesTheMigratedDatabase compares it with a real database.
CREATE SCHEMA billing;
CREATE SCHEMA river;

CREATE TABLE billing.schema_migrations (
    id         integer   NOT NULL,
    version_id bigint    NOT NULL,
    is_applied boolean   NOT NULL,
    tstamp     timestamp NOT NULL
);

CREATE TYPE river.river_job_state AS ENUM (
    'available', 'cancelled', 'completed', 'discarded', 'pending', 'retryable', 'running', 'scheduled');

CREATE TABLE river.river_job (
    id            bigint PRIMARY KEY,
    state         river.river_job_state NOT NULL,
    attempt       smallint NOT NULL,
    max_attempts  smallint NOT NULL,
    attempted_at  timestamptz,
    created_at    timestamptz NOT NULL,
    finalized_at  timestamptz,
    scheduled_at  timestamptz NOT NULL,
    priority      smallint NOT NULL,
    args          jsonb NOT NULL,
    attempted_by  text[],
    errors        jsonb[],
    kind          text NOT NULL,
    metadata      jsonb NOT NULL,
    queue         text NOT NULL,
    tags          varchar(255)[] NOT NULL,
    unique_key    bytea,
    unique_states bit(8)
);
CREATE TABLE river.river_leader (elected_at timestamptz NOT NULL, expires_at timestamptz NOT NULL, leader_id text NOT NULL, name text PRIMARY KEY);
CREATE TABLE river.river_queue (name text PRIMARY KEY, created_at timestamptz NOT NULL, metadata jsonb NOT NULL, paused_at timestamptz, updated_at timestamptz NOT NULL);
CREATE TABLE river.river_migration (line text NOT NULL, version bigint NOT NULL, created_at timestamptz NOT NULL);
CREATE SEQUENCE river.river_job_id_seq;
