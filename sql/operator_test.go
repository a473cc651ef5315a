package sql_test

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"chargeonce/schema"
)

// An intent is parked while a call of its claim is on its way, and a person takes it up again before that call ends: its finish
// must not hold the intent.
func TestParkedIntentTakenUpAgainIsNotHeldByAnOlderClaim(t *testing.T) {
	t.Parallel()
	f, run, intent := dispatched(t)
	stale := f.send(t, intent)
	f.endLease(t, intent)
	mustExec(t, f, "UPDATE billing.intents SET status = 'parked', status_reason = 'cancelled_by_operator' WHERE id = $1", intent)
	mustExec(t, f, "UPDATE billing.intents SET status = 'charging', status_reason = 'in_doubt', lease_until = now() WHERE id = $1", intent)
	row, err := f.q.IntentFinish(t.Context(), f, f.of(t, declined(stale.AttemptID, schema.ReasonCardDeclined)))
	require.NoError(t, err)
	require.False(t, row.Held)
	require.Equal(t, schema.StatusCharging, f.statusOf(t, intent))
	require.Equal(t, int64(usualCents), f.allocated(t, run))
	require.Equal(t, int64(2), count(t, f, "SELECT claim_number FROM billing.intents WHERE id = $1", intent))
}

// The next key generation follows a definitive refusal of Stripe's, or nothing at all; never what a proxy said, never silence.
func TestM16NextGenerationFollowsOnlyADefinitiveRefusal(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	run := f.usualRun(t)
	for name, test := range map[string]struct {
		attempt string // what the one create of the generation came to
		follows bool
	}{
		"declined":                    {"result = 'declined', http_status = 402, request_id = 'req_1'", true},
		"bad request":                 {"result = 'invalid', http_status = 400, request_id = 'req_1'", true},
		"no such customer":            {"result = 'invalid', http_status = 404, request_id = 'req_1'", true},
		"refused here":                {"result = 'invalid', http_status = NULL, request_id = NULL", true},
		"never left":                  {"result = 'not_sent', http_status = NULL, request_id = NULL", true},
		"400 of a proxy":              {"result = 'invalid', http_status = 400, request_id = NULL", false},
		"another 4xx":                 {"result = 'invalid', http_status = 422, request_id = 'req_1'", false},
		"denied by the proxy":         {"result = 'denied', http_status = 402, request_id = NULL", false},
		"rate limited":                {"result = 'rate_limited', http_status = 429, request_id = 'req_1'", false},
		"key refused":                 {"result = 'unauthorized', http_status = 401, request_id = 'req_1'", false},
		"resolved by a person":        {"result = 'unknown', http_status = NULL, request_id = NULL", false},
		"a process died, resolved so": {"result = NULL, finished_at = NULL", false},
	} {
		id := f.bring(t, run, owed{}, schema.StatusParked, schema.ReasonInvalidRequest)
		mustExec(t, f, "UPDATE billing.charge_attempts SET "+test.attempt+" WHERE intent_id = $1", id)
		err := tryAndRollBack(t, f, "UPDATE billing.intents SET status = 'pending', status_reason = 'queued', key_generation = 2, reserved_cents = NULL WHERE id = "+strconv.FormatInt(id, 10))
		if test.follows {
			require.NoError(t, err, name)
			continue
		}
		require.Equal(t, "intents_generation", constraintOf(err), "%s: %v", name, err)
	}
}
