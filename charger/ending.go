package charger

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"chargeonce/charger/stripecharge"
	"chargeonce/schema"
)

// endingOf says what a call's answer means for its attempt and its intent. The rows of the decision table
// (stripecharge.Rows) say what an answer proves about money; this says what is done about it here. Whatever is not
// proven leaves the intent charging, in doubt.
func endingOf(c claimed, answer stripecharge.Answer, found stripecharge.Found) ending {
	switch c.op {
	case stripecharge.OpLookUp:
		return endingOfLookUp(c, answer, found)
	case stripecharge.OpRead:
		return endingOfRead(c, answer)
	case stripecharge.OpCancel:
		return endingOfCancel(c, answer)
	case stripecharge.OpCreate, stripecharge.OpAccount, stripecharge.OpCustomer:
	}
	return endingOfCreate(c, answer)
}

func endingOfCreate(c claimed, answer stripecharge.Answer) ending {
	e := inDoubt(c, answer)
	row := stripecharge.RowOf(answer.Class)
	if o := answer.Object; o != nil && answer.Class != stripecharge.ClassMismatch {
		e.objectID = o.ID
	}
	if row.Money == stripecharge.MoneyNot {
		e.resolution = notMoved
	}
	switch answer.Class { //nolint:exhaustive // the table says it for every class; here is what comes on top
	case stripecharge.ClassSucceeded:
		return charged(e, *answer.Object, row.Reason)
	case stripecharge.ClassDeclined, stripecharge.ClassFailedObject:
		return endingOfDecline(c, answer, e)
	case stripecharge.ClassRequiresAction:
		e.declineCode = "authentication_required"
	case stripecharge.ClassDuplicate:
		e.declineCode, e.adviceCode = stripecharge.CodeDuplicate, answer.AdviceCode
	case stripecharge.ClassDenied, stripecharge.ClassUnauthorized:
		e.pauseRun = "vault_denied"
	case stripecharge.ClassRateLimited:
		e.slowDown = true
	case stripecharge.ClassServerError:
		e.serverError = true
	case stripecharge.ClassMismatch:
		e.pauseRun = "mismatch"
	}
	if c.intent.Unresolved > 0 && !row.Resolves {
		return e // doubt is sticky: this answer says nothing about the earlier send
	}
	e.status, e.reason = row.Status(), row.Reason
	e.dropJob = e.reason == schema.ReasonRunPaused
	e.again = e.status == schema.StatusCharging || e.reason == schema.ReasonQueued
	return e
}

// endingOfDecline: a decline of Stripe's own under this key resolves what was sent before under it, while the key is sure to
// be known. An open payment intent must be seen cancelled before the decline is final. A stored answer that is sent again is
// only a snapshot: its object is read first.
func endingOfDecline(c claimed, answer stripecharge.Answer, e ending) ending {
	e.declineCode = answer.DeclineCode
	if e.declineCode == "" {
		e.declineCode = answer.ErrorCode
	}
	e.adviceCode = answer.AdviceCode
	if answer.Replayed && e.objectID != "" {
		e.resolution = ""
		return e // the object is known now, the next step reads it
	}
	if c.intent.Unresolved > 0 && seconds(c.intent.SecondsSinceFirstSend) >= Window {
		e.status, e.reason, e.again = schema.StatusParked, schema.ReasonDoubtExpired, false
		e.detail = "declined after the key's window, while an earlier send is in doubt: " + e.detail
		return e
	}
	e.others = notMoved
	if strings.HasPrefix(e.objectID, "pi_") {
		e.reason = schema.ReasonCancelling
		return e
	}
	return declined(e)
}

// endingOfRead: the known object as it stands now.
func endingOfRead(c claimed, answer stripecharge.Answer) ending {
	e := unchanged(c, answer)
	if !aboutOurs(c, answer) {
		return e
	}
	switch stripecharge.Decide(answer, c.request) { //nolint:exhaustive // every other class: not read, and read again
	case stripecharge.ClassSucceeded:
		return charged(e, *answer.Object, schema.ReasonCharged)
	case stripecharge.ClassProcessing:
		e.reason = schema.ReasonProcessing
	case stripecharge.ClassOpen, stripecharge.ClassRequiresAction:
		e.reason = schema.ReasonCancelling
	case stripecharge.ClassFailedObject:
		return declinedLate(c, e)
	case stripecharge.ClassCanceled:
		e.objectCanceled = true
		return declinedLate(c, e)
	case stripecharge.ClassMismatch, stripecharge.ClassInvalidRequest:
		e.status, e.reason, e.again, e.pauseRun = schema.StatusParked, schema.ReasonMismatch, false, "mismatch"
		if answer.Object != nil {
			e.detail = strings.Join(stripecharge.Differences(*answer.Object, c.request), ", ")
		}
	default:
		return e // not read: the next step waits and reads again
	}
	return e
}

// endingOfCancel: only an object that was seen cancelled makes the decline final; one that went through meanwhile is adopted.
func endingOfCancel(c claimed, answer stripecharge.Answer) ending {
	e := unchanged(c, answer)
	if !aboutOurs(c, answer) {
		return e
	}
	switch stripecharge.Decide(answer, c.request) { //nolint:exhaustive // every other class: still open, and tried again
	case stripecharge.ClassCanceled:
		if differences := stripecharge.Differences(*answer.Object, c.request); len(differences) > 0 {
			return e
		}
		e.objectCanceled = true
		return declinedLate(c, e)
	case stripecharge.ClassSucceeded:
		if err := stripecharge.Validate(*answer.Object, c.request); err != nil {
			e.status, e.reason, e.again, e.pauseRun, e.detail = schema.StatusParked, schema.ReasonMismatch, false, "mismatch", err.Error()
			return e
		}
		return charged(e, *answer.Object, schema.ReasonAdopted)
	case stripecharge.ClassProcessing:
		e.reason = schema.ReasonProcessing
	default: // still open, or no answer: the next step tries again
	}
	return e
}

// aboutOurs tells whether an answer shows the object that was asked for, or none: another one is no answer.
func aboutOurs(c claimed, answer stripecharge.Answer) bool {
	return answer.Object == nil || answer.Object.ID == c.intent.ObjectID
}

// endingOfLookUp: only something found resolves. Absence permits one more send of the same bytes, nothing else.
func endingOfLookUp(c claimed, answer stripecharge.Answer, found stripecharge.Found) ending {
	e := unchanged(c, answer)
	unsent := !c.intent.Frozen
	found.Matches = slices.DeleteFunc(slices.Clone(found.Matches), func(o stripecharge.Object) bool {
		return ofThePast(c, o) || ownAndUnpaid(c, o) || (unsent && o.Dead())
	})
	e.result = found.Result(answer)
	if answer.Class != stripecharge.ClassAnswered || !found.Any() {
		if unsent {
			return stillUnsent(e, answer)
		}
		return e
	}
	if len(found.Matches) == 1 && len(found.Unmarked) == 0 {
		o := found.Matches[0]
		e.objectID = o.ID
		sameTerms := len(stripecharge.Differences(o, c.request)) == 0
		switch {
		case stripecharge.Validate(o, c.request) == nil && !o.Refunded && !o.Disputed:
			return charged(e, o, schema.ReasonAdopted)
		case unsent: // no request stands here whose object it could be
		case sameTerms && (o.Status == stripecharge.StatusProcessing || o.Status == stripecharge.StatusPending):
			e.reason = schema.ReasonProcessing
			return e
		case sameTerms && !o.Moved():
			return e // declined, or open: from here on it is read, and cancelled, by its id
		}
		e.objectID = "" // a person decides what it is
	}
	e.status, e.reason, e.again = schema.StatusParked, schema.ReasonMismatch, false
	e.detail = "look-up found " + evidence(found)
	if unsent {
		e.detail += ", and no send of it is recorded here: was the database restored?"
	}
	if moved := countMoved(found); moved > 1 {
		e.pauseRun = "mismatch"
	}
	return e
}

// stillUnsent: the look-up before the first send found nothing, or was not answered. No money can have moved by it.
func stillUnsent(e ending, answer stripecharge.Answer) ending {
	e.status, e.reason, e.again = schema.StatusPending, schema.ReasonQueued, true
	e.slowDown = answer.Class == stripecharge.ClassRateLimited
	switch reason := stripecharge.RowOf(answer.Class).Reason; reason { //nolint:exhaustive // every other failure passes by itself
	case schema.ReasonRunPaused:
		e.pauseRun, e.reason, e.dropJob, e.again = "vault_denied", reason, true, false
	case schema.ReasonInvalidRequest: // as the create would be
		e.status, e.reason, e.again = schema.StatusParked, reason, false
	}
	return e
}

// ofThePast tells whether an object is what an earlier key generation left behind: definitively refused, and dead.
func ofThePast(c claimed, o stripecharge.Object) bool {
	generation, err := strconv.Atoi(o.Metadata[stripecharge.MetadataKeyGeneration])
	return err == nil && generation < int(c.intent.KeyGeneration) && o.Dead()
}

// ownAndUnpaid tells whether an object is the one that this generation's create showed, and has not been paid. It is read, and
// cancelled, by its id; here it is no news.
func ownAndUnpaid(c claimed, o stripecharge.Object) bool {
	unpaid := !o.Moved() && o.Status != stripecharge.StatusProcessing && o.Status != stripecharge.StatusPending
	return o.ID == c.intent.ObjectID && unpaid
}

// inDoubt is where every create ends that proves nothing else.
func inDoubt(c claimed, answer stripecharge.Answer) ending {
	e := unchanged(c, answer)
	e.reason = schema.ReasonInDoubt
	return e
}

// unchanged leaves the intent charging for the reason it had, and lets the next step decide.
func unchanged(c claimed, answer stripecharge.Answer) ending {
	reason := schema.StatusReason(c.intent.StatusReason)
	if reason == schema.ReasonSent || schema.Status(c.intent.Status) != schema.StatusCharging {
		reason = schema.ReasonInDoubt
	}
	e := ending{
		result: answer.Result(), status: schema.StatusCharging, reason: reason, detail: explain(answer), again: true,
		declineCode: c.intent.DeclineCode, adviceCode: c.intent.AdviceCode,
	}
	if c.op != stripecharge.OpCreate {
		e.resolution = notMoved // a read moves nothing
	}
	return e
}

func charged(e ending, o stripecharge.Object, reason schema.StatusReason) ending {
	e.status, e.reason, e.again, e.detail = schema.StatusCharged, reason, false, ""
	if e.resolution == "" {
		e.resolution = moved // of the create itself; a read or look-up that shows it moved nothing
	}
	e.others = moved
	e.chargeID, e.objectID = o.ChargeID, o.ID
	if o.Kind == stripecharge.KindPaymentIntent {
		e.paymentIntentID = o.ID
	}
	return e
}

// declinedLate is declined for an object that was read or cancelled. One that was made after the key's window says nothing
// about an earlier send that is still in doubt.
func declinedLate(c claimed, e ending) ending {
	if !c.intent.DoubtAcrossWindow {
		return declined(e)
	}
	e.status, e.reason, e.again = schema.StatusParked, schema.ReasonDoubtExpired, false
	e.detail = "refused after the key's window, while an earlier send is in doubt: " + e.detail
	return e
}

// declined is final for this key generation: what was reserved goes back to the run.
func declined(e ending) ending {
	e.status, e.again, e.giveBack = schema.StatusCardDeclined, false, true
	e.others = notMoved
	if e.resolution == "" {
		e.resolution = notMoved
	}
	e.detail = fmt.Sprintf("declined (%s): %s; %s", cmp.Or(e.declineCode, "no code"), stripecharge.CureOfDecline("", e.declineCode, e.adviceCode), e.detail)
	switch stripecharge.KindOfDecline("", e.declineCode, e.adviceCode) {
	case stripecharge.DeclineAuthentication:
		e.reason = schema.ReasonAuthenticationRequired
	case stripecharge.DeclineNoCard:
		e.reason = schema.ReasonNoPaymentMethod
	case stripecharge.DeclineSoft, stripecharge.DeclineHard, stripecharge.DeclineCardData:
		e.reason = schema.ReasonCardDeclined
	}
	return e
}

// explain is one line for the operator: what was asked, what came back, and Stripe's request id.
func explain(a stripecharge.Answer) string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	add("%s: %s", a.Op, a.Class)
	if a.HTTPStatus != 0 {
		add("http %d", a.HTTPStatus)
	}
	for _, field := range [][2]string{{"code", a.ErrorCode}, {"decline_code", a.DeclineCode}, {"param", a.Param}} {
		if field[1] != "" {
			add("%s %s", field[0], field[1])
		}
	}
	if a.RequestID != "" {
		add("request %s", a.RequestID)
	}
	if a.Message != "" {
		add("%s", a.Message)
	} else if a.Err != nil {
		add("%s", a.Err)
	}
	return strings.Join(parts, "; ")
}

func evidence(found stripecharge.Found) string {
	var parts []string
	for _, o := range found.Matches {
		parts = append(parts, fmt.Sprintf("%s %s (%d %s, refunded %t, disputed %t)", o.ID, o.Status, o.AmountCents, o.Currency, o.Refunded, o.Disputed))
	}
	for _, o := range found.Unmarked {
		parts = append(parts, fmt.Sprintf("unmarked %s %s (%d %s)", o.ID, o.Status, o.AmountCents, o.Currency))
	}
	return strings.Join(parts, ", ")
}

func countMoved(found stripecharge.Found) int {
	n := 0
	for _, o := range found.Matches {
		if o.Moved() {
			n++
		}
	}
	return n
}
