// Package charger turns billing intents into Stripe charges, each exactly once.
//
// The walk of one intent, file by file:
//
//	dispatch.go   an open run's pending intents get their sum reserved under the cap and a River job each
//	worker.go     the job's worker: read the intent, decide the next step, take it, until it is done or must wait
//	step.go       the decision: a pure function from what the database knows to the next step
//	claim.go      the claim: the fencing number is raised and the attempt stands, committed, before any call
//	call.go       the call to Stripe, with no transaction open
//	ending.go     what the answer means for the attempt and the intent
//	finish.go     the finish: the attempt's result, and under the claim's fence the intent's new status
//	sweep.go      what lost its job, or its process, gets another one
//
// Beside it: run.go (billing runs and their caps), keys.go (the run's vault key), rate.go (one request budget for all
// chargers).
//
// Three things make "once" hold whatever dies when. The idempotency key and the request's bytes are frozen in the
// database before the first send and never change. Doubt is sticky: a call whose effect is unknown is resolved by
// something found (a validated success, a decline under the same key, an object that a look-up shows), never by silence
// or by a refusal that Stripe's idempotency layer has not seen. And every claim carries a lease and a fencing number: a
// sender that woke up late cannot send, and a finish that lost its claim cannot move the intent, while a validated
// success finishes it from wherever it comes.
//
// A database that was restored from a backup has lost what was sent since. Within 23 hours Stripe still knows the keys: the same
// request is answered with the charge that was made. Older ones are looked for: the first send of an intent whose row or event is
// older than that is preceded by a look-up, which costs two reads a charge, and adopts what it finds. Only events that producers
// send again look new in every way; charger work --look-up-first looks for those, too.
package charger
