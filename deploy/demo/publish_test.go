package main

import (
	"net/http/httptest"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"chargeonce/ingest/eventhubs/eventhubstest"
)

func TestHubHoldsThePlan(t *testing.T) {
	t.Parallel()
	server, err := eventhubstest.Start(eventhubstest.Config{Hubs: []eventhubstest.Hub{{Name: hub, Partitions: 3}}})
	require.NoError(t, err)
	defer func() { require.NoError(t, server.Close()) }()
	control := httptest.NewServer(server.ControlHandler())
	defer control.Close()

	p := makePlan(5, 200, 3, false)
	var expected [3][]string
	for _, b := range p.Batches {
		copies := 1
		if b.LoseAck {
			copies = 2
		}
		for range copies {
			for _, m := range b.Messages {
				expected[b.Partition] = append(expected[b.Partition], string(m.Body))
			}
		}
	}
	to := &publisher{connection: server.ConnectionString(""), hub: hub, control: control.URL}
	require.NoError(t, to.publish(t.Context(), p.Batches, 0))

	require.EqualValues(t, 200, to.sent.Load())
	require.Positive(t, server.Counters().AcksLost)
	for i := range expected {
		var held []string
		for _, e := range server.Events(hub, strconv.Itoa(i)) {
			held = append(held, string(e.Body))
		}
		require.Equal(t, expected[i], held)
	}
}
