// Command migrate brings the database up to what this release needs, and says how far it is.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"

	"chargeonce/deploy/daemon"
	"chargeonce/sql"
)

func main() {
	about := daemon.About{
		Name: "migrate",
		Help: "Makes the tables, roles and finance views of chargeonce, and River's tables. It may run several times at once.",
	}
	daemon.Main(about, func(ctx context.Context, env daemon.Env, cfg *settings) error {
		if err := cfg.connect(ctx, env.Name); err != nil {
			return err
		}
		if env.Command == "status" {
			return status(ctx, env, cfg)
		}
		return up(ctx, env, cfg)
	})
}

type settings struct {
	DatabaseURL daemon.Secret `help:"Postgres, as the owner of the database: postgres://USER:PASSWORD@HOST:5432/DATABASE." env:"DATABASE_URL" placeholder:"URL"`
	JSON        bool          `help:"Print JSON."`
	Wait        time.Duration `help:"How long to wait for a database that does not answer, at most 30s." default:"30s"`

	Up     struct{} `cmd:"" help:"Apply what is missing."`
	Status struct{} `cmd:"" help:"List every migration; the exit code is 1 when one is missing."`
}

// Validate is called by kong.
func (s *settings) Validate() error {
	if s.Wait <= 0 {
		return &daemon.SettingError{Setting: "--wait", Problem: "is not above 0", Cure: "give a duration such as 30s"}
	}
	return daemon.CheckDatabaseURL(s.DatabaseURL)
}

// connect waits until the database answers, and tells settings that can never work from a database that is away.
func (s *settings) connect(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.Wait, fmt.Errorf("no answer within %s", s.Wait))
	defer cancel()
	pool, err := daemon.OpenPool(ctx, s.DatabaseURL, "", 1, name)
	if _, setting := errors.AsType[*daemon.SettingError](err); setting {
		return err
	}
	if err != nil {
		return fmt.Errorf("the database of DATABASE_URL cannot be reached: %w", err)
	}
	pool.Close()
	return nil
}

func up(ctx context.Context, env daemon.Env, cfg *settings) error {
	applied, err := sql.Migrate(ctx, cfg.DatabaseURL.Reveal(), env.Log)
	// What was applied before a failure stays applied, so it is shown as well.
	if printErr := printApplied(env.Stdout, applied, cfg.JSON, err == nil); err == nil && printErr != nil {
		return printErr
	}
	if errors.Is(err, sql.ErrNotUTF8) {
		return &daemon.SettingError{Setting: "DATABASE_URL", Problem: "names a database that cannot be used", Cure: err.Error()}
	}
	if err != nil {
		return fmt.Errorf("migrate the database of DATABASE_URL: %w", err)
	}
	return nil
}

func printApplied(out io.Writer, applied []sql.Version, asJSON, complete bool) error {
	switch {
	case asJSON:
		return printJSON(out, applied)
	case len(applied) == 0 && complete:
		_, err := fmt.Fprintln(out, "nothing to do")
		return err
	}
	for _, v := range applied {
		if _, err := fmt.Fprintf(out, "applied %s %d %s\n", v.Line, v.Version, v.Name); err != nil {
			return err
		}
	}
	return nil
}

func status(ctx context.Context, env daemon.Env, cfg *settings) error {
	versions, err := sql.Status(ctx, cfg.DatabaseURL.Reveal(), env.Log)
	if err != nil {
		return fmt.Errorf("read the state of the database of DATABASE_URL: %w", err)
	}
	missing := 0
	for _, v := range versions {
		if v.AppliedAt == nil {
			missing++
		}
	}
	if cfg.JSON {
		err = printJSON(env.Stdout, versions)
	} else {
		err = printTable(env.Stdout, versions, missing)
	}
	if err == nil && missing > 0 {
		return daemon.ErrFound
	}
	return err
}

func printTable(out io.Writer, versions []sql.Version, missing int) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "LINE\tVERSION\tAPPLIED\tNAME")
	for _, v := range versions {
		applied := "missing"
		if v.AppliedAt != nil {
			applied = v.AppliedAt.UTC().Format(time.RFC3339)
		}
		fmt.Fprintln(table, v.Line+"\t"+strconv.FormatInt(v.Version, 10)+"\t"+applied+"\t"+v.Name)
	}
	if missing > 0 {
		fmt.Fprintf(table, "%d missing: run migrate up\n", missing)
	}
	return table.Flush()
}

// printJSON prints [] for none: a reader of JSON must not meet null where a list belongs.
func printJSON(out io.Writer, versions []sql.Version) error {
	if versions == nil {
		versions = []sql.Version{}
	}
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(versions)
}
