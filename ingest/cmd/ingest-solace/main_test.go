//go:build cgo

package main

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"chargeonce/ingest/solace/solacetest"
	"chargeonce/sql/sqltest"
)

// asProgram makes the test binary be the program: what is tested is main itself, in a process of its own.
const asProgram = "INGEST_SOLACE_TEST_RUN_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	sqltest.Main(m)
}

const (
	queueName = "billing-events"
	patience  = 90 * time.Second
	beat      = 20 * time.Millisecond
)

// program is one process of the program.
type program struct {
	*exec.Cmd
	stderr *output
	ended  chan struct{}
}

func start(t *testing.T, env map[string]string, args ...string) *program {
	t.Helper()
	p := prepareProgram(t, env, args...)
	p.run(t)
	return p
}

func prepareProgram(t *testing.T, env map[string]string, args ...string) *program {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	command := exec.CommandContext(context.WithoutCancel(t.Context()), self, args...) //nolint:gosec // ourselves
	p := &program{Cmd: command, stderr: &output{}, ended: make(chan struct{})}
	p.Env = []string{asProgram + "=1", "PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}
	for name, value := range env {
		p.Env = append(p.Env, name+"="+value)
	}
	p.Stdout, p.Stderr = p.stderr, p.stderr
	return p
}

func (p *program) run(t *testing.T) {
	t.Helper()
	require.NoError(t, p.Start())
	go func() {
		_ = p.Wait() // the state is read from ProcessState
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("process %d (%s):\n%s", p.Process.Pid, p.ProcessState, p.stderr.tail(8000))
		}
	})
}

func (p *program) kill() {
	_ = p.Process.Kill() // it may have ended
	<-p.ended
}

// exit waits for the end and returns the code.
func (p *program) exit(t *testing.T) int {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		t.Fatalf("the program did not end: %s", p.stderr.tail(4000))
	}
	return p.ProcessState.ExitCode()
}

type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

func (o *output) tail(n int) string {
	text := o.String()
	return text[max(0, len(text)-n):]
}

// settings are right ones for a broker and a database.
func rightSettings(broker *solacetest.Server, databaseURL string) map[string]string {
	return map[string]string{
		"DATABASE_URL": databaseURL, "SOLACE_HOST": broker.URL(), "SOLACE_VPN": broker.VPN(), "SOLACE_QUEUE": queueName,
		"SOLACE_USER": "ingest", "SOLACE_PASSWORD": "topsecret", "BILLING_NAMESPACE": "usage", "LISTEN": "127.0.0.1:0",
	}
}

func startBroker(t *testing.T) *solacetest.Server {
	t.Helper()
	s, err := solacetest.Start(solacetest.Config{
		Queues: []solacetest.Queue{{Name: queueName, Subscriptions: []string{"billing/events/>"}}},
		Users:  map[string]string{"ingest": "topsecret"},
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		require.Empty(t, s.Violations())
	})
	return s
}

func TestWrongSettingsSayWhichInOneSentence(t *testing.T) {
	t.Parallel()
	broker := startBroker(t)
	forbidding := startBroker(t)
	require.NoError(t, forbidding.Inject(solacetest.Fault{Kind: solacetest.FaultRefuseBind, Code: 403, Text: "Permission Not Allowed"}))
	shuttingOut := startBroker(t)
	require.NoError(t, shuttingOut.Inject(solacetest.Fault{Kind: solacetest.FaultRefuseLogin, Code: 403, Text: "Basic Authentication Is Shutdown"}))
	db, empty, taken := sqltest.New(t), sqltest.NewEmpty(t), sqltest.New(t)
	_, err := taken.Pool(t, "").Exec(t.Context(), "INSERT INTO billing.namespaces (namespace, period_format) VALUES ('usage', 'day')")
	require.NoError(t, err)
	missing := filepath.Join(t.TempDir(), "missing")

	for title, test := range map[string]struct {
		change map[string]string
		args   []string
		want   []string // all in the sentence
	}{
		"no database":            {map[string]string{"DATABASE_URL": ""}, nil, []string{"DATABASE_URL", "is not set"}},
		"unmigrated database":    {map[string]string{"DATABASE_URL": empty.URL}, nil, []string{"DATABASE_URL", "migrate up"}},
		"no host":                {map[string]string{"SOLACE_HOST": ""}, nil, []string{"SOLACE_HOST", "is not set"}},
		"host of another kind":   {map[string]string{"SOLACE_HOST": "https://broker"}, nil, []string{"SOLACE_HOST", "https://broker", "tcps://"}},
		"two ports":              {map[string]string{"SOLACE_HOST": "tcps://broker:55443:55443"}, nil, []string{"SOLACE_HOST", "tcps://broker:55443:55443"}},
		"impossible port":        {map[string]string{"SOLACE_HOST": "tcps://broker:554430"}, nil, []string{"SOLACE_HOST", "tcps://broker:554430"}},
		"password in host":       {map[string]string{"SOLACE_HOST": "tcp://u:topsecret@broker"}, nil, []string{"SOLACE_HOST", "...@broker"}}, //nolint:gosec // a made-up password, which must not be shown
		"no vpn":                 {map[string]string{"SOLACE_VPN": ""}, nil, []string{"SOLACE_VPN", "is not set"}},
		"unknown vpn":            {map[string]string{"SOLACE_VPN": "nothere"}, nil, []string{"SOLACE_VPN", "no such message VPN"}},
		"no queue":               {map[string]string{"SOLACE_QUEUE": ""}, nil, []string{"SOLACE_QUEUE", "is not set"}},
		"impossible queue":       {map[string]string{"SOLACE_QUEUE": "a*b"}, nil, []string{"SOLACE_QUEUE", "a*b"}},
		"unknown queue":          {map[string]string{"SOLACE_QUEUE": "nothere"}, nil, []string{"SOLACE_QUEUE", "does not exist", "nothere"}},
		"no permission":          {map[string]string{"SOLACE_HOST": forbidding.URL()}, nil, []string{"SOLACE_QUEUE", "may not consume", "permission"}},
		"no user":                {map[string]string{"SOLACE_USER": ""}, nil, []string{"SOLACE_USER", "is not set"}},
		"no password":            {map[string]string{"SOLACE_PASSWORD": ""}, nil, []string{"SOLACE_PASSWORD", "is not set"}},
		"no password file":       {map[string]string{"SOLACE_PASSWORD": "", "SOLACE_PASSWORD_FILE": missing}, nil, []string{"SOLACE_PASSWORD_FILE", missing}},
		"wrong password":         {map[string]string{"SOLACE_PASSWORD": "wrong"}, nil, []string{"SOLACE_PASSWORD", "refuses the credentials"}},
		"basic is not let in":    {map[string]string{"SOLACE_HOST": shuttingOut.URL()}, nil, []string{"SOLACE_USER", "refuses the credentials"}},
		"unknown auth":           {map[string]string{"SOLACE_AUTH": "kerberos"}, nil, []string{"--auth", "kerberos"}},
		"no token":               {map[string]string{"SOLACE_AUTH": "oauth"}, nil, []string{"SOLACE_OAUTH_TOKEN", "is not set"}},
		"no certificate":         {map[string]string{"SOLACE_AUTH": "certificate"}, nil, []string{"SOLACE_CLIENT_CERT", "is not set"}},
		"certificate not there":  {map[string]string{"SOLACE_AUTH": "certificate", "SOLACE_CLIENT_CERT": missing, "SOLACE_CLIENT_KEY": missing}, nil, []string{"SOLACE_CLIENT_CERT", missing}},
		"trust store not there":  {map[string]string{"SOLACE_HOST": "tcps://broker", "SOLACE_TRUST_STORE": missing}, nil, []string{"SOLACE_TRUST_STORE", missing}},
		"no namespace":           {map[string]string{"BILLING_NAMESPACE": ""}, nil, []string{"BILLING_NAMESPACE", "is not set"}},
		"bad namespace":          {map[string]string{"BILLING_NAMESPACE": "Usage Billing"}, nil, []string{"BILLING_NAMESPACE", "Usage Billing"}},
		"namespace read by days": {map[string]string{"DATABASE_URL": taken.URL}, nil, []string{"BILLING_NAMESPACE", `"day"`, `"month"`}},
		"bad mapping":            {nil, []string{"--map", "customer=/x"}, []string{"--map", "customer"}},
		"batch too large":        {nil, []string{"--batch-size", "5000"}, []string{"--batch-size cannot be 5000", "1000"}},
		"no connections":         {nil, []string{"--database-conns=0"}, []string{"--database-conns cannot be 0"}},
		"negative grace":         {nil, []string{"--stop-grace=-1s"}, []string{"--stop-grace cannot be -1s"}},
		"no silence":             {nil, []string{"--silent-after=0s"}, []string{"--silent-after cannot be 0s"}},
		"address in use":         {map[string]string{"LISTEN": broker.Addr()}, nil, []string{"--listen", broker.Addr()}},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			env := rightSettings(broker, db.URL)
			maps.Copy(env, test.change)
			p := start(t, env, test.args...)
			require.Equal(t, 2, p.exit(t), p.stderr)
			said := lastLine(p.stderr.String())
			require.True(t, strings.HasPrefix(said, name+": "), said)
			for _, want := range test.want {
				require.Contains(t, said, want)
			}
			require.NotContains(t, p.stderr.String(), "goroutine ")
			require.NotContains(t, p.stderr.String(), "topsecret")
		})
	}
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

func TestRightSettingsPassTheCheck(t *testing.T) {
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(secret, []byte("x\n"), 0o600))
	p := start(t, map[string]string{
		"DATABASE_URL": "postgres://db.example:5432/billing", "SOLACE_HOST": "tcp://a.example:55555,b.example", "SOLACE_VPN": "billing",
		"SOLACE_QUEUE": queueName, "SOLACE_USER": "ingest", "SOLACE_PASSWORD_FILE": secret, "BILLING_NAMESPACE": "usage",
	}, "--check-config", "--map", "customer_id=/subject", "--map", "amount_cents=/data/total")
	require.Equal(t, 0, p.exit(t), p.stderr)
	require.Contains(t, p.stderr.String(), "the settings are fine")
}

// What may pass is waited for at the first start too.
func TestFirstStartWaitsForWhatMayPass(t *testing.T) {
	t.Parallel()
	for title, fault := range map[string]solacetest.Fault{
		"broker away":   {Kind: solacetest.FaultRefuseConnection},
		"queue shut":    {Kind: solacetest.FaultRefuseBind, Text: "Queue Shutdown"},
		"queue is full": {Kind: solacetest.FaultRefuseBind, Text: "Max clients exceeded for queue"},
		"vpn not ready": {Kind: solacetest.FaultRefuseLogin, Text: "Message VPN Unavailable"},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			broker, db := startBroker(t), sqltest.New(t)
			require.NoError(t, broker.Inject(fault))
			p := start(t, rightSettings(broker, db.URL))
			require.True(t, waitFor(t.Context(), func() bool { return strings.Contains(p.stderr.String(), "cannot be bound yet") }), p.stderr)
			require.NoError(t, broker.Inject(solacetest.Fault{Kind: solacetest.FaultClear}))
			publish(t, broker, 0, 10)
			await(t, db.Pool(t, ""), 10, countIntents)
			require.NoError(t, p.Process.Signal(syscall.SIGTERM))
			require.Equal(t, 0, p.exit(t))
		})
	}
}

const countIntents = "SELECT count(*) FROM billing.intents"

// await polls until the query gives want.
func await(t *testing.T, pool *pgxpool.Pool, want int64, query string) {
	t.Helper()
	var got int64
	var err error
	ok := waitFor(t.Context(), func() bool {
		err = pool.QueryRow(t.Context(), query).Scan(&got)
		return err == nil && got == want
	})
	require.True(t, ok, "%s: %d (%v), want %d", query, got, err, want)
}

func waitFor(ctx context.Context, condition func() bool) bool {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("patience"))
	defer cancel()
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for !condition() {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return true
}
