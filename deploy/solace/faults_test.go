package solace_test

import (
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// requireNoSecrets: neither as they are nor as JSON spells them.
func requireNoSecrets(t *testing.T, text string) {
	t.Helper()
	for _, secret := range []string{sempPassword, ingestPassword, publishPassword} {
		require.NotContains(t, text, secret)
		spelt, err := json.Marshal(secret)
		require.NoError(t, err)
		require.NotContains(t, text, strings.Trim(string(spelt), `"`))
		require.NotContains(t, text, strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(secret))
	}
}

// TestPasswordsAreNotSeenByOthers puts a program in curl's place that writes down what it is started with.
func TestPasswordsAreNotSeenByOthers(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	folder := t.TempDir()
	seen := filepath.Join(folder, "seen")
	spy := "#!" + tool(t, "bash") + "\n{ printf '%s\\n' \"$@\"; env; } >>'" + seen + "'\nexec '" + tool(t, "curl") + "' \"$@\"\n"
	require.NoError(t, os.WriteFile(filepath.Join(folder, "curl"), []byte(spy), 0o700)) //nolint:gosec // it is a program
	// The broker repeats in its complaint what it was sent.
	b.meddle(func(w http.ResponseWriter, r *http.Request, address string) bool {
		if r.Method != http.MethodPatch || address != "/clientUsernames/usage%20meter" {
			return false
		}
		refuse(w, http.StatusBadRequest, 11, "INVALID_PARAMETER", "bad value "+publishPassword+" and "+ingestPassword)
		return true
	})
	path := map[string]string{"PATH": folder + ":" + os.Getenv("PATH")}
	first := setUp(t, b, path)
	second := run(t, b, path, "--set-passwords")
	require.Equal(t, 1, second.code)
	require.Contains(t, second.stderr, "bad value [redacted] and [redacted]")
	path["SHELLOPTS"] = "xtrace" // as bash -x
	traced := setUp(t, b, path)

	for _, r := range []result{first, second, traced} {
		requireNoSecrets(t, r.stdout+r.stderr)
	}
	written, err := os.ReadFile(seen) //nolint:gosec // the test's own file
	require.NoError(t, err)
	require.Contains(t, string(written), "--config")
	require.Contains(t, string(written), "SOLACE_QUEUE=")
	requireNoSecrets(t, string(written))
	require.Equal(t, ingestPassword, b.state()["clientUsernames/ingest"]["password"])
}

func TestPasswordsComeFromFiles(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	files := map[string]string{}
	for name, secret := range map[string]string{
		"SOLACE_SEMP_PASSWORD": sempPassword, "SOLACE_PASSWORD": ingestPassword, "SOLACE_PUBLISHER_PASSWORD": publishPassword,
	} {
		files[name], files[name+"_FILE"] = "", secret
	}
	requireNoSecrets(t, setUp(t, b, files).stdout)
	require.Equal(t, ingestPassword, b.state()["clientUsernames/ingest"]["password"])
	require.Equal(t, publishPassword, b.state()["clientUsernames/usage%20meter"]["password"])
}

func TestAPasswordFileThatIsNotThereIsNamed(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	r := run(t, b, map[string]string{"SOLACE_PASSWORD": "", "SOLACE_PASSWORD_FILE": noFile})
	require.Equal(t, 2, r.code)
	require.Contains(t, r.stderr, "SOLACE_PASSWORD_FILE: cannot read SOLACE_PASSWORD_FILE")
	require.Empty(t, b.asked())
}

func TestABrokerWithoutATrustedCertificateGetsNoPassword(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	server := httptest.NewUnstartedServer(b)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	r := run(t, b, map[string]string{"SOLACE_SEMP_URL": server.URL})
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stderr, "curl: (60)")
	require.Empty(t, b.asked())

	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	r = setUp(t, b, map[string]string{"SOLACE_SEMP_URL": server.URL, "SOLACE_SEMP_CA_FILE": string(authority)})
	require.NotContains(t, r.stderr, "unencrypted")
}

func TestAWrongPasswordStopsBeforeAnythingIsChanged(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	before := b.state()
	r := run(t, b, map[string]string{"SOLACE_SEMP_PASSWORD": "wrong one"})
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stderr, "HTTP 401, SEMP error 72 UNAUTHORIZED: Unauthorized user or password.")
	require.Contains(t, r.stderr, "is SOLACE_SEMP_USER or SOLACE_SEMP_PASSWORD wrong?")
	require.Equal(t, before, b.state())
	require.Len(t, b.asked(), 1)
}

func TestAVPNThatDoesNotExistStops(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	r := run(t, b, map[string]string{"SOLACE_VPN": "other"})
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stderr, "read message VPN other: HTTP 400, SEMP error 6 NOT_FOUND: Could not find match for VPN.")
	require.Empty(t, b.writes())
}

// TestARefusalIsPrintedAndEndsTheRun: whatever answers, the script neither goes on nor says that all is well.
func TestARefusalIsPrintedAndEndsTheRun(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		method string
		answer func(w http.ResponseWriter)
		want   string
	}{
		"create refused": {http.MethodPost, func(w http.ResponseWriter) {
			refuse(w, http.StatusBadRequest, 89, "NOT_ALLOWED", `spool "quota" exceeded`)
		}, `create queue ` + queue + `-dmq: HTTP 400, SEMP error 89 NOT_ALLOWED: spool "quota" exceeded`},
		"change refused": {http.MethodPatch, func(w http.ResponseWriter) {
			refuse(w, http.StatusBadRequest, 72, "UNAUTHORIZED", "no write access")
		}, "SOLACE_SEMP_USER needs read-write access to message VPN " + vpn},
		"server error": {http.MethodGet, func(w http.ResponseWriter) {
			refuse(w, http.StatusInternalServerError, 2, "FAIL", "out of memory")
		}, "read queue " + queue + "-dmq: HTTP 500, SEMP error 2 FAIL: out of memory"},
		"a proxy's error page": {http.MethodGet, func(w http.ResponseWriter) {
			http.Error(w, "<html>\nbad gateway</html>", http.StatusBadGateway)
		}, "HTTP 502, not an answer of SEMP v2: <html>\nsetup.sh: bad gateway</html>"},
		"a login page": {http.MethodGet, func(w http.ResponseWriter) {
			_, _ = w.Write([]byte("<html>sign in</html>"))
		}, "HTTP 200, not an answer of SEMP v2: <html>sign in</html>"},
		"moved": {http.MethodPost, func(w http.ResponseWriter) {
			w.Header().Set("Location", "http://192.0.2.1/")
			w.WriteHeader(http.StatusTemporaryRedirect)
		}, "HTTP 307, not an answer of SEMP v2"},
		"connection cut": {http.MethodPost, func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, "could not ask http://"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := startBroker(t)
			if test.method == http.MethodPatch {
				b.put("queues", object{"queueName": queue + "-dmq", "permission": "consume"})
			}
			b.meddle(func(w http.ResponseWriter, r *http.Request, address string) bool {
				if r.Method != test.method || !strings.HasPrefix(address, "/queues") {
					return false
				}
				test.answer(w)
				return true
			})
			r := run(t, b, nil)
			require.Equal(t, 1, r.code, r.stdout)
			require.Contains(t, r.stderr, test.want)
			require.NotContains(t, b.state(), "queues/billing%2Fevents%20q1")
			require.NotContains(t, r.stdout, "0 changed")
		})
	}
}

func TestTheNextRunCarriesOnWhereOneBrokeOff(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	b.meddle(func(_ http.ResponseWriter, r *http.Request, address string) bool {
		if r.Method == http.MethodPost && address == "/queues/billing%2Fevents%20q1/subscriptions" {
			panic(http.ErrAbortHandler)
		}
		return false
	})
	require.Equal(t, 1, run(t, b, nil).code)
	b.meddle(nil)
	require.Contains(t, setUp(t, b, nil).stdout, "1 created, 0 changed, 9 unchanged")
	require.Contains(t, b.state(), "queues/billing%2Fevents%20q1/subscriptions/billing%2Fevents%2F%3E")
}

func TestABrokerThatIsNotThereIsNamed(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	r := run(t, b, map[string]string{"SOLACE_SEMP_URL": "http://127.0.0.1:1"})
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stderr, "could not ask http://127.0.0.1:1")
	require.Contains(t, r.stderr, "curl: (7)")
}

func TestAllMissingSettingsAreNamedAtOnce(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	none := map[string]string{"SOLACE_PUBLISHER_USER": "meter"}
	required := []string{
		"SOLACE_SEMP_URL", "SOLACE_SEMP_USER", "SOLACE_SEMP_PASSWORD", "SOLACE_VPN", "SOLACE_USER", "SOLACE_PASSWORD",
		"SOLACE_QUEUE", "SOLACE_TOPIC", "SOLACE_PUBLISHER_PASSWORD",
	}
	for _, name := range required {
		none[name] = ""
	}
	r := run(t, b, none)
	require.Equal(t, 2, r.code)
	for _, name := range required {
		require.Regexp(t, `(?m)^setup\.sh: `+name+` (or `+name+`_FILE )?is required$`, r.stderr)
	}
	require.Empty(t, b.asked())
}

func TestAWrongSettingIsNamed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		setting, value, want string
	}{
		"password in the address": {"SOLACE_SEMP_URL", "https://admin:hunter2@broker", "SOLACE_SEMP_URL is not an http or https address"},
		"path in the address":     {"SOLACE_SEMP_URL", "https://broker/SEMP", "SOLACE_SEMP_URL is not"},
		"access type":             {"SOLACE_ACCESS_TYPE", "shared", "SOLACE_ACCESS_TYPE is not exclusive or non-exclusive"},
		"window too small":        {"SOLACE_MAX_UNACKED", "999", "SOLACE_MAX_UNACKED is not a whole number from 1000 to 10000"},
		"window too large":        {"SOLACE_MAX_UNACKED", "10001", "SOLACE_MAX_UNACKED is not"},
		"window no number":        {"SOLACE_MAX_UNACKED", "5k", "SOLACE_MAX_UNACKED is not"},
		"no quota":                {"SOLACE_SPOOL_MB", "0", "SOLACE_SPOOL_MB is not a whole number of MB, not 0"},
		"reserved queue":          {"SOLACE_QUEUE", "#DEAD", "SOLACE_QUEUE is not"},
		"queue for another":       {"SOLACE_QUEUE", `a","owner":"b`, "SOLACE_QUEUE holds a quotation mark"},
		"topic too long":          {"SOLACE_TOPIC", strings.Repeat("t", 251), "SOLACE_TOPIC is not at most 250 characters"},
		"topic of two lines":      {"SOLACE_TOPIC", "a\nb", "SOLACE_TOPIC holds a quotation mark, a backslash or a control character"},
		"password of two lines":   {"SOLACE_PASSWORD", "a\nb", "SOLACE_PASSWORD holds a line break"},
		"one user for both":       {"SOLACE_PUBLISHER_USER", "ingest", "SOLACE_USER and SOLACE_PUBLISHER_USER are the same"},
		"one queue for both":      {"SOLACE_DEAD_MESSAGE_QUEUE", queue, "SOLACE_QUEUE and SOLACE_DEAD_MESSAGE_QUEUE are the same"},
		"profile":                 {"SOLACE_PROFILE", "charge-once", "SOLACE_PROFILE is not"},
		"profiles to shut out":    {"SOLACE_SHUT_OUT", "default/../x", "SOLACE_SHUT_OUT is not"},
		"no authorities":          {"SOLACE_SEMP_CA_FILE", noFile, "SOLACE_SEMP_CA_FILE: cannot read SOLACE_SEMP_CA_FILE"},
		"two passwords":           {"SOLACE_PASSWORD_FILE", "another", "SOLACE_PASSWORD and SOLACE_PASSWORD_FILE are both set"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := startBroker(t)
			r := run(t, b, map[string]string{test.setting: test.value})
			require.Equal(t, 2, r.code, r.stdout+r.stderr)
			require.Contains(t, r.stderr, test.want)
			require.NotContains(t, r.stderr, "hunter2")
			require.Empty(t, b.asked())
		})
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	r := run(t, b, nil, "--wet-run")
	require.Equal(t, 2, r.code)
	require.Contains(t, r.stderr, "unknown argument --wet-run")
	r = run(t, b, nil, "--help")
	require.Zero(t, r.code)
	require.Contains(t, r.stdout, "Usage: setup.sh")
	script, err := os.ReadFile("setup.sh")
	require.NoError(t, err)
	for _, name := range placeholder.FindAllStringSubmatch(string(script), -1) {
		if strings.HasPrefix(name[1], "SOLACE_") {
			require.Contains(t, r.stdout, name[1], "a setting that --help does not explain")
		}
	}
	require.Empty(t, b.asked())
}

// TestADryRunSendsNothing and prints, byte for byte but for passwords, what a run on an empty VPN then sends.
func TestADryRunSendsNothing(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	extra := map[string]string{"SOLACE_SEMP_PASSWORD": "", "SOLACE_PUBLISHER_PASSWORD": "", "SOLACE_SHUT_OUT": "default"}
	dry := setUp(t, b, extra, "--dry-run")
	require.Empty(t, b.asked())
	requireNoSecrets(t, dry.stdout+dry.stderr)

	var announced []string
	bodies := map[string][]object{}
	for part := range strings.SplitSeq(dry.stdout, "POST "+b.url+configPath+"/msgVpns/"+escape(vpn)) {
		address, body, _ := strings.Cut(part, "\n")
		if address == "" {
			continue
		}
		body, _, _ = strings.Cut(body, "GET ")
		body, _, _ = strings.Cut(body, "and, where")
		var parsed object
		require.NoError(t, json.Unmarshal([]byte(body), &parsed), part)
		announced = append(announced, "POST "+address)
		bodies[strings.TrimPrefix(address, "/")] = append(bodies[strings.TrimPrefix(address, "/")], parsed)
	}
	setUp(t, b, map[string]string{"SOLACE_SHUT_OUT": "default"})
	require.Equal(t, b.writes(), announced)
	state := b.state()
	for collection, list := range bodies {
		for _, body := range list {
			kind := kindOf(collection)
			sent := state[collection+"/"+b.identifier(kind, body)]
			for name, value := range body {
				if name == "password" {
					require.Equal(t, "[redacted]", value)
					continue
				}
				require.Equal(t, sent[name], value, "%s %s", collection, name)
			}
		}
	}
}

func TestOtherProfilesAreShutOutByTheOppositeOfTheirDefault(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	b.put("aclProfiles", object{"aclProfileName": "closed"})
	b.put("aclProfiles", object{"aclProfileName": "half", "subscribeTopicDefaultAction": "allow"})
	extra := map[string]string{"SOLACE_SHUT_OUT": "default closed half"}
	r := setUp(t, b, extra)
	require.NotContains(t, r.stderr, "SOLACE_SHUT_OUT")
	state := b.state()
	exception := "TopicExceptions/smf,billing%2Fevents%2F%3E"
	for address, there := range map[string]bool{
		"aclProfiles/default/publish": true, "aclProfiles/default/subscribe": true,
		"aclProfiles/closed/publish": false, "aclProfiles/closed/subscribe": false, // there it would open the topic
		"aclProfiles/half/publish": false, "aclProfiles/half/subscribe": true,
	} {
		_, exists := state[address+exception]
		require.Equal(t, there, exists, address)
	}
	require.Contains(t, setUp(t, b, extra).stdout, "0 created, 0 changed, 13 unchanged")

	r = run(t, b, map[string]string{"SOLACE_SHUT_OUT": "nobody"})
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stderr, "read ACL profile nobody (SOLACE_SHUT_OUT): HTTP 400, SEMP error 6 NOT_FOUND")
}

// TestWhatOpensTheBillingTopicIsReported and not removed: it may be somebody's work.
func TestWhatOpensTheBillingTopicIsReported(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	setUp(t, b, nil)
	b.put("queues/billing%2Fevents%20q1/subscriptions", object{"subscriptionTopic": "test/>"})
	for _, kind := range []string{"publish", "subscribe"} {
		b.put("aclProfiles/chargeonce_ingest/"+kind+"TopicExceptions", object{
			kind + "TopicExceptionSyntax": "smf", kind + "TopicException": topic,
		})
		b.put("aclProfiles/chargeonce_publish/"+kind+"TopicExceptions", object{
			kind + "TopicExceptionSyntax": "smf", kind + "TopicException": "any/" + kind,
		})
	}
	b.change("", object{"authenticationBasicType": "none", "enabled": false})
	before := b.state()
	r := setUp(t, b, nil)
	for _, warning := range []string{
		"queue " + queue + " takes messages from another topic too: test/>",
		"ACL profile chargeonce_ingest lets the ingestor receive Direct messages on " + topic,
		"ACL profile chargeonce_ingest lets the ingestor publish to " + topic,
		"ACL profile chargeonce_publish lets publishers also publish to any/publish",
		"ACL profile chargeonce_publish lets publishers receive Direct messages on any/subscribe",
		"billing events go as Direct messages to whoever subscribes (see SOLACE_SHUT_OUT) with ACL profile default",
		"billing events may be published (see SOLACE_SHUT_OUT) with ACL profile default",
		"checks no passwords: anybody may log in as ingest",
		"message VPN " + vpn + " is disabled",
		"SOLACE_SEMP_URL is http",
	} {
		require.Contains(t, r.stderr, warning)
	}
	require.NotContains(t, r.stderr, "#acl-profile")
	require.Equal(t, before, b.state())
}

func TestAListTooLongForOnePageIsReported(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	setUp(t, b, nil)
	for i := range 101 {
		b.put("queues/billing%2Fevents%20q1/subscriptions", object{"subscriptionTopic": strings.Repeat("x", i+1)})
	}
	require.Contains(t, setUp(t, b, nil).stderr, "more than 100, the rest was not looked at: queue "+queue)
}
