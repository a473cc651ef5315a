package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// intent is one billing intent as finance sees it.
type intent struct {
	ID             int64
	Customer       string
	StripeCustomer string
	AmountCents    int64
	Currency       string
	Status         string
	Reason         string
	ChargeID       string
}

// place is the status, with the reason where it waits.
func (in intent) place() string {
	if in.Status == "pending" {
		return in.Status + " " + in.Reason
	}
	return in.Status
}

func readIntents(ctx context.Context, pool *pgxpool.Pool) ([]intent, error) {
	rows, err := pool.Query(ctx, `SELECT id, customer_id, stripe_customer_id, amount_cents, currency, status, status_reason, coalesce(charge_id, '')
		FROM finance.intents ORDER BY id`)
	if err != nil {
		return nil, fmt.Errorf("read intents: %w", err)
	}
	intents, err := pgx.CollectRows(rows, pgx.RowToStructByPos[intent])
	if err != nil {
		return nil, fmt.Errorf("read intents: %w", err)
	}
	return intents, nil
}

// figures are what recording the same event again must not change, beside the counters.
type figures struct {
	Counters                              counters
	Sources                               map[string]counters // by source
	Intents, ConflictRows, QuarantineRows int
}

func readFigures(ctx context.Context, pool *pgxpool.Pool) (f figures, err error) {
	if f.Counters, f.Sources, err = readCounters(ctx, pool); err != nil {
		return f, err
	}
	err = pool.QueryRow(ctx, `SELECT (SELECT count(*) FROM billing.intents), (SELECT count(*) FROM finance.conflicts),
		(SELECT count(*) FROM finance.quarantine)`).Scan(&f.Intents, &f.ConflictRows, &f.QuarantineRows)
	if err != nil {
		return f, fmt.Errorf("count what is recorded: %w", err)
	}
	return f, nil
}

// runFigures is a billing run as finance sees it; what the ledger says is added later.
type runFigures runSummary

func readRuns(ctx context.Context, pool *pgxpool.Pool) ([]runFigures, error) {
	rows, err := pool.Query(ctx, `SELECT namespace, billing_period, currency, status, coalesce(expected_count, 0), ingested_count, expected_total_cents,
		ingested_cents, cap_cents, allocated_cents, charged_cents, 0::bigint FROM finance.run_status ORDER BY run_id`)
	if err != nil {
		return nil, fmt.Errorf("read runs: %w", err)
	}
	runs, err := pgx.CollectRows(rows, pgx.RowToStructByPos[runFigures])
	if err != nil {
		return nil, fmt.Errorf("read runs: %w", err)
	}
	return runs, nil
}
