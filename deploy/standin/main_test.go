package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/stretchr/testify/require"
)

// The test binary is also the program that the tests run as a process of its own.
func TestMain(m *testing.M) {
	if os.Getenv("STANDIN_TEST_MAIN") == "1" {
		main()
	}
	os.Exit(m.Run())
}

// start runs the program and returns what its one line says, once it is there. The end of the test is SIGTERM.
func start(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Second)
	cmd := exec.CommandContext(ctx, os.Args[0], args...) //nolint:gosec // G204: ourselves
	cmd.Env = append(os.Environ(), "STANDIN_TEST_MAIN=1")
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewReader(stdout)
	line, err := lines.ReadString('\n')
	t.Cleanup(func() {
		defer cancel()
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		rest, err := io.ReadAll(lines)
		require.NoError(t, err)
		require.Empty(t, string(rest), "one line is promised")
		require.NoError(t, cmd.Wait(), "SIGTERM must end it in good order")
	})
	require.NoError(t, err)
	said, found := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	require.True(t, found, line)
	return said
}

func ask(t *testing.T, method, url, body string, into any) int {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.Header.Set("Authorization", "Bearer sk_test_1")
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	if into != nil {
		require.NoError(t, json.Unmarshal(content, into), string(content))
	}
	return response.StatusCode
}

const payment = "amount=4900&currency=usd&customer=cus_1&payment_method=pm_1&confirm=true&off_session=true&payment_method_types[]=card"

func TestStripeStandInCharges(t *testing.T) {
	t.Parallel()
	url := start(t, "stripe", "--listen", "127.0.0.1:0", "--auto-customers", "--key", "sk_test_1", "--account", "acct_other")
	require.Equal(t, http.StatusOK, ask(t, http.MethodPost, url+"/v1/payment_intents", payment, nil))

	var ledger struct {
		Effects []struct{ Kind, Account string }
	}
	require.Equal(t, http.StatusOK, ask(t, http.MethodGet, url+"/_standin/ledger", "", &ledger))
	require.Equal(t, "charge_succeeded", ledger.Effects[len(ledger.Effects)-1].Kind)
	require.Equal(t, "acct_other", ledger.Effects[0].Account)
	require.Equal(t, http.StatusOK, ask(t, http.MethodPost, url+"/_standin/clock", `{"advance":"25h"}`, nil))
	require.Equal(t, http.StatusOK, ask(t, http.MethodPost, url+"/_standin/faults", `[{"do":"rate_limit"}]`, nil))
	require.Equal(t, http.StatusTooManyRequests, ask(t, http.MethodPost, url+"/v1/payment_intents", payment, nil))
}

func TestVaultStandInHoldsItsCap(t *testing.T) {
	t.Parallel()
	stripeURL := start(t, "stripe", "--listen", "127.0.0.1:0", "--auto-customers", "--key", "sk_test_2")
	url := start(t, "vault", "--listen", "127.0.0.1:0", "--stripe-url", stripeURL, "--stripe-key", "sk_test_2", "--api-key", "sk_test_1")
	var key struct {
		VaultKey string `json:"vault_key"`
	}
	status := ask(t, http.MethodPost, url+"/vault/keys", `{"vendor":"stripe","label":"x","daily_usd_cap":50.00}`, &key)
	require.Less(t, status, http.StatusMultipleChoices)
	require.NotEmpty(t, key.VaultKey)

	pay := func() int {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/stripe/v1/payment_intents", strings.NewReader(payment))
		require.NoError(t, err)
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		request.Header.Set("Authorization", "Bearer "+key.VaultKey)
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		defer response.Body.Close()
		return response.StatusCode
	}
	require.Equal(t, http.StatusOK, pay())
	require.Equal(t, http.StatusPaymentRequired, pay(), "a second one is beyond the cap of 50 dollars")
	require.Equal(t, http.StatusOK, ask(t, http.MethodGet, url+"/_standin/ledger", "", nil))
}

func TestEventHubsStandInRefusesAWrongKey(t *testing.T) {
	t.Parallel()
	said := start(t, "eventhubs", "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0", "--hub", "events", "--partitions", "2",
		"--consumer-group", "one", "--consumer-group", "two", "--key", "right")
	match := regexp.MustCompile(`^(127\.0\.0\.1:\d+), control on (http://127\.0\.0\.1:\d+)$`).FindStringSubmatch(said)
	require.NotNil(t, match, said)
	partitions := func(key string) (int, error) {
		connection := "Endpoint=sb://" + match[1] + ";SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=" + key + ";UseDevelopmentEmulator=true"
		client, err := azeventhubs.NewProducerClientFromConnectionString(connection, "events", &azeventhubs.ProducerClientOptions{
			RetryOptions: azeventhubs.RetryOptions{MaxRetries: -1},
		})
		require.NoError(t, err)
		defer func() { require.NoError(t, client.Close(t.Context())) }()
		properties, err := client.GetEventHubProperties(t.Context(), nil)
		return len(properties.PartitionIDs), err
	}
	n, err := partitions("right")
	require.NoError(t, err)
	require.Equal(t, 2, n)
	_, err = partitions("wrong")
	require.Error(t, err)

	var ledger struct{ Hubs []struct{ Name string } }
	require.Equal(t, http.StatusOK, ask(t, http.MethodGet, match[2]+"/_standin/ledger", "", &ledger))
	require.Equal(t, "events", ledger.Hubs[0].Name)
}

// The broker's own protocol is tried with the real client elsewhere; here it must be reached, and its ledger and faults too.
func TestSolaceStandInServesItsQueue(t *testing.T) {
	t.Parallel()
	said := start(t, "solace", "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0", "--queue", "events", "--topic", "a/>", "--user", "u", "--password", "p")
	match := regexp.MustCompile(`^(127\.0\.0\.1:\d+), control on (http://127\.0\.0\.1:\d+)$`).FindStringSubmatch(said)
	require.NotNil(t, match, said)
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", match[1])
	require.NoError(t, err)
	defer conn.Close()
	var ledger struct {
		Queues   []struct{ Name string }
		Counters struct {
			Accepted int `json:"accepted_connections"`
		}
	}
	require.Eventually(t, func() bool {
		require.Equal(t, http.StatusOK, ask(t, http.MethodGet, match[2]+"/_standin/ledger", "", &ledger))
		return ledger.Counters.Accepted == 1
	}, 30*time.Second, 10*time.Millisecond)
	require.Equal(t, "events", ledger.Queues[0].Name)
	require.Equal(t, http.StatusOK, ask(t, http.MethodPost, match[2]+"/_standin/faults", `{"faults":[{"kind":"drop_connections"}]}`, nil))
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
}

func TestWrongSettingEndsWithItsExitCode(t *testing.T) {
	t.Parallel()
	taken := strings.TrimPrefix(start(t, "stripe", "--listen", "127.0.0.1:0"), "http://")
	for name, args := range map[string][]string{
		"no stand-in":             {},
		"unknown stand-in":        {"paypal"},
		"port taken":              {"stripe", "--listen", taken},
		"port taken for AMQP":     {"eventhubs", "--listen", taken, "--control", "127.0.0.1:0"},
		"control port taken":      {"eventhubs", "--listen", "127.0.0.1:0", "--control", taken},
		"port taken for SMF":      {"solace", "--listen", taken, "--control", "127.0.0.1:0"},
		"impossible topic":        {"solace", "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0", "--topic="},
		"password of nobody":      {"solace", "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0", "--password", "p"},
		"vault without Stripe":    {"vault", "--listen", "127.0.0.1:0"},
		"vault with a bad Stripe": {"vault", "--listen", "127.0.0.1:0", "--stripe-url", "stripe.com"},
		"no partitions":           {"eventhubs", "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0", "--partitions", "0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], args...) //nolint:gosec // G204: ourselves
			cmd.Env = append(os.Environ(), "STANDIN_TEST_MAIN=1")
			out, err := cmd.Output()
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit)
			require.Equal(t, 2, exit.ExitCode())
			require.Equal(t, 1, strings.Count(strings.TrimSpace(string(exit.Stderr))+"\n", "\n"), "one line: %s", exit.Stderr)
			require.Empty(t, string(out))
		})
	}
}
