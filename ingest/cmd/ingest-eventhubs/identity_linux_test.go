package main

import (
	"errors"
	"maps"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"github.com/stretchr/testify/require"

	"chargeonce/ingest/eventhubs/azuritetest"
	"chargeonce/ingest/eventhubs/eventhubstest"
	"chargeonce/ingest/eventhubs/identitytest"
	"chargeonce/sql/sqltest"
)

// startHubFor serves a hub that takes only tokens of the identity.
func startHubFor(t *testing.T, identity *identitytest.Identity, certificates identitytest.Certificates) *eventhubstest.Server {
	t.Helper()
	return startHub(t, eventhubstest.Config{TLS: certificates.TLS(t), CheckToken: func(token eventhubstest.Token) error {
		if token.Type != "jwt" {
			return errors.New("MalformedToken: not of an identity")
		}
		return identity.Check(token.Value, identitytest.EventHubs)
	}})
}

// identitySettings are right ones for a process with an identity. Only Linux has the trusted authorities from SSL_CERT_FILE.
func identitySettings(hub *eventhubstest.Server, databaseURL string, identity *identitytest.Identity, certificates identitytest.Certificates) map[string]string {
	env := settings(hub, databaseURL)
	delete(env, "EVENTHUB_CONNECTION_STR")
	env["EVENTHUB_NAMESPACE"], env["SSL_CERT_FILE"] = hub.Addr(), certificates.CAFile
	maps.Copy(env, identity.Env())
	return env
}

func TestIdentityReadsTheHubAndKeepsCheckpointsInBlob(t *testing.T) {
	t.Parallel()
	certificates := identitytest.NewCertificates(t)
	identity := identitytest.Start(t, time.Hour)
	hub := startHubFor(t, identity, certificates)
	accountURL := azuritetest.StartTLS(t, certificates.CertFile, certificates.KeyFile)
	transport := &http.Transport{TLSClientConfig: certificates.Trusting(t)}
	t.Cleanup(transport.CloseIdleConnections)
	client, err := container.NewClientFromConnectionString(azuritetest.ConnectionString(accountURL), "checkpoints", &container.ClientOptions{
		ClientOptions: azcore.ClientOptions{Transport: &http.Client{Transport: transport}},
	})
	require.NoError(t, err)
	_, err = client.Create(t.Context(), nil)
	require.NoError(t, err)
	db := sqltest.New(t)
	publish(t, hub, 0, 5)

	env := identitySettings(hub, db.URL, identity, certificates)
	env["CHECKPOINT_STORE"], env["STORAGE_ACCOUNT_URL"] = "blob", accountURL
	p := start(t, env)
	awaitCheckpoint(t, azuritetest.Storage{Client: client}, hub, "4")
	await(t, db.Pool(t, ""), 5, "SELECT count(*) FROM billing.intents")
	p.signal(t, syscall.SIGTERM)
	require.Zero(t, p.exit(t), p.stderr)
	require.NotContains(t, p.stderr.String(), "WARN")
}

// Nobody renews what a process was once given: each link asks for a token that counts now.
func TestTokenThatCountsNoMoreIsReplacedByAFreshOne(t *testing.T) {
	t.Parallel()
	certificates := identitytest.NewCertificates(t)
	identity := identitytest.Start(t, time.Minute)
	hub := startHubFor(t, identity, certificates)
	db := sqltest.New(t)
	publish(t, hub, 0, 5)
	start(t, identitySettings(hub, db.URL, identity, certificates))
	await(t, db.Pool(t, ""), 5, "SELECT count(*) FROM billing.intents")
	issued := identity.Issued()
	identity.Revoke()
	hub.DropConnections()
	publish(t, hub, 5, 5)
	await(t, db.Pool(t, ""), 10, "SELECT count(*) FROM billing.intents")
	require.Greater(t, identity.Issued(), issued)
}

func TestIdentityThatMayNotReadIsToldWhichRoleToAskFor(t *testing.T) {
	t.Parallel()
	certificates := identitytest.NewCertificates(t)
	hub := startHubFor(t, identitytest.Start(t, time.Hour), certificates)
	p := start(t, identitySettings(hub, sqltest.New(t).URL, identitytest.Start(t, time.Hour), certificates))
	require.Equal(t, 2, p.exit(t), p.stderr)
	said := lastLine(p.stderr.String())
	require.Contains(t, said, "EVENTHUB_NAMESPACE cannot be used (the event hubs namespace refuses the identity: ")
	require.Contains(t, said, `grant this identity the role "Azure Event Hubs Data Receiver"`)
}

func TestProcessWithoutAnIdentityIsToldSo(t *testing.T) {
	t.Parallel()
	certificates := identitytest.NewCertificates(t)
	identity := identitytest.Start(t, time.Hour)
	identity.Refuse()
	p := start(t, identitySettings(startHubFor(t, identity, certificates), sqltest.New(t).URL, identity, certificates))
	require.Equal(t, 2, p.exit(t), p.stderr)
	said := lastLine(p.stderr.String())
	require.Contains(t, said, "EVENTHUB_NAMESPACE cannot be used (there is no token for an Azure identity: ")
	require.Contains(t, said, "No managed identity is assigned")
	require.Contains(t, said, "managed or workload identity")
}
