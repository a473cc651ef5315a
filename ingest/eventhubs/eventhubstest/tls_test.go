package eventhubstest_test

import (
	"context"
	"crypto/tls"
	"errors"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/stretchr/testify/require"

	"chargeonce/ingest/eventhubs/eventhubstest"
	"chargeonce/ingest/eventhubs/identitytest"
)

// word is a credential whose token is always the same.
type word string

func (w word) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return azcore.AccessToken{Token: string(w), ExpiresOn: time.Now().Add(time.Hour)}, nil
}

// With an Azure identity the SDK speaks TLS alone and shows tokens of type jwt.
func TestTLSAndTokensOfAnIdentity(t *testing.T) {
	t.Parallel()
	certificates := identitytest.NewCertificates(t)
	s := start(t, eventhubstest.Config{TLS: certificates.TLS(t), CheckToken: func(token eventhubstest.Token) error {
		if token.Type != "jwt" || token.Value != "right" {
			return errors.New("InvalidSignature: The token has an invalid signature.") //nolint:revive // the service's words
		}
		return nil
	}})
	publish(t, s, "0", 3)
	properties := func(token word, trusting *tls.Config) (azeventhubs.EventHubProperties, error) {
		trusting.ServerName = "127.0.0.1" // else the SDK expects a certificate for the port as well
		c, err := azeventhubs.NewConsumerClient(s.Addr(), hubName, "$default", token, &azeventhubs.ConsumerClientOptions{
			RetryOptions: azeventhubs.RetryOptions{MaxRetries: -1}, TLSConfig: trusting,
		})
		require.NoError(t, err)
		ctx, cancel := bounded()
		defer cancel()
		defer func() { _ = c.Close(ctx) }()
		return c.GetEventHubProperties(ctx, nil)
	}
	hub, err := properties("right", certificates.Trusting(t))
	require.NoError(t, err)
	require.Len(t, hub.PartitionIDs, 4)
	_, err = properties("wrong", certificates.Trusting(t))
	require.ErrorContains(t, err, "status code 401")
	require.ErrorContains(t, err, "invalid signature")
	_, err = properties("right", &tls.Config{MinVersion: tls.VersionTLS12})
	require.ErrorContains(t, err, "unknown authority")
	require.NotContains(t, s.ConnectionString(""), "UseDevelopmentEmulator")
}
