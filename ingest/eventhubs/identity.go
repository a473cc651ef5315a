package eventhubs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
)

// What tokens are asked for, as the SDK's clients ask.
const (
	eventHubsScope = "https://eventhubs.azure.net//.default"
	storageScope   = "https://storage.azure.com/.default"
)

// tokenTimeout bounds one request for a token. The SDK asks without a limit of its own, and a partition would wait for ever.
const tokenTimeout = 30 * time.Second

type boundedCredential struct {
	azcore.TokenCredential
}

func (c boundedCredential) GetToken(ctx context.Context, options policy.TokenRequestOptions) (azcore.AccessToken, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, tokenTimeout, errTooLong)
	defer cancel()
	return c.TokenCredential.GetToken(ctx, options)
}

// ErrNoIdentity says that no token was to be had: this process has no Azure identity, or its provider does not answer.
var ErrNoIdentity = errors.New("there is no token for an Azure identity")

// probeIdentity asks for a token, for what the clients make of a missing one cannot be told from a hub that is away.
func probeIdentity(ctx context.Context, credential azcore.TokenCredential, scope string) error {
	_, err := bounded(ctx, probeTimeout, func(ctx context.Context) (azcore.AccessToken, error) {
		return credential.GetToken(ctx, policy.TokenRequestOptions{Scopes: []string{scope}})
	})
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("%w: %s", ErrNoIdentity, oneLine(err.Error()))
	}
	return nil
}
