package ingest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"chargeonce/deploy/localpg"
	"chargeonce/ingest"
	"chargeonce/ingest/sourcetest"
	"chargeonce/schema"
	"chargeonce/sql"
	"chargeonce/sql/sqltest"
)

func TestEveryObjectIsAccountedFor(t *testing.T) {
	t.Parallel()
	b := setup(t)

	counts := b.record(t,
		at("1", body("a", 100)),
		at("2", body("a", 100)),                             // a producer's duplicate in the same batch
		at("3", body("a", 101)),                             // other terms in the same batch
		at("1", body("a", 100)),                             // the broker's redelivery in the same batch
		at("4", "["+body("b", 5)+","+body("c", 0)+",true]"), // three objects, one of them none
		at("5", "not json"),
	)
	require.Equal(t, ingest.Counts{Intents: 3, Duplicates: 1, Redeliveries: 1, Conflicts: 1, Quarantined: 2}, counts)
	require.Equal(t, counts, b.counters(t))

	require.EqualValues(t, 3, b.number(t, "SELECT count(*) FROM billing.intents"))
	require.EqualValues(t, 1, b.number(t, "SELECT count(*) FROM billing.intents WHERE amount_cents = 100 AND source_position = '1/0' AND status = 'pending' AND status_reason = 'no_run'"))
	require.EqualValues(t, 1, b.number(t, "SELECT count(*) FROM billing.intents WHERE amount_cents = 0 AND source_position = '4/1' AND status = 'nothing_due' AND status_reason = 'zero_amount'"))
	require.EqualValues(t, 1, b.number(t, "SELECT count(*) FROM billing.conflicts WHERE amount_cents = 101 AND first_position = '3/0'"))
	require.EqualValues(t, 1, b.number(t, "SELECT count(*) FROM billing.quarantined_events WHERE first_position = '4/2' AND raw = 'true'"))
	require.EqualValues(t, 1, b.number(t, "SELECT count(*) FROM billing.quarantined_events WHERE first_position = '5/0' AND raw = 'not json'"))
}

func TestRedeliveredBatchAddsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	batch := []ingest.Delivery{at("1", body("a", 1)), at("2", body("b", 2)), at("3", body("a", 9)), at("4", "{}")}
	require.Equal(t, ingest.Counts{Intents: 2, Conflicts: 1, Quarantined: 1}, b.record(t, batch...))
	require.Equal(t, ingest.Counts{Redeliveries: 4}, b.record(t, batch...))
	require.EqualValues(t, 1, b.number(t, "SELECT deliveries FROM billing.conflicts"))
	require.EqualValues(t, 1, b.number(t, "SELECT deliveries FROM billing.quarantined_events"))
}

func TestConflictAndQuarantineCountFurtherDeliveries(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.record(t, at("1", body("a", 1)), at("2", body("a", 2)), at("3", "{}"))
	require.Equal(t, ingest.Counts{Conflicts: 2, Quarantined: 1}, b.record(t, at("4", body("a", 2)), at("5", body("a", 2)), at("6", "{}")))
	require.EqualValues(t, 1, b.number(t, "SELECT count(*) FROM billing.conflicts WHERE deliveries = 3 AND first_position = '2/0' AND last_position = '5/0'"))
	require.EqualValues(t, 1, b.number(t, "SELECT count(*) FROM billing.quarantined_events WHERE deliveries = 2 AND first_position = '3/0' AND last_position = '6/0'"))
}

func TestRedeliveryReopensNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.record(t, at("1", body("a", 1)), at("2", body("a", 2)), at("3", "{}"))
	for _, table := range []string{"conflicts", "quarantined_events"} {
		_, err := b.owner.Exec(t.Context(), "UPDATE billing."+table+" SET resolved_at = now(), resolved_by = 'op', resolution = 'kept_first'")
		require.NoError(t, err)
	}
	b.record(t, at("2", body("a", 2)), at("3", "{}"), at("4", body("a", 2)), at("5", "{}"))
	require.EqualValues(t, 1, b.number(t, "SELECT count(*) FROM billing.conflicts WHERE resolved_at IS NOT NULL AND deliveries = 2"))
	require.EqualValues(t, 1, b.number(t, "SELECT count(*) FROM billing.quarantined_events WHERE resolved_at IS NOT NULL AND deliveries = 2"))
}

func TestSameEventOverAnotherBrokerIsADuplicate(t *testing.T) {
	t.Parallel()
	db := sqltest.New(t)
	pool := db.Pool(t, sql.RoleIngest)
	b := newBundle(t, pool, db.Pool(t, ""))
	other := newRecorder(t, pool, b.logs, ingest.Config{Source: "other"})
	require.NoError(t, other.Register(t.Context()))
	b.record(t, at("1", body("a", 1)))
	counts, err := other.Record(t.Context(), []ingest.Delivery{at("1", body("a", 1))}, nil)
	require.NoError(t, err)
	require.Equal(t, ingest.Counts{Duplicates: 1}, counts, "the same position of another source is another position")
}

func TestWritersInOppositeOrderDoNotDeadlock(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for round := range 10 {
		var forward []ingest.Delivery
		for i := range 300 {
			forward = append(forward, at(fmt.Sprintf("%d-%d", round, i), body(fmt.Sprintf("%d-%d", round, i), 1)),
				at(fmt.Sprintf("%d-%d-c", round, i), body(fmt.Sprintf("%d-%d", round, i), 2)),
				at(fmt.Sprintf("%d-%d-q", round, i), fmt.Sprintf(`{"round":%d,"i":%d}`, round, i)))
		}
		// Backward key by key, but within a key in the same order: its first terms come first.
		triples := slices.Collect(slices.Chunk(forward, 3))
		slices.Reverse(triples)
		backward := slices.Concat(triples...)
		var sum sync.WaitGroup
		counts := make([]ingest.Counts, 2)
		errs := make([]error, 2)
		for i, batch := range [][]ingest.Delivery{forward, backward} {
			sum.Go(func() { counts[i], errs[i] = b.Record(t.Context(), batch, nil) })
		}
		sum.Wait()
		require.NoError(t, errors.Join(errs...))
		require.Equal(t, ingest.Counts{Intents: 300, Redeliveries: 900, Conflicts: 300, Quarantined: 300}, plus(counts[0], counts[1]))
	}
	require.NotContains(t, b.logs.String(), "trying again", "no transaction had to be repeated")
}

func TestObjectThatPostgresRefusesLeavesItsNeighbours(t *testing.T) {
	t.Parallel()
	b := setup(t)
	// A rule that this build's parser does not know, as after a rollback of the programs but not of the database.
	_, err := b.owner.Exec(t.Context(), `ALTER TABLE billing.intents ADD CONSTRAINT no_thirteen CHECK (amount_cents % 13 <> 0 OR amount_cents = 0)`)
	require.NoError(t, err)
	var batch []ingest.Delivery
	for i := 1; i <= 200; i++ {
		batch = append(batch, at(fmt.Sprint(i), body(fmt.Sprint(i), i)))
	}
	batch = append(batch, at("first", body("again", 26)), at("second", body("again", 27)))
	counts := b.record(t, batch...)
	require.Equal(t, ingest.Counts{Intents: 200 - 15 + 1, Quarantined: 16}, counts)
	require.EqualValues(t, 16, b.number(t, "SELECT count(*) FROM billing.quarantined_events WHERE reason_code = 'refused_by_database' AND reason LIKE '%no_thirteen%'"))
	require.EqualValues(t, 27, b.number(t, "SELECT amount_cents FROM billing.intents WHERE customer_id = 'cus_again'"), "the second may stand where the first was refused")
	require.Equal(t, ingest.Counts{Redeliveries: 201, Conflicts: 1}, b.record(t, batch...), "the refused one now meets an intent with other terms")
}

func TestBytesThatAreNoTextAreKept(t *testing.T) {
	t.Parallel()
	b := setup(t)
	raw := "\x00\xff\xfe{\x00"
	counts := b.record(t,
		at("1", raw),
		at("2", `{"customer_id":"cus_\u0000","billing_period":"2026-08","amount_cents":1}`),
		at("3", `{"customer_id":"cus_a","billing_period":"2026-08","amount_cents":1,"description":"a\u0000b"}`),
		at("4", ""),
		at("5", body("b", 1)),
		ingest.Delivery{Partition: "p\x00", Position: "6\x00\xff", Body: []byte("{}")},
		ingest.Delivery{Partition: "0", Position: "7", Unreadable: &schema.Fault{Code: "missing_event", Message: "a\x00b"}},
	)
	require.EqualValues(t, 7, counts.Objects())
	require.GreaterOrEqual(t, counts.Quarantined, int64(5))
	var kept []byte
	require.NoError(t, b.owner.QueryRow(t.Context(), "SELECT raw FROM billing.quarantined_events WHERE first_position = '1/0'").Scan(&kept))
	require.Equal(t, raw, string(kept))
}

func TestUnknownCommitIsRepeated(t *testing.T) {
	t.Parallel()
	db := sqltest.New(t)
	lossyURL, p := sourcetest.Through(t, db.As(sql.RoleIngest))
	pool, err := pgxpool.New(t.Context(), lossyURL)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	b := newBundle(t, pool, db.Pool(t, ""))

	p.LoseCommits(1)
	calls := 0
	counts, err := b.Record(t.Context(), []ingest.Delivery{at("1", body("a", 1)), at("2", "{}"), at("3", body("a", 2))},
		func(context.Context, pgx.Tx) error { calls++; return nil })
	require.NoError(t, err)
	require.Equal(t, 1, p.Lost(), "the answer to one commit was lost")
	require.Equal(t, 2, calls)
	require.Equal(t, ingest.Counts{Redeliveries: 3}, counts, "the first try had committed")
	require.EqualValues(t, 1, b.number(t, "SELECT count(*) FROM billing.intents"))
	require.EqualValues(t, 1, b.number(t, "SELECT deliveries FROM billing.conflicts"))
	require.EqualValues(t, 1, b.number(t, "SELECT deliveries FROM billing.quarantined_events"))
}

func TestDatabaseAwayIsWaitedFor(t *testing.T) {
	t.Parallel()
	server, err := localpg.Start(t.Context(), localpg.Config{})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Second)
		defer cancel()
		require.NoError(t, server.Stop(ctx))
	})
	logs := &logBuffer{}
	_, err = sql.Migrate(t.Context(), server.URL(), discard())
	require.NoError(t, err)
	pool, err := pgxpool.New(t.Context(), server.URL()+"&role="+sql.RoleIngest)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	r := newRecorder(t, pool, logs, ingest.Config{})
	require.NoError(t, r.Register(t.Context()))
	_, err = r.Record(t.Context(), []ingest.Delivery{at("1", body("a", 1))}, nil)
	require.NoError(t, err)

	require.NoError(t, server.Kill())
	done := make(chan ingest.Counts, 1)
	go func() {
		counts, err := r.Record(t.Context(), []ingest.Delivery{at("1", body("a", 1)), at("2", body("b", 1))}, nil)
		if err == nil {
			done <- counts
		}
	}()
	require.Eventually(t, func() bool { _, away := r.DatabaseAway(); return away }, 10*time.Second, 10*time.Millisecond)
	require.NoError(t, server.StartAgain(t.Context()))
	select {
	case counts := <-done:
		require.Equal(t, ingest.Counts{Intents: 1, Redeliveries: 1}, counts)
	case <-time.After(30 * time.Second):
		t.Fatal("the batch was not recorded after the database came back")
	}
	_, away := r.DatabaseAway()
	require.False(t, away)
}

func TestStopEndsTheWaitForTheDatabase(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	_, err := b.Record(ctx, []ingest.Delivery{at("1", body("a", 1))}, func(context.Context, pgx.Tx) error {
		cancel(stop)
		return errors.New("no checkpoint")
	})
	require.ErrorIs(t, err, stop)
	require.Zero(t, b.number(t, "SELECT count(*) FROM billing.intents"), "without its checkpoint nothing is committed")
}

func TestAttemptThatHangsIsGivenUpAndRepeated(t *testing.T) {
	t.Parallel()
	db := sqltest.New(t)
	b := newBundle(t, db.Pool(t, sql.RoleIngest), db.Pool(t, ""))
	impatient := newRecorder(t, db.Pool(t, sql.RoleIngest), b.logs, ingest.Config{AttemptTimeout: 200 * time.Millisecond})
	blocker, err := b.owner.Begin(t.Context())
	require.NoError(t, err)
	_, err = blocker.Exec(t.Context(), "LOCK TABLE billing.intents IN ACCESS EXCLUSIVE MODE")
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() {
		_, err := impatient.Record(t.Context(), []ingest.Delivery{at("1", body("a", 1))}, nil)
		done <- err
	}()
	require.Eventually(t, func() bool { return strings.Contains(b.logs.String(), "tries=2") }, 10*time.Second, 10*time.Millisecond)
	require.NoError(t, blocker.Rollback(t.Context()))
	require.NoError(t, <-done)
}

func TestBatchBeyondItsLimitsIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, err := b.Record(t.Context(), make([]ingest.Delivery, ingest.MaxBatchDeliveries+1), nil)
	require.ErrorIs(t, err, ingest.ErrBatchTooLarge)
	big := ingest.Delivery{Body: make([]byte, ingest.MaxBatchBytes)}
	_, err = b.Record(t.Context(), []ingest.Delivery{big, {Body: []byte("x")}}, nil)
	require.ErrorIs(t, err, ingest.ErrBatchTooLarge)

	var sizes []int
	deliveries := append(make([]ingest.Delivery, 2500), big, ingest.Delivery{Body: []byte("x")})
	for batch := range ingest.Batches(deliveries) {
		sizes = append(sizes, len(batch))
		_, err := b.Record(t.Context(), batch, nil)
		require.NoError(t, err)
	}
	require.Equal(t, []int{1000, 1000, 501, 1}, sizes)
}

func TestHugeBatchOfTinyObjectsIsRecorded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var text strings.Builder
	for i := range 5000 {
		text.WriteString(body(fmt.Sprint(i), 1) + "\n")
	}
	require.Equal(t, ingest.Counts{Intents: 5000}, b.record(t, at("1", text.String())))
	require.Equal(t, ingest.Counts{Redeliveries: 5000}, b.record(t, at("1", text.String())))
}

// A table that fills from empty has statistics that say it is empty: a plan made by them reads all of it once per batch.
func TestBatchesReadNoMoreRowsAsTheTablesFill(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const size, rounds = 20, 30
	for round := range rounds {
		var batch []ingest.Delivery
		for i := range size {
			customer := fmt.Sprintf("%d_%d", round, i)
			batch = append(batch, at(customer, body(customer, 1)), at(customer+"c", body(customer, 2)), at(customer+"q", fmt.Sprintf(`{"q":"%s"}`, customer)))
		}
		for range 2 { // the second time everything stands already
			_, err := b.Record(t.Context(), batch, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "SELECT pg_stat_force_next_flush()")
				return err
			})
			require.NoError(t, err)
		}
	}
	for _, table := range []string{"intents", "conflicts", "quarantined_events"} {
		read := b.number(t, "SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables WHERE relname = $1", table)
		require.NotZero(t, read, table)
		require.LessOrEqual(t, read, int64(10*size*rounds), "rows of %s read; with a scan per batch they would be several times as many", table)
	}
}

func TestDisagreementRefusesToStart(t *testing.T) {
	t.Parallel()
	db := sqltest.New(t)
	pool := db.Pool(t, sql.RoleIngest)
	b := newBundle(t, pool, db.Pool(t, ""))
	require.NoError(t, newRecorder(t, pool, b.logs, ingest.Config{}).Register(t.Context()), "the same words again")

	err := newRecorder(t, pool, b.logs, ingest.Config{PeriodFormat: schema.PeriodDay}).Register(t.Context())
	require.ErrorIs(t, err, ingest.ErrDisagreement)
	require.ErrorContains(t, err, `"month"`)
	require.ErrorContains(t, err, `"day"`)

	mapping, err := schema.ParseMapping([]string{"customer_id=/subject"})
	require.NoError(t, err)
	err = newRecorder(t, pool, b.logs, ingest.Config{Mapping: mapping}).Register(t.Context())
	require.ErrorIs(t, err, ingest.ErrDisagreement)
	require.ErrorContains(t, err, `[]`)
	require.ErrorContains(t, err, `customer_id=/subject`)
	require.NoError(t, newRecorder(t, pool, b.logs, ingest.Config{Mapping: mapping, Source: "other"}).Register(t.Context()),
		"another source may have another shape")

	err = newRecorder(t, pool, b.logs, ingest.Config{ManyPerStripeCustomer: true}).Register(t.Context())
	require.ErrorIs(t, err, ingest.ErrDisagreement)
}

func TestSourceNameIsChecked(t *testing.T) {
	t.Parallel()
	_, err := ingest.NewRecorder(ingest.Config{Namespace: namespace, Source: "Event Hubs"}, nil, nil, discard())
	require.ErrorContains(t, err, "source")
}
