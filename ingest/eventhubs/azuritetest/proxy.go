package azuritetest

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Fault is what becomes of a request.
type Fault struct {
	Status int    // answered with this status instead of being passed on; 0: see below
	Code   string // Azure's error code that goes with Status
	Hold   bool   // never answered, and not passed on
	Lose   bool   // passed on, and the connection cut instead of an answer
}

// Proxy stands between a program and Azurite. Its methods are safe for concurrent use.
type Proxy struct {
	Storage // the container by way of the proxy

	transport *http.Transport
	closed    chan struct{}

	mu    sync.Mutex
	judge func(*http.Request) Fault
	ahead time.Duration
	met   int
}

// Through starts a proxy for the test's life.
func (s *Storage) Through(tb testing.TB) *Proxy {
	tb.Helper()
	target, err := hostOf(s.AccountURL)
	require.NoError(tb, err)
	p := &Proxy{Storage: *s, transport: &http.Transport{}, closed: make(chan struct{}), judge: func(*http.Request) Fault { return Fault{} }}
	onward := &httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:      p.transport,
		ModifyResponse: p.date,
		ErrorLog:       log.New(io.Discard, "", 0), // a client that gives up is what many tests are about
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.serve(w, r, onward) }))
	tb.Cleanup(func() {
		close(p.closed)
		server.CloseClientConnections()
		server.Close()
		p.transport.CloseIdleConnections()
	})
	p.AccountURL = server.URL + "/" + account
	p.ConnectionString = ConnectionString(p.AccountURL)
	return p
}

// Fail makes judge decide on every request from now on; nil lets all pass.
func (p *Proxy) Fail(judge func(*http.Request) Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.judge, p.met = judge, 0
	if judge == nil {
		p.judge = func(*http.Request) Fault { return Fault{} }
	}
}

// Met counts the requests that met a fault since the last Fail.
func (p *Proxy) Met() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.met
}

// SetClock lets the storage's clock be ahead of the local one, or behind it when negative, by whole seconds.
func (p *Proxy) SetClock(ahead time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ahead = ahead
}

// IsCheckpointWrite tells a write of a checkpoint: of any partition when it is empty.
func IsCheckpointWrite(r *http.Request, partition string) bool {
	return isWrite(r, "/checkpoint/", partition)
}

// IsClaim tells a claim of an ownership.
func IsClaim(r *http.Request, partition string) bool { return isWrite(r, "/ownership/", partition) }

func isWrite(r *http.Request, kind, partition string) bool {
	_, of, found := strings.Cut(r.URL.Path, kind)
	return found && r.Method == http.MethodPut && (partition == "" || of == partition)
}

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request, onward http.Handler) {
	p.mu.Lock()
	fault := p.judge(r)
	if fault != (Fault{}) {
		p.met++
	}
	p.mu.Unlock()
	switch {
	case fault.Status != 0:
		w.Header().Set("x-ms-error-code", fault.Code)
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(fault.Status)
		_, _ = fmt.Fprintf(w, `<?xml version="1.0" encoding="utf-8"?><Error><Code>%s</Code><Message>made by a test</Message></Error>`, fault.Code)
	case fault.Hold:
		select {
		case <-r.Context().Done():
		case <-p.closed:
		}
		panic(http.ErrAbortHandler)
	case fault.Lose:
		onward.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	default:
		onward.ServeHTTP(w, r)
	}
}

// date moves every time in an answer to the storage's clock.
func (p *Proxy) date(r *http.Response) error {
	p.mu.Lock()
	ahead := p.ahead
	p.mu.Unlock()
	if ahead == 0 {
		return nil
	}
	for _, name := range []string{"Date", "Last-Modified"} {
		if at, err := http.ParseTime(r.Header.Get(name)); err == nil {
			r.Header.Set(name, at.Add(ahead).UTC().Format(http.TimeFormat))
		}
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return fmt.Errorf("read an answer: %w", err)
	}
	_ = r.Body.Close() // it was read to its end
	dated := regexp.MustCompile(`<Last-Modified>([^<]*)</Last-Modified>`).ReplaceAllFunc(body, func(element []byte) []byte {
		text := strings.TrimSuffix(strings.TrimPrefix(string(element), "<Last-Modified>"), "</Last-Modified>")
		at, err := http.ParseTime(text)
		if err != nil {
			return element
		}
		return []byte("<Last-Modified>" + at.Add(ahead).UTC().Format(http.TimeFormat) + "</Last-Modified>")
	})
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(dated)), int64(len(dated))
	r.Header.Set("Content-Length", strconv.Itoa(len(dated)))
	return nil
}
