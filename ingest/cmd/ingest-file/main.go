// Command ingest-file records the billing events of files as billing intents, or says what that would do.
package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"chargeonce/deploy/daemon"
	"chargeonce/ingest"
	"chargeonce/ingest/file"
	"chargeonce/schema"
	"chargeonce/sql"
)

const (
	name = "ingest-file"
	// databaseConns are the connections to the database: one writer, and one to spare.
	databaseConns = 2
	// maxMaxBodyBytes bounds the limit on a body, in bytes.
	maxMaxBodyBytes = 64 << 20
)

func main() { daemon.Main(about(), run) }

func about() daemon.About {
	return daemon.About{
		Name: name,
		Help: "Records the billing events of files as billing intents in Postgres: newline-delimited JSON, JSON arrays, CSV with a header row, " +
			"Event Hubs Capture (Avro), each also compressed with gzip. It charges nobody. It can be stopped and run again at will: what is recorded counts as already recorded. " +
			"Exit code 0: everything was read, and nothing new is wrong with it. 1: something was quarantined or in conflict now, " +
			"a file could not be read to its end, or the import was stopped. 2: usage, settings, or files that cannot be imported; nothing was recorded.",
	}
}

// run imports the files, or previews that, and shows what became of their events.
func run(ctx context.Context, env daemon.Env, cfg *config) error {
	if len(cfg.Files) == 0 {
		return &daemon.SettingError{Setting: "FILE", Problem: "is missing", Cure: "name files or folders, or - for standard input"}
	}
	set, err := file.Find(cfg.Files, cfg.reading())
	if err != nil {
		return fileError(err)
	}
	pool, err := daemon.OpenPool(ctx, cfg.DatabaseURL, sql.RoleIngest, databaseConns, name)
	if err != nil {
		return beforeStart(ctx, err)
	}
	defer pool.Close()
	if err := checkMigrated(ctx, pool); err != nil {
		return beforeStart(ctx, err)
	}
	total, known := set.Bytes()
	progress := newProgress(total, known)
	recorder, err := ingest.NewRecorder(cfg.recorder(), pool, nil, progress.logger(env.Log))
	if err != nil {
		return &daemon.SettingError{Setting: "BILLING_NAMESPACE", Problem: "cannot be used (" + err.Error() + ")"}
	}
	to, err := recordTo(ctx, recorder, cfg.DryRun)
	if err != nil {
		return beforeStart(ctx, err)
	}
	importer, err := file.New(cfg.reading(), to)
	if err != nil {
		return err
	}
	stop := progress.follow(importer.Progress)
	report, err := importer.Import(ctx, set)
	stop()
	stopped := ctx.Err() != nil && errors.Is(err, context.Canceled)
	if err := show(env.Stdout, report, cfg, stopped); err != nil {
		return err
	}
	switch {
	case errors.Is(err, ingest.ErrPreviewFull):
		return fmt.Errorf("%w; the figures are of the files until there", err)
	case err != nil && !stopped:
		return fmt.Errorf("%w; everything above stands, run the same command again to go on", err)
	case stopped, report.Found():
		return daemon.ErrFound
	}
	return nil
}

// recordTo is what the batches go to: the database, or in a dry run a preview of that.
func recordTo(ctx context.Context, recorder *ingest.Recorder, dryRun bool) (file.Recorder, error) {
	if dryRun {
		preview := recorder.NewPreview(0)
		return preview, registerError(preview.CheckRegistered(ctx))
	}
	return recorder, registerError(recorder.Register(ctx))
}

// beforeStart makes an error of being told to stop: a script must not take the files for imported.
func beforeStart(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return errors.New("stopped before anything was recorded: run the same command again")
	}
	return err
}

type config struct {
	Files []string `arg:"" optional:"" name:"file" help:"Files, and folders with all files below them in the order of their names; - is standard input."`

	DatabaseURL daemon.Secret `help:"Address of the database." env:"DATABASE_URL" placeholder:"URL"`

	Namespace             string         `help:"Business stream that the intents belong to, such as usage-billing." env:"BILLING_NAMESPACE" placeholder:"NAME"`
	PeriodFormat          string         `help:"Format of billing periods: ${enum}." enum:"month,day,week,quarter,year" default:"month" env:"BILLING_PERIOD_FORMAT"`
	ManyPerStripeCustomer bool           `help:"Let several intents charge one Stripe customer for one period and currency." env:"BILLING_MANY_PER_STRIPE_CUSTOMER"`
	Map                   []string       `help:"Where a foreign event keeps a field, such as customer_id=/subject, of CSV customer_id=/COLUMN; may be repeated." sep:"none" placeholder:"FIELD=/POINTER"`
	MaxBodyBytes          int            `help:"Largest line, element, row or event, in bytes." default:"1048576" env:"MAX_BODY_BYTES"`
	Format                string         `help:"How the files hold events: ${enum}; auto tells by content and name." enum:"auto,ndjson,json,csv,avro" default:"auto"`
	CSVDelimiter          string         `name:"csv-delimiter" help:"What separates the fields of CSV: one character, or tab. Unless given a comma, in files named .tsv a tab." placeholder:"CHARACTER"`
	DryRun                bool           `help:"Write nothing; say what would be new, duplicate, already recorded, in conflict or bad."`
	JSON                  bool           `help:"Print the summary as JSON."`
	StopGrace             time.Duration  `help:"What the batch in hand gets to commit when told to stop." default:"10s" env:"STOP_GRACE"`
	mapping               schema.Mapping `kong:"-"`
	delimiter             byte           `kong:"-"`
}

// Validate is asked before run, and by --check-config.
func (c *config) Validate() error {
	if err := daemon.CheckDatabaseURL(c.DatabaseURL); err != nil {
		return err
	}
	if c.Namespace == "" {
		return &daemon.SettingError{Setting: "BILLING_NAMESPACE", Problem: "is not set", Cure: "name the business stream, such as usage-billing"}
	}
	if err := schema.CheckNamespace(c.Namespace); err != nil {
		return &daemon.SettingError{Setting: "BILLING_NAMESPACE", Problem: "cannot be used (" + err.Error() + ")"}
	}
	mapping, err := schema.ParseMapping(c.Map)
	if err != nil {
		return &daemon.SettingError{Setting: "--map", Problem: "cannot be used (" + err.Error() + ")"}
	}
	c.mapping = mapping
	if c.MaxBodyBytes < 1 || c.MaxBodyBytes > maxMaxBodyBytes {
		return &daemon.SettingError{Setting: "--max-body-bytes", Problem: fmt.Sprintf("cannot be %d", c.MaxBodyBytes), Cure: fmt.Sprintf("give 1 to %d bytes", maxMaxBodyBytes)}
	}
	if c.StopGrace <= 0 {
		return &daemon.SettingError{Setting: "--stop-grace", Problem: fmt.Sprintf("cannot be %s", c.StopGrace), Cure: "give a time above 0, such as 5s"}
	}
	switch {
	case c.CSVDelimiter == "tab" || c.CSVDelimiter == `\t`:
		c.delimiter = '\t'
	case len(c.CSVDelimiter) == 1:
		c.delimiter = c.CSVDelimiter[0]
	case c.CSVDelimiter != "":
		return &daemon.SettingError{Setting: "--csv-delimiter", Problem: fmt.Sprintf("cannot be %q", c.CSVDelimiter), Cure: "give one character, such as ';', or tab"}
	}
	if err := c.reading().Validate(); err != nil {
		return &daemon.SettingError{Setting: "--csv-delimiter", Problem: fmt.Sprintf("cannot be %q (%s)", c.CSVDelimiter, err)}
	}
	return nil
}

func (c *config) recorder() ingest.Config {
	return ingest.Config{
		Namespace: c.Namespace, Source: file.SourceName, PeriodFormat: schema.PeriodFormat(c.PeriodFormat), Mapping: c.mapping,
		MaxBodyBytes: c.MaxBodyBytes, ManyPerStripeCustomer: c.ManyPerStripeCustomer,
	}
}

func (c *config) reading() file.Config {
	return file.Config{
		Format: file.Format(c.Format), CSVDelimiter: c.delimiter, MaxBodyBytes: c.MaxBodyBytes, Mapping: c.mapping, StopGrace: c.StopGrace,
	}
}

func fileError(err error) error {
	path, ok := errors.AsType[*file.PathError](err)
	if !ok {
		return err
	}
	cure := path.Err.Error()
	if errors.Is(err, file.ErrNoFormat) {
		cure += "; --format says how a file holds events"
	}
	return &daemon.SettingError{Setting: shown(path.Path), Problem: "cannot be imported, and nothing was recorded", Cure: cure}
}

func registerError(err error) error {
	if errors.Is(err, ingest.ErrDisagreement) {
		return &daemon.SettingError{
			Setting: "BILLING_NAMESPACE", Problem: "is read otherwise by others (" + err.Error() + ")",
			Cure: "give this ingestor the registered words, or another namespace",
		}
	}
	return err
}

func checkMigrated(ctx context.Context, pool *pgxpool.Pool) error {
	err := sql.Check(ctx, pool)
	if errors.Is(err, sql.ErrNotMigrated) {
		return &daemon.SettingError{Setting: "DATABASE_URL", Problem: "leads to a database without this program's tables (" + err.Error() + ")"}
	}
	return err
}
