//go:build cgo

package solace_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"chargeonce/ingest"
	"chargeonce/ingest/solace/solacetest"
	"chargeonce/ingest/sourcetest"
	"chargeonce/sql"
)

// What others reported of their Solace consumers, and the test that shows that it does not happen here:
//
//	 1 pubsubplus-go-client 1.10.0, BIND_FAILED is ignored: the consumer is deaf after a reconnect   TestReBindRefusedIsTriedAgain, TestBrokerUnbindReplayStarted
//	 2 wso2/product-integrator-mi#5041, the listener is gone for ever after a blip                   TestFlowIsReboundAfterADrop
//	 3 SolaceSamples/solace-samples-javascript#47, nodejs#37, a queue that was shut                  TestQueueShutdownIsWaitedFor, TestUnbindByTheBrokerIsFollowedByAnotherBind
//	 4 SolaceProducts/solace-spring-cloud#179, #174, #27, receive() on a dead consumer in a loop     TestReport04
//	 5 solace-spring-cloud#36, an endless loop of acknowledgements that fail                         TestReport05
//	 6 solace-spring-cloud#13, #14, messages put back as new ones                                    TestReport06And07And12
//	 7 solace-spring-cloud PR#270, negative acknowledgements need a broker of 10.2.1                 TestReport06And07And12
//	 8 apache/beam#32596, recorded messages are not acknowledged in time                             TestReport08And09
//	 9 apache/beam#36991, PR#37007, PR#38603, acknowledged before the work was committed             TestReport08And09, TestReport09, and ingest-solace's TestKilledBetweenCommitAndAcknowledgement
//	10 apache/beam PR#37164, the acknowledgement meets a consumer that is gone, a queue is deleted   TestReport05, TestQueueDeletedAndMadeAnewIsReadOn
//	11 apache/beam#31965, sessions are left open                                                     TestReport11
//	12 SolaceSamples/solace-samples-python#55, outcomes mixed up                                     TestReport06And07And12
//	13 pubsubplus-go-client d18f285, efe83cb, a panic over an unpinned pointer                       go.mod asks for 1.10.0, which has the fix; all tests here pass messages through cgo
//	14 pubsubplus-go-client SOL-63525, a flow that starts too early; a panic in an init              every test binds; ingest-solace's tests start the program as a process
//	15 TLS in static builds, a missing libgcc_s                                                      ingest-solace's TestImageHasTheLibrariesThatAConnectionOverTLSNeeds; TestRotatedTokenIsTakenUpAtTheNextConnection speaks TLS
//	16 the library swallows a handler's panic, and the message hangs                                 TestPanicWhileRecordingCostsASessionAndNoMessage

func TestReport04DeadConsumerIsNotAskedInALoop(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{})
	r := b.run(t, quick(b.Server))
	r.ready(t)
	b.ShutQueue(queueName)
	eventually(t, func() bool { return r.metric(t, "restarts_total") >= 10 }, "tries again and again")
	restarts := r.metric(t, "restarts_total")
	require.LessOrEqual(t, strings.Count(b.logs.String(), "\n"), 3*restarts+20, "a line or so for each try")
	require.True(t, b.OpenQueue(queueName))
	b.recovers(t, r, 0, 10)
}

func TestReport05FailedAcknowledgementEndsTheSessionAndIsNotRepeated(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{})
	url, proxy := sourcetest.Through(t, b.db.As(sql.RoleIngest))
	pool, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	cfg := quick(b.Server)
	cfg.StopGrace = 30 * time.Second
	r := b.runOn(t, cfg, pool)
	r.ready(t)
	proxy.SlowDown(time.Second)
	b.put(t, "a", 100)
	eventually(t, func() bool { return proxy.Delayed() > 0 }, "the commit is on its way")
	b.DropConnections() // before the acknowledgements
	eventually(t, func() bool { return r.metric(t, "ack_failures_total") > 0 }, "nobody to acknowledge to")
	require.LessOrEqual(t, r.metric(t, "ack_failures_total"), 100, "once each at the most")
	proxy.SlowDown(0)
	b.acked(t, 100)
	require.EqualValues(t, 100, b.counters(t).Intents)
	require.Positive(t, b.counters(t).Redeliveries)
}

// outcomes notes what the broker is told, and how much of it was not committed at that moment.
type outcomes struct {
	mu          sync.Mutex
	byName      map[string]int
	uncommitted int
}

func (b *bundle) watchOutcomes(t *testing.T) *outcomes {
	t.Helper()
	o := &outcomes{byName: map[string]int{}}
	ctx := t.Context()
	b.SetHooks(solacetest.Hooks{OnAck: func(a solacetest.Ack) error {
		var committed int
		err := b.owner.QueryRow(ctx, countObjects).Scan(&committed)
		o.mu.Lock()
		defer o.mu.Unlock()
		for _, m := range a.Messages {
			o.byName[m.Outcome]++
		}
		if sum := o.byName["accepted"]; err == nil && sum > committed {
			o.uncommitted += sum - committed
		}
		return nil
	}})
	return o
}

func (o *outcomes) get() (map[string]int, int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.byName, o.uncommitted
}

func TestReport06And07And12OnlyAcceptedIsEverSaidAndNothingIsPublished(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{})
	o := b.watchOutcomes(t)
	b.run(t, quick(b.Server))
	b.put(t, "a", 20)
	for _, poison := range []string{"", "{", "[]", `{"customer_id":1}`} {
		b.putBody(t, poison)
	}
	b.putBody(t, body("a_1", 999))
	b.acked(t, 25)
	said, _ := o.get()
	require.Equal(t, map[string]int{"accepted": 25}, said)
	require.Equal(t, ingest.Counts{Intents: 20, Conflicts: 1, Quarantined: 4}, b.counters(t))
	require.Zero(t, b.Counters().Published+b.Counters().Promoted, "no message is put back")
	require.Zero(t, b.queue(queueName).Redelivered)
}

func TestReport08And09CommitComesBeforeAcknowledgementAndTheAcknowledgementSoon(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{})
	o := b.watchOutcomes(t)
	b.run(t, quick(b.Server))
	for range 10 {
		b.put(t, "a", 200)
	}
	b.acked(t, 2000)
	said, uncommitted := o.get()
	require.Equal(t, map[string]int{"accepted": 2000}, said)
	require.Zero(t, uncommitted, "acknowledged before they were committed")
	require.Equal(t, ingest.Counts{Intents: 200, Duplicates: 1800}, b.counters(t))
}

// What was received together is committed in parts where it is large, and a part is no leave to acknowledge the next.
func TestReport09OnlyTheCommittedPartOfABatchIsAcknowledged(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{})
	o := b.watchOutcomes(t)
	url, proxy := sourcetest.Through(t, b.db.As(sql.RoleIngest))
	pool, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	const n, size = 6, 900 << 10 // five are more than a transaction takes
	for i := range n {
		b.putBody(t, strings.TrimSuffix(body(fmt.Sprint("a_", i), 100), "}")+`,"padding":"`+strings.Repeat("x", size)+`"}`)
	}
	proxy.SlowDown(1500 * time.Millisecond) // longer than the client waits to send an acknowledgement
	cfg := quick(b.Server)
	cfg.Linger = 500 * time.Millisecond
	b.runOn(t, cfg, pool)
	b.acked(t, n)
	said, uncommitted := o.get()
	require.Equal(t, map[string]int{"accepted": n}, said)
	require.Zero(t, uncommitted, "acknowledged before they were committed")
	require.Equal(t, ingest.Counts{Intents: n}, b.counters(t))
}

func TestReport11NothingIsLeftOpen(t *testing.T) {
	t.Parallel()
	b := setup(t, solacetest.Config{})
	for range 5 {
		r := b.run(t, quick(b.Server))
		r.ready(t)
		b.DropConnections()
		eventually(t, func() bool { return r.metric(t, "restarts_total") > 0 }, "noticed")
		r.ready(t)
		r.stop()
		eventually(t, func() bool { c := b.Counters(); return c.Connections == 0 && c.Flows == 0 }, "neither connection nor flow")
	}
}
