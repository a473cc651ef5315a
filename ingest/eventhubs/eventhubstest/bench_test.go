package eventhubstest_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/stretchr/testify/require"

	"chargeonce/ingest/eventhubs/eventhubstest"
)

// BenchmarkReceive is the SDK's own receive rate with a handler that does nothing: the measure for an ingestor.
func BenchmarkReceive(b *testing.B) {
	const partitions = 4
	s, err := eventhubstest.Start(eventhubstest.Config{Hubs: []eventhubstest.Hub{{Name: hubName, Partitions: partitions}}})
	require.NoError(b, err)
	defer func() { require.NoError(b, s.Close()) }()
	body := []byte(`{"customer_id":"cus_0001","billing_period":"2026-08","pad":"` + strings.Repeat("x", 100) + `"}`)
	for range b.N {
		_, err := s.Publish(hubName, "", body, nil)
		require.NoError(b, err)
	}
	c, err := azeventhubs.NewConsumerClientFromConnectionString(s.ConnectionString(hubName), "", "$default", nil)
	require.NoError(b, err)
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	defer func() { require.NoError(b, c.Close(ctx)) }()
	b.ResetTimer()
	var running sync.WaitGroup
	for i := range partitions {
		want := len(s.Events(hubName, fmt.Sprint(i)))
		running.Go(func() {
			pc, err := c.NewPartitionClient(fmt.Sprint(i), new(earliest()))
			if err != nil {
				b.Error(err)
				return
			}
			defer func() { _ = pc.Close(ctx) }()
			for want > 0 {
				events, err := pc.ReceiveEvents(ctx, min(want, 300), nil)
				if err != nil {
					b.Error(err)
					return
				}
				want -= len(events)
			}
		})
	}
	running.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}
