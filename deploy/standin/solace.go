package main

import (
	"context"
	"errors"
	"fmt"
	"net"

	"chargeonce/deploy/daemon"
	"chargeonce/ingest/solace/solacetest"
)

// solace serves one queue. Its line is "listening on HOST:PORT, control on http://HOST:PORT".
type solace struct {
	Listen    string `help:"HOST:PORT for tcp://; port 0 takes a free one." default:"${solace_listen}" env:"LISTEN"`
	Control   string `help:"HOST:PORT for /_standin/ledger and /_standin/faults, over HTTP." default:"${solace_control}" env:"CONTROL"`
	VPN       string `name:"vpn" help:"Message VPN." default:"default" placeholder:"NAME"`
	Queue     string `help:"Durable queue." default:"billing-events" placeholder:"NAME"`
	Topic     string `help:"Topic whose messages go to the queue." default:"billing/events/>" placeholder:"TOPIC"`
	Exclusive bool   `help:"Give the messages to the first of the queue's consumers alone."`
	Replay    bool   `help:"Keep all messages, so that the fault \"replay\" can deliver them again."`
	User      string `help:"Client username that clients must have; without it any will do." placeholder:"NAME"`
	Password  string `help:"Its password." placeholder:"PASSWORD"`
}

// Run is the command.
func (s *solace) Run(ctx context.Context, env daemon.Env) error {
	if s.Password != "" && s.User == "" {
		return &daemon.SettingError{Setting: "--password", Problem: "is given without --user", Cure: "give both, or neither to let anybody in"}
	}
	control, err := listen(ctx, "--control", s.Control)
	if err != nil {
		return err
	}
	defer control.Close()
	cfg := solacetest.Config{
		Listen: s.Listen, VPN: s.VPN, ReplayLog: s.Replay, Logger: env.Log,
		Queues: []solacetest.Queue{{Name: s.Queue, Exclusive: s.Exclusive, Subscriptions: []string{s.Topic}}},
	}
	if s.User != "" {
		cfg.Users = map[string]string{s.User: s.Password}
	}
	server, err := solacetest.Start(cfg)
	if _, isListen := errors.AsType[*net.OpError](err); isListen {
		return unusable("--listen", s.Listen, err)
	}
	if err != nil {
		return &daemon.SettingError{Setting: "--queue and --topic", Problem: "cannot be used (" + err.Error() + ")"}
	}
	if err := announce(env.Stdout, "%s, control on http://%s", server.Addr(), control.Addr()); err != nil {
		return errors.Join(err, server.Close())
	}
	err = serve(ctx, control, server.ControlHandler(), env.Log)
	if closeErr := server.Close(); closeErr != nil {
		err = errors.Join(err, fmt.Errorf("end the Solace stand-in: %w", closeErr))
	}
	return err
}
