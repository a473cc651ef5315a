// Package ingest turns what a broker delivers into billing intents, each customer and period once, before the broker may go on.
package ingest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"chargeonce/schema"
	"chargeonce/sql/queries"
)

// Limits of one batch, which is one transaction.
const (
	// MaxBatchDeliveries bounds the deliveries of a batch. More gains no speed and costs latency.
	MaxBatchDeliveries = 1000
	// MaxBatchBytes bounds the bodies of a batch that has more than one delivery, in bytes.
	MaxBatchBytes = 4 << 20
)

// Delivery is one message as a broker hands it over.
type Delivery struct {
	Body  []byte
	Attrs map[string]string // the broker's properties, read only to recognise a CloudEvent in binary mode
	// Partition is what the durable counters are kept by.
	Partition string
	// Position names this delivery within its source: a redelivery has the same one, another delivery another one for as long as the
	// broker's stream lives. A stream that is created anew may begin again; then a duplicate may count as a redelivery, and no more
	// than that depends on it.
	Position string
	// Detail is what else the source says of it, such as an offset or a topic: kept with what becomes of it, for tracing, never compared
	// and no part of any key.
	Detail map[string]string
	// EnqueuedAt is when the broker took it; the zero time when the broker does not say.
	EnqueuedAt time.Time
	// Unreadable says why the source itself could make no body of this delivery. It is then quarantined as one object whose
	// raw bytes are Body.
	Unreadable *schema.Fault
}

// Counts says what became of the objects of a batch.
type Counts struct {
	Intents      int64 // newly recorded
	Duplicates   int64 // same key and terms, from another position: dropped
	Redeliveries int64 // the same position again
	Conflicts    int64 // same key, other terms: kept for a person
	Quarantined  int64 // cannot become an intent: kept with the reason
}

// Objects is the sum.
func (c Counts) Objects() int64 {
	return c.Intents + c.Duplicates + c.Redeliveries + c.Conflicts + c.Quarantined
}

// Recorder records the deliveries of one source into one namespace. It is safe for concurrent use.
type Recorder struct {
	cfg         Config
	pool        *pgxpool.Pool
	logger      *slog.Logger
	parser      *schema.Parser
	periods     schema.PeriodFormat
	mapping     []byte // JSON of the field mapping's settings
	fingerprint string
	metrics     *Metrics
}

// Config says what a Recorder records.
type Config struct {
	Namespace string
	// Source is the broker's kind, such as eventhubs: 1 to 32 lower-case letters.
	Source       string
	PeriodFormat schema.PeriodFormat // empty: month
	Mapping      schema.Mapping      // nil: the events have our own shape
	MaxBodyBytes int                 // of one delivery; 0: schema.DefaultMaxBodyBytes
	// ManyPerStripeCustomer lets several intents of this namespace charge one Stripe customer for one period and currency.
	ManyPerStripeCustomer bool
	// AttemptTimeout bounds the first try of one transaction; 0: 60 s. A further one gets twice the time, at most 15 min.
	AttemptTimeout time.Duration
	// RetryDelay and MaxRetryDelay bound the pauses between tries while the database is away; 0: 100 ms and 15 s.
	RetryDelay, MaxRetryDelay time.Duration
}

// NewRecorder checks the configuration; it does not touch the database. metrics may be nil.
func NewRecorder(cfg Config, pool *pgxpool.Pool, metrics *Metrics, logger *slog.Logger) (*Recorder, error) {
	parser, err := schema.NewParser(schema.ParserConfig{
		Namespace: cfg.Namespace, PeriodFormat: cfg.PeriodFormat, Mapping: cfg.Mapping, MaxBodyBytes: cfg.MaxBodyBytes,
	})
	if err != nil {
		return nil, fmt.Errorf("make recorder: %w", err)
	}
	periods, err := schema.ParsePeriodFormat(string(cfg.PeriodFormat))
	if err != nil {
		return nil, fmt.Errorf("make recorder of namespace %s: %w", cfg.Namespace, err)
	}
	if cfg.Source == "" || len(cfg.Source) > 32 || strings.Trim(cfg.Source, "abcdefghijklmnopqrstuvwxyz") != "" {
		return nil, fmt.Errorf("make recorder of namespace %s: source %q is not 1 to 32 lower-case letters", cfg.Namespace, cfg.Source)
	}
	mapping, err := json.Marshal(cfg.Mapping.Settings())
	if err != nil {
		return nil, fmt.Errorf("encode the field mapping of namespace %s: %w", cfg.Namespace, err)
	}
	if metrics == nil {
		metrics = NewMetrics(nil)
	}
	cfg.AttemptTimeout = orDefault(cfg.AttemptTimeout, time.Minute)
	cfg.RetryDelay = orDefault(cfg.RetryDelay, 100*time.Millisecond)
	cfg.MaxRetryDelay = max(orDefault(cfg.MaxRetryDelay, 15*time.Second), cfg.RetryDelay)
	return &Recorder{
		cfg: cfg, pool: pool, logger: logger, parser: parser, periods: periods,
		mapping: mapping, fingerprint: cfg.Mapping.Fingerprint(), metrics: metrics,
	}, nil
}

// Source returns the configured source.
func (r *Recorder) Source() string { return r.cfg.Source }

// Namespace returns the configured namespace.
func (r *Recorder) Namespace() string { return r.cfg.Namespace }

// ErrDisagreement says that the namespace is registered with other words than this ingestor was given.
var ErrDisagreement = errors.New("this ingestor and the database disagree")

// Register pins how the namespace is read: the first ingestor writes it down, and a later one that reads events otherwise
// gets ErrDisagreement with both sides, for it would make other intents of the same events.
func (r *Recorder) Register(ctx context.Context) error {
	q := queries.New()
	ns := r.cfg.Namespace
	err := q.NamespaceRegister(ctx, r.pool, queries.NamespaceRegisterParams{
		Namespace: ns, PeriodFormat: string(r.periods), ManyPerStripeCustomer: r.cfg.ManyPerStripeCustomer,
	})
	if err != nil {
		return fmt.Errorf("register namespace %s: %w", ns, err)
	}
	// A statement of its own: only it sees the row of another ingestor that registered at the same moment.
	registered, err := q.NamespaceGet(ctx, r.pool, ns)
	if err != nil {
		return fmt.Errorf("read namespace %s: %w", ns, err)
	}
	if registered.PeriodFormat != string(r.periods) {
		return fmt.Errorf("%w: namespace %s is registered with period format %q, this ingestor is set to %q",
			ErrDisagreement, ns, registered.PeriodFormat, r.periods)
	}
	if registered.ManyPerStripeCustomer != r.cfg.ManyPerStripeCustomer {
		return fmt.Errorf("%w: namespace %s is registered with many-per-stripe-customer %t, this ingestor is set to %t",
			ErrDisagreement, ns, registered.ManyPerStripeCustomer, r.cfg.ManyPerStripeCustomer)
	}
	return r.registerMapping(ctx, q)
}

func (r *Recorder) registerMapping(ctx context.Context, q *queries.Queries) error {
	ns, source := r.cfg.Namespace, r.cfg.Source
	err := q.NamespaceSourceRegister(ctx, r.pool, queries.NamespaceSourceRegisterParams{
		Namespace: ns, Source: source, Mapping: r.mapping, MappingFingerprint: r.fingerprint,
	})
	if err != nil {
		return fmt.Errorf("register source %s of namespace %s: %w", source, ns, err)
	}
	registered, err := q.NamespaceSourceGet(ctx, r.pool, queries.NamespaceSourceGetParams{Namespace: ns, Source: source})
	if err != nil {
		return fmt.Errorf("read source %s of namespace %s: %w", source, ns, err)
	}
	if registered.MappingFingerprint != r.fingerprint {
		return fmt.Errorf("%w: source %s of namespace %s is registered with field mapping %s (fingerprint %s), this ingestor is set to %s (fingerprint %s)",
			ErrDisagreement, source, ns, registered.Mapping, registered.MappingFingerprint, r.mapping, r.fingerprint)
	}
	return nil
}

// DatabaseAway tells for how long the longest-waiting batch has been unable to reach the database; false when none is
// waiting. An ingestor is not ready while it is true.
func (r *Recorder) DatabaseAway() (time.Duration, bool) { return r.metrics.away.duration(time.Now()) }

// Batches cuts deliveries, in their order, into batches within the limits. A delivery that alone exceeds MaxBatchBytes is a
// batch of its own.
func Batches(deliveries []Delivery) iter.Seq[[]Delivery] {
	return func(yield func([]Delivery) bool) {
		start, bytes := 0, 0
		for i := range deliveries {
			size := len(deliveries[i].Body)
			if i > start && (i-start == MaxBatchDeliveries || bytes+size > MaxBatchBytes) {
				if !yield(deliveries[start:i]) {
					return
				}
				start, bytes = i, 0
			}
			bytes += size
		}
		if start < len(deliveries) {
			yield(deliveries[start:])
		}
	}
}

// awayMeter knows which calls wait for the database. The zero value is ready.
type awayMeter struct {
	mu      sync.Mutex
	waiting map[*time.Time]struct{}
}

// begin notes a call that began to wait at since; end, called once, forgets it.
func (m *awayMeter) begin(since time.Time) (end func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.waiting == nil {
		m.waiting = map[*time.Time]struct{}{}
	}
	call := &since
	m.waiting[call] = struct{}{}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.waiting, call)
	}
}

func (m *awayMeter) duration(now time.Time) (time.Duration, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var longest time.Duration
	for since := range m.waiting {
		longest = max(longest, now.Sub(*since))
	}
	return longest, len(m.waiting) > 0
}

func orDefault(d, otherwise time.Duration) time.Duration {
	if d == 0 {
		return otherwise
	}
	return d
}

// InTx is work of the source inside the transaction that records its batch, such as the checkpoint. It may run several times.
type InTx func(ctx context.Context, tx pgx.Tx) error
