package stripetest_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v76"
	"github.com/stripe/stripe-go/v76/client"
	"go.uber.org/goleak"

	"chargeonce/charger/stripecharge/stripetest"
)

// childURL names the variable that makes the test binary a client which sends one charge; see TestKilledClientsChargeIsFound.
const childURL = "STRIPETEST_CHILD_URL"

func TestMain(m *testing.M) {
	if url := os.Getenv(childURL); url != "" {
		os.Exit(sendOneCharge(url))
	}
	goleak.VerifyTestMain(m)
}

// sendOneCharge is what the child process does: exit code 0 says that it got its answer.
func sendOneCharge(url string) int {
	body := "amount=1999&currency=usd&customer=cus_1&metadata[intent_key]=key-1"
	r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, url+"/v1/charges", strings.NewReader(body)) //nolint:gosec // G704: the parent test sets the address
	if err != nil {
		return 3
	}
	r.Header.Set("Authorization", "Bearer sk_test_child_1")
	r.Header.Set("Idempotency-Key", "key-1")
	response, err := (&http.Transport{}).RoundTrip(r)
	if err != nil {
		return 4
	}
	_ = response.Body.Close()
	return 0
}

func TestKilledClientsChargeIsFound(t *testing.T) {
	t.Parallel()
	b := setup(t, auto())
	require.Equal(t, http.StatusOK, control(t, b, "POST", "/faults", `[{"do":"hold_after_effect","match":{"intent_key":"key-1"},"count":1}]`, nil))
	self, err := os.Executable()
	require.NoError(t, err)
	child := exec.CommandContext(t.Context(), self) //nolint:gosec // G204: this very test binary
	child.Env = append(os.Environ(), childURL+"="+b.URL)
	require.NoError(t, child.Start())
	require.Equal(t, http.StatusOK, control(t, b, "GET", "/held?wait=10s", "", nil))
	require.NoError(t, child.Process.Kill())
	var exit *exec.ExitError
	require.ErrorAs(t, child.Wait(), &exit)
	require.Equal(t, -1, exit.ExitCode(), "killed, not ended")

	require.Len(t, b.Charges(), 1)
	require.Eventually(t, func() bool { return len(b.Held()) == 0 }, patience, time.Millisecond)
	made, err := b.api.Charges.New(chargeParams("key-1", "cus_1", 1999))
	require.NoError(t, err)
	require.Equal(t, b.Charges()[0].ID, made.ID)
	require.Len(t, b.Charges(), 1)
}

const patience = 10 * time.Second

// bench is one stand-in and one real stripe-go client on it, whose every send is one wire request.
type bench struct {
	*stripetest.Server
	api *client.API
}

func setup(t *testing.T, cfg stripetest.Config) *bench {
	t.Helper()
	server, err := stripetest.Start(cfg)
	require.NoError(t, err)
	t.Cleanup(server.Close)
	return &bench{Server: server, api: newClient(t, server.URL, "sk_test_standin_0001")}
}

func newClient(t *testing.T, url, key string) *client.API {
	t.Helper()
	// No kept-alive connections: net/http replays a POST by itself when a reused connection dies.
	transport := &http.Transport{DisableKeepAlives: true}
	t.Cleanup(transport.CloseIdleConnections)
	backend := stripe.GetBackendWithConfig(stripe.APIBackend, &stripe.BackendConfig{
		URL: new(url), MaxNetworkRetries: stripe.Int64(0), EnableTelemetry: new(false),
		LeveledLogger: &stripe.LeveledLogger{Level: stripe.LevelNull},
		HTTPClient: &http.Client{
			Transport: transport, Timeout: patience,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	})
	return client.New(key, &stripe.Backends{API: backend, Connect: backend, Uploads: backend})
}

func chargeParams(key, customer string, amount int64) *stripe.ChargeParams {
	p := &stripe.ChargeParams{Amount: &amount, Currency: new("usd"), Customer: &customer}
	p.SetIdempotencyKey(key)
	p.AddMetadata("intent_key", key)
	return p
}

func intentParams(key, customer, method string, amount int64) *stripe.PaymentIntentParams {
	p := &stripe.PaymentIntentParams{
		Amount: &amount, Currency: new("usd"), Customer: &customer, Confirm: new(true), OffSession: new(true),
		ErrorOnRequiresAction: new(true), PaymentMethodTypes: stripe.StringSlice([]string{"card"}),
	}
	if method != "" {
		p.PaymentMethod = &method
	}
	p.SetIdempotencyKey(key)
	p.AddMetadata("intent_key", key)
	return p
}

func stripeError(t *testing.T, err error) *stripe.Error {
	t.Helper()
	var e *stripe.Error
	require.ErrorAs(t, err, &e)
	return e
}

func faults(t *testing.T, b *bench, script ...stripetest.Fault) {
	t.Helper()
	require.NoError(t, b.AddFaults(script...))
}

func auto() stripetest.Config { return stripetest.Config{AutoCustomers: true} }

func TestRetryUnderTheSameKeyIsReplayedAndChargesOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, auto())
	first, err := b.api.Charges.New(chargeParams("key-1", "cus_1", 1999))
	require.NoError(t, err)
	require.Equal(t, "charge", first.Object)
	require.True(t, first.Paid && first.Captured)
	require.Equal(t, stripe.ChargeStatusSucceeded, first.Status)
	require.Equal(t, int64(1999), first.Amount)
	require.Equal(t, "cus_1", first.Customer.ID)
	require.Equal(t, map[string]string{"intent_key": "key-1"}, first.Metadata)
	require.Empty(t, first.LastResponse.Header.Get("Idempotent-Replayed"))
	require.Equal(t, "key-1", first.LastResponse.Header.Get("Idempotency-Key"))

	second, err := b.api.Charges.New(chargeParams("key-1", "cus_1", 1999))
	require.NoError(t, err)
	require.Equal(t, first.ID, second.ID)
	require.Equal(t, first.LastResponse.RawJSON, second.LastResponse.RawJSON)
	require.Equal(t, "true", second.LastResponse.Header.Get("Idempotent-Replayed"))
	require.Equal(t, first.LastResponse.RequestID, second.LastResponse.Header.Get("Original-Request"))
	require.NotEqual(t, first.LastResponse.RequestID, second.LastResponse.RequestID)

	require.Len(t, b.Ledger(), 1)
	require.Len(t, b.Charges(), 1)
	require.Equal(t, int64(1999), b.Charges()[0].Amount)
	require.Equal(t, "key-1", b.Charges()[0].IdempotencyKey)
	requests := b.Requests()
	require.Len(t, requests, 2)
	require.Equal(t, requests[0].BodySHA256, requests[1].BodySHA256)
	require.True(t, requests[1].Replayed)
	require.Equal(t, "2023-10-16", requests[0].APIVersion)
	require.NotContains(t, requests[0].Header.Get("Authorization"), "standin_")
}

func TestDoubleChargesShowsTwoChargesForOneIntent(t *testing.T) {
	t.Parallel()
	b := setup(t, auto())
	for _, key := range []string{"a", "b", "c"} {
		p := chargeParams(key, "cus_1", 500)
		p.AddMetadata("intent_key", "intent-1")
		if key == "c" {
			p.AddMetadata("intent_key", "intent-2")
		}
		_, err := b.api.Charges.New(p)
		require.NoError(t, err)
	}
	doubles := b.DoubleCharges()
	require.Len(t, doubles, 1)
	require.Len(t, doubles["intent-1"], 2)
}

func TestSameKeyWithOtherParametersOrEndpointIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, auto())
	_, err := b.api.Charges.New(chargeParams("key-1", "cus_1", 1999))
	require.NoError(t, err)

	_, err = b.api.Charges.New(chargeParams("key-1", "cus_1", 2000))
	e := stripeError(t, err)
	require.Equal(t, stripe.ErrorTypeIdempotency, e.Type)
	require.Equal(t, http.StatusBadRequest, e.HTTPStatusCode)
	require.Contains(t, e.Msg, "same parameters")

	_, err = b.api.PaymentIntents.New(intentParams("key-1", "cus_1", "pm_card_1", 1999))
	e = stripeError(t, err)
	require.Equal(t, stripe.ErrorTypeIdempotency, e.Type)
	require.Contains(t, e.Msg, "('/v1/payment_intents' vs '/v1/charges')")
	require.Len(t, b.Ledger(), 1)
}

func TestSecondCallWhileTheFirstRunsIsRefusedAndLaterReplayed(t *testing.T) {
	t.Parallel()
	b := setup(t, auto())
	faults(t, b, stripetest.Fault{Do: stripetest.HoldBeforeEffect, Trigger: stripetest.Trigger{Count: 1}})
	var first *stripe.Charge
	var firstErr error
	var running sync.WaitGroup
	running.Go(func() { first, firstErr = b.api.Charges.New(chargeParams("key-1", "cus_1", 1999)) })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	held, err := b.WaitHeld(ctx, 1)
	require.NoError(t, err)
	require.Equal(t, "key-1", held[0].IntentKey)

	_, err = b.api.Charges.New(chargeParams("key-1", "cus_1", 1999))
	e := stripeError(t, err)
	require.Equal(t, stripe.ErrorCodeIdempotencyKeyInUse, e.Code)
	require.Equal(t, stripe.ErrorTypeInvalidRequest, e.Type)
	require.Equal(t, http.StatusConflict, e.HTTPStatusCode)
	require.Empty(t, b.Ledger())

	require.Equal(t, 1, b.Release())
	running.Wait()
	require.NoError(t, firstErr)
	again, err := b.api.Charges.New(chargeParams("key-1", "cus_1", 1999))
	require.NoError(t, err)
	require.Equal(t, first.ID, again.ID)
	require.Len(t, b.Charges(), 1)
	require.Equal(t, 2, b.Stats().HighWater)
}

func TestSlowEffectHappensAlthoughTheClientLeft(t *testing.T) {
	t.Parallel()
	b := setup(t, auto())
	faults(t, b, stripetest.Fault{Do: stripetest.HoldBeforeEffect, Effect: true, Trigger: stripetest.Trigger{Count: 1}})
	ctx, leave := context.WithCancel(t.Context())
	p := chargeParams("key-1", "cus_1", 700)
	p.Context = ctx
	var running sync.WaitGroup
	var firstErr error
	running.Go(func() { _, firstErr = b.api.Charges.New(p) })
	waiting, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := b.WaitHeld(waiting, 1)
	require.NoError(t, err)
	leave()
	running.Wait()
	require.ErrorIs(t, firstErr, context.Canceled)

	_, err = b.api.Charges.New(chargeParams("key-1", "cus_1", 700))
	require.Equal(t, stripe.ErrorCodeIdempotencyKeyInUse, stripeError(t, err).Code)
	require.Equal(t, 1, b.Release())
	require.Eventually(t, func() bool { return len(b.Charges()) == 1 }, patience, time.Millisecond)
	require.Eventually(t, func() bool {
		c, err := b.api.Charges.New(chargeParams("key-1", "cus_1", 700))
		return err == nil && c.LastResponse.Header.Get("Idempotent-Replayed") == "true"
	}, patience, time.Millisecond)
	require.Len(t, b.Charges(), 1)
}

func TestKeyIsForgottenAfterADayAndChargesAgain(t *testing.T) {
	t.Parallel()
	b := setup(t, auto())
	first, err := b.api.Charges.New(chargeParams("key-1", "cus_1", 1999))
	require.NoError(t, err)
	b.Advance(23*time.Hour + 59*time.Minute)
	replay, err := b.api.Charges.New(chargeParams("key-1", "cus_1", 1999))
	require.NoError(t, err)
	require.Equal(t, first.ID, replay.ID)
	b.Advance(2 * time.Minute)
	double, err := b.api.Charges.New(chargeParams("key-1", "cus_1", 1999))
	require.NoError(t, err)
	require.NotEqual(t, first.ID, double.ID)
	require.Len(t, b.DoubleCharges()["key-1"], 2)
	require.InDelta(t, 24*3600+60, double.Created-first.Created, 30)
}

func TestPruneJitterKeepsSomeKeysLonger(t *testing.T) {
	t.Parallel()
	cfg := auto()
	cfg.PruneJitter = 24 * time.Hour
	b := setup(t, cfg)
	const n = 40
	for i := range n {
		_, err := b.api.Charges.New(chargeParams(fmt.Sprintf("key-%d", i), "cus_1", 100))
		require.NoError(t, err)
	}
	b.Advance(36 * time.Hour)
	replayed := 0
	for i := range n {
		c, err := b.api.Charges.New(chargeParams(fmt.Sprintf("key-%d", i), "cus_1", 100))
		require.NoError(t, err)
		if c.LastResponse.Header.Get("Idempotent-Replayed") == "true" {
			replayed++
		}
	}
	require.Positive(t, replayed)
	require.Less(t, replayed, n)
	require.Len(t, b.Charges(), n+n-replayed)
}

func TestTwoAccountsBehindOneAddressShareNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, auto())
	first, err := b.api.Charges.New(chargeParams("key-1", "cus_1", 1999))
	require.NoError(t, err)
	b.SetAccount("acct_other", true)
	account, err := b.api.Accounts.Get()
	require.NoError(t, err)
	require.Equal(t, "acct_other", account.ID)
	balance, err := b.api.Balance.Get(nil)
	require.NoError(t, err)
	require.True(t, balance.Livemode)
	_, err = b.api.Charges.Get(first.ID, nil)
	require.Equal(t, stripe.ErrorCodeResourceMissing, stripeError(t, err).Code)
	other, err := b.api.Charges.New(chargeParams("key-1", "cus_1", 1999))
	require.NoError(t, err)
	require.NotEqual(t, first.ID, other.ID)
	require.True(t, other.Livemode)
}

func TestManyConcurrentCallsUnderOneKeyChargeOnce(t *testing.T) {
	t.Parallel()
	cfg := auto()
	cfg.Latency = 2 * time.Millisecond
	b := setup(t, cfg)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() { _, _ = b.api.PaymentIntents.New(intentParams("key-1", "cus_1", "pm_card_1", 1999)) })
	}
	wg.Wait()
	require.Len(t, b.Charges(), 1)
	require.Empty(t, b.DoubleCharges())
}
