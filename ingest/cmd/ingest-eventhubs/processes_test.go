package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"chargeonce/ingest/eventhubs/eventhubstest"
	"chargeonce/sql/sqltest"
)

// Of 20,000 events over 4 partitions, every 20th is a producer's duplicate, every 50th has other terms, every 40th is poison.
const (
	events     = 20_000
	partitions = 4
)

// TestEveryEventIsAccountedForWhilePartitionsMove sends 20,000 events with the real producer to two processes of the program that
// come, are killed, come again, and end in good order while they read.
func TestEveryEventIsAccountedForWhilePartitionsMove(t *testing.T) {
	t.Parallel()
	hub := startHub(t, eventhubstest.Config{})
	db := sqltest.New(t)
	owner := db.Pool(t, "")
	env := settings(hub, db.URL)
	env["EVENTHUB_UPDATE_INTERVAL"], env["EVENTHUB_OWNERSHIP_EXPIRY"] = "300ms", "3s"
	env["BATCH_SIZE"], env["PREFETCH"] = "50", "100" // many small batches: more places to be killed at

	first := start(t, env)
	await(t, owner, partitions, "SELECT count(*) FROM billing.eventhub_ownership WHERE owner_id <> ''")
	var sending sync.WaitGroup
	sendErrs := make(chan error, partitions)
	for p := range partitions {
		sending.Go(func() { sendErrs <- send(t.Context(), hub, strconv.Itoa(p)) })
	}
	awaitRead(t, owner, events/10)
	second := start(t, env)
	await(t, owner, 2, "SELECT count(DISTINCT owner_id) FROM billing.eventhub_ownership WHERE owner_id <> ''")
	awaitRead(t, owner, events*3/10)
	first.signal(t, syscall.SIGKILL)
	awaitRead(t, owner, events*4/10)
	third := start(t, env)
	awaitRead(t, owner, events*6/10)
	second.signal(t, syscall.SIGTERM)
	require.Zero(t, second.exit(t), second.stderr.tail(2000))

	sending.Wait()
	for range partitions {
		require.NoError(t, <-sendErrs)
	}
	await(t, owner, events, "SELECT coalesce(sum(sequence_number + 1), 0) FROM billing.eventhub_checkpoints")
	third.signal(t, syscall.SIGTERM)
	require.Zero(t, third.exit(t), third.stderr.tail(2000))
	require.NotContains(t, third.stderr.String(), "panic")
	account(t, owner)
	await(t, owner, 0, "SELECT count(*) FROM billing.eventhub_ownership WHERE owner_id <> ''")
}

// account holds what was recorded against what was sent.
func account(t *testing.T, owner *pgxpool.Pool) {
	t.Helper()
	number := func(query string, args ...any) (n int64) {
		require.NoError(t, owner.QueryRow(t.Context(), query, args...).Scan(&n))
		return n
	}
	customers, duplicates, conflicts, poison := int64(0), int64(0), int64(0), int64(0)
	for i := range events {
		switch kindOf(i) {
		case kindDuplicate:
			duplicates++
		case kindConflict:
			conflicts++
		case kindPoison:
			poison++
		case kindNew:
			customers++
		}
	}
	require.EqualValues(t, events, customers+duplicates+conflicts+poison)
	require.Equal(t, customers, number("SELECT count(*) FROM billing.intents"))
	require.Equal(t, customers, number("SELECT count(DISTINCT customer_id) FROM billing.intents WHERE amount_cents = 100"), "each customer once, with the first terms")
	require.Equal(t, conflicts, number("SELECT count(*) FROM billing.conflicts"))
	require.Equal(t, poison, number("SELECT count(*) FROM billing.quarantined_events"))
	require.Equal(t, customers, number("SELECT sum(intents)::bigint FROM billing.source_counters"))
	total := number("SELECT sum(intents + duplicates + redeliveries + conflicts + quarantined)::bigint FROM billing.source_counters")
	redelivered := total - events
	t.Logf("%d objects recorded for %d events: %d read twice", total, events, redelivered)
	require.GreaterOrEqual(t, redelivered, int64(0), "no event is missing")
	require.LessOrEqual(t, number("SELECT sum(redeliveries)::bigint FROM billing.source_counters"), redelivered, "a redelivery is an event read twice")
	require.GreaterOrEqual(t, number("SELECT sum(duplicates)::bigint FROM billing.source_counters"), duplicates)
	for p := range partitions {
		require.GreaterOrEqual(t, number(`SELECT intents + duplicates + redeliveries + conflicts + quarantined FROM billing.source_counters
			WHERE source_partition = $1`, strconv.Itoa(p)), int64(events/partitions))
	}
}

type kind int

const (
	kindNew kind = iota
	kindDuplicate
	kindConflict
	kindPoison
)

// kindOf the i-th event; partition p has the numbers from p*events/partitions on.
func kindOf(i int) kind {
	switch {
	case i%50 == 49:
		return kindConflict
	case i%40 == 38:
		return kindPoison
	case i%20 == 17:
		return kindDuplicate
	}
	return kindNew
}

func eventOf(i int) string {
	const format = `{"customer_id":"cus_%d","billing_period":"2026-08","amount_cents":%d}`
	switch kindOf(i) {
	case kindPoison:
		return fmt.Sprintf(`{"customer":%d}`, i)
	case kindDuplicate:
		return fmt.Sprintf(format, i-1, 100)
	case kindConflict:
		return fmt.Sprintf(format, i-3, 999)
	case kindNew:
	}
	return fmt.Sprintf(format, i, 100)
}

// send sends one partition's share in order, in small batches, as fast as the hub takes them but not faster than it is read.
func send(ctx context.Context, hub *eventhubstest.Server, partition string) error {
	producer, err := azeventhubs.NewProducerClientFromConnectionString(hub.ConnectionString(hubName), "", nil)
	if err != nil {
		return err
	}
	defer func() { _ = producer.Close(ctx) }() // nothing is in flight
	p, err := strconv.Atoi(partition)
	if err != nil {
		return err
	}
	pace := time.NewTicker(15 * time.Millisecond)
	defer pace.Stop()
	const share, step = events / partitions, 20
	for from := p * share; from < (p+1)*share; from += step {
		batch, err := producer.NewEventDataBatch(ctx, &azeventhubs.EventDataBatchOptions{PartitionID: &partition})
		if err != nil {
			return err
		}
		for i := from; i < from+step; i++ {
			if err := batch.AddEventData(&azeventhubs.EventData{Body: []byte(eventOf(i))}, nil); err != nil {
				return err
			}
		}
		if err := producer.SendEventDataBatch(ctx, batch, nil); err != nil {
			return err
		}
		<-pace.C
	}
	return nil
}

func awaitRead(t *testing.T, owner *pgxpool.Pool, n int64) {
	t.Helper()
	var got int64
	ok := waitFor(t.Context(), func() bool {
		err := owner.QueryRow(t.Context(), "SELECT coalesce(sum(sequence_number + 1), 0) FROM billing.eventhub_checkpoints").Scan(&got)
		return err == nil && got >= n
	})
	require.True(t, ok, "%d events read, want %d", got, n)
}

func TestReadinessAndMetricsTellTheState(t *testing.T) {
	t.Parallel()
	hub := startHub(t, eventhubstest.Config{})
	db := sqltest.New(t)
	_, err := hub.Publish(hubName, "0", []byte(eventOf(0)), nil)
	require.NoError(t, err)
	env := settings(hub, db.URL)
	env["LOG_FORMAT"] = "json"
	p := start(t, env)
	await(t, db.Pool(t, ""), 1, "SELECT count(*) FROM billing.intents")
	address := listenAddress(t, p)
	status, body := get(t, "http://"+address+"/readyz")
	require.Equal(t, http.StatusOK, status, body)
	_, body = get(t, "http://"+address+"/metrics")
	for _, want := range []string{
		`ingest_objects_total{result="intent"} 1`, `ingest_objects_total{result="conflict"} 0`, "ingest_batch_seconds_count 1",
		"ingest_eventhub_last_progress_timestamp_seconds{partition=\"0\"}", `ingest_eventhub_lag_events{partition="0"} 0`,
		"ingest_database_away_seconds 0", "ingest_eventhub_owned_partitions 4",
	} {
		require.Contains(t, body, want)
	}
	p.signal(t, syscall.SIGTERM)
	require.Zero(t, p.exit(t))
}

// A balancer must send nobody to a process that ends, and a scraper must still see its last figures.
func TestProcessThatFinishesItsLastBatchIsNotReady(t *testing.T) {
	t.Parallel()
	hub := startHub(t, eventhubstest.Config{})
	db := sqltest.New(t)
	owner := db.Pool(t, "")
	env := settings(hub, db.URL)
	env["LOG_FORMAT"], env["STOP_GRACE"] = "json", "60s"
	p := start(t, env)
	url := "http://" + listenAddress(t, p)
	await(t, owner, partitions, "SELECT count(*) FROM billing.eventhub_ownership WHERE owner_id <> ''")
	require.True(t, waitFor(t.Context(), func() bool { status, _ := get(t, url+"/readyz"); return status == http.StatusOK }))
	blocker, err := owner.Begin(t.Context())
	require.NoError(t, err)
	_, err = blocker.Exec(t.Context(), "LOCK TABLE billing.intents IN ACCESS EXCLUSIVE MODE")
	require.NoError(t, err)
	_, err = hub.Publish(hubName, "0", []byte(eventOf(0)), nil)
	require.NoError(t, err)
	await(t, owner, 1, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")

	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	require.True(t, waitFor(t.Context(), func() bool {
		status, body := get(t, url+"/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(body, "is ending")
	}))
	status, body := get(t, url+"/metrics")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, "ingest_objects_total")
	require.NoError(t, blocker.Rollback(t.Context()))
	require.Zero(t, p.exit(t), p.stderr)
	await(t, owner, 1, "SELECT count(*) FROM billing.intents")
	await(t, owner, 1, "SELECT count(*) FROM billing.eventhub_checkpoints")
}

// listenAddress reads the address from the log: the port was free, not given.
func listenAddress(t *testing.T, p *program) string {
	t.Helper()
	var address string
	require.True(t, waitFor(t.Context(), func() bool {
		for line := range strings.Lines(p.stderr.String()) {
			var entry struct{ Address string }
			if json.Unmarshal([]byte(line), &entry) == nil && entry.Address != "" {
				address = entry.Address
				return true
			}
		}
		return false
	}))
	return address
}

func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(text)
}
