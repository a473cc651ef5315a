package charger

import (
	"testing"

	"github.com/stretchr/testify/require"

	"chargeonce/charger/stripecharge"
	"chargeonce/charger/stripecharge/stripetest"
	"chargeonce/schema"
	"chargeonce/sql/queries"
)

// hands is a worker without a process around it: a test takes each step by hand.
type hands struct {
	*bundle
	*worker
	jobID int64
}

func byHand(t *testing.T, b *bundle, id int64) hands {
	t.Helper()
	c, err := New(b.config(t))
	require.NoError(t, err)
	require.NoError(t, c.dispatchAll(t.Context(), false, false))
	h := hands{bundle: b, worker: &worker{Charger: c}}
	require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT river_job_id FROM billing.intents WHERE id = $1`, id).Scan(&h.jobID))
	return h
}

// claims claims the operation, after the lease before it ended.
func (h hands) claims(t *testing.T, id int64, op stripecharge.Op) claimed {
	t.Helper()
	h.exec(t, `UPDATE billing.intents SET lease_until = now() - interval '1 second' WHERE id = $1 AND status = 'charging'`, id)
	h.exec(t, `UPDATE billing.charge_attempts SET lease_until = now() - interval '1 second' WHERE intent_id = $1`, id)
	intent, err := h.queries.IntentForWork(t.Context(), h.pool, queries.IntentForWorkParams{ID: id, WindowSeconds: Window.Seconds()})
	require.NoError(t, err)
	acc, err := h.keys.access(t.Context(), intent)
	require.NoError(t, err)
	request, _, err := h.requestOf(t.Context(), intent, acc)
	require.NoError(t, err)
	c, err := h.claim(t.Context(), h.jobID, intent, op, acc, request)
	require.NoError(t, err)
	return c
}

func (h hands) ends(t *testing.T, c claimed, answer stripecharge.Answer, found stripecharge.Found) {
	t.Helper()
	require.NoError(t, h.finish(t.Context(), c, answer, endingOf(c, answer, found)))
}

func unknown() stripecharge.Answer {
	return stripecharge.Answer{Op: stripecharge.OpCreate, Class: stripecharge.ClassTimeout, Sent: true}
}

func TestLateUnknownDoesNotReopenWhatALookUpResolved(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	id := b.intend(t, 1000, "usd", "cus_1")[0]
	b.open(t, "100.00", "usd")
	h := byHand(t, b, id)
	stale := h.claims(t, id, stripecharge.OpCreate)
	require.Equal(t, stripecharge.ClassSucceeded, stale.access.client.Create(t.Context(), stale.request, stale.sendBefore).Class)
	lookUp := h.claims(t, id, stripecharge.OpLookUp)
	answer, found := h.send(t.Context(), lookUp)
	h.ends(t, lookUp, answer, found)
	require.Equal(t, "charged", b.intent(t, id).Status)
	h.ends(t, stale, unknown(), stripecharge.Found{}) // it never saw its answer
	in := b.intent(t, id)
	require.Equal(t, "charged", in.Status)
	require.Zero(t, in.Unresolved)
	require.Equal(t, []string{"create:unknown", "look_up:found"}, in.Results)
	b.once(t, 1000, id)
}

func TestM13DeclineThatLostItsClaimLeavesANewerSendInDoubt(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	id := b.intend(t, 1000, "usd", "cus_1")[0]
	run := b.open(t, "100.00", "usd")
	h := byHand(t, b, id)
	stale := h.claims(t, id, stripecharge.OpCreate)
	newer := h.claims(t, id, stripecharge.OpCreate)
	decline := stripecharge.Answer{Op: stripecharge.OpCreate, Class: stripecharge.ClassDeclined, HTTPStatus: 402, RequestID: "req_1", ErrorType: "card_error", ErrorCode: "missing", Sent: true}
	h.ends(t, stale, decline, stripecharge.Found{})
	in := b.intent(t, id)
	require.Equal(t, "charging", in.Status, "the newer claim's intent is not moved by the older one")
	require.Equal(t, 1, in.Unresolved, "the newer send is not resolved by it either")
	require.NotNil(t, in.Reserved)
	require.Equal(t, int64(1000), b.run(t).AllocatedCents, "run %d", run.ID)
	h.ends(t, newer, newer.access.client.Create(t.Context(), newer.request, newer.sendBefore), stripecharge.Found{})
	b.once(t, 1000, id)
}

func TestM13SuccessWhoseClaimWasLostFinishesTheIntent(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	id := b.intend(t, 1000, "usd", "cus_1")[0]
	b.open(t, "100.00", "usd")
	h := byHand(t, b, id)
	stale := h.claims(t, id, stripecharge.OpCreate)
	newer := h.claims(t, id, stripecharge.OpCreate)
	answer := stale.access.client.Create(t.Context(), stale.request, stale.sendBefore)
	h.ends(t, newer, unknown(), stripecharge.Found{})
	h.ends(t, stale, answer, stripecharge.Found{})
	in := b.intent(t, id)
	require.Equal(t, string(schema.ReasonAdopted), in.Reason)
	require.Zero(t, in.Unresolved)
	b.once(t, 1000, id)
	require.Equal(t, "open", b.run(t).Status)
	require.Equal(t, int64(1000), b.run(t).AllocatedCents)
}

func TestM13ChargeIDHeldByAnotherIntentParks(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 1000, "usd", "cus_1", "cus_2")
	b.open(t, "100.00", "usd")
	h := byHand(t, b, ids[0])
	first := h.claims(t, ids[0], stripecharge.OpCreate)
	answer := first.access.client.Create(t.Context(), first.request, first.sendBefore)
	h.ends(t, first, answer, stripecharge.Found{})
	require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT river_job_id FROM billing.intents WHERE id = $1`, ids[1]).Scan(&h.jobID))
	second := h.claims(t, ids[1], stripecharge.OpCreate)
	h.ends(t, second, answer, stripecharge.Found{}) // a proxy that answers with somebody else's charge
	in := b.intent(t, ids[1])
	require.Equal(t, "parked", in.Status)
	require.Equal(t, string(schema.ReasonChargeIDTaken), in.Reason)
	require.Equal(t, "paused", b.run(t).Status)
}

func TestM16TermsCorrectedBeforeTheFirstSendAreReadAgain(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	id := b.intend(t, 1000, "usd", "cus_1")[0]
	b.open(t, "100.00", "usd")
	h := byHand(t, b, id)
	intent, err := h.queries.IntentForWork(t.Context(), h.pool, queries.IntentForWorkParams{ID: id, WindowSeconds: Window.Seconds()})
	require.NoError(t, err)
	acc, err := h.keys.access(t.Context(), intent)
	require.NoError(t, err)
	request, _, err := h.requestOf(t.Context(), intent, acc)
	require.NoError(t, err)
	b.exec(t, `UPDATE billing.intents SET amount_cents = 900, reserved_cents = 900 WHERE id = $1`, id)
	_, err = h.claim(t.Context(), h.jobID, intent, stripecharge.OpCreate, acc, request)
	require.ErrorIs(t, err, errRefused)
}

// Two answers that contradict each other (a proxy that drops the idempotency key): after the decline a person starts the next
// generation with other terms, then the first generation's success arrives.
func TestM13SuccessOfAnEarlierGenerationIsRecordedAndPausesTheRun(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	id := b.intend(t, 1000, "usd", "cus_1")[0]
	b.open(t, "100.00", "usd")
	h := byHand(t, b, id)
	stale := h.claims(t, id, stripecharge.OpCreate)
	answer := stale.access.client.Create(t.Context(), stale.request, stale.sendBefore)
	newer := h.claims(t, id, stripecharge.OpCreate)
	h.ends(t, newer, stripecharge.Answer{Op: stripecharge.OpCreate, Class: stripecharge.ClassDeclined, HTTPStatus: 402, RequestID: "req_1", ErrorType: "card_error", ErrorCode: "missing", Sent: true}, stripecharge.Found{})
	require.Equal(t, "card_declined", b.intent(t, id).Status)
	b.exec(t, `UPDATE billing.intents SET status = 'pending', status_reason = 'queued', key_generation = 2, amount_cents = 900, river_job_id = NULL WHERE id = $1`, id)
	h.ends(t, stale, answer, stripecharge.Found{})
	require.Equal(t, "charged", b.intent(t, id).Status)
	require.Equal(t, "paused", b.run(t).Status)
	require.Equal(t, "late_success", b.run(t).StatusReason)
	require.Contains(t, b.run(t).StatusDetail, "earlier_generation_charged")
}
