package stripecharge

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// A dial that outlasts the claim must not be followed by the request: another worker may hold the intent by then.
func TestM04DialSlowerThanClaimSendsNothing(t *testing.T) {
	t.Parallel()
	for _, secured := range []bool{false, true} {
		t.Run(map[bool]string{false: "plain", true: "tls"}[secured], func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int64
			server, trusted := startServer(t, secured, func(http.ResponseWriter, *http.Request) { calls.Add(1) })
			sendBefore := time.Now().Add(50 * time.Millisecond)
			transport := newTransport(func(ctx context.Context, network, address string) (net.Conn, error) {
				c, err := new(net.Dialer).DialContext(ctx, network, address)
				<-time.After(time.Until(sendBefore.Add(10 * time.Millisecond)))
				return c, err
			}, reuseWithin)
			transport.base.TLSClientConfig.RootCAs = trusted
			client := newTestClient(t, Config{Transport: transport, URL: server, Key: testKey})
			answer := client.Create(t.Context(), testRequest(t, APIPaymentIntents, "cus_1"), sendBefore)
			require.Equal(t, ClassNotSent, answer.Class, "%v", answer.Err)
			require.False(t, answer.Sent)
			require.ErrorContains(t, answer.Err, errTooLate.Error())
			require.Zero(t, calls.Load())
		})
	}
}

// The process (or its virtual machine) may be stopped between the check and the write of a large body:
// what leaves then is never a whole request.
func TestM04EveryWriteIsChecked(t *testing.T) {
	t.Parallel()
	inner, outer := net.Pipe()
	defer func() { _, _ = inner.Close(), outer.Close() }()
	go func() { _, _ = io.Copy(io.Discard, outer) }()
	c := newConn(inner, reuseWithin)
	g := &gate{sendBefore: time.Now().Add(time.Hour)}
	g.attach(c)
	_, err := c.Write([]byte("POST / HTTP/1.1\r\n"))
	require.NoError(t, err)
	g.sendBefore = time.Now().Add(-time.Nanosecond)
	_, err = c.Write([]byte("\r\nbody"))
	require.ErrorIs(t, err, errTooLate)
	sent, _ := g.sent()
	require.False(t, sent, "an incomplete request is not sent")
	_, err = c.Write([]byte("more"))
	require.ErrorIs(t, err, errTooLate, "what was refused once stays refused")
}

// The wall clock alone tells that a virtual machine was suspended, the monotonic one alone that the wall clock was set back.
func TestM04BothClocksAreAsked(t *testing.T) {
	t.Parallel()
	now := time.Now()
	limit := now.Add(time.Second)
	require.False(t, after(now, limit))
	require.True(t, after(now.Add(2*time.Second), limit))
	require.True(t, after(monotonicMoved(now.Add(2*time.Second), -2*time.Second), limit), "suspended: the monotonic clock stood still")
	require.True(t, after(monotonicMoved(now, 2*time.Second), limit), "set back: the wall clock says that no time has passed")
}

// monotonicMoved is t with its monotonic reading alone moved by d, which no function of package time can make.
func monotonicMoved(t time.Time, d time.Duration) time.Time {
	//nolint:gosec // the layout of time.Time has been this since Go 1.9; should it change, the test fails
	inside := (*struct {
		wall      uint64
		monotonic int64
		loc       *time.Location
	})(unsafe.Pointer(&t))
	inside.monotonic += int64(d)
	return t
}

// Bytes given to a connection that died unnoticed are delivered when the network mends, long after the claim.
func TestM04IdleConnectionIsNotReused(t *testing.T) {
	t.Parallel()
	var closed, calls atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		_, _ = io.WriteString(w, `{}`)
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			closed.Add(1)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	var dialled []*conn
	transport := newTransport(new(net.Dialer).DialContext, time.Second)
	dial := transport.base.DialContext
	transport.base.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if own, ok := c.(*conn); ok {
			dialled = append(dialled, own)
		}
		return c, err
	}
	client := newTestClient(t, Config{Transport: transport, URL: server.URL, Key: testKey})
	create := func() Answer { return client.Create(t.Context(), testRequest(t, APIPaymentIntents, "cus_1"), soon()) }

	require.True(t, create().Sent)
	require.True(t, create().Sent)
	require.Len(t, dialled, 1, "a connection just used is used again")
	require.Eventually(t, func() bool { return closed.Load() == 1 }, 5*time.Second, 5*time.Millisecond, "idle for too long is closed")
	require.True(t, create().Sent)
	require.Len(t, dialled, 2)
	require.EqualValues(t, 3, calls.Load())

	// Should net/http ever hand out an old one, its Write refuses.
	dialled[1].mu.Lock()
	dialled[1].last = time.Now().Add(-2 * time.Second)
	dialled[1].mu.Unlock()
	answer := create()
	require.Equal(t, ClassNotSent, answer.Class)
	require.ErrorContains(t, answer.Err, errStaleConnection.Error())
	require.EqualValues(t, 3, calls.Load())
	require.True(t, create().Sent, "the next call dials anew")
	require.Len(t, dialled, 3)
}

// Should a connection ever be made that is not one of the transport's own, nothing stands in front of its Write: no whole
// request goes out there.
func TestM04ConnectionWithoutAGateCarriesNoCharge(t *testing.T) {
	t.Parallel()
	var whole atomic.Int64
	url, _ := countedServer(t, func(w http.ResponseWriter, r *http.Request) {
		if body, err := io.ReadAll(r.Body); err == nil && len(body) > 0 {
			whole.Add(1)
		}
		_, _ = io.WriteString(w, `{}`)
	})
	transport := NewTransport()
	transport.base.DialContext = new(net.Dialer).DialContext
	client := newTestClient(t, Config{Transport: transport, URL: url, Key: testKey})
	answer := client.Create(t.Context(), testRequest(t, APIPaymentIntents, "cus_1"), soon())
	require.Equal(t, ClassNotSent, answer.Class, "%v", answer.Err)
	require.ErrorContains(t, answer.Err, errNoGate.Error())
	require.Zero(t, whole.Load())
}

func TestM04ProcessTransportKeepsTheLimit(t *testing.T) {
	t.Parallel()
	transport := NewTransport()
	require.Less(t, transport.base.IdleConnTimeout, 10*time.Second)
	require.LessOrEqual(t, reuseWithin, 10*time.Second)
	require.False(t, transport.base.ForceAttemptHTTP2)
	require.NotNil(t, transport.base.TLSNextProto)
}

// net/http repeats a POST with an Idempotency-Key by itself when a reused connection dies before the
// first byte of an answer: a proxy that drops the key would charge twice.
func TestM04PostIsNotReplayedWhenReusedConnectionDies(t *testing.T) {
	t.Parallel()
	server := startDyingServer(t)
	client := newTestClient(t, Config{URL: server.url, Key: testKey})
	request := testRequest(t, APICharges, "cus_1")
	require.Equal(t, ClassMismatch, client.Create(t.Context(), request, soon()).Class)
	answer := client.Create(t.Context(), request, soon())
	require.Equal(t, ClassConnectionLost, answer.Class, "%v", answer.Err)
	require.True(t, answer.CouldHaveCharged())
	require.EqualValues(t, 2, server.requests.Load())
	require.EqualValues(t, 1, server.connections.Load(), "the second call was made on the first one's connection")
}

func TestM02FrozenBytesAreEqualOnEverySend(t *testing.T) {
	t.Parallel()
	for _, api := range bothAPIs() {
		t.Run(string(api), func(t *testing.T) {
			t.Parallel()
			type sent struct{ body, key, version, path, contentType, userAgent, telemetry, authorization string }
			var mu sync.Mutex
			var seen []sent
			url, _ := countedServer(t, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, sent{
					string(body), r.Header.Get("Idempotency-Key"), r.Header.Get("Stripe-Version"), r.URL.Path, r.Header.Get("Content-Type"),
					r.Header.Get("X-Stripe-Client-User-Agent"), r.Header.Get("X-Stripe-Client-Telemetry"), r.Header.Get("Authorization"),
				})
				w.WriteHeader(http.StatusServiceUnavailable)
			})
			request := testRequest(t, api, "cus_1")
			request.APIVersion = "2020-08-27" // as an earlier build froze it
			for _, key := range []string{"vk_first", "vk_second"} {
				client := newTestClient(t, Config{URL: url + "/stripe", Key: key})
				require.Equal(t, ClassBadGateway, client.Create(t.Context(), request, soon()).Class)
			}
			require.Len(t, seen, 2)
			require.Equal(t, string(request.Body), seen[0].body)
			require.Equal(t, "/stripe"+request.Path, seen[0].path)
			require.Equal(t, request.IdempotencyKey, seen[0].key)
			require.Equal(t, "2020-08-27", seen[0].version)
			require.Equal(t, formContentType, seen[0].contentType)
			require.Empty(t, seen[0].userAgent, "it carries the host's name")
			require.Empty(t, seen[0].telemetry)
			require.Equal(t, "Bearer vk_second", seen[1].authorization)
			seen[1].authorization = seen[0].authorization
			require.Equal(t, seen[0], seen[1])
		})
	}
}

func TestRequestThatIsNotTheFrozenOneIsNotSent(t *testing.T) {
	t.Parallel()
	request := testRequest(t, APICharges, "cus_1")
	url, calls := countedServer(t, func(http.ResponseWriter, *http.Request) {})
	transport := NewTransport()
	t.Cleanup(transport.CloseIdleConnections)
	send := func(ctx context.Context, body, key string) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/charges", bufio.NewReader(newReader(body)))
		require.NoError(t, err)
		req.Header.Set("Idempotency-Key", key)
		req.Header.Set("Stripe-Version", request.APIVersion)
		req.Header.Set("Content-Type", formContentType)
		res, err := transport.RoundTrip(req)
		if err == nil {
			_ = res.Body.Close()
		}
		return err
	}
	frozen := func() context.Context {
		return withExchange(t.Context(), &exchange{op: OpCreate, frozen: &request, gate: gate{sendBefore: soon()}})
	}
	require.ErrorContains(t, send(frozen(), string(request.Body)+"&x=1", request.IdempotencyKey), "something else")
	require.ErrorContains(t, send(frozen(), string(request.Body), "another key"), "something else")
	require.Error(t, send(t.Context(), string(request.Body), request.IdempotencyKey), "no exchange, no call")
	require.Zero(t, calls.Load())
	require.NoError(t, send(frozen(), string(request.Body), request.IdempotencyKey))
	require.EqualValues(t, 1, calls.Load())
}

func TestConnectionThatNoGateGuardsCarriesNoCharge(t *testing.T) {
	t.Parallel()
	// The head leaves before net/http reads the body: what counts is that no whole request arrives.
	var whole atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); err == nil {
			whole.Add(1)
		}
	}))
	transport := NewTransport()
	transport.base.DialContext = new(net.Dialer).DialContext
	client := newTestClient(t, Config{Transport: transport, URL: server.URL, Key: testKey})
	answer := client.Create(t.Context(), testRequest(t, APICharges, "cus_1"), soon())
	require.Equal(t, ClassNotSent, answer.Class)
	server.Close() // waits for the handler
	require.Zero(t, whole.Load())
}

// A call that has been given up must not be delivered by a connection's late write.
func TestNothingLeavesAfterTheCallHasEnded(t *testing.T) {
	t.Parallel()
	inner, outer := net.Pipe()
	defer func() { _, _ = inner.Close(), outer.Close() }()
	go func() { _, _ = io.Copy(io.Discard, outer) }()
	c := newConn(inner, reuseWithin)
	g := new(gate)
	g.attach(c)
	g.shut()
	_, err := c.Write([]byte("POST"))
	require.ErrorIs(t, err, errShut)
	sent, _ := g.sent()
	require.False(t, sent)
}

// After a call was given up, the kernel must not go on delivering its bytes for minutes: the connection is reset, not closed in order.
func TestGivenUpCallIsReset(t *testing.T) {
	t.Parallel()
	var listen net.ListenConfig
	listener, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = listener.Close() }()
	ended := make(chan error, 1)
	go func() {
		c, err := listener.Accept()
		if err == nil {
			_, err = io.Copy(io.Discard, c)
			_ = c.Close()
		}
		ended <- err
	}()
	client := newTestClient(t, Config{URL: "http://" + listener.Addr().String(), Key: testKey, Timeout: 50 * time.Millisecond})
	answer := client.Create(t.Context(), testRequest(t, APICharges, "cus_1"), soon())
	require.Equal(t, ClassTimeout, answer.Class)
	require.ErrorIs(t, <-ended, syscall.ECONNRESET)
}

func newReader(text string) io.Reader { return &onceReader{text: text} }

type onceReader struct{ text string }

func (r *onceReader) Read(p []byte) (int, error) {
	if r.text == "" {
		return 0, io.EOF
	}
	n := copy(p, r.text)
	r.text = r.text[n:]
	return n, nil
}

func startServer(t *testing.T, secured bool, handler http.HandlerFunc) (url string, trusted *x509.CertPool) {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // it tells of each failed handshake
	if !secured {
		server.Start()
		t.Cleanup(server.Close)
		return server.URL, nil
	}
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS13}
	server.StartTLS()
	t.Cleanup(server.Close)
	pool := x509.NewCertPool()
	pool.AddCert(server.Certificate())
	return server.URL, pool
}

// dyingServer answers the first request of a connection and closes it after reading the second.
type dyingServer struct {
	url                   string
	requests, connections atomic.Int64
}

func startDyingServer(t *testing.T) *dyingServer {
	t.Helper()
	var listen net.ListenConfig
	listener, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &dyingServer{url: "http://" + listener.Addr().String()}
	var busy sync.WaitGroup
	busy.Go(func() {
		for {
			c, err := listener.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			s.connections.Add(1)
			busy.Go(func() { s.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		busy.Wait()
	})
	return s
}

func (s *dyingServer) serve(c net.Conn) {
	defer func() { _ = c.Close() }()
	reader := bufio.NewReader(c)
	for i := range 2 {
		req, err := http.ReadRequest(reader)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
		s.requests.Add(1)
		if i == 0 {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
		}
	}
}
