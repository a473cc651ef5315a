package stripecharge

import (
	"testing"

	"chargeonce/charger/stripecharge/stripetest"
)

// BenchmarkCreate is one charge against the stand-in in this process, its own work included.
func BenchmarkCreate(b *testing.B) {
	server, err := stripetest.Start(stripetest.Config{AutoCustomers: true})
	if err != nil {
		b.Fatal(err)
	}
	defer server.Close()
	transport := NewTransport()
	defer transport.CloseIdleConnections()
	client, err := New(Config{Transport: transport, URL: server.URL, Key: testKey})
	if err != nil {
		b.Fatal(err)
	}
	request, err := NewRequest(testParams(APIPaymentIntents, "cus_1"))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if answer := client.Create(b.Context(), request, soon()); answer.Class != ClassSucceeded {
			b.Fatal(answer.Err)
		}
	}
}
