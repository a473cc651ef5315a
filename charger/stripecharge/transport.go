package stripecharge

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"
)

// RoundTrip sends one request of a Client; requests of others are refused. The answer's body is read
// here, bounded, and an error answer that is not Stripe's is rewritten into one that stripe-go can
// read. The request itself is checked to be the frozen one, byte for byte.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	x := exchangeOf(req.Context())
	if x == nil {
		closeBody(req)
		return nil, errors.New("this transport serves stripecharge clients alone")
	}
	req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) { x.gate.attach(info.Conn) },
	}))
	req.Header.Del("X-Stripe-Client-User-Agent") // it would tell this host's name
	if x.frozen != nil {
		if err := x.frozen.put(req, &x.gate); err != nil {
			closeBody(req)
			return nil, &localError{err}
		}
	}
	res, err := t.base.RoundTrip(req)
	if err != nil {
		// From here on nothing more leaves, so that what is reported as sent stays true.
		x.gate.shut()
		return nil, err
	}
	return x.receive(res), nil
}

// CloseIdleConnections closes what no call is using; after it a process has no connection left once its calls have ended.
func (t *Transport) CloseIdleConnections() { t.base.CloseIdleConnections() }

// Limits of connections.
const (
	dialTimeout         = 5 * time.Second
	tlsHandshakeTimeout = 5 * time.Second
	keepAlive           = 15 * time.Second
	maxIdleConnections  = 1024 // to one host: one for each worker of a large charger
	maxHeaderBytes      = 64 << 10

	// reuseWithin is how long ago a connection must last have been dialled, read or written for a POST
	// to go out on it: bytes given to a connection that died unnoticed are sent again by the kernel
	// when the network mends, minutes after everybody stopped waiting.
	reuseWithin = 10 * time.Second
)

// Transport holds the connections to Stripe, shared by all clients of a process. HTTP/1.1 only: one
// connection carries one call, so that its Write can be refused.
type Transport struct {
	base *http.Transport
}

// NewTransport makes the transport of a process.
func NewTransport() *Transport {
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}
	return newTransport(dialer.DialContext, reuseWithin)
}

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

func newTransport(dial dialFunc, reuse time.Duration) *Transport {
	return &Transport{base: &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return newConn(c, reuse), nil
		},
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    tlsHandshakeTimeout,
		TLSNextProto:           map[string]func(string, *tls.Conn) http.RoundTripper{}, // no HTTP/2
		MaxIdleConnsPerHost:    maxIdleConnections,
		IdleConnTimeout:        reuse * 9 / 10, // before Write would refuse
		MaxResponseHeaderBytes: maxHeaderBytes,
	}}
}

// Reasons why a connection refused to carry a request; nothing complete was sent.
var (
	errTooLate         = errors.New("the time before which the request had to leave has passed")
	errStaleConnection = errors.New("the connection was idle for too long to carry a charge")
	errShut            = errors.New("the call has already ended")
	errNoGate          = errors.New("the request is not on a connection of this transport")
)

// gate decides, as bytes are about to leave, whether they still may. It belongs to one call and
// outlives it in the connection, closed.
type gate struct {
	sendBefore time.Time // zero: any time, on any connection

	mu       sync.Mutex
	attached bool
	wrote    bool // something was handed to the network
	refused  error
	closed   bool
	last     bool // the body's last byte was handed over: the next Write that passes may complete the request
	whole    bool // it passed
}

// attach makes c carry this call. It runs before the transport writes the first byte.
func (g *gate) attach(c net.Conn) {
	if secured, ok := c.(*tls.Conn); ok {
		c = secured.NetConn()
	}
	if own, ok := c.(*conn); ok {
		own.carry(g)
		g.mu.Lock()
		g.attached = true
		g.mu.Unlock()
	}
}

// pass is asked by every Write; idle is how long ago the connection was last alive.
func (g *gate) pass(last time.Time, reuse time.Duration) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed:
		return errShut
	case g.refused != nil:
		return g.refused
	case !g.sendBefore.IsZero():
		now := time.Now()
		if after(now, g.sendBefore) {
			g.refused = errTooLate
		} else if !g.wrote && after(now, last.Add(reuse)) {
			g.refused = errStaleConnection
		}
		if g.refused != nil {
			return g.refused
		}
	}
	g.wrote, g.whole = true, g.whole || g.last
	return nil
}

// guards reports whether the gate stands in front of a connection; without one nothing may be sent.
func (g *gate) guards() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.attached {
		g.refused = errNoGate
		return errNoGate
	}
	return nil
}

func (g *gate) bodyRead() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last = true
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}

// sent reports whether a complete request may have left, and why not.
func (g *gate) sent() (sent bool, refused error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.whole {
		return true, nil // what was refused later (TLS's closing alert) takes nothing back
	}
	return g.wrote && g.refused == nil, g.refused
}

// after compares by both clocks: the monotonic one stands still while a virtual machine is suspended,
// the wall clock may be set back.
func after(now, limit time.Time) bool {
	return now.After(limit) || now.Round(0).After(limit.Round(0))
}

// conn asks its call's gate before every Write and remembers when it was last alive.
type conn struct {
	net.Conn
	reuse time.Duration

	mu   sync.Mutex
	gate *gate
	last time.Time
}

func newConn(c net.Conn, reuse time.Duration) *conn {
	// Close throws away what the kernel has not delivered yet: a call that was given up sends nothing later.
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // refused only by a socket that is already dead
	}
	return &conn{Conn: c, reuse: reuse, last: time.Now()}
}

func (c *conn) carry(g *gate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gate = g
}

// Write sends b unless the call it belongs to is over or too late.
func (c *conn) Write(b []byte) (int, error) {
	c.mu.Lock()
	g, last := c.gate, c.last
	c.mu.Unlock()
	if g != nil { // nil while the connection is being made
		if err := g.pass(last, c.reuse); err != nil {
			return 0, err
		}
	}
	n, err := c.Conn.Write(b)
	if err == nil {
		c.alive()
	}
	return n, err
}

// Read reads into b.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.alive()
	}
	return n, err
}

func (c *conn) alive() {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = now
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close() // a reader over bytes
	}
}
