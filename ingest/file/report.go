package file

import (
	"cmp"
	"math/big"
	"slices"

	"chargeonce/ingest"
	"chargeonce/schema"
)

// Report says what became of the objects of an import.
type Report struct {
	Files        int  // that were to be read
	FilesRead    int  // that were read to their end, as far as that was possible
	Complete     bool // all of them were
	Counts       ingest.Counts
	Bad          []Example // the first few that were quarantined now
	Conflicts    []Example // the first few that are in conflict now
	Unread       []Unread  // the first few places where more stands than could be read
	Unreadable   int       // how many such places there are
	LastPosition string    // of the last object recorded
	Left         []string  // files in folders that were not read
	// Uncounted are the objects of further periods, where there are more of them than anybody bills.
	Uncounted int64

	periods map[periodKey]*Period
}

// Limits of a report.
const (
	// maxShown bounds each list of examples.
	maxShown = 10
	// maxPeriods bounds the periods and currencies that are added up. A file may name any.
	maxPeriods = 10_000
)

// Example shows one object.
type Example struct {
	Position   string
	ReasonCode string // of a quarantined one
	Reason     string
	Event      schema.BillingEvent // of one in conflict
}

// Unread is a place from which on a file, or a part of it, could not be read.
type Unread struct{ Position, Reason string }

// Period is what the objects of one billing period and currency came to.
type Period struct {
	BillingPeriod                            string
	Currency                                 string
	New, Duplicates, Redeliveries, Conflicts Sum
}

// Sum is a number of events, and their amounts added up.
type Sum struct {
	Count int64
	Minor big.Int // in minor units; a few million of the largest amounts exceed 64 bits
}

// Text writes the sum as people write money of the currency.
func (s *Sum) Text(currency string) string {
	if s.Minor.IsInt64() {
		return schema.FormatAmount(s.Minor.Int64(), currency)
	}
	text, places := s.Minor.String(), schema.Decimals(currency)
	if places == 0 {
		return text
	}
	return text[:len(text)-places] + "." + text[len(text)-places:]
}

func (s *Sum) add(amountCents int64) {
	s.Count++
	s.Minor.Add(&s.Minor, big.NewInt(amountCents))
}

// Found tells whether something is wrong with what was read: objects newly quarantined or in conflict, or content that could not be
// read. What an earlier import of the same file found wrong is with a person already.
func (r *Report) Found() bool {
	return r.Counts.Quarantined > 0 || r.Counts.Conflicts > 0 || r.Unreadable > 0
}

// Periods are the sums by billing period and currency, sorted.
func (r *Report) Periods() []*Period {
	periods := make([]*Period, 0, len(r.periods))
	for _, p := range r.periods {
		periods = append(periods, p)
	}
	slices.SortFunc(periods, func(a, b *Period) int {
		return cmp.Or(cmp.Compare(a.BillingPeriod, b.BillingPeriod), cmp.Compare(a.Currency, b.Currency))
	})
	return periods
}

type periodKey struct{ period, currency string }

func newReport(set *Set) *Report {
	return &Report{Files: len(set.files), Left: set.Left, periods: map[periodKey]*Period{}}
}

func (r *Report) count(o ingest.ObjectResult) {
	r.LastPosition = o.Position
	switch o.Result {
	case ingest.ResultIntent:
		r.Counts.Intents++
	case ingest.ResultDuplicate:
		r.Counts.Duplicates++
	case ingest.ResultRedelivery:
		r.Counts.Redeliveries++
	case ingest.ResultConflict:
		r.Counts.Conflicts++
		if len(r.Conflicts) < maxShown {
			r.Conflicts = append(r.Conflicts, Example{Position: o.Position, Event: o.Event})
		}
	case ingest.ResultQuarantined:
		r.Counts.Quarantined++
		if len(r.Bad) < maxShown {
			r.Bad = append(r.Bad, Example{Position: o.Position, ReasonCode: string(o.Fault.Code), Reason: o.Fault.Message})
		}
	}
	if o.Fault != nil {
		return
	}
	period := r.period(periodKey{o.Event.BillingPeriod, o.Event.Currency})
	if period == nil {
		r.Uncounted++
		return
	}
	period.add(o)
}

func (r *Report) period(k periodKey) *Period {
	p, known := r.periods[k]
	if !known && len(r.periods) < maxPeriods {
		p = &Period{BillingPeriod: k.period, Currency: k.currency}
		r.periods[k] = p
	}
	return p
}

func (p *Period) add(o ingest.ObjectResult) {
	switch o.Result {
	case ingest.ResultIntent:
		p.New.add(o.Event.AmountCents)
	case ingest.ResultDuplicate:
		p.Duplicates.add(o.Event.AmountCents)
	case ingest.ResultRedelivery:
		p.Redeliveries.add(o.Event.AmountCents)
	case ingest.ResultConflict:
		p.Conflicts.add(o.Event.AmountCents)
	case ingest.ResultQuarantined: // has no amount
	}
}

func (r *Report) addUnread(places []Unread) {
	r.Unreadable += len(places)
	r.Unread = append(r.Unread, places[:min(len(places), maxShown-len(r.Unread))]...)
}
