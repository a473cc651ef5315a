// Command standin serves one of the services that chargeonce talks to, without that service: the real clients run against
// it, it keeps a ledger of every effect, and it misbehaves on demand.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/alecthomas/kong"

	"chargeonce/deploy/daemon"
)

// settings are the stand-ins. Stripe and vault answer /_standin/ledger, /_standin/faults and /_standin/clock on the port
// that they serve; Event Hubs and Solace, which speak another protocol there, on --control.
type settings struct {
	EventHubs eventHubs `cmd:"" name:"eventhubs" help:"Azure Event Hubs over AMQP, without encryption."`
	Solace    solace    `cmd:"" help:"A Solace PubSub+ broker over SMF, without encryption."`
	Stripe    stripe    `cmd:"" help:"Stripe's API for charges and payment intents."`
	Vault     vault     `cmd:"" help:"A spend-cap proxy that issues vault keys and forwards to Stripe under their caps."`
}

func main() {
	about := daemon.About{
		Name: "standin",
		Help: "Stands in for a service on this machine, for tests and demonstrations. It says \"listening on ADDRESS\" once it does.",
		Vars: kong.Vars{
			"eventhubs_listen": "127.0.0.1:5672", "eventhubs_control": "127.0.0.1:5673", "stripe_listen": "127.0.0.1:12111",
			"vault_listen": "127.0.0.1:12112", "solace_listen": "127.0.0.1:55555", "solace_control": "127.0.0.1:55556",
		},
	}
	daemon.Main(about, func(ctx context.Context, env daemon.Env, _ *settings) error {
		env.Kong.BindTo(ctx, (*context.Context)(nil))
		return env.Kong.Run(env)
	})
}

const (
	readHeaderTimeout = 10 * time.Second
	// drainTimeout is what open requests get at the end; one that a fault holds would never end by itself.
	drainTimeout = time.Second
)

// listen opens a TCP port; one that cannot be had is a SettingError.
func listen(ctx context.Context, setting, address string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, unusable(setting, address, err)
	}
	return l, nil
}

func unusable(setting, address string, err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		err = op.Err
	}
	return &daemon.SettingError{Setting: setting, Problem: fmt.Sprintf("%s cannot be listened on (%s)", address, err), Cure: "give another HOST:PORT"}
}

// serve answers requests until ctx ends.
func serve(ctx context.Context, l net.Listener, handler http.Handler, log *slog.Logger) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: readHeaderTimeout, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	if err := server.Shutdown(drain); errors.Is(err, context.DeadlineExceeded) {
		return server.Close()
	} else if err != nil {
		return fmt.Errorf("end serving on %s: %w", l.Addr(), err)
	}
	return nil
}

// announce is the one line that whoever started the stand-in waits for.
func announce(stdout io.Writer, format string, args ...any) error {
	if _, err := fmt.Fprintf(stdout, "listening on "+format+"\n", args...); err != nil {
		return fmt.Errorf("say where the stand-in listens: %w", err)
	}
	return nil
}
