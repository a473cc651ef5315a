package stripetest

import (
	"net/http"
	"strconv"
)

// answer is one response before it is written. The body is rendered only then and is never changed, so an answer that
// is kept under an idempotency key comes out byte for byte the same.
type answer struct {
	status     int
	body       any
	page       string // an intermediary's answer instead of a Stripe object
	pageType   string
	header     map[string]string
	objectID   string
	kept       bool // stored under the idempotency key: the endpoint had begun to execute
	replayed   bool
	originalID string // request id of the first answer, on a replay
}

type stripeError struct {
	Charge             string      `json:"charge,omitempty"`
	Code               string      `json:"code,omitempty"`
	DeclineCode        string      `json:"decline_code,omitempty"`
	AdviceCode         string      `json:"advice_code,omitempty"`
	NetworkDeclineCode string      `json:"network_decline_code,omitempty"`
	NetworkAdviceCode  string      `json:"network_advice_code,omitempty"`
	DocURL             string      `json:"doc_url,omitempty"`
	Message            string      `json:"message"`
	Param              string      `json:"param,omitempty"`
	PaymentIntent      *intentView `json:"payment_intent,omitempty"`
	PaymentMethod      any         `json:"payment_method,omitempty"`
	RequestLogURL      string      `json:"request_log_url,omitempty"`
	Type               string      `json:"type"`
}

type errorBody struct {
	Error *stripeError `json:"error"`
}

const (
	typeInvalid     = "invalid_request_error"
	typeCard        = "card_error"
	typeAPI         = "api_error"
	typeIdempotency = "idempotency_error"
)

func invalid(code, param, message string) *stripeError {
	return &stripeError{Type: typeInvalid, Code: code, Param: param, Message: message}
}

// refusedEarly is a 400 from before the endpoint began: not kept under the key.
func refusedEarly(e *stripeError) answer {
	return answer{status: http.StatusBadRequest, body: errorBody{e}}
}

// refusedLate is an error raised while the endpoint ran: kept under the key and replayed.
func refusedLate(status int, e *stripeError) answer {
	return answer{status: status, body: errorBody{e}, kept: true}
}

func missing(kind, id, param string, status int) answer {
	return refusedLate(status, invalid("resource_missing", param, "No such "+kind+": '"+id+"'"))
}

// withDocs fills in what Stripe adds to every coded error.
func (e *stripeError) withDocs(requestID string) {
	if e.Code != "" {
		e.DocURL = "https://stripe.com/docs/error-codes/" + dashed(e.Code)
	}
	e.RequestLogURL = "https://dashboard.stripe.com/test/logs/" + requestID
}

func dashed(code string) string {
	b := []byte(code)
	for i := range b {
		if b[i] == '_' {
			b[i] = '-'
		}
	}
	return string(b)
}

// cardFailure is how the bank refused one payment.
type cardFailure struct {
	code, declineCode, message    string
	advice, network, networkAdvce string
}

func (f *cardFailure) asError(chargeID string) *stripeError {
	return &stripeError{
		Type: typeCard, Charge: chargeID, Code: f.code, DeclineCode: f.declineCode, Message: f.message,
		AdviceCode: f.advice, NetworkDeclineCode: f.network, NetworkAdviceCode: f.networkAdvce,
	}
}

const (
	adviseRetry    = "try_again_later"
	adviseConfirm  = "confirm_card_data"
	adviseNoRetry  = "do_not_try_again"
	messageDecline = "Your card was declined."
)

// declined is the bank's answer for a decline code: error code, message, advice and network code as Stripe gives them.
// A code that is not in the list is a card_declined with that decline_code, so a script may use any.
func declined(code string) *cardFailure {
	f := &cardFailure{code: "card_declined", declineCode: code, message: messageDecline}
	switch code {
	case "insufficient_funds":
		f.message, f.advice, f.network = "Your card has insufficient funds.", adviseRetry, "51"
	case "do_not_honor":
		f.advice, f.network = adviseRetry, "05"
	case "generic_decline", "try_again_later", "issuer_not_available", "card_velocity_exceeded", "withdrawal_count_limit_exceeded",
		"reenter_transaction", "no_action_taken", "approve_with_id", "call_issuer":
		f.advice = adviseRetry
	case "lost_card":
		f.advice, f.network, f.networkAdvce = adviseNoRetry, "41", "03"
	case "stolen_card":
		f.advice, f.network, f.networkAdvce = adviseNoRetry, "43", "03"
	case "pickup_card", "restricted_card", "fraudulent", "merchant_blacklist", "revocation_of_all_authorizations",
		"revocation_of_authorization", "stop_payment_order", "invalid_account", "do_not_try_again":
		f.advice = adviseNoRetry
	case "expired_card":
		f.code, f.message, f.advice, f.network = code, "Your card has expired.", adviseConfirm, "54"
	case "incorrect_cvc", "invalid_cvc":
		f.code, f.message, f.advice = code, "Your card's security code is incorrect.", adviseConfirm
	case "incorrect_number", "invalid_number":
		f.code, f.message, f.advice = code, "Your card number is incorrect.", adviseConfirm
	case "invalid_expiry_month", "invalid_expiry_year", "incorrect_zip", "incorrect_pin", "incorrect_address":
		f.code, f.advice = code, adviseConfirm
	case "processing_error":
		f.code, f.declineCode, f.advice = code, code, adviseRetry
		f.message = "An error occurred while processing your card. Try again in a little bit."
	case "authentication_required":
		f.code = code
		f.message = "Your card was declined. This transaction requires authentication."
	case "duplicate_transaction":
		f.message = "A transaction with identical amount and credit card information was submitted very recently."
	}
	return f
}

func noCard() answer {
	return refusedLate(http.StatusPaymentRequired, &stripeError{
		Type: typeCard, Code: "missing", Param: "card", Message: "Cannot charge a customer that has no active card",
	})
}

// serverError is Stripe's own 500, which says nothing about whether anything happened.
func serverError() answer {
	return answer{status: http.StatusInternalServerError, kept: true, body: errorBody{&stripeError{
		Type: typeAPI, Message: "Sorry! There was an error while talking to one of our backends. Support has been notified.",
	}}}
}

func unauthorized(message string) answer {
	return answer{
		status: http.StatusUnauthorized, body: errorBody{&stripeError{Type: typeInvalid, Message: message}},
		header: map[string]string{"WWW-Authenticate": `Bearer realm="Stripe"`},
	}
}

func limited(code, reason string) answer {
	message := "Request rate limit exceeded. Learn more about rate limits here https://stripe.com/docs/rate-limits."
	if code == "lock_timeout" {
		message = "This object cannot be accessed right now because another API request or Stripe process is currently accessing it. " +
			"If you see this error intermittently, retry the request."
	}
	a := answer{status: http.StatusTooManyRequests, body: errorBody{&stripeError{Type: typeInvalid, Code: code, Message: message}}}
	if reason != "" {
		a.header = map[string]string{"Stripe-Rate-Limited-Reason": reason}
	}
	return a
}

func keyInUse(key string) answer {
	return answer{status: http.StatusConflict, body: errorBody{&stripeError{
		Type: typeInvalid, Code: "idempotency_key_in_use",
		Message: "There is currently another in-progress request using this Idempotent Key (that probably means you submitted twice, " +
			"and the other request is still going through): " + key + ". Please try again later.",
	}}}
}

func htmlPage(status int) answer {
	title := strconv.Itoa(status) + " " + http.StatusText(status)
	return answer{
		status: status, pageType: "text/html",
		page: "<html>\r\n<head><title>" + title + "</title></head>\r\n<body>\r\n<center><h1>" + title + "</h1></center>\r\n<hr><center>nginx</center>\r\n</body>\r\n</html>\r\n",
	}
}
