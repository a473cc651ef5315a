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

// CureOfDecline says in one sentence what a person should do about a decline. Nothing is tried again by itself: a decline
// stands for its key, and is sent again by Stripe for as long as the key is known.
func CureOfDecline(errorCode, declineCode, adviceCode string) string {
	kind := KindOfDecline(errorCode, declineCode, adviceCode)
	for _, row := range cures() {
		if row.kind == kind && (len(row.codes) == 0 || slices.Contains(row.codes, declineCode)) {
			return row.cure
		}
	}
	return "find out at Stripe why the bank refused"
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

// CodeDuplicate is the decline code of a bank that saw the same payment just before: money may have moved by another one.
const CodeDuplicate = "duplicate_transaction"

const (
	codeDoNotTryAgain = "do_not_try_again"
	codeGeneric       = "generic_decline"
)

type declineRow struct {
	kind  DeclineKind
	codes []string
}

type cureRow struct {
	kind  DeclineKind
	codes []string // decline codes; empty: all the others of this kind
	cure  string
}

// cures is read from above; the last row of a kind is for every code of it.
func cures() []cureRow {
	return []cureRow{
		{DeclineAuthentication, nil, "the customer must pay once while present: the bank asks for the cardholder"},
		{DeclineNoCard, nil, "the customer must store a card, then the intent can be retried"},
		{
			// Stripe asks for these to be shown as any other decline: whoever holds the card may not be its owner.
			DeclineHard,
			[]string{"lost_card", "stolen_card", "pickup_card", "fraudulent", "merchant_blacklist", "security_violation"},
			"never with this card: ask for another one, and say no more than that the card was declined",
		},
		{DeclineHard, nil, "never with this card: the customer must give another one, then the intent can be retried"},
		{DeclineCardData, nil, "the customer must correct the card's data, then the intent can be retried"},
		{
			DeclineSoft,
			[]string{"insufficient_funds", "card_velocity_exceeded", "withdrawal_count_limit_exceeded"},
			"may go through another day: retry the intent then, a few times at most",
		},
		{DeclineSoft, []string{CodeDuplicate}, "see whether another payment of this sum exists, here or beside: the bank saw one just before; retry only if there is none"},
		{DeclineSoft, nil, "may go through later: retry the intent once or twice, else the customer must ask the bank"},
	}
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
			"invalid_amount", "pin_try_exceeded", "testmode_decline", "card_declined", CodeDuplicate,
		}},
	}
}
