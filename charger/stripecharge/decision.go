package stripecharge

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	"chargeonce/schema"
)

// Decide finds the row of an answer. r is the frozen request whose charge the answer should show; the
// zero Request leaves terms unchecked, which suits reads whose request the caller compares later.
// Nothing is decided by the HTTP number alone where a proxy may have answered instead of Stripe.
func Decide(a Answer, r Request) Class {
	switch {
	case a.HTTPStatus == 0:
		return decideUnanswered(a)
	case a.cancelShows():
		return decideOpenObject(*a.Object)
	case a.HTTPStatus < http.StatusMultipleChoices:
		return decideSuccess(a, r)
	case a.HTTPStatus < http.StatusBadRequest:
		return ClassRedirect
	case a.HTTPStatus >= http.StatusInternalServerError:
		if a.ErrorType == "api_error" && a.fromStripe() && !a.Unreadable {
			return ClassServerError
		}
		return ClassBadGateway
	case a.HTTPStatus == http.StatusFailedDependency:
		return ClassFailedDependency
	case a.Unreadable:
		return ClassUnreadableError
	default:
		return decideRefusal(a, r)
	}
}

// Class names a row of the decision table.
type Class string

// The classes.
const (
	ClassSucceeded        Class = "succeeded"
	ClassProcessing       Class = "processing"
	ClassRequiresAction   Class = "requires_action"
	ClassFailedObject     Class = "failed_object"
	ClassMismatch         Class = "mismatch"
	ClassUnparsable       Class = "unparsable_2xx"
	ClassDeclined         Class = "declined"
	ClassDuplicate        Class = "duplicate_transaction"
	ClassInvalidRequest   Class = "invalid_request"
	ClassIdempotencyError Class = "idempotency_error"
	ClassUnauthorized     Class = "unauthorized"
	ClassDenied           Class = "denied"
	ClassKeyInUse         Class = "key_in_use"
	ClassRateLimited      Class = "rate_limited"
	ClassLockTimeout      Class = "lock_timeout"
	ClassFailedDependency Class = "failed_dependency"
	ClassServerError      Class = "server_error"
	ClassBadGateway       Class = "bad_gateway"
	ClassRedirect         Class = "redirect"
	ClassUnreadableError  Class = "unreadable_error"
	ClassNotSent          Class = "not_sent"
	ClassTimeout          Class = "timeout"
	ClassConnectionLost   Class = "connection_lost"
	ClassLocalError       Class = "local_error"
	ClassOpen             Class = "open"     // reads and cancels: can still be paid
	ClassCanceled         Class = "canceled" // reads and cancels: cannot be paid any more
	ClassAnswered         Class = "answered" // look-ups, account and customer reads
)

// Money says what an answer proves about this one send.
type Money string

// What an answer can prove.
const (
	MoneyMoved   Money = "moved"
	MoneyNot     Money = "not"
	MoneyUnknown Money = "unknown"
)

// Next is what should happen to the intent.
type Next string

// What can happen next.
const (
	NextDone      Next = "done"           // nothing more to do
	NextReadByID  Next = "read_by_id"     // poll the object, never create it again
	NextDecline   Next = "decline"        // final for this key; see that the object is cancelled
	NextLookUp    Next = "look_up"        // list before anything else is sent
	NextRetry     Next = "retry_same_key" // same key, same bytes, with back-off
	NextSlowDown  Next = "slow_down"      // the same, and a smaller rate
	NextReview    Next = "review"         // look up, then a person, the run paused
	NextOperator  Next = "operator"       // a person mends the request
	NextPauseRun  Next = "pause_run"      // the proxy denied: no attempt is burnt
	NextReissue   Next = "reissue_key"    // the key is no longer taken
	NextCancel    Next = "cancel"         // cancel the open object first
	NextGiveCause Next = "report"         // the caller reports it: nothing follows for the intent
)

// Row is one row of the decision table. Result, Read, Cancel and LookUp are the words for the attempt's
// result, by what was asked; a class that an operation never has keeps the word for "no".
type Row struct {
	Class  Class
	Shows  string // how the answer looks
	Money  Money  // about this send alone
	Result string // of a create
	Read   string
	Cancel string
	LookUp string

	// Reason is where a create that is answered so leaves its intent (see Status), a decline after its payment intent was
	// seen cancelled. While an earlier send is in doubt this holds only for a row that Resolves; every other answer says
	// nothing about that send, and the intent stays in doubt.
	Reason   schema.StatusReason
	Resolves bool
	Next     Next
}

// Status is the intent's status to which the row's reason belongs.
func (r Row) Status() schema.Status {
	for _, status := range schema.Statuses() {
		if slices.Contains(status.Reasons(), r.Reason) {
			return status
		}
	}
	return ""
}

// Words for attempt results, as the database takes them.
const (
	resultCharged          = "charged"
	resultProcessing       = "processing"
	resultRequiresAction   = "requires_action"
	resultDeclined         = "declined"
	resultInvalid          = "invalid"
	resultDenied           = "denied"
	resultUnauthorized     = "unauthorized"
	resultRateLimited      = "rate_limited"
	resultKeyInUse         = "key_in_use"
	resultNotSent          = "not_sent"
	resultUnknown          = "unknown"
	resultServerError      = "server_error"
	resultIdempotencyError = "idempotency_error"
	resultMismatch         = "mismatch"
	resultOpen             = "open"
	resultCanceled         = "canceled"
	resultFailed           = "failed"
	resultAbsent           = "absent" // a look-up's found is decided by what it found
)

// failedRow is a row that tells nothing about an object to whoever reads, cancels or looks up.
func failedRow(class Class, shows string, money Money, result string, reason schema.StatusReason, next Next) Row {
	return Row{Class: class, Shows: shows, Money: money, Result: result, Read: resultFailed, Cancel: resultFailed, LookUp: resultFailed, Reason: reason, Next: next}
}

func objectRow(class Class, shows string, money Money, result, read, cancel string, reason schema.StatusReason, next Next) Row {
	return Row{Class: class, Shows: shows, Money: money, Result: result, Read: read, Cancel: cancel, LookUp: resultFailed, Reason: reason, Resolves: true, Next: next}
}

// Rows is the decision table, in the order in which it is read.
func Rows() []Row {
	const (
		inDoubt = schema.ReasonInDoubt
		refused = schema.ReasonInvalidRequest
		queued  = schema.ReasonQueued
	)
	return []Row{
		objectRow(ClassSucceeded, "2xx, the object repeats the request and succeeded", MoneyMoved, resultCharged, resultCharged, resultCharged, schema.ReasonCharged, NextDone),
		objectRow(ClassProcessing, "2xx, pending or processing", MoneyUnknown, resultProcessing, resultProcessing, resultOpen, schema.ReasonProcessing, NextReadByID),
		objectRow(ClassRequiresAction, "2xx, the payer must act", MoneyNot, resultRequiresAction, resultRequiresAction, resultOpen, schema.ReasonCancelling, NextCancel),
		objectRow(ClassFailedObject, "2xx, the charge failed or the payment intent lost its payment method", MoneyNot, resultDeclined, resultDeclined, resultFailed, schema.ReasonCardDeclined, NextDecline),
		objectRow(ClassDeclined, "402 card_error with a request id of Stripe's", MoneyNot, resultDeclined, resultFailed, resultFailed, schema.ReasonCardDeclined, NextDecline),
		failedRow(ClassDuplicate, "card_error duplicate_transaction: the issuer saw this payment before", MoneyUnknown, resultUnknown, inDoubt, NextLookUp),
		{
			Class: ClassMismatch, Shows: "2xx with an empty or another object, or a decline that shows a paid one", Money: MoneyUnknown,
			Result: resultMismatch, Read: resultMismatch, Cancel: resultFailed, LookUp: resultFailed, Reason: inDoubt, Next: NextReview,
		},
		failedRow(ClassUnparsable, "2xx cut short or not JSON", MoneyUnknown, resultUnknown, inDoubt, NextRetry),
		failedRow(ClassInvalidRequest, "4xx invalid_request_error with a request id of Stripe's", MoneyNot, resultInvalid, refused, NextOperator),
		failedRow(ClassIdempotencyError, "idempotency_error: the key was used with other parameters", MoneyUnknown, resultIdempotencyError, inDoubt, NextReview),
		failedRow(ClassUnauthorized, "401 or 403 of Stripe's", MoneyNot, resultUnauthorized, schema.ReasonRunPaused, NextReissue),
		failedRow(ClassDenied, "401, 402, 403 or 429 that is not Stripe's", MoneyNot, resultDenied, schema.ReasonRunPaused, NextPauseRun),
		failedRow(ClassKeyInUse, "409 of Stripe's: another send under this key is in progress", MoneyUnknown, resultKeyInUse, inDoubt, NextRetry),
		failedRow(ClassRateLimited, "429 with an error object of Stripe's", MoneyNot, resultRateLimited, queued, NextSlowDown),
		failedRow(ClassLockTimeout, "429 lock_timeout: another change of the same customer is in progress", MoneyNot, resultRateLimited, queued, NextRetry),
		failedRow(ClassFailedDependency, "424: something Stripe depends on failed", MoneyUnknown, resultUnknown, inDoubt, NextRetry),
		failedRow(ClassServerError, "5xx api_error with a request id: Stripe may still carry it out later", MoneyUnknown, resultServerError, inDoubt, NextLookUp),
		failedRow(ClassBadGateway, "5xx that is not Stripe's", MoneyUnknown, resultUnknown, inDoubt, NextRetry),
		failedRow(ClassRedirect, "3xx", MoneyUnknown, resultUnknown, inDoubt, NextRetry),
		failedRow(ClassUnreadableError, "4xx that is neither a known refusal of Stripe's nor a known denial", MoneyUnknown, resultUnknown, inDoubt, NextRetry),
		failedRow(ClassNotSent, "no connection, or the time to send had passed: no complete request left", MoneyNot, resultNotSent, queued, NextRetry),
		failedRow(ClassTimeout, "sent, and no answer in time", MoneyUnknown, resultUnknown, inDoubt, NextRetry),
		failedRow(ClassConnectionLost, "sent, and the connection ended without an answer", MoneyUnknown, resultUnknown, inDoubt, NextRetry),
		failedRow(ClassLocalError, "refused here: the request cannot be sent", MoneyNot, resultInvalid, refused, NextOperator),
		{
			Class: ClassOpen, Shows: "the object can still be paid", Money: MoneyUnknown,
			Result: resultUnknown, Read: resultOpen, Cancel: resultOpen, LookUp: resultFailed, Reason: inDoubt, Next: NextCancel,
		},
		// No answer to a create: should one show it all the same, its object is read first.
		objectRow(ClassCanceled, "the object is cancelled", MoneyNot, resultDeclined, resultCanceled, resultCanceled, inDoubt, NextDecline),
		{
			Class: ClassAnswered, Shows: "the list, account or customer was read", Money: MoneyUnknown,
			Result: resultUnknown, Read: resultFailed, Cancel: resultFailed, LookUp: resultAbsent, Reason: inDoubt, Next: NextGiveCause,
		},
	}
}

// RowOf finds the row of a class; a class that is not in the table is in doubt.
func RowOf(class Class) Row {
	for _, row := range Rows() {
		if row.Class == class {
			return row
		}
	}
	return failedRow(class, "not in the table", MoneyUnknown, resultUnknown, schema.ReasonInDoubt, NextLookUp)
}

// fromStripe reports whether the error is Stripe's by its body and its request id.
func (a Answer) fromStripe() bool {
	return isStripeType(a.ErrorType) && strings.HasPrefix(a.RequestID, requestIDPrefix)
}

// cancelShows reports whether a cancel's answer carries the payment intent: on success, or because
// Stripe refused to cancel what has already ended.
func (a Answer) cancelShows() bool {
	return a.Op == OpCancel && a.Object != nil && !a.Unreadable &&
		(a.HTTPStatus < http.StatusMultipleChoices || (a.HTTPStatus < http.StatusInternalServerError && a.fromStripe()))
}

func decideUnanswered(a Answer) Class {
	if _, local := errors.AsType[*localError](a.Err); local && !a.Sent {
		return ClassLocalError
	}
	if !a.Sent && a.Err != nil {
		return ClassNotSent
	}
	if _, late := errors.AsType[*timeoutError](a.Err); late || isTimeout(a.Err) {
		return ClassTimeout
	}
	return ClassConnectionLost
}

// decideSuccess reads a 2xx: the terms first, since the status of somebody else's object says nothing.
func decideSuccess(a Answer, r Request) Class {
	switch a.Op {
	case OpLookUp, OpAccount, OpCustomer:
		if a.Unreadable || a.Err != nil {
			return ClassUnparsable
		}
		return ClassAnswered
	case OpCreate, OpRead, OpCancel:
	}
	if a.Unreadable || a.Object == nil {
		return ClassUnparsable
	}
	o := *a.Object
	if o.checkKind() != nil {
		return ClassMismatch
	}
	if r.Path != "" && len(Differences(o, r)) > 0 {
		return ClassMismatch
	}
	if a.Op != OpCreate {
		return decideOpenObject(o)
	}
	if o.Kind != r.API.kind() {
		return ClassMismatch
	}
	switch o.Status {
	case StatusRequiresPaymentMethod:
		return ClassFailedObject
	case StatusSucceeded, StatusPending, StatusProcessing, StatusRequiresAction, StatusFailed, StatusCanceled:
		return decideOpenObject(o)
	}
	return ClassMismatch // a status that our parameters cannot lead to
}

// decideOpenObject reads the status an object has now. A charge by itself is never open: nothing of it could be cancelled.
func decideOpenObject(o Object) Class {
	if o.Kind == KindCharge && o.Status != StatusSucceeded && o.Status != StatusPending && o.Status != StatusFailed {
		return ClassMismatch
	}
	switch o.Status {
	case StatusSucceeded:
		if o.checkKind() != nil || !o.Captured || !isChargeID(o.ChargeID) {
			return ClassMismatch
		}
		return ClassSucceeded
	case StatusPending, StatusProcessing:
		return ClassProcessing
	case StatusFailed:
		return ClassFailedObject
	case StatusRequiresAction:
		return ClassRequiresAction
	case StatusCanceled:
		return ClassCanceled
	case StatusRequiresPaymentMethod, "requires_confirmation", "requires_capture":
		return ClassOpen
	}
	return ClassMismatch
}

// decideRefusal reads a 4xx that arrived whole.
func decideRefusal(a Answer, r Request) Class {
	stripes := a.fromStripe()
	switch a.HTTPStatus {
	case http.StatusTooManyRequests:
		// Rate limiters stand before everything else at Stripe; their answer is told by its type.
		switch {
		case !isStripeType(a.ErrorType):
			return ClassDenied
		case a.ErrorCode == "lock_timeout":
			return ClassLockTimeout
		}
		return ClassRateLimited
	case http.StatusPaymentRequired:
		if !stripes || a.ErrorType != "card_error" {
			return ClassDenied
		}
		return decideDecline(a, r)
	case http.StatusUnauthorized, http.StatusForbidden:
		if !stripes {
			return ClassDenied
		}
		return ClassUnauthorized
	case http.StatusConflict:
		if stripes {
			return ClassKeyInUse
		}
		return ClassUnreadableError
	}
	switch {
	case a.ErrorType == "idempotency_error":
		return ClassIdempotencyError
	case stripes && a.ErrorType == "invalid_request_error":
		return ClassInvalidRequest
	}
	return ClassUnreadableError
}

// decideDecline reads a decline of Stripe's. It resolves doubt, so it must not contradict itself.
func decideDecline(a Answer, r Request) Class {
	if a.DeclineCode == CodeDuplicate || a.ErrorCode == CodeDuplicate {
		return ClassDuplicate
	}
	if a.Object == nil || a.Object.Kind != KindPaymentIntent {
		return ClassDeclined
	}
	switch a.Object.Status {
	case StatusSucceeded, StatusProcessing, "requires_capture":
		return ClassMismatch
	}
	if r.Path != "" && len(Differences(*a.Object, r)) > 0 {
		return ClassMismatch
	}
	return ClassDeclined
}

func (a API) kind() string {
	if a == APICharges {
		return KindCharge
	}
	return KindPaymentIntent
}
