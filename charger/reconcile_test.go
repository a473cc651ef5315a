package charger

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"chargeonce/charger/stripecharge"
	"chargeonce/charger/stripecharge/stripetest"
	"chargeonce/schema"
)

// books is a run whose intents were charged, to be compared.
type books struct {
	*bundle
	ids []int64
}

// keptBooks charges an intent for each of the Stripe customers.
func keptBooks(t *testing.T, stripe stripetest.Config, stripeCustomers ...string) *books {
	t.Helper()
	b := setup(t, stripe)
	ids := b.intend(t, 1000, "usd", stripeCustomers...)
	b.open(t, "100000.00", "usd")
	stop := start(t, b.config(t))
	b.untilStatus(t, schema.StatusCharged, ids...)
	stop()
	return &books{bundle: b, ids: ids}
}

// reconcile compares, by a process of its own.
func (b *bundle) reconcile(t *testing.T) (Reconciliation, []Finding) {
	t.Helper()
	cfg := b.config(t)
	cfg.CallTimeout = time.Minute // a page may be large, and the machine busy
	c, err := New(cfg)
	require.NoError(t, err)
	done, err := c.Reconcile(t.Context(), usdRun(), ReconcileOptions{Actor: "alice"})
	require.NoError(t, err)
	return done, b.found(t, done)
}

// found is what a reconciliation found, refunds last.
func (b *bundle) found(t *testing.T, done Reconciliation) []Finding {
	t.Helper()
	var findings, refunds []Finding
	for f, err := range b.runs(t).ReconcileFindings(t.Context(), done.ID) {
		require.NoError(t, err)
		if f.Kind == FindingRefunded {
			refunds = append(refunds, f)
		} else {
			findings = append(findings, f)
		}
	}
	require.Equal(t, len(findings) == 0, done.Clean)
	require.Len(t, refunds, int(done.Refunds))
	counts := map[string]int64{}
	for _, f := range findings {
		counts[f.Kind]++
	}
	require.Equal(t, counts, done.Findings)
	return append(findings, refunds...)
}

// requireFound compares and checks what is found: of each finding "kind intent".
func (b *bundle) requireFound(t *testing.T, want ...string) []Finding {
	t.Helper()
	_, findings := b.reconcile(t)
	got := make([]string, len(findings))
	for i, f := range findings {
		got[i] = f.Kind
		if f.IntentID != nil {
			got[i] += " " + strconv.FormatInt(*f.IntentID, 10)
		}
	}
	require.ElementsMatch(t, want, got, "%+v", findings)
	return findings
}

func of(kind string, id int64) string { return fmt.Sprintf("%s %d", kind, id) }

// marks are the metadata of an intent's charge.
func (b *bundle) marks(t *testing.T, id int64) map[string]string {
	t.Helper()
	m := map[string]string{stripecharge.MetadataKeyGeneration: "1", metadataInstallation: "default"}
	var key, customer, period, namespace string
	require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT idempotency_key, customer_id, billing_period, namespace FROM billing.intents WHERE id = $1`, id).
		Scan(&key, &customer, &period, &namespace))
	m[stripecharge.MetadataIntentKey], m[metadataCustomer], m[metadataPeriod], m[metadataNamespace] = key, customer, period, namespace
	return m
}

// payment is one that something else than a charger's rules makes at Stripe: by default 10.00 usd.
type paid struct {
	api         stripecharge.API
	customer    string
	amountCents int64
	currency    string
	marks       map[string]string
}

// pay makes it, under a key of its own.
func (b *bundle) pay(t *testing.T, p paid) *stripecharge.Object {
	t.Helper()
	if p.api == "" {
		p.api = stripecharge.APIPaymentIntents
	}
	if p.amountCents == 0 {
		p.amountCents = 1000
	}
	if p.currency == "" {
		p.currency = "usd"
	}
	method := "pm_1"
	if p.api == stripecharge.APICharges {
		method = "card_1"
	}
	request, err := stripecharge.NewRequest(stripecharge.Params{
		API: p.api, Customer: p.customer, AmountCents: p.amountCents, Currency: p.currency, PaymentMethod: method, Description: "again",
		Metadata: p.marks, IdempotencyKey: fmt.Sprintf("%s-%d", t.Name(), time.Now().UnixNano()),
	})
	require.NoError(t, err)
	answer := b.stripeClient(t).Create(t.Context(), request, time.Now().Add(time.Minute))
	require.NotNil(t, answer.Object, "%+v", answer)
	return answer.Object
}

func (b *bundle) stripeClient(t *testing.T) *stripecharge.Client {
	t.Helper()
	client, err := stripecharge.New(stripecharge.Config{URL: b.stripe.URL, Key: "sk_test_standin", Transport: stripecharge.NewTransport()})
	require.NoError(t, err)
	return client
}

// listed counts the pages that were read of the account's list of these objects, and byID the objects that were read by their ids.
func (b *bundle) listed(objects string) int {
	return b.asked(func(r stripetest.Request) bool { return r.Path == "/v1/"+objects && !r.Form.Has("customer") })
}

func (b *bundle) byID() int {
	return b.asked(func(r stripetest.Request) bool {
		return strings.HasPrefix(r.Path, "/v1/charges/") || strings.HasPrefix(r.Path, "/v1/payment_intents/")
	})
}

func (b *bundle) asked(what func(stripetest.Request) bool) (n int) {
	for _, r := range b.stripe.Requests() {
		if r.Method == http.MethodGet && what(r) {
			n++
		}
	}
	return n
}

// chargeOf is the id of an intent's recorded charge.
func (b *bundle) chargeOf(t *testing.T, id int64) string {
	t.Helper()
	in := b.intent(t, id)
	require.NotNil(t, in.ChargeID)
	return *in.ChargeID
}

func TestM25BooksThatAgreeAreClean(t *testing.T) {
	t.Parallel()
	for _, api := range []stripecharge.API{stripecharge.APIPaymentIntents, stripecharge.APICharges} {
		t.Run(string(api), func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripetest.Config{})
			ids := b.intend(t, 1000, "usd", customers(20)...)
			b.open(t, "1000.00", "usd")
			cfg := b.config(t)
			cfg.StripeAPI = api
			stop := start(t, cfg)
			b.untilStatus(t, schema.StatusCharged, ids...)
			stop()
			declined := b.intend(t, 1000, "usd", "cus_x_decline_do_not_honor")[0]
			b.declined(t, declined)
			done, findings := b.reconcile(t)
			require.Empty(t, findings)
			require.True(t, done.Clean)
			require.EqualValues(t, 21, done.Counted.Intents)
			require.EqualValues(t, 20, done.Counted.RunPayments, "a payment intent and its charge are one payment")
			require.EqualValues(t, 20_000, done.Counted.RunCents)
			require.Zero(t, done.Counted.Unmarked)
			require.Zero(t, b.byID(), "nothing was suspected")
			var left int
			require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT count(*) FROM billing.reconciliation_payments`).Scan(&left))
			require.Zero(t, left, "what was listed is deleted")
		})
	}
}

func TestM25DoubleChargeIsFound(t *testing.T) {
	t.Parallel()
	for _, api := range []stripecharge.API{stripecharge.APIPaymentIntents, stripecharge.APICharges} {
		t.Run(string(api), func(t *testing.T) {
			t.Parallel()
			b := keptBooks(t, stripetest.Config{}, "cus_1", "cus_2")
			second := b.pay(t, paid{api: api, customer: "cus_1", marks: b.marks(t, b.ids[0])})
			f := b.requireFound(t, of(FindingDouble, b.ids[0]))[0]
			require.ElementsMatch(t, []string{b.chargeOf(t, b.ids[0]), second.ChargeID}, f.ObjectIDs)
			require.EqualValues(t, 2000, f.AmountCents)
			require.Equal(t, "customer-cus_1-0", f.CustomerID)
			require.Contains(t, f.Detail, second.ChargeID+" paid 10.00 usd by cus_1")
		})
	}
}

// Two charges of an intent that none of them is recorded for.
func TestM25DoubleChargeOfAnIntentInDoubtIsFound(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	id := b.intend(t, 1000, "usd", "cus_1")[0]
	b.open(t, "100.00", "usd")
	b.doubt(t, id, true)
	b.pay(t, paid{customer: "cus_1", marks: b.marks(t, id)})
	b.requireFound(t, of(FindingDouble, id))
}

// The database was restored from before the intents were recorded, or a row was lost: their charges stand at Stripe.
func TestM25ChargeOfAnIntentThatWasRestoredAwayIsFound(t *testing.T) {
	t.Parallel()
	b := keptBooks(t, stripetest.Config{}, "cus_1", "cus_2")
	lost := b.chargeOf(t, b.ids[0])
	for _, table := range []string{"charge_attempts WHERE intent_id", "charge_requests WHERE intent_id", "intents WHERE id"} {
		b.execAsReplica(t, `DELETE FROM billing.`+table+` = $1`, b.ids[0])
	}
	f := b.requireFound(t, FindingNoIntent)[0]
	require.Equal(t, []string{lost}, f.ObjectIDs)
	require.Equal(t, "customer-cus_1-0", f.CustomerID)
	require.EqualValues(t, 1000, f.AmountCents)
	// The producer sends it again: it is an intent whose charge is not recorded now.
	again := b.intend(t, 1000, "usd", "cus_1")[0]
	b.requireFound(t, of(FindingNotRecorded, again))
}

// Its intent is recorded between the listing and the look at the payments without one.
func TestM25ChargeWhoseIntentComesMeanwhileIsJudgedByIt(t *testing.T) {
	t.Parallel()
	b := keptBooks(t, stripetest.Config{}, "cus_1")
	marks := map[string]string{
		stripecharge.MetadataIntentKey: schema.IdempotencyKey("customer-cus_late-0", testPeriod, testNamespace, 1), stripecharge.MetadataKeyGeneration: "1",
		metadataNamespace: testNamespace, metadataPeriod: testPeriod, metadataCustomer: "someone else", metadataInstallation: "default",
	}
	made := b.pay(t, paid{customer: "cus_late", marks: marks})
	var late int64
	done, err := b.asker(t).Reconcile(t.Context(), usdRun(), ReconcileOptions{Actor: "alice", Progress: func(p ReconcileProgress) {
		if p.Stage == stageIntents {
			late = b.intend(t, 1000, "usd", "cus_late")[0]
		}
	}})
	require.NoError(t, err)
	findings := b.found(t, done)
	require.Len(t, findings, 1)
	require.Equal(t, FindingNotRecorded, findings[0].Kind)
	require.Equal(t, late, *findings[0].IntentID)
	require.Equal(t, []string{made.ChargeID}, findings[0].ObjectIDs)
}

func TestM25ChargedIntentWithoutAChargeIsFound(t *testing.T) {
	t.Parallel()
	b := keptBooks(t, stripetest.Config{}, "cus_1", "cus_2", "cus_3")
	b.execAsReplica(t, `UPDATE billing.intents SET charge_id = 'ch_nowhere' WHERE id = $1`, b.ids[0])
	failed := b.pay(t, paid{api: stripecharge.APICharges, customer: "cus_9_decline_do_not_honor", marks: b.marks(t, b.ids[1])})
	require.NotEmpty(t, failed.ID)
	b.execAsReplica(t, `UPDATE billing.intents SET charge_id = $2 WHERE id = $1`, b.ids[1], failed.ID)
	findings := b.requireFound(t,
		of(FindingNoCharge, b.ids[0]), of(FindingNotRecorded, b.ids[0]), // its true charge is no double: the recorded one does not exist
		of(FindingNoCharge, b.ids[1]), of(FindingNotRecorded, b.ids[1]))
	for _, f := range findings {
		if f.Kind == FindingNoCharge && *f.IntentID == b.ids[0] {
			require.Equal(t, []string{"ch_nowhere"}, f.ObjectIDs)
			require.EqualValues(t, 1000, f.AmountCents)
		}
	}
}

func TestM25WrongTermsAreFound(t *testing.T) {
	t.Parallel()
	b := keptBooks(t, stripetest.Config{}, "cus_1", "cus_2", "cus_3", "cus_4")
	b.execAsReplica(t, `UPDATE billing.intents SET amount_cents = 999, reserved_cents = 999 WHERE id = $1`, b.ids[0])
	b.execAsReplica(t, `UPDATE billing.intents SET stripe_customer_id = 'cus_other' WHERE id = $1`, b.ids[1])
	// Wrong currency: the intent's own charge, as if Stripe had been asked for another one.
	eur := b.pay(t, paid{customer: "cus_3", currency: "eur", marks: b.marks(t, b.ids[2])})
	require.True(t, b.stripe.Refund(b.chargeOf(t, b.ids[2])))
	b.execAsReplica(t, `UPDATE billing.intents SET charge_id = $2 WHERE id = $1`, b.ids[2], eur.ChargeID)
	findings := b.requireFound(t, of(FindingWrongAmount, b.ids[0]), of(FindingWrongCustomer, b.ids[1]), of(FindingWrongCurrency, b.ids[2]), of(FindingRefunded, b.ids[2]))
	for _, f := range findings {
		switch f.Kind {
		case FindingWrongAmount:
			require.EqualValues(t, 1000, f.AmountCents)
			require.Contains(t, f.Detail, "owed are 9.99 usd for cus_1")
		case FindingWrongCustomer:
			require.Equal(t, "cus_2", f.StripeCustomer)
		case FindingWrongCurrency:
			require.Equal(t, "eur", f.Currency)
		}
	}
}

func TestM25ChargeOfAnIntentThatIsNotChargedIsFound(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	names := []string{"cus_pending", "cus_voided", "cus_parked", "cus_declined_decline_do_not_honor"}
	ids := b.intend(t, 1000, "usd", names...)
	b.open(t, "100.00", "usd")
	for i, id := range ids[:3] {
		b.pay(t, paid{customer: names[i], marks: b.marks(t, id)})
	}
	require.NoError(t, b.person(t).Void(t.Context(), ids[1]))
	require.NoError(t, b.person(t).Park(t.Context(), ids[2]))
	b.declined(t, ids[3])
	b.pay(t, paid{customer: "cus_other", amountCents: 1000, marks: b.marks(t, ids[3])})
	findings := b.requireFound(t, of(FindingNotRecorded, ids[0]), of(FindingNotRecorded, ids[1]), of(FindingNotRecorded, ids[2]),
		of(FindingNotRecorded, ids[3]), of(FindingWrongCustomer, ids[3]))
	for _, f := range findings {
		if f.Kind == FindingNotRecorded && *f.IntentID == ids[1] {
			require.Contains(t, f.Detail, "the intent is voided (by_operator)")
		}
	}
}

// What is given back in full was not paid; in part, it was. Neither is anything wrong: both have their own line.
func TestM25RefundsHaveTheirOwnLine(t *testing.T) {
	t.Parallel()
	b := keptBooks(t, stripetest.Config{}, "cus_1", "cus_2", "cus_3", "cus_4")
	require.True(t, b.stripe.Refund(b.chargeOf(t, b.ids[0])))
	require.True(t, b.stripe.RefundPart(b.chargeOf(t, b.ids[1]), 250))
	double := b.pay(t, paid{customer: "cus_3", marks: b.marks(t, b.ids[2])})
	require.True(t, b.stripe.Refund(double.ChargeID), "a person mended the double")
	marks := b.marks(t, b.ids[3])
	marks[stripecharge.MetadataIntentKey], marks[metadataCustomer] = "0123456789abcdef0123456789abcdef", "nobody"
	orphan := b.pay(t, paid{customer: "cus_nobody", marks: marks})
	require.True(t, b.stripe.Refund(orphan.ChargeID))

	done, findings := b.reconcile(t)
	require.True(t, done.Clean)
	require.Empty(t, done.Findings)
	require.EqualValues(t, 4, done.Refunds)
	require.EqualValues(t, 3250, done.Counted.RefundedCents)
	back := map[string]int64{}
	for _, f := range findings {
		require.Equal(t, FindingRefunded, f.Kind)
		back[f.ObjectIDs[0]] = f.AmountCents
	}
	require.Equal(t, 1, b.byID(), "a refund is no suspicion; the payment without an intent is")
	require.Equal(t, map[string]int64{b.chargeOf(t, b.ids[0]): 1000, b.chargeOf(t, b.ids[1]): 250, double.ChargeID: 1000, orphan.ChargeID: 1000}, back)
	// Given back in part only, the second payment is still a double.
	more := b.pay(t, paid{customer: "cus_4", marks: b.marks(t, b.ids[3])})
	require.True(t, b.stripe.RefundPart(more.ChargeID, 999))
	done, _ = b.reconcile(t)
	require.Equal(t, map[string]int64{FindingDouble: 1}, done.Findings)
}

// Two installations on one Stripe account make the same keys of the same customers: the other's payments are counted, and nobody
// is accused. A charge that is recorded here is ours, whatever it was called then.
func TestM25OtherInstallationsAreCountedNotAccused(t *testing.T) {
	t.Parallel()
	b := keptBooks(t, stripetest.Config{}, "cus_1", "cus_2")
	marks := b.marks(t, b.ids[0])
	marks[metadataInstallation] = "staging"
	b.pay(t, paid{customer: "cus_1", marks: marks})
	stranger := b.marks(t, b.ids[0])
	stranger[metadataInstallation], stranger[metadataCustomer], stranger[stripecharge.MetadataIntentKey] = "staging", "nobody", "0123456789abcdef0123456789abcdef"
	b.pay(t, paid{customer: "cus_9", marks: stranger})
	period := b.marks(t, b.ids[0])
	period[metadataPeriod], period[stripecharge.MetadataIntentKey] = "2026-07", schema.IdempotencyKey("customer-cus_1-0", "2026-07", testNamespace, 1)
	b.pay(t, paid{customer: "cus_1", marks: period})
	b.chargeByHand(t, "cus_1", 1000)

	done, findings := b.reconcile(t)
	require.Empty(t, findings)
	require.EqualValues(t, 2, done.Counted.OtherInstallations)
	require.EqualValues(t, 1, done.Counted.OtherRuns)
	require.EqualValues(t, 1, done.Counted.Unmarked)
	require.EqualValues(t, 2, done.Counted.RunPayments)

	cfg := b.config(t) // was renamed since
	cfg.Installation = "production"
	c, err := New(cfg)
	require.NoError(t, err)
	done, err = c.Reconcile(t.Context(), usdRun(), ReconcileOptions{Actor: "alice"})
	require.NoError(t, err)
	require.True(t, done.Clean)
	require.EqualValues(t, 2, done.Counted.RunPayments)
}

// Only what moved money or still may counts: a pending payment of a charging intent is on its way, and two of them are a double.
func TestM25OnlySucceededAndPendingPaymentsCount(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 1000, "usd", "cus_1_processing", "cus_2_decline_do_not_honor", "cus_3")
	b.open(t, "100.00", "usd")
	for _, id := range ids[:1] {
		h := byHand(t, b, id)
		c := h.claims(t, id, stripecharge.OpCreate)
		answer, found := h.send(t.Context(), c)
		h.ends(t, c, answer, found)
		require.Equal(t, "charging/processing", b.intent(t, id).Status+"/"+b.intent(t, id).Reason)
	}
	b.pay(t, paid{customer: "cus_2_decline_do_not_honor", marks: b.marks(t, ids[1])}) // declined: an open payment intent, and a failed charge
	b.requireFound(t)
	b.pay(t, paid{customer: "cus_1_processing", marks: b.marks(t, ids[0])})
	b.pay(t, paid{customer: "cus_3_processing", marks: b.marks(t, ids[2])})
	b.requireFound(t, of(FindingDouble, ids[0]), of(FindingNotRecorded, ids[2]), of(FindingWrongCustomer, ids[2]))
}

// The run goes on while its books are compared: what is charged after the lists were read is not accused of not being in them,
// and what the lists show is recorded by the time that the intents are read.
func TestM25ChargesMadeMeanwhileAreNotAccused(t *testing.T) {
	t.Parallel()
	b := keptBooks(t, stripetest.Config{}, "cus_1")
	pending := b.intend(t, 1000, "usd", "cus_later")[0]
	doubt := b.intend(t, 1000, "usd", "cus_doubt")[0]
	b.doubt(t, doubt, true)
	listed := 0
	done, err := b.asker(t).Reconcile(t.Context(), usdRun(), ReconcileOptions{Actor: "alice", Progress: func(p ReconcileProgress) {
		if p.Stage != stageCharges {
			return
		}
		listed++
		h := byHand(t, b.bundle, pending)
		c := h.claims(t, pending, stripecharge.OpCreate)
		answer, found := h.send(t.Context(), c)
		h.ends(t, c, answer, found)
		_, err := b.asker(t).ResolveCharged(t.Context(), b.person(t), doubt, b.stripe.Charges()[1].ID)
		require.NoError(t, err)
	}})
	require.NoError(t, err)
	require.Equal(t, 1, listed)
	require.Empty(t, b.found(t, done))
	require.Equal(t, "charged charged", b.intent(t, pending).Status+" "+b.intent(t, doubt).Status)
	require.Equal(t, 1, b.byID(), "only the operator's own read: nothing was even suspected")
}

// A charge that the lists do not show, because it is older or somebody took its marks away, is read by its id.
func TestM25ChargeThatTheListsDoNotShowIsReadByItsID(t *testing.T) {
	t.Parallel()
	b := keptBooks(t, stripetest.Config{}, "cus_1", "cus_2")
	unmarked := b.chargeByHand(t, "cus_1", 1000)
	require.True(t, b.stripe.Refund(b.chargeOf(t, b.ids[0])))
	b.execAsReplica(t, `UPDATE billing.intents SET charge_id = $2, payment_intent_id = NULL WHERE id = $1`, b.ids[0], unmarked)
	b.requireFound(t, of(FindingRefunded, b.ids[0]))
	require.Equal(t, 2, b.byID(), "the recorded one, and the refunded one of its key")
}

// While a call may be on its way the intent is not accused; it is looked at again when the lease has ended.
func TestM25IntentInFlightIsNotAccusedUntilItsLeaseEnds(t *testing.T) {
	t.Parallel()
	for name, finished := range map[string]bool{"TheCallEnds": true, "TheProcessIsDead": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripetest.Config{})
			id := b.intend(t, 1000, "usd", "cus_1")[0]
			b.open(t, "100.00", "usd")
			h := byHand(t, b, id)
			c := h.claims(t, id, stripecharge.OpCreate)
			answer, found := h.send(t.Context(), c)
			require.Equal(t, stripecharge.ClassSucceeded, answer.Class)
			waiting, end := make(chan struct{}, 1), make(chan error, 1)
			var done Reconciliation
			asker := b.asker(t)
			go func() {
				var err error
				done, err = asker.Reconcile(t.Context(), usdRun(), ReconcileOptions{Actor: "alice", Progress: func(p ReconcileProgress) {
					if p.Stage == stageWaiting {
						select {
						case waiting <- struct{}{}:
						default:
						}
					}
				}})
				end <- err
			}()
			select {
			case <-waiting:
			case err := <-end:
				require.Fail(t, "it did not wait", "%v %+v", err, done)
			}
			require.Zero(t, b.byID())
			if finished {
				h.ends(t, c, answer, found)
			} else {
				b.ageRows(t, id, time.Hour)
			}
			require.NoError(t, <-end)
			if finished {
				require.Empty(t, b.found(t, done))
				return
			}
			require.Equal(t, map[string]int64{FindingNotRecorded: 1}, done.Findings)
			require.Contains(t, b.found(t, done)[0].Detail, "the intent is charging (sent)")
		})
	}
}
