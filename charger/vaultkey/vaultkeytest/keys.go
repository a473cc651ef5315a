package vaultkeytest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// vaultKey is one issued key and what was spent with it, in cents.
type vaultKey struct {
	id        string
	secret    string
	label     string
	cap       int64
	daily     bool
	endpoints []string
	created   time.Time
	expires   time.Time // zero: never
	revoked   bool
	day       string // that reserved and spent belong to, when the cap is daily
	reserved  int64
	spent     int64
}

// Key is a vault key as it stands now.
type Key struct {
	ID               string     `json:"id"`
	VaultKey         string     `json:"vault_key"` // whole only in the answer that issues it
	Vendor           string     `json:"vendor"`
	Label            string     `json:"label"`
	CapCents         int64      `json:"cap_cents"`
	Daily            bool       `json:"daily"`
	AllowedEndpoints []string   `json:"allowed_endpoints"`
	CreatedAt        time.Time  `json:"created_at"`
	ExpiresAt        *time.Time `json:"expires_at"`
	Status           string     `json:"status"` // active, expired, revoked
	ReservedCents    int64      `json:"reserved_cents"`
	SpentCents       int64      `json:"spent_cents"`
}

type order struct {
	Vendor           string      `json:"vendor"`
	Label            string      `json:"label"`
	DailyUSDCap      json.Number `json:"daily_usd_cap"`
	Cap              json.Number `json:"cap"`
	AllowedEndpoints []string    `json:"allowed_endpoints"`
	ExpiresAt        *time.Time  `json:"expires_at"`
}

// issue answers POST /vault/keys.
func (s *Server) issue(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(io.LimitReader(r.Body, maxBodyBytes))
	var wanted order
	if err == nil {
		err = strictly(raw, &wanted)
	}
	var made *vaultKey
	if err == nil {
		made, err = s.make(wanted)
	}
	if err != nil {
		s.show(w, http.StatusUnprocessableEntity, map[string]any{"error": err.Error()})
		return
	}
	s.mu.Lock()
	s.keys[made.secret] = made
	s.order = append(s.order, made)
	s.note(Audit{KeyID: made.id, Decision: "issued"})
	shown := s.shown(made)
	s.mu.Unlock()
	shown.VaultKey = made.secret
	s.show(w, http.StatusCreated, shown)
}

func (s *Server) make(wanted order) (*vaultKey, error) {
	if wanted.Vendor != "stripe" {
		return nil, fmt.Errorf("vendor %q is not supported", wanted.Vendor)
	}
	made := &vaultKey{
		id: "vkey_" + randomText(8), secret: "vk_live_" + randomText(16), label: wanted.Label, endpoints: wanted.AllowedEndpoints, created: s.Now(),
	}
	amount := wanted.Cap
	if wanted.DailyUSDCap != "" {
		if amount != "" {
			return nil, fmt.Errorf("give daily_usd_cap or cap, not both")
		}
		amount, made.daily = wanted.DailyUSDCap, true
	}
	cents, err := cents(amount.String())
	if err != nil {
		return nil, err
	}
	made.cap = cents
	for _, endpoint := range made.endpoints {
		if !strings.HasPrefix(endpoint, "/v1/") && !slices.Contains(operations(), endpoint) {
			return nil, fmt.Errorf("allowed_endpoints: no endpoint named %q", endpoint)
		}
	}
	if wanted.ExpiresAt != nil {
		if !wanted.ExpiresAt.After(s.Now()) {
			return nil, fmt.Errorf("expires_at %s is past", wanted.ExpiresAt.Format(time.RFC3339))
		}
		made.expires = *wanted.ExpiresAt
	}
	return made, nil
}

// cents reads a dollar amount without ever passing through a float.
func cents(dollars string) (int64, error) {
	whole, fraction, _ := strings.Cut(dollars, ".")
	fraction = strings.TrimRight(fraction, "0") // 13750.000000 is 13750
	if len(fraction) > 2 {
		return 0, fmt.Errorf("cap %q has more than two decimals", dollars)
	}
	n, err := strconv.ParseInt(whole+fraction+"00"[len(fraction):], 10, 64)
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("cap %q is not a positive dollar amount", dollars)
	}
	return n, nil
}

func operations() []string {
	return []string{
		"charges.create", "charges.retrieve", "charges.list", "payment_intents.create", "payment_intents.retrieve",
		"payment_intents.list", "payment_intents.cancel", "customers.retrieve", "account.retrieve", "balance.retrieve",
	}
}

// operation names what a call does, or is empty for one that has no name here.
func operation(method, path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/") // v1, resource, id, verb
	if len(parts) < 2 {
		return ""
	}
	verb := ""
	switch {
	case method == http.MethodGet && (len(parts) == 3 || parts[1] == "account" || parts[1] == "balance"):
		verb = "retrieve"
	case method == http.MethodGet && len(parts) == 2:
		verb = "list"
	case method == http.MethodPost && len(parts) == 2:
		verb = "create"
	case method == http.MethodPost && len(parts) == 4:
		verb = parts[3]
	default:
		return ""
	}
	return parts[1] + "." + verb
}

func (k *vaultKey) allows(method, path string) bool {
	if len(k.endpoints) == 0 || slices.Contains(k.endpoints, operation(method, path)) {
		return true
	}
	return slices.ContainsFunc(k.endpoints, func(endpoint string) bool {
		return strings.HasPrefix(endpoint, "/") && (path == endpoint || strings.HasPrefix(path, strings.TrimRight(endpoint, "/")+"/"))
	})
}

// today begins a new day's cap when the clock has passed midnight UTC.
func (k *vaultKey) today(now time.Time) string {
	if !k.daily {
		return ""
	}
	if day := now.UTC().Format(time.DateOnly); day != k.day {
		k.day, k.reserved, k.spent = day, 0, 0
	}
	return k.day
}

// Keys is every key as it stands now, oldest first, the secrets shortened.
func (s *Server) Keys() []Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := make([]Key, 0, len(s.order))
	for _, k := range s.order {
		keys = append(keys, s.shown(k))
	}
	return keys
}

// Revoke ends a key by its id; false when there is none.
func (s *Server) Revoke(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.byID(id)
	if k == nil {
		return false
	}
	k.revoked = true
	s.note(Audit{KeyID: k.id, Decision: "revoked"})
	return true
}

func (s *Server) byID(id string) *vaultKey {
	for _, k := range s.order {
		if k.id == id {
			return k
		}
	}
	return nil
}

// shown is a key for the outside. The caller holds s.mu.
func (s *Server) shown(k *vaultKey) Key {
	k.today(s.Now())
	shown := Key{
		ID: k.id, VaultKey: k.secret[:12] + "***", Vendor: "stripe", Label: k.label, CapCents: k.cap, Daily: k.daily,
		AllowedEndpoints: k.endpoints, CreatedAt: k.created, Status: "active", ReservedCents: k.reserved, SpentCents: k.spent,
	}
	if !k.expires.IsZero() {
		shown.ExpiresAt = &k.expires
	}
	switch {
	case k.revoked:
		shown.Status = "revoked"
	case k.expired(s.Now()):
		shown.Status = "expired"
	}
	return shown
}

func (k *vaultKey) expired(now time.Time) bool { return !k.expires.IsZero() && !now.Before(k.expires) }

// admin lets only the holders of an admin key through.
func (s *Server) admin(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		key := bearer(r)
		if key == "" || len(s.cfg.AdminKeys) > 0 && !slices.Contains(s.cfg.AdminKeys, key) {
			s.show(w, http.StatusUnauthorized, map[string]any{"error": "invalid API key"})
			return
		}
		next(w, r)
	}
}

func bearer(r *http.Request) string {
	key, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return key
}

func (s *Server) revoke(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	if !s.Revoke(id) {
		s.show(w, http.StatusNotFound, map[string]any{"error": "no key " + id})
		return
	}
	s.showKey(w, r)
}

func (s *Server) showKey(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	for _, k := range s.Keys() {
		if k.ID == id {
			s.show(w, http.StatusOK, k)
			return
		}
	}
	s.show(w, http.StatusNotFound, map[string]any{"error": "no key " + id})
}

// strictly refuses misspelt fields: a cap that silently does not hold is the worst a proxy can do.
func strictly(raw []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return fmt.Errorf("parse body: %w", err)
	}
	return nil
}

func (s *Server) show(w http.ResponseWriter, status int, page any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(page); err != nil {
		s.log.Debug("write page", slog.Any("error", err))
	}
}
