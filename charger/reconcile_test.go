package charger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"chargeonce/charger/stripecharge"
	"chargeonce/charger/stripecharge/stripetest"
	"chargeonce/charger/vaultkey/vaultkeytest"
	"chargeonce/schema"
	"chargeonce/sql/queries"
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

// The schedule compares what was not compared for so long, says loudly what it finds, and shows it until a later comparison, by
// whomever, finds it mended.
func TestM25ScheduledComparisonFindsAndTells(t *testing.T) {
	t.Parallel()
	b := keptBooks(t, stripetest.Config{}, "cus_1")
	double := b.pay(t, paid{customer: "cus_1", marks: b.marks(t, b.ids[0])})
	jobs := func() (done int) {
		require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT count(*) FROM river.river_job WHERE queue = 'reconcile' AND state = 'completed'`).Scan(&done))
		return done
	}
	before := jobs() // of the charger that charged
	log, registry := new(lines), prometheus.NewRegistry()
	cfg := b.config(t)
	cfg.ReconcileEvery, cfg.Registry = time.Hour, registry
	stop := start(t, cfg)
	require.Eventually(t, func() bool { return jobs() > before }, patience, 10*time.Millisecond)
	stop()
	require.Zero(t, b.listed("charges"), "the run was opened less than an hour ago")

	b.exec(t, `UPDATE billing.runs SET opened_at = opened_at - interval '61 minutes'`)
	registry = prometheus.NewRegistry()
	cfg.ID, cfg.Registry, cfg.Logger = cfg.ID+"-2", registry, slog.New(slog.NewJSONHandler(log, nil))
	stop = start(t, cfg)
	require.Eventually(t, func() bool {
		return findingsShown(t, registry, FindingDouble) == 1 && gauge(t, registry, "chargeonce_reconcile_oldest_seconds") < 600
	}, patience, 10*time.Millisecond)
	stop()
	require.Equal(t, 1, log.count(`"level":"ERROR","msg":"run reconciled: Stripe's books and the intents differ`))
	require.Equal(t, 1, log.count(`"findings":{"double_charge":1}`))
	require.Equal(t, 1, b.listed("charges"), "once, not with every look")
	last, err := b.runs(t).LastReconciliation(t.Context(), usdRun())
	require.NoError(t, err)
	require.Equal(t, "schedule", last.Actor)

	require.True(t, b.stripe.Refund(double.ChargeID), "a person mends it, and compares by hand")
	b.reconcile(t)
	registry = prometheus.NewRegistry()
	cfg.ID, cfg.Registry = cfg.ID+"-3", registry
	c, err := New(cfg)
	require.NoError(t, err)
	require.NoError(t, c.observe(t.Context()))
	require.Zero(t, findingsShown(t, registry, FindingDouble))
}

// A job that River keeps for a quarter of an hour would keep every charger from the comparison for so long.
func TestM25StopIsNoFailureOfTheScheduledComparison(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	b.open(t, "100.00", "usd")
	tx, err := b.owner.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `LOCK TABLE billing.reconciliations`)
	require.NoError(t, err)
	state := func() (state string) {
		err := b.owner.QueryRow(t.Context(), `SELECT state FROM river.river_job WHERE queue = 'reconcile'`).Scan(&state)
		require.True(t, err == nil || errors.Is(err, pgx.ErrNoRows), err)
		return state
	}
	stop := start(t, b.config(t))
	require.Eventually(t, func() bool { return state() == "running" }, patience, 10*time.Millisecond)
	stop()
	require.Equal(t, "available", state())
	require.NoError(t, tx.Rollback(t.Context()))
}

// findingsShown reads the metric of what the last comparisons found, -1 while it is not there.
func findingsShown(t *testing.T, registry *prometheus.Registry, kind string) float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == "chargeonce_reconcile_findings" && m.GetLabel()[0].GetValue() == kind {
				return m.GetGauge().GetValue()
			}
		}
	}
	return -1
}
