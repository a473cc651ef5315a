package eventhubs

import (
	"log/slog"
	"time"
)

// NewBlobStore is NewStore for ownerships in Blob Storage, and what ends its idle connections.
func NewBlobStore(cfg BlobConfig, timeout time.Duration, logger *slog.Logger) (*Store, func(), error) {
	k, err := newBlobKeeper(cfg, nil)
	if err != nil {
		return nil, nil, err
	}
	return newStore(k, timeout, logger), k.closeIdle, nil
}
