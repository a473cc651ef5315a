package schema

import "slices"

// Status says where an intent stands. The job of the queue has a state; only the intent has a status.
type Status string

// The statuses of an intent.
const (
	StatusPending      Status = "pending"       // waits for a claim, the reason says for what
	StatusNothingDue   Status = "nothing_due"   // the amount is 0, Stripe takes no such charge
	StatusCharging     Status = "charging"      // claimed; Stripe may have been called
	StatusCharged      Status = "charged"       // a validated charge is recorded
	StatusCardDeclined Status = "card_declined" // Stripe definitively refused the card
	StatusVoided       Status = "voided"        // a person took the obligation back
	StatusParked       Status = "parked"        // a person must decide
)

// moves is the whole life of an intent; what is not in it does not happen. The database holds the
// same table as a constraint. An intent that is just being recorded comes from the empty status.
//
// Every status that is not final can become charged: a validated success is a fact about money and
// is recorded whatever the intent's status says by then.
var moves = map[Status][]Status{
	"":                 {StatusPending, StatusNothingDue},
	StatusPending:      {StatusCharging, StatusVoided, StatusParked, StatusCharged},
	StatusNothingDue:   {StatusPending, StatusCharged},
	StatusCharging:     {StatusCharged, StatusCardDeclined, StatusParked, StatusPending},
	StatusCharged:      {},
	StatusCardDeclined: {StatusVoided, StatusPending, StatusCharged},
	StatusVoided:       {StatusPending, StatusCharged},
	StatusParked:       {StatusCharging, StatusCharged, StatusPending, StatusVoided},
}

// CanMove reports whether an intent may go from one status to the other. The empty status is that
// of an intent not yet recorded. Staying is no move: a change of reason alone needs none.
func CanMove(from, to Status) bool {
	return slices.Contains(moves[from], to)
}

// Final reports whether nothing moves an intent of this status any more. Only charged is final: a
// declined, voided, parked or zero intent may be taken up again by a person with new terms or the
// next key generation, and a late success from Stripe must still be able to reach it.
func (s Status) Final() bool {
	return s == StatusCharged
}

// Statuses lists every status in the order of an intent's life.
func Statuses() []Status {
	return []Status{
		StatusPending, StatusNothingDue, StatusCharging, StatusCharged,
		StatusCardDeclined, StatusVoided, StatusParked,
	}
}

// StatusReason says why an intent stands where it stands; each status has a closed list of them.
type StatusReason string

// Reasons to wait (pending).
const (
	ReasonNoRun        StatusReason = "no_run"        // no open run for its namespace, period and currency
	ReasonQueued       StatusReason = "queued"        // has a job, not yet claimed
	ReasonRunPaused    StatusReason = "run_paused"    // its run is paused
	ReasonRunCapped    StatusReason = "run_capped"    // its run's cap leaves no room for it
	ReasonStopped      StatusReason = "stopped"       // the kill switch is on
	ReasonConflict     StatusReason = "conflict"      // other terms came for the same key, a person decides
	ReasonSameCustomer StatusReason = "same_customer" // another intent bills this Stripe customer for the period
)

// Reasons while in flight (charging).
const (
	ReasonSent       StatusReason = "sent"       // claimed, the call is on its way
	ReasonInDoubt    StatusReason = "in_doubt"   // Stripe may or may not have charged
	ReasonProcessing StatusReason = "processing" // Stripe has it and is not done
	ReasonCancelling StatusReason = "cancelling" // an open object at Stripe must be cancelled first
)

// Reasons of a decline (card_declined).
const (
	ReasonCardDeclined           StatusReason = "card_declined"
	ReasonAuthenticationRequired StatusReason = "authentication_required"
	ReasonNoPaymentMethod        StatusReason = "no_payment_method"
)

// Reasons to park.
const (
	ReasonInvalidRequest      StatusReason = "invalid_request"       // Stripe refused the request itself
	ReasonMismatch            StatusReason = "mismatch"              // what Stripe holds has other terms
	ReasonDoubtExpired        StatusReason = "doubt_expired"         // in doubt past the idempotency window
	ReasonCancelledByOperator StatusReason = "cancelled_by_operator" // its job was cancelled by a person
	ReasonRedispatchLimit     StatusReason = "redispatch_limit"      // dispatched again too often without an attempt
	ReasonRequiresAction      StatusReason = "requires_action"       // the payer must act
	ReasonIdempotencyError    StatusReason = "idempotency_error"     // the key was used with other parameters
	ReasonChargeIDTaken       StatusReason = "charge_id_taken"       // another intent holds that charge
	ReasonWrongAccount        StatusReason = "wrong_account"         // the key leads to another Stripe account
)

// Reasons of the statuses at rest (charged, voided, nothing_due).
const (
	ReasonCharged    StatusReason = "charged"     // our own call succeeded
	ReasonAdopted    StatusReason = "adopted"     // the charge was found by a look-up
	ReasonByOperator StatusReason = "by_operator" // voided by a person
	ReasonZeroAmount StatusReason = "zero_amount" // nothing to charge
)

// Reasons lists the reasons that may stand beside s, nil for an unknown status.
func (s Status) Reasons() []StatusReason {
	switch s {
	case StatusPending:
		return []StatusReason{
			ReasonNoRun, ReasonQueued, ReasonRunPaused, ReasonRunCapped, ReasonStopped, ReasonConflict, ReasonSameCustomer,
		}
	case StatusNothingDue:
		return []StatusReason{ReasonZeroAmount}
	case StatusCharging:
		return []StatusReason{ReasonSent, ReasonInDoubt, ReasonProcessing, ReasonCancelling}
	case StatusCharged:
		return []StatusReason{ReasonCharged, ReasonAdopted}
	case StatusCardDeclined:
		return []StatusReason{ReasonCardDeclined, ReasonAuthenticationRequired, ReasonNoPaymentMethod}
	case StatusVoided:
		return []StatusReason{ReasonByOperator}
	case StatusParked:
		return []StatusReason{
			ReasonInvalidRequest, ReasonMismatch, ReasonDoubtExpired, ReasonCancelledByOperator, ReasonRedispatchLimit,
			ReasonRequiresAction, ReasonIdempotencyError, ReasonChargeIDTaken, ReasonWrongAccount,
		}
	}
	return nil
}
