package main

import (
	"context"
	"errors"
	"fmt"

	"chargeonce/deploy/daemon"
	"chargeonce/ingest/eventhubs"
)

// sourceError names the setting that an error of the source is about.
func sourceError(err error, c *config) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	problem := fmt.Sprintf("cannot be used (%s)", err)
	access := "EVENTHUB_CONNECTION_STR"
	if c.EventHubNamespace != "" {
		access = "EVENTHUB_NAMESPACE"
	}
	switch {
	case errors.Is(err, eventhubs.ErrConnectionString):
		return &daemon.SettingError{Setting: "EVENTHUB_CONNECTION_STR", Problem: problem, Cure: "copy it from the hub's shared access policies"}
	case errors.Is(err, eventhubs.ErrNamespace):
		return &daemon.SettingError{Setting: "EVENTHUB_NAMESPACE", Problem: problem, Cure: "give the host name alone"}
	case errors.Is(err, eventhubs.ErrUnreachable):
		return &daemon.SettingError{Setting: access, Problem: problem, Cure: "check the host that it names, and that this host may connect to it"}
	case errors.Is(err, eventhubs.ErrUnauthorized):
		return &daemon.SettingError{Setting: access, Problem: problem, Cure: "give a key with the right Listen"}
	case errors.Is(err, eventhubs.ErrIdentityRefused):
		return &daemon.SettingError{Setting: access, Problem: problem, Cure: `grant this identity the role "Azure Event Hubs Data Receiver" on the namespace or the hub`}
	case errors.Is(err, eventhubs.ErrHubName), errors.Is(err, eventhubs.ErrUnknownHub):
		return &daemon.SettingError{Setting: "EVENTHUB_NAME", Problem: problem, Cure: "give the name of an event hub of that namespace"}
	case errors.Is(err, eventhubs.ErrUnknownGroup):
		return &daemon.SettingError{Setting: "EVENTHUB_CONSUMER_GROUP", Problem: fmt.Sprintf("%q %s", c.ConsumerGroup, problem), Cure: "create it, or give another"}
	case errors.Is(err, eventhubs.ErrLimits):
		return &daemon.SettingError{Setting: "--update-interval and --ownership-expiry", Problem: fmt.Sprintf("do not fit (%s)", err)}
	}
	return storageError(err, c)
}

// storageError is sourceError for what Blob Storage and an Azure identity have to do with.
func storageError(err error, c *config) error {
	problem := fmt.Sprintf("cannot be used (%s)", err)
	storage, right := "STORAGE_CONNECTION_STR", "copy it anew from the storage account's access keys, or give a shared access signature with the rights to read, write, create and list"
	if c.StorageAccountURL != "" {
		storage, right = "STORAGE_ACCOUNT_URL", `grant this identity the role "Storage Blob Data Contributor" on the container`
	}
	identity := storage
	if c.EventHubNamespace != "" {
		identity = "EVENTHUB_NAMESPACE"
	}
	switch {
	case errors.Is(err, eventhubs.ErrNoIdentity):
		return &daemon.SettingError{
			Setting: identity, Problem: problem,
			Cure: "give this host or pod a managed or workload identity, sign in with az login, or give a connection string instead",
		}
	case errors.Is(err, eventhubs.ErrStorageString):
		return &daemon.SettingError{Setting: "STORAGE_CONNECTION_STR", Problem: problem, Cure: "copy it from the storage account's access keys"}
	case errors.Is(err, eventhubs.ErrStorageURL):
		return &daemon.SettingError{Setting: "STORAGE_ACCOUNT_URL", Problem: problem, Cure: "copy the Blob service's address from the storage account's endpoints"}
	case errors.Is(err, eventhubs.ErrContainerName):
		return &daemon.SettingError{Setting: "STORAGE_CONTAINER", Problem: problem}
	case errors.Is(err, eventhubs.ErrUnknownContainer):
		return &daemon.SettingError{
			Setting: "STORAGE_CONTAINER", Problem: problem,
			Cure: "create it: az storage container create --name " + c.StorageContainer + " --account-name ACCOUNT",
		}
	case errors.Is(err, eventhubs.ErrStorageForbidden):
		return &daemon.SettingError{Setting: storage, Problem: problem, Cure: right}
	case errors.Is(err, eventhubs.ErrStorageUnreachable):
		return &daemon.SettingError{Setting: storage, Problem: problem, Cure: "check the host that it names, and that this host may connect to it"}
	}
	return err
}
