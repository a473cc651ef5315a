//go:build cgo

package solace

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"solace.dev/go/messaging/pkg/solace"
	"solace.dev/go/messaging/pkg/solace/config"
	"solace.dev/go/messaging/pkg/solace/message"
	"solace.dev/go/messaging/pkg/solace/resource"
)

// PublisherConfig says where to publish to. Topic or Queue is set, and not both.
type PublisherConfig struct {
	Hosts, VPN, User, Password string
	TrustStore                 string // default /etc/ssl/certs
	Topic, Queue               string
	AsBytes                    bool // bodies are sent as bytes and not as text
}

// Validate returns one of the errors of Config.Validate. It connects to nothing.
func (c PublisherConfig) Validate() error { return c.connection().Validate() }

func (c PublisherConfig) connection() Config {
	queue := c.Queue
	if queue == "" {
		queue = "none"
	}
	return Config{
		Hosts: c.Hosts, VPN: c.VPN, Queue: queue, User: c.User, TrustStore: c.TrustStore,
		Secret: func() (string, error) { return c.Password, nil },
	}.withDefaults()
}

// Limits of a Publisher.
const (
	maxUnacknowledged = 500 // messages under way
	publisherPatience = 5 * time.Minute
	queueTopicPrefix  = "#P2P/QUE/" // of the topic that is a queue's own
)

// ErrNotTaken says that the broker did not take a message, or did not say so.
var ErrNotTaken = errors.New("the broker did not take a message")

// Publisher publishes persistent messages in order and knows which of them the broker has taken. It is for demonstrations, back-fills
// and load: no program that records or charges has one. It is not safe for concurrent use.
//
// It reconnects for ever. What was under way with the connection is sent again, so that the broker may have it twice: as with every
// publisher, and harmless to the ingestor.
type Publisher struct {
	service   solace.MessagingService
	publisher solace.PersistentMessagePublisher
	topic     *resource.Topic
	asBytes   bool
	sent      int
	free      chan struct{} // one for each message that may be sent now

	mu    sync.Mutex
	taken int
	first int // number of the first message that was refused, from 1; 0: none
	err   error
}

// NewPublisher connects; ctx bounds that.
func NewPublisher(ctx context.Context, cfg PublisherConfig) (*Publisher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	service, err := cfg.connection().build(config.RetryStrategyForeverRetryWithInterval(time.Second))
	if err != nil {
		return nil, err
	}
	select {
	case err := <-service.ConnectAsync():
		if err != nil {
			_ = service.Disconnect() // it never was connected, but holds threads
			return nil, fmt.Errorf("connect to %s: %w", cfg.Hosts, err)
		}
	case <-ctx.Done():
		return nil, context.Cause(ctx) // its end frees what is left
	}
	p := &Publisher{service: service, asBytes: cfg.AsBytes, topic: resource.TopicOf(cfg.Topic), free: make(chan struct{}, maxUnacknowledged)}
	if cfg.Queue != "" {
		p.topic = resource.TopicOf(queueTopicPrefix + cfg.Queue)
	}
	for range maxUnacknowledged {
		p.free <- struct{}{}
	}
	p.publisher, err = service.CreatePersistentMessagePublisherBuilder().OnBackPressureWait(maxUnacknowledged).Build()
	if err == nil {
		p.publisher.SetMessagePublishReceiptListener(p.receipt)
		err = p.publisher.Start()
	}
	if err != nil {
		_ = service.Disconnect()
		return nil, fmt.Errorf("start publishing to %s: %w", p.topic.GetName(), err)
	}
	return p, nil
}

// receipt is called by the client once for every message.
func (p *Publisher) receipt(r solace.PublishReceipt) {
	number, _ := r.GetUserContext().(int)
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.IsPersisted() && r.GetError() == nil {
		p.taken++
	} else if p.first == 0 || number < p.first {
		p.first, p.err = number, causeOf(r.GetError(), "it was not persisted")
	}
	p.free <- struct{}{} // never blocks: it takes the place of the message
}

// Publish sends one message, and waits while too many are under way. It returns ErrNotTaken, with its number, once the broker has
// refused one.
func (p *Publisher) Publish(ctx context.Context, body string) error {
	select {
	case <-p.free:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := p.refused(); err != nil {
		p.free <- struct{}{}
		return err
	}
	number := p.sent + 1
	if err := p.send(body, number); err != nil {
		p.free <- struct{}{}
		return fmt.Errorf("%w: number %d: %w", ErrNotTaken, number, err)
	}
	p.sent = number
	return nil
}

func (p *Publisher) send(body string, number int) error {
	var m message.OutboundMessage
	var err error
	if p.asBytes {
		m, err = p.service.MessageBuilder().BuildWithByteArrayPayload([]byte(body))
	} else {
		m, err = p.service.MessageBuilder().BuildWithStringPayload(body)
	}
	if err != nil {
		return fmt.Errorf("make a message: %w", err)
	}
	defer m.Dispose()
	if err := p.publisher.Publish(m, p.topic, nil, number); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	return nil
}

func (p *Publisher) refused() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.first == 0 {
		return nil
	}
	return fmt.Errorf("%w: number %d: %w", ErrNotTaken, p.first, p.err)
}

// Close waits until the broker has answered for every message, for 5 minutes at most, and says how many it has taken. It returns
// ErrNotTaken when it has not taken all of them.
func (p *Publisher) Close() (taken int, err error) {
	timer := time.NewTimer(publisherPatience)
	defer timer.Stop()
	patient := true
	for range maxUnacknowledged {
		select {
		case <-p.free:
		case <-timer.C:
			patient = false
		}
		if !patient {
			break
		}
	}
	_ = p.publisher.Terminate(0) // nothing is under way, or nothing more comes of it
	_ = p.service.Disconnect()
	if err := p.refused(); err != nil {
		return p.count(), err
	}
	if taken := p.count(); taken < p.sent {
		return taken, fmt.Errorf("%w: %d of %d were not answered for", ErrNotTaken, p.sent-taken, p.sent)
	}
	return p.count(), nil
}

func (p *Publisher) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken
}
