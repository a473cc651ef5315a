//go:build cgo

package solace_test

import (
	"fmt"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/stretchr/testify/require"

	"chargeonce/ingest"
	"chargeonce/ingest/eventhubs"
	"chargeonce/ingest/eventhubs/eventhubstest"
	"chargeonce/ingest/solace"
	"chargeonce/ingest/solace/solacetest"
	"chargeonce/schema"
)

// The failure modes that are often described for Solace and Stripe, in their order. None calls Stripe here: that an intent is charged
// once is the charger's to show.

// 1: the session ends between the work and its acknowledgement, and the message comes again.
func TestSessionLostBetweenCommitAndAckMakesNoSecondIntent(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{})
	for range 5 {
		b.inject(t, solacetest.Fault{Kind: solacetest.FaultDropBeforeAck, Times: 1})
	}
	b.put(t, "a", 40)
	b.run(t, quick(b.Server))
	b.acked(t, 40)
	require.EqualValues(t, 40, b.counters(t).Intents)
	require.GreaterOrEqual(t, b.counters(t).Redeliveries, int64(5))
	require.Zero(t, b.counters(t).Duplicates)
}

// 2: a test publisher sends Direct messages, which every Direct receiver of a program would get. Three ingestors have none: what the
// broker promotes to the queue is recorded once, and nothing else is subscribed to.
func TestDirectMessagesReachNoIngestorButByTheQueue(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{})
	for range 3 {
		b.run(t, quick(b.Server)).ready(t)
	}
	for i := range 30 {
		text := body(strconv.Itoa(i), 100)
		require.NoError(t, b.PublishDirect(topic, solacetest.Message{Text: &text}))
	}
	b.acked(t, 30)
	require.Equal(t, ingest.Counts{Intents: 30}, b.counters(t))
	require.Empty(t, b.Violations(), "no subscription")
}

// 3: an operator replays the log, or a program would from its beginning at each start.
func TestReplayOfEverythingMakesNoSecondIntent(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{ReplayLog: true})
	r := b.run(t, quick(b.Server))
	b.put(t, "a", 300)
	b.acked(t, 300)
	require.NoError(t, b.Replay(queueName)) // while it reads
	b.acked(t, 600)
	r.stop()
	require.NoError(t, b.Replay(queueName)) // while nobody does
	b.run(t, quick(b.Server))
	b.acked(t, 900)
	require.Equal(t, ingest.Counts{Intents: 300, Redeliveries: 600}, b.counters(t))
	require.Empty(t, b.Violations(), "and no start of ours began a replay")
}

// Gap 1: the standby of a pair takes over while messages are in hand. See TestFailOverOfAPairLosesAndDoublesNothing.

// Gap 2: an operator moves messages from the dead message queue back. They have other ids then.
func TestMessagesFromTheDeadMessageQueueAreDuplicates(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{Queues: []solacetest.Queue{
		{Name: queueName, MaxRedelivery: 1, DeadMessageQueue: "dead"}, {Name: "dead"},
	}})
	// Recorded, but the acknowledgements never arrive, until the broker buries the messages.
	b.inject(t, solacetest.Fault{Kind: solacetest.FaultDropBeforeAck, Times: 2})
	b.put(t, "a", 10)
	b.run(t, quick(b.Server))
	eventually(t, func() bool { return b.queue("dead").OnQueue == 10 }, "buried")
	b.await(t, 10, countIntents)
	before := b.counters(t)
	b.put(t, "a", 10) // as copied back: the same events in other messages
	eventually(t, func() bool { return b.queue(queueName).OnQueue == 0 }, "read")
	b.await(t, 10, countIntents)
	require.Equal(t, before.Duplicates+10, b.counters(t).Duplicates)
	require.Zero(t, b.counters(t).Conflicts)
}

// Gap 3: two consumers that derive the period by different rules would make two keys of one event. The second may not even start.
func TestConsumersThatReadAnEventOtherwiseDoNotStart(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{})
	b.run(t, quick(b.Server)).ready(t)
	for title, change := range map[string]func(*ingest.Config){
		"another period format": func(c *ingest.Config) { c.PeriodFormat = schema.PeriodDay },
		"another field": func(c *ingest.Config) {
			mapping, err := schema.ParseMapping([]string{"billing_period=/published_at"})
			require.NoError(t, err)
			c.Mapping = mapping
		},
	} {
		cfg := ingest.Config{Namespace: namespace, Source: solace.SourceName}
		change(&cfg)
		second, err := ingest.NewRecorder(cfg, b.pool, nil, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		require.ErrorIs(t, second.Register(t.Context()), ingest.ErrDisagreement, title)
	}
}

// Gap 4: a transacted session rolls back, and all its messages come again. The Go client has none; the same comes of a batch of which
// not one acknowledgement arrives.
func TestBatchThatIsRolledBackByTheBrokerMakesNoSecondIntent(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{})
	b.put(t, "a", 500)
	for round := range 3 {
		b.inject(t, solacetest.Fault{Kind: solacetest.FaultLoseAcks})
		r := b.run(t, quick(b.Server))
		b.await(t, int64(500*(round+1)), countObjects)
		r.stop()
		require.Equal(t, 500, b.queue(queueName).OnQueue)
	}
	b.inject(t, solacetest.Fault{Kind: solacetest.FaultClear})
	b.run(t, quick(b.Server))
	b.acked(t, 500)
	require.Equal(t, ingest.Counts{Intents: 500, Redeliveries: 1500}, b.counters(t))
}

// A namespace names the business stream, not the broker: one event that arrives over both is one intent.
func TestEventOverBothBrokersIsOneIntent(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{})
	hub, err := eventhubstest.Start(eventhubstest.Config{Hubs: []eventhubstest.Hub{{Name: "billing", Partitions: 2}}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, hub.Close()) })
	b.runEventHubs(t, hub)
	b.run(t, quick(b.Server))
	const n = 200
	for i := range n {
		_, err := hub.Publish("billing", strconv.Itoa(i%2), []byte(body(fmt.Sprint("a_", i), 100)), nil)
		require.NoError(t, err)
	}
	b.put(t, "a", n)
	b.await(t, 2*n, countObjects)
	require.Equal(t, ingest.Counts{Intents: n, Duplicates: n}, b.counters(t))
	b.await(t, n, countIntents)
}

// One source names the customer by the account, with the Stripe customer beside it, the other by the Stripe customer alone. That makes two
// intents, which the charger sees to be of one Stripe customer: it charges one of them, and the other waits (same_customer).
func TestCustomerNamedInTwoShapesIsTwoIntentsThatTheChargerCanTell(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{})
	hub, err := eventhubstest.Start(eventhubstest.Config{Hubs: []eventhubstest.Hub{{Name: "billing", Partitions: 2}}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, hub.Close()) })
	b.runEventHubs(t, hub)
	b.run(t, quick(b.Server))
	_, err = hub.Publish("billing", "0", []byte(`{"customer_id":"acct-7","stripe_customer_id":"cus_7","billing_period":"2026-08","amount_cents":100}`), nil)
	require.NoError(t, err)
	b.putBody(t, body("7", 100))
	b.await(t, 2, countIntents)
	b.await(t, 2, `SELECT count(*) FROM billing.intents WHERE stripe_customer_id = 'cus_7' AND billing_period = '2026-08' AND currency = 'usd' AND status = 'pending'`)
	require.Equal(t, ingest.Counts{Intents: 2}, b.counters(t))
}

func (b *bundle) runEventHubs(t *testing.T, hub *eventhubstest.Server) {
	t.Helper()
	recorder, err := ingest.NewRecorder(ingest.Config{Namespace: namespace, Source: eventhubs.SourceName}, b.pool, nil, b.logger())
	require.NoError(t, err)
	require.NoError(t, recorder.Register(t.Context()))
	s, err := eventhubs.New(eventhubs.Config{
		ConnectionString: hub.ConnectionString(""), Hub: "billing", ConsumerGroup: azeventhubs.DefaultConsumerGroup,
		UpdateInterval: 200 * time.Millisecond, OwnershipExpiry: 3 * time.Second,
	}, recorder, b.pool, nil, b.logger())
	require.NoError(t, err)
	runUntilTheEnd(t, s.Run)
}
