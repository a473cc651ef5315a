package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"chargeonce/charger"
	"chargeonce/charger/stripecharge"
	"chargeonce/deploy/daemon"
	"chargeonce/schema"
	"chargeonce/sql/queries"
)

// reconcile is the command that holds Stripe's books against a run's intents.
type reconcile struct {
	database
	whichRun
	stripeAccess
	Actor string `help:"Who does this; the system user unless given." env:"CHARGER_ACTOR"`
	From  string `help:"List Stripe's books from this day on, instead of 24 hours before the run's first send: after a restore, from before it." placeholder:"2026-08-01"`
	Last  bool   `help:"Do not compare; show what the last finished comparison found, by hand or by schedule."`
	CSV   string `name:"csv" help:"Write what was found to this file as well, a line each." placeholder:"FILE"`
	JSON  bool   `help:"Print JSON."`
}

// Help is kong's: what stands above the flags.
func (reconcile) Help() string {
	return "Lists every payment intent and charge of the run's Stripe account since the run's first send, and reports doubles, charges without an intent " +
		"or not recorded, intents recorded as charged without a charge, and wrong amounts, currencies and customers; refunds are listed beside them. " +
		"It charges nobody and changes nothing. It can be stopped, or killed, and run again: it goes on where it was. " +
		"Exit code 0: the books agree. 1: something was found, or the comparison did not come to its end. 2: usage, settings, or another process is at it."
}

// Validate is called by kong; it names the setting and the cure.
func (r reconcile) Validate() error {
	if err := r.database.Validate(); err != nil {
		return err
	}
	if _, err := r.from(); err != nil {
		return err
	}
	if r.Last { // asks the database alone
		return nil
	}
	return r.stripeAccess.Validate()
}

func (r reconcile) from() (*time.Time, error) {
	if r.From == "" {
		return nil, nil
	}
	from, err := time.Parse(time.DateOnly, r.From)
	if err != nil || from.Year() < 2010 {
		return nil, &daemon.SettingError{Setting: "--from", Problem: fmt.Sprintf("is %q", r.From), Cure: "give a day, like 2026-08-01"}
	}
	return &from, nil
}

// Run is the command.
func (r *reconcile) Run(ctx context.Context, env daemon.Env) error {
	key, err := r.key()
	if err != nil {
		return err
	}
	file, err := r.file()
	if err != nil {
		return err
	}
	if file != nil {
		defer file.Close()
	}
	return asOperator(ctx, env, r.database, func(pool *pgxpool.Pool) error {
		done, err := r.compare(ctx, env, pool, key)
		if err != nil {
			return err
		}
		runs := charger.Runs{Pool: pool}
		if file != nil {
			if err := writeCSV(file, done, runs.ReconcileFindings(ctx, done.ID)); err != nil {
				return fmt.Errorf("write %s: %w", r.CSV, err)
			}
		}
		if r.JSON {
			err = printReconciledJSON(ctx, env.Stdout, runs, done)
		} else {
			err = printReconciled(ctx, env.Stdout, runs, done)
		}
		if err == nil && !done.Clean {
			return daemon.ErrFound
		}
		return err
	})
}

// compare makes the comparison, or finds the last one.
func (r *reconcile) compare(ctx context.Context, env daemon.Env, pool *pgxpool.Pool, key queries.RunGetParams) (charger.Reconciliation, error) {
	if r.Last {
		return charger.Runs{Pool: pool}.LastReconciliation(ctx, key)
	}
	from, err := r.from()
	if err != nil {
		return charger.Reconciliation{}, err
	}
	keys, err := r.keys()
	if err != nil {
		return charger.Reconciliation{}, err
	}
	id, err := processID()
	if err != nil {
		return charger.Reconciliation{}, err
	}
	bar := newBar(env.Name)
	c, err := charger.New(charger.Config{
		Pool: pool, RiverPool: pool, Keys: keys, StripeAPI: stripecharge.APIPaymentIntents, Installation: r.Installation,
		RatePerSecond: r.StripeRatePerSecond, CallTimeout: r.CallTimeout, ID: id, Logger: bar.logger(env.Log), Registry: env.Registry,
	})
	if err != nil {
		return charger.Reconciliation{}, err
	}
	done, err := c.Reconcile(ctx, key, charger.ReconcileOptions{Actor: who{Actor: r.Actor}.actor(), From: from, Progress: bar.show})
	bar.clear()
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return done, errors.New("stopped before the comparison came to its end: the same command goes on where it was")
	}
	return done, err
}

// file opens the report before the work begins, and leaves what stands in it until the new one is there.
func (r *reconcile) file() (*os.File, error) {
	if r.CSV == "" {
		return nil, nil
	}
	file, err := os.OpenFile(r.CSV, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return nil, &daemon.SettingError{Setting: "--csv", Problem: "names a file that cannot be written (" + err.Error() + ")", Cure: "give another one"}
	}
	return file, nil
}

// shownMost is how many findings the table for people has of each sort; --csv and --json have all.
const shownMost = 100

func printReconciled(ctx context.Context, w io.Writer, runs charger.Runs, done charger.Reconciliation) error {
	amount := func(cents int64) string { return schema.FormatAmount(cents, done.Currency) + " " + done.Currency }
	fmt.Fprintf(w, "reconciliation %d of %s %s %s, by %s at %s UTC: Stripe's books since %s UTC\n", done.ID, done.Namespace, done.BillingPeriod, done.Currency,
		done.Actor, utc(done.StartedAt), utc(done.ListedFrom))
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	n := done.Counted
	for _, row := range []struct {
		count int64
		what  string
	}{
		{n.PaymentIntents, "payment intents on Stripe's list, whoever's"},
		{n.Charges, "charges on Stripe's list, whoever's"},
		{n.Unmarked, "of these no charger made"},
		{n.RunPayments, "payments of this run: " + amount(n.RunCents) + ", of which " + amount(n.RefundedCents) + " refunded"},
		{n.OtherRuns, "payments of other runs"},
		{n.OtherInstallations, "payments of other installations"},
		{n.Intents, "intents compared"},
	} {
		fmt.Fprintf(table, "%d\t  %s\n", row.count, row.what)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	var found int64
	for _, count := range done.Findings {
		found += count
	}
	if err := printFindings(ctx, w, runs, done, "found", found, false); err != nil {
		return err
	}
	if err := printFindings(ctx, w, runs, done, "refunded", done.Refunds, true); err != nil {
		return err
	}
	words := "\nclean: every charge has its intent, and every charged intent its charge"
	if !done.Clean {
		words = fmt.Sprintf("\n%d found:", found)
		for _, kind := range charger.FindingKinds() {
			if count := done.Findings[kind]; count > 0 {
				words += fmt.Sprintf(" %d %s,", count, kind)
			}
		}
		words = strings.TrimSuffix(words, ",")
	}
	_, err := fmt.Fprintln(w, words)
	return err
}

func printFindings(ctx context.Context, w io.Writer, runs charger.Runs, done charger.Reconciliation, title string, total int64, refunds bool) error {
	if total == 0 {
		return nil
	}
	fmt.Fprintf(w, "\n%s:\n", title)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "KIND\tINTENT\tCUSTOMER\tAMOUNT\tDETAIL")
	shown := 0
	for f, err := range runs.ReconcileFindings(ctx, done.ID) {
		if err != nil {
			return err
		}
		if (f.Kind == charger.FindingRefunded) != refunds {
			continue
		}
		if shown++; shown > shownMost {
			break
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", f.Kind, intentNumber(f, "-"), printable(f.CustomerID), money(f.AmountCents, printable(f.Currency)), printable(f.Detail))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if left := total - shownMost; left > 0 {
		fmt.Fprintf(w, "and %d more: --csv FILE or --json shows all\n", left)
	}
	return nil
}

// printReconciledJSON streams the findings: there may be as many as the run has intents.
func printReconciledJSON(ctx context.Context, w io.Writer, runs charger.Runs, done charger.Reconciliation) error {
	head, err := json.MarshalIndent(done, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the reconciliation: %w", err)
	}
	if _, err := w.Write(bytes.TrimSuffix(head, []byte("\n}"))); err != nil {
		return err
	}
	for _, list := range []struct {
		name    string
		refunds bool
	}{{"findings", false}, {"refunded", true}} {
		separator := fmt.Sprintf(",\n  %q: [", list.name)
		for f, err := range runs.ReconcileFindings(ctx, done.ID) {
			if err != nil {
				return err
			}
			if (f.Kind == charger.FindingRefunded) != list.refunds {
				continue
			}
			encoded, err := json.MarshalIndent(f, "    ", "  ")
			if err != nil {
				return fmt.Errorf("encode a finding: %w", err)
			}
			if _, err := fmt.Fprintf(w, "%s\n    %s", separator, encoded); err != nil {
				return err
			}
			separator = ","
		}
		end := "\n  ]"
		if separator != "," {
			end = separator + "]"
		}
		if _, err := io.WriteString(w, end); err != nil {
			return err
		}
	}
	_, err = io.WriteString(w, "\n}\n")
	return err
}

func writeCSV(file *os.File, done charger.Reconciliation, findings func(func(charger.Finding, error) bool)) error {
	if err := file.Truncate(0); err != nil && !errors.Is(err, os.ErrInvalid) { // a pipe has nothing to truncate
		return err
	}
	w := csv.NewWriter(file)
	if err := w.Write([]string{
		"reconciliation_id", "namespace", "billing_period", "kind", "intent_id", "customer_id", "stripe_customer_id", "object_ids", "amount", "currency", "detail",
	}); err != nil {
		return err
	}
	for f, err := range findings {
		if err != nil {
			return err
		}
		if err := w.Write([]string{
			strconv.FormatInt(done.ID, 10), done.Namespace, done.BillingPeriod, f.Kind, intentNumber(f, ""), cell(f.CustomerID), cell(f.StripeCustomer),
			strings.Join(f.ObjectIDs, " "), schema.FormatAmount(f.AmountCents, f.Currency), cell(f.Currency), cell(f.Detail),
		}); err != nil {
			return err
		}
	}
	w.Flush()
	return w.Error()
}

func intentNumber(f charger.Finding, none string) string {
	if f.IntentID == nil {
		return none
	}
	return strconv.FormatInt(*f.IntentID, 10)
}

// printable quotes what would move a terminal's cursor: a payment's metadata is whatever somebody wrote there.
func printable(text string) string {
	for _, r := range text {
		if !strconv.IsPrint(r) {
			return strconv.Quote(text)
		}
	}
	return text
}

// cell keeps a spreadsheet from taking foreign text for a formula.
func cell(text string) string {
	if text != "" && strings.ContainsRune("=+-@\t\r", rune(text[0])) {
		return "'" + text
	}
	return text
}

// bar shows on stderr how far a comparison is: a bar on a terminal, else a plain line every ten seconds.
type bar struct {
	name  string
	stage string
	told  time.Time
	bar   *progressbar.ProgressBar // nil where no terminal is, and before the first part
	lives bool
}

const (
	barSteps   = 1000
	plainEvery = 10 * time.Second
)

func newBar(name string) *bar {
	return &bar{name: name, told: time.Now(), lives: term.IsTerminal(int(os.Stderr.Fd())) && os.Getenv("TERM") != "dumb"}
}

func (b *bar) show(p charger.ReconcileProgress) {
	words := map[string]string{
		"payment_intents": "%d payment intents listed", "charges": "%d charges listed", "intents": "%d intents compared",
		"payments": "%d payments without an intent read", "waiting": "waits for the end of %d call on its way",
	}[p.Stage]
	words = fmt.Sprintf(words, p.Done)
	if !b.lives {
		if time.Since(b.told) >= plainEvery {
			b.told = time.Now()
			fmt.Fprintf(os.Stderr, "%s: %s, %.0f%%\n", b.name, words, 100*p.Share)
		}
		return
	}
	if b.bar == nil || b.stage != p.Stage {
		b.clear()
		b.stage = p.Stage
		b.bar = progressbar.NewOptions64(barSteps, progressbar.OptionSetWriter(os.Stderr), progressbar.OptionSetPredictTime(true),
			progressbar.OptionSetElapsedTime(true), progressbar.OptionThrottle(50*time.Millisecond), progressbar.OptionSetWidth(20), progressbar.OptionClearOnFinish())
	}
	b.bar.Describe(words)
	_ = b.bar.Set64(min(int64(barSteps*p.Share), barSteps-1)) // stderr may be gone
}

func (b *bar) clear() {
	if b.bar != nil {
		_ = b.bar.Clear() // as above
	}
}

// logger is log, which clears the bar from its line first.
func (b *bar) logger(log *slog.Logger) *slog.Logger {
	return slog.New(clearing{log.Handler(), b})
}

type clearing struct {
	slog.Handler
	bar *bar
}

func (c clearing) Handle(ctx context.Context, record slog.Record) error {
	c.bar.clear()
	return c.Handler.Handle(ctx, record)
}
