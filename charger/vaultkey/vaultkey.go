// Package vaultkey says where a billing run's Stripe key comes from and keeps it sealed in the database.
package vaultkey

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"
)

// Issuer makes and takes back the keys of billing runs: a spend-cap proxy (Keybrake) or one given key (Static).
type Issuer interface {
	// Issue makes a key that is good for the request's cap until it expires. An error is a *RefusedError
	// when asking again will not help, and wraps ErrUnavailable when it may.
	Issue(ctx context.Context, r Request) (Key, error)
	// Revoke takes a key back by the id that Issue gave it. A key already gone is no error; an issuer
	// that cannot revoke answers ErrCannotRevoke.
	Revoke(ctx context.Context, providerKeyID string) error
}

// Errors of issuers.
var (
	// ErrUnavailable: no answer, or one that says nothing; a key may have been made all the same.
	ErrUnavailable = errors.New("the vault is unavailable")
	// ErrCannotRevoke: the issuer has no way to take this key back.
	ErrCannotRevoke = errors.New("this key cannot be revoked here")
)

// RefusedError says that the vault understood and said no.
type RefusedError struct {
	HTTPStatus int    // 0 when the request was refused before it was sent
	Reason     string // bounded, without any key
}

func (e *RefusedError) Error() string {
	if e.HTTPStatus == 0 {
		return "vault key refused: " + e.Reason
	}
	return fmt.Sprintf("vault refused with http status %d: %s", e.HTTPStatus, e.Reason)
}

// Limits of a request.
const (
	maxLabelBytes = 200
	maxCapCents   = 1_000_000_000_000_00      // far above any run: 999,999,999,999 minor units a charge
	maxLifetime   = 90*24*time.Hour + maxSkew // VAULT_KEY_TTL's most, by the database's clock
	maxSkew       = time.Hour                 // between that and ours
)

// Request is what a key must allow.
type Request struct {
	Label            string // names the run to whoever looks at the proxy, e.g. chargeonce usage 2026-08 usd
	CapCents         int64  // most that the key may spend, in minor units of USD
	AllowedEndpoints []string
	ExpiresAt        time.Time
}

func (r Request) check(now time.Time) error {
	switch {
	case r.Label == "" || len(r.Label) > maxLabelBytes || !utf8.ValidString(r.Label):
		return &RefusedError{Reason: fmt.Sprintf("the label must have 1 to %d bytes", maxLabelBytes)}
	case r.CapCents <= 0 || r.CapCents > maxCapCents:
		return &RefusedError{Reason: fmt.Sprintf("a cap of %d cents is not within 1 and %d", r.CapCents, int64(maxCapCents))}
	case len(r.AllowedEndpoints) == 0:
		return &RefusedError{Reason: "no allowed endpoints: the key would be good for everything or nothing"}
	case !r.ExpiresAt.After(now) || r.ExpiresAt.Sub(now) > maxLifetime:
		return &RefusedError{Reason: fmt.Sprintf("expiry %s is past or more than %s away", r.ExpiresAt.UTC().Format(time.RFC3339), maxLifetime)}
	}
	return nil
}

// Key is an issued key. It prints itself without the secret.
type Key struct {
	Secret        string    // what stripecharge sends
	ProviderKeyID string    // by which it is revoked; empty when the issuer gave none
	ExpiresAt     time.Time // zero: not known to expire
}

// String shows the key without its secret.
func (k Key) String() string {
	return fmt.Sprintf("vault key %q, expires %s", k.ProviderKeyID, k.ExpiresAt.UTC().Format(time.RFC3339))
}

// GoString is String, so that %#v shows no secret either.
func (k Key) GoString() string { return k.String() }

// LogValue shows the key without its secret.
func (k Key) LogValue() slog.Value {
	return slog.GroupValue(slog.String("provider_key_id", k.ProviderKeyID), slog.Time("expires_at", k.ExpiresAt))
}

// AllowedEndpoints is what a charger calls, as the proxy names operations: create, read, list and
// cancel of charges and payment intents, and the reads of customers and the account. The reads matter
// at the cap, too: they are how money in doubt is found.
func AllowedEndpoints() []string {
	return []string{
		"charges.create", "charges.retrieve", "charges.list",
		"payment_intents.create", "payment_intents.retrieve", "payment_intents.list", "payment_intents.cancel",
		"customers.retrieve", "account.retrieve",
	}
}

// AllowedPaths is AllowedEndpoints for proxies that go by the path, with everything below it.
func AllowedPaths() []string {
	return []string{"/v1/charges", "/v1/payment_intents", "/v1/customers", "/v1/account"}
}

// Static issues one given key: of any proxy, or a restricted key of Stripe's. What it may spend and
// until when is up to whoever made it.
type Static struct {
	secret string
}

// NewStatic takes the key as it was configured.
func NewStatic(secret string) (*Static, error) {
	if err := CheckSecret(secret); err != nil {
		return nil, fmt.Errorf("given vault key: %w", err)
	}
	return &Static{secret: secret}, nil
}

// Issue answers the given key.
func (s *Static) Issue(context.Context, Request) (Key, error) { return Key{Secret: s.secret}, nil }

// Revoke answers ErrCannotRevoke.
func (s *Static) Revoke(context.Context, string) error { return ErrCannotRevoke }

// String shows no secret.
func (s *Static) String() string { return "vaultkey.Static{" + redacted + "}" }

// GoString is String, so that %#v shows no secret either.
func (s *Static) GoString() string { return s.String() }

const redacted = "[redacted]"

// maxSecretBytes bounds a key; Stripe's have about 110.
const maxSecretBytes = 1024

// CheckSecret reports keys that cannot be sent as a bearer token, without repeating them.
func CheckSecret(secret string) error {
	switch {
	case secret == "":
		return errors.New("it is empty")
	case len(secret) > maxSecretBytes:
		return fmt.Errorf("it is longer than %d bytes", maxSecretBytes)
	case strings.ContainsFunc(secret, func(r rune) bool { return r <= ' ' || r > '~' }):
		return errors.New("it holds a space, a line break or another character that no key has")
	}
	return nil
}
