package schema

import (
	"fmt"
	"time"
)

// PeriodFormat is the one shape in which a namespace writes its billing periods.
type PeriodFormat string

// The period formats; PeriodMonth is the default.
const (
	PeriodMonth   PeriodFormat = "month"   // 2026-08
	PeriodDay     PeriodFormat = "day"     // 2026-08-31
	PeriodWeek    PeriodFormat = "week"    // 2026-W35, ISO 8601
	PeriodQuarter PeriodFormat = "quarter" // 2026-Q3
	PeriodYear    PeriodFormat = "year"    // 2026
)

// minYear and maxYear bound a period: outside them a year is a typing error, not a bill.
const (
	minYear = 1970
	maxYear = 9999
)

// Check reports why period is no real period of the calendar in this format. One obligation has one
// spelling: 2026-8 and 2026-08 would otherwise be two keys for one month.
func (f PeriodFormat) Check(period string) error {
	layout, err := f.layout()
	if err != nil {
		return err
	}
	if !fits(period, layout) {
		return fmt.Errorf("period format %s wants %s", f, f.example())
	}
	year := digits(period[:4])
	if year < minYear || year > maxYear {
		return fmt.Errorf("year %d is outside %d to %d", year, minYear, maxYear)
	}
	switch f {
	case PeriodMonth, PeriodDay:
		return checkDate(period, year)
	case PeriodWeek:
		// 28 December always lies in the last ISO week of its year.
		_, last := time.Date(year, time.December, 28, 0, 0, 0, 0, time.UTC).ISOWeek()
		if week := digits(period[6:8]); week < 1 || week > last {
			return fmt.Errorf("year %d has weeks 01 to %d", year, last)
		}
	case PeriodQuarter:
		if q := period[6]; q < '1' || q > '4' {
			return fmt.Errorf("quarters are Q1 to Q4")
		}
	case PeriodYear:
	}
	return nil
}

// ParsePeriodFormat reads a format's name; the empty string is PeriodMonth.
func ParsePeriodFormat(name string) (PeriodFormat, error) {
	if name == "" {
		return PeriodMonth, nil
	}
	f := PeriodFormat(name)
	if _, err := f.layout(); err != nil {
		return "", err
	}
	return f, nil
}

func checkDate(period string, year int) error {
	month := digits(period[5:7])
	if month < 1 || month > 12 {
		return fmt.Errorf("months are 01 to 12")
	}
	if len(period) == len("2026-08") {
		return nil
	}
	// Day 0 of the next month is the last day of this one.
	last := time.Date(year, time.Month(month)+1, 0, 0, 0, 0, 0, time.UTC).Day()
	if day := digits(period[8:10]); day < 1 || day > last {
		return fmt.Errorf("month %s has days 01 to %d", period[:7], last)
	}
	return nil
}

// layout writes a digit as 9 and everything else as itself.
func (f PeriodFormat) layout() (string, error) {
	switch f {
	case PeriodMonth:
		return "9999-99", nil
	case PeriodDay:
		return "9999-99-99", nil
	case PeriodWeek:
		return "9999-W99", nil
	case PeriodQuarter:
		return "9999-Q9", nil
	case PeriodYear:
		return "9999", nil
	}
	return "", fmt.Errorf("period format %q is unknown, use month, day, week, quarter or year", string(f))
}

func (f PeriodFormat) example() string {
	switch f {
	case PeriodMonth:
		return "YYYY-MM such as 2026-08"
	case PeriodDay:
		return "YYYY-MM-DD such as 2026-08-31"
	case PeriodWeek:
		return "YYYY-Www such as 2026-W35"
	case PeriodQuarter:
		return "YYYY-Qq such as 2026-Q3"
	case PeriodYear:
		return "YYYY such as 2026"
	}
	return "a known period format"
}

func fits(s, layout string) bool {
	if len(s) != len(layout) {
		return false
	}
	for i := range len(s) {
		if layout[i] == '9' {
			if s[i] < '0' || s[i] > '9' {
				return false
			}
		} else if s[i] != layout[i] {
			return false
		}
	}
	return true
}

// digits reads text that fits has already found to be digits only.
func digits(s string) int {
	n := 0
	for i := range len(s) {
		n = n*10 + int(s[i]-'0')
	}
	return n
}
