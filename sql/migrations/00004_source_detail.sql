-- +goose Up
-- What else the source says of a delivery, such as an offset, a topic or a sender's id: for tracing, never in the key and never
-- compared. Position alone decides what is a redelivery, for it stays the same when the rest does not (an event's offset changes when
-- a geo-replicated hub fails over). NULL where the source has nothing more to say, and in rows written before this migration.
ALTER TABLE billing.intents
    ADD COLUMN source_detail jsonb CONSTRAINT intents_source_detail_object CHECK (jsonb_typeof(source_detail) = 'object');
ALTER TABLE billing.conflicts
    ADD COLUMN first_detail jsonb CONSTRAINT conflicts_first_detail_object CHECK (jsonb_typeof(first_detail) = 'object');
ALTER TABLE billing.quarantined_events
    ADD COLUMN first_detail jsonb CONSTRAINT quarantined_events_first_detail_object CHECK (jsonb_typeof(first_detail) = 'object');

GRANT INSERT (source_detail) ON billing.intents TO chargeonce_ingest;
GRANT INSERT (first_detail) ON billing.conflicts TO chargeonce_ingest;
GRANT INSERT (first_detail) ON billing.quarantined_events TO chargeonce_ingest;
GRANT SELECT (first_detail) ON billing.quarantined_events TO chargeonce_charger;
