package eventhubstest_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"chargeonce/ingest/eventhubs/eventhubstest"
)

const hubName = "billing"

// The one leak that is let pass is the SDK's: ConsumerClient.Close leaves its management link's token renewal waiting.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction(
		"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2/internal.(*Namespace).startNegotiateClaimRenewer.func3"))
}

// quick makes a failing operation give up in well under a second.
var quick = azeventhubs.RetryOptions{MaxRetries: 3, RetryDelay: 5 * time.Millisecond, MaxRetryDelay: 20 * time.Millisecond}

func start(t *testing.T, cfg eventhubstest.Config) *eventhubstest.Server {
	t.Helper()
	if cfg.Hubs == nil {
		cfg.Hubs = []eventhubstest.Hub{{Name: hubName, Partitions: 4}}
	}
	s, err := eventhubstest.Start(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// bounded outlives t.Context, which ends before cleanups run.
func bounded() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 10*time.Second)
}

func producer(t *testing.T, s *eventhubstest.Server) *azeventhubs.ProducerClient {
	t.Helper()
	p, err := azeventhubs.NewProducerClientFromConnectionString(s.ConnectionString(hubName), "",
		&azeventhubs.ProducerClientOptions{RetryOptions: quick})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := bounded()
		defer cancel()
		_ = p.Close(ctx)
	})
	return p
}

func consumer(t *testing.T, s *eventhubstest.Server, group string) *azeventhubs.ConsumerClient {
	t.Helper()
	c, err := azeventhubs.NewConsumerClientFromConnectionString(s.ConnectionString(hubName), "", group,
		&azeventhubs.ConsumerClientOptions{RetryOptions: quick})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := bounded()
		defer cancel()
		_ = c.Close(ctx)
	})
	return c
}

func receiver(t *testing.T, c *azeventhubs.ConsumerClient, partition string, opts azeventhubs.PartitionClientOptions) *azeventhubs.PartitionClient {
	t.Helper()
	pc, err := c.NewPartitionClient(partition, &opts)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := bounded()
		defer cancel()
		_ = pc.Close(ctx)
	})
	return pc
}

func earliest() azeventhubs.PartitionClientOptions {
	return azeventhubs.PartitionClientOptions{StartPosition: azeventhubs.StartPosition{Earliest: new(true)}}
}

func send(t *testing.T, p *azeventhubs.ProducerClient, opts azeventhubs.EventDataBatchOptions, bodies ...string) {
	t.Helper()
	require.NoError(t, trySend(t.Context(), p, opts, bodies...))
}

func trySend(ctx context.Context, p *azeventhubs.ProducerClient, opts azeventhubs.EventDataBatchOptions, bodies ...string) error {
	batch, err := p.NewEventDataBatch(ctx, &opts)
	if err != nil {
		return err
	}
	for _, b := range bodies {
		if err := batch.AddEventData(&azeventhubs.EventData{Body: []byte(b), Properties: map[string]any{"n": int64(1)}}, nil); err != nil {
			return err
		}
	}
	return p.SendEventDataBatch(ctx, batch, nil)
}

func publish(t *testing.T, s *eventhubstest.Server, partition string, n int) {
	t.Helper()
	for i := range n {
		_, err := s.Publish(hubName, partition, []byte("event "+strconv.Itoa(i)), nil)
		require.NoError(t, err)
	}
}

// receive asks for n events within a time that only a broken server exceeds.
func receive(t *testing.T, pc *azeventhubs.PartitionClient, n int) []*azeventhubs.ReceivedEventData {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	events, err := pc.ReceiveEvents(ctx, n, nil)
	require.NoError(t, err)
	return events
}

func sequences(events []*azeventhubs.ReceivedEventData) []int64 {
	out := make([]int64, 0, len(events))
	for _, e := range events {
		out = append(out, e.SequenceNumber)
	}
	return out
}

// memoryStore is a CheckpointStore in memory with the contract of the real ones: refused claims are left out.
type memoryStore struct {
	mu          sync.Mutex
	version     int
	ownership   map[string]azeventhubs.Ownership
	checkpoints map[string]azeventhubs.Checkpoint
}

func newMemoryStore() *memoryStore {
	return &memoryStore{ownership: map[string]azeventhubs.Ownership{}, checkpoints: map[string]azeventhubs.Checkpoint{}}
}

func (m *memoryStore) ClaimOwnership(_ context.Context, claims []azeventhubs.Ownership, _ *azeventhubs.ClaimOwnershipOptions) ([]azeventhubs.Ownership, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var won []azeventhubs.Ownership
	for _, claim := range claims {
		current, exists := m.ownership[claim.PartitionID]
		if exists && (claim.ETag == nil || *claim.ETag != *current.ETag) {
			continue
		}
		m.version++
		claim.ETag = new(azcore.ETag(fmt.Sprint(m.version)))
		claim.LastModifiedTime = time.Now().UTC()
		m.ownership[claim.PartitionID] = claim
		won = append(won, claim)
	}
	return won, nil
}

func (m *memoryStore) ListOwnership(context.Context, string, string, string, *azeventhubs.ListOwnershipOptions) ([]azeventhubs.Ownership, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []azeventhubs.Ownership
	for _, o := range m.ownership {
		out = append(out, o)
	}
	return out, nil
}

func (m *memoryStore) ListCheckpoints(context.Context, string, string, string, *azeventhubs.ListCheckpointsOptions) ([]azeventhubs.Checkpoint, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []azeventhubs.Checkpoint
	for _, c := range m.checkpoints {
		out = append(out, c)
	}
	return out, nil
}

func (m *memoryStore) SetCheckpoint(_ context.Context, c azeventhubs.Checkpoint, _ *azeventhubs.SetCheckpointOptions) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.checkpoints[c.PartitionID] = c
	return nil
}

// owners counts the partitions of each owner.
func (m *memoryStore) owners() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]int{}
	for _, o := range m.ownership {
		out[o.OwnerID]++
	}
	return out
}

// tally records what processors received.
type tally struct {
	mu     sync.Mutex
	bodies map[string]int
	lost   int // ownership losses
}

func newTally() *tally { return &tally{bodies: map[string]int{}} }

func (y *tally) add(events []*azeventhubs.ReceivedEventData) {
	y.mu.Lock()
	defer y.mu.Unlock()
	for _, e := range events {
		y.bodies[string(e.Body)]++
	}
}

func (y *tally) distinct() int {
	y.mu.Lock()
	defer y.mu.Unlock()
	return len(y.bodies)
}

// process runs a Processor until the test ends (or stop is called), feeding the tally and checkpointing each batch.
func process(t *testing.T, s *eventhubstest.Server, store azeventhubs.CheckpointStore, y *tally) (stop func()) {
	t.Helper()
	c := consumer(t, s, "$default")
	p, err := azeventhubs.NewProcessor(c, store, &azeventhubs.ProcessorOptions{
		LoadBalancingStrategy: azeventhubs.ProcessorStrategyGreedy,
		UpdateInterval:        50 * time.Millisecond, PartitionExpirationDuration: 5 * time.Second,
		StartPositions: azeventhubs.StartPositions{Default: azeventhubs.StartPosition{Earliest: new(true)}},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = p.Run(ctx) })
	running.Go(func() {
		for {
			pc := p.NextPartitionClient(ctx)
			if pc == nil {
				return
			}
			running.Go(func() { y.drain(ctx, pc) })
		}
	})
	var once sync.Once
	stop = func() { once.Do(func() { cancel(); running.Wait() }) }
	t.Cleanup(stop)
	return stop
}

func (y *tally) drain(ctx context.Context, pc *azeventhubs.ProcessorPartitionClient) {
	defer func() {
		closing, cancel := bounded()
		defer cancel()
		_ = pc.Close(closing)
	}()
	for {
		events, err := pc.ReceiveEvents(ctx, 1, nil)
		if err != nil {
			y.mu.Lock()
			y.lost++
			y.mu.Unlock()
			return
		}
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		more, _ := pc.ReceiveEvents(short, 500, nil)
		cancel()
		events = append(events, more...)
		y.add(events)
		if err := pc.UpdateCheckpoint(ctx, events[len(events)-1], nil); err != nil {
			return
		}
	}
}
