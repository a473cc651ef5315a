package eventhubs_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"chargeonce/ingest"
	"chargeonce/ingest/eventhubs"
	"chargeonce/ingest/eventhubs/azuritetest"
)

// blobBundle is a bundle whose checkpoints are in Blob Storage, by way of a proxy that makes faults.
type blobBundle struct {
	*bundle
	storage *azuritetest.Storage
	proxy   *azuritetest.Proxy
}

func setupBlob(t *testing.T, partitions int) *blobBundle {
	t.Helper()
	storage := azuritetest.Start(t)
	return &blobBundle{bundle: setup(t, partitions), storage: storage, proxy: storage.Through(t)}
}

func (b *blobBundle) quickBlob() eventhubs.Config {
	cfg := b.quick()
	cfg.Blob = &eventhubs.BlobConfig{ConnectionString: b.proxy.ConnectionString, Container: b.proxy.Container}
	return cfg
}

func (b *blobBundle) checkpointName(partition string) string {
	return b.hub.Addr() + "/" + hubName + "/$default/checkpoint/" + partition
}

// checkpointIn is a checkpoint's sequence number; -1 when there is none.
func (b *blobBundle) checkpointIn(ctx context.Context, partition string) (int64, error) {
	blobs, err := b.storage.Blobs(ctx)
	if err != nil {
		return 0, err
	}
	blob, found := blobs[b.checkpointName(partition)]
	if !found {
		return -1, nil
	}
	return strconv.ParseInt(blob.Metadata["sequencenumber"], 10, 64)
}

// requireCheckpoint looks at partition 0.
func (b *blobBundle) requireCheckpoint(t *testing.T, want int64) {
	t.Helper()
	got, err := b.checkpointIn(t.Context(), "0")
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func (b *blobBundle) awaitCheckpoint(t *testing.T, want int64, partition string) {
	t.Helper()
	var got int64
	var err error
	require.True(t, waitFor(t.Context(), func() bool {
		got, err = b.checkpointIn(t.Context(), partition)
		return err == nil && got == want
	}), "partition %s: %d (%v), want %d", partition, got, err, want)
}

// owners counts the partitions of each living owner.
func (b *blobBundle) owners(ctx context.Context) map[string]int {
	blobs, err := b.storage.Blobs(ctx)
	if err != nil {
		return nil
	}
	out := map[string]int{}
	for name, blob := range blobs {
		if owner := blob.Metadata["ownerid"]; strings.Contains(name, "/ownership/") && owner != "" {
			out[owner]++
		}
	}
	return out
}

// refusing makes a proxy answer with a status what a condition is true of.
func refusing(status int, code string, condition func(*http.Request) bool) func(*http.Request) azuritetest.Fault {
	return faulty(azuritetest.Fault{Status: status, Code: code}, condition)
}

func faulty(fault azuritetest.Fault, condition func(*http.Request) bool) func(*http.Request) azuritetest.Fault {
	return func(r *http.Request) azuritetest.Fault {
		if condition(r) {
			return fault
		}
		return azuritetest.Fault{}
	}
}

func isCheckpointWrite(r *http.Request) bool { return azuritetest.IsCheckpointWrite(r, "") }

func isClaim(r *http.Request) bool { return azuritetest.IsClaim(r, "") }

// The first of the articles' failures: the storage account is throttled just when the checkpoint is due.
func TestCheckpointWriteRefusedWith503StopsNoReadingAndIsMadeUpFor(t *testing.T) {
	t.Parallel()
	b := setupBlob(t, 1)
	b.publish(t, "0", 0, 5)
	s, _ := b.run(t, b.quickBlob())
	b.awaitCheckpoint(t, 4, "0")
	var refused, mended atomic.Int64
	b.proxy.Fail(refusing(http.StatusServiceUnavailable, "ServerBusy", func(r *http.Request) bool {
		if !isCheckpointWrite(r) || mended.Load() > 0 {
			return false
		}
		refused.Add(1)
		return true
	}))
	for from := 5; from < 20; from += 5 {
		b.publish(t, "0", from, 5)
		b.await(t, int64(from+5), countIntents)
	}
	b.awaitLog(t, "503 ServerBusy")
	b.requireCheckpoint(t, 4)
	mended.Store(1)
	b.awaitCheckpoint(t, 19, "0") // though no event follows
	require.Equal(t, ingest.Counts{Intents: 20}, b.counters(t))
	failures, there := b.metric(t, s, "checkpoint_write_failures_total", "")
	require.True(t, there)
	require.InDelta(t, refused.Load(), failures, 0, "each request is one try: nobody repeats it behind our back")
}

func TestCheckpointWriteThatIsNeverAnsweredHoldsUpNoBatchAndNoEnd(t *testing.T) {
	t.Parallel()
	b := setupBlob(t, 2)
	b.publish(t, "0", 0, 5)
	b.publish(t, "1", 0, 5)
	s, stop := b.run(t, b.quickBlob())
	b.awaitCheckpoint(t, 4, "0")
	b.awaitCheckpoint(t, 4, "1")
	b.proxy.Fail(faulty(azuritetest.Fault{Hold: true}, func(r *http.Request) bool { return azuritetest.IsCheckpointWrite(r, "0") }))
	for from := 5; from < 20; from += 5 {
		b.publish(t, "0", from, 5)
		b.publish(t, "1", from, 5)
		b.await(t, int64(2*from+10), countIntents)
	}
	b.awaitCheckpoint(t, 19, "1")
	require.True(t, waitFor(t.Context(), func() bool { return b.proxy.Met() > 1 }), "it is tried again")
	require.True(t, waitFor(t.Context(), func() bool { return s.Check(t.Context()) == nil }))
	stop()
	require.Contains(t, b.logs.String(), "will be read again")
	require.Empty(t, b.owners(t.Context()), "the partitions were given up all the same")

	b.proxy.Fail(nil)
	b.run(t, b.quickBlob())
	b.await(t, 15, "SELECT sum(redeliveries)::bigint FROM billing.source_counters")
	require.Equal(t, ingest.Counts{Intents: 40, Redeliveries: 15}, b.counters(t))
	b.awaitCheckpoint(t, 19, "0")
}

// The second of the articles' failures: the renewal is throttled while a batch is under way, and somebody else takes the partition.
func TestOwnershipRenewalRefusedWith429WhileABatchIsRecorded(t *testing.T) {
	t.Parallel()
	b := setupBlob(t, 1)
	b.publish(t, "0", 0, 5)
	b.run(t, b.quickBlob())
	b.awaitCheckpoint(t, 4, "0")
	blocker, err := b.owner.Begin(t.Context())
	require.NoError(t, err)
	_, err = blocker.Exec(t.Context(), "LOCK TABLE billing.intents IN ACCESS EXCLUSIVE MODE")
	require.NoError(t, err)
	b.publish(t, "0", 5, 10)
	b.await(t, 1, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
	b.proxy.Fail(refusing(http.StatusTooManyRequests, "TooManyRequests", isClaim))

	second := b.quick()
	second.Blob = &eventhubs.BlobConfig{ConnectionString: b.storage.ConnectionString, Container: b.storage.Container}
	b.run(t, second)
	// It takes the partition over and has the same events in hand.
	b.await(t, 2, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
	b.awaitLog(t, "429 TooManyRequests")
	require.NoError(t, blocker.Rollback(t.Context()))
	b.await(t, 15, countIntents)
	b.proxy.Fail(nil)
	b.publish(t, "0", 15, 5)
	b.await(t, 20, countIntents)
	b.awaitCheckpoint(t, 19, "0")
	got := b.counters(t)
	require.Positive(t, got.Redeliveries, "the batch was read twice")
	got.Redeliveries = 0
	require.Equal(t, ingest.Counts{Intents: 20}, got)
}

func TestStorageAwayForLongerThanOwnershipsLastIsReadThrough(t *testing.T) {
	t.Parallel()
	b := setupBlob(t, 2)
	b.publish(t, "0", 0, 5)
	cfg := b.quickBlob()
	cfg.OwnershipExpiry = 8 * time.Second // half of it is longer than the longest pause between two tries
	s, _ := b.run(t, cfg)
	b.awaitCheckpoint(t, 4, "0")
	b.proxy.Fail(refusing(http.StatusServiceUnavailable, "ServerBusy", func(*http.Request) bool { return true }))
	ownership := b.hub.Addr() + "/billing/$default/ownership/0"
	require.True(t, waitFor(t.Context(), func() bool { return time.Since(b.renewals(t)[ownership]) > cfg.OwnershipExpiry+time.Second }), "older than ownerships get")
	require.Error(t, s.Check(t.Context()), "not ready")
	b.publish(t, "0", 5, 5)
	b.publish(t, "1", 0, 5)
	b.await(t, 15, countIntents) // reading goes on meanwhile
	b.proxy.Fail(nil)
	b.publish(t, "0", 10, 5)
	b.await(t, 20, countIntents)
	b.awaitCheckpoint(t, 14, "0")
	b.awaitCheckpoint(t, 4, "1")
	require.True(t, waitFor(t.Context(), func() bool { return s.Check(t.Context()) == nil }))
	require.Equal(t, ingest.Counts{Intents: 20}, b.counters(t))
}

// The first reader whose renewal is taken again must not conclude from their age that the others are dead: theirs were refused too.
func TestClaimsRefusedForLongerThanOwnershipsLastMoveNoPartition(t *testing.T) {
	t.Parallel()
	b := setupBlob(t, 4)
	cfg := b.quickBlob()
	cfg.OwnershipExpiry = 8 * time.Second // half of it is longer than the longest pause between two tries
	b.run(t, cfg)
	b.run(t, cfg)
	b.awaitShared(t)
	b.proxy.Fail(refusing(http.StatusServiceUnavailable, "ServerBusy", isClaim))
	require.True(t, waitFor(t.Context(), func() bool {
		for _, renewed := range b.renewals(t) {
			if time.Since(renewed) < cfg.OwnershipExpiry+time.Second {
				return false
			}
		}
		return true
	}))
	owners := b.owners(t.Context())
	stolen := b.hub.Counters().Stolen
	b.proxy.Fail(nil)
	b.awaitRenewals(t)
	b.awaitRenewals(t) // whoever took a partition in the first round reads it by now
	require.Equal(t, owners, b.owners(t.Context()))
	require.Equal(t, stolen, b.hub.Counters().Stolen)
}

// awaitShared waits until two readers own half of the partitions each, in the store and at the hub: two that start at once take
// partitions from each other, and it is settled who reads them when two rounds of renewals have moved none.
func (b *blobBundle) awaitShared(t *testing.T) {
	t.Helper()
	require.True(t, waitFor(t.Context(), func() bool {
		before, stolen := b.owners(t.Context()), b.hub.Counters().Stolen
		b.awaitRenewals(t)
		b.awaitRenewals(t)
		halves := slices.Sorted(maps.Values(before))
		return len(halves) == 2 && halves[0] == halves[1] && maps.Equal(before, b.owners(t.Context())) && stolen == b.hub.Counters().Stolen
	}))
}

// awaitRenewals waits until every ownership in the store has been renewed once more.
func (b *blobBundle) awaitRenewals(t *testing.T) {
	t.Helper()
	before, err := b.storage.Blobs(t.Context())
	require.NoError(t, err)
	require.True(t, waitFor(t.Context(), func() bool {
		now, err := b.storage.Blobs(t.Context())
		if err != nil {
			return false
		}
		for name, blob := range before {
			if strings.Contains(name, "/ownership/") && now[name].ETag == blob.ETag {
				return false
			}
		}
		return true
	}))
}

// renewals says when each partition's ownership was last renewed.
func (b *blobBundle) renewals(t *testing.T) map[string]time.Time {
	t.Helper()
	blobs, err := b.storage.Blobs(t.Context())
	require.NoError(t, err)
	out := map[string]time.Time{}
	for name, blob := range blobs {
		if strings.Contains(name, "/ownership/") {
			out[name] = blob.LastModified
		}
	}
	return out
}

func TestTwoIngestorsShareAndHandOverThroughBlob(t *testing.T) {
	t.Parallel()
	b := setupBlob(t, 4)
	for p := range 4 {
		b.publish(t, fmt.Sprint(p), 0, 10)
	}
	_, stop := b.run(t, b.quickBlob())
	b.await(t, 40, countIntents)
	b.run(t, b.quickBlob())
	require.True(t, waitFor(t.Context(), func() bool {
		owners := b.owners(t.Context())
		for _, n := range owners {
			if n != 2 {
				return false
			}
		}
		return len(owners) == 2
	}), "the second steals its half")
	for p := range 4 {
		b.publish(t, fmt.Sprint(p), 10, 10)
	}
	b.await(t, 80, countIntents)
	stop()
	for p := range 4 {
		b.publish(t, fmt.Sprint(p), 20, 10)
	}
	b.await(t, 120, countIntents)
	require.True(t, waitFor(t.Context(), func() bool { return len(b.owners(t.Context())) == 1 }))
	for p := range 4 {
		b.awaitCheckpoint(t, 29, fmt.Sprint(p))
	}
	require.NotContains(t, b.logs.String(), "another database")
	require.EqualValues(t, 120, b.counters(t).Intents)
	require.Zero(t, b.counters(t).Duplicates)
}

func TestGracefulStopLeavesTheLastCheckpointAndNothingIsReadAgain(t *testing.T) {
	t.Parallel()
	b := setupBlob(t, 1)
	b.publish(t, "0", 0, 5)
	_, stop := b.run(t, b.quickBlob())
	b.awaitCheckpoint(t, 4, "0")
	b.publish(t, "0", 5, 15) // sooner than the next checkpoint is due
	b.await(t, 20, sumOfSequences)
	stop()
	b.requireCheckpoint(t, 19)
	require.Empty(t, b.owners(t.Context()), "partitions are given up at the end")
	b.publish(t, "0", 20, 5)
	b.run(t, b.quickBlob())
	b.await(t, 25, countIntents)
	require.Equal(t, ingest.Counts{Intents: 25}, b.counters(t))
}

// An autoscaler finds the checkpoints only under exactly these names, and reads these words.
func TestBlobsAreWhereKEDALooks(t *testing.T) {
	t.Parallel()
	b := setupBlob(t, 2)
	b.publish(t, "0", 0, 10)
	cfg := b.quickBlob()
	cfg.Hub, cfg.ConsumerGroup = "BILLING", "$DEFAULT"
	b.run(t, cfg)
	b.awaitCheckpoint(t, 9, "0")
	blobs, err := b.storage.Blobs(t.Context())
	require.NoError(t, err)
	at := b.hub.Addr() + "/billing/$default/"
	require.Equal(t, map[string]string{"sequencenumber": "9", "offset": b.offset("0", 9)}, blobs[at+"checkpoint/0"].Metadata)
	for name := range blobs {
		require.Contains(t, []string{at + "checkpoint/0", at + "ownership/0", at + "ownership/1"}, name)
	}
}

// A storage account whose clock is minutes off must neither make every owner look dead nor let a dead one live for ever.
func TestStorageClockThatIsOffChangesNoOwner(t *testing.T) {
	t.Parallel()
	azuritetest.Start(t)
	for _, ahead := range []time.Duration{-10 * time.Minute, 10 * time.Minute} {
		t.Run(ahead.String(), func(t *testing.T) {
			t.Parallel()
			b := setupBlob(t, 2)
			b.proxy.SetClock(ahead)
			b.storage.Put(t, b.hub.Addr()+"/billing/$default/ownership/0", map[string]string{"ownerid": "died"})
			b.publish(t, "0", 0, 5)
			b.publish(t, "1", 0, 5)
			b.run(t, b.quickBlob())
			b.await(t, 10, countIntents) // the dead owner's partition too, once it expired
			b.run(t, b.quickBlob())
			require.True(t, waitFor(t.Context(), func() bool { return len(b.owners(t.Context())) == 2 }))
			b.publish(t, "0", 5, 5)
			b.publish(t, "1", 5, 5)
			b.await(t, 20, countIntents)
			require.True(t, waitFor(t.Context(), func() bool { return b.hub.Counters().Stolen > 0 }), "the second took its half")
			stolen := b.hub.Counters().Stolen
			etags := b.ownershipETags(t)
			for range 10 { // renewals
				require.True(t, waitFor(t.Context(), func() bool { return b.ownershipETags(t) != etags }))
				etags = b.ownershipETags(t)
			}
			require.Equal(t, stolen, b.hub.Counters().Stolen)
		})
	}
}

func (b *blobBundle) ownershipETags(t *testing.T) [2]string {
	t.Helper()
	blobs, err := b.storage.Blobs(t.Context())
	require.NoError(t, err)
	at := b.hub.Addr() + "/billing/$default/ownership/"
	return [2]string{blobs[at+"0"].ETag, blobs[at+"1"].ETag}
}

// Two databases behind one container: every partition has an owner, and each database gets a part of the events only.
func TestReadersOfTwoDatabasesOnOneContainerAreToldSo(t *testing.T) {
	t.Parallel()
	ours := setupBlob(t, 2)
	theirs := &blobBundle{bundle: setupOn(t, ours.hub), storage: ours.storage, proxy: ours.proxy}
	one, _ := ours.run(t, ours.quickBlob())
	require.True(t, waitFor(t.Context(), func() bool { return len(ours.owners(t.Context())) == 1 }))
	other, _ := theirs.run(t, theirs.quickBlob())
	ours.awaitLog(t, "record into another database or billing namespace")
	theirs.awaitLog(t, "record into another database or billing namespace")
	for b, s := range map[*blobBundle]*eventhubs.Source{ours: one, theirs: other} {
		require.True(t, waitFor(t.Context(), func() bool {
			n, there := b.metric(t, s, "foreign_partitions", "")
			return there && n == 1
		}))
	}
}
