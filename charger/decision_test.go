package charger

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"chargeonce/charger/stripecharge"
	"chargeonce/charger/stripecharge/stripetest"
	"chargeonce/schema"
)

// answerCase is one answer of the decision table: how the stand-in is brought to give it, and what it must come to.
type answerCase struct {
	class    stripecharge.Class
	name     string
	only     stripecharge.API // empty: both
	customer string           // scripts the customer's card, by the text of its id
	fault    stripetest.Fault // strikes the create in question
	earlier  stripetest.Action
	rig      func(t *testing.T, s *stepper, nth int, cfg *Config)

	first after // the intent's first create is answered so
	retry after // the same, while the effect of an earlier create is unknown
}

// after is what an answer leaves behind.
type after struct {
	stands  string   // status/reason of the intent
	calls   []string // the attempts and their results, as far as one run of the job takes them
	creates int      // POSTs that Stripe saw
	says    string   // what the job's error tells of the next step; empty: the job is done, or snoozes
	run     string   // the run's reason to be paused; empty: it is open
	ends    string   // where the intent comes to rest; empty: where it stands
	charges int      // that the ledger then has
}

// TestDecisionOnFirstSend takes every answer that a first create can get through the worker, the database and the stand-in.
func TestDecisionOnFirstSend(t *testing.T) {
	t.Parallel()
	everyAnswer(t, func(t *testing.T, b *bundle, cfg Config, c answerCase) {
		t.Helper()
		s := b.stepper(t, cfg, namespaceOf("first-", c.class, "-", c.name), customerOf(c))
		if c.rig != nil {
			c.rig(t, s, 1, &cfg)
			s.restart(t, cfg)
		}
		if c.fault.Do != "" {
			s.fault(t, c.fault)
		}
		o := s.work(t)
		s.requireAfter(t, c.first, o)
		requireRow(t, c, s.now(t), false)
		s.requireRest(t, c.first)
	})
}

// TestDecisionOnRetryAfterUnknown gives the same answers to a second create, while nobody knows what the first one did: most
// of them say nothing about that, and the charge that the first one made is found in the end.
func TestDecisionOnRetryAfterUnknown(t *testing.T) {
	t.Parallel()
	everyAnswer(t, func(t *testing.T, b *bundle, cfg Config, c answerCase) {
		t.Helper()
		s := b.stepper(t, cfg, namespaceOf("retry-", c.class, "-", c.name), customerOf(c))
		earlier := c.earlier
		if earlier == "" {
			earlier = stripetest.CloseAfterEffect
		}
		s.fault(t, stripetest.Fault{Do: earlier})
		if o := s.work(t); !o.snoozed {
			require.ErrorContains(t, o.err, "in_doubt")
		}
		require.Equal(t, 1, s.now(t).Unresolved)
		if c.rig != nil {
			c.rig(t, s, 2, &cfg)
			s.restart(t, cfg)
		}
		if c.fault.Do != "" {
			s.fault(t, c.fault)
		}
		s.w.way.echoed.Store(true) // the key is known to reach Stripe: no look-up comes before the second create
		s.age(t, 10*time.Second)
		o := s.work(t)
		s.requireAfter(t, c.retry, o)
		requireRow(t, c, s.now(t), true)
		s.requireRest(t, c.retry)
	})
}

// everyAnswer runs all cases through both APIs. They share a database and a stand-in, and each has a run of its own.
func everyAnswer(t *testing.T, run func(*testing.T, *bundle, Config, answerCase)) {
	t.Helper()
	b := setup(t, stripetest.Config{})
	for _, api := range []stripecharge.API{stripecharge.APIPaymentIntents, stripecharge.APICharges} {
		t.Run(string(api), func(t *testing.T) {
			t.Parallel()
			for _, c := range answerCases(api) {
				if c.only != "" && c.only != api {
					continue
				}
				t.Run(string(c.class)+"/"+c.name, func(t *testing.T) {
					t.Parallel()
					cfg := b.config(t)
					cfg.StripeAPI = api
					c.name += "-" + string(api)[:2]
					run(t, b, cfg, c)
				})
			}
		})
	}
}

func customerOf(c answerCase) string {
	return fmt.Sprintf("cus_x%s_%s", strings.NewReplacer("-", "", "_", "").Replace(c.name), c.customer)
}

func (s *stepper) requireAfter(t *testing.T, want after, o outcome) {
	t.Helper()
	in := s.now(t)
	require.Equal(t, want.stands, in.Status+"/"+in.Reason, "%+v", in)
	require.Equal(t, want.calls, in.Results)
	require.Len(t, s.posts(t), want.creates, "creates that Stripe saw")
	if want.says == "" {
		require.NoError(t, o.err)
	} else {
		require.ErrorContains(t, o.err, want.says)
	}
	run := s.runNow(t)
	if want.run == "" {
		require.Equal(t, "open", run.Status, run.StatusDetail)
	} else {
		require.Equal(t, "paused/"+want.run, run.Status+"/"+run.StatusReason)
	}
	switch in.Status {
	case "card_declined":
		require.Nil(t, in.Reserved, "a decline gives its reservation back")
	default:
		require.NotNil(t, in.Reserved)
	}
}

// requireRest works the intent until it rests and holds it against the ledger.
func (s *stepper) requireRest(t *testing.T, want after) {
	t.Helper()
	in := s.now(t)
	if want.ends != "" {
		in = s.toRest(t)
		require.Equal(t, want.ends, in.Status+"/"+in.Reason, "%+v %s", in, deref(in.Detail))
	}
	charges := s.charges(t)
	require.Len(t, charges, want.charges, "%+v", in)
	if in.Status == "charged" {
		s.requireOnce(t)
	}
	require.Equal(t, in.Status == "charged", s.runNow(t).AllocatedCents > 0 && in.ChargeID != nil)
}

// requireRow holds what came of an answer against the table's row.
func requireRow(t *testing.T, c answerCase, in intentNow, doubtBefore bool) {
	t.Helper()
	row := stripecharge.RowOf(c.class)
	if row.Class == stripecharge.ClassLocalError && !doubtBefore {
		require.Empty(t, in.Results, "no attempt was made")
	} else {
		require.Contains(t, in.Results, "create:"+row.Result)
	}
	if doubtBefore && !row.Resolves && in.Status != "charged" && row.Class != stripecharge.ClassDuplicate {
		require.GreaterOrEqual(t, in.Unresolved, 1, "doubt is sticky")
	}
}

// stripeError is an answer of Stripe's own, by its body and its request id.
func stripeError(status int, fields string) stripetest.Fault {
	return stripetest.Fault{
		Do: stripetest.Answer, Status: status, Body: `{"error":{"message":"no",` + fields + `}}`, Header: map[string]string{"Request-Id": "req_scripted"},
	}
}

// proxyAnswer is an answer that is not Stripe's.
func proxyAnswer(status int, body string) stripetest.Fault {
	return stripetest.Fault{Do: stripetest.Answer, Status: status, Body: body}
}

func answerCases(api stripecharge.API) []answerCase {
	cases := append(objectAnswers(api), declineAnswers(api)...)
	cases = append(cases, mismatchAnswers()...)
	cases = append(cases, refusalAnswers()...)
	cases = append(cases, deniedAnswers()...)
	cases = append(cases, unknownAnswers()...)
	return append(cases, silentAnswers()...)
}

const (
	inDoubtNow  = "charging/in_doubt"
	sentAgain   = "in doubt: the same request is sent again"
	lookUpsOnly = "look-ups only"
)

// refusedOnce is what a refusal that says nothing about an earlier create leaves: a first send stands as the table says, and
// comes to a charge in the end; after an unknown the doubt stays, and the earlier create's charge is found.
func refusedOnce(result, stands, run string) (first, retry after) {
	says := sentAgain
	if run != "" {
		says = lookUpsOnly
	}
	first = after{stands: stands, calls: []string{"create:" + result}, creates: 1, run: run, ends: "charged/charged", charges: 1}
	retry = after{stands: inDoubtNow, calls: []string{"create:unknown", "create:" + result}, creates: 2, says: says, run: run, ends: "charged/adopted", charges: 1}
	return first, retry
}

// unknownOnce is what an answer leaves that does not tell what the create did; effect tells whether it charged.
func unknownOnce(ends string) (first, retry after) {
	first = after{stands: inDoubtNow, calls: []string{"create:unknown"}, creates: 1, says: sentAgain, ends: ends, charges: 1}
	retry = after{stands: inDoubtNow, calls: []string{"create:unknown", "create:unknown"}, creates: 2, says: sentAgain, ends: "charged/adopted", charges: 1}
	return first, retry
}

func objectAnswers(api stripecharge.API) []answerCase {
	// What is really there is still processing: the answer alone is what says otherwise.
	open, failed := stripecharge.StatusRequiresAction, stripecharge.StatusRequiresPaymentMethod
	declined := []string{"create:declined", "cancel:canceled"}
	if api == stripecharge.APICharges {
		failed, declined = stripecharge.StatusFailed, []string{"create:declined"}
	}
	alter := func(status string) stripetest.Fault {
		return stripetest.Fault{Do: stripetest.Alter, Set: map[string]any{"status": status}}
	}
	return []answerCase{
		{
			class: stripecharge.ClassSucceeded, name: "charged",
			first: after{stands: "charged/charged", calls: []string{"create:charged"}, creates: 1, charges: 1},
			retry: after{stands: "charged/charged", calls: []string{"create:unknown", "create:charged"}, creates: 2, charges: 1},
		},
		{
			class: stripecharge.ClassSucceeded, name: "charged_by_the_retry", earlier: stripetest.CloseBeforeEffect,
			first: after{stands: "charged/charged", calls: []string{"create:charged"}, creates: 1, charges: 1},
			retry: after{stands: "charged/charged", calls: []string{"create:unknown", "create:charged"}, creates: 2, charges: 1},
		},
		{
			class: stripecharge.ClassProcessing, name: "at_the_bank", customer: "processing",
			first: after{stands: "charging/processing", calls: []string{"create:processing", "read:processing"}, creates: 1, says: "is not done"},
			retry: after{stands: "charging/processing", calls: []string{"create:unknown", "create:processing", "read:processing"}, creates: 2, says: "is not done"},
		},
		{
			class: stripecharge.ClassRequiresAction, name: "payer_must_act", only: stripecharge.APIPaymentIntents, customer: "processing", fault: alter(open),
			earlier: stripetest.CloseBeforeEffect,
			first:   after{stands: "card_declined/authentication_required", calls: []string{"create:requires_action", "cancel:canceled"}, creates: 1},
			retry:   after{stands: "card_declined/authentication_required", calls: []string{"create:unknown", "create:requires_action", "cancel:canceled"}, creates: 2},
		},
		{
			class: stripecharge.ClassRequiresAction, name: "payer_acted_meanwhile", only: stripecharge.APIPaymentIntents, fault: alter(open), earlier: stripetest.CloseBeforeEffect,
			first: after{stands: "charged/adopted", calls: []string{"create:requires_action", "cancel:charged"}, creates: 1, charges: 1},
			retry: after{stands: "charged/adopted", calls: []string{"create:unknown", "create:requires_action", "cancel:charged"}, creates: 2, charges: 1},
		},
		{
			class: stripecharge.ClassFailedObject, name: "failed", customer: "processing", fault: alter(failed), earlier: stripetest.CloseBeforeEffect,
			first: after{stands: "card_declined/card_declined", calls: declined, creates: 1},
			retry: after{stands: "card_declined/card_declined", calls: append([]string{"create:unknown"}, declined...), creates: 2},
		},
		{
			class: stripecharge.ClassCanceled, name: "cancelled", only: stripecharge.APIPaymentIntents, customer: "processing", fault: alter(stripecharge.StatusCanceled),
			earlier: stripetest.CloseBeforeEffect,
			first:   after{stands: "charging/processing", calls: []string{"create:declined", "read:processing"}, creates: 1},
			retry:   after{stands: "charging/processing", calls: []string{"create:unknown", "create:declined", "read:processing"}, creates: 2, says: "is not done"},
		},
	}
}

// mismatchAnswers are a 2xx without the object that was asked for: looked up at once, and the run is paused for a person.
func mismatchAnswers() []answerCase {
	mismatch := func(ends string, charges int, calls ...string) after {
		return after{stands: ends, calls: calls, creates: len(calls) - 1, run: "mismatch", charges: charges}
	}
	return []answerCase{
		{
			class: stripecharge.ClassMismatch, name: "empty_object", fault: stripetest.Fault{Do: stripetest.EmptyObject},
			first: mismatch("parked/mismatch", 0, "create:mismatch", "look_up:absent"),
			retry: mismatch("charged/adopted", 1, "create:unknown", "create:mismatch", "look_up:found"),
		},
		{
			class: stripecharge.ClassMismatch, name: "empty_object_and_charged", fault: stripetest.Fault{Do: stripetest.EmptyObject, Effect: true}, earlier: stripetest.CloseBeforeEffect,
			first: mismatch("charged/adopted", 1, "create:mismatch", "look_up:found"),
			retry: mismatch("charged/adopted", 1, "create:unknown", "create:mismatch", "look_up:found"),
		},
		{
			class: stripecharge.ClassMismatch, name: "another_amount", fault: stripetest.Fault{Do: stripetest.WrongAmount}, earlier: stripetest.CloseBeforeEffect,
			first: mismatch("charged/adopted", 1, "create:mismatch", "look_up:found"),
			retry: mismatch("charged/adopted", 1, "create:unknown", "create:mismatch", "look_up:found"),
		},
		{
			class: stripecharge.ClassMismatch, name: "another_object", fault: stripetest.Fault{Do: stripetest.WrongObject}, earlier: stripetest.CloseBeforeEffect,
			first: mismatch("charged/adopted", 1, "create:mismatch", "look_up:found"),
			retry: mismatch("charged/adopted", 1, "create:unknown", "create:mismatch", "look_up:found"),
		},
	}
}

// declineAnswers are declines under the key. An earlier create under the same key had no other effect than this one, so they
// resolve it; a payment intent that the decline left open is seen cancelled first.
func declineAnswers(api stripecharge.API) []answerCase {
	decline := func(name, customer, reason string) answerCase {
		calls := []string{"create:declined"}
		if api == stripecharge.APIPaymentIntents {
			calls = append(calls, "cancel:canceled")
		}
		return answerCase{
			class: stripecharge.ClassDeclined, name: name, customer: customer, earlier: stripetest.CloseBeforeEffect,
			first: after{stands: "card_declined/" + reason, calls: calls, creates: 1},
			retry: after{stands: "card_declined/" + reason, calls: append([]string{"create:unknown"}, calls...), creates: 2},
		}
	}
	stored := decline("stored_decline", "decline_do_not_honor", "card_declined")
	stored.earlier = stripetest.CloseAfterEffect // Stripe declined, and sends its stored answer again: a snapshot, read by id
	stored.retry.calls = []string{"create:unknown", "create:declined", "read:open", "cancel:canceled"}
	duplicate := answerCase{
		class: stripecharge.ClassDuplicate, name: "bank_saw_it_before", customer: "decline_duplicate_transaction", earlier: stripetest.CloseBeforeEffect,
		first: after{stands: "card_declined/card_declined", calls: []string{"create:unknown", "look_up:absent", "read:open", "cancel:canceled"}, creates: 1},
		retry: after{stands: "card_declined/card_declined", calls: []string{"create:unknown", "create:unknown", "look_up:absent", "read:open", "cancel:canceled"}, creates: 2},
	}
	if api == stripecharge.APICharges {
		stored.retry.calls = []string{"create:unknown", "create:declined", "read:declined"}
		duplicate.first.calls = []string{"create:unknown", "look_up:absent", "read:declined"}
		duplicate.retry.calls = []string{"create:unknown", "create:unknown", "look_up:absent", "read:declined"}
	}
	noCard := answerCase{
		class: stripecharge.ClassDeclined, name: "no_card", earlier: stripetest.CloseBeforeEffect, fault: stripeError(402, `"type":"card_error","code":"missing"`),
		first: after{stands: "card_declined/no_payment_method", calls: []string{"create:declined"}, creates: 1},
		retry: after{stands: "card_declined/no_payment_method", calls: []string{"create:unknown", "create:declined"}, creates: 2},
	}
	return []answerCase{
		decline("soft", "decline_insufficient_funds", "card_declined"),
		decline("hard", "decline_lost_card", "card_declined"),
		decline("card_data", "decline_expired_card", "card_declined"),
		decline("authentication", "sca", "authentication_required"),
		noCard, stored, duplicate,
	}
}

func refusalAnswers() []answerCase {
	invalid := stripeError(http.StatusBadRequest, `"type":"invalid_request_error","code":"amount_too_small","param":"amount"`)
	_, stays := refusedOnce("invalid", "", "")
	limited := func(class stripecharge.Class, name string, f stripetest.Fault) answerCase {
		c := answerCase{class: class, name: name, fault: f}
		c.first, c.retry = refusedOnce("rate_limited", "pending/queued", "")
		return c
	}
	return []answerCase{
		{
			class: stripecharge.ClassInvalidRequest, name: "amount_too_small", fault: invalid,
			first: after{stands: "parked/invalid_request", calls: []string{"create:invalid"}, creates: 1}, retry: stays,
		},
		{
			class: stripecharge.ClassIdempotencyError, name: "other_parameters", fault: stripeError(http.StatusBadRequest, `"type":"idempotency_error"`),
			first: after{stands: "parked/idempotency_error", calls: []string{"create:idempotency_error", "look_up:absent"}, creates: 1},
			retry: after{stands: "charged/adopted", calls: []string{"create:unknown", "create:idempotency_error", "look_up:found"}, creates: 2, charges: 1},
		},
		limited(stripecharge.ClassRateLimited, "global_rate", stripetest.Fault{Do: stripetest.RateLimit, Reason: "global-rate"}),
		limited(stripecharge.ClassLockTimeout, "lock_timeout", stripetest.Fault{Do: stripetest.LockTimeout}),
	}
}

// deniedAnswers are refusals of the key: by Stripe, or by the spend-cap proxy in whatever shape. The run pauses, nobody is
// declined, and a doubt goes on being looked up.
func deniedAnswers() []answerCase {
	denied := func(class stripecharge.Class, name, result string, f stripetest.Fault) answerCase {
		c := answerCase{class: class, name: name, fault: f}
		c.first, c.retry = refusedOnce(result, "pending/run_paused", "vault_denied")
		return c
	}
	flat := `{"error":"daily cap reached"}`
	marked := stripeError(http.StatusPaymentRequired, `"type":"card_error","code":"card_declined"`)
	marked.Header["X-Spend-Cap-Decision"] = "denied"
	return []answerCase{
		denied(stripecharge.ClassUnauthorized, "401_of_stripe", "unauthorized", stripetest.Fault{Do: stripetest.Unauthorized}),
		denied(stripecharge.ClassUnauthorized, "403_of_stripe", "unauthorized", stripetest.Fault{Do: stripetest.Forbidden}),
		denied(stripecharge.ClassDenied, "402_flat", "denied", proxyAnswer(402, flat)),
		denied(stripecharge.ClassDenied, "429_flat", "denied", proxyAnswer(429, flat)),
		denied(stripecharge.ClassDenied, "403_flat", "denied", proxyAnswer(403, flat)),
		denied(stripecharge.ClassDenied, "401_flat", "denied", proxyAnswer(401, flat)),
		denied(stripecharge.ClassDenied, "402_object", "denied", proxyAnswer(402, `{"error":{"code":"spend_cap_exceeded","message":"daily cap reached"}}`)),
		denied(stripecharge.ClassDenied, "402_empty", "denied", proxyAnswer(402, "")),
		denied(stripecharge.ClassDenied, "402_looks_like_a_decline", "denied", marked),
	}
}

func unknownAnswers() []answerCase {
	unknown := func(class stripecharge.Class, name string, f stripetest.Fault) answerCase {
		c := answerCase{class: class, name: name, fault: f}
		c.first, c.retry = unknownOnce("charged/charged")
		return c
	}
	charged := func(c answerCase) answerCase { // it charged, and a look-up finds that
		c.fault.Effect, c.earlier, c.first.ends = true, stripetest.CloseBeforeEffect, "charged/adopted"
		return c
	}
	inUse := unknown(stripecharge.ClassKeyInUse, "another_send_is_on_its_way", stripetest.Fault{Do: stripetest.KeyInUse})
	inUse.first.calls, inUse.retry.calls = []string{"create:key_in_use"}, []string{"create:unknown", "create:key_in_use"}
	cut := charged(unknown(stripecharge.ClassUnparsable, "cut_short", stripetest.Fault{Do: stripetest.CutBody}))
	html := "<html><body>down for maintenance</body></html>"
	serverError := func(name string, effect bool) answerCase {
		c := answerCase{class: stripecharge.ClassServerError, name: name, fault: stripetest.Fault{Do: stripetest.APIError, Effect: effect}}
		c.first = after{stands: inDoubtNow, calls: []string{"create:server_error"}, creates: 1, says: lookUpsOnly}
		c.retry = after{stands: inDoubtNow, calls: []string{"create:unknown", "create:server_error"}, creates: 2, says: lookUpsOnly}
		if effect {
			c.earlier = stripetest.CloseBeforeEffect
			c.first.ends, c.first.charges = "charged/adopted", 1
			c.retry.ends, c.retry.charges = "charged/adopted", 1
		} else { // a real answer would be the stored one of the earlier create
			c.earlier = stripetest.CloseBeforeEffect
		}
		return c
	}
	return []answerCase{
		inUse,
		cut,
		charged(unknown(stripecharge.ClassUnparsable, "html_200", proxyAnswer(200, html))),
		unknown(stripecharge.ClassFailedDependency, "424", stripeError(http.StatusFailedDependency, `"type":"invalid_request_error"`)),
		serverError("500", false),
		serverError("500_and_charged", true),
		unknown(stripecharge.ClassBadGateway, "500_without_request_id", proxyAnswer(500, `{"error":{"type":"api_error","message":"no"}}`)),
		unknown(stripecharge.ClassBadGateway, "502_html", stripetest.Fault{Do: stripetest.BadGateway}),
		charged(unknown(stripecharge.ClassBadGateway, "502_html_and_charged", stripetest.Fault{Do: stripetest.BadGateway})),
		charged(unknown(stripecharge.ClassBadGateway, "503_and_charged", stripetest.Fault{Do: stripetest.Unavailable})),
		charged(unknown(stripecharge.ClassBadGateway, "504_and_charged", stripetest.Fault{Do: stripetest.GatewayTimeout})),
		charged(unknown(stripecharge.ClassRedirect, "302_and_charged", stripetest.Fault{Do: stripetest.Redirect})),
		unknown(stripecharge.ClassRedirect, "308", stripetest.Fault{Do: stripetest.Redirect, Status: http.StatusPermanentRedirect}),
		unknown(stripecharge.ClassUnreadableError, "404_html", proxyAnswer(404, html)),
		unknown(stripecharge.ClassUnreadableError, "409_of_an_intermediary", proxyAnswer(409, "conflict")),
		charged(unknown(stripecharge.ClassUnreadableError, "decline_replaced_on_the_way", stripetest.Fault{
			Do: stripetest.Answer, Status: 402, Body: "payment required", Header: map[string]string{"Request-Id": "req_scripted"},
		})),
	}
}

// silentAnswers are the creates that nobody answered.
func silentAnswers() []answerCase {
	lost := func(name string, do stripetest.Action) answerCase {
		c := answerCase{class: stripecharge.ClassConnectionLost, name: name, fault: stripetest.Fault{Do: do}, earlier: stripetest.CloseBeforeEffect}
		c.first, c.retry = unknownOnce("charged/adopted")
		return c
	}
	timeout := answerCase{
		class: stripecharge.ClassTimeout, name: "hang_after_effect", fault: stripetest.Fault{Do: stripetest.HoldAfterEffect}, earlier: stripetest.CloseBeforeEffect,
		rig: func(_ *testing.T, _ *stepper, _ int, cfg *Config) { cfg.CallTimeout = 4 * time.Second },
	}
	timeout.first, timeout.retry = unknownOnce("charged/adopted")
	unsent := func(name string, rig func(*testing.T, *stepper, int, *Config)) answerCase {
		c := answerCase{class: stripecharge.ClassNotSent, name: name, rig: rig}
		c.first, c.retry = refusedOnce("not_sent", "pending/queued", "")
		c.first.creates, c.retry.creates = 0, 1
		return c
	}
	return []answerCase{
		timeout,
		lost("closed_after_effect", stripetest.CloseAfterEffect),
		lost("reset_after_effect", stripetest.ResetAfterEffect),
		unsent("too_late", holdPastSending),
		unsent("refused", refuseConnection),
		{
			class: stripecharge.ClassLocalError, name: "cannot_be_sent", rig: spoilRequest,
			first: after{stands: "parked/invalid_request", calls: []string{}, creates: 0},
			retry: after{stands: inDoubtNow, calls: []string{"create:unknown", "create:invalid"}, creates: 1, says: sentAgain, charges: 1},
		},
	}
}

// holdPastSending stops the process between claim and send until its right to send has lapsed.
func holdPastSending(t *testing.T, s *stepper, _ int, cfg *Config) {
	t.Helper()
	held := false
	cfg.CallTimeout = 4 * time.Second
	cfg.Hold = func(ctx context.Context, point string, _ int64) {
		switch {
		case point == HoldAfterClaim && !held:
			held = true
			over, cancel := context.WithTimeout(ctx, cfg.CallTimeout/2+100*time.Millisecond) // half a call's time is for sending
			defer cancel()
			<-over.Done()
		case point == HoldAfterFinish:
			// The pause before the next send counts from the claim, and would be over by now.
			s.exec(t, `UPDATE billing.charge_attempts SET started_at = clock_timestamp() WHERE intent_id = $1 AND result = 'not_sent'`, s.id)
		}
	}
}

// refuseConnection takes Stripe's address away between claim and send, once.
func refuseConnection(t *testing.T, s *stepper, _ int, cfg *Config) {
	t.Helper()
	g := startGateway(t, s.stripe.URL)
	cfg.Keys.StripeURL, cfg.Keys.Transport = g.URL, stripecharge.NewTransport()
	refused := false
	cfg.Hold = func(_ context.Context, point string, _ int64) {
		switch {
		case point == HoldAfterClaim && !refused:
			refused = true
			cfg.Keys.Transport.CloseIdleConnections()
			g.refuse()
		case point == HoldAfterCall:
			g.mu.Lock()
			closed := g.refusing
			g.mu.Unlock()
			if closed {
				g.again(t)
			}
		}
	}
}

// spoilRequest makes terms that no request can be made of, or damages the frozen one.
func spoilRequest(t *testing.T, s *stepper, nth int, cfg *Config) {
	t.Helper()
	if nth == 1 {
		cfg.Installation = strings.Repeat("x", 501) // longer than Stripe's metadata take
		return
	}
	tx, err := s.owner.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `SET LOCAL session_replication_role = replica`)
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `UPDATE billing.charge_requests SET body = body || '&amount=1' WHERE intent_id = $1`, s.id)
	require.NoError(t, err)
	require.NoError(t, tx.Commit(t.Context()))
}

// TestDecisionCoversEveryRow: no class that a create can come to is left out above.
func TestDecisionCoversEveryRow(t *testing.T) {
	t.Parallel()
	for _, api := range []stripecharge.API{stripecharge.APIPaymentIntents, stripecharge.APICharges} {
		covered := map[stripecharge.Class]bool{stripecharge.ClassAnswered: true, stripecharge.ClassOpen: true} // no answers to a create
		for _, c := range answerCases(api) {
			covered[c.class] = true
		}
		for _, row := range stripecharge.Rows() {
			require.True(t, covered[row.Class], "%s through %s", row.Class, api)
			require.NotEmpty(t, row.Status(), "%s", row.Class)
			require.True(t, schema.CanMove(schema.StatusCharging, row.Status()) || row.Status() == schema.StatusCharging, "%s", row.Class)
		}
	}
}
