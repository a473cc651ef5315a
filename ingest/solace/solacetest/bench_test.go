package solacetest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkDeliverAndAck is the server's own rate, with a client that costs little, one message an operation.
func BenchmarkDeliverAndAck(b *testing.B) {
	s := start(b, Config{MaxBytes: 8 << 30})
	c := logIn(b, s, "c")
	put(b, s, 0, b.N)
	b.ReportAllocs()
	b.ResetTimer()
	c.bind(queueName, 255)
	for i := range b.N {
		f := c.next(protoMessage)
		if i%100 == 99 || i == b.N-1 {
			id, _ := uintOf(f.find(headMessageID))
			c.ack(id, 255, ackRange{0, id, outcomeAccepted})
		}
	}
	c.silent()
	require.EqualValues(b, b.N, s.Queue(queueName).Acked)
}
