package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"strconv"
	"strings"

	"chargeonce/ingest/file"
	"chargeonce/schema"
)

// show writes the summary.
func show(w io.Writer, r *file.Report, cfg *config, stopped bool) error {
	if cfg.JSON {
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		return encoder.Encode(newSummary(r, cfg, stopped))
	}
	var out strings.Builder
	writeCounts(&out, r, cfg)
	writePeriods(&out, r)
	writeExamples(&out, r)
	if stopped {
		fmt.Fprintf(&out, "\n%s\n", howToGoOn(r, cfg.DryRun))
	}
	_, err := io.WriteString(w, out.String())
	return err
}

func writeCounts(out *strings.Builder, r *file.Report, cfg *config) {
	what := "namespace %s, from %s:\n\n"
	if cfg.DryRun {
		what = "dry run, nothing was written. Into namespace %s, from %s, a real run would record:\n\n"
	}
	fmt.Fprintf(out, what, cfg.Namespace, plural(int64(r.Files), "file"))
	c := r.Counts
	var rows [][]string
	for _, row := range []struct {
		count int64
		what  string
	}{
		{c.Objects(), "objects read"},
		{c.Intents, "new intents"},
		{c.Duplicates, "duplicates (recorded from elsewhere, or earlier in these files)"},
		{c.Redeliveries, "already recorded from this file"},
		{c.Conflicts, "conflicts (recorded with other terms)"},
		{c.Quarantined, "quarantined (cannot become an intent)"},
	} {
		rows = append(rows, []string{strconv.FormatInt(row.count, 10), row.what})
	}
	width := len(rows[0][0]) // the sum is the longest
	for _, row := range rows {
		fmt.Fprintf(out, "%*s  %s\n", width, row[0], row[1])
	}
	if sentence := nothingNew(r); sentence != "" {
		fmt.Fprintf(out, "\n%s\n", sentence)
	}
}

// nothingNew says that the database is, or would be, as before; "" where it is not.
func nothingNew(r *file.Report) string {
	c := r.Counts
	switch objects := c.Objects(); {
	case c.Intents+c.Conflicts+c.Quarantined > 0:
		return ""
	case objects == 0:
		return "nothing new: there are no events in " + plural(int64(r.Files), "file")
	case c.Duplicates == 0:
		return fmt.Sprintf("nothing new: %s already recorded from this file", allOf(objects))
	default:
		return fmt.Sprintf("nothing new: %s already recorded", allOf(objects))
	}
}

func allOf(objects int64) string {
	if objects == 1 {
		return "the one object is"
	}
	return fmt.Sprintf("all %d objects are", objects)
}

func writePeriods(out *strings.Builder, r *file.Report) {
	periods := r.Periods()
	if len(periods) == 0 {
		return
	}
	rows := [][]string{{"period", "currency", "", "events", "sum"}}
	for _, p := range periods {
		for _, row := range []struct {
			what string
			sum  *file.Sum
		}{{"new", &p.New}, {"duplicate", &p.Duplicates}, {"already recorded", &p.Redeliveries}, {"in conflict", &p.Conflicts}} {
			if row.sum.Count > 0 {
				rows = append(rows, []string{p.BillingPeriod, p.Currency, row.what, strconv.FormatInt(row.sum.Count, 10), row.sum.Text(p.Currency)})
			}
		}
	}
	out.WriteString("\n")
	writeTable(out, rows, 3)
	if r.Uncounted > 0 {
		fmt.Fprintf(out, "%d events of further periods are not added up\n", r.Uncounted)
	}
}

// writeTable aligns the first columns to the left and the others, which are numbers, to the right.
func writeTable(out *strings.Builder, rows [][]string, left int) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], len(cell))
		}
	}
	for _, row := range rows {
		for i, cell := range row {
			width := widths[i]
			if i < left {
				width = -width
			}
			if i > 0 {
				out.WriteString("  ")
			}
			fmt.Fprintf(out, "%*s", width, cell)
		}
		out.WriteString("\n")
	}
}

func writeExamples(out *strings.Builder, r *file.Report) {
	list := func(title string, all int64, shown int) {
		if int64(shown) < all {
			title += fmt.Sprintf(", the first %d of %d", shown, all)
		}
		fmt.Fprintf(out, "\n%s:\n", title)
	}
	if len(r.Conflicts) > 0 {
		list("in conflict", r.Counts.Conflicts, len(r.Conflicts))
	}
	for _, e := range r.Conflicts {
		fmt.Fprintf(out, "  %s  customer %s, period %s: here %s %s for %s\n", shown(e.Position), e.Event.CustomerID, e.Event.BillingPeriod,
			schema.FormatAmount(e.Event.AmountCents, e.Event.Currency), e.Event.Currency, e.Event.StripeCustomerID)
	}
	if len(r.Bad) > 0 {
		list("quarantined", r.Counts.Quarantined, len(r.Bad))
	}
	for _, e := range r.Bad {
		fmt.Fprintf(out, "  %s  %s: %s\n", shown(e.Position), e.ReasonCode, e.Reason)
	}
	if len(r.Unread) > 0 {
		list("not read to the end", int64(r.Unreadable), len(r.Unread))
	}
	for _, u := range r.Unread {
		fmt.Fprintf(out, "  %s  %s\n", shown(u.Position), u.Reason)
	}
	if len(r.Left) > 0 {
		list("passed over in folders, for their names", int64(len(r.Left)), min(len(r.Left), maxLeft))
	}
	for _, path := range r.Left[:min(len(r.Left), maxLeft)] {
		fmt.Fprintf(out, "  %s\n", shown(path))
	}
}

// maxLeft bounds the files passed over that are listed.
const maxLeft = 10

func howToGoOn(r *file.Report, dryRun bool) string {
	where := "before anything was recorded"
	if r.LastPosition != "" {
		where = "behind " + shown(r.LastPosition)
	}
	if dryRun {
		return "stopped " + where + ": the figures are of what was read until then, run the same command again for all of it"
	}
	return "stopped " + where + ": run the same command again to go on, what is recorded counts as already recorded"
}

// shown keeps what a name holds from moving the cursor.
func shown(text string) string {
	for _, r := range text {
		if !strconv.IsPrint(r) {
			return strconv.Quote(text)
		}
	}
	return text
}

func plural(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// summary is the report as JSON. Names are only ever added.
type summary struct {
	Namespace    string            `json:"namespace"`
	DryRun       bool              `json:"dry_run"`
	Complete     bool              `json:"complete"`
	Stopped      bool              `json:"stopped"`
	LastPosition string            `json:"last_position"`
	Files        int               `json:"files"`
	FilesRead    int               `json:"files_read"`
	Objects      int64             `json:"objects"`
	NewIntents   int64             `json:"new_intents"`
	Duplicates   int64             `json:"duplicates"`
	Redeliveries int64             `json:"redeliveries"`
	Conflicts    int64             `json:"conflicts"`
	Quarantined  int64             `json:"quarantined"`
	Unreadable   int               `json:"unreadable"`
	NothingNew   bool              `json:"nothing_new"`
	Periods      []periodSummary   `json:"periods"`
	InConflict   []conflictSummary `json:"in_conflict"`
	Bad          []badSummary      `json:"bad"`
	Unread       []badSummary      `json:"unread"`
	PassedOver   []string          `json:"passed_over"`
}

type periodSummary struct {
	BillingPeriod string     `json:"billing_period"`
	Currency      string     `json:"currency"`
	New           sumSummary `json:"new"`
	Duplicates    sumSummary `json:"duplicates"`
	Redeliveries  sumSummary `json:"redeliveries"`
	Conflicts     sumSummary `json:"conflicts"`
}

type sumSummary struct {
	Count    int64    `json:"count"`
	SumCents *big.Int `json:"sum_cents"` // minor units
	Sum      string   `json:"sum"`
}

type conflictSummary struct {
	Position         string `json:"position"`
	CustomerID       string `json:"customer_id"`
	BillingPeriod    string `json:"billing_period"`
	AmountCents      int64  `json:"amount_cents"`
	Currency         string `json:"currency"`
	StripeCustomerID string `json:"stripe_customer_id"`
}

type badSummary struct {
	Position   string `json:"position"`
	ReasonCode string `json:"reason_code,omitempty"`
	Reason     string `json:"reason"`
}

func newSummary(r *file.Report, cfg *config, stopped bool) summary {
	c := r.Counts
	s := summary{
		Namespace: cfg.Namespace, DryRun: cfg.DryRun, Complete: r.Complete, Stopped: stopped, LastPosition: r.LastPosition,
		Files: r.Files, FilesRead: r.FilesRead, Objects: c.Objects(), NewIntents: c.Intents, Duplicates: c.Duplicates,
		Redeliveries: c.Redeliveries, Conflicts: c.Conflicts, Quarantined: c.Quarantined, Unreadable: r.Unreadable,
		NothingNew: nothingNew(r) != "", Periods: []periodSummary{}, InConflict: []conflictSummary{}, Bad: []badSummary{}, Unread: []badSummary{},
		PassedOver: append([]string{}, r.Left...),
	}
	for _, p := range r.Periods() {
		sum := func(s *file.Sum) sumSummary { return sumSummary{s.Count, &s.Minor, s.Text(p.Currency)} }
		s.Periods = append(s.Periods, periodSummary{
			p.BillingPeriod, p.Currency, sum(&p.New), sum(&p.Duplicates), sum(&p.Redeliveries), sum(&p.Conflicts),
		})
	}
	for _, e := range r.Conflicts {
		s.InConflict = append(s.InConflict, conflictSummary{
			e.Position, e.Event.CustomerID, e.Event.BillingPeriod, e.Event.AmountCents, e.Event.Currency, e.Event.StripeCustomerID,
		})
	}
	for _, e := range r.Bad {
		s.Bad = append(s.Bad, badSummary{e.Position, e.ReasonCode, e.Reason})
	}
	for _, u := range r.Unread {
		s.Unread = append(s.Unread, badSummary{Position: u.Position, Reason: u.Reason})
	}
	return s
}
