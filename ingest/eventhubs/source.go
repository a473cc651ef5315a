// Package eventhubs reads Azure Event Hubs with the SDK's Processor and records what it delivers, with checkpoints in Postgres or in
// Azure Blob Storage.
package eventhubs

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
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
	if s.blob != nil {
		defer s.blob.closeIdle()
	}
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

// Source reads one hub into one Recorder.
type Source struct {
	cfg       Config
	entity    string // hub as the SDK wants it: empty when the connection string names it
	key       hubKey
	recorder  *ingest.Recorder
	pool      *pgxpool.Pool
	keeper    keeper
	blob      *blobKeeper // the keeper, when it is Blob Storage; nil when it is Postgres
	metrics   *Metrics
	logger    *slog.Logger
	instance  string
	positions string        // first part of every position
	batches   chan struct{} // holds one for each batch in hand

	mu      sync.Mutex
	current *session             // nil while none runs
	gaps    map[string]int64     // by partition: read one by one up to this sequence number
	taken   map[string]int       // by partition: times in a row that it was taken while the store says that it is ours
	unread  map[string]time.Time // by partition that is ours and has no reader: since when, whatever Processors there were meanwhile
}

// hubKey names a hub and consumer group in the store: lower case, for Event Hubs does not mind the case and the store would.
type hubKey struct {
	namespace, hub, group string
}

// New checks the configuration; it connects to nothing. pool is for ownerships and should not be the recorder's: batches that
// wait for a lock would keep it busy, and the partitions would be lost. metrics may be nil.
//
// With Config.Blob the pool still reads and writes what this database has recorded, by which the checkpoints are judged.
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
	s := &Source{
		cfg: cfg, entity: target.entity, key: target.key, recorder: recorder, pool: pool, keeper: postgresKeeper{pool}, metrics: metrics,
		logger: logger.With(slog.String("eventhub", target.key.hub), slog.String("consumer_group", target.key.group)),
		// Random, for two pods may share a host's name, and a restarted one must not pass for its predecessor. The service takes names
		// of at most 64 characters; the end of a pod's name is what tells it from its neighbours.
		instance:  host[max(0, len(host)-maxHostBytes):] + "-" + strings.ToLower(rand.Text()[:8]),
		positions: target.key.hub, batches: make(chan struct{}, maxBatchesAtOnce),
		gaps: map[string]int64{}, taken: map[string]int{}, unread: map[string]time.Time{},
	}
	if cfg.Blob != nil {
		if s.blob, err = newBlobKeeper(*cfg.Blob, cfg.Credential); err != nil {
			return nil, err
		}
		s.keeper = s.blob
	}
	return s, nil
}

// Check says why the source cannot work at this moment; nil means it works.
func (s *Source) Check(context.Context) error {
	if away, is := s.recorder.DatabaseAway(); is {
		return fmt.Errorf("the database has been away for %s", away.Round(time.Second))
	}
	if err := s.shut(time.Now()); err != nil {
		return err
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

// maxHostBytes leaves, of 64, room for a random part, the number of the session and what it records into.
const maxHostBytes = 36

// applicationID is what Azure's own logs show of us.
const applicationID = "chargeonce"

// client makes a client with its own connection. Its name enters the store as owner.
func (s *Source) client(instance string, retries int32) (*azeventhubs.ConsumerClient, error) {
	options := &azeventhubs.ConsumerClientOptions{
		ApplicationID: applicationID, InstanceID: instance,
		// The SDK's own retries are short: with its defaults one partition that cannot be opened holds up all others' renewals
		// for most of a minute.
		RetryOptions: azeventhubs.RetryOptions{MaxRetries: retries, RetryDelay: 500 * time.Millisecond, MaxRetryDelay: 5 * time.Second},
	}
	var client *azeventhubs.ConsumerClient
	var err error
	if s.cfg.Namespace != "" {
		if host, _, splitErr := net.SplitHostPort(s.cfg.Namespace); splitErr == nil {
			// The SDK would look for a certificate of HOST:PORT.
			options.TLSConfig = &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}
		}
		client, err = azeventhubs.NewConsumerClient(s.cfg.Namespace, s.entity, s.cfg.ConsumerGroup, boundedCredential{s.cfg.Credential}, options)
	} else {
		client, err = azeventhubs.NewConsumerClientFromConnectionString(s.cfg.ConnectionString, s.entity, s.cfg.ConsumerGroup, options)
	}
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

// noteUnread keeps since when partitions are owned and not read; they are all that there are now.
func (s *Source) noteUnread(partitions []string, now time.Time) {
	s.metrics.unread.Set(float64(len(partitions)))
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.unread
	s.unread = make(map[string]time.Time, len(partitions))
	for _, p := range partitions {
		s.unread[p] = now
		if since, known := before[p]; known {
			s.unread[p] = since
		}
	}
}

// shut names a partition that is ours and that no Processor could open for too long.
func (s *Source) shut(now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range slices.Sorted(maps.Keys(s.unread)) {
		if idle := now.Sub(s.unread[p]); idle > s.cfg.StuckAfter {
			return fmt.Errorf("partition %s could not be opened for %s", p, idle.Round(time.Second))
		}
	}
	return nil
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
