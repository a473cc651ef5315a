-- +goose Up
-- A second's tokens come a tenth at a time. All at once they would make two seconds' worth of requests around a second's turn, which is
-- what Stripe counts and refuses; what a tenth leaves over stays for the rest of its second.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION billing.take_tokens(budget_kind text, wanted integer, per_second integer, OUT granted integer, OUT seconds_left double precision)
LANGUAGE plpgsql AS $$
DECLARE
    b       billing.rate_budgets%ROWTYPE;
    at      numeric;
    allowed integer;
    tenth   integer;
    due     integer;
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
    allowed := greatest(1, per_second * b.percent / 100);
    tenth := floor((at - b.slot) * 10) + 1;
    due := ceil(allowed * tenth / 10.0);
    -- Never negative: a negative grant would give tokens back that somebody has already spent.
    granted := greatest(0, least(wanted, due - b.taken));
    -- Of what is granted: the end of its second. Of nothing: when there may be more.
    seconds_left := greatest(0, CASE WHEN granted > 0 OR due >= allowed THEN b.slot + 1 - at ELSE b.slot + tenth / 10.0 - at END);
    UPDATE billing.rate_budgets SET slot = b.slot, taken = b.taken + granted, percent = b.percent, percent_at = b.percent_at
    WHERE kind = budget_kind;
END $$;
-- +goose StatementEnd
