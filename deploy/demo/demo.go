package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"chargeonce/charger/stripecharge/stripetest"
	"chargeonce/deploy/daemon"
	"chargeonce/ingest/eventhubs/eventhubstest"
)

// story is what happens, in order.
func (d *demo) story() error {
	if err := d.startEverything(); err != nil {
		return err
	}
	if err := d.openRuns(); err != nil {
		return err
	}
	if err := d.billingRun(); err != nil {
		return err
	}
	sum, problems, err := d.sumUp()
	if err != nil {
		return err
	}
	if err := d.report(sum, problems); err != nil {
		return err
	}
	if !d.cfg.Exit {
		if err := d.stay(); err != nil {
			return err
		}
	}
	if len(problems) > 0 {
		return daemon.ErrFound
	}
	return nil
}

// demo is one demonstration.
type demo struct {
	cfg  *settings
	env  daemon.Env
	show *display
	plan *plan

	ctx    context.Context //nolint:containedctx // ends the whole demonstration: at a signal, or when a program ends by itself
	cancel context.CancelCauseFunc
	dir    string
	fleet  *fleet
	// leftOut says why Solace takes no part; empty: it does.
	leftOut string
	stage
	began     time.Time
	firstPass figures // before the replay
}

func prepare(ctx context.Context, env daemon.Env, cfg *settings) (*demo, error) {
	binDir, err := findPrograms(cfg.BinDir, "migrate", "standin", "ingest-eventhubs", "charger")
	if err != nil {
		return nil, &daemon.SettingError{Setting: "--bin-dir", Problem: "is not usable (" + err.Error() + ")", Cure: "build all programs into one folder"}
	}
	if err := cfg.checkJSON(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "chargeonce-demo-")
	if err != nil {
		return nil, fmt.Errorf("make a temporary folder: %w", err)
	}
	d := &demo{cfg: cfg, env: env, show: newDisplay(env.Stdout), dir: dir, began: time.Now()}
	d.ctx, d.cancel = context.WithCancelCause(ctx)
	d.fleet = &fleet{dir: dir, binDir: binDir, forker: newForker(), onEnd: func(err error) { d.cancel(err) }}
	d.leftOut = whySolaceIsLeftOut(ctx, binDir)
	d.plan = makePlan(cfg.Seed, cfg.Events, cfg.Partitions, d.leftOut == "")
	return d, nil
}

// billingRun publishes, while things go wrong, and returns when everything has come to rest.
func (d *demo) billingRun() error {
	d.watch()
	ctx, cancel := context.WithTimeoutCause(d.ctx, d.cfg.patience(), errNotAtRest)
	defer cancel()
	group, together := errgroup.WithContext(ctx) // ends with the group; ctx goes on
	group.Go(func() error { return d.publish(together) })
	group.Go(func() error { return d.killIngestor(together) })
	group.Go(func() error { return d.killSolaceIngestor(together) })
	group.Go(func() error { return d.killCharger(together) })
	group.Go(func() error { return d.stopPostgres(together) })
	group.Go(func() error { return d.replay(together) })
	err := group.Wait()
	if err == nil {
		err = d.watcher.until(ctx, atRest)
	}
	d.show.end()
	if errors.Is(err, errNotAtRest) {
		return fmt.Errorf("%w (%s): %v", errNotAtRest, d.cfg.patience(), restless(d.watcher.latest()))
	}
	return err
}

func (d *demo) publish(ctx context.Context) error {
	p := d.plan.Published
	d.show.say("Publishing %d events (%d billing events) with the Event Hubs client: %d duplicates, %d of them the producer's own retries; %d conflicts; "+
		"%d poison; %d customers whose card is declined.", p.hub().Events, p.hub().Objects, p.Duplicates-p.OverBoth, p.Retried, p.Conflicts, p.Poison, p.Declines)
	if d.broker != nil {
		d.show.say("Publishing %d events with the Solace client, %d of them the same as in the hub.", p.OverSolace, p.OverBoth)
	}
	group, together := errgroup.WithContext(ctx)
	group.Go(func() error { return d.publisher.publish(together, d.plan.Batches, d.cfg.PublishFor) })
	group.Go(func() error { return d.publishOverSolace(together) })
	if err := group.Wait(); err != nil {
		return err
	}
	ends, err := d.hubEnds(ctx)
	if err != nil {
		return err
	}
	d.watcher.allPublished(ends)
	d.show.say("Everything is published.")
	return nil
}

// hubEnds asks the stand-in for the last sequence number of every partition that holds something.
func (d *demo) hubEnds(ctx context.Context) (map[string]int64, error) {
	var ledger eventhubstest.Ledger
	if err := getJSON(ctx, d.publisher.control+"/_standin/ledger", &ledger); err != nil {
		return nil, err
	}
	ends := map[string]int64{}
	for _, h := range ledger.Hubs {
		for _, p := range h.Partitions {
			if p.Count > 0 {
				ends[p.ID] = p.NextSequenceNumber - 1
			}
		}
	}
	return ends, nil
}

// The middle is when so many percent are done.
const (
	killIngestorAt = 35
	killChargerAt  = 30
	stopPostgresAt = 20
	// restartAfter is how long a killed program stays away.
	restartAfter = 2 * time.Second
)

func (d *demo) killIngestor(ctx context.Context) error {
	if !d.cfg.KillIngestor {
		return nil
	}
	want := d.plan.Published.Objects * killIngestorAt / 100
	if err := d.watcher.until(ctx, func(s state) bool { return s.Counters.objects() >= want }); err != nil {
		return err
	}
	d.show.say("Fault: kill -9 of %s. The other ingestor takes its partitions over.", d.ingestors[0].name)
	return d.killAndRestart(ctx, d.ingestors, readyLine)
}

func (d *demo) killCharger(ctx context.Context) error {
	if !d.cfg.KillCharger {
		return nil
	}
	want := d.plan.Published.Intents * killChargerAt / 100
	if err := d.watcher.until(ctx, func(s state) bool { return s.Statuses["charged"] >= want }); err != nil {
		return err
	}
	d.show.say("Fault: kill -9 of %s, with calls to Stripe on their way. The other charger finds out what became of them.", d.chargers[0].name)
	return d.killAndRestart(ctx, d.chargers, readyLine)
}

func (d *demo) stopPostgres(ctx context.Context) error {
	if d.cfg.StopPostgres <= 0 {
		return nil
	}
	want := d.plan.Published.Objects * stopPostgresAt / 100
	if err := d.watcher.until(ctx, func(s state) bool { return s.Counters.objects() >= want }); err != nil {
		return err
	}
	d.show.say("Fault: Postgres is away for %s.", d.cfg.StopPostgres)
	if err := d.postgres.Shutdown(ctx); err != nil {
		return fmt.Errorf("take Postgres away: %w", err)
	}
	if err := wait(ctx, d.cfg.StopPostgres); err != nil {
		return err
	}
	if err := d.postgres.StartAgain(ctx); err != nil {
		return fmt.Errorf("bring Postgres back: %w", err)
	}
	d.show.say("Postgres is back.")
	return nil
}

// replay reads the whole hub again from its beginning, as an operator does who trusts no checkpoint.
func (d *demo) replay(ctx context.Context) (err error) {
	if err := d.watcher.until(ctx, allRecorded); err != nil {
		return err
	}
	if d.firstPass, err = readFigures(ctx, d.pool); err != nil || !d.cfg.Replay {
		return err
	}
	d.show.say("All is recorded once. A replay: another consumer group reads the whole hub again.")
	p, err := d.startIngestor("replay", replayGroup)
	if err != nil {
		return err
	}
	if err := d.watcher.until(ctx, groupAtEnd(replayGroup)); err != nil {
		return err
	}
	if err := p.stop(stopGrace); err != nil {
		return err
	}
	d.show.say("The replay has ended on SIGTERM.")
	return nil
}

func wait(ctx context.Context, how time.Duration) error {
	timer := time.NewTimer(how)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// sumUp holds the database against the stand-ins' ledgers.
func (d *demo) sumUp() (*summary, []string, error) {
	e := evidence{Plan: d.plan, FirstPass: d.firstPass, Replayed: d.cfg.Replay, LeftOut: d.leftOut}
	var err error
	if e.Final, err = readFigures(d.ctx, d.pool); err != nil {
		return nil, nil, err
	}
	if e.Intents, err = readIntents(d.ctx, d.pool); err != nil {
		return nil, nil, err
	}
	if e.Runs, err = readRuns(d.ctx, d.pool); err != nil {
		return nil, nil, err
	}
	var hub eventhubstest.Ledger
	if err := getJSON(d.ctx, d.publisher.control+"/_standin/ledger", &hub); err != nil {
		return nil, nil, err
	}
	e.Stored = int(hub.Counters.Stored)
	if d.broker != nil {
		if e.Spooled, _, err = d.broker.look(d.ctx); err != nil {
			return nil, nil, err
		}
	}
	var ledger struct {
		Effects []stripetest.Effect `json:"effects"`
	}
	if err := getJSON(d.ctx, d.stripeURL+"/_standin/ledger", &ledger); err != nil {
		return nil, nil, err
	}
	e.Effects = ledger.Effects
	sum, problems := judge(e)
	sum.Seconds = float64(time.Since(d.began).Milliseconds()) / 1000
	return sum, problems, nil
}

func (d *demo) report(sum *summary, problems []string) error {
	if err := sum.print(d.env.Stdout, problems); err != nil {
		return fmt.Errorf("print the summary: %w", err)
	}
	if d.cfg.JSON == "" {
		return nil
	}
	return sum.write(d.cfg.JSON)
}

// stay leaves everything up until a signal, or until a program ends by itself, which is an error.
func (d *demo) stay() error {
	d.show.say("\nThe console: %s  user %s  password %s", d.consoleURL, consoleUser, d.consolePassword)
	d.show.say("Postgres:    %s", d.postgres.URL())
	d.show.say("Event Hubs:  %s (stand-in; its ledger: %s/_standin/ledger)", d.publisher.connection, d.publisher.control)
	if d.broker != nil {
		d.show.say("Solace:      tcp://%s (stand-in; its ledger: %s/_standin/ledger)", d.broker.address, d.broker.control)
	}
	d.show.say("Stripe:      %s/_standin/ledger (stand-in)", d.stripeURL)
	d.show.say("Vault:       %s/_standin/ledger (stand-in)", d.vaultURL)
	d.show.say("Logs:        %s", d.dir)
	d.show.say("Ctrl-C ends everything.")
	<-d.ctx.Done()
	if cause := context.Cause(d.ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// finish ends everything that runs, removes what was written, and says what went wrong.
func (d *demo) finish(ctx context.Context, failed error) error {
	d.show.end()
	if cause := context.Cause(d.ctx); failed != nil && cause != nil && !errors.Is(cause, context.Canceled) {
		failed = cause // a program's end, and not what the others said about it
	}
	if ctx.Err() != nil {
		d.show.say("Ending everything.")
	}
	ending := d.end(context.WithoutCancel(ctx))
	if failed == nil && ending == nil {
		return os.RemoveAll(d.dir)
	}
	if errors.Is(failed, context.Canceled) && ending == nil {
		return errors.Join(errors.New("interrupted before the summary"), os.RemoveAll(d.dir))
	}
	if ended, ok := errors.AsType[*endedError](failed); ok {
		d.show.say("The last lines of %s:\n%s", ended.name, ended.tail)
	}
	if d.fleet.wroteNothing() { // it failed before any program did something
		ending = errors.Join(ending, os.RemoveAll(d.dir))
	} else {
		d.show.say("The programs' logs are kept in %s", d.dir)
	}
	if ending != nil && errors.Is(failed, daemon.ErrFound) {
		return ending
	}
	return errors.Join(failed, ending)
}
