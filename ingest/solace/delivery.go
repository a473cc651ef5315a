//go:build cgo

package solace

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strconv"
	"time"

	"solace.dev/go/messaging/pkg/solace/message"

	"chargeonce/ingest"
	"chargeonce/schema"
)

// delivery makes a delivery of a message. There is no time in it: the broker gives none, and a publisher's own may be wrong; it stands
// in the detail.
func delivery(queue string, m message.InboundMessage) ingest.Delivery {
	d := ingest.Delivery{Partition: queue, Attrs: attrs(m), Detail: detail(m)}
	d.Body, d.Unreadable = body(m)
	d.Position = queue + "/" + identity(m, d)
	return d
}

// body returns what the publisher wrote. Asked for bytes, the client gives a text in its own encoding, so it is first asked for text.
func body(m message.InboundMessage) ([]byte, *schema.Fault) {
	text, isText := m.GetPayloadAsString()
	bytes, isBytes := m.GetPayloadAsBytes()
	switch {
	case isText && isBytes: // a text, or an XML part alone
		return []byte(text), nil
	case isBytes:
		if !isStructured(m) {
			return bytes, nil
		}
		return bytes, &schema.Fault{Code: "body_is_no_text", Message: "the message's payload is a map or a stream: send the JSON as text or bytes"}
	case isText: // the XML part, while an attachment is hidden by it
		return []byte(text), &schema.Fault{Code: "two_bodies", Message: "the message has an XML part and an attachment, and nobody can tell which is meant: send the JSON alone"}
	}
	return nil, &schema.Fault{Code: "no_body", Message: "the message has no payload that can be read: send the JSON as text or bytes"}
}

// isStructured says whether the payload is of the client's own map or stream type.
func isStructured(m message.InboundMessage) bool {
	if _, ok := m.GetPayloadAsMap(); ok {
		return true
	}
	_, ok := m.GetPayloadAsStream()
	return ok
}

// identity is the same for every delivery of one copy on one queue: the replication group message id, which the broker keeps over
// redelivery and fail-over. Brokers and messages without one have nothing like it that the client would tell. There the content
// stands for it; two messages that agree in all of it are then taken for deliveries of one, which makes no difference but in the
// counters, for they would be duplicates of each other.
func identity(m message.InboundMessage, d ingest.Delivery) string {
	if id, ok := m.GetReplicationGroupMessageID(); ok {
		return id.String()
	}
	sum := sha256.New()
	write := func(part []byte) {
		sum.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		sum.Write(part)
	}
	for _, name := range []string{detailTopic, detailApplicationID, detailSenderID, detailSenderTime, detailSequence, detailCorrelationID} {
		write([]byte(d.Detail[name]))
	}
	write(d.Body)
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)[:16])
}

// Names in the detail.
const (
	detailTopic         = "topic"
	detailRedelivered   = "redelivered"
	detailApplicationID = "application_message_id"
	detailSenderID      = "sender_id"
	detailSenderTime    = "sender_timestamp"
	detailSequence      = "sequence_number"
	detailContentType   = "http_content_type"
	detailCorrelationID = "correlation_id"
)

func detail(m message.InboundMessage) map[string]string {
	all := map[string]string{detailTopic: m.GetDestinationName(), detailRedelivered: strconv.FormatBool(m.IsRedelivered())}
	for name, get := range map[string]func() (string, bool){
		detailApplicationID: m.GetApplicationMessageID, detailSenderID: m.GetSenderID, detailContentType: m.GetHTTPContentType,
		detailCorrelationID: m.GetCorrelationID,
	} {
		if value, ok := get(); ok {
			all[name] = value
		}
	}
	if at, ok := m.GetSenderTimestamp(); ok {
		all[detailSenderTime] = at.UTC().Format(time.RFC3339Nano)
	}
	if n, ok := m.GetSequenceNumber(); ok {
		all[detailSequence] = strconv.FormatInt(n, 10)
	}
	return all
}

// attrs are the user properties that are text, by which a CloudEvent in binary mode is recognised.
func attrs(m message.InboundMessage) map[string]string {
	properties := m.GetProperties()
	if len(properties) == 0 {
		return nil
	}
	out := make(map[string]string, len(properties))
	for name, value := range properties {
		if text, ok := value.(string); ok {
			out[name] = text
		}
	}
	return out
}
