-- The one statement of the role chargeonce_quarantine, beside recording that it was used.

-- name: QuarantineRaw :one
SELECT raw FROM billing.quarantined_events WHERE id = @id;
