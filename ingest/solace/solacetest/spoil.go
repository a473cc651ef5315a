package solacetest

import "slices"

// SpoilKind says how FaultSpoil damages a delivery. The message on the queue stays as it is.
type SpoilKind string

// Kinds of damage.
const (
	SpoilEmpty       SpoilKind = "empty"           // neither payload nor metadata
	SpoilTwoPayloads SpoilKind = "two_payloads"    // an XML part beside the attachment
	SpoilText        SpoilKind = "broken_text"     // a text whose length is a lie
	SpoilMetadata    SpoilKind = "broken_metadata" // a metadata block of nonsense
	SpoilSummary     SpoilKind = "broken_summary"  // a content summary of more bytes than there are
)

func spoilKinds() []SpoilKind {
	return []SpoilKind{SpoilEmpty, SpoilTwoPayloads, SpoilText, SpoilMetadata, SpoilSummary}
}

// spoil returns a damaged copy.
func (m *message) spoil(kind SpoilKind) *message {
	out := *m
	summary := findParam(m.params(), headSummary)
	parts, err := splitContent(summary, m.payload)
	if err != nil {
		return &out // damaged by its publisher
	}
	text := appendContainer(nil, sdtString, []byte("{}\x00"))
	switch kind {
	case SpoilEmpty:
		parts = nil
	case SpoilTwoPayloads:
		parts = append([]content{{contentXML, []byte("<other/>")}}, parts...)
	case SpoilText:
		text[4] = 200
		parts = []content{{contentBinary, text}, {contentMetadata, appendMetadata(nil, preambleText, nil, nil)}}
	case SpoilMetadata:
		parts = append(slices.DeleteFunc(parts, func(c content) bool { return c.kind == contentMetadata }), content{contentMetadata, []byte{1, 0, 0, 0, 9, 0x2f, 0xff}})
	case SpoilSummary:
	}
	out.payload, summary = nil, nil
	for _, part := range parts {
		size := len(part.body)
		if kind == SpoilSummary {
			size += 1000
		}
		summary = appendSummary(summary, part.kind, size)
		out.payload = append(out.payload, part.body...)
	}
	out.head = nil
	for _, p := range m.params() {
		if p.kind != headSummary {
			out.head = appendParam(out.head, p.unknown, narrow(p.kind), p.value)
		}
	}
	if summary != nil {
		out.head = appendParam(out.head, discardUnknown, headSummary, summary)
	}
	return &out
}

// params are the header parameters of the publisher, which were valid when they came.
func (m *message) params() []param {
	f, err := parseFrame(m.word, uint32(frameHeaderBytes+len(m.head)), m.head) //nolint:gosec // within the limit of a message
	if err != nil {
		return nil
	}
	return f.params
}
