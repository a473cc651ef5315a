package eventhubstest

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/Azure/go-amqp"
	"github.com/stretchr/testify/require"
)

// FuzzFrame feeds frames through everything that reads bytes of a client before its meaning is known.
func FuzzFrame(f *testing.F) {
	f.Add(appendFrame(nil, frameTypeAMQP, 1, composite{performOpen, list{"id", nil, uint32(65536), uint16(9), uint32(1)}}, nil))
	source := appendValue(nil, composite{0x28, list{"hub/ConsumerGroups/g/Partitions/0", nil, nil, nil, nil, nil, nil, nil}})
	f.Add(appendFrame(nil, frameTypeAMQP, 0, composite{performAttach, list{"n", uint32(1), true, ubyte(2), ubyte(0), raw(source), nil}}, nil))
	f.Add(appendFrame(nil, frameTypeAMQP, 0, composite{performTransfer, list{uint32(0), uint32(0), []byte("t"), uint32(0), true, false}},
		[]byte("\x00\x53\x72\xc1\x01\x00\x00\x53\x75\xa0\x02{}")))
	f.Add(appendEmptyFrame(nil))
	f.Add(deepFrame(maxDepth + 5))
	f.Add(wideFrame())
	f.Fuzz(func(t *testing.T, data []byte) {
		fr, err := readFrame(bytes.NewReader(data))
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(fr.fields), maxElements)
		for i := range fr.fields {
			again, rest, err := splitValue(fr.fields[i])
			require.NoError(t, err)
			require.Empty(t, rest)
			require.Equal(t, fr.fields[i], again)
			_, _ = fr.fields.uint32(i)
			_, _ = intOf(fr.fields[i])
			_ = fr.fields.string(i)
			_ = fr.fields.bool(i)
			_ = fr.fields.mapping(i)
			_ = fr.fields.composite(i)
		}
		_, _ = parseAttach(fr)
		if in, err := splitMessage(fr.payload); err == nil {
			var m amqp.Message
			require.NoError(t, m.UnmarshalBinary(in.body))
		}
		_, _, _ = splitBatch(batchFormat, fr.payload)
		_, _ = decodeRequest(fr.payload)
	})
}

func deepFrame(depth int) []byte {
	value := []byte{codeNull}
	for range depth {
		value = appendValue(nil, list{raw(value)})
	}
	return appendFrame(nil, frameTypeAMQP, 0, composite{performOpen, list{raw(value)}}, nil)
}

// wideFrame declares 2^32-1 elements of no width in a few bytes.
func wideFrame() []byte {
	array := []byte{codeArray32, 0, 0, 0, 5, 0xff, 0xff, 0xff, 0xff, codeNull}
	return appendFrame(nil, frameTypeAMQP, 0, composite{performOpen, list{raw(array)}}, nil)
}

func TestHostileFrameIsRefused(t *testing.T) {
	t.Parallel()
	huge := appendFrame(nil, frameTypeAMQP, 0, composite{performOpen, nil}, nil)
	binary.BigEndian.PutUint32(huge, maxFrameBytes+1)
	tiny := appendEmptyFrame(nil)
	binary.BigEndian.PutUint32(tiny, 7)
	nested := []byte{codeArray32, 0, 0, 0, 0, 0, 0, 0xff, 0xff, codeList0} // 65535 empty lists, twice
	nested[4] = 5
	for name, tc := range map[string]struct {
		frame []byte
		want  string
	}{
		"too deep":           {deepFrame(maxDepth + 5), errTooDeep.Error()},
		"too many":           {wideFrame(), errTooMany.Error()},
		"too many in all":    {appendFrame(nil, 0, 0, composite{performOpen, list{raw(nested), raw(nested)}}, nil), errTooMany.Error()},
		"frame too large":    {huge, "outside"},
		"frame too small":    {tiny, "outside"},
		"cut":                {deepFrame(2)[:12], "EOF"},
		"offset past body":   {[]byte{0, 0, 0, 8, 9, 0, 0, 0}, "data offset"},
		"no descriptor":      {[]byte{0, 0, 0, 9, 2, 0, 0, 0, codeNull}, "no descriptor"},
		"unknown code":       {[]byte{0, 0, 0, 12, 2, 0, 0, 0, 0, codeSmallUlng, 0x10, 0x5f}, "unknown format code"},
		"string too long":    {[]byte{0, 0, 0, 13, 2, 0, 0, 0, 0, codeSmallUlng, 0x10, codeStr8, 9}, errShort.Error()},
		"odd map":            {[]byte{0, 0, 0, 15, 2, 0, 0, 0, 0, codeSmallUlng, 0x10, codeMap8, 2, 1, codeNull}, "no value"},
		"left over in list":  {[]byte{0, 0, 0, 16, 2, 0, 0, 0, 0, codeSmallUlng, 0x10, codeList8, 3, 1, codeNull, codeNull}, errTrailing.Error()},
		"body is not a list": {[]byte{0, 0, 0, 12, 2, 0, 0, 0, 0, codeSmallUlng, 0x10, codeTrue}, "no list"},
	} {
		_, err := readFrame(bytes.NewReader(tc.frame))
		require.ErrorContains(t, err, tc.want, name)
	}
}

func TestSmallFormsReadAsTheSameNumbers(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		encoded []byte
		want    uint64
	}{
		{[]byte{codeUint0}, 0},
		{[]byte{codeUlong0}, 0},
		{[]byte{codeUbyte, 5}, 5},
		{[]byte{codeSmallUint, 200}, 200},
		{[]byte{codeUshort, 1, 0}, 256},
		{[]byte{codeUint, 0, 1, 0, 0}, 65536},
		{[]byte{codeUlong, 0, 0, 0, 1, 0, 0, 0, 0}, 1 << 32},
	} {
		got, ok := uintOf(tc.encoded)
		require.True(t, ok)
		require.Equal(t, tc.want, got)
	}
	n, ok := intOf([]byte{codeSmallLong, 0xff})
	require.True(t, ok)
	require.EqualValues(t, -1, n)
	_, ok = fields{appendValue(nil, ulong(1<<40))}.uint32(0)
	require.False(t, ok, "does not fit")
}

func TestSessionWindowSurvivesTheEndOfItsNumbers(t *testing.T) {
	t.Parallel()
	require.EqualValues(t, 10, distance(4, 1<<32-6))
	require.EqualValues(t, 0, distance(3, 5))
	require.EqualValues(t, 5000, distance(5000, 0))
}
