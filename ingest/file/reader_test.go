package file

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"chargeonce/ingest/file/filetest"
	"chargeonce/schema"
)

const path = "/data/events"

// readAll reads content as the file of that name.
func readAll(tb testing.TB, name string, content []byte, cfg Config) ([]record, error) {
	tb.Helper()
	var read atomic.Int64
	r, err := newReader(name, bytes.NewReader(content), cfg.withDefaults(), &read)
	if err != nil {
		return nil, err
	}
	var all []record
	for {
		next, err := r.next()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, next)
	}
}

func mustRead(t *testing.T, name, content string, cfg Config) []record {
	t.Helper()
	all, err := readAll(t, name, []byte(content), cfg)
	require.NoError(t, err)
	return all
}

// show writes records as "place body" lines, a fault's code and what it says behind.
func show(records []record) string {
	var out strings.Builder
	for _, r := range records {
		fmt.Fprintf(&out, "%s %s", strings.TrimPrefix(r.Position, path), r.Body)
		if r.Unreadable != nil {
			fmt.Fprintf(&out, " !%s", r.Unreadable.Code)
		}
		if r.lost {
			out.WriteString(" LOST")
		}
		out.WriteString("\n")
	}
	return out.String()
}

func TestTextIsTakenApartWithItsPlaces(t *testing.T) {
	t.Parallel()
	for title, test := range map[string]struct {
		name, content string
		cfg           Config
		want          string
	}{
		"lines":                        {"", "{\"a\":1}\n{\"a\":2}\n", Config{}, ":1 {\"a\":1}\n:2 {\"a\":2}\n"},
		"a line without end":           {"", "{\"a\":1}\n{\"a\":2}", Config{}, ":1 {\"a\":1}\n:2 {\"a\":2}\n"},
		"byte-order mark, CRLF, blank": {"", "\xef\xbb\xbf{\"a\":1}\r\n\r\n  \n{\"a\":2}\r\n", Config{}, ":1 {\"a\":1}\r\n:4 {\"a\":2}\r\n"},
		"a bad line between good":      {"", "{\"a\":1}\n{\"a\":\n{\"a\":3}\n", Config{}, ":1 {\"a\":1}\n:2 {\"a\":\n:3 {\"a\":3}\n"},
		"a first line that is bad":     {"", "{oops}\n{\"a\":2}\n", Config{}, ":1 {oops}\n:2 {\"a\":2}\n"},
		"arrays on lines":              {".ndjson", "[{},{}]\n[{}]\n", Config{}, ":1 [{},{}]\n:2 [{}]\n"},
		"a line too long":              {"", "{\"a\":1}\n{\"a\":\"xxxxxxxxxxxxxxxxxxxxxxxxxx\"}\n{\"a\":3}\n", Config{MaxBodyBytes: 20}, ":1 {\"a\":1}\n:2 {\"a\":\"xxxxxxxxxxxxxx !body_too_large\n:3 {\"a\":3}\n"},
		"nothing":                      {"", "", Config{}, ""},
		"blank":                        {"", "\n \r\n", Config{}, ""},
		"an array":                     {"", "[ {\"a\":1} ,\n[2,[]],\"x\",-1.5e+3,null\n]\n", Config{}, "[0] {\"a\":1}\n[1] [2,[]]\n[2] \"x\"\n[3] -1.5e+3\n[4] null\n"},
		"an empty array":               {"", " [ ] ", Config{}, ""},
		"arrays one after the other":   {"", "[{\"a\":1}]\n[{\"a\":2}]", Config{}, "[0] {\"a\":1}\n[1] {\"a\":2}\n"},
		"an object over several lines": {".json", "{\n \"a\": 1\n}\n{\n \"a\": 2\n}\n", Config{}, "[0] {\n \"a\": 1\n}\n[1] {\n \"a\": 2\n}\n"},
		"one object":                   {".json", "{\"a\":1}", Config{}, ":1 {\"a\":1}\n"},
		"strings with structure":       {"", `[{"a":"}],[\"\\"},{"b":"\u00e9"}]`, Config{}, "[0] {\"a\":\"}],[\\\"\\\\\"}\n[1] {\"b\":\"\\u00e9\"}\n"},
		"an array cut off":             {"", `[{"a":1},{"a":`, Config{}, "[0] {\"a\":1}\n[1] {\"a\": !broken_array LOST\n"},
		"an array cut off at a comma":  {"", `[{"a":1},`, Config{}, "[0] {\"a\":1}\n[1] /data/events !broken_array LOST\n"},
		"an array that is not closed":  {"", `[{"a":1}`, Config{}, "[0] {\"a\":1}\n[1] /data/events !broken_array LOST\n"},
		"an array with a bad element":  {"", `[{"a":1},{oops},{"a":3}]`, Config{}, "[0] {\"a\":1}\n[1] {o !broken_array LOST\n"},
		"an array without a comma":     {"", `[{"a":1} {"a":2}]`, Config{}, "[0] {\"a\":1}\n[1] { !broken_array LOST\n"},
		"an array with a last comma":   {"", `[{"a":1},]`, Config{}, "[0] {\"a\":1}\n[1] ] !broken_array LOST\n"},
		"an element too long":          {"", `[{"a":1},{"a":"xxxxxxxxxxxxxxxxxxxx"},{"a":3}]`, Config{MaxBodyBytes: 10}, "[0] {\"a\":1}\n[1] {\"a\":\"xxxx !body_too_large\n[2] {\"a\":3}\n"},
		"rows": {
			".csv", "customer_id,billing_period,amount_cents,note\ncus_a,2026-08,5,\n\"cus_b\",2026-08,0,\"x \"\"y\"\", z\"\n",
			Config{},
			":2 {\"customer_id\":\"cus_a\",\"billing_period\":\"2026-08\",\"amount_cents\":5}\n:3 {\"customer_id\":\"cus_b\",\"billing_period\":\"2026-08\",\"amount_cents\":0,\"note\":\"x \\\"y\\\", z\"}\n",
		},
		"rows with mark, CRLF, semicolons, line breaks in quotes": {
			".csv", "\xef\xbb\xbfamount_cents;customer_id;billing_period\r\n5;\"a\r\nb\";2026-08\r\n\r\n7;c;2026-08",
			Config{CSVDelimiter: ';'},
			":2 {\"amount_cents\":5,\"customer_id\":\"a\\r\\nb\",\"billing_period\":\"2026-08\"}\n:5 {\"amount_cents\":7,\"customer_id\":\"c\",\"billing_period\":\"2026-08\"}\n",
		},
		"a row with too few fields":   {".csv", header + "a,b\nc,2026-08,3\n", Config{}, ":2 a,b !csv_columns\n:3 {\"customer_id\":\"c\",\"billing_period\":\"2026-08\",\"amount_cents\":3}\n"},
		"a row with a stray quote":    {".csv", header + "a,b\"c,3\n\"a\"b,c,3\nc,2026-08,3\n", Config{}, ":2 a,b\"c,3 !csv_quote\n:3 \"a\"b,c,3 !csv_quote\n:4 {\"customer_id\":\"c\",\"billing_period\":\"2026-08\",\"amount_cents\":3}\n"},
		"a row that is not UTF-8":     {".csv", header + "a\xff,2026-08,3\n", Config{}, ":2 a\xff,2026-08,3 !not_utf8\n"},
		"a row too long":              {".csv", header + strings.Repeat("x", 80) + ",2026-08,3\nc,2026-08,3\n", Config{MaxBodyBytes: 60}, ":2 " + strings.Repeat("x", 60) + " !body_too_large\n:3 {\"customer_id\":\"c\",\"billing_period\":\"2026-08\",\"amount_cents\":3}\n"},
		"a quote that is not closed":  {".csv", header + "c,2026-08,3\n\"d,2026-08,3\ne,2026-08,3\n", Config{}, ":2 {\"customer_id\":\"c\",\"billing_period\":\"2026-08\",\"amount_cents\":3}\n:3 \"d,2026-08,3\ne,2026-08,3\n !csv_quote LOST\n"},
		"a quoted field far too long": {".csv", header + "\"" + strings.Repeat("x\n", 50) + "\",2026-08,3\n", Config{MaxBodyBytes: 60}, ":2 \"" + strings.Repeat("x\n", 29) + "x !csv_quote LOST\n"},
		"amounts that are no integer": {".csv", header + "a,b,12.50\na,b,1e3\na,b,007\na,b,+5\na,b, 5\na,b,-5\na,b,\n", Config{}, `:2 {"customer_id":"a","billing_period":"b","amount_cents":"12.50"} !wrong_type
:3 {"customer_id":"a","billing_period":"b","amount_cents":"1e3"} !wrong_type
:4 {"customer_id":"a","billing_period":"b","amount_cents":"007"} !wrong_type
:5 {"customer_id":"a","billing_period":"b","amount_cents":"+5"} !wrong_type
:6 {"customer_id":"a","billing_period":"b","amount_cents":" 5"} !wrong_type
:7 {"customer_id":"a","billing_period":"b","amount_cents":-5}
:8 {"customer_id":"a","billing_period":"b"}
`},
		"mapped columns": {
			".csv", "id,period,total/net\n7,2026-08,900\n",
			Config{Mapping: schema.Mapping{"customer_id": "/id", "billing_period": "/period", "amount_cents": "/total~1net"}},
			":2 {\"id\":\"7\",\"period\":\"2026-08\",\"total/net\":900}\n",
		},
		"tabs": {".tsv", "customer_id\tbilling_period\tamount_cents\na\tb\t1\n", Config{}, ":2 {\"customer_id\":\"a\",\"billing_period\":\"b\",\"amount_cents\":1}\n"},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			want := strings.ReplaceAll(test.want, path, path+test.name)
			got := strings.ReplaceAll(show(mustRead(t, path+test.name, test.content, test.cfg)), path+test.name+"[", "[")
			got = strings.ReplaceAll(got, test.name+":", ":")
			got = strings.ReplaceAll(got, test.name+"[", "[")
			require.Equal(t, want, got)
		})
	}
}

const header = "customer_id,billing_period,amount_cents\n"

// A reason must tell a producer's developer what to do.
func TestReasonsSayWhereAndWhatToDo(t *testing.T) {
	t.Parallel()
	for title, test := range map[string]struct {
		name, content string
		want          []string
	}{
		"unclosed array":   {"", "[{\"a\":1},\n {\"a\":2}", []string{"line 2, byte 18", "closing bracket", "cut off"}},
		"broken array":     {"", "[{\"a\":1},\n {\"a\" 2}]", []string{"line 2, byte 17", "a colon belongs here", "what follows is not read"}},
		"line in a string": {"", "[\"a\n\"]", []string{"line break", "quote is missing"}},
		"csv amount":       {".csv", header + "a,b,12.50", []string{"amount_cents", `"12.50"`, "whole number", "1250"}},
		"csv fields":       {".csv", header + "a,b,c,d", []string{"4 fields", "the header has 3", "quote"}},
		"csv open quote":   {".csv", header + "a,\"b\nc,d,1\n", []string{"not end within 11 bytes", "close the quote"}},
		"long line":        {".ndjson", strings.Repeat("x", 2<<20), []string{"2097152 bytes", "at most 1048576", "first 16384 bytes"}},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			all := mustRead(t, path+test.name, test.content, Config{})
			fault := all[len(all)-1].Unreadable
			require.NotNil(t, fault)
			for _, want := range test.want {
				require.Contains(t, fault.Message, want)
			}
			require.LessOrEqual(t, len(all[len(all)-1].Body), prefixBytes)
		})
	}
}

// Nothing is recorded of a file whose columns cannot be right: the sentence names the cure.
func TestHeadersThatCannotWorkAreRefused(t *testing.T) {
	t.Parallel()
	for title, test := range map[string]struct {
		content string
		cfg     Config
		want    []string
	}{
		"a column twice":        {"customer_id,billing_period,amount_cents,customer_id\n", Config{}, []string{`column "customer_id" is there twice`, "take one out"}},
		"a column without name": {"customer_id,billing_period,amount_cents,\n", Config{}, []string{"column 4 has no name"}},
		"a column missing":      {"customer_id,period,amount_cents\n", Config{}, []string{`column "billing_period" for field billing_period is missing among customer_id, period, amount_cents`, "--map billing_period=/COLUMN"}},
		"a mapped one missing":  {header, Config{Mapping: schema.Mapping{"currency": "/cur"}}, []string{`column "cur" for field currency is missing`}},
		"another delimiter":     {"customer_id;billing_period;amount_cents\n", Config{}, []string{"--csv-delimiter ';'"}},
		"a misspelt one":        {"customer_id,billing_period,amount_cents,Currency\n", Config{}, []string{`"Currency" is misspelt`, `"currency"`}},
		"an inner object":       {header, Config{Mapping: schema.Mapping{"currency": "/data/cur"}}, []string{"--map currency=/data/cur leads into an object"}},
		"an open quote":         {"\"customer_id,billing_period\n", Config{}, []string{"does not close"}},
		"a stray quote":         {"customer_id,b\"x\n", Config{}, []string{"quote"}},
		"not UTF-8":             {"customer_id,b\xff\n", Config{}, []string{"not UTF-8"}},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			_, err := readAll(t, path+".csv", []byte(test.content), test.cfg)
			require.ErrorIs(t, err, ErrHeader)
			for _, want := range test.want {
				require.Contains(t, err.Error(), want)
			}
		})
	}
}

func TestFormatIsToldByContentAndName(t *testing.T) {
	t.Parallel()
	utf16 := "\xff\xfe{\x00}\x00"
	for title, test := range map[string]struct {
		name, content string
		want          Format
		problem       string
	}{
		"object on a line":           {"x", "{\"a\":1}\n", FormatNDJSON, ""},
		"object over lines":          {"x.json", "{\n\"a\":1}", FormatJSON, ""},
		"large object over lines":    {"x.json", "{\n\"a\":\"" + strings.Repeat("x", 2*bufferBytes) + "\"}", FormatJSON, ""},
		"large object on a line":     {"x.json", "{\"a\":\"" + strings.Repeat("x", 2*bufferBytes) + "\"}", FormatNDJSON, ""},
		"array":                      {"x", " [", FormatJSON, ""},
		"array in a file of lines":   {"x.jsonl", "[1]\n[2]", FormatNDJSON, ""},
		"csv":                        {"X.CSV", "a,b", FormatCSV, ""},
		"zipped csv":                 {"x.csv.gz", "a,b", FormatCSV, ""},
		"capture, whatever its name": {"x.csv", "Obj\x01", FormatCapture, ""},
		"rubbish in an avro file":    {"x.avro", "rubbish", FormatCapture, ""},
		"rubbish in a json file":     {"x.json", "rubbish", FormatNDJSON, ""},
		"nothing":                    {"x.csv", "", formatEmpty, ""},
		"text":                       {"README", "hello", "", "cannot be told from its first bytes"},
		"UTF-16":                     {"x.json", utf16, "", "UTF-16, save it as UTF-8"},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			var read atomic.Int64
			in, err := newInput(strings.NewReader(test.content), &read)
			require.NoError(t, err)
			got, err := detect(test.name, in)
			require.Equal(t, test.want, got)
			if test.problem != "" {
				require.ErrorIs(t, err, ErrNoFormat)
				require.Contains(t, err.Error(), test.problem)
			}
		})
	}
}

func zipped(t *testing.T, content string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write([]byte(content))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return out.Bytes()
}

func TestGzipIsReadAndItsBreakIsReported(t *testing.T) {
	t.Parallel()
	lines := strings.Repeat("{\"a\":1}\n", 100_000)
	whole := zipped(t, lines)
	all, err := readAll(t, path+".json.gz", whole, Config{})
	require.NoError(t, err)
	require.Len(t, all, 100_000)

	for title, content := range map[string][]byte{
		"cut off": whole[:len(whole)/2], "rubbish behind": append(bytes.Clone(whole), "rubbish"...), "wrong checksum": flip(whole, len(whole)-6),
		"no header": append([]byte("\x1f\x8b"), "rubbish"...),
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			for _, name := range []string{path + ".json.gz", path + ".csv.gz"} {
				all, err := readAll(t, name, content, Config{Format: FormatNDJSON})
				require.NoError(t, err)
				last := all[len(all)-1]
				require.True(t, last.lost)
				require.Equal(t, faultUnreadable, last.Unreadable.Code)
				require.Contains(t, last.Unreadable.Message, "cannot be decompressed after")
				for _, r := range all[:len(all)-1] {
					require.Nil(t, r.Unreadable)
				}
			}
			for _, name := range []string{path + ".csv.gz", path + ".avro.gz"} {
				all, err := readAll(t, name, append([]byte("\x1f\x8b"), "rubbish"...), Config{})
				require.NoError(t, err)
				require.Len(t, all, 1)
				require.True(t, all[0].lost)
			}
		})
	}
}

func flip(content []byte, at int) []byte {
	out := bytes.Clone(content)
	out[at] ^= 0x55
	return out
}

// A disk that fails says nothing about the content: nothing is quarantined for it.
func TestErrorOfTheSystemIsNoFaultOfTheFile(t *testing.T) {
	t.Parallel()
	broken := errors.New("input/output error")
	for _, content := range []string{"{\"a\":1}\n{\"a\":", "[{\"a\":1},{\"a\":", "\x1f\x8b"} {
		var read atomic.Int64
		r, err := newReader(path, io.MultiReader(strings.NewReader(content), failing{broken}), Config{Format: FormatAuto, MaxBodyBytes: 100}, &read)
		for err == nil {
			_, err = r.next()
		}
		if !strings.HasPrefix(content, "\x1f") {
			require.ErrorIs(t, err, broken)
		}
	}
}

func TestCaptureFilesOfOtherWritersAreRead(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/capture/*.avro")
	require.NoError(t, err)
	require.Len(t, files, 6, "hamba with four codecs, avsc with two")
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			content, err := os.ReadFile(name) //nolint:gosec // a file of testdata
			require.NoError(t, err)
			all, err := readAll(t, "/c/ns/hub/3/2026/08/31/23/59/58.avro", content, Config{})
			require.NoError(t, err)
			require.Len(t, all, 7)
			for i, r := range all[:6] {
				require.Nil(t, r.Unreadable)
				require.JSONEq(t, fmt.Sprintf(`{"customer_id":"cus_%d","billing_period":"2026-08","amount_cents":%d}`, i, 100*i), string(r.Body))
				require.Equal(t, fmt.Sprintf("/c/ns/hub/3/2026/08/31/23/59/58.avro[%d]", i), r.Position)
				require.Equal(t, "avro", r.Partition)
				require.Equal(t, time.Date(2026, 8, 31, 23, 59, 58, 0, time.UTC), r.EnqueuedAt)
				require.Equal(t, map[string]string{
					"sequence_number": fmt.Sprint(40 + i), "offset": fmt.Sprint(1000 + 100*i), "partition_key": "tenant-1",
					"eventhub_namespace": "ns", "eventhub": "hub", "partition": "3",
				}, r.Detail)
				require.Equal(t, map[string]string{"cloudEvents:specversion": "1.0", "x-opt-partition-key": "tenant-1"}, r.Attrs)
			}
			require.Empty(t, all[6].Body)
			require.Nil(t, all[6].Unreadable, "that it has no body is for the parser to say")
		})
	}
}

func captureFile(tb testing.TB, codec string, perBlock, events int) []byte {
	tb.Helper()
	all := make([]filetest.Event, events)
	for i := range all {
		all[i] = filetest.Event{SequenceNumber: int64(i), Offset: "1", Enqueued: time.Date(2026, 8, 1, 0, 0, 0, 0, time.UTC), Body: []byte(fmt.Sprintf(`{"n":%d}`, i))}
	}
	content, err := filetest.Capture(codec, perBlock, all...)
	require.NoError(tb, err)
	return content
}

func TestBrokenCaptureFileKeepsWhatCanBeRead(t *testing.T) {
	t.Parallel()
	whole := captureFile(t, "null", 3, 9)
	blocks := make([]int, 0, 4) // where each sync marker ends
	for at := 0; ; {
		next := bytes.Index(whole[at:], []byte(filetest.Sync))
		if next < 0 {
			break
		}
		at += next + len(filetest.Sync)
		blocks = append(blocks, at)
	}
	require.Len(t, blocks, 4)
	const sync = len(filetest.Sync)
	for title, test := range map[string]struct {
		content []byte
		want    string
	}{
		"cut off in a block":           {whole[:blocks[2]-sync-1], "0 1 2 [3]LOST"},
		"cut off in a marker":          {whole[:blocks[2]-3], "0 1 2 [3]LOST"},
		"cut off behind a block":       {whole[:blocks[2]], "0 1 2 3 4 5"},
		"cut off in a block's head":    {whole[:blocks[2]+1], "0 1 2 3 4 5 [6]LOST"},
		"cut off in the header":        {whole[:50], "LOST"},
		"a wrong marker":               {flip(whole, blocks[2]-1), "0 1 2 [3]LOST"},
		"a record that breaks":         {flip(whole, bytes.Index(whole, []byte(`{"n":4}`))-1), "0 1 2 3 [4]LOST 6 7 8"},
		"a block that says one more":   {replaced(whole, blocks[1], 8), "0 1 2 3 4 5 [6]LOST 7 8 9"},
		"a block that says one fewer":  {replaced(whole, blocks[1], 4), "0 1 2 3 4 [5]LOST 6 7 8"},
		"a block of no records at all": {replaced(whole, blocks[1], 0), "0 1 2 [3]LOST 4 5 6"},
		"a block of minus one record":  {replaced(whole, blocks[1], 1), "0 1 2 [3]LOST"},
		"rubbish":                      {append([]byte("Obj\x01"), bytes.Repeat([]byte{0xff}, 100)...), "LOST"},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			all, err := readAll(t, path, test.content, Config{})
			require.NoError(t, err)
			var got []string
			for _, r := range all {
				place := strings.TrimPrefix(r.Position, path)
				if !r.lost {
					require.True(t, strings.HasPrefix(string(r.Body), `{"n":`), r.Body)
					got = append(got, strings.Trim(place, "[]"))
					continue
				}
				got = append(got, place+"LOST")
				require.Contains(t, r.Unreadable.Message, "broken")
				require.NotEmpty(t, r.Body)
			}
			require.Equal(t, test.want, strings.Join(got, " "))
		})
	}
}

// replaced sets one byte, such as the number of a block's records (twice it, as Avro writes it).
func replaced(content []byte, at int, b byte) []byte {
	out := bytes.Clone(content)
	out[at] = b
	return out
}

// A file of a few kB must not cost gigabytes.
func TestBlocksThatSwellAreRefused(t *testing.T) {
	t.Parallel()
	swelling := make([]byte, maxBlockBytes+1)
	for _, codec := range []string{"deflate", "snappy", "zstandard"} {
		content, err := filetest.AppendBlock(filetest.Header(filetest.CaptureSchema, codec), codec, 1, swelling)
		require.NoError(t, err)
		all, err := readAll(t, path, content, Config{})
		require.NoError(t, err)
		require.Len(t, all, 1, codec)
		require.True(t, all[0].lost)
		require.Contains(t, all[0].Unreadable.Message, "at most 67108864 bytes are read", codec)
	}
}

func TestOtherAvroRecordsAreRefusedByName(t *testing.T) {
	t.Parallel()
	for title, test := range map[string]struct{ schema, codec, want string }{
		"other fields":  {`{"type":"record","name":"Order","namespace":"shop","fields":[{"name":"Body","type":"bytes"}]}`, "null", "record shop.Order has no field SequenceNumber, Offset, EnqueuedTimeUtc; needed are SequenceNumber, Offset, EnqueuedTimeUtc, Body"},
		"other type":    {strings.Replace(filetest.CaptureSchema, `["null","bytes"]`, `["null","double"]`, 1), "null", "field Body of record Microsoft.ServiceBus.Messaging.EventData is of type double, and must be bytes or string"},
		"no records":    {`"string"`, "null", "of type string, and must be records"},
		"other codec":   {filetest.CaptureSchema, "bzip2", `unknown compression "bzip2"`},
		"recursive one": {`{"type":"record","name":"R","fields":[{"name":"r","type":["null","R"]}]}`, "null", "record R has no field"},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			_, err := readAll(t, path, filetest.Header(test.schema, test.codec), Config{})
			require.ErrorContains(t, err, test.want)
		})
	}
}

func TestCaptureSchemasThatDifferInDetailAreRead(t *testing.T) {
	t.Parallel()
	for title, change := range map[string][2]string{
		"body of bytes":  {`["null","bytes"]`, `"bytes"`},
		"body of string": {`["null","bytes"]`, `["string","null"]`},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			text := strings.Replace(filetest.CaptureSchema, change[0], change[1], 1)
			text = strings.Replace(text, `{"name":"Body"`, `{"name":"Extra","type":{"type":"array","items":["null",{"type":"fixed","name":"F","size":2},{"type":"enum","name":"E","symbols":["A"]}]}},{"name":"Body"`, 1)
			//                    seq  offset       time  sys props extra: 2 items fixed, null, end
			records := []byte("\x0e\x04" + "12" + "\x2a" + "2026-08-01T10:00:00.5" + "\x00\x00" + "\x06\x02ab\x00\x04\x00\x00")
			if title == "body of string" {
				records = append(records, 0)
			}
			records = append(records, "\x04{}"...)
			content, err := filetest.AppendBlock(filetest.Header(text, "null"), "null", 1, records)
			require.NoError(t, err)
			all, err := readAll(t, path, content, Config{})
			require.NoError(t, err)
			require.Len(t, all, 1)
			require.Nil(t, all[0].Unreadable, "%v", all[0].Unreadable)
			require.Equal(t, "{}", string(all[0].Body))
			require.Equal(t, "7", all[0].Detail["sequence_number"])
			require.Equal(t, time.Date(2026, 8, 1, 10, 0, 0, 500_000_000, time.UTC), all[0].EnqueuedAt)
		})
	}
}

func TestEnqueuedTimesOfEveryKind(t *testing.T) {
	t.Parallel()
	want := time.Date(2026, 8, 31, 16, 5, 9, 0, time.UTC)
	for _, text := range []string{
		"8/31/2026 4:05:09 PM", "08/31/2026 16:05:09", "2026-08-31T16:05:09Z", "2026-08-31T16:05:09.0000000Z", "2026-08-31T18:05:09+02:00",
		"2026-08-31T16:05:09", "2026-08-31 16:05:09",
	} {
		require.Equal(t, want, enqueuedAt(text, nil), text)
	}
	for _, n := range []int64{want.Unix(), want.UnixMilli(), want.UnixMicro()} {
		require.Equal(t, want, enqueuedAt(n, nil), n)
	}
	for _, none := range []any{"", "yesterday", int64(0), int64(-5), int64(1) << 62, nil, "1/1/0001 12:00:00 AM"} {
		require.True(t, enqueuedAt(none, nil).IsZero(), none)
	}
}
