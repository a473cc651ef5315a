package stripetest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Limits of the stand-in.
const (
	maxBodyBytes        = 1 << 20 // bytes of one request body
	defaultRequestLog   = 10_000  // requests kept by Requests
	defaultProcessing   = time.Hour
	minKeyAge           = 24 * time.Hour // Stripe prunes keys once they are at least this old
	maxIdempotencyBytes = 255
)

// Config says whose Stripe account the stand-in plays and how it behaves. The zero value is a test-mode account that
// takes any key beginning with sk_, rk_ or vk_ and knows only the customers added to it.
type Config struct {
	AccountID     string           // default acct_standin
	Livemode      bool             // told by every object and by GET /v1/balance
	Keys          []string         // accepted bearer keys; empty: any sk_, rk_ or vk_ key
	Latency       time.Duration    // waited before every answer, as the bank would take it
	AutoCustomers bool             // any cus_ id exists, its behaviour read from its text (doc.go)
	Customers     []Customer       // known from the start
	Logger        *slog.Logger     // default: discards
	Now           func() time.Time // base of the movable clock; default time.Now
	PruneJitter   time.Duration    // a key is pruned between 24 h and 24 h + this after its first use
	ProcessingFor time.Duration    // how long a processing payment stays so; default 1 h
	RequestLog    int              // requests kept by Requests; default 10,000
	BeforeEffect  func(Call)       // called when a request has passed the gates, before anything happened
	AfterEffect   func(Call)       // called when the effect is in the ledger, before one byte of the answer
}

// Call tells a hook which request it stands in.
type Call struct {
	RequestID      string
	Method         string
	Path           string
	IdempotencyKey string
	Customer       string
	IntentKey      string // metadata[intent_key]
	ObjectID       string // only after the effect
	Status         int    // only after the effect
	Replayed       bool   // only after the effect
}

// Server is a stand-in for Stripe's HTTP API. It is safe for concurrent use.
type Server struct {
	URL string // of a started server, without a slash at the end

	cfg     Config
	log     *slog.Logger
	control http.Handler
	faults  faultBook
	holds   holdBook
	traffic traffic
	ids     idMaker
	offset  atomic.Int64 // nanoseconds the clock was advanced

	mu        sync.Mutex // guards everything below
	account   accountKey
	books     map[accountKey]*book
	customers map[string]Customer
	due       dueHeap
	ledger    []Effect

	http   *http.Server
	ending sync.Mutex // guards done's closing against the start of handlers
	done   chan struct{}
	busy   sync.WaitGroup
}

// ServeHTTP answers one request: the control pages under /_standin/, else Stripe's API.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/_standin/") {
		s.control.ServeHTTP(w, r)
		return
	}
	if !s.begin() {
		panic(http.ErrAbortHandler)
	}
	defer s.busy.Done()
	c, err := s.accept(r)
	if err != nil {
		http.Error(w, "reading the request: "+err.Error(), http.StatusBadRequest)
		return
	}
	c.fault = s.faults.match(c)
	entry := s.traffic.enter(c)
	defer s.traffic.leave()
	if c.fault.is(CloseBeforeEffect) || c.fault.is(ResetBeforeEffect) {
		entry.closed() // before the client can see it
	}

	a, done := s.beforeLayer(w, r, c)
	if done {
		return
	}
	if a == nil {
		got, aborted := s.execute(r, c)
		if aborted {
			entry.closed()
			panic(http.ErrAbortHandler)
		}
		a = &got
		if s.cfg.AfterEffect != nil {
			s.cfg.AfterEffect(c.told(a))
		}
	}
	entry.answered(a)
	s.afterEffect(w, r, c, a)
}

// New makes a stand-in to be served by the caller's own listener.
func New(cfg Config) *Server {
	if cfg.AccountID == "" {
		cfg.AccountID = "acct_standin"
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.ProcessingFor <= 0 {
		cfg.ProcessingFor = defaultProcessing
	}
	if cfg.RequestLog <= 0 {
		cfg.RequestLog = defaultRequestLog
	}
	s := &Server{
		cfg:       cfg,
		log:       cfg.Logger,
		account:   accountKey{id: cfg.AccountID, livemode: cfg.Livemode},
		books:     map[accountKey]*book{},
		customers: map[string]Customer{},
		done:      make(chan struct{}),
	}
	s.ids.prefix = randomText(5)
	s.holds.open = map[string]*hold{}
	s.traffic.limit = cfg.RequestLog
	for _, customer := range cfg.Customers {
		s.customers[customer.ID] = customer
	}
	s.control = s.controlPages()
	return s
}

// Start serves a stand-in on a free port of 127.0.0.1; its URL is set. Close it when done.
func Start(cfg Config) (*Server, error) {
	s := New(cfg)
	var listen net.ListenConfig
	listener, err := listen.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the Stripe stand-in: %w", err)
	}
	s.URL = "http://" + listener.Addr().String()
	s.http = &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	s.busy.Go(func() {
		if err := s.http.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("stripe stand-in stopped", slog.Any("error", err))
		}
	})
	return s, nil
}

// Close ends held requests, closes every connection and waits for all handlers.
func (s *Server) Close() {
	s.ending.Lock()
	select {
	case <-s.done:
	default:
		close(s.done)
	}
	s.ending.Unlock()
	if s.http != nil {
		if err := s.http.Close(); err != nil {
			s.log.Warn("close stripe stand-in", slog.Any("error", err))
		}
	}
	s.busy.Wait()
}

// begin counts a handler in; false once the server is closing.
func (s *Server) begin() bool {
	s.ending.Lock()
	defer s.ending.Unlock()
	select {
	case <-s.done:
		return false
	default:
		s.busy.Add(1)
		return true
	}
}

// Now is the stand-in's clock: the base clock plus everything it was advanced by.
func (s *Server) Now() time.Time { return s.cfg.Now().Add(time.Duration(s.offset.Load())) }

// Advance moves the clock: keys grow old, processing payments end, late effects appear. The Date header does not move.
func (s *Server) Advance(d time.Duration) {
	s.offset.Add(int64(d))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runDue(s.Now())
}

// SetAccount puts another account or mode behind the same address, as a key swapped by mistake would. Every account and
// mode has its own objects and idempotency keys; the ledger is one.
func (s *Server) SetAccount(id string, livemode bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.account = accountKey{id: id, livemode: livemode}
}

// call is one API request on its way through the stand-in.
type call struct {
	id     string // req_...
	method string
	path   string
	key    string // Idempotency-Key of a POST
	header http.Header
	form   url.Values // the body of a POST, the query of anything else
	raw    []byte
	fault  *Fault
}

func (s *Server) accept(r *http.Request) (*call, error) {
	c := &call{id: "req_" + s.ids.next(), method: r.Method, path: r.URL.Path, header: r.Header, form: r.URL.Query()}
	if r.Method == http.MethodPost {
		raw, err := io.ReadAll(io.LimitReader(r.Body, maxBodyBytes+1))
		if err != nil {
			return nil, fmt.Errorf("read body of %s: %w", c.id, err)
		}
		if len(raw) > maxBodyBytes {
			return nil, fmt.Errorf("body of %s is larger than %d bytes", c.id, maxBodyBytes)
		}
		c.raw = raw
		c.key = r.Header.Get("Idempotency-Key")
		form, err := url.ParseQuery(string(raw))
		if err != nil {
			return nil, fmt.Errorf("parse form body of %s: %w", c.id, err)
		}
		c.form = form
	}
	return c, nil
}

func (c *call) told(a *answer) Call {
	told := Call{
		RequestID: c.id, Method: c.method, Path: c.path, IdempotencyKey: c.key,
		Customer: c.form.Get("customer"), IntentKey: c.form.Get("metadata[intent_key]"),
	}
	if a != nil {
		told.ObjectID, told.Status, told.Replayed = a.objectID, a.status, a.replayed
	}
	return told
}

// book is what one account in one mode holds.
type book struct {
	keys       map[string]*keyRecord
	charges    shelf[charge]
	intents    shelf[intent]
	nextPurge  time.Time
	accountKey accountKey
}

type accountKey struct {
	id       string
	livemode bool
}

// current is the book of the account now behind the address. The caller holds s.mu.
func (s *Server) current() *book {
	b := s.books[s.account]
	if b == nil {
		b = &book{keys: map[string]*keyRecord{}, accountKey: s.account}
		s.books[s.account] = b
	}
	return b
}

// wait pauses for d, whether or not the client is still there; false when the server closed meanwhile.
func (s *Server) wait(d time.Duration) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.done:
		return false
	}
}

// idMaker makes ids that no other run of the stand-in makes: a random prefix and a counter.
type idMaker struct {
	prefix string
	last   atomic.Uint64
}

func (m *idMaker) next() string {
	n := strconv.FormatUint(m.last.Add(1), 36)
	return m.prefix + "0000000"[:max(0, 7-len(n))] + n
}

func randomText(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // crypto/rand.Read never fails
	return hex.EncodeToString(b)
}
