package charger

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"chargeonce/charger/stripecharge"
	"chargeonce/charger/stripecharge/stripetest"
	"chargeonce/sql/queries"
)

// reading is what a worker reads of the intent, and the request that it would send.
func (s *stepper) reading(t *testing.T) (queries.IntentForWorkRow, *access, stripecharge.Request) {
	t.Helper()
	intent, err := s.w.queries.IntentForWork(t.Context(), s.w.pool, queries.IntentForWorkParams{ID: s.id, WindowSeconds: Window.Seconds()})
	require.NoError(t, err)
	acc, err := s.w.keys.access(t.Context(), intent)
	require.NoError(t, err)
	request, _, err := s.w.requestOf(t.Context(), intent, acc)
	require.NoError(t, err)
	return intent, acc, request
}

// dispatched gives the intent its job and returns the job's id.
func (s *stepper) dispatched(t *testing.T) int64 {
	t.Helper()
	require.NoError(t, s.w.dispatchRun(t.Context(), s.runNow(t).ID, true))
	var jobID int64
	require.NoError(t, s.owner.QueryRow(t.Context(), `SELECT river_job_id FROM billing.intents WHERE id = $1`, s.id).Scan(&jobID))
	return jobID
}

// crashes claims the intent, sends its create, and is gone before the answer could be written.
func (s *stepper) crashes(t *testing.T) {
	t.Helper()
	jobID := s.dispatched(t)
	intent, acc, request := s.reading(t)
	c, err := s.w.claim(t.Context(), jobID, intent, stripecharge.OpCreate, acc, request)
	require.NoError(t, err)
	answer, _ := s.w.send(t.Context(), c)
	require.True(t, answer.Sent)
}

func TestM01LivingLeaseSnoozesTheJob(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	s := b.stepper(t, b.config(t), "lease", "cus_1")
	jobID := s.dispatched(t)
	intent, acc, request := s.reading(t)
	_, err := s.w.claim(t.Context(), jobID, intent, stripecharge.OpCreate, acc, request)
	require.NoError(t, err)
	o := s.work(t)
	require.True(t, o.snoozed, "%v", o.err)
	require.Positive(t, o.wait)
	require.Equal(t, []string{"create:-"}, s.now(t).Results, "no second claim")
	require.Empty(t, s.posts(t))

	// A worker that read the row while the lease was alive is refused in the claim itself.
	intent, acc, request = s.reading(t)
	_, err = s.w.claim(t.Context(), jobID, intent, stripecharge.OpCreate, acc, request)
	require.ErrorIs(t, err, errRefused)
	s.age(t, s.w.lease()+time.Second)
	_, err = s.w.claim(t.Context(), jobID, intent, stripecharge.OpCreate, acc, request)
	require.NoError(t, err, "the lease has ended")
}

func TestM01TwoClaimsOfOneReadingAreOneClaim(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	s := b.stepper(t, b.config(t), "twice", "cus_1")
	jobID := s.dispatched(t)
	intent, acc, request := s.reading(t)
	results := make(chan error, 8)
	for range cap(results) {
		go func() {
			_, err := s.w.claim(t.Context(), jobID, intent, stripecharge.OpCreate, acc, request)
			results <- err
		}()
	}
	claims := 0
	for range cap(results) {
		if err := <-results; err == nil {
			claims++
		} else {
			require.ErrorIs(t, err, errRefused)
		}
	}
	require.Equal(t, 1, claims)
}

func TestM01NothingIsDoneForAnIntentThatIsDone(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	s := b.stepper(t, b.config(t), "done", "cus_1")
	require.NoError(t, s.work(t).err)
	s.requireOnce(t)
	before := s.stripe.Stats().Requests
	require.Equal(t, outcome{}, s.work(t))
	require.Equal(t, before, s.stripe.Stats().Requests)
	intent, acc, request := s.reading(t)
	_, err := s.w.claim(t.Context(), *intent.RiverJobID, intent, stripecharge.OpCreate, acc, request)
	require.ErrorIs(t, err, errRefused)
}

// The claim waits for the row here, as it may for a slow database. What the sender has left is counted from before that, so
// that its call and its finish end within the lease, which the database counts from later on.
func TestM01TimeToSendIsCountedFromBeforeTheClaim(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	s := b.stepper(t, b.config(t), "slow", "cus_1")
	jobID := s.dispatched(t)
	intent, acc, request := s.reading(t)
	tx, err := s.owner.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `SELECT 1 FROM billing.intents WHERE id = $1 FOR UPDATE`, s.id)
	require.NoError(t, err)
	claims := make(chan claimed, 1)
	go func() {
		c, err := s.w.claim(t.Context(), jobID, intent, stripecharge.OpCreate, acc, request)
		if err == nil {
			claims <- c
		}
		close(claims)
	}()
	s.untilWaiting(t)
	waited := time.Now()
	require.NoError(t, tx.Rollback(t.Context()))
	c, ok := <-claims
	require.True(t, ok)
	require.False(t, c.sendBefore.After(waited.Add(s.w.sendWithin())))
	require.Equal(t, s.w.lease(), c.LeaseUntil.Sub(c.StartedAt).Round(100*time.Millisecond))
	require.False(t, c.sendBefore.Add(s.w.cfg.CallTimeout+s.w.finishWithin()).After(c.LeaseUntil), "the finish would end after the lease")
}

// untilWaiting waits for somebody in this database to wait for a lock.
func (b *bundle) untilWaiting(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		var waiting int
		err := b.owner.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&waiting)
		return err == nil && waiting > 0
	}, patience, 5*time.Millisecond)
}

// Between two sends everything changes that may change: the API, the texts, the library's version, the customer's card.
func TestM02RetrySendsTheFrozenBytesWhateverChangedMeanwhile(t *testing.T) {
	t.Parallel()
	for first, then := range map[stripecharge.API]stripecharge.API{
		stripecharge.APIPaymentIntents: stripecharge.APICharges,
		stripecharge.APICharges:        stripecharge.APIPaymentIntents,
	} {
		t.Run(string(first), func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripetest.Config{})
			cfg := b.config(t)
			cfg.StripeAPI = first
			s := b.stepper(t, cfg, "frozen", "cus_1")
			s.fault(t, stripetest.Fault{Do: stripetest.CloseBeforeEffect})
			require.Error(t, s.work(t).err)
			s.execAsReplica(t, `UPDATE billing.charge_requests SET api_version = '2022-11-15' WHERE intent_id = $1`, s.id) // an older build's

			b.stripe.AddCustomer(stripetest.Customer{ID: "cus_1", DefaultPaymentMethod: "pm_another", DefaultSource: "card_another"})
			b.exec(t, `UPDATE billing.intents SET description = 'another text', payment_method = 'card_third' WHERE id = $1`, s.id)
			cfg.StripeAPI, cfg.Installation = then, "another"
			s.restart(t, cfg)
			s.w.way.echoed.Store(true)
			s.age(t, 10*time.Second)
			require.NoError(t, s.work(t).err)
			s.requireOnce(t)
			posts := s.posts(t)
			require.Len(t, posts, 2)
			require.Equal(t, posts[0].Path, posts[1].Path)
			require.Equal(t, posts[0].Form, posts[1].Form)
			require.Equal(t, posts[0].BodySHA256, posts[1].BodySHA256)
			require.Equal(t, posts[0].IdempotencyKey, posts[1].IdempotencyKey)
			require.Equal(t, "2022-11-15", posts[1].APIVersion)
		})
	}
}

func (b *bundle) execAsReplica(t *testing.T, statement string, args ...any) {
	t.Helper()
	tx, err := b.owner.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `SET LOCAL session_replication_role = replica`) // what is frozen may not change otherwise
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), statement, args...)
	require.NoError(t, err)
	require.NoError(t, tx.Commit(t.Context()))
}

// frozen is what survives every return to pending.
type frozen struct {
	firstSent time.Time
	key       string
	body      []byte
	reserved  int64
}

func (s *stepper) frozen(t *testing.T) frozen {
	t.Helper()
	var f frozen
	require.NoError(t, s.owner.QueryRow(t.Context(), `
		SELECT q.first_sent_at, q.idempotency_key, q.body, coalesce(i.reserved_cents, 0)
		FROM billing.charge_requests q JOIN billing.intents i ON i.id = q.intent_id WHERE i.id = $1`, s.id).
		Scan(&f.firstSent, &f.key, &f.body, &f.reserved))
	return f
}

// Nothing is in doubt here: Stripe refused every send before it did anything. After the window each send has its look-up all
// the same, for the next worker cannot know what the last one did not write.
func TestM03EveryPostAfterTheWindowHasItsOwnLookUp(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	s := b.stepper(t, b.config(t), "window", "cus_1")
	for range 3 {
		s.fault(t, stripetest.Fault{Do: stripetest.RateLimit})
	}
	s.work(t)
	require.Equal(t, "pending", s.now(t).Status)
	before := s.frozen(t)
	require.Equal(t, int64(steppedAmount), before.reserved)
	b.later(t, s.id, 25*time.Hour)
	before.firstSent = before.firstSent.Add(-25 * time.Hour)
	s.work(t)
	require.Equal(t, []string{"create:rate_limited", "look_up:absent", "create:rate_limited"}, s.now(t).Results)
	b.later(t, s.id, time.Minute)
	before.firstSent = before.firstSent.Add(-time.Minute)
	s.work(t)
	require.Equal(t, []string{"look_up:absent", "create:rate_limited"}, s.now(t).Results[3:])
	require.Equal(t, before, s.frozen(t))
	b.later(t, s.id, 5*time.Minute)
	require.NoError(t, s.work(t).err)
	require.Equal(t, []string{"look_up:absent", "create:charged"}, s.now(t).Results[5:])
	s.requireOnce(t)
}

func TestM03FirstSendSurvivesDenialPauseAndResume(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	s := b.stepper(t, b.config(t), "pending", "cus_1")
	s.fault(t, proxyAnswer(402, `{"error":"daily cap reached"}`))
	s.work(t)
	require.Equal(t, "pending/run_paused", s.now(t).Status+"/"+s.now(t).Reason)
	before := s.frozen(t)
	b.later(t, s.id, time.Hour)
	before.firstSent = before.firstSent.Add(-time.Hour)
	_, err := b.runs(t).Resume(t.Context(), s.run, "test", "the cap was raised")
	require.NoError(t, err)
	s.dispatched(t)
	require.Equal(t, before, s.frozen(t))
	require.NoError(t, s.work(t).err)
	s.requireOnce(t)
	require.Equal(t, before, s.frozen(t))
	require.Equal(t, before.key, s.posts(t)[1].IdempotencyKey)
}

// A process dies after Stripe charged; the next one comes 25 hours later, and the lists fail at first.
func TestM03LookUpThatFailsAfterTheWindowSendsNothing(t *testing.T) {
	t.Parallel()
	for _, api := range []stripecharge.API{stripecharge.APIPaymentIntents, stripecharge.APICharges} {
		t.Run(string(api), func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripetest.Config{})
			cfg := b.config(t)
			cfg.StripeAPI = api
			s := b.stepper(t, cfg, "crash", "cus_1")
			s.crashes(t)
			b.later(t, s.id, 25*time.Hour)
			require.NoError(t, b.stripe.AddFaults(stripetest.Fault{
				Do: stripetest.APIError, Match: stripetest.Match{Method: http.MethodGet, Path: "/v1/" + string(api), Customer: "cus_1"}, Trigger: stripetest.Trigger{Count: 3},
			}))
			s.restart(t, cfg)
			for range 3 {
				require.ErrorContains(t, s.work(t).err, "the look-up failed; without one nothing is sent again")
				b.later(t, s.id, readPause+time.Second)
			}
			require.NoError(t, s.work(t).err)
			require.Equal(t, []string{"create:-", "look_up:failed", "look_up:failed", "look_up:failed", "look_up:found"}, s.now(t).Results)
			require.Equal(t, "adopted", s.now(t).Reason)
			require.Len(t, s.posts(t), 1)
			s.requireOnce(t)
		})
	}
}

// Nobody sends for half an hour after the look-up that found nothing: what it permitted is over, and the send gets its own.
func TestM03LookUpOfLongAgoPermitsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	s := b.stepper(t, b.config(t), "old", "cus_1")
	s.fault(t, stripetest.Fault{Do: stripetest.CloseBeforeEffect})
	require.Error(t, s.work(t).err)
	_, err := b.runs(t).Pause(t.Context(), s.run, "test", "a look at it")
	require.NoError(t, err)
	b.later(t, s.id, 25*time.Hour)
	require.ErrorContains(t, s.work(t).err, lookUpsOnly)
	require.Equal(t, []string{"create:unknown", "look_up:absent"}, s.now(t).Results)
	b.later(t, s.id, 30*time.Minute)
	_, err = b.runs(t).Resume(t.Context(), s.run, "test", "looked at")
	require.NoError(t, err)
	require.NoError(t, s.work(t).err)
	require.Equal(t, []string{"create:unknown", "look_up:absent", "look_up:absent", "create:charged"}, s.now(t).Results)
	s.requireOnce(t)
}

// The run is paused between dispatch and claim.
func TestM03ReservationSurvivesTheReturnToPending(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	s := b.stepper(t, b.config(t), "returned", "cus_1")
	s.dispatched(t)
	_, err := b.runs(t).Pause(t.Context(), s.run, "test", "a look at it")
	require.NoError(t, err)
	require.NoError(t, s.work(t).err)
	require.Equal(t, "pending/run_paused", s.now(t).Status+"/"+s.now(t).Reason)
	require.Equal(t, new(int64(steppedAmount)), s.now(t).Reserved)
	_, err = b.runs(t).Resume(t.Context(), s.run, "test", "looked at")
	require.NoError(t, err)
	require.NoError(t, s.work(t).err)
	s.requireOnce(t)
	require.Equal(t, int64(steppedAmount), s.runNow(t).AllocatedCents, "reserved once")
}

// A payment that is under way is followed by its id for as long as it takes: past the key's window, after restarts, by any
// process.
func TestM05ObjectOnceKnownIsOnlyReadById(t *testing.T) {
	t.Parallel()
	for _, api := range []stripecharge.API{stripecharge.APIPaymentIntents, stripecharge.APICharges} {
		for name, c := range map[string]struct{ customer, ends string }{
			"goes_through": {"cus_1_processing", "charged/charged"}, "fails": {"cus_1_processing_fails", "card_declined/card_declined"},
		} {
			t.Run(string(api)+"/"+name, func(t *testing.T) {
				t.Parallel()
				b := setup(t, stripetest.Config{ProcessingFor: 72 * time.Hour})
				cfg := b.config(t)
				cfg.StripeAPI = api
				s := b.stepper(t, cfg, "async", c.customer)
				require.Error(t, s.work(t).err)
				require.Equal(t, "charging/processing", s.now(t).Status+"/"+s.now(t).Reason)
				for range 5 {
					s.restart(t, cfg)
					b.later(t, s.id, 13*time.Hour)
					require.ErrorContains(t, s.work(t).err, "is not done")
				}
				b.later(t, s.id, 13*time.Hour)
				s.work(t)
				in := s.now(t)
				require.Equal(t, c.ends, in.Status+"/"+in.Reason, "%+v", in)
				require.Len(t, s.posts(t), 1)
				require.Zero(t, s.listings(t), "read by id, not looked for")
			})
		}
	}
}

// The answer to a create that was declined is lost. By the time Stripe sends its stored answer again, the payment intent has
// been paid: the stored answer is a snapshot.
func TestM05StoredAnswerIsReadByIdBeforeItCounts(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	s := b.stepper(t, b.config(t), "snapshot", "cus_1_decline_do_not_honor")
	s.fault(t, stripetest.Fault{Do: stripetest.CloseAfterEffect})
	require.Error(t, s.work(t).err)
	require.NoError(t, b.stripe.AddFaults(stripetest.Fault{
		Do: stripetest.Alter, Match: stripetest.Match{Method: http.MethodGet, Path: "/v1/payment_intents/pi_"},
		Set: map[string]any{"status": "succeeded", "amount_received": steppedAmount, "latest_charge": "ch_paid_by_hand"},
	}))
	s.w.way.echoed.Store(true)
	s.age(t, 10*time.Second)
	require.NoError(t, s.work(t).err)
	in := s.now(t)
	require.Equal(t, []string{"create:unknown", "create:declined", "read:charged"}, in.Results)
	require.Equal(t, "charged", in.Status)
	require.Equal(t, "ch_paid_by_hand", *in.ChargeID)
	require.True(t, s.posts(t)[1].Replayed)
}

// Something between here and Stripe drops the idempotency key: Stripe would take a second send for a new charge.
func TestM07UnknownIsLookedUpBeforeTheKeyIsKnownToReachStripe(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	s := b.stepper(t, b.config(t), "dropped", "cus_1")
	g := startDroppingProxy(t, b.stripe.URL)
	cfg := b.config(t)
	cfg.Keys.StripeURL = g
	s.restart(t, cfg)
	s.fault(t, stripetest.Fault{Do: stripetest.CloseAfterEffect})
	require.Error(t, s.work(t).err)
	s.age(t, 10*time.Second)
	require.NoError(t, s.work(t).err)
	require.Equal(t, []string{"create:unknown", "look_up:found"}, s.now(t).Results)
	s.requireOnce(t)

	// A success that does not repeat the key is an alarm, and this process sends nothing in doubt again without a look-up.
	other := b.stepper(t, cfg, "dropped-too", "cus_2")
	other.w.way.echoed.Store(true)
	require.NoError(t, other.work(t).err)
	other.requireOnce(t)
	require.False(t, other.w.way.reaches())
	require.Equal(t, "open", other.runNow(t).Status, "the header may only be lost on the way back")
}

// A proxy that puts a key of its own in the place of ours.
func TestM07AnswerWithAnotherKeyPausesTheRun(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	s := b.stepper(t, b.config(t), "changed", "cus_1")
	s.fault(t, stripetest.Fault{Do: stripetest.Latency, Header: map[string]string{"Idempotency-Key": "made-by-the-proxy"}})
	require.NoError(t, s.work(t).err)
	s.requireOnce(t)
	require.Equal(t, "paused/mismatch", s.runNow(t).Status+"/"+s.runNow(t).StatusReason)
	require.Contains(t, s.runNow(t).StatusDetail, "Idempotency-Key")
	require.False(t, s.w.way.reaches())
}

// A look-up that began before the last sender's right to send had lapsed proves nothing: the request may have arrived after it.
func TestM07AbsenceFromBeforeALeaseEndedDoesNotCount(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	s := b.stepper(t, b.config(t), "absence", "cus_1")
	s.crashes(t)
	b.later(t, s.id, 25*time.Hour)
	b.exec(t, `
		INSERT INTO billing.charge_attempts (intent_id, key_generation, claim_number, operation, idempotency_key, worker, run_resume_count,
			started_at, lease_until, finished_at, result, resolved_at, resolution)
		SELECT intent_id, key_generation, claim_number, 'look_up', idempotency_key, worker, run_resume_count,
			lease_until - interval '1 second', lease_until, now() - interval '30 seconds', 'absent', now(), 'not_moved' FROM billing.charge_attempts`)
	s.restart(t, b.config(t))
	require.NoError(t, s.work(t).err)
	require.Equal(t, []string{"create:-", "look_up:absent", "look_up:found"}, s.now(t).Results)
	s.requireOnce(t)
}

// Stripe's lists show nothing, twice: the send is in doubt as before.
func TestM07AbsenceResolvesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	s := b.stepper(t, b.config(t), "nothing", "cus_1")
	s.fault(t, stripetest.Fault{Do: stripetest.CloseBeforeEffect})
	require.Error(t, s.work(t).err)
	_, err := b.runs(t).Pause(t.Context(), s.run, "test", "a look at it")
	require.NoError(t, err)
	for range 2 {
		s.age(t, time.Hour)
		require.ErrorContains(t, s.work(t).err, lookUpsOnly)
	}
	in := s.now(t)
	require.Equal(t, []string{"create:unknown", "look_up:absent", "look_up:absent"}, in.Results)
	require.Equal(t, "charging/in_doubt", in.Status+"/"+in.Reason)
	require.Equal(t, 1, in.Unresolved)
	require.Equal(t, new(int64(steppedAmount)), in.Reserved)
}

func TestM10LookUpsComeAtOneFiveThirtyMinutesAndThenHourly(t *testing.T) {
	t.Parallel()
	want := []time.Duration{time.Minute, 5 * time.Minute, 30 * time.Minute, 90 * time.Minute, 150 * time.Minute, 210 * time.Minute}
	var at []time.Duration
	in := queries.IntentForWorkRow{Frozen: true, Status: "charging", StatusReason: "in_doubt", RiverJobID: new(int64(1)), Unresolved: 1, Creates: 1, SawServerError: true, SecondsSinceAbsent: -1}
	for age := time.Duration(0); age < 4*time.Hour; age += 10 * time.Second {
		in.SecondsSinceDoubt, in.SecondsSinceFirstSend, in.SecondsSinceLastCreate = age.Seconds(), age.Seconds(), age.Seconds()
		if len(at) > 0 {
			in.LookUps, in.SecondsSinceLastLookUp = int64(len(at)), (age - at[len(at)-1]).Seconds()
		}
		switch next := nextStep(in, 1, true, false); next.action { //nolint:exhaustive // the default names the rest
		case actionLookUp:
			at = append(at, age)
		case actionWait:
			require.LessOrEqual(t, next.wait, time.Hour)
		default:
			require.Fail(t, "neither looked up nor waited", "%s at %s", next.action, age)
		}
	}
	require.Equal(t, want, at)
}

func TestM10StripesServerErrorIsLookedUpAndNeverSentAgain(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	s := b.stepper(t, b.config(t), "error", "cus_1")
	s.fault(t, stripetest.Fault{Do: stripetest.APIErrorLate, After: stripetest.Duration(3 * time.Hour)})
	require.ErrorContains(t, s.work(t).err, lookUpsOnly)
	s.w.way.echoed.Store(true)
	lookUps := 0
	for _, pause := range []time.Duration{50 * time.Second, 15 * time.Second, 4 * time.Minute, 25 * time.Minute, time.Hour, time.Hour} {
		b.later(t, s.id, pause)
		if pause > 50*time.Second || lookUps > 0 || pause == 15*time.Second {
			lookUps++
		}
		require.ErrorContains(t, s.work(t).err, lookUpsOnly)
		require.Equal(t, 2*lookUps, s.listings(t), "after %s", pause)
	}
	b.later(t, s.id, time.Hour) // by now Stripe has rolled it forward
	require.NoError(t, s.work(t).err)
	require.Equal(t, "adopted", s.now(t).Reason)
	require.Len(t, s.posts(t), 1)
	s.requireOnce(t)
}

func TestM10IntermediarysErrorIsATimeout(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	for _, do := range []stripetest.Action{stripetest.BadGateway, stripetest.Unavailable, stripetest.GatewayTimeout} {
		s := b.stepper(t, b.config(t), namespaceOf("gateway-", do), "cus_"+string(do))
		s.fault(t, stripetest.Fault{Do: do})
		require.ErrorContains(t, s.work(t).err, sentAgain)
		s.w.way.echoed.Store(true)
		s.age(t, 10*time.Second)
		require.NoError(t, s.work(t).err)
		require.Equal(t, []string{"create:unknown", "create:charged"}, s.now(t).Results, do)
		s.requireOnce(t)
	}
}

// somebody's key is swapped for one of the same account in the other mode, or of another account, at the same address.
func TestM11KeyOfAnotherAccountOrModeChargesNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		account  string
		livemode bool
		api      stripecharge.API
		method   any
	}{
		"other_mode":                            {account: "acct_standin", livemode: true, api: stripecharge.APIPaymentIntents},
		"other_mode_event_names_card":           {account: "acct_standin", livemode: true, api: stripecharge.APIPaymentIntents, method: "pm_given"},
		"other_mode_charges_api":                {account: "acct_standin", livemode: true, api: stripecharge.APICharges},
		"other_account":                         {account: "acct_other", api: stripecharge.APIPaymentIntents},
		"other_account_event_names_the_card":    {account: "acct_other", api: stripecharge.APIPaymentIntents, method: "pm_given"},
		"other_account_through_the_charges_api": {account: "acct_other", api: stripecharge.APICharges},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripetest.Config{})
			cfg := b.config(t)
			cfg.StripeAPI = c.api
			first := b.stepper(t, cfg, "mode", "cus_1")
			require.NoError(t, first.work(t).err)
			first.requireOnce(t)
			require.Equal(t, new(false), first.runNow(t).Livemode)
			require.Equal(t, "acct_standin", *first.runNow(t).StripeAccount)

			b.stripe.SetAccount(c.account, c.livemode)
			second := first.another(t, "cus_2")
			b.exec(t, `UPDATE billing.intents SET payment_method = $2 WHERE id = $1`, second.id, c.method)
			second.restart(t, cfg)
			second.work(t)
			require.Equal(t, "paused/wrong_account", second.runNow(t).Status+"/"+second.runNow(t).StatusReason, second.runNow(t).StatusDetail)
			require.Empty(t, second.posts(t))
			require.Equal(t, "pending/run_paused", second.now(t).Status+"/"+second.now(t).Reason)

			b.stripe.SetAccount("acct_standin", false)
			_, err := b.runs(t).Resume(t.Context(), second.run, "test", "the right key is back")
			require.NoError(t, err)
			second.restart(t, cfg)
			require.NoError(t, second.work(t).err)
			second.requireOnce(t)
		})
	}
}

// another records one more intent in the stepper's run.
func (s *stepper) another(t *testing.T, stripeCustomer string) *stepper {
	t.Helper()
	other := &stepper{bundle: s.bundle, w: s.w, run: s.run}
	other.id = s.record(t, s.run.Namespace, stripeCustomer)
	return other
}

// A key that may not read its account could be anybody's.
func TestM11KeyThatMayNotReadItsAccountChargesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	for name, f := range map[string]stripetest.Fault{
		"forbidden by Stripe": {Do: stripetest.Forbidden}, "denied by the proxy": {Do: stripetest.FlatDenial, Status: http.StatusForbidden},
		"answered by another page": {Do: stripetest.EmptyObject},
	} {
		f.Match.Path = "/v1/account"
		b.stripe.ClearFaults()
		require.NoError(t, b.stripe.AddFaults(f))
		s := b.stepper(t, b.config(t), namespaceOf(name), "cus_"+namespaceOf(name))
		s.work(t)
		require.Empty(t, s.posts(t), name)
		require.Equal(t, "pending", s.now(t).Status, name)
		if f.Do != stripetest.EmptyObject { // which passes by itself
			require.Equal(t, "paused/vault_denied", s.runNow(t).Status+"/"+s.runNow(t).StatusReason, name)
		}
	}
}

// An absence in another account proves nothing: the doubt is not looked up there, and not sent again.
func TestM11DoubtIsNotLookedUpInAnotherAccount(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		account  string
		livemode bool
	}{"other_account": {"acct_other", false}, "other_mode": {"acct_standin", true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripetest.Config{})
			s := b.stepper(t, b.config(t), "doubt", "cus_1")
			s.crashes(t)
			b.later(t, s.id, 25*time.Hour)
			b.stripe.SetAccount(c.account, c.livemode)
			s.restart(t, b.config(t))
			s.work(t)
			require.Equal(t, "paused/wrong_account", s.runNow(t).Status+"/"+s.runNow(t).StatusReason)
			require.Zero(t, s.listings(t))
			require.Len(t, s.posts(t), 1)
			require.Equal(t, 1, s.now(t).Unresolved)

			b.stripe.SetAccount("acct_standin", false)
			_, err := b.runs(t).Resume(t.Context(), s.run, "test", "the right key is back")
			require.NoError(t, err)
			s.restart(t, b.config(t))
			require.NoError(t, s.work(t).err)
			s.requireOnce(t)
		})
	}
}

// A key whose account could not be read has charged, and the next one leads elsewhere.
func TestM11RequestSentInOneAccountIsNotSentInAnother(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	s := b.stepper(t, b.config(t), "frozen-account", "cus_1")
	s.crashes(t)
	b.exec(t, `UPDATE billing.runs SET stripe_account = NULL, livemode = NULL`) // restored from a backup, or never bound
	b.stripe.SetAccount("acct_other", false)
	b.later(t, s.id, time.Hour)
	s.restart(t, b.config(t))
	s.work(t)
	require.Equal(t, "paused/wrong_account", s.runNow(t).Status+"/"+s.runNow(t).StatusReason)
	require.Zero(t, s.listings(t))
	require.Len(t, s.posts(t), 1)
}

// Other terms come in between dispatch and claim, or between the worker's reading and its claim.
func TestM17ConflictThatComesLateIsSeenBeforeTheFirstSend(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	s := b.stepper(t, b.config(t), "conflict", "cus_1")
	jobID := s.dispatched(t)
	intent, acc, request := s.reading(t)
	b.exec(t, `INSERT INTO billing.conflicts (intent_id, amount_cents, currency, stripe_customer_id, first_source, first_position, last_source, last_position)
		VALUES ($1, 1, 'usd', 'cus_1', 'test', 'x', 'test', 'x')`, s.id)
	_, err := s.w.claim(t.Context(), jobID, intent, stripecharge.OpCreate, acc, request)
	require.ErrorIs(t, err, errRefused)
	require.NoError(t, s.work(t).err)
	require.Equal(t, "pending/conflict", s.now(t).Status+"/"+s.now(t).Reason)
	require.Empty(t, s.posts(t))
	s.work(t)
	require.Equal(t, "pending/conflict", s.now(t).Status+"/"+s.now(t).Reason, "it is not dispatched again")
	b.exec(t, `UPDATE billing.conflicts SET resolved_at = now(), resolution = 'kept_first', resolved_by = 'test'`)
	b.exec(t, `UPDATE billing.intents SET status_reason = 'queued' WHERE id = $1`, s.id)
	require.NoError(t, s.work(t).err)
	s.requireOnce(t)
}

// The same customer at Stripe is billed by two streams, each with a run of its own.
func TestM17SameStripeCustomerInAnotherNamespaceWaits(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	first := b.stepper(t, b.config(t), "first", "cus_1")
	require.NoError(t, first.work(t).err)
	first.requireOnce(t)
	second := b.stepper(t, b.config(t), "second", "cus_1")
	second.work(t)
	require.Equal(t, "pending/same_customer", second.now(t).Status+"/"+second.now(t).Reason)
	require.Nil(t, second.now(t).Reserved, "what waits takes nothing from the cap")
	require.Empty(t, second.posts(t))

	// A namespace that was registered as one with many obligations of a customer does not ask.
	many := b.stepper(t, b.config(t), "many", "cus_1")
	b.exec(t, `UPDATE billing.namespaces SET many_per_stripe_customer = true WHERE namespace = 'many'`)
	require.NoError(t, many.work(t).err)
	many.requireOnce(t)
}
