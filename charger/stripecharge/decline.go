package stripecharge

import "slices"

// KindOfDecline says what a decline means, from the codes of Stripe's error. An unknown code is soft:
// a person may try again, nothing does so by itself.
func KindOfDecline(errorCode, declineCode, adviceCode string) DeclineKind {
	if adviceCode == codeDoNotTryAgain {
		return DeclineHard
	}
	for _, code := range []string{declineCode, errorCode} {
		for _, row := range declineCodes() {
			if slices.Contains(row.codes, code) {
				return row.kind
			}
		}
	}
	return DeclineSoft
}

// DeclineKind is what a decline means for the customer.
type DeclineKind string

// The kinds of declines.
const (
	DeclineSoft           DeclineKind = "soft"           // may go through another day
	DeclineHard           DeclineKind = "hard"           // never with this card
	DeclineCardData       DeclineKind = "card_data"      // the card's data are wrong or out of date
	DeclineNoCard         DeclineKind = "no_card"        // there is nothing to charge
	DeclineAuthentication DeclineKind = "authentication" // the cardholder must be present
)

const (
	codeDuplicate     = "duplicate_transaction"
	codeDoNotTryAgain = "do_not_try_again"
	codeGeneric       = "generic_decline"
)

type declineRow struct {
	kind  DeclineKind
	codes []string
}

func declineCodes() []declineRow {
	return []declineRow{
		{DeclineAuthentication, []string{"authentication_required", "authentication_not_handled", "payment_intent_authentication_failure"}},
		{DeclineNoCard, []string{"missing"}},
		{DeclineHard, []string{
			"lost_card", "stolen_card", "pickup_card", "restricted_card", "fraudulent", "merchant_blacklist", "revocation_of_authorization",
			"revocation_of_all_authorizations", "stop_payment_order", "invalid_account", "security_violation", codeDoNotTryAgain,
			"transaction_not_allowed", "service_not_allowed", "not_permitted", "card_not_supported", "currency_not_supported",
		}},
		{DeclineCardData, []string{
			"expired_card", "incorrect_number", "incorrect_cvc", "incorrect_pin", "incorrect_zip", "incorrect_address", "invalid_number",
			"invalid_cvc", "invalid_pin", "invalid_expiry_month", "invalid_expiry_year", "new_account_information_available",
		}},
		{DeclineSoft, []string{
			"insufficient_funds", "card_velocity_exceeded", "withdrawal_count_limit_exceeded", "try_again_later", "issuer_not_available",
			"processing_error", "reenter_transaction", "approve_with_id", "no_action_taken", codeGeneric, "do_not_honor", "call_issuer",
			"invalid_amount", "pin_try_exceeded", "testmode_decline", "card_declined",
		}},
	}
}
