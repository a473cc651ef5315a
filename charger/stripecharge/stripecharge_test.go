package stripecharge

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"chargeonce/charger/stripecharge/stripetest"
)

func TestM05ReplayedAnswerIsToldAndReadByID(t *testing.T) {
	t.Parallel()
	for _, api := range bothAPIs() {
		t.Run(string(api), func(t *testing.T) {
			t.Parallel()
			s := startStandIn(t)
			request := testRequest(t, api, "cus_1_processing")
			first := s.client.Create(t.Context(), request, soon())
			require.Equal(t, ClassProcessing, first.Class)
			require.False(t, first.Replayed)
			s.Advance(2 * time.Hour)
			again := s.client.Create(t.Context(), request, soon())
			require.Equal(t, ClassProcessing, again.Class, "the snapshot of the first answer")
			require.True(t, again.Replayed)
			read := s.client.Read(t.Context(), again.Object.ID)
			require.Equal(t, ClassSucceeded, Decide(read, request))
			require.Equal(t, "charged", read.Result())
			require.Len(t, s.Charges(), 1)
		})
	}
}

func TestM06DeclinedPaymentIntentIsCancelled(t *testing.T) {
	t.Parallel()
	s := startStandIn(t)
	request := testRequest(t, APIPaymentIntents, "cus_1_decline_do_not_honor")
	declined := s.client.Create(t.Context(), request, soon())
	require.Equal(t, ClassDeclined, declined.Class)
	require.Empty(t, Differences(*declined.Object, request))
	id := declined.Object.ID
	open := s.client.Read(t.Context(), id)
	require.Equal(t, "open", open.Result())
	require.True(t, open.CouldHaveCharged(), "it can still be paid")
	cancelled := s.client.Cancel(t.Context(), id)
	require.Equal(t, ClassCanceled, cancelled.Class, "%v", cancelled.Err)
	require.Equal(t, "canceled", cancelled.Result())
	require.Equal(t, "canceled", s.client.Cancel(t.Context(), id).Result(), "a second cancel sees the first")
	read := s.client.Read(t.Context(), id)
	require.Equal(t, "canceled", read.Result())
	require.True(t, read.Object.Dead())
}

// A payment intent that somebody could still pay, capture or confirm later would be a second way to the same money.
func TestM06PaymentIntentIsPaidAtOnceOrNotAtAll(t *testing.T) {
	t.Parallel()
	form, err := url.ParseQuery(string(testRequest(t, APIPaymentIntents, "cus_1").Body))
	require.NoError(t, err)
	for name, value := range map[string]string{
		"payment_method_types[0]": "card", "capture_method": "automatic", "confirm": "true", "off_session": "true", "error_on_requires_action": "true",
	} {
		require.Equal(t, []string{value}, form[name], name)
	}
	require.NotContains(t, form, "payment_method_types[1]")
	require.NotContains(t, form, "setup_future_usage")
}

func TestM06CancelOfPaidPaymentIntentShowsTheCharge(t *testing.T) {
	t.Parallel()
	s := startStandIn(t)
	request := testRequest(t, APIPaymentIntents, "cus_1")
	made := s.client.Create(t.Context(), request, soon())
	answer := s.client.Cancel(t.Context(), made.Object.ID)
	require.Equal(t, ClassSucceeded, answer.Class, "%v", answer.Err)
	require.Equal(t, "charged", answer.Result())
	require.NoError(t, Validate(*answer.Object, request))
}

func TestCancelFailures(t *testing.T) {
	t.Parallel()
	s := startStandIn(t)
	require.Equal(t, ClassLocalError, s.client.Cancel(t.Context(), "ch_1").Class)
	require.Equal(t, ClassInvalidRequest, s.client.Cancel(t.Context(), "pi_none").Class)
	s.fault(t, stripetest.Fault{Do: stripetest.BadGateway})
	answer := s.client.Cancel(t.Context(), "pi_none")
	require.Equal(t, ClassBadGateway, answer.Class)
	require.Equal(t, "failed", answer.Result())
}

func TestReadOfAnotherObjectIsMismatch(t *testing.T) {
	t.Parallel()
	url, _ := countedServer(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"id":"ch_2","object":"charge","status":"succeeded","captured":true,"amount":1,"currency":"usd"}`)
	})
	client := newTestClient(t, Config{URL: url, Key: testKey})
	require.Equal(t, ClassMismatch, client.Read(t.Context(), "ch_1").Class)
	require.Equal(t, ClassSucceeded, client.Read(t.Context(), "ch_2").Class)
	require.Equal(t, ClassMismatch, Decide(client.Read(t.Context(), "ch_2"), testRequest(t, APICharges, "cus_1")))
	for _, id := range []string{"", "pi_", "cus_1", "ch_1/refunds", "ch_1?x=1", "pi_" + strings.Repeat("x", 300)} {
		require.Equal(t, ClassLocalError, client.Read(t.Context(), id).Class, id)
	}
}

func TestReadFailureIsNoStatus(t *testing.T) {
	t.Parallel()
	s := startStandIn(t)
	require.Equal(t, ClassInvalidRequest, s.client.Read(t.Context(), "pi_none").Class)
	require.Equal(t, "failed", s.client.Read(t.Context(), "ch_none").Result())
}

func TestM11AccountAndCustomer(t *testing.T) {
	t.Parallel()
	s := startStandIn(t)
	account, answer := s.client.Account(t.Context())
	require.Equal(t, ClassAnswered, answer.Class)
	require.Equal(t, "acct_standin", account.ID)
	require.True(t, account.ChargesEnabled)

	s.AddCustomer(stripetest.Customer{ID: "cus_1", DefaultPaymentMethod: "pm_1", DefaultSource: "card_1"})
	customer, answer := s.client.Customer(t.Context(), "cus_1")
	require.Equal(t, ClassAnswered, answer.Class)
	require.Equal(t, CustomerInfo{ID: "cus_1", DefaultPaymentMethod: "pm_1", DefaultSource: "card_1"}, customer)
	require.Equal(t, "pm_1", customer.PaymentMethod(APIPaymentIntents))
	require.Equal(t, "card_1", customer.PaymentMethod(APICharges))
	require.Equal(t, "card_1", CustomerInfo{DefaultSource: "card_1"}.PaymentMethod(APIPaymentIntents))

	s.AddCustomer(stripetest.Customer{ID: "cus_2", Deleted: true})
	customer, _ = s.client.Customer(t.Context(), "cus_2")
	require.True(t, customer.Deleted)

	_, answer = s.client.Customer(t.Context(), "cus_missing")
	require.Equal(t, ClassInvalidRequest, answer.Class)
	require.Equal(t, "resource_missing", answer.ErrorCode)
	_, answer = s.client.Customer(t.Context(), "cus_1/sources")
	require.Equal(t, ClassLocalError, answer.Class)

	s.fault(t, stripetest.Fault{Do: stripetest.FlatDenial, Status: 403})
	account, answer = s.client.Account(t.Context())
	require.Equal(t, ClassDenied, answer.Class)
	require.Zero(t, account)
	require.Equal(t, "failed", answer.Result())
}

func TestM11AnswerThatIsNoAccountIsNone(t *testing.T) {
	t.Parallel()
	url, _ := countedServer(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"object":"list","id":"x"}`) })
	client := newTestClient(t, Config{URL: url, Key: testKey})
	_, answer := client.Account(t.Context())
	require.Equal(t, ClassUnparsable, answer.Class)
	_, answer = client.Customer(t.Context(), "cus_1")
	require.Equal(t, ClassUnparsable, answer.Class)
}

// A proxy that echoes the key, or a body that holds personal data, must not reach a log or the database.
func TestNeitherKeyNorBodyIsShown(t *testing.T) {
	t.Parallel()
	bodies := map[string]string{
		"denial":        `{"error":"key ` + testKey + ` is over its cap"}`,
		"stripes error": `{"error":{"type":"invalid_request_error","message":"Invalid API Key: ` + testKey + `"}}`,
		"broken":        `{"email":"someone@example.com","key":"` + testKey + `"`,
	}
	for name, body := range bodies {
		for _, status := range []int{200, 401, 402, 500} {
			t.Run(fmt.Sprintf("%s %d", name, status), func(t *testing.T) {
				t.Parallel()
				url, _ := countedServer(t, func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Request-Id", "req_1")
					w.WriteHeader(status)
					_, _ = io.WriteString(w, body)
				})
				var logged bytes.Buffer
				logger := slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
				cfg := Config{URL: url, Key: testKey, Logger: logger, Transport: NewTransport()}
				client := newTestClient(t, cfg)
				answer := client.Create(t.Context(), testRequest(t, APICharges, "cus_1"), soon())
				logger.DebugContext(t.Context(), "shown", slog.Any("config", cfg), slog.Any("client", client))
				shown := logged.String() + fmt.Sprintf("%+v %#v %v %+v %#v", answer, answer, answer.Err, client, client) + fmt.Sprintf("%+v %#v", cfg, cfg)
				require.NotContains(t, shown, testKey)
				require.NotContains(t, shown, "someone@example.com")
				require.Contains(t, logged.String(), "called stripe")
			})
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	transport := NewTransport()
	for name, cfg := range map[string]Config{
		"no transport": {Key: testKey}, "no key": {Transport: transport}, "key with line break": {Transport: transport, Key: "vk_1\n"},
		"relative url": {Transport: transport, Key: testKey, URL: "proxy/stripe"}, "user in url": {Transport: transport, Key: testKey, URL: "https://somebody@proxy"},
		"other scheme": {Transport: transport, Key: testKey, URL: "ftp://proxy"}, "timeout": {Transport: transport, Key: testKey, Timeout: time.Hour},
	} {
		_, err := New(cfg)
		require.Error(t, err, name)
		require.NotContains(t, err.Error(), "somebody")
		require.NotContains(t, err.Error(), "vk_1")
	}
}

func TestRequestIsEncodedAlike(t *testing.T) {
	t.Parallel()
	for _, api := range bothAPIs() {
		first := testRequest(t, api, "cus_1")
		for range 100 {
			require.Equal(t, string(first.Body), string(testRequest(t, api, "cus_1").Body))
		}
	}
	require.Equal(t, "amount=12345&capture_method=automatic&confirm=true&currency=usd&customer=cus_1&description=Usage+2026-08+%26+more"+
		"&metadata[billing_period]=2026-08&metadata[customer_id]=acme&metadata[installation]=main"+
		"&metadata[intent_key]=0123456789abcdef0123456789abcdef&metadata[key_generation]=1&metadata[namespace]=usage"+
		"&payment_method=pm_card_visa&payment_method_types[0]=card&error_on_requires_action=true&off_session=true",
		string(testRequest(t, APIPaymentIntents, "cus_1").Body))
	require.Equal(t, "amount=12345&currency=usd&customer=cus_1&description=Usage+2026-08+%26+more"+
		"&metadata[billing_period]=2026-08&metadata[customer_id]=acme&metadata[installation]=main"+
		"&metadata[intent_key]=0123456789abcdef0123456789abcdef&metadata[key_generation]=1&metadata[namespace]=usage",
		string(testRequest(t, APICharges, "cus_1").Body))
	params := testParams(APICharges, "cus_1")
	params.PaymentMethod = "card_1"
	request, err := NewRequest(params)
	require.NoError(t, err)
	require.Contains(t, string(request.Body), "&source=card_1")
}

func TestRequestIsChecked(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*Params){
		"no api": func(p *Params) { p.API = "orders" }, "no customer": func(p *Params) { p.Customer = "acme" },
		"upper-case currency": func(p *Params) { p.Currency = "USD" }, "zero": func(p *Params) { p.AmountCents = 0 },
		"too much": func(p *Params) { p.AmountCents = maxAmountCents + 1 }, "no intent key": func(p *Params) { delete(p.Metadata, MetadataIntentKey) },
		"no generation": func(p *Params) { delete(p.Metadata, MetadataKeyGeneration) }, "no idempotency key": func(p *Params) { p.IdempotencyKey = "" },
		"space in key": func(p *Params) { p.IdempotencyKey = " k" }, "long value": func(p *Params) { p.Metadata["x"] = strings.Repeat("x", 501) },
		"brackets in name": func(p *Params) { p.Metadata["a[b]"] = "x" }, "long description": func(p *Params) { p.Description = strings.Repeat("x", 501) },
	} {
		params := testParams(APIPaymentIntents, "cus_1")
		spoil(&params)
		_, err := NewRequest(params)
		require.Error(t, err, name)
	}
	params := testParams(APIPaymentIntents, "cus_1")
	params.PaymentMethod = ""
	_, err := NewRequest(params)
	require.ErrorIs(t, err, ErrNoPaymentMethod)
	params = testParams(APICharges, "cus_1")
	params.PaymentMethod = "pm_1"
	_, err = NewRequest(params)
	require.ErrorContains(t, err, "payment_intents")
}

// A row whose columns and bytes disagree is a damaged row: nobody can say what it would charge.
func TestStoredRequestThatDisagreesWithItsBytesIsNotSent(t *testing.T) {
	t.Parallel()
	s := startStandIn(t)
	for name, spoil := range map[string]func(*Request){
		"amount": func(r *Request) { r.AmountCents++ }, "currency": func(r *Request) { r.Currency = "eur" }, "customer": func(r *Request) { r.Customer = "cus_2" },
		"path": func(r *Request) { r.Path = "/v1/refunds" }, "version": func(r *Request) { r.APIVersion = "" }, "body": func(r *Request) { r.Body = nil },
		"amount twice": func(r *Request) { r.Body = append(r.Body, "&amount=12345"...) }, "not a form": func(r *Request) { r.Body = append(r.Body, "&amount%"...) },
	} {
		request := testRequest(t, APICharges, "cus_1")
		spoil(&request)
		require.Equal(t, ClassLocalError, s.client.Create(t.Context(), request, soon()).Class, name)
	}
	require.Equal(t, ClassLocalError, s.client.Create(t.Context(), testRequest(t, APICharges, "cus_1"), time.Time{}).Class)
	require.Zero(t, s.Stats().Requests)
}

// Every decline code stands once in the table, whichever of Stripe's fields it comes in, and says what a person should do.
func TestDeclineCodes(t *testing.T) {
	t.Parallel()
	seen := map[string]DeclineKind{}
	for _, row := range declineCodes() {
		for _, code := range row.codes {
			t.Run(code, func(t *testing.T) {
				t.Parallel()
				require.Equal(t, row.kind, KindOfDecline("", code, ""))
				require.Equal(t, row.kind, KindOfDecline(code, "", ""))
				require.Equal(t, row.kind, KindOfDecline("card_declined", code, "try_again_later"))
				require.Equal(t, DeclineHard, KindOfDecline("card_declined", code, "do_not_try_again"), "the advice wins")
				require.NotEmpty(t, CureOfDecline("", code, ""))
				require.Contains(t, CureOfDecline("card_declined", code, "do_not_try_again"), "never with this card")
			})
			require.NotContains(t, seen, code, "stands twice")
			seen[code] = row.kind
		}
	}
	require.Equal(t, DeclineSoft, KindOfDecline("card_declined", "a_new_code", ""))
	require.Equal(t, DeclineHard, KindOfDecline("card_declined", "a_new_code", "do_not_try_again"))
	require.Equal(t, DeclineCardData, KindOfDecline("expired_card", "", ""))
	for code, says := range map[string]string{
		"lost_card": "say no more than that the card was declined", "restricted_card": "must give another one", "insufficient_funds": "another day",
		"expired_card": "must correct the card's data", "missing": "must store a card", "authentication_required": "while present",
		"duplicate_transaction": "another payment of this sum", "a_new_code": "ask the bank",
	} {
		require.Contains(t, CureOfDecline("", code, ""), says, code)
	}
}
