package eventhubs

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"

	"chargeonce/ingest"
)

// Config says what to read and how. Zero values take the defaults given.
type Config struct {
	ConnectionString string
	// Namespace is the host name of an Event Hubs namespace, such as NAME.servicebus.windows.net; it is given, with Credential, instead
	// of ConnectionString.
	Namespace string
	// Credential gets the tokens of an Azure identity, for Namespace and for Blob.AccountURL.
	Credential azcore.TokenCredential
	// Blob says where ownerships and checkpoints are kept instead of in Postgres; nil: in Postgres.
	Blob *BlobConfig

	Hub             string        // may be empty when the connection string has an EntityPath
	ConsumerGroup   string        // default $default
	BatchSize       int           // events per transaction, 1 to ingest.MaxBatchDeliveries; default 1,000
	Linger          time.Duration // how long a batch waits for more events after its first; default 20 ms
	Prefetch        int           // events that a partition is asked for at a time, fewer when they are large; 1 to 5,000; default 100
	UpdateInterval  time.Duration // how often ownerships are renewed and balanced; default 5 s
	OwnershipExpiry time.Duration // after how long without renewal others may take a partition; default 60 s
	StoreTimeout    time.Duration // of one call to the checkpoint store; default 3 s
	StopGrace       time.Duration // what batches in hand get to commit when told to stop; default 10 s
	StrandedAfter   time.Duration // how long an owned partition may go without a reader; default OwnershipExpiry
	LookInterval    time.Duration // how often the hub's and partitions' properties are read; default 20 s
	IdleWait        time.Duration // longest wait for the first event of a batch; default 30 s
	RestartDelay    time.Duration // first pause before another Processor, doubled up to 30 s; default 1 s
	StuckAfter      time.Duration // lag without progress for so long makes the source not ready; default 5 min
}

// BlobConfig names a container of Azure Blob Storage, by a connection string or by an account and Config.Credential.
type BlobConfig struct {
	ConnectionString string
	AccountURL       string // such as https://NAME.blob.core.windows.net
	Container        string // default checkpoints; it must exist
}

// maxRestartDelay bounds the pause between two Processors.
const maxRestartDelay = 30 * time.Second

// MaxPrefetch is the SDK's bound, in events.
const MaxPrefetch = 5000

// minBlobExpiry is the shortest OwnershipExpiry with Blob, whose times are whole seconds: an age may be off by one, either way.
const minBlobExpiry = 3 * time.Second

func (c Config) withDefaults() Config {
	c.ConsumerGroup = strings.ToLower(cmp.Or(c.ConsumerGroup, azeventhubs.DefaultConsumerGroup))
	c.BatchSize = cmp.Or(c.BatchSize, ingest.MaxBatchDeliveries)
	c.Linger = cmp.Or(c.Linger, 20*time.Millisecond)
	c.Prefetch = cmp.Or(c.Prefetch, 100)
	c.UpdateInterval = cmp.Or(c.UpdateInterval, 5*time.Second)
	c.OwnershipExpiry = cmp.Or(c.OwnershipExpiry, time.Minute)
	c.StoreTimeout = cmp.Or(c.StoreTimeout, 3*time.Second)
	c.StopGrace = cmp.Or(c.StopGrace, 10*time.Second)
	c.StrandedAfter = cmp.Or(c.StrandedAfter, c.OwnershipExpiry)
	c.LookInterval = cmp.Or(c.LookInterval, 20*time.Second)
	c.IdleWait = cmp.Or(c.IdleWait, 30*time.Second)
	c.RestartDelay = cmp.Or(c.RestartDelay, time.Second)
	c.StuckAfter = cmp.Or(c.StuckAfter, 5*time.Minute)
	if c.Blob != nil {
		blob := *c.Blob
		blob.Container = cmp.Or(blob.Container, "checkpoints")
		c.Blob = &blob
	}
	return c
}

// Validate returns ErrConnectionString, ErrNamespace, ErrHubName, ErrStorageString, ErrStorageURL, ErrContainerName or ErrLimits. It
// connects to nothing.
func (c Config) Validate() error {
	c = c.withDefaults()
	switch {
	case c.BatchSize < 1 || c.BatchSize > ingest.MaxBatchDeliveries:
		return fmt.Errorf("%w: a batch of %d events, 1 to %d are possible", ErrLimits, c.BatchSize, ingest.MaxBatchDeliveries)
	case c.Prefetch < 1 || c.Prefetch > MaxPrefetch:
		return fmt.Errorf("%w: a prefetch of %d events, 1 to %d are possible", ErrLimits, c.Prefetch, MaxPrefetch)
	case c.UpdateInterval < 0 || c.OwnershipExpiry < 6*c.UpdateInterval:
		// One slow renewal must not look like a death: all readers would take each other's partitions at once.
		return fmt.Errorf("%w: ownership expires after %s, which must be at least 6 times the update interval of %s", ErrLimits, c.OwnershipExpiry, c.UpdateInterval)
	case c.Blob != nil && c.OwnershipExpiry < minBlobExpiry:
		return fmt.Errorf("%w: ownership expires after %s, which must be at least %s with Blob Storage", ErrLimits, c.OwnershipExpiry, minBlobExpiry)
	case slices.Min([]time.Duration{c.Linger, c.StoreTimeout, c.StopGrace, c.StrandedAfter, c.LookInterval, c.IdleWait, c.RestartDelay, c.StuckAfter}) < 0:
		return fmt.Errorf("%w: a time is negative", ErrLimits)
	}
	if c.Blob != nil {
		if _, err := newBlobKeeper(*c.Blob, c.Credential); err != nil {
			return err
		}
	}
	_, err := c.target()
	return err
}

type target struct {
	entity string
	key    hubKey
}

// What can be wrong with a Config.
var (
	ErrConnectionString = errors.New("the connection string cannot be read")
	ErrNamespace        = errors.New("this is no host name of an Event Hubs namespace")
	ErrHubName          = errors.New("no single hub is named") // by the connection string and Config.Hub together
	ErrStorageString    = errors.New("the storage account's connection string cannot be read")
	ErrStorageURL       = errors.New("this is no address of a storage account")
	ErrContainerName    = errors.New("this is no name of a container")
	ErrLimits           = errors.New("out of limits")
)

// target never repeats the connection string, which holds a key.
func (c Config) target() (target, error) {
	namespace, path := c.Namespace, ""
	if namespace == "" {
		props, err := azeventhubs.ParseConnectionString(c.ConnectionString)
		if err != nil {
			return target{}, fmt.Errorf("%w: it must look like Endpoint=sb://NAME.servicebus.windows.net/;SharedAccessKeyName=NAME;SharedAccessKey=KEY", ErrConnectionString)
		}
		namespace = props.FullyQualifiedNamespace
		if props.EntityPath != nil {
			path = *props.EntityPath
		}
	} else if err := checkHost(namespace); err != nil {
		return target{}, err
	}
	hub := strings.ToLower(c.Hub)
	entity := hub
	if path != "" {
		if hub != "" && !strings.EqualFold(path, hub) {
			return target{}, fmt.Errorf("%w: the connection string names %q, the setting %q", ErrHubName, path, c.Hub)
		}
		hub, entity = strings.ToLower(path), ""
	}
	if hub == "" {
		return target{}, fmt.Errorf("%w: neither the connection string nor the setting names one", ErrHubName)
	}
	return target{entity: entity, key: lowerKey(namespace, hub, c.ConsumerGroup)}, nil
}

// checkHost takes HOST and HOST:PORT.
func checkHost(namespace string) error {
	u, err := url.Parse("amqps://" + namespace + "/")
	if err != nil || u.Host != namespace || u.Hostname() == "" || (!strings.Contains(namespace, ".") && net.ParseIP(u.Hostname()) == nil) {
		return fmt.Errorf("%w: %q, it must look like NAME.servicebus.windows.net", ErrNamespace, namespace)
	}
	return nil
}
