package charger

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"chargeonce/charger/stripecharge"
	"chargeonce/charger/stripecharge/stripetest"
	"chargeonce/sql"
	"chargeonce/sql/queries"
)

// TestM21BooksAgreeWhateverPeopleDecide lets four people decide whatever comes into their heads, at once and against each other, while
// two chargers work through declines, time-outs and lost answers; three days pass in between. A decision is done or refused, never
// anything else; at every moment the reservations are what the run has allocated, within its cap; nobody is charged twice, with
// other terms, or behind an intent that says otherwise.
func TestM21BooksAgreeWhateverPeopleDecide(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a test's choices
	b := setup(t, stripetest.Config{Latency: 3 * time.Millisecond, ProcessingFor: 2 * time.Second})
	kinds := []string{"", "", "", "", "_decline_do_not_honor", "_sca", "_nocard", "_processing", "_missing"}
	names := make([]string, 60)
	for i := range names {
		names[i] = fmt.Sprintf("cus_%03d%s", i, kinds[random.IntN(len(kinds))])
	}
	ids := b.intend(t, 1000, "usd", names...)
	b.open(t, "420.00", "usd") // cap 462.00
	b.mishaps(t, random)
	cfg := b.config(t)
	cfg.CallTimeout, cfg.Workers = 500*time.Millisecond, 10
	done := &tally{}
	for round := range 2 {
		var stops []func()
		for n := range 2 {
			charger := cfg
			charger.ID, charger.Registry = fmt.Sprintf("%s-%d-%d", cfg.ID, round, n), nil
			stops = append(stops, start(t, charger))
		}
		b.decideAtOnce(t, random, ids, done)
		for _, stop := range stops {
			stop()
		}
		if round == 0 {
			b.allLater(t, 73*time.Hour)
			b.decideDoubts(t, done)
		}
	}
	t.Logf("done %v, refused %v", done.done, done.refused)
	b.endAll(t, cfg, ids)
	b.requireNothingDenied(t, len(ids))
	b.requireTerms(t)
	b.requireAllocated(t)
	b.requireNoDeadlock(t)
}

// tally counts what was done and what was refused, by kind.
type tally struct {
	mu            sync.Mutex
	done, refused map[string]int
}

// add counts a decision. A refusal is an answer; any other error is not.
func (c *tally) add(kind string, err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.done, c.refused = map[string]int{}, map[string]int{}
	}
	if _, refused := errors.AsType[*RefusedError](err); refused {
		c.refused[kind]++
		return nil
	}
	if err == nil {
		c.done[kind]++
		return nil
	}
	return fmt.Errorf("%s: %w", kind, err)
}

// decideAtOnce lets four people make their decisions, and looks at the books meanwhile.
func (b *bundle) decideAtOnce(t *testing.T, random *rand.Rand, ids []int64, done *tally) {
	t.Helper()
	people, ctx := errgroup.WithContext(t.Context())
	for n := range 4 {
		someone := person{
			Operator: b.person(t), asker: b.asker(t), ingest: b.db.Pool(t, sql.RoleIngest), stripe: b.stripe, ids: ids,
			random: rand.New(rand.NewPCG(random.Uint64(), uint64(n))), //nolint:gosec // a test's choices
		}
		people.Go(func() error {
			for range 120 {
				if err := someone.decide(ctx, done); err != nil {
					return err
				}
			}
			return nil
		})
	}
	ended := make(chan error, 1)
	go func() { ended <- people.Wait() }()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			require.NoError(t, err)
			return
		case <-tick.C:
			b.requireAllocated(t)
			b.stripe.Advance(10 * time.Millisecond)
		}
	}
}

// person decides at random.
type person struct {
	Operator
	asker  *Charger
	ingest *pgxpool.Pool
	stripe *stripetest.Server
	ids    []int64
	random *rand.Rand
}

func (p person) decide(ctx context.Context, done *tally) error {
	id := p.ids[p.random.IntN(len(p.ids))]
	switch p.random.IntN(16) {
	case 0:
		return done.add("void", p.Void(ctx, id))
	case 1, 2:
		return done.add("park", p.Park(ctx, id))
	case 3, 4, 5:
		_, err := p.Unpark(ctx, id)
		return done.add("unpark", err)
	case 6, 7, 8:
		_, err := p.Retry(ctx, id)
		return done.add("retry", err)
	case 9, 10:
		terms := NewTerms{Amount: new(fmt.Sprintf("%d.00", 5+p.random.IntN(10)))}
		if p.random.IntN(2) == 0 {
			terms.StripeCustomer = new(fmt.Sprintf("cus_other_%d", p.random.IntN(40)))
		}
		_, err := p.Correct(ctx, id, terms)
		return done.add("correct", err)
	case 11:
		return p.resolveSome(ctx, done, id)
	case 12:
		return done.add("conflict", p.conflict(ctx, id))
	case 13, 14:
		return p.decideConflict(ctx, done)
	}
	_, err := Runs{Pool: p.Pool}.Resume(ctx, usdRun(), "test", "goes on")
	return done.add("resume", err)
}

// resolveSome names a charge of Stripe's for an intent: mostly its own, sometimes any other.
func (p person) resolveSome(ctx context.Context, done *tally, id int64) error {
	charges := p.stripe.Charges()
	if len(charges) == 0 {
		return nil
	}
	charge := charges[p.random.IntN(len(charges))]
	if p.random.IntN(4) > 0 {
		found, err := queries.New().IntentFindByKey(ctx, p.Pool, charge.Metadata[stripecharge.MetadataIntentKey])
		if err != nil {
			return err
		}
		id = found[0].ID
	}
	_, err := p.asker.ResolveCharged(ctx, p.Operator, id, charge.ID)
	if errors.Is(err, errNoToken) {
		return nil
	}
	return done.add("resolve_charged", err)
}

// conflict is an event with other terms, as an ingestor records it.
func (p person) conflict(ctx context.Context, id int64) error {
	_, err := queries.New().ConflictsInsert(ctx, p.ingest, queries.ConflictsInsertParams{
		Source: "test", IntentIds: []int64{id}, AmountsCents: []int64{500 + 100*p.random.Int64N(10)}, Currencies: []string{"usd"},
		StripeCustomerIds: []string{fmt.Sprintf("cus_conflict_%d", p.random.IntN(40))}, PaymentMethods: []string{""}, Descriptions: []string{""},
		FirstPositions: []string{"x"}, FirstDetails: []string{""},
	})
	return err
}

func (p person) decideConflict(ctx context.Context, done *tally) error {
	open, err := queries.New().ConflictList(ctx, p.Pool, queries.ConflictListParams{MaxRows: 100})
	if err != nil || len(open) == 0 {
		return err
	}
	id := open[p.random.IntN(len(open))].ID
	if p.random.IntN(2) == 0 {
		return done.add("keep", p.Keep(ctx, id))
	}
	_, err = p.Take(ctx, id)
	return done.add("take", err)
}

// allLater moves everything into the past at once, as if this much time had passed while nothing ran.
func (b *bundle) allLater(t *testing.T, d time.Duration) {
	t.Helper()
	b.stripe.Release()
	b.stripe.Advance(d)
	tx, err := b.owner.Begin(t.Context())
	require.NoError(t, err)
	interval := fmt.Sprintf("interval '%d seconds'", int(d.Seconds()))
	for _, statement := range []string{
		`SET LOCAL session_replication_role = replica`,
		`UPDATE billing.charge_requests SET first_sent_at = first_sent_at - ` + interval,
		`UPDATE billing.charge_attempts SET started_at = started_at - ` + interval + `, finished_at = finished_at - ` + interval + `, lease_until = lease_until - ` + interval,
		`UPDATE billing.intents SET lease_until = lease_until - ` + interval,
	} {
		_, err := tx.Exec(t.Context(), statement)
		require.NoError(t, err)
	}
	require.NoError(t, tx.Commit(t.Context()))
}

// decideDoubts says of everything in doubt that it was not charged; where that is wrong it is refused.
func (b *bundle) decideDoubts(t *testing.T, done *tally) {
	t.Helper()
	doubts, err := queries.New().IntentListInDoubt(t.Context(), b.owner, queries.IntentListInDoubtParams{MaxRows: 1000})
	require.NoError(t, err)
	asker := b.asker(t)
	for _, d := range doubts {
		_, err := asker.ResolveNotCharged(t.Context(), b.person(t), d.ID)
		require.NoError(t, done.add("resolve_not_charged", err))
	}
}

// endAll ends the faults and lets the chargers bring to its end what nobody has to decide.
func (b *bundle) endAll(t *testing.T, cfg Config, ids []int64) {
	t.Helper()
	b.stripe.ClearFaults()
	b.stripe.Release()
	_, err := b.runs(t).Resume(t.Context(), usdRun(), "test", "the end")
	require.NoError(t, err)
	cfg.ID, cfg.Registry = cfg.ID+"-last", nil
	stop := start(t, cfg)
	var moving []string
	require.Eventuallyf(t, func() bool {
		b.requireAllocated(t)
		b.stripe.Advance(time.Second)
		if run := b.run(t); run.Status == "paused" { // by a late answer
			_, err := b.runs(t).Resume(t.Context(), usdRun(), "test", run.StatusReason)
			require.NoError(t, err)
		}
		rows, err := b.owner.Query(t.Context(), `
			SELECT format('%s %s/%s %s; job %s %s at %s, %s', i.id, i.status, i.status_reason, i.status_detail, j.id, j.state, j.scheduled_at,
				(SELECT string_agg(format('%s %s %s %s %s', a.id, a.operation, a.result, a.object_id, a.started_at), ', ' ORDER BY a.id)
				 FROM billing.charge_attempts a WHERE a.intent_id = i.id))
			FROM billing.intents i LEFT JOIN river.river_job j ON j.id = i.river_job_id
			WHERE i.id = ANY($1) AND i.status_reason IN ('queued', 'sent', 'no_run', 'run_paused', 'stopped') ORDER BY i.id`, ids)
		require.NoError(t, err)
		moving, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err == nil && len(moving) == 0
	}, patience, 100*time.Millisecond, "not at their end: %v", &moving)
	stop()
}

// requireTerms holds each charged intent against the ledger: its charge, with its terms, and no other one.
func (b *bundle) requireTerms(t *testing.T) {
	t.Helper()
	for _, charge := range b.stripe.Charges() {
		var amount int64
		var customer, status string
		var chargeID *string
		require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT amount_cents, stripe_customer_id, status, charge_id FROM billing.intents WHERE idempotency_key = $1`,
			charge.Metadata[stripecharge.MetadataIntentKey]).Scan(&amount, &customer, &status, &chargeID))
		if status == "charged" {
			require.Equal(t, charge.ID, *chargeID)
			require.Equal(t, charge.Amount, amount)
			require.Equal(t, charge.Customer, customer)
		}
	}
}

// Whatever the story offers is done, and what it does not offer is refused: both ask the same rules.
func TestStoryOffersJustWhatIsAllowed(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 1000, "usd", "cus_pending", "cus_declined_decline_do_not_honor", "cus_doubt", "cus_parked", "cus_charged", "cus_voided", "cus_invalid_missing", "cus_conflict")
	b.open(t, "100.00", "usd")
	b.declined(t, ids[1])
	b.doubt(t, ids[2], true)
	b.doubt(t, ids[3], true)
	require.NoError(t, b.person(t).Park(t.Context(), ids[3]))
	h := byHand(t, b, ids[4])
	c := h.claims(t, ids[4], stripecharge.OpCreate)
	answer, found := h.send(t.Context(), c)
	h.ends(t, c, answer, found)
	require.NoError(t, b.person(t).Void(t.Context(), ids[5]))
	require.NoError(t, b.person(t).Park(t.Context(), ids[6]))
	b.conflict(t, ids[7], 2000, "cus_conflict", "x")
	o, amount := b.person(t), 0
	commands := map[string]func(id int64) error{
		"void": func(id int64) error { return o.Void(t.Context(), id) },
		"park": func(id int64) error { return o.Park(t.Context(), id) },
		"unpark": func(id int64) error {
			_, err := o.Unpark(t.Context(), id)
			return err
		},
		"retry": func(id int64) error {
			_, err := o.Retry(t.Context(), id)
			return err
		},
		"correct": func(id int64) error {
			amount++
			_, err := o.Correct(t.Context(), id, NewTerms{Amount: new(fmt.Sprint(amount))})
			return err
		},
	}
	for _, id := range slices.Concat(ids, ids) { // what is done changes what is allowed next
		for name, command := range commands {
			story, err := ReadStory(t.Context(), o.Pool, id)
			require.NoError(t, err)
			offered := false
			for _, can := range story.Can {
				offered = offered || strings.HasPrefix(can, fmt.Sprintf("charger intents %s %d ", name, id))
			}
			err = command(id)
			_, refused := errors.AsType[*RefusedError](err)
			require.Equal(t, !offered, refused, "%s of an intent that is %s (%s): offered %v, but: %v", name, story.Intent.Status, story.Intent.StatusReason, story.Can, err)
		}
	}
}
