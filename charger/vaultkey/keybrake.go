package vaultkey

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Issue asks the proxy for a key. It makes one HTTP call and repeats nothing: a call without an answer
// may have made a key, which dies unused at its expiry.
func (k *Keybrake) Issue(ctx context.Context, r Request) (Key, error) {
	if err := r.check(time.Now()); err != nil {
		return Key{}, err
	}
	body, err := json.Marshal(issueRequest{
		Vendor: "stripe", Label: r.Label, DailyUSDCap: json.RawMessage(dollars(r.CapCents)), AllowedEndpoints: r.AllowedEndpoints,
		ExpiresAt: r.ExpiresAt.UTC().Format(time.RFC3339),
	})
	if err != nil {
		return Key{}, fmt.Errorf("issue vault key: encode: %w", err)
	}
	answer, err := k.call(ctx, http.MethodPost, "/vault/keys", body)
	if err != nil {
		return Key{}, fmt.Errorf("issue vault key for %q: %w", r.Label, err)
	}
	key, err := readKey(answer, r.ExpiresAt.Truncate(time.Second))
	if err != nil {
		return Key{}, fmt.Errorf("issue vault key for %q: %w: %w", r.Label, ErrUnavailable, err)
	}
	return key, nil
}

// Revoke takes a key back; one that the proxy no longer knows is gone already.
func (k *Keybrake) Revoke(ctx context.Context, providerKeyID string) error {
	if providerKeyID == "" {
		return ErrCannotRevoke
	}
	_, err := k.call(ctx, http.MethodDelete, "/vault/keys/"+url.PathEscape(providerKeyID), nil)
	if refused, ok := errors.AsType[*RefusedError](err); ok && (refused.HTTPStatus == http.StatusNotFound || refused.HTTPStatus == http.StatusGone) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("revoke vault key %q: %w", providerKeyID, err)
	}
	return nil
}

// Limits of a call.
const (
	defaultTimeout = 15 * time.Second
	maxAnswerBytes = 64 << 10
	maxShownRunes  = 300 // of a reason, in an error
)

// KeybrakeConfig says where the proxy is and who asks.
type KeybrakeConfig struct {
	URL       string            // of the proxy's admin API, without /vault/keys
	APIKey    string            // the admin key, sent as bearer token
	Transport http.RoundTripper // nil: one of its own; a given one must not follow redirects or log bodies
	Timeout   time.Duration     // of one call; 0: 15 s
}

// String shows the configuration without its key.
func (c KeybrakeConfig) String() string {
	return "vaultkey.KeybrakeConfig{URL: " + c.URL + ", APIKey: " + redacted + "}"
}

// GoString is String, so that %#v shows no key either.
func (c KeybrakeConfig) GoString() string { return c.String() }

// Keybrake is a spend-cap proxy that issues keys by POST /vault/keys. It is safe for concurrent use.
type Keybrake struct {
	url    string
	apiKey string
	client *http.Client
}

// NewKeybrake checks the configuration; it makes no call.
func NewKeybrake(cfg KeybrakeConfig) (*Keybrake, error) {
	u, err := url.Parse(cfg.URL)
	if err != nil || (u.Scheme != "https" && u.Scheme != "http") || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("vault: the URL must be http(s)://host[:port][/prefix], without user, query or fragment")
	}
	if err := CheckSecret(cfg.APIKey); err != nil {
		return nil, fmt.Errorf("vault: the API key cannot be used: %w", err)
	}
	if cfg.Timeout < 0 {
		return nil, fmt.Errorf("vault: timeout %s is negative", cfg.Timeout)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.Transport == nil {
		cfg.Transport = &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true} // a call or two for each run
	}
	return &Keybrake{
		url: strings.TrimRight(cfg.URL, "/"), apiKey: cfg.APIKey,
		client: &http.Client{
			Transport: cfg.Transport, Timeout: cfg.Timeout,
			// A followed redirect would carry the terms of the key elsewhere, or turn the POST into a GET.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// String shows the proxy without its key.
func (k *Keybrake) String() string { return "vaultkey.Keybrake{" + k.url + "}" }

// GoString is String, so that %#v shows no key either.
func (k *Keybrake) GoString() string { return k.String() }

type issueRequest struct {
	Vendor           string          `json:"vendor"`
	Label            string          `json:"label"`
	DailyUSDCap      json.RawMessage `json:"daily_usd_cap"` // dollars, never through a binary fraction
	AllowedEndpoints []string        `json:"allowed_endpoints"`
	ExpiresAt        string          `json:"expires_at"`
}

// call makes one call and answers the body of a 2xx; everything else is a refusal or unavailability.
func (k *Keybrake) call(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, k.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("vault: the request cannot be made")
	}
	req.Header.Set("Authorization", "Bearer "+k.apiKey)
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := k.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", ErrUnavailable, k.shown(withoutURL(err).Error()))
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxAnswerBytes+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: http status %d, answer cut short", ErrUnavailable, res.StatusCode)
	case len(answer) > maxAnswerBytes:
		return nil, fmt.Errorf("%w: http status %d, answer larger than %d bytes", ErrUnavailable, res.StatusCode, maxAnswerBytes)
	case res.StatusCode >= 200 && res.StatusCode < 300:
		return answer, nil
	case res.StatusCode == http.StatusRequestTimeout, res.StatusCode == http.StatusTooManyRequests:
		return nil, fmt.Errorf("%w: http status %d", ErrUnavailable, res.StatusCode)
	case res.StatusCode >= 400 && res.StatusCode < 500:
		return nil, &RefusedError{HTTPStatus: res.StatusCode, Reason: k.shown(reasonIn(answer))}
	}
	return nil, fmt.Errorf("%w: http status %d", ErrUnavailable, res.StatusCode)
}

// shown bounds a text from outside and takes the admin key out of it.
func (k *Keybrake) shown(text string) string {
	text = strings.ReplaceAll(text, k.apiKey, redacted)
	if runes := []rune(text); len(runes) > maxShownRunes {
		return string(runes[:maxShownRunes]) + "..."
	}
	return text
}

// readKey finds the key in an answer: proxies differ in what they tell besides, and in how they name its id.
func readKey(answer []byte, asked time.Time) (Key, error) {
	var told struct {
		VaultKey  string `json:"vault_key"`
		ID        textOr `json:"id"`
		KeyID     textOr `json:"key_id"`
		ExpiresAt string `json:"expires_at"`
	}
	if err := json.Unmarshal(answer, &told); err != nil {
		return Key{}, errors.New("the answer is not the JSON object of a key")
	}
	if err := CheckSecret(told.VaultKey); err != nil {
		return Key{}, fmt.Errorf("vault_key of the answer: %w", err)
	}
	key := Key{Secret: told.VaultKey, ProviderKeyID: string(told.ID), ExpiresAt: asked}
	if key.ProviderKeyID == "" {
		key.ProviderKeyID = string(told.KeyID)
	}
	// A proxy may grant less time than asked for, never more as far as we are concerned.
	if granted, err := time.Parse(time.RFC3339, told.ExpiresAt); err == nil && granted.Before(asked) {
		key.ExpiresAt = granted
	}
	if key.ProviderKeyID == key.Secret { // an id is stored and shown in the clear
		key.ProviderKeyID = ""
	}
	return key, nil
}

// textOr reads an id that may be a text or a number; anything else is no id.
type textOr string

// UnmarshalJSON never fails: an id that cannot be read costs the revoking, not the key.
func (t *textOr) UnmarshalJSON(b []byte) error {
	var text string
	var number json.Number
	switch {
	case json.Unmarshal(b, &text) == nil:
		*t = textOr(text)
	case json.Unmarshal(b, &number) == nil:
		*t = textOr(number.String())
	}
	return nil
}

// reasonIn finds what a refusal says: {"error":"text"}, {"error":{"message":"text"}} or {"message":"text"}.
func reasonIn(answer []byte) string {
	var told struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
	}
	if json.Unmarshal(answer, &told) != nil {
		return fmt.Sprintf("answer of %d bytes that is not JSON", len(answer))
	}
	var text string
	var object struct {
		Message string `json:"message"`
		Code    string `json:"code"`
	}
	switch {
	case json.Unmarshal(told.Error, &text) == nil && text != "":
		return text
	case json.Unmarshal(told.Error, &object) == nil && object.Message != "":
		return object.Message
	case object.Code != "":
		return object.Code
	case told.Message != "":
		return told.Message
	}
	return "no reason given"
}

// dollars writes cents as dollars with two decimals, in whole numbers: 1375000 is 13750.00.
func dollars(cents int64) string {
	return strconv.FormatInt(cents/100, 10) + "." + fmt.Sprintf("%02d", cents%100)
}

// withoutURL drops the address that net/http puts in front of its errors.
func withoutURL(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		return wrapped.Err
	}
	return err
}
