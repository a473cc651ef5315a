package main

import (
	"context"
	"net/url"

	"chargeonce/charger/vaultkey/vaultkeytest"
	"chargeonce/deploy/daemon"
)

// vault serves a spend-cap proxy. Its line is "listening on http://HOST:PORT".
type vault struct {
	Listen        string                      `help:"HOST:PORT; port 0 takes a free one." default:"${vault_listen}" env:"LISTEN"`
	StripeURL     string                      `name:"stripe-url" help:"Where calls are forwarded to, without /v1." required:"" placeholder:"URL"`
	StripeKey     string                      `help:"Key that takes the vault key's place." default:"sk_test_behind_the_vault"`
	APIKeys       []string                    `name:"api-key" help:"Key that may issue vault keys; may be repeated. Without one any is." placeholder:"KEY"`
	Denial        vaultkeytest.Style          `help:"Shape of denials: ${enum}." enum:"object_402,flat,flat_402,flat_429,flat_403,flat_401,empty,html" default:"object_402"`
	OtherCurrency vaultkeytest.CurrencyPolicy `help:"What the cap, in dollars, means for other currencies: ${enum}." enum:"count,deny,ignore" default:"count"`
}

// Validate is called by kong.
func (v *vault) Validate() error {
	u, err := url.Parse(v.StripeURL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return &daemon.SettingError{Setting: "--stripe-url", Problem: "is no web address", Cure: "give it like http://127.0.0.1:12111"}
	}
	return nil
}

// Run is the command.
func (v *vault) Run(ctx context.Context, env daemon.Env) error {
	l, err := listen(ctx, "--listen", v.Listen)
	if err != nil {
		return err
	}
	defer l.Close()
	server := vaultkeytest.New(vaultkeytest.Config{
		AdminKeys: v.APIKeys, UpstreamURL: v.StripeURL, StripeKey: v.StripeKey, Denial: v.Denial, OtherCurrency: v.OtherCurrency, Logger: env.Log,
	})
	if err := announce(env.Stdout, "http://%s", l.Addr()); err != nil {
		return err
	}
	defer server.Close()
	return serve(ctx, l, server, env.Log)
}
