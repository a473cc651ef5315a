package stripetest

import (
	"bytes"
	"encoding/json"
	"maps"
	"net"
	"net/http"
	"strconv"
	"time"
)

// apiVersion is told when the client does not name one.
const apiVersion = "2023-10-16"

// beforeLayer applies what strikes ahead of the idempotency layer: the network, rate limits, bad keys and whatever an
// intermediary says without asking Stripe. done means the connection is gone; an answer means it is all the client gets.
func (s *Server) beforeLayer(w http.ResponseWriter, r *http.Request, c *call) (a *answer, done bool) {
	f := c.fault
	if f == nil {
		return s.gate(c), false
	}
	if f.Do != HoldBeforeEffect && f.Do != HoldAfterEffect && !s.wait(time.Duration(f.Delay)) {
		panic(http.ErrAbortHandler)
	}
	switch f.Do { //nolint:exhaustive // each action strikes at one place of the way, this is one of them
	case CloseBeforeEffect:
		cutOff(w, false)
		return nil, true
	case ResetBeforeEffect:
		cutOff(w, true)
		return nil, true
	}
	if !f.Effect {
		if early, ok := f.instead(r); ok {
			return &early, false
		}
	}
	switch f.Do { //nolint:exhaustive // each action strikes at one place of the way, this is one of them
	case RateLimit:
		a = new(limited("rate_limit", f.Reason))
	case LockTimeout:
		a = new(limited("lock_timeout", ""))
	case KeyInUse:
		a = new(keyInUse(c.key))
	case Unauthorized:
		a = new(unauthorized("Expired API Key provided: " + redacted(c.header.Get("Authorization"))))
	case Forbidden:
		a = &answer{status: http.StatusForbidden, body: errorBody{&stripeError{
			Type: typeInvalid, Code: "more_permissions_required", Message: "The provided key does not have the required permissions for this endpoint.",
		}}}
	case ListPageFails:
		a = new(serverError())
	default:
		a = s.gate(c)
	}
	return a, false
}

// instead is what an intermediary answers in Stripe's place.
func (f *Fault) instead(r *http.Request) (answer, bool) {
	switch f.Do { //nolint:exhaustive // each action strikes at one place of the way, this is one of them
	case BadGateway:
		return htmlPage(http.StatusBadGateway), true
	case Unavailable:
		return htmlPage(http.StatusServiceUnavailable), true
	case GatewayTimeout:
		return htmlPage(http.StatusGatewayTimeout), true
	case EmptyObject:
		return answer{status: http.StatusOK, page: "{}", pageType: "application/json"}, true
	case Redirect:
		location := f.Location
		if location == "" {
			location = r.URL.Path
		}
		return answer{
			status: or(f.Status, http.StatusFound), page: "moved\n", pageType: "text/plain", header: map[string]string{"Location": location},
		}, true
	case FlatDenial:
		body := f.Body
		if body == "" {
			body = `{"error":"spend cap reached"}`
		}
		return answer{status: or(f.Status, http.StatusPaymentRequired), page: body, pageType: "application/json"}, true
	case Answer:
		return answer{status: or(f.Status, http.StatusOK), page: f.Body, pageType: "application/json"}, true
	}
	return answer{}, false
}

func or(status, otherwise int) int {
	if status == 0 {
		return otherwise
	}
	return status
}

// afterEffect writes the answer, or what a fault makes of it once the effect is in the ledger.
func (s *Server) afterEffect(w http.ResponseWriter, r *http.Request, c *call, a *answer) {
	f := c.fault
	if f == nil {
		s.write(w, c, a, a.render(nil))
		return
	}
	switch f.Do { //nolint:exhaustive // each action strikes at one place of the way, this is one of them
	case HoldAfterEffect:
		if s.hold(r, c, "after effect") {
			panic(http.ErrAbortHandler)
		}
	case CloseAfterEffect:
		cutOff(w, false)
		return
	case ResetAfterEffect:
		cutOff(w, true)
		return
	case CutBody:
		whole := a.render(nil)
		s.write(w, c, a, whole[:len(whole)/2], len(whole))
		if flusher, ok := w.(http.Flusher); ok {
			flusher.Flush()
		}
		panic(http.ErrAbortHandler)
	case DateSkew:
		w.Header().Set("Date", time.Now().Add(time.Duration(f.Skew)).UTC().Format(http.TimeFormat))
	}
	if f.Effect {
		if other, ok := f.instead(r); ok {
			a = &other
		}
	}
	s.write(w, c, a, a.render(f))
}

// render writes the body, changed as the fault wants it.
func (a *answer) render(f *Fault) []byte {
	if a.body == nil {
		return []byte(a.page)
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(a.body); err != nil {
		panic("internal error: an answer that JSON cannot write: " + err.Error())
	}
	if f == nil || a.status >= http.StatusMultipleChoices {
		return out.Bytes()
	}
	set := f.Set
	switch f.Do { //nolint:exhaustive // each action strikes at one place of the way, this is one of them
	case Alter:
	case WrongObject:
		set = map[string]any{"object": "event", "id": "evt_" + a.objectID}
	case WrongAmount:
		set = nil
	default:
		return out.Bytes()
	}
	object := map[string]any{}
	decoder := json.NewDecoder(bytes.NewReader(out.Bytes()))
	decoder.UseNumber()
	if err := decoder.Decode(&object); err != nil {
		panic("internal error: an answer that is no JSON object: " + err.Error())
	}
	if amount, ok := object["amount"].(json.Number); ok && f.Do == WrongAmount {
		n, _ := amount.Int64() // our own integer
		object["amount"] = n + 1
	}
	maps.Copy(object, set)
	changed, err := json.Marshal(object)
	if err != nil {
		panic("internal error: an altered answer that JSON cannot write: " + err.Error())
	}
	return changed
}

// write sends the head and the body; a length other than the body's is announced when given.
func (s *Server) write(w http.ResponseWriter, c *call, a *answer, body []byte, announced ...int) {
	h := w.Header()
	if a.body != nil {
		h.Set("Content-Type", "application/json")
		h.Set("Request-Id", c.id)
		version := c.header.Get("Stripe-Version")
		if version == "" {
			version = apiVersion
		}
		h.Set("Stripe-Version", version)
		if c.key != "" {
			h.Set("Idempotency-Key", c.key)
		}
		if a.replayed {
			h.Set("Idempotent-Replayed", "true")
			h.Set("Original-Request", a.originalID)
		}
	} else if a.pageType != "" {
		h.Set("Content-Type", a.pageType)
	}
	for name, value := range a.header {
		h.Set(name, value)
	}
	if f := c.fault; f != nil {
		if f.ShouldRetry != nil {
			h.Set("Stripe-Should-Retry", strconv.FormatBool(*f.ShouldRetry))
		}
		for name, value := range f.Header {
			h.Set(name, value)
		}
	}
	length := len(body)
	for _, n := range announced {
		length = n
	}
	h.Set("Content-Length", strconv.Itoa(length))
	w.WriteHeader(a.status)
	_, _ = w.Write(body) // a client that left is no concern of the stand-in
}

// cutOff ends the connection with no byte of an answer: by a reset, or by closing it.
func cutOff(w http.ResponseWriter, reset bool) {
	hijacker, ok := w.(http.Hijacker)
	if !ok {
		panic(http.ErrAbortHandler)
	}
	conn, _, err := hijacker.Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok && reset {
		_ = tcp.SetLinger(0) // unsent bytes are dropped and a reset goes out
	}
	_ = conn.Close()
}
