package charger

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"chargeonce/schema"
	"chargeonce/sql/queries"
)

// RaiseCap is what an operator says to let a run charge more than was meant when it was opened.
type RaiseCap struct {
	Cap         string `json:"cap"` // in units of the currency: 15000.00
	VaultUSDCap string `json:"vault_usd_cap,omitempty"`
	Actor       string `json:"-"`
	Reason      string `json:"-"`
}

// RaiseCap raises a run's cap. It never lowers it; the cap that stands already is no change. The run's vault key is for what was left of
// the old cap, so the chargers take it back and issue another. A paused run stays paused.
func (r Runs) RaiseCap(ctx context.Context, key queries.RunGetParams, o RaiseCap) (run queries.BillingRun, raised bool, err error) {
	err = pgx.BeginFunc(ctx, r.Pool, func(tx pgx.Tx) error {
		locked, err := r.lock(ctx, tx, key)
		if err != nil {
			return err
		}
		run = locked
		p, err := o.params(run)
		if err != nil {
			return err
		}
		if p.CapCents == run.CapCents && (p.VaultUsdCapCents == nil || *p.VaultUsdCapCents == deref(run.VaultUsdCapCents)) {
			return nil
		}
		if err := r.queries().RunRaiseCap(ctx, tx, p); err != nil {
			return fmt.Errorf("raise the cap: %w", err)
		}
		if err := r.queries().VaultKeyExpireNow(ctx, tx, run.ID); err != nil {
			return fmt.Errorf("end the run's vault key: %w", err)
		}
		before := schema.FormatAmount(run.CapCents, run.Currency)
		if run, err = r.queries().RunGetByID(ctx, tx, run.ID); err != nil {
			return fmt.Errorf("read the run: %w", err)
		}
		raised = true
		return r.record(ctx, tx, run.ID, o.Actor, "run_raise_cap", o.Reason, struct {
			RaiseCap
			Before string `json:"cap_before"`
		}{o, before})
	})
	return run, raised, err
}

func (o RaiseCap) params(run queries.BillingRun) (queries.RunRaiseCapParams, error) {
	p := queries.RunRaiseCapParams{ID: run.ID}
	var err error
	if p.CapCents, err = schema.ParseAmount(o.Cap, run.Currency); err != nil {
		return p, &RefusedError{Problem: "--cap: " + err.Error(), Cure: "give the new cap in units of the currency, like " + like(15000, run.Currency)}
	}
	stands := schema.FormatAmount(run.CapCents, run.Currency)
	switch {
	case run.Status == "closed":
		return p, &RefusedError{Problem: "the run is closed", Cure: "open it again first, with `charger run open` and a --reason"}
	case p.CapCents < run.CapCents:
		return p, &RefusedError{Problem: fmt.Sprintf("--cap %s is less than the cap that stands, %s", o.Cap, stands), Cure: "a cap is only raised; to charge no more, pause the run"}
	case p.CapCents < run.AllocatedCents:
		return p, &RefusedError{
			Problem: fmt.Sprintf("--cap %s is less than what is reserved or charged, %s", o.Cap, schema.FormatAmount(run.AllocatedCents, run.Currency)),
			Cure:    "give at least that",
		}
	case o.VaultUSDCap == "" && run.VaultUsdCapCents != nil && p.CapCents != run.CapCents:
		return p, &RefusedError{
			Problem: "the run has a vault cap in dollars of its own, " + schema.FormatAmount(*run.VaultUsdCapCents, "usd"),
			Cure:    "say with --vault-usd-cap what it shall be with the new cap",
		}
	case o.VaultUSDCap == "":
		return p, nil
	}
	p.VaultUsdCapCents, err = usdCents(o.VaultUSDCap)
	if err == nil && *p.VaultUsdCapCents < deref(run.VaultUsdCapCents) {
		err = &RefusedError{
			Problem: fmt.Sprintf("--vault-usd-cap %s is less than the one that stands, %s", o.VaultUSDCap, schema.FormatAmount(*run.VaultUsdCapCents, "usd")),
			Cure:    "a cap is only raised",
		}
	}
	return p, err
}

// usdCents reads an operator's --vault-usd-cap.
func usdCents(text string) (*int64, error) {
	cents, err := schema.ParseAmount(text, "usd")
	if err != nil || cents <= 0 {
		return nil, &RefusedError{Problem: fmt.Sprintf("--vault-usd-cap %q is no sum in dollars", text), Cure: "give it like 13750.00"}
	}
	return &cents, nil
}

// lock keeps dispatchers and other operators from the run until the transaction's end.
func (r Runs) lock(ctx context.Context, tx pgx.Tx, key queries.RunGetParams) (queries.BillingRun, error) {
	run, err := r.queries().RunLockByKey(ctx, tx, queries.RunLockByKeyParams(key))
	if errors.Is(err, pgx.ErrNoRows) {
		return run, noRun(key)
	}
	if err != nil {
		return run, fmt.Errorf("lock the run: %w", err)
	}
	return run, nil
}

func noRun(key queries.RunGetParams) error {
	return &RefusedError{Problem: fmt.Sprintf("there is no run of %s, %s, %s", key.Namespace, key.BillingPeriod, key.Currency), Cure: "see `charger run list`"}
}
