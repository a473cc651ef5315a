package solacetest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTopicMatchesLevelByLevel(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, topic string
		want           bool
	}{
		{"a/b", "a/b", true},
		{"a/b", "a/b/c", false},
		{"a/b/c", "a/b", false},
		{"a/*", "a/b", true},
		{"a/*", "a", false},
		{"a/*", "a/b/c", false},
		{"a/*/c", "a/b/c", true},
		{"a/b*", "a/bcd", true},
		{"a/b*", "a/b", true},
		{"a/b*", "a/c", false},
		{"a/*b", "a/cb", false}, // a star counts only at the end of a level
		{"a/*b", "a/*b", true},
		{">", "a", true},
		{">", "a/b/c", true},
		{"a/>", "a/b", true},
		{"a/>", "a/b/c", true},
		{"a/>", "a", false},
		{"a/b>", "a/bc", false}, // nor does a greater-than sign but alone in the last level
		{"a/>/c", "a/b/c", false},
		{"", "", true},
	} {
		require.Equal(t, c.want, topicMatches(c.pattern, c.topic), "%s on %s", c.pattern, c.topic)
	}
}

func TestPublisherThatComesBackGoesOnWhereItWas(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	require.NoError(t, s.Inject(Fault{Kind: FaultDropAfterPublish, After: 1, Times: 1}))
	c := logIn(t, s, "c")
	params := appendText(nil, discardUnknown, adFlowName, "")
	c.send(appendAssured(nil, nil, assuredOpenPub, params))
	_, a := c.assured(assuredOpenPub)
	name := textOf(a.find(adFlowName))
	c.pub = uint32Of(a.find(adFlowID))
	c.publish(1, Message{Bytes: []byte("1")})
	c.assured(assuredAck)
	c.publish(2, Message{Bytes: []byte("2")}) // stored, not answered
	c.closed()

	c = logIn(t, s, "c")
	require.EqualValues(t, 2, c.openPublisher(name))
	c.publish(2, Message{Bytes: []byte("2")}) // sent again all the same
	_, a = c.assured(assuredAck)
	last, _ := a.uint64(adLastAcked)
	require.EqualValues(t, 2, last)
	require.Equal(t, 2, s.Queue(queueName).OnQueue)
	require.EqualValues(t, 1, s.Counters().Republished)

	c.send(appendAssured(nil, nil, assuredOpenPub, appendText(nil, discardUnknown, adFlowName, "never heard of")))
	f, _ := c.assured(assuredOpenPub)
	_, text := f.response()
	require.Equal(t, "Unknown Flow Name", text)
}

func TestFullSpoolRefusesAndEmptiesAgain(t *testing.T) {
	t.Parallel()
	s := start(t, Config{MaxBytes: 10_000, MaxMessageBytes: 5000})
	big := Message{Bytes: make([]byte, 3000)}
	for range 3 {
		require.NoError(t, s.PublishQueue(queueName, big))
	}
	require.ErrorContains(t, s.PublishQueue(queueName, big), "Spool Over Quota")
	require.ErrorContains(t, s.PublishQueue(queueName, Message{Bytes: make([]byte, 5001)}), "Document Is Too Large")
	c := logIn(t, s, "c")
	c.bind(queueName, 255)
	id := c.receiveAll(3)[0].id
	c.ack(id, 255, ackRange{0, id, outcomeAccepted})
	c.silent()
	require.NoError(t, s.PublishQueue(queueName, big))
	require.True(t, s.DeleteQueue(queueName))
	require.NoError(t, s.AddQueue(Queue{Name: queueName}))
	for range 3 {
		require.NoError(t, s.PublishQueue(queueName, big), "nothing of the old queue counts")
	}
}

func TestMessageThatCannotBeIsRefused(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	require.Error(t, s.PublishQueue(queueName, Message{Bytes: []byte{}, Text: new("")}))
	require.Error(t, s.PublishQueue(queueName, Message{Properties: map[string]any{"a": struct{}{}}}))
	require.Error(t, s.PublishTopic("", Message{}))
	require.Error(t, s.PublishTopic(strings.Repeat("x", maxNameBytes+1), Message{}))
	require.Error(t, s.PublishQueue("absent", Message{}))
	require.NoError(t, s.PublishTopic("nobody/wants/it", Message{}))
	require.EqualValues(t, 1, s.Counters().Unmatched)
}

func TestDirectMessageIsPromotedUnlessForbidden(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	require.NoError(t, s.PublishDirect("billing/x", Message{Bytes: []byte("x")}))
	c := logIn(t, s, "c")
	c.bind(queueName, 255)
	f := c.next(protoMessage)
	require.Equal(t, []byte{modeNonPersistent}, f.find(headDeliveryMode))
	require.True(t, f.isADF())
	require.EqualValues(t, 1, s.Counters().Promoted)

	s = start(t, Config{NoPromotion: true})
	require.NoError(t, s.PublishDirect("billing/x", Message{}))
	require.Zero(t, s.Queue(queueName).OnQueue)
	require.EqualValues(t, 1, s.Counters().PublishLost)
}

func TestQueueThatCannotBeIsRefused(t *testing.T) {
	t.Parallel()
	for _, queues := range [][]Queue{{{}}, {{Name: "a"}, {Name: "a"}}, {{Name: "a", Subscriptions: []string{""}}}, {{Name: "a\x00"}}} {
		_, err := Start(Config{Queues: queues})
		require.Error(t, err)
	}
	s := start(t, Config{})
	_, err := Start(Config{Mate: s, MaxBytes: 1})
	require.Error(t, err)
	start(t, Config{Mate: s})
	_, err = Start(Config{Mate: s})
	require.ErrorContains(t, err, "has a mate already")
}
