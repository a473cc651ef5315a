package vaultkeytest

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// keyAge is how long Stripe is sure to remember an idempotency key.
const keyAge = 24 * time.Hour

// spend is the money of one idempotency key: reserved while nobody knows, spent once Stripe said so.
type spend struct {
	key       *vaultKey
	day       string
	amount    int64
	state     spendState
	objectID  string
	firstSent time.Time
}

type spendState string

const (
	reserved  spendState = "reserved"
	confirmed spendState = "confirmed"
	released  spendState = "released"
)

// Entry is one movement of a cap.
type Entry struct {
	Seq            int       `json:"seq"`
	At             time.Time `json:"at"`
	Kind           string    `json:"kind"` // reserved, confirmed, released, moved
	KeyID          string    `json:"key_id"`
	IdempotencyKey string    `json:"idempotency_key,omitempty"`
	AmountCents    int64     `json:"amount_cents"`
	ObjectID       string    `json:"object_id,omitempty"`
}

// booking is what one call did to the cap before it was sent.
type booking struct {
	spend *spend // nil: nothing to count
	fresh bool   // reserved by this very call
	idem  string
}

// reserve takes the call's amount out of the cap, in one step with the check. The caller holds s.mu.
func (s *Server) reserve(k *vaultKey, call *proxied) (booking, denialReason) {
	if !call.creates() {
		return booking{}, ""
	}
	amount, ok := call.amount()
	if !ok {
		return booking{}, "" // Stripe refuses it by itself
	}
	if currency := strings.ToLower(call.form.Get("currency")); currency != "usd" && currency != "" {
		switch s.cfg.OtherCurrency {
		case DenyOther:
			return booking{}, otherCurrency
		case IgnoreOther:
			return booking{}, ""
		case CountOther:
		}
	}
	now := s.Now()
	old := s.spends[call.idem]
	if call.idem != "" && old != nil && now.Sub(old.firstSent) < keyAge {
		switch {
		case old.state == confirmed, old.state == reserved && old.key == k:
			return booking{spend: old, idem: call.idem}, ""
		case old.state == reserved: // a newer vault key takes the doubt over
			if !s.take(k, amount, now) {
				return booking{}, capReached
			}
			s.giveBack(old)
			old.key, old.day, old.amount = k, k.day, amount
			s.enter("moved", old, call.idem)
			return booking{spend: old, idem: call.idem}, ""
		}
	}
	if !s.take(k, amount, now) {
		return booking{}, capReached
	}
	made := &spend{key: k, day: k.day, amount: amount, state: reserved, firstSent: now}
	if old != nil && old.state == released && now.Sub(old.firstSent) < keyAge {
		made.firstSent = old.firstSent
	}
	s.enter("reserved", made, call.idem)
	if call.idem != "" {
		s.spends[call.idem] = made
	}
	return booking{spend: made, fresh: true, idem: call.idem}, ""
}

func (s *Server) take(k *vaultKey, amount int64, now time.Time) bool {
	k.today(now)
	if k.spent+k.reserved+amount > k.cap {
		return false
	}
	k.reserved += amount
	return true
}

// giveBack undoes what a spend holds of its key's cap, unless that day is over. The caller holds s.mu.
func (s *Server) giveBack(sp *spend) {
	k := sp.key
	if k.today(s.Now()) != sp.day {
		return
	}
	switch sp.state {
	case reserved:
		k.reserved -= sp.amount
	case confirmed:
		k.spent -= sp.amount
	case released:
	}
}

// verdict is what an answer of Stripe says about the money.
type verdict string

const (
	moneyMoved verdict = "moved"
	noMoney    verdict = "none"
	notNow     verdict = "not now" // this send did nothing; an earlier one may have
	unknown    verdict = "unknown"
)

// object is what the proxy reads in Stripe's answers.
type object struct {
	ID     string `json:"id"`
	Object string `json:"object"`
	Status string `json:"status"`
	Error  struct {
		Type string `json:"type"`
	} `json:"error"`
}

func judge(status int, header http.Header, body []byte) (verdict, object) {
	var o object
	if err := json.Unmarshal(body, &o); err != nil || header.Get("Request-Id") == "" {
		return unknown, o
	}
	switch {
	case status == http.StatusOK && (o.Object == "charge" || o.Object == "payment_intent"):
		switch o.Status {
		case "succeeded", "pending", "processing", "requires_capture":
			return moneyMoved, o
		}
		return noMoney, o
	case status == http.StatusPaymentRequired && o.Error.Type == "card_error":
		return noMoney, o
	case status >= 400 && status < 500 && o.Error.Type != "":
		return notNow, o
	}
	return unknown, o
}

// conclude books what Stripe's answer says about a call's money.
func (s *Server) conclude(b booking, status int, header http.Header, body []byte) {
	if b.spend == nil {
		return
	}
	said, o := judge(status, header, body)
	replayed := header.Get("Idempotent-Replayed") == "true"
	s.mu.Lock()
	defer s.mu.Unlock()
	sp := b.spend
	switch {
	case said == moneyMoved && sp.state == reserved && b.fresh && replayed:
		// The charge was made before, under another vault key or none: it does not count here.
		s.release(sp, b.idem)
	case said == moneyMoved && sp.state != confirmed:
		s.confirm(sp, b.idem, o.ID)
	case said == moneyMoved && sp.objectID != o.ID:
		// Stripe forgot the key early and charged again: it counts, cap or not.
		again := &spend{key: sp.key, amount: sp.amount, state: released, firstSent: s.Now()}
		again.day = again.key.today(s.Now())
		s.confirm(again, b.idem, o.ID)
	case said == noMoney && sp.state == reserved, said == notNow && b.fresh && sp.state == reserved && status != http.StatusConflict:
		s.release(sp, b.idem)
	}
}

func (s *Server) confirm(sp *spend, idem, objectID string) {
	s.giveBack(sp)
	sp.state, sp.objectID = confirmed, objectID
	if sp.key.today(s.Now()) == sp.day {
		sp.key.spent += sp.amount
	}
	s.objects[objectID] = sp
	s.enter("confirmed", sp, idem)
}

func (s *Server) release(sp *spend, idem string) {
	s.giveBack(sp)
	sp.state = released
	s.enter("released", sp, idem)
}

// concludeCancel gives back what a payment intent held once Stripe says that it is canceled.
func (s *Server) concludeCancel(status int, header http.Header, body []byte) {
	_, o := judge(status, header, body)
	if status != http.StatusOK || o.Status != "canceled" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if sp := s.objects[o.ID]; sp != nil && sp.state != released {
		s.release(sp, "")
	}
}

func (s *Server) enter(kind string, sp *spend, idem string) {
	s.ledger = append(s.ledger, Entry{
		Seq: len(s.ledger) + 1, At: s.Now(), Kind: kind, KeyID: sp.key.id, IdempotencyKey: idem, AmountCents: sp.amount, ObjectID: sp.objectID,
	})
}

// proxied is one call on its way to Stripe.
type proxied struct {
	method, path string // without /stripe
	idem         string
	raw          []byte
	form         url.Values
}

// creates says whether the call may move money.
func (p *proxied) creates() bool {
	return p.method == http.MethodPost && (p.path == "/v1/charges" || p.path == "/v1/payment_intents")
}

func (p *proxied) cancels() bool {
	return p.method == http.MethodPost && strings.HasPrefix(p.path, "/v1/payment_intents/") && strings.HasSuffix(p.path, "/cancel")
}

func (p *proxied) amount() (int64, bool) {
	n, err := strconv.ParseInt(p.form.Get("amount"), 10, 64)
	return n, err == nil && n > 0
}
