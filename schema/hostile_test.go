package schema

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkParseHostile holds bodies of 1 MiB that a parser with a quadratic step would choke on; all
// must stay within the same order of time.
func BenchmarkParseHostile(b *testing.B) {
	p, err := NewParser(ParserConfig{Namespace: "n"})
	require.NoError(b, err)
	fill := func(unit string) string { return strings.Repeat(unit, DefaultMaxBodyBytes/len(unit)) }
	for name, body := range map[string]string{
		"open brackets":                   fill("["),
		"open objects":                    fill(`{"a":`),
		"open objects on lines":           fill("{\"a\":\n"),
		"open objects behind a whole one": "{}\n" + fill("{\"a\":\n"),
		"open arrays on lines":            "{}\n" + fill("{\"a\":[\n"),
		"lines of one byte":               fill("x\n"),
		"braces on lines":                 fill("{\n"),
		"scalars in array":                "[" + fill("1,"),
		"empty objects":                   "[" + fill("{},"),
		"repeated keys":                   "{" + fill(`"a":1,`),
		"unknown keys":                    `{"a":[` + fill(`{"customer_ie":1},`),
		"envelopes in array":              "[" + fill(`{"specversion":"1.0","data":[{"a":1,"a":2}]},`),
		"empty arrays on lines":           fill("[]\n"),
		"quotes":                          fill(`"`),
		"surrogates":                      `{"a":"` + fill(`\ud800`),
		"not UTF-8":                       "[" + fill("\"\xff\","),
	} {
		content := []byte(body)[:min(len(body), DefaultMaxBodyBytes)]
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(content)))
			for b.Loop() {
				if len(p.Parse(bytes.Clone(content), nil)) == 0 {
					b.Fatal("no object")
				}
			}
		})
	}
}
