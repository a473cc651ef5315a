// Command ingest-eventhubs records the billing events of an Azure event hub as billing intents.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"chargeonce/deploy/daemon"
	"chargeonce/ingest"
	"chargeonce/ingest/eventhubs"
	"chargeonce/schema"
	"chargeonce/sql"
)

const name = "ingest-eventhubs"

// controlConns are the connections for ownerships, lag and readiness.
const controlConns = 3

func main() { daemon.Main(about(), run) }

func about() daemon.About {
	return daemon.About{
		Name: name, Listen: "127.0.0.1:9101",
		Help: "Records the billing events of an Azure event hub as billing intents in Postgres. It charges nobody.",
	}
}

// run records until ctx ends.
func run(ctx context.Context, env daemon.Env, cfg *config) error {
	pool, err := daemon.OpenPool(ctx, cfg.DatabaseURL, sql.RoleIngest, cfg.DatabaseConns, name)
	if err != nil {
		return err
	}
	defer pool.Close()
	// Ownerships are renewed on connections of their own: batches that wait for a lock must not cost the partitions.
	control, err := daemon.OpenPool(ctx, cfg.DatabaseURL, sql.RoleIngest, controlConns, name+" ownership")
	if err != nil {
		return err
	}
	defer control.Close()
	if err := checkMigrated(ctx, pool); err != nil {
		return err
	}
	recorder, err := ingest.NewRecorder(cfg.recorder(), pool, ingest.NewMetrics(env.Registry), env.Log)
	if err != nil {
		return &daemon.SettingError{Setting: "BILLING_NAMESPACE", Problem: "cannot be used (" + err.Error() + ")"}
	}
	source, err := eventhubs.New(cfg.source(), recorder, control, eventhubs.NewMetrics(env.Registry), env.Log)
	if err != nil {
		return sourceError(err, cfg)
	}
	// The hub is asked before the namespace is registered: a first start with a wrong hub must leave nothing behind.
	if err := source.Probe(ctx); err != nil {
		return sourceError(err, cfg)
	}
	if err := recorder.Register(ctx); err != nil {
		return registerError(err)
	}
	env.Log.InfoContext(ctx, "recording", slog.String("namespace", cfg.Namespace), slog.String("eventhub", cfg.Hub))
	return serve(ctx, env, cfg, control, source)
}

// serve runs the source beside health and metrics; the end of either ends both. Health is served until the source has finished its
// last batches, not ready from the moment on that it is told to end.
func serve(ctx context.Context, env daemon.Env, cfg *config, pool *pgxpool.Pool, source *eventhubs.Source) error {
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

type config struct {
	DatabaseURL   daemon.Secret `help:"Address of the database." env:"DATABASE_URL" placeholder:"URL"`
	DatabaseConns int32         `help:"Connections to the database for batches." default:"8" env:"DATABASE_CONNS"`

	ConnectionString daemon.Secret `help:"Connection string of the Event Hubs namespace or of the hub." env:"EVENTHUB_CONNECTION_STR" placeholder:"STRING"`
	Hub              string        `help:"Event hub; may be left out when the connection string has an EntityPath." env:"EVENTHUB_NAME" placeholder:"NAME"`
	ConsumerGroup    string        `help:"Consumer group, one per deployment." default:"$$default" env:"EVENTHUB_CONSUMER_GROUP" placeholder:"NAME"`

	Namespace             string         `help:"Business stream that the intents belong to, such as usage-billing." env:"BILLING_NAMESPACE" placeholder:"NAME"`
	PeriodFormat          string         `help:"Format of billing periods: ${enum}." enum:"month,day,week,quarter,year" default:"month" env:"BILLING_PERIOD_FORMAT"`
	ManyPerStripeCustomer bool           `help:"Let several intents charge one Stripe customer for one period and currency." env:"BILLING_MANY_PER_STRIPE_CUSTOMER"`
	Map                   []string       `help:"Where a foreign event keeps a field, such as customer_id=/subject; may be repeated." sep:"none" placeholder:"FIELD=/POINTER"`
	MaxBodyBytes          int            `help:"Largest event body, in bytes." default:"1048576" env:"MAX_BODY_BYTES"`
	BatchSize             int            `help:"Events per transaction." default:"1000" env:"BATCH_SIZE"`
	BatchWait             time.Duration  `help:"How long a batch waits for more events after its first." default:"20ms" env:"BATCH_WAIT"`
	Prefetch              int            `help:"Events that a partition is asked for at a time; fewer when they are large." default:"100" env:"PREFETCH"`
	UpdateInterval        time.Duration  `help:"How often partition ownership is renewed and balanced." default:"5s" env:"EVENTHUB_UPDATE_INTERVAL"`
	OwnershipExpiry       time.Duration  `help:"After how long without renewal others take a partition over." default:"60s" env:"EVENTHUB_OWNERSHIP_EXPIRY"`
	StopGrace             time.Duration  `help:"What batches in hand get to commit when told to stop." default:"10s" env:"STOP_GRACE"`
	HTTP                  daemon.HTTP    `embed:""`
	mapping               schema.Mapping `kong:"-"`
}

// Validate is asked before run, and by --check-config.
func (c *config) Validate() error {
	if err := daemon.CheckDatabaseURL(c.DatabaseURL); err != nil {
		return err
	}
	if c.ConnectionString == "" {
		return &daemon.SettingError{Setting: "EVENTHUB_CONNECTION_STR", Problem: "is not set", Cure: "copy it from the hub's shared access policies (Listen is enough)"}
	}
	if c.Namespace == "" {
		return &daemon.SettingError{Setting: "BILLING_NAMESPACE", Problem: "is not set", Cure: "name the business stream, such as usage-billing"}
	}
	if err := schema.CheckNamespace(c.Namespace); err != nil {
		return &daemon.SettingError{Setting: "BILLING_NAMESPACE", Problem: "cannot be used (" + err.Error() + ")"}
	}
	mapping, err := schema.ParseMapping(c.Map)
	if err != nil {
		return &daemon.SettingError{Setting: "--map", Problem: "cannot be used (" + err.Error() + ")"}
	}
	c.mapping = mapping
	if err := c.checkNumbers(); err != nil {
		return err
	}
	if err := c.source().Validate(); err != nil {
		return sourceError(err, c)
	}
	return nil
}

// checkNumbers refuses what would otherwise end in a panic, or in a default that nobody asked for.
func (c *config) checkNumbers() error {
	for _, n := range []struct {
		flag     string
		value    int
		from, to int
		unit     string
	}{
		{"--database-conns", int(c.DatabaseConns), 1, maxDatabaseConns, "connections"},
		{"--max-body-bytes", c.MaxBodyBytes, 1, maxMaxBodyBytes, "bytes"},
		{"--batch-size", c.BatchSize, 1, ingest.MaxBatchDeliveries, "events"},
		{"--prefetch", c.Prefetch, 1, eventhubs.MaxPrefetch, "events"},
	} {
		if n.value < n.from || n.value > n.to {
			return &daemon.SettingError{Setting: n.flag, Problem: fmt.Sprintf("cannot be %d", n.value), Cure: fmt.Sprintf("give %d to %d %s", n.from, n.to, n.unit)}
		}
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{
		{"--batch-wait", c.BatchWait},
		{"--update-interval", c.UpdateInterval},
		{"--ownership-expiry", c.OwnershipExpiry},
		{"--stop-grace", c.StopGrace},
	} {
		if d.value <= 0 {
			return &daemon.SettingError{Setting: d.flag, Problem: fmt.Sprintf("cannot be %s", d.value), Cure: "give a time above 0, such as 5s"}
		}
	}
	return nil
}

// Limits of settings that nothing else bounds.
const (
	maxDatabaseConns = 1000
	// maxMaxBodyBytes is above what any tier of Event Hubs takes, in bytes.
	maxMaxBodyBytes = 64 << 20
)

func (c *config) recorder() ingest.Config {
	return ingest.Config{
		Namespace: c.Namespace, Source: eventhubs.SourceName, PeriodFormat: schema.PeriodFormat(c.PeriodFormat), Mapping: c.mapping,
		MaxBodyBytes: c.MaxBodyBytes, ManyPerStripeCustomer: c.ManyPerStripeCustomer,
	}
}

func (c *config) source() eventhubs.Config {
	return eventhubs.Config{
		ConnectionString: c.ConnectionString.Reveal(), Hub: c.Hub, ConsumerGroup: c.ConsumerGroup, BatchSize: c.BatchSize,
		Linger: c.BatchWait, Prefetch: c.Prefetch, UpdateInterval: c.UpdateInterval, OwnershipExpiry: c.OwnershipExpiry, StopGrace: c.StopGrace,
	}
}

// sourceError names the setting that an error of the source is about.
func sourceError(err error, c *config) error {
	problem := fmt.Sprintf("cannot be used (%s)", err)
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, eventhubs.ErrConnectionString):
		return &daemon.SettingError{Setting: "EVENTHUB_CONNECTION_STR", Problem: problem, Cure: "copy it from the hub's shared access policies"}
	case errors.Is(err, eventhubs.ErrUnreachable):
		return &daemon.SettingError{Setting: "EVENTHUB_CONNECTION_STR", Problem: problem, Cure: "check its Endpoint, and that this host may connect to it"}
	case errors.Is(err, eventhubs.ErrUnauthorized):
		return &daemon.SettingError{Setting: "EVENTHUB_CONNECTION_STR", Problem: problem, Cure: "give a key with the right Listen"}
	case errors.Is(err, eventhubs.ErrHubName), errors.Is(err, eventhubs.ErrUnknownHub):
		return &daemon.SettingError{Setting: "EVENTHUB_NAME", Problem: problem, Cure: "give the name of an event hub of that namespace"}
	case errors.Is(err, eventhubs.ErrUnknownGroup):
		return &daemon.SettingError{Setting: "EVENTHUB_CONSUMER_GROUP", Problem: fmt.Sprintf("%q %s", c.ConsumerGroup, problem), Cure: "create it, or give another"}
	case errors.Is(err, eventhubs.ErrLimits):
		return &daemon.SettingError{Setting: "--update-interval and --ownership-expiry", Problem: fmt.Sprintf("do not fit (%s)", err)}
	}
	return err
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
