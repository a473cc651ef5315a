package solacetest

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestHostileFrameEndsTheConnectionAndNothingElse(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	bystander := logIn(t, s, "bystander")
	with := func(encoded []byte, at int, value uint32) []byte {
		out := bytes.Clone(encoded)
		binary.BigEndian.PutUint32(out[at:], value)
		return out
	}
	bind, ack := bindFrame(queueName, 255), ackFrame(1, 0, 255, ackRange{0, 5, outcomeAccepted})
	beforeLogin := map[string][]byte{
		"no SMF":                    []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"bind before the login":     bind,
		"large before the login":    with(loginFrame("c"), 8, maxControlBytes+1),
		"shorter than its header":   with(loginFrame("c"), 8, frameHeaderBytes-1),
		"header longer than it is":  with(loginFrame("c"), 4, 1<<31),
		"header shorter than it is": with(loginFrame("c"), 4, 3),
		"message before the login":  appendFrame(nil, smfVersion<<24|protoMessage<<16, nil, nil),
		"login of another version":  appendFrame(nil, controlWord(protoClient), nil, []byte{7, 0, 0, 0, 0, 6}),
		"unknown client message":    appendClientCtrl(nil, 9, nil),
		"password not base64":       appendClientCtrl(appendParam(nil, 0, headPassword, []byte("%")), clientLogin, nil),
		"login with a short length": appendFrame(nil, controlWord(protoClient), nil, []byte{1, 0, 0, 0, 0, 11, 5, 0, 0, 0, 4}),
	}
	afterLogin := map[string][]byte{
		"second login":              loginFrame("c"),
		"unknown protocol":          appendFrame(nil, controlWord(0x3f), nil, nil),
		"message of 4 GB":           with(bind, 8, 1<<32-1),
		"assured without a payload": appendFrame(nil, controlWord(protoAssured), nil, nil),
		"assured of version 2":      appendFrame(nil, controlWord(protoAssured), nil, []byte{2, 4, 0, 0, 0, 6}),
		"assured with a wrong size": appendFrame(nil, controlWord(protoAssured), nil, []byte{3, 4, 0, 0, 0, 7}),
		"assured parameter cut":     appendAssured(nil, nil, assuredBind, []byte{adQueue, 200, 'x'}),
		"assured unknown":           appendAssured(nil, nil, 0x3e, nil),
		"ack of 3 bytes":            appendAssured(nil, nil, assuredAck, appendParam(nil, 0, adAppAck, []byte{1, 2, 3})),
		"ack with outcome 9":        with(ack, len(ack)-4, 0x09090909)[:len(ack)],
		"ack turned round":          ackFrame(1, 0, 255, ackRange{5, 4, outcomeAccepted}),
		"SMP cut short":             appendFrame(nil, controlWord(protoSMP), nil, []byte{0x80}),
		"SMP for a queue cut short": appendFrame(nil, controlWord(protoSMP), nil, []byte{0x82, 0, 0, 0, 8, 0, 99, 'q'}),
		"message without a topic":   appendFrame(nil, wordADF|smfVersion<<24|protoMessage<<16, nil, []byte("x")),
		"message without a flow":    appendFrame(nil, wordADF|smfVersion<<24|protoMessage<<16, appendText(nil, 0, headTopic, "a"), []byte("x")),
		"extended header cut":       appendFrame(nil, smfVersion<<24|protoMessage<<16, appendParam(appendText(nil, 0, headTopic, "a"), 0, headExtended, []byte{0x50}), nil),
		"too many parameters":       appendFrame(nil, controlWord(protoKeepAlive), bytes.Repeat([]byte{0x44, 2}, maxParams+1), nil),
	}
	delete(afterLogin, "ack with outcome 9")
	afterLogin["ack with outcome 9"] = ackFrame(1, 0, 255, ackRange{0, 5, 9})
	for name, encoded := range beforeLogin {
		c := dial(t, s)
		c.send(encoded)
		_ = c.nc.(*net.TCPConn).CloseWrite()
		c.closed()
		require.NotContains(t, s.Clients(), "c", name)
	}
	for _, encoded := range afterLogin {
		c := logIn(t, s, "c")
		c.send(encoded)
		c.closed()
	}
	bystander.silent()
	eventually(t, func() bool { return s.Counters().Connections == 1 }, "only the bystander is left")
	require.GreaterOrEqual(t, s.Counters().ProtocolErrors, int64(len(afterLogin)+len(beforeLogin)-1))
	require.Empty(t, s.Violations())
}

// greedy counts what its reader asks for at once.
type greedy struct {
	left, asked int
}

func (g *greedy) Read(p []byte) (int, error) {
	g.asked = max(g.asked, len(p))
	if g.left == 0 {
		return 0, io.EOF
	}
	n := min(len(p), g.left)
	g.left -= n
	return n, nil
}

func TestAnnouncedLengthIsNotAllocatedBeforeItArrives(t *testing.T) {
	t.Parallel()
	header := appendFrame(nil, controlWord(protoMessage), nil, nil)
	binary.BigEndian.PutUint32(header[8:], 1<<30)
	in := &greedy{left: 1000}
	_, err := readFrame(io.MultiReader(bytes.NewReader(header), in), 1<<31)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Less(t, in.asked, chunkBytes)
}

func TestClientThatDoesNotReadIsDroppedAndHoldsUpNobody(t *testing.T) {
	t.Parallel()
	s := start(t, Config{WriteTimeout: 2 * time.Second})
	for range 50 {
		require.NoError(t, s.PublishQueue(queueName, Message{Bytes: make([]byte, 200_000)}))
	}
	slow, other := logIn(t, s, "slow"), logIn(t, s, "other")
	require.NoError(t, slow.nc.(*net.TCPConn).SetReadBuffer(4096))
	slow.bind(queueName, 50)
	other.silent()
	eventually(t, func() bool { return s.Counters().SlowDropped == 1 }, "10 MB are more than the sockets hold")
	other.bind(queueName, 1)
	require.True(t, other.receive().redelivered)
}

func TestClientThatAsksAndDoesNotReadIsDropped(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	c := logIn(t, s, "c")
	topic := bytes.Repeat([]byte("x"), maxControlBytes/2)
	flood := appendFrame(nil, controlWord(protoSMP), nil, append(append([]byte{0x80, 0, 0, 0x80, 7, 0x0c}, topic...), 0))
	require.NoError(t, c.nc.SetWriteDeadline(time.Now().Add(3*patience)))
	var err error
	for err == nil {
		_, err = c.nc.Write(flood) // ends when the answers are more than the server keeps
	}
	require.False(t, isTimeout(err), "dropped, not stuck: %v", err)
	require.EqualValues(t, 1, s.Counters().SlowDropped)
}

func isTimeout(err error) bool {
	netErr, ok := err.(net.Error) //nolint:errorlint // as the connection returns it
	return ok && netErr.Timeout()
}

func TestCloseEndsConnectionsInEveryState(t *testing.T) {
	t.Parallel()
	s, err := Start(Config{Queues: []Queue{{Name: queueName}}})
	require.NoError(t, err)
	dial(t, s)
	logIn(t, s, "c").bind(queueName, 255)
	require.NoError(t, s.Inject(Fault{Kind: FaultHoldConnection}))
	held := dial(t, s)
	mute := s.Counters().Accepted
	eventually(t, func() bool { return s.Counters().Accepted >= mute }, "accepted")
	require.NoError(t, s.Close())
	held.closed()

	silent, err := Start(Config{TLS: &tls.Config{MinVersion: tls.VersionTLS12}})
	require.NoError(t, err)
	c := dial(t, silent)
	eventually(t, func() bool { return silent.Counters().Connections == 1 }, "waits for the handshake")
	require.NoError(t, silent.Close())
	c.closed()
}

func TestConnectionsAreLimited(t *testing.T) {
	t.Parallel()
	s := start(t, Config{MaxConnections: 3})
	for range 3 {
		dial(t, s)
	}
	eventually(t, func() bool { return s.Counters().Connections == 3 }, "all are taken")
	nc, err := new(net.Dialer).DialContext(t.Context(), "tcp", s.Addr())
	if err != nil { // ended before the dialer looked
		require.ErrorIs(t, err, syscall.ECONNRESET)
		return
	}
	newClient(t, nc).closed()
}

func TestFlowsOfAConnectionAreLimited(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Queues: []Queue{{Name: queueName, MaxBinds: maxFlows + 10}}})
	c := logIn(t, s, "c")
	for range maxFlows {
		c.bind(queueName, 0)
	}
	c.send(bindFrame(queueName, 0))
	f, _ := c.assured(assuredBind)
	_, text := f.response()
	require.Equal(t, "Too Many Subscribers", text)
}

func TestFinishedMessagesAreRememberedWithinBounds(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	c := logIn(t, s, "c")
	c.bind(queueName, 255)
	put(t, s, 0, maxFinished+100)
	for range maxFinished + 100 {
		id := c.receive().id
		c.ack(id, 255, ackRange{id, id, outcomeAccepted})
	}
	c.silent()
	q := s.Queue(queueName)
	require.EqualValues(t, maxFinished+100, q.Acked)
	require.Len(t, q.Messages, maxFinished)
	require.Equal(t, "100", q.Messages[0].ApplicationMessageID)
	require.Equal(t, StateAcked, q.Messages[0].State)
}
