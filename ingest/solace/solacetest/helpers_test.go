package solacetest

import (
	"bufio"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const queueName = "billing"

// patience is what only a broken server exceeds.
const patience = 30 * time.Second

func start(tb testing.TB, cfg Config) *Server {
	tb.Helper()
	if cfg.Queues == nil && cfg.Mate == nil {
		cfg.Queues = []Queue{{Name: queueName, Subscriptions: []string{"billing/>"}}}
	}
	s, err := Start(cfg)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, s.Close()) })
	return s
}

// put stores n messages whose application message ids are from, from+1, ...
func put(tb testing.TB, s *Server, from, n int) {
	tb.Helper()
	for i := from; i < from+n; i++ {
		require.NoError(tb, s.PublishQueue(queueName, Message{Bytes: []byte("{}"), ApplicationMessageID: strconv.Itoa(i)}))
	}
}

func eventually(t *testing.T, condition func() bool, what string) {
	t.Helper()
	require.Eventually(t, condition, patience, time.Millisecond, what)
}

// client is a small SMF client that does exactly what a test says, and never by itself.
type client struct {
	t    testing.TB
	nc   net.Conn
	in   *bufio.Reader
	flow uint32 // of the last bind
	pub  uint32
}

// dial connects without a word.
func dial(tb testing.TB, s *Server) *client {
	tb.Helper()
	nc, err := new(net.Dialer).DialContext(tb.Context(), "tcp", s.Addr())
	require.NoError(tb, err)
	return newClient(tb, nc)
}

func newClient(tb testing.TB, nc net.Conn) *client {
	tb.Helper()
	tb.Cleanup(func() { _ = nc.Close() })
	return &client{t: tb, nc: nc, in: bufio.NewReader(nc)}
}

// logIn connects and logs in.
func logIn(tb testing.TB, s *Server, name string) *client {
	tb.Helper()
	c := dial(tb, s)
	c.send(loginFrame(name))
	code, text := c.next(protoClient).response()
	require.EqualValues(tb, 200, code, text)
	return c
}

func loginFrame(name string) []byte {
	head := appendParam(nil, ignoreUnknown, headUsername, []byte(base64.StdEncoding.EncodeToString([]byte("user"))))
	params := appendClientParam(nil, ccClientName, append([]byte(name), 0))
	params = appendClientParam(params, ccVPN, []byte("default\x00"))
	return appendClientCtrl(head, clientLogin, params)
}

// response is the verdict in an answer.
func (f frame) response() (code uint32, text string) {
	value := f.find(headResponse)
	if len(value) < 4 {
		return 0, ""
	}
	return binary.BigEndian.Uint32(value), string(value[4:])
}

func (c *client) send(encoded []byte) {
	c.t.Helper()
	require.NoError(c.t, c.nc.SetWriteDeadline(time.Now().Add(patience)))
	_, err := c.nc.Write(encoded)
	require.NoError(c.t, err)
}

// next reads the next frame, which must be of this protocol.
func (c *client) next(protocol byte) frame {
	c.t.Helper()
	f, err := c.read()
	require.NoError(c.t, err)
	require.Equal(c.t, protocol, f.protocol())
	return f
}

func (c *client) read() (frame, error) {
	if err := c.nc.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return frame{}, err
	}
	return readFrame(c.in, 100<<20)
}

// assured reads the next AssuredCtrl message, which must be of this kind.
func (c *client) assured(kind byte) (frame, assured) {
	c.t.Helper()
	f := c.next(protoAssured)
	a, err := parseAssured(f.payload)
	require.NoError(c.t, err)
	require.Equal(c.t, kind, a.kind)
	return f, a
}

// silent checks that everything sent so far got no answer, by what answers a keep-alive.
func (c *client) silent() {
	c.t.Helper()
	c.send(keepAliveFrame())
	c.next(protoKeepAlive)
}

func keepAliveFrame() []byte { return appendFrame(nil, controlWord(protoKeepAlive), nil, nil) }

// closed checks that the server ends the connection.
func (c *client) closed() {
	c.t.Helper()
	for {
		if _, err := c.read(); err != nil {
			require.True(c.t, isGone(err) && !os.IsTimeout(err), "%v", err)
			return
		}
	}
}

func bindFrame(queue string, window byte, extra ...byte) []byte {
	params := appendText(nil, discardUnknown, adQueue, queue)
	params = appendParam(params, discardUnknown, adWindow, []byte{window})
	params = appendParam(params, ignoreUnknown, adWantActive, []byte{1})
	return appendAssured(nil, appendTag([]byte{0, 0, 7}), assuredBind, append(params, extra...))
}

// bind opens a flow and returns its id.
func (c *client) bind(queue string, window byte) uint32 {
	c.t.Helper()
	c.send(bindFrame(queue, window))
	f, a := c.assured(assuredBind)
	code, text := f.response()
	require.EqualValues(c.t, 200, code, text)
	require.Equal(c.t, []byte{0, 0, 7}, f.tag)
	c.flow = uint32Of(a.find(adFlowID))
	return c.flow
}

// received is a delivery.
type received struct {
	id, previous, spoolID uint64
	redelivered           bool
	earlier               uint32
	applicationID         string
}

func (c *client) receive() received {
	c.t.Helper()
	f := c.next(protoMessage)
	require.True(c.t, f.isADF())
	require.Equal(c.t, c.flow, uint32Of(f.find(headFlowID)))
	extended, err := parseExtended(f.find(headExtended))
	require.NoError(c.t, err)
	var r received
	r.id, _ = uintOf(f.find(headMessageID))
	r.previous, _ = uintOf(f.find(headPreviousID))
	r.spoolID, _ = uintOf(findParam(extended, extSpoolID))
	r.redelivered = f.find(headRedelivered) != nil
	r.earlier = uint32Of(findParam(extended, extRedelivered))
	r.applicationID = inspect(f).applicationID
	return r
}

func (c *client) receiveAll(n int) []received {
	c.t.Helper()
	out := make([]received, 0, n)
	for range n {
		out = append(out, c.receive())
	}
	return out
}

// ack sends a CLIENTACK: what was taken over, the window, and ranges.
func (c *client) ack(takenOver uint64, window byte, ranges ...ackRange) {
	c.t.Helper()
	c.send(ackFrame(c.flow, takenOver, window, ranges...))
}

func ackFrame(flow uint32, takenOver uint64, window byte, ranges ...ackRange) []byte {
	params := appendParam32(nil, discardUnknown, adFlowID, flow)
	params = appendParam64(params, discardUnknown, adLastAcked, takenOver)
	params = appendParam(params, discardUnknown, adWindow, []byte{window})
	for _, r := range ranges {
		value := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, r.min), r.max)
		if r.outcome != outcomeAccepted {
			value = append(value, byte(r.outcome))
		}
		params = appendParam(params, discardUnknown, adAppAck, value)
	}
	return appendAssured(nil, nil, assuredAck, params)
}

func (c *client) openPublisher(name string) (last uint64) {
	c.t.Helper()
	params := appendText(nil, discardUnknown, adFlowName, name)
	c.send(appendAssured(nil, nil, assuredOpenPub, params))
	f, a := c.assured(assuredOpenPub)
	code, text := f.response()
	require.EqualValues(c.t, 200, code, text)
	c.pub = uint32Of(a.find(adFlowID))
	last, _ = a.uint64(adLastAcked)
	return last
}

// publish sends a message to the topic billing/x with an id of the client's choice.
func (c *client) publish(id uint64, m Message) {
	c.t.Helper()
	f, err := m.frame("billing/x")
	require.NoError(c.t, err)
	var head []byte
	for _, p := range f.params {
		head = appendParam(head, p.unknown, narrow(p.kind), p.value)
	}
	head = appendParam64(head, discardUnknown, headMessageID, id)
	head = appendParam64(head, discardUnknown, headPreviousID, id-1)
	head = appendParam32(head, discardUnknown, headFlowID, c.pub)
	c.send(appendFrame(nil, f.word, head, f.payload))
}

// realFrames are the frames of the real client, by name.
func realFrames(tb testing.TB) map[string][]byte {
	tb.Helper()
	raw, err := os.ReadFile("testdata/client_frames.txt")
	require.NoError(tb, err)
	out := map[string][]byte{}
	for line := range strings.Lines(string(raw)) {
		name, encoded, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || name == "#" {
			continue
		}
		out[name], err = hex.DecodeString(encoded)
		require.NoError(tb, err, name)
	}
	return out
}
