package charger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"chargeonce/charger/stripecharge"
	"chargeonce/charger/stripecharge/stripetest"
	"chargeonce/schema"
	"chargeonce/sql/queries"
)

// stepper works one intent's job by hand: the real worker, database and stand-in, without River's clock in between.
type stepper struct {
	*bundle
	w   *worker
	id  int64
	run queries.RunGetParams
}

// outcome is what one run of a job came to.
type outcome struct {
	err     error
	snoozed bool
	wait    time.Duration // asked for by a snooze
}

// stepper records an intent in a namespace of its own, and so in a run of its own that nobody else's answer pauses.
func (b *bundle) stepper(t *testing.T, cfg Config, namespace, stripeCustomer string) *stepper {
	t.Helper()
	s := &stepper{bundle: b, run: queries.RunGetParams{Namespace: namespace, BillingPeriod: testPeriod, Currency: "usd"}}
	b.exec(t, `INSERT INTO billing.namespaces (namespace, period_format) VALUES ($1, 'month')`, namespace)
	s.id = b.record(t, namespace, stripeCustomer)
	_, _, err := b.runs(t).Open(t.Context(), OpenRun{
		Namespace: namespace, BillingPeriod: testPeriod, Currency: "usd", ExpectedTotal: "1000.00", Headroom: "10%", Actor: "test",
	})
	require.NoError(t, err)
	s.restart(t, cfg)
	return s
}

const steppedAmount = 4321

// record writes an intent as an ingestor does.
func (b *bundle) record(t *testing.T, namespace, stripeCustomer string) (id int64) {
	t.Helper()
	require.NoError(t, b.owner.QueryRow(t.Context(), `
		INSERT INTO billing.intents (namespace, customer_id, billing_period, idempotency_key, stripe_customer_id, amount_cents, currency, source, source_position)
		VALUES ($1, $2, $3, $4, $5, $6, 'usd', 'test', $2) RETURNING id`,
		namespace, stripeCustomer, testPeriod, schema.IdempotencyKey(stripeCustomer, testPeriod, namespace, 1), stripeCustomer, steppedAmount).Scan(&id))
	return id
}

// restart is another process with its own settings: nothing but the database is left of the one before.
func (s *stepper) restart(t *testing.T, cfg Config) {
	t.Helper()
	cfg.Registry = nil
	cfg.ID = fmt.Sprintf("by-hand-%d", s.id) // a test's name is longer than River takes
	c, err := New(cfg)
	require.NoError(t, err)
	s.w = &worker{Charger: c}
}

// work runs the intent's job once; a pending intent without one is dispatched first.
func (s *stepper) work(t *testing.T) outcome {
	t.Helper()
	return s.workAs(t, 1)
}

// workAs is work at one of River's attempts of the job.
func (s *stepper) workAs(t *testing.T, attempt int) outcome {
	t.Helper()
	run := s.runNow(t)
	if run.Status == "open" {
		require.NoError(t, s.w.dispatchRun(t.Context(), run.ID, true))
	}
	var jobID *int64
	require.NoError(t, s.owner.QueryRow(t.Context(), `SELECT river_job_id FROM billing.intents WHERE id = $1`, s.id).Scan(&jobID))
	if jobID == nil {
		return outcome{}
	}
	job := &river.Job[ChargeArgs]{
		JobRow: &rivertype.JobRow{ID: *jobID, Attempt: attempt, MaxAttempts: maxJobAttempts}, Args: ChargeArgs{IntentID: s.id},
	}
	o := outcome{err: s.w.Work(t.Context(), job)}
	if snooze, ok := errors.AsType[*rivertype.JobSnoozeError](o.err); ok {
		return outcome{snoozed: true, wait: snooze.Duration}
	}
	return o
}

func (s *stepper) runNow(t *testing.T) queries.BillingRun {
	t.Helper()
	run, err := queries.New().RunGet(t.Context(), s.owner, s.run)
	require.NoError(t, err)
	return run
}

func (s *stepper) now(t *testing.T) intentNow {
	t.Helper()
	return s.intent(t, s.id)
}

// age lets the time pass for this intent alone: the stand-in's clock, which others share, stands still.
func (s *stepper) age(t *testing.T, d time.Duration) {
	t.Helper()
	s.ageRows(t, s.id, d)
}

// toRest works the intent until it is where nothing moves it any more, resuming its run if that was paused.
func (s *stepper) toRest(t *testing.T) intentNow {
	t.Helper()
	for range 12 {
		in := s.now(t)
		if in.Status != string(schema.StatusPending) && in.Status != string(schema.StatusCharging) {
			return in
		}
		s.age(t, 2*time.Minute)
		if s.runNow(t).Status == "paused" {
			_, err := s.runs(t).Resume(t.Context(), s.run, "test", "mended")
			require.NoError(t, err)
		}
		s.work(t)
	}
	in := s.now(t)
	require.Fail(t, "the intent does not come to rest", "%+v", in)
	return in
}

// key is the idempotency key of the intent's first generation, which its charges carry home.
func (s *stepper) key(t *testing.T) string {
	t.Helper()
	var key string
	require.NoError(t, s.owner.QueryRow(t.Context(), `SELECT idempotency_key FROM billing.intents WHERE id = $1`, s.id).Scan(&key))
	return key
}

// posts are the creates that Stripe saw for this intent.
func (s *stepper) posts(t *testing.T) []stripetest.Request {
	t.Helper()
	key := s.key(t)
	return slices.DeleteFunc(s.stripe.Requests(), func(r stripetest.Request) bool {
		return r.Method != http.MethodPost || r.Form.Get("metadata[intent_key]") != key
	})
}

// listings are the lists that Stripe was asked for, of this intent's customer.
func (s *stepper) listings(t *testing.T) int {
	t.Helper()
	customer, n := s.customer(t), 0
	for _, r := range s.stripe.Requests() {
		if r.Method == http.MethodGet && r.Form.Get("customer") == customer {
			n++
		}
	}
	return n
}

func (s *stepper) customer(t *testing.T) string {
	t.Helper()
	var customer string
	require.NoError(t, s.owner.QueryRow(t.Context(), `SELECT stripe_customer_id FROM billing.intents WHERE id = $1`, s.id).Scan(&customer))
	return customer
}

// charges are the movements of money in the stand-in's ledger for this intent.
func (s *stepper) charges(t *testing.T) []stripetest.Effect {
	t.Helper()
	key := s.key(t)
	return slices.DeleteFunc(s.stripe.Charges(), func(e stripetest.Effect) bool { return e.Metadata[stripecharge.MetadataIntentKey] != key })
}

// requireOnce holds the intent against the ledger: one charge of its amount, and no more than that.
func (s *stepper) requireOnce(t *testing.T) {
	t.Helper()
	in := s.now(t)
	require.Equal(t, "charged", in.Status, "%+v", in)
	charges := s.charges(t)
	require.Len(t, charges, 1)
	require.Equal(t, int64(steppedAmount), charges[0].Amount)
	require.Equal(t, charges[0].ID, *in.ChargeID)
	require.Zero(t, in.Unresolved, "%+v", in)
}

// fault scripts what strikes the intent's next create at the stand-in; several are taken in their order.
func (s *stepper) fault(t *testing.T, f stripetest.Fault) {
	t.Helper()
	f.Match.Method, f.Match.IntentKey, f.Count = http.MethodPost, s.key(t), 1
	require.NoError(t, s.stripe.AddFaults(f))
}

// gateway stands between a charger and the stand-in, and can refuse connections.
type gateway struct {
	URL    string
	target string

	mu       sync.Mutex
	listener net.Listener
	open     map[net.Conn]bool
	refusing bool
	busy     sync.WaitGroup
}

func startGateway(t *testing.T, target string) *gateway {
	t.Helper()
	g := &gateway{target: strings.TrimPrefix(target, "http://"), open: map[net.Conn]bool{}}
	g.accept(t, "127.0.0.1:0")
	g.URL = "http://" + g.listener.Addr().String()
	t.Cleanup(g.refuse)
	return g
}

// accept takes connections, after a refusal at the same address again.
func (g *gateway) accept(t *testing.T, address string) {
	t.Helper()
	var listen net.ListenConfig
	listener, err := listen.Listen(context.WithoutCancel(t.Context()), "tcp", address)
	require.NoError(t, err)
	g.mu.Lock()
	g.listener, g.refusing = listener, false
	g.mu.Unlock()
	g.busy.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			g.busy.Go(func() { g.forward(c) })
		}
	})
}

func (g *gateway) again(t *testing.T) {
	t.Helper()
	g.accept(t, strings.TrimPrefix(g.URL, "http://"))
}

// refuse closes the listener and every connection, and waits until nothing is left of them.
func (g *gateway) refuse() {
	g.mu.Lock()
	g.refusing = true
	_ = g.listener.Close()
	for c := range g.open {
		_ = c.Close()
	}
	g.mu.Unlock()
	g.busy.Wait()
}

func (g *gateway) forward(c net.Conn) {
	up, err := new(net.Dialer).DialContext(context.Background(), "tcp", g.target)
	if err != nil {
		_ = c.Close()
		return
	}
	g.mu.Lock()
	if g.refusing {
		g.mu.Unlock()
		_, _ = c.Close(), up.Close()
		return
	}
	g.open[c], g.open[up] = true, true
	g.mu.Unlock()
	both := func() {
		_, _ = c.Close(), up.Close()
		g.mu.Lock()
		delete(g.open, c)
		delete(g.open, up)
		g.mu.Unlock()
	}
	var done sync.WaitGroup
	done.Go(func() { _, _ = io.Copy(up, c); both() })
	done.Go(func() { _, _ = io.Copy(c, up); both() })
	done.Wait()
}

// chargeByHand charges the customer's default source as somebody with the account's key does, without our metadata, and
// returns the charge's id.
func (b *bundle) chargeByHand(t *testing.T, stripeCustomer string, amountCents int64) string {
	t.Helper()
	form := url.Values{"amount": {fmt.Sprint(amountCents)}, "currency": {"usd"}, "customer": {stripeCustomer}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.stripe.URL+"/v1/charges", strings.NewReader(form.Encode()))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer sk_test_by_hand")
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { require.NoError(t, res.Body.Close()) }()
	var made struct{ ID string }
	require.NoError(t, json.NewDecoder(res.Body).Decode(&made))
	require.NotEmpty(t, made.ID)
	return made.ID
}

// startDroppingProxy passes everything on but the idempotency key.
func startDroppingProxy(t *testing.T, target string) (address string) {
	t.Helper()
	stripe, err := url.Parse(target)
	require.NoError(t, err)
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(stripe)
			r.Out.Header.Del("Idempotency-Key")
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }, // as the connection ended
	}
	server := httptest.NewServer(proxy)
	t.Cleanup(server.Close)
	return server.URL
}

// namespaceOf makes a namespace of a test's name.
func namespaceOf(words ...any) string {
	text := strings.ToLower(fmt.Sprint(words...))
	text = strings.Map(func(r rune) rune {
		if (r >= 'a' && r <= 'z') || (r >= '0' && r <= '9') {
			return r
		}
		return '-'
	}, text)
	return strings.Trim(text[:min(len(text), 60)], "-")
}
