package stripetest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v76"

	"chargeonce/charger/stripecharge/stripetest"
)

// seen is what a fault looks like through stripe-go, and what the account then holds.
type seen struct {
	fault    stripetest.Fault
	status   int    // of a *stripe.Error; 0 when the error is none
	kind     string // type of the *stripe.Error
	code     string
	text     string // in an error that is no *stripe.Error
	noError  bool
	effects  int  // charges right after the struck call
	retryOK  bool // the next call under the same key succeeds
	replayed bool // and is a replay
	inAll    int  // charges after the retry
}

func faultTable() map[string]seen {
	once := stripetest.Trigger{Count: 1}
	f := func(do stripetest.Action) stripetest.Fault { return stripetest.Fault{Do: do, Trigger: once} }
	with := func(do stripetest.Action) stripetest.Fault {
		return stripetest.Fault{Do: do, Trigger: once, Effect: true}
	}
	limited := f(stripetest.RateLimit)
	limited.Reason = "global-rate"
	late := f(stripetest.APIErrorLate)
	late.After = stripetest.Duration(time.Hour)
	alter := f(stripetest.Alter)
	alter.Set = map[string]any{"currency": "eur"}
	answer := f(stripetest.Answer)
	answer.Status, answer.Body = http.StatusTeapot, "short and stout"
	flat429 := f(stripetest.FlatDenial)
	flat429.Status = http.StatusTooManyRequests
	skew := f(stripetest.DateSkew)
	skew.Skew = stripetest.Duration(10 * time.Minute)
	return map[string]seen{
		"latency":                 {fault: f(stripetest.Latency), noError: true, effects: 1, retryOK: true, replayed: true, inAll: 1},
		"close before effect":     {fault: f(stripetest.CloseBeforeEffect), text: "EOF", retryOK: true, inAll: 1},
		"close after effect":      {fault: f(stripetest.CloseAfterEffect), text: "EOF", effects: 1, retryOK: true, replayed: true, inAll: 1},
		"reset before effect":     {fault: f(stripetest.ResetBeforeEffect), text: "connection reset", retryOK: true, inAll: 1},
		"reset after effect":      {fault: f(stripetest.ResetAfterEffect), text: "connection reset", effects: 1, retryOK: true, replayed: true, inAll: 1},
		"cut body":                {fault: f(stripetest.CutBody), text: "unexpected EOF", effects: 1, retryOK: true, replayed: true, inAll: 1},
		"rate limit":              {fault: limited, status: 429, kind: "invalid_request_error", code: "rate_limit", retryOK: true, inAll: 1},
		"lock timeout":            {fault: f(stripetest.LockTimeout), status: 429, kind: "invalid_request_error", code: "lock_timeout", retryOK: true, inAll: 1},
		"key in use":              {fault: f(stripetest.KeyInUse), status: 409, kind: "invalid_request_error", code: "idempotency_key_in_use", retryOK: true, inAll: 1},
		"500 without effect":      {fault: f(stripetest.APIError), status: 500, kind: "api_error"},
		"500 with effect":         {fault: with(stripetest.APIError), status: 500, kind: "api_error", effects: 1, inAll: 1},
		"500 with a late effect":  {fault: late, status: 500, kind: "api_error"},
		"502 HTML":                {fault: f(stripetest.BadGateway), text: "status: 502", retryOK: true, inAll: 1},
		"503 after effect":        {fault: with(stripetest.Unavailable), text: "status: 503", effects: 1, retryOK: true, replayed: true, inAll: 1},
		"504 after effect":        {fault: with(stripetest.GatewayTimeout), text: "status: 504", effects: 1, retryOK: true, replayed: true, inAll: 1},
		"200 {} without effect":   {fault: f(stripetest.EmptyObject), noError: true, retryOK: true, inAll: 1},
		"200 {} after effect":     {fault: with(stripetest.EmptyObject), noError: true, effects: 1, retryOK: true, replayed: true, inAll: 1},
		"wrong object":            {fault: f(stripetest.WrongObject), noError: true, effects: 1, retryOK: true, replayed: true, inAll: 1},
		"wrong amount":            {fault: f(stripetest.WrongAmount), noError: true, effects: 1, retryOK: true, replayed: true, inAll: 1},
		"wrong currency":          {fault: alter, noError: true, effects: 1, retryOK: true, replayed: true, inAll: 1},
		"401":                     {fault: f(stripetest.Unauthorized), status: 401, kind: "invalid_request_error", retryOK: true, inAll: 1},
		"403":                     {fault: f(stripetest.Forbidden), status: 403, kind: "invalid_request_error", code: "more_permissions_required", retryOK: true, inAll: 1},
		"402 flat":                {fault: f(stripetest.FlatDenial), text: "response status: 402", retryOK: true, inAll: 1},
		"429 flat":                {fault: flat429, text: "response status: 429", retryOK: true, inAll: 1},
		"any answer":              {fault: answer, text: "418", retryOK: true, inAll: 1},
		"date skew":               {fault: skew, noError: true, effects: 1, retryOK: true, replayed: true, inAll: 1},
		"redirect without effect": {fault: f(stripetest.Redirect), text: "invalid character", retryOK: true, inAll: 1},
	}
}

func TestEveryFaultThroughTheRealClient(t *testing.T) {
	t.Parallel()
	for name, c := range faultTable() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, auto())
			faults(t, b, c.fault)
			made, err := b.api.Charges.New(chargeParams("key-1", "cus_1", 1999))
			var e *stripe.Error
			switch {
			case c.noError:
				require.NoError(t, err)
			case c.status != 0:
				require.ErrorAs(t, err, &e)
				require.Equal(t, c.status, e.HTTPStatusCode)
				require.Equal(t, c.kind, string(e.Type))
				require.Equal(t, c.code, string(e.Code))
				require.True(t, strings.HasPrefix(e.RequestID, "req_"))
				require.Equal(t, c.fault.Reason, e.LastResponse.Header.Get("Stripe-Rate-Limited-Reason"))
			default:
				require.Error(t, err)
				require.NotErrorAs(t, err, &e, "stripe-go cannot read an intermediary's answer")
				require.ErrorContains(t, err, c.text)
			}
			require.Len(t, b.Charges(), c.effects)
			if c.fault.Do == stripetest.WrongAmount {
				require.Equal(t, int64(2000), made.Amount)
			}

			again, err := b.api.Charges.New(chargeParams("key-1", "cus_1", 1999))
			if c.retryOK {
				require.NoError(t, err)
				require.Equal(t, int64(1999), again.Amount)
				require.Equal(t, c.replayed, again.LastResponse.Header.Get("Idempotent-Replayed") == "true")
			} else {
				require.Equal(t, c.status, stripeError(t, err).HTTPStatusCode, "a kept answer is replayed")
			}
			require.Len(t, b.Charges(), c.inAll)
			require.Empty(t, b.DoubleCharges())
			require.Equal(t, c.fault.Do, b.Requests()[0].Fault)
		})
	}
}

func TestLateEffectOfA500AppearsWithoutAnyRequest(t *testing.T) {
	t.Parallel()
	b := setup(t, auto())
	faults(t, b, stripetest.Fault{Do: stripetest.APIErrorLate, After: stripetest.Duration(30 * time.Hour), Trigger: stripetest.Trigger{Count: 1}})
	_, err := b.api.PaymentIntents.New(intentParams("key-1", "cus_1", "pm_1", 1999))
	require.Equal(t, stripe.ErrorTypeAPI, stripeError(t, err).Type)
	b.Advance(29 * time.Hour)
	require.Empty(t, b.Ledger())
	b.Advance(2 * time.Hour)
	require.Len(t, b.Charges(), 1)
	it := b.api.PaymentIntents.List(&stripe.PaymentIntentListParams{Customer: new("cus_1")})
	require.True(t, it.Next())
	require.Equal(t, "key-1", it.PaymentIntent().Metadata["intent_key"])
	require.False(t, it.Next())
	require.NoError(t, it.Err())
}

func TestClientThatLeavesBeforeTheEffectChargesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, auto())
	faults(t, b, stripetest.Fault{Do: stripetest.HoldBeforeEffect, Trigger: stripetest.Trigger{Count: 1}})
	leaveWhenHeld(t, b, "key-1")
	require.Eventually(t, func() bool { return b.Stats().InFlight == 0 }, patience, time.Millisecond)
	require.Empty(t, b.Ledger())
	require.True(t, b.Requests()[0].Closed)
	made, err := b.api.Charges.New(chargeParams("key-1", "cus_1", 1999))
	require.NoError(t, err)
	require.Empty(t, made.LastResponse.Header.Get("Idempotent-Replayed"))
}

func TestClientThatLeavesAfterTheEffectFindsItsCharge(t *testing.T) {
	t.Parallel()
	told := make(chan stripetest.Call, 10)
	cfg := auto()
	cfg.AfterEffect = func(c stripetest.Call) { told <- c }
	b := setup(t, cfg)
	faults(t, b, stripetest.Fault{Do: stripetest.HoldAfterEffect, Match: stripetest.Match{IntentKey: "key-1"}, Trigger: stripetest.Trigger{Count: 1}})
	leaveWhenHeld(t, b, "key-1")
	require.Len(t, b.Charges(), 1)
	call := <-told
	require.Equal(t, b.Charges()[0].ID, call.ObjectID)
	require.Equal(t, "key-1", call.IntentKey)
	made, err := b.api.Charges.New(chargeParams("key-1", "cus_1", 1999))
	require.NoError(t, err)
	require.Equal(t, call.ObjectID, made.ID)
	require.True(t, (<-told).Replayed)
}

// leaveWhenHeld sends a charge, waits until the stand-in holds it and takes the client away.
func leaveWhenHeld(t *testing.T, b *bench, key string) {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	p := chargeParams(key, "cus_1", 1999)
	p.Context = ctx
	var running sync.WaitGroup
	running.Go(func() { _, _ = b.api.Charges.New(p) })
	waiting, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := b.WaitHeld(waiting, 1)
	require.NoError(t, err)
	leave()
	running.Wait()
}

func TestRedirectBecomesAFalseSuccessForAClientThatFollows(t *testing.T) {
	t.Parallel()
	b := setup(t, auto())
	faults(t, b, stripetest.Fault{Do: stripetest.Redirect, Match: stripetest.Match{Method: "POST"}, Trigger: stripetest.Trigger{Count: 1}})
	transport := &http.Transport{DisableKeepAlives: true}
	t.Cleanup(transport.CloseIdleConnections)
	backend := stripe.GetBackendWithConfig(stripe.APIBackend, &stripe.BackendConfig{
		URL: new(b.URL), MaxNetworkRetries: stripe.Int64(0), HTTPClient: &http.Client{Transport: transport},
		LeveledLogger: &stripe.LeveledLogger{Level: stripe.LevelNull},
	})
	var made stripe.Charge
	err := backend.Call(http.MethodPost, "/v1/charges", "sk_test_1", chargeParams("key-1", "cus_1", 1999), &made)
	require.NoError(t, err, "the list that the GET returned was taken for a charge")
	require.Empty(t, made.ID)
	require.Empty(t, b.Charges())
}

func TestSecondPageOfAListFails(t *testing.T) {
	t.Parallel()
	b := setup(t, auto())
	for _, key := range []string{"a", "b", "c"} {
		_, err := b.api.Charges.New(chargeParams(key, "cus_1", 999))
		require.NoError(t, err)
	}
	faults(t, b, stripetest.Fault{Do: stripetest.ListPageFails})
	params := &stripe.ChargeListParams{Customer: new("cus_1")}
	params.Limit = stripe.Int64(2)
	it := b.api.Charges.List(params)
	n := 0
	for it.Next() {
		n++
	}
	require.Equal(t, 2, n)
	require.Equal(t, http.StatusInternalServerError, stripeError(t, it.Err()).HTTPStatusCode)
}

func TestDateHeaderStaysOnRealTimeUnlessSkewed(t *testing.T) {
	t.Parallel()
	b := setup(t, auto())
	b.Advance(48 * time.Hour)
	faults(t, b, stripetest.Fault{Do: stripetest.DateSkew, Skew: stripetest.Duration(-10 * time.Minute), Trigger: stripetest.Trigger{Nth: 2}})
	for i, want := range []time.Duration{0, -10 * time.Minute} {
		made, err := b.api.Charges.New(chargeParams("key-1", "cus_1", 999))
		require.NoError(t, err)
		date, err := http.ParseTime(made.LastResponse.Header.Get("Date"))
		require.NoError(t, err)
		require.WithinDuration(t, time.Now().Add(want), date, time.Minute, "call %d", i+1)
	}
}

func TestFaultSetsHeadersOfItsAnswer(t *testing.T) {
	t.Parallel()
	b := setup(t, auto())
	faults(t, b, stripetest.Fault{
		Do: stripetest.APIError, ShouldRetry: new(false), Header: map[string]string{"X-Marker": "m"}, Trigger: stripetest.Trigger{Count: 1},
	})
	_, err := b.api.Charges.New(chargeParams("key-1", "cus_1", 1999))
	header := stripeError(t, err).LastResponse.Header
	require.Equal(t, "false", header.Get("Stripe-Should-Retry"))
	require.Equal(t, "m", header.Get("X-Marker"))
	_, err = b.api.Charges.New(chargeParams("key-1", "cus_1", 1999))
	header = stripeError(t, err).LastResponse.Header
	require.Empty(t, header.Get("Stripe-Should-Retry"))
	require.Equal(t, "true", header.Get("Idempotent-Replayed"), "a 500 is kept too")
}

func TestTriggersPickTheirCalls(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		trigger stripetest.Trigger
		want    []int
	}{
		{stripetest.Trigger{}, []int{1, 2, 3, 4, 5, 6, 7}},
		{stripetest.Trigger{Nth: 3}, []int{3, 4, 5, 6, 7}},
		{stripetest.Trigger{Nth: 3, Count: 1}, []int{3}},
		{stripetest.Trigger{Every: 3}, []int{1, 4, 7}},
		{stripetest.Trigger{Nth: 3, Every: 3}, []int{3, 6}},
		{stripetest.Trigger{Nth: 2, Every: 2, Count: 2}, []int{2, 4}},
	} {
		var got []int
		for i := range 7 {
			if c.trigger.Strikes(i+1, len(got)) {
				got = append(got, i+1)
			}
		}
		require.Equal(t, c.want, got, "%+v", c.trigger)
	}
}

func TestReusedConnectionThatDiesIsSentTwiceByNetHTTP(t *testing.T) {
	t.Parallel()
	b := setup(t, auto())
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	post := func() error {
		body := "amount=999&currency=usd&customer=cus_1"
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.URL+"/v1/charges", strings.NewReader(body))
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer sk_test_1")
		r.Header.Set("Idempotency-Key", "key-1")
		response, err := transport.RoundTrip(r)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, response.Body)
		return errors.Join(err, response.Body.Close())
	}
	require.NoError(t, post())
	faults(t, b, stripetest.Fault{Do: stripetest.CloseBeforeEffect, Trigger: stripetest.Trigger{Count: 1}})
	require.NoError(t, post())
	require.Len(t, b.Requests(), 3, "two calls of ours, three on the wire")
	require.Len(t, b.Charges(), 1)
}

func TestControlPagesDriveAStandIn(t *testing.T) {
	t.Parallel()
	b := setup(t, auto())
	require.Equal(t, http.StatusBadRequest, control(t, b, "POST", "/faults", `[{"do":"nonsense"}]`, nil))
	require.Equal(t, http.StatusBadRequest, control(t, b, "POST", "/faults", `[{"do":"latency","nht":3}]`, nil))
	require.Equal(t, http.StatusOK, control(t, b, "POST", "/faults",
		`[{"do":"hold_after_effect","match":{"method":"POST","path":"/v1/charges"},"nth":1,"count":1},{"do":"latency","delay":"1ms"}]`, nil))
	require.Equal(t, http.StatusOK, control(t, b, "POST", "/customers", `{"id":"cus_9","default_source":"card_9"}`, nil))
	var running sync.WaitGroup
	var made *stripe.Charge
	var chargeErr error
	running.Go(func() { made, chargeErr = b.api.Charges.New(chargeParams("key-1", "cus_9", 1999)) })
	var held struct{ Held []stripetest.Held }
	require.Equal(t, http.StatusOK, control(t, b, "GET", "/held?wait=10s", "", &held))
	require.Equal(t, "after effect", held.Held[0].Where)
	require.Equal(t, http.StatusRequestTimeout, control(t, b, "GET", "/held?wait=1ms&n=2", "", nil))
	require.Equal(t, http.StatusOK, control(t, b, "POST", "/release", `{"request_ids":["`+held.Held[0].RequestID+`"]}`, nil))
	running.Wait()
	require.NoError(t, chargeErr)

	before := b.Now()
	require.Equal(t, http.StatusOK, control(t, b, "POST", "/clock", `{"advance":"25h"}`, nil))
	require.WithinDuration(t, before.Add(25*time.Hour), b.Now(), time.Minute)
	double, err := b.api.Charges.New(chargeParams("key-1", "cus_9", 1999))
	require.NoError(t, err)
	var ledger struct {
		Effects       []stripetest.Effect
		Counts        map[string]int
		Charged       map[string]int64
		DoubleCharges map[string][]stripetest.Effect `json:"double_charges"`
	}
	require.Equal(t, http.StatusOK, control(t, b, "GET", "/ledger", "", &ledger))
	require.Equal(t, []string{made.ID, double.ID}, []string{ledger.Effects[0].ID, ledger.Effects[1].ID})
	require.Equal(t, 2, ledger.Counts["charge_succeeded"])
	require.Equal(t, int64(3998), ledger.Charged["usd"])
	require.Len(t, ledger.DoubleCharges["key-1"], 2)
	var log struct {
		Requests []stripetest.Request
		Stats    stripetest.Stats
	}
	require.Equal(t, http.StatusOK, control(t, b, "GET", "/requests", "", &log))
	require.Len(t, log.Requests, 2)
	require.Equal(t, int64(2), log.Stats.Requests)
	require.Equal(t, 1, log.Stats.HighWater)
	require.Equal(t, http.StatusOK, control(t, b, "POST", "/account", `{"id":"acct_other","livemode":true}`, nil))
	account, err := b.api.Accounts.Get()
	require.NoError(t, err)
	require.Equal(t, "acct_other", account.ID)
	require.Equal(t, http.StatusOK, control(t, b, "DELETE", "/faults", "", nil))
	require.Empty(t, b.Faults())
}

func control(t *testing.T, b *bench, method, path, body string, into any) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, b.URL+"/_standin"+path, strings.NewReader(body))
	require.NoError(t, err)
	transport := &http.Transport{DisableKeepAlives: true}
	response, err := transport.RoundTrip(r)
	require.NoError(t, err)
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	if into != nil {
		require.NoError(t, json.NewDecoder(bytes.NewReader(raw)).Decode(into), "%s", raw)
	}
	return response.StatusCode
}

func TestRequestLogIsBounded(t *testing.T) {
	t.Parallel()
	cfg := auto()
	cfg.RequestLog = 3
	b := setup(t, cfg)
	for _, key := range []string{"a", "b", "c", "d", "e"} {
		_, err := b.api.Charges.New(chargeParams(key, "cus_1", 999))
		require.NoError(t, err)
	}
	var keys []string
	for _, r := range b.Requests() {
		keys = append(keys, r.IdempotencyKey)
	}
	require.Equal(t, []string{"c", "d", "e"}, keys)
	require.Equal(t, int64(5), b.Stats().Requests)
	require.Len(t, b.Charges(), 5)
}

func TestTheFaultTableNamesEveryAction(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	var named []stripetest.Action
	for line := range strings.Lines(string(doc)) {
		fields := strings.Fields(strings.TrimPrefix(line, "//"))
		if strings.HasPrefix(line, "//\t") && len(fields) > 1 && slices.Contains(stripetest.Actions(), stripetest.Action(fields[0])) {
			named = append(named, stripetest.Action(fields[0]))
		}
	}
	require.Equal(t, stripetest.Actions(), named)
}
