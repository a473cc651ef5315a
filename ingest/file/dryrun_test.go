package file_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"chargeonce/ingest"
	"chargeonce/ingest/file"
	"chargeonce/ingest/file/filetest"
	"chargeonce/sql"
	"chargeonce/sql/sqltest"
)

// TestDryRunForetellsTheImport draws files of every format, with duplicates, conflicts, bad objects and breaks, records some of them
// before, and holds the whole report of a dry run against that of the import that follows.
func TestDryRunForetellsTheImport(t *testing.T) {
	t.Parallel()
	db := sqltest.New(t)
	pool, owner := db.Pool(t, sql.RoleIngest), db.Pool(t, "")
	recorderOf := func(source string) *ingest.Recorder {
		r, err := ingest.NewRecorder(ingest.Config{Namespace: "usage", Source: source}, pool, nil, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		require.NoError(t, r.Register(t.Context()))
		return r
	}
	recorder, other := recorderOf(file.SourceName), recorderOf("other")
	root, run := t.TempDir(), 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		folder := filepath.Join(root, fmt.Sprint(run))
		require.NoError(rt, os.Mkdir(folder, 0o700))
		files := rapid.IntRange(1, 4).Draw(rt, "files")
		var paths []string
		for i := range files {
			name, content := drawFile(rt, run, i)
			path := filepath.Join(folder, name)
			require.NoError(rt, os.WriteFile(path, content, 0o600))
			paths = append(paths, path)
		}
		for range rapid.IntRange(0, 2).Draw(rt, "recorded before") {
			by := rapid.SampledFrom([]*ingest.Recorder{recorder, other}).Draw(rt, "by")
			importTo(t, by, rapid.SampledFrom(paths).Draw(rt, "path"))
		}
		rows := func() (n string) {
			require.NoError(rt, owner.QueryRow(t.Context(), `SELECT concat_ws(' ', (SELECT count(*) FROM billing.intents),
				(SELECT concat_ws(' ', count(*), sum(deliveries)) FROM billing.conflicts), (SELECT concat_ws(' ', count(*), sum(deliveries)) FROM billing.quarantined_events),
				(SELECT sum(intents + duplicates + redeliveries + conflicts + quarantined) FROM billing.source_counters))`).Scan(&n))
			return n
		}
		before := rows()
		foretold := importTo(t, recorder.NewPreview(0), folder)
		require.Equal(rt, before, rows())
		recorded := importTo(t, recorder, folder)
		require.Equal(rt, recorded, foretold)
		require.NotZero(rt, recorded.Files)

		again := importTo(t, recorder, folder)
		require.Zero(rt, again.Counts.Intents, "what is recorded stays recorded")
		require.Equal(rt, recorded.Counts.Objects(), again.Counts.Objects())
		require.Equal(rt, recorded.Unread, again.Unread)
	})
}

// drawFile draws a file whose few customers meet those of other files.
func drawFile(rt *rapid.T, run, number int) (name string, content []byte) {
	n := rapid.IntRange(0, 25).Draw(rt, "events")
	bodies := make([]string, n)
	rows := make([]string, n)
	for i := range n {
		customer, amount := rapid.IntRange(0, 9).Draw(rt, "customer"), rapid.IntRange(0, 2).Draw(rt, "amount")
		currency := rapid.SampledFrom([]string{"usd", "usd", "jpy"}).Draw(rt, "currency")
		bodies[i] = fmt.Sprintf(`{"customer_id":"cus_%d_%d","billing_period":"2026-0%d","amount_cents":%d,"currency":"%s"}`, run, customer, 1+customer%2, amount, currency)
		rows[i] = fmt.Sprintf("cus_%d_%d,2026-0%d,%d,%s", run, customer, 1+customer%2, amount, currency)
		if rapid.IntRange(0, 7).Draw(rt, "bad") == 0 {
			bodies[i] = fmt.Sprintf(`{"customer_id":"cus_%d"}`, customer)
			rows[i] = fmt.Sprintf("cus_%d,2026-08,1.5,usd", customer)
		}
	}
	cut := rapid.IntRange(0, 3).Draw(rt, "cut") == 0
	switch rapid.SampledFrom([]string{"ndjson", "json", "csv", "avro"}).Draw(rt, "format") {
	case "ndjson":
		name, content = "x.ndjson", []byte(strings.Join(bodies, "\n"))
	case "json":
		name, content = "x.json", []byte("["+strings.Join(bodies, ",\n")+"]")
	case "csv":
		name, content = "x.csv", []byte("customer_id,billing_period,amount_cents,currency\n"+strings.Join(rows, "\r\n"))
		cut = false // in a header it would be refused
	case "avro":
		events := make([]filetest.Event, n)
		for i := range events {
			events[i] = filetest.Event{SequenceNumber: int64(i), Body: []byte(bodies[i])}
		}
		var err error
		content, err = filetest.Capture("deflate", 4, events...)
		require.NoError(rt, err)
		name = "x.avro"
	}
	if cut {
		content = content[:len(content)-min(len(content)/2, rapid.IntRange(1, 40).Draw(rt, "bytes cut off"))]
	}
	return fmt.Sprint(number) + name, content
}
