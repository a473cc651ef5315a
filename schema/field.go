package schema

import (
	"bytes"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// event checks the fields of one object in their order and returns the first fault.
func (r *reading) event(text []byte, m *members) (BillingEvent, *Fault) {
	if r.p.mapped {
		for i, steps := range r.p.pointers {
			if steps != nil {
				m.fields[i] = resolve(text, steps)
			}
		}
	}
	if fault := r.misspelt(m); fault != nil {
		return BillingEvent{}, fault
	}
	event, fault := r.fields(m)
	if fault != nil {
		// No half-filled event leaves here: it could be taken for one.
		return BillingEvent{}, fault
	}
	return event, nil
}

// The names of the billing event's fields, which are also the targets of a mapping.
const (
	FieldCustomerID       = "customer_id"
	FieldBillingPeriod    = "billing_period"
	FieldAmountCents      = "amount_cents"
	FieldCurrency         = "currency"
	FieldStripeCustomerID = "stripe_customer_id"
	FieldPaymentMethod    = "payment_method"
	FieldDescription      = "description"
)

// Places of the fields in a members value, in the order of Fields.
const (
	fieldCustomerID = iota
	fieldBillingPeriod
	fieldAmountCents
	fieldCurrency
	fieldStripeCustomerID
	fieldPaymentMethod
	fieldDescription
	fieldCount
)

const (
	defaultCurrency = "usd"
	// maxIDBytes bounds customer_id and the ids of Stripe, in bytes.
	maxIDBytes = 200
	// maxDescriptionRunes bounds description, in characters.
	maxDescriptionRunes = 500
)

// fieldNames has the fields at their places; it is never written to.
var fieldNames = [fieldCount]string{
	FieldCustomerID, FieldBillingPeriod, FieldAmountCents, FieldCurrency,
	FieldStripeCustomerID, FieldPaymentMethod, FieldDescription,
}

// Fields lists the field names of a billing event in their order.
func Fields() []string { return slices.Clone(fieldNames[:]) }

func fieldIndex(name []byte) int {
	switch string(name) {
	case FieldCustomerID:
		return fieldCustomerID
	case FieldBillingPeriod:
		return fieldBillingPeriod
	case FieldAmountCents:
		return fieldAmountCents
	case FieldCurrency:
		return fieldCurrency
	case FieldStripeCustomerID:
		return fieldStripeCustomerID
	case FieldPaymentMethod:
		return fieldPaymentMethod
	case FieldDescription:
		return fieldDescription
	}
	return -1
}

func (r *reading) fields(m *members) (e BillingEvent, fault *Fault) {
	if e.CustomerID, fault = r.required(m, fieldCustomerID, FieldCustomerID); fault != nil {
		return e, fault
	}
	if fault = checkCustomerID(e.CustomerID); fault != nil {
		return e, fault
	}
	if e.BillingPeriod, fault = r.required(m, fieldBillingPeriod, FieldBillingPeriod); fault != nil {
		return e, fault
	}
	if fault = r.p.checkPeriod(e.BillingPeriod); fault != nil {
		return e, fault
	}
	if e.AmountCents, fault = r.amount(m); fault != nil {
		return e, fault
	}
	if e.Currency, fault = checkedCurrency(m.fields[fieldCurrency]); fault != nil {
		return e, fault
	}
	if err := CheckAmount(e.AmountCents, e.Currency); err != nil {
		return e, fieldFaultf(FaultBadAmountForCurrency, FieldAmountCents, "does not fit the currency: %v", err)
	}
	if e.StripeCustomerID, fault = stripeCustomer(m.fields[fieldStripeCustomerID], e.CustomerID); fault != nil {
		return e, fault
	}
	if e.PaymentMethod, fault = optional(m.fields[fieldPaymentMethod], FieldPaymentMethod); fault != nil {
		return e, fault
	}
	if fault = checkPaymentMethod(m.fields[fieldPaymentMethod], e.PaymentMethod); fault != nil {
		return e, fault
	}
	if e.Description, fault = optional(m.fields[fieldDescription], FieldDescription); fault != nil {
		return e, fault
	}
	return e, checkDescription(e.Description)
}

// required returns the text of a field that every event has.
func (r *reading) required(m *members, field int, name string) (string, *Fault) {
	value := m.fields[field]
	switch {
	case value == nil:
		return "", r.missing(name, field)
	case value[0] == 'n':
		return "", fieldFaultf(FaultMissingField, name, "is null: it is required, send a string")
	}
	text, fault := optional(value, name)
	if fault == nil && text == "" {
		fault = fieldFaultf(FaultEmptyField, name, "is empty: it is required, send its value")
	}
	return text, fault
}

func (r *reading) missing(name string, field int) *Fault {
	if steps := r.p.pointers[field]; steps != nil {
		hint := ""
		if r.binary {
			hint = "; in a binary CloudEvent pointers reach the body alone, not the attributes"
		}
		return fieldFaultf(FaultMissingField, name, "is missing: the mapping's pointer finds nothing in this object%s", hint)
	}
	return fieldFaultf(FaultMissingField, name, "is missing: it is required")
}

// optional returns the text of a field, "" when it is absent or null.
func optional(value []byte, name string) (string, *Fault) {
	switch {
	case value == nil || value[0] == 'n':
		return "", nil
	case value[0] != '"':
		return "", fieldFaultf(FaultWrongType, name, "is %s: send a string", kindName(value))
	}
	return string(unquote(value)), nil
}

func checkCustomerID(id string) *Fault {
	if len(id) > maxIDBytes {
		return fieldFaultf(FaultTooLong, FieldCustomerID, "has %d bytes: at most %d are allowed", len(id), maxIDBytes)
	}
	return checkKeyText(id, FieldCustomerID)
}

// checkKeyText refuses what must not stand in a part of the idempotency key: control characters and spaces at the ends, which
// nobody sees and which would make two obligations of one, and ':', with which two obligations could share a key. Letters that
// merely look alike are different ones: which of them is meant, only the producer knows.
func checkKeyText(text, name string) *Fault {
	if strings.IndexFunc(text, unicode.IsControl) >= 0 {
		return fieldFaultf(FaultControlCharacter, name, "contains a control character: remove it")
	}
	if strings.Contains(text, ":") {
		return fieldFaultf(FaultColonInKeyField, name, "contains ':', which separates the parts of the idempotency key: use another character")
	}
	if strings.TrimSpace(text) != text {
		return fieldFaultf(FaultSurroundingSpace, name, "begins or ends with a space: trim it")
	}
	return nil
}

func (p *Parser) checkPeriod(period string) *Fault {
	if fault := checkKeyText(period, FieldBillingPeriod); fault != nil {
		return fault
	}
	if err := p.format.Check(period); err != nil {
		return fieldFaultf(FaultBadPeriod, FieldBillingPeriod, "is %q: %v", cut(period), err)
	}
	return nil
}

// amount reads the amount as JSON wrote it; nothing here multiplies, divides or rounds.
func (r *reading) amount(m *members) (int64, *Fault) {
	const name = FieldAmountCents
	value := m.fields[fieldAmountCents]
	switch {
	case value == nil:
		return 0, r.missing(name, fieldAmountCents)
	case value[0] == 'n':
		return 0, fieldFaultf(FaultMissingField, name, "is null: it is required, send a whole number of the currency's minor unit")
	case value[0] == '"':
		return 0, fieldFaultf(FaultWrongType, name, "is a string: send the number without quotes")
	case value[0] != '-' && (value[0] < '0' || value[0] > '9'):
		return 0, fieldFaultf(FaultWrongType, name, "is %s: send a whole number of the currency's minor unit", kindName(value))
	case bytes.ContainsAny(value, ".eE"):
		return 0, fieldFaultf(FaultWrongType, name,
			"is %s: send a whole number of the currency's minor unit, without point or exponent (12.50 usd is 1250)", cut(string(value)))
	case value[0] == '-':
		return 0, fieldFaultf(FaultNegativeAmount, name, "is %s: a charge is never negative, credits are not sent here", cut(string(value)))
	}
	minor, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil {
		minor = math.MaxInt64
	}
	if minor > MaxAmountCents {
		return 0, fieldFaultf(FaultOutOfRange, name, "is %s: at most %d is allowed", cut(string(value)), int64(MaxAmountCents))
	}
	return minor, nil
}

func checkedCurrency(value []byte) (string, *Fault) {
	code, fault := optional(value, FieldCurrency)
	if fault != nil {
		return "", fault
	}
	if code == "" && (value == nil || value[0] == 'n') {
		return defaultCurrency, nil
	}
	lower, err := CheckCurrency(code)
	if err != nil {
		return "", fieldFaultf(FaultBadCurrency, FieldCurrency, "is %q: %v", cut(code), err)
	}
	return lower, nil
}

func stripeCustomer(value []byte, customerID string) (string, *Fault) {
	id, fault := optional(value, FieldStripeCustomerID)
	switch {
	case fault != nil:
		return "", fault
	case value != nil && value[0] != 'n':
		if !isStripeID(id, "cus_") {
			return "", fieldFaultf(FaultBadStripeCustomer, FieldStripeCustomerID, "is no Stripe customer id: send cus_ and its letters and digits")
		}
		return id, nil
	case !strings.HasPrefix(customerID, "cus_"):
		return "", fieldFaultf(FaultMissingField, FieldStripeCustomerID,
			"is missing: send cus_..., or a customer_id that is itself a Stripe customer")
	case !isStripeID(customerID, "cus_"):
		return "", fieldFaultf(FaultBadStripeCustomer, FieldCustomerID,
			"begins with cus_ but is no Stripe customer id: correct it or send stripe_customer_id")
	}
	return customerID, nil
}

func checkPaymentMethod(value []byte, id string) *Fault {
	if value == nil || value[0] == 'n' || isStripeID(id, "pm_") || isStripeID(id, "card_") || isStripeID(id, "src_") {
		return nil
	}
	return fieldFaultf(FaultBadPaymentMethod, FieldPaymentMethod, "is no Stripe payment method: send pm_..., card_... or src_...")
}

func checkDescription(text string) *Fault {
	if n := utf8.RuneCountInString(text); n > maxDescriptionRunes {
		return fieldFaultf(FaultTooLong, FieldDescription, "has %d characters: at most %d are allowed", n, maxDescriptionRunes)
	}
	if strings.IndexFunc(text, isBadInText) >= 0 {
		return fieldFaultf(FaultControlCharacter, FieldDescription, "contains a control character: remove it")
	}
	return nil
}

// isBadInText lets line breaks and tabs pass where people read the text.
func isBadInText(c rune) bool {
	return unicode.IsControl(c) && c != '\n' && c != '\r' && c != '\t'
}

// isStripeID is wider than the ids of today but leaves out everything that could change the meaning
// of a URL.
func isStripeID(id, prefix string) bool {
	rest, found := strings.CutPrefix(id, prefix)
	if !found || rest == "" || len(id) > maxIDBytes {
		return false
	}
	for i := range len(rest) {
		c := rest[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

// misspelt finds names that are a field's in another spelling. An optional field counts too: a
// "Currency" that is quietly ignored would charge dollars instead of yen.
func (r *reading) misspelt(m *members) *Fault {
	for i, field := range fieldNames {
		if r.p.pointers[i] != nil {
			continue
		}
		other := m.like[i]
		if other == nil && m.fields[i] == nil {
			other = m.near[i]
		}
		if other != nil {
			return &Fault{
				Code: FaultMisspeltField, Field: field,
				Message: "field " + strconv.Quote(cut(string(other))) + " is misspelt: names are case-sensitive, send " + strconv.Quote(field),
			}
		}
	}
	return nil
}

// sameLetters compares without case and without separators: customerId is customer_id.
func sameLetters(name []byte, field string) bool {
	at := 0
	for _, c := range name {
		if c == '_' || c == '-' || c == ' ' || c == '.' {
			continue
		}
		for at < len(field) && field[at] == '_' {
			at++
		}
		if at == len(field) || c|0x20 != field[at] {
			return false
		}
		at++
	}
	return at == len(field)
}

// isNear reports one letter too many, missing, wrong, or two exchanged.
func isNear(name []byte, field string) bool {
	a, b := string(name), field
	if len(a) > len(b) {
		a, b = b, a
	}
	if len(b)-len(a) > 1 {
		return false
	}
	i := 0
	for i < len(a) && a[i] == b[i] {
		i++
	}
	if len(a) < len(b) {
		return a[i:] == b[i+1:]
	}
	if i == len(a) || a[i+1:] == b[i+1:] {
		return true
	}
	return i+1 < len(a) && a[i] == b[i+1] && a[i+1] == b[i] && a[i+2:] == b[i+2:]
}

// resolve follows a pointer through an object that was read strictly; nil when it leads nowhere.
func resolve(text []byte, steps []string) []byte {
	for _, step := range steps {
		switch text[0] {
		case '{':
			text = memberOf(text, step)
		case '[':
			text = elementOf(text, step)
		default:
			return nil
		}
		if text == nil {
			return nil
		}
	}
	return text
}

func memberOf(text []byte, step string) []byte {
	d := newDecoder(text, jsontext.AllowDuplicateNames(true))
	if _, err := d.ReadToken(); err != nil {
		return nil
	}
	for d.PeekKind() != '}' {
		name, err := readRaw(d, text)
		if err != nil {
			return nil
		}
		value, err := readRaw(d, text)
		if err != nil {
			return nil
		}
		if string(unquote(name)) == step {
			return value
		}
	}
	return nil
}

func elementOf(text []byte, step string) []byte {
	index, err := strconv.Atoi(step)
	if err != nil || strconv.Itoa(index) != step || index < 0 {
		return nil
	}
	d := newDecoder(text, jsontext.AllowDuplicateNames(true))
	if _, err := d.ReadToken(); err != nil {
		return nil
	}
	for ; d.PeekKind() != ']'; index-- {
		value, err := readRaw(d, text)
		if err != nil {
			return nil
		}
		if index == 0 {
			return value
		}
	}
	return nil
}
