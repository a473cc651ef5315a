package e2e_test

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"chargeonce/charger/console"
	"chargeonce/schema"
	"chargeonce/sql"
	"chargeonce/sql/queries"
	"chargeonce/sql/sqltest"
)

func TestMain(m *testing.M) { sqltest.Main(m) }

// target is a console to look at, and a job that its operator must find there.
type target struct {
	url, user, password string // url without a slash at its end
	state               string // River's state of the job
	jobID               int64
	customer            string
}

// list is the page with the job among others.
func (at target) list() string { return fmt.Sprintf("%s/river/jobs?state=%s", at.url, at.state) }

func TestOperatorFindsJobInBrowserAndStrangerIsRefused(t *testing.T) {
	t.Parallel()
	stranger, operator := startBrowser(t), startBrowser(t)
	at, given := givenTarget(t, os.Getenv)
	if !given {
		at = newConsole(t).target
	}
	refuseStranger(t, stranger, at)
	seeJob(t, operator, at)
}

// refuseStranger looks for the job without the password.
func refuseStranger(t *testing.T, b *browser, at target) {
	t.Helper()
	for _, page := range []string{at.url + "/", at.list(), fmt.Sprintf("%s/river/api/jobs?state=%s", at.url, at.state)} {
		b.open(t, page, "needs a user name and a password")
		require.Equal(t, http.StatusUnauthorized, b.status(page))
		require.NotContains(t, b.text(t), at.customer)
		require.NotContains(t, b.text(t), "charge_intent")
	}
}

// seeJob walks the console as an operator does: the runs, the list of jobs, the job.
func seeJob(t *testing.T, b *browser, at target) {
	t.Helper()
	b.login(at.user, at.password)
	b.open(t, at.url+"/", "Billing runs", "jobs to be retried")
	b.open(t, at.list(), "charge_intent", at.customer)
	require.Equal(t, http.StatusOK, b.status(at.list()))
	b.do(t, "open the job", chromedp.Click(chromedp.CSS(fmt.Sprintf(`a[href$="/river/jobs/%d"]`, at.jobID))))
	b.see(t, at.customer, "Attempts", "idempotency_key")
	b.open(t, at.url+"/river/queues", "Queues")
	b.open(t, at.url+"/river/settings", "Settings")
	b.requireQuiet(t, at.url)
}

func TestOperatorCancelsJobInBrowser(t *testing.T) {
	t.Parallel()
	b := startBrowser(t)
	c := newConsole(t)
	b.login(c.user, c.password)
	b.open(t, fmt.Sprintf("%s/river/jobs/%d", c.url, c.jobID), c.customer)
	b.do(t, "cancel the job", chromedp.Click(chromedp.Search(`//button[contains(., "Cancel")]`), chromedp.NodeEnabled))
	require.Eventually(t, func() bool { return c.jobState(t) == rivertype.JobStateCancelled }, stepTimeout, 50*time.Millisecond)
	var actions int
	require.NoError(t, c.owner.QueryRow(t.Context(), `SELECT count(*) FROM billing.operator_actions
		WHERE actor = $1 AND action = 'river_job_cancel' AND detail->'job_ids' ? $2`, c.user, fmt.Sprint(c.jobID)).Scan(&actions))
	require.Equal(t, 1, actions)
	b.see(t, "Cancelled")
	b.requireQuiet(t, c.url)
}

func TestGivenConsoleIsFound(t *testing.T) {
	t.Parallel()
	c := newConsole(t)
	env := map[string]string{"E2E_CONSOLE_URL": c.url + "/", "CONSOLE_PASSWORD": c.password, "E2E_JOB_STATE": c.state}
	at, given := givenTarget(t, func(name string) string { return env[name] })
	require.True(t, given)
	require.Equal(t, c.target, at)
	_, given = givenTarget(t, func(string) string { return "" })
	require.False(t, given)
}

// testConsole is a console of the test's own, with a job in its database.
type testConsole struct {
	target

	owner *pgxpool.Pool
	jobs  *river.Client[pgx.Tx]
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

func newConsole(t *testing.T) testConsole {
	t.Helper()
	user, password := "operator", rand.Text()
	db := sqltest.New(t)
	page, err := console.New(console.Config{
		Pool: db.Pool(t, sql.RoleConsole), Logger: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(),
		User: user, Password: password,
	})
	require.NoError(t, err)
	server := httptest.NewServer(page.Handler())
	t.Cleanup(server.Close)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- page.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})

	c := testConsole{owner: db.Pool(t, "")}
	c.jobs, err = river.NewClient(riverpgxv5.New(c.owner), &river.Config{Schema: "river", Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	c.target = target{url: server.URL, user: user, password: password, state: "available", customer: "cus_seen_by_operator"}
	c.jobID = c.recordJob(t, c.customer)
	return c
}

// recordJob makes a billing run with one intent and its job.
func (c testConsole) recordJob(t *testing.T, customer string) int64 {
	t.Helper()
	const namespace, period = "usage", "2026-08"
	key := schema.IdempotencyKey(customer, period, namespace, 1)
	_, err := c.owner.Exec(t.Context(), "INSERT INTO billing.namespaces (namespace, period_format) VALUES ($1, 'month')", namespace)
	require.NoError(t, err)
	_, err = queries.New().RunOpen(t.Context(), c.owner, queries.RunOpenParams{
		Namespace: namespace, BillingPeriod: period, Currency: "usd", ExpectedTotalCents: 1_250_000, ExpectedCount: new(int64(500)),
		HeadroomPercent: "10", CapCents: 1_375_000, OpenedBy: "operator",
	})
	require.NoError(t, err)
	var intent int64
	require.NoError(t, c.owner.QueryRow(t.Context(), `
		INSERT INTO billing.intents (namespace, customer_id, billing_period, idempotency_key, stripe_customer_id, amount_cents, currency,
			source, source_position)
		VALUES ($1, $2, $3, $4, $2, 1250, 'usd', 'file', 'august.ndjson:1') RETURNING id`, namespace, customer, period, key).Scan(&intent))
	inserted, err := c.jobs.Insert(t.Context(), chargeArgs{
		IntentID: intent, Namespace: namespace, BillingPeriod: period, CustomerID: customer, IdempotencyKey: key,
	}, &river.InsertOpts{Queue: "charge"})
	require.NoError(t, err)
	return inserted.Job.ID
}

func (c testConsole) jobState(t *testing.T) rivertype.JobState {
	t.Helper()
	job, err := c.jobs.JobGet(t.Context(), c.jobID)
	require.NoError(t, err)
	return job.State
}

// givenTarget is the console of a running installation, such as a demo's: E2E_CONSOLE_URL says where it is,
// CONSOLE_USER and CONSOLE_PASSWORD open it, and E2E_JOB_STATE (completed) says which job to look for: the newest.
func givenTarget(t *testing.T, getenv func(string) string) (target, bool) {
	t.Helper()
	at := target{
		url: strings.TrimSuffix(getenv("E2E_CONSOLE_URL"), "/"), user: cmp.Or(getenv("CONSOLE_USER"), console.DefaultUser),
		password: getenv("CONSOLE_PASSWORD"), state: cmp.Or(getenv("E2E_JOB_STATE"), "completed"),
	}
	if at.url == "" {
		return at, false
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at.url+"/river/api/jobs?limit=20&state="+at.state, http.NoBody)
	require.NoError(t, err)
	request.SetBasicAuth(at.user, at.password)
	answer, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer answer.Body.Close()
	require.Equal(t, http.StatusOK, answer.StatusCode, "the console at %s", at.url)
	var listed struct {
		Data []struct {
			ID   json.Number `json:"id"`
			Kind string      `json:"kind"`
			Args string      `json:"args"`
		} `json:"data"`
	}
	require.NoError(t, json.NewDecoder(answer.Body).Decode(&listed))
	var args chargeArgs
	for _, job := range listed.Data { // comparisons with Stripe are jobs too
		if job.Kind != args.Kind() {
			continue
		}
		require.NoError(t, json.Unmarshal([]byte(job.Args), &args))
		at.jobID, err = job.ID.Int64()
		require.NoError(t, err)
		break
	}
	at.customer = args.CustomerID
	require.NotEmpty(t, at.customer, "a charge's job that is %s at %s", at.state, at.url)
	return at, true
}
