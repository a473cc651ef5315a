//go:build cgo

package solace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"chargeonce/ingest"
)

// Run reads the queue until ctx ends, and then ends in good order: the batch in hand is committed and acknowledged, and the flow is
// given up, so that the broker gives the rest to others at once. It makes a new session, after a pause, when one ends. It returns nil.
func (s *Source) Run(ctx context.Context) error {
	defer s.awaitClosings()
	delay := s.cfg.RestartDelay
	for {
		started := time.Now()
		err := s.session(ctx)
		if ctx.Err() != nil {
			if errors.Is(err, errGrace) {
				s.logger.WarnContext(ctx, "ending without the batch in hand, which comes again", slog.Any("error", err))
			}
			return nil
		}
		if time.Since(started) > s.cfg.MaxRestartDelay {
			delay = s.cfg.RestartDelay
		}
		if errors.Is(err, errSilent) {
			s.logger.DebugContext(ctx, "binding the silent queue anew", slog.Any("reason", err))
			continue
		}
		// Those who lost one broker together must not come back together.
		pause := min(delay/2+rand.N(delay), s.cfg.MaxRestartDelay) //nolint:gosec // no secret
		s.metrics.restarts.Inc()
		s.logger.WarnContext(ctx, "the session with the broker ended, starting another", slog.Any("error", err), slog.Duration("delay", pause))
		if !sleep(ctx, pause) {
			return nil
		}
		delay = min(2*delay, s.cfg.MaxRestartDelay)
	}
}

// Source reads one queue into one Recorder.
type Source struct {
	cfg      Config
	recorder *ingest.Recorder
	metrics  *Metrics
	logger   *slog.Logger
	closings sync.WaitGroup // sessions that are being given up

	mu      sync.Mutex
	probed  *session // bound by Probe, for the first session of Run
	current *session // nil while none is bound
	reason  error    // why the last one ended
}

// New checks the configuration; it connects to nothing. metrics may be nil.
func New(cfg Config, recorder *ingest.Recorder, metrics *Metrics, logger *slog.Logger) (*Source, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if metrics == nil {
		metrics = NewMetrics(nil)
	}
	return &Source{
		cfg: cfg.withDefaults(), recorder: recorder, metrics: metrics,
		logger: logger.With(slog.String("queue", cfg.Queue), slog.String("message_vpn", cfg.VPN)),
	}, nil
}

// Check says why the source cannot work at this moment; nil means that it works, or that it stands by for another ingestor, to which
// the broker gives the messages of an exclusive queue.
func (s *Source) Check(context.Context) error {
	if away, is := s.recorder.DatabaseAway(); is {
		return fmt.Errorf("the database has been away for %s", away.Round(time.Second))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.current != nil:
		return nil
	case s.reason != nil:
		return fmt.Errorf("the queue is not bound: %w", s.reason)
	}
	return errors.New("the queue is not bound yet")
}

// Close ends what Probe began when Run will not be called.
func (s *Source) Close() {
	if x := s.takeProbed(); x != nil {
		x.close()
	}
	s.awaitClosings()
}

func (s *Source) takeProbed() *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.probed
	s.probed = nil
	return x
}

// setCurrent notes the session that is bound, or that none is and why.
func (s *Source) setCurrent(x *session, reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current, s.reason = x, reason
	if x == nil {
		s.metrics.bound.Set(0)
		s.metrics.active.Set(0)
		return
	}
	s.metrics.bound.Set(1)
}

// awaitClosings waits, but not for ever, for sessions whose end took longer than CloseTimeout.
func (s *Source) awaitClosings() {
	ended := make(chan struct{})
	go func() {
		s.closings.Wait()
		close(ended)
	}()
	timer := time.NewTimer(s.cfg.CloseTimeout)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
	}
}

// sleep returns false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// errPanicked is our own error, or the client's.
var errPanicked = errors.New("internal error: panic")

// protect turns a panic of f into an error. What was not acknowledged by then comes again. A panic's value may hold a message's text:
// only the runtime's own are shown.
func (s *Source) protect(ctx context.Context, f func() error) (err error) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		text := fmt.Sprintf("of type %T", p)
		if known, ok := p.(runtime.Error); ok {
			text = known.Error()
		}
		s.metrics.panics.Inc()
		s.logger.ErrorContext(ctx, "panic, the session is given up", slog.String("panic", text), slog.String("stack", string(debug.Stack())))
		err = fmt.Errorf("%w: %s", errPanicked, text)
	}()
	return f()
}
