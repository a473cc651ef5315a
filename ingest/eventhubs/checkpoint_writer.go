package eventhubs

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
)

// checkpointWriter writes one partition's checkpoints to Blob Storage, behind their commits and out of the way of the next batch: a
// storage account that refuses or never answers holds up no recording. Only the latest checkpoint counts, so one that waits is replaced
// by the next. A nil writer writes nothing.
type checkpointWriter struct {
	set     func(context.Context, azeventhubs.Checkpoint) error
	timeout time.Duration // of one try
	metrics *Metrics
	logger  *slog.Logger
	cancel  context.CancelCauseFunc

	next    chan azeventhubs.Checkpoint // holds the one that waits
	ending  chan struct{}               // closed by end
	done    chan struct{}               // closed when nothing is written any more
	closing sync.Once
}

const (
	// checkpointPause is the least time between two writes of one partition: every write is billed, and a storage account that is
	// throttled for checkpoints is throttled for ownerships as well.
	checkpointPause = time.Second
	// flushTimeout bounds the writing of the last checkpoint. Without it its events are read again.
	flushTimeout = 5 * time.Second
)

// startWriter returns nil with Postgres.
func (x *session) startWriter(ctx context.Context, partition string) *checkpointWriter {
	if x.blob == nil {
		return nil
	}
	// It outlives the reading by its last checkpoint.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	w := &checkpointWriter{
		set: x.blob.setCheckpoint, timeout: x.cfg.StoreTimeout, metrics: x.metrics, logger: x.logger.With(slog.String("partition", partition)),
		cancel: cancel, next: make(chan azeventhubs.Checkpoint, 1), ending: make(chan struct{}), done: make(chan struct{}),
	}
	go w.run(ctx)
	return w
}

// put hands over the latest checkpoint. It does not wait, and is for one goroutine, which does not call it after end.
func (w *checkpointWriter) put(c azeventhubs.Checkpoint) {
	if w == nil {
		return
	}
	select {
	case <-w.next: // superseded
	default:
	}
	w.next <- c
}

// Reasons to give up writing.
var (
	errSuperseded = errors.New("the checkpoint is another's now")
	errFlush      = errors.New("the last checkpoint could not be written in time")
)

// end writes the last checkpoint, for at most flushTimeout, or drops it when it is not to be kept: another reader has the partition,
// or the database no longer has what it says.
func (w *checkpointWriter) end(keep bool) {
	if w == nil {
		return
	}
	w.closing.Do(func() {
		if keep {
			timer := time.AfterFunc(flushTimeout, func() { w.cancel(errFlush) })
			defer timer.Stop()
		} else {
			w.cancel(errSuperseded)
		}
		close(w.ending)
		<-w.done
		w.cancel(nil)
	})
}

func (w *checkpointWriter) run(ctx context.Context) {
	defer close(w.done)
	for {
		select {
		case c := <-w.next:
			w.write(ctx, c)
		case <-w.ending:
			select {
			case c := <-w.next:
				w.write(ctx, c)
			default:
			}
			return
		}
		pause := time.NewTimer(checkpointPause)
		select {
		case <-pause.C:
		case <-w.ending:
		}
		pause.Stop()
	}
}

// write repeats until the checkpoint, or a later one, is written, or ctx ends.
func (w *checkpointWriter) write(ctx context.Context, c azeventhubs.Checkpoint) {
	for delay := storeRetryDelay; ; delay = min(2*delay, maxStoreRetryDelay) {
		try, cancel := context.WithTimeoutCause(ctx, w.timeout, errTooLong)
		err := w.set(try, c)
		cancel()
		if err == nil {
			return
		}
		if ctx.Err() == nil {
			w.metrics.unwritten.Inc()
			w.logger.WarnContext(ctx, "a checkpoint cannot be written to Blob Storage, trying again",
				slog.Int64("sequence", *c.SequenceNumber), slog.String("error", err.Error()))
			sleep(ctx, delay/2+rand.N(delay/2)) //nolint:gosec // jitter, not a secret
		}
		if ctx.Err() != nil {
			if errors.Is(context.Cause(ctx), errFlush) {
				w.logger.WarnContext(ctx, "the last checkpoint was not written to Blob Storage: its events will be read again",
					slog.Int64("sequence", *c.SequenceNumber))
			}
			return
		}
		select {
		case c = <-w.next:
		default:
		}
	}
}
