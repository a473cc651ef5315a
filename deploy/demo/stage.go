package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"chargeonce/deploy/daemon"
	"chargeonce/deploy/localpg"
	"chargeonce/schema"
	"chargeonce/sql"
)

const (
	hub         = "billing"
	mainGroup   = "$default"
	replayGroup = "replay"
	consoleUser = "operator"
	poolConns   = 4
	// Ownership is renewed and expires faster than in production, so that a killed ingestor is missed for seconds only.
	updateInterval  = "1s"
	ownershipExpiry = "8s"
)

// startEverything starts Postgres, the stand-ins and the programs.
func (d *demo) startEverything() error {
	d.show.say("Seed %d. Starting Postgres.", d.cfg.Seed)
	if err := d.startDatabase(); err != nil {
		return err
	}
	if d.leftOut != "" {
		d.show.say("Solace is left out: %s", d.leftOut)
	}
	d.show.say("Starting stand-ins for Event Hubs, %sStripe and the spend-cap proxy.", d.withSolace("Solace, "))
	if err := d.startStandins(); err != nil {
		return err
	}
	d.show.say("Starting two ingestors of Event Hubs, %stwo chargers and the console.", d.withSolace("one of Solace, "))
	return d.startPrograms()
}

func (d *demo) withSolace(text string) string {
	if d.leftOut != "" {
		return ""
	}
	return text
}

// stage is what was started.
type stage struct {
	postgres  *localpg.Server
	pool      *pgxpool.Pool
	users     map[string]string // database role -> URL of a user that has this role alone
	publisher *publisher
	broker    *broker // nil: Solace is left out
	watcher   *watcher
	stopWatch context.CancelFunc
	watched   chan struct{}

	stripeURL, vaultURL, vaultAPIKey, encryptionKey string
	consoleURL, consolePassword                     string
	ingestors, solaceIngestors, chargers            []*program
}

// What the programs write once they can be used.
const (
	listeningLine = `(?m)^listening on (?:http://)?([^\s,]+)`
	controlLine   = `(?m)^listening on .*, control on (\S+)$`
	recordingLine = `"msg":"(recording)"`
	readyLine     = `"msg":"serving health and metrics".*"address":"([^"]+)"`
)

func (d *demo) startDatabase() error {
	var err error
	d.postgres, err = localpg.Start(d.ctx, d.cfg.localpg(d.env.Log))
	if bad, ok := errors.AsType[*localpg.BinDirError](err); ok {
		return &daemon.SettingError{
			Setting: "--postgres-bin-dir (LOCALPG_BIN_DIR)", Problem: fmt.Sprintf("names %s, which cannot be used (%v)", bad.Dir, bad.Err),
			Cure: "give the folder of initdb and postgres, or leave it out",
		}
	}
	if err != nil {
		return err
	}
	if _, err := d.fleet.runOnce(d.ctx, spec{name: "migrate", program: "migrate", args: []string{"up"}, env: []string{"DATABASE_URL=" + d.postgres.URL()}}); err != nil {
		return err
	}
	config, err := pgxpool.ParseConfig(d.postgres.URL())
	if err != nil {
		return fmt.Errorf("read the database's URL: %w", err)
	}
	config.MaxConns = poolConns
	if d.pool, err = pgxpool.NewWithConfig(d.ctx, config); err != nil {
		return fmt.Errorf("connect to the database: %w", err)
	}
	return d.makeUsers()
}

// makeUsers makes a database user for each sort of program, with that program's rights and no other.
func (d *demo) makeUsers() error {
	d.users = map[string]string{}
	for _, role := range []string{sql.RoleIngest, sql.RoleCharger, sql.RoleConsole} {
		name, password := "demo_"+role, rand.Text()
		statement := fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s' IN ROLE %s", pgx.Identifier{name}.Sanitize(), password, pgx.Identifier{role}.Sanitize())
		if _, err := d.pool.Exec(d.ctx, statement); err != nil {
			return fmt.Errorf("make a database user for %s: %w", role, err)
		}
		u, err := url.Parse(d.postgres.URL())
		if err != nil {
			return fmt.Errorf("read the database's URL: %w", err)
		}
		u.User = url.UserPassword(name, password)
		d.users[role] = "DATABASE_URL=" + u.String()
	}
	return nil
}

func (d *demo) startStandins() error {
	stripeKey := "sk_test_" + rand.Text()
	d.vaultAPIKey = "kb_" + rand.Text()
	hubKey := rand.Text()

	hubs, err := d.fleet.start(spec{name: "standin-eventhubs", program: "standin", last: true, args: []string{
		"eventhubs", "--listen", d.cfg.EventhubsListen, "--control", "127.0.0.1:0", "--hub", hub, "--partitions", fmt.Sprint(d.cfg.Partitions),
		"--consumer-group", replayGroup, "--key", hubKey,
	}})
	if err != nil {
		return err
	}
	address, err := hubs.await(d.ctx, listeningLine)
	if err != nil {
		return err
	}
	control, err := hubs.await(d.ctx, controlLine)
	if err != nil {
		return err
	}
	d.publisher = &publisher{hub: hub, control: control, connection: fmt.Sprintf(
		"Endpoint=sb://%s;SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=%s;UseDevelopmentEmulator=true", address, hubKey)}

	if d.leftOut == "" {
		if err := d.startSolace(); err != nil {
			return err
		}
	}
	if d.stripeURL, err = d.startStandin("standin-stripe",
		"stripe", "--listen", d.cfg.StripeListen, "--latency", d.cfg.StripeLatency.String(), "--auto-customers", "--key", stripeKey); err != nil {
		return err
	}
	d.vaultURL, err = d.startStandin("standin-vault",
		"vault", "--listen", d.cfg.VaultListen, "--stripe-url", d.stripeURL, "--stripe-key", stripeKey, "--api-key", d.vaultAPIKey)
	return err
}

func (d *demo) startStandin(name string, args ...string) (string, error) {
	p, err := d.fleet.start(spec{name: name, program: "standin", args: args, last: true})
	if err != nil {
		return "", err
	}
	address, err := p.await(d.ctx, listeningLine)
	return "http://" + address, err
}

// startPrograms starts all, then waits for each: they get ready side by side.
func (d *demo) startPrograms() error {
	var key [32]byte
	_, _ = rand.Read(key[:]) // never fails
	d.encryptionKey = base64.StdEncoding.EncodeToString(key[:])
	d.consolePassword = rand.Text()
	for _, name := range []string{"ingestor-1", "ingestor-2"} {
		p, err := d.startIngestor(name, mainGroup)
		if err != nil {
			return err
		}
		d.ingestors = append(d.ingestors, p)
	}
	if d.broker != nil {
		p, err := d.startSolaceIngestor()
		if err != nil {
			return err
		}
		d.solaceIngestors = []*program{p}
	}
	for _, name := range []string{"charger-1", "charger-2"} {
		p, err := d.fleet.start(spec{name: name, program: "charger", args: []string{"work"}, env: d.chargerEnv()})
		if err != nil {
			return err
		}
		d.chargers = append(d.chargers, p)
	}
	console, err := d.fleet.start(spec{
		name: "console", program: "charger", args: []string{"console", "--listen", d.cfg.ConsoleListen},
		env: []string{d.users[sql.RoleConsole], "CONSOLE_USER=" + consoleUser, "CONSOLE_PASSWORD=" + d.consolePassword},
	})
	if err != nil {
		return err
	}
	for _, p := range slices.Concat(d.ingestors, d.solaceIngestors) {
		if _, err := p.await(d.ctx, recordingLine); err != nil {
			return err
		}
	}
	for _, p := range d.chargers {
		if _, err := p.await(d.ctx, readyLine); err != nil {
			return err
		}
	}
	address, err := console.await(d.ctx, readyLine)
	d.consoleURL = "http://" + address + "/"
	return err
}

func (d *demo) startIngestor(name, group string) (*program, error) {
	return d.fleet.start(spec{name: name, program: "ingest-eventhubs", env: []string{
		d.users[sql.RoleIngest], "LISTEN=127.0.0.1:0", "BILLING_NAMESPACE=" + namespace,
		"EVENTHUB_CONNECTION_STR=" + d.publisher.connection, "EVENTHUB_NAME=" + hub, "EVENTHUB_CONSUMER_GROUP=" + group,
		"EVENTHUB_UPDATE_INTERVAL=" + updateInterval, "EVENTHUB_OWNERSHIP_EXPIRY=" + ownershipExpiry,
	}})
}

func (d *demo) chargerEnv() []string {
	return []string{
		d.users[sql.RoleCharger], "LISTEN=127.0.0.1:0",
		"VAULT_MODE=keybrake", "VAULT_URL=" + d.vaultURL, "KEYBRAKE_API_KEY=" + d.vaultAPIKey, "VAULT_ENCRYPTION_KEY=" + d.encryptionKey,
		"STRIPE_API_URL=" + d.vaultURL + "/stripe", "STRIPE_RATE_PER_SECOND=" + fmt.Sprint(d.cfg.StripeRate),
		"STRIPE_CALL_TIMEOUT=" + d.cfg.CallTimeout.String(), "INSTALLATION=demo",
	}
}

// openRuns tells the charger what the customer's contract system expects: from it, not from the events, comes the cap.
func (d *demo) openRuns() error {
	for _, e := range d.plan.expected() {
		args := []string{
			"run", "open", "--namespace", namespace, "--period", period, "--currency", e.Currency,
			"--expected-total", schema.FormatAmount(e.TotalCents, e.Currency), "--expected-count", strconv.FormatInt(e.Count, 10),
			"--actor", "demo", "--reason", "the contract system's figures for " + period,
		}
		if e.Currency != "usd" {
			// The proxy's cap is in dollars and counts every currency's minor unit as a cent.
			args = append(args, "--vault-usd-cap", schema.FormatAmount(e.TotalCents+e.TotalCents/10+1, "usd"))
		}
		said, err := d.fleet.runOnce(d.ctx, spec{name: "run-open-" + e.Currency, program: "charger", args: args, env: []string{d.users[sql.RoleCharger]}})
		if err != nil {
			return err
		}
		d.show.say("charger run open: %s", said)
	}
	return nil
}

// killAndRestart kills the first of the programs and starts it again after a moment.
func (d *demo) killAndRestart(ctx context.Context, programs []*program, ready string) error {
	old := programs[0]
	old.kill()
	if err := wait(ctx, restartAfter); err != nil {
		return err
	}
	p, err := d.fleet.start(old.spec)
	if err != nil {
		return err
	}
	programs[0] = p
	if _, err := p.await(ctx, ready); err != nil {
		return err
	}
	d.show.say("%s runs again.", p.name)
	return nil
}

// watch begins to look at the database and to show progress.
func (d *demo) watch() {
	d.watcher = &watcher{
		pool: d.pool, publisher: d.publisher, broker: d.broker, expect: d.plan.Published, show: d.show, changed: make(chan struct{}),
	}
	ctx, stop := context.WithCancel(d.ctx)
	d.stopWatch, d.watched = stop, make(chan struct{})
	go func() {
		defer close(d.watched)
		d.watcher.run(ctx)
	}()
}

// end stops all that was started, in the order that lets each end well.
func (d *demo) end(ctx context.Context) error {
	d.cancel(nil)
	if d.stopWatch != nil {
		d.stopWatch()
		<-d.watched
	}
	err := d.fleet.stopAll(stopGrace)
	if d.pool != nil {
		d.pool.Close()
	}
	if d.postgres == nil {
		return err
	}
	if stopErr := d.postgres.Stop(ctx); stopErr != nil {
		err = errors.Join(err, fmt.Errorf("stop Postgres: %w", stopErr))
	}
	return err
}
