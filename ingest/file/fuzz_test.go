package file

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"chargeonce/ingest/file/filetest"
)

// fuzzLimit is small, so that what is too long is found too.
const fuzzLimit = 200

// checkAccount holds the records against the bytes that they stand for: in order, without overlap, and with nothing between them but
// what separates.
func checkAccount(t *testing.T, content []byte, records []record, separates func(gap []byte) bool) {
	t.Helper()
	at := int64(0)
	if bytes.HasPrefix(content, []byte(byteOrderMark)) {
		at = int64(len(byteOrderMark))
	}
	positions := map[string]bool{}
	for i, r := range records {
		require.False(t, positions[r.Position], "position %s is there twice", r.Position)
		positions[r.Position] = true
		require.GreaterOrEqual(t, r.from, at)
		require.True(t, separates(content[at:r.from]), "passed over: %q", content[at:r.from])
		if r.lost {
			require.NotNil(t, r.Unreadable)
		}
		if r.Unreadable != nil {
			require.NotEmpty(t, r.Body)
			require.LessOrEqual(t, len(r.Body), prefixBytes)
		}
		if r.to == toEnd {
			require.True(t, r.lost)
			require.Len(t, records, i+1)
			return
		}
		require.GreaterOrEqual(t, r.to, r.from)
		at = r.to
	}
	require.True(t, separates(content[at:]), "passed over at the end: %q", content[at:])
}

func isSpace(gap []byte) bool { return len(bytes.Trim(gap, jsonSpace)) == 0 }

func FuzzLines(f *testing.F) {
	for _, seed := range []string{
		"", "\n", "{\"a\":1}\n{\"a\":2}\r\n\n[1,2]\n", "\xef\xbb\xbf{\"customer_id\":\"cus_1\"}", "{\"a\":\n\x00\xff\n", "x\r", "\xef\xbb\xbf",
		string(bytes.Repeat([]byte("x"), 3*fuzzLimit)) + "\n{}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		if bytes.HasPrefix(content, []byte("\x1f\x8b")) {
			return
		}
		records, err := readAll(t, "x", content, Config{Format: FormatNDJSON, MaxBodyBytes: fuzzLimit})
		require.NoError(t, err)
		checkAccount(t, content, records, isSpace)
		for _, r := range records {
			if r.Unreadable == nil {
				require.Equal(t, content[r.from:r.to], append(bytes.Clone(r.Body), content[r.from+int64(len(r.Body)):r.to]...))
				require.True(t, isSpace(content[r.from+int64(len(r.Body)):r.to]))
			}
		}
	})
}

func FuzzArray(f *testing.F) {
	for _, seed := range []string{
		"[]", "[{\"a\":1},{\"a\":[1,{\"b\":\"]}\\\"\\u00e9\"}]}]\n[2]", "[1,,2]", "[1 2]", "[", "[\"a\nb\"]", "[{\"a\":tru}]", "[-0.5e+10,0,true,false,null]", "[01]",
		"{\n\"a\":1}\n{\"b\":2}", "[{\"a\":1}", "[1,]", "\xef\xbb\xbf[1]", "[\"\\ud800\"]", "[\"\xff\"]", "[1.]", "[1e]", "[-]", "[{\"a\":1,\"a\":2}]",
		"[\"" + string(bytes.Repeat([]byte("x"), 3*fuzzLimit)) + "\",1]", "[" + string(bytes.Repeat([]byte("["), 300)),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		if bytes.HasPrefix(content, []byte("\x1f\x8b")) {
			return
		}
		records, err := readAll(t, "x", content, Config{Format: FormatJSON, MaxBodyBytes: fuzzLimit})
		require.NoError(t, err)
		checkAccount(t, content, records, func(gap []byte) bool { return len(bytes.Trim(gap, jsonSpace+"[],")) == 0 })
		broken := false
		for _, r := range records {
			broken = broken || r.lost
			if r.Unreadable == nil {
				require.Equal(t, content[r.from:r.to], r.Body)
				require.True(t, jsontext.Value(r.Body).IsValid(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)), "%q", r.Body)
			}
		}
		// One value with nothing behind it is judged as the library judges it.
		valid := jsontext.Value(bytes.TrimPrefix(content, []byte(byteOrderMark))).IsValid(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
		if valid {
			require.False(t, broken, "%q", content)
		}
		if !valid && bytes.HasPrefix(content, []byte("[")) && !broken {
			_, behind, _ := bytes.Cut(content, []byte("]"))
			require.NotEmpty(t, behind, "%q", content)
		}
	})
}

func FuzzRows(f *testing.F) {
	for _, seed := range []string{
		"a,b,1\n", "\"a\",\"b \"\"x\"\"\n\",12.50\r\n\r\na,b", "\"a", "a\"b,c,1\n", "\"a\"b,c,1", ",,\n", "a,b,1,d\n", "\xff,b,1", "a,b,\x00", "\r\n",
		string(bytes.Repeat([]byte("x"), 3*fuzzLimit)) + "\na,b,1", "\"" + string(bytes.Repeat([]byte("x\n"), fuzzLimit)) + "\",b,1\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, rows []byte) {
		content := append([]byte(header), rows...)
		records, err := readAll(t, "x", content, Config{Format: FormatCSV, MaxBodyBytes: fuzzLimit})
		require.NoError(t, err)
		checkAccount(t, content, records, func(gap []byte) bool { return isSpace(bytes.TrimPrefix(gap, []byte(header))) })
		for _, r := range records {
			if r.Unreadable == nil {
				require.True(t, jsontext.Value(r.Body).IsValid(), "%q", r.Body)
			}
		}
	})
}

func FuzzHeaderRow(f *testing.F) {
	f.Add([]byte("customer_id,billing_period,amount_cents\na,b,1"))
	f.Add([]byte("customer_id;billing_period;amount_cents"))
	f.Add([]byte("\"a,b\nc"))
	f.Fuzz(func(t *testing.T, content []byte) {
		_, err := readAll(t, "x.csv", content, Config{MaxBodyBytes: fuzzLimit})
		if err != nil {
			require.True(t, errors.Is(err, ErrHeader) || errors.Is(err, ErrNoFormat), "%v", err)
		}
	})
}

func FuzzCapture(f *testing.F) {
	files, err := filepath.Glob("testdata/capture/*.avro")
	require.NoError(f, err)
	for _, name := range files {
		content, err := os.ReadFile(name) //nolint:gosec // a file of testdata
		require.NoError(f, err)
		f.Add(content)
	}
	f.Add(captureFile(f, "null", 2, 5))
	f.Add(filetest.Header(filetest.CaptureSchema, "deflate"))
	huge := binary.AppendVarint(filetest.Header(filetest.CaptureSchema, "null"), 1<<40)
	f.Add(binary.AppendVarint(huge, 1<<50))
	f.Add(append(binary.AppendVarint(huge, 8), "12345678"+filetest.Sync...))
	f.Fuzz(func(t *testing.T, content []byte) {
		records, err := readAll(t, "x.avro", content, Config{Format: FormatCapture, MaxBodyBytes: fuzzLimit})
		if err != nil {
			require.True(t, errors.Is(err, ErrNotCapture) || errors.Is(err, errCodec), "%v", err)
			return
		}
		if bytes.HasPrefix(content, []byte("\x1f\x8b")) || bytes.HasPrefix(content, []byte(byteOrderMark)) {
			return
		}
		positions := map[string]bool{}
		at := int64(-1)
		for i, r := range records {
			require.False(t, positions[r.Position], "position %s is there twice", r.Position)
			positions[r.Position] = true
			require.GreaterOrEqual(t, r.from, at)
			at = r.from
			if r.to == toEnd {
				require.True(t, r.lost)
				require.Len(t, records, i+1)
			}
		}
	})
}
