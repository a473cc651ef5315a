package stripetest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Fault is one line of a fault script: what it matches, which of the matching calls it strikes, and what it does.
// The first fault of the script that strikes a call is the only one that does.
type Fault struct {
	Do    Action `json:"do"`
	Match Match  `json:"match,omitzero"`
	Trigger

	Delay       Duration          `json:"delay,omitzero"`         // waited first; for the hold actions the longest hold
	Effect      bool              `json:"effect,omitempty"`       // the request takes effect although the answer does not say so
	After       Duration          `json:"after,omitzero"`         // api_error_late: until the effect appears, by the movable clock
	Skew        Duration          `json:"skew,omitzero"`          // date_skew: added to the Date header
	Status      int               `json:"status,omitempty"`       // redirect, flat_denial, answer
	Reason      string            `json:"reason,omitempty"`       // rate_limit: Stripe-Rate-Limited-Reason
	Location    string            `json:"location,omitempty"`     // redirect: default the request's own path
	Body        string            `json:"body,omitempty"`         // flat_denial, answer
	Header      map[string]string `json:"header,omitempty"`       // set on whatever is answered
	Set         map[string]any    `json:"set,omitempty"`          // alter: top-level fields of the object to overwrite
	ShouldRetry *bool             `json:"should_retry,omitempty"` // Stripe-Should-Retry; absent when not set
}

// Action names what a fault does; doc.go has the table.
type Action string

// The actions of a fault.
const (
	Latency           Action = "latency"
	HoldBeforeEffect  Action = "hold_before_effect"
	HoldAfterEffect   Action = "hold_after_effect"
	CloseBeforeEffect Action = "close_before_effect"
	CloseAfterEffect  Action = "close_after_effect"
	ResetBeforeEffect Action = "reset_before_effect"
	ResetAfterEffect  Action = "reset_after_effect"
	CutBody           Action = "cut_body"
	RateLimit         Action = "rate_limit"
	LockTimeout       Action = "lock_timeout"
	KeyInUse          Action = "key_in_use"
	APIError          Action = "api_error"
	APIErrorLate      Action = "api_error_late"
	BadGateway        Action = "bad_gateway"
	Unavailable       Action = "unavailable"
	GatewayTimeout    Action = "gateway_timeout"
	Redirect          Action = "redirect"
	EmptyObject       Action = "empty_object"
	WrongObject       Action = "wrong_object"
	WrongAmount       Action = "wrong_amount"
	Alter             Action = "alter"
	Unauthorized      Action = "unauthorized"
	Forbidden         Action = "forbidden"
	FlatDenial        Action = "flat_denial"
	Answer            Action = "answer"
	ListPageFails     Action = "list_page_fails"
	DateSkew          Action = "date_skew"
)

// Actions lists every action, in the order of the table in doc.go.
func Actions() []Action {
	return []Action{
		Latency, HoldBeforeEffect, HoldAfterEffect, CloseBeforeEffect, CloseAfterEffect, ResetBeforeEffect, ResetAfterEffect, CutBody,
		RateLimit, LockTimeout, KeyInUse, APIError, APIErrorLate, BadGateway, Unavailable, GatewayTimeout, Redirect, EmptyObject,
		WrongObject, WrongAmount, Alter, Unauthorized, Forbidden, FlatDenial, Answer, ListPageFails, DateSkew,
	}
}

// Match says which calls a fault looks at; an empty field matches any call.
type Match struct {
	Method         string `json:"method,omitempty"`
	Path           string `json:"path,omitempty"` // prefix
	IdempotencyKey string `json:"idempotency_key,omitempty"`
	Customer       string `json:"customer,omitempty"`
	IntentKey      string `json:"intent_key,omitempty"` // metadata[intent_key]
}

// Admits says whether a call is one the fault looks at.
func (m Match) Admits(c Call) bool {
	return (m.Method == "" || strings.EqualFold(m.Method, c.Method)) && strings.HasPrefix(c.Path, m.Path) &&
		(m.IdempotencyKey == "" || m.IdempotencyKey == c.IdempotencyKey) && (m.Customer == "" || m.Customer == c.Customer) &&
		(m.IntentKey == "" || m.IntentKey == c.IntentKey)
}

// Trigger picks among the matching calls, which are counted from 1.
type Trigger struct {
	Nth   int `json:"nth,omitempty"`   // the first matching call to strike; 0 and 1 are the first
	Every int `json:"every,omitempty"` // from there on only each such call; 0 and 1 are each
	Count int `json:"count,omitempty"` // at most so many strikes; 0 is no limit
}

// Strikes says whether the seen-th matching call is struck after so many strikes.
func (t Trigger) Strikes(seen, struck int) bool {
	if t.Count > 0 && struck >= t.Count {
		return false
	}
	past := seen - max(t.Nth, 1)
	return past >= 0 && past%max(t.Every, 1) == 0
}

// FaultState is a fault with what became of it so far.
type FaultState struct {
	Fault
	Seen   int `json:"seen"`   // matching calls
	Struck int `json:"struck"` // calls struck
}

// AddFaults appends to the script. An unknown action is an error and nothing is added.
func (s *Server) AddFaults(faults ...Fault) error {
	for i, f := range faults {
		if !slices.Contains(Actions(), f.Do) {
			return fmt.Errorf("fault %d: no action named %q", i, f.Do)
		}
	}
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	for _, f := range faults {
		s.faults.script = append(s.faults.script, &FaultState{Fault: f})
	}
	s.faults.length.Store(int32(len(s.faults.script))) //nolint:gosec // G115: a script has a handful of lines
	return nil
}

// ClearFaults ends every fault. Requests already held stay so until Release.
func (s *Server) ClearFaults() {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.script = nil
	s.faults.length.Store(0)
}

// Faults is the script with its counts.
func (s *Server) Faults() []FaultState {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	states := make([]FaultState, 0, len(s.faults.script))
	for _, f := range s.faults.script {
		states = append(states, *f)
	}
	return states
}

type faultBook struct {
	length atomic.Int32 // spares the lock when there is no script
	mu     sync.Mutex
	script []*FaultState
}

func (b *faultBook) match(c *call) *Fault {
	if b.length.Load() == 0 {
		return nil
	}
	told := c.told(nil)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, f := range b.script {
		if !f.Match.Admits(told) || f.Do == ListPageFails && !c.form.Has("starting_after") {
			continue
		}
		f.Seen++
		if f.Strikes(f.Seen, f.Struck) {
			f.Struck++
			return &f.Fault
		}
	}
	return nil
}

func (f *Fault) is(action Action) bool { return f != nil && f.Do == action }

// Duration is a time.Duration that JSON writes as text such as "1m30s".
type Duration time.Duration

// MarshalJSON writes the duration as Go writes it.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// UnmarshalJSON reads what time.ParseDuration reads.
func (d *Duration) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return fmt.Errorf("a duration is a text such as \"250ms\": %w", err)
	}
	parsed, err := time.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("parse duration: %w", err)
	}
	*d = Duration(parsed)
	return nil
}
