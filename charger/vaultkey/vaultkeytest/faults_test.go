package vaultkeytest_test

import (
	"context"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v76"

	"chargeonce/charger/stripecharge/stripetest"
	"chargeonce/charger/vaultkey/vaultkeytest"
)

func TestDeniedFromTheThirdCallOn(t *testing.T) {
	t.Parallel()
	b := setup(t, vaultkeytest.Config{})
	secret, _ := b.issue(t, hundredDollars)
	api, wire := b.api(t, secret)
	require.NoError(t, b.proxy.AddFaults(vaultkeytest.Fault{
		Do: vaultkeytest.Deny, Style: vaultkeytest.Flat, Reason: "vault_key_expired",
		Match: stripetest.Match{Method: "POST", Path: "/v1/charges"}, Trigger: stripetest.Trigger{Nth: 3},
	}))
	for i, key := range []string{"a", "b", "c", "d"} {
		_, err := api.Charges.New(charge(key, 500))
		require.Equal(t, i < 2, err == nil, key)
	}
	require.Equal(t, http.StatusUnauthorized, wire.last.Load().status)
	require.Len(t, b.stripe.Charges(), 2)
}

func TestAwayProxySendsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, vaultkeytest.Config{})
	secret, _ := b.issue(t, hundredDollars)
	api, _ := b.api(t, secret)
	require.NoError(t, b.proxy.AddFaults(
		vaultkeytest.Fault{Do: vaultkeytest.Away, Trigger: stripetest.Trigger{Count: 1}},
		vaultkeytest.Fault{Do: vaultkeytest.Unavailable, Trigger: stripetest.Trigger{Count: 1}},
	))
	_, err := api.Charges.New(charge("key-1", 500))
	require.ErrorContains(t, err, "EOF")
	_, err = api.Charges.New(charge("key-1", 500))
	require.ErrorContains(t, err, "503")
	require.Empty(t, b.stripe.Requests())
	_, err = api.Charges.New(charge("key-1", 500))
	require.NoError(t, err)
}

func TestLostAnswerIsBookedAndFoundAgain(t *testing.T) {
	t.Parallel()
	b := setup(t, vaultkeytest.Config{})
	secret, _ := b.issue(t, hundredDollars)
	api, _ := b.api(t, secret)
	require.NoError(t, b.proxy.AddFaults(vaultkeytest.Fault{Do: vaultkeytest.DropAnswer, Trigger: stripetest.Trigger{Count: 1}}))
	_, err := api.Charges.New(charge("key-1", 500))
	require.ErrorContains(t, err, "EOF")
	require.Equal(t, int64(500), b.proxy.Keys()[0].SpentCents)
	made, err := api.Charges.New(charge("key-1", 500))
	require.NoError(t, err)
	require.Equal(t, b.stripe.Charges()[0].ID, made.ID)
	require.Equal(t, int64(500), b.proxy.Keys()[0].SpentCents)
}

func TestProxyThatDropsTheIdempotencyKeyChargesTwice(t *testing.T) {
	t.Parallel()
	b := setup(t, vaultkeytest.Config{})
	secret, _ := b.issue(t, hundredDollars)
	api, _ := b.api(t, secret)
	require.NoError(t, b.proxy.AddFaults(vaultkeytest.Fault{Do: vaultkeytest.DropIdempotencyKey}))
	for range 2 {
		_, err := api.Charges.New(charge("key-1", 500))
		require.NoError(t, err)
	}
	require.Len(t, b.stripe.DoubleCharges()["key-1"], 2)
	require.Equal(t, int64(1000), b.proxy.Keys()[0].SpentCents)
}

func TestClientThatLeavesDoesNotLoseItsBooking(t *testing.T) {
	t.Parallel()
	b := setup(t, vaultkeytest.Config{})
	secret, _ := b.issue(t, hundredDollars)
	api, _ := b.api(t, secret)
	require.NoError(t, b.stripe.AddFaults(stripetest.Fault{Do: stripetest.HoldAfterEffect, Trigger: stripetest.Trigger{Count: 1}}))
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	p := charge("key-1", 500)
	p.Context = ctx
	var running sync.WaitGroup
	running.Go(func() { _, _ = api.Charges.New(p) })
	waiting, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := b.stripe.WaitHeld(waiting, 1)
	require.NoError(t, err)
	leave()
	running.Wait()
	require.Equal(t, int64(500), b.proxy.Keys()[0].ReservedCents)
	b.stripe.Release()
	require.Eventually(t, func() bool { return b.proxy.Keys()[0].SpentCents == 500 }, patience, time.Millisecond)
	require.Equal(t, int64(0), b.proxy.Keys()[0].ReservedCents)
}

func TestRedirectsAndPagesPassThrough(t *testing.T) {
	t.Parallel()
	b := setup(t, vaultkeytest.Config{})
	secret, _ := b.issue(t, hundredDollars)
	api, wire := b.api(t, secret)
	require.NoError(t, b.stripe.AddFaults(
		stripetest.Fault{Do: stripetest.Redirect, Status: 307, Location: "http://127.0.0.1:1/", Trigger: stripetest.Trigger{Count: 1}},
		stripetest.Fault{Do: stripetest.BadGateway, Trigger: stripetest.Trigger{Count: 1}},
	))
	_, err := api.Charges.New(charge("key-1", 500))
	require.Error(t, err)
	require.Equal(t, 307, wire.last.Load().status)
	_, err = api.Charges.New(charge("key-1", 500))
	require.ErrorContains(t, err, "502")
	require.Equal(t, int64(500), b.proxy.Keys()[0].ReservedCents)
}

func TestOtherCurrenciesAreCountedRefusedOrIgnoredAsSaid(t *testing.T) {
	t.Parallel()
	for policy, want := range map[vaultkeytest.CurrencyPolicy]struct {
		passes bool
		spent  int64
	}{
		vaultkeytest.CountOther: {true, 500}, vaultkeytest.DenyOther: {false, 0}, vaultkeytest.IgnoreOther: {true, 0},
	} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			b := setup(t, vaultkeytest.Config{OtherCurrency: policy})
			secret, _ := b.issue(t, hundredDollars)
			api, _ := b.api(t, secret)
			p := charge("key-1", 500)
			p.Currency = new("eur")
			_, err := api.Charges.New(p)
			require.Equal(t, want.passes, err == nil)
			require.Equal(t, want.spent, b.proxy.Keys()[0].SpentCents)
		})
	}
}

func TestBadOrdersForKeysAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, vaultkeytest.Config{})
	for name, body := range map[string]string{
		"no JSON": `nonsense`, "vendor": `{"vendor":"acme","cap":1}`, "no cap": `{"vendor":"stripe"}`, "zero": `{"vendor":"stripe","cap":0}`,
		"negative": `{"vendor":"stripe","cap":-1}`, "three decimals": `{"vendor":"stripe","cap":1.001}`, "two caps": `{"vendor":"stripe","cap":1,"daily_usd_cap":1}`,
		"endpoint": `{"vendor":"stripe","cap":1,"allowed_endpoints":["charges.make"]}`, "misspelt": `{"vendor":"stripe","cap":1,"exipres_at":"2030-01-01T00:00:00Z"}`,
		"past": `{"vendor":"stripe","cap":1,"expires_at":"2020-01-01T00:00:00Z"}`,
	} {
		require.Equal(t, http.StatusUnprocessableEntity, b.vault(t, "POST", "/vault/keys", body, adminKey, nil), name)
	}
	require.Equal(t, http.StatusUnauthorized, b.vault(t, "POST", "/vault/keys", hundredDollars, "wrong", nil))
	require.Empty(t, b.proxy.Keys())

	secret, key := b.issue(t, `{"vendor":"stripe","label":"run 7","daily_usd_cap":13750.1,"allowed_endpoints":["/v1/charges"],"expires_at":"2999-08-31T12:00:00.123456Z"}`)
	require.Equal(t, int64(1_375_010), key.CapCents)
	require.True(t, key.Daily)
	var shown struct{ Keys []vaultkeytest.Key }
	require.Equal(t, http.StatusOK, b.vault(t, "GET", "/vault/keys", "", adminKey, &shown))
	require.NotContains(t, shown.Keys[0].VaultKey, secret)
	require.Equal(t, "run 7", shown.Keys[0].Label)
	require.Equal(t, http.StatusNotFound, b.vault(t, "DELETE", "/vault/keys/none", "", adminKey, nil))
}

func TestControlPagesDriveTheProxy(t *testing.T) {
	t.Parallel()
	b := setup(t, vaultkeytest.Config{})
	secret, _ := b.issue(t, hundredDollars)
	api, wire := b.api(t, secret)
	require.Equal(t, http.StatusBadRequest, b.vault(t, "POST", "/_standin/faults", `[{"do":"nonsense"}]`, "", nil))
	require.Equal(t, http.StatusBadRequest, b.vault(t, "POST", "/_standin/faults", `[{"do":"deny","style":"nonsense"}]`, "", nil))
	require.Equal(t, http.StatusBadRequest, b.vault(t, "POST", "/_standin/faults", `[{"do":"deny","match":{"customer":"cus_1"}}]`, "", nil))
	require.Equal(t, http.StatusOK, b.vault(t, "POST", "/_standin/faults", `{"faults":[{"do":"deny","style":"flat_429","nth":2,"count":1,"delay":"1ms"}],"replace":true}`, "", nil))
	_, err := api.Charges.New(charge("key-1", 500))
	require.NoError(t, err)
	_, err = api.Charges.New(charge("key-2", 500))
	require.Error(t, err)
	require.Equal(t, 429, wire.last.Load().status)
	var script struct{ Faults []vaultkeytest.FaultState }
	require.Equal(t, http.StatusOK, b.vault(t, "GET", "/_standin/faults", "", "", &script))
	require.Equal(t, 1, script.Faults[0].Struck)
	require.Equal(t, http.StatusOK, b.vault(t, "DELETE", "/_standin/faults", "", "", nil))
	require.Empty(t, b.proxy.Faults())
	before := b.proxy.Now()
	require.Equal(t, http.StatusOK, b.vault(t, "POST", "/_standin/clock", `{"advance":"25h"}`, "", nil))
	require.WithinDuration(t, before.Add(25*time.Hour), b.proxy.Now(), time.Minute)
	var ledger struct{ Entries []vaultkeytest.Entry }
	require.Equal(t, http.StatusOK, b.vault(t, "GET", "/_standin/ledger", "", "", &ledger))
	require.Equal(t, []string{"reserved", "confirmed"}, []string{ledger.Entries[0].Kind, ledger.Entries[1].Kind})
}

func TestCallsWithoutTheStripePrefixPassToo(t *testing.T) {
	t.Parallel()
	b := setup(t, vaultkeytest.Config{})
	secret, _ := b.issue(t, hundredDollars)
	var account stripe.Account
	require.Equal(t, http.StatusOK, b.vault(t, "GET", "/v1/account", "", secret, &account))
	require.Equal(t, "acct_standin", account.ID)
}

func TestTheTablesNameEveryActionAndStyle(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	for _, action := range vaultkeytest.Actions() {
		require.Contains(t, string(doc), "//\t"+string(action)+" ")
	}
	for _, style := range vaultkeytest.Styles() {
		require.Contains(t, string(doc), "//\t"+string(style)+" ")
	}
}
