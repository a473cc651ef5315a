//go:build cgo

package clienttest_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"solace.dev/go/messaging/pkg/solace"
	"solace.dev/go/messaging/pkg/solace/config"
	"solace.dev/go/messaging/pkg/solace/resource"
	"solace.dev/go/messaging/pkg/solace/subcode"

	"chargeonce/ingest/solace/solacetest"
)

func TestTopicLandsOnEveryQueueThatSubscribes(t *testing.T) {
	t.Parallel()
	s := start(t, solacetest.Config{Queues: []solacetest.Queue{
		{Name: "all", Subscriptions: []string{"billing/>"}},
		{Name: "one-level", Subscriptions: []string{"billing/*/usage"}},
		{Name: "prefix", Subscriptions: []string{"billing/eu*/usage", "nothing"}},
		{Name: "exact", Subscriptions: []string{"billing/eu/usage"}},
		{Name: "none"},
	}})
	svc := connect(t, s)
	p := publisher(t, svc)
	for _, topic := range []string{"billing/eu/usage", "billing/eu-2/usage", "billing/us/usage", "billing/eu/usage/late", "billing", "#P2P/QUE/none"} {
		require.NoError(t, send(svc, p, topic, topic))
	}
	on := func(queue string) (topics []string) {
		for _, m := range s.Queue(queue).Messages {
			topics = append(topics, m.Topic)
		}
		return topics
	}
	require.Equal(t, []string{"billing/eu/usage", "billing/eu-2/usage", "billing/us/usage", "billing/eu/usage/late"}, on("all"))
	require.Equal(t, []string{"billing/eu/usage", "billing/eu-2/usage", "billing/us/usage"}, on("one-level"))
	require.Equal(t, []string{"billing/eu/usage", "billing/eu-2/usage"}, on("prefix"))
	require.Equal(t, []string{"billing/eu/usage"}, on("exact"))
	require.Equal(t, []string{"#P2P/QUE/none"}, on("none"))
	require.EqualValues(t, 1, s.Counters().Unmatched)
	require.EqualValues(t, 6, s.Counters().Published)
}

func TestRefusedPublishIsToldToItsPublisher(t *testing.T) {
	t.Parallel()
	s := start(t, solacetest.Config{MaxBytes: 2000})
	svc := connect(t, s)
	p := publisher(t, svc)
	err := send(svc, p, "#P2P/QUE/absent", "x")
	require.ErrorContains(t, err, "Unknown Queue")
	require.Equal(t, subcode.DataOther, subcodeOf(t, err), "unlike the answer to a bind")
	require.NoError(t, s.Inject(solacetest.Fault{Kind: solacetest.FaultRefusePublish, Text: "Spool Over Quota", Times: 1}))
	require.Equal(t, subcode.SpoolOverQuota, subcodeOf(t, send(svc, p, "billing/x", "x")))
	require.NoError(t, send(svc, p, "billing/x", "fits"))
	require.Equal(t, subcode.SpoolOverQuota, subcodeOf(t, send(svc, p, "billing/x", strings.Repeat("x", 2000))))
	require.Equal(t, 1, s.Queue(queueName).OnQueue)
	require.EqualValues(t, 3, s.Counters().PublishRefused)
}

func TestPublisherThatReconnectsSendsAgainAndNothingIsDoubled(t *testing.T) {
	t.Parallel()
	for _, kind := range []solacetest.FaultKind{solacetest.FaultDropAfterPublish, solacetest.FaultLosePublish} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := start(t, solacetest.Config{})
			props := properties(s)
			props[config.TransportLayerPropertyReconnectionAttempts] = 100
			props[config.TransportLayerPropertyReconnectionAttemptsWaitInterval] = 100
			svc := service(t, props)
			require.NoError(t, svc.Connect())
			t.Cleanup(func() { _ = svc.Disconnect() })
			p := publisher(t, svc)
			require.NoError(t, send(svc, p, "billing/x", "first"))
			require.NoError(t, s.Inject(solacetest.Fault{Kind: kind, Times: 1}))
			require.NoError(t, send(svc, p, "billing/x", "second"))
			require.NoError(t, send(svc, p, "billing/x", "third"))
			var got []string
			for _, m := range s.Queue(queueName).Messages {
				got = append(got, m.ApplicationMessageID)
			}
			require.Equal(t, []string{"first", "second", "third"}, got)
		})
	}
}

func TestDirectMessageIsPromotedToTheQueue(t *testing.T) {
	t.Parallel()
	s := start(t, solacetest.Config{})
	svc := connect(t, s)
	p, err := svc.CreateDirectMessagePublisherBuilder().Build()
	require.NoError(t, err)
	require.NoError(t, p.Start())
	require.NoError(t, p.PublishString("promoted", resource.TopicOf("billing/direct")))
	require.NoError(t, p.PublishString("unwanted", resource.TopicOf("other/direct")))
	require.NoError(t, p.Terminate(time.Second))
	r := receiver(t, svc)
	m := receive(t, r)
	require.Equal(t, "promoted", textOf(t, m))
	require.Contains(t, m.String(), "NON-PERSISTENT")
	require.EqualValues(t, 1, s.Counters().Promoted)
	require.EqualValues(t, 1, s.Counters().Unmatched)
	require.Empty(t, s.Violations())

	without := start(t, solacetest.Config{NoPromotion: true})
	svc = connect(t, without)
	p, err = svc.CreateDirectMessagePublisherBuilder().Build()
	require.NoError(t, err)
	require.NoError(t, p.Start())
	require.NoError(t, p.PublishString("lost", resource.TopicOf("billing/direct")))
	eventually(t, func() bool { return without.Counters().PublishLost == 1 }, "not promoted")
	require.Zero(t, without.Queue(queueName).OnQueue)
	require.NoError(t, p.Terminate(time.Second))
}

func TestMateTakesOverWithTheSameMessages(t *testing.T) {
	t.Parallel()
	primary := start(t, solacetest.Config{})
	backup := start(t, solacetest.Config{Mate: primary})
	hosts := properties(primary)
	hosts[config.TransportLayerPropertyHost] = primary.URL() + "," + backup.URL()
	bind := func() (solace.MessagingService, consumer) {
		svc := service(t, hosts)
		require.NoError(t, svc.Connect())
		t.Cleanup(func() { _ = svc.Disconnect() })
		return svc, receiver(t, svc)
	}
	alone := properties(backup)
	require.Equal(t, subcode.CommunicationError, subcodeOf(t, service(t, alone).Connect()), "the backup stands by")

	put(t, primary, 0, 4)
	_, r := bind()
	groupIDs := map[string]string{}
	for range 4 {
		m := receive(t, r)
		id, _ := m.GetReplicationGroupMessageID()
		groupIDs[textOf(t, m)] = id.String()
		if textOf(t, m) == "0" {
			require.NoError(t, r.Ack(m)) // under way within the client's second, and so lost
		}
	}
	require.NoError(t, primary.Inject(solacetest.Fault{Kind: solacetest.FaultLoseAcks}))
	primary.FailOver()
	wait(t, r.gone)
	require.False(t, primary.Active())
	require.True(t, backup.Active())

	svc, r := bind()
	for range 4 {
		m := receive(t, r)
		id, _ := m.GetReplicationGroupMessageID()
		require.Equal(t, groupIDs[textOf(t, m)], id.String())
		require.True(t, m.IsRedelivered())
		require.NoError(t, r.Ack(m))
	}
	p := publisher(t, svc)
	require.NoError(t, send(svc, p, "billing/x", "new"))
	require.Equal(t, "new", textOf(t, receive(t, r)))
	acked(t, primary, 4) // the ledger of both
	require.EqualValues(t, 1, backup.Counters().Logins)
	backup.FailOver()
	wait(t, r.gone)
	_, r = bind()
	require.Equal(t, "new", textOf(t, receive(t, r)))
}
