//go:build cgo

package solace_test

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"solace.dev/go/messaging"
	client "solace.dev/go/messaging/pkg/solace"
	"solace.dev/go/messaging/pkg/solace/config"
	"solace.dev/go/messaging/pkg/solace/message"
	"solace.dev/go/messaging/pkg/solace/resource"

	"chargeonce/ingest/solace/solacetest"
)

// The client frees flows, and whole connections, that calls under way still use. Without the guard about every second run of each of
// these kills the process, or leaves a call that never returns.
func TestFlowThatEndsDuringACallFreesNothingThatIsInUse(t *testing.T) {
	t.Parallel()
	drop := (*solacetest.Server).DropConnections
	unbind := func(s *solacetest.Server) { s.Unbind(queueName, solacetest.Refusal{Code: 503, Text: "Queue Shutdown"}) }
	for title, test := range map[string]struct {
		whileBinding, whileAcknowledging, whileGivingUp func(*solacetest.Server)
	}{
		"lost while acknowledging":             {whileAcknowledging: drop},
		"unbound while acknowledging":          {whileAcknowledging: unbind},
		"unbound and lost while acknowledging": {whileAcknowledging: func(s *solacetest.Server) { unbind(s); drop(s) }},
		"lost while binding":                   {whileBinding: drop},
		"lost while being given up":            {whileGivingUp: drop},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			s := startBroker(t, solacetest.Config{})
			for range 40 {
				fill(t, s, 50)
				cut := func(how func(*solacetest.Server)) (done func()) {
					if how == nil {
						return func() {}
					}
					var wg sync.WaitGroup
					wg.Go(func() { how(s) })
					return wg.Wait
				}
				service := connectTo(t, s)
				done := cut(test.whileBinding)
				receiver, ended := bindTo(t, service)
				done()
				if receiver != nil {
					taken := takeSome(receiver)
					done = cut(test.whileAcknowledging)
					if test.whileAcknowledging != nil {
						acknowledgeUntil(t, ended, receiver, taken)
					}
					done()
					done = cut(test.whileGivingUp)
					_ = receiver.Terminate(0) // it may have ended
					done()
					for _, m := range taken {
						m.Dispose()
					}
				}
				_ = service.Disconnect() // it may have ended
			}
		})
	}
}

// fill brings the queue to n messages.
func fill(t *testing.T, s *solacetest.Server, n int) {
	t.Helper()
	text := "some text"
	for range n - s.Ledger(false).Queues[0].OnQueue {
		require.NoError(t, s.PublishQueue(queueName, solacetest.Message{Text: &text}))
	}
}

func connectTo(t *testing.T, s *solacetest.Server) client.MessagingService {
	t.Helper()
	service, err := messaging.NewMessagingServiceBuilder().FromConfigurationProvider(config.ServicePropertyMap{
		config.TransportLayerPropertyHost: s.URL(), config.ServicePropertyVPNName: s.VPN(),
	}).WithReconnectionRetryStrategy(config.RetryStrategyNeverRetry()).
		WithAuthenticationStrategy(config.BasicUserNamePasswordAuthentication("ingest", "password")).Build()
	require.NoError(t, err)
	require.NoError(t, service.Connect())
	return service
}

// bindTo returns nil when the flow cannot be bound; ended is closed when the client says that the flow has ended by itself.
func bindTo(t *testing.T, service client.MessagingService) (r client.PersistentMessageReceiver, ended chan struct{}) {
	t.Helper()
	r, err := service.CreatePersistentMessageReceiverBuilder().WithMessageClientAcknowledgement().Build(resource.QueueDurableNonExclusive(queueName))
	require.NoError(t, err)
	ended = make(chan struct{})
	r.SetTerminationNotificationListener(func(client.TerminationEvent) { close(ended) })
	if r.Start() != nil {
		return nil, nil
	}
	return r, ended
}

func takeSome(r client.PersistentMessageReceiver) (taken []message.InboundMessage) {
	for len(taken) < 50 {
		m, err := r.ReceiveMessage(100 * time.Millisecond)
		if err != nil {
			break
		}
		taken = append(taken, m)
	}
	return taken
}

// acknowledgeUntil acknowledges the messages again and again, from several goroutines, until the flow has ended.
func acknowledgeUntil(t *testing.T, ended <-chan struct{}, r client.PersistentMessageReceiver, messages []message.InboundMessage) {
	t.Helper()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-ended:
					return
				default:
					for _, m := range messages {
						_ = r.Ack(m) // it fails once the flow has ended
					}
				}
			}
		})
	}
	all := make(chan struct{})
	go func() {
		wg.Wait()
		close(all)
	}()
	select {
	case <-all:
	case <-time.After(patience):
		t.Fatal("an acknowledgement does not return")
	}
}

// What the test above can only bring about by chance, step by step: the guard between a client and a library that are played in C.
func TestGuardKeepsTheOrderOfCalls(t *testing.T) {
	t.Parallel()
	compiler := cmp.Or(os.Getenv("CC"), "cc")
	program := filepath.Join(t.TempDir(), "guard")
	out, err := exec.CommandContext(t.Context(), compiler, "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", program, //nolint:gosec // cgo's
		"testdata/guard.c").CombinedOutput()
	require.NoError(t, err, string(out))
	out, err = exec.CommandContext(t.Context(), program).CombinedOutput() //nolint:gosec // just compiled
	require.NoError(t, err, string(out))
}
