//go:build cgo

// Command ingest-solace records the billing events of a Solace PubSub+ queue as billing intents.
package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/alecthomas/kong"
	"github.com/jackc/pgx/v5/pgxpool"

	"chargeonce/deploy/daemon"
	"chargeonce/ingest"
	"chargeonce/ingest/solace"
	"chargeonce/sql"
)

const name = "ingest-solace"

func main() { daemon.Main(about(), run) }

func about() daemon.About {
	return daemon.About{
		Name: name, Listen: "127.0.0.1:9104",
		Help: "Records the billing events of a Solace PubSub+ queue as billing intents in Postgres. It charges nobody.",
		Vars: kong.Vars{"trust_store": solace.DefaultTrustStore},
	}
}

// run records until ctx ends.
func run(ctx context.Context, env daemon.Env, cfg *settings) error {
	solace.RouteLogs(env.Log)
	pool, err := daemon.OpenPool(ctx, cfg.DatabaseURL, sql.RoleIngest, cfg.DatabaseConns, name)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := checkMigrated(ctx, pool); err != nil {
		return err
	}
	recorder, err := ingest.NewRecorder(cfg.recorder(), pool, ingest.NewMetrics(env.Registry), env.Log)
	if err != nil {
		return &daemon.SettingError{Setting: "BILLING_NAMESPACE", Problem: "cannot be used (" + err.Error() + ")"}
	}
	source, err := solace.New(cfg.source(), recorder, solace.NewMetrics(env.Registry), env.Log)
	if err != nil {
		return sourceError(err, cfg)
	}
	defer source.Close()
	if host, plain := cfg.plainHost(); plain {
		env.Log.WarnContext(ctx, "the secret goes to the broker unencrypted: use tcps://", slog.String("broker", host))
	}
	// The broker is asked before the namespace is registered: a first start with a wrong queue must leave nothing behind.
	if err := source.Probe(ctx); err != nil {
		return sourceError(err, cfg)
	}
	if err := recorder.Register(ctx); err != nil {
		return registerError(err)
	}
	env.Log.InfoContext(ctx, "recording", slog.String("namespace", cfg.Namespace), slog.String("queue", cfg.Queue))
	return serve(ctx, env, cfg, pool, source)
}

// serve runs the source beside health and metrics; the end of either ends both. Health is served until the source has finished its
// last batch, not ready from the moment on that it is told to end.
func serve(ctx context.Context, env daemon.Env, cfg *settings, pool *pgxpool.Pool, source *solace.Source) error {
	health := daemon.NewHealth(env.Log, env.Registry)
	health.Check("database", pool.Ping)
	health.Check("source", source.Check)
	working, stop := context.WithCancel(ctx)
	defer stop()
	context.AfterFunc(working, health.Ending)
	serving, endServing := context.WithCancel(context.WithoutCancel(ctx))
	defer endServing()
	served := make(chan error, 1)
	go func() {
		err := health.ListenAndServe(serving, cfg.HTTP.Listen)
		stop()
		served <- err
	}()
	err := source.Run(working)
	endServing()
	return errors.Join(err, <-served)
}

func registerError(err error) error {
	if errors.Is(err, ingest.ErrDisagreement) {
		return &daemon.SettingError{
			Setting: "BILLING_NAMESPACE", Problem: "is read otherwise by others (" + err.Error() + ")",
			Cure: "give this ingestor the registered words, or another namespace",
		}
	}
	return err
}

func checkMigrated(ctx context.Context, pool *pgxpool.Pool) error {
	err := sql.Check(ctx, pool)
	if errors.Is(err, sql.ErrNotMigrated) {
		return &daemon.SettingError{Setting: "DATABASE_URL", Problem: "leads to a database without this program's tables (" + err.Error() + ")"}
	}
	return err
}
