package charger

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"chargeonce/schema"
	"chargeonce/sql/queries"
)

// CloseRun is what an operator says to end a run.
type CloseRun struct {
	// AcceptMissing closes although less came than was expected.
	AcceptMissing bool   `json:"accept_missing"`
	Actor         string `json:"-"`
	Reason        string `json:"-"`
}

// Close ends a run: nothing more is charged for its period until it is opened again. It refuses, with an *UnaccountedError, while
// anything of the period has no final answer. The chargers then take its vault key back. It reports whether the run was not closed yet.
func (r Runs) Close(ctx context.Context, key queries.RunGetParams, o CloseRun) (closed bool, err error) {
	err = pgx.BeginFunc(ctx, r.Pool, func(tx pgx.Tx) error {
		run, err := r.lock(ctx, tx, key)
		if err != nil || run.Status == "closed" {
			return err
		}
		open, err := r.unaccounted(ctx, tx, run, o.AcceptMissing)
		if err != nil {
			return err
		}
		if len(open) > 0 {
			return &UnaccountedError{Run: key, Open: open}
		}
		if err := r.queries().RunClose(ctx, tx, queries.RunCloseParams{ID: run.ID, StatusDetail: o.Reason}); err != nil {
			return fmt.Errorf("close the run: %w", err)
		}
		closed = true
		return r.record(ctx, tx, run.ID, o.Actor, "run_close", o.Reason, o)
	})
	return closed, err
}

// Unaccounted is something of a run that has no final answer yet.
type Unaccounted struct {
	What        string `json:"what"`
	Count       int64  `json:"count"`
	AmountCents *int64 `json:"amount_cents,omitempty"`
	Cure        string `json:"cure"`
}

// UnaccountedError says what keeps a run from being closed.
type UnaccountedError struct {
	Run  queries.RunGetParams
	Open []Unaccounted
}

func (e *UnaccountedError) Error() string {
	lines := []string{fmt.Sprintf("the run of %s, %s, %s cannot be closed", e.Run.Namespace, e.Run.BillingPeriod, e.Run.Currency)}
	for _, u := range e.Open {
		sum := ""
		if u.AmountCents != nil {
			sum = ", " + schema.FormatAmount(*u.AmountCents, e.Run.Currency)
		}
		lines = append(lines, fmt.Sprintf("%s: %d%s; next: %s", u.What, u.Count, sum, u.Cure))
	}
	return strings.Join(lines, "\n  ")
}

// cures of what keeps a run open, by the reason for which intents stand as they do; others by their status.
func unaccountedCure(status, reason string) string {
	switch {
	case reason == "run_capped":
		return "raise the cap (`charger run raise-cap`) or void them"
	case reason == "conflict":
		return "decide with `charger conflicts`"
	case reason == "same_customer":
		return "see `charger intents show` of each, then void or correct it"
	case reason == "run_paused":
		return "resume the run (`charger run resume`)"
	case reason == "stopped":
		return "`charger start-charging`"
	case status == "parked":
		return "decide with `charger intents show` of each"
	}
	return "wait for the chargers"
}

func (r Runs) unaccounted(ctx context.Context, tx pgx.Tx, run queries.BillingRun, acceptMissing bool) ([]Unaccounted, error) {
	var open []Unaccounted
	add := func(what string, count int64, cents *int64, cure string) {
		if count > 0 {
			open = append(open, Unaccounted{What: what, Count: count, AmountCents: cents, Cure: cure})
		}
	}
	reasons, err := r.queries().RunStatusReasons(ctx, tx, queries.RunStatusReasonsParams{
		Namespace: run.Namespace, BillingPeriod: run.BillingPeriod, Currency: run.Currency,
	})
	if err != nil {
		return nil, fmt.Errorf("read what stands where: %w", err)
	}
	for _, s := range reasons {
		if s.Status == "pending" || s.Status == "charging" || s.Status == "parked" {
			add(fmt.Sprintf("%s (%s)", s.Status, s.StatusReason), s.Intents, &s.AmountCents, unaccountedCure(s.Status, s.StatusReason))
		}
	}
	status, err := r.queries().RunStatusForPeriod(ctx, tx, queries.RunStatusForPeriodParams{
		Namespace: run.Namespace, BillingPeriod: run.BillingPeriod, Currency: run.Currency,
	})
	if err != nil || len(status) != 1 {
		return nil, fmt.Errorf("read the run's status (%d rows): %w", len(status), err)
	}
	s := status[0]
	add("in doubt", s.InDoubtCount, nil, "see `charger intents list --in-doubt`")
	add("open conflicts", s.OpenConflicts, nil, "decide with `charger conflicts`")
	quarantined, err := r.queries().QuarantineCountOpen(ctx, tx, run.Namespace)
	if err != nil {
		return nil, fmt.Errorf("count quarantined events: %w", err)
	}
	add("events in quarantine, of unknown period", quarantined, nil, "see `charger quarantine`")
	if run.AllocatedCents > run.CapCents {
		beyond := run.AllocatedCents - run.CapCents
		add("charged beyond the cap", 1, &beyond, "raise the cap to what was charged (`charger run raise-cap`)")
	}
	// Without a count the sum must tell whether all came.
	switch {
	case acceptMissing:
	case s.MissingCount != nil:
		add("expected and never came", *s.MissingCount, &s.MissingCents, "find out, or close with --accept-missing")
	case s.MissingCents > 0:
		add("expected and never came", 1, &s.MissingCents, "find out, or close with --accept-missing")
	}
	return open, nil
}
