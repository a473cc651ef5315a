package charger

import (
	"fmt"
	"slices"

	"chargeonce/charger/stripecharge"
	"chargeonce/schema"
)

// explain says in plain sentences why the intent stands where it stands, what comes next by itself, and which commands a person may
// give as it stands. What is allowed is asked of the same rules that the commands follow.
func (s *Story) explain() (why, next string, can []string) {
	switch schema.Status(s.Intent.Status) {
	case schema.StatusPending:
		why, next = s.explainPending()
	case schema.StatusCharging:
		why, next = s.explainCharging()
	case schema.StatusCharged:
		why = fmt.Sprintf("Stripe charged it: %s.", deref(s.Intent.ChargeID))
		if s.Intent.StatusReason == string(schema.ReasonAdopted) {
			why = fmt.Sprintf("A charge of it was found at Stripe: %s.", deref(s.Intent.ChargeID))
		}
		next = "Nothing: charged is final."
	case schema.StatusCardDeclined:
		why, next = s.explainDeclined(), "Nothing, until a person retries or voids it; Stripe would answer the same key with the same decline."
	case schema.StatusVoided:
		why, next = "A person took the obligation back: "+deref(s.Intent.StatusDetail)+".", "Nothing."
	case schema.StatusNothingDue:
		why, next = "Its amount is 0, and Stripe takes no such charge.", "Nothing."
	case schema.StatusParked:
		why, next = s.explainParked(), "Nothing, until a person decides."
	}
	return why, next, s.can()
}

func (s *Story) explainPending() (why, next string) {
	in := s.Intent
	switch schema.StatusReason(in.StatusReason) { //nolint:exhaustive // only the reasons of pending
	case schema.ReasonConflict:
		return "Other terms came for the same customer and period before anything was sent.", "Nothing, until a person keeps or takes them (`charger conflicts list`)."
	case schema.ReasonSameCustomer:
		other := "Another intent"
		if s.guard != nil {
			other = fmt.Sprintf("Intent %d (namespace %s, customer %s, %s)", s.guard.ID, s.guard.Namespace, s.guard.CustomerID, s.guard.Status)
		}
		return other + " bills this Stripe customer for this period and currency.", "Nothing, until a person voids the one that is wrong."
	case schema.ReasonNoRun:
		if s.Run != nil {
			return fmt.Sprintf("Run %d of its namespace, period and currency is %s.", s.Run.ID, s.Run.Status), "It is dispatched when the run is open again."
		}
		return "No run is open for its namespace, period and currency.", fmt.Sprintf("It is dispatched when one is opened: `charger run open --namespace %s --period %s --currency %s`.", in.Namespace, in.BillingPeriod, in.Currency)
	case schema.ReasonStopped:
		return fmt.Sprintf("Charging is stopped by %s: %s.", s.stopped.Actor, s.stopped.Reason), "It goes on after `charger start-charging`."
	case schema.ReasonRunPaused:
		return fmt.Sprintf("Run %d is paused (%s): %s.", s.Run.ID, s.Run.StatusReason, firstOf(s.Run.StatusDetail, "no detail")), "It goes on after `charger run resume`."
	case schema.ReasonRunCapped:
		return fmt.Sprintf("Run %d's cap of %s leaves %s, and it needs %s.", s.Run.ID, s.money(s.Run.CapCents), s.money(s.Run.CapCents-s.Run.AllocatedCents), s.money(in.AmountCents)),
			"It goes when the cap is raised, or when a decline gives room back."
	}
	switch {
	case s.Job == nil:
		return "It waits for the dispatcher.", "A running charger gives it a job within seconds."
	case s.Job.LastError != "":
		return fmt.Sprintf("Its job %d is %s; its last try ended: %s.", s.Job.ID, s.Job.State, s.Job.LastError), "The job runs at " + timeText(s.Job.ScheduledAt) + "."
	}
	return fmt.Sprintf("Its job %d is %s.", s.Job.ID, s.Job.State), "A running charger sends it."
}

func (s *Story) explainCharging() (why, next string) {
	switch schema.StatusReason(s.Intent.StatusReason) { //nolint:exhaustive // only the reasons of charging
	case schema.ReasonSent:
		if s.evidence.LeaseAlive {
			return "A call to Stripe is on its way.", "Its answer is recorded, or its lease ends and another charger takes it up."
		}
		return "A call to Stripe began, and its process never recorded an end.", "A charger takes it up and sends the same request under the same key; Stripe answers what it answered before."
	case schema.ReasonProcessing:
		return "Stripe has the payment and is not done with it.", "It is read again " + s.jobTime() + "."
	case schema.ReasonCancelling:
		return "Stripe refused it, and its payment intent can still be paid until it is seen cancelled.", "It is cancelled " + s.jobTime() + "."
	}
	why = "Stripe may have charged it: " + s.lastDoubt() + "."
	next = "It is looked up, or sent again under the same key, " + s.jobTime() + "."
	if q := s.request(); q != nil {
		if q.SawServerError {
			next = "Stripe answered 5xx, so it is only looked up, " + s.jobTime() + "."
		}
		safe := q.FirstSentAt.Add(Window)
		if s.Intent.DatabaseNow.Before(safe) {
			next += " The key is safe until " + timeText(safe) + "; then nothing is sent before a look-up."
		} else {
			next += " The key is no longer safe since " + timeText(safe) + "; nothing is sent before a look-up that finds nothing."
		}
	}
	return why, next
}

// request is the current generation's frozen request.
func (s *Story) request() *StoryRequest {
	for i := range s.Requests {
		if s.Requests[i].KeyGeneration == s.Intent.KeyGeneration {
			return &s.Requests[i]
		}
	}
	return nil
}

func (s *Story) lastDoubt() string {
	for _, a := range slices.Backward(s.Attempts) {
		if a.Operation == "create" && a.ResolvedAt == nil {
			return fmt.Sprintf("attempt %d at %s ended as %s", a.ID, timeText(a.StartedAt), firstOf(deref(a.Result), "nothing that was recorded"))
		}
	}
	return "what was sent is not certain"
}

func (s *Story) jobTime() string {
	if s.Job == nil {
		return "when a running charger has given it a job"
	}
	switch s.Job.State {
	case "running":
		return "now, by job " + fmt.Sprint(s.Job.ID)
	case "available", "retryable", "scheduled":
		return "at " + timeText(s.Job.ScheduledAt)
	}
	return fmt.Sprintf("when a running charger has replaced job %d (%s)", s.Job.ID, s.Job.State)
}

func (s *Story) explainDeclined() string {
	code := ""
	if q := s.request(); q != nil {
		code = deref(q.DeclineCode)
	}
	switch schema.StatusReason(s.Intent.StatusReason) { //nolint:exhaustive // only the reasons of card_declined
	case schema.ReasonNoPaymentMethod:
		return "The customer has no payment method at Stripe that can be charged. Nothing was taken; a retry helps when the customer has one."
	case schema.ReasonAuthenticationRequired:
		return "The bank asks for the cardholder, who is not there. Nothing was taken; the customer must pay in person or give another card."
	}
	said := fmt.Sprintf("Stripe declined it (%s). Nothing was taken; ", firstOf(code, "no code"))
	switch stripecharge.KindOfDecline("", code, "") { //nolint:exhaustive // the two above are told by the reason
	case stripecharge.DeclineHard:
		return said + "this card must not be tried again, the customer needs another one before a retry."
	case stripecharge.DeclineCardData:
		return said + "the customer must correct the card before a retry."
	}
	return said + "a retry some days later may pass."
}

func (s *Story) explainParked() string {
	detail := ""
	if s.Intent.StatusDetail != nil {
		detail = " (" + *s.Intent.StatusDetail + ")"
	}
	why := map[schema.StatusReason]string{
		schema.ReasonInvalidRequest:      "Stripe refused the request itself, or it cannot be sent as it is",
		schema.ReasonMismatch:            "What Stripe shows is not what was asked for",
		schema.ReasonDoubtExpired:        "It is in doubt, its key is no longer safe, and nothing that Stripe shows decides it",
		schema.ReasonCancelledByOperator: "A person took it out of charging",
		schema.ReasonRedispatchLimit:     "Its job was lost too often without a call that ended",
		schema.ReasonRequiresAction:      "The payer must act",
		schema.ReasonIdempotencyError:    "Stripe knows its key with other parameters",
		schema.ReasonChargeIDTaken:       "The charge that Stripe showed is recorded for another intent",
		schema.ReasonWrongAccount:        "The run's key leads to another Stripe account",
	}[schema.StatusReason(s.Intent.StatusReason)]
	if s.evidence.Unresolved > 0 {
		return why + detail + ", and Stripe may have carried out " + calls(s.evidence.Unresolved) + "."
	}
	return why + detail + ". Nothing is in doubt."
}

func (s *Story) money(cents int64) string {
	return schema.FormatAmount(cents, s.Intent.Currency) + " " + s.Intent.Currency
}

// can lists the commands that would not be refused now.
func (s *Story) can() []string {
	in, id := s.evidence, s.Intent.ID
	var can []string
	add := func(format string, args ...any) { can = append(can, fmt.Sprintf("charger "+format, args...)) }
	for _, c := range s.Conflicts {
		if c.ResolvedAt == nil {
			add("conflicts keep %d --reason ...", c.ID)
			add("conflicts take %d --reason ...", c.ID)
		}
	}
	status := schema.Status(in.Status)
	if in.renewRefusal() == nil {
		if _, err := in.openRun(in.Currency); err == nil {
			if in.OpenConflicts == 0 && status != schema.StatusPending && status != schema.StatusNothingDue {
				add("intents retry %d --reason ...", id)
			}
			add("intents correct %d --amount ... --reason ...", id)
		}
	}
	if in.unparkRefusal() == nil {
		add("intents unpark %d --reason ...", id)
	}
	if in.parkRefusal() == nil {
		add("intents park %d --reason ...", id)
	}
	if in.voidRefusal() == nil {
		add("intents void %d --reason ...", id)
	}
	if len(s.Requests) > 0 && in.resolveRefusal(stripecharge.OpRead) == nil && (in.Unresolved > 0 || in.OpenObject != "") {
		add("intents resolve %d --charged ch_... --reason ...", id)
	}
	if in.resolveRefusal(stripecharge.OpLookUp) == nil {
		add("intents resolve %d --not-charged --reason ...", id)
	}
	return can
}
