//go:build cgo

package clienttest_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"solace.dev/go/messaging/pkg/solace"
	"solace.dev/go/messaging/pkg/solace/config"
	"solace.dev/go/messaging/pkg/solace/resource"
	"solace.dev/go/messaging/pkg/solace/subcode"

	"chargeonce/ingest/solace/solacetest"
)

func TestRefusedBindIsToldByItsText(t *testing.T) {
	t.Parallel()
	s := start(t, solacetest.Config{})
	svc := connect(t, s)
	for _, c := range []struct {
		refusal solacetest.Refusal
		want    subcode.Code
	}{
		{solacetest.Refusal{Code: 503, Text: "Unknown Queue"}, subcode.UnknownQueueName},
		{solacetest.Refusal{Code: 400, Text: "Queue Not Found"}, subcode.QueueNotFound},
		{solacetest.Refusal{Code: 503, Text: "Queue Shutdown"}, subcode.QueueShutdown},
		{solacetest.Refusal{Code: 503, Text: "Max clients exceeded for queue"}, subcode.MaxClientsForQueue},
		{solacetest.Refusal{Code: 403, Text: "Permission Not Allowed"}, subcode.PermissionNotAllowed},
		{solacetest.Refusal{Code: 503, Text: "Service Unavailable"}, subcode.ServiceUnavailable},
		{solacetest.Refusal{Code: 503, Text: "Too Many Subscribers"}, subcode.TooManyClients},
		{solacetest.Refusal{Code: 503, Text: "unknown queue"}, subcode.ControlOther},
	} {
		require.NoError(t, s.Inject(solacetest.Fault{Kind: solacetest.FaultRefuseBind, Code: c.refusal.Code, Text: c.refusal.Text, Times: 1}))
		err := build(t, builder(svc)).Start()
		require.ErrorContains(t, err, c.refusal.Text)
		require.Equal(t, c.want, subcodeOf(t, err), c.refusal.Text)
	}
	receiver(t, svc)
	require.EqualValues(t, 8, s.Counters().BindsRefused)
}

func TestQueueThatIsMissingShutOrFullRefusesBinds(t *testing.T) {
	t.Parallel()
	s := start(t, solacetest.Config{Queues: []solacetest.Queue{{Name: queueName, MaxBinds: 1}}})
	svc := connect(t, s)
	receiver(t, svc)
	require.Equal(t, subcode.MaxClientsForQueue, subcodeOf(t, build(t, builder(svc)).Start()))
	require.True(t, s.ShutQueue(queueName))
	require.Equal(t, subcode.QueueShutdown, subcodeOf(t, build(t, builder(svc)).Start()))
	require.True(t, s.OpenQueue(queueName))
	receiver(t, svc)
	require.True(t, s.DeleteQueue(queueName))
	require.Equal(t, subcode.UnknownQueueName, subcodeOf(t, build(t, builder(svc)).Start()))
}

// The client waits 10 s for a bind, which no setting changes; to a broker that is not ready it does not come back before.
func TestBindThatIsNotAnsweredOrNotReadyTimesOut(t *testing.T) {
	t.Parallel()
	held, unready := start(t, solacetest.Config{}), start(t, solacetest.Config{})
	require.NoError(t, held.Inject(solacetest.Fault{Kind: solacetest.FaultHoldBind}))
	require.NoError(t, unready.Inject(solacetest.Fault{Kind: solacetest.FaultRefuseBind, Code: 507, Text: "Assured Delivery Not Ready", Times: 1}))
	first, second := build(t, builder(connect(t, held))).StartAsync(), build(t, builder(connect(t, unready))).StartAsync()
	for _, result := range []<-chan error{first, second} {
		select {
		case err := <-result:
			require.Equal(t, subcode.Timeout, subcodeOf(t, err))
		case <-time.After(patience):
			require.Fail(t, "the client waits for ever")
		}
	}
	require.EqualValues(t, 1, unready.Counters().BindsRefused)
}

func TestUnbindByTheBrokerEndsTheReceiverAndNotTheService(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"Queue Shutdown", "Queue Deleted", "Queue Not Found", "Forbidden"} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			s := start(t, solacetest.Config{})
			put(t, s, 0, 1)
			svc := connect(t, s)
			r := receiver(t, svc)
			receive(t, r)
			require.Equal(t, 1, s.Unbind(queueName, solacetest.Refusal{Code: 503, Text: text}))
			require.ErrorContains(t, wait(t, r.gone).GetCause(), text)
			require.True(t, svc.IsConnected())
			_, err := r.ReceiveMessage(time.Second)
			requireError[*solace.IllegalStateError](t, err)
			require.True(t, receive(t, receiver(t, svc)).IsRedelivered(), "a new receiver on the same service goes on")
		})
	}
}

func TestUnbindThatTheClientRepairsByItself(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"Replay Started", "Service Unavailable"} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			s := start(t, solacetest.Config{})
			put(t, s, 0, 1)
			r := receiver(t, connect(t, s))
			receive(t, r)
			require.NoError(t, s.Inject(solacetest.Fault{Kind: solacetest.FaultUnbind, Code: 503, Text: text}))
			require.True(t, receive(t, r).IsRedelivered())
			require.True(t, r.IsRunning())
			require.EqualValues(t, 2, s.Counters().Binds)
		})
	}
}

func TestRepairThatIsRefusedEndsTheReceiver(t *testing.T) {
	t.Parallel()
	s := start(t, solacetest.Config{})
	r := receiver(t, connect(t, s))
	require.NoError(t, s.Inject(solacetest.Fault{Kind: solacetest.FaultRefuseBind, Text: "Unknown Queue"}))
	s.Unbind("", solacetest.Refusal{Code: 503, Text: "Replay Started"})
	require.ErrorContains(t, wait(t, r.gone).GetCause(), "Unknown Queue")
}

// A refusal that may pass does not end it: it tries every 3 s, for as long as it takes, and tells nobody that it is not bound.
func TestRepairIsTriedAgainWhileTheQueueIsShut(t *testing.T) {
	t.Parallel()
	s := start(t, solacetest.Config{})
	put(t, s, 0, 1)
	r := receiver(t, connect(t, s))
	receive(t, r)
	require.NoError(t, s.Inject(solacetest.Fault{Kind: solacetest.FaultRefuseBind, Text: "Queue Shutdown", Times: 1}))
	s.Unbind(queueName, solacetest.Refusal{Code: 503, Text: "Replay Started"})
	eventually(t, func() bool { return s.Counters().BindsRefused == 1 }, "the first try")
	require.Empty(t, r.gone)
	require.True(t, r.IsRunning())
	require.True(t, receive(t, r).IsRedelivered(), "after the second try")
	require.EqualValues(t, 2, s.Counters().Binds)
}

// TestZombieReceiver shows the hazard for which the product keeps the client's own reconnection off: a bind that is refused
// after a reconnect leaves a receiver that claims to run, is told of nothing and gets nothing, for ever.
func TestZombieReceiver(t *testing.T) {
	t.Parallel()
	s := start(t, solacetest.Config{})
	put(t, s, 0, 1)
	p := properties(s)
	p[config.TransportLayerPropertyReconnectionAttempts] = 100
	p[config.TransportLayerPropertyReconnectionAttemptsWaitInterval] = 100
	svc := service(t, p)
	reconnected := make(chan solace.ServiceEvent, 10)
	svc.AddReconnectionListener(func(e solace.ServiceEvent) { reconnected <- e })
	require.NoError(t, svc.Connect())
	t.Cleanup(func() { _ = svc.Disconnect() })
	r := receiver(t, svc)
	receive(t, r)
	require.NoError(t, s.Inject(solacetest.Fault{Kind: solacetest.FaultRefuseBind, Text: "Queue Shutdown", Times: 1}))
	s.DropConnections()
	wait(t, reconnected)
	eventually(t, func() bool { return s.Counters().BindsRefused == 1 }, "the client has tried to bind again")
	require.True(t, svc.IsConnected())
	require.True(t, r.IsRunning())
	_, err := r.ReceiveMessage(500 * time.Millisecond)
	requireError[*solace.TimeoutError](t, err) // although the queue would take the bind now, and has a message
	s.DropConnections()                        // not even another reconnect wakes it
	wait(t, reconnected)
	_, err = r.ReceiveMessage(500 * time.Millisecond)
	requireError[*solace.TimeoutError](t, err)
	require.Empty(t, r.gone)
	require.Equal(t, 1, s.Queue(queueName).OnQueue)
	require.EqualValues(t, 1, s.Counters().Binds)
}

func TestReconnectByTheClientBindsAgain(t *testing.T) {
	t.Parallel()
	s := start(t, solacetest.Config{})
	put(t, s, 0, 2)
	p := properties(s)
	p[config.TransportLayerPropertyReconnectionAttempts] = 100
	p[config.TransportLayerPropertyReconnectionAttemptsWaitInterval] = 100
	svc := service(t, p)
	require.NoError(t, svc.Connect())
	t.Cleanup(func() { _ = svc.Disconnect() })
	r := receiver(t, svc)
	old := receive(t, r)
	receive(t, r)
	s.DropConnections()
	again := receive(t, r)
	require.True(t, again.IsRedelivered())
	require.NoError(t, r.Ack(old), "of a delivery on the flow that is gone")
	eventually(t, func() bool { return s.Counters().AcksUnmatched > 0 }, "it comes on the new flow and matches nothing")
	require.NoError(t, r.Ack(again))
	acked(t, s, 1)
	require.Equal(t, 1, s.Queue(queueName).OnQueue)
}

func TestUnbindThatIsNeverAnsweredHoldsUpTheClientsEnd(t *testing.T) {
	t.Parallel()
	s := start(t, solacetest.Config{})
	svc := connect(t, s)
	r := receiver(t, svc)
	require.NoError(t, s.Inject(solacetest.Fault{Kind: solacetest.FaultHoldUnbind}))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = r.Terminate(0)
		_ = svc.Disconnect() // by itself it would go on after 20 s
	}()
	eventually(t, func() bool { return s.Counters().Held > 0 }, "the unbind has come")
	select {
	case <-ended:
		require.Fail(t, "the client does not wait")
	default:
	}
	s.DropConnections()
	wait(t, ended)
}

func TestForbiddenRequestsAreRecordedAsViolations(t *testing.T) {
	t.Parallel()
	s := start(t, solacetest.Config{})
	svc := connect(t, s)
	r, err := builder(svc).WithMessageReplay(config.ReplayStrategyAllMessages()).Build(resource.QueueDurableExclusive(queueName))
	require.NoError(t, err)
	require.Error(t, r.Start())
	require.Len(t, s.Violations(), 1)
	require.Contains(t, s.Violations()[0], "asks for a replay")

	r, err = builder(svc).WithMissingResourcesCreationStrategy(config.PersistentReceiverCreateOnStartMissingResources).
		Build(resource.QueueDurableExclusive("other"))
	require.NoError(t, err)
	require.Error(t, r.Start())
	require.Len(t, s.Violations(), 2)
	require.Contains(t, s.Violations()[1], `CREATE of endpoint "other"`)

	r, err = builder(svc).WithSubscriptions(resource.TopicSubscriptionOf("billing/>")).Build(resource.QueueDurableExclusive(queueName))
	require.NoError(t, err)
	_ = r.Start()
	_ = r.Terminate(0)
	require.Len(t, s.Violations(), 3)
	require.Contains(t, s.Violations()[2], `subscription of kind 2 to topic "billing/>" for queue "billing"`)

	direct, err := svc.CreateDirectMessageReceiverBuilder().WithSubscriptions(resource.TopicSubscriptionOf("x/>")).Build()
	require.NoError(t, err)
	require.NoError(t, direct.Start())
	require.NoError(t, direct.Terminate(0))
	require.Contains(t, s.Violations()[3], `subscription of kind 0 to topic "x/>"`)

	r, err = builder(svc).Build(resource.QueueNonDurableExclusive("temporary"))
	require.NoError(t, err)
	require.Error(t, r.Start())
	violations := s.Violations()
	require.Contains(t, violations[len(violations)-1], "BIND to a temporary queue")
	require.EqualValues(t, len(violations), s.Ledger(false).ViolationCount)
}
