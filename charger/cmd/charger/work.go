package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"chargeonce/charger"
	"chargeonce/charger/stripecharge"
	"chargeonce/deploy/daemon"
	"chargeonce/sql"
)

// database is embedded by every command.
type database struct {
	DatabaseURL daemon.Secret `help:"Postgres, as a user who may act as chargeonce_charger (the console: as chargeonce_console)." env:"DATABASE_URL" placeholder:"URL"`
}

// Validate is called by kong.
func (d database) Validate() error { return daemon.CheckDatabaseURL(d.DatabaseURL) }

type work struct {
	database
	Listen string `help:"HOST:PORT for /healthz, /readyz and /metrics." default:"${work_listen}" env:"LISTEN"`
	stripeAccess

	StripeAPI string `name:"stripe-api" help:"What charges are made with; charges is closed to new Stripe accounts." enum:"payment_intents,charges" default:"payment_intents" env:"STRIPE_API"`
	Workers   int    `help:"Calls to Stripe at once in this process." default:"50" env:"CHARGER_WORKERS"`
	Window    int    `help:"Live jobs per run; 0 is four times the workers." default:"0" env:"CHARGER_WINDOW"`

	LookUpFirst bool `help:"Look up at Stripe before every first send: after the database was restored from a backup, until what it lost is recorded again and charged." env:"LOOK_UP_FIRST"`

	ReconcileEvery time.Duration `help:"How often each run's charges at Stripe are held against its intents, as charger reconcile does." default:"24h" env:"RECONCILE_EVERY"`
}

// Validate is called by kong; it names the setting and the cure.
func (w work) Validate() error {
	if err := w.database.Validate(); err != nil {
		return err
	}
	switch {
	case w.Workers < 1 || w.Workers > 10_000:
		return &daemon.SettingError{Setting: "CHARGER_WORKERS", Problem: fmt.Sprintf("is %d", w.Workers), Cure: "give 1 to 10000"}
	case w.Window < 0 || w.Window > 1_000_000:
		return &daemon.SettingError{Setting: "CHARGER_WINDOW", Problem: fmt.Sprintf("is %d", w.Window), Cure: "give 0 to 1000000"}
	case w.ReconcileEvery < time.Minute || w.ReconcileEvery > 30*24*time.Hour:
		return &daemon.SettingError{Setting: "RECONCILE_EVERY", Problem: "is " + w.ReconcileEvery.String(), Cure: "give 1m to 720h"}
	}
	return w.stripeAccess.Validate()
}

// Run is the command.
func (w *work) Run(ctx context.Context, env daemon.Env) error {
	id, err := processID()
	if err != nil {
		return err
	}
	pool, err := daemon.OpenPool(ctx, w.DatabaseURL, sql.RoleCharger, int32(min(60, max(4, w.Workers/4+4))), env.Name)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := migrated(ctx, pool); err != nil {
		return err
	}
	riverPool, err := daemon.OpenPool(ctx, w.DatabaseURL, sql.RoleCharger, 10, env.Name+"-river")
	if err != nil {
		return err
	}
	defer riverPool.Close()
	keys, err := w.keys()
	if err != nil {
		return err
	}
	c, err := charger.New(charger.Config{
		Pool: pool, RiverPool: riverPool, Keys: keys,
		StripeAPI: stripecharge.API(w.StripeAPI), Installation: w.Installation,
		Workers: w.Workers, Window: w.Window, RatePerSecond: w.StripeRatePerSecond, CallTimeout: w.CallTimeout,
		LookUpFirst: w.LookUpFirst, ReconcileEvery: w.ReconcileEvery,
		ID: id, Logger: env.Log, Registry: env.Registry,
	})
	if err != nil {
		return err
	}
	health := daemon.NewHealth(env.Log, env.Registry)
	health.Check("database", pool.Ping)
	health.Check("dispatcher", func(context.Context) error { return c.Ready() })
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return health.ListenAndServe(ctx, w.Listen) })
	group.Go(func() error { return c.Run(ctx) })
	return group.Wait()
}

// processID names this process in River UI and in the attempts: the host (the pod) and something unique.
func processID() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("read the host's name: %w", err)
	}
	var random [4]byte
	if _, err := rand.Read(random[:]); err != nil {
		return "", fmt.Errorf("make the process's id: %w", err)
	}
	return host + "-" + hex.EncodeToString(random[:]), nil
}
