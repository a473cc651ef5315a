package sourcetest

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Proxy stands between a program and Postgres, and can take the database away, slow it down, let calls hang or lose the answers to
// commits. Its methods are safe for concurrent use.
type Proxy struct {
	listener net.Listener
	target   string
	running  sync.WaitGroup

	mu      sync.Mutex
	conns   map[net.Conn]struct{}
	cut     bool
	cutNext bool // after the next lost answer
	lose    int
	lost    int
	refused int
	delay   time.Duration
	delayed int
	hung    map[net.Conn]struct{} // clients whose requests are swallowed
	ended   chan struct{}         // closed at the test's end
}

// Through starts a proxy for the test's life and returns the database's URL by way of it.
func Through(t *testing.T, databaseURL string) (string, *Proxy) {
	t.Helper()
	u, err := url.Parse(databaseURL)
	require.NoError(t, err)
	var lc net.ListenConfig
	listener, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &Proxy{
		listener: listener, target: u.Host, conns: map[net.Conn]struct{}{}, hung: map[net.Conn]struct{}{}, ended: make(chan struct{}),
	}
	p.running.Go(p.serve)
	t.Cleanup(func() {
		close(p.ended)
		p.Cut()
		_ = listener.Close()
		p.running.Wait()
	})
	u.Host = listener.Addr().String()
	return u.String(), p
}

// Cut ends every connection and refuses new ones until Mend.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutNow()
}

func (p *Proxy) cutNow() {
	p.cut = true
	for c := range p.conns {
		_ = c.Close()
	}
}

// Mend lets connections through again.
func (p *Proxy) Mend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut, p.cutNext, p.lose = false, false, 0
}

// LoseCommits lets the next n commits happen and breaks the connection instead of passing the answer on.
func (p *Proxy) LoseCommits(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lose = n
}

// CutAfterLoss makes the next lost answer take the database away as well.
func (p *Proxy) CutAfterLoss() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutNext = true
}

// SlowDown makes every transaction take that much longer, those of a single statement too: its commit is held back, and with it its
// locks.
func (p *Proxy) SlowDown(by time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = by
}

// Delayed counts the transactions slowed down.
func (p *Proxy) Delayed() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.delayed
}

// Hang leaves every connection that is open now without an answer for ever. New ones work.
func (p *Proxy) Hang() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		p.hung[c] = struct{}{}
	}
}

// Lost counts the answers lost.
func (p *Proxy) Lost() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

// Refused counts the connections refused.
func (p *Proxy) Refused() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused
}

func (p *Proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() { p.connect(client) })
	}
}

func (p *Proxy) connect(client net.Conn) {
	defer func() { _ = client.Close() }()
	var d net.Dialer
	server, err := d.DialContext(context.Background(), "tcp", p.target)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	if !p.admit(client, server) {
		return
	}
	defer p.forget(client, server)
	var deaf atomic.Bool    // the answer on the way is to be lost
	var outside atomic.Bool // of a transaction: the next request is one
	var answers sync.WaitGroup
	answers.Go(func() {
		defer func() { _ = client.Close() }()
		p.pump(client, server, func(data []byte) bool {
			outside.Store(bytes.HasSuffix(data, []byte(readyOutside)))
			if !deaf.Load() {
				return true
			}
			p.noteLoss()
			return false
		})
	})
	p.pump(server, client, func(data []byte) bool {
		// A commit is a simple query of its own.
		isCommit := bytes.Contains(data, []byte("commit\x00"))
		if isCommit && p.takeLoss() {
			deaf.Store(true)
		}
		if isCommit || outside.Load() && !bytes.HasPrefix(bytes.ToLower(data[min(len(data), 5):]), []byte("begin")) {
			p.wait()
		}
		return p.swallow(client)
	})
	_ = server.Close()
	answers.Wait()
}

// pump copies until either side ends or look says no.
func (p *Proxy) pump(to, from net.Conn, look func([]byte) bool) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil || !look(buf[:n]) {
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// readyOutside is Postgres's word that it waits for the next request and that no transaction is open.
const readyOutside = "Z\x00\x00\x00\x05I"

// wait is what a transaction is slowed down by.
func (p *Proxy) wait() {
	p.mu.Lock()
	delay := p.delay
	if delay > 0 {
		p.delayed++
	}
	p.mu.Unlock()
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-p.ended:
	case <-timer.C:
	}
}

// swallow returns true when the client does not hang. One that does is kept until it goes away itself.
func (p *Proxy) swallow(client net.Conn) bool {
	p.mu.Lock()
	_, hangs := p.hung[client]
	p.mu.Unlock()
	if hangs {
		_, _ = io.Copy(io.Discard, client)
	}
	return !hangs
}

func (p *Proxy) admit(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut {
		p.refused++
		return false
	}
	for _, c := range conns {
		p.conns[c] = struct{}{}
	}
	return true
}

func (p *Proxy) forget(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		delete(p.conns, c)
		delete(p.hung, c)
	}
}

func (p *Proxy) takeLoss() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lose == 0 {
		return false
	}
	p.lose--
	return true
}

// noteLoss is called when Postgres has answered a commit that nobody will hear of.
func (p *Proxy) noteLoss() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost++
	if p.cutNext {
		p.cutNext = false
		p.cutNow()
	}
}

// logBuffer keeps what was logged.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}
