//go:build cgo

package clienttest_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"solace.dev/go/messaging"
	"solace.dev/go/messaging/pkg/solace/config"
	"solace.dev/go/messaging/pkg/solace/resource"

	"chargeonce/ingest/solace/solacetest"
)

// BenchmarkReceiveAndAck is the client's own rate with nothing done between receive and ack, one message an operation.
func BenchmarkReceiveAndAck(b *testing.B) {
	s, err := solacetest.Start(solacetest.Config{Queues: []solacetest.Queue{{Name: queueName}}, MaxBytes: 8 << 30})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, s.Close()) })
	svc, err := messaging.NewMessagingServiceBuilder().FromConfigurationProvider(properties(s)).Build()
	require.NoError(b, err)
	require.NoError(b, svc.Connect())
	b.Cleanup(func() { _ = svc.Disconnect() })
	for i := range b.N {
		require.NoError(b, s.PublishQueue(queueName, solacetest.Message{
			Text: new(fmt.Sprintf(`{"customer_id":"cus_%d","billing_period":"2026-08","amount_cents":1250}`, i)), ApplicationMessageID: fmt.Sprint(i),
		}))
	}
	r, err := svc.CreatePersistentMessageReceiverBuilder().WithMessageClientAcknowledgement().
		WithRequiredMessageOutcomeSupport(config.PersistentReceiverFailedOutcome).Build(resource.QueueDurableNonExclusive(queueName))
	require.NoError(b, err)
	b.ReportAllocs()
	b.ResetTimer()
	require.NoError(b, r.Start())
	for range b.N {
		m, err := r.ReceiveMessage(patience)
		require.NoError(b, err)
		require.NoError(b, r.Ack(m))
		m.Dispose()
	}
	b.StopTimer()
	require.NoError(b, r.Terminate(patience))
	require.EqualValues(b, b.N, s.Queue(queueName).Acked)
}
