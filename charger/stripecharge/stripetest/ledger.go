package stripetest

import (
	"container/heap"
	"maps"
	"slices"
	"time"
)

// Kind names one sort of effect.
type Kind string

// The kinds of effect. Only charge_succeeded moves money to the account.
const (
	ChargeSucceeded   Kind = "charge_succeeded"
	ChargeFailed      Kind = "charge_failed"
	ChargePending     Kind = "charge_pending"
	ChargeAuthorized  Kind = "charge_authorized"
	ChargeRefunded    Kind = "charge_refunded"
	ChargeDisputed    Kind = "charge_disputed"
	IntentCreated     Kind = "payment_intent_created"
	IntentDeclined    Kind = "payment_intent_declined"
	IntentNeedsAction Kind = "payment_intent_requires_action"
	IntentCanceled    Kind = "payment_intent_canceled"
)

// Effect is one thing that happened in the account. A replay has no effect and is never in the ledger.
type Effect struct {
	Seq            int               `json:"seq"` // 1, 2, 3 ...
	At             time.Time         `json:"at"`  // by the movable clock
	Kind           Kind              `json:"kind"`
	ID             string            `json:"id"`
	PaymentIntent  string            `json:"payment_intent,omitempty"` // of a charge
	Account        string            `json:"account"`
	Livemode       bool              `json:"livemode"`
	Amount         int64             `json:"amount"` // minor unit
	Currency       string            `json:"currency"`
	Customer       string            `json:"customer,omitempty"`
	DeclineCode    string            `json:"decline_code,omitempty"`
	IdempotencyKey string            `json:"idempotency_key,omitempty"`
	RequestID      string            `json:"request_id,omitempty"` // empty where no request caused it
	Metadata       map[string]string `json:"metadata,omitempty"`   // not to be changed
}

// Ledger is every effect so far, in order.
func (s *Server) Ledger() []Effect {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runDue(s.Now())
	return slices.Clone(s.ledger)
}

// Charges is every movement of money to the account, in order: the charges that succeeded, refunded ones included.
func (s *Server) Charges() []Effect {
	return slices.DeleteFunc(s.Ledger(), func(e Effect) bool { return e.Kind != ChargeSucceeded })
}

// DoubleCharges is what must stay empty: for each metadata[intent_key] with more than one successful charge, those charges.
func (s *Server) DoubleCharges() map[string][]Effect {
	byIntent := map[string][]Effect{}
	for _, e := range s.Charges() {
		if key := e.Metadata["intent_key"]; key != "" {
			byIntent[key] = append(byIntent[key], e)
		}
	}
	maps.DeleteFunc(byIntent, func(_ string, charges []Effect) bool { return len(charges) < 2 })
	return byIntent
}

// Refund gives a charge back in full, as a person would in the dashboard; false when there is no such successful charge.
func (s *Server) Refund(chargeID string) bool {
	return s.touch(chargeID, ChargeRefunded, func(o *charge) { o.refunded = true })
}

// RefundPart gives part of a charge back; false when there is no such successful charge, or less is left of it.
func (s *Server) RefundPart(chargeID string, amount int64) bool {
	fits := false
	return s.touch(chargeID, ChargeRefunded, func(o *charge) {
		if fits = amount > 0 && o.returned+amount < o.amount && !o.refunded; fits {
			o.returned += amount
		}
	}) && fits
}

// Dispute marks a charge disputed, as the cardholder's bank would; false when there is no such successful charge.
func (s *Server) Dispute(chargeID string) bool {
	return s.touch(chargeID, ChargeDisputed, func(o *charge) { o.disputed = true })
}

func (s *Server) touch(chargeID string, kind Kind, change func(*charge)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.current().charges.byID[chargeID]
	if o == nil || o.status != statusSucceeded {
		return false
	}
	change(o)
	s.record(s.Now(), kind, o, nil)
	return true
}

// record appends a charge's effect. The caller holds s.mu.
func (s *Server) record(at time.Time, kind Kind, o *charge, c *call) {
	e := Effect{
		At: at, Kind: kind, ID: o.id, PaymentIntent: o.intent, Amount: o.amount, Currency: o.currency, Customer: o.customer, Metadata: o.metadata,
	}
	if o.failure != nil {
		e.DeclineCode = o.failure.declineCode
	}
	s.appendEffect(e, c)
}

// recordIntent appends a payment intent's effect. The caller holds s.mu.
func (s *Server) recordIntent(at time.Time, kind Kind, p *intent, c *call) {
	e := Effect{At: at, Kind: kind, ID: p.id, Amount: p.amount, Currency: p.currency, Customer: p.customer, Metadata: p.metadata}
	if p.lastError != nil && kind == IntentDeclined {
		e.DeclineCode = p.lastError.DeclineCode
	}
	s.appendEffect(e, c)
}

func (s *Server) appendEffect(e Effect, c *call) {
	e.Seq, e.Account, e.Livemode = len(s.ledger)+1, s.account.id, s.account.livemode
	if c != nil {
		e.IdempotencyKey, e.RequestID = c.key, c.id
	}
	s.ledger = append(s.ledger, e)
}

// dueHeap holds what happens by itself when the clock passes.
type dueHeap []dueWork

type dueWork struct {
	at time.Time
	do func(at time.Time)
}

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h dueHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push is for container/heap.
func (h *dueHeap) Push(x any) { *h = append(*h, x.(dueWork)) }

// Pop is for container/heap.
func (h *dueHeap) Pop() any {
	last := len(*h) - 1
	work := (*h)[last]
	*h = (*h)[:last]
	return work
}

// later has do run, with s.mu held, once the clock is at or past at. The caller holds s.mu.
func (s *Server) later(at time.Time, do func(at time.Time)) {
	heap.Push(&s.due, dueWork{at, do})
}

// runDue does what is due. The caller holds s.mu.
func (s *Server) runDue(now time.Time) {
	for len(s.due) > 0 && !s.due[0].at.After(now) {
		work := s.due[0]
		heap.Pop(&s.due)
		work.do(work.at)
	}
}
