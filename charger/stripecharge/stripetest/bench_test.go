package stripetest_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"chargeonce/charger/stripecharge/stripetest"
)

// BenchmarkPaymentIntent measures the stand-in alone, without a socket: it must never be what a charger's bench measures.
func BenchmarkPaymentIntent(b *testing.B) {
	server := stripetest.New(stripetest.Config{AutoCustomers: true})
	defer server.Close()
	var n atomic.Int64
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			i := n.Add(1)
			body := fmt.Sprintf("amount=1999&currency=usd&customer=cus_%d&payment_method=pm_card_1&confirm=true&off_session=true&metadata[intent_key]=k%d", i, i)
			r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "/v1/payment_intents", strings.NewReader(body))
			r.Header.Set("Authorization", "Bearer sk_test_1")
			r.Header.Set("Idempotency-Key", fmt.Sprintf("k%d", i))
			w := httptest.NewRecorder()
			server.ServeHTTP(w, r)
			if w.Code != http.StatusOK {
				b.Errorf("status %d: %s", w.Code, w.Body)
			}
		}
	})
	b.StopTimer()
	require.Len(b, server.Charges(), int(n.Load()))
	require.Empty(b, server.DoubleCharges())
}
