package ingest_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"chargeonce/ingest"
	"chargeonce/ingest/sourcetest"
	"chargeonce/sql"
	"chargeonce/sql/sqltest"
)

// TestPreviewSaysWhatRecordingThenSays draws a log, records a part of it under this or another source, foretells the whole in batches of
// its own, sees that nothing was written, and then records it: counts and every object's result must be the foretold ones.
func TestPreviewSaysWhatRecordingThenSays(t *testing.T) {
	t.Parallel()
	db := sqltest.New(t)
	b := newBundle(t, db.Pool(t, sql.RoleIngest), db.Pool(t, ""))
	other := newRecorder(t, db.Pool(t, sql.RoleIngest), b.logs, ingest.Config{Source: "other"})
	require.NoError(t, other.Register(t.Context()))
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		log := drawLog(rt, run)
		for range rapid.IntRange(0, 3).Draw(rt, "recorded before") {
			from := rapid.IntRange(0, len(log)-1).Draw(rt, "from")
			to := rapid.IntRange(from, len(log)).Draw(rt, "to")
			recorder := rapid.SampledFrom([]*ingest.Recorder{b.Recorder, other}).Draw(rt, "by")
			_, err := recorder.Record(t.Context(), log[from:to], nil)
			require.NoError(rt, err)
		}
		log = append(log, rapid.SliceOfN(rapid.SampledFrom(log), 0, 5).Draw(rt, "again")...)

		before := contents(t, b.owner)
		preview := b.NewPreview(0)
		foretold, foretoldEach := inBatches(rt, log, preview.RecordEach)
		require.Equal(rt, before, contents(t, b.owner), "a preview writes nothing")
		recorded, recordedEach := inBatches(rt, log, b.RecordEach)
		require.Equal(rt, recorded, foretold)
		require.Equal(rt, recordedEach, foretoldEach)
	})
}

type recordEach func(context.Context, []ingest.Delivery, ingest.InTx, func(ingest.ObjectResult)) (ingest.Counts, error)

func inBatches(rt *rapid.T, log []ingest.Delivery, record recordEach) (total ingest.Counts, each []string) {
	for from := 0; from < len(log); {
		to := min(len(log), from+rapid.IntRange(1, 12).Draw(rt, "batch"))
		counts, err := record(context.Background(), log[from:to], nil, func(o ingest.ObjectResult) {
			code := ""
			if o.Fault != nil {
				code = string(o.Fault.Code)
			}
			each = append(each, fmt.Sprint(o.Position, o.Result, o.Event, code))
		})
		require.NoError(rt, err)
		total = plus(total, counts)
		from = to
	}
	require.Len(rt, each, int(total.Objects()))
	return total, each
}

// contents is a hash of every row of every table of ours.
func contents(t *testing.T, owner *pgxpool.Pool) map[string]string {
	t.Helper()
	rows, err := owner.Query(t.Context(), "SELECT relname::text FROM pg_stat_user_tables WHERE schemaname IN ('billing', 'river')")
	require.NoError(t, err)
	defer rows.Close()
	var tables []string
	for rows.Next() {
		var table string
		require.NoError(t, rows.Scan(&table))
		tables = append(tables, table)
	}
	require.NoError(t, rows.Err())
	require.Contains(t, tables, "source_counters")
	all := map[string]string{}
	for _, table := range tables {
		var text string
		schema := "billing."
		if len(table) > 5 && table[:5] == "river" {
			schema = "river."
		}
		require.NoError(t, owner.QueryRow(t.Context(), "SELECT md5(coalesce(string_agg(r::text, '' ORDER BY r::text), '')) FROM "+schema+table+" r").Scan(&text))
		all[table] = text
	}
	return all
}

func TestPreviewRegistersNothingAndAgreesLikeRegister(t *testing.T) {
	t.Parallel()
	db := sqltest.New(t)
	pool, owner := db.Pool(t, sql.RoleIngest), db.Pool(t, "")
	recorder := newRecorder(t, pool, t.Output(), ingest.Config{})
	before := contents(t, owner)
	require.NoError(t, recorder.NewPreview(0).CheckRegistered(t.Context()), "a namespace that nobody registered is fine")
	require.Equal(t, before, contents(t, owner))
	require.NoError(t, recorder.Register(t.Context()))
	require.NoError(t, recorder.NewPreview(0).CheckRegistered(t.Context()))
	require.NoError(t, newRecorder(t, pool, t.Output(), ingest.Config{Source: "new"}).NewPreview(0).CheckRegistered(t.Context()), "a new source is fine")
	for title, cfg := range map[string]ingest.Config{
		"period format": {PeriodFormat: "day"}, "many per customer": {ManyPerStripeCustomer: true}, "mapping": {Mapping: map[string]string{"customer_id": "/id"}},
	} {
		other := newRecorder(t, pool, t.Output(), cfg)
		foretold := other.NewPreview(0).CheckRegistered(t.Context())
		require.ErrorIs(t, foretold, ingest.ErrDisagreement, title)
		require.EqualError(t, foretold, other.Register(t.Context()).Error(), title)
	}
}

func TestPreviewThatMayRememberNoMoreSaysSo(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.record(t, at("1", body("a", 1)), at("2", body("b", 1)))
	preview := b.NewPreview(2)
	known := []ingest.Delivery{at("3", body("a", 1)), at("4", body("b", 1)), at("5", body("c", 1)), at("6", body("d", 1)), at("7", body("d", 1))}
	counts, err := preview.RecordEach(t.Context(), known, nil, nil)
	require.NoError(t, err, "what the database knows need not be remembered")
	require.Equal(t, ingest.Counts{Intents: 2, Duplicates: 3}, counts)
	_, err = preview.RecordEach(t.Context(), []ingest.Delivery{at("8", body("e", 1))}, nil, nil)
	require.ErrorIs(t, err, ingest.ErrPreviewFull)
}

// A rehearsal waits for its database as the import would, and ends when it is told to.
func TestPreviewWaitsWhileTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.record(t, at("1", body("a", 1)))
	url, proxy := sourcetest.Through(t, b.owner.Config().ConnString())
	pool, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	preview := newRecorder(t, pool, b.logs, ingest.Config{}).NewPreview(0)
	log := []ingest.Delivery{at("2", body("a", 1)), at("3", body("b", 1))}

	proxy.Cut()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := preview.RecordEach(ctx, log, nil, nil)
		ended <- err
	}()
	awaitRefusals := func(n int) {
		before := proxy.Refused()
		require.Eventually(t, func() bool { return proxy.Refused() >= before+n }, 30*time.Second, 10*time.Millisecond)
	}
	awaitRefusals(2)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)

	var counts ingest.Counts
	go func() {
		var err error
		counts, err = preview.RecordEach(t.Context(), log, nil, nil)
		ended <- err
	}()
	awaitRefusals(2)
	proxy.Mend()
	require.NoError(t, <-ended)
	require.Equal(t, ingest.Counts{Intents: 1, Duplicates: 1}, counts, "what a failed try saw is not remembered")
}

// What a program tells of a batch that was committed in parts must be what was committed.
func TestEachObjectIsToldOnceItIsCommitted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var told []ingest.ObjectResult
	counts, err := b.RecordEach(t.Context(), []ingest.Delivery{at("1", body("a", 1)+"\n{\n"+body("a", 2)), at("2", body("a", 1))}, nil, func(o ingest.ObjectResult) {
		told = append(told, o)
	})
	require.NoError(t, err)
	require.Equal(t, ingest.Counts{Intents: 1, Duplicates: 1, Conflicts: 1, Quarantined: 1}, counts)
	require.Len(t, told, 4)
	require.Equal(t, []ingest.Result{ingest.ResultIntent, ingest.ResultQuarantined, ingest.ResultConflict, ingest.ResultDuplicate},
		[]ingest.Result{told[0].Result, told[1].Result, told[2].Result, told[3].Result})
	require.Equal(t, []string{"1/0", "1/1", "1/2", "2/0"}, []string{told[0].Position, told[1].Position, told[2].Position, told[3].Position})
	require.Equal(t, int64(2), told[2].Event.AmountCents)
	require.EqualValues(t, "not_json", told[1].Fault.Code)
}
