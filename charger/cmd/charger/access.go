package main

import (
	"fmt"
	"net/url"
	"strings"
	"time"

	"chargeonce/charger"
	"chargeonce/charger/stripecharge"
	"chargeonce/charger/vaultkey"
	"chargeonce/deploy/daemon"
)

// stripeAccess is embedded by every command that calls Stripe.
type stripeAccess struct {
	VaultMode          string        `help:"Where a run's Stripe key comes from: issued by a spend-cap proxy (keybrake), or given (static)." enum:"keybrake,static" default:"keybrake" env:"VAULT_MODE"`
	VaultURL           string        `help:"The spend-cap proxy that issues vault keys." env:"VAULT_URL" placeholder:"URL"`
	KeybrakeAPIKey     daemon.Secret `name:"keybrake-api-key" help:"The proxy's administration key, to issue vault keys with." env:"KEYBRAKE_API_KEY" placeholder:"KEY"`
	KeybrakeVaultKey   daemon.Secret `help:"The given key for VAULT_MODE=static: any proxy's key, or a restricted key of Stripe's own." env:"KEYBRAKE_VAULT_KEY" placeholder:"KEY"`
	VaultEncryptionKey daemon.Secret `help:"32 bytes, base64 or hex, that issued keys are stored encrypted with; older keys may follow after commas." env:"VAULT_ENCRYPTION_KEY" placeholder:"KEY"`
	VaultKeyTTL        time.Duration `name:"vault-key-ttl" help:"How long an issued vault key lives; a new one is issued when it ends." default:"48h" env:"VAULT_KEY_TTL"`
	VaultEndpoints     string        `help:"How the proxy names what a key may call: operations (charges.create) or paths (/v1/charges)." enum:"operations,paths" default:"operations" env:"VAULT_ENDPOINTS"`
	AccountUnverified  bool          `help:"Charge although the key may not read its own Stripe account." env:"ACCOUNT_UNVERIFIED"`

	StripeAPIURL        string        `name:"stripe-api-url" help:"Where Stripe's API is called: the proxy, or empty for Stripe itself." env:"STRIPE_API_URL" placeholder:"URL"`
	StripeRatePerSecond int           `help:"Charges per second over all chargers of this database; reads and look-ups have as many again." default:"20" env:"STRIPE_RATE_PER_SECOND"`
	CallTimeout         time.Duration `help:"Time for one call to Stripe; a claim's lease is twice that." default:"30s" env:"STRIPE_CALL_TIMEOUT"`
	Installation        string        `help:"Goes into every charge's metadata; tells apart several installations on one Stripe account." default:"default" env:"INSTALLATION"`
}

// Validate names the setting and the cure; the commands that embed it call it from theirs.
func (a stripeAccess) Validate() error {
	switch {
	case a.StripeRatePerSecond < 1 || a.StripeRatePerSecond > 100_000:
		return &daemon.SettingError{Setting: "STRIPE_RATE_PER_SECOND", Problem: fmt.Sprintf("is %d", a.StripeRatePerSecond), Cure: "give 1 to 100000"}
	case a.CallTimeout < 100*time.Millisecond || a.CallTimeout > 2*time.Minute:
		return &daemon.SettingError{Setting: "STRIPE_CALL_TIMEOUT", Problem: "is " + a.CallTimeout.String(), Cure: "give 100ms to 2m"}
	case a.VaultMode == "static" && a.KeybrakeVaultKey == "":
		return &daemon.SettingError{Setting: "KEYBRAKE_VAULT_KEY", Problem: "is not set", Cure: "VAULT_MODE=static needs the key to call Stripe with"}
	case a.VaultMode == "keybrake" && a.KeybrakeAPIKey == "":
		return &daemon.SettingError{Setting: "KEYBRAKE_API_KEY", Problem: "is not set", Cure: "VAULT_MODE=keybrake needs it to issue vault keys; for a given key set VAULT_MODE=static and KEYBRAKE_VAULT_KEY"}
	case a.VaultMode == "keybrake" && a.VaultEncryptionKey == "":
		return &daemon.SettingError{Setting: "VAULT_ENCRYPTION_KEY", Problem: "is not set", Cure: "issued vault keys are stored encrypted; make one with `openssl rand -base64 32`"}
	case a.VaultKeyTTL < time.Hour || a.VaultKeyTTL > 90*24*time.Hour:
		return &daemon.SettingError{Setting: "VAULT_KEY_TTL", Problem: "is " + a.VaultKeyTTL.String(), Cure: "give 1h to 2160h"}
	}
	if a.VaultMode == "static" && strings.HasPrefix(a.KeybrakeVaultKey.Reveal(), "pk_") {
		return &daemon.SettingError{Setting: "KEYBRAKE_VAULT_KEY", Problem: "is a publishable key", Cure: "give a restricted or secret key, which can charge"}
	}
	if a.VaultMode == "keybrake" && a.StripeAPIURL == "" { // a proxy's vault key would be sent to Stripe itself
		return &daemon.SettingError{Setting: "STRIPE_API_URL", Problem: "is not set", Cure: "with VAULT_MODE=keybrake give the proxy's address for Stripe, like https://HOST/stripe"}
	}
	if err := checkURL("STRIPE_API_URL", a.StripeAPIURL, false); err != nil {
		return err
	}
	if err := checkURL("VAULT_URL", a.VaultURL, a.VaultMode == "keybrake"); err != nil {
		return err
	}
	_, err := a.keys()
	return err
}

func checkURL(setting, value string, required bool) error {
	if value == "" && !required {
		return nil
	}
	if value == "" {
		return &daemon.SettingError{Setting: setting, Problem: "is not set", Cure: "give it like https://HOST/PATH"}
	}
	u, err := url.Parse(value)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		shown := fmt.Sprintf("%q is no web address", value)
		if strings.ContainsAny(value, "@?") { // it may hold a password or a token
			shown = "is no plain web address"
		}
		return &daemon.SettingError{Setting: setting, Problem: shown, Cure: "give it like https://HOST/PATH, without user, password or query"}
	}
	return nil
}

func (a *stripeAccess) keys() (charger.KeysConfig, error) {
	cfg := charger.KeysConfig{
		TTL: a.VaultKeyTTL, StripeURL: a.StripeAPIURL, Transport: stripecharge.NewTransport(), AccountUnverified: a.AccountUnverified,
	}
	if a.VaultEndpoints == "paths" {
		cfg.AllowedEndpoints = vaultkey.AllowedPaths()
	}
	if a.VaultMode == "static" {
		given, err := vaultkey.NewStatic(a.KeybrakeVaultKey.Reveal())
		if err != nil {
			return cfg, &daemon.SettingError{Setting: "KEYBRAKE_VAULT_KEY", Problem: "is not usable", Cure: err.Error()}
		}
		cfg.Issuer = given
		return cfg, nil
	}
	var err error
	if cfg.Sealer, err = a.sealer(); err != nil {
		return cfg, err
	}
	if err := vaultkey.CheckSecret(a.KeybrakeAPIKey.Reveal()); err != nil {
		return cfg, &daemon.SettingError{Setting: "KEYBRAKE_API_KEY", Problem: "is not usable", Cure: err.Error()}
	}
	cfg.Issuer, err = vaultkey.NewKeybrake(vaultkey.KeybrakeConfig{URL: a.VaultURL, APIKey: a.KeybrakeAPIKey.Reveal()})
	if err != nil {
		return cfg, &daemon.SettingError{Setting: "VAULT_URL", Problem: "cannot be used (" + err.Error() + ")", Cure: "give the proxy's address"}
	}
	return cfg, nil
}

// sealer reads the encryption keys: the first one encrypts, all decrypt.
func (a *stripeAccess) sealer() (*vaultkey.Sealer, error) {
	if a.VaultMode == "static" {
		return nil, nil
	}
	var parsed []vaultkey.EncryptionKey
	for text := range strings.SplitSeq(a.VaultEncryptionKey.Reveal(), ",") {
		key, err := vaultkey.ParseEncryptionKey(strings.TrimSpace(text))
		if err != nil {
			return nil, &daemon.SettingError{Setting: "VAULT_ENCRYPTION_KEY", Problem: "is not usable", Cure: err.Error()}
		}
		parsed = append(parsed, key)
	}
	sealer, err := vaultkey.NewSealer(parsed[0], parsed[1:]...)
	if err != nil {
		return nil, &daemon.SettingError{Setting: "VAULT_ENCRYPTION_KEY", Problem: "is not usable", Cure: err.Error()}
	}
	return sealer, nil
}
