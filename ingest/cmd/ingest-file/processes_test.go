package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"chargeonce/ingest"
	"chargeonce/ingest/file/filetest"
	"chargeonce/ingest/sourcetest"
	"chargeonce/sql/sqltest"
)

// writeEvents writes a folder of lines, rows and Capture files, n events of customers of their own in all.
func writeEvents(t *testing.T, n int) (folder string) {
	t.Helper()
	folder = t.TempDir()
	writeTo(t, filepath.Join(folder, "a.ndjson"), func(w *bufio.Writer) {
		for i := range n / 2 {
			fmt.Fprintf(w, `{"customer_id":"cus_%d","billing_period":"2026-08","amount_cents":100}`+"\n", i)
		}
	})
	writeTo(t, filepath.Join(folder, "b.csv"), func(w *bufio.Writer) {
		fmt.Fprintln(w, "customer_id,billing_period,amount_cents")
		for i := n / 2; i < n*3/4; i++ {
			fmt.Fprintf(w, "cus_%d,2026-08,100\n", i)
		}
	})
	const each = 50
	for i := n * 3 / 4; i < n; i += each {
		events := make([]filetest.Event, min(each, n-i))
		for j := range events {
			events[j] = filetest.Event{SequenceNumber: int64(j), Enqueued: time.Now(), Body: fmt.Appendf(nil, `{"customer_id":"cus_%d","billing_period":"2026-08","amount_cents":100}`, i+j)}
		}
		content, err := filetest.Capture("null", each, events...)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(folder, fmt.Sprintf("c%07d.avro", i)), content, 0o600))
	}
	return folder
}

func writeTo(t *testing.T, path string, write func(w *bufio.Writer)) {
	t.Helper()
	out, err := os.Create(path) //nolint:gosec // in the test's own folder
	require.NoError(t, err)
	defer func() { require.NoError(t, out.Close()) }()
	w := bufio.NewWriterSize(out, 1<<20)
	write(w)
	require.NoError(t, w.Flush())
}

// awaitAtLeast polls until the query gives n or more.
func awaitAtLeast(t *testing.T, owner *pgxpool.Pool, n int64, query string) {
	t.Helper()
	var got int64
	require.Eventually(t, func() bool {
		err := owner.QueryRow(t.Context(), query).Scan(&got)
		return err == nil && got >= n
	}, patience, beat, "%s must give %d", query, n)
}

const countIntents = "SELECT count(*) FROM billing.intents"

func summaryOf(t *testing.T, p *program) (s summary) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(p.stdout.String()), &s), "%s", p.stdout)
	return s
}

// TestKilledImportRunAgainRecordsEachEventOnce kills the program where it stands, twice, and lets it finish.
func TestKilledImportRunAgainRecordsEachEventOnce(t *testing.T) {
	t.Parallel()
	const events = 60_000
	db := sqltest.New(t)
	owner := db.Pool(t, "")
	folder := writeEvents(t, events)
	for _, at := range []int64{4_000, 25_000} {
		p := command(t, db.URL, folder).start(t)
		awaitAtLeast(t, owner, at, countIntents)
		p.signal(t, syscall.SIGKILL)
		require.Empty(t, p.stdout.String())
	}
	var before int64
	require.NoError(t, owner.QueryRow(t.Context(), countIntents).Scan(&before))
	require.Less(t, before, int64(events), "it must have been killed before its end")

	last := command(t, db.URL, "--json", folder).start(t)
	require.Zero(t, last.exit(t))
	s := summaryOf(t, last)
	require.EqualValues(t, events, s.Objects)
	require.Equal(t, events-before, s.NewIntents)
	require.Equal(t, before, s.Redeliveries)
	require.Zero(t, s.Duplicates)
	awaitAtLeast(t, owner, events, countIntents)
	awaitAtLeast(t, owner, events, "SELECT count(DISTINCT customer_id) FROM billing.intents")
	counters := sourcetest.Counters(t, owner)
	require.EqualValues(t, events, counters.Intents)
	require.Zero(t, counters.Duplicates)

	again := command(t, db.URL, "--json", folder).start(t)
	require.Zero(t, again.exit(t))
	s = summaryOf(t, again)
	require.True(t, s.NothingNew)
	require.EqualValues(t, events, s.Redeliveries)
}

// TestInterruptedImportSaysHowToGoOn stops the program with Ctrl-C's signal: the batch in hand is finished, what was recorded is told,
// and a script does not take the files for imported.
func TestInterruptedImportSaysHowToGoOn(t *testing.T) {
	t.Parallel()
	const events = 200_000
	db := sqltest.New(t)
	owner := db.Pool(t, "")
	folder := writeEvents(t, events)
	for _, flags := range [][]string{{"--json"}, {}} {
		var before int64
		require.NoError(t, owner.QueryRow(t.Context(), countIntents).Scan(&before))
		p := command(t, db.URL, append(flags, folder)...).start(t)
		awaitAtLeast(t, owner, before+3_000, countIntents)
		p.signal(t, syscall.SIGINT)
		require.Equal(t, 1, p.ProcessState.ExitCode(), p.stderr)
		var after int64
		require.NoError(t, owner.QueryRow(t.Context(), countIntents).Scan(&after))
		require.Less(t, after, int64(events))
		if len(flags) > 0 {
			s := summaryOf(t, p)
			require.False(t, s.Complete)
			require.True(t, s.Stopped)
			require.Equal(t, after-before, s.NewIntents)
			continue
		}
		require.Contains(t, p.stdout.String(), fmt.Sprintf("%d  new intents", after-before))
		require.Regexp(t, `^stopped behind `+folder+`/[ab]\.(ndjson|csv):[0-9]+/0: run the same command again to go on, what is recorded counts as already recorded$`,
			lastLine(p.stdout.String()))
	}
}

// TestStoppedWhileTheDatabaseIsAwayEndsAllTheSame: the grace is all that a batch in hand gets.
func TestStoppedWhileTheDatabaseIsAwayEndsAllTheSame(t *testing.T) {
	t.Parallel()
	db := sqltest.New(t)
	url, proxy := sourcetest.Through(t, db.URL)
	folder := writeEvents(t, 100_000)
	p := command(t, url, "--stop-grace=1s", "--log-format=json", folder).start(t)
	awaitAtLeast(t, db.Pool(t, ""), 2_000, countIntents)
	proxy.Cut()
	require.Eventually(t, func() bool { return proxy.Refused() > 0 }, patience, beat)
	p.signal(t, syscall.SIGTERM)
	require.Equal(t, 1, p.ProcessState.ExitCode())
	require.Contains(t, p.stdout.String(), "new intents")
	require.Regexp(t, "the batch in hand could not be recorded.*run the same command again", lastLine(p.stderr.String()))
}

// TestPipesAreReadOnce: what a shell gives for <(zcat events.gz) can be opened once alone.
func TestPipesAreReadOnce(t *testing.T) {
	t.Parallel()
	db := sqltest.New(t)
	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	written := make(chan error, 1)
	go func() {
		out, err := os.OpenFile(fifo, os.O_WRONLY, 0) //nolint:gosec // in the test's own folder
		if err == nil {
			_, err = fmt.Fprintf(out, "customer_id,billing_period,amount_cents\ncus_a,2026-08,5\ncus_b,2026-08,5\n")
			err = errors.Join(err, out.Close())
		}
		written <- err
	}()
	p := command(t, db.URL, "--json", "--format=csv", fifo).start(t)
	require.Zero(t, p.exit(t))
	require.NoError(t, <-written)
	require.EqualValues(t, 2, summaryOf(t, p).NewIntents)
}

// TestDryRunOfRealFilesIsWhatTheImportThenSays holds the whole summaries against each other, with half of the files recorded before.
func TestDryRunOfRealFilesIsWhatTheImportThenSays(t *testing.T) {
	t.Parallel()
	db := sqltest.New(t)
	owner := db.Pool(t, "")
	folder := writeEvents(t, 4_000)
	require.Zero(t, command(t, db.URL, filepath.Join(folder, "b.csv")).start(t).exit(t))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "z.ndjson"), []byte(`{"customer_id":"cus_1","billing_period":"2026-08","amount_cents":5}
oops
{"customer_id":"cus_2","billing_period":"2026-08","amount_cents":100}
`), 0o600))
	tables := func() string {
		var all string
		require.NoError(t, owner.QueryRow(t.Context(), `SELECT string_agg(relname || ' ' || n, ', ' ORDER BY relname) FROM (
			SELECT relname, (xpath('/row/n/text()', query_to_xml(format('SELECT count(*) AS n FROM %I.%I', schemaname, relname), false, true, '')))[1]::text AS n
			FROM pg_stat_user_tables) AS t`).Scan(&all))
		return all
	}
	before := tables()
	require.Contains(t, before, "intents 1000")
	dry := command(t, db.URL, "--dry-run", "--json", folder).start(t)
	require.Equal(t, 1, dry.exit(t))
	require.Equal(t, before, tables(), "a dry run adds no row anywhere")
	actual := command(t, db.URL, "--json", folder).start(t)
	require.Equal(t, 1, actual.exit(t))
	foretold, recorded := summaryOf(t, dry), summaryOf(t, actual)
	require.True(t, foretold.DryRun)
	foretold.DryRun = false
	require.Equal(t, recorded, foretold)
	require.Equal(t, ingest.Counts{Intents: 3_000, Duplicates: 1, Redeliveries: 1_000, Conflicts: 1, Quarantined: 1},
		ingest.Counts{Intents: recorded.NewIntents, Duplicates: recorded.Duplicates, Redeliveries: recorded.Redeliveries, Conflicts: recorded.Conflicts, Quarantined: recorded.Quarantined})
}
