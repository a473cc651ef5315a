//go:build cgo

package clienttest_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"solace.dev/go/messaging/pkg/solace"
	"solace.dev/go/messaging/pkg/solace/config"
	"solace.dev/go/messaging/pkg/solace/message"
	"solace.dev/go/messaging/pkg/solace/message/sdt"
	"solace.dev/go/messaging/pkg/solace/resource"

	"chargeonce/ingest/solace/solacetest"
)

const body = `{"customer_id":"cus_ü","amount_cents":5}`

// content is what the client makes of a message.
type content struct {
	text, bytes       string
	isText, isBytes   bool
	properties        sdt.Map
	applicationID     string
	sender, contents  string
	correlation, kind string
	sequence          int64
	priority          int
}

func contentOf(m message.InboundMessage) content {
	var c content
	c.text, c.isText = m.GetPayloadAsString()
	var b []byte
	b, c.isBytes = m.GetPayloadAsBytes()
	c.bytes = string(b)
	c.properties = m.GetProperties()
	c.applicationID, _ = m.GetApplicationMessageID()
	c.sender, _ = m.GetSenderID()
	c.contents, _ = m.GetHTTPContentType()
	c.correlation, _ = m.GetCorrelationID()
	c.kind, _ = m.GetApplicationMessageType()
	c.sequence, _ = m.GetSequenceNumber()
	c.priority, _ = m.GetPriority()
	return c
}

// TestPayloadsArriveAsTheyWerePublished publishes each kind of message twice, with the real client and without, and finds no
// difference.
func TestPayloadsArriveAsTheyWerePublished(t *testing.T) {
	t.Parallel()
	s := start(t, solacetest.Config{})
	svc := connect(t, s)
	p, r := publisher(t, svc), receiver(t, svc)
	build := svc.MessageBuilder
	long := strings.Repeat("x", 70_000)
	for name, c := range map[string]struct {
		real func() (message.OutboundMessage, error)
		ours solacetest.Message
		want content
	}{
		"bytes": {
			func() (message.OutboundMessage, error) { return build().BuildWithByteArrayPayload([]byte(body)) },
			solacetest.Message{Bytes: []byte(body)},
			content{bytes: body, isBytes: true},
		},
		"text": {
			func() (message.OutboundMessage, error) { return build().BuildWithStringPayload(body) },
			solacetest.Message{Text: new(body)},
			content{text: body, isText: true, isBytes: true, bytes: "\x1f\x00\x00\x00\x2f" + body + "\x00"},
		},
		"long text": {
			func() (message.OutboundMessage, error) { return build().BuildWithStringPayload(long) },
			solacetest.Message{Text: new(long)},
			content{text: long, isText: true, isBytes: true, bytes: "\x1f\x00\x01\x11\x76" + long + "\x00"},
		},
		"empty": {
			func() (message.OutboundMessage, error) { return build().Build() },
			solacetest.Message{},
			content{},
		},
		"map": {
			func() (message.OutboundMessage, error) { return build().BuildWithMapPayload(sdt.Map{"k": "v"}) },
			solacetest.Message{Map: map[string]any{"k": "v"}},
			content{isBytes: true, bytes: "\x2b\x00\x00\x00\x0d\x1c\x04k\x00\x1c\x04v\x00"},
		},
		"binary cloud event": {
			func() (message.OutboundMessage, error) {
				return build().WithProperty("cloudEvents:specversion", "1.0").WithProperty("n", 5).WithProperty("yes", true).
					WithProperty("f", 1.5).WithProperty("none", nil).WithApplicationMessageID("id-1").WithSenderID("meter").
					WithHTTPContentHeader("application/json", "").WithCorrelationID("corr").WithApplicationMessageType("usage").
					WithSequenceNumber(7).WithPriority(9).BuildWithByteArrayPayload([]byte(body))
			},
			solacetest.Message{
				Bytes: []byte(body), Properties: map[string]any{"cloudEvents:specversion": "1.0", "n": 5, "yes": true, "f": 1.5, "none": nil},
				ApplicationMessageID: "id-1", SenderID: "meter", HTTPContentType: "application/json", CorrelationID: "corr",
				ApplicationMessageType: "usage", SequenceNumber: new(int64(7)), Priority: new(byte(9)),
			},
			content{
				bytes: body, isBytes: true, applicationID: "id-1", sender: "meter", contents: "application/json", correlation: "corr",
				kind: "usage", sequence: 7, priority: 9,
				properties: sdt.Map{"cloudEvents:specversion": "1.0", "n": int64(5), "yes": true, "f": 1.5, "none": nil},
			},
		},
	} {
		m, err := c.real()
		require.NoError(t, err, name)
		require.NoError(t, p.PublishAwaitAcknowledgement(m, resource.TopicOf("billing/x"), patience, nil), name)
		require.NoError(t, s.PublishTopic("billing/x", c.ours), name)
		fromReal, fromUs := contentOf(receive(t, r)), contentOf(receive(t, r))
		if c.want.priority == 0 {
			c.want.priority, fromUs.priority = fromReal.priority, fromReal.priority // the client sets a default
		}
		require.Equal(t, c.want, fromReal, name)
		require.Equal(t, c.want, fromUs, name)
	}
}

// The real Go publisher cannot make these; JMS publishers do.
func TestXMLPayloadIsTextAndBytes(t *testing.T) {
	t.Parallel()
	s := start(t, solacetest.Config{})
	r := receiver(t, connect(t, s))
	require.NoError(t, s.PublishQueue(queueName, solacetest.Message{XML: []byte(body)}))
	c := contentOf(receive(t, r))
	require.Equal(t, content{text: body, bytes: body, isText: true, isBytes: true, priority: -1}, c)

	require.NoError(t, s.PublishQueue(queueName, solacetest.Message{XML: []byte("<x/>"), Bytes: []byte(body)}))
	c = contentOf(receive(t, r))
	require.False(t, c.isBytes, "two payloads")
	require.Equal(t, "<x/>", c.text)
}

func TestSpoiledDeliveriesReachTheClient(t *testing.T) {
	t.Parallel()
	s := start(t, solacetest.Config{})
	r := receiver(t, connect(t, s))
	type seen struct{ isText, isBytes, hasProperties bool }
	for kind, want := range map[solacetest.SpoilKind]seen{
		solacetest.SpoilEmpty:       {false, false, false},
		solacetest.SpoilTwoPayloads: {false, false, true},
		solacetest.SpoilText:        {false, true, false},
		solacetest.SpoilMetadata:    {true, true, false},
	} {
		require.NoError(t, s.Inject(solacetest.Fault{Kind: solacetest.FaultSpoil, Spoil: kind, Times: 1}))
		require.NoError(t, s.PublishQueue(queueName, solacetest.Message{Text: new(body), Properties: map[string]any{"a": "b"}}))
		m := receive(t, r)
		c := contentOf(m)
		require.Equal(t, want, seen{c.isText, c.isBytes, len(c.properties) > 0}, kind)
		require.NoError(t, r.Ack(m))
	}
	require.Error(t, s.Inject(solacetest.Fault{Kind: solacetest.FaultSpoil, Spoil: "milk"}))
	acked(t, s, 4)
}

// TestDamagedFrameStallsTheFlow shows another receiver that claims to run and gets nothing: the client throws away a frame
// whose content summary is wrong, and then everything that follows on the flow as out of order.
func TestDamagedFrameStallsTheFlow(t *testing.T) {
	t.Parallel()
	s := start(t, solacetest.Config{})
	svc := connect(t, s)
	r := receiver(t, svc)
	require.NoError(t, s.Inject(solacetest.Fault{Kind: solacetest.FaultSpoil, Spoil: solacetest.SpoilSummary, Times: 1}))
	put(t, s, 0, 2)
	eventually(t, func() bool { return s.Queue(queueName).Unacked == 2 }, "both are sent")
	_, err := r.ReceiveMessage(300 * time.Millisecond)
	requireError[*solace.TimeoutError](t, err)
	require.True(t, r.IsRunning())
	require.NoError(t, r.Terminate(0))
	require.Equal(t, numbers(2), receiveAll(t, receiver(t, svc), 2), "a new flow gets both")
}

func TestBrokerWithoutGroupIDsSendsNone(t *testing.T) {
	t.Parallel()
	s := start(t, solacetest.Config{WithoutGroupIDs: true})
	put(t, s, 0, 1)
	_, ok := receive(t, receiver(t, connect(t, s))).GetReplicationGroupMessageID()
	require.False(t, ok)
}

func TestMessagesOfThePublisherSurviveUnchanged(t *testing.T) {
	t.Parallel()
	s := start(t, solacetest.Config{})
	svc := connect(t, s)
	p, r := publisher(t, svc), receiver(t, svc)
	for _, size := range []int{1, 100, 250, 300, 65_000, 66_000, 1_000_000} {
		payload := make([]byte, size)
		for i := range payload {
			payload[i] = byte(i * 7)
		}
		m, err := svc.MessageBuilder().WithProperty("p", "v").BuildWithByteArrayPayload(payload)
		require.NoError(t, err)
		require.NoError(t, p.PublishAwaitAcknowledgement(m, resource.TopicOf("billing/x"), patience,
			config.MessagePropertyMap{config.MessagePropertyPersistentExpiration: time.Hour.Milliseconds()}))
		got, ok := receive(t, r).GetPayloadAsBytes()
		require.True(t, ok)
		require.Equal(t, payload, got, size)
		require.NoError(t, s.PublishQueue(queueName, solacetest.Message{Bytes: payload, ApplicationMessageID: "x"}))
		got, ok = receive(t, r).GetPayloadAsBytes()
		require.True(t, ok)
		require.Equal(t, payload, got, size)
	}
}
