// Package solace_test runs setup.sh against a server that answers as SEMP v2 does.
package solace_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

const (
	ingestPassword  = `in "gest\$(touch x) & é` //nolint:gosec // opens nothing
	publishPassword = "publish's`pass`${SOLACE_TOPIC}word"
	queue           = "billing/events q1"
	topic           = "billing/events/>"
	noFile          = "(no such file)"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tool is the path of a program that the script needs. Where it is missing the test is left out, and says so; in CI it
// fails.
func tool(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err == nil {
		return path
	}
	if ci := os.Getenv("CI"); ci != "" && ci != "false" {
		require.NoError(t, err, "deploy/solace/setup.sh needs %s", name)
	}
	t.Skipf("left out: no %s (apt-get install bash curl)", name)
	return ""
}

// settings are all that the script requires, for a broker.
func settings(b *broker) map[string]string {
	return map[string]string{
		"PATH": os.Getenv("PATH"), "SOLACE_SEMP_URL": b.url, "SOLACE_SEMP_USER": sempUser, "SOLACE_SEMP_PASSWORD": sempPassword,
		"SOLACE_VPN": vpn, "SOLACE_USER": "ingest", "SOLACE_PASSWORD": ingestPassword, "SOLACE_QUEUE": queue,
		"SOLACE_TOPIC": topic, "SOLACE_PUBLISHER_USER": "usage meter", "SOLACE_PUBLISHER_PASSWORD": publishPassword,
	}
}

type result struct {
	code           int
	stdout, stderr string
}

// run is one run of the script; extra settings override, empty ones are taken away. NAME_FILE is what the file holds, and
// its name is relative.
func run(t *testing.T, b *broker, extra map[string]string, arguments ...string) result {
	t.Helper()
	tool(t, "curl")
	environment := settings(b)
	maps.Copy(environment, extra)
	script, err := filepath.Abs("setup.sh")
	require.NoError(t, err)
	arguments = append([]string{script}, arguments...)
	command := exec.CommandContext(t.Context(), tool(t, "bash"), arguments...) //nolint:gosec // the program under test
	for name, value := range environment {
		if value != "" && !strings.HasSuffix(name, "_FILE") {
			command.Env = append(command.Env, name+"="+value)
		}
	}
	command.Dir = t.TempDir() // it works from anywhere
	for name, value := range extra {
		if strings.HasSuffix(name, "_FILE") {
			command.Env = append(command.Env, name+"="+name)
			if value != noFile {
				require.NoError(t, os.WriteFile(filepath.Join(command.Dir, name), []byte(value+"\n"), 0o600))
			}
		}
	}
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	err = command.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return result{command.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// setUp is a run that must succeed.
func setUp(t *testing.T, b *broker, extra map[string]string, arguments ...string) result {
	t.Helper()
	r := run(t, b, extra, arguments...)
	require.Zero(t, r.code, "%s%s", r.stdout, r.stderr)
	return r
}

var placeholder = regexp.MustCompile(`\$\{([A-Z_]+)\}`)

func TestBodiesHaveOnlyAttributesOfThePublicSpecification(t *testing.T) {
	t.Parallel()
	collections := map[string]string{
		"client-profile-ingest": "clientProfiles", "client-profile-publish": "clientProfiles",
		"acl-profile-ingest": "aclProfiles", "acl-profile-publish": "aclProfiles",
		"publish-exception": "publishTopicExceptions", "subscribe-exception": "subscribeTopicExceptions",
		"client-username-ingest": "clientUsernames", "client-username-publish": "clientUsernames",
		"dead-message-queue": "queues", "queue": "queues", "queue-subscription": "subscriptions",
	}
	defined := definitions(t)
	files, err := filepath.Glob("semp/*.json")
	require.NoError(t, err)
	require.Len(t, files, len(collections))
	for _, file := range files {
		raw, err := os.ReadFile(file) //nolint:gosec // of this folder
		require.NoError(t, err)
		var body object
		require.NoError(t, json.Unmarshal(raw, &body), file)
		collection := collections[strings.TrimSuffix(filepath.Base(file), ".json")]
		for name, value := range body {
			attribute, known := defined[collection].Attributes[name]
			require.True(t, known, "%s: %s has no attribute %s", file, collection, name)
			if text, isText := value.(string); isText && placeholder.MatchString(text) {
				continue
			}
			require.Empty(t, attribute.refuses(value), "%s: %s", file, name)
		}
		for _, name := range defined[collection].Identifying {
			require.Contains(t, body, name, file)
		}
		require.Equal(t, len(body)+2, strings.Count(string(raw), "\n"), "%s: the script reads one attribute per line", file)
	}
}

func TestAnEmptyVPNIsSetUp(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	before := b.state()
	r := setUp(t, b, map[string]string{"SOLACE_SPOOL_MB": "20000"})
	require.Contains(t, r.stdout, "10 created, 0 changed, 0 unchanged")

	// What is not named here has the broker's default.
	want := map[string]object{
		"clientProfiles/chargeonce_ingest": b.withDefaults("clientProfiles", object{
			"clientProfileName": "chargeonce_ingest", "allowGuaranteedMsgReceiveEnabled": true,
		}),
		"clientProfiles/chargeonce_publish": b.withDefaults("clientProfiles", object{
			"clientProfileName": "chargeonce_publish", "allowGuaranteedMsgSendEnabled": true,
			"rejectMsgToSenderOnNoSubscriptionMatchEnabled": true,
		}),
		"aclProfiles/chargeonce_ingest": b.withDefaults("aclProfiles", object{
			"aclProfileName": "chargeonce_ingest", "clientConnectDefaultAction": "allow",
			"subscribeShareNameDefaultAction": "disallow",
		}),
		"aclProfiles/chargeonce_publish": b.withDefaults("aclProfiles", object{
			"aclProfileName": "chargeonce_publish", "clientConnectDefaultAction": "allow",
			"subscribeShareNameDefaultAction": "disallow",
		}),
		"aclProfiles/chargeonce_publish/publishTopicExceptions/smf,billing%2Fevents%2F%3E": {
			"publishTopicExceptionSyntax": "smf", "publishTopicException": topic,
		},
		"clientUsernames/ingest": b.withDefaults("clientUsernames", object{
			"clientUsername": "ingest", "password": ingestPassword, "enabled": true,
			"aclProfileName": "chargeonce_ingest", "clientProfileName": "chargeonce_ingest",
		}),
		"clientUsernames/usage%20meter": b.withDefaults("clientUsernames", object{
			"clientUsername": "usage meter", "password": publishPassword, "enabled": true,
			"aclProfileName": "chargeonce_publish", "clientProfileName": "chargeonce_publish",
		}),
		"queues/billing%2Fevents%20q1-dmq": b.withDefaults("queues", object{
			"queueName": queue + "-dmq", "ingressEnabled": true, "egressEnabled": true,
		}),
		"queues/billing%2Fevents%20q1": b.withDefaults("queues", object{
			"queueName": queue, "accessType": "non-exclusive", "owner": "ingest", "permission": "no-access",
			"maxMsgSpoolUsage": 20000.0, "maxDeliveredUnackedMsgsPerFlow": 5000.0, "redeliveryEnabled": true,
			"maxRedeliveryCount": 0.0, "respectTtlEnabled": false, "deadMsgQueue": queue + "-dmq",
			"rejectMsgToSenderOnDiscardBehavior": "always", "ingressEnabled": true, "egressEnabled": true,
		}),
		"queues/billing%2Fevents%20q1/subscriptions/billing%2Fevents%2F%3E": {"subscriptionTopic": topic},
	}
	maps.Copy(want, before)
	require.Equal(t, want, b.state())
}

func TestASecondRunChangesNothing(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	extra := map[string]string{"SOLACE_SPOOL_MB": "7000", "SOLACE_SHUT_OUT": "default"}
	setUp(t, b, extra)
	before, written := b.state(), b.writes()
	r := setUp(t, b, extra)
	require.Contains(t, r.stdout, "0 created, 0 changed, 12 unchanged")
	require.Equal(t, before, b.state())
	require.Equal(t, written, b.writes(), "nothing but GET")
}

// TestDriftOfEveryAttributeIsCorrected sets each attribute that the bodies name to something else.
func TestDriftOfEveryAttributeIsCorrected(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	extra := map[string]string{"SOLACE_SPOOL_MB": "7000"}
	setUp(t, b, extra)
	want := b.state()
	drifted := 0
	b.mu.Lock()
	for address, made := range b.made {
		kind := b.defined[kindOf(address)]
		for name := range made {
			if !kind.Constant && !slices.Contains(kind.Identifying, name) && !slices.Contains(kind.WriteOnly, name) {
				b.objects[address][name] = other(kind.Attributes[name], made[name])
				drifted++
			}
		}
	}
	b.mu.Unlock()
	require.Greater(t, drifted, 40)
	r := setUp(t, b, extra)
	require.Equal(t, want, b.state())
	require.Contains(t, r.stdout, "0 created, 8 changed, 2 unchanged")
	require.Contains(t, r.stdout, `permission "read-only" -> "no-access"`)
	require.Contains(t, setUp(t, b, extra).stdout, "0 created, 0 changed, 10 unchanged")
}

// other is an allowed value that differs.
func other(a attribute, value any) any {
	switch value := value.(type) {
	case bool:
		return !value
	case float64:
		return value + 1
	}
	for _, allowed := range a.Enum {
		if allowed != value {
			return allowed
		}
	}
	return fmt.Sprint("another ", value)
}

func TestWhatTheOperatorSetIsLeftAlone(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	setUp(t, b, nil)
	b.change("queues/billing%2Fevents%20q1", object{"maxBindCount": 4.0, "maxMsgSpoolUsage": 90000.0, "permission": "delete"})
	b.change("clientProfiles/chargeonce_ingest", object{"compressionEnabled": false, "allowBridgeConnectionsEnabled": true})
	require.Contains(t, setUp(t, b, nil).stdout, "0 created, 2 changed, 8 unchanged")
	state := b.state()
	require.EqualValues(t, 90000, state["queues/billing%2Fevents%20q1"]["maxMsgSpoolUsage"])
	require.EqualValues(t, 4, state["queues/billing%2Fevents%20q1"]["maxBindCount"])
	require.Equal(t, false, state["clientProfiles/chargeonce_ingest"]["compressionEnabled"])
	require.Equal(t, "no-access", state["queues/billing%2Fevents%20q1"]["permission"])
}

func TestPasswordsOfExistingUsersAreSetOnlyWhenAsked(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	setUp(t, b, nil)
	rotated := map[string]string{"SOLACE_PASSWORD": "rotated-1", "SOLACE_PUBLISHER_PASSWORD": "rotated-2"}
	setUp(t, b, rotated)
	require.Equal(t, ingestPassword, b.state()["clientUsernames/ingest"]["password"])

	r := setUp(t, b, rotated, "--set-passwords")
	require.Contains(t, r.stdout, "0 created, 2 changed, 8 unchanged")
	require.Equal(t, "rotated-1", b.state()["clientUsernames/ingest"]["password"])
	require.Equal(t, "rotated-2", b.state()["clientUsernames/usage%20meter"]["password"])
}

func TestAnExclusiveQueueWithoutAPublisherUser(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	setUp(t, b, map[string]string{
		"SOLACE_ACCESS_TYPE": "exclusive", "SOLACE_MAX_UNACKED": "10000", "SOLACE_DEAD_MESSAGE_QUEUE": "dead",
		"SOLACE_PROFILE": "eu_west", "SOLACE_PUBLISHER_USER": "", "SOLACE_PUBLISHER_PASSWORD": "",
	})
	state := b.state()
	require.Equal(t, "exclusive", state["queues/billing%2Fevents%20q1"]["accessType"])
	require.EqualValues(t, 10000, state["queues/billing%2Fevents%20q1"]["maxDeliveredUnackedMsgsPerFlow"])
	require.Equal(t, "dead", state["queues/billing%2Fevents%20q1"]["deadMsgQueue"])
	require.Contains(t, state, "queues/dead")
	require.Contains(t, state, "aclProfiles/eu_west_publish")
	require.Equal(t, "eu_west_ingest", state["clientUsernames/ingest"]["clientProfileName"])
	require.NotContains(t, state, "clientUsernames/usage%20meter")
}

func TestAnObjectMadeBySomebodyElseMeanwhileIsCorrected(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	address := "queues/billing%2Fevents%20q1"
	b.meddle(func(_ http.ResponseWriter, r *http.Request, _ string) bool {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/queues") && b.objects[address] == nil {
			b.putLocked("queues", object{"queueName": queue, "permission": "consume"})
		}
		return false
	})
	require.Contains(t, setUp(t, b, nil).stdout, "changed   queue "+queue)
	require.Equal(t, "no-access", b.state()[address]["permission"])
	require.Equal(t, "ingest", b.state()[address]["owner"])
}
