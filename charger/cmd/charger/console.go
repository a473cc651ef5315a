package main

import (
	"context"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"

	"chargeonce/charger/console"
	"chargeonce/deploy/daemon"
	"chargeonce/sql"
)

type consoleCommand struct {
	database
	Listen          string        `help:"HOST:PORT for the operators' pages, and for /healthz, /readyz and /metrics." default:"${console_listen}" env:"LISTEN"`
	ConsoleUser     string        `help:"The operator's name; recorded with every action." default:"operator" env:"CONSOLE_USER"`
	ConsolePassword daemon.Secret `help:"The operator's password." env:"CONSOLE_PASSWORD" placeholder:"PASSWORD"`
}

// minPasswordBytes keeps out what is guessed in an afternoon, slowed down as guesses are.
const minPasswordBytes = 8

// Validate is called by kong; it names the setting and the cure.
func (c consoleCommand) Validate() error {
	if err := c.database.Validate(); err != nil {
		return err
	}
	switch {
	case len(c.ConsolePassword) > 0 && len(c.ConsolePassword) < minPasswordBytes:
		return &daemon.SettingError{Setting: "CONSOLE_PASSWORD", Problem: fmt.Sprintf("is shorter than %d characters", minPasswordBytes), Cure: "give a longer one, such as of `openssl rand -base64 18`"}
	case c.ConsolePassword == "":
		return &daemon.SettingError{Setting: "CONSOLE_PASSWORD", Problem: "is not set", Cure: "give the password that operators open the console with"}
	case c.ConsoleUser == "" || strings.Contains(c.ConsoleUser, ":"):
		return &daemon.SettingError{Setting: "CONSOLE_USER", Problem: "is empty or holds a colon", Cure: "give a name like operator"}
	}
	return nil
}

// Run is the command.
func (c *consoleCommand) Run(ctx context.Context, env daemon.Env) error {
	pool, err := daemon.OpenPool(ctx, c.DatabaseURL, sql.RoleConsole, 8, env.Name+"-console")
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := migrated(ctx, pool); err != nil {
		return err
	}
	pages, err := console.New(console.Config{
		Pool: pool, Logger: env.Log, Registry: env.Registry, User: c.ConsoleUser, Password: c.ConsolePassword.Reveal(),
	})
	if err != nil {
		return err
	}
	health := daemon.NewHealth(env.Log, env.Registry)
	health.Check("database", pages.Ready)
	health.Handle("/", pages.Handler())
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return health.ListenAndServe(ctx, c.Listen) })
	group.Go(func() error { return pages.Run(ctx) })
	return group.Wait()
}
