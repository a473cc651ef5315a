//go:build cgo

package solace_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"chargeonce/ingest"
	"chargeonce/ingest/solace/solacetest"
)

func TestEveryKindOfPayloadIsReadOrQuarantined(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{})
	text, bytes, xml := body("text", 1), []byte(body("bytes", 2)), []byte(body("xml", 3))
	both, hidden := body("both", 4), []byte(body("hidden", 5))
	publish := func(m solacetest.Message) {
		require.NoError(t, b.PublishQueue(queueName, m))
	}
	publish(solacetest.Message{Text: &text})
	publish(solacetest.Message{Bytes: bytes})
	publish(solacetest.Message{XML: xml})
	publish(solacetest.Message{XML: []byte("<other/>"), Text: &both})
	publish(solacetest.Message{XML: []byte("<another/>"), Bytes: hidden})
	publish(solacetest.Message{})
	publish(solacetest.Message{Map: map[string]any{"customer_id": "cus_map", "billing_period": "2026-08", "amount_cents": 6}})
	r := b.run(t, quick(b.Server))
	b.acked(t, 7)
	require.Equal(t, ingest.Counts{Intents: 3, Quarantined: 4}, b.counters(t))
	b.await(t, 3, `SELECT count(*) FROM billing.intents WHERE (customer_id, amount_cents) IN (('cus_text', 1), ('cus_bytes', 2), ('cus_xml', 3))`)
	b.await(t, 1, `SELECT count(*) FROM billing.quarantined_events WHERE reason_code = 'body_is_no_text'`)
	b.await(t, 2, `SELECT count(*) FROM billing.quarantined_events WHERE reason_code IN ('two_bodies', 'no_body') AND reason LIKE '%send the JSON%' AND octet_length(raw) > 0 OR reason_code = 'no_body'`)
	r.stop()
}

func TestSpoiledMessagesAreQuarantinedAndTheirNeighboursRecorded(t *testing.T) {
	t.Parallel()
	for _, spoil := range []solacetest.SpoilKind{
		solacetest.SpoilEmpty, solacetest.SpoilTwoPayloads, solacetest.SpoilText, solacetest.SpoilMetadata,
	} {
		t.Run(string(spoil), func(t *testing.T) {
			t.Parallel()
			b := setup(t, solacetest.Config{})
			b.put(t, "before", 5)
			b.inject(t, solacetest.Fault{Kind: solacetest.FaultSpoil, Spoil: spoil, After: 5, Times: 1})
			b.putBody(t, body("spoiled", 7))
			b.put(t, "after", 5)
			b.run(t, quick(b.Server))
			b.acked(t, 11)
			counts := b.counters(t)
			require.EqualValues(t, 11, counts.Intents+counts.Quarantined)
			require.GreaterOrEqual(t, counts.Intents, int64(10))
		})
	}
}

func TestDetailTellsWhereAMessageComesFrom(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{})
	text, at := body("a", 1), time.Date(2026, 8, 31, 12, 0, 0, 0, time.UTC)
	require.NoError(t, b.PublishTopic(topic, solacetest.Message{
		Text: &text, ApplicationMessageID: "order-7", CorrelationID: "c-1", SenderID: "metering", SenderTimestamp: at,
		SequenceNumber: new(int64(42)), HTTPContentType: "application/json", Properties: map[string]any{"region": "eu", "weight": 3},
	}))
	b.run(t, quick(b.Server))
	b.acked(t, 1)
	var position, partition string
	var raw []byte
	require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT source_position, source_detail FROM billing.intents`).Scan(&position, &raw))
	require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT source_partition FROM billing.source_counters`).Scan(&partition))
	require.Equal(t, queueName+"/"+b.Queue(queueName).Messages[0].ReplicationGroupID+"/0", position, "of the first object in the message")
	require.Equal(t, queueName, partition)
	var detail map[string]string
	require.NoError(t, json.Unmarshal(raw, &detail))
	require.Equal(t, map[string]string{
		"topic": topic, "redelivered": "false", "application_message_id": "order-7", "sender_id": "metering",
		"sender_timestamp": "2026-08-31T12:00:00Z", "sequence_number": "42", "http_content_type": "application/json", "correlation_id": "c-1",
	}, detail)
}

func TestBinaryCloudEventIsRecognisedByItsProperties(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{})
	text := body("a", 1)
	require.NoError(t, b.PublishTopic(topic, solacetest.Message{Text: &text, Properties: map[string]any{
		"cloudEvents:specversion": "1.0", "cloudEvents:id": "1", "cloudEvents:type": "usage", "cloudEvents:source": "/meters",
	}}))
	wrong := body("b", 1)
	require.NoError(t, b.PublishTopic(topic, solacetest.Message{Text: &wrong, Properties: map[string]any{"cloudEvents:specversion": "9.9"}}))
	b.run(t, quick(b.Server))
	b.acked(t, 2)
	require.EqualValues(t, 2, b.counters(t).Objects())
	b.await(t, 1, `SELECT count(*) FROM billing.intents WHERE customer_id = 'cus_a'`)
}

func TestBrokerWithoutGroupIDsStillTellsRedeliveriesFromDuplicates(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{WithoutGroupIDs: true})
	b.inject(t, solacetest.Fault{Kind: solacetest.FaultDropBeforeAck, Times: 1})
	b.put(t, "a", 50)
	text := body("a_7", 100)
	// The same event again, in a message of its own.
	require.NoError(t, b.PublishQueue(queueName, solacetest.Message{Text: &text, ApplicationMessageID: "again"}))
	b.run(t, quick(b.Server))
	b.acked(t, 51)
	require.EqualValues(t, 50, b.counters(t).Intents)
	require.GreaterOrEqual(t, b.counters(t).Duplicates, int64(1))
	require.GreaterOrEqual(t, b.counters(t).Redeliveries, int64(1))
	b.await(t, 50, `SELECT count(*) FROM billing.intents WHERE source_position LIKE 'billing-events/sha256:%'`)
}
