package main

import (
	"context"
	"errors"
	"fmt"
	"net"

	"chargeonce/deploy/daemon"
	"chargeonce/ingest/eventhubs/eventhubstest"
)

// eventHubs serves one hub. Its line is "listening on HOST:PORT, control on http://HOST:PORT".
type eventHubs struct {
	Listen         string   `help:"HOST:PORT for AMQP; port 0 takes a free one." default:"${eventhubs_listen}" env:"LISTEN"`
	Control        string   `help:"HOST:PORT for /_standin/ledger and /_standin/faults, over HTTP." default:"${eventhubs_control}" env:"CONTROL"`
	Hub            string   `help:"Event hub." default:"billing" placeholder:"NAME"`
	Partitions     int      `help:"Partitions of the hub, 1 to 1024." default:"4"`
	ConsumerGroups []string `name:"consumer-group" help:"Consumer group beside $$Default; may be repeated." placeholder:"NAME"`
	KeyName        string   `help:"Name of the shared access key." default:"RootManageSharedAccessKey"`
	Key            string   `help:"Shared access key that clients must have; without it any will do." placeholder:"KEY"`
}

// Run is the command.
func (e *eventHubs) Run(ctx context.Context, env daemon.Env) error {
	control, err := listen(ctx, "--control", e.Control)
	if err != nil {
		return err
	}
	defer control.Close()
	server, err := eventhubstest.Start(eventhubstest.Config{
		Listen: e.Listen, Hubs: []eventhubstest.Hub{{Name: e.Hub, Partitions: e.Partitions, ConsumerGroups: e.ConsumerGroups}},
		RequireSAS: e.Key != "", KeyName: e.KeyName, Key: e.Key, Logger: env.Log,
	})
	if _, isListen := errors.AsType[*net.OpError](err); isListen {
		return unusable("--listen", e.Listen, err)
	}
	if err != nil {
		return &daemon.SettingError{Setting: "--hub and --partitions", Problem: "cannot be used (" + err.Error() + ")"}
	}
	if err := announce(env.Stdout, "%s, control on http://%s", server.Addr(), control.Addr()); err != nil {
		return errors.Join(err, server.Close())
	}
	err = serve(ctx, control, server.ControlHandler(), env.Log)
	if closeErr := server.Close(); closeErr != nil {
		err = errors.Join(err, fmt.Errorf("end the Event Hubs stand-in: %w", closeErr))
	}
	return err
}
