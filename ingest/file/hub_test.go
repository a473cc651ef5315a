package file_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"chargeonce/ingest"
	"chargeonce/ingest/eventhubs"
	"chargeonce/ingest/eventhubs/eventhubstest"
	"chargeonce/ingest/file"
	"chargeonce/ingest/file/filetest"
	"chargeonce/ingest/sourcetest"
	"chargeonce/sql"
	"chargeonce/sql/sqltest"
)

// TestEventOfTheHubAndOfItsCaptureFileIsOneIntent lets the hub's source record what a hub has, imports the Capture files of the same
// events, and the other way about: whichever comes second, finds duplicates alone, and the same event quarantined once.
func TestEventOfTheHubAndOfItsCaptureFileIsOneIntent(t *testing.T) {
	t.Parallel()
	const events = 40
	hub, err := eventhubstest.Start(eventhubstest.Config{Hubs: []eventhubstest.Hub{{Name: "billing", Partitions: 2}}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, hub.Close()) })
	container := t.TempDir()
	for partition := range 2 {
		captured := make([]filetest.Event, 0, events)
		for i := range events {
			body := fmt.Sprintf(`{"customer_id":"cus_%d_%d","billing_period":"2026-08","amount_cents":100}`, partition, i)
			if i == 7 {
				body = `{"customer_id":"cus_bad"}`
			}
			// In binary mode of CloudEvents, whose attributes must not change what is read of the body.
			properties := map[string]any{"cloudEvents:specversion": "1.0", "cloudEvents:type": "usage"}
			e, err := hub.Publish("billing", fmt.Sprint(partition), []byte(body), properties)
			require.NoError(t, err)
			captured = append(captured, filetest.Event{SequenceNumber: e.SequenceNumber, Offset: e.Offset, Enqueued: e.EnqueuedTime, Properties: properties, Body: []byte(body)})
		}
		content, err := filetest.Capture("null", 10, captured...)
		require.NoError(t, err)
		name := filepath.Join(container, "ns", "billing", fmt.Sprint(partition), "2026", "08", "31", "12", "00", "00.avro")
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o700))
		require.NoError(t, os.WriteFile(name, content, 0o600))
	}
	const good, bad = 2 * (events - 1), 2
	for title, hubFirst := range map[string]bool{"hub first": true, "file first": false} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			db := sqltest.New(t)
			owner := db.Pool(t, "")
			fromHub := func() {
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				source := hubSource(t, db, hub)
				before := sourcetest.Counters(t, owner).Objects()
				go func() { ended <- source.Run(ctx) }()
				require.Eventually(t, func() bool { return sourcetest.Counters(t, owner).Objects()-before == good+bad }, 60*time.Second, 20*time.Millisecond)
				stop()
				require.NoError(t, <-ended)
			}
			fromFiles := func() ingest.Counts {
				return importPaths(t, db, container).Counts
			}
			if hubFirst {
				fromHub()
				require.Equal(t, ingest.Counts{Duplicates: good, Quarantined: bad}, fromFiles())
			} else {
				require.Equal(t, ingest.Counts{Intents: good, Quarantined: bad}, fromFiles())
				fromHub()
			}
			require.Equal(t, ingest.Counts{Intents: good, Duplicates: good, Quarantined: 2 * bad}, sourcetest.Counters(t, owner))
			var intents, quarantined int64
			require.NoError(t, owner.QueryRow(t.Context(), "SELECT (SELECT count(*) FROM billing.intents), (SELECT count(*) FROM billing.quarantined_events)").Scan(&intents, &quarantined))
			require.EqualValues(t, good, intents)
			require.EqualValues(t, 1, quarantined, "the same bytes, the same reason")
		})
	}
}

func hubSource(t *testing.T, db *sqltest.DB, hub *eventhubstest.Server) *eventhubs.Source {
	t.Helper()
	pool, logger := db.Pool(t, sql.RoleIngest), slog.New(slog.DiscardHandler)
	recorder, err := ingest.NewRecorder(ingest.Config{Namespace: "usage", Source: eventhubs.SourceName}, pool, nil, logger)
	require.NoError(t, err)
	require.NoError(t, recorder.Register(t.Context()))
	source, err := eventhubs.New(eventhubs.Config{
		ConnectionString: hub.ConnectionString(""), Hub: "billing", ConsumerGroup: "$Default",
		UpdateInterval: 200 * time.Millisecond, OwnershipExpiry: 3 * time.Second, LookInterval: 300 * time.Millisecond, StoreTimeout: time.Second,
	}, recorder, pool, nil, logger)
	require.NoError(t, err)
	return source
}

// importPaths imports as the program does.
func importPaths(t *testing.T, db *sqltest.DB, paths ...string) *file.Report {
	t.Helper()
	recorder, err := ingest.NewRecorder(ingest.Config{Namespace: "usage", Source: file.SourceName}, db.Pool(t, sql.RoleIngest), nil, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.NoError(t, recorder.Register(t.Context()))
	return importTo(t, recorder, paths...)
}

func importTo(t *testing.T, to file.Recorder, paths ...string) *file.Report {
	t.Helper()
	importer, err := file.New(file.Config{}, to)
	require.NoError(t, err)
	set, err := file.Find(paths, file.Config{})
	require.NoError(t, err)
	report, err := importer.Import(t.Context(), set)
	require.NoError(t, err)
	require.True(t, report.Complete)
	return report
}
