package main

import (
	"context"
	"time"

	"chargeonce/charger/stripecharge/stripetest"
	"chargeonce/deploy/daemon"
)

// stripe serves Stripe's API. Its line is "listening on http://HOST:PORT".
type stripe struct {
	Listen        string        `help:"HOST:PORT; port 0 takes a free one." default:"${stripe_listen}" env:"LISTEN"`
	Latency       time.Duration `help:"How long every answer takes, as the bank would." default:"0s"`
	AutoCustomers bool          `help:"Let any cus_ id exist; how its card behaves is read from the id, such as cus_1_decline_insufficient_funds."`
	Keys          []string      `name:"key" help:"Secret key that is accepted; may be repeated. Without one any sk_, rk_ or vk_ key is." placeholder:"KEY"`
	Account       string        `help:"Id of the account that the keys belong to." default:"acct_standin"`
	Livemode      bool          `help:"Say that all of this is live."`
}

// Run is the command.
func (s *stripe) Run(ctx context.Context, env daemon.Env) error {
	l, err := listen(ctx, "--listen", s.Listen)
	if err != nil {
		return err
	}
	defer l.Close()
	server := stripetest.New(stripetest.Config{
		AccountID: s.Account, Livemode: s.Livemode, Keys: s.Keys, Latency: s.Latency, AutoCustomers: s.AutoCustomers, Logger: env.Log,
	})
	if err := announce(env.Stdout, "http://%s", l.Addr()); err != nil {
		return err
	}
	defer server.Close()
	return serve(ctx, l, server, env.Log)
}
