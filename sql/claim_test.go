package sql_test

import (
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"chargeonce/schema"
	"chargeonce/sql"
	"chargeonce/sql/queries"
)

// dispatched is an intent with a job and a reservation; its run is the usual one.
func dispatched(t *testing.T) (f *fixture, run, intent int64) {
	t.Helper()
	f = newFixture(t)
	run = f.usualRun(t)
	intent = f.intent(t, owed{})
	f.dispatch(t, run, intent)
	return f, run, intent
}

func (f *fixture) refuses(t *testing.T, params queries.IntentClaimParams) {
	t.Helper()
	_, err := f.q.IntentClaim(t.Context(), f, params)
	require.ErrorIs(t, err, pgx.ErrNoRows)
}

func TestConcurrentClaimsGetOneRow(t *testing.T) {
	t.Parallel()
	const rounds, atOnce = 10, 6
	f := newFixture(t)
	run := f.usualRun(t)
	pool := f.db.Pool(t, sql.RoleCharger)
	for range rounds {
		intent := f.intent(t, owed{})
		f.dispatch(t, run, intent)
		params := f.createClaim(t, intent)
		var won atomic.Int64
		group, ctx := errgroup.WithContext(t.Context())
		for range atOnce {
			group.Go(func() error {
				_, err := f.q.IntentClaim(ctx, pool, params)
				if err == nil {
					won.Add(1)
				}
				if err == pgx.ErrNoRows { //nolint:errorlint // the driver's own sentinel, unwrapped
					return nil
				}
				return err
			})
		}
		require.NoError(t, group.Wait())
		require.Equal(t, int64(1), won.Load())
		require.Equal(t, int64(1), count(t, f, "SELECT count(*) FROM billing.charge_attempts WHERE intent_id = $1", intent))
		require.Equal(t, int64(1), count(t, f, "SELECT count(*) FROM billing.charge_requests WHERE intent_id = $1", intent))
	}
}

func TestLivingLeaseRefusesAClaim(t *testing.T) {
	t.Parallel()
	f, _, intent := dispatched(t)
	first := f.send(t, intent)
	require.Equal(t, int32(1), first.ClaimNumber)
	require.InDelta(t, 60, first.LeaseUntil.Sub(first.StartedAt).Seconds(), 1)
	for _, operation := range []string{"create", "look_up", "read", "cancel"} {
		params := f.createClaim(t, intent)
		params.Operation = operation
		f.refuses(t, params)
	}
	f.endLease(t, intent)
	require.Equal(t, int32(2), f.send(t, intent).ClaimNumber)
}

func TestStaleClaimNumberIsRefused(t *testing.T) {
	t.Parallel()
	f, _, intent := dispatched(t)
	params := f.createClaim(t, intent)
	params.SeenClaimNumber = 1
	f.refuses(t, params)
	params.SeenClaimNumber = -1
	f.refuses(t, params)
	f.send(t, intent)
}

func TestPauseAndKillSwitchRefuseCreatesOnly(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ off, on string }{
		"paused":  {"UPDATE billing.runs SET status = 'paused'", "UPDATE billing.runs SET status = 'open'"},
		"closed":  {"UPDATE billing.runs SET status = 'closed', closed_at = now()", "UPDATE billing.runs SET status = 'open', closed_at = NULL"},
		"stopped": {"UPDATE billing.charging_switch SET stopped = true", "UPDATE billing.charging_switch SET stopped = false"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, _, intent := dispatched(t)
			mustExec(t, f, test.off)
			f.refuses(t, f.createClaim(t, intent))
			require.Equal(t, schema.StatusPending, f.statusOf(t, intent))
			require.Zero(t, count(t, f, "SELECT count(*) FROM billing.charge_requests"))

			mustExec(t, f, test.on)
			f.finish(t, inDoubt(f.send(t, intent).AttemptID, schema.ReasonInDoubt))
			f.endLease(t, intent)
			mustExec(t, f, test.off)
			f.refuses(t, f.createClaim(t, intent))
			for _, operation := range []string{"look_up", "read", "cancel"} {
				params := f.createClaim(t, intent)
				params.Operation = operation
				_, err := f.q.IntentClaim(t.Context(), f, params)
				require.NoError(t, err, operation)
				f.endLease(t, intent)
			}
		})
	}
}

func TestOpenConflictRefusesTheFirstSendOnly(t *testing.T) {
	t.Parallel()
	f, _, intent := dispatched(t)
	f.conflict(t, intent, usualCents+1)
	f.refuses(t, f.createClaim(t, intent))
	mustExec(t, f, "UPDATE billing.conflicts SET resolved_at = now(), resolution = 'kept_first', resolved_by = 'operator'")
	f.finish(t, inDoubt(f.send(t, intent).AttemptID, schema.ReasonInDoubt))
	f.endLease(t, intent)

	f.conflict(t, intent, usualCents+2)
	again := f.createClaim(t, intent)
	require.False(t, again.FirstSend)
	_, err := f.q.IntentClaim(t.Context(), f, again)
	require.NoError(t, err, "what was sent may be sent again: the charge may exist already")
}

func (f *fixture) conflict(t *testing.T, intent, cents int64) {
	t.Helper()
	mustExec(t, f, `INSERT INTO billing.conflicts (intent_id, amount_cents, currency, stripe_customer_id, first_source, first_position,
		last_source, last_position) VALUES ($1, $2, 'usd', 'cus_0', 'eventhubs', '0:1', 'solace', 'm1')`, intent, cents)
}

func TestFirstSendFreezesTheRequestOnce(t *testing.T) {
	t.Parallel()
	f, _, intent := dispatched(t)
	params := f.createClaim(t, intent)
	f.finish(t, inDoubt(f.send(t, intent).AttemptID, schema.ReasonInDoubt))
	frozen := one[string](t, f, "SELECT to_jsonb(q)::text FROM billing.charge_requests q WHERE intent_id = $1", intent)
	require.Contains(t, frozen, params.IdempotencyKey)
	f.endLease(t, intent)

	second := f.createClaim(t, intent)
	second.Body, second.StripeAPI, second.StripeAccount, second.AmountCents = []byte("other"), "charges", "acct_other", 5
	_, err := f.q.IntentClaim(t.Context(), f, second)
	require.NoError(t, err)
	require.Equal(t, frozen, one[string](t, f, "SELECT to_jsonb(q)::text FROM billing.charge_requests q WHERE intent_id = $1", intent))
	f.endLease(t, intent)

	// A worker that did not see the frozen request cannot send another one: the whole claim fails.
	third := f.createClaim(t, intent)
	third.FirstSend = true
	_, err = f.q.IntentClaim(t.Context(), f, third)
	require.Error(t, err)
	require.Equal(t, "charge_requests_pkey", constraintOf(err), err.Error())
	require.Equal(t, int64(2), count(t, f, "SELECT count(*) FROM billing.charge_attempts WHERE intent_id = $1", intent))
}

// A worker reads the intent, a person corrects its terms, the worker claims: the old bytes must not be sent.
func TestTermsCorrectedBeforeTheClaimRefuseIt(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	run := f.usualRun(t)
	changes := map[string]string{
		"amount":     "amount_cents = 7, reserved_cents = 7",
		"customer":   "stripe_customer_id = 'cus_other'",
		"generation": "status = 'pending', status_reason = 'queued', key_generation = 2", // from parked, as a person would
	}
	for name, change := range changes {
		intent := f.intent(t, owed{})
		f.dispatch(t, run, intent)
		seen := f.createClaim(t, intent)
		if name == "generation" {
			mustExec(t, f, "UPDATE billing.intents SET status = 'parked', status_reason = 'mismatch' WHERE id = $1", intent)
		}
		mustExec(t, f, "UPDATE billing.intents SET "+change+" WHERE id = $1", intent)
		_, err := f.q.IntentClaim(t.Context(), f, seen)
		require.Error(t, err, name)
		require.Contains(t, []string{"", "charge_requests_terms"}, constraintOf(err), "%s: %v", name, err)
		require.Equal(t, schema.StatusPending, f.statusOf(t, intent), name)
		f.send(t, intent) // with what stands there now, under the key of its generation
	}
}

// The trigger that keeps doubt sticky runs inside the very statement that resolves the doubt, and must see it.
func TestFinishSeesItsOwnResolution(t *testing.T) {
	t.Parallel()
	f, run, intent := dispatched(t)
	claim := f.send(t, intent)
	require.Equal(t, int64(usualCents), f.allocated(t, run))
	row, err := f.q.IntentFinish(t.Context(), f.db.Pool(t, sql.RoleCharger), f.of(t, declined(claim.AttemptID, schema.ReasonCardDeclined)))
	require.NoError(t, err)
	require.Equal(t, queries.IntentFinishRow{Held: true, RunsTouched: 1}, row)
	require.Equal(t, schema.StatusCardDeclined, f.statusOf(t, intent))
	require.Zero(t, f.allocated(t, run))
	require.Zero(t, count(t, f, "SELECT count(reserved_cents) + count(river_job_id) + count(lease_until) FROM billing.intents"))
	require.Equal(t, "not_moved", one[string](t, f, "SELECT resolution FROM billing.charge_attempts"))
	require.Equal(t, "insufficient_funds", one[string](t, f, "SELECT decline_code FROM billing.charge_requests"))
}

func TestStaleFinishMovesNothingButKeepsItsResult(t *testing.T) {
	t.Parallel()
	f, run, intent := dispatched(t)
	stale := f.send(t, intent)
	f.endLease(t, intent)
	current := f.send(t, intent)
	row, err := f.q.IntentFinish(t.Context(), f, f.of(t, declined(stale.AttemptID, schema.ReasonCardDeclined)))
	require.NoError(t, err)
	require.Equal(t, queries.IntentFinishRow{}, row)
	require.Equal(t, schema.StatusCharging, f.statusOf(t, intent))
	require.Equal(t, int64(usualCents), f.allocated(t, run))
	require.Equal(t, int64(usualCents), count(t, f, "SELECT reserved_cents FROM billing.intents WHERE id = $1", intent))
	require.Equal(t, "declined", one[string](t, f, "SELECT result FROM billing.charge_attempts WHERE id = $1", stale.AttemptID))
	require.Nil(t, one[*string](t, f, "SELECT result FROM billing.charge_attempts WHERE id = $1", current.AttemptID))
}

func TestFinishIsRefusedWhileAnotherAttemptIsUnresolved(t *testing.T) {
	t.Parallel()
	f, run, intent := dispatched(t)
	first := f.send(t, intent)
	f.finish(t, inDoubt(first.AttemptID, schema.ReasonInDoubt))
	f.endLease(t, intent)
	second := f.send(t, intent)

	refused := []queries.IntentFinishParams{declined(second.AttemptID, schema.ReasonCardDeclined), declined(second.AttemptID, schema.ReasonRunPaused)}
	refused[1].Status, refused[1].Result = string(schema.StatusPending), new("denied")
	for _, params := range refused {
		_, err := f.q.IntentFinish(t.Context(), f, f.of(t, params))
		require.Equal(t, "intents_unresolved_attempt", constraintOf(err), "%s: %v", params.Status, err)
	}
	require.Equal(t, int64(usualCents), f.allocated(t, run), "the whole statement was undone")
	require.Nil(t, one[*string](t, f, "SELECT result FROM billing.charge_attempts WHERE id = $1", second.AttemptID))

	params := refused[0]
	params.OthersResolution = "not_moved"
	f.finish(t, params)
	require.Equal(t, schema.StatusCardDeclined, f.statusOf(t, intent))
	require.Zero(t, f.allocated(t, run))
	require.Equal(t, int64(2), count(t, f, "SELECT count(*) FROM billing.charge_attempts WHERE resolution = 'not_moved'"))
}

func TestDoubtForbidsDeclineVoidAndReturn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	run := f.usualRun(t)
	for from, reason := range map[schema.Status]schema.StatusReason{
		schema.StatusCharging: schema.ReasonInDoubt, schema.StatusParked: schema.ReasonDoubtExpired,
		schema.StatusPending: schema.ReasonQueued, schema.StatusCardDeclined: schema.ReasonCardDeclined,
	} {
		id := f.bring(t, run, owed{}, from, reason)
		// However an unresolved create comes to stand beside it.
		mustExec(t, f, `INSERT INTO billing.charge_attempts (intent_id, key_generation, claim_number, operation, idempotency_key, worker,
			run_resume_count, lease_until) VALUES ($1, 1, 1, 'create', 'k', 'w', 0, now())`, id)
		for _, to := range []schema.Status{schema.StatusPending, schema.StatusCardDeclined, schema.StatusVoided} {
			if !schema.CanMove(from, to) {
				continue
			}
			require.Equal(t, "intents_unresolved_attempt", constraintOf(tryMove(t, f, run, id, from, to)), "%s to %s", from, to)
		}
		require.NoError(t, tryMove(t, f, run, id, from, schema.StatusCharged), "a validated success is always recorded")
		mustExec(t, f, "UPDATE billing.charge_attempts SET operation = 'look_up' WHERE intent_id = $1 AND resolved_at IS NULL", id)
		for _, to := range []schema.Status{schema.StatusPending, schema.StatusCardDeclined, schema.StatusVoided} {
			if schema.CanMove(from, to) {
				require.NoError(t, tryMove(t, f, run, id, from, to), "%s to %s beside a look-up", from, to)
			}
		}
	}
}

func TestChargedFinishKeepsTheReservation(t *testing.T) {
	t.Parallel()
	f, run, intent := dispatched(t)
	doubtful := f.send(t, intent)
	f.finish(t, inDoubt(doubtful.AttemptID, schema.ReasonInDoubt))
	f.endLease(t, intent)
	f.finish(t, charged(f.send(t, intent).AttemptID, intent))
	require.Equal(t, schema.StatusCharged, f.statusOf(t, intent))
	require.Equal(t, int64(usualCents), f.allocated(t, run))
	require.Equal(t, "superseded", one[string](t, f, "SELECT resolution FROM billing.charge_attempts WHERE id = $1", doubtful.AttemptID))
	f.refuses(t, queries.IntentClaimParams{Operation: "create", IntentID: intent, SeenClaimNumber: 2, LeaseSeconds: 1})
	row, err := f.q.IntentFinish(t.Context(), f, f.of(t, declined(doubtful.AttemptID, schema.ReasonCardDeclined)))
	require.NoError(t, err)
	require.False(t, row.Held, "a finish that comes twice moves nothing")
	require.Equal(t, int64(usualCents), f.allocated(t, run))
}

// Two answers that contradict each other (a proxy that drops the Idempotency-Key): the newer claim's decline resolved the older
// send as not moved, then the older one's success arrives. Until the late success is recorded it must be in doubt.
func TestLostSuccessOverADeclineIsInDoubt(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	run := f.usualRun(t)
	id := f.intent(t, owed{})
	f.dispatch(t, run, id)
	stale := f.send(t, id)
	f.endLease(t, id)
	second := f.send(t, id)
	p := declined(second.AttemptID, schema.ReasonCardDeclined)
	p.OthersResolution = "not_moved"
	f.finish(t, p)
	row, err := f.q.IntentFinish(t.Context(), f, f.of(t, charged(stale.AttemptID, id)))
	require.NoError(t, err)
	require.False(t, row.Held)
	// finishLate fails from here on (process killed, database away): the intent is card_declined, and `retry` would send generation 2.
	require.EqualValues(t, 1, count(t, f, "SELECT count(*) FROM billing.charge_attempts WHERE intent_id=$1 AND resolved_at IS NULL", id),
		"a charge that is neither recorded nor in doubt")
}
