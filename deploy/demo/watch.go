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
		s.Sent, s.Events = int(w.publisher.sent.Load()), w.events
		w.tell(s)
		w.show.progress(s, w.expect)
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
	events    int       // to be published
	expect    published // what is published in them
	show      *display

	mu      sync.Mutex
	state   state
	ends    map[string]int64 // partition -> last sequence number, once everything is published
	changed chan struct{}    // closed at every look
}

// state is one look.
type state struct {
	Sent, Events int // messages acknowledged, and to be published
	Counters     counters
	Statuses     map[string]int  // intents by status
	Reasons      map[string]int  // intents by "status reason"; only asked when nothing is charging
	AtEnd        map[string]bool // consumer groups that have recorded all there is
	Away         error           // of the database
}

// counters are what the ingestors counted, over all partitions.
type counters struct {
	Intents, Duplicates, Redeliveries, Conflicts, Quarantined int
}

func (c counters) objects() int {
	return c.Intents + c.Duplicates + c.Redeliveries + c.Conflicts + c.Quarantined
}

func (w *watcher) look(ctx context.Context) (state, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, pollTimeout, fmt.Errorf("no answer within %s", pollTimeout))
	defer cancel()
	s := state{AtEnd: map[string]bool{}}
	var err error
	if s.Counters, err = readCounters(ctx, w.pool); err != nil {
		return s, err
	}
	if s.Statuses, err = countBy(ctx, w.pool, "SELECT status, count(*) FROM billing.intents GROUP BY 1"); err != nil {
		return s, err
	}
	if err := w.lookAtGroups(ctx, s.AtEnd); err != nil {
		return s, err
	}
	if s.AtEnd[mainGroup] && s.Statuses["charging"] == 0 {
		s.Reasons, err = countBy(ctx, w.pool, "SELECT status || ' ' || status_reason, count(*) FROM finance.intents GROUP BY 1")
	}
	return s, err
}

func readCounters(ctx context.Context, pool *pgxpool.Pool) (c counters, err error) {
	err = pool.QueryRow(ctx, `SELECT coalesce(sum(intents), 0), coalesce(sum(duplicates), 0), coalesce(sum(redeliveries), 0),
		coalesce(sum(conflicts), 0), coalesce(sum(quarantined), 0) FROM billing.source_counters WHERE namespace = $1`, namespace).
		Scan(&c.Intents, &c.Duplicates, &c.Redeliveries, &c.Conflicts, &c.Quarantined)
	if err != nil {
		return c, fmt.Errorf("read the ingestors' counters: %w", err)
	}
	return c, nil
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

// atRest is true when nothing will move any more without a person.
func atRest(s state) bool { return len(restless(s)) == 0 }

// restless says what is not at rest.
func restless(s state) []string {
	var out []string
	if s.Away != nil {
		out = append(out, "the database is away: "+s.Away.Error())
	}
	if s.Sent < s.Events {
		out = append(out, fmt.Sprintf("%d of %d events are published", s.Sent, s.Events))
	}
	if !s.AtEnd[mainGroup] {
		out = append(out, fmt.Sprintf("the ingestors have not recorded the whole hub: %d objects so far", s.Counters.objects()))
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
