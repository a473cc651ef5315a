//go:build cgo

package clienttest_test

import (
	"fmt"
	"io"
	"os"
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

	"chargeonce/ingest/solace/solacetest"
)

const queueName = "billing"

func TestMain(m *testing.M) {
	logging.SetLogOutput(io.Discard) // the faults here make it talk
	goleak.VerifyTestMain(m)
	os.Exit(0)
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

func receiver(t *testing.T, svc solace.MessagingService) solace.PersistentMessageReceiver {
	t.Helper()
	r, err := svc.CreatePersistentMessageReceiverBuilder().WithMessageClientAcknowledgement().
		WithRequiredMessageOutcomeSupport(config.PersistentReceiverFailedOutcome, config.PersistentReceiverRejectedOutcome).
		Build(resource.QueueDurableNonExclusive(queueName))
	require.NoError(t, err)
	require.NoError(t, r.Start())
	t.Cleanup(func() { _ = r.Terminate(0) })
	return r
}

func publisher(t *testing.T, svc solace.MessagingService) solace.PersistentMessagePublisher {
	t.Helper()
	p, err := svc.CreatePersistentMessagePublisherBuilder().OnBackPressureWait(1000).Build()
	require.NoError(t, err)
	require.NoError(t, p.Start())
	t.Cleanup(func() { _ = p.Terminate(time.Second) })
	return p
}

func receive(t *testing.T, r solace.PersistentMessageReceiver) message.InboundMessage {
	t.Helper()
	m, err := r.ReceiveMessage(5 * time.Second)
	require.NoError(t, err)
	return m
}

var _ = fmt.Sprint
