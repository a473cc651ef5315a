package eventhubstest

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// A message larger than the session window must wait in the middle and go on where it stopped.
func TestWindowIsNotOverrunInsideAMessage(t *testing.T) {
	t.Parallel()
	sess := &session{conn: &conn{maxFrame: 512}, window: 2}
	message := bytes.Repeat([]byte("abc"), 500) // four frames of at most 448 bytes
	l := &sendLink{session: sess, handle: 3, credit: 5, replies: [][]byte{message, []byte("next")}}

	out := l.appendNext(nil)
	require.Zero(t, sess.window)
	require.Empty(t, l.appendNext(nil), "nothing goes past the window")
	sess.window = 100
	out = l.appendNext(out)
	require.Nil(t, l.rest)
	require.EqualValues(t, 4, l.credit)
	require.EqualValues(t, 4, sess.nextOutgoing)

	var got []byte
	for in := bytes.NewReader(out); in.Len() > 0; {
		before := in.Len()
		f, err := readFrame(in)
		require.NoError(t, err)
		require.LessOrEqual(t, before-in.Len(), 512)
		require.EqualValues(t, performTransfer, f.code)
		_, first := f.fields.uint32(1)
		require.Equal(t, len(got) == 0, first, "only the first frame carries the delivery id")
		got = append(got, f.payload...)
		require.Equal(t, len(got) < len(message), f.fields.bool(5))
	}
	require.Equal(t, message, got)

	l.credit = 0
	require.Empty(t, l.appendNext(nil), "no credit")
}
