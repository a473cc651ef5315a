package console

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestGuesserForgivenTooSoonOrNever(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		table, address := newTries(), netip.MustParsePrefix("198.51.100.7/32")
		guess := func(right bool) verdict {
			v, _ := table.judge(address, time.Now(), func() bool { return right })
			return v
		}
		for range maxTries {
			require.Equal(t, wrong, guess(false))
		}
		require.Equal(t, tooMany, guess(true))
		_, wait := table.judge(address, time.Now(), func() bool { return true })
		require.Equal(t, tryEvery, wait)
		<-time.After(tryEvery - time.Millisecond)
		require.Equal(t, tooMany, guess(true))
		<-time.After(time.Millisecond)
		require.Equal(t, wrong, guess(false), "one try is given back")
		require.Equal(t, tooMany, guess(true))
		<-time.After(tryEvery)
		require.Equal(t, admitted, guess(true))
		require.Equal(t, admitted, guess(true), "being right costs nothing")
	})
}

func TestManyAddressesFillMemoryOrEscape(t *testing.T) {
	t.Parallel()
	table, now := newTries(), time.Now()
	no := func() bool { return false }
	address := func(i int) netip.Prefix {
		return netip.MustParsePrefix(fmt.Sprintf("10.%d.%d.%d/32", i>>16, i>>8&255, i&255))
	}
	refused := 0
	for i := range 3 * maxAddresses {
		if v, _ := table.judge(address(i), now, no); v == tooMany {
			refused++
		}
	}
	require.LessOrEqual(t, len(table.addresses), maxAddresses)
	require.Equal(t, 2*maxAddresses-maxTries, refused, "addresses beyond the table share one allowance")

	later := now.Add(maxTries * tryEvery)
	v, _ := table.judge(address(1<<20), later, no)
	require.Equal(t, wrong, v)
	require.Len(t, table.addresses, 1, "what is forgiven is forgotten")
}

func TestAddressOfOnePeerVaries(t *testing.T) {
	t.Parallel()
	for remote, want := range map[string]string{
		"192.0.2.1:1":          "192.0.2.1/32",
		"[::ffff:192.0.2.1]:2": "192.0.2.1/32",
		"[2001:db8::1]:3":      "2001:db8::/64",
		"[2001:db8::ffff:1]:4": "2001:db8::/64",
		"[fe80::1%eth0]:5":     "fe80::/64",
		"@":                    "invalid Prefix",
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
		r.RemoteAddr = remote
		r.Header.Set("X-Forwarded-For", "203.0.113.9")
		require.Equal(t, want, addressOf(r).String(), remote)
	}
}
