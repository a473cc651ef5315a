package charger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"golang.org/x/sync/errgroup"

	"chargeonce/charger/stripecharge"
	"chargeonce/sql"
	"chargeonce/sql/queries"
)

// Config is what a charger is made of. Zero durations and counts take the defaults named beside them.
type Config struct {
	Pool      *pgxpool.Pool // claims, finishes, dispatch
	RiverPool *pgxpool.Pool // River's own: workers must not starve its leader election
	Keys      KeysConfig

	StripeAPI    stripecharge.API // what a first send uses; frozen requests keep theirs
	Installation string           // goes into every charge's metadata

	Workers       int           // calls to Stripe at once in this process; default 50
	Window        int           // live jobs per run; default 4 times Workers, at least 200
	RatePerSecond int           // creates per second over all chargers; default 20
	CallTimeout   time.Duration // of one call to Stripe, default 30 s
	DispatchEvery time.Duration // default 250 ms

	// LookUpFirst has every first send look up first what Stripe has for the intent: for a database that was restored, when events
	// that it has lost are sent again. Without it only intents and events from before the key's window are looked for.
	LookUpFirst bool

	ReconcileEvery time.Duration // how often each run's charges are held against Stripe's books; default 24 h

	ID       string // names this process in River UI and in the attempts; must be unique
	Logger   *slog.Logger
	Registry prometheus.Registerer

	// Hold is called at the hold points. Only a test's main sets it.
	Hold func(ctx context.Context, point string, intentID int64)
}

// rescueAfter is when River itself takes a job for stuck; the sweep takes intents over much sooner.
const rescueAfter = 15 * time.Minute

// Charger is one charger process: dispatcher, sweep and workers. Any number of them may run side by side.
type Charger struct {
	cfg        Config
	pool       *pgxpool.Pool
	queries    *queries.Queries
	river      *river.Client[pgx.Tx]
	keys       *keys
	rate       *rate
	log        *slog.Logger
	metrics    *metrics
	way        keyWatch
	stopping   chan struct{} // closed when Run's context ends
	cappedDue  atomic.Bool   // more of the intents that did not fit under the cap may fit now: look in the next round
	dispatched atomic.Int64  // Unix nanoseconds of the last round of the dispatcher without an error
}

// New makes a charger and checks its settings; it touches neither database nor network.
func New(cfg Config) (*Charger, error) {
	cfg = cfg.withDefaults()
	switch {
	case cfg.Pool == nil || cfg.RiverPool == nil:
		return nil, errors.New("internal error: a charger needs two database pools")
	case cfg.ID == "":
		return nil, errors.New("internal error: a charger needs an id")
	case cfg.StripeAPI != stripecharge.APIPaymentIntents && cfg.StripeAPI != stripecharge.APICharges:
		return nil, fmt.Errorf("STRIPE_API: %q is neither payment_intents nor charges", cfg.StripeAPI)
	}
	c := &Charger{cfg: cfg, pool: cfg.Pool, queries: queries.New(), log: cfg.Logger, metrics: newMetrics(cfg.Registry), stopping: make(chan struct{})}
	c.rate = newRate(cfg.Pool, c.queries, cfg.RatePerSecond, cfg.CallTimeout, c.stopping)
	keys, err := newKeys(c, cfg.Keys)
	if err != nil {
		return nil, err
	}
	c.keys = keys
	workers := river.NewWorkers()
	if err := river.AddWorkerSafely(workers, &worker{Charger: c}); err != nil {
		return nil, fmt.Errorf("register the worker: %w", err)
	}
	if err := river.AddWorkerSafely(workers, &reconcileWorker{Charger: c}); err != nil {
		return nil, fmt.Errorf("register the worker that reconciles: %w", err)
	}
	c.river, err = river.NewClient(riverpgxv5.New(cfg.RiverPool), &river.Config{
		ID:                          cfg.ID,
		Schema:                      sql.RiverSchema,
		Logger:                      cfg.Logger,
		Queues:                      map[string]river.QueueConfig{Queue: {MaxWorkers: cfg.Workers}, ReconcileQueue: {MaxWorkers: 1, FetchPollInterval: 5 * time.Second}},
		PeriodicJobs:                c.reconcileSchedule(),
		Workers:                     workers,
		FetchCooldown:               20 * time.Millisecond,
		FetchPollInterval:           500 * time.Millisecond,
		JobTimeout:                  c.jobTimeout(),
		RescueStuckJobsAfter:        max(rescueAfter, c.jobTimeout()+time.Minute),
		CompletedJobRetentionPeriod: 6 * time.Hour,
		CancelledJobRetentionPeriod: 30 * 24 * time.Hour,
		DiscardedJobRetentionPeriod: -1,         // kept: somebody has to look at them
		ReindexerIndexNames:         []string{}, // the charger's role does not own the indexes
	})
	if err != nil {
		return nil, fmt.Errorf("make the River client: %w", err)
	}
	return c, nil
}

func (cfg Config) withDefaults() Config {
	if cfg.Workers == 0 {
		cfg.Workers = 50
	}
	if cfg.Window == 0 {
		cfg.Window = max(200, 4*cfg.Workers)
	}
	if cfg.RatePerSecond == 0 {
		cfg.RatePerSecond = 20
	}
	if cfg.CallTimeout == 0 {
		cfg.CallTimeout = stripecharge.DefaultTimeout
	}
	if cfg.DispatchEvery == 0 {
		cfg.DispatchEvery = 250 * time.Millisecond
	}
	if cfg.ReconcileEvery == 0 {
		cfg.ReconcileEvery = 24 * time.Hour
	}
	if cfg.StripeAPI == "" {
		cfg.StripeAPI = stripecharge.APIPaymentIntents
	}
	if cfg.Installation == "" {
		cfg.Installation = "default"
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Registry == nil {
		cfg.Registry = prometheus.NewRegistry()
	}
	return cfg
}

// Run works until ctx ends, then stops gracefully: no new claim, and the running calls end and are recorded.
func (c *Charger) Run(ctx context.Context) error {
	// River's own context must outlive ctx: a cancelled one would cut running jobs.
	if err := c.river.Start(context.WithoutCancel(ctx)); err != nil {
		return fmt.Errorf("start River: %w", err)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.dispatchLoop(ctx) })
	group.Go(func() error { return c.observeLoop(ctx) })
	group.Go(func() error { return c.keys.endLoop(ctx) })
	group.Go(func() error {
		<-ctx.Done()
		close(c.stopping)
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.lease())
		defer cancel()
		if err := c.river.Stop(stop); err != nil {
			return fmt.Errorf("stop River within %s: %w", c.lease(), err)
		}
		return nil
	})
	return group.Wait()
}

// Ready reports why the charger does not do its work, or nil: the dispatcher's last good round is too long ago.
func (c *Charger) Ready() error {
	last := c.dispatched.Load()
	if last == 0 {
		return errors.New("the dispatcher has not had a good round yet")
	}
	if age := time.Since(time.Unix(0, last)); age > 10*time.Second+10*c.cfg.DispatchEvery {
		return fmt.Errorf("the dispatcher's last good round was %s ago", age.Round(time.Second))
	}
	return nil
}

// The times of a claim. The lease covers the time to send, the call and the finish, in that order.
func (c *Charger) sendWithin() time.Duration   { return c.cfg.CallTimeout / 2 }
func (c *Charger) finishWithin() time.Duration { return max(c.cfg.CallTimeout/2, 2*time.Second) }
func (c *Charger) lease() time.Duration {
	return c.sendWithin() + c.cfg.CallTimeout + c.finishWithin()
}

// jobTimeout is longer than anything a job does in one run: waiting for a token, reading the customer, claim, call, finish,
// and a decline's cancel after it.
func (c *Charger) jobTimeout() time.Duration { return 2*c.lease() + 3*c.cfg.CallTimeout }

// deadAfter is how long a running job may be without a claim: it waits for the run's key, for a token, reads the
// customer, and waits for a token again, each within a call's time. One that is without a claim for longer lost its process; should it live after all, the claims keep the two apart.
func (c *Charger) deadAfter() time.Duration { return 4*c.cfg.CallTimeout + time.Second }

func (c *Charger) hold(ctx context.Context, point string, intentID int64) {
	if c.cfg.Hold != nil {
		c.cfg.Hold(ctx, point, intentID)
	}
}
