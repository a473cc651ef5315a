package schema

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The wanted values come from sha256sum, not from this package.
func TestKeyIsTheArticles(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		customer, period, namespace string
		generation                  int
		want                        string
	}{
		{"cus_Q1", "2026-08", "azure-event-hubs-billing", 1, "de25e91003fdc26a1f7b8680a7ffaf8c"},
		{"cus_Q1", "2026-08", "solace-billing", 1, "56bb61b5702698ae8df76706dda016bc"},
		{"customer-000017", "2026-08", "azure-event-hubs-billing", 1, "606cee1957f4afcf945184f002e676bc"},
		{"customer-000017", "2026-08", "solace-billing", 1, "1c225b6bb05cd29e146f265055f64693"},
		{"cus_Q1", "2026-08", "solace-billing", 2, "ce62ad2c4aa4bd03a21b73c48d6d84cd"},
		{"cus_Q1", "2026-08", "solace-billing", 10, "3818540dbd24ca2c4b72d5adda15a070"},
	} {
		require.Equal(t, c.want, IdempotencyKey(c.customer, c.period, c.namespace, c.generation))
	}
}

func TestM16KeyOfEachGenerationIsAnother(t *testing.T) {
	t.Parallel()
	seen := map[string]int{}
	for generation := 1; generation <= 100; generation++ {
		seen[IdempotencyKey("cus_Q1", "2026-08", "solace-billing", generation)] = generation
	}
	require.Len(t, seen, 100)
	require.Panics(t, func() { IdempotencyKey("cus_Q1", "2026-08", "solace-billing", 0) })
}

func TestKeyNeverDependsOnNeighboursOrDelivery(t *testing.T) {
	t.Parallel()
	p, err := NewParser(ParserConfig{Namespace: "n"})
	require.NoError(t, err)
	const event = `{"customer_id":"cus_1","billing_period":"2026-08","amount_cents":1250}`
	want := IdempotencyKey("cus_1", "2026-08", "n", 1)
	neighbours := []string{
		`{"customer_id":"cus_2","billing_period":"2026-08","amount_cents":1}`, `{}`, `17`, `null`, `"x"`,
		`{"a":1,"a":2}`, `{"a":"\ud800"}`, "{\"a\":\"\xff\"}", `[]`, event,
	}
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.SliceOfN(rapid.SampledFrom(neighbours), 0, 6).Draw(t, "neighbours")
		at := rapid.IntRange(0, len(parts)).Draw(t, "place")
		parts = append(parts[:at:at], append([]string{event}, parts[at:]...)...)
		body := "[" + strings.Join(parts, ",") + "]"
		if rapid.Bool().Draw(t, "lines") {
			// A first line that is no array, so that the body is read line by line.
			at++
			body = strings.Join(append([]string{"{}"}, parts...), "\n")
		}
		objects := p.Parse([]byte(body), map[string]string{"x-opt-sequence-number": "17"})
		require.Greater(t, len(objects), at)
		require.Nil(t, objects[at].Fault)
		require.True(t, bytes.Equal([]byte(event), objects[at].Raw), "raw bytes of the object changed")
		require.Equal(t, want, objects[at].Event.Key("n"))
	})
}

func TestNamespaceAlphabet(t *testing.T) {
	t.Parallel()
	for _, ns := range []string{"a", "0", "azure-event-hubs-billing", "solace-billing", "a-", strings.Repeat("a", 63)} {
		require.NoError(t, CheckNamespace(ns), ns)
	}
	for _, ns := range []string{"", "-a", "A", "a_b", "a:b", "a b", "ä", "a\n", "a.b", strings.Repeat("a", 64)} {
		require.Error(t, CheckNamespace(ns), ns)
	}
}

func TestCompareTellsDuplicateFromConflict(t *testing.T) {
	t.Parallel()
	first := BillingEvent{CustomerID: "c", BillingPeriod: "2026-08", AmountCents: 5, Currency: "usd", StripeCustomerID: "cus_1"}
	described := first
	described.Description, described.PaymentMethod = "other", "pm_1"
	require.Equal(t, VerdictDuplicate, Compare(first.Terms(), described.Terms()))
	for _, change := range []func(*BillingEvent){
		func(e *BillingEvent) { e.AmountCents++ },
		func(e *BillingEvent) { e.Currency = "eur" },
		func(e *BillingEvent) { e.StripeCustomerID = "cus_2" },
	} {
		other := first
		change(&other)
		require.Equal(t, VerdictConflict, Compare(first.Terms(), other.Terms()))
	}
}

func TestAppendJSONRefusesTextThatIsNotUTF8(t *testing.T) {
	t.Parallel()
	_, err := BillingEvent{CustomerID: "\xff"}.AppendJSON(nil)
	require.Error(t, err)
}
