//go:build cgo

package solace_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"solace.dev/go/messaging"
	"solace.dev/go/messaging/pkg/solace/config"
	"solace.dev/go/messaging/pkg/solace/resource"

	"chargeonce/ingest"
	"chargeonce/ingest/solace"
	"chargeonce/ingest/solace/solacetest"
)

// BenchmarkReceive compares recording with the client's own receiving and acknowledging, from a queue on which all messages wait.
func BenchmarkReceive(b *testing.B) {
	b.Run("client", func(b *testing.B) {
		s := startFilled(b, b.N)
		service, err := messaging.NewMessagingServiceBuilder().FromConfigurationProvider(config.ServicePropertyMap{
			config.TransportLayerPropertyHost: s.URL(), config.ServicePropertyVPNName: s.VPN(),
		}).WithAuthenticationStrategy(config.BasicUserNamePasswordAuthentication("u", "p")).Build()
		require.NoError(b, err)
		require.NoError(b, service.Connect())
		b.Cleanup(func() { _ = service.Disconnect() })
		r, err := service.CreatePersistentMessageReceiverBuilder().WithMessageClientAcknowledgement().Build(resource.QueueDurableNonExclusive(queueName))
		require.NoError(b, err)
		b.ResetTimer()
		require.NoError(b, r.Start())
		for range b.N {
			m, err := r.ReceiveMessage(time.Minute)
			require.NoError(b, err)
			_, _ = m.GetPayloadAsBytes()
			require.NoError(b, r.Ack(m))
			m.Dispose()
		}
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
	})
	b.Run("recording", func(b *testing.B) {
		s := startFilled(b, b.N)
		t := &bundle{Server: s, logs: &logBuffer{}}
		t.openDatabase(b)
		recorder, err := ingest.NewRecorder(ingest.Config{Namespace: namespace, Source: solace.SourceName}, t.pool, nil, t.logger())
		require.NoError(b, err)
		require.NoError(b, recorder.Register(b.Context()))
		source, err := solace.New(quick(s), recorder, nil, t.logger())
		require.NoError(b, err)
		b.ResetTimer()
		stop := runUntilTheEnd(b, source.Run)
		for count := 0; count < b.N; {
			require.NoError(b, t.owner.QueryRow(b.Context(), countIntents).Scan(&count))
			<-time.After(beat)
		}
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
		b.StopTimer()
		stop()
	})
}

func startFilled(b *testing.B, n int) *solacetest.Server {
	b.Helper()
	s := startBroker(b, solacetest.Config{})
	for i := range n {
		text := body(strconv.Itoa(i), 100)
		require.NoError(b, s.PublishQueue(queueName, solacetest.Message{Text: &text}))
	}
	return s
}
