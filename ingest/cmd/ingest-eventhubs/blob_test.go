package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"chargeonce/ingest/eventhubs/azuritetest"
	"chargeonce/ingest/eventhubs/eventhubstest"
	"chargeonce/sql/sqltest"
)

// blobSettings are right ones for checkpoints in Blob Storage.
func blobSettings(hub *eventhubstest.Server, databaseURL string, storage azuritetest.Storage) map[string]string {
	env := settings(hub, databaseURL)
	maps.Copy(env, map[string]string{
		"CHECKPOINT_STORE": "blob", "STORAGE_CONNECTION_STR": storage.ConnectionString, "STORAGE_CONTAINER": storage.Container,
		"EVENTHUB_UPDATE_INTERVAL": "300ms", "EVENTHUB_OWNERSHIP_EXPIRY": "3s", "LOG_FORMAT": "json",
	})
	return env
}

// checkpointOf is the sequence number of partition 0's checkpoint; empty when there is none.
func checkpointOf(ctx context.Context, storage azuritetest.Storage, hub *eventhubstest.Server) (string, error) {
	blobs, err := storage.Blobs(ctx)
	return blobs[hub.Addr()+"/"+hubName+"/$default/checkpoint/0"].Metadata["sequencenumber"], err
}

func awaitCheckpoint(t *testing.T, storage azuritetest.Storage, hub *eventhubstest.Server, want string) {
	t.Helper()
	var got string
	var err error
	require.True(t, waitFor(t.Context(), func() bool {
		got, err = checkpointOf(t.Context(), storage, hub)
		return err == nil && got == want
	}), "checkpoint %q (%v), want %q", got, err, want)
}

func publish(t *testing.T, hub *eventhubstest.Server, from, n int) {
	t.Helper()
	for i := from; i < from+n; i++ {
		body := fmt.Sprintf(`{"customer_id":"cus_%d","billing_period":"2026-08","amount_cents":100}`, i)
		_, err := hub.Publish(hubName, "0", []byte(body), nil)
		require.NoError(t, err)
	}
}

func counted(t *testing.T, owner *pgxpool.Pool, column string) (n int64) {
	t.Helper()
	require.NoError(t, owner.QueryRow(t.Context(), "SELECT coalesce(sum("+column+"), 0)::bigint FROM billing.source_counters").Scan(&n))
	return n
}

// The articles' first failure in its second form: the process is killed between the commit and the checkpoint.
func TestProcessKilledBetweenCommitAndCheckpointReadsAgainAndRecordsOnce(t *testing.T) {
	t.Parallel()
	proxy := azuritetest.Start(t).Through(t)
	hub := startHub(t, eventhubstest.Config{})
	db := sqltest.New(t)
	owner := db.Pool(t, "")
	env := blobSettings(hub, db.URL, proxy.Storage)
	first := start(t, env)
	publish(t, hub, 0, 5)
	awaitCheckpoint(t, proxy.Storage, hub, "4")

	proxy.Fail(func(r *http.Request) azuritetest.Fault {
		return azuritetest.Fault{Hold: azuritetest.IsCheckpointWrite(r, "0")}
	})
	publish(t, hub, 5, 10)
	await(t, owner, 15, "SELECT count(*) FROM billing.intents")
	require.True(t, waitFor(t.Context(), func() bool { return proxy.Met() > 0 }), "the checkpoint is on its way")
	first.signal(t, syscall.SIGKILL)
	proxy.Fail(nil)
	got, err := checkpointOf(t.Context(), proxy.Storage, hub)
	require.NoError(t, err)
	require.Equal(t, "4", got)

	second := start(t, env)
	await(t, owner, 10, "SELECT sum(redeliveries)::bigint FROM billing.source_counters")
	awaitCheckpoint(t, proxy.Storage, hub, "14") // no partition is stuck, though no event follows
	publish(t, hub, 15, 5)
	awaitCheckpoint(t, proxy.Storage, hub, "19")
	await(t, owner, 20, "SELECT count(*) FROM billing.intents")
	require.EqualValues(t, 20, counted(t, owner, "intents"))
	require.EqualValues(t, 10, counted(t, owner, "redeliveries"))
	require.Zero(t, counted(t, owner, "duplicates + conflicts + quarantined"))
	status, body := get(t, "http://"+listenAddress(t, second)+"/readyz")
	require.Equal(t, http.StatusOK, status, body)
	second.signal(t, syscall.SIGTERM)
	require.Zero(t, second.exit(t), second.stderr)
}

func TestProcessToldToEndLeavesItsLastCheckpointInBlob(t *testing.T) {
	t.Parallel()
	storage := *azuritetest.Start(t)
	hub := startHub(t, eventhubstest.Config{})
	db := sqltest.New(t)
	owner := db.Pool(t, "")
	env := blobSettings(hub, db.URL, storage)
	first := start(t, env)
	publish(t, hub, 0, 5)
	awaitCheckpoint(t, storage, hub, "4")
	publish(t, hub, 5, 10)
	await(t, owner, 15, "SELECT count(*) FROM billing.intents")
	first.signal(t, syscall.SIGTERM)
	require.Zero(t, first.exit(t), first.stderr)
	got, err := checkpointOf(t.Context(), storage, hub)
	require.NoError(t, err)
	require.Equal(t, "14", got)

	second := start(t, env)
	publish(t, hub, 15, 5)
	await(t, owner, 20, "SELECT count(*) FROM billing.intents")
	require.Zero(t, counted(t, owner, "redeliveries"), "nothing was read again")
	_, body := get(t, "http://"+listenAddress(t, second)+"/metrics")
	require.Contains(t, body, "ingest_eventhub_checkpoint_write_failures_total 0")
	require.Contains(t, body, "ingest_eventhub_unconfirmed_checkpoints_total 0")
	second.signal(t, syscall.SIGTERM)
	require.Zero(t, second.exit(t), second.stderr)
}

func TestWrongStorageSettingsSayWhichInOneSentence(t *testing.T) {
	t.Parallel()
	storage := *azuritetest.Start(t)
	hub := startHub(t, eventhubstest.Config{})
	db := sqltest.New(t)
	for title, test := range map[string]struct {
		change map[string]string
		want   []string // all in the sentence
	}{
		"unknown store":     {map[string]string{"CHECKPOINT_STORE": "redis"}, []string{"checkpoint-store", "redis"}},
		"container missing": {map[string]string{"STORAGE_CONTAINER": "nothere"}, []string{"STORAGE_CONTAINER", "does not exist", "create it: az storage container create --name nothere"}},
		"forbidden key": {
			map[string]string{"STORAGE_CONNECTION_STR": strings.Replace(storage.ConnectionString, "AccountKey=E", "AccountKey=F", 1)},
			[]string{"STORAGE_CONNECTION_STR", "refuses access", "403 AuthorizationFailure", "copy it anew"},
		},
		"storage not there": {
			map[string]string{"STORAGE_CONNECTION_STR": azuritetest.ConnectionString("http://127.0.0.1:1/devstoreaccount1")},
			[]string{"STORAGE_CONNECTION_STR", "cannot be reached"},
		},
		"expiry too short": {map[string]string{"EVENTHUB_OWNERSHIP_EXPIRY": "2s"}, []string{"--ownership-expiry", "at least 3s with Blob Storage"}},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			env := blobSettings(hub, db.URL, storage)
			maps.Copy(env, test.change)
			p := start(t, env)
			require.Equal(t, 2, p.exit(t), p.stderr)
			said := lastLine(p.stderr.String())
			require.True(t, strings.HasPrefix(said, name+": "), said)
			for _, want := range test.want {
				require.Contains(t, said, want)
			}
			require.NotContains(t, p.stderr.String(), "AccountKey")
		})
	}
}
