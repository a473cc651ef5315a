// Package filetest writes files as other programs do, for tests of what reads them.
package filetest

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"time"

	"github.com/hamba/avro/v2"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
)

// Capture returns a file as Event Hubs Capture writes it, compressed with codec (null, deflate, snappy or zstandard), perBlock events to
// a block. Records are encoded by hamba/avro; the container around them is Avro 1.11's.
func Capture(codec string, perBlock int, events ...Event) ([]byte, error) {
	schema, err := avro.ParseWithCache(CaptureSchema, "", &avro.SchemaCache{})
	if err != nil {
		return nil, fmt.Errorf("parse the schema of Capture: %w", err)
	}
	out := Header(CaptureSchema, codec)
	for block := range slices.Chunk(events, max(perBlock, 1)) {
		var records []byte
		for _, e := range block {
			encoded, err := avro.Marshal(schema, e.record())
			if err != nil {
				return nil, fmt.Errorf("encode event %d: %w", e.SequenceNumber, err)
			}
			records = append(records, encoded...)
		}
		if out, err = AppendBlock(out, codec, len(block), records); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// CaptureSchema is the one that Microsoft documents for Event Hubs Capture.
const CaptureSchema = `{"type":"record","name":"EventData","namespace":"Microsoft.ServiceBus.Messaging","fields":[` +
	`{"name":"SequenceNumber","type":"long"},{"name":"Offset","type":"string"},{"name":"EnqueuedTimeUtc","type":"string"},` +
	`{"name":"SystemProperties","type":{"type":"map","values":["long","double","string","bytes"]}},` +
	`{"name":"Properties","type":{"type":"map","values":["long","double","string","bytes"]}},{"name":"Body","type":["null","bytes"]}]}`

// CaptureTime is the layout in which Capture writes EnqueuedTimeUtc.
const CaptureTime = "1/2/2006 3:04:05 PM"

// Event is one event as a hub delivered it.
type Event struct {
	SequenceNumber   int64
	Offset           string
	Enqueued         time.Time
	SystemProperties map[string]any // of int64, float64, string, []byte
	Properties       map[string]any
	Body             []byte // nil: the event has none
}

func (e Event) record() map[string]any {
	record := map[string]any{
		"SequenceNumber": e.SequenceNumber, "Offset": e.Offset, "EnqueuedTimeUtc": e.Enqueued.UTC().Format(CaptureTime),
		"SystemProperties": orEmpty(e.SystemProperties), "Properties": orEmpty(e.Properties), "Body": nil,
	}
	if e.Body != nil {
		record["Body"] = e.Body
	}
	return record
}

func orEmpty(m map[string]any) map[string]any {
	if m == nil {
		return map[string]any{}
	}
	return m
}

// Sync is the marker behind every block of these files.
const Sync = "sixteen-bytes-so"

// Header begins a container of records of any schema.
func Header(schema, codec string) []byte {
	out := append([]byte("Obj\x01"), 4) // two entries
	for _, text := range []string{"avro.schema", schema, "avro.codec", codec} {
		out = binary.AppendVarint(out, int64(len(text)))
		out = append(out, text...)
	}
	return append(append(out, 0), Sync...)
}

// AppendBlock appends a block of count records.
func AppendBlock(out []byte, codec string, count int, records []byte) ([]byte, error) {
	stored, err := compress(codec, records)
	if err != nil {
		return nil, fmt.Errorf("compress a block with %s: %w", codec, err)
	}
	out = binary.AppendVarint(out, int64(count))
	out = binary.AppendVarint(out, int64(len(stored)))
	return append(append(out, stored...), Sync...), nil
}

func compress(codec string, data []byte) ([]byte, error) {
	var out bytes.Buffer
	var w io.WriteCloser
	var err error
	switch codec {
	case "null":
		return data, nil
	case "snappy":
		return binary.BigEndian.AppendUint32(snappy.Encode(nil, data), crc32.ChecksumIEEE(data)), nil
	case "deflate":
		w, err = flate.NewWriter(&out, flate.DefaultCompression)
	case "zstandard":
		w, err = zstd.NewWriter(&out, zstd.WithEncoderConcurrency(1))
	default:
		return nil, errors.New("no such codec")
	}
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
