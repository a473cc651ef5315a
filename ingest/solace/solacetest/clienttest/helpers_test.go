//go:build cgo

package clienttest_test

import (
	"errors"
	"flag"
	"io"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"solace.dev/go/messaging"
	"solace.dev/go/messaging/pkg/solace"
	"solace.dev/go/messaging/pkg/solace/config"
	"solace.dev/go/messaging/pkg/solace/logging"
	"solace.dev/go/messaging/pkg/solace/message"
	"solace.dev/go/messaging/pkg/solace/resource"
	"solace.dev/go/messaging/pkg/solace/subcode"

	_ "chargeonce/ingest/solace" // the guard before the client's library
	"chargeonce/ingest/solace/solacetest"
)

const queueName = "billing"

func TestMain(m *testing.M) {
	logging.SetLogOutput(io.Discard)   // the faults here make it talk
	_ = flag.Set("test.parallel", "6") // they wait more than they work
	goleak.VerifyTestMain(m)
}

func start(t *testing.T, cfg solacetest.Config) *solacetest.Server {
	t.Helper()
	if cfg.Queues == nil && cfg.Mate == nil {
		cfg.Queues = []solacetest.Queue{{Name: queueName, Subscriptions: []string{"billing/>"}}}
	}
	s, err := solacetest.Start(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func properties(s *solacetest.Server) config.ServicePropertyMap {
	return config.ServicePropertyMap{
		config.TransportLayerPropertyHost:                      s.URL(),
		config.ServicePropertyVPNName:                          s.VPN(),
		config.AuthenticationPropertySchemeBasicUserName:       "user",
		config.AuthenticationPropertySchemeBasicPassword:       "password",
		config.TransportLayerPropertyConnectionAttemptsTimeout: 5000,
		config.TransportLayerPropertyReconnectionAttempts:      0,
	}
}

func service(t *testing.T, p config.ServicePropertyMap) solace.MessagingService {
	t.Helper()
	svc, err := messaging.NewMessagingServiceBuilder().FromConfigurationProvider(p).Build()
	require.NoError(t, err)
	return svc
}

func connect(t *testing.T, s *solacetest.Server) solace.MessagingService {
	t.Helper()
	svc := service(t, properties(s))
	require.NoError(t, svc.Connect())
	t.Cleanup(func() { _ = svc.Disconnect() })
	return svc
}

// builder is set up as the product's: it acknowledges by itself and knows all outcomes.
func builder(svc solace.MessagingService) solace.PersistentMessageReceiverBuilder {
	return svc.CreatePersistentMessageReceiverBuilder().WithMessageClientAcknowledgement().
		WithRequiredMessageOutcomeSupport(config.PersistentReceiverFailedOutcome, config.PersistentReceiverRejectedOutcome)
}

// consumer is a receiver whose end can be waited for.
type consumer struct {
	solace.PersistentMessageReceiver
	gone <-chan solace.TerminationEvent
}

// receiver binds to the queue; the client binds the same way whatever the queue's access type.
func receiver(t *testing.T, svc solace.MessagingService) consumer {
	t.Helper()
	c := build(t, builder(svc))
	require.NoError(t, c.Start())
	return c
}

// build sets the listener before the start: the client reads it from another thread without a lock.
func build(t *testing.T, b solace.PersistentMessageReceiverBuilder) consumer {
	t.Helper()
	r, err := b.Build(resource.QueueDurableNonExclusive(queueName))
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.Terminate(0) })
	gone := make(chan solace.TerminationEvent, 1)
	r.SetTerminationNotificationListener(func(e solace.TerminationEvent) { gone <- e })
	return consumer{r, gone}
}

func publisher(t *testing.T, svc solace.MessagingService) solace.PersistentMessagePublisher {
	t.Helper()
	p, err := svc.CreatePersistentMessagePublisherBuilder().OnBackPressureWait(1000).Build()
	require.NoError(t, err)
	require.NoError(t, p.Start())
	t.Cleanup(func() { _ = p.Terminate(time.Second) })
	return p
}

// send publishes one text message and waits for its acknowledgement.
func send(svc solace.MessagingService, p solace.PersistentMessagePublisher, topic, text string) error {
	m, err := svc.MessageBuilder().WithApplicationMessageID(text).BuildWithStringPayload(text)
	if err != nil {
		return err
	}
	return p.PublishAwaitAcknowledgement(m, resource.TopicOf(topic), patience, nil)
}

// put stores n text messages "from".."from+n-1" without a client; their application message ids are the same.
func put(t *testing.T, s *solacetest.Server, from, n int) {
	t.Helper()
	for i := from; i < from+n; i++ {
		require.NoError(t, s.PublishQueue(queueName, solacetest.Message{Text: new(strconv.Itoa(i)), ApplicationMessageID: strconv.Itoa(i)}))
	}
}

// patience is what only a broken server or client exceeds.
const patience = 30 * time.Second

func receive(t *testing.T, r consumer) message.InboundMessage {
	t.Helper()
	m, err := r.ReceiveMessage(patience)
	require.NoError(t, err)
	return m
}

// receiveAll returns the texts of n messages, which stay unacknowledged.
func receiveAll(t *testing.T, r consumer, n int) []string {
	t.Helper()
	out := make([]string, 0, n)
	for range n {
		out = append(out, textOf(t, receive(t, r)))
	}
	return out
}

func textOf(t *testing.T, m message.InboundMessage) string {
	t.Helper()
	text, ok := m.GetPayloadAsString()
	require.True(t, ok)
	return text
}

// numbers are the first n texts that put stores.
func numbers(n int) []string {
	var out []string
	for i := range n {
		out = append(out, strconv.Itoa(i))
	}
	return out
}

// eventually waits for something that no channel tells of.
func eventually(t *testing.T, condition func() bool, what string) {
	t.Helper()
	require.Eventually(t, condition, patience, 2*time.Millisecond, what)
}

// acked waits until the queue counts n acknowledged messages.
func acked(t *testing.T, s *solacetest.Server, n int64) {
	t.Helper()
	eventually(t, func() bool { return s.Queue(queueName).Acked == n }, "acknowledgements arrive within the client's second")
}

func requireError[E error](t *testing.T, err error) {
	t.Helper()
	_, ok := errors.AsType[E](err)
	require.True(t, ok, "%T: %v", err, err)
}

func subcodeOf(t *testing.T, err error) subcode.Code {
	t.Helper()
	native, ok := errors.AsType[*solace.NativeError](err)
	require.True(t, ok, "%T: %v", err, err)
	return native.SubCode()
}

func wait[T any](t *testing.T, events <-chan T) T {
	t.Helper()
	select {
	case e := <-events:
		return e
	case <-time.After(patience):
		require.Fail(t, "nothing came")
		panic("unreachable")
	}
}
