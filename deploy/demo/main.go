// Command demo runs the whole of chargeonce on this machine, with stand-ins for what it talks to, and holds the result
// against their ledgers.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"chargeonce/deploy/daemon"
	"chargeonce/deploy/localpg"
)

func main() {
	about := daemon.About{
		Name: "demo",
		Help: "Starts Postgres, stand-ins for Event Hubs, Solace, Stripe and a spend-cap proxy, three ingestors, two chargers and the console; " +
			"publishes a billing run with duplicates, conflicts, poison and declines; kills processes in the middle; and shows what came of it.",
	}
	for _, name := range []string{"DEMO_EVENTS", "DEMO_SEED", "DEMO_EXIT", "DEMO_JSON"} {
		if os.Getenv(name) == "" {
			os.Unsetenv(name) // a Makefile passes on empty what is not set
		}
	}
	daemon.Main(about, run)
}

type settings struct {
	Events int    `help:"Events to publish." default:"2000" env:"DEMO_EVENTS"`
	Seed   uint64 `help:"Of the events' random generator: the same seed publishes the same." default:"20260831" env:"DEMO_SEED"`
	Exit   bool   `help:"End after the summary, with exit code 0 if all is well and 1 if not; else everything stays up until Ctrl-C." env:"DEMO_EXIT"`
	JSON   string `help:"File to write the summary to, as JSON." env:"DEMO_JSON" placeholder:"FILE"`

	KillIngestor bool          `help:"Kill an ingestor of each broker (kill -9) in the middle, and start it again." default:"true" negatable:""`
	KillCharger  bool          `help:"Kill a charger (kill -9) in the middle, and start it again." default:"true" negatable:""`
	Replay       bool          `help:"Read the whole hub again with another consumer group, as an operator would." default:"true" negatable:""`
	StopPostgres time.Duration `help:"Take Postgres away for so long in the middle." default:"0s"`

	PublishFor    time.Duration `help:"Spread publishing over so long, or longer if sending takes longer." default:"5s"`
	Timeout       time.Duration `help:"How long everything may take to come to rest, beside publishing; more than 2000 events get a second for every 50 more." default:"150s"`
	StripeLatency time.Duration `help:"What Stripe's stand-in takes for an answer." default:"30ms"`
	StripeRate    int           `help:"Charges a second, over both chargers." default:"400"`
	CallTimeout   time.Duration `help:"What a charger gives one call to Stripe; a killed charger's claims are taken over after some of these." default:"2s"`
	Partitions    int           `help:"Partitions of the hub." default:"4"`

	BinDir          string `help:"Folder of the programs; the one of this program unless given." placeholder:"DIR"`
	PostgresPort    int    `help:"Port of Postgres; 0 takes a free one." default:"0"`
	PostgresBinDir  string `name:"postgres-bin-dir" help:"Folder of initdb and postgres; those of the machine, else a download, unless given." env:"LOCALPG_BIN_DIR" placeholder:"DIR"`
	FetchURL        string `help:"Maven repository to download Postgres from if the machine has none; the public one unless given." env:"LOCALPG_FETCH_URL" placeholder:"URL"`
	EventhubsListen string `help:"HOST:PORT of the Event Hubs stand-in; port 0 takes a free one." default:"127.0.0.1:0"`
	SolaceListen    string `help:"HOST:PORT of the Solace stand-in." default:"127.0.0.1:0"`
	StripeListen    string `help:"HOST:PORT of the Stripe stand-in." default:"127.0.0.1:0"`
	VaultListen     string `help:"HOST:PORT of the spend-cap proxy's stand-in." default:"127.0.0.1:0"`
	ConsoleListen   string `help:"HOST:PORT of the console." default:"127.0.0.1:0"`
}

// Validate is called by kong.
func (s *settings) Validate() error {
	wrong := func(setting string, value any, cure string) error {
		return &daemon.SettingError{Setting: setting, Problem: fmt.Sprintf("is %v", value), Cure: cure}
	}
	switch {
	case s.Events < minEvents || s.Events > maxEvents:
		return wrong("--events", s.Events, fmt.Sprintf("give %d to %d", minEvents, maxEvents))
	case s.StripeRate < 1 || s.StripeRate > 100_000:
		return wrong("--stripe-rate", s.StripeRate, "give 1 to 100000")
	case s.Partitions < 1 || s.Partitions > 32:
		return wrong("--partitions", s.Partitions, "give 1 to 32")
	case s.StripeLatency < 0 || s.StripeLatency >= s.CallTimeout:
		return wrong("--stripe-latency", s.StripeLatency, "give less than --call-timeout")
	case s.Timeout <= 0 || s.StopPostgres < 0 || s.PublishFor < 0:
		return wrong("--timeout, --stop-postgres or --publish-for", "negative", "give durations like 150s")
	}
	return nil
}

// patience is how long everything may take to come to rest: a slow machine charges some fifty customers a second.
func (s *settings) patience() time.Duration {
	const usual, perSecond = 2000, 50
	return s.Timeout + s.PublishFor + s.StopPostgres + time.Duration(max(0, s.Events-usual)/perSecond)*time.Second
}

// checkJSON finds out whether the summary's file can be written before minutes are spent on what is to be in it.
func (s *settings) checkJSON() error {
	if s.JSON == "" {
		return nil
	}
	wrong := func(problem string) error {
		return &daemon.SettingError{
			Setting: "--json (DEMO_JSON)", Problem: fmt.Sprintf("names %s, which cannot be written (%s)", s.JSON, problem),
			Cure: "name a file in a folder that is there and may be written",
		}
	}
	if info, err := os.Stat(s.JSON); err == nil && !info.Mode().IsRegular() {
		return wrong("it is no regular file")
	}
	trial, err := os.CreateTemp(filepath.Dir(s.JSON), ".demo-json-") // the file's own folder: it is renamed into place
	if err != nil {
		if pathErr, ok := errors.AsType[*os.PathError](err); ok {
			err = pathErr.Err
		}
		return wrong(err.Error())
	}
	if err := errors.Join(trial.Close(), os.Remove(trial.Name())); err != nil {
		return fmt.Errorf("try to write beside %s: %w", s.JSON, err)
	}
	return nil
}

// localpg says how Postgres is run.
func (s *settings) localpg(log *slog.Logger) localpg.Config {
	return localpg.Config{
		Port: s.PostgresPort, BinDir: s.PostgresBinDir, FetchURL: s.FetchURL, Logger: log,
		Settings: map[string]string{"autovacuum_naptime": "2s"},
	}
}

// run is the whole demonstration, from nothing to nothing.
func run(ctx context.Context, env daemon.Env, cfg *settings) error {
	d, err := prepare(ctx, env, cfg)
	if err != nil {
		return err
	}
	return d.finish(ctx, d.story())
}
