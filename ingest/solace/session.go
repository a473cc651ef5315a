//go:build cgo

package solace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"solace.dev/go/messaging/pkg/solace"
	"solace.dev/go/messaging/pkg/solace/config"
	"solace.dev/go/messaging/pkg/solace/message"
	"solace.dev/go/messaging/pkg/solace/resource"

	"chargeonce/ingest"
)

// session reads the queue over one connection, until ctx ends or anything goes wrong, and returns why it ended.
func (s *Source) session(ctx context.Context) error {
	x := s.takeProbed()
	if x == nil {
		var err error
		if x, err = s.open(ctx); err != nil {
			s.setCurrent(nil, err)
			return err
		}
	}
	defer x.close()
	recording, endRecording := context.WithCancelCause(context.WithoutCancel(ctx))
	defer endRecording(nil)
	// From the end of reading on, be it by ctx or by the broker, the batch in hand has the grace and no more.
	reading, endReading := context.WithCancelCause(ctx)
	defer endReading(nil)
	stop := context.AfterFunc(reading, func() {
		timer := time.AfterFunc(s.cfg.StopGrace, func() { endRecording(fmt.Errorf("%w: %w", errGrace, context.Cause(reading))) })
		context.AfterFunc(recording, func() { timer.Stop() })
	})
	defer stop()
	go func() {
		select {
		case <-x.down:
			endReading(x.downCause)
		case <-recording.Done():
		}
	}()
	s.setCurrent(x, nil)
	err := s.protect(ctx, func() error { return x.read(reading, recording) })
	s.setCurrent(nil, err)
	return err
}

// errGrace says that a batch was given up. Its messages come again.
var errGrace = errors.New("the grace for the batch in hand is over")

// session is one connection with one flow, the client's bind to the queue.
type session struct {
	*Source
	service  solace.MessagingService
	receiver solace.PersistentMessageReceiver

	down      chan struct{} // closed when connection or flow ended by itself
	downCause error         // set before down is closed
	fallen    atomic.Bool   // down is being closed, or is
	wasActive atomic.Bool   // the broker gave this flow messages
}

// open connects and binds. When ctx ends it returns at once, and what was under way is given up in the background, for the client's
// calls cannot be broken off.
func (s *Source) open(ctx context.Context) (*session, error) {
	type result struct {
		x   *session
		err error
	}
	results := make(chan result)
	s.closings.Go(func() {
		var x *session
		err := s.protect(ctx, func() (err error) {
			x, err = s.connect(ctx)
			return err
		})
		select {
		case results <- result{x, err}:
		case <-ctx.Done():
			if err == nil {
				x.closeNow()
			}
		}
	})
	select {
	case r := <-results:
		return r.x, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// connect is open without its end; it leaves nothing open when it fails.
func (s *Source) connect(ctx context.Context) (*session, error) {
	s.metrics.sessions.Inc()
	service, err := s.cfg.build(config.RetryStrategyNeverRetry())
	if err != nil {
		return nil, err
	}
	x := &session{Source: s, service: service, down: make(chan struct{})}
	service.AddServiceInterruptionListener(func(e solace.ServiceEvent) {
		x.fall(fmt.Errorf("the connection ended: %w", causeOf(e.GetCause(), e.GetMessage())))
	})
	if err := service.Connect(); err != nil {
		x.closeNow() // a connection that failed still holds its threads
		return nil, fmt.Errorf("connect to %s: %w", s.cfg.Hosts, err)
	}
	if ctx.Err() != nil {
		x.closeNow()
		return nil, context.Cause(ctx)
	}
	if err := x.bind(); err != nil {
		x.closeNow()
		return nil, fmt.Errorf("bind queue %s: %w", s.cfg.Queue, err)
	}
	s.logger.InfoContext(ctx, "reading the queue", slog.String("broker", s.cfg.Hosts))
	return x, nil
}

func (x *session) bind() error {
	receiver, err := x.service.CreatePersistentMessageReceiverBuilder().
		WithMessageClientAcknowledgement().
		WithActivationPassivationSupport(x.activity).
		// Exclusive or not only says what kind of queue the client would make, which it is never told to do.
		Build(resource.QueueDurableNonExclusive(x.cfg.Queue))
	if err != nil {
		return fmt.Errorf("prepare the flow: %w", err)
	}
	// Before the start: the client reads the listener from another thread, without a lock.
	receiver.SetTerminationNotificationListener(func(e solace.TerminationEvent) {
		x.fall(fmt.Errorf("the flow ended: %w", causeOf(e.GetCause(), e.GetMessage())))
	})
	if err := receiver.Start(); err != nil {
		return err //nolint:wrapcheck // the caller names the queue
	}
	x.receiver = receiver
	return nil
}

func causeOf(err error, text string) error {
	if err != nil {
		return err
	}
	return errors.New(text)
}

// fall notes that connection or flow ended by itself; the first cause stays.
func (x *session) fall(cause error) {
	if x.fallen.CompareAndSwap(false, true) {
		x.downCause = cause
		close(x.down)
	}
}

// activity is told whether the broker gives messages to this flow. On an exclusive queue all flows but one stand by. A flow that was
// active and is no more has been unbound: after some reasons the client then binds anew by itself, again and again where it is refused,
// and tells nobody, until it gives up and tells nobody either. There is one owner of binding anew, and that is Run.
func (x *session) activity(_, now solace.ReceiverState, _ time.Time) {
	active := now == solace.ReceiverActive
	x.mu.Lock()
	if x.current == nil || x.current == x {
		x.metrics.active.Set(map[bool]float64{true: 1}[active])
	}
	x.mu.Unlock()
	if active {
		x.wasActive.Store(true)
		return
	}
	if x.wasActive.Load() {
		// Most ends begin so; their cause is told next.
		time.AfterFunc(causeWait, func() { x.fall(errors.New("the broker took the queue away from this flow")) })
		return
	}
	x.logger.Info("standing by: the broker gives the messages of this exclusive queue to another ingestor")
}

// causeWait is how long the cause of an end may come behind the first sign of it; it takes a few ms.
const causeWait = 200 * time.Millisecond

// close gives the session up. One that takes longer than CloseTimeout, as with a broker that hangs, ends in the background.
func (x *session) close() {
	ended := make(chan struct{})
	x.closings.Go(func() {
		defer close(ended)
		x.closeNow()
	})
	timer := time.NewTimer(x.cfg.CloseTimeout)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
		x.logger.Warn("the client is slow to end a session, going on without it")
	}
}

// closeNow ends the flow and then the connection. Acknowledgements under way are sent by either. Where the client has begun to end them
// by itself, each waits until it has.
func (x *session) closeNow() {
	if x.receiver != nil {
		if err := x.receiver.Terminate(0); err != nil {
			x.logger.Debug("ending the flow", slog.String("error", err.Error())) // messages that were not taken go back to the queue
		}
	}
	if err := x.service.Disconnect(); err != nil {
		x.logger.Debug("ending the connection", slog.String("error", err.Error()))
	}
}

// errSilent is a reason to bind anew. See the package's comment.
var errSilent = errors.New("no message for long")

// receiveBeat is how often a reader that waits looks up, so that an end which the client does not tell is noticed.
const receiveBeat = 200 * time.Millisecond

// read records and acknowledges batches until ctx ends or anything goes wrong.
func (x *session) read(ctx, recording context.Context) error {
	heard := time.Now()
	for {
		batch, err := x.receive(ctx)
		if len(batch) > 0 {
			if err := x.take(recording, batch); err != nil {
				return err
			}
			heard = time.Now()
		}
		switch silence := time.Since(heard); {
		case err != nil:
			return err
		case silence > x.cfg.SilentAfter:
			return fmt.Errorf("%w: %s", errSilent, silence.Round(time.Millisecond))
		}
	}
}

// received is a message and what is made of it. The message is the client's memory and must be disposed of.
type received struct {
	message  message.InboundMessage
	delivery ingest.Delivery
}

// receive waits for a message, for a beat at most, and then shortly for as many more as there are and a batch may have. Messages may
// come with an error.
func (x *session) receive(ctx context.Context) (batch []received, err error) {
	until, bytes := time.Now().Add(receiveBeat), 0
	for len(batch) < x.cfg.BatchSize && bytes < ingest.MaxBatchBytes {
		if ctx.Err() != nil {
			return batch, context.Cause(ctx)
		}
		m, err := x.receiver.ReceiveMessage(max(0, time.Until(until)))
		if _, timeout := errors.AsType[*solace.TimeoutError](err); timeout {
			return batch, nil
		}
		if err != nil {
			return batch, x.explain(err)
		}
		if len(batch) == 0 {
			until = time.Now().Add(x.cfg.Linger)
		}
		d := delivery(x.cfg.Queue, m)
		bytes += len(d.Body)
		batch = append(batch, received{m, d})
		x.metrics.receive(m.IsRedelivered(), time.Now())
	}
	return batch, nil
}

// reasonWait is how long the broker's reason may come behind the client's word that the receiver has ended; it takes a few ms.
const reasonWait = time.Second

// explain prefers the broker's reason.
func (x *session) explain(err error) error {
	timer := time.NewTimer(reasonWait)
	defer timer.Stop()
	select {
	case <-x.down:
		return x.downCause
	case <-timer.C:
		return fmt.Errorf("receive: %w", err)
	}
}

// take records a batch and then acknowledges its messages, and no others. A failed acknowledgement is no loss, and never tried again: the
// message comes again and counts as a redelivery.
func (x *session) take(ctx context.Context, batch []received) error {
	deliveries := make([]ingest.Delivery, len(batch))
	for i := range batch {
		deliveries[i] = batch[i].delivery
	}
	defer func() {
		for i := range batch {
			batch[i].message.Dispose()
		}
	}()
	done := 0
	for part := range ingest.Batches(deliveries) {
		if _, err := x.recorder.Record(ctx, part, nil); err != nil {
			return err //nolint:wrapcheck // it names the step
		}
		for i := done; i < done+len(part); i++ {
			if err := x.receiver.Ack(batch[i].message); err != nil {
				x.metrics.ackFailures.Add(float64(done + len(part) - i))
				return fmt.Errorf("acknowledge: %w", err)
			}
			x.metrics.acked.Inc()
		}
		done += len(part)
	}
	return nil
}
