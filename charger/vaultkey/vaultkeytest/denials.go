package vaultkeytest

import (
	"encoding/json"
	"net/http"
	"slices"
)

// Style is the shape of a denial; doc.go has the table.
type Style string

// The styles.
const (
	Object402 Style = "object_402"
	Flat      Style = "flat"
	Flat402   Style = "flat_402"
	Flat429   Style = "flat_429"
	Flat403   Style = "flat_403"
	Flat401   Style = "flat_401"
	Empty     Style = "empty"
	HTML      Style = "html"
)

// Styles lists every style.
func Styles() []Style {
	return []Style{Object402, Flat, Flat402, Flat429, Flat403, Flat401, Empty, HTML}
}

type denialReason string

const (
	capReached     denialReason = "cap_reached"
	otherCurrency  denialReason = "currency_not_covered"
	endpointDenied denialReason = "endpoint_not_allowed"
	unknownKey     denialReason = "unknown_vault_key"
	keyRevoked     denialReason = "vault_key_revoked"
	keyExpired     denialReason = "vault_key_expired"
)

func reasons() []denialReason {
	return []denialReason{capReached, otherCurrency, endpointDenied, unknownKey, keyRevoked, keyExpired}
}

func (r denialReason) text() string {
	switch r {
	case capReached:
		return "spend cap reached for this vault key"
	case otherCurrency:
		return "this vault key covers usd only"
	case endpointDenied:
		return "endpoint not allowed for this vault key"
	case unknownKey:
		return "unknown vault key"
	case keyRevoked:
		return "vault key revoked"
	case keyExpired:
		return "vault key expired"
	}
	return "denied"
}

func (style Style) status(why denialReason) int {
	switch style {
	case Flat:
		switch why {
		case capReached:
			return http.StatusTooManyRequests
		case endpointDenied, otherCurrency:
			return http.StatusForbidden
		case unknownKey, keyRevoked, keyExpired:
			return http.StatusUnauthorized
		}
	case Flat429:
		return http.StatusTooManyRequests
	case Flat403:
		return http.StatusForbidden
	case Flat401:
		return http.StatusUnauthorized
	case Object402, Flat402, Empty, HTML:
	}
	return http.StatusPaymentRequired
}

// deny answers in the proxy's own name; Stripe is not asked and there is no request id.
func (s *Server) deny(w http.ResponseWriter, style Style, why denialReason) {
	if s.cfg.MarkerHeader != "" {
		w.Header().Set(s.cfg.MarkerHeader, s.cfg.MarkerValue)
	}
	kind, body := "application/json", []byte(nil)
	switch style {
	case Object402:
		body, _ = json.Marshal(map[string]any{"error": map[string]any{ // texts always marshal
			"type": "spend_cap_exceeded", "code": string(why), "message": why.text(),
		}})
	case Flat, Flat402, Flat429, Flat403, Flat401:
		body, _ = json.Marshal(map[string]any{"error": why.text(), "policy": string(why)}) // texts always marshal
	case Empty:
		kind = ""
	case HTML:
		kind, body = "text/html", []byte("<html><body><h1>Payment blocked</h1><p>"+why.text()+"</p></body></html>\n")
	}
	if kind != "" {
		w.Header().Set("Content-Type", kind)
	}
	w.WriteHeader(style.status(why))
	_, _ = w.Write(body) // a client that left is no concern of the stand-in
}

func known(style Style) bool { return style == "" || slices.Contains(Styles(), style) }
