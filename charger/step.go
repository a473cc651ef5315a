package charger

import (
	"fmt"
	"math"
	"time"

	"chargeonce/charger/stripecharge"
	"chargeonce/schema"
	"chargeonce/sql/queries"
)

// action is what a worker does next with an intent.
type action int

const (
	actionDone    action = iota // nothing is left to do for this job
	actionWait                  // not before `wait` has passed
	actionRelease               // back to pending without a job, for `reason`
	actionPark                  // a person must decide, for `reason`
	actionCreate                // POST the charge: the first time, or the same bytes again
	actionLookUp                // list what Stripe has for this intent
	actionRead                  // read the known object by its id
	actionCancel                // cancel the known, still open object
)

// step is the decision about one intent at one moment.
type step struct {
	action action
	reason schema.StatusReason // of a release or a park
	wait   time.Duration       // of a wait
	detail string              // for the operator: why, and what comes next
}

// Window is how long after the first send the same key is trusted to be known to Stripe: an hour less than the 24 hours
// after which Stripe may forget it (docs.stripe.com/api/idempotent_requests).
const Window = 23 * time.Hour

const (
	// absenceFresh is how old an error-free, empty look-up may be when the POST that it permits goes out.
	absenceFresh = 2 * time.Minute
	// readPause is the time between two reads of an object that is not done.
	readPause = 10 * time.Second
	// repostPauseLeast and repostPauseMost bound the growing pause between sends of an intent in doubt. The least leaves a
	// first request that is still in flight the time to end.
	repostPauseLeast = 5 * time.Second
	repostPauseMost  = 10 * time.Minute
	// retryPauseLeast and retryPauseMost bound the pause after a call that surely charged nothing.
	retryPauseLeast = time.Second
	retryPauseMost  = time.Minute
	// leaseGrace is waited after a lease's end before the next claim.
	leaseGrace = 200 * time.Millisecond
)

// lookUpTimes are the ages of a doubt at which Stripe is asked what it has; after the last one, hourly.
func lookUpTimes() []time.Duration {
	return []time.Duration{time.Minute, 5 * time.Minute, 30 * time.Minute}
}

// nextStep decides from what the database knows. It has no clock: every age in the row was computed by the database.
// keyReaches tells whether this process has seen that the idempotency key reaches Stripe: something on the way that drops it
// would turn the second send of an intent in doubt into a second charge. lookUpFirst has every first send look first.
func nextStep(in queries.IntentForWorkRow, jobID int64, keyReaches, lookUpFirst bool) step {
	status := schema.Status(in.Status)
	switch {
	case status != schema.StatusPending && status != schema.StatusCharging:
		return step{action: actionDone}
	case in.RiverJobID == nil || *in.RiverJobID != jobID:
		return step{action: actionDone, detail: "another job has taken over"}
	case in.LeaseAlive:
		return step{action: actionWait, wait: seconds(in.LeaseSecondsLeft) + leaseGrace, detail: "a claim is alive"}
	case in.OtherLeaseAlive:
		return step{action: actionWait, wait: time.Second, detail: "an attempt's lease is alive"}
	case in.ObjectID != "":
		return nextForObject(in)
	case !in.Frozen:
		return nextForUnsent(in, lookUpFirst)
	case in.Unresolved == 0:
		return nextForRefused(in)
	default:
		return nextForDoubt(in, keyReaches)
	}
}

// nextForUnsent: nothing has ever been sent under this generation, as far as this database knows. It may have been restored from
// a backup and have lost what it knew, and an event may come again into a database that has lost its intent. Stripe knows the key
// of a send within the window; an intent that was known for longer is looked for first.
func nextForUnsent(in queries.IntentForWorkRow, lookUpFirst bool) step {
	if s, held := heldBack(in); held {
		return s
	}
	if in.OpenConflict {
		return step{action: actionRelease, reason: schema.ReasonConflict, detail: "other terms came for the same customer and period"}
	}
	keySafe := seconds(in.SecondsSinceKnown) < Window && !lookUpFirst
	if keySafe || (in.SecondsSinceAbsent >= 0 && seconds(in.SecondsSinceAbsent) < absenceFresh) {
		return step{action: actionCreate}
	}
	if in.LookUps > 0 && seconds(in.SecondsSinceLastLookUp) < readPause {
		return step{action: actionWait, wait: readPause, detail: "the look-up failed; without one nothing is sent"}
	}
	return step{action: actionLookUp}
}

// nextForRefused: sent before, and every send surely charged nothing (refused before it reached Stripe's books).
func nextForRefused(in queries.IntentForWorkRow) step {
	if s, held := heldBack(in); held {
		return s
	}
	if pause := growing(retryPauseLeast, retryPauseMost, in.Creates) - seconds(in.SecondsSinceLastCreate); pause > 0 {
		return step{action: actionWait, wait: pause, detail: "the last call charged nothing; it is sent again"}
	}
	return createAfterWindow(in)
}

// nextForDoubt: Stripe may have charged. Inside the window the same bytes under the same key are safe to send again;
// after it only a look-up that found nothing permits that, and after a server error of Stripe's own nothing does.
func nextForDoubt(in queries.IntentForWorkRow, keyReaches bool) step {
	lookUpIn := lookUpDue(in)
	if in.SawIdempotencyError || in.SawMismatch {
		return nextForEvidence(in)
	}
	if lookUpIn <= 0 {
		return step{action: actionLookUp}
	}
	if in.SawServerError {
		if seconds(in.SecondsSinceFirstSend) >= Window && in.SecondsSinceAbsent >= 0 {
			return step{
				action: actionPark, reason: schema.ReasonDoubtExpired,
				detail: "Stripe answered 5xx, the key's window is over and look-ups find nothing: it may still be rolled forward",
			}
		}
		return step{action: actionWait, wait: lookUpIn, detail: "Stripe answered 5xx: look-ups only"}
	}
	if _, held := heldBack(in); held {
		return step{action: actionWait, wait: lookUpIn, detail: "in doubt while charging is held back: look-ups only"}
	}
	if pause := growing(repostPauseLeast, repostPauseMost, in.Creates) - seconds(in.SecondsSinceLastCreate); pause > 0 && !crashed(in) {
		return step{action: actionWait, wait: min(pause, lookUpIn), detail: "in doubt: the same request is sent again"}
	}
	if !keyReaches {
		return createAfterAbsence(in)
	}
	return createAfterWindow(in)
}

// crashed tells whether the doubt is a process that died (its attempt has no result): its lease was waited for already.
func crashed(in queries.IntentForWorkRow) bool {
	return in.StatusReason == string(schema.ReasonSent)
}

// nextForEvidence: an answer said that this key was used with other parameters, or showed an object with other terms. One
// look-up is made for the person who must decide.
func nextForEvidence(in queries.IntentForWorkRow) step {
	if s, done := lookedUp(in); !done {
		return s
	}
	if in.SawIdempotencyError {
		return step{action: actionPark, reason: schema.ReasonIdempotencyError, detail: "Stripe knows this key with other parameters, and a look-up finds nothing"}
	}
	return step{action: actionPark, reason: schema.ReasonMismatch, detail: "Stripe answered with another object than was asked for, and a look-up finds nothing"}
}

// lookedUp is done once a look-up has found nothing since the last create; until then it is what to do for that.
func lookedUp(in queries.IntentForWorkRow) (s step, done bool) {
	switch {
	case in.SecondsSinceAbsent >= 0 && in.SecondsSinceAbsent <= in.SecondsSinceLastCreate:
		return step{}, true
	case in.LookUps > 0 && seconds(in.SecondsSinceLastLookUp) < readPause:
		return step{action: actionWait, wait: readPause, detail: "the look-up failed; it is tried again"}, false
	}
	return step{action: actionLookUp}, false
}

// createAfterWindow sends the same bytes again; past the window only right after a look-up that found nothing.
func createAfterWindow(in queries.IntentForWorkRow) step {
	if seconds(in.SecondsSinceFirstSend) < Window {
		return step{action: actionCreate}
	}
	return createAfterAbsence(in)
}

// createAfterAbsence sends the same bytes again, right after a look-up that found nothing and was made for this send.
func createAfterAbsence(in queries.IntentForWorkRow) step {
	if in.SecondsSinceAbsent >= 0 && seconds(in.SecondsSinceAbsent) < absenceFresh && in.SecondsSinceAbsent < in.SecondsSinceLastCreate {
		return step{action: actionCreate}
	}
	if in.LookUps > 0 && seconds(in.SecondsSinceLastLookUp) < readPause {
		return step{action: actionWait, wait: readPause, detail: "the look-up failed; without one nothing is sent again"}
	}
	return step{action: actionLookUp}
}

// nextForObject: Stripe showed an object for this generation. From then on it is only read, or cancelled, by its id.
func nextForObject(in queries.IntentForWorkRow) step {
	if in.DeclineCode == stripecharge.CodeDuplicate { // the bank saw another payment: is it one of ours, or beside us?
		if s, done := lookedUp(in); !done {
			return s
		}
	}
	act, last := actionRead, in.SecondsSinceLastRead
	if in.StatusReason == string(schema.ReasonCancelling) {
		act, last = actionCancel, in.SecondsSinceLastCancel
	}
	// An object that takes days is not read every ten seconds; a person who gives the intent back does not wait for the next time.
	pause := min(max(readPause, seconds(in.SecondsSinceFirstSend)/10), time.Hour)
	if last >= 0 && seconds(last) < pause && !in.DecidedSinceLastCall {
		return step{action: actionWait, wait: pause - seconds(last), detail: "object " + in.ObjectID + " is not done"}
	}
	return step{action: act}
}

// heldBack tells whether creates must wait for the run or the kill switch.
func heldBack(in queries.IntentForWorkRow) (step, bool) {
	switch {
	case in.Stopped:
		return step{action: actionRelease, reason: schema.ReasonStopped, detail: "charging is stopped"}, true
	case in.RunStatus == "open":
		return step{}, false
	case in.RunStatus == "paused":
		return step{action: actionRelease, reason: schema.ReasonRunPaused, detail: "the run is paused"}, true
	default:
		return step{action: actionRelease, reason: schema.ReasonNoRun, detail: "the run is " + in.RunStatus}, true
	}
}

// lookUpDue is the time until the next scheduled look-up of a doubt; look-ups that were missed are not made up for.
func lookUpDue(in queries.IntentForWorkRow) time.Duration {
	age := seconds(in.SecondsSinceDoubt)
	lastAt := time.Duration(-1)
	if in.LookUps > 0 {
		lastAt = age - seconds(in.SecondsSinceLastLookUp)
	}
	for _, at := range lookUpTimes() {
		if at > lastAt {
			return at - age
		}
	}
	return lastAt + time.Hour - age
}

// growing doubles from least with every call made, up to most.
func growing(least, most time.Duration, calls int64) time.Duration {
	if calls < 1 {
		return 0
	}
	factor := math.Pow(2, float64(min(calls-1, 30)))
	return min(most, time.Duration(float64(least)*factor))
}

func seconds(s float64) time.Duration {
	return time.Duration(s * float64(time.Second))
}

func (a action) String() string {
	names := [...]string{"done", "wait", "release", "park", "create", "look_up", "read", "cancel"}
	if int(a) < len(names) {
		return names[a]
	}
	return fmt.Sprintf("action(%d)", int(a))
}
