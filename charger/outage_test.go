package charger

import (
	"errors"
	"testing"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"chargeonce/charger/stripecharge"
	"chargeonce/charger/stripecharge/stripetest"
	"chargeonce/schema"
	"chargeonce/sql/queries"
)

// Stripe does not answer reads of a customer for hours, shortened by setting the job's attempt to its last but one. Nothing was
// sent, so nobody is parked, and Stripe is well again afterwards.
func TestOutageOfHoursParksNobody(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	require.NoError(t, b.stripe.AddFaults(stripetest.Fault{Do: stripetest.Unavailable, Match: stripetest.Match{Method: "GET", Path: "/v1/customers/cus_a"}}))
	ids := b.intend(t, 1000, "usd", "cus_a")
	b.open(t, "5000.00", "usd")
	start(t, b.config(t))
	for range 6 {
		b.until(t, ids[0], func(intentNow) bool {
			tag, err := b.owner.Exec(t.Context(), `UPDATE river.river_job SET attempt = max_attempts - 1, scheduled_at = now(), state = 'available'
				WHERE state IN ('retryable', 'scheduled')`)
			return err == nil && tag.RowsAffected() == 1
		})
	}
	require.Equal(t, "pending", b.intent(t, ids[0]).Status)
	b.stripe.ClearFaults()
	b.nudge(t, ids[0])
	b.untilStatus(t, schema.StatusCharged, ids...)
}

// The database fails once (a deadlock, a fail-over) while a worker takes its token for reading the customer.
func TestDatabaseErrorAtTheReadTokenParksNobody(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 1000, "usd", "cus_a")
	b.open(t, "5000.00", "usd")
	b.exec(t, `CREATE SEQUENCE billing.failures; GRANT USAGE ON SEQUENCE billing.failures TO PUBLIC`)
	b.exec(t, `ALTER FUNCTION billing.take_tokens RENAME TO real_take_tokens`)
	b.exec(t, `GRANT EXECUTE ON FUNCTION billing.real_take_tokens TO PUBLIC`)
	b.exec(t, `CREATE FUNCTION billing.take_tokens(k text, w integer, p integer, OUT granted integer, OUT seconds_left double precision) LANGUAGE plpgsql AS $$
		BEGIN
			IF k = 'read' AND nextval('billing.failures') = 1 THEN RAISE EXCEPTION 'deadlock detected' USING ERRCODE = 'deadlock_detected'; END IF;
			SELECT r.granted, r.seconds_left INTO granted, seconds_left FROM billing.real_take_tokens(k, w, p) r;
		END $$`)
	start(t, b.config(t))
	in := b.until(t, ids[0], func(in intentNow) bool { return in.Status != "pending" && in.Status != "charging" })
	require.Equal(t, "charged", in.Status, "%s: %v", in.Reason, in.Detail)
}

// A denied key leaves doubts waiting; waiting must not use up the job.
func TestDoubtWithoutAKeyDoesNotUseUpItsJob(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	id := b.intend(t, 1000, "usd", "cus_1")[0]
	b.open(t, "100.00", "usd")
	h := byHand(t, b, id)
	c := h.claims(t, id, stripecharge.OpCreate)
	h.ends(t, c, unknown(), stripecharge.Found{})
	intent, err := h.queries.IntentForWork(t.Context(), h.pool, queries.IntentForWorkParams{ID: id, WindowSeconds: Window.Seconds()})
	require.NoError(t, err)
	job := &river.Job[ChargeArgs]{JobRow: &rivertype.JobRow{ID: h.jobID, Attempt: maxJobAttempts, MaxAttempts: maxJobAttempts}, Args: ChargeArgs{IntentID: id}}
	_, err = h.withoutKey(t.Context(), job, intent, c.access, &keyError{reason: "vault_denied", err: errors.New("denied")})
	snooze, ok := errors.AsType[*rivertype.JobSnoozeError](err)
	require.True(t, ok, "%v", err)
	require.Positive(t, snooze.Duration)
}
