package charger

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"chargeonce/charger/console"
	"chargeonce/charger/stripecharge/stripetest"
	"chargeonce/charger/vaultkey"
	"chargeonce/charger/vaultkey/vaultkeytest"
	"chargeonce/schema"
	"chargeonce/sql"
)

// witness remembers the secrets of the keys that it passes on.
type witness struct {
	vaultkey.Issuer
	mu      sync.Mutex
	secrets []string
}

func (w *witness) Issue(ctx context.Context, r vaultkey.Request) (vaultkey.Key, error) {
	key, err := w.Issuer.Issue(ctx, r)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.secrets = append(w.secrets, key.Secret)
	}
	return key, err
}

// haystack is a log that may be written and read at once.
type haystack struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (h *haystack) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.text.Write(p)
}

func (h *haystack) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.text.String()
}

// After a run with everything that a key can meet, no secret stands in a log, a metric, a job, a page, or any table.
func TestM24VaultKeysAreNowhereInTheOpen(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	log := new(haystack)
	registry := prometheus.NewRegistry()
	cfg, proxy := b.behindProxy(t, b.config(t), vaultkeytest.Config{Denial: "flat"})
	seen := &witness{Issuer: cfg.Keys.Issuer}
	cfg.Keys.Issuer, cfg.Registry = seen, registry
	cfg.Logger = slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	ids := b.intend(t, 1000, "usd", append(customers(20), "cus_decline_do_not_honor")...)
	require.NoError(t, proxy.AddFaults(
		vaultkeytest.Fault{Do: vaultkeytest.Unavailable, Match: stripetest.Match{Method: "POST", Path: "/vault/keys"}, Trigger: stripetest.Trigger{Nth: 1, Count: 1}},
		vaultkeytest.Fault{Do: vaultkeytest.Unavailable, Match: stripetest.Match{Method: "POST", Path: "/v1/payment_intents"}, Trigger: stripetest.Trigger{Nth: 3, Count: 2}},
		vaultkeytest.Fault{Do: vaultkeytest.DropAnswer, Match: stripetest.Match{Method: "POST", Path: "/v1/payment_intents"}, Trigger: stripetest.Trigger{Nth: 7, Count: 2}},
	))
	b.open(t, "300.00", "usd")
	start(t, cfg)
	b.untilStanding(t, map[string]int{"charged/charged": 20, "card_declined/card_declined": 1})
	require.True(t, proxy.Revoke(proxy.Keys()[0].ID)) // the next call is denied, which pauses the run with the denial's text
	last := b.intend(t, 1000, "usd", "cus_last")
	require.Eventually(t, func() bool { return b.run(t).Status == "paused" }, patience, 20*time.Millisecond)
	_, err := b.runs(t).Resume(t.Context(), usdRun(), "test", "another key")
	require.NoError(t, err)
	b.untilStatus(t, schema.StatusCharged, last...)
	require.Len(t, seen.secrets, 2)

	open := log.String() + b.everyRow(t) + metricsOf(t, registry) + b.consolePages(t, ids[0])
	require.Contains(t, open, proxy.Keys()[0].ID, "the search finds what is there")
	for _, secret := range append(seen.secrets, "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f", "sk_test_real") {
		require.NotContains(t, open, secret)
		require.NotContains(t, open, hex.EncodeToString([]byte(secret)))
	}
}

// everyRow is the text of every row of every table and view.
func (b *bundle) everyRow(t *testing.T) string {
	t.Helper()
	rows, err := b.owner.Query(t.Context(), `
		SELECT format('%I.%I', table_schema, table_name) FROM information_schema.tables WHERE table_schema IN ('billing', 'river', 'finance')`)
	require.NoError(t, err)
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	var all bytes.Buffer
	for _, table := range tables {
		rows, err := b.owner.Query(t.Context(), fmt.Sprintf("SELECT x::text FROM %s x", table))
		require.NoError(t, err)
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		for _, line := range lines {
			all.WriteString(line + "\n")
		}
	}
	return all.String()
}

func metricsOf(t *testing.T, registry *prometheus.Registry) string {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	require.NotEmpty(t, families)
	var all bytes.Buffer
	for _, family := range families {
		all.WriteString(family.String() + "\n")
	}
	return all.String()
}

// consolePages are the operators' page, and all jobs as River UI tells them.
func (b *bundle) consolePages(t *testing.T, intentID int64) string {
	t.Helper()
	const password = "correct horse battery staple"
	c, err := console.New(console.Config{Pool: b.db.Pool(t, sql.RoleConsole), Logger: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(), Password: password})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	var all bytes.Buffer
	for _, path := range []string{"/", console.DefaultPrefix + "api/jobs?state=completed&limit=100", console.DefaultPrefix + "api/jobs?state=retryable&limit=100"} {
		require.Eventually(t, func() bool {
			request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
			request.SetBasicAuth(console.DefaultUser, password)
			answer := httptest.NewRecorder()
			c.Handler().ServeHTTP(answer, request)
			all.Write(answer.Body.Bytes())
			return answer.Code == http.StatusOK
		}, patience, 50*time.Millisecond, path)
	}
	require.Regexp(t, fmt.Sprintf(`intent_id\\?": ?%d\b`, intentID), all.String())
	return all.String()
}
