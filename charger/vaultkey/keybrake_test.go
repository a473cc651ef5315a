package vaultkey

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"chargeonce/charger/vaultkey/vaultkeytest"
)

const adminKey = "kb_admin_0123456789"

var _ = []Issuer{(*Keybrake)(nil), (*Static)(nil)}

func startVault(t *testing.T) (*vaultkeytest.Server, *Keybrake) {
	t.Helper()
	server, err := vaultkeytest.Start(vaultkeytest.Config{AdminKeys: []string{adminKey}})
	require.NoError(t, err)
	t.Cleanup(server.Close)
	keybrake, err := NewKeybrake(KeybrakeConfig{URL: server.URL + "/", APIKey: adminKey})
	require.NoError(t, err)
	return server, keybrake
}

func testRequest() Request {
	return Request{
		Label: "chargeonce usage 2026-08 usd", CapCents: 1_375_001, AllowedEndpoints: AllowedEndpoints(),
		ExpiresAt: time.Now().Add(48 * time.Hour),
	}
}

func TestIssuedKeyHasExactlyTheTermsAsked(t *testing.T) {
	t.Parallel()
	server, keybrake := startVault(t)
	request := testRequest()
	key, err := keybrake.Issue(t.Context(), request)
	require.NoError(t, err)
	require.NotEmpty(t, key.Secret)
	keys := server.Keys()
	require.Len(t, keys, 1)
	require.Equal(t, keys[0].ID, key.ProviderKeyID)
	require.Equal(t, request.CapCents, keys[0].CapCents)
	require.True(t, keys[0].Daily)
	require.Equal(t, request.Label, keys[0].Label)
	require.Equal(t, "stripe", keys[0].Vendor)
	require.Equal(t, request.AllowedEndpoints, keys[0].AllowedEndpoints)
	require.WithinDuration(t, request.ExpiresAt, *keys[0].ExpiresAt, time.Second)
	require.WithinDuration(t, *keys[0].ExpiresAt, key.ExpiresAt, 0)

	request.AllowedEndpoints = []string{"/v1/charges", "/v1/payment_intents"} // a proxy that names paths
	_, err = keybrake.Issue(t.Context(), request)
	require.NoError(t, err)
}

func TestRevokedKeyIsRevokedAndRevokingAgainIsNoError(t *testing.T) {
	t.Parallel()
	server, keybrake := startVault(t)
	key, err := keybrake.Issue(t.Context(), testRequest())
	require.NoError(t, err)
	require.NoError(t, keybrake.Revoke(t.Context(), key.ProviderKeyID))
	require.Equal(t, "revoked", server.Keys()[0].Status)
	require.NoError(t, keybrake.Revoke(t.Context(), key.ProviderKeyID))
	require.NoError(t, keybrake.Revoke(t.Context(), "vkey_unknown/../keys"))
	require.ErrorIs(t, keybrake.Revoke(t.Context(), ""), ErrCannotRevoke)
}

// The body as it leaves: the cap is a number that no binary fraction has touched.
func TestCapIsSentInExactDollars(t *testing.T) {
	t.Parallel()
	for cents, dollars := range map[int64]string{1: "0.01", 99: "0.99", 100: "1.00", 1_375_000: "13750.00", 1_010: "10.10", 99_999_999_999_929: "999999999999.29"} {
		t.Run(dollars, func(t *testing.T) {
			t.Parallel()
			var body, authorization string
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				raw, _ := io.ReadAll(r.Body)
				body, authorization = string(raw), r.Header.Get("Authorization")
				_, _ = io.WriteString(w, `{"vault_key":"vk_1"}`)
			}))
			defer server.Close()
			keybrake, err := NewKeybrake(KeybrakeConfig{URL: server.URL, APIKey: adminKey})
			require.NoError(t, err)
			request := testRequest()
			request.CapCents = cents
			_, err = keybrake.Issue(t.Context(), request)
			require.NoError(t, err)
			require.Contains(t, body, `"daily_usd_cap":`+dollars+`,`)
			require.Contains(t, body, `"expires_at":"`+request.ExpiresAt.UTC().Format("2006-01-02T15:04:05Z")+`"`)
			require.Equal(t, "Bearer "+adminKey, authorization)
			require.True(t, json.Valid([]byte(body)))
		})
	}
}

func TestAnswersOfAllShapesAreRead(t *testing.T) {
	t.Parallel()
	asked := time.Date(2026, 9, 1, 0, 0, 0, 0, time.UTC)
	for body, want := range map[string]Key{
		`{"vault_key":"vk_1"}`:                                               {Secret: "vk_1", ExpiresAt: asked},
		`{"vault_key":"vk_1","id":"a"}`:                                      {Secret: "vk_1", ProviderKeyID: "a", ExpiresAt: asked},
		`{"vault_key":"vk_1","id":17,"more":[1]}`:                            {Secret: "vk_1", ProviderKeyID: "17", ExpiresAt: asked},
		`{"vault_key":"vk_1","key_id":"b"}`:                                  {Secret: "vk_1", ProviderKeyID: "b", ExpiresAt: asked},
		`{"vault_key":"vk_1","id":{"x":1},"expires_at":"soon"}`:              {Secret: "vk_1", ExpiresAt: asked},
		`{"vault_key":"vk_1","id":"vk_1"}`:                                   {Secret: "vk_1", ExpiresAt: asked},
		`{"vault_key":"vk_1","id":null,"expires_at":"2026-08-31T12:00:00Z"}`: {Secret: "vk_1", ExpiresAt: asked.Add(-12 * time.Hour)},
		`{"vault_key":"vk_1","expires_at":"2027-01-01T00:00:00Z"}`:           {Secret: "vk_1", ExpiresAt: asked},
	} {
		key, err := readKey([]byte(body), asked)
		require.NoError(t, err, body)
		require.Equal(t, want, key, body)
	}
	for _, body := range []string{``, `{}`, `[]`, `null`, `{"vault_key":""}`, `{"vault_key":7}`, `{"vault_key":"a b"}`, `{"vault_key":"a\nb"}`, `{"vault_key":"` + strings.Repeat("x", maxSecretBytes+1) + `"}`} {
		_, err := readKey([]byte(body), asked)
		require.Error(t, err, body)
		require.NotContains(t, err.Error(), "a b")
	}
}

// What may pass is asked again, what will not is told to a person; neither key stands in the error.
func TestRefusedAndUnavailableAreToldApart(t *testing.T) {
	t.Parallel()
	type want struct {
		refused bool
		text    string
	}
	echo := `{"error":"bad key ` + adminKey + `","vault_key":"vk_secret"}`
	cases := []struct {
		name   string
		status int
		body   string
		want   want
	}{
		{"bad request", 400, `{"error":{"message":"no such vendor"}}`, want{true, "no such vendor"}},
		{"unauthorized", 401, echo, want{true, redacted}},
		{"forbidden", 403, `{"message":"plan too small"}`, want{true, "plan too small"}},
		{"not found", 404, `<html>`, want{true, "not JSON"}},
		{"unprocessable", 422, `{"error":{"code":"cap_too_large"}}`, want{true, "cap_too_large"}},
		{"no reason", 400, `{}`, want{true, "no reason given"}},
		{"request timeout", 408, echo, want{false, "408"}},
		{"too many", 429, echo, want{false, "429"}},
		{"server error", 500, echo, want{false, "500"}},
		{"bad gateway", 502, `<html>`, want{false, "502"}},
		{"redirect", 302, ``, want{false, "302"}},
		{"no key", 200, `{"key":"vk_secret"}`, want{false, "empty"}},
		{"not json", 200, `vk_secret`, want{false, "not the JSON object"}},
		{"too large", 200, `{"vault_key":"vk_secret","x":"` + strings.Repeat("x", maxAnswerBytes) + `"}`, want{false, "larger than"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				calls.Add(1)
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.body)
			}))
			defer server.Close()
			keybrake, err := NewKeybrake(KeybrakeConfig{URL: server.URL, APIKey: adminKey})
			require.NoError(t, err)
			key, err := keybrake.Issue(t.Context(), testRequest())
			require.Zero(t, key)
			require.ErrorContains(t, err, c.want.text)
			require.NotContains(t, err.Error(), adminKey)
			require.NotContains(t, err.Error(), "vk_secret")
			var refused *RefusedError
			if c.want.refused {
				require.ErrorAs(t, err, &refused)
				require.Equal(t, c.status, refused.HTTPStatus)
				require.NotErrorIs(t, err, ErrUnavailable)
			} else {
				require.ErrorIs(t, err, ErrUnavailable)
				require.NotErrorAs(t, err, &refused)
			}
			require.EqualValues(t, 1, calls.Load(), "one call, never followed or repeated")
		})
	}
}

func TestVaultThatIsAwayIsUnavailable(t *testing.T) {
	t.Parallel()
	server, keybrake := startVault(t)
	require.NoError(t, server.AddFaults(vaultkeytest.Fault{Do: vaultkeytest.Away}))
	_, err := keybrake.Issue(t.Context(), testRequest())
	require.ErrorIs(t, err, ErrUnavailable)
	require.ErrorIs(t, keybrake.Revoke(t.Context(), "vkey_1"), ErrUnavailable)
	server.ClearFaults()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = keybrake.Issue(ctx, testRequest())
	require.ErrorIs(t, err, ErrUnavailable)
	require.Empty(t, server.Keys())
}

func TestWrongAdminKeyIsRefused(t *testing.T) {
	t.Parallel()
	server, _ := startVault(t)
	keybrake, err := NewKeybrake(KeybrakeConfig{URL: server.URL, APIKey: "kb_other"})
	require.NoError(t, err)
	_, err = keybrake.Issue(t.Context(), testRequest())
	var refused *RefusedError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, http.StatusUnauthorized, refused.HTTPStatus)
}

func TestRequestThatWouldNotCapIsNotSent(t *testing.T) {
	t.Parallel()
	server, keybrake := startVault(t)
	for name, spoil := range map[string]func(*Request){
		"no label": func(r *Request) { r.Label = "" }, "long label": func(r *Request) { r.Label = strings.Repeat("x", maxLabelBytes+1) },
		"no cap": func(r *Request) { r.CapCents = 0 }, "negative cap": func(r *Request) { r.CapCents = -1 }, "huge cap": func(r *Request) { r.CapCents = maxCapCents + 1 },
		"no endpoints": func(r *Request) { r.AllowedEndpoints = nil }, "no expiry": func(r *Request) { r.ExpiresAt = time.Time{} },
		"past": func(r *Request) { r.ExpiresAt = time.Now() }, "for ever": func(r *Request) { r.ExpiresAt = time.Now().Add(maxLifetime + time.Hour) },
	} {
		request := testRequest()
		spoil(&request)
		_, err := keybrake.Issue(t.Context(), request)
		var refused *RefusedError
		require.ErrorAs(t, err, &refused, name)
	}
	require.Empty(t, server.Keys())
}

// A key's end is told by the database's clock, which may be ahead of ours.
func TestLongestLifetimeIsTakenFromAClockThatIsAhead(t *testing.T) {
	t.Parallel()
	_, keybrake := startVault(t)
	request := testRequest()
	request.ExpiresAt = time.Now().Add(90*24*time.Hour + 10*time.Minute)
	_, err := keybrake.Issue(t.Context(), request)
	require.NoError(t, err)
}

func TestVaultConfigurationIsChecked(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]KeybrakeConfig{
		"no url": {APIKey: adminKey}, "relative": {URL: "vault", APIKey: adminKey}, "user": {URL: "https://somebody@vault", APIKey: adminKey},
		"no key": {URL: "https://vault"}, "line break": {URL: "https://vault", APIKey: adminKey + "\n"}, "timeout": {URL: "https://vault", APIKey: adminKey, Timeout: -1},
	} {
		_, err := NewKeybrake(cfg)
		require.Error(t, err, name)
		require.NotContains(t, err.Error(), adminKey)
	}
}

func TestStaticKeyIsIssuedAndCannotBeRevoked(t *testing.T) {
	t.Parallel()
	static, err := NewStatic("rk_test_1")
	require.NoError(t, err)
	key, err := static.Issue(t.Context(), Request{})
	require.NoError(t, err)
	require.Equal(t, Key{Secret: "rk_test_1"}, key)
	require.ErrorIs(t, static.Revoke(t.Context(), ""), ErrCannotRevoke)
	_, err = NewStatic("rk_test 1")
	require.Error(t, err)
	require.NotContains(t, err.Error(), "rk_test")
}

func TestNothingPrintsItsKey(t *testing.T) {
	t.Parallel()
	_, keybrake := startVault(t)
	static, err := NewStatic("rk_test_secret")
	require.NoError(t, err)
	key := Key{Secret: "vk_secret", ProviderKeyID: "a"}
	shown := fmt.Sprintf("%v %+v %#v", keybrake, keybrake, keybrake) + fmt.Sprintf("%v %+v %#v", static, static, static) +
		fmt.Sprintf("%v %+v %#v %s", key, key, key, key.LogValue()) + fmt.Sprintf("%v %#v", KeybrakeConfig{APIKey: adminKey}, KeybrakeConfig{APIKey: adminKey})
	for _, secret := range []string{"secret", adminKey} {
		require.NotContains(t, shown, secret)
	}
}
