package stripetest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// Request is one logged API request. The log keeps the last Config.RequestLog of them.
type Request struct {
	Seq            int64       `json:"seq"` // 1, 2, 3 ...
	At             time.Time   `json:"at"`  // real time
	ID             string      `json:"id"`  // req_...
	Method         string      `json:"method"`
	Path           string      `json:"path"`
	Header         http.Header `json:"header"` // Authorization shortened
	APIVersion     string      `json:"api_version"`
	IdempotencyKey string      `json:"idempotency_key,omitempty"`
	BodySHA256     string      `json:"body_sha256,omitempty"` // of a POST
	Form           url.Values  `json:"form"`                  // the body of a POST, the query of a GET
	Fault          Action      `json:"fault,omitempty"`       // that struck it
	Status         int         `json:"status"`                // of the true answer, though a fault may have kept it back; 0 while running
	ObjectID       string      `json:"object_id,omitempty"`
	Replayed       bool        `json:"replayed,omitempty"`
	Closed         bool        `json:"closed,omitempty"` // ended without an answer and without an effect
}

// Stats counts the API's requests.
type Stats struct {
	Requests      int64 `json:"requests"`
	InFlight      int   `json:"in_flight"`
	HighWater     int   `json:"high_water"`      // most requests in flight at once
	LastSecond    int   `json:"last_second"`     // requests in the last full second
	PeakPerSecond int   `json:"peak_per_second"` // most requests in one second of the clock on the wall
}

// Requests is the log, oldest first.
func (s *Server) Requests() []Request {
	s.traffic.mu.Lock()
	defer s.traffic.mu.Unlock()
	t := &s.traffic
	requests := make([]Request, 0, len(t.ring))
	for i := range t.ring {
		entry := t.ring[(t.oldest+i)%len(t.ring)]
		requests = append(requests, entry.shown())
	}
	return requests
}

// Stats counts all requests so far.
func (s *Server) Stats() Stats {
	t := &s.traffic
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turn(time.Now().Unix())
	return t.stats
}

type traffic struct {
	mu      sync.Mutex
	limit   int
	ring    []*logEntry
	oldest  int // index in ring
	stats   Stats
	second  int64
	current int
}

type logEntry struct {
	book    *traffic
	request Request
	raw     []byte
}

func (t *traffic) enter(c *call) *logEntry {
	entry := &logEntry{book: t, raw: c.raw, request: Request{
		At: time.Now(), ID: c.id, Method: c.method, Path: c.path, Header: c.header, IdempotencyKey: c.key, Form: c.form,
		APIVersion: c.header.Get("Stripe-Version"),
	}}
	if c.fault != nil {
		entry.request.Fault = c.fault.Do
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turn(entry.request.At.Unix())
	t.current++
	t.stats.PeakPerSecond = max(t.stats.PeakPerSecond, t.current)
	t.stats.Requests++
	t.stats.InFlight++
	t.stats.HighWater = max(t.stats.HighWater, t.stats.InFlight)
	entry.request.Seq = t.stats.Requests
	if len(t.ring) < t.limit {
		t.ring = append(t.ring, entry)
	} else {
		t.ring[t.oldest] = entry
		t.oldest = (t.oldest + 1) % t.limit
	}
	return entry
}

func (t *traffic) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stats.InFlight--
}

// turn begins a new second of the rate counter. The caller holds t.mu.
func (t *traffic) turn(second int64) {
	switch second {
	case t.second:
		return
	case t.second + 1:
		t.stats.LastSecond = t.current
	default:
		t.stats.LastSecond = 0
	}
	t.second, t.current = second, 0
}

func (e *logEntry) answered(a *answer) {
	e.book.mu.Lock()
	defer e.book.mu.Unlock()
	e.request.Status, e.request.ObjectID, e.request.Replayed = a.status, a.objectID, a.replayed
}

func (e *logEntry) closed() {
	e.book.mu.Lock()
	defer e.book.mu.Unlock()
	e.request.Closed = true
}

func (e *logEntry) shown() Request {
	r := e.request
	r.Header = r.Header.Clone()
	if key, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		r.Header.Set("Authorization", "Bearer "+redacted(key))
	} else if r.Header.Get("Authorization") != "" {
		r.Header.Set("Authorization", "***")
	}
	if e.raw != nil {
		sum := sha256.Sum256(e.raw)
		r.BodySHA256 = hex.EncodeToString(sum[:])
	}
	return r
}

// Held is one request that a hold fault keeps.
type Held struct {
	RequestID      string `json:"request_id"`
	Where          string `json:"where"` // before effect, after effect
	Method         string `json:"method"`
	Path           string `json:"path"`
	IdempotencyKey string `json:"idempotency_key,omitempty"`
	IntentKey      string `json:"intent_key,omitempty"`
}

type holdBook struct {
	mu      sync.Mutex
	open    map[string]*hold
	changed chan struct{} // closed at the next change; nil while nobody waits
}

type hold struct {
	told    Held
	release chan struct{}
}

// Held is what is held now, by request id.
func (s *Server) Held() []Held {
	s.holds.mu.Lock()
	defer s.holds.mu.Unlock()
	return s.holds.list()
}

// WaitHeld waits until at least n requests are held.
func (s *Server) WaitHeld(ctx context.Context, n int) ([]Held, error) {
	for {
		s.holds.mu.Lock()
		held := s.holds.list()
		if s.holds.changed == nil {
			s.holds.changed = make(chan struct{})
		}
		changed := s.holds.changed
		s.holds.mu.Unlock()
		if len(held) >= n {
			return held, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return held, fmt.Errorf("wait for %d held requests, have %d: %w", n, len(held), context.Cause(ctx))
		case <-s.done:
			return held, fmt.Errorf("wait for %d held requests: %w", n, http.ErrServerClosed)
		}
	}
}

// Release lets held requests go on: those with the given ids, or all. It returns how many.
func (s *Server) Release(requestIDs ...string) int {
	s.holds.mu.Lock()
	defer s.holds.mu.Unlock()
	released := 0
	for id, h := range s.holds.open {
		if len(requestIDs) == 0 || slices.Contains(requestIDs, id) {
			close(h.release)
			delete(s.holds.open, id)
			released++
		}
	}
	return released
}

// hold keeps a request until it is released or its longest hold is over; left means the client went away or the server
// closed first. A request whose effect must come although the client left is kept on.
func (s *Server) hold(r *http.Request, c *call, where string) (left bool) {
	told := c.told(nil)
	h := &hold{release: make(chan struct{}), told: Held{
		RequestID: c.id, Where: where, Method: c.method, Path: c.path, IdempotencyKey: c.key, IntentKey: told.IntentKey,
	}}
	s.holds.mu.Lock()
	s.holds.open[c.id] = h
	s.holds.wake()
	s.holds.mu.Unlock()
	defer func() {
		s.holds.mu.Lock()
		delete(s.holds.open, c.id)
		s.holds.wake()
		s.holds.mu.Unlock()
	}()
	var over <-chan time.Time
	if c.fault.Delay > 0 {
		timer := time.NewTimer(time.Duration(c.fault.Delay))
		defer timer.Stop()
		over = timer.C
	}
	gone := r.Context().Done()
	if c.fault.Effect {
		gone = nil
	}
	select {
	case <-h.release:
		return false
	case <-over:
		return false
	case <-gone:
		return true
	case <-s.done:
		return true
	}
}

// wake tells those who wait. The caller holds b.mu.
func (b *holdBook) wake() {
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
}

func (b *holdBook) list() []Held {
	held := make([]Held, 0, len(b.open))
	for _, h := range b.open {
		held = append(held, h.told)
	}
	slices.SortFunc(held, func(x, y Held) int { return strings.Compare(x.RequestID, y.RequestID) })
	return held
}
