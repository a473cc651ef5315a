//go:build cgo

package solace_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"chargeonce/ingest/solace"
	"chargeonce/ingest/solace/solacetest"
)

func (b *bundle) publisherConfig() solace.PublisherConfig {
	return solace.PublisherConfig{Hosts: b.URL(), VPN: b.VPN(), User: "metering", Password: "password", Topic: topic}
}

func TestPublisherKnowsWhatTheBrokerHasTaken(t *testing.T) {
	t.Parallel()
	for title, change := range map[string]func(*solace.PublisherConfig){
		"topic": func(*solace.PublisherConfig) {},
		"queue": func(c *solace.PublisherConfig) { c.Topic, c.Queue = "", queueName },
		"bytes": func(c *solace.PublisherConfig) { c.AsBytes = true },
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			b := &bundle{Server: startBroker(t, solacetest.Config{})}
			cfg := b.publisherConfig()
			change(&cfg)
			p, err := solace.NewPublisher(t.Context(), cfg)
			require.NoError(t, err)
			for i := range 2000 {
				require.NoError(t, p.Publish(t.Context(), body(fmt.Sprint(i), 1)))
			}
			taken, err := p.Close()
			require.NoError(t, err)
			require.Equal(t, 2000, taken)
			require.EqualValues(t, 2000, b.queue(queueName).Spooled)
		})
	}
}

func TestPublisherNamesTheFirstMessageThatWasRefused(t *testing.T) {
	t.Parallel()
	b := &bundle{Server: startBroker(t, solacetest.Config{})}
	p, err := solace.NewPublisher(t.Context(), b.publisherConfig())
	require.NoError(t, err)
	b.inject(t, solacetest.Fault{Kind: solacetest.FaultRefusePublish, Text: "Spool Over Quota", Times: 5})
	for i := range 20 {
		if err := p.Publish(t.Context(), body(fmt.Sprint(i), 1)); err != nil {
			require.ErrorIs(t, err, solace.ErrNotTaken)
			break
		}
	}
	taken, err := p.Close()
	require.ErrorIs(t, err, solace.ErrNotTaken)
	require.ErrorContains(t, err, "number 1:")
	require.EqualValues(t, taken, b.queue(queueName).Spooled)
}

func TestPublisherThatLosesItsConnectionLosesNoMessage(t *testing.T) {
	t.Parallel()
	b := &bundle{Server: startBroker(t, solacetest.Config{})}
	p, err := solace.NewPublisher(t.Context(), b.publisherConfig())
	require.NoError(t, err)
	for i := range 300 {
		if i%100 == 50 {
			b.inject(t, solacetest.Fault{Kind: solacetest.FaultDropAfterPublish, Times: 1})
		}
		require.NoError(t, p.Publish(t.Context(), body(fmt.Sprint(i), 1)))
	}
	taken, err := p.Close()
	require.NoError(t, err)
	require.Equal(t, 300, taken)
	require.GreaterOrEqual(t, b.queue(queueName).Spooled, int64(300))
}

func TestPublisherIsToldWhenItMayNotEnter(t *testing.T) {
	t.Parallel()
	b := &bundle{Server: startBroker(t, solacetest.Config{Users: map[string]string{"metering": "other"}})}
	_, err := solace.NewPublisher(t.Context(), b.publisherConfig())
	require.ErrorContains(t, err, "Unauthorized")
}
