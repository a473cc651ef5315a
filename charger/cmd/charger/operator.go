package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strings"
	"text/tabwriter"

	"github.com/jackc/pgx/v5/pgxpool"

	"chargeonce/charger"
	"chargeonce/deploy/daemon"
	"chargeonce/schema"
	"chargeonce/sql"
	"chargeonce/sql/queries"
)

// whichRun names a run on the command line.
type whichRun struct {
	Namespace string `help:"The business stream." required:"" env:"BILLING_NAMESPACE"`
	Period    string `help:"The billing period, in the namespace's format." required:""`
	Currency  string `help:"Three letters." default:"usd"`
}

func (r whichRun) key() (queries.RunGetParams, error) {
	currency, err := schema.CheckCurrency(r.Currency)
	if err != nil {
		return queries.RunGetParams{}, &daemon.SettingError{Setting: "--currency", Problem: err.Error(), Cure: "give one that Stripe takes, like usd"}
	}
	return queries.RunGetParams{Namespace: r.Namespace, BillingPeriod: r.Period, Currency: currency}, nil
}

// who is recorded with every operator's action.
type who struct {
	Actor  string `help:"Who does this; the system user unless given." env:"CHARGER_ACTOR"`
	Reason string `help:"Why; recorded with the action."`
}

func (w who) actor() string {
	if w.Actor != "" {
		return w.Actor
	}
	if u, err := user.Current(); err == nil && u.Username != "" {
		return u.Username
	}
	return fmt.Sprintf("uid %d", os.Getuid())
}

func (w who) needReason() error {
	if strings.TrimSpace(w.Reason) == "" {
		return &daemon.SettingError{Setting: "--reason", Problem: "is missing", Cure: "say why; it is recorded with the action"}
	}
	return nil
}

// asOperator connects, checks that the database is migrated, and turns a refusal into a settings error (exit code 2).
func asOperator(ctx context.Context, env daemon.Env, db database, do func(pool *pgxpool.Pool) error) error {
	pool, err := daemon.OpenPool(ctx, db.DatabaseURL, sql.RoleCharger, 2, env.Name)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := migrated(ctx, pool); err != nil {
		return err
	}
	err = do(pool)
	if refused, ok := errors.AsType[*charger.RefusedError](err); ok {
		return &daemon.SettingError{Setting: env.Command, Problem: "is refused (" + refused.Problem + ")", Cure: refused.Cure}
	}
	return err
}

func migrated(ctx context.Context, pool *pgxpool.Pool) error {
	err := sql.Check(ctx, pool)
	if errors.Is(err, sql.ErrNotMigrated) {
		return &daemon.SettingError{Setting: "DATABASE_URL", Problem: "names a database that is not migrated", Cure: "run `migrate up` with it first"}
	}
	return err
}

type runOpen struct {
	database
	whichRun
	who
	ExpectedTotal string `help:"What the period should bring in, in units of the currency, from a source other than the events." required:"" placeholder:"12500.00"`
	ExpectedCount *int64 `help:"How many customers are billed." placeholder:"500"`
	Headroom      string `help:"How much more than expected may be charged." default:"10%"`
	VaultUSDCap   string `name:"vault-usd-cap" help:"The proxy's cap in dollars; a run in another currency needs it, if keys come from a proxy." placeholder:"13750.00"`
	StripeAccount string `help:"The Stripe account that must be charged; else the first key's." placeholder:"acct_..."`
	JSON          bool   `help:"Print JSON."`
}

func (r *runOpen) Run(ctx context.Context, env daemon.Env) error {
	key, err := r.key()
	if err != nil {
		return err
	}
	return asOperator(ctx, env, r.database, func(pool *pgxpool.Pool) error {
		run, opened, err := charger.Runs{Pool: pool}.Open(ctx, charger.OpenRun{
			Namespace: key.Namespace, BillingPeriod: key.BillingPeriod, Currency: key.Currency,
			ExpectedTotal: r.ExpectedTotal, ExpectedCount: r.ExpectedCount, Headroom: r.Headroom, VaultUSDCap: r.VaultUSDCap,
			StripeAccount: r.StripeAccount, Actor: r.actor(), Reason: r.Reason,
		})
		if err != nil {
			return err
		}
		if r.JSON {
			return printJSON(env.Stdout, map[string]any{"run_id": run.ID, "opened": opened, "status": run.Status, "cap_cents": run.CapCents})
		}
		said := "opened"
		if opened && run.StatusReason == "reopened" {
			said = "opened again"
		}
		if !opened {
			said = "stands already with these terms (" + run.Status + ")"
		}
		_, err = fmt.Fprintf(env.Stdout, "run %d of %s %s %s %s: expected %s, cap %s\n", run.ID, run.Namespace, run.BillingPeriod, run.Currency, said,
			schema.FormatAmount(run.ExpectedTotalCents, run.Currency), schema.FormatAmount(run.CapCents, run.Currency))
		return err
	})
}

type runStatus struct {
	database
	Namespace string `help:"The business stream." required:"" env:"BILLING_NAMESPACE"`
	Period    string `help:"The billing period, in the namespace's format." required:""`
	Currency  string `help:"Three letters; all of the period's runs unless given."`
	JSON      bool   `help:"Print JSON."`
}

func (r *runStatus) Run(ctx context.Context, env daemon.Env) error {
	key := queries.RunGetParams{Namespace: r.Namespace, BillingPeriod: r.Period}
	if r.Currency != "" {
		var err error
		if key, err = (whichRun{Namespace: r.Namespace, Period: r.Period, Currency: r.Currency}).key(); err != nil {
			return err
		}
	}
	return asOperator(ctx, env, r.database, func(pool *pgxpool.Pool) error {
		q := queries.New()
		runs, err := q.RunStatusForPeriod(ctx, pool, queries.RunStatusForPeriodParams(key))
		if err != nil {
			return fmt.Errorf("read the runs' status: %w", err)
		}
		if len(runs) == 0 {
			return &charger.RefusedError{
				Problem: strings.TrimSpace(fmt.Sprintf("there is no run of %s %s %s", key.Namespace, key.BillingPeriod, key.Currency)),
				Cure:    "see `charger run list`",
			}
		}
		var statuses []runWithIntents
		for _, run := range runs {
			reasons, err := q.RunStatusReasons(ctx, pool, queries.RunStatusReasonsParams{
				Namespace: run.Namespace, BillingPeriod: run.BillingPeriod, Currency: run.Currency,
			})
			if err != nil {
				return fmt.Errorf("read the intents of run %d: %w", run.RunID, err)
			}
			statuses = append(statuses, runWithIntents{Run: run, Intents: reasons})
		}
		if r.JSON {
			return printJSON(env.Stdout, statuses)
		}
		for _, s := range statuses {
			if err := printStatus(env.Stdout, s.Run, s.Intents); err != nil {
				return err
			}
		}
		return nil
	})
}

// runWithIntents is one run and how many of its intents stand where, and why.
type runWithIntents struct {
	Run     queries.RunStatusForPeriodRow `json:"run"`
	Intents []queries.RunStatusReasonsRow `json:"intents"`
}

func printStatus(w io.Writer, run queries.RunStatusForPeriodRow, reasons []queries.RunStatusReasonsRow) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(what string, count, sum any) { fmt.Fprintf(table, "%s\t%v\t%v\t\n", what, count, sum) }
	amount := func(cents int64) string { return schema.FormatAmount(cents, run.Currency) }
	fmt.Fprintf(w, "run %d  %s %s %s  %s (%s) %s\n", run.RunID, run.Namespace, run.BillingPeriod, run.Currency, run.Status, run.StatusReason, run.StatusDetail)
	row("", "count", "sum")
	expected := "?"
	if run.ExpectedCount != nil {
		expected = fmt.Sprint(*run.ExpectedCount)
	}
	row("expected", expected, amount(run.ExpectedTotalCents))
	row("ingested", run.IngestedCount, amount(run.IngestedCents))
	for _, r := range reasons {
		row(r.Status+" ("+r.StatusReason+")", r.Intents, amount(r.AmountCents))
	}
	row("in doubt", run.InDoubtCount, "")
	row("open conflicts", run.OpenConflicts, "")
	row("cap", "", amount(run.CapCents))
	row("reserved or charged", "", amount(run.AllocatedCents))
	if err := table.Flush(); err != nil {
		return err
	}
	if run.Status == "paused" {
		fmt.Fprintf(w, "the run is paused: %s\n", cureOfPause(run.StatusReason))
	}
	for _, r := range reasons {
		if r.StatusReason == string(schema.ReasonRunCapped) {
			fmt.Fprintf(w, "the run is capped: %d intents, %s, do not fit; see `charger intents list --reason-is run_capped`, then `charger run raise-cap` or void them\n",
				r.Intents, amount(r.AmountCents))
		}
	}
	return nil
}

// cureOfPause says what lets a paused run go on.
func cureOfPause(reason string) string {
	const resume = ", then `charger run resume`"
	switch reason {
	case "vault_denied":
		return "mend what is said above" + resume + "; that replaces a vault key that was revoked or has expired, `charger run raise-cap` one whose cap is used up"
	case "over_cap":
		return "raise the cap to what was charged (`charger run raise-cap`)" + resume
	case "wrong_account":
		return "give the chargers a key of the run's own Stripe account" + resume
	case "clock_skew":
		return "set the database's clock right" + resume
	case "mismatch", "late_success":
		return "see what Stripe has (`charger intents show` of the intent, `charger reconcile`)" + resume
	}
	return "`charger run resume` when it may go on"
}

type runList struct {
	database
	Limit int32 `help:"How many." default:"50"`
	JSON  bool  `help:"Print JSON."`
}

func (r *runList) Run(ctx context.Context, env daemon.Env) error {
	if r.Limit < 1 {
		return &daemon.SettingError{Setting: "--limit", Problem: fmt.Sprintf("is %d", r.Limit), Cure: "give 1 or more"}
	}
	return asOperator(ctx, env, r.database, func(pool *pgxpool.Pool) error {
		runs, err := queries.New().RunStatusList(ctx, pool, r.Limit)
		if err != nil {
			return fmt.Errorf("list runs: %w", err)
		}
		without, err := queries.New().WithoutRunList(ctx, pool)
		if err != nil {
			return fmt.Errorf("list what waits for a run: %w", err)
		}
		if r.JSON {
			return printJSON(env.Stdout, map[string]any{"runs": runs, "without_run": without})
		}
		table := tabwriter.NewWriter(env.Stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "ID\tNAMESPACE\tPERIOD\tCURRENCY\tSTATUS\tEXPECTED\tINGESTED\tCHARGED\tDECLINED\tIN DOUBT\tPARKED")
		for _, run := range runs {
			amount := func(cents int64) string { return schema.FormatAmount(cents, run.Currency) }
			fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s (%s)\t%s\t%s\t%s\t%s\t%d\t%d\n", run.RunID, run.Namespace, run.BillingPeriod, run.Currency,
				run.Status, run.StatusReason, amount(run.ExpectedTotalCents), amount(run.IngestedCents), amount(run.ChargedCents),
				amount(run.DeclinedCents), run.InDoubtCount, run.ParkedCount)
		}
		if err := table.Flush(); err != nil {
			return err
		}
		for _, w := range without {
			fmt.Fprintf(env.Stdout, "no run is open for %s %s %s: %d intents, %s, wait for one\n",
				w.Namespace, w.BillingPeriod, w.Currency, w.Intents, schema.FormatAmount(w.AmountCents, w.Currency))
		}
		return nil
	})
}

type runPause struct {
	database
	whichRun
	who
}

func (r *runPause) Run(ctx context.Context, env daemon.Env) error {
	return moveRun(ctx, env, r.database, r.whichRun, r.who, charger.Runs.Pause, "paused", "was not open")
}

type runResume struct {
	database
	whichRun
	who
}

func (r *runResume) Run(ctx context.Context, env daemon.Env) error {
	return moveRun(ctx, env, r.database, r.whichRun, r.who, charger.Runs.Resume, "resumed", "was not paused")
}

type mover func(runs charger.Runs, ctx context.Context, key queries.RunGetParams, actor, reason string) (bool, error)

func moveRun(ctx context.Context, env daemon.Env, db database, which whichRun, by who, move mover, done, not string) error {
	key, err := which.key()
	if err != nil {
		return err
	}
	if err := by.needReason(); err != nil {
		return err
	}
	return asOperator(ctx, env, db, func(pool *pgxpool.Pool) error {
		moved, err := move(charger.Runs{Pool: pool}, ctx, key, by.actor(), by.Reason)
		if err != nil {
			return err
		}
		said := done
		if !moved {
			said = not
		}
		_, err = fmt.Fprintf(env.Stdout, "run of %s %s %s %s\n", key.Namespace, key.BillingPeriod, key.Currency, said)
		return err
	})
}

type stopCharging struct {
	database
	who
}

func (s *stopCharging) Run(ctx context.Context, env daemon.Env) error {
	return setSwitch(ctx, env, s.database, s.who, true)
}

type startCharging struct {
	database
	who
}

func (s *startCharging) Run(ctx context.Context, env daemon.Env) error {
	return setSwitch(ctx, env, s.database, s.who, false)
}

func setSwitch(ctx context.Context, env daemon.Env, db database, by who, stopped bool) error {
	if err := by.needReason(); err != nil {
		return err
	}
	return asOperator(ctx, env, db, func(pool *pgxpool.Pool) error {
		if err := (charger.Runs{Pool: pool}).Switch(ctx, stopped, by.actor(), by.Reason); err != nil {
			return err
		}
		said := "charging is on: open runs charge"
		if stopped {
			said = "charging is stopped: no new charge is claimed; calls on their way end and are recorded"
		}
		_, err := fmt.Fprintln(env.Stdout, said)
		return err
	})
}

func printJSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}
