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

	"chargeonce/ingest/eventhubs/eventhubstest"
	"chargeonce/sql/sqltest"
)

// asProgram makes the test binary be the program: what is tested is main itself, in a process of its own.
const asProgram = "INGEST_EVENTHUBS_TEST_RUN_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	sqltest.Main(m)
}

const (
	hubName  = "billing"
	patience = 90 * time.Second
	beat     = 50 * time.Millisecond
)

// program is one process of the program.
type program struct {
	*exec.Cmd
	stderr *output
	ended  chan struct{}
}

func start(t *testing.T, env map[string]string, args ...string) *program {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	return startFile(t, self, env, args...)
}

// startFile starts the program of a file: this very binary, or one built for the test.
func startFile(t *testing.T, file string, env map[string]string, args ...string) *program {
	t.Helper()
	command := exec.CommandContext(context.WithoutCancel(t.Context()), file, args...) //nolint:gosec // see above
	p := &program{Cmd: command, stderr: &output{}, ended: make(chan struct{})}
	p.Env = []string{asProgram + "=1", "PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}
	for name, value := range env {
		p.Env = append(p.Env, name+"="+value)
	}
	p.Stdout, p.Stderr = p.stderr, p.stderr
	require.NoError(t, p.Start())
	go func() {
		_ = p.Wait() // the state is read from ProcessState
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.Process.Kill() // most have ended
		<-p.ended
		if t.Failed() {
			t.Logf("process %d (%s):\n%s", p.Process.Pid, p.ProcessState, p.stderr.tail(20_000))
		}
	})
	return p
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

func (p *program) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	require.NoError(t, p.Process.Signal(s))
	select {
	case <-p.ended:
	case <-time.After(patience):
		t.Fatalf("the program did not end after %s", s)
	}
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

// settings are right ones for a hub and a database.
func settings(hub *eventhubstest.Server, databaseURL string) map[string]string {
	return map[string]string{
		"DATABASE_URL": databaseURL, "EVENTHUB_CONNECTION_STR": hub.ConnectionString(""), "EVENTHUB_NAME": hubName,
		"BILLING_NAMESPACE": "usage", "LISTEN": "127.0.0.1:0",
	}
}

func startHub(t *testing.T, cfg eventhubstest.Config) *eventhubstest.Server {
	t.Helper()
	cfg.Hubs = []eventhubstest.Hub{{Name: hubName, Partitions: 4}}
	hub, err := eventhubstest.Start(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, hub.Close()) })
	return hub
}

func TestWrongSettingsSayWhichInOneSentence(t *testing.T) {
	t.Parallel()
	hub := startHub(t, eventhubstest.Config{RequireSAS: true})
	db := sqltest.New(t)
	empty := sqltest.NewEmpty(t)
	taken := sqltest.New(t)
	_, err := taken.Pool(t, "").Exec(t.Context(), "INSERT INTO billing.namespaces (namespace, period_format) VALUES ('usage', 'day')")
	require.NoError(t, err)
	mapped := sqltest.New(t)
	_, err = mapped.Pool(t, "").Exec(t.Context(), `INSERT INTO billing.namespaces (namespace, period_format) VALUES ('usage', 'month')`)
	require.NoError(t, err)
	_, err = mapped.Pool(t, "").Exec(t.Context(), `INSERT INTO billing.namespace_sources (namespace, source, mapping, mapping_fingerprint)
		VALUES ('usage', 'eventhubs', '["customer_id=/subject"]', 'abc')`)
	require.NoError(t, err)
	noSecret := filepath.Join(t.TempDir(), "missing")
	wrongKey := strings.Replace(hub.ConnectionString(""), "SharedAccessKey=", "SharedAccessKey=x", 1)

	for title, test := range map[string]struct {
		change map[string]string
		args   []string
		want   []string // all in the sentence
	}{
		"no database":             {map[string]string{"DATABASE_URL": ""}, nil, []string{"DATABASE_URL", "is not set"}},
		"unreadable database":     {map[string]string{"DATABASE_URL": "postgres://u:p@h:port/x"}, nil, []string{"DATABASE_URL"}},
		"unmigrated database":     {map[string]string{"DATABASE_URL": empty.URL}, nil, []string{"DATABASE_URL", "migrate up"}},
		"no connection string":    {map[string]string{"EVENTHUB_CONNECTION_STR": ""}, nil, []string{"EVENTHUB_CONNECTION_STR", "is not set"}},
		"no secret file":          {map[string]string{"EVENTHUB_CONNECTION_STR": "", "EVENTHUB_CONNECTION_STR_FILE": noSecret}, nil, []string{"EVENTHUB_CONNECTION_STR_FILE", noSecret}},
		"bad connection string":   {map[string]string{"EVENTHUB_CONNECTION_STR": "sb://nonsense;SharedAccessKey=topsecret"}, nil, []string{"EVENTHUB_CONNECTION_STR", "cannot be read"}},
		"hub not there":           {map[string]string{"EVENTHUB_CONNECTION_STR": "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=x;SharedAccessKey=y;UseDevelopmentEmulator=true"}, nil, []string{"EVENTHUB_CONNECTION_STR", "cannot be reached"}},
		"wrong key":               {map[string]string{"EVENTHUB_CONNECTION_STR": wrongKey}, nil, []string{"EVENTHUB_CONNECTION_STR", "refuses the key"}},
		"no hub named":            {map[string]string{"EVENTHUB_NAME": ""}, nil, []string{"EVENTHUB_NAME"}},
		"unknown hub":             {map[string]string{"EVENTHUB_NAME": "nothere"}, nil, []string{"EVENTHUB_NAME", "does not exist", "nothere"}},
		"unknown consumer group":  {map[string]string{"EVENTHUB_CONSUMER_GROUP": "nogroup"}, nil, []string{"EVENTHUB_CONSUMER_GROUP", "nogroup", "does not exist"}},
		"no namespace":            {map[string]string{"BILLING_NAMESPACE": ""}, nil, []string{"BILLING_NAMESPACE", "is not set"}},
		"bad namespace":           {map[string]string{"BILLING_NAMESPACE": "Usage Billing"}, nil, []string{"BILLING_NAMESPACE", "Usage Billing"}},
		"unknown period format":   {map[string]string{"BILLING_PERIOD_FORMAT": "fortnight"}, nil, []string{"period-format", "fortnight"}},
		"namespace read by days":  {map[string]string{"DATABASE_URL": taken.URL}, nil, []string{"BILLING_NAMESPACE", `"day"`, `"month"`}},
		"namespace with mapping":  {map[string]string{"DATABASE_URL": mapped.URL}, nil, []string{"BILLING_NAMESPACE", "customer_id=/subject", "fingerprint abc"}},
		"bad mapping":             {nil, []string{"--map", "customer=/x"}, []string{"--map", "customer"}},
		"body limit negative":     {nil, []string{"--max-body-bytes=-1"}, []string{"--max-body-bytes cannot be -1"}},
		"body limit zero":         {nil, []string{"--max-body-bytes=0"}, []string{"--max-body-bytes cannot be 0"}},
		"no connections":          {nil, []string{"--database-conns=0"}, []string{"--database-conns cannot be 0"}},
		"negative connections":    {map[string]string{"DATABASE_CONNS": "-1"}, nil, []string{"--database-conns cannot be -1"}},
		"negative wait":           {nil, []string{"--batch-wait=-1s"}, []string{"--batch-wait cannot be -1s"}},
		"negative grace":          {nil, []string{"--stop-grace=-1s"}, []string{"--stop-grace cannot be -1s"}},
		"no interval":             {nil, []string{"--update-interval=0s"}, []string{"--update-interval cannot be 0s"}},
		"negative expiry":         {nil, []string{"--ownership-expiry=-1m"}, []string{"--ownership-expiry cannot be -1m0s"}},
		"no prefetch":             {nil, []string{"--prefetch=0"}, []string{"--prefetch cannot be 0", "5000"}},
		"batch too large":         {nil, []string{"--batch-size", "5000"}, []string{"--batch-size", "5000", "1000"}},
		"expiry too short":        {nil, []string{"--ownership-expiry", "10s"}, []string{"--ownership-expiry", "10s"}},
		"address in use":          {map[string]string{"LISTEN": hub.Addr()}, nil, []string{"--listen", hub.Addr()}},
		"unknown flag":            {nil, []string{"--nonsense"}, []string{"--nonsense"}},
		"database does not exist": {map[string]string{"DATABASE_URL": strings.Replace(db.URL, db.Name, "no_such_db", 1)}, nil, []string{"DATABASE_URL", "no_such_db"}},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			env := settings(hub, db.URL)
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
			require.NotContains(t, said, "\t")
		})
	}
}

func TestNumbersThatCannotWorkFailTheCheckToo(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"--max-body-bytes=-1", "--database-conns=0", "--batch-wait=-1s", "--update-interval=-5s", "--stop-grace=-1s"} {
		t.Run(flag, func(t *testing.T) {
			t.Parallel()
			p := start(t, map[string]string{
				"DATABASE_URL": "postgres://db.example:5432/billing", "BILLING_NAMESPACE": "usage",
				"EVENTHUB_CONNECTION_STR": "Endpoint=sb://x.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=b;EntityPath=billing",
			}, "--check-config", flag)
			require.Equal(t, 2, p.exit(t), p.stderr)
			name, _, _ := strings.Cut(flag, "=")
			require.Contains(t, lastLine(p.stderr.String()), name+" cannot be ")
		})
	}
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

func TestRightSettingsPassTheCheck(t *testing.T) {
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "connection")
	require.NoError(t, os.WriteFile(secret, []byte("Endpoint=sb://x.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=b;EntityPath=Billing\n"), 0o600))
	p := start(t, map[string]string{
		"DATABASE_URL": "postgres://db.example:5432/billing", "EVENTHUB_CONNECTION_STR_FILE": secret, "BILLING_NAMESPACE": "usage",
	}, "--check-config", "--map", "customer_id=/subject", "--map", "amount_cents=/data/total")
	require.Equal(t, 0, p.exit(t), p.stderr)
	require.Contains(t, p.stderr.String(), "the settings are fine")
}

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
