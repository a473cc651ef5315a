package eventhubstest

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// A message of many frames must not use up the session window before its link gets new credit.
func TestWindowIsNotUsedUpInsideAMessage(t *testing.T) {
	t.Parallel()
	s := &Server{cfg: Config{}.withDefaults(), conns: map[*conn]bool{}}
	c := newConn(s, nil)
	sess := &session{conn: c, receivers: map[uint32]*receiveLink{}}
	sess.receivers[1] = &receiveLink{session: sess, handle: 1, credit: linkCredit}
	c.sessions[0] = sess
	part := appendFrame(nil, frameTypeAMQP, 0,
		composite{performTransfer, list{uint32(1), uint32(0), []byte("t"), uint32(0), false, true}}, []byte("x"))
	for range sessionWindow {
		f, err := readFrame(bytes.NewReader(part))
		require.NoError(t, err)
		l, _, err := c.gather(f)
		require.NoError(t, err)
		require.Nil(t, l, "the message goes on")
	}
	var ids []uint32
	for in := bytes.NewReader(c.control); in.Len() > 0; {
		f, err := readFrame(in)
		require.NoError(t, err)
		require.EqualValues(t, performFlow, f.code)
		id, ok := f.fields.uint32(0)
		require.True(t, ok)
		ids = append(ids, id)
	}
	require.Equal(t, []uint32{sessionWindow / 2, sessionWindow}, ids)
}
