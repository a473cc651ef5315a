package console_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"chargeonce/charger/console"
	"chargeonce/deploy/daemon"
	"chargeonce/schema"
	"chargeonce/sql"
	"chargeonce/sql/queries"
	"chargeonce/sql/sqltest"
)

func TestMain(m *testing.M) { sqltest.Main(m) }

const (
	user     = "operator"
	password = "correct horse battery staple"
)

func TestPageServedWithoutPassword(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.job(t, "cus_without_password")
	for _, target := range []string{
		"GET /", "GET /style.css", "GET /river", "GET /river/", "GET /river/jobs", "GET /river/api/jobs?state=available", "GET /river/api/queues",
		"GET /river/favicon.ico", "GET /river/robots.txt", "GET /nowhere", "HEAD /", "OPTIONS /river/api/jobs", "POST /river/api/jobs/cancel",
		"PUT /river/api/queues/charge/pause", "GET //river/api/jobs", "GET /river/../river/api/jobs",
	} {
		method, path, _ := strings.Cut(target, " ")
		answer := b.send(t, request{method: method, path: path, body: `{"ids":["1"]}`, anonymous: true})
		require.Equal(t, http.StatusUnauthorized, answer.Code, target)
		require.Contains(t, answer.Header().Get("WWW-Authenticate"), "Basic ", target)
		require.NotContains(t, answer.Body.String(), "cus_without_password", target)
	}
	require.Zero(t, b.count(t, "SELECT count(*) FROM billing.operator_actions"))
}

func TestWrongPasswordAdmitted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i, credentials := range []string{
		user + ":", user + ":wrong", ":" + password, "operator2:" + password, user + ":" + password + "x", user + ":" + password[1:],
		password + ":" + user, user + ":" + strings.ToUpper(password), "OPERATOR:" + password,
	} {
		answer := b.send(t, request{path: "/", authorization: basic(credentials), remote: fmt.Sprintf("192.0.2.%d:4711", i)})
		require.Equal(t, http.StatusUnauthorized, answer.Code, credentials)
	}
	for _, header := range []string{"Basic", "Basic !!!", "Bearer " + password, basic("no colon"), "Digest username=operator"} {
		require.Equal(t, http.StatusUnauthorized, b.send(t, request{path: "/", authorization: header}).Code, header)
	}
	require.Equal(t, http.StatusOK, b.send(t, request{path: "/"}).Code)
	require.Equal(t, http.StatusOK, b.send(t, request{path: "/river/"}).Code)
}

func TestPasswordInLog(t *testing.T) {
	t.Parallel()
	b := setup(t)
	job := b.job(t, "cus_logged")
	b.send(t, request{path: "/", authorization: basic("mistyped-name:mistyped-password")})
	b.send(t, request{path: "/", authorization: basic(password + ":" + user)})
	b.send(t, b.action("cancel", job.ID))
	evil := b.action("delete", job.ID)
	evil.header = http.Header{"Origin": {"https://evil.example"}}
	b.send(t, evil)
	log := b.log.String()
	require.Contains(t, log, "wrong user name or password")
	require.Contains(t, log, "came from another site")
	require.Contains(t, log, "operator's action")
	for _, secret := range []string{password, "mistyped", base64.StdEncoding.EncodeToString([]byte(user + ":" + password))} {
		require.NotContains(t, log, secret)
	}
}

func TestGuessingNotSlowed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	guess := func(remote, credentials string) *httptest.ResponseRecorder {
		return b.send(t, request{path: "/", authorization: basic(credentials), remote: remote})
	}
	for i := range 10 {
		require.Equal(t, http.StatusUnauthorized, guess("198.51.100.7:1000", fmt.Sprintf("operator:guess-%d", i)).Code)
	}
	refused := guess("198.51.100.7:2000", user+":"+password)
	require.Equal(t, http.StatusTooManyRequests, refused.Code, "a right guess among too many tells nothing")
	require.NotEmpty(t, refused.Header().Get("Retry-After"))
	require.Equal(t, http.StatusOK, guess("198.51.100.8:1000", user+":"+password).Code, "others go on")
}

func TestJobMissingFromList(t *testing.T) {
	t.Parallel()
	b := setup(t)
	job := b.job(t, "cus_listed")
	answer := b.send(t, request{path: "/river/api/jobs?state=available"})
	require.Equal(t, http.StatusOK, answer.Code)
	require.Equal(t, "no-store", answer.Header().Get("Cache-Control"))
	var listed struct {
		Data []struct {
			ID    json.Number `json:"id"`
			Kind  string      `json:"kind"`
			Queue string      `json:"queue"`
			Args  string      `json:"args"`
		} `json:"data"`
	}
	require.NoError(t, json.Unmarshal(answer.Body.Bytes(), &listed))
	require.Len(t, listed.Data, 1)
	require.Equal(t, fmt.Sprint(job.ID), listed.Data[0].ID.String())
	require.Equal(t, "charge_intent", listed.Data[0].Kind)
	require.Equal(t, "charge", listed.Data[0].Queue)
	require.JSONEq(t, string(job.EncodedArgs), listed.Data[0].Args)
}

func TestJobCountsNotServedWhileRunning(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.job(t, "cus_counted")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.console.Run(ctx) }()
	answer := b.send(t, request{path: "/river/api/states"})
	require.Equal(t, http.StatusOK, answer.Code)
	require.Contains(t, answer.Body.String(), "available")
	require.NoError(t, b.console.Ready(t.Context()))
	cancel()
	require.NoError(t, <-ended)
	require.Zero(t, b.count(t, "SELECT count(*) FROM river.river_leader"), "the console must never lead")
}

func TestProbesBehindPassword(t *testing.T) {
	t.Parallel()
	b := setup(t)
	health := daemon.NewHealth(slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	health.Check("postgres", b.console.Ready)
	health.Handle("/", b.console.Handler())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	server := httptest.NewUnstartedServer(nil)
	go func() { ended <- health.Serve(ctx, server.Listener) }()
	defer func() {
		cancel()
		require.NoError(t, <-ended)
	}()
	for path, want := range map[string]int{
		"/healthz": http.StatusOK, "/readyz": http.StatusOK, "/metrics": http.StatusOK, "/": http.StatusUnauthorized, "/river/": http.StatusUnauthorized,
		"/healthz/": http.StatusUnauthorized, "/metricsx": http.StatusUnauthorized,
	} {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+server.Listener.Addr().String()+path, http.NoBody)
		require.NoError(t, err)
		answer, err := http.DefaultClient.Do(req)
		require.NoError(t, err, path)
		require.NoError(t, answer.Body.Close())
		require.Equal(t, want, answer.StatusCode, path)
	}
}

func TestPageFramedOrSniffedOrKept(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, r := range []request{{path: "/"}, {path: "/river/jobs", header: http.Header{"Accept": {"text/html"}}}, {path: "/river/api/jobs"}, {path: "/", anonymous: true}} {
		answer := b.send(t, r)
		h := answer.Header()
		require.Contains(t, h.Get("Content-Security-Policy"), "frame-ancestors 'none'", r.path)
		require.Contains(t, h.Get("Content-Security-Policy"), "default-src 'none'", r.path)
		require.Contains(t, h.Get("Content-Security-Policy"), "script-src 'self';", r.path)
		require.Equal(t, "DENY", h.Get("X-Frame-Options"), r.path)
		require.Equal(t, "nosniff", h.Get("X-Content-Type-Options"), r.path)
		require.Equal(t, "same-origin", h.Get("Referrer-Policy"), r.path)
		require.Equal(t, "no-store", h.Get("Cache-Control"), r.path)
		require.NotEmpty(t, h.Get("Content-Type"), r.path)
	}
}

func TestSettingThatCannotWorkAccepted(t *testing.T) {
	t.Parallel()
	good := console.Config{
		Pool: new(pgxpool.Pool), Logger: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(), Password: password,
	}
	for name, spoil := range map[string]func(*console.Config){
		"pool":                 func(c *console.Config) { c.Pool = nil },
		"logger":               func(c *console.Config) { c.Logger = nil },
		"registry":             func(c *console.Config) { c.Registry = nil },
		"no password":          func(c *console.Config) { c.Password = "" },
		"colon in user name":   func(c *console.Config) { c.User = "a:b" },
		"prefix is root":       func(c *console.Config) { c.Prefix = "/" },
		"prefix not closed":    func(c *console.Config) { c.Prefix = "/river" },
		"prefix not opened":    func(c *console.Config) { c.Prefix = "river/" },
		"prefix with wildcard": func(c *console.Config) { c.Prefix = "/{x}/" },
		"prefix not clean":     func(c *console.Config) { c.Prefix = "/a//b/" },
	} {
		cfg := good
		spoil(&cfg)
		_, err := console.New(cfg)
		require.Error(t, err, name)
		require.NotContains(t, err.Error(), password)
	}
}

// bundle is a console on a database of its own.
type bundle struct {
	console *console.Console
	handler http.Handler
	owner   *pgxpool.Pool
	role    *pgxpool.Pool // the console's
	jobs    *river.Client[pgx.Tx]
	log     *buffer
}

func setup(t *testing.T) *bundle {
	t.Helper()
	db := sqltest.New(t)
	b := &bundle{owner: db.Pool(t, ""), role: db.Pool(t, sql.RoleConsole), log: new(buffer)}
	var err error
	b.console, err = console.New(console.Config{
		Pool: b.role, Logger: slog.New(slog.NewJSONHandler(b.log, nil)), Registry: prometheus.NewRegistry(), Password: password,
	})
	require.NoError(t, err)
	b.handler = b.console.Handler()
	b.jobs, err = river.NewClient(riverpgxv5.New(b.owner), &river.Config{Schema: "river", Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	_, err = b.owner.Exec(t.Context(), "INSERT INTO billing.namespaces (namespace, period_format) VALUES ('usage', 'month')")
	require.NoError(t, err)
	return b
}

// chargeArgs are the arguments of the charger's jobs, as they stand on the wire.
type chargeArgs struct {
	IntentID       int64  `json:"intent_id"`
	Namespace      string `json:"namespace"`
	BillingPeriod  string `json:"billing_period"`
	CustomerID     string `json:"customer_id"`
	IdempotencyKey string `json:"idempotency_key"`
}

func (chargeArgs) Kind() string { return "charge_intent" }

// job records an intent and gives it a job.
func (b *bundle) job(t *testing.T, customer string) *rivertype.JobRow {
	t.Helper()
	return b.insert(t, chargeArgs{
		IntentID: b.intent(t, customer), Namespace: "usage", BillingPeriod: "2026-08", CustomerID: customer,
		IdempotencyKey: schema.IdempotencyKey(customer, "2026-08", "usage", 1),
	})
}

func (b *bundle) insert(t *testing.T, args chargeArgs) *rivertype.JobRow {
	t.Helper()
	inserted, err := b.jobs.Insert(t.Context(), args, &river.InsertOpts{Queue: "charge"})
	require.NoError(t, err)
	return inserted.Job
}

func (b *bundle) intent(t *testing.T, customer string) (id int64) {
	t.Helper()
	require.NoError(t, b.owner.QueryRow(t.Context(), `
		INSERT INTO billing.intents (namespace, customer_id, billing_period, idempotency_key, stripe_customer_id, amount_cents, currency,
			source, source_position)
		VALUES ('usage', $1, '2026-08', $2, 'cus_stripe_' || $1, 1250, 'usd', 'file', 'august.ndjson:1') RETURNING id`,
		customer, schema.IdempotencyKey(customer, "2026-08", "usage", 1)).Scan(&id))
	return id
}

func (b *bundle) run(t *testing.T) (id int64) {
	t.Helper()
	id, err := queries.New().RunOpen(t.Context(), b.owner, queries.RunOpenParams{
		Namespace: "usage", BillingPeriod: "2026-08", Currency: "usd", ExpectedTotalCents: 1_250_000, ExpectedCount: new(int64(500)),
		HeadroomPercent: "10", CapCents: 1_375_000, OpenedBy: "operator",
	})
	require.NoError(t, err)
	return id
}

func (b *bundle) count(t *testing.T, query string) (n int64) {
	t.Helper()
	require.NoError(t, b.owner.QueryRow(t.Context(), query).Scan(&n), query)
	return n
}

func (b *bundle) state(t *testing.T, job int64) rivertype.JobState {
	t.Helper()
	row, err := b.jobs.JobGet(t.Context(), job)
	require.NoError(t, err)
	return row.State
}

// request is sent with the right password unless it says otherwise.
type request struct {
	method, path, body, authorization, remote string
	anonymous                                 bool
	header                                    http.Header
}

func (b *bundle) action(verb string, jobs ...int64) request {
	ids := make([]string, len(jobs))
	for i, id := range jobs {
		ids[i] = fmt.Sprintf("%q", fmt.Sprint(id))
	}
	return request{method: http.MethodPost, path: "/river/api/jobs/" + verb, body: `{"ids":[` + strings.Join(ids, ",") + `]}`}
}

func (b *bundle) send(t *testing.T, r request) *httptest.ResponseRecorder {
	t.Helper()
	if r.method == "" {
		r.method = http.MethodGet
	}
	req := httptest.NewRequestWithContext(t.Context(), r.method, r.path, strings.NewReader(r.body))
	maps.Copy(req.Header, r.header)
	switch {
	case r.authorization != "":
		req.Header.Set("Authorization", r.authorization)
	case !r.anonymous:
		req.SetBasicAuth(user, password)
	}
	if r.remote != "" {
		req.RemoteAddr = r.remote
	}
	answer := httptest.NewRecorder()
	b.handler.ServeHTTP(answer, req)
	return answer
}

func basic(credentials string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(credentials))
}

// buffer is a log that may be read while it is written.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
