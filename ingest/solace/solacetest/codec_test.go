package solacetest

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzFrame feeds frames through everything that reads bytes of a client before their meaning is known.
func FuzzFrame(f *testing.F) {
	for _, encoded := range realFrames(f) {
		f.Add(encoded)
	}
	f.Add(bytes.Repeat([]byte{3}, 40))
	f.Add(appendFrame(nil, controlWord(protoMessage), appendParam(nil, 0, headUserData, make([]byte, 300)), nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		fr, err := readFrame(bytes.NewReader(data), 1<<20)
		if err != nil {
			return
		}
		var head []byte
		for _, p := range fr.params {
			head = appendParam(head, p.unknown, narrow(p.kind), p.value)
		}
		again, err := readFrame(bytes.NewReader(appendFrame(nil, fr.word, append(appendTag(fr.tag), head...), fr.payload)), 2<<20)
		require.NoError(t, err)
		require.Equal(t, fr.params, again.params)
		require.True(t, bytes.Equal(fr.payload, again.payload))
		require.True(t, bytes.Equal(fr.tag, again.tag))
		for _, p := range fr.params {
			_, _ = parseExtended(p.value)
			_, _ = uintOf(p.value)
			_ = textOf(p.value)
		}
		if a, err := parseAssured(fr.payload); err == nil {
			for _, p := range a.params {
				_, _ = parseAckRange(p.value)
			}
		}
		_, _ = parseClientCtrl(fr.payload)
		_, _ = parseSubscription(fr.payload)
		if m, err := newMessage(fr); err == nil {
			checkDelivery(t, m)
			for _, kind := range spoilKinds() {
				checkDelivery(t, m.spoil(kind))
			}
		}
	})
}

// checkDelivery sends a message on and reads it again.
func checkDelivery(t *testing.T, m *message) {
	t.Helper()
	encoded := m.appendDelivery(nil, deliveryHeader{flow: 1, id: 5, previous: 4, spoolID: 3, uniqueID: 2, earlier: 1})
	f, err := readFrame(bytes.NewReader(encoded), 4<<20)
	require.NoError(t, err)
	require.True(t, bytes.Equal(m.payload, f.payload))
	require.Equal(t, m.topic, textOf(f.find(headTopic)))
	require.NotNil(t, f.find(headRedelivered))
	extended, err := parseExtended(f.find(headExtended))
	require.NoError(t, err)
	require.NotNil(t, findParam(extended, extUniqueID))
}

// FuzzMetadata reads what may stand in a message's metadata block, and writes again what it could read.
func FuzzMetadata(f *testing.F) {
	for _, encoded := range realFrames(f) {
		fr, err := readFrame(bytes.NewReader(encoded), 1<<20)
		require.NoError(f, err)
		parts, err := splitContent(fr.find(headSummary), fr.payload)
		require.NoError(f, err)
		for _, part := range parts {
			f.Add(part.body)
		}
	}
	f.Add(appendMetadata(nil, 7, nil, sdtMap{{"a", nil}, {"b", true}, {"c", 1.5}, {"d", []any{int64(-1), []byte("x")}}}))
	f.Add([]byte(strings.Repeat("\x2f\x00\x00\x00\x05", 100)))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _, _ = parseMetadata(data)
		_, _ = splitContent(data, data)
		value, _, err := parseSDT(data, 0)
		if err != nil || hasUint(value) {
			return
		}
		encoded := appendSDT(nil, value)
		again, rest, err := parseSDT(encoded, 0)
		require.NoError(t, err)
		require.Empty(t, rest)
		require.Equal(t, encoded, appendSDT(nil, again))
	})
}

// hasUint tells the values that clients send and the stand-in never does.
func hasUint(value any) bool {
	switch v := value.(type) {
	case uint64:
		return true
	case sdtMap:
		for _, p := range v {
			if hasUint(p.value) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, hasUint)
	}
	return false
}

func TestFramesOfTheRealClientAreUnderstood(t *testing.T) {
	t.Parallel()
	frames := realFrames(t)
	read := func(name string) frame {
		f, err := readFrame(bytes.NewReader(frames[name]), 1<<20)
		require.NoError(t, err, name)
		return f
	}
	readAssured := func(name string) assured {
		a, err := parseAssured(read(name).payload)
		require.NoError(t, err, name)
		return a
	}
	m, err := parseClientCtrl(read("login").payload)
	require.NoError(t, err)
	require.Equal(t, "default", textOf(m.find(ccVPN)))
	require.Equal(t, "dXNlcg==", textOf(read("login").find(headUsername)))

	bind := readAssured("bind")
	require.EqualValues(t, assuredBind, bind.kind)
	require.Equal(t, queueName, textOf(bind.find(adQueue)))
	require.Equal(t, []byte{0}, bind.find(adWindow))
	require.Nil(t, bind.find(adReplayStart))
	again := readAssured("bind_again")
	last, ok := again.uint64(adLastReceived)
	require.True(t, ok)
	require.EqualValues(t, 3, last)
	require.Equal(t, []byte{0xff}, again.find(adWindow))
	require.NotNil(t, readAssured("bind_after_unbind").find(adErrorID))

	r, err := parseAckRange(readAssured("ack").find(adAppAck))
	require.NoError(t, err)
	require.Equal(t, ackRange{1, 4, outcomeAccepted}, r)
	r, err = parseAckRange(readAssured("ack_failed").find(adAppAck))
	require.NoError(t, err)
	require.Equal(t, ackRange{1, 1, outcomeFailed}, r)
	require.Nil(t, readAssured("open_window").find(adAppAck))

	text := read("publish_text")
	parts, err := splitContent(text.find(headSummary), text.payload)
	require.NoError(t, err)
	require.Len(t, parts, 2)
	body, _, err := parseSDT(parts[0].body, 0)
	require.NoError(t, err)
	require.Equal(t, `{"a":1}`, body)
	kind, maps, err := parseMetadata(parts[1].body)
	require.NoError(t, err)
	require.EqualValues(t, preambleText, kind)
	require.Equal(t, "app-1", maps.find("h").(sdtMap).find("mi"))
	require.Equal(t, "x", maps.find("p").(sdtMap).find("ce-id"))
	require.InDelta(t, 1.5, maps.find("p").(sdtMap).find("f"), 0)
	require.Equal(t, "app-1", inspect(text).applicationID)

	sub, err := parseSubscription(read("subscribe").payload)
	require.NoError(t, err)
	require.EqualValues(t, smpAdd, sub.kind)
	require.True(t, strings.HasPrefix(sub.topic, "#P2P/"))
	require.EqualValues(t, protoKeepAlive, read("keep_alive").protocol())
}

func TestMessageIsEncodedAsTheRealPublisherDoes(t *testing.T) {
	t.Parallel()
	frames := realFrames(t)
	for name, m := range map[string]Message{
		"publish_bytes_to_queue": {Bytes: []byte(`{"b":1}`)},
		"publish_empty":          {},
		"publish_map":            {Map: map[string]any{"k": "v"}, Properties: map[string]any{"only": "prop"}},
	} {
		want, err := readFrame(bytes.NewReader(frames[name]), 1<<20)
		require.NoError(t, err, name)
		m.DMQEligible = true
		got, err := m.frame(textOf(want.find(headTopic)))
		require.NoError(t, err)
		require.Equal(t, string(want.payload), string(got.payload), name)
		require.Equal(t, want.find(headSummary), got.find(headSummary), name)
		require.Equal(t, want.find(headTopic), got.find(headTopic), name)
		require.Equal(t, want.word&(wordADF|wordDMQ), got.word&(wordADF|wordDMQ), name)
	}
}

func TestExtendedParametersOfEveryLength(t *testing.T) {
	t.Parallel()
	encoded := []byte{0x80, 0x01, 0x10, 0x02, 9, 0x20, 0x03, 9, 9, 0x30, 0x04, 9, 9, 9, 9}
	encoded = appendExtended64(encoded, extSpoolID, 7)
	encoded = append(encoded, 0x50, 0x31, 5, 'a', 'b', 0x60, 0x32, 0, 5, 'c')
	params, err := parseExtended(encoded)
	require.NoError(t, err)
	require.Equal(t, []param{
		{1, 1, []byte{}},
		{0, 2, []byte{9}},
		{0, 3, []byte{9, 9}},
		{0, 4, []byte{9, 9, 9, 9}},
		{0, extSpoolID, []byte{0, 0, 0, 0, 0, 0, 0, 7}},
		{0, 0x31, []byte("ab")},
		{0, 0x32, []byte("c")},
	}, params)
	for cut := 1; cut < len(encoded); cut++ {
		_, _ = parseExtended(encoded[:cut])
	}
	for _, bad := range [][]byte{{0x10}, {0x10, 1}, {0x70, 1, 0, 0}, {0x50, 1, 2}, {0x60, 1, 0, 3}, {0x50, 1}} {
		_, err := parseExtended(bad)
		require.Error(t, err)
	}
}

func TestHeaderParametersOfThePublisherGoOn(t *testing.T) {
	t.Parallel()
	head := appendText(nil, discardUnknown, headTopic, "billing/x")
	head = appendParam(head, ignoreUnknown, headUserData, []byte("mine"))
	head = appendParam(head, ignoreUnknown, headPriority, []byte{9})
	head = appendParam64(head, discardUnknown, headMessageID, 77)
	head = appendParam(head, ignoreUnknown, headExtended, []byte{0x10, 0x99, 5})
	f, err := readFrame(bytes.NewReader(appendFrame(nil, wordADF|wordDMQ|smfVersion<<24|protoMessage<<16, head, nil)), 1<<20)
	require.NoError(t, err)
	m, err := newMessage(f)
	require.NoError(t, err)
	sent, err := readFrame(bytes.NewReader(m.appendDelivery(nil, deliveryHeader{id: 5, spoolID: 3})), 1<<20)
	require.NoError(t, err)
	require.Equal(t, []byte("mine"), sent.find(headUserData))
	require.Equal(t, []byte{9}, sent.find(headPriority))
	id, _ := uintOf(sent.find(headMessageID))
	require.EqualValues(t, 5, id, "of the delivery, not of the publisher")
	extended, err := parseExtended(sent.find(headExtended))
	require.NoError(t, err)
	require.Equal(t, []byte{5}, findParam(extended, 0x99))
	require.NotNil(t, findParam(extended, extSpoolID))
	require.NotZero(t, sent.word&wordDMQ)
}
