//go:build cgo

// Command publish-solace publishes lines of standard input as persistent messages to a Solace PubSub+ broker and waits until the broker
// has taken them.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"chargeonce/deploy/daemon"
	"chargeonce/ingest/solace"
)

const name = "publish-solace"

const (
	// maxLineBytes bounds one line, and so one message's body.
	maxLineBytes = 8 << 20
	// maxRate is one message a nanosecond, the shortest interval that a ticker has.
	maxRate = int(time.Second)
)

func main() {
	daemon.Main(daemon.About{
		Name: name,
		Help: "Publishes each line of standard input as one persistent message and waits for the broker's acknowledgement. " +
			"Exit code 0: the broker has taken every line. 1: it has not, and the first line that it has not taken is named.",
	}, func(ctx context.Context, env daemon.Env, cfg *settings) error {
		solace.RouteLogs(env.Log)
		return run(ctx, env.Log, cfg, os.Stdin, env.Stdout)
	})
}

type settings struct {
	Host       string        `help:"Addresses of the broker, comma-separated, such as tcps://a:55443,tcps://b:55443." env:"SOLACE_HOST" placeholder:"URLS"`
	VPN        string        `help:"Message VPN." name:"vpn" env:"SOLACE_VPN" placeholder:"NAME"`
	User       string        `help:"Client username." env:"SOLACE_USER" placeholder:"NAME"`
	Password   daemon.Secret `help:"Password of the client username." env:"SOLACE_PASSWORD" placeholder:"PASSWORD"`
	TrustStore string        `help:"Directory of PEM files with the authorities that may vouch for the broker; default /etc/ssl/certs." env:"SOLACE_TRUST_STORE" placeholder:"DIR"`
	Topic      string        `help:"Topic to publish to." env:"SOLACE_TOPIC" placeholder:"TOPIC"`
	Queue      string        `help:"Queue to publish to, instead of a topic." env:"SOLACE_QUEUE" placeholder:"NAME"`
	Rate       int           `help:"Messages per second at the most; 0: as fast as the broker takes them." placeholder:"N"`
	Bytes      bool          `help:"Send bodies as bytes instead of as text."`
}

// Validate is asked before run, and by --check-config.
func (c *settings) Validate() error {
	for _, required := range []struct{ value, setting, cure string }{
		{c.Host, "SOLACE_HOST", "give the broker's address, such as tcps://broker:55443"},
		{c.VPN, "SOLACE_VPN", "name the message VPN"},
		{c.User, "SOLACE_USER", "give the client username"},
		{c.Topic + c.Queue, "--topic", "give a topic, or a queue with --queue"},
	} {
		if required.value == "" {
			return &daemon.SettingError{Setting: required.setting, Problem: "is not set", Cure: required.cure}
		}
	}
	if c.Topic != "" && c.Queue != "" {
		return &daemon.SettingError{Setting: "--topic", Problem: "and --queue are both given", Cure: "give one of them"}
	}
	if c.Rate < 0 || c.Rate > maxRate {
		return &daemon.SettingError{Setting: "--rate", Problem: fmt.Sprintf("cannot be %d", c.Rate), Cure: fmt.Sprintf("give 1 to %d messages per second, or 0", maxRate)}
	}
	if err := c.connection().Validate(); err != nil {
		return &daemon.SettingError{Setting: "SOLACE_HOST, SOLACE_VPN or SOLACE_TRUST_STORE", Problem: "cannot be used (" + err.Error() + ")"}
	}
	return nil
}

func (c *settings) connection() solace.PublisherConfig {
	return solace.PublisherConfig{
		Hosts: c.Host, VPN: c.VPN, User: c.User, Password: c.Password.Reveal(), TrustStore: c.TrustStore,
		Topic: c.Topic, Queue: c.Queue, AsBytes: c.Bytes,
	}
}

// run publishes until the input ends.
func run(ctx context.Context, log *slog.Logger, cfg *settings, in io.Reader, out io.Writer) error {
	publisher, err := solace.NewPublisher(ctx, cfg.connection())
	if err != nil {
		return err //nolint:wrapcheck // it names the step
	}
	started := time.Now()
	err = publishAll(ctx, publisher, cfg.Rate, in)
	taken, closeErr := publisher.Close()
	log.InfoContext(ctx, "published", slog.Int("messages", taken), slog.Duration("took", time.Since(started)))
	fmt.Fprintf(out, "%d messages taken by the broker\n", taken)
	if closeErr != nil && errors.Is(err, solace.ErrNotTaken) {
		return closeErr //nolint:wrapcheck // it names the first of all messages that were not taken
	}
	return errors.Join(err, closeErr)
}

func publishAll(ctx context.Context, publisher *solace.Publisher, rate int, in io.Reader) error {
	var beat <-chan time.Time
	if rate > 0 {
		ticker := time.NewTicker(time.Second / time.Duration(rate))
		defer ticker.Stop()
		beat = ticker.C
	}
	for line, err := range lines(ctx, in) {
		if err != nil {
			return err
		}
		if beat != nil {
			select {
			case <-beat:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if err := publisher.Publish(ctx, line); err != nil {
			return err //nolint:wrapcheck // it names the message
		}
	}
	return nil
}

// lines yields lines that are not blank, until the input or ctx ends. A reader that is blocked does not keep it.
func lines(ctx context.Context, in io.Reader) func(yield func(string, error) bool) {
	return func(yield func(string, error) bool) {
		read, failed := make(chan string), make(chan error, 1)
		done := make(chan struct{})
		defer close(done)
		go func() {
			defer close(read)
			scanner := bufio.NewScanner(in)
			scanner.Buffer(nil, maxLineBytes)
			for scanner.Scan() {
				if strings.TrimSpace(scanner.Text()) == "" {
					continue
				}
				select {
				case read <- scanner.Text():
				case <-done:
					return
				}
			}
			failed <- scanner.Err()
		}()
		for {
			select {
			case <-ctx.Done():
				yield("", context.Cause(ctx))
				return
			case line, open := <-read:
				if !open {
					if err := <-failed; err != nil {
						yield("", fmt.Errorf("read standard input: %w", err))
					}
					return
				}
				if !yield(line, nil) {
					return
				}
			}
		}
	}
}
