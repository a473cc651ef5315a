package vaultkeytest_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v76"
	"github.com/stripe/stripe-go/v76/client"
	"go.uber.org/goleak"

	"chargeonce/charger/stripecharge/stripetest"
	"chargeonce/charger/vaultkey/vaultkeytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	patience  = 10 * time.Second
	adminKey  = "kb_admin_1"
	stripeKey = "sk_test_the_real_one_01"
)

// bench is a proxy in front of a Stripe stand-in that takes the real key only.
type bench struct {
	proxy  *vaultkeytest.Server
	stripe *stripetest.Server
}

func setup(t *testing.T, cfg vaultkeytest.Config) *bench {
	t.Helper()
	behind, err := stripetest.Start(stripetest.Config{AutoCustomers: true, Keys: []string{stripeKey}})
	require.NoError(t, err)
	t.Cleanup(behind.Close)
	cfg.AdminKeys, cfg.UpstreamURL, cfg.StripeKey = []string{adminKey}, behind.URL, stripeKey
	proxy, err := vaultkeytest.Start(cfg)
	require.NoError(t, err)
	t.Cleanup(proxy.Close)
	return &bench{proxy: proxy, stripe: behind}
}

// issue asks for a vault key; the caps are in dollars as the proxy's users write them.
func (b *bench) issue(t *testing.T, body string) (secret string, key vaultkeytest.Key) {
	t.Helper()
	status := b.vault(t, "POST", "/vault/keys", body, adminKey, &key)
	require.Equal(t, http.StatusCreated, status)
	return key.VaultKey, key
}

func (b *bench) vault(t *testing.T, method, path, body, key string, into any) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, b.proxy.URL+path, strings.NewReader(body))
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+key)
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

// api is the real client with a vault key; what it last got from the wire is in last.
func (b *bench) api(t *testing.T, key string) (*client.API, *wire) {
	t.Helper()
	transport := &wire{to: &http.Transport{DisableKeepAlives: true}}
	backend := stripe.GetBackendWithConfig(stripe.APIBackend, &stripe.BackendConfig{
		URL: new(b.proxy.URL + "/stripe"), MaxNetworkRetries: stripe.Int64(0), EnableTelemetry: new(false),
		LeveledLogger: &stripe.LeveledLogger{Level: stripe.LevelNull}, HTTPClient: &http.Client{Transport: transport, Timeout: patience},
	})
	return client.New(key, &stripe.Backends{API: backend, Connect: backend, Uploads: backend}), transport
}

type wire struct {
	to   http.RoundTripper
	last atomic.Pointer[got]
}

type got struct {
	status int
	header http.Header
	body   string
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := w.to.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	w.last.Store(&got{response.StatusCode, response.Header, string(raw)})
	_ = response.Body.Close()
	response.Body = io.NopCloser(bytes.NewReader(raw))
	return response, nil
}

func charge(key string, amount int64) *stripe.ChargeParams {
	p := &stripe.ChargeParams{Amount: &amount, Currency: new("usd"), Customer: new("cus_1")}
	p.SetIdempotencyKey(key)
	p.AddMetadata("intent_key", key)
	return p
}

func intent(key, customer string, amount int64) *stripe.PaymentIntentParams {
	p := &stripe.PaymentIntentParams{
		Amount: &amount, Currency: new("usd"), Customer: &customer, PaymentMethod: new("pm_card_1"), Confirm: new(true), OffSession: new(true),
	}
	p.SetIdempotencyKey(key)
	p.AddMetadata("intent_key", key)
	return p
}

const hundredDollars = `{"vendor":"stripe","label":"run","cap":100.00}`

func TestCallsReachStripeWithTheRealKeyAndTheIdempotencyKeyUntouched(t *testing.T) {
	t.Parallel()
	b := setup(t, vaultkeytest.Config{})
	secret, key := b.issue(t, hundredDollars)
	api, _ := b.api(t, secret)
	made, err := api.Charges.New(charge("key-1", 2500))
	require.NoError(t, err)
	require.Equal(t, int64(2500), made.Amount)
	require.True(t, strings.HasPrefix(made.LastResponse.RequestID, "req_"))
	require.Equal(t, "key-1", b.stripe.Charges()[0].IdempotencyKey)
	require.Equal(t, "/v1/charges", b.stripe.Requests()[0].Path)
	require.NotContains(t, b.stripe.Requests()[0].Header.Get("Authorization"), "vk_")
	require.Equal(t, int64(2500), b.proxy.Keys()[0].SpentCents)

	account, err := api.Accounts.Get()
	require.NoError(t, err)
	require.Equal(t, "acct_standin", account.ID)
	var log struct{ Audit []vaultkeytest.Audit }
	require.Equal(t, http.StatusOK, b.vault(t, "GET", "/vault/audit?key_id="+key.ID, "", adminKey, &log))
	require.Len(t, log.Audit, 3)
	require.Equal(t, made.LastResponse.RequestID, log.Audit[1].RequestID)
	require.Equal(t, "cus_1", log.Audit[1].Customer)
}

func TestCapHoldsToTheCentUnderManyConcurrentCalls(t *testing.T) {
	t.Parallel()
	b := setup(t, vaultkeytest.Config{})
	secret, _ := b.issue(t, `{"vendor":"stripe","cap":100.01}`)
	api, _ := b.api(t, secret)
	var charged, denied atomic.Int64
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			if _, err := api.PaymentIntents.New(intent(fmt.Sprintf("key-%d", i), "cus_1", 250)); err != nil {
				denied.Add(1)
				return
			}
			charged.Add(1)
		})
	}
	wg.Wait()
	require.Equal(t, int64(40), charged.Load())
	require.Equal(t, int64(60), denied.Load())
	require.Len(t, b.stripe.Charges(), 40)
	_, err := api.Charges.New(charge("last-2", 51))
	require.Error(t, err, "one cent is left")
	k := b.proxy.Keys()[0]
	require.Equal(t, [2]int64{10_000, 0}, [2]int64{k.SpentCents, k.ReservedCents})

	secret, _ = b.issue(t, `{"vendor":"stripe","cap":"10.01"}`)
	api, _ = b.api(t, secret)
	_, err = api.Charges.New(charge("whole", 1001))
	require.NoError(t, err, "a cap is reached exactly")
	_, err = api.Charges.New(charge("over", 50))
	require.Error(t, err)
}

func TestReplaysAreCountedOnceAlsoAtTheCap(t *testing.T) {
	t.Parallel()
	b := setup(t, vaultkeytest.Config{})
	secret, _ := b.issue(t, hundredDollars)
	api, _ := b.api(t, secret)
	first, err := api.Charges.New(charge("key-1", 10_000))
	require.NoError(t, err)
	for range 3 {
		again, err := api.Charges.New(charge("key-1", 10_000))
		require.NoError(t, err, "a replay moves no money and must pass at the cap")
		require.Equal(t, first.ID, again.ID)
	}
	require.Equal(t, int64(10_000), b.proxy.Keys()[0].SpentCents)

	other, _ := b.issue(t, hundredDollars)
	second, _ := b.api(t, other)
	_, err = second.Charges.New(charge("key-1", 10_000))
	require.NoError(t, err)
	require.Equal(t, int64(0), b.proxy.Keys()[1].SpentCents, "the charge counts where it was made")
	require.Len(t, b.stripe.Charges(), 1)
}

func TestChargeMadeWithoutTheProxyIsNotCounted(t *testing.T) {
	t.Parallel()
	b := setup(t, vaultkeytest.Config{})
	backend := stripe.GetBackendWithConfig(stripe.APIBackend, &stripe.BackendConfig{
		URL: new(b.stripe.URL), MaxNetworkRetries: stripe.Int64(0), HTTPClient: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
	})
	direct := client.New(stripeKey, &stripe.Backends{API: backend, Connect: backend, Uploads: backend})
	_, err := direct.Charges.New(charge("key-1", 700))
	require.NoError(t, err)
	secret, _ := b.issue(t, hundredDollars)
	api, _ := b.api(t, secret)
	replay, err := api.Charges.New(charge("key-1", 700))
	require.NoError(t, err)
	require.Equal(t, "true", replay.LastResponse.Header.Get("Idempotent-Replayed"))
	k := b.proxy.Keys()[0]
	require.Equal(t, [2]int64{0, 0}, [2]int64{k.SpentCents, k.ReservedCents})
}

func TestKeyForgottenByStripeIsCountedAgain(t *testing.T) {
	t.Parallel()
	b := setup(t, vaultkeytest.Config{})
	secret, _ := b.issue(t, hundredDollars)
	api, _ := b.api(t, secret)
	_, err := api.Charges.New(charge("key-1", 6000))
	require.NoError(t, err)
	b.stripe.Advance(25 * time.Hour)
	_, err = api.Charges.New(charge("key-1", 6000))
	require.NoError(t, err)
	require.Len(t, b.stripe.Charges(), 2)
	require.Equal(t, int64(12_000), b.proxy.Keys()[0].SpentCents, "money that moved counts, cap or not")
	b.proxy.Advance(25 * time.Hour)
	_, err = api.Charges.New(charge("key-1", 6000))
	require.Error(t, err, "past a day the proxy reserves anew")
}

func TestDeclinesGiveBackAndDoubtDoesNot(t *testing.T) {
	t.Parallel()
	b := setup(t, vaultkeytest.Config{})
	secret, _ := b.issue(t, hundredDollars)
	api, _ := b.api(t, secret)
	_, err := api.PaymentIntents.New(intent("key-1", "cus_decline_do_not_honor", 9000))
	require.Error(t, err)
	require.Equal(t, int64(0), b.proxy.Keys()[0].ReservedCents)

	once := stripetest.Trigger{Count: 1}
	require.NoError(t, b.stripe.AddFaults(
		stripetest.Fault{Do: stripetest.RateLimit, Trigger: once},
		stripetest.Fault{Do: stripetest.CutBody, Trigger: once},
		stripetest.Fault{Do: stripetest.RateLimit, Trigger: once},
		stripetest.Fault{Do: stripetest.KeyInUse, Trigger: once},
	))
	_, err = api.Charges.New(charge("key-2", 9000))
	require.Error(t, err)
	require.Equal(t, int64(0), b.proxy.Keys()[0].ReservedCents, "a 429 on the first send did nothing")
	for _, what := range []string{"cut body", "429", "409"} {
		_, err = api.Charges.New(charge("key-2", 9000))
		require.Error(t, err, what)
		require.Equal(t, int64(9000), b.proxy.Keys()[0].ReservedCents, "after %s the first send is still in doubt", what)
	}
	_, err = api.Charges.New(charge("key-3", 9000))
	require.Error(t, err, "what is in doubt holds the cap")
	made, err := api.Charges.New(charge("key-2", 9000))
	require.NoError(t, err)
	require.Equal(t, "true", made.LastResponse.Header.Get("Idempotent-Replayed"))
	k := b.proxy.Keys()[0]
	require.Equal(t, [2]int64{9000, 0}, [2]int64{k.SpentCents, k.ReservedCents})
	require.Len(t, b.stripe.Charges(), 1)
}

func TestKeyInUseElsewhereKeepsTheReservation(t *testing.T) {
	t.Parallel()
	b := setup(t, vaultkeytest.Config{})
	secret, _ := b.issue(t, hundredDollars)
	api, _ := b.api(t, secret)
	require.NoError(t, b.stripe.AddFaults(stripetest.Fault{Do: stripetest.KeyInUse, Trigger: stripetest.Trigger{Count: 1}}))
	_, err := api.Charges.New(charge("key-1", 9000))
	require.Error(t, err)
	require.Equal(t, int64(9000), b.proxy.Keys()[0].ReservedCents, "another send under this key is under way")
}

func TestNewVaultKeyTakesTheDoubtOver(t *testing.T) {
	t.Parallel()
	b := setup(t, vaultkeytest.Config{})
	secret, old := b.issue(t, hundredDollars)
	api, _ := b.api(t, secret)
	require.NoError(t, b.stripe.AddFaults(stripetest.Fault{Do: stripetest.CloseBeforeEffect, Trigger: stripetest.Trigger{Count: 1}}))
	_, err := api.Charges.New(charge("key-1", 9000))
	require.Error(t, err)
	require.Equal(t, http.StatusOK, b.vault(t, "DELETE", "/vault/keys/"+old.ID, "", adminKey, nil))
	secret, _ = b.issue(t, hundredDollars)
	api, _ = b.api(t, secret)
	_, err = api.Charges.New(charge("key-1", 9000))
	require.NoError(t, err)
	keys := b.proxy.Keys()
	require.Equal(t, "revoked", keys[0].Status)
	require.Equal(t, [2]int64{0, 0}, [2]int64{keys[0].SpentCents, keys[0].ReservedCents})
	require.Equal(t, int64(9000), keys[1].SpentCents)
}

func TestReadsAndCancelsPassAtTheCap(t *testing.T) {
	t.Parallel()
	b := setup(t, vaultkeytest.Config{})
	secret, _ := b.issue(t, hundredDollars)
	api, _ := b.api(t, secret)
	pending, err := api.PaymentIntents.New(intent("key-1", "cus_processing", 10_000))
	require.NoError(t, err)
	_, err = api.PaymentIntents.New(intent("key-2", "cus_1", 50))
	require.Error(t, err)
	it := api.PaymentIntents.List(&stripe.PaymentIntentListParams{Customer: new("cus_processing")})
	require.True(t, it.Next())
	require.NoError(t, it.Err())
	_, err = api.PaymentIntents.Get(pending.ID, nil)
	require.NoError(t, err)
	_, err = api.PaymentIntents.Cancel(pending.ID, nil)
	require.NoError(t, err)
	require.Equal(t, int64(0), b.proxy.Keys()[0].SpentCents, "a cancelled payment gives its money back to the cap")
	_, err = api.PaymentIntents.New(intent("key-2", "cus_1", 50))
	require.NoError(t, err)
}

func TestDailyCapBeginsAnewAtMidnight(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 8, 31, 12, 0, 0, 0, time.UTC)
	b := setup(t, vaultkeytest.Config{Now: func() time.Time { return noon }})
	secret, _ := b.issue(t, `{"vendor":"stripe","daily_usd_cap":10}`)
	api, _ := b.api(t, secret)
	_, err := api.Charges.New(charge("key-1", 1000))
	require.NoError(t, err)
	_, err = api.Charges.New(charge("key-2", 1000))
	require.Error(t, err)
	b.proxy.Advance(12 * time.Hour)
	_, err = api.Charges.New(charge("key-2", 1000))
	require.NoError(t, err)
	require.Len(t, b.stripe.Charges(), 2)
}

func TestExpiredRevokedUnknownAndUnlistedAreDenied(t *testing.T) {
	t.Parallel()
	b := setup(t, vaultkeytest.Config{Denial: vaultkeytest.Flat})
	expires := time.Now().Add(6 * time.Hour).UTC().Format(time.RFC3339)
	secret, _ := b.issue(t, `{"vendor":"stripe","cap":100,"allowed_endpoints":["/v1/charges","payment_intents.create"],"expires_at":"`+expires+`"}`)
	api, wire := b.api(t, secret)
	_, err := api.PaymentIntents.New(intent("key-1", "cus_1", 500))
	require.NoError(t, err)
	_, err = api.Charges.Get(b.stripe.Charges()[0].ID, nil)
	require.NoError(t, err)
	_, err = api.Accounts.Get()
	require.Error(t, err)
	require.Equal(t, http.StatusForbidden, wire.last.Load().status)
	_, err = api.PaymentIntents.Cancel("pi_1", nil)
	require.Error(t, err)
	require.Equal(t, http.StatusForbidden, wire.last.Load().status)

	b.proxy.Advance(7 * time.Hour)
	_, err = api.Charges.New(charge("key-2", 500))
	require.Error(t, err)
	require.Equal(t, http.StatusUnauthorized, wire.last.Load().status)
	require.Contains(t, wire.last.Load().body, "expired")
	require.Equal(t, "expired", b.proxy.Keys()[0].Status)

	secret, key := b.issue(t, hundredDollars)
	require.Equal(t, http.StatusOK, b.vault(t, "POST", "/vault/keys/"+key.ID+"/revoke", "", adminKey, nil))
	for _, bad := range []string{secret, "vk_live_none"} {
		api, wire = b.api(t, bad)
		_, err = api.Charges.New(charge("key-3", 500))
		require.Error(t, err)
		require.Equal(t, http.StatusUnauthorized, wire.last.Load().status)
	}
	require.Len(t, b.stripe.Charges(), 1)
}

func TestEveryStyleOfDenial(t *testing.T) {
	t.Parallel()
	for style, want := range map[vaultkeytest.Style]struct {
		status   int
		body     string
		readable bool // stripe-go makes a *stripe.Error of it
	}{
		vaultkeytest.Object402: {402, `"type":"spend_cap_exceeded"`, true},
		vaultkeytest.Flat:      {429, `"error":"spend cap`, false},
		vaultkeytest.Flat402:   {402, `"error":"spend cap`, false},
		vaultkeytest.Flat429:   {429, `"error":"spend cap`, false},
		vaultkeytest.Flat403:   {403, `"error":"spend cap`, false},
		vaultkeytest.Flat401:   {401, `"error":"spend cap`, false},
		vaultkeytest.Empty:     {402, "", false},
		vaultkeytest.HTML:      {402, "<html>", false},
	} {
		t.Run(string(style), func(t *testing.T) {
			t.Parallel()
			b := setup(t, vaultkeytest.Config{Denial: style, MarkerHeader: "X-Spend-Cap-Decision"})
			secret, _ := b.issue(t, hundredDollars)
			api, wire := b.api(t, secret)
			_, err := api.Charges.New(charge("key-1", 10_001))
			require.Error(t, err)
			last := wire.last.Load()
			require.Equal(t, want.status, last.status)
			require.Contains(t, last.body, want.body)
			require.Equal(t, want.body == "", last.body == "")
			require.Empty(t, last.header.Get("Request-Id"))
			require.Equal(t, "denied", last.header.Get("X-Spend-Cap-Decision"))
			var e *stripe.Error
			if want.readable {
				require.ErrorAs(t, err, &e)
				require.Equal(t, "spend_cap_exceeded", string(e.Type))
			} else {
				require.NotErrorAs(t, err, &e)
			}
			require.Empty(t, b.stripe.Requests())
		})
	}
}
