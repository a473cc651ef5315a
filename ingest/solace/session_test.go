//go:build cgo

package solace_test

import (
	"fmt"
	"regexp"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"chargeonce/ingest"
	"chargeonce/ingest/solace/solacetest"
)

// What a broker can do to a flow, and the test that shows that the source reads on:
//
//	the connection is lost, the broker is there                        TestFlowIsReboundAfterADrop, TestAcknowledgementsLostWithTheConnectionComeAgainAndAddNothing
//	the broker is away for longer than the client itself would try     TestBrokerThatIsAwayIsWaitedFor
//	it accepts the connection and is silent                            TestLoginNeverAnsweredIsTriedAgain, TestStopDoesNotWaitForABrokerThatIsSilent
//	it falls silent later, and answers no keep-alive                   TestMuteBrokerIsLeft
//	it refuses the bind after a reconnect: the client then is deaf     TestReBindRefusedIsTriedAgain
//	it never answers the bind                                          TestBindNeverAnsweredIsTriedAgain
//	it unbinds, the client binds by itself, and is refused or not heard TestBrokerUnbindReplayStarted, TestRebindOfTheClientThatIsNeverAnsweredIsNotTheEnd
//	it unbinds for good, the connection stays                          TestUnbindByTheBrokerIsFollowedByAnotherBind, TestQueueShutdownIsWaitedFor, TestQueueDeletedAndMadeAnewIsReadOn
//	it does either while the flow starts                               TestUnbindWhileTheFlowStartsIsNotTheEnd, TestFlowThatEndsDuringACallFreesNothingThatIsInUse
//	it gives the messages of an exclusive queue to another             TestExclusiveHandOver, TestStandbyWhoseReBindIsRefusedIsNotReady
//	its standby takes over                                             TestFailOverOfAPairLosesAndDoublesNothing

func (b *bundle) inject(t *testing.T, f solacetest.Fault) {
	t.Helper()
	require.NoError(t, b.Inject(f))
}

// recovers says that the source reads on: n more events become intents, and the broker loses nothing and keeps nothing.
func (b *bundle) recovers(t *testing.T, r *running, before, n int) {
	t.Helper()
	b.put(t, "more", n)
	b.await(t, int64(before+n), countIntents)
	b.acked(t, int64(before+n))
	r.ready(t)
	require.EqualValues(t, before+n, b.counters(t).Intents)
	require.Zero(t, b.counters(t).Duplicates, "what comes again is a redelivery")
	require.Zero(t, b.counters(t).Conflicts)
}

func TestFlowIsReboundAfterADrop(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{})
	r := b.run(t, quick(b.Server))
	b.put(t, "a", 300)
	b.await(t, 300, countIntents)
	b.DropConnections()
	b.recovers(t, r, 300, 100)
	require.GreaterOrEqual(t, r.metric(t, "restarts_total"), 1)
	require.Equal(t, 1, r.metric(t, "bound"))
}

func TestAcknowledgementsLostWithTheConnectionComeAgainAndAddNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{})
	b.inject(t, solacetest.Fault{Kind: solacetest.FaultDropBeforeAck, Times: 1})
	b.put(t, "a", 300)
	r := b.run(t, quick(b.Server))
	b.acked(t, 300)
	require.EqualValues(t, 300, b.counters(t).Intents)
	require.GreaterOrEqual(t, b.counters(t).Redeliveries, int64(1))
	require.Equal(t, int(b.counters(t).Redeliveries), r.metric(t, "redelivered_total"))
	b.recovers(t, r, 300, 10)
}

func TestBrokerThatIsAwayIsWaitedFor(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{})
	r := b.run(t, quick(b.Server))
	r.ready(t)
	b.inject(t, solacetest.Fault{Kind: solacetest.FaultRefuseConnection})
	b.DropConnections()
	// Away for longer than the client itself would try: it gives up after three attempts.
	before := r.metric(t, "sessions_total")
	eventually(t, func() bool { return r.metric(t, "sessions_total") > before+6 }, "tries again and again")
	require.ErrorContains(t, r.Check(t.Context()), "not bound")
	require.Equal(t, 0, r.metric(t, "bound"))
	b.inject(t, solacetest.Fault{Kind: solacetest.FaultClear})
	b.recovers(t, r, 0, 50)
}

func TestReBindRefusedIsTriedAgain(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{})
	r := b.run(t, quick(b.Server))
	for i, refusal := range []struct {
		code     uint32
		text     string
		sessions int // that meet it, before it is over
	}{
		{503, "Unknown Queue", 3},
		{503, "Queue Shutdown", 3},
		{403, "Permission Not Allowed", 3},
		{503, "Max clients exceeded for queue", 3},
		{503, "Service Unavailable", 3},
		{507, "AD Not Ready", 1}, // of this one the client tells after 10 s
	} {
		r.ready(t)
		restarts, refused := r.metric(t, "restarts_total"), b.Counters().BindsRefused
		b.inject(t, solacetest.Fault{Kind: solacetest.FaultRefuseBind, Code: refusal.code, Text: refusal.text})
		b.DropConnections()
		eventually(t, func() bool { return r.metric(t, "restarts_total") > restarts+refusal.sessions }, refusal.text+": binds again and again")
		require.Error(t, r.Check(t.Context()), refusal.text)
		require.GreaterOrEqual(t, b.Counters().BindsRefused, refused+int64(refusal.sessions), refusal.text)
		b.inject(t, solacetest.Fault{Kind: solacetest.FaultClear})
		b.put(t, fmt.Sprint("after", i), 10)
		b.await(t, int64(10*(i+1)), countIntents)
	}
	b.recovers(t, r, 60, 10)
}

func TestBindNeverAnsweredIsTriedAgain(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{})
	b.inject(t, solacetest.Fault{Kind: solacetest.FaultHoldBind, Times: 1})
	r := b.run(t, quick(b.Server))
	eventually(t, func() bool { return b.Counters().Logins == 1 }, "logged in")
	require.Error(t, r.Check(t.Context()))
	b.recovers(t, r, 0, 10)
}

func TestLoginNeverAnsweredIsTriedAgain(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{})
	b.inject(t, solacetest.Fault{Kind: solacetest.FaultHoldLogin, Times: 1})
	r := b.run(t, quick(b.Server))
	b.recovers(t, r, 0, 10)
}

func TestMuteBrokerIsLeft(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{})
	r := b.run(t, quick(b.Server))
	b.put(t, "a", 10)
	b.acked(t, 10)
	b.Mute("")
	// The client gives up after three keep-alives without an answer, and the broker keeps what it sent to whom it left.
	eventually(t, func() bool { return r.metric(t, "restarts_total") > 0 }, "noticed")
	b.recovers(t, r, 10, 10)
}

func TestBrokerUnbindReplayStarted(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{ReplayLog: true})
	r := b.run(t, quick(b.Server))
	b.put(t, "a", 500)
	b.acked(t, 500)
	require.NoError(t, b.Replay(queueName))
	b.acked(t, 1000)
	require.Equal(t, ingest.Counts{Intents: 500, Redeliveries: 500}, b.counters(t), "a full replay adds nothing")
	// The client would bind anew by itself and, where it is refused, go on trying without a word.
	b.inject(t, solacetest.Fault{Kind: solacetest.FaultRefuseBind, Text: "Queue Shutdown"})
	require.NoError(t, b.Replay(queueName))
	eventually(t, func() bool { return b.Counters().BindsRefused >= 3 && r.Check(t.Context()) != nil }, "refused, and not ready")
	b.inject(t, solacetest.Fault{Kind: solacetest.FaultClear})
	b.acked(t, 1500)
	require.Equal(t, ingest.Counts{Intents: 500, Redeliveries: 1000}, b.counters(t))
	require.GreaterOrEqual(t, r.metric(t, "restarts_total"), 1)
}

func TestUnbindByTheBrokerIsFollowedByAnotherBind(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{})
	r := b.run(t, quick(b.Server))
	for i, reason := range []string{
		"Queue Shutdown", "Queue Deleted", "Queue Not Found", "Forbidden", "Service Unavailable", "Max clients exceeded for queue", "Endpoint Modified", "",
	} {
		r.ready(t)
		eventually(t, func() bool { return b.Unbind(queueName, solacetest.Refusal{Code: 503, Text: reason}) == 1 }, "a flow to unbind")
		b.put(t, fmt.Sprint("after", i), 10)
		b.await(t, int64(10*(i+1)), countIntents)
	}
	b.recovers(t, r, 80, 10)
}

func TestQueueShutdownIsWaitedFor(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{})
	r := b.run(t, quick(b.Server))
	r.ready(t)
	require.True(t, b.ShutQueue(queueName))
	eventually(t, func() bool { return b.Counters().BindsRefused >= 3 }, "binds again and again")
	require.ErrorContains(t, r.Check(t.Context()), "Queue Shutdown")
	require.True(t, b.OpenQueue(queueName))
	b.recovers(t, r, 0, 10)
}

func TestQueueDeletedAndMadeAnewIsReadOn(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{})
	r := b.run(t, quick(b.Server))
	b.put(t, "a", 10)
	b.acked(t, 10)
	require.True(t, b.DeleteQueue(queueName))
	eventually(t, func() bool { return b.Counters().BindsRefused >= 2 }, "binds again and again")
	require.NoError(t, b.AddQueue(solacetest.Queue{Name: queueName}))
	b.put(t, "b", 10)
	b.await(t, 20, countIntents)
	r.ready(t)
	require.Zero(t, b.counters(t).Duplicates)
}

func TestExclusiveHandOver(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{Queues: []solacetest.Queue{{Name: queueName, Exclusive: true}}})
	first := b.run(t, quick(b.Server))
	first.ready(t)
	eventually(t, func() bool { return first.metric(t, "active") == 1 }, "active")
	second := b.run(t, quick(b.Server))
	second.ready(t) // standing by is ready, or a roll-out would wait for ever
	require.Equal(t, 0, second.metric(t, "active"))
	require.Equal(t, 1, second.metric(t, "bound"))
	b.put(t, "a", 100)
	b.acked(t, 100)
	require.Equal(t, 100, first.metric(t, "received_total"))
	first.stop()
	eventually(t, func() bool { return second.metric(t, "active") == 1 }, "takes over")
	require.Equal(t, 0, first.metric(t, "active"))
	b.recovers(t, second, 100, 50)
	require.Equal(t, 50, second.metric(t, "received_total"))
	eventually(t, func() bool { return second.metric(t, "acked_total") == 50 }, "counted after the broker has it")
}

// A flow that stood by is never told that it does not any more: only the connection's end tells of it, if the client keeps it at that.
func TestStandbyWhoseReBindIsRefusedIsNotReady(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{Queues: []solacetest.Queue{{Name: queueName, Exclusive: true}}})
	first := b.run(t, quick(b.Server))
	eventually(t, func() bool { return first.metric(t, "active") == 1 }, "active")
	second := b.run(t, quick(b.Server))
	second.ready(t)
	b.inject(t, solacetest.Fault{Kind: solacetest.FaultRefuseBind, Text: "Queue Shutdown"})
	b.DropConnections()
	eventually(t, func() bool { return second.metric(t, "restarts_total") > 3 }, "binds again and again")
	require.ErrorContains(t, second.Check(t.Context()), "Queue Shutdown")
	first.stop()
	b.inject(t, solacetest.Fault{Kind: solacetest.FaultClear})
	b.recovers(t, second, 0, 20)
}

// The client loses the news when the broker unbinds a flow that is just starting: it then takes the flow for alive, for ever.
func TestUnbindWhileTheFlowStartsIsNotTheEnd(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{})
	cfg := quick(b.Server)
	cfg.SilentAfter = time.Second
	var unbinding atomic.Bool
	unbinding.Store(true)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for unbinding.Load() {
			b.Unbind(queueName, solacetest.Refusal{Code: 503, Text: "Queue Shutdown"})
		}
	}()
	r := b.run(t, cfg)
	eventually(t, func() bool { return b.Counters().BrokerUnbinds >= 30 }, "unbound again and again")
	unbinding.Store(false)
	<-ended
	b.recovers(t, r, 0, 20)
}

func TestRebindOfTheClientThatIsNeverAnsweredIsNotTheEnd(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{})
	cfg := quick(b.Server)
	cfg.SilentAfter, cfg.CloseTimeout = 2*time.Second, 500*time.Millisecond
	r := b.run(t, cfg)
	r.ready(t)
	b.inject(t, solacetest.Fault{Kind: solacetest.FaultHoldBind, Times: 1})
	b.Unbind(queueName, solacetest.Refusal{Code: 503, Text: "Service Unavailable"})
	eventually(t, func() bool { return b.Counters().Binds >= 2 }, "bound again by the client")
	b.recovers(t, r, 0, 20)
}

func TestSilentQueueIsBoundAnew(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{})
	cfg := quick(b.Server)
	cfg.SilentAfter = 100 * time.Millisecond
	r := b.run(t, cfg)
	eventually(t, func() bool { return b.Counters().Binds >= 5 }, "bound anew and anew")
	require.Equal(t, 0, r.metric(t, "restarts_total"), "nothing is wrong")
	b.recovers(t, r, 0, 20)
}

// The pauses grew while the broker was away. Sessions that lived long since, if in silence, make them short again.
func TestPauseIsShortAgainAfterSilentSessions(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{})
	cfg := quick(b.Server)
	cfg.RestartDelay, cfg.MaxRestartDelay, cfg.SilentAfter = 10*time.Millisecond, 300*time.Millisecond, 400*time.Millisecond
	b.inject(t, solacetest.Fault{Kind: solacetest.FaultRefuseConnection})
	r := b.run(t, cfg)
	eventually(t, func() bool { return r.metric(t, "restarts_total") >= 8 }, "the longest pause")
	b.inject(t, solacetest.Fault{Kind: solacetest.FaultClear})
	r.ready(t)
	binds := b.Counters().Binds
	eventually(t, func() bool { return b.Counters().Binds > binds }, "bound anew after a silence")
	r.ready(t)
	pauses := func() [][]string {
		return regexp.MustCompile(`starting another.* delay=(\S+)`).FindAllStringSubmatch(b.logs.String(), -1)
	}
	before := len(pauses())
	eventually(t, func() bool {
		b.DropConnections()
		return len(pauses()) > before
	}, "noticed")
	pause, err := time.ParseDuration(pauses()[before][1])
	require.NoError(t, err)
	require.Less(t, pause, 2*cfg.RestartDelay)
}

func TestFailOverOfAPairLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{})
	mate := startBroker(t, solacetest.Config{Mate: b.Server})
	cfg := quick(b.Server)
	cfg.Hosts = b.URL() + "," + mate.URL()
	r := b.run(t, cfg)
	for round := range 4 {
		b.inject(t, solacetest.Fault{Kind: solacetest.FaultLoseAcks, Times: 1})
		b.put(t, fmt.Sprint("a", round), 200)
		b.await(t, int64(200*(round+1)), countIntents)
		b.FailOver()
	}
	b.inject(t, solacetest.Fault{Kind: solacetest.FaultClear})
	b.recovers(t, r, 800, 10)
	require.Positive(t, mate.Counters().Logins)
}
