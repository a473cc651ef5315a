//go:build cgo

package clienttest_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"solace.dev/go/messaging/pkg/solace/resource"

	"chargeonce/ingest/solace/solacetest"
)

func TestRealClientReceivesInOrderWhatItPublished(t *testing.T) {
	t.Parallel()
	s := start(t, solacetest.Config{})
	svc := connect(t, s)
	p, r := publisher(t, svc), receiver(t, svc)
	for i := range 600 {
		m, err := svc.MessageBuilder().WithApplicationMessageID(fmt.Sprint("app-", i)).BuildWithStringPayload(fmt.Sprintf(`{"n":%d}`, i))
		require.NoError(t, err)
		require.NoError(t, p.PublishAwaitAcknowledgement(m, resource.TopicOf("billing/eu"), 5*time.Second, nil))
	}
	for i := range 600 {
		m := receive(t, r)
		text, ok := m.GetPayloadAsString()
		require.True(t, ok)
		require.Equal(t, fmt.Sprintf(`{"n":%d}`, i), text)
		require.False(t, m.IsRedelivered())
		require.NoError(t, r.Ack(m))
	}
	require.NoError(t, r.Terminate(time.Second))
	require.NoError(t, svc.Disconnect())
	q := s.Queue(queueName)
	require.Equal(t, solacetest.QueueCounters{Spooled: 600, Delivered: 600, Acked: 600}, q.QueueCounters)
	require.Zero(t, q.OnQueue)
	require.Equal(t, "app-599", q.Messages[599].ApplicationMessageID)
	require.Empty(t, s.Violations())
}
