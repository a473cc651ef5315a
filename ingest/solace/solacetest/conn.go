package solacetest

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"
)

// read is the connection's reading goroutine: it decodes and handles frames until either side ends the connection. The
// writing goroutine takes what it queues, so a client that stops reading holds up nobody.
func (c *conn) read() {
	defer c.forget()
	in := bufio.NewReaderSize(c.nc, readBufferBytes)
	if err := c.server.onConnect(c.nc.RemoteAddr().String()); err != nil {
		if errors.Is(err, ErrHold) {
			_, _ = io.Copy(io.Discard, in)
		}
		return
	}
	if err := c.handshake(); err != nil {
		c.log().Debug("handshake failed", slog.Any("error", err))
		return
	}
	c.server.running.Go(c.write)
	if err := c.serve(in); !errors.Is(err, errDropped) && !isGone(err) {
		c.log().Warn("connection ended by a protocol error", slog.Any("error", err))
		c.server.mu.Lock()
		c.server.counters.ProtocolErrors++
		c.server.mu.Unlock()
	}
	c.drop()
	<-c.written
}

// errDropped ends a connection without a word.
var errDropped = errors.New("connection is dropped by a fault")

// conn is one client's connection. Fields below the blank line are guarded by spool.mu.
type conn struct {
	server  *Server
	nc      net.Conn
	wake    chan struct{} // one token: something may be there to write
	gone    chan struct{} // closed by drop
	written chan struct{} // closed when the writing goroutine ends
	once    sync.Once

	client     string // name, empty before the login; set by the reading goroutine alone, which may read it without the lock
	control    []byte // encoded frames that wait
	flows      []*flow
	publishers []*publisher
	unbinding  []uint32 // flows ended by us whose UNBIND the client has yet to answer
	mute       bool     // reads on, but does and says nothing more
	forgotten  bool     // cut from the server
}

func newConn(s *Server, nc net.Conn) *conn {
	return &conn{server: s, nc: nc, wake: make(chan struct{}, 1), gone: make(chan struct{}), written: make(chan struct{})}
}

func (c *conn) log() *slog.Logger {
	return c.server.cfg.Logger.With(slog.String("remote", c.nc.RemoteAddr().String()))
}

// drop cuts the connection at once; safe to call from anywhere, any number of times.
func (c *conn) drop() {
	c.once.Do(func() {
		close(c.gone)
		if t, ok := c.nc.(*tls.Conn); ok {
			_ = t.NetConn().Close() // without a farewell, which could wait for a client that does not read
			return
		}
		_ = c.nc.Close()
	})
}

// cut drops the connection and takes it and its flows out of the server; called with spool.mu held.
func (c *conn) cut() {
	c.drop()
	c.forgotten = true
	for len(c.flows) > 0 {
		c.flows[0].end()
	}
	delete(c.server.conns, c)
}

func (c *conn) forget() {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	c.cut()
}

func isGone(err error) bool {
	var netErr net.Error
	return errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &netErr)
}

// handshake does TLS, if there is any.
func (c *conn) handshake() error {
	t, ok := c.nc.(*tls.Conn)
	if !ok {
		return nil
	}
	if err := c.nc.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return fmt.Errorf("set deadline: %w", err)
	}
	if err := t.Handshake(); err != nil { //nolint:noctx // the deadline bounds it, and drop ends it
		return fmt.Errorf("TLS handshake: %w", err)
	}
	return c.nc.SetDeadline(time.Time{})
}

// write is the writing goroutine. It asks for the next frames only when the socket took the last ones, so what waits for a
// slow client is bounded: control frames by maxQueueBytes, messages by not being encoded before.
func (c *conn) write() {
	defer close(c.written)
	defer c.drop()
	var b batch
	for {
		c.collect(&b)
		if len(b.frames) > 0 && !c.send(&b) {
			return
		}
		if b.last {
			return
		}
		if cap(b.frames) > 8*writeChunkBytes {
			b.frames = nil // after a large message, not to be kept for every client
			continue
		}
		if len(b.frames) > 0 {
			continue
		}
		select {
		case <-c.wake:
		case <-c.gone:
			return
		}
	}
}

// batch is what one system call writes.
type batch struct {
	frames     []byte
	deliveries []sentDelivery // for the hook, when there is one
	last       bool           // drop the connection afterwards
}

type sentDelivery struct {
	Delivery
	start, end int // in frames
}

// send asks the hook about each delivery and writes what it lets through.
func (c *conn) send(b *batch) bool {
	for _, d := range b.deliveries {
		if verdict := c.server.onDeliver(d.Delivery); verdict != nil {
			b.last = true
			b.frames = b.frames[:d.start]
			if errors.Is(verdict, ErrDropAfter) {
				b.frames = b.frames[:d.end]
			}
			break
		}
	}
	_ = c.nc.SetWriteDeadline(time.Now().Add(c.server.cfg.WriteTimeout))
	_, err := c.nc.Write(b.frames)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.server.mu.Lock()
		c.server.counters.SlowDropped++
		c.server.mu.Unlock()
		c.log().Warn("client takes nothing and is dropped", slog.Duration("after", c.server.cfg.WriteTimeout))
	}
	return err == nil
}

// collect encodes what can be written now: waiting control frames, then messages of each flow in turn.
func (c *conn) collect(b *batch) {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	b.frames, b.deliveries = b.frames[:0], b.deliveries[:0]
	if c.mute {
		c.control = nil
		return
	}
	b.frames = append(b.frames, c.control...)
	c.control = c.control[:0]
	for _, p := range c.publishers {
		b.frames = p.appendAck(b.frames)
	}
	for progress := true; progress && !b.last && len(b.frames) < writeChunkBytes; {
		progress = false
		for _, f := range c.flows {
			if len(f.outbox) > 0 && !b.last {
				c.collectNext(b, f)
				progress = true
			}
		}
	}
}

// collectNext encodes one delivery, with the faults that strike it.
func (c *conn) collectNext(b *batch, f *flow) {
	s := c.server
	e := f.outbox[0]
	start := len(b.frames)
	b.frames = f.appendNext(b.frames)
	if s.cfg.Hooks.OnDeliver != nil {
		b.deliveries = append(b.deliveries, sentDelivery{f.describe(e), start, len(b.frames)})
	}
	if len(s.standing) == 0 {
		return
	}
	if s.strike(f.queue.Name, c.client, FaultDuplicate) != nil {
		b.frames = f.deliver(b.frames, e, e.message)
	}
	if s.strike(f.queue.Name, c.client, FaultDropAfterDeliveries) != nil {
		b.last = true
	}
}

func (c *conn) isMute() bool {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	return c.mute
}

// poke makes the writing goroutine look again.
func (c *conn) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// queue adds a control frame; called with spool.mu held.
func (c *conn) queue(encoded []byte) {
	if c.forgotten || c.mute {
		return
	}
	if len(c.control) > maxQueueBytes {
		c.server.counters.SlowDropped++
		c.drop()
		return
	}
	c.control = append(c.control, encoded...)
	c.poke()
}

// answer queues the answer to an AssuredCtrl request; a nil refusal is consent. Called with spool.mu held.
func (c *conn) answer(f frame, kind byte, refusal *Refusal, params []byte) {
	if refusal == nil {
		refusal = &Refusal{Code: 200, Text: "OK"}
	}
	head := appendResponse(appendTag(f.tag), refusal.Code, refusal.Text)
	c.queue(appendAssured(nil, head, kind, params))
}

// verdict carries out what a hook or fault says of a request: an error that ends the connection, or nil.
func (c *conn) verdict(err error, refuse func(*Refusal)) error {
	switch {
	case errors.Is(err, ErrHold), errors.Is(err, ErrLose):
		c.server.mu.Lock()
		defer c.server.mu.Unlock()
		c.server.counters.Held++
		return nil
	case errors.Is(err, ErrDrop), errors.Is(err, ErrDropAfter):
		return errDropped
	}
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	refuse(refusalOf(err))
	return nil
}

// serve handles frames until the peer closes or an error, and says which.
func (c *conn) serve(in *bufio.Reader) error {
	messageBytes := maxControlBytes // until the login
	for {
		if err := c.nc.SetReadDeadline(time.Now().Add(idleTimeout)); err != nil {
			return err
		}
		f, err := readFrame(in, messageBytes)
		if err != nil {
			return err
		}
		if err := c.handle(f); err != nil {
			return err
		}
		if c.client != "" {
			messageBytes = c.server.cfg.MaxMessageBytes + frameSlackBytes
		}
	}
}

func (c *conn) handle(f frame) error {
	if c.isMute() {
		return nil
	}
	if f.protocol() == protoClient {
		return c.clientCtrl(f)
	}
	if c.client == "" {
		return fmt.Errorf("protocol %#x before the login", f.protocol())
	}
	switch f.protocol() {
	case protoKeepAlive:
		c.keepAlive(f)
		return nil
	case protoMessage:
		return c.publish(f)
	case protoSMP:
		return c.subscribe(f)
	case protoAssured:
		a, err := parseAssured(f.payload)
		if err != nil {
			return err
		}
		return c.assured(f, a)
	default:
		return fmt.Errorf("unknown protocol %#x", f.protocol())
	}
}

func (c *conn) assured(f frame, a assured) error {
	switch a.kind {
	case assuredAck:
		return c.ack(a)
	case assuredBind:
		return c.bind(f, a)
	case assuredUnbind:
		return c.unbind(f, a)
	case assuredOpenPub:
		return c.openPublisher(f, a)
	case assuredClosePub:
		return c.closePublisher(f, a)
	case assuredFlowState:
		return nil // the answer to ours
	case assuredUnsub:
		return c.forbid(f, a, "UNSUBSCRIBE")
	case assuredCreate:
		return c.forbid(f, a, "CREATE")
	case assuredDelete:
		return c.forbid(f, a, "DELETE")
	default:
		return fmt.Errorf("unknown AssuredCtrl message %#x", a.kind)
	}
}

// forbid records and refuses what changes a broker's endpoints.
func (c *conn) forbid(f frame, a assured, name string) error {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	c.violate("%s of endpoint %.80q", name, textOf(a.find(adQueue)))
	c.answer(f, a.kind, &Refusal{Code: 403, Text: "Permission Not Allowed"}, nil)
	return nil
}

func (c *conn) keepAlive(f frame) {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counters.KeepAlives++
	if s.strike("", c.client, FaultHoldKeepAlive) != nil {
		s.counters.Held++
		return
	}
	c.queue(appendFrame(nil, f.word, nil, nil))
}
