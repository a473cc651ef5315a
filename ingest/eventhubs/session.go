package eventhubs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"

	"chargeonce/sql/queries"
)

// session runs one SDK Processor from its start to its end and reads the partitions it hands out. It returns why it ended.
//
// The order of the end matters: first the readers finish their batches, while the partitions are still owned and their
// checkpoints count; then the Processor stops and closes the partition clients; then the partitions are given up; then the connection.
func (s *Source) session(ctx context.Context, n int) error {
	x, err := s.open(ctx, n)
	if err != nil {
		return err
	}
	defer x.closeClient()

	reading, endReading := context.WithCancelCause(ctx)
	defer endReading(nil)
	x.end = endReading
	recording, endRecording := context.WithCancelCause(context.WithoutCancel(ctx))
	defer endRecording(nil)
	// From the end of reading on, batches in hand have the grace and no more.
	stopTimer := context.AfterFunc(reading, func() {
		timer := time.AfterFunc(s.cfg.StopGrace, func() { endRecording(errors.New("the grace for batches in hand is over")) })
		context.AfterFunc(recording, func() { timer.Stop() })
	})
	defer stopTimer()
	processing, endProcessing := context.WithCancelCause(context.WithoutCancel(ctx))
	defer endProcessing(nil)

	s.setCurrent(x)
	defer s.setCurrent(nil)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := x.processor.Run(processing); err != nil {
			endReading(fmt.Errorf("the processor ended: %w", err))
		} else {
			endReading(errors.New("the processor ended"))
		}
	}()
	var readers, watch sync.WaitGroup
	watch.Go(func() { x.watch(reading) })
	watch.Go(func() { x.lookAround(reading) })
	for {
		client := x.processor.NextPartitionClient(reading)
		if client == nil {
			break // stopping: the SDK's way to say so
		}
		readers.Go(func() { x.read(reading, recording, client) })
	}
	<-reading.Done() // the Processor ends the reading context when it ends by itself
	readers.Wait()
	endProcessing(nil)
	x.awaitEnd(ended)
	watch.Wait()
	if err := x.store.giveUp(context.WithoutCancel(ctx)); err != nil {
		x.logger.WarnContext(ctx, "others must wait for the partitions until their ownership expires", slog.String("error", err.Error()))
	}
	return context.Cause(reading)
}

// session is one Processor and what belongs to it.
type session struct {
	*Source
	client    *azeventhubs.ConsumerClient
	processor *azeventhubs.Processor
	store     *sessionStore
	hub       azeventhubs.EventHubProperties
	owner     string
	end       context.CancelCauseFunc // ends the reading, with the reason

	mu      sync.Mutex
	readers map[string]*reader
	closing sync.Once
}

// propertiesTimeout bounds one read of properties.
const propertiesTimeout = 10 * time.Second

func (s *Source) open(ctx context.Context, n int) (*session, error) {
	records, err := s.recordsInto(ctx)
	if err != nil {
		return nil, err
	}
	x := &session{Source: s, owner: fmt.Sprintf("%s%s%s-%d", s.instance, recordsIntoMark, records, n), readers: map[string]*reader{}}
	if x.client, err = s.client(x.owner, 2); err != nil {
		return nil, err
	}
	x.hub, err = bounded(ctx, propertiesTimeout, func(ctx context.Context) (azeventhubs.EventHubProperties, error) {
		return x.client.GetEventHubProperties(ctx, nil)
	})
	if err != nil {
		x.closeClient()
		return nil, fmt.Errorf("read the properties of hub %s: %w", s.key.hub, err)
	}
	x.store = newSessionStore(x)
	x.processor, err = azeventhubs.NewProcessor(x.client, x.store, &azeventhubs.ProcessorOptions{
		// Greedy takes its share at once; the other strategy takes one partition an interval.
		LoadBalancingStrategy:       azeventhubs.ProcessorStrategyGreedy,
		UpdateInterval:              s.cfg.UpdateInterval,
		PartitionExpirationDuration: s.cfg.OwnershipExpiry,
		// The SDK's default is Latest, which loses what was sent before the first start, and what is sent while an idle
		// partition reconnects.
		StartPositions: azeventhubs.StartPositions{Default: azeventhubs.StartPosition{Earliest: new(true)}},
		// No buffer of a fixed number of events, whatever their size: the readers say how many they want.
		Prefetch: -1,
	})
	if err != nil {
		x.closeClient()
		return nil, fmt.Errorf("make a processor of hub %s: %w", s.key.hub, err)
	}
	return x, nil
}

// closeTimeout bounds the close of a client; nothing is lost when it is exceeded.
const closeTimeout = 5 * time.Second

func (x *session) closeClient() {
	x.closing.Do(func() {
		_, err := bounded(context.Background(), closeTimeout, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, x.client.Close(ctx)
		})
		if err != nil {
			x.logger.Debug("closing the connection", slog.String("error", err.Error()))
		}
	})
}

// awaitEnd waits for the Processor's end. A Processor that hangs in a call is helped by closing its connection.
func (x *session) awaitEnd(ended <-chan struct{}) {
	timer := time.NewTimer(2 * closeTimeout)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
		x.closeClient()
		<-ended
	}
}

func (s *Source) setCurrent(x *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = x
}

// Reasons to replace a Processor that would not notice by itself.
var (
	errStalled    = errors.New("the processor stopped renewing its ownerships")
	errStranded   = errors.New("a partition is owned but was never handed out for reading")
	errPartitions = errors.New("the hub's partitions have changed")
	errRecreated  = errors.New("the hub was created anew")
)

// watch ends the session when the Processor hangs or strands a partition. It waits for nothing but its clock.
func (x *session) watch(ctx context.Context) {
	tick := time.NewTicker(max(x.cfg.UpdateInterval/2, 10*time.Millisecond))
	defer tick.Stop()
	missing := map[string]time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if age := time.Since(x.store.lastSeen()); age > x.cfg.OwnershipExpiry/2 {
				x.end(fmt.Errorf("%w for %s", errStalled, age.Round(time.Millisecond)))
				return
			}
			if p, found := x.stranded(missing, time.Now()); found {
				x.end(fmt.Errorf("%w: %s", errStranded, p))
				return
			}
		}
	}
}

// lookAround ends the session when the hub is no longer the one that the Processor knows.
func (x *session) lookAround(ctx context.Context) {
	for sleep(ctx, x.cfg.LookInterval) {
		if err := x.look(ctx); err != nil {
			x.end(err)
			return
		}
	}
}

// stranded finds an owned partition that has had no reader for too long under this Processor; missing remembers since when. The time
// counts up to the last renewal: the Processor hands nothing out while the store does not take its claims.
func (x *session) stranded(missing map[string]time.Time, now time.Time) (partition string, found bool) {
	owned, known := x.store.ownedPartitions()
	if !known {
		return "", false
	}
	renewed := x.store.renewed()
	x.mu.Lock()
	defer x.mu.Unlock()
	var unread []string
	defer func() { x.noteUnread(unread, now) }()
	for p := range missing {
		if !slices.Contains(owned, p) {
			delete(missing, p)
		}
	}
	for _, p := range owned {
		if x.readers[p] != nil {
			delete(missing, p)
			continue
		}
		unread = append(unread, p)
		since, known := missing[p]
		if !known {
			missing[p] = now
		} else if !found && renewed.Sub(since) > x.cfg.StrandedAfter {
			partition, found = p, true
		}
	}
	return partition, found
}

// look reads the hub's properties and those of the partitions being read. It returns an error only when the session must end.
func (x *session) look(ctx context.Context) error {
	hub, err := bounded(ctx, propertiesTimeout, func(ctx context.Context) (azeventhubs.EventHubProperties, error) {
		return x.client.GetEventHubProperties(ctx, nil)
	})
	if err != nil {
		x.logger.WarnContext(ctx, "the hub's properties cannot be read", slog.String("error", err.Error()))
		return nil
	}
	if err := x.changed(hub); err != nil {
		return err
	}
	for _, r := range x.reading() {
		props, err := x.partitionProperties(ctx, r.partition)
		if err != nil {
			x.logger.WarnContext(ctx, "a partition's properties cannot be read",
				slog.String("partition", r.partition), slog.String("error", err.Error()))
			continue
		}
		r.lastEnqueued.Store(props.LastEnqueuedSequenceNumber)
		x.metrics.lag.WithLabelValues(r.partition).Set(float64(r.lag()))
		ctx, cancel := context.WithTimeoutCause(ctx, x.cfg.StoreTimeout, errTooLong)
		err = queries.New().EventHubLastEnqueuedSet(ctx, x.pool, queries.EventHubLastEnqueuedSetParams{
			LastEnqueuedSeq: props.LastEnqueuedSequenceNumber, EventHubNamespace: x.key.namespace, EventHub: x.key.hub,
			ConsumerGroup: x.key.group, PartitionID: r.partition, HubCreatedAt: x.hub.CreatedOn,
		})
		cancel()
		if err != nil {
			x.logger.WarnContext(ctx, "the last enqueued event cannot be noted",
				slog.String("partition", r.partition), slog.String("error", err.Error()))
		}
	}
	return nil
}

// changed compares with the hub that this session began with. The SDK reads the list of partitions once.
func (x *session) changed(hub azeventhubs.EventHubProperties) error {
	if !hub.CreatedOn.Equal(x.hub.CreatedOn) {
		return fmt.Errorf("%w: at %s, before at %s", errRecreated, hub.CreatedOn, x.hub.CreatedOn)
	}
	before, now := slices.Sorted(slices.Values(x.hub.PartitionIDs)), slices.Sorted(slices.Values(hub.PartitionIDs))
	if !slices.Equal(before, now) {
		return fmt.Errorf("%w: %d before, %d now", errPartitions, len(before), len(now))
	}
	return nil
}

func (x *session) partitionProperties(ctx context.Context, partition string) (azeventhubs.PartitionProperties, error) {
	return bounded(ctx, propertiesTimeout, func(ctx context.Context) (azeventhubs.PartitionProperties, error) {
		return x.client.GetPartitionProperties(ctx, partition, nil)
	})
}

func (x *session) reading() []*reader {
	x.mu.Lock()
	defer x.mu.Unlock()
	all := make([]*reader, 0, len(x.readers))
	for _, r := range x.readers {
		all = append(all, r)
	}
	return all
}

// stuck names a partition that has events to read and has not moved for too long.
func (x *session) stuck(now time.Time) error {
	for _, r := range x.reading() {
		if idle := now.Sub(time.Unix(0, r.progress.Load())); r.lag() > 0 && idle > x.cfg.StuckAfter {
			return fmt.Errorf("partition %s has %d events to read and has not moved for %s", r.partition, r.lag(), idle.Round(time.Second))
		}
	}
	return nil
}
