package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	pollEvery = 200 * time.Millisecond
	// pollShare keeps a slow question (a million intents) from being most of what the database does: so many times its
	// duration is waited before the next one.
	pollShare   = 4
	pollTimeout = 30 * time.Second
)

// run looks at the database until ctx ends, and shows what it sees.
func (w *watcher) run(ctx context.Context) {
	for {
		began := time.Now()
		s, err := w.look(ctx)
		if err != nil && ctx.Err() == nil {
			s = w.latest() // the database is away for a while: what was seen last stays
			s.Away = err
		}
		s.Sent = int(w.publisher.sent.Load()) + s.Spooled
		w.tell(s)
		w.show.progress(s)
		timer := time.NewTimer(max(pollEvery, pollShare*time.Since(began)))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// watcher knows how far everything is. Its methods may be called from any goroutine.
type watcher struct {
	pool      *pgxpool.Pool
	publisher *publisher
	broker    *broker   // may be nil
	expect    published // what is to be published
	show      *display

	mu      sync.Mutex
	state   state
	ends    map[string]int64 // partition -> last sequence number, once everything is published
	changed chan struct{}    // closed at every look
}

// state is one look.
type state struct {
	Expect   published
	Sent     int // messages acknowledged, over both brokers
	Spooled  int // messages that the Solace queue got
	Waiting  int // of those, the ones that nobody has acknowledged
	Counters counters
	Sources  map[string]counters // by source
	Statuses map[string]int      // intents by status
	Reasons  map[string]int      // intents by "status reason"; only asked when nothing is charging
	AtEnd    map[string]bool     // consumer groups that have recorded all there is
	Away     error               // of the database
}

// counters are what the ingestors counted, over all partitions.
type counters struct {
	Intents      int `json:"intents"`
	Duplicates   int `json:"duplicates"`
	Redeliveries int `json:"redeliveries"`
	Conflicts    int `json:"conflicts"`
	Quarantined  int `json:"quarantined"`
}

func (c counters) objects() int {
	return c.Intents + c.Duplicates + c.Redeliveries + c.Conflicts + c.Quarantined
}

func (w *watcher) look(ctx context.Context) (state, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, pollTimeout, fmt.Errorf("no answer within %s", pollTimeout))
	defer cancel()
	s := state{AtEnd: map[string]bool{}, Expect: w.expect}
	var err error
	if w.broker != nil { // first: what it says is acknowledged was recorded before
		if s.Spooled, s.Waiting, err = w.broker.look(ctx); err != nil {
			return s, err
		}
	}
	if s.Counters, s.Sources, err = readCounters(ctx, w.pool); err != nil {
		return s, err
	}
	if s.Statuses, err = countBy(ctx, w.pool, "SELECT status, count(*) FROM billing.intents GROUP BY 1"); err != nil {
		return s, err
	}
	if err := w.lookAtGroups(ctx, s.AtEnd); err != nil {
		return s, err
	}
	if allRecorded(s) && s.Statuses["charging"] == 0 {
		s.Reasons, err = countBy(ctx, w.pool, "SELECT status || ' ' || status_reason, count(*) FROM finance.intents GROUP BY 1")
	}
	return s, err
}

func (c counters) plus(o counters) counters {
	return counters{
		c.Intents + o.Intents, c.Duplicates + o.Duplicates, c.Redeliveries + o.Redeliveries, c.Conflicts + o.Conflicts, c.Quarantined + o.Quarantined,
	}
}

// The sources, as the ingestors name themselves.
const (
	sourceHub    = "eventhubs"
	sourceSolace = "solace"
)

func readCounters(ctx context.Context, pool *pgxpool.Pool) (all counters, bySource map[string]counters, err error) {
	rows, err := pool.Query(ctx, `SELECT source, sum(intents)::bigint, sum(duplicates)::bigint, sum(redeliveries)::bigint, sum(conflicts)::bigint,
		sum(quarantined)::bigint FROM billing.source_counters WHERE namespace = $1 GROUP BY source`, namespace)
	if err != nil {
		return all, nil, fmt.Errorf("read the ingestors' counters: %w", err)
	}
	bySource = map[string]counters{}
	var source string
	var c counters
	_, err = pgx.ForEachRow(rows, []any{&source, &c.Intents, &c.Duplicates, &c.Redeliveries, &c.Conflicts, &c.Quarantined}, func() error {
		bySource[source] = c
		all = all.plus(c)
		return nil
	})
	if err != nil {
		return all, nil, fmt.Errorf("read the ingestors' counters: %w", err)
	}
	return all, bySource, nil
}

// countBy reads rows of a text and a number.
func countBy(ctx context.Context, pool *pgxpool.Pool, query string) (map[string]int, error) {
	rows, err := pool.Query(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("count intents: %w", err)
	}
	counts := map[string]int{}
	var key string
	var n int
	if _, err := pgx.ForEachRow(rows, []any{&key, &n}, func() error { counts[key] = n; return nil }); err != nil {
		return nil, fmt.Errorf("count intents: %w", err)
	}
	return counts, nil
}

// lookAtGroups tells which consumer groups' checkpoints are at the hub's ends. A checkpoint is committed with what it covers.
func (w *watcher) lookAtGroups(ctx context.Context, atEnd map[string]bool) error {
	w.mu.Lock()
	ends := w.ends
	w.mu.Unlock()
	if ends == nil {
		return nil
	}
	rows, err := w.pool.Query(ctx, "SELECT consumer_group, partition_id, sequence_number FROM billing.eventhub_checkpoints")
	if err != nil {
		return fmt.Errorf("read checkpoints: %w", err)
	}
	arrived := map[string]int{}
	var group, partition string
	var sequence int64
	_, err = pgx.ForEachRow(rows, []any{&group, &partition, &sequence}, func() error {
		if end, known := ends[partition]; known && sequence >= end {
			arrived[group]++
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read checkpoints: %w", err)
	}
	for group, n := range arrived {
		atEnd[group] = n == len(ends)
	}
	return nil
}

// allPublished says where the partitions end; empty ones are left out.
func (w *watcher) allPublished(ends map[string]int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ends = ends
}

func (w *watcher) tell(s state) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state = s
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *watcher) latest() state {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state
}

// until returns once a look satisfies the condition, or when ctx ends.
func (w *watcher) until(ctx context.Context, condition func(state) bool) error {
	for {
		w.mu.Lock()
		s, changed := w.state, w.changed
		w.mu.Unlock()
		if s.Away == nil && condition(s) {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		}
	}
}

// groupAtEnd is true when a consumer group has recorded everything.
func groupAtEnd(group string) func(state) bool {
	return func(s state) bool { return s.AtEnd[group] }
}

// allRecorded is true when the ingestors have recorded all that is published over either broker.
func allRecorded(s state) bool { return s.AtEnd[mainGroup] && s.queueDone() }

// queueDone is true when the Solace queue got everything, and all of it is acknowledged.
func (s state) queueDone() bool { return s.Spooled >= s.Expect.OverSolace && s.Waiting == 0 }

// atRest is true when nothing will move any more without a person.
func atRest(s state) bool { return len(restless(s)) == 0 }

// restless says what is not at rest.
func restless(s state) []string {
	var out []string
	if s.Away != nil {
		out = append(out, "the database is away: "+s.Away.Error())
	}
	if s.Sent < s.Expect.Events {
		out = append(out, fmt.Sprintf("%d of %d events are published", s.Sent, s.Expect.Events))
	}
	if !s.AtEnd[mainGroup] {
		out = append(out, fmt.Sprintf("the ingestors have not recorded the whole hub: %d objects so far", s.Counters.objects()))
	}
	if !s.queueDone() {
		out = append(out, fmt.Sprintf("of %d messages over Solace %d are published and %d not acknowledged", s.Expect.OverSolace, s.Spooled, s.Waiting))
	}
	if n := s.Statuses["charging"]; n > 0 {
		out = append(out, fmt.Sprintf("%d intents are charging", n))
	}
	if s.Reasons == nil && len(out) == 0 {
		out = append(out, "why intents wait is not read yet")
	}
	for _, key := range slices.Sorted(maps.Keys(s.Reasons)) {
		status, reason, _ := strings.Cut(key, " ")
		if status == "pending" && !needsPerson(reason) {
			out = append(out, fmt.Sprintf("%d intents are pending (%s)", s.Reasons[key], reason))
		}
	}
	return out
}

// needsPerson tells reasons to wait that do not pass by themselves.
func needsPerson(reason string) bool {
	switch reason {
	case "no_run", "run_paused", "run_capped", "stopped", "conflict", "same_customer":
		return true
	}
	return false
}

var errNotAtRest = errors.New("not at rest in time")
