package ingest_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"chargeonce/ingest"
	"chargeonce/sql"
	"chargeonce/sql/sqltest"
)

// TestRandomDeliveriesMatchTheModel delivers a random log in random batches, with replays from random earlier places, by one or two
// writers at once, and compares what stands with a model of a few lines.
func TestRandomDeliveriesMatchTheModel(t *testing.T) {
	t.Parallel()
	db := sqltest.New(t)
	b := newBundle(t, db.Pool(t, sql.RoleIngest), db.Pool(t, ""))
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		log := drawLog(rt, run)
		before := b.counters(t)
		var total ingest.Counts
		// A single writer, replaying: what stands is exactly what the log says in its order.
		for from := 0; from < len(log); {
			to := min(len(log), from+rapid.IntRange(1, 12).Draw(rt, "batch"))
			counts, err := b.Record(t.Context(), log[from:to], nil)
			require.NoError(rt, err)
			require.GreaterOrEqual(rt, counts.Objects(), int64(to-from))
			total = plus(total, counts)
			if rapid.IntRange(0, 4).Draw(rt, "replay") == 0 {
				from = max(0, to-rapid.IntRange(0, 20).Draw(rt, "back"))
				to = max(from, to)
				counts, err := b.Record(t.Context(), log[from:to], nil)
				require.NoError(rt, err)
				require.Zero(rt, counts.Intents, "a replay makes no intent")
				total = plus(total, counts)
			}
			from = to
		}
		compare(t, rt, b, run, modelOf(log))
		after := b.counters(t)
		require.Equal(rt, total, minus(after, before), "the durable counters say what the calls said")

		// Two writers at once with the whole log again, one backward: nothing new, whatever meets whom.
		backward := slices.Clone(log)
		slices.Reverse(backward)
		var both sync.WaitGroup
		counts, errs := make([]ingest.Counts, 2), make([]error, 2)
		for i, deliveries := range [][]ingest.Delivery{log, backward} {
			both.Go(func() { counts[i], errs[i] = b.Record(t.Context(), deliveries, nil) })
		}
		both.Wait()
		require.NoError(rt, errors.Join(errs...))
		require.Zero(rt, counts[0].Intents+counts[1].Intents)
		compare(t, rt, b, run, modelOf(log))
	})
}

// TestRandomWritersAtOnceRecordEachKeyOnce lets several writers record overlapping parts of one log at the same time, each in its
// own order. Which terms win is then a matter of luck; that each key stands once, and that every object counts, is not.
func TestRandomWritersAtOnceRecordEachKeyOnce(t *testing.T) {
	t.Parallel()
	db := sqltest.New(t)
	b := newBundle(t, db.Pool(t, sql.RoleIngest), db.Pool(t, ""))
	run := 1_000_000
	rapid.Check(t, func(rt *rapid.T) {
		run++
		log := drawLog(rt, run)
		before := b.counters(t)
		plans := make([][][]ingest.Delivery, 3)
		for w := range plans {
			order := rapid.Permutation(log).Draw(rt, "order")
			plans[w] = slices.Collect(slices.Chunk(order, rapid.IntRange(1, 10).Draw(rt, "batch")))
		}
		var all sync.WaitGroup
		totals, errs := make([]ingest.Counts, len(plans)), make([]error, len(plans))
		for w, plan := range plans {
			all.Go(func() {
				for _, batch := range plan {
					counts, err := b.Record(t.Context(), batch, nil)
					errs[w] = errors.Join(errs[w], err)
					totals[w] = plus(totals[w], counts)
				}
			})
		}
		all.Wait()
		require.NoError(rt, errors.Join(errs...))
		sum := plus(plus(totals[0], totals[1]), totals[2])
		model := modelOf(log)
		require.EqualValues(rt, len(model.intents), sum.Intents)
		require.Equal(rt, 3*model.objects, sum.Objects())
		require.Equal(rt, sum, minus(b.counters(t), before))
		require.EqualValues(rt, len(model.intents), b.number(t, "SELECT count(*) FROM billing.intents WHERE customer_id LIKE $1", pattern(run)))
		require.EqualValues(rt, len(model.conflicts), b.number(t, `SELECT count(*) FROM billing.conflicts c JOIN billing.intents i ON i.id = c.intent_id
			WHERE i.customer_id LIKE $1`, pattern(run)), "whoever wins, as many others do not")
	})
}

// drawLog draws a broker's log: few customers, so that they meet, and every kind of body.
func drawLog(rt *rapid.T, run int) []ingest.Delivery {
	n := rapid.IntRange(1, 40).Draw(rt, "deliveries")
	log := make([]ingest.Delivery, n)
	for i := range log {
		objects := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) string {
			if rapid.IntRange(0, 9).Draw(rt, "poison") == 0 {
				return fmt.Sprintf(`{"run":%d,"poison":%d}`, run, rapid.IntRange(0, 2).Draw(rt, "kind"))
			}
			return body(fmt.Sprintf("%d_%d", run, rapid.IntRange(0, 15).Draw(rt, "customer")), rapid.IntRange(0, 2).Draw(rt, "amount"))
		}), 1, 3).Draw(rt, "objects")
		text := objects[0]
		if len(objects) > 1 {
			text = "[" + strings.Join(objects, ",") + "]"
		}
		log[i] = ingest.Delivery{
			Partition: fmt.Sprint(rapid.IntRange(0, 2).Draw(rt, "partition")), Position: fmt.Sprintf("%d-%d", run, i), Body: []byte(text),
		}
	}
	return log
}

// model is what must stand after a log, read in its order.
type model struct {
	intents   map[string]string // customer and period, to the first event
	conflicts map[string]bool   // other events of a known customer and period
	poison    map[string]bool
	objects   int64
}

func modelOf(log []ingest.Delivery) model {
	m := model{intents: map[string]string{}, conflicts: map[string]bool{}, poison: map[string]bool{}}
	for _, d := range log {
		text := strings.Trim(string(d.Body), "[]")
		for object := range strings.SplitSeq(strings.ReplaceAll(text, "},{", "}\n{"), "\n") {
			m.objects++
			if strings.Contains(object, "poison") {
				m.poison[object] = true
				continue
			}
			customer, _, _ := strings.Cut(object, `,"amount_cents"`)
			first, known := m.intents[customer]
			switch {
			case !known:
				m.intents[customer] = object
			case first != object:
				m.conflicts[object] = true
			}
		}
	}
	return m
}

func compare(t *testing.T, rt *rapid.T, b *bundle, run int, m model) {
	t.Helper()
	rt.Helper()
	rows, err := b.owner.Query(t.Context(), `SELECT customer_id, amount_cents, status FROM billing.intents WHERE customer_id LIKE $1`, pattern(run))
	require.NoError(rt, err)
	defer rows.Close()
	found := 0
	for rows.Next() {
		var customer, status string
		var amount int
		require.NoError(rt, rows.Scan(&customer, &amount, &status))
		found++
		object := body(strings.TrimPrefix(customer, "cus_"), amount)
		key, _, _ := strings.Cut(object, `,"amount_cents"`)
		require.Equal(rt, m.intents[key], object)
		require.Equal(rt, map[bool]string{true: "nothing_due", false: "pending"}[amount == 0], status)
	}
	require.NoError(rt, rows.Err())
	require.Len(rt, m.intents, found)
	require.EqualValues(rt, len(m.conflicts), b.number(t, `SELECT count(*) FROM billing.conflicts c JOIN billing.intents i ON i.id = c.intent_id
		WHERE i.customer_id LIKE $1`, pattern(run)))
	require.EqualValues(rt, len(m.poison), b.number(t, "SELECT count(*) FROM billing.quarantined_events WHERE raw::text LIKE '%' || encode(convert_to($1, 'UTF8'), 'hex') || '%'",
		fmt.Sprintf(`{"run":%d,`, run)))
}

func pattern(run int) string { return fmt.Sprintf(`cus\_%d\_%%`, run) }

func plus(a, b ingest.Counts) ingest.Counts {
	return ingest.Counts{
		Intents: a.Intents + b.Intents, Duplicates: a.Duplicates + b.Duplicates, Redeliveries: a.Redeliveries + b.Redeliveries,
		Conflicts: a.Conflicts + b.Conflicts, Quarantined: a.Quarantined + b.Quarantined,
	}
}

func minus(a, b ingest.Counts) ingest.Counts {
	return ingest.Counts{
		Intents: a.Intents - b.Intents, Duplicates: a.Duplicates - b.Duplicates, Redeliveries: a.Redeliveries - b.Redeliveries,
		Conflicts: a.Conflicts - b.Conflicts, Quarantined: a.Quarantined - b.Quarantined,
	}
}
