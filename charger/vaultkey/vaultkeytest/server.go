package vaultkeytest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Limits of the stand-in.
const (
	maxBodyBytes    = 1 << 20          // bytes of one request body
	maxAnswerBytes  = 8 << 20          // bytes of one answer of Stripe
	upstreamTimeout = 10 * time.Minute // of one forwarded call; a held one may take long
)

// Config says how the proxy is reached, where it forwards and in which shape it denies.
type Config struct {
	AdminKeys     []string         // bearer keys that may issue; empty: any non-empty one
	UpstreamURL   string           // Stripe, or its stand-in, without /v1
	StripeKey     string           // put in the vault key's place; default sk_test_behind_the_vault
	Denial        Style            // shape of denials; default object_402
	MarkerHeader  string           // set to MarkerValue on the proxy's own denials; default none
	MarkerValue   string           // default denied
	OtherCurrency CurrencyPolicy   // what is done about calls not in usd; default count
	Logger        *slog.Logger     // default: discards
	Now           func() time.Time // base of the movable clock; default time.Now
}

// CurrencyPolicy says what the cap, which is in US dollars, means for a call in another currency.
type CurrencyPolicy string

// The currency policies.
const (
	CountOther  CurrencyPolicy = "count"  // its minor unit counts as a cent
	DenyOther   CurrencyPolicy = "deny"   // it is refused
	IgnoreOther CurrencyPolicy = "ignore" // it passes uncounted
)

// Server is a spend-cap proxy. It is safe for concurrent use.
type Server struct {
	URL string // of a started server, without a slash at the end

	cfg      Config
	log      *slog.Logger
	pages    *http.ServeMux
	upstream *http.Client
	offset   atomic.Int64 // nanoseconds the clock was advanced
	faults   faultBook

	mu      sync.Mutex // guards everything below
	denial  Style
	keys    map[string]*vaultKey // by secret
	order   []*vaultKey
	spends  map[string]*spend // by idempotency key
	objects map[string]*spend // by Stripe object id
	audit   []Audit
	ledger  []Entry

	http   *http.Server
	ending sync.Mutex // guards done's closing against the start of handlers
	done   chan struct{}
	busy   sync.WaitGroup
}

// ServeHTTP answers the issuing and control pages and forwards everything else to Stripe.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.begin() {
		panic(http.ErrAbortHandler)
	}
	defer s.busy.Done()
	if strings.HasPrefix(r.URL.Path, "/_standin/") {
		s.pages.ServeHTTP(w, r)
		return
	}
	fault := s.faults.match(r)
	if fault != nil && s.strikeEarly(w, fault) {
		return
	}
	if strings.HasPrefix(r.URL.Path, "/vault/") {
		s.pages.ServeHTTP(w, r)
		return
	}
	s.forward(w, r, fault)
}

// New makes a proxy to be served by the caller's own listener.
func New(cfg Config) *Server {
	if cfg.StripeKey == "" {
		cfg.StripeKey = "sk_test_behind_the_vault"
	}
	if cfg.Denial == "" {
		cfg.Denial = Object402
	}
	if cfg.MarkerValue == "" {
		cfg.MarkerValue = "denied"
	}
	if cfg.OtherCurrency == "" {
		cfg.OtherCurrency = CountOther
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.UpstreamURL = strings.TrimRight(cfg.UpstreamURL, "/")
	s := &Server{
		cfg: cfg, log: cfg.Logger, denial: cfg.Denial,
		keys: map[string]*vaultKey{}, spends: map[string]*spend{}, objects: map[string]*spend{}, done: make(chan struct{}),
		upstream: &http.Client{
			Timeout:       upstreamTimeout,
			Transport:     &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	s.pages = s.allPages()
	return s
}

// Start serves a proxy on a free port of 127.0.0.1; its URL is set. Close it when done.
func Start(cfg Config) (*Server, error) {
	s := New(cfg)
	var listen net.ListenConfig
	listener, err := listen.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the spend-cap proxy: %w", err)
	}
	s.URL = "http://" + listener.Addr().String()
	s.http = &http.Server{
		Handler: s, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	s.busy.Go(func() {
		if err := s.http.Serve(listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("spend-cap proxy stopped", slog.Any("error", err))
		}
	})
	return s, nil
}

// Close closes every connection, to clients and to Stripe, and waits for all handlers.
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
			s.log.Warn("close spend-cap proxy", slog.Any("error", err))
		}
	}
	s.busy.Wait()
	s.upstream.CloseIdleConnections()
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

// Now is the proxy's clock: the base clock plus everything it was advanced by.
func (s *Server) Now() time.Time { return s.cfg.Now().Add(time.Duration(s.offset.Load())) }

// Advance moves the clock: keys expire, a new day's cap begins.
func (s *Server) Advance(d time.Duration) { s.offset.Add(int64(d)) }

// SetDenial changes the shape of denials from now on.
func (s *Server) SetDenial(style Style) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.denial = style
}

func randomText(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // crypto/rand.Read never fails
	return hex.EncodeToString(b)
}
