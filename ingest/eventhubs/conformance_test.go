package eventhubs_test

import (
	"context"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"chargeonce/ingest"
	"chargeonce/ingest/eventhubs"
	"chargeonce/ingest/eventhubs/azuritetest"
	"chargeonce/ingest/sourcetest"
)

func TestConformancePostgres(t *testing.T) {
	t.Parallel()
	sourcetest.Run(t, eventhubs.SourceName, func(t *testing.T) sourcetest.Broker {
		t.Helper()
		return newBroker(t, nil)
	})
}

func TestConformanceBlob(t *testing.T) {
	t.Parallel()
	azuritetest.Start(t) // says once, and not for every part, that it is missing
	sourcetest.Run(t, eventhubs.SourceName, func(t *testing.T) sourcetest.Broker {
		t.Helper()
		storage := azuritetest.Start(t)
		return newBroker(t, &eventhubs.BlobConfig{ConnectionString: storage.ConnectionString, Container: storage.Container})
	})
}

// broker is the stand-in with the real producer before it and the source behind it.
type broker struct {
	*bundle
	producer *azeventhubs.ProducerClient
	blob     *eventhubs.BlobConfig
	turn     int
}

func newBroker(t *testing.T, blob *eventhubs.BlobConfig) *broker {
	t.Helper()
	b := &bundle{logs: &logBuffer{}}
	b.startHub(t, 3)
	producer, err := azeventhubs.NewProducerClientFromConnectionString(b.hub.ConnectionString(hubName), "", nil)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Second)
		defer cancel()
		_ = producer.Close(ctx)
	})
	return &broker{bundle: b, producer: producer, blob: blob}
}

func (b *broker) Publish(t *testing.T, bodies ...string) {
	t.Helper()
	for len(bodies) > 0 {
		partition := strconv.Itoa(b.turn % 3)
		b.turn++
		batch, err := b.producer.NewEventDataBatch(t.Context(), &azeventhubs.EventDataBatchOptions{PartitionID: &partition})
		require.NoError(t, err)
		n := min(len(bodies), 37)
		for _, body := range bodies[:n] {
			require.NoError(t, batch.AddEventData(&azeventhubs.EventData{Body: []byte(body)}, nil))
		}
		require.NoError(t, b.producer.SendEventDataBatch(t.Context(), batch, nil))
		bodies = bodies[n:]
	}
}

// Redeliver loses the checkpoints. Those in Blob Storage may stand: without a record in the database they do not count.
func (b *broker) Redeliver(t *testing.T, owner *pgxpool.Pool) {
	t.Helper()
	_, err := owner.Exec(t.Context(), "DELETE FROM billing.eventhub_checkpoints")
	require.NoError(t, err)
}

func (b *broker) RunSource(ctx context.Context, recorder *ingest.Recorder, pool *pgxpool.Pool, logger *slog.Logger) error {
	cfg := b.quick()
	cfg.StopGrace, cfg.Blob = time.Second, b.blob
	s, err := eventhubs.New(cfg, recorder, pool, nil, logger)
	if err != nil {
		return err
	}
	return s.Run(ctx)
}
