package eventhubs

import (
	"bytes"
	"fmt"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"

	"chargeonce/ingest"
	"chargeonce/schema"
)

// delivery makes a delivery of an event. The SDK gives a body only for exactly one data section; several are one body cut in
// pieces, and a value of text or bytes is what some older clients send.
func delivery(hub, partition string, e *azeventhubs.ReceivedEventData) ingest.Delivery {
	d := ingest.Delivery{
		Body: e.Body, Attrs: attrs(e), Partition: partition, Position: position(hub, partition, e.SequenceNumber),
	}
	if e.EnqueuedTime != nil {
		d.EnqueuedAt = *e.EnqueuedTime
	}
	if e.Offset != "" {
		// No part of the position: where a geo-replicated hub fails over, offsets change and sequence numbers do not.
		d.Detail = map[string]string{"offset": e.Offset}
	}
	if e.Body != nil || e.RawAMQPMessage == nil {
		return d
	}
	raw := e.RawAMQPMessage.Body
	switch value := raw.Value.(type) {
	case string:
		d.Body = []byte(value)
	case []byte:
		d.Body = value
	case nil:
		d.Body = bytes.Join(raw.Data, nil)
	default:
		d.Body = fmt.Appendf(nil, "%v", value)
		d.Unreadable = &schema.Fault{
			Code: "body_is_no_text", Message: fmt.Sprintf("the event's body is an AMQP value of type %T: send the JSON as data", value),
		}
	}
	if len(raw.Sequence) > 0 {
		d.Body = fmt.Appendf(nil, "%v", raw.Sequence)
		d.Unreadable = &schema.Fault{Code: "body_is_no_text", Message: "the event's body is an AMQP sequence: send the JSON as data"}
	}
	return d
}

func attrs(e *azeventhubs.ReceivedEventData) map[string]string {
	if len(e.Properties) == 0 {
		return nil
	}
	out := make(map[string]string, len(e.Properties))
	for name, value := range e.Properties {
		if text, ok := value.(string); ok {
			out[name] = text
		}
	}
	return out
}
