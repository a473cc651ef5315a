package main

import (
	"context"
	"encoding/json"
	"fmt"
	"text/tabwriter"

	"github.com/jackc/pgx/v5/pgxpool"

	"chargeonce/charger"
	"chargeonce/deploy/daemon"
	"chargeonce/sql"
	"chargeonce/sql/queries"
)

// quarantineCommands are what people do with events that could not become an intent.
type quarantineCommands struct {
	List    quarantineList    `cmd:"" help:"List events that could not become an intent, and why."`
	Show    quarantineShow    `cmd:"" help:"Show one quarantined event; its bytes only with --raw."`
	Resolve quarantineResolve `cmd:"" help:"Say what became of a quarantined event; the event itself is kept."`
}

type quarantineList struct {
	database
	Namespace  string `help:"Only of this business stream." env:"BILLING_NAMESPACE"`
	ReasonCode string `help:"Only with this reason." placeholder:"not_json"`
	All        bool   `help:"Resolved ones too."`
	Limit      int32  `help:"How many at most." default:"50"`
	After      int64  `help:"Only events with a higher number."`
	JSON       bool   `help:"Print JSON."`
}

// quarantineRow is a quarantined event with its source's detail as JSON.
type quarantineRow struct {
	queries.QuarantineListRow
	FirstDetail json.RawMessage `json:"first_detail"`
}

func listQuarantined(ctx context.Context, pool *pgxpool.Pool, p queries.QuarantineListParams) ([]quarantineRow, error) {
	found, err := queries.New().QuarantineList(ctx, pool, p)
	if err != nil {
		return nil, fmt.Errorf("list quarantined events: %w", err)
	}
	rows := make([]quarantineRow, len(found))
	for i, q := range found {
		rows[i] = quarantineRow{QuarantineListRow: q, FirstDetail: rawJSON(q.FirstDetail)}
	}
	return rows, nil
}

func (l *quarantineList) Run(ctx context.Context, env daemon.Env) error {
	return asPerson(ctx, env, l.database, func(pool *pgxpool.Pool) error {
		rows, err := listQuarantined(ctx, pool, queries.QuarantineListParams{
			Namespace: l.Namespace, ReasonCode: l.ReasonCode, ResolvedToo: l.All, AfterID: l.After, MaxRows: l.Limit,
		})
		if err != nil {
			return err
		}
		if l.JSON {
			return printJSON(env.Stdout, map[string]any{"quarantined_events": rows})
		}
		table := tabwriter.NewWriter(env.Stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "ID\tNAMESPACE\tREASON CODE\tFIELD\tBYTES\tDELIVERIES\tFIRST FROM\tLAST SEEN (UTC)\tRESOLVED")
		for _, q := range rows {
			fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%d\t%d\t%s %s\t%s\t%s\n", q.ID, q.Namespace, q.ReasonCode, q.Field, q.RawBytes, q.Deliveries,
				q.FirstSource, q.FirstPosition, utc(q.LastSeenAt), orNone(q.Resolution, "open"))
		}
		return table.Flush()
	})
}

type quarantineShow struct {
	database
	who
	ID   int64 `arg:"" help:"The event's number."`
	Raw  bool  `help:"Print the event's bytes as they came, and nothing else. They are customer data: the look is recorded, needs --reason, and a database user who may act as chargeonce_quarantine."`
	JSON bool  `help:"Print JSON."`
}

func (s *quarantineShow) Run(ctx context.Context, env daemon.Env) error {
	if s.Raw {
		return s.printRaw(ctx, env)
	}
	return asPerson(ctx, env, s.database, func(pool *pgxpool.Pool) error {
		rows, err := listQuarantined(ctx, pool, queries.QuarantineListParams{ID: s.ID, ResolvedToo: true, MaxRows: 1})
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			return &charger.RefusedError{Problem: fmt.Sprintf("there is no quarantined event %d", s.ID), Cure: "see `charger quarantine list`"}
		}
		q := rows[0]
		if s.JSON {
			return printJSON(env.Stdout, q)
		}
		table := tabwriter.NewWriter(env.Stdout, 0, 0, 2, ' ', 0)
		row := func(what, format string, args ...any) {
			fmt.Fprintf(table, "%s\t%s\n", what, fmt.Sprintf(format, args...))
		}
		row("quarantined event", "%d of %s", q.ID, q.Namespace)
		row("reason", "%s: %s %s", q.ReasonCode, q.Field, q.Reason)
		row("first from", "%s %s %s", q.FirstSource, q.FirstPosition, q.FirstDetail)
		row("last from", "%s %s, %d deliveries", q.LastSource, q.LastPosition, q.Deliveries)
		row("seen (UTC)", "%s to %s", utc(q.CreatedAt), utc(q.LastSeenAt))
		row("bytes", "%d, SHA-256 %s (--raw prints them)", q.RawBytes, q.ObjectSHA256)
		if q.ResolvedAt == nil {
			row("resolved", "no: `charger quarantine resolve %d --reason ...` when it is dealt with", q.ID)
		} else {
			row("resolved", "by %s at %s: %s", orDash(q.ResolvedBy), utc(*q.ResolvedAt), orDash(q.Resolution))
		}
		return table.Flush()
	})
}

// printRaw acts as the one role that may read the bytes: neither the chargers nor whoever holds their database password can.
func (s *quarantineShow) printRaw(ctx context.Context, env daemon.Env) error {
	if s.JSON {
		return &daemon.SettingError{Setting: "--raw", Problem: "prints bytes, not JSON", Cure: "leave out --json"}
	}
	if err := s.needReason(); err != nil {
		return err
	}
	pool, err := daemon.OpenPool(ctx, s.DatabaseURL, sql.RoleQuarantine, 1, env.Name)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := migrated(ctx, pool); err != nil {
		return err
	}
	raw, err := s.operator(nil).QuarantinedRaw(ctx, pool, s.ID)
	if err != nil {
		return fmt.Errorf("quarantine show --raw: %w", err)
	}
	_, err = env.Stdout.Write(raw)
	return err
}

type quarantineResolve struct {
	change
	ID []int64 `arg:"" help:"The events' numbers."`
}

func (r *quarantineResolve) Run(ctx context.Context, env daemon.Env) error {
	if err := r.needReason(); err != nil {
		return err
	}
	return asPerson(ctx, env, r.database, func(pool *pgxpool.Pool) error {
		for _, id := range r.ID {
			if err := r.operator(pool).ResolveQuarantined(ctx, id); err != nil {
				return err
			}
			if !r.JSON {
				fmt.Fprintf(env.Stdout, "quarantined event %d resolved\n", id)
			}
		}
		if r.JSON {
			return printJSON(env.Stdout, map[string]any{"resolved": r.ID})
		}
		return nil
	})
}
