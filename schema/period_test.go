package schema

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestPeriodAcceptsEveryRealDayAndNoOther(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		year := rapid.IntRange(minYear, maxYear).Draw(t, "year")
		month := rapid.IntRange(0, 14).Draw(t, "month")
		day := rapid.IntRange(0, 33).Draw(t, "day")
		text := fmt.Sprintf("%04d-%02d-%02d", year, month, day)
		_, err := time.Parse(time.DateOnly, text)
		require.Equal(t, err == nil, PeriodDay.Check(text) == nil, text)
		require.Equal(t, month >= 1 && month <= 12, PeriodMonth.Check(text[:7]) == nil, text[:7])
	})
}

func TestPeriodWeek53OnlyInYearsThatHaveOne(t *testing.T) {
	t.Parallel()
	long := map[int]bool{}
	for day := time.Date(minYear, 1, 1, 0, 0, 0, 0, time.UTC); day.Year() < 2200; day = day.AddDate(0, 0, 1) {
		if year, week := day.ISOWeek(); week == 53 {
			long[year] = true
		}
	}
	for year := minYear; year < 2199; year++ {
		require.Equal(t, long[year], PeriodWeek.Check(fmt.Sprintf("%04d-W53", year)) == nil, year)
		require.NoError(t, PeriodWeek.Check(fmt.Sprintf("%04d-W52", year)))
	}
}

func TestPeriodFormatNames(t *testing.T) {
	t.Parallel()
	f, err := ParsePeriodFormat("")
	require.NoError(t, err)
	require.Equal(t, PeriodMonth, f)
	for _, want := range []PeriodFormat{PeriodMonth, PeriodDay, PeriodWeek, PeriodQuarter, PeriodYear} {
		f, err := ParsePeriodFormat(string(want))
		require.NoError(t, err)
		require.Equal(t, want, f)
		require.ErrorContains(t, f.Check("nonsense"), "such as 20")
	}
	_, err = ParsePeriodFormat("Month")
	require.Error(t, err)
	require.Error(t, PeriodFormat("fortnight").Check("2026-08"))
}
