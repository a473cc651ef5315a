package eventhubstest

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// FuzzConversation plays a client that says anything after a right handshake; the server must end the connection or go on,
// and keep nothing of it.
func FuzzConversation(f *testing.F) {
	s, err := Start(Config{Hubs: []Hub{{Name: "h", Partitions: 2}}})
	require.NoError(f, err)
	f.Cleanup(func() { require.NoError(f, s.Close()) })
	_, err = s.Publish("h", "0", []byte("x"), nil)
	require.NoError(f, err)

	frames := func(bodies ...composite) (out []byte) {
		for _, b := range bodies {
			var payload []byte
			if b.code == performTransfer {
				payload = []byte("\x00\x53\x75\xa0\x02{}")
			}
			out = appendFrame(out, frameTypeAMQP, 0, b, payload)
		}
		return out
	}
	source := composite{0x28, list{"h/ConsumerGroups/$default/Partitions/0"}}
	receive := composite{performAttach, list{"r", uint32(0), true, nil, nil, source, composite{0x29, list{"me"}}}}
	produce := composite{performAttach, list{"s", uint32(1), false, nil, nil, composite{0x28, nil}, composite{0x29, list{"h"}}}}
	flow := composite{performFlow, list{uint32(0), uint32(9), uint32(0), uint32(9), uint32(0), uint32(0), uint32(5), nil, true, true}}
	transfer := composite{performTransfer, list{uint32(1), uint32(0), []byte("t"), uint32(0), false, false}}
	detach := composite{performDetach, list{uint32(0), true}}
	f.Add(frames(receive, flow, produce, transfer, detach, composite{performEnd, nil}, composite{performClose, nil}))
	f.Add(frames(receive, receive))
	f.Add(frames(transfer))
	f.Add(frames(produce, transfer, transfer, detach, detach, flow))
	f.Add(frames(composite{performBegin, list{nil, uint32(0), uint32(1), uint32(1)}}))
	f.Fuzz(func(t *testing.T, data []byte) {
		client, ended := pipe(s)
		go func() { _, _ = io.Copy(io.Discard, client) }()
		hello := appendFrame([]byte("AMQP\x00\x01\x00\x00"), frameTypeAMQP, 0, composite{performOpen, list{"fuzz"}}, nil)
		hello = appendFrame(hello, frameTypeAMQP, 0, composite{performBegin, list{nil, uint32(0), uint32(9), uint32(9)}}, nil)
		_ = client.SetDeadline(time.Now().Add(10 * time.Second))
		_, _ = client.Write(append(hello, data...))
		require.NoError(t, client.Close())
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			require.Fail(t, "the connection does not end")
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, p := range s.hub("h").partitions {
			require.Empty(t, p.readers)
		}
		if s.held > 1<<20 {
			for _, p := range s.hub("h").partitions {
				s.held -= p.trim(p.end())
			}
		}
	})
}

// pipe gives the server a connection without a socket; ended is closed when the server has let go of it.
func pipe(s *Server) (client net.Conn, ended <-chan struct{}) {
	client, server := net.Pipe()
	c := newConn(s, server)
	s.mu.Lock()
	s.conns[c] = true
	s.mu.Unlock()
	done := make(chan struct{})
	s.running.Go(func() {
		defer close(done)
		c.read()
	})
	return client, done
}
