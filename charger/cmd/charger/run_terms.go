package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/jackc/pgx/v5/pgxpool"

	"chargeonce/charger"
	"chargeonce/deploy/daemon"
	"chargeonce/schema"
)

type runForecast struct {
	database
	whichRun
	ExpectedTotal string `help:"Of a run that is not opened yet: what the period should bring in." placeholder:"12500.00"`
	ExpectedCount *int64 `help:"Of a run that is not opened yet: how many customers are billed." placeholder:"500"`
	Headroom      string `help:"Of a run that is not opened yet: how much more than expected may be charged." default:"10%"`
	Limit         int    `help:"How many of those that would not be charged are shown." default:"20"`
	JSON          bool   `help:"Print JSON."`
}

func (r *runForecast) Run(ctx context.Context, env daemon.Env) error {
	key, err := r.key()
	if err != nil {
		return err
	}
	return asOperator(ctx, env, r.database, func(pool *pgxpool.Pool) error {
		f, err := charger.Runs{Pool: pool}.Forecast(ctx, charger.OpenRun{
			Namespace: key.Namespace, BillingPeriod: key.BillingPeriod, Currency: key.Currency,
			ExpectedTotal: r.ExpectedTotal, ExpectedCount: r.ExpectedCount, Headroom: r.Headroom,
		})
		if err != nil {
			return err
		}
		if r.JSON {
			return printJSON(env.Stdout, f)
		}
		return printForecast(env.Stdout, f, r.Limit)
	})
}

func printForecast(w io.Writer, f charger.Forecast, limit int) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	amount := func(cents int64) string { return schema.FormatAmount(cents, f.Currency) }
	row := func(what string, sum charger.Sum) {
		fmt.Fprintf(table, "%s\t%d\t%s\t\n", what, sum.Count, amount(sum.AmountCents))
	}
	fmt.Fprintf(table, "\tcount\tsum\t\n")
	expected := "?"
	if f.ExpectedCount != nil {
		expected = fmt.Sprint(*f.ExpectedCount)
	}
	fmt.Fprintf(table, "expected\t%s\t%s\t\n", expected, amount(f.ExpectedCents))
	row("ingested so far", f.Ingested)
	row("dispatched already", f.Begun)
	row("would be charged", f.Fits)
	row("would not fit under the cap", f.NoRoom)
	row("would wait: open conflict", f.Conflict)
	row("would wait: same Stripe customer", f.Same)
	fmt.Fprintf(table, "cap\t\t%s\t\n", amount(f.CapCents))
	if err := table.Flush(); err != nil {
		return err
	}
	for i, out := range f.Left {
		if i == limit {
			fmt.Fprintf(w, "and %d more; --json shows up to %d\n", f.NoRoom.Count+f.Conflict.Count+f.Same.Count-int64(i), charger.MaxLeftOut)
			break
		}
		fmt.Fprintf(w, "intent %d, customer %s, %s: %s\n", out.IntentID, out.CustomerID, amount(out.AmountCents), out.Reason)
	}
	return nil
}

type runRaiseCap struct {
	database
	whichRun
	who
	Cap         string `help:"The new cap, in units of the currency." required:"" placeholder:"15000.00"`
	VaultUSDCap string `name:"vault-usd-cap" help:"The proxy's cap in dollars, of a run that has one of its own." placeholder:"16500.00"`
}

func (r *runRaiseCap) Run(ctx context.Context, env daemon.Env) error {
	key, err := r.key()
	if err != nil {
		return err
	}
	if err := r.needReason(); err != nil {
		return err
	}
	return asOperator(ctx, env, r.database, func(pool *pgxpool.Pool) error {
		run, raised, err := charger.Runs{Pool: pool}.RaiseCap(ctx, key, charger.RaiseCap{
			Cap: r.Cap, VaultUSDCap: r.VaultUSDCap, Actor: r.actor(), Reason: r.Reason,
		})
		if err != nil {
			return err
		}
		said := "stands already"
		if raised {
			said = "is the cap now; its vault key is replaced"
		}
		if run.Status == "paused" {
			said += fmt.Sprintf("; the run is still paused (%s): `charger run resume` when it may go on", run.StatusReason)
		}
		_, err = fmt.Fprintf(env.Stdout, "run %d of %s %s %s: %s %s\n", run.ID, run.Namespace, run.BillingPeriod, run.Currency,
			schema.FormatAmount(run.CapCents, run.Currency), said)
		return err
	})
}

type runClose struct {
	database
	whichRun
	who
	AcceptMissing bool `help:"Close although less came than was expected."`
	JSON          bool `help:"Print JSON."`
}

// errStaysOpen is exit code 1: the command was understood, and what it found forbids it.
var errStaysOpen = errors.New("the run stays open")

func (r *runClose) Run(ctx context.Context, env daemon.Env) error {
	key, err := r.key()
	if err != nil {
		return err
	}
	if err := r.needReason(); err != nil {
		return err
	}
	return asOperator(ctx, env, r.database, func(pool *pgxpool.Pool) error {
		closed, err := charger.Runs{Pool: pool}.Close(ctx, key, charger.CloseRun{AcceptMissing: r.AcceptMissing, Actor: r.actor(), Reason: r.Reason})
		open, refused := errors.AsType[*charger.UnaccountedError](err)
		switch {
		case refused && r.JSON:
			if err := printJSON(env.Stdout, map[string]any{"closed": false, "unaccounted": open.Open}); err != nil {
				return err
			}
			return errStaysOpen
		case err != nil:
			return err
		case r.JSON:
			return printJSON(env.Stdout, map[string]any{"closed": true, "unaccounted": []charger.Unaccounted{}})
		}
		said := "closed: nothing more is charged for it until it is opened again"
		if !closed {
			said = "was closed already"
		}
		_, err = fmt.Fprintf(env.Stdout, "run of %s %s %s %s\n", key.Namespace, key.BillingPeriod, key.Currency, said)
		return err
	})
}
