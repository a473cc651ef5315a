package file

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"chargeonce/ingest"
	"chargeonce/schema"
)

// SourceName is what the intents of this source are recorded under.
const SourceName = "file"

// Import records what the files hold, in their order and by one writer: of two events with one key the earlier stays. Batches go over
// the ends of files. When ctx ends it finishes the batch in hand, for as long as Config.StopGrace allows, and returns ctx's cause; the
// report is then of what was recorded until then. Everything can be imported again: what is recorded counts as a redelivery.
//
// It returns an error where the system could not read a file, or the recorder gave up; what the files say never makes one. The report
// is never nil.
func (i *Importer) Import(ctx context.Context, set *Set) (*Report, error) {
	reading, stop := context.WithCancelCause(ctx)
	recording, endRecording := context.WithCancelCause(context.WithoutCancel(ctx))
	defer endRecording(nil)
	stopTimer := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(i.cfg.StopGrace, func() { endRecording(errGraceOver) })
		context.AfterFunc(recording, func() { timer.Stop() })
	})
	defer stopTimer()

	batches, ended := make(chan *batch), make(chan struct{})
	go func() {
		defer close(ended)
		i.readAll(reading, set, batches)
	}()
	defer func() {
		stop(nil)
		if !set.hasPipe() {
			<-ended // a read from a pipe may never end
		}
	}()
	report := newReport(set)
	for {
		var b *batch
		select {
		case <-ctx.Done():
		case b = <-batches:
		}
		switch {
		case ctx.Err() != nil:
			return report, context.Cause(ctx)
		case b == nil:
			report.Complete = true
			return report, nil
		}
		if err := i.record(recording, b, report); err != nil {
			return report, err
		}
		if b.err != nil {
			return report, b.err
		}
	}
}

// errGraceOver says that the batch in hand could not be recorded in time.
var errGraceOver = errors.New("told to stop, and the batch in hand could not be recorded in time")

// Importer imports files.
type Importer struct {
	cfg      Config
	recorder Recorder
	bytes    atomic.Int64
	objects  atomic.Int64
}

// Config says how files are read.
type Config struct {
	Format       Format         // empty: FormatAuto
	CSVDelimiter byte           // 0: a comma, a tab where the name ends in .tsv
	MaxBodyBytes int            // of a line, element, row or event; 0: schema.DefaultMaxBodyBytes
	Mapping      schema.Mapping // as the recorder's, for the columns of CSV
	StopGrace    time.Duration  // what the batch in hand gets to commit when told to stop; 0: 10 s
}

// Recorder takes batches: an ingest.Recorder, or an ingest.Preview where nothing is to be written.
type Recorder interface {
	RecordEach(ctx context.Context, batch []ingest.Delivery, inTx ingest.InTx, each func(ingest.ObjectResult)) (ingest.Counts, error)
}

// Validate tells what of the settings cannot work.
func (c Config) Validate() error {
	if !slices.Contains([]Format{"", FormatAuto, FormatNDJSON, FormatJSON, FormatCSV, FormatCapture}, c.Format) {
		return fmt.Errorf("format %q is none of auto, ndjson, json, csv, avro", c.Format)
	}
	if c.MaxBodyBytes < 0 || c.StopGrace < 0 {
		return errors.New("a limit is negative")
	}
	if c.CSVDelimiter != 0 {
		return checkDelimiter(c.CSVDelimiter)
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.Format == "" {
		c.Format = FormatAuto
	}
	if c.MaxBodyBytes == 0 {
		c.MaxBodyBytes = schema.DefaultMaxBodyBytes
	}
	if c.StopGrace == 0 {
		c.StopGrace = 10 * time.Second
	}
	return c
}

// New makes an Importer.
func New(cfg Config, recorder Recorder) (*Importer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("make importer: %w", err)
	}
	return &Importer{cfg: cfg.withDefaults(), recorder: recorder}, nil
}

// Progress is how many bytes were read and how many objects recorded. It may be asked while Import runs.
func (i *Importer) Progress() (bytes, objects int64) { return i.bytes.Load(), i.objects.Load() }

// batch is what one transaction records.
type batch struct {
	deliveries []ingest.Delivery
	bytes      int // of bodies and what goes with them
	unread     []Unread
	files      int   // whose end is in it
	err        error // a file could not be read; nothing follows
}

// add reports false when there is no more room.
func (b *batch) add(r record) bool {
	size := len(r.Body)
	for _, text := range []map[string]string{r.Attrs, r.Detail} {
		for name, value := range text {
			size += len(name) + len(value)
		}
	}
	if len(b.deliveries) == ingest.MaxBatchDeliveries || (len(b.deliveries) > 0 && b.bytes+size > ingest.MaxBatchBytes) {
		return false
	}
	b.deliveries = append(b.deliveries, r.Delivery)
	b.bytes += size
	if r.lost {
		// As the recorder names the one object that an unreadable delivery is.
		b.unread = append(b.unread, Unread{Position: r.Position + "/0", Reason: r.Unreadable.Message})
	}
	return true
}

// readAll sends the batches of all files and closes the channel, or gives up when ctx ends.
func (i *Importer) readAll(ctx context.Context, set *Set, batches chan<- *batch) {
	defer close(batches)
	b := &batch{}
	send := func() bool {
		select {
		case <-ctx.Done():
			return false
		case batches <- b:
			b = &batch{}
			return true
		}
	}
	for _, f := range set.files {
		err := i.readFile(ctx, f, func(r record) bool {
			return b.add(r) || (send() && b.add(r))
		})
		if err != nil {
			b.err = &PathError{f.path, reason(err)}
			send()
			return
		}
		if ctx.Err() != nil {
			return
		}
		b.files++
	}
	send()
}

// readFile gives the records of one file to take until that says no.
func (i *Importer) readFile(ctx context.Context, f *found, take func(record) bool) error {
	r, file, err := f.open(i.cfg, &i.bytes)
	if err != nil {
		return err
	}
	defer file.Close()
	for ctx.Err() == nil {
		rec, err := r.next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if !take(rec) {
			return nil
		}
	}
	return nil
}

func (i *Importer) record(ctx context.Context, b *batch, report *Report) error {
	_, err := i.recorder.RecordEach(ctx, b.deliveries, nil, func(o ingest.ObjectResult) {
		report.count(o)
		i.objects.Add(1)
	})
	if err != nil {
		return err
	}
	report.FilesRead += b.files
	report.addUnread(b.unread)
	return nil
}
