package sql_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"chargeonce/sql"
	"chargeonce/sql/queries"
)

func TestAllocateNeverExceedsTheCap(t *testing.T) {
	t.Parallel()
	const takers, each, cents = 20, 10, 70
	f := newFixture(t)
	run := f.run(t, usualNamespace, "usd", 5_000) // cap 10000: 142 of the 200 wishes
	pool := f.db.Pool(t, sql.RoleCharger)
	var granted atomic.Int64
	group, ctx := errgroup.WithContext(t.Context())
	for range takers {
		group.Go(func() error {
			for range each {
				rows, err := f.q.RunAllocate(ctx, pool, queries.RunAllocateParams{AmountCents: cents, ID: run})
				if err != nil {
					return err
				}
				granted.Add(rows)
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())
	require.Equal(t, int64(142), granted.Load())
	require.Equal(t, int64(142*cents), f.allocated(t, run))
}

func TestTokensOfOneSecondNeverExceedTheBudget(t *testing.T) {
	t.Parallel()
	const takers, perSecond, slotsToSee = 8, 7, 3
	f := newFixture(t)
	pool := f.db.Pool(t, sql.RoleCharger)
	var mu sync.Mutex
	taken := map[int64]int32{}
	group, ctx := errgroup.WithContext(t.Context())
	for taker := range takers {
		group.Go(func() error {
			for {
				slot, got, left, err := takeWithSlot(ctx, f.q, pool, int32(1+taker%3), perSecond)
				if err != nil {
					return err
				}
				mu.Lock()
				taken[slot] += got
				enough := len(taken) >= slotsToSee
				mu.Unlock()
				switch {
				case enough:
					return nil
				case got == 0:
					select {
					case <-ctx.Done():
						return ctx.Err()
					case <-time.After(time.Duration(left * float64(time.Second))):
					}
				}
			}
		})
	}
	require.NoError(t, group.Wait())
	full := 0
	for slot, n := range taken {
		require.LessOrEqual(t, n, int32(perSecond), "second %d", slot)
		if n == perSecond {
			full++
		}
	}
	require.NotZero(t, full, "the budget was used up: %v", taken)
}

// takeWithSlot also returns the second that the tokens belong to, which the row lock keeps until the commit.
func takeWithSlot(ctx context.Context, q *queries.Queries, pool txBeginner, wanted, perSecond int32) (slot int64, got int32, left float64, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		row, err := q.RateTake(ctx, tx, queries.RateTakeParams{Kind: "create", Wanted: wanted, PerSecond: perSecond})
		if err != nil {
			return err
		}
		got, left = row.Granted, row.SecondsLeft
		return tx.QueryRow(ctx, "SELECT slot FROM billing.rate_budgets WHERE kind = 'create'").Scan(&slot)
	})
	return slot, got, left, err
}

type txBeginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// A second's tokens taken at its end and the next second's at its beginning would be two seconds' worth at once.
func TestTokensOfASecondComeATenthAtATime(t *testing.T) {
	t.Parallel()
	const perSecond = 100
	f := newFixture(t)
	pool := f.db.Pool(t, sql.RoleCharger)
	seen, early := map[int64]bool{}, false
	for len(seen) < 3 {
		_, err := f.q.RateTake(t.Context(), pool, queries.RateTakeParams{Kind: "create", Wanted: 1000, PerSecond: perSecond})
		require.NoError(t, err)
		var slot, taken int64
		var into float64
		require.NoError(t, pool.QueryRow(t.Context(), `
			SELECT slot, taken, extract(epoch FROM clock_timestamp())::float8 - slot FROM billing.rate_budgets WHERE kind = 'create'`).Scan(&slot, &taken, &into))
		require.LessOrEqual(t, float64(taken), min(1, into+0.1)*perSecond)
		seen[slot] = true
		early = early || taken < perSecond
	}
	require.True(t, early, "it was looked at in the middle of a second")
}

func TestHalvedBudgetRecoversByAndBy(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pool := f.db.Pool(t, sql.RoleCharger)
	take := func() int64 {
		_, err := f.q.RateTake(t.Context(), pool, queries.RateTakeParams{Kind: "create", Wanted: 1, PerSecond: 20})
		require.NoError(t, err)
		return count(t, f, "SELECT percent FROM billing.rate_budgets WHERE kind = 'create'")
	}
	age := func(by string) {
		mustExec(t, f, "UPDATE billing.rate_budgets SET percent_at = percent_at - $1::text::interval", by)
	}
	shrink := func() { require.NoError(t, f.q.RateShrink(t.Context(), pool, "create")) }

	require.Equal(t, int64(100), take())
	age("2 seconds")
	shrink()
	require.Equal(t, int64(50), take())
	shrink()
	require.Equal(t, int64(50), take(), "many 429s of one second halve it once")
	age("2 seconds")
	shrink()
	require.Equal(t, int64(25), take())
	age("11 seconds")
	require.Equal(t, int64(35), take(), "ten more after ten seconds")
	require.Equal(t, int64(35), take(), "and not more at once")
	for range 7 {
		age("11 seconds")
		take()
	}
	require.Equal(t, int64(100), take(), "the whole pace in the end, and no more")
	for range 10 {
		age("2 seconds")
		shrink()
	}
	require.Equal(t, int64(5), take())
	mustExec(t, f, "UPDATE billing.rate_budgets SET slot = 0")
	row, err := f.q.RateTake(t.Context(), pool, queries.RateTakeParams{Kind: "create", Wanted: 1000, PerSecond: 19})
	require.NoError(t, err)
	require.Equal(t, int32(1), row.Granted, "never nothing at all")
	require.Equal(t, int64(100), count(t, f, "SELECT percent FROM billing.rate_budgets WHERE kind = 'read'"), "look-ups have their own")
}

func TestNegativeWishGivesNoTokensBack(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	row, err := f.q.RateTake(t.Context(), f, queries.RateTakeParams{Kind: "create", Wanted: -5, PerSecond: 20})
	require.NoError(t, err)
	require.Zero(t, row.Granted)
	require.Zero(t, count(t, f, "SELECT taken FROM billing.rate_budgets WHERE kind = 'create'"))
}
