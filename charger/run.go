package charger

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"chargeonce/schema"
	"chargeonce/sql/queries"
)

// Open opens a billing run, and with it its cap: expected total plus headroom, rounded up to the minor unit. The expected
// total must come from outside the event stream, else a flood of wrong events would raise its own cap. Opening it again
// with the same terms changes nothing and says so, unless it was closed: then it is opened again, for which a reason must be
// given. With other terms it refuses.
func (r Runs) Open(ctx context.Context, o OpenRun) (run queries.BillingRun, opened bool, err error) {
	params, err := o.params()
	if err != nil {
		return run, false, err
	}
	if err := r.checkNamespace(ctx, o); err != nil {
		return run, false, err
	}
	err = pgx.BeginFunc(ctx, r.Pool, func(tx pgx.Tx) error {
		id, err := r.queries().RunOpen(ctx, tx, params)
		opened = err == nil
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("open the run: %w", err)
		}
		run, err = r.lock(ctx, tx, queries.RunGetParams{Namespace: o.Namespace, BillingPeriod: o.BillingPeriod, Currency: o.Currency})
		if err != nil {
			return err
		}
		if !opened {
			if err := sameTerms(run, params); err != nil || run.Status != "closed" {
				return err
			}
			opened = true
			run, err = r.reopen(ctx, tx, run, o)
			return err
		}
		return r.record(ctx, tx, id, o.Actor, "run_open", o.Reason, o)
	})
	return run, opened, err
}

// reopen opens a closed run again: with its allocation, and with a reason.
func (r Runs) reopen(ctx context.Context, tx pgx.Tx, run queries.BillingRun, o OpenRun) (queries.BillingRun, error) {
	if strings.TrimSpace(o.Reason) == "" {
		return run, &RefusedError{Problem: "the run was closed on " + run.ClosedAt.UTC().Format(time.DateOnly), Cure: "say with --reason why it is opened again"}
	}
	if err := r.queries().RunReopen(ctx, tx, queries.RunReopenParams{ID: run.ID, StatusDetail: o.Reason}); err != nil {
		return run, fmt.Errorf("open the run again: %w", err)
	}
	if err := r.record(ctx, tx, run.ID, o.Actor, "run_reopen", o.Reason, o); err != nil {
		return run, err
	}
	return r.queries().RunGetByID(ctx, tx, run.ID)
}

// OpenRun is what an operator says to open a run.
type OpenRun struct {
	Namespace     string `json:"namespace"`
	BillingPeriod string `json:"billing_period"`
	Currency      string `json:"currency"`
	ExpectedTotal string `json:"expected_total"` // in units of the currency: 12500.00
	ExpectedCount *int64 `json:"expected_count,omitempty"`
	Headroom      string `json:"headroom"` // 10%
	VaultUSDCap   string `json:"vault_usd_cap,omitempty"`
	StripeAccount string `json:"stripe_account,omitempty"`
	Actor         string `json:"-"`
	Reason        string `json:"-"`
}

// Runs is what operators do with billing runs.
type Runs struct {
	Pool *pgxpool.Pool
}

// RefusedError is an operator's request that cannot be done: Problem says why, Cure what can be done instead.
type RefusedError struct{ Problem, Cure string }

func (e *RefusedError) Error() string { return e.Problem + ": " + e.Cure }

func (r Runs) queries() *queries.Queries { return queries.New() }

func (o OpenRun) params() (queries.RunOpenParams, error) {
	expected, err := schema.ParseAmount(o.ExpectedTotal, o.Currency)
	if err != nil {
		return queries.RunOpenParams{}, &RefusedError{Problem: "--expected-total: " + err.Error(), Cure: "give the sum in units of the currency, like " + like(12500, o.Currency)}
	}
	switch {
	case expected <= 0:
		return queries.RunOpenParams{}, &RefusedError{Problem: "--expected-total must be more than 0", Cure: "give what the period should bring in"}
	case o.ExpectedCount != nil && *o.ExpectedCount <= 0:
		return queries.RunOpenParams{}, &RefusedError{Problem: "--expected-count must be more than 0", Cure: "give how many customers are billed, or leave it out"}
	case o.StripeAccount != "" && !strings.HasPrefix(o.StripeAccount, "acct_"):
		return queries.RunOpenParams{}, &RefusedError{
			Problem: fmt.Sprintf("--stripe-account %q is no Stripe account", o.StripeAccount), Cure: "give its id, like acct_1Abc, or leave it out for that of the first key",
		}
	}
	capCents, err := schema.Cap(expected, o.Headroom)
	if err != nil {
		return queries.RunOpenParams{}, &RefusedError{Problem: "--headroom: " + err.Error(), Cure: "give a percentage like 10%"}
	}
	p := queries.RunOpenParams{
		Namespace: o.Namespace, BillingPeriod: o.BillingPeriod, Currency: o.Currency, ExpectedTotalCents: expected,
		ExpectedCount: o.ExpectedCount, HeadroomPercent: o.Headroom, CapCents: capCents, OpenedBy: o.Actor,
	}
	if o.VaultUSDCap != "" {
		if p.VaultUsdCapCents, err = usdCents(o.VaultUSDCap); err != nil {
			return p, err
		}
	}
	if o.StripeAccount != "" {
		p.StripeAccount = &o.StripeAccount
	}
	return p, nil
}

// like is an example of how a sum is written in this currency.
func like(units int64, currency string) string {
	if point := schema.Decimals(currency); point > 0 {
		return fmt.Sprint(units) + "." + strings.Repeat("0", point)
	}
	return fmt.Sprint(units)
}

// checkNamespace catches a mistyped namespace or period, which would otherwise be an empty run that nothing ever joins.
func (r Runs) checkNamespace(ctx context.Context, o OpenRun) error {
	if err := schema.CheckNamespace(o.Namespace); err != nil {
		return &RefusedError{Problem: "--namespace: " + err.Error(), Cure: "give the namespace that the ingestors use (BILLING_NAMESPACE)"}
	}
	format, err := r.queries().NamespacePeriodFormat(ctx, r.Pool, o.Namespace)
	if errors.Is(err, pgx.ErrNoRows) {
		known, err := r.queries().NamespaceList(ctx, r.Pool)
		if err != nil {
			return fmt.Errorf("list namespaces: %w", err)
		}
		return &RefusedError{
			Problem: fmt.Sprintf("namespace %s is not registered (known: %s)", o.Namespace, strings.Join(known, ", ")),
			Cure:    "correct --namespace, or start an ingestor with this BILLING_NAMESPACE first",
		}
	}
	if err != nil {
		return fmt.Errorf("read namespace %s: %w", o.Namespace, err)
	}
	if err := schema.PeriodFormat(format).Check(o.BillingPeriod); err != nil {
		return &RefusedError{Problem: "--period: " + err.Error(), Cure: "give it in the namespace's format: " + format}
	}
	return nil
}

func sameTerms(run queries.BillingRun, asked queries.RunOpenParams) error {
	var other []string
	differ := func(what string, has, asks any) { other = append(other, fmt.Sprintf("%s %v, not %v", what, has, asks)) }
	if run.ExpectedTotalCents != asked.ExpectedTotalCents {
		differ("expected total", schema.FormatAmount(run.ExpectedTotalCents, run.Currency), schema.FormatAmount(asked.ExpectedTotalCents, run.Currency))
	}
	if run.CapCents < asked.CapCents || (run.HeadroomPercent != asked.HeadroomPercent && run.CapCents != asked.CapCents) {
		differ("cap", schema.FormatAmount(run.CapCents, run.Currency), schema.FormatAmount(asked.CapCents, run.Currency))
	}
	if number(run.ExpectedCount) != number(asked.ExpectedCount) {
		differ("expected count", number(run.ExpectedCount), number(asked.ExpectedCount))
	}
	// As the cap, the one in dollars may have been raised since, or given only then.
	vaultRaised := deref(run.VaultUsdCapCents) > deref(asked.VaultUsdCapCents) && (asked.VaultUsdCapCents == nil || run.CapCents > asked.CapCents)
	if deref(run.VaultUsdCapCents) != deref(asked.VaultUsdCapCents) && !vaultRaised {
		dollars := func(cents *int64) string {
			if cents == nil {
				return "none"
			}
			return schema.FormatAmount(*cents, "usd")
		}
		differ("vault cap in dollars", dollars(run.VaultUsdCapCents), dollars(asked.VaultUsdCapCents))
	}
	if asked.StripeAccount != nil && deref(run.StripeAccount) != *asked.StripeAccount {
		differ("Stripe account", cmp.Or(deref(run.StripeAccount), "that of its first key"), *asked.StripeAccount)
	}
	if len(other) > 0 {
		return &RefusedError{
			Problem: fmt.Sprintf("the run of %s, %s, %s stands with other terms (%s)", run.Namespace, run.BillingPeriod, run.Currency, strings.Join(other, "; ")),
			Cure:    "a run's terms are never changed by opening it again; to charge more, see `charger run raise-cap`",
		}
	}
	return nil
}

// Pause stops new charges of a run; what is in doubt goes on being looked up. It reports whether the run was open.
func (r Runs) Pause(ctx context.Context, key queries.RunGetParams, actor, reason string) (bool, error) {
	return r.move(ctx, key, actor, "run_pause", reason, func(tx pgx.Tx, id int64) (int64, error) {
		return r.queries().RunPauseByOperator(ctx, tx, queries.RunPauseByOperatorParams{ID: id, StatusDetail: reason})
	})
}

// Resume lets a paused run charge again. It reports whether the run was paused.
func (r Runs) Resume(ctx context.Context, key queries.RunGetParams, actor, reason string) (bool, error) {
	return r.move(ctx, key, actor, "run_resume", reason, func(tx pgx.Tx, id int64) (int64, error) {
		rows, err := r.queries().RunResume(ctx, tx, queries.RunResumeParams{ID: id, StatusDetail: reason})
		if violated(err) == "runs_allocated_within_cap" {
			return 0, &RefusedError{Problem: "the run has charged more than its cap", Cure: "raise the cap first"}
		}
		return rows, err
	})
}

func (r Runs) move(ctx context.Context, key queries.RunGetParams, actor, action, reason string, do func(pgx.Tx, int64) (int64, error)) (done bool, err error) {
	err = pgx.BeginFunc(ctx, r.Pool, func(tx pgx.Tx) error {
		run, err := r.queries().RunGet(ctx, tx, key)
		if errors.Is(err, pgx.ErrNoRows) {
			return noRun(key)
		}
		if err != nil {
			return fmt.Errorf("read the run: %w", err)
		}
		rows, err := do(tx, run.ID)
		if err != nil {
			return err
		}
		done = rows > 0
		if !done {
			return nil
		}
		return r.record(ctx, tx, run.ID, actor, action, reason, struct{}{})
	})
	return done, err
}

// Switch is the global kill switch: while it is on, no charger claims a new charge.
func (r Runs) Switch(ctx context.Context, stopped bool, actor, reason string) error {
	action := "start_charging"
	if stopped {
		action = "stop_charging"
	}
	return pgx.BeginFunc(ctx, r.Pool, func(tx pgx.Tx) error {
		if err := r.queries().ChargingSwitchSet(ctx, tx, queries.ChargingSwitchSetParams{Stopped: stopped, Reason: reason, Actor: actor}); err != nil {
			return fmt.Errorf("set the kill switch: %w", err)
		}
		return r.record(ctx, tx, 0, actor, action, reason, struct{}{})
	})
}

// record writes the operator's action into the same transaction.
func (r Runs) record(ctx context.Context, tx pgx.Tx, runID int64, actor, action, reason string, detail any) error {
	encoded, err := json.Marshal(detail)
	if err != nil {
		return fmt.Errorf("encode the action's detail: %w", err)
	}
	p := queries.OperatorActionAddParams{Actor: actor, Action: action, Reason: reason, Detail: encoded}
	if runID != 0 {
		p.RunID = &runID
	}
	if err := r.queries().OperatorActionAdd(ctx, tx, p); err != nil {
		return fmt.Errorf("record the operator's action: %w", err)
	}
	return nil
}

func number(n *int64) string {
	if n == nil {
		return "none"
	}
	return fmt.Sprint(*n)
}
