package schema

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMappingRefusesWhatItCannotResolve(t *testing.T) {
	t.Parallel()
	for _, settings := range [][]string{
		{"customer_id"},
		{"customer_id="},
		{"customer_id=subject"},
		{"customer_id=#/subject"},
		{"amount=/a"},
		{"=/a"},
		{"customer_id=/a~2"},
		{"customer_id=/a~"},
		{"customer_id=/a", "customer_id=/a"},
		{"Customer_ID=/a"},
		{"customer_id=/" + strings.Repeat("a", maxPointerBytes)},
		{"customer_id=" + strings.Repeat("/a", maxPointerSteps+1)},
	} {
		_, err := ParseMapping(settings)
		require.Error(t, err, "%q", settings)
	}
	m, err := ParseMapping([]string{"customer_id=/subject", "amount_cents=/data/a=b"})
	require.NoError(t, err)
	require.Equal(t, Mapping{FieldCustomerID: "/subject", FieldAmountCents: "/data/a=b"}, m)
	require.Equal(t, []string{"amount_cents=/data/a=b", "customer_id=/subject"}, m.Settings())
}

func TestMappingFingerprintTellsMappingsApart(t *testing.T) {
	t.Parallel()
	a := Mapping{FieldCustomerID: "/a", FieldCurrency: "/b"}
	b, err := ParseMapping([]string{"currency=/b", "customer_id=/a"})
	require.NoError(t, err)
	require.Equal(t, a.Fingerprint(), b.Fingerprint())
	require.Equal(t, Mapping(nil).Fingerprint(), Mapping{}.Fingerprint())
	others := []Mapping{
		nil,
		{FieldCustomerID: "/a"},
		{FieldCustomerID: "/b", FieldCurrency: "/a"},
		{FieldCustomerID: "/a\n14:currency=/b"},
		{FieldCustomerID: "/a", FieldCurrency: "/B"},
	}
	seen := map[string]bool{a.Fingerprint(): true}
	for _, m := range others {
		require.NotContains(t, seen, m.Fingerprint())
		seen[m.Fingerprint()] = true
	}
	// Stored with the namespace: another value would refuse to start after an upgrade.
	require.Equal(t, "e3b0c44298fc1c149afbf4c8996fb924", Mapping(nil).Fingerprint())
}
