package stripecharge

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestContractEveryRequestIsOneThatStripeTakes sends every kind of request that this package makes to Stripe's own mock, which
// checks paths and parameters against Stripe's published OpenAPI description. The mock knows neither idempotency nor state: for
// those there is stripetest.
func TestContractEveryRequestIsOneThatStripeTakes(t *testing.T) {
	t.Parallel()
	address := startStripeMock(t)
	// The mock takes test keys alone.
	client := newTestClient(t, Config{URL: "http://" + address, Key: "sk_test_contract", Timeout: time.Minute})
	create := func(t *testing.T, api API, method string) Answer {
		t.Helper()
		params := testParams(api, "cus_1")
		params.PaymentMethod = method
		request, err := NewRequest(params)
		require.NoError(t, err)
		return client.Create(t.Context(), request, soon())
	}
	now := time.Now()
	lookUp := LookUp{Customer: "cus_1", IntentKey: "k", CreatedFrom: now.Add(-24 * time.Hour), FirstSentAt: now, AmountCents: 1, Currency: "usd"}
	for name, send := range map[string]func(t *testing.T) Answer{
		"create_payment_intent":             func(t *testing.T) Answer { t.Helper(); return create(t, APIPaymentIntents, "pm_1") },
		"create_payment_intent_with_source": func(t *testing.T) Answer { t.Helper(); return create(t, APIPaymentIntents, "card_1") },
		"create_charge":                     func(t *testing.T) Answer { t.Helper(); return create(t, APICharges, "") },
		"create_charge_with_source":         func(t *testing.T) Answer { t.Helper(); return create(t, APICharges, "card_1") },
		"read_payment_intent":               func(t *testing.T) Answer { t.Helper(); return client.Read(t.Context(), "pi_1") },
		"read_charge":                       func(t *testing.T) Answer { t.Helper(); return client.Read(t.Context(), "ch_1") },
		"cancel_payment_intent":             func(t *testing.T) Answer { t.Helper(); return client.Cancel(t.Context(), "pi_1") },
		"account": func(t *testing.T) Answer {
			t.Helper()
			info, answer := client.Account(t.Context())
			require.NotEmpty(t, info.ID)
			return answer
		},
		"customer": func(t *testing.T) Answer {
			t.Helper()
			_, answer := client.Customer(t.Context(), "cus_1")
			require.Equal(t, ClassAnswered, answer.Class, "%v", answer.Err)
			return answer
		},
		"list_both_kinds": func(t *testing.T) Answer {
			t.Helper()
			_, answer := client.LookUp(t.Context(), lookUp)
			require.Equal(t, ClassAnswered, answer.Class, "%v", answer.Err)
			return answer
		},
		"next_page": func(t *testing.T) Answer {
			t.Helper()
			_, answer := client.LedgerPage(t.Context(), LedgerQuery{Kind: KindPaymentIntent, CreatedFrom: now, After: "pi_1", Limit: 100})
			return answer
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answer := send(t)
			require.Equal(t, 200, answer.HTTPStatus, "%v", answer.Err)
		})
	}
	t.Run("what_stripe_does_not_take_is_refused", func(t *testing.T) {
		t.Parallel()
		request := testRequest(t, APIPaymentIntents, "cus_1")
		request.Body = append(request.Body, "&payment_method_type=card"...)
		require.Equal(t, 400, client.Create(t.Context(), request, soon()).HTTPStatus, "else this test could not fail")
	})
}

// startStripeMock runs github.com/stripe/stripe-mock on a free port of this machine and returns its address.
func startStripeMock(t *testing.T) string {
	t.Helper()
	program := findStripeMock(t)
	ctx, cancel := context.WithCancel(t.Context())
	// Without an address of its own for HTTPS it would open a port to everybody.
	cmd := exec.CommandContext(ctx, program, "-http-addr", "127.0.0.1:0", "-https-unix", filepath.Join(t.TempDir(), "https")) //nolint:gosec // a tool of this repository
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = cmd.Stdout
	require.NoError(t, cmd.Start())
	said := make(chan string, 1)
	read := make(chan struct{})
	go func() {
		defer close(read)
		listening := regexp.MustCompile(`Listening for HTTP at address: (\S+)`)
		scanner := bufio.NewScanner(out)
		for scanner.Scan() {
			if found := listening.FindStringSubmatch(scanner.Text()); found != nil {
				said <- found[1]
				break
			}
		}
		close(said)
		_, _ = io.Copy(io.Discard, out)
	}()
	t.Cleanup(func() {
		cancel()
		<-read
		_ = cmd.Wait() // killed by the line before the last
	})
	address, ok := <-said
	require.True(t, ok, "stripe-mock ended without saying where it listens")
	return address
}

// findStripeMock looks where it was said to be, in the path, and where make stripe-mock puts it.
func findStripeMock(t *testing.T) string {
	t.Helper()
	if given := os.Getenv("STRIPE_MOCK_PATH"); given != "" {
		return given
	}
	if found, err := exec.LookPath("stripe-mock"); err == nil {
		return found
	}
	made, err := filepath.Abs("../../.cache/bin/stripe-mock")
	require.NoError(t, err)
	if _, err := os.Stat(made); err == nil {
		return made
	}
	const missing = "no stripe-mock found: install it with `make stripe-mock`, or set STRIPE_MOCK_PATH to the program"
	if ci := os.Getenv("CI"); ci != "" && ci != "false" {
		require.FailNow(t, missing)
	}
	t.Skip("left out: " + missing)
	return ""
}
