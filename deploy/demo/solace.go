package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"chargeonce/ingest/solace/solacetest"
	"chargeonce/sql"
)

const (
	solaceQueue   = "billing-events"
	solaceTopic   = "billing/events/usage"
	solaceUser    = "demo"
	solaceProgram = "ingest-solace"
	publisherOfIt = "publish-solace"
	// tryTimeout is what a program gets to show its help.
	tryTimeout = 30 * time.Second
)

// whySolaceIsLeftOut is empty when the programs with Solace's client work. Without a C compiler they are built without it.
func whySolaceIsLeftOut(ctx context.Context, binDir string) string {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	for _, program := range []string{solaceProgram, publisherOfIt} {
		var stderr bytes.Buffer
		cmd := exec.CommandContext(ctx, filepath.Join(binDir, program), "--help") //nolint:gosec // G204: our own programs
		cmd.Env, cmd.Stderr = ownEnv(), &stderr
		if err := cmd.Run(); err != nil {
			said, _, _ := strings.Cut(strings.TrimSpace(stderr.String()), "\n")
			if said == "" {
				said = fmt.Sprintf("%s: %v", program, err)
			}
			return said
		}
	}
	return ""
}

// broker is the Solace stand-in.
type broker struct {
	address, control, password string
}

func (d *demo) startSolace() error {
	d.broker = &broker{password: rand.Text()}
	p, err := d.fleet.start(spec{name: "standin-solace", program: "standin", last: true, args: []string{
		"solace", "--listen", d.cfg.SolaceListen, "--control", "127.0.0.1:0", "--queue", solaceQueue, "--topic", "billing/events/>",
		"--user", solaceUser, "--password", d.broker.password,
	}})
	if err != nil {
		return err
	}
	if d.broker.address, err = p.await(d.ctx, listeningLine); err != nil {
		return err
	}
	d.broker.control, err = p.await(d.ctx, controlLine)
	return err
}

// env is what both of Solace's programs are told.
func (b *broker) env() []string {
	return []string{"SOLACE_HOST=tcp://" + b.address, "SOLACE_VPN=default", "SOLACE_USER=" + solaceUser, "SOLACE_PASSWORD=" + b.password}
}

func (d *demo) startSolaceIngestor() (*program, error) {
	return d.fleet.start(spec{name: "ingestor-solace", program: solaceProgram, env: append(d.broker.env(),
		d.users[sql.RoleIngest], "LISTEN=127.0.0.1:0", "BILLING_NAMESPACE="+namespace, "SOLACE_QUEUE="+solaceQueue)})
}

// publishOverSolace sends the plan's messages with the real client, in a program of its own: this one needs no C compiler.
func (d *demo) publishOverSolace(ctx context.Context) error {
	if d.broker == nil {
		return nil
	}
	var lines bytes.Buffer
	for _, m := range d.plan.Solace {
		lines.Write(append(m.Body, '\n'))
	}
	input := filepath.Join(d.dir, publisherOfIt+".in")
	if err := os.WriteFile(input, lines.Bytes(), 0o600); err != nil {
		return fmt.Errorf("write what is to be published: %w", err)
	}
	rate := 0 // as fast as it goes
	if d.cfg.PublishFor > 0 {
		rate = max(1, int(float64(len(d.plan.Solace))/d.cfg.PublishFor.Seconds()))
	}
	_, err := d.fleet.runOnce(ctx, spec{
		name: publisherOfIt, program: publisherOfIt, args: []string{"--topic", solaceTopic, "--rate", strconv.Itoa(rate)}, env: d.broker.env(), input: input,
	})
	return err
}

// look returns what the broker has taken, and what nobody has acknowledged yet.
func (b *broker) look(ctx context.Context) (taken, waiting int, err error) {
	var ledger solacetest.Ledger
	if err := getJSON(ctx, b.control+"/_standin/ledger", &ledger); err != nil {
		return 0, 0, err
	}
	for _, q := range ledger.Queues {
		taken += int(q.Spooled)
		waiting += q.OnQueue
	}
	return taken, waiting, nil
}

func (d *demo) killSolaceIngestor(ctx context.Context) error {
	if !d.cfg.KillIngestor || d.broker == nil {
		return nil
	}
	want := d.plan.Published.OverSolace * killIngestorAt / 100
	if err := d.watcher.until(ctx, func(s state) bool { return s.Sources[sourceSolace].objects() >= want }); err != nil {
		return err
	}
	d.show.say("Fault: kill -9 of %s. What it recorded and had not acknowledged comes again.", d.solaceIngestors[0].name)
	return d.killAndRestart(ctx, d.solaceIngestors, readyLine)
}
