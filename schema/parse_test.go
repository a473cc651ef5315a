package schema

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseGivesEveryVectorItsVerdict(t *testing.T) {
	t.Parallel()
	vectors := readVectors(t)
	require.GreaterOrEqual(t, len(vectors), 90)
	for _, v := range vectors {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			objects := v.parser(t).Parse(v.body, v.attrs)
			got := make([]string, 0, len(objects))
			for i, object := range objects {
				require.Equal(t, i, object.Index)
				if !v.inner {
					require.True(t, bytes.Contains(v.body, object.Raw), "raw is no part of the body: %q", object.Raw)
				}
				got = append(got, verdictLine(t, object))
			}
			require.Len(t, got, len(v.wants), "%s", strings.Join(got, "\n"))
			for i, want := range v.wants {
				if strings.HasPrefix(want, "fault:") {
					// A vector names the code, the field and as much of the message as matters.
					require.True(t, strings.HasPrefix(got[i], want), "object %d\nwant %s\ngot  %s", i, want, got[i])
					continue
				}
				require.Equal(t, want, got[i])
			}
		})
	}
}

func TestVectorsCoverEveryFaultCode(t *testing.T) {
	t.Parallel()
	seen := map[FaultCode]bool{}
	for _, v := range readVectors(t) {
		for _, object := range v.parser(t).Parse(v.body, v.attrs) {
			if object.Fault != nil {
				seen[object.Fault.Code] = true
			}
		}
	}
	for _, code := range FaultCodes() {
		require.True(t, seen[code], "no vector shows %s", code)
	}
	require.Len(t, seen, len(FaultCodes()))
}

// FuzzParse starts from the vectors. The configuration is picked by a byte so that mapped and
// unmapped parsers and every period format are all reached.
func FuzzParse(f *testing.F) {
	for i, v := range readVectors(f) {
		f.Add(v.body, byte(i))
	}
	f.Fuzz(func(t *testing.T, body []byte, pick byte) {
		cfg := fuzzConfig(pick)
		p, err := NewParser(cfg)
		require.NoError(t, err)
		plain, err := NewParser(ParserConfig{Namespace: cfg.Namespace, PeriodFormat: cfg.PeriodFormat})
		require.NoError(t, err)
		before := bytes.Clone(body)
		objects := p.Parse(body, nil)
		require.Equal(t, before, body, "parse changed the body")
		require.NotEmpty(t, objects)
		require.LessOrEqual(t, len(objects), cfg.MaxBodyBytes/minEventBytes+4)
		kept := 0
		for _, object := range objects {
			kept += len(object.Raw)
		}
		require.LessOrEqual(t, kept, maxKept*len(body), "what is kept of a body is no multiple of it")
		for i, object := range objects {
			require.Equal(t, i, object.Index)
			if object.Fault != nil {
				require.Equal(t, BillingEvent{}, object.Event)
				require.Contains(t, FaultCodes(), object.Fault.Code)
				require.NotEmpty(t, object.Fault.Message)
				require.Less(t, len(object.Fault.Message), 1024)
				continue
			}
			requireStable(t, plain, object.Event)
		}
	})
}

// maxKept is how often a byte of a body can be kept as raw: once in its object, and once more when the body ends with an array that
// is never closed and has nothing behind its last object to show instead of the whole.
const maxKept = 2

func TestBytesOfManyPartsAreKeptOnce(t *testing.T) {
	t.Parallel()
	p, err := NewParser(ParserConfig{Namespace: "n"})
	require.NoError(t, err)
	for name, unit := range map[string]string{
		"empty arrays on lines":     "[]\n",
		"arrays of empty arrays":    "[[]]\n",
		"arrays of scalars":         "[1,2]\n",
		"arrays and text":           "[]x\n",
		"objects cut off on lines":  "{\"a\":\n",
		"envelopes on lines":        `{"specversion":"1.0","data":[]}` + "\n",
		"envelopes of open arrays":  `{"specversion":"1.0","data":"[{},"}` + "\n",
		"braces on lines of spaces": " {\n",
	} {
		body := strings.Repeat(unit, 60_000/len(unit))
		kept := 0
		for _, object := range p.Parse([]byte(body), nil) {
			kept += len(object.Raw)
		}
		require.LessOrEqual(t, kept, maxKept*len(body), name)
	}
}

// requireStable encodes a valid event and expects to read the same event with the same key.
func requireStable(tb testing.TB, plain *Parser, event BillingEvent) {
	tb.Helper()
	require.NoError(tb, CheckAmount(event.AmountCents, event.Currency))
	encoded, err := event.AppendJSON(nil)
	require.NoError(tb, err)
	again := plain.Parse(encoded, nil)
	require.Len(tb, again, 1)
	require.Nil(tb, again[0].Fault, "%s", encoded)
	require.Equal(tb, event, again[0].Event)
	require.Equal(tb, event.Key("n"), again[0].Event.Key("n"))
	require.Equal(tb, encoded, again[0].Raw)
}

func fuzzConfig(pick byte) ParserConfig {
	formats := []PeriodFormat{PeriodMonth, PeriodDay, PeriodWeek, PeriodQuarter, PeriodYear}
	cfg := ParserConfig{Namespace: "n", PeriodFormat: formats[int(pick)%len(formats)], MaxBodyBytes: 64 << 10}
	if pick >= 128 {
		cfg.Mapping = Mapping{FieldCustomerID: "/subject", FieldAmountCents: "/data/total"}
	}
	return cfg
}

func TestBodyWithoutObjectsIsNeverSilence(t *testing.T) {
	t.Parallel()
	p, err := NewParser(ParserConfig{Namespace: "n"})
	require.NoError(t, err)
	for _, body := range [][]byte{nil, {}, []byte("\n\n"), []byte("[]"), []byte(byteOrderMark)} {
		objects := p.Parse(body, nil)
		require.Len(t, objects, 1, "%q", body)
		require.NotNil(t, objects[0].Fault)
	}
}

func TestMisspeltFieldBehindManyUnknownNamesIsFound(t *testing.T) {
	t.Parallel()
	p, err := NewParser(ParserConfig{Namespace: "n"})
	require.NoError(t, err)
	var unknown strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&unknown, `,"extra_%d":1`, i)
	}
	for _, misspelt := range []string{"Currency", "curency"} {
		body := `{"customer_id":"cus_1","billing_period":"2026-08","amount_cents":100` + unknown.String() + `,"` + misspelt + `":"jpy"}`
		objects := p.Parse([]byte(body), nil)
		require.Len(t, objects, 1)
		require.NotNil(t, objects[0].Fault, "100 yen would be charged as dollars")
		require.Equal(t, FaultMisspeltField, objects[0].Fault.Code)
	}
}

func TestFaultKeepsForeignContentOut(t *testing.T) {
	t.Parallel()
	p, err := NewParser(ParserConfig{Namespace: "n"})
	require.NoError(t, err)
	const secret = "secret-4242"
	bodies := []string{
		`{"email":"` + secret + `","customer_id":"cus_1"}`,
		`{"email":"` + secret + `","email":"` + secret + `"}`,
		`{"description":"` + secret + `\u0000","customer_id":"cus_1","billing_period":"2026-08","amount_cents":1}`,
		`{"customer_id":"` + secret + `:"}`,
		`{"customer_id":"` + secret + `","billing_period":"2026-08","amount_cents":1}`,
		`{"email":"` + secret + `" x}`,
		secret,
		`"` + secret + `"`,
		`{"amount_cents":"` + secret + `","customer_id":"cus_1","billing_period":"2026-08"}`,
		`{"payment_method":"` + secret + `","customer_id":"cus_1","billing_period":"2026-08","amount_cents":1}`,
	}
	for _, body := range bodies {
		objects := p.Parse([]byte(body), nil)
		require.Len(t, objects, 1)
		require.NotNil(t, objects[0].Fault, "%s", body)
		require.NotContains(t, objects[0].Fault.Error(), secret)
	}
}

func TestParserForgetsTheBodyBefore(t *testing.T) {
	t.Parallel()
	cfg := ParserConfig{Namespace: "n"}
	shared, err := NewParser(cfg)
	require.NoError(t, err)
	vectors := readVectors(t)
	var group sync.WaitGroup
	results := make([][][]Object, 4)
	for i := range results {
		group.Go(func() {
			for _, v := range vectors {
				results[i] = append(results[i], shared.Parse(v.body, v.attrs))
			}
		})
	}
	group.Wait()
	for i, v := range vectors {
		fresh, err := NewParser(cfg)
		require.NoError(t, err)
		want := fresh.Parse(v.body, v.attrs)
		for _, result := range results {
			require.Equal(t, want, result[i], v.name)
		}
	}
}

func TestNewParserRefusesBadConfiguration(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]ParserConfig{
		"namespace":     {Namespace: "A"},
		"period format": {Namespace: "n", PeriodFormat: "fortnight"},
		"mapping":       {Namespace: "n", Mapping: Mapping{"amount": "/a"}},
		"pointer":       {Namespace: "n", Mapping: Mapping{FieldCurrency: "a"}},
		"limit":         {Namespace: "n", MaxBodyBytes: -1},
	} {
		_, err := NewParser(cfg)
		require.Error(t, err, name)
	}
}

func BenchmarkParse(b *testing.B) {
	p, err := NewParser(ParserConfig{Namespace: "n"})
	require.NoError(b, err)
	body := []byte(`{"customer_id":"customer-000017","stripe_customer_id":"cus_NffrFeUfNV2Hib","amount_cents":4200,"billing_period":"2026-08"}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if objects := p.Parse(body, nil); objects[0].Fault != nil {
			b.Fatal(objects[0].Fault)
		}
	}
}

// vector is one file of testdata/events: header lines, a line of three dashes, the body. The last
// newline of the file belongs to the file. Header lines:
//
//	# why the vector exists
//	period:, map:, attr: (name=value), max: (bytes)   the parser's configuration
//	encoding: go     the body is written with Go's escapes, for bytes that no editor keeps
//	inner: yes       the objects lie inside an encoded string, so their bytes are not the body's
//	event: / fault:  the verdicts, one for each object, in order
type vector struct {
	name  string
	cfg   ParserConfig
	attrs map[string]string
	inner bool
	wants []string
	body  []byte
}

func (v vector) parser(tb testing.TB) *Parser {
	tb.Helper()
	p, err := NewParser(v.cfg)
	require.NoError(tb, err, v.name)
	return p
}

func verdictLine(tb testing.TB, object Object) string {
	tb.Helper()
	if f := object.Fault; f != nil {
		field := f.Field
		if field == "" {
			field = "-"
		}
		return fmt.Sprintf("fault: %s %s %s", f.Code, field, f.Message)
	}
	encoded, err := object.Event.AppendJSON([]byte("event: "))
	require.NoError(tb, err)
	return string(encoded)
}

func readVectors(tb testing.TB) []vector {
	tb.Helper()
	dir := os.DirFS("testdata/events")
	paths, err := fs.Glob(dir, "*.txt")
	require.NoError(tb, err)
	require.NotEmpty(tb, paths)
	vectors := make([]vector, 0, len(paths))
	for _, path := range paths {
		vectors = append(vectors, readVector(tb, dir, path))
	}
	return vectors
}

func readVector(tb testing.TB, dir fs.FS, path string) vector {
	tb.Helper()
	text, err := fs.ReadFile(dir, path)
	require.NoError(tb, err)
	header, body, found := strings.Cut(string(text), "\n---\n")
	require.True(tb, found, "%s has no line of three dashes", path)
	v := vector{name: strings.TrimSuffix(path, ".txt"), cfg: ParserConfig{Namespace: "n"}, attrs: map[string]string{}}
	body = strings.TrimSuffix(body, "\n")
	var mapping []string
	for line := range strings.SplitSeq(header, "\n") {
		key, value, _ := strings.Cut(line, ": ")
		switch key {
		case "period":
			v.cfg.PeriodFormat = PeriodFormat(value)
		case "map":
			mapping = append(mapping, value)
		case "attr":
			name, content, _ := strings.Cut(value, "=")
			v.attrs[name] = content
		case "max":
			v.cfg.MaxBodyBytes, err = strconv.Atoi(value)
			require.NoError(tb, err, path)
		case "encoding":
			require.Equal(tb, "go", value, path)
			body, err = strconv.Unquote(`"` + body + `"`)
			require.NoError(tb, err, path)
		case "inner":
			v.inner = true
		case "event", "fault":
			v.wants = append(v.wants, line)
		default:
			require.True(tb, strings.HasPrefix(line, "# "), "%s: header line %q", path, line)
		}
	}
	require.NotEmpty(tb, v.wants, path)
	v.cfg.Mapping, err = ParseMapping(mapping)
	require.NoError(tb, err, path)
	v.body = []byte(body)
	return v
}
