package stripetest

import (
	"crypto/sha256"
	"hash/fnv"
	"net/http"
	"slices"
	"strings"
	"time"
)

// keyRecord is what one idempotency key stands for in one account and mode.
type keyRecord struct {
	endpoint  string
	params    [sha256.Size]byte
	requestID string
	created   time.Time
	running   bool // the first request under this key has not ended
	answer    answer
}

// execute runs a request through Stripe's idempotency layer: replay, refuse, or do it and keep the answer. aborted is
// true when the client must get nothing at all and nothing happened.
func (s *Server) execute(r *http.Request, c *call) (a answer, aborted bool) {
	if c.method != http.MethodPost || c.key == "" {
		return s.perform(r, c)
	}
	if len(c.key) > maxIdempotencyBytes {
		return refusedEarly(invalid("", "", "Idempotency keys cannot be longer than 255 characters.")), false
	}
	record, a, found := s.claimKey(c)
	if found {
		return a, false
	}
	kept := false
	defer func() {
		if !kept {
			s.forgetKey(c.key, record)
		}
	}()
	a, aborted = s.perform(r, c)
	if !aborted && a.kept {
		s.keepAnswer(record, a)
		kept = true
	}
	return a, aborted
}

// claimKey takes the key for this request, or says what the key's earlier use answers.
func (s *Server) claimKey(c *call) (*keyRecord, answer, bool) {
	endpoint, params := c.path, sha256.Sum256([]byte(c.form.Encode()))
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.Now()
	b := s.current()
	s.prune(b, now)
	old := b.keys[c.key]
	switch {
	case old == nil || s.prunable(c.key, old, now):
		record := &keyRecord{endpoint: endpoint, params: params, requestID: c.id, created: now, running: true}
		b.keys[c.key] = record
		return record, answer{}, false
	case old.running:
		return nil, keyInUse(c.key), true
	case old.endpoint != endpoint:
		return nil, refusedEarly(&stripeError{
			Type: typeIdempotency,
			Message: "Keys for idempotent requests can only be used for the same endpoint they were first used for ('" +
				endpoint + "' vs '" + old.endpoint + "'). Try using a key other than '" + c.key + "' if you meant to execute a different request.",
		}), true
	case old.params != params:
		return nil, refusedEarly(&stripeError{
			Type: typeIdempotency,
			Message: "Keys for idempotent requests can only be used with the same parameters they were first used with. " +
				"Try using a key other than '" + c.key + "' if you meant to execute a different request.",
		}), true
	}
	replay := old.answer
	replay.replayed, replay.originalID = true, old.requestID
	return nil, replay, true
}

func (s *Server) keepAnswer(record *keyRecord, a answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	record.running, record.answer = false, a
}

// forgetKey frees a key whose request was not kept, so that the next request under it is executed.
func (s *Server) forgetKey(key string, record *keyRecord) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.books {
		if b.keys[key] == record {
			delete(b.keys, key)
		}
	}
}

// prunable says whether Stripe has dropped the key: at least 24 hours old, plus a jitter that is fixed for each key.
func (s *Server) prunable(key string, record *keyRecord, now time.Time) bool {
	age := minKeyAge
	if s.cfg.PruneJitter > 0 {
		h := fnv.New64a()
		_, _ = h.Write([]byte(key))
		age += time.Duration(h.Sum64() % uint64(s.cfg.PruneJitter)) //nolint:gosec // G115: the remainder is below PruneJitter
	}
	return !record.running && now.Sub(record.created) >= age
}

// prune drops old keys once an hour of the stand-in's clock. The caller holds s.mu.
func (s *Server) prune(b *book, now time.Time) {
	if now.Before(b.nextPurge) {
		return
	}
	b.nextPurge = now.Add(time.Hour)
	for key, record := range b.keys {
		if s.prunable(key, record, now) {
			delete(b.keys, key)
		}
	}
}

// perform checks the bearer key, waits as the bank would, and runs the endpoint.
func (s *Server) perform(r *http.Request, c *call) (a answer, aborted bool) {
	if s.cfg.BeforeEffect != nil {
		s.cfg.BeforeEffect(c.told(nil))
	}
	if c.fault.is(HoldBeforeEffect) {
		left := s.hold(r, c, "before effect")
		if left && !c.fault.Effect {
			return answer{}, true
		}
	}
	if !s.wait(s.cfg.Latency) {
		return answer{}, true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runDue(s.Now())
	switch {
	case c.fault.is(APIError) && !c.fault.Effect:
		return serverError(), false
	case c.fault.is(APIErrorLate) && c.method == http.MethodPost:
		account := s.account
		s.later(s.Now().Add(time.Duration(c.fault.After)), func(at time.Time) { s.inAccount(account, func() { s.run(c, at) }) })
		return serverError(), false
	}
	a = s.run(c, s.Now())
	if c.fault.is(APIError) {
		id := a.objectID
		a = serverError()
		a.objectID = id
	}
	if body, ok := a.body.(errorBody); ok {
		body.Error.withDocs(c.id)
	}
	return a, false
}

// inAccount runs do with another account's book as the current one. The caller holds s.mu.
func (s *Server) inAccount(account accountKey, do func()) {
	current := s.account
	s.account = account
	do()
	s.account = current
}

// gate refuses a request without a good key; Stripe does so before the idempotency layer.
func (s *Server) gate(c *call) *answer {
	key, isBearer := strings.CutPrefix(c.header.Get("Authorization"), "Bearer ")
	if !isBearer || key == "" {
		a := unauthorized("You did not provide an API key. You need to provide your API key in the Authorization header, using Bearer auth " +
			"(e.g. 'Authorization: Bearer YOUR_SECRET_KEY').")
		return &a
	}
	good := slices.Contains(s.cfg.Keys, key)
	if len(s.cfg.Keys) == 0 {
		good = strings.HasPrefix(key, "sk_") || strings.HasPrefix(key, "rk_") || strings.HasPrefix(key, "vk_")
	}
	if !good {
		a := unauthorized("Invalid API Key provided: " + redacted(key))
		return &a
	}
	if account := c.header.Get("Stripe-Account"); account != "" {
		s.mu.Lock()
		defer s.mu.Unlock()
		if account != s.account.id {
			return &answer{status: http.StatusForbidden, body: errorBody{&stripeError{
				Type: typeInvalid, Code: "account_invalid",
				Message: "The provided key '" + redacted(key) + "' does not have access to account '" + account + "' (or that account does not exist).",
			}}}
		}
	}
	return nil
}

// redacted keeps of a secret what tells keys apart in a log and no more.
func redacted(secret string) string {
	if len(secret) <= 12 {
		return "***"
	}
	return secret[:8] + "***" + secret[len(secret)-4:]
}
