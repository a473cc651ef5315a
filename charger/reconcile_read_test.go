package charger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"chargeonce/charger/stripecharge"
	"chargeonce/charger/stripecharge/stripetest"
	"chargeonce/charger/vaultkey/vaultkeytest"
	"chargeonce/schema"
	"chargeonce/sql/queries"
)

// All objects were made in the same second, and the pages' borders lie within it.
func TestM25PageBordersWithinOneSecondLoseNothing(t *testing.T) {
	t.Parallel()
	now := time.Now()
	b := keptBooks(t, stripetest.Config{Now: func() time.Time { return now }}, customers(230)...)
	b.pay(t, paid{customer: "cus_0000", marks: b.marks(t, b.ids[0])})
	b.pay(t, paid{customer: "cus_0117", marks: b.marks(t, b.ids[117])})
	done, findings := b.reconcile(t)
	require.Len(t, findings, 2)
	require.Equal(t, map[string]int64{FindingDouble: 2}, done.Findings)
	require.EqualValues(t, 232, done.Counted.PaymentIntents)
	require.EqualValues(t, 232, done.Counted.Charges)
	require.EqualValues(t, 232, done.Counted.RunPayments)
	require.Equal(t, []int{3, 3}, []int{b.listed("payment_intents"), b.listed("charges")})
	require.Equal(t, 4, b.byID(), "the payments of both doubles")
}

// A payment intent that was listed while it had no charge yet, and that charge, are one payment; two charges are two.
func TestM25PaymentIntentListedBeforeItsChargeIsOnePayment(t *testing.T) {
	t.Parallel()
	in := booked{ID: 1, IdempotencyKey: "k", StripeCustomerID: "cus_1", AmountCents: 1000, Currency: "usd", Status: "charging", StatusReason: "processing"}
	p := func(id, intent string, moved bool) payment {
		return payment{ObjectID: id, PaymentIntentID: intent, Moved: moved, Customer: "cus_1", AmountCents: 1000, Currency: "usd", IntentKey: "k"}
	}
	require.Empty(t, judge(in, []payment{p("pi_1", "pi_1", false), p("ch_1", "pi_1", false)}, "default"))
	require.Equal(t, FindingDouble, judge(in, []payment{p("pi_1", "pi_1", false), p("ch_2", "pi_2", false)}, "default")[0].Kind)
	require.Equal(t, FindingDouble, judge(in, []payment{p("ch_1", "pi_1", true), p("ch_2", "pi_1", true)}, "default")[0].Kind)
}

// The window begins 24 hours before the run's first send, and what came before is not listed unless it is asked for.
func TestM25WindowBeginsADayBeforeTheFirstSend(t *testing.T) {
	t.Parallel()
	now := time.Now()
	b := setup(t, stripetest.Config{Now: func() time.Time { return now }})
	id := b.intend(t, 1000, "usd", "cus_1")[0]
	b.open(t, "100.00", "usd")
	b.pay(t, paid{customer: "cus_1", marks: b.marks(t, id)}) // before a restore that lost it
	b.stripe.Advance(25 * time.Hour)
	b.execAsReplica(t, `UPDATE billing.runs SET opened_at = opened_at - interval '7 days'`)
	b.stripe.Advance(-25 * time.Hour)
	h := byHand(t, b, id)
	c := h.claims(t, id, stripecharge.OpCreate)
	answer, found := h.send(t.Context(), c)
	h.ends(t, c, answer, found)
	b.execAsReplica(t, `UPDATE billing.charge_requests SET first_sent_at = $1`, now.Add(24*time.Hour+time.Minute))
	done, err := b.asker(t).Reconcile(t.Context(), usdRun(), ReconcileOptions{Actor: "alice"})
	require.NoError(t, err)
	require.Equal(t, now.Add(time.Minute).Unix(), done.ListedFrom.Unix())
	require.Zero(t, done.Counted.Charges)
	require.True(t, done.Clean, "the recorded charge is read by its id")
	from := now.Add(-time.Minute).Truncate(time.Microsecond)
	done, err = b.asker(t).Reconcile(t.Context(), usdRun(), ReconcileOptions{Actor: "alice", From: &from})
	require.NoError(t, err)
	require.Equal(t, map[string]int64{FindingDouble: 1}, done.Findings)
}

// Before anything was sent, the window begins where the run was opened.
func TestReconcileOfARunThatNeverChargedIsClean(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	run := b.open(t, "100.00", "usd")
	done, findings := b.reconcile(t)
	require.Empty(t, findings)
	require.Equal(t, run.OpenedAt.Add(-24*time.Hour).Unix(), done.ListedFrom.Unix())
	_, err := b.asker(t).Reconcile(t.Context(), queries.RunGetParams{Namespace: testNamespace, BillingPeriod: "2026-09", Currency: "usd"}, ReconcileOptions{Actor: "alice"})
	requireRefused(t, err, "there is no run of usage, 2026-09, usd")
}

// Whatever a list's page is answered with instead, nothing of the list is lost, and nobody is accused.
func TestM25PageThatIsNotAnsweredIsAskedAgain(t *testing.T) {
	t.Parallel()
	b := keptBooks(t, stripetest.Config{}, customers(130)...)
	b.pay(t, paid{customer: "cus_0001", marks: b.marks(t, b.ids[1])})
	for _, do := range []stripetest.Action{ //nolint:paralleltest // they share the books, where one comparison goes at a time
		stripetest.RateLimit, stripetest.APIError, stripetest.BadGateway, stripetest.CutBody, stripetest.ResetBeforeEffect, stripetest.EmptyObject,
		stripetest.KeyInUse, stripetest.Redirect,
	} {
		t.Run(string(do), func(t *testing.T) {
			fault := stripetest.Fault{Do: do}
			fault.Match = stripetest.Match{Method: http.MethodGet, Path: "/v1/charges"}
			fault.Nth, fault.Count = 2, 1 // the second page of the charges
			require.NoError(t, b.stripe.AddFaults(fault))
			t.Cleanup(b.stripe.ClearFaults)
			before := b.listed("charges")
			done, _ := b.reconcile(t)
			require.Equal(t, map[string]int64{FindingDouble: 1}, done.Findings)
			require.EqualValues(t, 131, done.Counted.Charges)
			require.EqualValues(t, 131, done.Counted.RunPayments)
			require.GreaterOrEqual(t, b.listed("charges")-before, 3)
			require.Equal(t, 1, b.stripe.Faults()[0].Struck)
		})
	}
}

// When Stripe is away for longer, the comparison ends with an error, not with a verdict, and the next one goes on at the page.
func TestM25ComparisonThatFailedGoesOnAtItsPage(t *testing.T) {
	t.Parallel()
	b := keptBooks(t, stripetest.Config{}, customers(230)...)
	require.NoError(t, b.stripe.AddFaults(stripetest.Fault{
		Do: stripetest.Forbidden, Match: stripetest.Match{Method: http.MethodGet, Path: "/v1/charges"}, Trigger: stripetest.Trigger{Nth: 2},
	}))
	_, err := b.asker(t).Reconcile(t.Context(), usdRun(), ReconcileOptions{Actor: "alice"})
	require.ErrorContains(t, err, "the run's key is refused")
	require.ErrorContains(t, err, "goes on there")
	_, err = b.runs(t).LastReconciliation(t.Context(), usdRun())
	requireRefused(t, err, "was never reconciled")
	b.stripe.ClearFaults()
	intents, charges := b.listed("payment_intents"), b.listed("charges")
	done, findings := b.reconcile(t)
	require.Empty(t, findings)
	require.EqualValues(t, 230, done.Counted.Charges)
	require.EqualValues(t, 230, done.Counted.RunPayments)
	require.Equal(t, intents, b.listed("payment_intents"), "that list was at its end")
	require.Equal(t, charges+2, b.listed("charges"), "the first page was kept")
}

// An unfinished one that lists something else than is asked for, or is too old, is not gone on with.
func TestM25UnfinishedComparisonOfSomethingElseIsBegunAnew(t *testing.T) {
	t.Parallel()
	b := keptBooks(t, stripetest.Config{}, "cus_1")
	from := time.Now().Add(-time.Hour).Truncate(time.Microsecond)
	stop := func() {
		ctx, cancel := context.WithCancel(t.Context())
		_, err := b.asker(t).Reconcile(ctx, usdRun(), ReconcileOptions{Actor: "alice", Progress: func(ReconcileProgress) { cancel() }})
		require.ErrorIs(t, err, context.Canceled)
	}
	for name, change := range map[string]func(*Config, *ReconcileOptions){
		"goes on":            func(*Config, *ReconcileOptions) {},
		"other installation": func(cfg *Config, _ *ReconcileOptions) { cfg.Installation = "staging" },
		"other window":       func(_ *Config, o *ReconcileOptions) { o.From = &from },
		"too old": func(*Config, *ReconcileOptions) {
			b.exec(t, `UPDATE billing.reconciliations SET started_at = started_at - interval '25 hours' WHERE finished_at IS NULL`)
		},
	} {
		stop()
		cfg, o := b.config(t), ReconcileOptions{Actor: "bob"}
		change(&cfg, &o)
		c, err := New(cfg)
		require.NoError(t, err)
		before := b.listed("payment_intents")
		_, err = c.Reconcile(t.Context(), usdRun(), o)
		require.NoError(t, err)
		require.Equal(t, name != "goes on", b.listed("payment_intents") > before, name)
		var left int
		require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT count(*) FROM billing.reconciliation_payments`).Scan(&left))
		require.Zero(t, left, name)
	}
}

// Two at once: the second is refused, and told who is at it. One that lost its lease to another writes nothing any more.
func TestM25OneComparisonAtATime(t *testing.T) {
	t.Parallel()
	b := keptBooks(t, stripetest.Config{}, customers(130)...)
	b.pay(t, paid{customer: "cus_0001", marks: b.marks(t, b.ids[1])})
	require.NoError(t, b.stripe.AddFaults(stripetest.Fault{
		Do: stripetest.HoldBeforeEffect, Match: stripetest.Match{Method: http.MethodGet, Path: "/v1/charges"}, Trigger: stripetest.Trigger{Nth: 2, Count: 1},
	}))
	stale, end := b.asker(t), make(chan error, 1)
	go func() {
		_, err := stale.Reconcile(t.Context(), usdRun(), ReconcileOptions{Actor: "alice"})
		end <- err
	}()
	_, err := b.stripe.WaitHeld(t.Context(), 1)
	require.NoError(t, err)
	_, err = b.asker(t).Reconcile(t.Context(), usdRun(), ReconcileOptions{Actor: "bob"})
	requireRefused(t, err, "is being reconciled by alice (process "+stale.cfg.ID, "goes on where it ended in")

	b.exec(t, `UPDATE billing.reconciliations SET lease_until = now() - interval '1 second'`)
	done, findings := b.reconcile(t)
	require.Len(t, findings, 1)
	require.EqualValues(t, 131, done.Counted.RunPayments)
	require.EqualValues(t, 131, done.Counted.Charges)
	b.stripe.Release()
	require.ErrorIs(t, <-end, errReconcileTaken)
	var finished, payments int
	require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE finished_at IS NOT NULL), (SELECT count(*) FROM billing.reconciliation_payments) FROM billing.reconciliations`).
		Scan(&finished, &payments))
	require.Equal(t, []int{1, 0}, []int{finished, payments})
	require.Len(t, b.found(t, done), 1)
}

// Reading goes on at the cap, in a paused run and with charging stopped; a key that comes to its end in the middle is replaced.
func TestM25BooksAreReadAtTheCapWhilePausedAndPastAKeysEnd(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 1000, "usd", customers(110)...)
	_, _, err := b.runs(t).Open(t.Context(), OpenRun{
		Namespace: testNamespace, BillingPeriod: testPeriod, Currency: "usd", ExpectedTotal: "1100.00", Headroom: "0%", Actor: "test",
	})
	require.NoError(t, err)
	cfg, proxy := b.behindProxy(t, b.config(t), vaultkeytest.Config{Denial: "flat"})
	stop := start(t, cfg)
	b.untilStatus(t, schema.StatusCharged, ids...)
	stop()
	_, err = b.runs(t).Pause(t.Context(), usdRun(), "test", "looks wrong")
	require.NoError(t, err)
	require.NoError(t, b.runs(t).Switch(t.Context(), true, "test", "looks wrong"))
	cfg.ID, cfg.Registry = cfg.ID+"-2", nil
	c, err := New(cfg)
	require.NoError(t, err)
	var once sync.Once
	done, err := c.Reconcile(t.Context(), usdRun(), ReconcileOptions{Actor: "alice", Progress: func(ReconcileProgress) {
		once.Do(func() { require.NoError(t, cfg.Keys.Issuer.Revoke(t.Context(), proxy.Keys()[0].ID)) })
	}})
	require.NoError(t, err)
	require.Empty(t, b.found(t, done))
	require.EqualValues(t, 110, done.Counted.RunPayments)
	require.Len(t, proxy.Keys(), 2)
	require.Equal(t, "paused", b.run(t).Status, "and it pauses and resumes nothing")
	require.Equal(t, "paused_by_operator", b.run(t).StatusReason)
}

// The key of a closed run is taken back by whatever charger runs: reading its books needs another one, as often as that happens.
func TestM25BooksOfAClosedRunAreRead(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 1000, "usd", customers(5)...)
	b.open(t, "100.00", "usd")
	cfg, proxy := b.behindProxy(t, b.config(t), vaultkeytest.Config{Denial: "flat"})
	stop := start(t, cfg)
	b.untilStatus(t, schema.StatusCharged, ids...)
	stop()
	b.exec(t, `UPDATE billing.runs SET status = 'closed', status_reason = 'closed_by_operator', closed_at = now()`)
	cfg.ID, cfg.Registry = cfg.ID+"-2", nil
	c, err := New(cfg)
	require.NoError(t, err)
	done, err := c.Reconcile(t.Context(), usdRun(), ReconcileOptions{Actor: "alice", Progress: func(ReconcileProgress) {
		require.NoError(t, c.keys.endOfClosedRuns(t.Context()))
	}})
	require.NoError(t, err)
	require.True(t, done.Clean)
	require.Greater(t, len(proxy.Keys()), 1)
	require.Equal(t, "closed", b.run(t).Status)
}

// A given key that is refused has no other one: the comparison ends with an error, and the run is left as it is.
func TestM25RefusedGivenKeyIsNoVerdict(t *testing.T) {
	t.Parallel()
	b := keptBooks(t, stripetest.Config{}, "cus_1")
	require.NoError(t, b.stripe.AddFaults(stripetest.Fault{Do: stripetest.Unauthorized, Match: stripetest.Match{Path: "/v1/payment_intents"}}))
	_, err := b.asker(t).Reconcile(t.Context(), usdRun(), ReconcileOptions{Actor: "alice"})
	require.ErrorContains(t, err, "the run's key is refused")
	require.NotContains(t, err.Error(), "sk_test")
	require.Equal(t, "open", b.run(t).Status)
}

// In another account, or the other mode of the same one, nothing of the run is to be seen: nobody is accused of that.
func TestM25KeyOfAnotherAccountOrModeIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		account  string
		livemode bool
		says     string
	}{
		"account": {"acct_other", false, "leads to Stripe account acct_other"},
		"mode":    {"acct_standin", true, "livemode true"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := keptBooks(t, stripetest.Config{}, "cus_1")
			b.stripe.SetAccount(c.account, c.livemode)
			_, err := b.asker(t).Reconcile(t.Context(), usdRun(), ReconcileOptions{Actor: "alice"})
			require.ErrorContains(t, err, c.says)
			require.Zero(t, b.listed("payment_intents"))
		})
	}
	t.Run("customers are not known", func(t *testing.T) { // as in live mode with a key of test mode
		t.Parallel()
		b := keptBooks(t, stripetest.Config{}, "cus_1")
		require.NoError(t, b.stripe.AddFaults(stripetest.Fault{
			Do: stripetest.Answer, Status: http.StatusNotFound, Header: map[string]string{"Request-Id": "req_1"},
			Body: `{"error":{"type":"invalid_request_error","code":"resource_missing","message":"No such customer"}}`, Match: stripetest.Match{Path: "/v1/customers"},
		}))
		_, err := b.asker(t).Reconcile(t.Context(), usdRun(), ReconcileOptions{Actor: "alice"})
		require.ErrorContains(t, err, "of another account or mode")
		require.Zero(t, b.listed("payment_intents"))
	})
}

// Objects may carry so much metadata that a page of a hundred is larger than an answer may be.
func TestM25PageOfLargeObjectsIsReadInParts(t *testing.T) {
	t.Parallel()
	b := keptBooks(t, stripetest.Config{}, "cus_1")
	large := map[string]string{stripecharge.MetadataIntentKey: "somebody", stripecharge.MetadataKeyGeneration: "1", metadataInstallation: "other"}
	for i := range 47 {
		large[fmt.Sprintf("note_%d", i)] = strings.Repeat("x", 500)
	}
	for range 60 {
		b.pay(t, paid{customer: "cus_2", marks: large})
	}
	done, findings := b.reconcile(t)
	require.Empty(t, findings)
	require.EqualValues(t, 61, done.Counted.PaymentIntents)
	require.EqualValues(t, 60, done.Counted.OtherInstallations)
}

// A run of ten thousand is compared a page at a time: what is held in memory does not grow with it.
func TestM25MemoryIsThatOfPages(t *testing.T) { //nolint:paralleltest // the memory of others would be counted
	const customers = 10_000
	b := setup(t, stripetest.Config{RequestLog: 1})
	run := b.open(t, "1000000.00", "usd")
	b.payAll(t, customers)
	b.execAsReplica(t, `
		INSERT INTO billing.intents (namespace, customer_id, billing_period, idempotency_key, stripe_customer_id, amount_cents, currency, source, source_position,
			status, status_reason, charge_id, run_id, reserved_cents, claim_number, lease_until)
		SELECT $1, customer, $2, left(encode(sha256(convert_to(customer || ':' || $2 || ':' || $1, 'UTF8')), 'hex'), 32), 'cus_' || n, 1000, 'usd', 'test', customer,
			'charged', 'charged', 'ch_' || n, $3, 1000, 1, now()
		FROM (SELECT n, 'customer-cus_' || n || '-0' AS customer FROM generate_series(1, $4::int) n) s`, testNamespace, testPeriod, run.ID, customers)
	ids := map[string]string{}
	for _, e := range b.stripe.Charges() {
		ids[e.Customer] = e.ID
	}
	encoded, err := json.Marshal(ids)
	require.NoError(t, err)
	b.execAsReplica(t, `UPDATE billing.intents i SET charge_id = j.value FROM jsonb_each_text($1::jsonb) j WHERE j.key = i.stripe_customer_id`, string(encoded))
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc) //nolint:gosec // G115: far from it
	}
	asker, before, most, parts := b.asker(t), heap(), int64(0), 0
	done, err := asker.Reconcile(t.Context(), usdRun(), ReconcileOptions{Actor: "alice", Progress: func(ReconcileProgress) {
		if parts++; parts%20 == 0 {
			most = max(most, heap()-before)
		}
	}})
	require.NoError(t, err)
	require.True(t, done.Clean, "%+v", done)
	require.EqualValues(t, customers, done.Counted.RunPayments)
	require.Equal(t, 2*customers/100+customers/comparePage+1, parts)
	t.Logf("%d KiB at most", most>>10)
	require.Less(t, most, int64(2<<20), "ten thousand payments are more than twice that")
}

// payAll makes charges at Stripe, with the marks of intents that stand nowhere yet.
func (b *bundle) payAll(t *testing.T, n int) {
	t.Helper()
	client := b.stripeClient(t)
	var paying sync.WaitGroup
	failed := make(chan error, n)
	for lane := range 8 {
		paying.Go(func() {
			for i := lane; i < n; i += 8 {
				name := fmt.Sprintf("cus_%d", i+1)
				customer := "customer-" + name + "-0"
				key := schema.IdempotencyKey(customer, testPeriod, testNamespace, 1)
				request, err := stripecharge.NewRequest(stripecharge.Params{
					API: stripecharge.APIPaymentIntents, Customer: name, AmountCents: 1000, Currency: "usd", PaymentMethod: "pm_1", Description: "x", IdempotencyKey: key,
					Metadata: map[string]string{
						stripecharge.MetadataIntentKey: key, stripecharge.MetadataKeyGeneration: "1", metadataNamespace: testNamespace, metadataPeriod: testPeriod,
						metadataCustomer: customer, metadataInstallation: "default",
					},
				})
				if err == nil && client.Create(t.Context(), request, time.Now().Add(time.Minute)).Class != stripecharge.ClassSucceeded {
					err = errors.New("not charged")
				}
				failed <- err
			}
		})
	}
	paying.Wait()
	for range n {
		require.NoError(t, <-failed)
	}
}
