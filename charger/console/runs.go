package console

import (
	"bytes"
	"context"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"chargeonce/schema"
	"chargeonce/sql/queries"
)

const (
	// maxRuns is how many of the latest runs are shown.
	maxRuns = 50
	// figuresTimeout bounds the counting: a run may hold millions of intents.
	figuresTimeout = 20 * time.Second
	// figuresAge is how old the shown figures may be, so that a page that many reload counts once.
	figuresAge = 5 * time.Second
)

// runsPage shows what was expected of each billing run, what came, and what was charged.
type runsPage struct {
	log     *slog.Logger
	pool    *pgxpool.Pool
	queries *queries.Queries
	page    *template.Template
	prefix  string

	mu      sync.Mutex // held while counting: readers wait for one count instead of starting their own
	figures figures
	err     error
}

func newRunsPage(cfg Config) *runsPage {
	page := template.Must(template.New("runs.html").Funcs(template.FuncMap{
		"money": schema.FormatAmount,
		"utc":   func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") },
		"iso":   func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
	}).ParseFS(files, "runs.html"))
	return &runsPage{log: cfg.Logger, pool: cfg.Pool, queries: queries.New(), page: page, prefix: cfg.Prefix}
}

// ServeHTTP answers 503 with the page's frame while the database cannot count.
func (p *runsPage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	shown, err := p.latest(r.Context())
	status := http.StatusOK
	if err != nil {
		status = http.StatusServiceUnavailable
		p.log.ErrorContext(r.Context(), "the billing runs cannot be shown", slog.Any("error", err))
	}
	var body bytes.Buffer
	if err := p.page.Execute(&body, pageData{figures: shown, Failed: err != nil, River: p.prefix, Queue: queue, MaxRuns: maxRuns}); err != nil {
		p.log.ErrorContext(r.Context(), "the page of billing runs cannot be written", slog.Any("error", err))
		refuse(w, http.StatusInternalServerError, "The page cannot be written.")
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(body.Bytes()) // the client is gone
}

// pageData is what runs.html shows.
type pageData struct {
	figures

	Failed  bool
	River   string // prefix of River UI
	Queue   string
	MaxRuns int
}

type figures struct {
	Runs    []queries.RunStatusListRow
	Without []queries.WithoutRunListRow // money that waits for a run
	Switch  queries.ChargingSwitchGetRow
	At      time.Time
}

func (p *runsPage) latest(ctx context.Context) (figures, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.figures.At) < figuresAge {
		return p.figures, p.err
	}
	// Others get these figures too, so they are counted to the end even if this reader leaves.
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), figuresTimeout, fmt.Errorf("counting took longer than %s", figuresTimeout))
	defer cancel()
	p.figures, p.err = p.count(ctx)
	p.figures.At = time.Now()
	return p.figures, p.err
}

func (p *runsPage) count(ctx context.Context) (f figures, err error) {
	err = pgx.BeginTxFunc(ctx, p.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if f.Runs, err = p.queries.RunStatusList(ctx, tx, maxRuns); err != nil {
			return fmt.Errorf("read the billing runs: %w", err)
		}
		if f.Without, err = p.queries.WithoutRunList(ctx, tx); err != nil {
			return fmt.Errorf("read what waits for a run: %w", err)
		}
		if f.Switch, err = p.queries.ChargingSwitchGet(ctx, tx); err != nil {
			return fmt.Errorf("read the charging switch: %w", err)
		}
		return nil
	})
	return f, err
}
