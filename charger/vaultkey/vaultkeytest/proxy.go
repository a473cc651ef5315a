package vaultkeytest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Audit is one decision of the proxy.
type Audit struct {
	At             time.Time `json:"at"`
	KeyID          string    `json:"key_id,omitempty"`
	Decision       string    `json:"decision"` // issued, revoked, forwarded, denied
	Reason         string    `json:"reason,omitempty"`
	Method         string    `json:"method,omitempty"`
	Path           string    `json:"path,omitempty"`
	Customer       string    `json:"customer,omitempty"`
	IdempotencyKey string    `json:"idempotency_key,omitempty"`
	AmountCents    int64     `json:"amount_cents,omitempty"`
	Status         int       `json:"status,omitempty"`
	RequestID      string    `json:"request_id,omitempty"` // Stripe's
}

// forward checks the vault key, reserves, sends the call to Stripe and books its answer.
func (s *Server) forward(w http.ResponseWriter, r *http.Request, fault *Fault) {
	call, err := read(r)
	if err != nil {
		s.show(w, http.StatusBadRequest, map[string]any{"error": err.Error()})
		return
	}
	audit := Audit{Method: call.method, Path: call.path, IdempotencyKey: call.idem, Customer: call.form.Get("customer")}
	audit.AmountCents, _ = call.amount()
	s.mu.Lock()
	b, why := booking{}, denialReason("")
	k := s.keys[bearer(r)]
	if why = s.refusal(k, call); why == "" {
		b, why = s.reserve(k, call)
	}
	if k != nil {
		audit.KeyID = k.id
	}
	style := s.denial
	if why != "" {
		audit.Decision, audit.Reason, audit.Status = "denied", string(why), style.status(why)
		s.note(audit)
	}
	s.mu.Unlock()
	if why != "" {
		s.deny(w, style, why)
		return
	}

	status, header, body, err := s.send(r, call, fault)
	if err != nil {
		s.log.DebugContext(r.Context(), "stripe did not answer the proxy", slog.Any("error", err))
		status, header, body = http.StatusBadGateway, http.Header{"Content-Type": {"application/json"}}, []byte(`{"error":"upstream did not answer"}`)
	}
	s.conclude(b, status, header, body)
	if call.cancels() {
		s.concludeCancel(status, header, body)
	}
	audit.Decision, audit.Status, audit.RequestID = "forwarded", status, header.Get("Request-Id")
	s.mu.Lock()
	s.note(audit)
	s.mu.Unlock()
	if fault != nil && fault.Do == DropAnswer {
		panic(http.ErrAbortHandler)
	}
	for name, values := range header {
		if !hopByHop(name) {
			w.Header()[name] = values
		}
	}
	w.WriteHeader(status)
	_, _ = w.Write(body) //nolint:gosec // G705: a proxy passes on what Stripe said; a client that left is no concern
}

// refusal says why the call may not pass, whatever it costs. The caller holds s.mu.
func (s *Server) refusal(k *vaultKey, call *proxied) denialReason {
	switch {
	case k == nil:
		return unknownKey
	case k.revoked:
		return keyRevoked
	case k.expired(s.Now()):
		return keyExpired
	case !k.allows(call.method, call.path):
		return endpointDenied
	}
	return ""
}

// send passes the call on. It goes on when the client leaves: what Stripe does must be booked.
func (s *Server) send(r *http.Request, call *proxied, fault *Fault) (int, http.Header, []byte, error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-s.done:
			cancel()
		case <-stop:
		}
	}()
	target := s.cfg.UpstreamURL + call.path
	if r.URL.RawQuery != "" {
		target += "?" + r.URL.RawQuery
	}
	out, err := http.NewRequestWithContext(ctx, call.method, target, bytes.NewReader(call.raw)) //nolint:gosec // G704: forwarding is what a proxy is for; the host comes from Config
	if err != nil {
		return 0, nil, nil, fmt.Errorf("make the call to Stripe: %w", err)
	}
	for name, values := range r.Header {
		if !hopByHop(name) {
			out.Header[name] = values
		}
	}
	out.Header.Set("Authorization", "Bearer "+s.cfg.StripeKey)
	if fault != nil && fault.Do == DropIdempotencyKey {
		out.Header.Del("Idempotency-Key")
	}
	response, err := s.upstream.Do(out) //nolint:gosec // G704: as above
	if err != nil {
		return 0, nil, nil, fmt.Errorf("call Stripe: %w", err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswerBytes))
	if err != nil {
		return 0, nil, nil, fmt.Errorf("read Stripe's answer: %w", err)
	}
	return response.StatusCode, response.Header, body, nil
}

func read(r *http.Request) (*proxied, error) {
	raw, err := io.ReadAll(io.LimitReader(r.Body, maxBodyBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read body: %w", err)
	}
	if len(raw) > maxBodyBytes {
		return nil, fmt.Errorf("body is larger than %d bytes", maxBodyBytes)
	}
	form, err := url.ParseQuery(string(raw))
	if err != nil {
		return nil, fmt.Errorf("parse form body: %w", err)
	}
	call := &proxied{method: r.Method, path: strings.TrimPrefix(r.URL.Path, "/stripe"), raw: raw, form: form}
	if r.Method == http.MethodPost {
		call.idem = r.Header.Get("Idempotency-Key")
	}
	return call, nil
}

func hopByHop(name string) bool {
	return slices.Contains([]string{"Connection", "Keep-Alive", "Transfer-Encoding", "Te", "Trailer", "Upgrade", "Content-Length", "Accept-Encoding"}, name)
}

// note appends to the audit log. The caller holds s.mu.
func (s *Server) note(a Audit) {
	a.At = s.Now()
	s.audit = append(s.audit, a)
}

// Audit is every decision so far, in order.
func (s *Server) Audit() []Audit {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.audit)
}

// Ledger is every movement of the caps so far, in order.
func (s *Server) Ledger() []Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.ledger)
}
