package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/jackc/pgx/v5/pgxpool"

	"chargeonce/charger"
	"chargeonce/deploy/daemon"
	"chargeonce/sql/queries"
)

// conflictsCommands are what people do with events that came with other terms.
type conflictsCommands struct {
	List conflictsList `cmd:"" help:"List open conflicts with both terms side by side."`
	Show conflictsShow `cmd:"" help:"Show one conflict: both terms, and where each came from."`
	Keep conflictsKeep `cmd:"" help:"The intent's terms stay; the other event was wrong."`
	Take conflictsTake `cmd:"" help:"The other event's terms become the intent's, under the rule of intents retry."`
}

type conflictsList struct {
	database
	Namespace string `help:"Only of this business stream." env:"BILLING_NAMESPACE"`
	Period    string `help:"Only of this billing period."`
	All       bool   `help:"Resolved ones too."`
	Limit     int32  `help:"How many at most." default:"50"`
	After     int64  `help:"Only conflicts with a higher number."`
	JSON      bool   `help:"Print JSON."`
}

// conflictRow is a conflict with its source's detail as JSON.
type conflictRow struct {
	queries.ConflictListRow
	FirstDetail json.RawMessage `json:"first_detail"`
}

func listConflicts(ctx context.Context, pool *pgxpool.Pool, p queries.ConflictListParams) ([]conflictRow, error) {
	found, err := queries.New().ConflictList(ctx, pool, p)
	if err != nil {
		return nil, fmt.Errorf("list conflicts: %w", err)
	}
	rows := make([]conflictRow, len(found))
	for i, c := range found {
		rows[i] = conflictRow{ConflictListRow: c, FirstDetail: rawJSON(c.FirstDetail)}
	}
	return rows, nil
}

func rawJSON(text string) json.RawMessage {
	if text == "" {
		return nil
	}
	return json.RawMessage(text)
}

func (l *conflictsList) Run(ctx context.Context, env daemon.Env) error {
	return asPerson(ctx, env, l.database, func(pool *pgxpool.Pool) error {
		rows, err := listConflicts(ctx, pool, queries.ConflictListParams{
			Namespace: l.Namespace, BillingPeriod: l.Period, ResolvedToo: l.All, AfterID: l.After, MaxRows: l.Limit,
		})
		if err != nil {
			return err
		}
		if l.JSON {
			return printJSON(env.Stdout, map[string]any{"conflicts": rows})
		}
		return printConflicts(env.Stdout, rows)
	})
}

func printConflicts(w io.Writer, rows []conflictRow) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tINTENT\tNAMESPACE\tPERIOD\tCUSTOMER\tSTATUS\tHAS\tOTHER\tDELIVERIES\tRESOLVED")
	for _, c := range rows {
		fmt.Fprintf(table, "%d\t%d\t%s\t%s\t%s\t%s\t%s %s\t%s %s\t%d\t%s\n", c.ID, c.IntentID, c.Namespace, c.BillingPeriod, c.CustomerID, c.IntentStatus,
			money(c.IntentAmountCents, c.IntentCurrency), c.IntentStripeCustomerID, money(c.OtherAmountCents, c.OtherCurrency), c.OtherStripeCustomerID,
			c.Deliveries, orNone(c.Resolution, "open"))
	}
	return table.Flush()
}

type conflictsShow struct {
	database
	ID   int64 `arg:"" help:"The conflict's number."`
	JSON bool  `help:"Print JSON."`
}

func (s *conflictsShow) Run(ctx context.Context, env daemon.Env) error {
	return asPerson(ctx, env, s.database, func(pool *pgxpool.Pool) error {
		rows, err := listConflicts(ctx, pool, queries.ConflictListParams{ID: s.ID, ResolvedToo: true, MaxRows: 1})
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			return &charger.RefusedError{Problem: fmt.Sprintf("there is no conflict %d", s.ID), Cure: "see `charger conflicts list`"}
		}
		if s.JSON {
			return printJSON(env.Stdout, rows[0])
		}
		return printConflict(env.Stdout, rows[0])
	})
}

func printConflict(w io.Writer, c conflictRow) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "conflict %d of intent %d (%s)  %s %s %s\n", c.ID, c.IntentID, c.IntentStatus, c.Namespace, c.BillingPeriod, c.CustomerID)
	row := func(what, has, other string) { fmt.Fprintf(table, "%s\t%s\t%s\n", what, has, other) }
	row("", "the intent has", "the other event said")
	row("amount", money(c.IntentAmountCents, c.IntentCurrency), money(c.OtherAmountCents, c.OtherCurrency))
	row("Stripe customer", c.IntentStripeCustomerID, c.OtherStripeCustomerID)
	row("payment method", orNone(c.IntentPaymentMethod, "the customer's default"), orNone(c.OtherPaymentMethod, "the customer's default"))
	row("description", orDash(c.IntentDescription), orDash(c.OtherDescription))
	row("first from", c.IntentSource+" "+c.IntentPosition, strings.TrimSpace(c.FirstSource+" "+c.FirstPosition+" "+string(c.FirstDetail)))
	row("last from", "", fmt.Sprintf("%s %s, %d deliveries", c.LastSource, c.LastPosition, c.Deliveries))
	row("seen (UTC)", "", utc(c.CreatedAt)+" to "+utc(c.LastSeenAt))
	if err := table.Flush(); err != nil {
		return err
	}
	if c.ResolvedAt != nil {
		_, err := fmt.Fprintf(w, "resolved: %s by %s at %s\n", orDash(c.Resolution), orDash(c.ResolvedBy), utc(*c.ResolvedAt))
		return err
	}
	_, err := fmt.Fprintf(w, "open: decide with `charger conflicts keep %d` or `charger conflicts take %d`\n", c.ID, c.ID)
	return err
}

type conflictsKeep struct {
	change
	ID int64 `arg:"" help:"The conflict's number."`
}

func (k *conflictsKeep) Run(ctx context.Context, env daemon.Env) error {
	if err := k.needReason(); err != nil {
		return err
	}
	return asPerson(ctx, env, k.database, func(pool *pgxpool.Pool) error {
		if err := k.operator(pool).Keep(ctx, k.ID); err != nil {
			return err
		}
		if k.JSON {
			return printJSON(env.Stdout, map[string]any{"conflict_id": k.ID, "resolution": "kept_first"})
		}
		_, err := fmt.Fprintf(env.Stdout, "conflict %d resolved: the intent's terms stay\n", k.ID)
		return err
	})
}

type conflictsTake struct {
	change
	ID int64 `arg:"" help:"The conflict's number."`
}

func (t *conflictsTake) Run(ctx context.Context, env daemon.Env) error {
	if err := t.needReason(); err != nil {
		return err
	}
	return asPerson(ctx, env, t.database, func(pool *pgxpool.Pool) error {
		renewed, err := t.operator(pool).Take(ctx, t.ID)
		if err != nil {
			return err
		}
		if t.JSON {
			return printJSON(env.Stdout, map[string]any{"conflict_id": t.ID, "resolution": "took_other", "intent": renewed})
		}
		_, err = fmt.Fprintf(env.Stdout, "conflict %d resolved: intent %d %s\n", t.ID, renewed.IntentID, renewedText("takes the other terms", renewed))
		return err
	})
}
