package eventhubstest

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"
)

// maxScriptBytes bounds the body of a fault script.
const maxScriptBytes = 1 << 20

// ControlHandler serves GET /_standin/ledger (with ?events=1 the events too) and POST /_standin/faults, whose body is
// {"faults": [{"kind": "drop_connections"}, ...]}, carried out in order up to the first that fails.
func (s *Server) ControlHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /_standin/ledger", func(w http.ResponseWriter, r *http.Request) {
		s.writeJSON(w, http.StatusOK, s.Ledger(r.FormValue("events") == "1"))
	})
	mux.HandleFunc("POST /_standin/faults", func(w http.ResponseWriter, r *http.Request) {
		if err := s.runScript(w, r); err != nil {
			s.writeJSON(w, http.StatusBadRequest, map[string]string{"error": err.Error()})
			return
		}
		s.writeJSON(w, http.StatusOK, map[string]string{"result": "ok"})
	})
	return mux
}

// Ledger is what the control port shows.
type Ledger struct {
	Counters Counters    `json:"counters"`
	Hubs     []HubLedger `json:"hubs"`
}

// HubLedger is one hub's part of the ledger.
type HubLedger struct {
	Name       string            `json:"name"`
	CreatedAt  time.Time         `json:"created_at"`
	Partitions []PartitionLedger `json:"partitions"`
}

// PartitionLedger counts what a partition holds and ever took; Events is there on request.
type PartitionLedger struct {
	ID                  string  `json:"id"`
	Count               int     `json:"count"`
	FirstSequenceNumber int64   `json:"first_sequence_number"`
	NextSequenceNumber  int64   `json:"next_sequence_number"`
	Receivers           int     `json:"receivers"`
	Events              []Event `json:"events,omitempty"`
}

// Ledger returns counts per hub and partition, and the events too when asked.
func (s *Server) Ledger(events bool) Ledger {
	out := Ledger{Counters: s.Counters()}
	s.mu.Lock()
	for _, h := range s.hubs {
		hl := HubLedger{Name: h.name, CreatedAt: h.createdAt}
		for _, p := range h.partitions {
			hl.Partitions = append(hl.Partitions, PartitionLedger{
				ID: p.id, Count: len(p.events), FirstSequenceNumber: p.first, NextSequenceNumber: p.end(), Receivers: len(p.readers),
			})
		}
		out.Hubs = append(out.Hubs, hl)
	}
	s.mu.Unlock()
	slices.SortFunc(out.Hubs, func(a, b HubLedger) int { return strings.Compare(a.Name, b.Name) })
	if events {
		for _, h := range out.Hubs {
			for i := range h.Partitions {
				h.Partitions[i].Events = s.Events(h.Name, h.Partitions[i].ID)
			}
		}
	}
	return out
}

func (s *Server) runScript(w http.ResponseWriter, r *http.Request) error {
	var script struct {
		Faults []Fault `json:"faults"`
	}
	in := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxScriptBytes))
	in.DisallowUnknownFields()
	if err := in.Decode(&script); err != nil {
		return fmt.Errorf("read fault script: %w", err)
	}
	for i, f := range script.Faults {
		if err := s.Inject(f); err != nil {
			return fmt.Errorf("fault %d of the script: %w", i, err)
		}
	}
	return nil
}

func (s *Server) writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(v); err != nil {
		s.cfg.Logger.Warn("control answer was not written", slog.Any("error", err))
	}
}
