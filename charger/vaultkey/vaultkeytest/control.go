package vaultkeytest

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"chargeonce/charger/stripecharge/stripetest"
)

// allPages are the issuing pages and the control pages.
func (s *Server) allPages() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /vault/keys", s.admin(s.issue))
	mux.HandleFunc("GET /vault/keys", s.admin(func(w http.ResponseWriter, _ *http.Request) {
		s.show(w, http.StatusOK, map[string]any{"keys": s.Keys()})
	}))
	mux.HandleFunc("GET /vault/keys/{id}", s.admin(s.showKey))
	mux.HandleFunc("DELETE /vault/keys/{id}", s.admin(s.revoke))
	mux.HandleFunc("POST /vault/keys/{id}/revoke", s.admin(s.revoke))
	mux.HandleFunc("GET /vault/audit", s.admin(func(w http.ResponseWriter, r *http.Request) {
		of := r.FormValue("key_id")
		s.show(w, http.StatusOK, map[string]any{"audit": slices.DeleteFunc(s.Audit(), func(a Audit) bool { return of != "" && a.KeyID != of })})
	}))
	mux.HandleFunc("GET /_standin/ledger", func(w http.ResponseWriter, _ *http.Request) {
		s.show(w, http.StatusOK, map[string]any{"entries": s.Ledger(), "keys": s.Keys()})
	})
	mux.HandleFunc("GET /_standin/faults", s.showFaults)
	mux.HandleFunc("POST /_standin/faults", s.takeFaults)
	mux.HandleFunc("DELETE /_standin/faults", func(w http.ResponseWriter, r *http.Request) {
		s.ClearFaults()
		s.showFaults(w, r)
	})
	mux.HandleFunc("POST /_standin/clock", s.moveClock)
	return mux
}

// Action names what a fault does; doc.go has the table.
type Action string

// The actions.
const (
	Away               Action = "away"
	Deny               Action = "deny"
	Latency            Action = "latency"
	Unavailable        Action = "unavailable"
	DropAnswer         Action = "drop_answer"
	DropIdempotencyKey Action = "drop_idempotency_key"
)

// Actions lists every action, in the order of the table in doc.go.
func Actions() []Action {
	return []Action{Away, Deny, Latency, Unavailable, DropAnswer, DropIdempotencyKey}
}

// Fault is one line of a fault script. Paths are matched as they arrive but without /stripe; the first fault that
// strikes a call is the only one. "Deny from the n-th call on" is a deny with nth.
type Fault struct {
	Do    Action           `json:"do"`
	Match stripetest.Match `json:"match,omitzero"` // method, path and idempotency_key only
	stripetest.Trigger

	Delay  stripetest.Duration `json:"delay,omitzero"`   // waited first, with any action
	Style  Style               `json:"style,omitempty"`  // deny: default the proxy's own
	Reason string              `json:"reason,omitempty"` // deny: default cap_reached
	Status int                 `json:"status,omitempty"` // unavailable: default 503
}

// FaultState is a fault with what became of it so far.
type FaultState struct {
	Fault
	Seen   int `json:"seen"`
	Struck int `json:"struck"`
}

type faultBook struct {
	mu     sync.Mutex
	script []*FaultState
}

// AddFaults appends to the script. A fault that makes no sense is an error and nothing is added.
func (s *Server) AddFaults(faults ...Fault) error {
	for i, f := range faults {
		if !slices.Contains(Actions(), f.Do) {
			return fmt.Errorf("fault %d: no action named %q", i, f.Do)
		}
		if !known(f.Style) || f.Reason != "" && !slices.Contains(reasons(), denialReason(f.Reason)) {
			return fmt.Errorf("fault %d: no style %q or no reason %q", i, f.Style, f.Reason)
		}
		if f.Match.Customer != "" || f.Match.IntentKey != "" {
			return fmt.Errorf("fault %d: the proxy matches by method, path and idempotency key only", i)
		}
	}
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	for _, f := range faults {
		s.faults.script = append(s.faults.script, &FaultState{Fault: f})
	}
	return nil
}

// ClearFaults ends every fault.
func (s *Server) ClearFaults() {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.script = nil
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

func (b *faultBook) match(r *http.Request) *Fault {
	b.mu.Lock()
	defer b.mu.Unlock()
	told := stripetest.Call{
		Method: r.Method, Path: strings.TrimPrefix(r.URL.Path, "/stripe"), IdempotencyKey: r.Header.Get("Idempotency-Key"),
	}
	for _, f := range b.script {
		if !f.Match.Admits(told) {
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

// strikeEarly does what happens before Stripe is asked; true when that was all.
func (s *Server) strikeEarly(w http.ResponseWriter, f *Fault) bool {
	if f.Delay > 0 {
		timer := time.NewTimer(time.Duration(f.Delay))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-s.done:
			panic(http.ErrAbortHandler)
		}
	}
	switch f.Do {
	case Away:
		panic(http.ErrAbortHandler)
	case Deny:
		s.mu.Lock()
		style, why := s.denial, capReached
		if f.Style != "" {
			style = f.Style
		}
		if f.Reason != "" {
			why = denialReason(f.Reason)
		}
		s.note(Audit{Decision: "denied", Reason: string(why), Status: style.status(why)})
		s.mu.Unlock()
		s.deny(w, style, why)
		return true
	case Unavailable:
		status := f.Status
		if status == 0 {
			status = http.StatusServiceUnavailable
		}
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, "<html><body><h1>"+http.StatusText(status)+"</h1></body></html>\n") // a client that left is no concern
		return true
	case Latency, DropAnswer, DropIdempotencyKey:
	}
	return false
}

func (s *Server) showFaults(w http.ResponseWriter, _ *http.Request) {
	s.show(w, http.StatusOK, map[string]any{"faults": s.Faults()})
}

// takeFaults answers POST /_standin/faults: an array of faults, or {"faults":[...],"replace":true}.
func (s *Server) takeFaults(w http.ResponseWriter, r *http.Request) {
	var script struct {
		Faults  []Fault `json:"faults"`
		Replace bool    `json:"replace"`
	}
	raw, err := io.ReadAll(io.LimitReader(r.Body, maxBodyBytes))
	if err == nil {
		if trimmed := bytes.TrimSpace(raw); len(trimmed) > 0 && trimmed[0] == '[' {
			err = strictly(trimmed, &script.Faults)
		} else {
			err = strictly(trimmed, &script)
		}
	}
	if err == nil && script.Replace {
		s.ClearFaults()
	}
	if err == nil {
		err = s.AddFaults(script.Faults...)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.showFaults(w, r)
}

func (s *Server) moveClock(w http.ResponseWriter, r *http.Request) {
	var move struct {
		Advance stripetest.Duration `json:"advance"`
	}
	raw, err := io.ReadAll(io.LimitReader(r.Body, maxBodyBytes))
	if err == nil {
		err = strictly(raw, &move)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.Advance(time.Duration(move.Advance))
	s.show(w, http.StatusOK, map[string]any{"now": s.Now()})
}
