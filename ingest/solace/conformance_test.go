//go:build cgo

package solace_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"chargeonce/ingest"
	"chargeonce/ingest/solace"
	"chargeonce/ingest/solace/solacetest"
	"chargeonce/ingest/sourcetest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	sourcetest.Run(t, solace.SourceName, func(t *testing.T) sourcetest.Broker {
		t.Helper()
		s := startBroker(t, solacetest.Config{ReplayLog: true})
		return &broker{s, newPublisher(t, s.URL(), s.VPN())}
	})
}

// broker is the stand-in with the real publisher before it and the source behind it.
type broker struct {
	*solacetest.Server
	publisher *publisher
}

// Timeless: the broker does not say when it took a message.
func (b *broker) Timeless() {}

func (b *broker) Publish(t *testing.T, bodies ...string) {
	t.Helper()
	b.publisher.send(t, bodies...)
}

// Redeliver is a replay of everything, as an operator can start it.
func (b *broker) Redeliver(t *testing.T, _ *pgxpool.Pool) {
	t.Helper()
	require.NoError(t, b.Replay(queueName))
}

func (b *broker) RunSource(ctx context.Context, recorder *ingest.Recorder, _ *pgxpool.Pool, logger *slog.Logger) error {
	s, err := solace.New(quick(b.Server), recorder, nil, logger)
	if err != nil {
		return err
	}
	return s.Run(ctx)
}
