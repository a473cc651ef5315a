package main

import (
	"fmt"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"

	"chargeonce/deploy/daemon"
	"chargeonce/ingest"
	"chargeonce/ingest/eventhubs"
	"chargeonce/schema"
)

type config struct {
	DatabaseURL   daemon.Secret `help:"Address of the database." env:"DATABASE_URL" placeholder:"URL"`
	DatabaseConns int32         `help:"Connections to the database for batches." default:"8" env:"DATABASE_CONNS"`

	ConnectionString  daemon.Secret `help:"Connection string of the Event Hubs namespace or of the hub." env:"EVENTHUB_CONNECTION_STR" placeholder:"STRING"`
	EventHubNamespace string        `name:"eventhub-namespace" help:"Instead of the connection string: host name of the Event Hubs namespace, such as NAME.servicebus.windows.net, read with this process's Azure identity." env:"EVENTHUB_NAMESPACE" placeholder:"HOST"`
	Hub               string        `help:"Event hub; may be left out when the connection string has an EntityPath." env:"EVENTHUB_NAME" placeholder:"NAME"`
	ConsumerGroup     string        `help:"Consumer group, one per deployment." default:"$$default" env:"EVENTHUB_CONSUMER_GROUP" placeholder:"NAME"`

	CheckpointStore   string        `help:"Where partition ownerships and checkpoints are kept: ${enum}." enum:"postgres,blob" default:"postgres" env:"CHECKPOINT_STORE"`
	StorageString     daemon.Secret `name:"storage-connection-string" help:"Connection string of the storage account, for checkpoints in Blob Storage." env:"STORAGE_CONNECTION_STR" placeholder:"STRING"`
	StorageAccountURL string        `help:"Instead of that: address of the storage account, such as https://NAME.blob.core.windows.net, used with this process's Azure identity." env:"STORAGE_ACCOUNT_URL" placeholder:"URL"`
	StorageContainer  string        `help:"Container for checkpoints; it must exist." default:"checkpoints" env:"STORAGE_CONTAINER" placeholder:"NAME"`

	Namespace             string                 `help:"Business stream that the intents belong to, such as usage-billing." env:"BILLING_NAMESPACE" placeholder:"NAME"`
	PeriodFormat          string                 `help:"Format of billing periods: ${enum}." enum:"month,day,week,quarter,year" default:"month" env:"BILLING_PERIOD_FORMAT"`
	ManyPerStripeCustomer bool                   `help:"Let several intents charge one Stripe customer for one period and currency." env:"BILLING_MANY_PER_STRIPE_CUSTOMER"`
	Map                   []string               `help:"Where a foreign event keeps a field, such as customer_id=/subject; may be repeated." sep:"none" placeholder:"FIELD=/POINTER"`
	MaxBodyBytes          int                    `help:"Largest event body, in bytes." default:"1048576" env:"MAX_BODY_BYTES"`
	BatchSize             int                    `help:"Events per transaction." default:"1000" env:"BATCH_SIZE"`
	BatchWait             time.Duration          `help:"How long a batch waits for more events after its first." default:"20ms" env:"BATCH_WAIT"`
	Prefetch              int                    `help:"Events that a partition is asked for at a time; fewer when they are large." default:"100" env:"PREFETCH"`
	UpdateInterval        time.Duration          `help:"How often partition ownership is renewed and balanced." default:"5s" env:"EVENTHUB_UPDATE_INTERVAL"`
	OwnershipExpiry       time.Duration          `help:"After how long without renewal others take a partition over." default:"60s" env:"EVENTHUB_OWNERSHIP_EXPIRY"`
	StopGrace             time.Duration          `help:"What batches in hand get to commit when told to stop." default:"10s" env:"STOP_GRACE"`
	StuckAfter            time.Duration          `help:"After how long with events to read and none committed this process is not ready." default:"5m" env:"STUCK_AFTER"`
	HTTP                  daemon.HTTP            `embed:""`
	mapping               schema.Mapping         `kong:"-"`
	credential            azcore.TokenCredential `kong:"-"`
}

const (
	storePostgres = "postgres"
	storeBlob     = "blob"
)

// Validate is asked before run, and by --check-config. It connects to nothing.
func (c *config) Validate() error {
	if err := daemon.CheckDatabaseURL(c.DatabaseURL); err != nil {
		return err
	}
	if err := c.checkAccess(); err != nil {
		return err
	}
	if c.Namespace == "" {
		return &daemon.SettingError{Setting: "BILLING_NAMESPACE", Problem: "is not set", Cure: "name the business stream, such as usage-billing"}
	}
	if err := schema.CheckNamespace(c.Namespace); err != nil {
		return &daemon.SettingError{Setting: "BILLING_NAMESPACE", Problem: "cannot be used (" + err.Error() + ")"}
	}
	mapping, err := schema.ParseMapping(c.Map)
	if err != nil {
		return &daemon.SettingError{Setting: "--map", Problem: "cannot be used (" + err.Error() + ")"}
	}
	c.mapping = mapping
	if err := c.checkNumbers(); err != nil {
		return err
	}
	if err := c.source().Validate(); err != nil {
		return sourceError(err, c)
	}
	return nil
}

// checkAccess sees that there is one way, and not two, to the hub and to the checkpoints.
func (c *config) checkAccess() error {
	switch {
	case c.ConnectionString == "" && c.EventHubNamespace == "":
		return &daemon.SettingError{
			Setting: "EVENTHUB_CONNECTION_STR", Problem: "is not set",
			Cure: "copy it from the hub's shared access policies (Listen is enough), or give EVENTHUB_NAMESPACE where this process has an Azure identity",
		}
	case c.ConnectionString != "" && c.EventHubNamespace != "":
		return &daemon.SettingError{Setting: "EVENTHUB_CONNECTION_STR", Problem: "and EVENTHUB_NAMESPACE are both given", Cure: "give one of them"}
	}
	identity := c.EventHubNamespace != ""
	if c.CheckpointStore == storeBlob {
		switch {
		case c.StorageString == "" && c.StorageAccountURL == "":
			return &daemon.SettingError{
				Setting: "STORAGE_CONNECTION_STR", Problem: "is not set",
				Cure: "copy it from the storage account's access keys, or give STORAGE_ACCOUNT_URL where this process has an Azure identity",
			}
		case c.StorageString != "" && c.StorageAccountURL != "":
			return &daemon.SettingError{Setting: "STORAGE_CONNECTION_STR", Problem: "and STORAGE_ACCOUNT_URL are both given", Cure: "give one of them"}
		}
		identity = identity || c.StorageAccountURL != ""
	}
	if !identity {
		return nil
	}
	credential, err := azidentity.NewDefaultAzureCredential(nil)
	if err != nil {
		return &daemon.SettingError{Setting: "AZURE_TOKEN_CREDENTIALS", Problem: "cannot be used (" + err.Error() + ")"}
	}
	c.credential = credential
	return nil
}

// checkNumbers refuses what would otherwise end in a panic, or in a default that nobody asked for.
func (c *config) checkNumbers() error {
	for _, n := range []struct {
		flag     string
		value    int
		from, to int
		unit     string
	}{
		{"--database-conns", int(c.DatabaseConns), 1, maxDatabaseConns, "connections"},
		{"--max-body-bytes", c.MaxBodyBytes, 1, maxMaxBodyBytes, "bytes"},
		{"--batch-size", c.BatchSize, 1, ingest.MaxBatchDeliveries, "events"},
		{"--prefetch", c.Prefetch, 1, eventhubs.MaxPrefetch, "events"},
	} {
		if n.value < n.from || n.value > n.to {
			return &daemon.SettingError{Setting: n.flag, Problem: fmt.Sprintf("cannot be %d", n.value), Cure: fmt.Sprintf("give %d to %d %s", n.from, n.to, n.unit)}
		}
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{
		{"--batch-wait", c.BatchWait},
		{"--update-interval", c.UpdateInterval},
		{"--ownership-expiry", c.OwnershipExpiry},
		{"--stop-grace", c.StopGrace},
		{"--stuck-after", c.StuckAfter},
	} {
		if d.value <= 0 {
			return &daemon.SettingError{Setting: d.flag, Problem: fmt.Sprintf("cannot be %s", d.value), Cure: "give a time above 0, such as 5s"}
		}
	}
	return nil
}

// Limits of settings that nothing else bounds.
const (
	maxDatabaseConns = 1000
	// maxMaxBodyBytes is above what any tier of Event Hubs takes, in bytes.
	maxMaxBodyBytes = 64 << 20
)

func (c *config) recorder() ingest.Config {
	return ingest.Config{
		Namespace: c.Namespace, Source: eventhubs.SourceName, PeriodFormat: schema.PeriodFormat(c.PeriodFormat), Mapping: c.mapping,
		MaxBodyBytes: c.MaxBodyBytes, ManyPerStripeCustomer: c.ManyPerStripeCustomer,
	}
}

func (c *config) source() eventhubs.Config {
	cfg := eventhubs.Config{
		ConnectionString: c.ConnectionString.Reveal(), Namespace: c.EventHubNamespace, Credential: c.credential,
		Hub: c.Hub, ConsumerGroup: c.ConsumerGroup, BatchSize: c.BatchSize, Linger: c.BatchWait, Prefetch: c.Prefetch,
		UpdateInterval: c.UpdateInterval, OwnershipExpiry: c.OwnershipExpiry, StopGrace: c.StopGrace, StuckAfter: c.StuckAfter,
	}
	if c.CheckpointStore == storeBlob {
		cfg.Blob = &eventhubs.BlobConfig{
			ConnectionString: c.StorageString.Reveal(), AccountURL: c.StorageAccountURL, Container: c.StorageContainer,
		}
	}
	return cfg
}
