package eventhubstest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/Azure/go-amqp"
)

// read is the connection's reading goroutine: it decodes and handles frames until either side ends the connection. The
// writing goroutine takes what it queues, so a client that stops reading holds up nobody.
func (c *conn) read() {
	defer c.forget()
	in := bufio.NewReaderSize(c.nc, maxFrameBytes)
	if err := c.server.onConnect(c.nc.RemoteAddr().String()); err != nil {
		if errors.Is(err, ErrHold) {
			_, _ = io.Copy(io.Discard, in)
		}
		return
	}
	if err := c.handshake(in); err != nil {
		c.log().Debug("handshake failed", slog.Any("error", err))
		return
	}
	c.server.running.Go(c.write)
	err := c.serve(in)
	c.server.mu.Lock()
	if err != nil && !isGone(err) {
		c.log().Warn("connection ended by a protocol error", slog.Any("error", err))
		c.queue(0, composite{performClose, list{errorValue(amqpError(amqp.ErrCondDecodeError, "%v", err))}})
	}
	c.closing = true
	c.server.mu.Unlock()
	c.poke()
	<-c.written
}

// conn is one client's connection. Fields below the blank line are guarded by Server.mu.
type conn struct {
	server  *Server
	nc      net.Conn
	wake    chan struct{} // one token: something may be there to write
	gone    chan struct{} // closed by drop
	written chan struct{} // closed when the writing goroutine ends
	once    sync.Once

	control    []byte // encoded frames that wait
	sessions   map[uint16]*session
	senders    []*sendLink
	maxFrame   int
	keepAlive  time.Duration
	closing    bool // write what is queued, then close
	authorized bool
}

// session is one AMQP session; all fields are guarded by Server.mu.
type session struct {
	conn         *conn
	channel      uint16
	nextIncoming uint32 // transfer id expected next
	taken        uint32 // transfers since the last flow
	nextOutgoing uint32 // transfer id of our next transfer
	nextDelivery uint32
	window       uint32 // transfers that the client still takes
	senders      map[uint32]*sendLink
	receivers    map[uint32]*receiveLink
	detaching    map[uint32]int // detaches of ours that the client has not answered, by handle
}

func newConn(s *Server, nc net.Conn) *conn {
	return &conn{
		server: s, nc: nc, wake: make(chan struct{}, 1), gone: make(chan struct{}), written: make(chan struct{}),
		sessions: map[uint16]*session{}, maxFrame: 512, keepAlive: keepAlive,
	}
}

func (c *conn) log() *slog.Logger {
	return c.server.cfg.Logger.With(slog.String("client", c.nc.RemoteAddr().String()))
}

// drop cuts the connection at once; safe to call from anywhere, any number of times.
func (c *conn) drop() {
	c.once.Do(func() {
		close(c.gone)
		_ = c.nc.Close()
	})
}

// cut drops the connection and takes it and all its links out of the server; called with Server.mu held.
func (c *conn) cut() {
	c.drop()
	for _, sess := range c.sessions {
		sess.end()
	}
	clear(c.sessions)
	delete(c.server.conns, c)
}

func (c *conn) forget() {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	c.cut()
}

func isGone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, io.ErrUnexpectedEOF) ||
		isNetError(err)
}

func isNetError(err error) bool {
	var netErr net.Error
	return errors.As(err, &netErr)
}

// handshake does the protocol headers and SASL ANONYMOUS; it alone writes to the socket from the reading goroutine.
func (c *conn) handshake(in *bufio.Reader) error {
	if err := c.nc.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return fmt.Errorf("set deadline: %w", err)
	}
	plain, sasl := []byte("AMQP\x00\x01\x00\x00"), []byte("AMQP\x03\x01\x00\x00")
	var header [8]byte
	if _, err := io.ReadFull(in, header[:]); err != nil {
		return fmt.Errorf("read protocol header: %w", err)
	}
	if bytes.Equal(header[:], sasl) {
		out := appendFrame(bytes.Clone(sasl), frameTypeSASL, 0, composite{saslMechanisms, list{symbol("ANONYMOUS")}}, nil)
		if _, err := c.nc.Write(out); err != nil {
			return fmt.Errorf("write mechanisms: %w", err)
		}
		f, err := readFrame(in)
		if err != nil || f.kind != frameTypeSASL || f.code != saslInit {
			return fmt.Errorf("read SASL init: got %#x: %w", f.code, err)
		}
		outcome := ubyte(0)
		if f.fields.string(0) != "ANONYMOUS" {
			outcome = 1
		}
		out = appendFrame(nil, frameTypeSASL, 0, composite{saslOutcome, list{outcome}}, nil)
		if _, err := c.nc.Write(out); err != nil {
			return fmt.Errorf("write SASL outcome: %w", err)
		}
		if outcome != 0 {
			return fmt.Errorf("SASL mechanism %q is not offered", f.fields.string(0))
		}
		if _, err := io.ReadFull(in, header[:]); err != nil {
			return fmt.Errorf("read protocol header: %w", err)
		}
	}
	if _, err := c.nc.Write(plain); err != nil {
		return fmt.Errorf("write protocol header: %w", err)
	}
	if !bytes.Equal(header[:], plain) {
		return fmt.Errorf("protocol header %q is not AMQP 1.0", header)
	}
	return c.nc.SetDeadline(time.Time{})
}

// write is the writing goroutine. It asks for the next frames only when the socket took the last ones, so what waits for a
// slow client is bounded: control frames by maxQueueBytes, events by not being encoded before.
func (c *conn) write() {
	defer close(c.written)
	defer c.drop()
	timer := time.NewTimer(keepAlive)
	defer timer.Stop()
	var buf []byte
	for {
		var done bool
		var every time.Duration
		buf, every, done = c.collect(buf[:0])
		if len(buf) > 0 {
			if !c.send(buf) {
				return
			}
			timer.Reset(every)
			continue
		}
		if done {
			return
		}
		select {
		case <-c.wake:
		case <-c.gone:
			return
		case <-timer.C:
			if !c.send(appendEmptyFrame(buf)) {
				return
			}
			timer.Reset(every)
		}
	}
}

func (c *conn) send(frames []byte) bool {
	_ = c.nc.SetWriteDeadline(time.Now().Add(c.server.cfg.WriteTimeout))
	_, err := c.nc.Write(frames)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.server.mu.Lock()
		c.server.counters.SlowDropped++
		c.server.mu.Unlock()
		c.log().Warn("client takes nothing and is dropped", slog.Duration("after", c.server.cfg.WriteTimeout))
	}
	return err == nil
}

// collect encodes what can be written now: waiting control frames, then events of each link in turn.
func (c *conn) collect(buf []byte) (out []byte, every time.Duration, done bool) {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	buf = append(buf, c.control...)
	c.control = c.control[:0]
	for progress := !c.closing; progress && len(buf) < writeChunkBytes; {
		progress = false
		for _, l := range c.senders {
			before := len(buf)
			buf = l.appendNext(buf)
			progress = progress || len(buf) > before
		}
	}
	return buf, c.keepAlive, c.closing
}

// poke makes the writing goroutine look again.
func (c *conn) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// queue adds a control frame; called with Server.mu held.
func (c *conn) queue(channel uint16, body composite) {
	if len(c.control) > maxQueueBytes {
		c.server.counters.SlowDropped++
		c.drop()
		return
	}
	c.control = appendFrame(c.control, frameTypeAMQP, channel, body, nil)
	c.poke()
}

// serve handles frames until the peer closes (nil) or an error.
func (c *conn) serve(in *bufio.Reader) error {
	for {
		if err := c.nc.SetReadDeadline(time.Now().Add(2 * idleTimeout)); err != nil {
			return err
		}
		f, err := readFrame(in)
		if err != nil {
			return err
		}
		if f.kind != frameTypeAMQP {
			return fmt.Errorf("frame type %d after the handshake", f.kind)
		}
		closed, err := c.handle(f)
		if closed || err != nil {
			return err
		}
	}
}

func (c *conn) handle(f frame) (closed bool, err error) {
	switch f.code {
	case 0:
		return false, nil
	case performAttach:
		return false, c.attach(f)
	case performTransfer:
		return false, c.transfer(f)
	}
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	switch f.code {
	case performOpen:
		return false, c.open(f)
	case performBegin:
		return false, c.begin(f)
	case performFlow:
		return false, c.flow(f)
	case performDisposition:
		// Events leave settled and requests are answered: nothing of ours waits for one.
		return false, nil
	case performDetach:
		return false, c.detach(f)
	case performEnd:
		if sess := c.sessions[f.channel]; sess != nil {
			sess.end()
			delete(c.sessions, f.channel)
			c.queue(f.channel, composite{performEnd, nil})
		}
		return false, nil
	case performClose:
		c.queue(0, composite{performClose, nil})
		return true, nil
	default:
		return false, fmt.Errorf("unknown performative %#x", f.code)
	}
}

func (c *conn) open(f frame) error {
	c.maxFrame = maxFrameBytes
	if n, ok := f.fields.uint32(2); ok {
		if n < 512 {
			return fmt.Errorf("max-frame-size %d is below 512", n)
		}
		c.maxFrame = int(min(n, maxFrameBytes))
	}
	if ms, ok := f.fields.uint32(4); ok && ms > 0 {
		c.keepAlive = min(keepAlive, time.Duration(ms)*time.Millisecond/2)
	}
	c.queue(0, composite{performOpen, list{
		"eventhubstest", nil, uint32(maxFrameBytes), uint16(maxChannel), uint32(idleTimeout / time.Millisecond),
	}})
	return nil
}

func (c *conn) begin(f frame) error {
	if f.channel > maxChannel || c.sessions[f.channel] != nil {
		return fmt.Errorf("begin on channel %d, which is in use or above %d", f.channel, maxChannel)
	}
	nextOutgoing, ok1 := f.fields.uint32(1)
	window, ok2 := f.fields.uint32(2)
	if !ok1 || !ok2 {
		return errors.New("begin without next-outgoing-id or incoming-window")
	}
	c.sessions[f.channel] = &session{
		conn: c, channel: f.channel, nextIncoming: nextOutgoing, window: window,
		senders: map[uint32]*sendLink{}, receivers: map[uint32]*receiveLink{}, detaching: map[uint32]int{},
	}
	c.queue(f.channel, composite{performBegin, list{
		f.channel, uint32(0), uint32(sessionWindow), uint32(sessionWindow), uint32(maxHandle),
	}})
	return nil
}

func (c *conn) flow(f frame) error {
	sess := c.sessions[f.channel]
	if sess == nil {
		return fmt.Errorf("flow on channel %d without a session", f.channel)
	}
	nextIncoming, _ := f.fields.uint32(0)
	window, _ := f.fields.uint32(1)
	sess.window = distance(nextIncoming+window, sess.nextOutgoing)
	if n, ok := f.fields.uint32(2); ok {
		sess.nextIncoming = n
	}
	echo := f.fields.bool(9)
	handle, linked := f.fields.uint32(4)
	if l := sess.senders[handle]; linked && l != nil {
		count, _ := f.fields.uint32(5)
		credit, _ := f.fields.uint32(6)
		l.credit = distance(count+credit, l.deliveryCount)
		l.drain = f.fields.bool(8)
		if echo {
			c.queue(sess.channel, sess.flowFrame(handle, l.deliveryCount, l.credit, false))
		}
	} else if echo {
		c.queue(sess.channel, sess.flowFrame(nil, nil, nil, false))
	}
	c.poke()
	return nil
}

// distance is a-b in serial-number arithmetic, not below 0.
func distance(a, b uint32) uint32 {
	if d := a - b; d < 1<<31 {
		return d
	}
	return 0
}

// flowFrame is a flow of the session and, with a handle, of a link; handle, count and credit are uint32 or nil.
func (s *session) flowFrame(handle, count, credit any, drain bool) composite {
	s.taken = 0
	return composite{performFlow, list{
		s.nextIncoming, uint32(sessionWindow), s.nextOutgoing, uint32(sessionWindow), handle, count, credit, nil, drain, false,
	}}
}

func (c *conn) detach(f frame) error {
	sess := c.sessions[f.channel]
	if sess == nil {
		return nil
	}
	handle, ok := f.fields.uint32(0)
	if !ok {
		return errors.New("detach without a handle")
	}
	if sess.detaching[handle] > 0 {
		// The answer to a detach of ours, or one that crossed it on the way; the handle may be in use again already.
		if sess.detaching[handle]--; sess.detaching[handle] == 0 {
			delete(sess.detaching, handle)
		}
		return nil
	}
	if sess.senders[handle] == nil && sess.receivers[handle] == nil {
		return nil // an attach that was never answered is given up
	}
	sess.unlink(handle)
	c.queue(sess.channel, composite{performDetach, list{handle, true}})
	return nil
}

// end forgets the session's links; called with Server.mu held.
func (s *session) end() {
	for handle := range s.senders {
		s.unlink(handle)
	}
	clear(s.receivers)
}

func (s *session) unlink(handle uint32) {
	if l := s.senders[handle]; l != nil {
		l.forget()
	}
	delete(s.senders, handle)
	delete(s.receivers, handle)
}

// detachLink ends a link from our side; called with Server.mu held.
func (s *session) detachLink(handle uint32, reason error) {
	s.unlink(handle)
	s.detaching[handle]++
	s.conn.queue(s.channel, composite{performDetach, list{handle, true, errorValue(reason)}})
}
