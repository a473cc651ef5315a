package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

const (
	barEvery   = 100 * time.Millisecond
	plainEvery = 10 * time.Second
)

// progress shows on stderr how far an import is: a bar on a terminal, else a plain line every ten seconds.
type progress struct {
	out   io.Writer
	total int64 // bytes; -1 when unknown
	began time.Time
	bar   *progressbar.ProgressBar // nil where no terminal is
	every time.Duration
}

func newProgress(total int64, known bool) *progress {
	if !known {
		total = -1
	}
	p := &progress{out: os.Stderr, total: total, began: time.Now(), every: plainEvery}
	if term.IsTerminal(int(os.Stderr.Fd())) && os.Getenv("TERM") != "dumb" && total != 0 {
		p.every = barEvery
		p.bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(os.Stderr), progressbar.OptionShowBytes(true),
			progressbar.OptionShowTotalBytes(true), progressbar.OptionShowCount(), progressbar.OptionSetPredictTime(true), progressbar.OptionSetElapsedTime(true),
			progressbar.OptionThrottle(barEvery/2), progressbar.OptionSetWidth(20), progressbar.OptionClearOnFinish())
	}
	return p
}

// follow shows what now returns, bytes and objects, until stop.
func (p *progress) follow(now func() (bytes, objects int64)) (stop func()) {
	done := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		tick := time.NewTicker(p.every)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				p.show(now())
			}
		}
	})
	return func() {
		close(done)
		running.Wait()
		if p.bar != nil {
			_ = p.bar.Finish() // and clears it; stderr may be gone
			_ = p.bar.Clear()
		}
	}
}

func (p *progress) show(bytes, objects int64) {
	if p.bar != nil {
		p.bar.Describe(fmt.Sprintf("%d events", objects))
		if p.total > 0 {
			bytes = min(bytes, p.total-1) // the last byte is read before its event is recorded
		}
		_ = p.bar.Set64(bytes) // stderr may be gone
		return
	}
	const mb = 1_000_000
	took := time.Since(p.began)
	of, left := "", ""
	if p.total > 0 && bytes > 0 {
		of = fmt.Sprintf(" of %d MB (%d%%)", p.total/mb, min(bytes, p.total)*100/p.total)
		left = fmt.Sprintf(", %s left", time.Duration(float64(took)*float64(max(p.total-bytes, 0))/float64(bytes)).Round(time.Second))
	}
	fmt.Fprintf(p.out, "%s: %d events, read %d MB%s, %.0f events/s%s\n", name, objects, bytes/mb, of, float64(objects)/took.Seconds(), left)
}

// logger is log, which clears the bar from its line first.
func (p *progress) logger(log *slog.Logger) *slog.Logger {
	if p.bar == nil {
		return log
	}
	return slog.New(clearing{log.Handler(), p.bar})
}

type clearing struct {
	slog.Handler
	bar *progressbar.ProgressBar
}

func (c clearing) Handle(ctx context.Context, r slog.Record) error {
	_ = c.bar.Clear() // as above
	return c.Handler.Handle(ctx, r)
}

func (c clearing) WithAttrs(attrs []slog.Attr) slog.Handler {
	return clearing{c.Handler.WithAttrs(attrs), c.bar}
}

func (c clearing) WithGroup(group string) slog.Handler {
	return clearing{c.Handler.WithGroup(group), c.bar}
}
