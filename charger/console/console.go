// Package console is the operators' page: the billing runs, and River UI behind a password.
package console

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"riverqueue.com/riverui"

	"chargeonce/sql/queries"
)

const (
	// DefaultUser is the operator's name when none is given.
	DefaultUser = "operator"
	// DefaultPrefix is where River UI is found.
	DefaultPrefix = "/river/"

	riverSchema = "river"
	queue       = "charge"
)

// Config says what a console needs.
type Config struct {
	// Pool of the role chargeonce_console, which can move jobs and record that it did, and little else.
	Pool     *pgxpool.Pool
	Logger   *slog.Logger
	Registry prometheus.Registerer
	// User and Password open the console. User is DefaultUser when empty, and the actor of every recorded action.
	// Only a keyed hash of either is kept.
	User     string
	Password string
	// Prefix of River UI, DefaultPrefix when empty. It begins and ends with a slash and is not the root.
	Prefix string
}

// Console serves the operators. Its methods may be called from any goroutine.
type Console struct {
	pool    *pgxpool.Pool
	river   *riverui.Handler
	handler http.Handler
}

// New makes the console. It connects to nothing yet; an error means that a setting is wrong.
func New(cfg Config) (*Console, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	client, err := insertOnly(cfg)
	if err != nil {
		return nil, err
	}
	ui, err := riverui.NewHandler(&riverui.HandlerOpts{
		Endpoints: riverui.NewEndpoints(client, nil), Logger: cfg.Logger, Prefix: cfg.Prefix,
	})
	if err != nil {
		return nil, fmt.Errorf("make River UI: %w", err)
	}
	m := newMetrics(cfg.Registry)
	actions := &auditor{
		log: cfg.Logger, metrics: m, pool: cfg.Pool, queries: queries.New(), jobs: client, actor: cfg.User, prefix: cfg.Prefix,
	}
	pages := http.NewServeMux()
	pages.Handle("GET /{$}", newRunsPage(cfg))
	pages.Handle("GET /style.css", stylesheet())
	pages.Handle("GET /favicon.ico", http.RedirectHandler(cfg.Prefix+"favicon.ico", http.StatusFound))
	actions.mount(pages, ui)

	guard := newGate(cfg, m)
	return &Console{
		pool: cfg.Pool, river: ui,
		handler: withSecurityHeaders(cfg.Prefix, guard.wrap(refuseCrossOrigin(cfg.Logger, m, pages))),
	}, nil
}

// Handler serves every page of the console from the root, each behind the password.
func (c *Console) Handler() http.Handler { return c.handler }

// Run keeps River UI's job counts fresh until ctx ends; without it the pages work, with slower counts.
func (c *Console) Run(ctx context.Context) error {
	if err := c.river.Start(ctx); err != nil {
		return fmt.Errorf("start River UI's counters: %w", err)
	}
	<-ctx.Done()
	return nil
}

// Ready reports why the console cannot serve: its database does not answer.
func (c *Console) Ready(ctx context.Context) error {
	if err := c.pool.Ping(ctx); err != nil {
		return fmt.Errorf("ask Postgres: %w", err)
	}
	return nil
}

func (cfg Config) complete() (Config, error) {
	if cfg.User == "" {
		cfg.User = DefaultUser
	}
	if cfg.Prefix == "" {
		cfg.Prefix = DefaultPrefix
	}
	switch {
	case cfg.Pool == nil || cfg.Logger == nil || cfg.Registry == nil:
		return cfg, errors.New("the console needs a pool, a logger and a registry")
	case cfg.Password == "":
		return cfg, errors.New("the console needs a password")
	case strings.Contains(cfg.User, ":"):
		return cfg, errors.New("the console's user name holds a colon, which HTTP's basic authentication cannot carry")
	case cfg.Prefix != path.Clean("/"+cfg.Prefix)+"/" || strings.ContainsAny(cfg.Prefix, "{}%?# "):
		return cfg, fmt.Errorf("the console's prefix %q must begin and end with a slash and name a folder", cfg.Prefix)
	}
	return cfg, nil
}

// insertOnly makes a River client that is never started and knows no workers: it cannot become the leader, which would
// discard jobs of every kind that it does not know.
func insertOnly(cfg Config) (*river.Client[pgx.Tx], error) {
	client, err := river.NewClient(riverpgxv5.New(cfg.Pool), &river.Config{Schema: riverSchema, Logger: cfg.Logger})
	if err != nil {
		return nil, fmt.Errorf("make River's client: %w", err)
	}
	return client, nil
}

// contentPolicy lets a page load what it is made of from this server, and nothing from elsewhere.
const contentPolicy = "default-src 'none'; script-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; style-src 'self'"

// riverPolicy is for River UI's frontend, which writes style elements as it goes; scripts may not be inline there either.
const riverPolicy = contentPolicy + " 'unsafe-inline'"

func withSecurityHeaders(prefix string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", contentPolicy)
		if strings.HasPrefix(r.URL.Path, prefix) {
			h.Set("Content-Security-Policy", riverPolicy)
		}
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		next.ServeHTTP(&unkeptWriter{ResponseWriter: w}, r)
	})
}

// unkeptWriter says no-store unless a page says otherwise. It says so last: net/http takes Cache-Control away from what
// it believes to be an error, and River UI's pages begin as one.
type unkeptWriter struct {
	http.ResponseWriter

	begun bool
}

func (w *unkeptWriter) WriteHeader(status int) {
	w.begun = true
	if w.Header().Get("Cache-Control") == "" {
		w.Header().Set("Cache-Control", "no-store")
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *unkeptWriter) Write(b []byte) (int, error) {
	if !w.begun {
		w.WriteHeader(http.StatusOK)
	}
	return w.ResponseWriter.Write(b)
}

// refuseCrossOrigin is what keeps another site's page from cancelling jobs with the password that the browser holds.
func refuseCrossOrigin(log *slog.Logger, m *metrics, next http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	protection.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.requests.WithLabelValues("cross_origin").Inc()
		log.WarnContext(r.Context(), "refused an action that came from another site",
			slog.String("method", r.Method), slog.String("path", r.URL.EscapedPath()), slog.String("remote_address", r.RemoteAddr))
		refuse(w, http.StatusForbidden, "This action came from another site and was refused.")
	}))
	return protection.Handler(next)
}

//go:embed style.css runs.html
var files embed.FS

func stylesheet() http.Handler {
	css, err := fs.ReadFile(files, "style.css")
	if err != nil {
		panic("internal error: the stylesheet is not embedded: " + err.Error())
	}
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/css; charset=utf-8")
		_, _ = w.Write(css) // the client is gone
	})
}

// metrics are named for what an operator asks.
type metrics struct {
	requests *prometheus.CounterVec
	actions  *prometheus.CounterVec
	seconds  prometheus.Histogram
}

func newMetrics(registry prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "chargeonce", Name: "console_requests_total",
			Help: "Requests to the console, by how they were received: admitted, no_password, wrong_password, too_many_tries, cross_origin.",
		}, []string{"received"}),
		actions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "chargeonce", Name: "console_actions_total",
			Help: "Operators' actions in River UI, by action and result: done, refused, not_recorded.",
		}, []string{"action", "result"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "chargeonce", Name: "console_request_seconds", Help: "Time of one admitted request.",
			Buckets: []float64{.005, .02, .1, .5, 2, 10},
		}),
	}
	registry.MustRegister(m.requests, m.actions, m.seconds)
	return m
}

func (m *metrics) timed(start time.Time) {
	m.requests.WithLabelValues("admitted").Inc()
	m.seconds.Observe(time.Since(start).Seconds())
}
