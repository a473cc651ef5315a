package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	// checkTimeout bounds one readiness check; Kubernetes gives a probe 1 s by default, so programs' checks should be quick.
	checkTimeout = 2 * time.Second
	// drainTimeout is what open requests get when the program ends.
	drainTimeout      = 5 * time.Second
	readHeaderTimeout = 5 * time.Second
)

// Health serves /healthz (the process runs), /readyz (it can work: every named check passes) and /metrics. Its methods
// may be called from any goroutine.
type Health struct {
	log      *slog.Logger
	registry *prometheus.Registry
	mux      *http.ServeMux

	mu     sync.Mutex
	checks []check
	ending bool
}

type check struct {
	name string
	ask  func(context.Context) error
}

// NewHealth serves the metrics of registry.
func NewHealth(log *slog.Logger, registry *prometheus.Registry) *Health {
	h := &Health{log: log, registry: registry, mux: http.NewServeMux()}
	h.mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"status": "running"})
	})
	h.mux.HandleFunc("GET /readyz", h.ready)
	h.mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{Registry: registry}))
	return h
}

// Check adds a condition of readiness. ask gets 2 s; its error is shown as the reason, so it must hold no secret.
func (h *Health) Check(name string, ask func(context.Context) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checks = append(h.checks, check{name, ask})
}

// Handle adds further pages, such as the console's.
func (h *Health) Handle(pattern string, handler http.Handler) { h.mux.Handle(pattern, handler) }

// Ending makes /readyz say no from now on, for a program that finishes its last work while its figures can still be read.
func (h *Health) Ending() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ending = true
}

// ListenAndServe serves until ctx ends, then lets open requests finish for up to 5 s. A listen address that cannot work is
// a SettingError.
func (h *Health) ListenAndServe(ctx context.Context, listen string) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", listen)
	if err != nil {
		problem := err
		if op, ok := errors.AsType[*net.OpError](err); ok {
			problem = op.Err
		}
		return &SettingError{Setting: "--listen", Problem: fmt.Sprintf("%s cannot be listened on (%s)", listen, problem), Cure: "give another HOST:PORT"}
	}
	return h.Serve(ctx, l)
}

// Serve is ListenAndServe on a listener, which it closes.
func (h *Health) Serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler: h.mux, ReadHeaderTimeout: readHeaderTimeout, ErrorLog: slog.NewLogLogger(h.log.Handler(), slog.LevelWarn),
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	h.log.InfoContext(ctx, "serving health and metrics", slog.String("address", l.Addr().String()))
	select {
	case err := <-failed:
		return fmt.Errorf("serve health and metrics on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	if err := server.Shutdown(drain); err != nil {
		return errors.Join(fmt.Errorf("end health and metrics: %w", err), server.Close())
	}
	return nil
}

// readiness is the body of /readyz.
type readiness struct {
	Ready  bool     `json:"ready"`
	Checks []result `json:"checks"`
}

type result struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Reason string `json:"reason,omitempty"`
}

func (h *Health) ready(w http.ResponseWriter, r *http.Request) {
	answer := h.ask(r.Context())
	status := http.StatusOK
	if !answer.Ready {
		status = http.StatusServiceUnavailable
	}
	writeJSON(w, status, answer)
}

func (h *Health) ask(ctx context.Context) readiness {
	h.mu.Lock()
	checks, ending := slices.Clone(h.checks), h.ending
	h.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, checkTimeout, fmt.Errorf("no answer within %s", checkTimeout))
	defer cancel()

	results := make([]result, len(checks))
	var wg sync.WaitGroup
	for i, c := range checks {
		wg.Go(func() { results[i] = c.run(ctx) })
	}
	wg.Wait()
	slices.SortFunc(results, func(a, b result) int { return strings.Compare(a.Name, b.Name) })
	if ending {
		results = append(results, result{Name: "process", Reason: "is ending"})
	}
	return readiness{
		Ready:  !slices.ContainsFunc(results, func(r result) bool { return !r.OK }),
		Checks: results,
	}
}

// run does not wait for a check that ignores its context.
func (c check) run(ctx context.Context) result {
	answer := make(chan error, 1)
	go func() { answer <- c.ask(ctx) }()
	var err error
	select {
	case err = <-answer:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		return result{Name: c.name, Reason: err.Error()}
	}
	return result{Name: c.name, OK: true}
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client is gone
}

func newRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewBuildInfoCollector(),
	)
	return registry
}
