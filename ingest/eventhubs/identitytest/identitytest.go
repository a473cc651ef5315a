// Package identitytest gives a program under test an Azure identity: the endpoint that hands out its tokens, as App Service and
// Container Apps have it, and the certificates of hosts that take tokens over TLS alone.
package identitytest

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// EventHubs is the audience of tokens for Event Hubs.
const EventHubs = "https://eventhubs.azure.net/"

// Start serves an identity for the test's life, whose tokens live for lifetime. The SDK asks for another one when less than five
// minutes of it are left.
func Start(tb testing.TB, lifetime time.Duration) *Identity {
	tb.Helper()
	i := &Identity{secret: rand.Text(), lifetime: lifetime, tokens: map[string]string{}}
	server := httptest.NewServer(http.HandlerFunc(i.serve))
	tb.Cleanup(server.Close)
	i.url = server.URL
	return i
}

// Identity hands out tokens. Its methods are safe for concurrent use.
type Identity struct {
	url, secret string
	lifetime    time.Duration

	mu      sync.Mutex
	refused bool
	issued  int
	tokens  map[string]string // audience by token that counts
}

// Env is what a program finds in its environment.
func (i *Identity) Env() map[string]string {
	return map[string]string{"IDENTITY_ENDPOINT": i.url, "IDENTITY_HEADER": i.secret}
}

// Refuse makes the endpoint hand out no tokens, as where no identity is assigned.
func (i *Identity) Refuse() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.refused = true
}

// Revoke makes Check refuse every token handed out so far.
func (i *Identity) Revoke() {
	i.mu.Lock()
	defer i.mu.Unlock()
	clear(i.tokens)
}

// Issued counts the tokens handed out.
func (i *Identity) Issued() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.issued
}

// Check says what is wrong with a token.
func (i *Identity) Check(token, audience string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	of, found := i.tokens[token]
	switch {
	case !found:
		return errors.New("InvalidIssuer: Token issuer is invalid.") //nolint:staticcheck,revive // the service's words
	case of != audience:
		return fmt.Errorf("InvalidAudience: The authorization token audience is %s", of)
	}
	return nil
}

func (i *Identity) serve(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	audience := r.FormValue("resource")
	w.Header().Set("Content-Type", "application/json")
	if i.refused || r.Header.Get("X-Identity-Header") != i.secret || audience == "" {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"error":"invalid_request","error_description":"No managed identity is assigned to this resource."}`))
		return
	}
	now := time.Now()
	token := encode(map[string]any{"alg": "none", "typ": "JWT"}) + "." + encode(map[string]any{
		"aud": strings.TrimSuffix(audience, "/"), "iss": "https://sts.windows.net/11111111-2222-3333-4444-555555555555/", "jti": strconv.Itoa(i.issued),
		"iat": now.Add(-time.Minute).Unix(), "nbf": now.Add(-time.Minute).Unix(), "exp": now.Add(i.lifetime).Unix(),
	}) + ".c2lnbmF0dXJl"
	i.tokens[token] = audience
	i.issued++
	_ = json.NewEncoder(w).Encode(map[string]any{
		"access_token": token, "expires_on": strconv.FormatInt(now.Add(i.lifetime).Unix(), 10), "resource": audience, "token_type": "Bearer",
	})
}

func encode(claims map[string]any) string {
	text, err := json.Marshal(claims)
	if err != nil {
		panic("internal error: " + err.Error()) // only texts and numbers
	}
	return base64.RawURLEncoding.EncodeToString(text)
}
