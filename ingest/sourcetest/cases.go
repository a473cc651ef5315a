package sourcetest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"chargeonce/ingest"
)

func eachEventOnce(t *testing.T, h *harness) {
	t.Helper()
	h.Publish(t, bodies("before", 300)...)
	h.start(t)
	h.Publish(t, bodies("after", 300)...)
	h.Publish(t, bodies("after", 100)...) // a producer that sent again
	h.Publish(t, body("after_0", 999))    // with other terms
	h.await(t, 701, objects)
	require.Equal(t, ingest.Counts{Intents: 600, Duplicates: 100, Conflicts: 1}, h.counters(t))
	h.await(t, 600, intents)
	h.await(t, 0, "SELECT count(*) FROM billing.intents WHERE source_position = ''")
	withTime := int64(600)
	if _, timeless := h.Broker.(Timeless); timeless {
		withTime = 0
	}
	h.await(t, withTime, "SELECT count(*) FROM billing.intents WHERE source_enqueued_at IS NOT NULL")
}

func redeliveredEventsAddNothing(t *testing.T, h *harness) {
	t.Helper()
	h.Publish(t, bodies("a", 200)...)
	h.Publish(t, "poison", body("a_1", 7))
	stop := h.start(t)
	h.await(t, 202, objects)
	stop()
	h.Redeliver(t, h.owner)
	h.start(t)
	h.await(t, 404, objects)
	require.Equal(t, ingest.Counts{Intents: 200, Redeliveries: 202, Conflicts: 1, Quarantined: 1}, h.counters(t))
	h.await(t, 200, intents)
	h.await(t, 1, "SELECT sum(deliveries)::bigint FROM billing.conflicts")
	h.await(t, 1, "SELECT sum(deliveries)::bigint FROM billing.quarantined_events")
}

func poisonInTheMiddle(t *testing.T, h *harness) {
	t.Helper()
	h.start(t)
	for i, poison := range []string{"", "{", "\x00\xff", `{"customer_id":"cus_x"}`, `[1,2]`, `{"customer_id":"cus_a:b","billing_period":"2026-08","amount_cents":1}`} {
		h.Publish(t, bodies(fmt.Sprint("good", i), 10)...)
		h.Publish(t, poison)
	}
	h.Publish(t, `[`+body("left", 1)+`,"poison",`+body("right", 1)+`]`)
	h.await(t, 62, intents)
	h.await(t, 8, "SELECT count(*) FROM billing.quarantined_events")
	require.EqualValues(t, 8, h.counters(t).Quarantined)
}

func stoppedAndStartedAgain(t *testing.T, h *harness) {
	t.Helper()
	for round := range 4 {
		stop := h.start(t)
		h.Publish(t, bodies(fmt.Sprint("running", round), 100)...)
		stop() // wherever it stands
		h.Publish(t, bodies(fmt.Sprint("stopped", round), 100)...)
	}
	h.start(t)
	h.await(t, 800, intents)
	require.EqualValues(t, 800, h.counters(t).Intents)
	require.Zero(t, h.counters(t).Duplicates, "reading again is a redelivery, never a duplicate")
}

func crashBetweenCommitAndCheckpoint(t *testing.T, h *harness) {
	t.Helper()
	stop := h.start(t)
	h.Publish(t, bodies("a", 1)...)
	h.await(t, 1, intents)
	h.proxy.LoseCommits(1)
	h.proxy.CutAfterLoss()
	h.Publish(t, bodies("b", 50)...)
	require.Eventually(t, func() bool { return h.proxy.Lost() == 1 }, patience, beat)
	stop() // it committed, it does not know, and it cannot ask
	h.proxy.Mend()
	h.start(t)
	h.await(t, 51, intents)
	require.Zero(t, h.counters(t).Duplicates)
	require.EqualValues(t, 51, h.counters(t).Intents)
}

func answerToCommitLost(t *testing.T, h *harness) {
	t.Helper()
	h.start(t)
	h.Publish(t, bodies("a", 1)...)
	h.await(t, 1, intents)
	h.proxy.LoseCommits(1)
	h.Publish(t, bodies("b", 50)...)
	h.await(t, 51, intents)
	require.Eventually(t, func() bool { return h.proxy.Lost() == 1 }, patience, beat)
	h.Publish(t, bodies("c", 50)...)
	h.await(t, 101, intents)
	require.Zero(t, h.counters(t).Duplicates)
}

func databaseAwayForAWhile(t *testing.T, h *harness) {
	t.Helper()
	h.start(t)
	h.Publish(t, bodies("a", 100)...)
	h.await(t, 100, intents)
	h.proxy.Cut()
	h.Publish(t, bodies("b", 300)...)
	// Away for as long as it takes to try more than once.
	refused := h.proxy.Refused()
	require.Eventually(t, func() bool { return h.proxy.Refused() >= refused+3 }, patience, beat)
	h.proxy.Mend()
	h.await(t, 400, intents)
	require.EqualValues(t, 400, h.counters(t).Intents)
	require.Zero(t, h.counters(t).Duplicates)
}

func stopWhileTheDatabaseIsAway(t *testing.T, h *harness) {
	t.Helper()
	stop := h.start(t)
	h.Publish(t, bodies("a", 10)...)
	h.await(t, 10, intents)
	h.proxy.Cut()
	h.Publish(t, bodies("b", 10)...)
	refused := h.proxy.Refused()
	require.Eventually(t, func() bool { return h.proxy.Refused() >= refused+3 }, patience, beat)
	stop()
	h.proxy.Mend()
	h.start(t)
	h.await(t, 20, intents)
}

func nothingIsPassedOver(t *testing.T, h *harness) {
	t.Helper()
	h.start(t)
	for i := range 20 {
		h.Publish(t, bodies(fmt.Sprint("a", i), 20)...)
		h.proxy.Cut()
		h.proxy.Mend()
	}
	h.await(t, 400, intents)
	h.await(t, 400, distinct)
	require.Zero(t, h.counters(t).Duplicates)
}

func twoReadersAtOnce(t *testing.T, h *harness) {
	t.Helper()
	h.Publish(t, bodies("before", 200)...)
	h.start(t)
	stop := h.start(t)
	h.Publish(t, bodies("during", 200)...)
	h.await(t, 400, intents)
	stop()
	h.Publish(t, bodies("after", 200)...)
	h.await(t, 600, intents)
	require.Zero(t, h.counters(t).Duplicates)
	require.EqualValues(t, 600, h.counters(t).Intents)
}

func refusedObject(t *testing.T, h *harness) {
	t.Helper()
	_, err := h.owner.Exec(t.Context(), "ALTER TABLE billing.intents ADD CONSTRAINT no_thirteen CHECK (amount_cents <> 13)")
	require.NoError(t, err)
	h.Publish(t, bodies("before", 30)...)
	h.Publish(t, body("culprit", 13))
	h.Publish(t, bodies("after", 30)...)
	h.start(t)
	h.await(t, 60, intents)
	h.await(t, 1, "SELECT count(*) FROM billing.quarantined_events WHERE reason_code = 'refused_by_database'")
}
