package eventhubs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/streaming"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2/checkpoints"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/bloberror"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
)

// blobKeeper keeps ownerships and checkpoints in Azure Blob Storage, by the SDK's own store. Blobs are named
// NAMESPACE/HUB/GROUP/checkpoint/PARTITION in lower case, which is where KEDA's blobMetadata looks for them.
type blobKeeper struct {
	store     *checkpoints.BlobStore
	container *container.Client
	transport *http.Transport
	identity  azcore.TokenCredential // nil with a connection string
	account   string                 // first part of the account's host name, for the user to know it by
	name      string                 // of the container
}

// newBlobKeeper connects to nothing. It returns ErrStorageString, ErrStorageURL or ErrContainerName, and never repeats what may
// hold a key.
func newBlobKeeper(cfg BlobConfig, credential azcore.TokenCredential) (*blobKeeper, error) {
	if err := checkContainer(cfg.Container); err != nil {
		return nil, err
	}
	shared, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return nil, errors.New("internal error: Go's default transport is another one")
	}
	k := &blobKeeper{transport: shared.Clone(), name: cfg.Container}
	k.transport.MaxIdleConnsPerHost = 32 // about one for each partition
	options := &container.ClientOptions{ClientOptions: azcore.ClientOptions{
		// One request is one try. With the SDK's default of 3 retries a call would use up its time before its first answer counted.
		Retry:     policy.RetryOptions{MaxRetries: -1},
		Telemetry: policy.TelemetryOptions{ApplicationID: applicationID},
		Transport: &http.Client{Transport: k.transport},
	}}
	var err error
	if cfg.ConnectionString != "" {
		if k.container, err = container.NewClientFromConnectionString(cfg.ConnectionString, cfg.Container, options); err != nil {
			return nil, fmt.Errorf("%w: it must look like DefaultEndpointsProtocol=https;AccountName=NAME;AccountKey=KEY;EndpointSuffix=core.windows.net", ErrStorageString)
		}
	} else {
		if err := checkAccountURL(cfg.AccountURL); err != nil {
			return nil, err
		}
		k.identity = boundedCredential{credential}
		k.container, err = container.NewClient(strings.TrimSuffix(cfg.AccountURL, "/")+"/"+cfg.Container, k.identity, options)
		if err != nil {
			return nil, fmt.Errorf("%w: %s", ErrStorageURL, cfg.AccountURL)
		}
	}
	at, err := url.Parse(k.container.URL())
	if err != nil || at.Host == "" {
		return nil, fmt.Errorf("%w: its BlobEndpoint is no address", ErrStorageString)
	}
	k.account, _, _ = strings.Cut(at.Hostname(), ".")
	k.store, err = checkpoints.NewBlobStore(k.container, nil)
	if err != nil {
		return nil, fmt.Errorf("make a checkpoint store in container %s: %w", cfg.Container, err)
	}
	return k, nil
}

func checkAccountURL(account string) error {
	u, err := url.Parse(account)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.User != nil {
		return fmt.Errorf("%w: it must look like https://NAME.blob.core.windows.net", ErrStorageURL)
	}
	return nil
}

func checkContainer(name string) error {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	if len(name) < 3 || len(name) > 63 || strings.Trim(name, letters+"-") != "" || strings.Contains(name, "--") ||
		strings.HasPrefix(name, "-") || strings.HasSuffix(name, "-") {
		return fmt.Errorf("%w: %q, it must be 3 to 63 lower-case letters, digits and single hyphens", ErrContainerName, name)
	}
	return nil
}

func (k *blobKeeper) ownerships(ctx context.Context, key hubKey) ([]azeventhubs.Ownership, error) {
	var response *http.Response
	list, err := k.store.ListOwnership(policy.WithCaptureResponse(ctx, &response), key.namespace, key.hub, key.group, nil)
	if err != nil {
		return nil, plain(err)
	}
	ahead := clockAhead(response, time.Now())
	for i := range list {
		list[i].LastModifiedTime = list[i].LastModifiedTime.Add(ahead)
	}
	return list, nil
}

// clockAhead is how far the local clock is ahead of the one by which the answer is dated; 0 when it has no date. The storage's times
// are whole seconds.
func clockAhead(response *http.Response, now time.Time) time.Duration {
	if response == nil {
		return 0
	}
	date, err := http.ParseTime(response.Header.Get("Date"))
	if err != nil {
		return 0
	}
	return now.Sub(date)
}

func (k *blobKeeper) claim(ctx context.Context, claim azeventhubs.Ownership) (*azcore.ETag, error) {
	won, err := k.store.ClaimOwnership(ctx, []azeventhubs.Ownership{claim}, nil)
	if err != nil || len(won) == 0 {
		return nil, plain(err)
	}
	return won[0].ETag, nil
}

// checkpoints returns the sequence numbers of the checkpoints by partition.
func (k *blobKeeper) checkpoints(ctx context.Context, key hubKey) (map[string]int64, error) {
	list, err := k.store.ListCheckpoints(ctx, key.namespace, key.hub, key.group, nil)
	if err != nil {
		return nil, plain(err)
	}
	out := make(map[string]int64, len(list))
	for _, c := range list {
		out[c.PartitionID] = *c.SequenceNumber // the SDK's store returns none without
	}
	return out, nil
}

func (k *blobKeeper) setCheckpoint(ctx context.Context, c azeventhubs.Checkpoint) error {
	return plain(k.store.SetCheckpoint(ctx, c, nil))
}

// closeIdle ends connections that nothing uses.
func (k *blobKeeper) closeIdle() { k.transport.CloseIdleConnections() }

// What a Probe can find wrong with Blob Storage.
var (
	ErrStorageUnreachable = errors.New("the storage account cannot be reached")
	ErrStorageForbidden   = errors.New("the storage account refuses access")
	ErrUnknownContainer   = errors.New("the storage container does not exist")
)

// probe asks whether the container is there and may be written to, and leaves nothing behind: it writes a blob on a condition that
// cannot be, and rights are judged before conditions.
func (k *blobKeeper) probe(ctx context.Context, key hubKey) error {
	if k.identity != nil {
		if err := probeIdentity(ctx, k.identity, storageScope); err != nil {
			return err
		}
	}
	name := strings.Join([]string{key.namespace, key.hub, key.group, "probe"}, "/")
	_, err := k.container.NewBlockBlobClient(name).Upload(ctx, streaming.NopCloser(bytes.NewReader(nil)), &blockblob.UploadOptions{
		AccessConditions: &blob.AccessConditions{ModifiedAccessConditions: &blob.ModifiedAccessConditions{IfMatch: new(azcore.ETag(`"0x0"`))}},
	})
	answer, answered := errors.AsType[*azcore.ResponseError](err)
	switch {
	case err == nil, bloberror.HasCode(err, bloberror.ConditionNotMet, bloberror.BlobNotFound):
		return nil
	case bloberror.HasCode(err, bloberror.ContainerNotFound):
		return fmt.Errorf("%w: %s in storage account %s", ErrUnknownContainer, k.name, k.account)
	case answered && (answer.StatusCode == http.StatusForbidden || answer.StatusCode == http.StatusUnauthorized):
		return fmt.Errorf("%w: %w", ErrStorageForbidden, plain(err))
	}
	return fmt.Errorf("%w: %w", ErrStorageUnreachable, plain(err))
}

// storageError is an answer of Blob Storage, in one line; the SDK's own text has ten.
type storageError struct {
	*azcore.ResponseError
}

func (e storageError) Error() string {
	return fmt.Sprintf("blob storage answered %d %s", e.StatusCode, e.ErrorCode)
}

func (e storageError) Unwrap() error { return e.ResponseError }

func plain(err error) error {
	if answer, ok := errors.AsType[*azcore.ResponseError](err); ok {
		return storageError{answer}
	}
	return err
}
