package stripecharge

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"chargeonce/charger/stripecharge/stripetest"
)

// TestDecision has one test for each row that a create can come to, through each API, on a real
// connection: what was answered, how it is classified and how often the server was called for it.
func TestDecision(t *testing.T) {
	t.Parallel()
	for _, row := range decisionCases() {
		for _, api := range bothAPIs() {
			if row.only != "" && row.only != api {
				continue
			}
			t.Run(string(row.class)+"/"+row.name+"/"+string(api), func(t *testing.T) {
				t.Parallel()
				answer, calls := row.run(t, api)
				require.Equal(t, row.class, answer.Class, "%+v", answer)
				require.Equal(t, row.result, answer.Result())
				require.Equal(t, RowOf(row.class).Money != MoneyNot, answer.CouldHaveCharged())
				require.Equal(t, row.calls, calls, "calls that the server saw")
				if row.also != nil {
					row.also(t, api, answer)
				}
				if answer.Err != nil {
					require.NotContains(t, answer.Err.Error(), testKey)
				}
			})
		}
	}
}

type decisionCase struct {
	class  Class
	name   string
	only   API // empty: both
	result string
	calls  int64
	run    func(t *testing.T, api API) (Answer, int64)
	also   func(t *testing.T, api API, a Answer)
}

func decisionCases() []decisionCase {
	cases := append(objectCases(), declineCases()...)
	cases = append(cases, refusalCases()...)
	return append(cases, silenceCases()...)
}

func objectCases() []decisionCase {
	return []decisionCase{
		{
			class: ClassSucceeded, name: "first_send", result: "charged", calls: 1, run: onStandIn("cus_1"),
			also: func(t *testing.T, api API, a Answer) {
				t.Helper()
				require.Equal(t, api.kind(), a.Object.Kind)
				require.Regexp(t, "^ch_", a.Object.ChargeID)
				require.Equal(t, api == APIPaymentIntents, a.Object.PaymentIntentID != "")
				require.Regexp(t, "^req_", a.RequestID)
				require.WithinDuration(t, time.Now(), a.Date, 5*time.Second)
				require.True(t, a.Sent)
				require.NoError(t, a.Err)
			},
		},
		{class: ClassProcessing, name: "pending_at_the_bank", result: "processing", calls: 1, run: onStandIn("cus_1_processing")},
		{class: ClassMismatch, name: "charge_whose_payer_must_act", only: APICharges, result: "mismatch", calls: 1, run: altered("status", StatusRequiresAction)},
		{class: ClassMismatch, name: "charge_cancelled", only: APICharges, result: "mismatch", calls: 1, run: altered("status", StatusCanceled)},
		{class: ClassRequiresAction, name: "payer_must_act", only: APIPaymentIntents, result: "requires_action", calls: 1, run: altered("status", StatusRequiresAction)},
		{class: ClassFailedObject, name: "charge_failed", result: "declined", calls: 1, run: altered("status", StatusFailed)},
		{class: ClassMismatch, name: "empty_object", result: "mismatch", calls: 1, run: onStandIn("cus_1", stripetest.Fault{Do: stripetest.EmptyObject})},
		{class: ClassMismatch, name: "another_amount", result: "mismatch", calls: 1, run: onStandIn("cus_1", stripetest.Fault{Do: stripetest.WrongAmount})},
		{class: ClassMismatch, name: "another_object", result: "mismatch", calls: 1, run: onStandIn("cus_1", stripetest.Fault{Do: stripetest.WrongObject})},
		{class: ClassMismatch, name: "another_currency", result: "mismatch", calls: 1, run: altered("currency", "eur")},
		{class: ClassMismatch, name: "another_customer", result: "mismatch", calls: 1, run: altered("customer", "cus_2")},
		{class: ClassMismatch, name: "no_customer", result: "mismatch", calls: 1, run: altered("customer", nil)},
		{class: ClassMismatch, name: "livemode", result: "mismatch", calls: 1, run: altered("livemode", true)},
		{class: ClassMismatch, name: "metadata_dropped", result: "mismatch", calls: 1, run: altered("metadata", map[string]any{})},
		{class: ClassMismatch, name: "other_generation", result: "mismatch", calls: 1, run: altered("metadata", map[string]any{
			MetadataIntentKey: "0123456789abcdef0123456789abcdef", MetadataKeyGeneration: "2",
		})},
		{class: ClassMismatch, name: "id_of_another_kind", result: "mismatch", calls: 1, run: altered("id", "re_1")},
		{class: ClassMismatch, name: "right_terms_of_another_kind", result: "mismatch", calls: 1, run: anotherKind},
		{class: ClassMismatch, name: "not_captured", result: "mismatch", calls: 1, run: notCaptured},
		{class: ClassMismatch, name: "unknown_status", result: "mismatch", calls: 1, run: altered("status", "requires_capture")},
		{class: ClassMismatch, name: "list_instead_of_object", result: "mismatch", calls: 1, run: answered(200, "req_1", `{"object":"list","data":[],"has_more":false}`)},
		{class: ClassMismatch, name: "null", result: "mismatch", calls: 1, run: answered(200, "req_1", `null`)},
		{class: ClassUnparsable, name: "cut_body", result: "unknown", calls: 1, run: onStandIn("cus_1", stripetest.Fault{Do: stripetest.CutBody})},
		{class: ClassUnparsable, name: "html", result: "unknown", calls: 1, run: answered(200, "", `<html>welcome</html>`)},
		{class: ClassUnparsable, name: "no_body", result: "unknown", calls: 1, run: answered(204, "", ``)},
		{class: ClassUnparsable, name: "too_large", result: "unknown", calls: 1, run: answered(200, "req_1", `{"id":"`+strings.Repeat("x", maxAnswerBytes)+`"}`)},
	}
}

func declineCases() []decisionCase {
	kind := func(want DeclineKind) func(*testing.T, API, Answer) {
		return func(t *testing.T, api API, a Answer) {
			t.Helper()
			require.Equal(t, want, a.DeclineKind(), "%+v", a)
			require.NotNil(t, a.Object, "what was declined can be read and cancelled")
			require.Equal(t, api.kind(), a.Object.Kind)
			require.Error(t, a.Err)
		}
	}
	cardError := func(fields string) string { return `{"error":{"type":"card_error","message":"no",` + fields + `}}` }
	return []decisionCase{
		{class: ClassDeclined, name: "soft", result: "declined", calls: 1, run: onStandIn("cus_1_decline_insufficient_funds"), also: kind(DeclineSoft)},
		{class: ClassDeclined, name: "hard", result: "declined", calls: 1, run: onStandIn("cus_1_decline_lost_card"), also: kind(DeclineHard)},
		{class: ClassDeclined, name: "card_data", result: "declined", calls: 1, run: onStandIn("cus_1_decline_expired_card"), also: kind(DeclineCardData)},
		{class: ClassDeclined, name: "authentication", result: "declined", calls: 1, run: onStandIn("cus_1_sca"), also: kind(DeclineAuthentication)},
		{
			class: ClassDeclined, name: "no_card", result: "declined", calls: 1,
			run: answered(402, "req_1", cardError(`"code":"missing","param":"card"`)),
			also: func(t *testing.T, _ API, a Answer) {
				t.Helper()
				require.Equal(t, DeclineNoCard, a.DeclineKind())
				require.Equal(t, "card", a.Param)
			},
		},
		{
			class: ClassDeclined, name: "advice", result: "declined", calls: 1,
			run: answered(402, "req_1", cardError(`"code":"card_declined","decline_code":"do_not_honor","advice_code":"do_not_try_again"`)),
			also: func(t *testing.T, _ API, a Answer) {
				t.Helper()
				require.Equal(t, "do_not_try_again", a.AdviceCode)
				require.Equal(t, DeclineHard, a.DeclineKind())
			},
		},
		{class: ClassDuplicate, name: "issuer_saw_it_before", result: "unknown", calls: 1, run: onStandIn("cus_1_decline_duplicate_transaction")},
		{
			class: ClassMismatch, name: "declined_yet_succeeded", result: "mismatch", calls: 1,
			run: answered(402, "req_1", cardError(`"code":"card_declined","payment_intent":{"id":"pi_1","object":"payment_intent","status":"succeeded"}`)),
		},
		{
			class: ClassMismatch, name: "decline_of_another_intent", result: "mismatch", calls: 1,
			run: answered(402, "req_1", cardError(`"code":"card_declined","payment_intent":{"id":"pi_1","object":"payment_intent","status":"requires_payment_method"}`)),
		},
		{class: ClassDenied, name: "card_error_without_request_id", result: "denied", calls: 1, run: answered(402, "", cardError(`"code":"card_declined"`))},
		{class: ClassDenied, name: "card_error_marked_by_the_proxy", result: "denied", calls: 1, run: marked(402, cardError(`"code":"card_declined"`))},
		{class: ClassUnreadableError, name: "stripes_decline_replaced_on_the_way", result: "unknown", calls: 1, run: answered(402, "req_1", `payment required`)},
		{class: ClassUnreadableError, name: "decline_cut_short", result: "unknown", calls: 1, run: cutShort(402)},
	}
}

func refusalCases() []decisionCase {
	ask := func(fields string) string {
		return `{"error":{"type":"invalid_request_error","message":"no",` + fields + `}}`
	}
	return []decisionCase{
		{
			class: ClassInvalidRequest, name: "no_such_customer", result: "invalid", calls: 1, run: onStandIn("cus_1_missing"),
			also: func(t *testing.T, _ API, a Answer) {
				t.Helper()
				require.Equal(t, "resource_missing", a.ErrorCode)
				require.Equal(t, "customer", a.Param)
			},
		},
		{class: ClassUnreadableError, name: "not_found_by_an_intermediary", result: "unknown", calls: 1, run: answered(404, "", `<html>nothing here</html>`)},
		{class: ClassUnreadableError, name: "bad_request_without_request_id", result: "unknown", calls: 1, run: answered(400, "", ask(`"param":"amount"`))},
		{class: ClassIdempotencyError, name: "other_parameters", result: "idempotency_error", calls: 2, run: otherParameters},
		{class: ClassUnauthorized, name: "401", result: "unauthorized", calls: 1, run: onStandIn("cus_1", stripetest.Fault{Do: stripetest.Unauthorized})},
		{class: ClassUnauthorized, name: "403", result: "unauthorized", calls: 1, run: onStandIn("cus_1", stripetest.Fault{Do: stripetest.Forbidden})},
		{class: ClassDenied, name: "402_flat", result: "denied", calls: 1, run: onStandIn("cus_1", stripetest.Fault{Do: stripetest.FlatDenial})},
		{class: ClassDenied, name: "429_flat", result: "denied", calls: 1, run: answered(429, "", `{"error":"daily cap reached"}`), also: saysCapReached},
		{class: ClassDenied, name: "403_flat", result: "denied", calls: 1, run: answered(403, "", `{"error":"daily cap reached"}`), also: saysCapReached},
		{class: ClassDenied, name: "401_flat", result: "denied", calls: 1, run: answered(401, "", `{"error":"daily cap reached"}`), also: saysCapReached},
		{class: ClassDenied, name: "402_object", result: "denied", calls: 1, run: answered(402, "", `{"error":{"code":"cap","message":"daily cap reached"}}`), also: saysCapReached},
		{class: ClassDenied, name: "402_empty", result: "denied", calls: 1, run: answered(402, "", ``)},
		{class: ClassDenied, name: "429_marked_by_the_proxy", result: "denied", calls: 1, run: marked(429, ask(`"code":"rate_limit"`))},
		{class: ClassKeyInUse, name: "409", result: "key_in_use", calls: 1, run: onStandIn("cus_1", stripetest.Fault{Do: stripetest.KeyInUse})},
		{class: ClassUnreadableError, name: "409_of_an_intermediary", result: "unknown", calls: 1, run: answered(409, "", `conflict`)},
		{
			class: ClassRateLimited, name: "429", result: "rate_limited", calls: 1,
			run: onStandIn("cus_1", stripetest.Fault{Do: stripetest.RateLimit, Reason: "global-rate"}),
			also: func(t *testing.T, _ API, a Answer) {
				t.Helper()
				require.Equal(t, "global-rate", a.RateLimit)
			},
		},
		{class: ClassRateLimited, name: "429_without_request_id", result: "rate_limited", calls: 1, run: answered(429, "", ask(`"code":"rate_limit"`))},
		{class: ClassLockTimeout, name: "429", result: "rate_limited", calls: 1, run: onStandIn("cus_1", stripetest.Fault{Do: stripetest.LockTimeout})},
		{class: ClassFailedDependency, name: "424", result: "unknown", calls: 1, run: answered(424, "req_1", ask(`"code":"x"`))},
		{class: ClassServerError, name: "500", result: "server_error", calls: 1, run: onStandIn("cus_1", stripetest.Fault{Do: stripetest.APIError})},
		{class: ClassServerError, name: "500_and_retry_advised", result: "server_error", calls: 1, run: onStandIn("cus_1", stripetest.Fault{Do: stripetest.APIError, ShouldRetry: new(true)})},
		{class: ClassBadGateway, name: "500_without_request_id", result: "unknown", calls: 1, run: answered(500, "", `{"error":{"type":"api_error","message":"no"}}`)},
		{class: ClassBadGateway, name: "502", result: "unknown", calls: 1, run: onStandIn("cus_1", stripetest.Fault{Do: stripetest.BadGateway, Effect: true})},
		{class: ClassBadGateway, name: "503", result: "unknown", calls: 1, run: onStandIn("cus_1", stripetest.Fault{Do: stripetest.Unavailable})},
		{class: ClassBadGateway, name: "504", result: "unknown", calls: 1, run: onStandIn("cus_1", stripetest.Fault{Do: stripetest.GatewayTimeout})},
		{class: ClassRedirect, name: "302", result: "unknown", calls: 1, run: onStandIn("cus_1", stripetest.Fault{Do: stripetest.Redirect})},
		{class: ClassRedirect, name: "308", result: "unknown", calls: 1, run: onStandIn("cus_1", stripetest.Fault{Do: stripetest.Redirect, Status: 308})},
		{class: ClassRedirect, name: "300_with_a_stripe_error", result: "unknown", calls: 1, run: answered(300, "req_1", ask(`"code":"x"`))},
	}
}

func silenceCases() []decisionCase {
	notSent := func(t *testing.T, _ API, a Answer) {
		t.Helper()
		require.False(t, a.Sent)
		require.Error(t, a.Err)
	}
	sent := func(t *testing.T, _ API, a Answer) {
		t.Helper()
		require.True(t, a.Sent)
		require.Error(t, a.Err)
	}
	return []decisionCase{
		{class: ClassNotSent, name: "refused", result: "not_sent", calls: 0, run: refusedConnection, also: notSent},
		{class: ClassNotSent, name: "certificate", result: "not_sent", calls: 0, run: untrustedCertificate, also: notSent},
		{class: ClassNotSent, name: "cancelled_before", result: "not_sent", calls: 0, run: cancelledBefore, also: notSent},
		{class: ClassNotSent, name: "too_late", result: "not_sent", calls: 0, run: tooLate, also: notSent},
		{class: ClassTimeout, name: "hang_after_effect", result: "unknown", calls: 1, run: hang, also: sent},
		{class: ClassTimeout, name: "cancelled_while_waiting", result: "unknown", calls: 1, run: cancelledWhileWaiting, also: sent},
		{class: ClassConnectionLost, name: "closed_before_head", result: "unknown", calls: 1, run: onStandIn("cus_1", stripetest.Fault{Do: stripetest.CloseAfterEffect}), also: sent},
		{class: ClassConnectionLost, name: "reset_before_head", result: "unknown", calls: 1, run: onStandIn("cus_1", stripetest.Fault{Do: stripetest.ResetAfterEffect}), also: sent},
		{class: ClassLocalError, name: "key_too_long", result: "invalid", calls: 0, run: keyTooLong, also: notSent},
	}
}

func onStandIn(customer string, faults ...stripetest.Fault) func(*testing.T, API) (Answer, int64) {
	return func(t *testing.T, api API) (Answer, int64) {
		t.Helper()
		s := startStandIn(t)
		s.fault(t, faults...)
		answer := s.client.Create(t.Context(), testRequest(t, api, customer), soon())
		return answer, s.Stats().Requests
	}
}

func altered(field string, value any) func(*testing.T, API) (Answer, int64) {
	return onStandIn("cus_1", stripetest.Fault{Do: stripetest.Alter, Set: map[string]any{field: value}})
}

// anotherKind answers a create by an object of the other API that is right in everything else.
func anotherKind(t *testing.T, api API) (Answer, int64) {
	t.Helper()
	fields := `"id":"pi_1","object":"payment_intent","amount_received":12345,"latest_charge":"ch_1"`
	if api == APIPaymentIntents {
		fields = `"id":"ch_1","object":"charge","captured":true`
	}
	return answered(200, "req_1", `{`+fields+`,"status":"succeeded","amount":12345,"currency":"usd","customer":"cus_1","livemode":false,"metadata":{`+
		`"intent_key":"0123456789abcdef0123456789abcdef","key_generation":"1"}}`)(t, api)
}

// notCaptured is a success whose money was only authorised, or whose charge is missing.
func notCaptured(t *testing.T, api API) (Answer, int64) {
	t.Helper()
	if api == APICharges {
		return altered("captured", false)(t, api)
	}
	answer, _ := altered("amount_received", 1)(t, api)
	require.Equal(t, ClassMismatch, answer.Class)
	return altered("latest_charge", nil)(t, api)
}

func answered(status int, requestID, body string) func(*testing.T, API) (Answer, int64) {
	return withHandler(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if requestID != "" {
			w.Header().Set("Request-Id", requestID)
		}
		w.WriteHeader(status)
		if status != http.StatusNoContent {
			_, _ = io.WriteString(w, body)
		}
	})
}

func marked(status int, body string) func(*testing.T, API) (Answer, int64) {
	return withHandler(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Request-Id", "req_1")
		w.Header().Set(capMarker, "denied")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	})
}

func cutShort(status int) func(*testing.T, API) (Answer, int64) {
	return withHandler(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Request-Id", "req_1")
		w.Header().Set("Content-Length", "1000")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, `{"error":{"type":"card_error"`)
	})
}

func withHandler(handler http.HandlerFunc) func(*testing.T, API) (Answer, int64) {
	return func(t *testing.T, api API) (Answer, int64) {
		t.Helper()
		url, calls := countedServer(t, handler)
		client := newTestClient(t, Config{URL: url, Key: testKey})
		answer := client.Create(t.Context(), testRequest(t, api, "cus_1"), soon())
		return answer, calls.Load()
	}
}

func saysCapReached(t *testing.T, _ API, a Answer) {
	t.Helper()
	require.Equal(t, "daily cap reached", a.Message)
}

func otherParameters(t *testing.T, api API) (Answer, int64) {
	t.Helper()
	s := startStandIn(t)
	first := s.client.Create(t.Context(), testRequest(t, api, "cus_1"), soon())
	require.Equal(t, ClassSucceeded, first.Class)
	params := testParams(api, "cus_1")
	params.Description = "another text"
	changed, err := NewRequest(params)
	require.NoError(t, err)
	return s.client.Create(t.Context(), changed, soon()), s.Stats().Requests
}

func refusedConnection(t *testing.T, api API) (Answer, int64) {
	t.Helper()
	var listen net.ListenConfig
	listener, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := listener.Addr().String()
	require.NoError(t, listener.Close())
	client := newTestClient(t, Config{URL: "http://" + address, Key: testKey})
	return client.Create(t.Context(), testRequest(t, api, "cus_1"), soon()), 0
}

func untrustedCertificate(t *testing.T, api API) (Answer, int64) {
	t.Helper()
	calls := int64(0)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { calls++ }))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // it tells of each failed handshake
	server.StartTLS()
	defer server.Close()
	client := newTestClient(t, Config{URL: server.URL, Key: testKey})
	return client.Create(t.Context(), testRequest(t, api, "cus_1"), soon()), calls
}

func cancelledBefore(t *testing.T, api API) (Answer, int64) {
	t.Helper()
	s := startStandIn(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return s.client.Create(ctx, testRequest(t, api, "cus_1"), soon()), s.Stats().Requests
}

func tooLate(t *testing.T, api API) (Answer, int64) {
	t.Helper()
	s := startStandIn(t)
	return s.client.Create(t.Context(), testRequest(t, api, "cus_1"), time.Now().Add(-time.Millisecond)), s.Stats().Requests
}

func hang(t *testing.T, api API) (Answer, int64) {
	t.Helper()
	s := startStandIn(t)
	s.fault(t, stripetest.Fault{Do: stripetest.HoldAfterEffect})
	client := newTestClient(t, Config{URL: s.URL, Key: testKey, Timeout: 200 * time.Millisecond})
	answer := client.Create(t.Context(), testRequest(t, api, "cus_1"), soon())
	require.Len(t, s.Charges(), 1, "the money moved although no answer came")
	return answer, s.Stats().Requests
}

func cancelledWhileWaiting(t *testing.T, api API) (Answer, int64) {
	t.Helper()
	s := startStandIn(t)
	s.fault(t, stripetest.Fault{Do: stripetest.HoldAfterEffect})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	answers := make(chan Answer, 1)
	request := testRequest(t, api, "cus_1")
	go func() { answers <- s.client.Create(ctx, request, soon()) }()
	_, err := s.WaitHeld(t.Context(), 1)
	require.NoError(t, err)
	cancel()
	return <-answers, s.Stats().Requests
}

func keyTooLong(t *testing.T, api API) (Answer, int64) {
	t.Helper()
	s := startStandIn(t)
	request := testRequest(t, api, "cus_1")
	request.IdempotencyKey = strings.Repeat("k", maxIdempotencyKey+1)
	return s.client.Create(t.Context(), request, soon()), s.Stats().Requests
}

func TestRowsAreCompleteAndCloseToTheDatabase(t *testing.T) {
	t.Parallel()
	migration, err := os.ReadFile("../../sql/migrations/00001_billing.sql")
	require.NoError(t, err)
	_, known, found := strings.Cut(string(migration), "charge_attempts_result_known CHECK (result IN (")
	require.True(t, found)
	known, _, _ = strings.Cut(known, ")")
	source, err := os.ReadFile("decision.go")
	require.NoError(t, err)
	declared := regexp.MustCompile(`(?m)^\tClass\w+ +Class = "(\w+)"`).FindAllStringSubmatch(string(source), -1)
	require.Len(t, Rows(), len(declared), "every class has a row and every row a class")
	seen := map[Class]bool{}
	for _, row := range Rows() {
		require.False(t, seen[row.Class], "%s stands twice", row.Class)
		seen[row.Class] = true
		require.NotEmpty(t, row.Shows)
		require.NotEmpty(t, row.Next)
		for _, result := range []string{row.Result, row.Read, row.Cancel, row.LookUp} {
			require.Contains(t, known, fmt.Sprintf("'%s'", result), "%s", row.Class)
		}
	}
	for _, class := range declared {
		require.True(t, seen[Class(class[1])], "%s has no row", class[1])
	}
}

// The rows that may end an earlier doubt, and no others: everything else is said before or beside the key.
func TestM07OnlyWhatIsFoundResolvesDoubt(t *testing.T) {
	t.Parallel()
	var resolving []Class
	for _, row := range Rows() {
		if row.Resolves {
			resolving = append(resolving, row.Class)
		}
		if row.Money == MoneyMoved {
			require.Equal(t, ClassSucceeded, row.Class, "one class alone proves that money moved")
		}
	}
	require.ElementsMatch(t, []Class{
		ClassSucceeded, ClassProcessing, ClassRequiresAction, ClassFailedObject, ClassDeclined, ClassCanceled,
	}, resolving)
}

func TestUnknownAnswersCouldHaveCharged(t *testing.T) {
	t.Parallel()
	require.True(t, Answer{}.CouldHaveCharged())
	require.True(t, Answer{Class: "some_later_class"}.CouldHaveCharged())
	require.Equal(t, ClassConnectionLost, Decide(Answer{}, Request{}), "nothing known is not nothing sent")
}
