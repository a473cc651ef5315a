package stripetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"time"
)

// maxHeldWait bounds how long GET /_standin/held waits.
const maxHeldWait = 10 * time.Minute

// controlPages are the pages under /_standin/ on the API's own port.
func (s *Server) controlPages() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /_standin/ledger", s.showLedger)
	mux.HandleFunc("GET /_standin/requests", func(w http.ResponseWriter, _ *http.Request) {
		s.show(w, map[string]any{"requests": s.Requests(), "stats": s.Stats()})
	})
	mux.HandleFunc("GET /_standin/stats", func(w http.ResponseWriter, _ *http.Request) { s.show(w, s.Stats()) })
	mux.HandleFunc("GET /_standin/faults", func(w http.ResponseWriter, _ *http.Request) { s.show(w, map[string]any{"faults": s.Faults()}) })
	mux.HandleFunc("POST /_standin/faults", s.takeFaults)
	mux.HandleFunc("DELETE /_standin/faults", func(w http.ResponseWriter, _ *http.Request) {
		s.ClearFaults()
		s.show(w, map[string]any{"faults": s.Faults()})
	})
	mux.HandleFunc("POST /_standin/clock", s.moveClock)
	mux.HandleFunc("GET /_standin/clock", func(w http.ResponseWriter, _ *http.Request) { s.show(w, map[string]any{"now": s.Now()}) })
	mux.HandleFunc("GET /_standin/held", s.showHeld)
	mux.HandleFunc("POST /_standin/release", s.takeRelease)
	mux.HandleFunc("POST /_standin/customers", s.takeCustomer)
	mux.HandleFunc("POST /_standin/account", s.takeAccount)
	return mux
}

// showLedger answers GET /_standin/ledger; ?summary=1 leaves the effects out, ?after=SEQ gives only later ones.
func (s *Server) showLedger(w http.ResponseWriter, r *http.Request) {
	ledger := s.Ledger()
	counts, sums := map[Kind]int{}, map[string]int64{}
	for _, e := range ledger {
		counts[e.Kind]++
		if e.Kind == ChargeSucceeded {
			sums[e.Currency] += e.Amount
		}
	}
	page := map[string]any{"counts": counts, "charged": sums, "double_charges": s.DoubleCharges()}
	if r.FormValue("summary") == "" {
		after, err := strconv.Atoi("0" + r.FormValue("after"))
		if err != nil {
			refuse(w, fmt.Errorf("after: %w", err))
			return
		}
		page["effects"] = ledger[min(after, len(ledger)):]
	}
	s.show(w, page)
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
	if err != nil {
		refuse(w, err)
		return
	}
	if script.Replace {
		s.ClearFaults()
	}
	if err := s.AddFaults(script.Faults...); err != nil {
		refuse(w, err)
		return
	}
	s.show(w, map[string]any{"faults": s.Faults()})
}

// moveClock answers POST /_standin/clock {"advance":"25h"}.
func (s *Server) moveClock(w http.ResponseWriter, r *http.Request) {
	var move struct {
		Advance Duration `json:"advance"`
	}
	if err := readStrictly(r, &move); err != nil {
		refuse(w, err)
		return
	}
	s.Advance(time.Duration(move.Advance))
	s.show(w, map[string]any{"now": s.Now()})
}

// showHeld answers GET /_standin/held; ?wait=10s&n=1 waits until so many are held.
func (s *Server) showHeld(w http.ResponseWriter, r *http.Request) {
	if r.FormValue("wait") == "" {
		s.show(w, map[string]any{"held": s.Held()})
		return
	}
	wait, err := time.ParseDuration(r.FormValue("wait"))
	if err != nil {
		refuse(w, fmt.Errorf("wait: %w", err))
		return
	}
	n := 1
	if text := r.FormValue("n"); text != "" {
		if n, err = strconv.Atoi(text); err != nil {
			refuse(w, fmt.Errorf("n: %w", err))
			return
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), min(wait, maxHeldWait))
	defer cancel()
	held, err := s.WaitHeld(ctx, n)
	if err != nil {
		w.WriteHeader(http.StatusRequestTimeout)
	}
	s.show(w, map[string]any{"held": held})
}

// takeRelease answers POST /_standin/release: {"request_ids":[...]}, or an empty body for all.
func (s *Server) takeRelease(w http.ResponseWriter, r *http.Request) {
	var which struct {
		RequestIDs []string `json:"request_ids"`
	}
	if r.ContentLength != 0 {
		if err := readStrictly(r, &which); err != nil {
			refuse(w, err)
			return
		}
	}
	s.show(w, map[string]any{"released": s.Release(which.RequestIDs...)})
}

// takeCustomer answers POST /_standin/customers: adds or replaces one.
func (s *Server) takeCustomer(w http.ResponseWriter, r *http.Request) {
	var customer Customer
	if err := readStrictly(r, &customer); err != nil {
		refuse(w, err)
		return
	}
	s.AddCustomer(customer)
	s.show(w, customer)
}

// takeAccount answers POST /_standin/account {"id":"acct_other","livemode":true}: another account behind the same address.
func (s *Server) takeAccount(w http.ResponseWriter, r *http.Request) {
	var account struct {
		ID       string `json:"id"`
		Livemode bool   `json:"livemode"`
	}
	err := readStrictly(r, &account)
	if err == nil && account.ID == "" {
		err = errors.New("an account needs an id")
	}
	if err != nil {
		refuse(w, err)
		return
	}
	s.SetAccount(account.ID, account.Livemode)
	s.show(w, account)
}

func readStrictly(r *http.Request, into any) error {
	raw, err := io.ReadAll(io.LimitReader(r.Body, maxBodyBytes))
	if err != nil {
		return fmt.Errorf("read body: %w", err)
	}
	return strictly(raw, into)
}

// strictly refuses misspelt fields: a fault script that silently does nothing proves nothing.
func strictly(raw []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return fmt.Errorf("parse body: %w", err)
	}
	return nil
}

func refuse(w http.ResponseWriter, err error) {
	http.Error(w, err.Error(), http.StatusBadRequest)
}

func (s *Server) show(w http.ResponseWriter, page any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(page); err != nil {
		s.log.Debug("write control page", slog.Any("error", err))
	}
}
