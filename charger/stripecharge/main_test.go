package stripecharge

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"chargeonce/charger/stripecharge/stripetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testKey = "vk_test_0123456789abcdef"

// standIn is a Stripe stand-in with a client of it.
type standIn struct {
	*stripetest.Server
	client *Client
}

func startStandIn(t *testing.T) *standIn {
	t.Helper()
	server, err := stripetest.Start(stripetest.Config{AutoCustomers: true, Keys: []string{testKey}})
	require.NoError(t, err)
	t.Cleanup(server.Close)
	return &standIn{Server: server, client: newTestClient(t, Config{URL: server.URL, Key: testKey})}
}

func (s *standIn) fault(t *testing.T, faults ...stripetest.Fault) {
	t.Helper()
	require.NoError(t, s.AddFaults(faults...))
}

func newTestClient(t *testing.T, cfg Config) *Client {
	t.Helper()
	if cfg.Transport == nil {
		cfg.Transport = NewTransport()
	}
	t.Cleanup(cfg.Transport.CloseIdleConnections)
	client, err := New(cfg)
	require.NoError(t, err)
	return client
}

// countedServer answers every request with handler and counts them.
func countedServer(t *testing.T, handler http.HandlerFunc) (url string, calls *atomic.Int64) {
	t.Helper()
	calls = new(atomic.Int64)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		handler(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL, calls
}

func testParams(api API, customer string) Params {
	method := "pm_card_visa"
	if api == APICharges {
		method = ""
	}
	return Params{
		API: api, Customer: customer, AmountCents: 12_345, Currency: "usd", PaymentMethod: method, Description: "Usage 2026-08 & more",
		Metadata: map[string]string{
			MetadataIntentKey: "0123456789abcdef0123456789abcdef", MetadataKeyGeneration: "1",
			"namespace": "usage", "customer_id": "acme", "billing_period": "2026-08", "installation": "main",
		},
		IdempotencyKey: "0123456789abcdef0123456789abcdef",
		Livemode:       new(false),
	}
}

func testRequest(t *testing.T, api API, customer string) Request {
	t.Helper()
	r, err := NewRequest(testParams(api, customer))
	require.NoError(t, err)
	return r
}

func soon() time.Time { return time.Now().Add(20 * time.Second) }

func bothAPIs() []API { return []API{APIPaymentIntents, APICharges} }
