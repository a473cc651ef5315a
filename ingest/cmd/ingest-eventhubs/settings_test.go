package main

import (
	"fmt"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"

	"chargeonce/deploy/daemon"
	"chargeonce/ingest/eventhubs"
)

// What can be known without asking anybody is found by --check-config too.
func TestAccessThatCannotWorkFailsTheCheck(t *testing.T) {
	t.Parallel()
	const hubString = "Endpoint=sb://x.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=topsecret;EntityPath=billing"
	const storageString = "DefaultEndpointsProtocol=https;AccountName=x;AccountKey=dG9wc2VjcmV0;EndpointSuffix=core.windows.net"
	for title, test := range map[string]struct {
		change map[string]string
		want   []string // all in the sentence; none: the settings are fine
	}{
		"postgres":            {nil, nil},
		"blob":                {map[string]string{"CHECKPOINT_STORE": "blob", "STORAGE_CONNECTION_STR": storageString}, nil},
		"blob by identity":    {map[string]string{"CHECKPOINT_STORE": "blob", "STORAGE_ACCOUNT_URL": "https://x.blob.core.windows.net"}, nil},
		"hub by identity":     {map[string]string{"EVENTHUB_CONNECTION_STR": "", "EVENTHUB_NAMESPACE": "x.servicebus.windows.net", "EVENTHUB_NAME": "billing"}, nil},
		"no way to the hub":   {map[string]string{"EVENTHUB_CONNECTION_STR": ""}, []string{"EVENTHUB_CONNECTION_STR is not set", "EVENTHUB_NAMESPACE"}},
		"two ways to the hub": {map[string]string{"EVENTHUB_NAMESPACE": "x.servicebus.windows.net"}, []string{"EVENTHUB_CONNECTION_STR and EVENTHUB_NAMESPACE are both given"}},
		"namespace is a URL": {
			map[string]string{"EVENTHUB_CONNECTION_STR": "", "EVENTHUB_NAMESPACE": "sb://x.servicebus.windows.net/", "EVENTHUB_NAME": "billing"},
			[]string{"EVENTHUB_NAMESPACE", "NAME.servicebus.windows.net", "give the host name alone"},
		},
		"namespace without host": {
			map[string]string{"EVENTHUB_CONNECTION_STR": "", "EVENTHUB_NAMESPACE": "x", "EVENTHUB_NAME": "billing"},
			[]string{"EVENTHUB_NAMESPACE", "give the host name alone"},
		},
		"identity and no hub named": {map[string]string{"EVENTHUB_CONNECTION_STR": "", "EVENTHUB_NAMESPACE": "x.servicebus.windows.net"}, []string{"EVENTHUB_NAME"}},
		"unknown kind of identity": {
			map[string]string{"EVENTHUB_CONNECTION_STR": "", "EVENTHUB_NAMESPACE": "x.servicebus.windows.net", "EVENTHUB_NAME": "billing", "AZURE_TOKEN_CREDENTIALS": "nonsense"},
			[]string{"AZURE_TOKEN_CREDENTIALS", "nonsense"},
		},
		"no way to the storage": {map[string]string{"CHECKPOINT_STORE": "blob"}, []string{"STORAGE_CONNECTION_STR is not set", "STORAGE_ACCOUNT_URL"}},
		"two ways to the storage": {
			map[string]string{"CHECKPOINT_STORE": "blob", "STORAGE_CONNECTION_STR": storageString, "STORAGE_ACCOUNT_URL": "https://x.blob.core.windows.net"},
			[]string{"STORAGE_CONNECTION_STR and STORAGE_ACCOUNT_URL are both given"},
		},
		"bad storage string": {
			map[string]string{"CHECKPOINT_STORE": "blob", "STORAGE_CONNECTION_STR": "AccountName=x;AccountKey topsecret"},
			[]string{"STORAGE_CONNECTION_STR", "cannot be read", "AccountName=NAME", "copy it"},
		},
		"bad storage key": {
			map[string]string{"CHECKPOINT_STORE": "blob", "STORAGE_CONNECTION_STR": "AccountName=x;AccountKey=topsecret!"},
			[]string{"STORAGE_CONNECTION_STR", "cannot be read"},
		},
		"storage without TLS": {map[string]string{"CHECKPOINT_STORE": "blob", "STORAGE_ACCOUNT_URL": "http://x.blob.core.windows.net"}, []string{"STORAGE_ACCOUNT_URL", "https://NAME.blob.core.windows.net"}},
		"storage URL with a key": {
			map[string]string{"CHECKPOINT_STORE": "blob", "STORAGE_ACCOUNT_URL": "https://x.blob.core.windows.net?sig=topsecret"},
			[]string{"STORAGE_ACCOUNT_URL", "https://NAME.blob.core.windows.net"},
		},
		"bad container": {
			map[string]string{"CHECKPOINT_STORE": "blob", "STORAGE_CONNECTION_STR": storageString, "STORAGE_CONTAINER": "Check_Points"},
			[]string{"STORAGE_CONTAINER", `"Check_Points"`, "lower-case"},
		},
		"stuck at once": {map[string]string{"STUCK_AFTER": "0s"}, []string{"--stuck-after cannot be 0s"}},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			env := map[string]string{"DATABASE_URL": "postgres://db.example:5432/billing", "BILLING_NAMESPACE": "usage", "EVENTHUB_CONNECTION_STR": hubString}
			maps.Copy(env, test.change)
			p := start(t, env, "--check-config")
			code := p.exit(t)
			said := lastLine(p.stderr.String())
			if test.want == nil {
				require.Zero(t, code, said)
				return
			}
			require.Equal(t, 2, code, said)
			for _, want := range test.want {
				require.Contains(t, said, want)
			}
			require.NotContains(t, p.stderr.String(), "topsecret")
		})
	}
}

// The right that is missing depends on the way in.
func TestRefusalsNameTheRightThatIsMissing(t *testing.T) {
	t.Parallel()
	for title, test := range map[string]struct {
		cfg     config
		err     error
		setting string
		cure    string
	}{
		"key of the storage": {
			config{StorageString: "x"}, eventhubs.ErrStorageForbidden, "STORAGE_CONNECTION_STR", "access keys",
		},
		"identity at the storage": {
			config{StorageAccountURL: "x"}, eventhubs.ErrStorageForbidden, "STORAGE_ACCOUNT_URL", `"Storage Blob Data Contributor"`,
		},
		"no identity for the storage": {
			config{StorageAccountURL: "x"}, eventhubs.ErrNoIdentity, "STORAGE_ACCOUNT_URL", "managed or workload identity",
		},
		"identity at the hub": {
			config{EventHubNamespace: "x"}, eventhubs.ErrIdentityRefused, "EVENTHUB_NAMESPACE", `"Azure Event Hubs Data Receiver"`,
		},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			var setting *daemon.SettingError
			require.ErrorAs(t, sourceError(fmt.Errorf("%w: no", test.err), &test.cfg), &setting)
			require.Equal(t, test.setting, setting.Setting)
			require.Contains(t, setting.Cure, test.cure)
		})
	}
}
