package ingest_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"chargeonce/ingest"
	"chargeonce/sql"
	"chargeonce/sql/sqltest"
)

// transactions counts those that wrote the rows of a table, and the rows of the largest. It holds while no savepoint was used.
func (b *bundle) transactions(t *testing.T, table string) (n, largest int64) {
	t.Helper()
	err := b.owner.QueryRow(t.Context(), "SELECT count(*), max(n) FROM (SELECT count(*) AS n FROM billing."+table+" GROUP BY xmin::text) AS t").Scan(&n, &largest)
	require.NoError(t, err)
	return n, largest
}

// However small its objects are, a batch within the limits must not make a transaction that never ends.
func TestBatchOfMostObjectsIsRecordedInParts(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const deliveries, each = 3, 15_000
	batch := make([]ingest.Delivery, deliveries)
	for d := range batch {
		numbers := make([]string, each)
		for i := range numbers {
			numbers[i] = fmt.Sprint(d*each + i)
		}
		batch[d] = at(fmt.Sprint(d), "["+strings.Join(numbers, ",")+"]")
	}
	var calls int
	var stood int64
	counts, err := b.Record(t.Context(), batch, func(ctx context.Context, tx pgx.Tx) error {
		calls++
		return tx.QueryRow(ctx, "SELECT sum(quarantined)::bigint FROM billing.source_counters").Scan(&stood)
	})
	require.NoError(t, err)
	require.Equal(t, ingest.Counts{Quarantined: deliveries * each}, counts)
	require.Equal(t, counts, b.counters(t))
	require.Equal(t, 1, calls)
	require.EqualValues(t, deliveries*each, stood, "what goes with the batch goes with the last of it")
	n, largest := b.transactions(t, "quarantined_events")
	require.EqualValues(t, 3, n)
	require.LessOrEqual(t, largest, int64(20_000))
	require.Equal(t, ingest.Counts{Redeliveries: deliveries * each}, b.record(t, batch...))
}

// A body of 300 kB that is nothing but empty arrays once stood for 45 GB.
func TestManyEmptyArraysInOneBodyDoNotHoldUpTheirPartition(t *testing.T) {
	t.Parallel()
	b := setup(t)
	text := strings.Repeat("[]\n", 100_000)
	counts := b.record(t, at("1", text), at("2", body("a", 1)))
	require.EqualValues(t, 1, counts.Intents)
	require.LessOrEqual(t, b.number(t, "SELECT sum(octet_length(raw)) FROM billing.quarantined_events"), int64(len(text)))
}

// The bytes of one statement are bounded, for Postgres and for this process.
func TestLargeQuarantinedBodiesAreWrittenInSeveralStatements(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, err := b.owner.Exec(t.Context(), `CREATE TABLE public.statements (bytes bigint);
		GRANT INSERT ON public.statements TO `+sql.RoleIngest+`;
		CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO public.statements SELECT sum(octet_length(raw)) FROM added; RETURN NULL; END $$;
		CREATE TRIGGER note AFTER INSERT ON billing.quarantined_events REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION public.note()`)
	require.NoError(t, err)
	// One delivery may be as large as it likes: here an array of seven broken objects of 1 MB.
	r := newRecorder(t, b.owner, b.logs, ingest.Config{MaxBodyBytes: 8 << 20})
	objects := make([]string, 7)
	for i := range objects {
		objects[i] = fmt.Sprintf(`{"n":%d,"x":"%s"}`, i, strings.Repeat("x", 1_000_000))
	}
	counts, err := r.Record(t.Context(), []ingest.Delivery{at("1", "["+strings.Join(objects, ",")+"]")}, nil)
	require.NoError(t, err)
	require.Equal(t, ingest.Counts{Quarantined: 7}, counts)
	require.EqualValues(t, 2, b.number(t, "SELECT count(*) FROM public.statements"))
	require.LessOrEqual(t, b.number(t, "SELECT max(bytes) FROM public.statements"), int64(4<<20))
}

// A batch that takes longer than the limit, repeated unchanged, would hold up its partition for ever.
func TestBatchThatTakesTooLongGetsMoreTime(t *testing.T) {
	t.Parallel()
	db := sqltest.New(t)
	b := newBundle(t, db.Pool(t, sql.RoleIngest), db.Pool(t, ""))
	_, err := b.owner.Exec(t.Context(), `CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END $$;
		CREATE TRIGGER slow AFTER INSERT ON billing.intents FOR EACH STATEMENT EXECUTE FUNCTION public.slow()`)
	require.NoError(t, err)
	impatient := newRecorder(t, db.Pool(t, sql.RoleIngest), b.logs, ingest.Config{AttemptTimeout: 100 * time.Millisecond})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	counts, err := impatient.Record(ctx, []ingest.Delivery{at("1", body("a", 1))}, nil)
	require.NoError(t, err)
	require.Equal(t, ingest.Counts{Intents: 1}, counts)
	require.Contains(t, b.logs.String(), "recording took too long")
}

// The search for refused objects must progress however many there are.
func TestBatchOfRefusedObjectsOnlyIsQuarantinedInParts(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, err := b.owner.Exec(t.Context(), "ALTER TABLE billing.intents ADD CONSTRAINT no_thirteen CHECK (amount_cents <> 13)")
	require.NoError(t, err)
	const objects = 2000
	var text strings.Builder
	for i := range objects {
		text.WriteString(body(fmt.Sprint(i), 13) + "\n")
	}
	calls := 0
	counts, err := b.Record(t.Context(), []ingest.Delivery{at("1", text.String())}, func(context.Context, pgx.Tx) error {
		calls++
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, ingest.Counts{Quarantined: objects}, counts)
	require.Equal(t, counts, b.counters(t))
	require.Equal(t, 1, calls)
	n, largest := b.transactions(t, "quarantined_events")
	require.EqualValues(t, 4, n)
	require.EqualValues(t, 500, largest)
}
