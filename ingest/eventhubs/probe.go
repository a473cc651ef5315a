package eventhubs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/Azure/go-amqp"
)

// What a Probe can find wrong.
var (
	ErrUnreachable     = errors.New("the event hubs namespace cannot be reached")
	ErrUnauthorized    = errors.New("the event hubs namespace refuses the key")
	ErrIdentityRefused = errors.New("the event hubs namespace refuses the identity")
	ErrUnknownHub      = errors.New("the event hub does not exist")
	ErrUnknownGroup    = errors.New("the consumer group does not exist")
)

// Limits of a probe.
const (
	probeTimeout      = 10 * time.Second
	probeGroupTimeout = 3 * time.Second
)

// Probe asks the hub once, and Blob Storage where checkpoints are kept in it, whether Run can work, for at most 43 s. Without it a
// wrong name would only show as a reader that is restarted again and again. It returns ErrNoIdentity, ErrUnreachable, ErrUnauthorized,
// ErrIdentityRefused, ErrUnknownHub, ErrUnknownGroup, ErrStorageUnreachable, ErrStorageForbidden or ErrUnknownContainer with the reason.
func (s *Source) Probe(ctx context.Context) error {
	if err := s.probeHub(ctx); err != nil {
		return err
	}
	if s.blob == nil {
		return nil
	}
	defer s.blob.closeIdle()
	_, err := bounded(ctx, probeTimeout, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.blob.probe(ctx, s.key)
	})
	if errors.Is(err, errTooLong) {
		return fmt.Errorf("%w: no answer within %s", ErrStorageUnreachable, probeTimeout)
	}
	return err
}

func (s *Source) probeHub(ctx context.Context) error {
	if s.cfg.Namespace != "" {
		if err := probeIdentity(ctx, s.cfg.Credential, eventHubsScope); err != nil {
			return err
		}
	}
	client, err := s.client(s.instance+"-probe", -1)
	if err != nil {
		return err
	}
	x := &session{Source: s, client: client}
	defer x.closeClient()
	hub, err := bounded(ctx, probeTimeout, func(ctx context.Context) (azeventhubs.EventHubProperties, error) {
		return client.GetEventHubProperties(ctx, nil)
	})
	if err != nil {
		return s.judgeProbe(err, ErrUnknownHub)
	}
	if len(hub.PartitionIDs) == 0 {
		return fmt.Errorf("%w: it has no partitions", ErrUnknownHub)
	}
	return s.probeGroup(ctx, client, hub.PartitionIDs[0])
}

// probeGroup opens one partition. Only a clear no counts: an empty partition gives no answer at all, and a partition that has a
// reader refuses a second one.
func (s *Source) probeGroup(ctx context.Context, client *azeventhubs.ConsumerClient, partition string) error {
	reader, err := client.NewPartitionClient(partition, &azeventhubs.PartitionClientOptions{
		StartPosition: azeventhubs.StartPosition{Earliest: new(true)}, Prefetch: -1,
	})
	if err != nil {
		return fmt.Errorf("open partition %s: %w", partition, err)
	}
	_, err = bounded(ctx, probeGroupTimeout, func(ctx context.Context) (struct{}, error) {
		_, err := reader.ReceiveEvents(ctx, 1, nil)
		return struct{}{}, err
	})
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	defer func() { _ = reader.Close(closing) }() // its connection goes next
	amqpErr, ok := errors.AsType[*amqp.Error](err)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case ok && amqpErr.Condition == amqp.ErrCondNotFound:
		return fmt.Errorf("%w: %s", ErrUnknownGroup, oneLine(amqpErr.Description))
	case ok && amqpErr.Condition == amqp.ErrCondUnauthorizedAccess:
		return fmt.Errorf("%w: %s", s.unauthorized(), oneLine(amqpErr.Description))
	}
	return nil
}

func (s *Source) unauthorized() error {
	if s.cfg.Namespace != "" {
		return ErrIdentityRefused
	}
	return ErrUnauthorized
}

// judgeProbe reads errors that the SDK does not classify: those of its management calls.
func (s *Source) judgeProbe(err, notFound error) error {
	text := oneLine(err.Error())
	amqpErr, isAMQP := errors.AsType[*amqp.Error](err)
	known, isKnown := errors.AsType[*azeventhubs.Error](err)
	switch {
	case isAMQP && amqpErr.Condition == amqp.ErrCondNotFound, strings.Contains(text, "status code 404"):
		return fmt.Errorf("%w: %s", notFound, text)
	case isKnown && known.Code == azeventhubs.ErrorCodeUnauthorizedAccess,
		isAMQP && amqpErr.Condition == amqp.ErrCondUnauthorizedAccess, strings.Contains(text, "status code 401"):
		return fmt.Errorf("%w: %s", s.unauthorized(), text)
	case errors.Is(err, errTooLong):
		return fmt.Errorf("%w: no answer within %s", ErrUnreachable, probeTimeout)
	}
	return fmt.Errorf("%w: %s", ErrUnreachable, text)
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
