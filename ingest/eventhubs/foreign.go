package eventhubs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"

	"chargeonce/sql/queries"
)

// noteForeign says so when living owners record elsewhere: this database then misses what they read.
func (s *sessionStore) noteForeign(ctx context.Context, all []azeventhubs.Ownership) {
	x := s.session
	foreign := 0
	for _, o := range all {
		if isForeign(o.OwnerID, x.owner) && time.Since(o.LastModifiedTime) < x.cfg.OwnershipExpiry {
			foreign++
		}
	}
	x.metrics.foreign.Set(float64(foreign))
	s.mu.Lock()
	before := s.foreign
	s.foreign = foreign
	s.mu.Unlock()
	if foreign > 0 && before == 0 {
		x.logger.ErrorContext(ctx, "partitions are owned by readers that record into another database or billing namespace, so each records only a part of the events: give every deployment a consumer group of its own",
			slog.Int("partitions", foreign))
	}
}

// recordsIntoMark stands, in an owner's name, before what the owner records into.
const recordsIntoMark = "@"

// isForeign tells an owner who records into something else than ours. Owners who do not say are let pass.
func isForeign(owner, ours string) bool {
	_, theirs, found := strings.Cut(owner, recordsIntoMark)
	_, mine, _ := strings.Cut(ours, recordsIntoMark)
	theirs, _, _ = strings.Cut(theirs, "-")
	mine, _, _ = strings.Cut(mine, "-")
	return found && theirs != mine
}

// recordsInto is a short name of the billing namespace in this very database: 8 hex digits, the same for every ingestor of it, and
// another one in every other database.
func (s *Source) recordsInto(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.StoreTimeout, errTooLong)
	defer cancel()
	name := s.recorder.Namespace()
	row, err := queries.New().NamespaceGet(ctx, s.pool, name)
	if err != nil {
		return "", fmt.Errorf("read namespace %s: %w", name, err)
	}
	sum := sha256.Sum256([]byte(name + " " + row.CreatedAt.UTC().Format(time.RFC3339Nano)))
	return hex.EncodeToString(sum[:4]), nil
}
