package charger

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"chargeonce/schema"
	"chargeonce/sql/queries"
)

// ReadStory reads everything that is known about an intent, as one consistent picture, in the order in which it happened.
func ReadStory(ctx context.Context, pool *pgxpool.Pool, id int64) (Story, error) {
	var s Story
	err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		r := storyReader{tx: tx, q: queries.New(), id: id}
		if err := r.read(ctx, &s); err != nil {
			return fmt.Errorf("read the story of intent %d: %w", id, err)
		}
		return nil
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return s, noIntent(id)
	}
	if err != nil {
		return s, err
	}
	s.Events = s.events()
	s.Why, s.Next, s.Can = s.explain()
	return s, nil
}

// Story is an intent with all that happened to it. Times are the database's. The vault key is named by its number, never shown.
type Story struct {
	Intent    StoryIntent              `json:"intent"`
	Run       *StoryRun                `json:"run"`
	Requests  []StoryRequest           `json:"requests"`
	Attempts  []queries.AttemptListRow `json:"attempts"`
	Conflicts []StoryConflict          `json:"conflicts"`
	Job       *queries.JobGetRow       `json:"job"`
	Actions   []StoryAction            `json:"operator_actions"`
	Events    []StoryEvent             `json:"story"`
	Why       string                   `json:"why"`
	Next      string                   `json:"next"`
	Can       []string                 `json:"can"` // commands that are allowed as it stands

	evidence locked
	stopped  queries.ChargingSwitchGetRow
	guard    *queries.CustomerGuardGetRow
}

// StoryIntent is the intent as it stands.
type StoryIntent struct {
	queries.IntentStoryRow
	SourceDetail json.RawMessage `json:"source_detail"` // takes the place of the row's text
}

// StoryRun is the intent's billing run, as far as it says why the intent stands where it stands.
type StoryRun struct {
	ID             int64   `json:"id"`
	Status         string  `json:"status"`
	StatusReason   string  `json:"status_reason"`
	StatusDetail   string  `json:"status_detail"`
	CapCents       int64   `json:"cap_cents"`
	AllocatedCents int64   `json:"allocated_cents"`
	StripeAccount  *string `json:"stripe_account"`
	Livemode       *bool   `json:"livemode"`
}

// StoryRequest is a frozen request: what was sent, byte for byte.
type StoryRequest struct {
	queries.BillingChargeRequest
	Body       string `json:"body"` // takes the place of the row's bytes
	BodySHA256 string `json:"body_sha256"`
}

// StoryConflict is an event with other terms.
type StoryConflict struct {
	queries.ConflictListOfIntentRow
	FirstDetail json.RawMessage `json:"first_detail"`
}

// StoryAction is what a person did.
type StoryAction struct {
	queries.BillingOperatorAction
	Detail json.RawMessage `json:"detail"`
}

// StoryEvent is one line of the story.
type StoryEvent struct {
	At   time.Time `json:"at"`
	What string    `json:"what"`
	Text string    `json:"text"`
}

type storyReader struct {
	tx pgx.Tx
	q  *queries.Queries
	id int64
}

func (r storyReader) read(ctx context.Context, s *Story) error {
	intent, err := r.q.IntentStory(ctx, r.tx, r.id)
	if err != nil {
		return err
	}
	s.Intent = StoryIntent{IntentStoryRow: intent, SourceDetail: raw(intent.SourceDetail)}
	evidence, err := r.q.IntentEvidence(ctx, r.tx, r.id)
	if err != nil {
		return err
	}
	s.evidence = locked{IntentEvidenceRow: evidence}
	if s.stopped, err = r.q.ChargingSwitchGet(ctx, r.tx); err != nil {
		return err
	}
	guard, err := r.q.CustomerGuardGet(ctx, r.tx, r.id)
	if err == nil {
		s.guard = &guard
	} else if !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	return errors.Join(r.readRun(ctx, s), r.readCalls(ctx, s), r.readPeople(ctx, s), r.readJob(ctx, s))
}

func (r storyReader) readRun(ctx context.Context, s *Story) error {
	run, err := r.q.RunGet(ctx, r.tx, queries.RunGetParams{Namespace: s.Intent.Namespace, BillingPeriod: s.Intent.BillingPeriod, Currency: s.Intent.Currency})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	s.Run = &StoryRun{
		ID: run.ID, Status: run.Status, StatusReason: run.StatusReason, StatusDetail: run.StatusDetail, CapCents: run.CapCents,
		AllocatedCents: run.AllocatedCents, StripeAccount: run.StripeAccount, Livemode: run.Livemode,
	}
	s.evidence.runs = []queries.RunLockForIntentRow{{ID: run.ID, Currency: run.Currency, Status: run.Status, StatusReason: run.StatusReason}}
	return err
}

func (r storyReader) readCalls(ctx context.Context, s *Story) error {
	requests, err := r.q.RequestList(ctx, r.tx, r.id)
	if err != nil {
		return err
	}
	s.Requests = make([]StoryRequest, 0, len(requests))
	for _, q := range requests {
		sum := sha256.Sum256(q.Body)
		s.Requests = append(s.Requests, StoryRequest{BillingChargeRequest: q, Body: string(q.Body), BodySHA256: hex.EncodeToString(sum[:])})
	}
	if s.Attempts, err = r.q.AttemptList(ctx, r.tx, r.id); s.Attempts == nil {
		s.Attempts = []queries.AttemptListRow{}
	}
	return err
}

func (r storyReader) readPeople(ctx context.Context, s *Story) error {
	conflicts, err := r.q.ConflictListOfIntent(ctx, r.tx, r.id)
	if err != nil {
		return err
	}
	s.Conflicts = make([]StoryConflict, 0, len(conflicts))
	for _, c := range conflicts {
		s.Conflicts = append(s.Conflicts, StoryConflict{ConflictListOfIntentRow: c, FirstDetail: raw(c.FirstDetail)})
	}
	actions, err := r.q.OperatorActionList(ctx, r.tx, &r.id)
	if err != nil {
		return err
	}
	s.Actions = make([]StoryAction, 0, len(actions))
	for _, a := range actions {
		s.Actions = append(s.Actions, StoryAction{BillingOperatorAction: a, Detail: raw(string(a.Detail))})
	}
	return nil
}

func (r storyReader) readJob(ctx context.Context, s *Story) error {
	if s.Intent.RiverJobID == nil {
		return nil
	}
	job, err := r.q.JobGet(ctx, r.tx, *s.Intent.RiverJobID)
	if errors.Is(err, pgx.ErrNoRows) { // deleted, or kept no longer
		return nil
	}
	s.Job = &job
	return err
}

// raw is JSON text as JSON; nothing is null.
func raw(text string) json.RawMessage {
	if text == "" {
		return nil
	}
	return json.RawMessage(text)
}

// events puts everything that has a time into one line each, in order.
func (s *Story) events() []StoryEvent {
	in := s.Intent
	var events []StoryEvent
	add := func(at time.Time, what, format string, args ...any) {
		events = append(events, StoryEvent{At: at, What: what, Text: fmt.Sprintf(format, args...)})
	}
	if in.SourceEnqueuedAt != nil {
		add(*in.SourceEnqueuedAt, "enqueued", "at %s %s%s", in.Source, in.SourcePosition, detailText(in.SourceDetail))
	}
	add(in.CreatedAt, "recorded", "from %s %s%s", in.Source, in.SourcePosition, detailText(in.SourceDetail))
	for _, c := range s.Conflicts {
		add(c.CreatedAt, "conflict", "%s", conflictText(c))
	}
	for _, q := range s.Requests {
		add(s.frozenAt(q), "frozen", "generation %d, key %s: %s %s for %s to %s in account %s%s", q.KeyGeneration, q.IdempotencyKey,
			schema.FormatAmount(q.AmountCents, q.Currency), q.Currency, q.Customer, q.Path, q.StripeAccount, objectText(q))
	}
	for _, a := range s.Attempts {
		add(a.StartedAt, a.Operation, "%s", attemptText(a))
	}
	for _, a := range s.Actions {
		add(a.At, a.Action, "by %s: %s", a.Actor, firstOf(a.Reason, "(no reason given)"))
	}
	if in.ChargedAt != nil {
		add(*in.ChargedAt, "charged", "%s%s", deref(in.ChargeID), paymentIntentText(in.PaymentIntentID))
	}
	slices.SortStableFunc(events, func(a, b StoryEvent) int { return a.At.Compare(b.At) })
	return events
}

// frozenAt is when a request was frozen: by the claim of its first attempt, in one statement whose two rows differ by microseconds.
func (s *Story) frozenAt(q StoryRequest) time.Time {
	for _, a := range s.Attempts {
		if a.KeyGeneration == q.KeyGeneration && a.Operation == "create" && a.StartedAt.Before(q.FirstSentAt) {
			return a.StartedAt
		}
	}
	return q.FirstSentAt
}

func detailText(detail json.RawMessage) string {
	if detail == nil {
		return ""
	}
	return " " + string(detail)
}

func conflictText(c StoryConflict) string {
	text := fmt.Sprintf("%d: %s %s for %s from %s %s", c.ID, schema.FormatAmount(c.AmountCents, c.Currency), c.Currency, c.StripeCustomerID, c.FirstSource, c.FirstPosition)
	if c.Deliveries > 1 {
		text += fmt.Sprintf(", %d deliveries, the last %s %s", c.Deliveries, c.LastSource, c.LastPosition)
	}
	if c.ResolvedAt != nil {
		return text + fmt.Sprintf("; %s by %s at %s", deref(c.Resolution), deref(c.ResolvedBy), timeText(*c.ResolvedAt))
	}
	return text + "; open"
}

func objectText(q StoryRequest) string {
	switch {
	case q.ObjectID == nil:
		return ""
	case q.ObjectCanceledAt != nil:
		return fmt.Sprintf("; object %s, seen cancelled at %s", *q.ObjectID, timeText(*q.ObjectCanceledAt))
	}
	return "; object " + *q.ObjectID
}

func paymentIntentText(id *string) string {
	if id == nil {
		return ""
	}
	return " of " + *id
}

func attemptText(a queries.AttemptListRow) string {
	parts := []string{fmt.Sprintf("attempt %d, generation %d", a.ID, a.KeyGeneration)}
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if a.FinishedAt == nil {
		add("no result yet, lease until %s", timeText(a.LeaseUntil))
	} else {
		add("%s after %s", deref(a.Result), a.FinishedAt.Sub(a.StartedAt).Round(time.Millisecond))
	}
	if a.HttpStatus != nil {
		add("http %d", *a.HttpStatus)
	}
	for _, field := range [][2]string{
		{"", deref(a.RequestID)}, {"", deref(a.ErrorType)}, {"code ", deref(a.ErrorCode)}, {"decline ", deref(a.DeclineCode)}, {"object ", deref(a.ObjectID)},
	} {
		if field[1] != "" {
			add("%s%s", field[0], field[1])
		}
	}
	if a.Replayed {
		add("a stored answer")
	}
	if a.VaultKeyID != nil {
		add("vault key %d", *a.VaultKeyID)
	}
	if a.Operation == "create" {
		switch {
		case a.Resolution == nil:
			add("in doubt")
		case a.FinishedAt != nil && a.ResolvedAt.Sub(*a.FinishedAt) < time.Second:
			add("%s", *a.Resolution)
		default:
			add("%s, certain since %s", *a.Resolution, timeText(*a.ResolvedAt))
		}
	}
	return strings.Join(parts, "; ")
}

func timeText(at time.Time) string { return at.UTC().Format("2006-01-02 15:04:05") }
