package ingest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"chargeonce/ingest"
)

// What the source says beside the position is kept with whatever the delivery becomes.
func TestDetailIsKeptForTracing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	with := func(d ingest.Delivery, detail map[string]string) ingest.Delivery {
		d.Detail = detail
		return d
	}
	counts := b.record(t,
		with(at("1", body("a", 1)), map[string]string{"offset": "4294967296:7"}),
		with(at("2", body("a", 2)), map[string]string{"offset": "8"}),
		with(at("3", "{"), map[string]string{"offset": "9"}),
		at("4", body("b", 1)),
	)
	require.Equal(t, ingest.Counts{Intents: 2, Conflicts: 1, Quarantined: 1}, counts)
	require.EqualValues(t, 1, b.number(t, `SELECT count(*) FROM billing.intents WHERE customer_id = 'cus_a' AND source_detail = '{"offset":"4294967296:7"}'`))
	require.EqualValues(t, 1, b.number(t, `SELECT count(*) FROM billing.intents WHERE customer_id = 'cus_b' AND source_detail IS NULL`))
	require.EqualValues(t, 1, b.number(t, `SELECT count(*) FROM billing.conflicts WHERE first_detail ->> 'offset' = '8'`))
	require.EqualValues(t, 1, b.number(t, `SELECT count(*) FROM billing.quarantined_events WHERE first_detail ->> 'offset' = '9'`))

	// After a fail-over of a geo-replicated hub the same event has another offset.
	again := b.record(t, with(at("1", body("a", 1)), map[string]string{"offset": "another"}))
	require.Equal(t, ingest.Counts{Redeliveries: 1}, again)
}

// Properties are a producer's, who may put anything into them: it must neither be refused by Postgres nor fill the table.
func TestDetailOfAnyKindIsStorable(t *testing.T) {
	t.Parallel()
	b := setup(t)
	many := map[string]string{}
	for i := range 1000 {
		many[fmt.Sprintf("property_%04d", i)] = "\"\\\u2028" + strings.Repeat("x", 50)
	}
	counts := b.record(t,
		ingest.Delivery{Partition: "0", Position: "1", Body: []byte(body("a", 1)), Detail: map[string]string{
			"nul\x00": "a\x00b", "broken\xff": "\xff\xfe", "": "", "quote\"": "\"}{", "surrogate": "\xed\xa0\x80",
		}},
		ingest.Delivery{Partition: "0", Position: "2", Body: []byte(body("b", 1)), Detail: many},
		ingest.Delivery{Partition: "0", Position: "3", Body: []byte(body("c", 1)), Detail: map[string]string{"large": strings.Repeat("\x01", 1<<20)}},
	)
	require.Equal(t, ingest.Counts{Intents: 3}, counts)
	require.EqualValues(t, 1, b.number(t, `SELECT count(*) FROM billing.intents WHERE source_detail ->> 'quote"' = '"}{'`))
	require.EqualValues(t, 2, b.number(t, `SELECT count(*) FROM billing.intents WHERE source_detail ->> 'left_out' = 'true'`))
	require.EqualValues(t, 0, b.number(t, "SELECT count(*) FROM billing.intents WHERE octet_length(source_detail::text) > 6000"))
}
