package eventhubstest

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/Azure/go-amqp"
)

// Names of the annotations that Event Hubs puts on every event.
const (
	annotationSequence = "x-opt-sequence-number"
	annotationOffset   = "x-opt-offset"
	annotationEnqueued = "x-opt-enqueued-time"
	annotationKey      = "x-opt-partition-key"
)

// eventOverheadBytes is what one stored event is charged beyond its encoded bytes.
const eventOverheadBytes = 128

// Event is one stored event as the ledger shows it; Body and Properties are copies.
type Event struct {
	Hub            string         `json:"hub"`
	PartitionID    string         `json:"partition_id"`
	SequenceNumber int64          `json:"sequence_number"`
	Offset         string         `json:"offset"`
	EnqueuedTime   time.Time      `json:"enqueued_time"` // UTC, milliseconds
	PartitionKey   string         `json:"partition_key,omitempty"`
	MessageID      any            `json:"message_id,omitempty"`
	Body           []byte         `json:"body"`
	Properties     map[string]any `json:"properties,omitempty"`
}

// hub is one event hub; everything in it is guarded by Server.mu.
type hub struct {
	name       string
	createdAt  time.Time
	groups     map[string]bool // lower case
	partitions []*partition
	turn       int // round robin
}

// partition is one log. Sequence numbers start at 0 and count by one; offsets are byte positions, so that a client that
// mixes the two up fails.
type partition struct {
	hub     *hub
	id      string
	first   int64 // sequence number of events[0]
	events  []stored
	offset  int64 // of the next event
	last    stored
	readers map[*sendLink]bool
}

type stored struct {
	sequence int64
	offset   int64
	enqueued time.Time
	incoming
	annotations []byte // encoded section, as delivered when nothing spoils it
}

func (e stored) size() int64 { return int64(len(e.annotations)+len(e.body)) + eventOverheadBytes }

// incoming is a message taken apart: body holds the properties, application properties and body sections as they came.
type incoming struct {
	key   string
	extra amqp.Annotations // the producer's own annotations, nil when there are none
	body  []byte
}

func newHub(cfg Hub, now time.Time) *hub {
	h := &hub{name: cfg.Name, createdAt: now.UTC().Truncate(time.Millisecond), groups: map[string]bool{"$default": true}}
	for _, g := range cfg.ConsumerGroups {
		h.groups[strings.ToLower(g)] = true
	}
	h.grow(cfg.Partitions)
	return h
}

func (h *hub) grow(n int) {
	for range n {
		h.partitions = append(h.partitions, &partition{
			hub: h, id: strconv.Itoa(len(h.partitions)), readers: map[*sendLink]bool{},
		})
	}
}

func (h *hub) partition(id string) *partition {
	n, err := strconv.Atoi(id)
	if err != nil || n < 0 || n >= len(h.partitions) || h.partitions[n].id != id {
		return nil
	}
	return h.partitions[n]
}

// route picks the partition for a batch: by key (a hash of our own, not the service's) or in turn.
func (h *hub) route(key string) *partition {
	if key != "" {
		sum := fnv.New32a()
		_, _ = sum.Write([]byte(key))
		return h.partitions[int(sum.Sum32())%len(h.partitions)]
	}
	h.turn++
	return h.partitions[(h.turn-1)%len(h.partitions)]
}

// append stores one event and returns it; the caller has checked the server's limit and wakes the readers.
func (p *partition) append(in incoming, now time.Time) (stored, error) {
	e := stored{
		sequence: p.first + int64(len(p.events)), offset: p.offset,
		enqueued: now.UTC().Truncate(time.Millisecond), incoming: in,
	}
	if e.enqueued.Before(p.last.enqueued) {
		e.enqueued = p.last.enqueued // a clock that is set back must not disorder the log
	}
	section, err := (&amqp.Message{Annotations: e.annotationMap()}).MarshalBinary()
	if err != nil {
		return stored{}, fmt.Errorf("encode annotations of event %d: %w", e.sequence, err)
	}
	e.annotations = section
	p.offset += int64(len(section) + len(in.body))
	p.events = append(p.events, e)
	p.last = e
	return e, nil
}

func (e stored) annotationMap() amqp.Annotations {
	a := make(amqp.Annotations, len(e.extra)+4)
	maps.Copy(a, e.extra)
	a[annotationSequence] = e.sequence
	a[annotationOffset] = strconv.FormatInt(e.offset, 10)
	a[annotationEnqueued] = e.enqueued
	if e.key != "" {
		a[annotationKey] = e.key
	}
	return a
}

// end is the sequence number that the next event will get.
func (p *partition) end() int64 { return p.first + int64(len(p.events)) }

// at returns the event with that sequence number; the caller keeps within first..end.
func (p *partition) at(sequence int64) *stored { return &p.events[sequence-p.first] }

// lastOffset is the offset of the newest event ever stored, "-1" when there was none.
func (p *partition) lastOffset() string {
	if p.end() == 0 {
		return "-1"
	}
	return strconv.FormatInt(p.last.offset, 10)
}

// trim drops events below the sequence number, as retention does, and returns the bytes freed.
func (p *partition) trim(before int64) int64 {
	before = min(max(before, p.first), p.end())
	var freed int64
	for _, e := range p.events[:before-p.first] {
		freed += e.size()
	}
	p.events = append([]stored(nil), p.events[before-p.first:]...)
	p.first = before
	return freed
}

// position turns a selector such as "amqp.annotation.x-opt-offset > '-1'" into the next sequence number to deliver.
// A position beyond the end is refused in the service's words.
func (p *partition) position(selector string) (int64, error) {
	if selector == "" {
		return p.first, nil
	}
	invalid := amqpError("com.microsoft:argument-error", "The supplied filter %q is invalid.", selector)
	rest, ok := strings.CutPrefix(selector, "amqp.annotation.")
	parts := strings.Fields(rest)
	if !ok || len(parts) != 3 || (parts[1] != ">" && parts[1] != ">=") {
		return 0, invalid
	}
	value := strings.Trim(parts[2], "'")
	if value == "@latest" {
		return p.end(), nil
	}
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return 0, invalid
	}
	least := n // the least value that is delivered
	if parts[1] == ">" {
		least++
	}
	switch parts[0] {
	case annotationOffset:
		return p.positionByOffset(n, least)
	case annotationSequence:
		if least > p.end() {
			return 0, amqpError("com.microsoft:argument-error",
				"The supplied sequence number '%d' is invalid. The last sequence number in the system is '%d'", n, p.end()-1)
		}
		return max(least, p.first), nil
	case annotationEnqueued:
		return p.find(func(e *stored) bool { return e.enqueued.UnixMilli() >= least }), nil
	default:
		return 0, invalid
	}
}

func (p *partition) positionByOffset(supplied, least int64) (int64, error) {
	if supplied >= 0 && (p.end() == 0 || supplied > p.last.offset) {
		return 0, amqpError("com.microsoft:argument-error",
			"The supplied offset '%d' is invalid. The last offset in the system is '%s'", supplied, p.lastOffset())
	}
	return p.find(func(e *stored) bool { return e.offset >= least }), nil
}

// find returns the sequence number of the first event that matches, as all after it do, or the end.
func (p *partition) find(match func(*stored) bool) int64 {
	return p.first + int64(sort.Search(len(p.events), func(i int) bool { return match(&p.events[i]) }))
}

// view decodes a stored event for the ledger.
func (p *partition) view(e stored) (Event, error) {
	var m amqp.Message
	if err := m.UnmarshalBinary(e.body); err != nil {
		return Event{}, fmt.Errorf("decode event %d of %s/%s: %w", e.sequence, p.hub.name, p.id, err)
	}
	out := Event{
		Hub: p.hub.name, PartitionID: p.id, SequenceNumber: e.sequence, Offset: strconv.FormatInt(e.offset, 10),
		EnqueuedTime: e.enqueued, PartitionKey: e.key, Properties: m.ApplicationProperties,
	}
	for _, d := range m.Data {
		out.Body = append(out.Body, d...)
	}
	if m.Properties != nil {
		out.MessageID = m.Properties.MessageID
	}
	return out, nil
}

// splitMessage takes one encoded message apart, section by section, without touching its body.
func splitMessage(payload []byte) (incoming, error) {
	var in incoming
	for rest := payload; len(rest) > 0; {
		code, _, after, err := splitDescribed(rest)
		if err != nil {
			return incoming{}, fmt.Errorf("message section: %w", err)
		}
		section := rest[:len(rest)-len(after)]
		switch {
		case code == sectionAnnotations:
			if err := in.takeAnnotations(section); err != nil {
				return incoming{}, err
			}
		case code >= sectionProperties && code <= sectionFooter:
			in.body = append(in.body, section...)
		case code < sectionHeader || code > sectionFooter:
			return incoming{}, fmt.Errorf("message section %#x is unknown", code)
		}
		rest = after
	}
	if len(in.body) == 0 {
		return incoming{}, errors.New("message has no body")
	}
	var m amqp.Message
	if err := m.UnmarshalBinary(in.body); err != nil {
		return incoming{}, fmt.Errorf("message: %w", err)
	}
	return in, nil
}

func (in *incoming) takeAnnotations(section []byte) error {
	var m amqp.Message
	if err := m.UnmarshalBinary(section); err != nil {
		return fmt.Errorf("message annotations: %w", err)
	}
	for k, v := range m.Annotations {
		switch k {
		case annotationKey:
			in.key, _ = v.(string)
		case annotationSequence, annotationOffset, annotationEnqueued:
			// A producer cannot choose these.
		default:
			if in.extra == nil {
				in.extra = amqp.Annotations{}
			}
			in.extra[k] = v
		}
	}
	if _, err := (&amqp.Message{Annotations: in.extra}).MarshalBinary(); err != nil {
		return fmt.Errorf("message annotations: %w", err) // found here, so that storing a batch cannot stop half-way
	}
	return nil
}

// splitBatch returns the messages of a transfer: one, or each Data section of a batch, with the envelope's partition key.
func splitBatch(format uint32, payload []byte) (key string, out []incoming, err error) {
	if format != batchFormat {
		in, err := splitMessage(payload)
		return in.key, []incoming{in}, err
	}
	for rest := payload; len(rest) > 0; {
		code, value, after, err := splitDescribed(rest)
		if err != nil {
			return "", nil, fmt.Errorf("batch section: %w", err)
		}
		section := rest[:len(rest)-len(after)]
		rest = after
		switch code {
		case sectionAnnotations:
			var envelope incoming
			if err := envelope.takeAnnotations(section); err != nil {
				return "", nil, err
			}
			key = envelope.key
		case sectionData:
			body, ok := bytesOf(value)
			if !ok {
				return "", nil, errors.New("data section of a batch is not binary")
			}
			in, err := splitMessage(body)
			if err != nil {
				return "", nil, fmt.Errorf("event %d of the batch: %w", len(out), err)
			}
			out = append(out, in)
		}
	}
	if len(out) == 0 {
		return "", nil, errors.New("batch is empty")
	}
	return key, out, nil
}
