package charger

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"chargeonce/sql/queries"
)

// Budgets of requests to Stripe: its limits are per account, so all chargers share them through the database.
const (
	rateCreate = "create"
	rateRead   = "read" // look-ups and reads have their own, so that a full run cannot starve a doubt
)

// errNoToken says that no request may be made within the time that a worker waits for one.
var errNoToken = errors.New("no token of the request budget in time")

// rate hands out tokens. Each belongs to one second of the database's clock and lapses with it: a token that slept in a
// stopped process is worth nothing.
type rate struct {
	pool      *pgxpool.Pool
	queries   *queries.Queries
	perSecond int
	maxWait   time.Duration
	stopping  <-chan struct{} // nobody waits for a token any more
	budgets   map[string]*budget
}

// budget is this process's share of the current second.
type budget struct {
	mu      sync.Mutex
	tokens  int
	empty   bool // the database had no more for this second
	lapseAt time.Time
}

func newRate(pool *pgxpool.Pool, q *queries.Queries, perSecond int, maxWait time.Duration, stopping <-chan struct{}) *rate {
	return &rate{
		pool: pool, queries: q, perSecond: perSecond, maxWait: maxWait, stopping: stopping,
		budgets: map[string]*budget{rateCreate: {}, rateRead: {}},
	}
}

// take waits for one token of the kind. It returns errNoToken when there is none in time, or the process is stopping.
func (r *rate) take(ctx context.Context, kind string) error {
	deadline := time.Now().Add(r.maxWait)
	b := r.budgets[kind]
	for {
		pause, err := r.tryTake(ctx, b, kind)
		if err != nil || pause == 0 {
			return err
		}
		if time.Now().Add(pause).After(deadline) {
			return errNoToken
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-r.stopping:
			timer.Stop()
			return errNoToken
		case <-timer.C:
		}
	}
}

// tryTake takes a token (pause 0) or says how long to wait. One goroutine at a time asks the database, for all that wait.
func (r *rate) tryTake(ctx context.Context, b *budget, kind string) (time.Duration, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if now.Before(b.lapseAt) {
		if b.tokens > 0 {
			b.tokens--
			return 0, nil
		}
		if b.empty {
			return b.lapseAt.Sub(now), nil // this second is used up, everywhere
		}
	}
	// A chunk per second and process: small enough that several chargers share a second, large enough that a fast one asks
	// the database only a few times in it.
	wanted := max(1, r.perSecond/10)
	row, err := r.queries.RateTake(ctx, r.pool, queries.RateTakeParams{Kind: kind, Wanted: int32(wanted), PerSecond: int32(r.perSecond)}) //nolint:gosec // at most 100,000, see Config
	if err != nil {
		return 0, fmt.Errorf("take tokens of the %s budget: %w", kind, err)
	}
	left := time.Duration(row.SecondsLeft * float64(time.Second))
	b.lapseAt = now.Add(left)
	b.empty = row.Granted == 0
	if b.empty {
		b.tokens = 0
		return max(left, time.Millisecond), nil
	}
	b.tokens = int(row.Granted) - 1
	return 0, nil
}

// shrink halves the pace of all chargers after a 429.
func (r *rate) shrink(ctx context.Context, kind string) error {
	return r.queries.RateShrink(ctx, r.pool, kind)
}
