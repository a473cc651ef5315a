// Package eventhubs reads Azure Event Hubs with the SDK's Processor and records what it delivers, with checkpoints in Postgres.
package eventhubs

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/jackc/pgx/v5/pgxpool"

	"chargeonce/ingest"
)

// SourceName is what intents and counters say of where they come from.
const SourceName = "eventhubs"

// Run reads the hub until ctx ends, and then ends in good order: batches in hand are committed with their checkpoints and the
// partitions are given up, so that others need not wait for them to expire. It makes a new SDK Processor, after a pause, when
// one ends or hangs. It returns nil.
func (s *Source) Run(ctx context.Context) error {
	delay := s.cfg.RestartDelay
	for n := 1; ; n++ {
		started := time.Now()
		err := s.session(ctx, n)
		select {
		case <-ctx.Done():
			return nil
		default:
		}
		if time.Since(started) > s.cfg.OwnershipExpiry {
			delay = s.cfg.RestartDelay
		}
		s.metrics.restarts.Inc()
		s.logger.WarnContext(ctx, "the reader of the event hub ended, starting another", slog.Any("error", err), slog.Duration("delay", delay))
		if !sleep(ctx, delay) {
			return nil
		}
		delay = min(2*delay, maxRestartDelay)
	}
}

// Config says what to read and how. Zero values take the defaults given.
type Config struct {
	ConnectionString string
	Hub              string        // may be empty when the connection string has an EntityPath
	ConsumerGroup    string        // default $default
	BatchSize        int           // events per transaction, 1 to ingest.MaxBatchDeliveries; default 1,000
	Linger           time.Duration // how long a batch waits for more events after its first; default 20 ms
	Prefetch         int           // events that a partition is asked for at a time, fewer when they are large; 1 to 5,000; default 100
	UpdateInterval   time.Duration // how often ownerships are renewed and balanced; default 5 s
	OwnershipExpiry  time.Duration // after how long without renewal others may take a partition; default 60 s
	StoreTimeout     time.Duration // of one call to the checkpoint store; default 3 s
	StopGrace        time.Duration // what batches in hand get to commit when told to stop; default 10 s
	StrandedAfter    time.Duration // how long an owned partition may go without a reader; default OwnershipExpiry
	LookInterval     time.Duration // how often the hub's and partitions' properties are read; default 20 s
	IdleWait         time.Duration // longest wait for the first event of a batch; default 30 s
	RestartDelay     time.Duration // first pause before another Processor, doubled up to 30 s; default 1 s
	StuckAfter       time.Duration // lag without progress for so long makes the source not ready; default 5 min
}

// maxRestartDelay bounds the pause between two Processors.
const maxRestartDelay = 30 * time.Second

// MaxPrefetch is the SDK's bound, in events.
const MaxPrefetch = 5000

// Source reads one hub into one Recorder.
type Source struct {
	cfg       Config
	entity    string // hub as the SDK wants it: empty when the connection string names it
	key       hubKey
	recorder  *ingest.Recorder
	pool      *pgxpool.Pool
	metrics   *Metrics
	logger    *slog.Logger
	instance  string
	conn      string
	positions string        // first part of every position
	batches   chan struct{} // holds one for each batch in hand

	mu      sync.Mutex
	current *session         // nil while none runs
	gaps    map[string]int64 // by partition: read one by one up to this sequence number
	taken   map[string]int   // by partition: times in a row that it was taken while the store says that it is ours
}

// hubKey names a hub and consumer group in the store: lower case, for Event Hubs does not mind the case and the store would.
type hubKey struct {
	namespace, hub, group string
}

// New checks the configuration; it connects to nothing. pool is for ownerships and should not be the recorder's: batches that
// wait for a lock would keep it busy, and the partitions would be lost. metrics may be nil.
func New(cfg Config, recorder *ingest.Recorder, pool *pgxpool.Pool, metrics *Metrics, logger *slog.Logger) (*Source, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	target, err := cfg.target()
	if err != nil {
		return nil, err
	}
	if metrics == nil {
		metrics = NewMetrics(nil)
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("read the host's name: %w", err)
	}
	return &Source{
		cfg: cfg, entity: target.entity, key: target.key, recorder: recorder, pool: pool, metrics: metrics,
		logger: logger.With(slog.String("eventhub", target.key.hub), slog.String("consumer_group", target.key.group)),
		// Random, for two pods may share a host's name, and a restarted one must not pass for its predecessor.
		instance:  host + "-" + strings.ToLower(rand.Text()[:8]),
		conn:      cfg.ConnectionString,
		positions: target.key.hub, batches: make(chan struct{}, maxBatchesAtOnce),
		gaps: map[string]int64{}, taken: map[string]int{},
	}, nil
}

func (c Config) withDefaults() Config {
	c.ConsumerGroup = strings.ToLower(cmp.Or(c.ConsumerGroup, azeventhubs.DefaultConsumerGroup))
	c.BatchSize = cmp.Or(c.BatchSize, ingest.MaxBatchDeliveries)
	c.Linger = cmp.Or(c.Linger, 20*time.Millisecond)
	c.Prefetch = cmp.Or(c.Prefetch, 100)
	c.UpdateInterval = cmp.Or(c.UpdateInterval, 5*time.Second)
	c.OwnershipExpiry = cmp.Or(c.OwnershipExpiry, time.Minute)
	c.StoreTimeout = cmp.Or(c.StoreTimeout, 3*time.Second)
	c.StopGrace = cmp.Or(c.StopGrace, 10*time.Second)
	c.StrandedAfter = cmp.Or(c.StrandedAfter, c.OwnershipExpiry)
	c.LookInterval = cmp.Or(c.LookInterval, 20*time.Second)
	c.IdleWait = cmp.Or(c.IdleWait, 30*time.Second)
	c.RestartDelay = cmp.Or(c.RestartDelay, time.Second)
	c.StuckAfter = cmp.Or(c.StuckAfter, 5*time.Minute)
	return c
}

// Validate returns ErrConnectionString, ErrHubName or ErrLimits. It connects to nothing.
func (c Config) Validate() error {
	c = c.withDefaults()
	switch {
	case c.BatchSize < 1 || c.BatchSize > ingest.MaxBatchDeliveries:
		return fmt.Errorf("%w: a batch of %d events, 1 to %d are possible", ErrLimits, c.BatchSize, ingest.MaxBatchDeliveries)
	case c.Prefetch < 1 || c.Prefetch > MaxPrefetch:
		return fmt.Errorf("%w: a prefetch of %d events, 1 to %d are possible", ErrLimits, c.Prefetch, MaxPrefetch)
	case c.UpdateInterval < 0 || c.OwnershipExpiry < 6*c.UpdateInterval:
		// One slow renewal must not look like a death: all readers would take each other's partitions at once.
		return fmt.Errorf("%w: ownership expires after %s, which must be at least 6 times the update interval of %s", ErrLimits, c.OwnershipExpiry, c.UpdateInterval)
	case slices.Min([]time.Duration{c.Linger, c.StoreTimeout, c.StopGrace, c.StrandedAfter, c.LookInterval, c.IdleWait, c.RestartDelay, c.StuckAfter}) < 0:
		return fmt.Errorf("%w: a time is negative", ErrLimits)
	}
	_, err := c.target()
	return err
}

type target struct {
	entity string
	key    hubKey
}

// What can be wrong with a Config.
var (
	ErrConnectionString = errors.New("the connection string cannot be read")
	ErrHubName          = errors.New("no single hub is named") // by the connection string and Config.Hub together
	ErrLimits           = errors.New("out of limits")
)

// target never repeats the connection string, which holds a key.
func (c Config) target() (target, error) {
	props, err := azeventhubs.ParseConnectionString(c.ConnectionString)
	if err != nil {
		return target{}, fmt.Errorf("%w: it must look like Endpoint=sb://NAME.servicebus.windows.net/;SharedAccessKeyName=NAME;SharedAccessKey=KEY", ErrConnectionString)
	}
	hub := strings.ToLower(c.Hub)
	entity := hub
	if props.EntityPath != nil {
		if hub != "" && !strings.EqualFold(*props.EntityPath, hub) {
			return target{}, fmt.Errorf("%w: the connection string names %q, the setting %q", ErrHubName, *props.EntityPath, c.Hub)
		}
		hub, entity = strings.ToLower(*props.EntityPath), ""
	}
	if hub == "" {
		return target{}, fmt.Errorf("%w: neither the connection string nor the setting names one", ErrHubName)
	}
	return target{entity: entity, key: hubKey{
		namespace: strings.ToLower(props.FullyQualifiedNamespace), hub: hub, group: c.ConsumerGroup,
	}}, nil
}

// Check says why the source cannot work at this moment; nil means it works.
func (s *Source) Check(context.Context) error {
	if away, is := s.recorder.DatabaseAway(); is {
		return fmt.Errorf("the database has been away for %s", away.Round(time.Second))
	}
	s.mu.Lock()
	current := s.current
	s.mu.Unlock()
	if current == nil {
		return errors.New("no processor is running")
	}
	if age := time.Since(current.store.renewed()); age > s.cfg.OwnershipExpiry/2 {
		return fmt.Errorf("ownerships were last renewed %s ago", age.Round(time.Second))
	}
	return current.stuck(time.Now())
}

// client makes a client with its own connection. Its name enters the store as owner.
func (s *Source) client(instance string, retries int32) (*azeventhubs.ConsumerClient, error) {
	client, err := azeventhubs.NewConsumerClientFromConnectionString(s.conn, s.entity, s.cfg.ConsumerGroup, &azeventhubs.ConsumerClientOptions{
		ApplicationID: "chargeonce", InstanceID: instance,
		// The SDK's own retries are short: with its defaults one partition that cannot be opened holds up all others' renewals
		// for most of a minute.
		RetryOptions: azeventhubs.RetryOptions{MaxRetries: retries, RetryDelay: 500 * time.Millisecond, MaxRetryDelay: 5 * time.Second},
	})
	if err != nil {
		return nil, fmt.Errorf("make a client of hub %s: %w", s.key.hub, err)
	}
	return client, nil
}

// readSingly tells up to which sequence number a partition must be read one by one; 0 when not.
func (s *Source) readSingly(partition string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gaps[partition]
}

func (s *Source) setReadSingly(partition string, until int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if until == 0 {
		delete(s.gaps, partition)
		return
	}
	s.gaps[partition] = until
}

// takenByStranger tells whether a partition that was lost went to a reader that the store does not know. Once proves nothing: when
// partitions change hands, an attach of the owner before may arrive late. A stranger comes again.
func (s *Source) takenByStranger(partition string, isOurs bool, held time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !isOurs {
		delete(s.taken, partition)
		return false
	}
	if held > s.cfg.OwnershipExpiry {
		s.taken[partition] = 0
	}
	s.taken[partition]++
	return s.taken[partition] > 1
}

// sleep returns false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// errTooLong is the cause of a call that was given up.
var errTooLong = errors.New("no answer in time")

// bounded runs f under a time limit even if f ignores its context, as some calls of the SDK do; such a call then ends with its
// client.
func bounded[T any](ctx context.Context, limit time.Duration, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errTooLong)
	defer cancel()
	type answer struct {
		value T
		err   error
	}
	answers := make(chan answer, 1)
	go func() {
		value, err := f(ctx)
		answers <- answer{value, err}
	}()
	select {
	case a := <-answers:
		return a.value, a.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}
