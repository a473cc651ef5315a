package daemon_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"chargeonce/deploy/daemon"
)

func TestReadinessTellsItsReason(t *testing.T) {
	t.Parallel()
	h, base, _ := serve(t)
	requireGet(t, base+"/healthz", http.StatusOK, `{"status":"running"}`+"\n")
	requireGet(t, base+"/readyz", http.StatusOK, `{"ready":true,"checks":[]}`+"\n")

	away := make(chan error, 1)
	h.Check("database", func(context.Context) error {
		select {
		case err := <-away:
			return err
		default:
			return nil
		}
	})
	h.Check("broker", func(context.Context) error { return nil })
	away <- errors.New("away since 12:00")
	requireGet(t, base+"/readyz", http.StatusServiceUnavailable,
		`{"ready":false,"checks":[{"name":"broker","ok":true},{"name":"database","ok":false,"reason":"away since 12:00"}]}`+"\n")
	requireGet(t, base+"/healthz", http.StatusOK, `{"status":"running"}`+"\n")
	requireGet(t, base+"/readyz", http.StatusOK, `{"ready":true,"checks":[{"name":"broker","ok":true},{"name":"database","ok":true}]}`+"\n")
	h.Ending()
	requireGet(t, base+"/readyz", http.StatusServiceUnavailable,
		`{"ready":false,"checks":[{"name":"broker","ok":true},{"name":"database","ok":true},{"name":"process","ok":false,"reason":"is ending"}]}`+"\n")
}

func TestHangingCheckDoesNotHangReadiness(t *testing.T) {
	t.Parallel()
	h, base, _ := serve(t)
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	h.Check("deaf", func(context.Context) error { <-release; return nil })
	requireGet(t, base+"/readyz", http.StatusServiceUnavailable,
		`{"ready":false,"checks":[{"name":"deaf","ok":false,"reason":"no answer within 2s"}]}`+"\n")
}

func TestMetricsHaveTheRegistrysFigures(t *testing.T) {
	t.Parallel()
	_, base, _ := serve(t)
	status, body := get(t, base+"/metrics")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, "intents_parked 7\n")
}

func TestShutdownLetsOpenRequestsFinish(t *testing.T) {
	t.Parallel()
	h, base, end := serve(t)
	entered, release := make(chan struct{}), make(chan struct{})
	h.Handle("GET /slow", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(entered)
		<-release
		_, _ = io.WriteString(w, "whole")
	}))
	answer := make(chan string, 1)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/slow", nil)
	require.NoError(t, err)
	go func() {
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			answer <- err.Error()
			return
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		answer <- string(body)
	}()
	<-entered
	ended := end()
	require.Eventually(t, func() bool { // no new requests
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", base[len("http://"):])
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	}, 10*time.Second, 10*time.Millisecond)
	close(release)
	require.Equal(t, "whole", <-answer)
	require.NoError(t, <-ended)
}

func TestTakenListenAddressIsExplained(t *testing.T) {
	t.Parallel()
	_, base, _ := serve(t)
	address := base[len("http://"):]
	h := daemon.NewHealth(slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	err := h.ListenAndServe(t.Context(), address)
	require.EqualError(t, err, "--listen "+address+" cannot be listened on (bind: address already in use): give another HOST:PORT")
	requireSetting(t, err)
	requireSetting(t, h.ListenAndServe(t.Context(), "nonsense"))
}

// serve returns a function that ends the service and the channel of its result.
func serve(t *testing.T) (h *daemon.Health, base string, end func() <-chan error) {
	t.Helper()
	registry := prometheus.NewRegistry()
	parked := prometheus.NewGauge(prometheus.GaugeOpts{Name: "intents_parked", Help: "Waiting for a person."})
	parked.Set(7)
	registry.MustRegister(parked)
	h = daemon.NewHealth(slog.New(slog.DiscardHandler), registry)
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(cancel)
	ended := make(chan error, 1)
	go func() { ended <- h.Serve(ctx, l) }()
	return h, "http://" + l.Addr().String(), func() <-chan error {
		cancel()
		return ended
	}
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(body)
}

func requireGet(t *testing.T, url string, status int, body string) {
	t.Helper()
	gotStatus, gotBody := get(t, url)
	require.Equal(t, body, gotBody)
	require.Equal(t, status, gotStatus)
}
