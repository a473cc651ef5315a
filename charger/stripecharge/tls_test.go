package stripecharge

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Over TLS, closing a connection writes a closing alert through the same gate, after sendBefore: that takes nothing back.
func TestTimeoutAfterTheRequestLeftIsATimeoutOverTLSToo(t *testing.T) {
	t.Parallel()
	for _, secured := range []bool{false, true} {
		t.Run(map[bool]string{false: "plain", true: "tls"}[secured], func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int64
			over := make(chan struct{})
			server, trusted := startServer(t, secured, func(_ http.ResponseWriter, r *http.Request) {
				_ = r.ParseForm()
				calls.Add(1)
				<-over
			})
			t.Cleanup(func() { close(over) })
			transport := NewTransport()
			transport.base.TLSClientConfig.RootCAs = trusted
			client := newTestClient(t, Config{Transport: transport, URL: server, Key: testKey, Timeout: 400 * time.Millisecond})
			answer := client.Create(t.Context(), testRequest(t, APIPaymentIntents, "cus_1"), time.Now().Add(200*time.Millisecond))
			require.Equal(t, int64(1), calls.Load(), "the server had the whole request")
			require.True(t, answer.Sent, "%v", answer.Err)
			require.Equal(t, ClassTimeout, answer.Class, "%v", answer.Err)
		})
	}
}
