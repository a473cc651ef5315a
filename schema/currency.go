package schema

import (
	"fmt"
	"strings"
)

// CheckCurrency returns the lower-case form of a currency that Stripe takes, or why it takes none
// such. Upper and lower case are both accepted, spaces are not.
//
// The list is Stripe's, not ISO 4217's: codes that no longer exist as money (EEK, HRK, LTL, LVL,
// MRO, SLL, VEF) are left out although old client libraries still name them.
func CheckCurrency(code string) (lower string, err error) {
	if len(code) != 3 {
		return "", fmt.Errorf("a currency is a code of three letters such as usd")
	}
	lower = strings.ToLower(code)
	if _, known := decimals(lower); !known {
		return "", fmt.Errorf("currency %q is none that Stripe takes", cut(code))
	}
	return lower, nil
}

// Decimals returns how many decimals the minor unit of a currency has on Stripe's wire: 0, 2 or 3.
// ISK and UGX have none in daily life but are sent with two, and so count 2. A currency that
// CheckCurrency refuses counts 2.
func Decimals(currency string) int {
	n, known := decimals(strings.ToLower(currency))
	if !known {
		return 2
	}
	return n
}

// wholeStep is the number that an amount must be a multiple of. Stripe's partners want three-decimal
// amounts with a last digit of 0, and ISK and UGX kept their two decimals but may only use 00.
func wholeStep(lower string) int64 {
	switch lower {
	case "bhd", "jod", "kwd", "omr", "tnd":
		return 10
	case "isk", "ugx":
		return 100
	}
	return 1
}

func decimals(lower string) (n int, known bool) {
	switch lower {
	case "bif", "clp", "djf", "gnf", "jpy", "kmf", "krw", "mga", "pyg", "rwf", "vnd", "vuv", "xaf", "xof", "xpf":
		return 0, true
	case "bhd", "jod", "kwd", "omr", "tnd":
		return 3, true
	case "aed", "afn", "all", "amd", "ang", "aoa", "ars", "aud", "awg", "azn",
		"bam", "bbd", "bdt", "bgn", "bmd", "bnd", "bob", "brl", "bsd", "bwp", "byn", "bzd",
		"cad", "cdf", "chf", "cny", "cop", "crc", "cve", "czk",
		"dkk", "dop", "dzd", "egp", "etb", "eur", "fjd", "fkp",
		"gbp", "gel", "gip", "gmd", "gtq", "gyd", "hkd", "hnl", "htg", "huf",
		"idr", "ils", "inr", "isk", "jmd", "kes", "kgs", "khr", "kyd", "kzt",
		"lak", "lbp", "lkr", "lrd", "lsl",
		"mad", "mdl", "mkd", "mmk", "mnt", "mop", "mur", "mvr", "mwk", "mxn", "myr", "mzn",
		"nad", "ngn", "nio", "nok", "npr", "nzd", "pab", "pen", "pgk", "php", "pkr", "pln", "qar",
		"ron", "rsd", "rub", "sar", "sbd", "scr", "sek", "sgd", "shp", "sle", "sos", "srd", "std", "svc", "szl",
		"thb", "tjs", "top", "try", "ttd", "twd", "tzs", "uah", "ugx", "usd", "uyu", "uzs",
		"wst", "xcd", "xcg", "yer", "zar", "zmw":
		return 2, true
	}
	return 0, false
}
