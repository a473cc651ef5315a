package schema

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// knownCurrencies tries every code of three letters, so that no second list can drift from the first.
func knownCurrencies() []string {
	var codes []string
	for n := range 26 * 26 * 26 {
		code := string([]byte{byte('a' + n/676), byte('a' + n/26%26), byte('a' + n%26)})
		if lower, err := CheckCurrency(code); err == nil && lower == code {
			codes = append(codes, code)
		}
	}
	return codes
}

func TestDecimalsFollowStripeNotISO(t *testing.T) {
	t.Parallel()
	zero := strings.Fields("bif clp djf gnf jpy kmf krw mga pyg rwf vnd vuv xaf xof xpf")
	three := strings.Fields("bhd jod kwd omr tnd")
	codes := knownCurrencies()
	require.Subset(t, codes, append(zero, three...))
	require.GreaterOrEqual(t, len(codes), 135)
	for _, code := range codes {
		want := 2
		for _, z := range zero {
			if z == code {
				want = 0
			}
		}
		for _, z := range three {
			if z == code {
				want = 3
			}
		}
		require.Equal(t, want, Decimals(code), code)
		require.Equal(t, want, Decimals(strings.ToUpper(code)), code)
	}
	require.Equal(t, 2, Decimals("huf"), "zero decimals for payouts only")
}

func TestCheckAmountKnowsTheSmallestStep(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		minor    int64
		currency string
		ok       bool
	}{
		{0, "usd", true},
		{-1, "usd", false},
		{MaxAmountCents, "usd", true},
		{MaxAmountCents + 1, "usd", false},
		{math.MinInt64, "usd", false},
		{math.MaxInt64, "usd", false},
		{5120, "KWD", true},
		{5124, "kwd", false},
		{10, "tnd", true},
		{1, "bhd", false},
		{15, "jod", false},
		{11, "omr", false},
		{500, "isk", true},
		{550, "isk", false},
		{500, "ugx", true},
		{501, "ugx", false},
		{0, "isk", true},
		{1, "jpy", true},
		{1, "huf", true},
		{1, "zzz", false},
		{1, "", false},
	} {
		require.Equal(t, c.ok, CheckAmount(c.minor, c.currency) == nil, "%d %s", c.minor, c.currency)
	}
}

func TestCapRoundsUpAndNeverThroughBinaryFractions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		expected int64
		headroom string
		want     int64
	}{
		{1250000, "10%", 1375000},
		{1250000, "10", 1375000},
		{1, "10%", 2},
		{10, "10%", 11},
		{11, "10%", 13},
		{0, "10%", 0},
		{1000, "12.5%", 1125},
		{1001, "12.5%", 1127},
		{100, "0", 100},
		{100, "0.0001%", 101},
		{70, "10%", 77},
		{110, "10", 121},
		{100, "1000%", 1100},
		{9007199254740993, "0%", 9007199254740993},
	} {
		got, err := Cap(c.expected, c.headroom)
		require.NoError(t, err, "%d %s", c.expected, c.headroom)
		require.Equal(t, c.want, got, "%d %s", c.expected, c.headroom)
	}
	for _, headroom := range []string{"", "%", "-1", "+1", "ten", "10%%", "1e3", ".5", "5.", "1,5", " 10", "1000.1", "10000", "0.00000000000000001"} {
		_, err := Cap(100, headroom)
		require.Error(t, err, headroom)
	}
	_, err := Cap(-1, "10")
	require.Error(t, err)
	_, err = Cap(math.MaxInt64, "10")
	require.Error(t, err)
}

func TestCapIsMonotoneAndTight(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.Int64Range(0, 1<<50).Draw(t, "a")
		b := rapid.Int64Range(a, 1<<50).Draw(t, "b")
		hundredths := rapid.IntRange(0, 99999).Draw(t, "headroom in hundredths of a percent")
		text := FormatAmount(int64(hundredths), "usd")
		capA, err := Cap(a, text)
		require.NoError(t, err)
		capB, err := Cap(b, text+"%")
		require.NoError(t, err)
		require.LessOrEqual(t, capA, capB)
		// Least integer that is not below: 10000 cap >= a (10000 + h) > 10000 (cap - 1).
		exact := new(big.Int).Mul(big.NewInt(a), big.NewInt(int64(10000+hundredths)))
		unit := big.NewInt(10000)
		require.GreaterOrEqual(t, new(big.Int).Mul(big.NewInt(capA), unit).Cmp(exact), 0)
		require.Negative(t, new(big.Int).Mul(big.NewInt(capA-1), unit).Cmp(exact))
	})
}

func TestAmountSurvivesItsText(t *testing.T) {
	t.Parallel()
	codes := knownCurrencies()
	rapid.Check(t, func(t *rapid.T) {
		code := rapid.SampledFrom(codes).Draw(t, "currency")
		minor := rapid.Int64Range(0, math.MaxInt64).Draw(t, "minor")
		text := FormatAmount(minor, code)
		got, err := ParseAmount(text, code)
		require.NoError(t, err)
		require.Equal(t, minor, got)
		if minor > 0 {
			require.Equal(t, "-"+text, FormatAmount(-minor, code))
		}
	})
}

func TestFormatAmount(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		minor    int64
		currency string
		want     string
	}{
		{1250000, "usd", "12500.00"},
		{5, "usd", "0.05"},
		{0, "usd", "0.00"},
		{-5, "usd", "-0.05"},
		{500, "jpy", "500"},
		{-1, "jpy", "-1"},
		{5120, "kwd", "5.120"},
		{500, "isk", "5.00"},
		{math.MinInt64, "usd", "-92233720368547758.08"},
	} {
		require.Equal(t, c.want, FormatAmount(c.minor, c.currency))
	}
}

func TestParseAmountNeverRoundsOrGuesses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text, currency string
		want           int64
	}{
		{"12500.00", "usd", 1250000},
		{"12500", "USD", 1250000},
		{"12500.5", "usd", 1250050},
		{"500", "jpy", 500},
		{"5.12", "kwd", 5120},
		{"0", "usd", 0},
		{"92233720368547758.07", "usd", math.MaxInt64},
	} {
		got, err := ParseAmount(c.text, c.currency)
		require.NoError(t, err, c.text)
		require.Equal(t, c.want, got, c.text)
	}
	for _, text := range []string{"", ".", "1.", ".5", "1.234", "-1", "+1", "1,000", "1e3", " 1", "1 ", "0x10", "1_000", "٣", "92233720368547758.08", strconv.Itoa(math.MaxInt64), "1.2.3", "$1"} {
		_, err := ParseAmount(text, "usd")
		require.Error(t, err, text)
	}
	_, err := ParseAmount("1.0", "jpy")
	require.Error(t, err)
	_, err = ParseAmount("1", "zzz")
	require.Error(t, err)
}
