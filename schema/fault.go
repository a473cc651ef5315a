package schema

import (
	"fmt"
	"unicode/utf8"
)

// Fault says why an object cannot become an intent, in words for the developer of its producer. It
// names fields, types and cures; it never repeats content of fields that it does not know.
type Fault struct {
	Code    FaultCode
	Field   string // the billing event's field, empty when the fault is not about one
	Message string
}

// Error returns the code and the message.
func (f *Fault) Error() string {
	return string(f.Code) + ": " + f.Message
}

// FaultCode is the stable name of a kind of fault; stored, counted and shown.
type FaultCode string

// The fault codes.
const (
	FaultBodyTooLarge         FaultCode = "body_too_large"
	FaultEmptyBody            FaultCode = "empty_body"
	FaultEmptyArray           FaultCode = "empty_array"
	FaultTooManyObjects       FaultCode = "too_many_objects"
	FaultNotUTF8              FaultCode = "not_utf8"
	FaultUnpairedSurrogate    FaultCode = "unpaired_surrogate"
	FaultNotJSON              FaultCode = "not_json"
	FaultTrailingData         FaultCode = "trailing_data"
	FaultTooDeep              FaultCode = "too_deep"
	FaultNotAnObject          FaultCode = "not_an_object"
	FaultRepeatedKey          FaultCode = "repeated_key"
	FaultBadCloudEvent        FaultCode = "bad_cloudevent"
	FaultMissingField         FaultCode = "missing_field"
	FaultMisspeltField        FaultCode = "misspelt_field"
	FaultWrongType            FaultCode = "wrong_type"
	FaultEmptyField           FaultCode = "empty_field"
	FaultTooLong              FaultCode = "too_long"
	FaultControlCharacter     FaultCode = "control_character"
	FaultColonInKeyField      FaultCode = "colon_in_key_field"
	FaultSurroundingSpace     FaultCode = "surrounding_space"
	FaultBadPeriod            FaultCode = "bad_period"
	FaultOutOfRange           FaultCode = "out_of_range"
	FaultNegativeAmount       FaultCode = "negative_amount"
	FaultBadCurrency          FaultCode = "bad_currency"
	FaultBadAmountForCurrency FaultCode = "bad_amount_for_currency"
	FaultBadStripeCustomer    FaultCode = "bad_stripe_customer"
	FaultBadPaymentMethod     FaultCode = "bad_payment_method"
)

// FaultCodes lists every code that a parser can give.
func FaultCodes() []FaultCode {
	return []FaultCode{
		FaultBodyTooLarge, FaultEmptyBody, FaultEmptyArray, FaultTooManyObjects,
		FaultNotUTF8, FaultUnpairedSurrogate, FaultNotJSON, FaultTrailingData, FaultTooDeep, FaultNotAnObject,
		FaultRepeatedKey, FaultBadCloudEvent,
		FaultMissingField, FaultMisspeltField, FaultWrongType, FaultEmptyField, FaultTooLong,
		FaultControlCharacter, FaultColonInKeyField, FaultSurroundingSpace,
		FaultBadPeriod, FaultOutOfRange, FaultNegativeAmount, FaultBadCurrency, FaultBadAmountForCurrency,
		FaultBadStripeCustomer, FaultBadPaymentMethod,
	}
}

func faultf(code FaultCode, format string, args ...any) *Fault {
	return &Fault{Code: code, Message: fmt.Sprintf(format, args...)}
}

// fieldFaultf begins the message with the field's name.
func fieldFaultf(code FaultCode, field, format string, args ...any) *Fault {
	return &Fault{Code: code, Field: field, Message: fmt.Sprintf("field %q ", field) + fmt.Sprintf(format, args...)}
}

// maxShownBytes bounds what a message repeats of one value or name, in bytes.
const maxShownBytes = 40

// cut shortens text for a message without splitting a character.
func cut(text string) string {
	if len(text) <= maxShownBytes {
		return text
	}
	end := maxShownBytes
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "..."
}
