package schema

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
)

// MaxAmountCents is the largest amount of one event, in minor units.
const MaxAmountCents = 999_999_999_999

// maxHeadroomPercent bounds the headroom of a cap: more is a total typed where a percentage belongs.
const maxHeadroomPercent = 1000

// maxHeadroomBytes bounds the text of a headroom, in bytes, and so its decimals.
const maxHeadroomBytes = 16

// CheckAmount reports why Stripe would not take minor (in the currency's minor unit) in this
// currency, for reasons that hold everywhere: range and the currency's smallest step. Minimum
// amounts depend on the account's settlement currency and are left to Stripe.
func CheckAmount(minor int64, currency string) error {
	lower, err := CheckCurrency(currency)
	if err != nil {
		return err
	}
	switch {
	case minor < 0:
		return fmt.Errorf("amount %d is negative", minor)
	case minor > MaxAmountCents:
		return fmt.Errorf("amount %d is above %d", minor, int64(MaxAmountCents))
	}
	if step := wholeStep(lower); minor%step != 0 {
		return fmt.Errorf("amount %d %s must be a multiple of %d (%s)", minor, lower, step, stepReason(step))
	}
	return nil
}

// Cap returns expectedMinor x (1 + headroom), rounded up to the minor unit, in exact decimal
// arithmetic: a binary fraction would make 110 % of some totals one unit too much or too little.
// headroomPercent is "10%", "10" or "12.5%", from 0 to 1000.
func Cap(expectedMinor int64, headroomPercent string) (int64, error) {
	if expectedMinor < 0 {
		return 0, fmt.Errorf("expected total %d is negative", expectedMinor)
	}
	headroom, scale, err := parsePercent(headroomPercent)
	if err != nil {
		return 0, err
	}
	// headroom/scale is the percentage; cap = ceil(expected x (100 x scale + headroom) / (100 x scale)).
	whole := new(big.Int).Mul(big.NewInt(100), scale)
	product := new(big.Int).Add(whole, headroom)
	product.Mul(product, big.NewInt(expectedMinor))
	quotient, rest := product.QuoRem(product, whole, new(big.Int))
	if rest.Sign() > 0 {
		quotient.Add(quotient, big.NewInt(1))
	}
	if !quotient.IsInt64() {
		return 0, fmt.Errorf("cap of %d with headroom %s is too large", expectedMinor, headroomPercent)
	}
	return quotient.Int64(), nil
}

// FormatAmount writes minor units as people write money, with all decimals of the currency and no
// grouping: 1250000 usd is "12500.00", 500 jpy is "500". Negative numbers (differences) get a sign.
func FormatAmount(minor int64, currency string) string {
	places := Decimals(currency)
	text := strconv.FormatInt(minor, 10)
	sign := ""
	if strings.HasPrefix(text, "-") {
		sign, text = "-", text[1:]
	}
	if places == 0 {
		return sign + text
	}
	if missing := places + 1 - len(text); missing > 0 {
		text = strings.Repeat("0", missing) + text
	}
	point := len(text) - places
	return sign + text[:point] + "." + text[point:]
}

// ParseAmount reads what people write for money, such as the expected total of a run, into minor
// units: "12500.00" usd is 1250000. Missing decimals are zeros; signs, grouping, exponents, spaces
// and more decimals than the currency has are refused, never rounded.
func ParseAmount(s, currency string) (int64, error) {
	lower, err := CheckCurrency(currency)
	if err != nil {
		return 0, err
	}
	whole, fraction, point := strings.Cut(s, ".")
	if !allDigits(whole) || (point && !allDigits(fraction)) {
		return 0, fmt.Errorf("amount %q: write digits with a point for decimals, such as 12500.00", cut(s))
	}
	places := Decimals(lower)
	if len(fraction) > places {
		return 0, fmt.Errorf("amount %q has %d decimals, %s has %d", cut(s), len(fraction), lower, places)
	}
	minor, err := strconv.ParseInt(whole+fraction+strings.Repeat("0", places-len(fraction)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("amount %q is above %s %s", cut(s), FormatAmount(math.MaxInt64, lower), lower)
	}
	return minor, nil
}

func stepReason(step int64) string {
	if step == 10 {
		return "three-decimal currencies are sent with a last digit of 0"
	}
	return "this currency is sent with two decimals that must be 00"
}

// parsePercent reads "12.5%" as 125 with scale 10.
func parsePercent(s string) (headroom, scale *big.Int, err error) {
	bare := strings.TrimSuffix(s, "%")
	whole, fraction, point := strings.Cut(bare, ".")
	if len(s) > maxHeadroomBytes || !allDigits(whole) || (point && !allDigits(fraction)) {
		return nil, nil, fmt.Errorf("headroom %q: write a percentage such as 10%% or 12.5%%", cut(s))
	}
	headroom, ok := new(big.Int).SetString(whole+fraction, 10)
	if !ok {
		return nil, nil, errors.New("schema: internal error: checked digits are no number")
	}
	scale = new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(len(fraction))), nil)
	if headroom.Cmp(new(big.Int).Mul(scale, big.NewInt(maxHeadroomPercent))) > 0 {
		return nil, nil, fmt.Errorf("headroom %q is above %d%%", cut(s), maxHeadroomPercent)
	}
	return headroom, scale, nil
}

func allDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}
