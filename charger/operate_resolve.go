package charger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"chargeonce/charger/stripecharge"
	"chargeonce/schema"
	"chargeonce/sql/queries"
)

// ResolveCharged reads the charge or payment intent with this id at Stripe and, if it is the successful charge that the intent asked
// for, records it: the same validation as for a call's own answer. It is refused while the lease of a call runs, and says what
// differs when the object is another one.
func (c *Charger) ResolveCharged(ctx context.Context, o Operator, id int64, objectID string) (Resolved, error) {
	a, err := c.ask(ctx, o, id, stripecharge.OpRead)
	if err != nil {
		return Resolved{}, err
	}
	callCtx, cancel := c.callContext(ctx)
	defer cancel()
	answer := a.access.client.Read(callCtx, objectID)
	request, err := a.judgeRead(answer, objectID)
	if err == nil {
		var resolved Resolved
		if resolved, err = c.recordCharged(ctx, o, a, answer, request); err == nil {
			return resolved, nil
		}
	}
	return Resolved{}, errors.Join(err, c.endAsking(ctx, o, a, answer, answer.Result(), err))
}

// ResolveNotCharged lists what Stripe has of the intent's customer and, if that shows nothing of the intent, records that what was
// sent charged nothing. It is refused while the lease of a call runs, before 72 hours after the last send in doubt, on anything
// found and on a list that was not read to its end. The key stays the same: the intent is parked, and unparked it is sent with the
// same bytes.
func (c *Charger) ResolveNotCharged(ctx context.Context, o Operator, id int64) (Resolved, error) {
	a, err := c.ask(ctx, o, id, stripecharge.OpLookUp)
	if err != nil {
		return Resolved{}, err
	}
	callCtx, cancel := c.callContext(ctx)
	defer cancel()
	askedAt := time.Now()
	found, listed, answer := a.access.client.LookUpListed(callCtx, stripecharge.LookUp{
		Customer: a.request.Customer, IntentKey: a.intent.IntentKey, CreatedFrom: a.request.FirstSentAt.Add(-lookUpBefore),
		FirstSentAt: a.request.FirstSentAt, AmountCents: a.request.AmountCents, Currency: a.request.Currency,
	})
	found.Matches = slices.DeleteFunc(found.Matches, func(object stripecharge.Object) bool {
		return ofThePast(claimed{intent: a.intent}, object)
	})
	if err = a.judgeList(found, answer); err == nil {
		err = judgeClocks(answer, a.StartedAt, askedAt)
	}
	if err == nil {
		var resolved Resolved
		if resolved, err = c.recordNotCharged(ctx, o, a, answer, listed); err == nil {
			return resolved, nil
		}
	}
	return Resolved{}, errors.Join(err, c.endAsking(ctx, o, a, answer, found.Result(answer), err))
}

// notChargedAfter is how old the last send in doubt must be before a person may say that it charged nothing: Stripe may carry out
// late what it answered with an error.
const notChargedAfter = 72 * time.Hour

// Resolved is how an intent stands after a person resolved its doubt.
type Resolved struct {
	IntentID int64  `json:"intent_id"`
	Status   string `json:"status"`
	ChargeID string `json:"charge_id,omitempty"`
	Detail   string `json:"detail"`
}

// asking is a person's question to Stripe: a claim like a worker's, so that nobody else begins a call for the intent meanwhile.
type asking struct {
	queries.IntentClaimByOperatorRow
	intent   queries.IntentForWorkRow
	access   *access
	requests []queries.BillingChargeRequest
	request  queries.BillingChargeRequest // the newest
}

// ask checks what can be checked before Stripe is called, and claims.
func (c *Charger) ask(ctx context.Context, o Operator, id int64, op stripecharge.Op) (asking, error) {
	if err := o.checkReason(); err != nil {
		return asking{}, err
	}
	evidence, err := c.queries.IntentEvidence(ctx, c.pool, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return asking{}, noIntent(id)
	}
	if err != nil {
		return asking{}, fmt.Errorf("read intent %d: %w", id, err)
	}
	in := locked{IntentEvidenceRow: evidence}
	if err := in.resolveRefusal(op); err != nil {
		return asking{}, err
	}
	a := asking{}
	if a.requests, err = c.queries.RequestList(ctx, c.pool, id); err != nil {
		return asking{}, fmt.Errorf("read what was sent for intent %d: %w", id, err)
	}
	if len(a.requests) == 0 {
		return asking{}, &RefusedError{Problem: in.stands() + ", and nothing was ever sent for it", Cure: "there is nothing to resolve"}
	}
	a.request = a.requests[len(a.requests)-1]
	if a.intent, err = c.queries.IntentForWork(ctx, c.pool, queries.IntentForWorkParams{ID: id, WindowSeconds: Window.Seconds()}); err != nil {
		return asking{}, fmt.Errorf("read intent %d: %w", id, err)
	}
	return a, c.claimToAsk(ctx, o, in, &a, op)
}

// claimToAsk gets the run's key and a token of the reads' budget, and claims the intent as it was read.
func (c *Charger) claimToAsk(ctx context.Context, o Operator, in locked, a *asking, op stripecharge.Op) error {
	acc, err := c.keys.access(ctx, a.intent)
	if err != nil {
		return fmt.Errorf("get the key of intent %d's run: %w", in.ID, err)
	}
	a.access = acc
	if err := a.checkAccount(a.request); err != nil {
		return err
	}
	if err := c.rate.take(ctx, rateRead); err != nil {
		return fmt.Errorf("read at Stripe for intent %d: %w", in.ID, err)
	}
	a.IntentClaimByOperatorRow, err = c.queries.IntentClaimByOperator(ctx, c.pool, queries.IntentClaimByOperatorParams{
		IntentID: in.ID, SeenClaimNumber: in.ClaimNumber, Operation: string(op), IdempotencyKey: a.request.IdempotencyKey,
		Worker: "operator " + o.Actor, VaultKeyID: acc.vaultKeyID, LeaseSeconds: c.lease().Seconds(),
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return &RefusedError{Problem: fmt.Sprintf("intent %d was taken up by somebody else meanwhile", in.ID), Cure: "try again in a minute"}
	}
	if err != nil {
		return fmt.Errorf("claim intent %d: %w", in.ID, err)
	}
	return nil
}

// resolveRefusal is why a doubt may not be resolved yet, or not so.
func (in locked) resolveRefusal(op stripecharge.Op) error {
	status := schema.Status(in.Status)
	switch {
	case status == schema.StatusCharged:
		return in.chargedRefusal()
	case in.LeaseAlive:
		return in.leaseRefusal()
	case op == stripecharge.OpRead:
		return nil
	case in.Unresolved == 0, status != schema.StatusCharging && status != schema.StatusParked:
		return &RefusedError{
			Problem: in.stands() + ", and nothing that was sent for it is in doubt",
			Cure:    fmt.Sprintf("`charger intents show %d` says what can be done", in.ID),
		}
	case in.UnresolvedObject != "" || in.ObjectID != "":
		return &RefusedError{
			Problem: fmt.Sprintf("%s, and Stripe has shown an object of it (%s)", in.stands(), firstOf(in.UnresolvedObject, in.ObjectID)),
			Cure:    in.objectKnownCure(),
		}
	}
	if left := notChargedAfter - seconds(in.SecondsSinceUnresolved); left > 0 {
		return &RefusedError{
			Problem: fmt.Sprintf("%s, and the last send in doubt was %s ago: within %s Stripe may still carry it out", in.stands(),
				seconds(in.SecondsSinceUnresolved).Round(time.Minute), notChargedAfter),
			Cure: fmt.Sprintf("try again in %s", left.Round(time.Minute)),
		}
	}
	return nil
}

func (in locked) objectKnownCure() string {
	id := firstOf(in.UnresolvedObject, in.ObjectID)
	if schema.Status(in.Status) == schema.StatusParked {
		return fmt.Sprintf("`charger intents resolve %d --charged %s` if it was paid, else `charger intents unpark %d`, which reads it", in.ID, id, in.ID)
	}
	return fmt.Sprintf("it is read by itself; `charger intents resolve %d --charged %s` if it was paid", in.ID, id)
}

func firstOf(texts ...string) string {
	for _, text := range texts {
		if text != "" {
			return text
		}
	}
	return ""
}

// callContext bounds the call as a worker's. A person who gives up does not cut it short: its end is recorded.
func (c *Charger) callContext(ctx context.Context) (context.Context, context.CancelFunc) {
	within := c.sendWithin() + c.cfg.CallTimeout
	return context.WithTimeoutCause(context.WithoutCancel(ctx), within, fmt.Errorf("no answer of Stripe's within %s", within))
}

// checkAccount refuses a key that leads to another account than the request went to: what is not there proves nothing.
func (a asking) checkAccount(request queries.BillingChargeRequest) error {
	sent, asked := request.StripeAccount, a.access.account
	if sent == asked || sent == accountUnverified || asked == accountUnverified {
		return nil
	}
	return &RefusedError{
		Problem: fmt.Sprintf("intent %d was sent in Stripe account %s, and the run's key leads to %s", request.IntentID, sent, asked),
		Cure:    "use a key of the account that it was sent in",
	}
}

// judgeRead returns the frozen request whose successful charge the answer shows. Which generation's it is, the object says.
func (a asking) judgeRead(answer stripecharge.Answer, objectID string) (stripecharge.Request, error) {
	o := answer.Object
	if o == nil || answer.HTTPStatus >= 300 || o.ID != objectID {
		return stripecharge.Request{}, &RefusedError{
			Problem: fmt.Sprintf("%s could not be read at Stripe (%s)", objectID, explain(answer)),
			Cure:    "give the id of a charge (ch_...) or a payment intent (pi_...) of the run's Stripe account, or try again later",
		}
	}
	row := a.request
	generation, err := strconv.Atoi(o.Metadata[stripecharge.MetadataKeyGeneration])
	for _, r := range a.requests {
		if err == nil && int(r.KeyGeneration) == generation {
			row = r
		}
	}
	if err := a.checkAccount(row); err != nil {
		return stripecharge.Request{}, err
	}
	request := asSent(row)
	if err := stripecharge.Validate(*o, request); err != nil {
		return request, &RefusedError{
			Problem: fmt.Sprintf("%s is not the charge of intent %d (%s)", objectID, row.IntentID, err),
			Cure:    "only a successful charge with the intent's own terms and metadata is recorded; look for another one, or refund this one at Stripe",
		}
	}
	return request, nil
}

func asSent(r queries.BillingChargeRequest) stripecharge.Request {
	return stripecharge.Request{
		API: stripecharge.API(r.StripeAPI), Path: r.Path, Body: r.Body, IdempotencyKey: r.IdempotencyKey, APIVersion: r.APIVersion,
		Customer: r.Customer, Currency: r.Currency, PaymentMethod: deref(r.PaymentMethod), AmountCents: r.AmountCents, Livemode: r.Livemode,
	}
}

// judgeList refuses anything but a complete list that shows nothing of the intent.
func (a asking) judgeList(found stripecharge.Found, answer stripecharge.Answer) error {
	if answer.Class != stripecharge.ClassAnswered {
		return &RefusedError{
			Problem: fmt.Sprintf("the list of the customer's payments could not be read to its end (%s)", explain(answer)),
			Cure:    "try again later; a list that ends early proves nothing",
		}
	}
	if found.Any() {
		return &RefusedError{
			Problem: "Stripe has " + evidence(found),
			Cure:    fmt.Sprintf("if that is its charge, `charger intents resolve %d --charged` with its id; if it is another payment, it must be cleared up at Stripe first", a.intent.ID),
		}
	}
	return nil
}

// judgeClocks refuses when the 72 hours cannot be trusted.
func judgeClocks(answer stripecharge.Answer, databaseNow, askedAt time.Time) error {
	if skew := clockSkew(answer.Date, databaseNow, askedAt); skew > maxClockSkew {
		return &RefusedError{
			Problem: fmt.Sprintf("the clocks of Stripe and the database are %s apart", skew.Round(time.Second)),
			Cure:    "set the database server's clock, then try again",
		}
	}
	return nil
}

// recordCharged records a validated success: it finishes any intent that is not final, whatever a person or a newer key has decided
// meanwhile; what that contradicts pauses the run.
func (c *Charger) recordCharged(ctx context.Context, o Operator, a asking, answer stripecharge.Answer, request stripecharge.Request) (Resolved, error) {
	ctx, cancel := c.finishContext(ctx)
	defer cancel()
	resolved := Resolved{IntentID: a.intent.ID, Status: string(schema.StatusCharged), ChargeID: answer.Object.ChargeID, Detail: "recorded"}
	err := o.change(ctx, a.intent.ID, "", func(ctx context.Context, tx pgx.Tx, in locked) error {
		if schema.Status(in.Status) == schema.StatusCharged {
			return in.chargedRefusal()
		}
		if err := c.finishAsked(ctx, tx, a, answer, answer.Result(), ""); err != nil {
			return err
		}
		generation, err := c.adopt(ctx, tx, o, a, *answer.Object, request)
		if err != nil {
			return err
		}
		alarm, err := c.accountFor(ctx, tx, in, *answer.Object, generation)
		if err != nil {
			return err
		}
		resolved.Detail = firstOf(alarm, resolved.Detail)
		return o.record(ctx, tx, "intent_resolve_charged", &in.ID, in.RunID, map[string]any{
			"before": in.stood(), "unresolved": in.Unresolved, "charge_id": answer.Object.ChargeID, "object_id": answer.Object.ID,
			"key_generation": generation, "request_id": answer.RequestID, "read_at": a.StartedAt, "alarm": alarm,
			"refunded": answer.Object.Refunded, "disputed": answer.Object.Disputed,
		})
	})
	if violated(err) == "intents_charge_id_once" {
		err = &RefusedError{
			Problem: fmt.Sprintf("charge %s is recorded for another intent", answer.Object.ChargeID),
			Cure:    fmt.Sprintf("see `charger intents show %s`", answer.Object.ChargeID),
		}
	}
	return resolved, err
}

// adopt makes the object the intent's charge, and returns the key generation it was made under.
func (c *Charger) adopt(ctx context.Context, tx pgx.Tx, o Operator, a asking, object stripecharge.Object, request stripecharge.Request) (int32, error) {
	generation := a.request.KeyGeneration
	for _, r := range a.requests {
		if r.IdempotencyKey == request.IdempotencyKey {
			generation = r.KeyGeneration
		}
	}
	if _, err := c.queries.RequestSetObject(ctx, tx, queries.RequestSetObjectParams{
		IntentID: a.intent.ID, KeyGeneration: generation, ObjectID: new(firstOf(object.PaymentIntentID, object.ID)),
	}); err != nil {
		return 0, fmt.Errorf("keep the object of intent %d: %w", a.intent.ID, err)
	}
	if _, err := c.queries.IntentResolveAttempts(ctx, tx, queries.IntentResolveAttemptsParams{
		IntentID: a.intent.ID, KeyGeneration: generation, Resolution: new(moved),
	}); err != nil {
		return 0, fmt.Errorf("resolve the attempts of intent %d: %w", a.intent.ID, err)
	}
	rows, err := c.queries.IntentFinishLate(ctx, tx, queries.IntentFinishLateParams{
		ID: a.intent.ID, ChargeID: &object.ChargeID, PaymentIntentID: object.PaymentIntentID, StatusDetail: o.said("resolved as charged"),
	})
	return generation, one(fmt.Sprintf("record the charge of intent %d", a.intent.ID), rows, err)
}

// accountFor adds the charge to its run if nothing was reserved for it, and pauses the run over what the charge contradicts.
func (c *Charger) accountFor(ctx context.Context, tx pgx.Tx, in locked, object stripecharge.Object, generation int32) (alarm string, err error) {
	if in.RunID == nil {
		return "", nil
	}
	if in.ReservedCents == nil {
		run, err := c.queries.RunAddLate(ctx, tx, queries.RunAddLateParams{ID: *in.RunID, AmountCents: in.AmountCents})
		if err != nil {
			return "", fmt.Errorf("add the charge of intent %d to its run: %w", in.ID, err)
		}
		if run.AllocatedCents > run.CapCents {
			alarm = "the run is paused: with this charge it is beyond its cap"
		}
	}
	after, err := c.queries.IntentEvidence(ctx, tx, in.ID)
	if err != nil {
		return "", fmt.Errorf("read intent %d: %w", in.ID, err)
	}
	why := ""
	switch {
	case schema.Status(in.Status) == schema.StatusVoided:
		why = "voided_but_charged"
	case generation != in.KeyGeneration:
		why = "earlier_generation_charged"
	case after.Unresolved > 0 || (after.OpenObject != "" && after.OpenObject != object.PaymentIntentID):
		why = "charged_and_in_doubt"
	default:
		return alarm, nil
	}
	detail := fmt.Sprintf("%s: intent %d, charge %s", why, in.ID, object.ChargeID)
	if _, err := c.queries.RunPause(ctx, tx, queries.RunPauseParams{ID: *in.RunID, StatusReason: "late_success", StatusDetail: detail}); err != nil {
		return "", fmt.Errorf("pause run %d: %w", *in.RunID, err)
	}
	return "the run is paused: " + detail, nil
}

// recordNotCharged resolves what is in doubt as not moved, and parks the intent with the evidence recorded.
func (c *Charger) recordNotCharged(ctx context.Context, o Operator, a asking, answer stripecharge.Answer, listed stripecharge.Listed) (Resolved, error) {
	ctx, cancel := c.finishContext(ctx)
	defer cancel()
	resolved := Resolved{
		IntentID: a.intent.ID, Status: string(schema.StatusParked),
		Detail: fmt.Sprintf("nothing was charged; `charger intents unpark %d` sends the same key again, `charger intents void %d` ends it", a.intent.ID, a.intent.ID),
	}
	err := o.change(ctx, a.intent.ID, "", func(ctx context.Context, tx pgx.Tx, in locked) error {
		if in.ClaimNumber != a.ClaimNumber || schema.Status(in.Status) == schema.StatusCharged {
			return &RefusedError{Problem: in.stands() + ", and somebody else took it up while Stripe's lists were read", Cure: "look at it again"}
		}
		if err := c.finishAsked(ctx, tx, a, answer, "absent", ""); err != nil {
			return err
		}
		rows, err := c.queries.IntentResolveAttempts(ctx, tx, queries.IntentResolveAttemptsParams{
			IntentID: in.ID, KeyGeneration: in.KeyGeneration, Resolution: new(notMoved),
		})
		if err != nil {
			return fmt.Errorf("resolve the attempts of intent %d: %w", in.ID, err)
		}
		if rows != in.Unresolved {
			return &RefusedError{Problem: in.stands() + ", and a call under an earlier key is in doubt too", Cure: "resolve that as charged, or leave it to a look-up"}
		}
		parked, err := c.queries.IntentParkByOperator(ctx, tx, queries.IntentParkByOperatorParams{
			ID: in.ID, SeenClaimNumber: in.ClaimNumber, StatusDetail: o.said("resolved as not charged"),
		})
		if err := one(fmt.Sprintf("park intent %d", in.ID), parked, err); err != nil {
			return err
		}
		return o.record(ctx, tx, "intent_resolve_not_charged", &in.ID, in.RunID, map[string]any{
			"before": in.stood(), "resolved_attempts": rows, "hours_since_last_send": seconds(in.SecondsSinceUnresolved).Hours(),
			"customer": a.request.Customer, "listed_from": a.request.FirstSentAt.Add(-lookUpBefore), "listed_at": a.StartedAt, "listed": listed,
			"matches": 0, "saw_server_error": a.request.SawServerError,
		})
	})
	return resolved, err
}

func (c *Charger) finishContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(context.WithoutCancel(ctx), lockWithin+c.finishWithin(), errors.New("the database did not answer in time"))
}

// finishAsked writes the end of the question's attempt.
func (c *Charger) finishAsked(ctx context.Context, tx pgx.Tx, a asking, answer stripecharge.Answer, result, detail string) error {
	p := queries.AttemptFinishByOperatorParams{
		AttemptID: a.AttemptID, Result: &result, RequestID: answer.RequestID, Replayed: answer.Replayed, ErrorType: answer.ErrorType,
		ErrorCode: answer.ErrorCode, Detail: firstOf(detail, explain(answer)),
	}
	if answer.HTTPStatus != 0 {
		p.HttpStatus = new(int32(answer.HTTPStatus)) //nolint:gosec // an HTTP status has three digits
	}
	if answer.Object != nil && a.access != nil {
		p.ObjectID = answer.Object.ID
	}
	if _, err := c.queries.AttemptFinishByOperator(ctx, tx, p); err != nil {
		return fmt.Errorf("finish attempt %d: %w", a.AttemptID, err)
	}
	return nil
}

// endAsking ends the question without an answer that decides: the attempt keeps what was seen, and its lease ends at once.
func (c *Charger) endAsking(ctx context.Context, o Operator, a asking, answer stripecharge.Answer, result string, cause error) error {
	ctx, cancel := c.finishContext(ctx)
	defer cancel()
	return o.change(ctx, a.intent.ID, "", func(ctx context.Context, tx pgx.Tx, in locked) error {
		if err := c.finishAsked(ctx, tx, a, answer, result, cause.Error()); err != nil {
			return err
		}
		if _, err := c.queries.IntentEndLeaseByOperator(ctx, tx, queries.IntentEndLeaseByOperatorParams{ID: in.ID, ClaimNumber: a.ClaimNumber}); err != nil {
			return fmt.Errorf("end the lease of intent %d: %w", in.ID, err)
		}
		return nil
	})
}
