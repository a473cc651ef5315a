package console

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"log/slog"
	"math"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"
)

// gate lets requests with the right name and password through.
type gate struct {
	log            *slog.Logger
	metrics        *metrics
	key            []byte // random, so that the hashes say nothing outside this process
	user, password []byte // hashed
	tries          *tries
}

func newGate(cfg Config, m *metrics) *gate {
	g := &gate{log: cfg.Logger, metrics: m, key: make([]byte, sha256.Size), tries: newTries()}
	_, _ = rand.Read(g.key) // never fails: crypto/rand ends the process instead
	g.user, g.password = g.hash(cfg.User), g.hash(cfg.Password)
	return g
}

func (g *gate) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		user, password, given := r.BasicAuth()
		if !given { // how a browser begins; no try, so it costs none
			g.metrics.requests.WithLabelValues("no_password").Inc()
			g.challenge(w)
			return
		}
		verdict, wait := g.tries.judge(addressOf(r), start, func() bool { return g.right(user, password) })
		switch verdict {
		case admitted:
			next.ServeHTTP(w, r)
			g.metrics.timed(start)
		case wrong:
			// Neither name nor password is logged: people type one into the field of the other.
			g.metrics.requests.WithLabelValues("wrong_password").Inc()
			g.log.WarnContext(r.Context(), "wrong user name or password for the console", slog.String("remote_address", r.RemoteAddr))
			g.challenge(w)
		case tooMany:
			// Not logged one by one: whoever floods the console must not flood the log as well.
			g.metrics.requests.WithLabelValues("too_many_tries").Inc()
			seconds := strconv.Itoa(int(math.Ceil(wait.Seconds())))
			w.Header().Set("Retry-After", seconds)
			refuse(w, http.StatusTooManyRequests, "Too many wrong passwords from this address. Try again in "+seconds+" s.")
		}
	})
}

func (g *gate) challenge(w http.ResponseWriter) {
	w.Header().Set("WWW-Authenticate", `Basic realm="chargeonce console", charset="UTF-8"`)
	refuse(w, http.StatusUnauthorized, "The console needs a user name and a password.")
}

// right takes the same time whatever is wrong, and wherever.
func (g *gate) right(user, password string) bool {
	return subtle.ConstantTimeCompare(g.hash(user), g.user)&subtle.ConstantTimeCompare(g.hash(password), g.password) == 1
}

func (g *gate) hash(text string) []byte {
	mac := hmac.New(sha256.New, g.key)
	_, _ = mac.Write([]byte(text)) // a hash never fails
	return mac.Sum(nil)
}

const (
	// maxTries is how many wrong passwords one address may give before it must wait.
	maxTries = 10
	// tryEvery gives one of them back.
	tryEvery = 6 * time.Second
	// maxAddresses bounds the memory; further addresses share one allowance.
	maxAddresses = 4096
)

type verdict int

const (
	admitted verdict = iota
	wrong
	tooMany
)

// tries counts the wrong passwords of each address, as far as they are not forgiven yet.
type tries struct {
	mu        sync.Mutex
	addresses map[netip.Prefix]allowance
	others    allowance // of all addresses beyond maxAddresses
}

// allowance is how many wrong tries weighed on an address at a time.
type allowance struct {
	used float64
	at   time.Time
}

func newTries() *tries { return &tries{addresses: map[netip.Prefix]allowance{}} }

// judge asks right only while the address has a try left. It holds the lock meanwhile: tries side by side count like
// tries one after the other. wait is how long the address has to stay away after tooMany.
func (t *tries) judge(address netip.Prefix, now time.Time, right func() bool) (_ verdict, wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.find(address, now)
	if a.used > maxTries-1 {
		return tooMany, time.Duration((a.used - (maxTries - 1)) * float64(tryEvery))
	}
	if right() {
		// The allowance stays used: behind a proxy a guesser may share the operator's address.
		return admitted, 0
	}
	a.used++
	t.keep(address, a)
	return wrong, 0
}

func (t *tries) find(address netip.Prefix, now time.Time) allowance {
	a, known := t.addresses[address]
	if !known && len(t.addresses) >= maxAddresses {
		t.forget(now)
	}
	if !known && len(t.addresses) >= maxAddresses {
		a = t.others
	}
	return a.after(now)
}

func (t *tries) keep(address netip.Prefix, a allowance) {
	if _, known := t.addresses[address]; known || len(t.addresses) < maxAddresses {
		t.addresses[address] = a
		return
	}
	t.others = a
}

// forget drops the addresses with nothing left to hold against them.
func (t *tries) forget(now time.Time) {
	for address, a := range t.addresses {
		if a.after(now).used == 0 {
			delete(t.addresses, address)
		}
	}
}

func (a allowance) after(now time.Time) allowance {
	forgiven := float64(now.Sub(a.at)) / float64(tryEvery)
	return allowance{used: max(0, a.used-max(0, forgiven)), at: now}
}

// addressOf is the peer's address; of IPv6 its network, because one customer has a whole one. Headers that a proxy may
// have set are not believed: anybody can send them.
func addressOf(r *http.Request) netip.Prefix {
	const networkBits = 64
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Prefix{} // not TCP: all of these share one allowance
	}
	address := peer.Addr().Unmap().WithZone("")
	bits := address.BitLen()
	if address.Is6() {
		bits = networkBits
	}
	prefix, err := address.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return prefix
}
