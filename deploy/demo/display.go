package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	plainEvery = 2 * time.Second
	barWidth   = 24 // with figures and note, a line stays below 80 columns: a wrapped one could not be redrawn
	// barLines are redrawn on a terminal.
	barLines = 3
	clearUp  = "\x1b[1A\x1b[2K"
)

// say writes one plain line about what is happening.
func (d *display) say(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.erase()
	fmt.Fprintf(d.out, format+"\n", args...)
	d.draw()
}

// display shows lines and, below them, progress: bars that are redrawn on a terminal, else a line every two seconds if
// something changed. Its methods may be called from any goroutine.
type display struct {
	out      io.Writer
	terminal bool
	began    time.Time

	mu    sync.Mutex
	bars  []string
	drawn bool
	done  bool
	last  string
	lastT time.Time
}

func newDisplay(out io.Writer) *display {
	return &display{out: out, terminal: isTerminal(out) && os.Getenv("TERM") != "dumb", began: time.Now()}
}

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func (d *display) progress(s state) {
	expect := s.Expect
	recorded := s.Counters.objects()
	ended := s.Statuses["charged"] + s.Statuses["card_declined"] + s.Statuses["nothing_due"] + s.Statuses["parked"] + s.Statuses["voided"]
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.done {
		return
	}
	if d.terminal {
		d.erase()
		d.bars = []string{
			bar("published", s.Sent, expect.Events, ""),
			bar("recorded", min(recorded, expect.Objects), expect.Objects, readAgain(recorded-expect.Objects)),
			bar("finished", ended, expect.Intents, fmt.Sprintf("%d charged, %d waiting", s.Statuses["charged"], s.Statuses["pending"]+s.Statuses["charging"])),
		}
		d.draw()
		return
	}
	line := fmt.Sprintf("published %d/%d  recorded %s  finished %d/%d  (charged %d, waiting %d)", s.Sent, expect.Events,
		strings.TrimSpace(fmt.Sprintf("%d/%d %s", min(recorded, expect.Objects), expect.Objects, readAgain(recorded-expect.Objects))),
		ended, expect.Intents, s.Statuses["charged"], s.Statuses["pending"]+s.Statuses["charging"])
	if line != d.last && time.Since(d.lastT) >= plainEvery {
		d.last, d.lastT = line, time.Now()
		fmt.Fprintf(d.out, "%5.1f s  %s\n", time.Since(d.began).Seconds(), line)
	}
}

func readAgain(n int) string {
	if n <= 0 {
		return ""
	}
	return fmt.Sprintf("+ %d read again", n)
}

// end takes the bars away; what is said later stays alone.
func (d *display) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.erase()
	d.bars, d.done = nil, true
}

func (d *display) erase() {
	if d.drawn {
		fmt.Fprint(d.out, strings.Repeat(clearUp, barLines))
		d.drawn = false
	}
}

func (d *display) draw() {
	if len(d.bars) == barLines {
		fmt.Fprintln(d.out, strings.Join(d.bars, "\n"))
		d.drawn = true
	}
}

func bar(name string, n, of int, note string) string {
	full := 0
	if of > 0 {
		full = min(barWidth, barWidth*n/of)
	}
	return fmt.Sprintf("%-9s [%s%s] %d/%d %s", name, strings.Repeat("#", full), strings.Repeat(".", barWidth-full), n, of, note)
}
