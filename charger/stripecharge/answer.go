package stripecharge

import (
	"time"
)

// Answer is what one call came to, classified. Its zero value could have charged.
type Answer struct {
	Op    Op
	Class Class

	// Sent is false only when surely no complete request left: nothing was handed to the network, or
	// the connection's Write refused because sendBefore had passed.
	Sent       bool
	HTTPStatus int    // 0: no answer came
	RequestID  string // req_... where Stripe answered
	Replayed   bool   // Stripe sent a stored answer: unless succeeded a snapshot, read by id before it counts
	KeyEcho    KeyEcho
	Date       time.Time
	Took       time.Duration

	// Unreadable: the body was cut short, too large, or on a 2xx no JSON object.
	Unreadable bool

	ErrorType   string // of Stripe's error object; typeIntermediary when the answer is not Stripe's
	ErrorCode   string
	DeclineCode string
	AdviceCode  string
	Param       string
	Message     string // what Stripe or the proxy said, bounded, without the key
	RateLimit   string // Stripe-Rate-Limited-Reason of a 429

	// Object is what the answer shows: of a 2xx the object itself, of a card error the payment intent
	// or, with nothing but Kind and ID, the charge that failed.
	Object *Object

	// Err says in one line what went wrong, nil on a readable 2xx. It holds neither key nor body.
	Err error
}

// Op is what was asked of Stripe; the first four are the operations of a charge attempt.
type Op string

// The operations.
const (
	OpCreate   Op = "create"
	OpLookUp   Op = "look_up"
	OpRead     Op = "read"
	OpCancel   Op = "cancel"
	OpAccount  Op = "account"
	OpCustomer Op = "customer"
)

// KeyEcho is what an answer to a create shows of the idempotency key: Stripe repeats it in a header.
type KeyEcho string

// What an answer can show of the key. Refusals from before Stripe's idempotency layer, and answers that are not Stripe's,
// show nothing.
const (
	KeyEchoed    KeyEcho = "echoed"
	KeyChanged   KeyEcho = "changed"    // another key: something between here and Stripe replaces it
	KeyNotEchoed KeyEcho = "not_echoed" // an object was made, and no key told: it was dropped on the way there, or its header on the way back
)

// CouldHaveCharged reports whether money may have moved by this call. It is true for everything that
// is not proven otherwise, the zero Answer and unknown classes among it.
func (a Answer) CouldHaveCharged() bool {
	return RowOf(a.Class).Money != MoneyNot
}

// Result is the word for the attempt's row in the database.
func (a Answer) Result() string {
	row := RowOf(a.Class)
	switch a.Op {
	case OpRead:
		return row.Read
	case OpCancel:
		return row.Cancel
	case OpLookUp, OpAccount, OpCustomer:
		return row.LookUp
	case OpCreate:
	}
	return row.Result
}

// DeclineKind says what a decline means for the customer; empty where the answer is none.
func (a Answer) DeclineKind() DeclineKind {
	if a.Class != ClassDeclined && a.Class != ClassFailedObject {
		return ""
	}
	return KindOfDecline(a.ErrorCode, a.DeclineCode, a.AdviceCode)
}

// about holds an answer against the id that was asked for: another object is no answer.
func (a Answer) about(id string) Answer {
	if a.Object != nil && a.HTTPStatus < 300 && a.Object.ID != id {
		a.Class = ClassMismatch
	}
	return a
}

// localError is a refusal of this package to send.
type localError struct{ err error }

func (e *localError) Error() string { return e.err.Error() }
func (e *localError) Unwrap() error { return e.err }

func refusedHere(op Op, err error) Answer {
	return Answer{Op: op, Class: ClassLocalError, Message: shortened(err.Error()), Err: &localError{err}}
}
