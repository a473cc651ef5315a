package stripetest

import (
	"slices"
	"strconv"
	"strings"
)

// Stripe's limits on metadata and amounts.
const (
	maxMetadataKeys  = 50
	maxMetadataKey   = 40  // characters
	maxMetadataValue = 500 // characters
	maxAmountDigits  = 99_999_999
)

// terms are the parameters that charges and payment intents share.
type terms struct {
	amount      int64
	currency    string
	customer    string
	description string
	descriptor  string
	metadata    map[string]string
	expand      []string
}

// terms reads and checks what both create endpoints take; every refusal comes from before the endpoint begins.
func (c *call) terms(expandable ...string) (terms, *stripeError) {
	t := terms{
		currency: strings.ToLower(c.form.Get("currency")), customer: c.form.Get("customer"),
		description: c.form.Get("description"), descriptor: c.form.Get("statement_descriptor"),
	}
	text := c.form.Get("amount")
	if text == "" {
		return t, invalid("parameter_missing", "amount", "Missing required param: amount.")
	}
	amount, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return t, invalid("parameter_invalid_integer", "amount", "Invalid integer: "+text)
	}
	if amount < 1 {
		return t, invalid("parameter_invalid_integer", "amount", "This value must be greater than or equal to 1.")
	}
	t.amount = amount
	if t.currency == "" {
		return t, invalid("parameter_missing", "currency", "Missing required param: currency.")
	}
	if len(t.currency) != 3 || !strings.Contains(currencies, " "+t.currency+" ") {
		return t, invalid("", "currency", "Invalid currency: "+t.currency+". Stripe currently supports these currencies:"+currencies)
	}
	var refused *stripeError
	if t.metadata, refused = c.metadata(); refused != nil {
		return t, refused
	}
	t.expand, refused = c.expand(expandable...)
	return t, refused
}

// checkAmount applies the rules that depend on the currency. Stripe finds these while the endpoint runs.
func (t terms) checkAmount() *stripeError {
	step := int64(1)
	switch t.currency {
	case "isk", "ugx": // sent with two decimals that must be 00
		step = 100
	case "bhd", "jod", "kwd", "omr", "tnd": // three decimals, the last must be 0
		step = 10
	}
	if t.amount%step != 0 {
		return invalid("invalid_charge_amount", "amount", "Invalid amount: in "+t.currency+" it must be a multiple of "+strconv.FormatInt(step, 10)+".")
	}
	if least := minimum(t.currency); t.amount < least {
		return invalid("amount_too_small", "amount", "Amount must be at least "+strconv.FormatInt(least, 10)+" "+t.currency+" in the minor unit.")
	}
	most := int64(maxAmountDigits)
	switch t.currency {
	case "inr":
		most = 999_999_999
	case "cop", "huf", "jpy":
		most = 9_999_999_999
	case "idr":
		most = 999_999_999_999
	}
	if t.amount > most {
		return invalid("amount_too_large", "amount", "Amount must be no more than "+strconv.FormatInt(most, 10)+" "+t.currency+" in the minor unit.")
	}
	return nil
}

// minimum is the least amount of a charge, in the currency's minor unit; 1 where none is published.
func minimum(currency string) int64 {
	switch currency {
	case "usd", "aud", "brl", "cad", "chf", "eur", "inr", "nzd", "sgd", "jpy":
		return 50
	case "gbp":
		return 30
	case "aed", "myr", "pln", "ron":
		return 200
	case "bgn":
		return 100
	case "czk":
		return 1500
	case "dkk":
		return 250
	case "hkd":
		return 400
	case "huf":
		return 17_500
	case "mxn", "thb":
		return 1000
	case "nok", "sek":
		return 300
	}
	return 1
}

// currencies are the ones Stripe takes, each between two spaces.
const currencies = ` usd aed afn all amd ang aoa ars aud awg azn bam bbd bdt bgn bhd bif bmd bnd bob brl bsd bwp byn bzd cad cdf chf clp cny cop crc` +
	` cve czk djf dkk dop dzd egp etb eur fjd fkp gbp gel gip gmd gnf gtq gyd hkd hnl htg huf idr ils inr isk jmd jod jpy kes kgs khr kmf krw kwd kyd kzt lak` +
	` lbp lkr lrd lsl mad mdl mga mkd mmk mnt mop mur mvr mwk mxn myr mzn nad ngn nio nok npr nzd omr pab pen pgk php pkr pln pyg qar ron rsd rub rwf sar sbd` +
	` scr sek sgd shp sle sos srd std szl thb tjs tnd top try ttd twd tzs uah ugx uyu uzs vnd vuv wst xaf xcd xof xpf yer zar zmw `

// metadata collects metadata[key]=value; an empty value leaves the key out, as Stripe does.
func (c *call) metadata() (map[string]string, *stripeError) {
	found := map[string]string{}
	for name, values := range c.form {
		rest, ok := strings.CutPrefix(name, "metadata[")
		if !ok {
			if name == "metadata" && c.form.Get(name) != "" {
				return nil, invalid("", "metadata", "Invalid hash")
			}
			continue
		}
		key := strings.TrimSuffix(rest, "]")
		if key == rest || strings.ContainsAny(key, "[]") || key == "" {
			return nil, invalid("", "metadata", "Metadata keys must not contain square brackets: "+rest)
		}
		if len([]rune(key)) > maxMetadataKey {
			return nil, invalid("", "metadata", "Metadata keys can have up to 40 characters. Invalid key: "+key)
		}
		value := values[0]
		if len([]rune(value)) > maxMetadataValue {
			return nil, invalid("", "metadata["+key+"]", "Metadata values can have up to 500 characters, but you passed in a longer one for "+key+".")
		}
		if value != "" {
			found[key] = value
		}
	}
	if len(found) > maxMetadataKeys {
		return nil, invalid("", "metadata", "You can only have up to 50 metadata keys on an object.")
	}
	return found, nil
}

// expand collects expand[]; a field that this endpoint cannot expand is refused.
func (c *call) expand(allowed ...string) ([]string, *stripeError) {
	var fields []string
	for name, values := range c.form {
		if name == "expand" || strings.HasPrefix(name, "expand[") {
			fields = append(fields, values...)
		}
	}
	for _, field := range fields {
		if !slices.Contains(allowed, field) {
			return nil, invalid("", "expand", "This property cannot be expanded ("+field+").")
		}
	}
	return fields, nil
}

// unknown refuses the first parameter whose name, up to its bracket, is not among the allowed ones.
func (c *call) unknown(allowed ...string) *stripeError {
	var bad []string
	for name := range c.form {
		root, _, _ := strings.Cut(name, "[")
		if !slices.Contains(allowed, root) {
			bad = append(bad, root)
		}
	}
	if len(bad) == 0 {
		return nil
	}
	slices.Sort(bad)
	return invalid("parameter_unknown", bad[0], "Received unknown parameter: "+bad[0])
}

func (c *call) boolean(name string, otherwise bool) (bool, *stripeError) {
	switch text := c.form.Get(name); text {
	case "":
		return otherwise, nil
	case "true":
		return true, nil
	case "false":
		return false, nil
	default:
		return false, invalid("", name, "Invalid boolean: "+text)
	}
}

// bound is one comparison of a created filter.
type bound struct {
	name  string // gt, gte, lt, lte or empty for equality
	value int64  // seconds since 1970
}

func (b bound) admits(created int64) bool {
	switch b.name {
	case "gt":
		return created > b.value
	case "gte":
		return created >= b.value
	case "lt":
		return created < b.value
	case "lte":
		return created <= b.value
	}
	return created == b.value
}

// created reads created=N and created[gte|gt|lte|lt]=N.
func (c *call) created() ([]bound, *stripeError) {
	var bounds []bound
	for name, values := range c.form {
		if root, _, _ := strings.Cut(name, "["); root != "created" {
			continue
		}
		op := strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(name, "created"), "["), "]")
		value, err := strconv.ParseInt(values[0], 10, 64)
		if err != nil || !slices.Contains([]string{"", "gt", "gte", "lt", "lte"}, op) {
			return nil, invalid("parameter_invalid_integer", name, "Invalid integer: "+values[0])
		}
		bounds = append(bounds, bound{op, value})
	}
	return bounds, nil
}
