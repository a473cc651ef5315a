// Package eventhubstest stands in for Azure Event Hubs: an AMQP 1.0 server over TCP on which the real SDK clients run, with
// a ledger of every event and faults on demand.
package eventhubstest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/Azure/go-amqp"
)

// Start listens and serves until Close.
func Start(cfg Config) (*Server, error) {
	cfg = cfg.withDefaults()
	s := &Server{cfg: cfg, hubs: map[string]*hub{}, conns: map[*conn]bool{}}
	for _, h := range cfg.Hubs {
		if h.Name == "" || h.Partitions < 1 || h.Partitions > maxPartitions {
			return nil, fmt.Errorf("hub %q: needs a name and 1 to %d partitions, has %d", h.Name, maxPartitions, h.Partitions)
		}
		s.hubs[strings.ToLower(h.Name)] = newHub(h, cfg.Now())
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(context.Background(), "tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", cfg.Listen, err)
	}
	if cfg.TLS != nil {
		listener = tls.NewListener(listener, cfg.TLS)
	}
	s.listener = listener
	s.running.Go(s.accept)
	return s, nil
}

// Limits and intervals of the server.
const (
	maxConnections    = 1000
	maxPartitions     = 1024
	maxChannel        = 4095             // sessions per connection, less one
	maxHandle         = 1023             // links per session, less one
	maxQueueBytes     = 4 << 20          // control frames that wait for one client; beyond it the client is dropped
	maxQueueMessages  = 1024             // replies that wait on one link
	writeChunkBytes   = 256 << 10        // frames written per system call
	sessionWindow     = 5000             // transfer frames a client may have under way per session
	linkCredit        = 1000             // messages a producer may have under way per link
	maxPlainReceivers = 5                // receivers without epoch per group and partition, as in the service
	keepAlive         = 10 * time.Second // silence after which an empty frame goes out; clients give up after 30 s or more
	idleTimeout       = 60 * time.Second // announced in our open; twice this without a frame ends the connection
	handshakeTimeout  = 30 * time.Second // for everything before the first frame
	acceptPause       = 50 * time.Millisecond
	batchFormat       = 0x80013700
)

// Config says what to serve. The zero value listens on a free loopback port and has no hubs.
type Config struct {
	// Listen is HOST:PORT; default 127.0.0.1:0.
	Listen string
	Hubs   []Hub
	// RequireSAS checks every token against KeyName and Key; without it any token is taken.
	RequireSAS bool
	// CheckToken judges every token in place of RequireSAS; its error goes to the client with status 401.
	CheckToken func(Token) error
	// TLS serves amqps, which is what the SDK speaks with an Azure identity; nil serves plain AMQP.
	TLS *tls.Config
	// KeyName and Key go into ConnectionString. Defaults: RootManageSharedAccessKey and a fixed word.
	KeyName, Key string
	// MaxBytes bounds all stored events together, default 512 MiB; beyond it sends are rejected.
	MaxBytes int64
	// MaxMessageBytes bounds one message or batch, default 1 MiB.
	MaxMessageBytes int64
	// WriteTimeout is how long a client may take nothing before it is dropped, default 30 s.
	WriteTimeout time.Duration
	Hooks        Hooks
	// Logger may be nil.
	Logger *slog.Logger
	// Now is the clock of enqueued times; default time.Now.
	Now func() time.Time
}

// Token is what a client shows for an audience.
type Token struct {
	Audience string // amqps://HOST/HUB/...
	Type     string // jwt for an Azure identity
	Value    string
}

// Hub is one event hub. The consumer group $Default always exists; names compare without regard to case.
type Hub struct {
	Name           string   `json:"name"`
	Partitions     int      `json:"partitions"`
	ConsumerGroups []string `json:"consumer_groups,omitempty"`
}

func (c Config) withDefaults() Config {
	if c.Listen == "" {
		c.Listen = "127.0.0.1:0"
	}
	if c.KeyName == "" {
		c.KeyName = "RootManageSharedAccessKey"
	}
	if c.Key == "" {
		c.Key = "stand-in"
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = 512 << 20
	}
	if c.MaxMessageBytes == 0 {
		c.MaxMessageBytes = 1 << 20
	}
	if c.WriteTimeout == 0 {
		c.WriteTimeout = 30 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// Server is a running stand-in; its methods are safe for concurrent use.
type Server struct {
	cfg      Config
	listener net.Listener
	running  sync.WaitGroup

	// mu guards everything below and all sessions, links and logs. Nothing is read, written or waited for under it.
	mu       sync.Mutex
	closed   bool
	hubs     map[string]*hub // by lower-case name
	conns    map[*conn]bool
	held     int64 // bytes of stored events
	standing []*Fault
	counters Counters
}

// Counters count since Start, but Connections and Receivers, which are those open now.
type Counters struct {
	Connections   int64 `json:"connections"`
	Receivers     int64 `json:"receivers"`
	Accepted      int64 `json:"accepted_connections"`
	Attaches      int64 `json:"attaches"`         // answered with a link
	Refused       int64 `json:"refused_attaches"` // answered with an error
	Stolen        int64 `json:"stolen"`           // receivers that lost to another epoch
	Tokens        int64 `json:"tokens"`
	TokensRefused int64 `json:"tokens_refused"`
	Sends         int64 `json:"sends"` // transfers stored, a batch counts once
	SendsRejected int64 `json:"sends_rejected"`
	AcksLost      int64 `json:"acks_lost"`
	Stored        int64 `json:"stored"`     // events
	Deliveries    int64 `json:"deliveries"` // events handed to a connection
	SlowDropped   int64 `json:"slow_clients_dropped"`
}

// Addr is the HOST:PORT that clients dial.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// ConnectionString is what the SDK's ...FromConnectionString takes; an empty hub leaves out EntityPath.
func (s *Server) ConnectionString(hubName string) string {
	out := fmt.Sprintf("Endpoint=sb://%s;SharedAccessKeyName=%s;SharedAccessKey=%s", s.Addr(), s.cfg.KeyName, s.cfg.Key)
	if s.cfg.TLS == nil {
		out += ";UseDevelopmentEmulator=true" // the SDK's word for plain AMQP
	}
	if hubName != "" {
		out += ";EntityPath=" + hubName
	}
	return out
}

// Close drops every connection and returns when nothing of the server runs any more.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	err := s.listener.Close()
	s.DropConnections()
	s.running.Wait()
	if err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("close listener on %s: %w", s.Addr(), err)
	}
	return nil
}

func (s *Server) accept() {
	for {
		nc, err := s.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.cfg.Logger.Warn("accept failed", slog.Any("error", err))
			<-time.After(acceptPause) // out of file descriptors, most likely
			continue
		}
		s.admit(nc)
	}
}

func (s *Server) admit(nc net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.conns) >= maxConnections {
		_ = nc.Close()
		return
	}
	c := newConn(s, nc)
	s.conns[c] = true
	s.counters.Accepted++
	s.running.Go(c.read)
}

// Counters returns a copy.
func (s *Server) Counters() Counters {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.counters
	out.Connections = int64(len(s.conns))
	return out
}

// Events returns what the partition holds, oldest first; nil for an unknown hub or partition.
func (s *Server) Events(hubName, partitionID string) []Event {
	s.mu.Lock()
	p := s.partition(hubName, partitionID)
	var held []stored
	if p != nil {
		held = slices.Clone(p.events)
	}
	s.mu.Unlock()
	out := make([]Event, 0, len(held))
	for _, e := range held {
		ev, err := p.view(e)
		if err != nil {
			s.cfg.Logger.Error("event of the ledger cannot be read", slog.Any("error", err))
			continue
		}
		out = append(out, ev)
	}
	return out
}

// Publish stores one event as a producer would; an empty partition means the next in turn.
func (s *Server) Publish(hubName, partitionID string, body []byte, properties map[string]any) (Event, error) {
	m := amqp.NewMessage(body)
	m.ApplicationProperties = properties
	return s.PublishMessage(hubName, partitionID, m)
}

// PublishMessage is Publish for any AMQP message.
func (s *Server) PublishMessage(hubName, partitionID string, m *amqp.Message) (Event, error) {
	encoded, err := m.MarshalBinary()
	if err != nil {
		return Event{}, fmt.Errorf("publish to %s: encode: %w", hubName, err)
	}
	in, err := splitMessage(encoded)
	if err != nil {
		return Event{}, fmt.Errorf("publish to %s: %w", hubName, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.hub(hubName)
	if h == nil {
		return Event{}, fmt.Errorf("publish: no hub %q", hubName)
	}
	p := h.partition(partitionID)
	if partitionID == "" {
		p = h.route(in.key)
	}
	if p == nil {
		return Event{}, fmt.Errorf("publish: hub %q has no partition %q", hubName, partitionID)
	}
	if err := s.store(p, []incoming{in}); err != nil {
		return Event{}, fmt.Errorf("publish to %s/%s: %w", hubName, p.id, err)
	}
	return p.view(p.last)
}

// store appends events to one partition, all or none, and wakes its readers. Called with mu held.
func (s *Server) store(p *partition, events []incoming) error {
	var size int64
	for _, in := range events {
		size += int64(len(in.body)) + 2*eventOverheadBytes
	}
	if s.held+size > s.cfg.MaxBytes {
		return amqpError(amqp.ErrCondResourceLimitExceeded,
			"the stand-in holds %d bytes of events and takes at most %d", s.held, s.cfg.MaxBytes)
	}
	for _, in := range events {
		e, err := p.append(in, s.cfg.Now())
		if err != nil {
			return err
		}
		s.held += e.size()
		s.counters.Stored++
	}
	for l := range p.readers {
		l.session.conn.poke()
	}
	return nil
}

// hub looks up by name; called with mu held.
func (s *Server) hub(name string) *hub { return s.hubs[strings.ToLower(name)] }

func (s *Server) partition(hubName, id string) *partition {
	h := s.hub(hubName)
	if h == nil {
		return nil
	}
	return h.partition(id)
}
