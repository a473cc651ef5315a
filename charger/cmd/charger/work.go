package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"chargeonce/charger"
	"chargeonce/charger/stripecharge"
	"chargeonce/charger/vaultkey"
	"chargeonce/deploy/daemon"
	"chargeonce/sql"
)

// database is embedded by every command.
type database struct {
	DatabaseURL daemon.Secret `help:"Postgres, as a user who may act as chargeonce_charger (the console: as chargeonce_console)." env:"DATABASE_URL" placeholder:"URL"`
}

// Validate is called by kong.
func (d database) Validate() error { return daemon.CheckDatabaseURL(d.DatabaseURL) }

type work struct {
	database
	Listen string `help:"HOST:PORT for /healthz, /readyz and /metrics." default:"${work_listen}" env:"LISTEN"`

	VaultMode          string        `help:"Where a run's Stripe key comes from: issued by a spend-cap proxy (keybrake), or given (static)." enum:"keybrake,static" default:"keybrake" env:"VAULT_MODE"`
	VaultURL           string        `help:"The spend-cap proxy that issues vault keys." env:"VAULT_URL" placeholder:"URL"`
	KeybrakeAPIKey     daemon.Secret `name:"keybrake-api-key" help:"The proxy's administration key, to issue vault keys with." env:"KEYBRAKE_API_KEY" placeholder:"KEY"`
	KeybrakeVaultKey   daemon.Secret `help:"The given key for VAULT_MODE=static: any proxy's key, or a restricted key of Stripe's own." env:"KEYBRAKE_VAULT_KEY" placeholder:"KEY"`
	VaultEncryptionKey daemon.Secret `help:"32 bytes, base64 or hex, that issued keys are stored encrypted with; older keys may follow after commas." env:"VAULT_ENCRYPTION_KEY" placeholder:"KEY"`
	VaultKeyTTL        time.Duration `name:"vault-key-ttl" help:"How long an issued vault key lives; a new one is issued when it ends." default:"48h" env:"VAULT_KEY_TTL"`
	AccountUnverified  bool          `help:"Charge although the key may not read its own Stripe account." env:"ACCOUNT_UNVERIFIED"`

	StripeAPIURL        string        `name:"stripe-api-url" help:"Where Stripe's API is called: the proxy, or empty for Stripe itself." env:"STRIPE_API_URL" placeholder:"URL"`
	StripeAPI           string        `name:"stripe-api" help:"What charges are made with; charges is closed to new Stripe accounts." enum:"payment_intents,charges" default:"payment_intents" env:"STRIPE_API"`
	StripeRatePerSecond int           `help:"Charges per second over all chargers of this database." default:"20" env:"STRIPE_RATE_PER_SECOND"`
	CallTimeout         time.Duration `help:"Time for one call to Stripe; a claim's lease is twice that." default:"30s" env:"STRIPE_CALL_TIMEOUT"`
	Workers             int           `help:"Calls to Stripe at once in this process." default:"50" env:"CHARGER_WORKERS"`
	Window              int           `help:"Live jobs per run; 0 is four times the workers." default:"0" env:"CHARGER_WINDOW"`
	Installation        string        `help:"Goes into every charge's metadata; tells apart several installations on one Stripe account." default:"default" env:"INSTALLATION"`
}

// Validate is called by kong; it names the setting and the cure.
func (w work) Validate() error {
	if err := w.database.Validate(); err != nil {
		return err
	}
	switch {
	case w.StripeRatePerSecond < 1 || w.StripeRatePerSecond > 100_000:
		return &daemon.SettingError{Setting: "STRIPE_RATE_PER_SECOND", Problem: fmt.Sprintf("is %d", w.StripeRatePerSecond), Cure: "give 1 to 100000"}
	case w.Workers < 1 || w.Workers > 10_000:
		return &daemon.SettingError{Setting: "CHARGER_WORKERS", Problem: fmt.Sprintf("is %d", w.Workers), Cure: "give 1 to 10000"}
	case w.Window < 0 || w.Window > 1_000_000:
		return &daemon.SettingError{Setting: "CHARGER_WINDOW", Problem: fmt.Sprintf("is %d", w.Window), Cure: "give 0 to 1000000"}
	case w.CallTimeout < 100*time.Millisecond || w.CallTimeout > 2*time.Minute:
		return &daemon.SettingError{Setting: "STRIPE_CALL_TIMEOUT", Problem: "is " + w.CallTimeout.String(), Cure: "give 100ms to 2m"}
	case w.VaultMode == "static" && w.KeybrakeVaultKey == "":
		return &daemon.SettingError{Setting: "KEYBRAKE_VAULT_KEY", Problem: "is not set", Cure: "VAULT_MODE=static needs the key to call Stripe with"}
	case w.VaultMode == "keybrake" && w.KeybrakeAPIKey == "":
		return &daemon.SettingError{Setting: "KEYBRAKE_API_KEY", Problem: "is not set", Cure: "VAULT_MODE=keybrake needs it to issue vault keys; for a given key set VAULT_MODE=static and KEYBRAKE_VAULT_KEY"}
	case w.VaultMode == "keybrake" && w.VaultEncryptionKey == "":
		return &daemon.SettingError{Setting: "VAULT_ENCRYPTION_KEY", Problem: "is not set", Cure: "issued vault keys are stored encrypted; make one with `openssl rand -base64 32`"}
	case w.VaultKeyTTL < time.Hour || w.VaultKeyTTL > 90*24*time.Hour:
		return &daemon.SettingError{Setting: "VAULT_KEY_TTL", Problem: "is " + w.VaultKeyTTL.String(), Cure: "give 1h to 2160h"}
	}
	if w.VaultMode == "static" && strings.HasPrefix(w.KeybrakeVaultKey.Reveal(), "pk_") {
		return &daemon.SettingError{Setting: "KEYBRAKE_VAULT_KEY", Problem: "is a publishable key", Cure: "give a restricted or secret key, which can charge"}
	}
	if w.VaultMode == "keybrake" && w.StripeAPIURL == "" { // a proxy's vault key would be sent to Stripe itself
		return &daemon.SettingError{Setting: "STRIPE_API_URL", Problem: "is not set", Cure: "with VAULT_MODE=keybrake give the proxy's address for Stripe, like https://HOST/stripe"}
	}
	if err := checkURL("STRIPE_API_URL", w.StripeAPIURL, false); err != nil {
		return err
	}
	if err := checkURL("VAULT_URL", w.VaultURL, w.VaultMode == "keybrake"); err != nil {
		return err
	}
	_, err := w.sealer()
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
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") || u.User != nil {
		return &daemon.SettingError{Setting: setting, Problem: fmt.Sprintf("%q is no web address", value), Cure: "give it like https://HOST/PATH, without user and password"}
	}
	return nil
}

// Run is the command.
func (w *work) Run(ctx context.Context, env daemon.Env) error {
	id, err := processID()
	if err != nil {
		return err
	}
	pool, err := daemon.OpenPool(ctx, w.DatabaseURL, sql.RoleCharger, int32(min(60, max(4, w.Workers/4+4))), env.Name)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := migrated(ctx, pool); err != nil {
		return err
	}
	riverPool, err := daemon.OpenPool(ctx, w.DatabaseURL, sql.RoleCharger, 10, env.Name+"-river")
	if err != nil {
		return err
	}
	defer riverPool.Close()
	keys, err := w.keys()
	if err != nil {
		return err
	}
	c, err := charger.New(charger.Config{
		Pool: pool, RiverPool: riverPool, Keys: keys,
		StripeAPI: stripecharge.API(w.StripeAPI), Installation: w.Installation,
		Workers: w.Workers, Window: w.Window, RatePerSecond: w.StripeRatePerSecond, CallTimeout: w.CallTimeout,
		ID: id, Logger: env.Log, Registry: env.Registry,
	})
	if err != nil {
		return err
	}
	health := daemon.NewHealth(env.Log, env.Registry)
	health.Check("database", pool.Ping)
	health.Check("dispatcher", func(context.Context) error { return c.Ready() })
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return health.ListenAndServe(ctx, w.Listen) })
	group.Go(func() error { return c.Run(ctx) })
	return group.Wait()
}

func (w *work) keys() (charger.KeysConfig, error) {
	cfg := charger.KeysConfig{
		TTL: w.VaultKeyTTL, StripeURL: w.StripeAPIURL, Transport: stripecharge.NewTransport(), AccountUnverified: w.AccountUnverified,
	}
	if w.VaultMode == "static" {
		given, err := vaultkey.NewStatic(w.KeybrakeVaultKey.Reveal())
		if err != nil {
			return cfg, &daemon.SettingError{Setting: "KEYBRAKE_VAULT_KEY", Problem: "is not usable", Cure: err.Error()}
		}
		cfg.Issuer = given
		return cfg, nil
	}
	var err error
	if cfg.Sealer, err = w.sealer(); err != nil {
		return cfg, err
	}
	cfg.Issuer, err = vaultkey.NewKeybrake(vaultkey.KeybrakeConfig{URL: w.VaultURL, APIKey: w.KeybrakeAPIKey.Reveal()})
	if err != nil {
		return cfg, &daemon.SettingError{Setting: "VAULT_URL", Problem: "cannot be used (" + err.Error() + ")", Cure: "give the proxy's address"}
	}
	return cfg, nil
}

// sealer reads the encryption keys: the first one encrypts, all decrypt.
func (w *work) sealer() (*vaultkey.Sealer, error) {
	if w.VaultMode == "static" {
		return nil, nil
	}
	var parsed []vaultkey.EncryptionKey
	for text := range strings.SplitSeq(w.VaultEncryptionKey.Reveal(), ",") {
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

// processID names this process in River UI and in the attempts: the host (the pod) and something unique.
func processID() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("read the host's name: %w", err)
	}
	var random [4]byte
	if _, err := rand.Read(random[:]); err != nil {
		return "", fmt.Errorf("make the process's id: %w", err)
	}
	return host + "-" + hex.EncodeToString(random[:]), nil
}
