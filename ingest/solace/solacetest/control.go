package solacetest

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
)

const (
	// maxScriptBytes bounds the body of a fault script.
	maxScriptBytes = 1 << 20
	exampleScript  = `{"faults": [{"kind": "drop_connections"}]}`
)

// ControlHandler serves GET /_standin/ledger (with ?messages=1 the messages too) and POST /_standin/faults, whose body is
// {"faults": [{"kind": "drop_connections"}, ...]}, carried out in order up to the first that fails.
func (s *Server) ControlHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /_standin/ledger", func(w http.ResponseWriter, r *http.Request) {
		s.writeJSON(w, http.StatusOK, s.Ledger(r.FormValue("messages") == "1"))
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

func (s *Server) runScript(w http.ResponseWriter, r *http.Request) error {
	var script struct {
		Faults []Fault `json:"faults"`
	}
	in := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxScriptBytes))
	in.DisallowUnknownFields()
	if err := in.Decode(&script); err != nil {
		return fmt.Errorf("read fault script, which looks like %s: %w", exampleScript, err)
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
