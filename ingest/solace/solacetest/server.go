package solacetest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"
)

// Start listens and serves until Close. The server answers for cfg.Mate's queues too, when there is one.
func Start(cfg Config) (*Server, error) {
	cfg = cfg.withDefaults()
	s := &Server{cfg: cfg, conns: map[*conn]bool{}}
	if err := s.join(cfg.Mate); err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(context.Background(), "tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", cfg.Listen, err)
	}
	s.listener = listener
	s.running.Go(s.accept)
	return s, nil
}

// Limits and intervals of the server.
const (
	maxFlows          = 256      // consumer flows of one connection, and as many publisher flows
	frameSlackBytes   = 64 << 10 // what a message's frame may have beyond its payload
	maxQueueBytes     = 4 << 20  // control frames that wait for one client; beyond it the client is dropped
	writeChunkBytes   = 256 << 10
	readBufferBytes   = 64 << 10
	defaultWindow     = 255
	defaultMaxUnacked = 10_000
	defaultMaxBinds   = 1000
	maxQueues         = 10_000
	maxNameBytes      = 250 // of topics and queue names, as in the broker
	handshakeTimeout  = 30 * time.Second
	idleTimeout       = 2 * time.Minute // without a frame from a client, which sends a keep-alive every 3 s by itself
	acceptPause       = 50 * time.Millisecond
)

// Config says what to serve. The zero value listens on a free loopback port, takes every login to the message VPN "default",
// and has no queues.
type Config struct {
	// Listen is HOST:PORT; default 127.0.0.1:0.
	Listen string
	// TLS makes it a tcps:// listener. With ClientCAs and a ClientAuth that verifies, clients may log in by certificate.
	TLS *tls.Config
	// VPN is the only message VPN; default "default".
	VPN string
	// Users are passwords by user name; nil takes any.
	Users map[string]string
	// AccessTokens are the OAuth 2.0 access tokens that are taken; nil takes any.
	AccessTokens []string
	Queues       []Queue
	// Mate is the other broker of a redundant pair. The new one shares its queues and refuses connections until FailOver;
	// Queues, MaxBytes and ReplayLog must be unset.
	Mate *Server
	// ReplayLog keeps the messages of all queues after they are gone, for Replay, as far as half of MaxBytes lets it.
	ReplayLog bool
	// NoPromotion discards direct messages that match a queue's subscription, instead of spooling them.
	NoPromotion bool
	// WithoutGroupIDs sends no replication group message ids, as brokers did before they had them.
	WithoutGroupIDs bool
	// MaxBytes bounds all stored messages together, default 512 MiB; beyond it publishing is refused.
	MaxBytes int64
	// MaxMessageBytes bounds one message, default 10,000,000 as in the broker.
	MaxMessageBytes int
	// MaxConnections is how many there may be at once, default 1000; more are refused.
	MaxConnections int
	// WriteTimeout is how long a client may take nothing before it is dropped, default 30 s.
	WriteTimeout time.Duration
	Hooks        Hooks
	// Logger may be nil.
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.Listen == "" {
		c.Listen = "127.0.0.1:0"
	}
	if c.VPN == "" {
		c.VPN = "default"
	}
	if c.MaxMessageBytes == 0 {
		c.MaxMessageBytes = 10_000_000
	}
	if c.MaxConnections == 0 {
		c.MaxConnections = 1000
	}
	if c.WriteTimeout == 0 {
		c.WriteTimeout = 30 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Server is a running stand-in; its methods are safe for concurrent use.
type Server struct {
	cfg      Config
	listener net.Listener
	running  sync.WaitGroup

	// spool is shared with the mate, and so is its lock, which guards everything below and all connections and flows of
	// both. Nothing is read, written or waited for under it.
	*spool
	closed   bool
	conns    map[*conn]bool
	standing []*Fault
	counters Counters
}

// Counters count since Start, but Connections and Flows, which are those open now.
type Counters struct {
	Connections    int64 `json:"connections"`
	Flows          int64 `json:"flows"`
	Accepted       int64 `json:"accepted_connections"`
	Logins         int64 `json:"logins"`
	LoginsRefused  int64 `json:"logins_refused"`
	Binds          int64 `json:"binds"`
	BindsRefused   int64 `json:"binds_refused"`
	Unbinds        int64 `json:"unbinds"`         // by clients
	BrokerUnbinds  int64 `json:"broker_unbinds"`  // by us
	KeepAlives     int64 `json:"keep_alives"`     // received
	AckFrames      int64 `json:"ack_frames"`      // with application acknowledgements
	AckFramesLost  int64 `json:"ack_frames_lost"` // by a fault or a hook
	AcksUnmatched  int64 `json:"acks_unmatched"`  // ranges that named nothing unacked of their flow
	Published      int64 `json:"published"`       // guaranteed messages taken from clients
	PublishRefused int64 `json:"publish_refused"` // with an error to the publisher
	PublishLost    int64 `json:"publish_lost"`    // by a fault or a hook
	Republished    int64 `json:"republished"`     // sent again by a publisher that had missed the acknowledgement
	Promoted       int64 `json:"promoted"`        // direct messages spooled
	Unmatched      int64 `json:"unmatched"`       // messages that no queue wanted
	Held           int64 `json:"held"`            // requests never answered: logins, binds, unbinds, keep-alives
	SlowDropped    int64 `json:"slow_clients_dropped"`
	ProtocolErrors int64 `json:"protocol_errors"`
}

// Addr is the HOST:PORT that clients dial.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// URL is the host that clients are given; a list for a pair is this URL, a comma and the mate's.
func (s *Server) URL() string {
	if s.cfg.TLS != nil {
		return "tcps://" + s.Addr()
	}
	return "tcp://" + s.Addr()
}

// VPN is the message VPN that clients must name.
func (s *Server) VPN() string { return s.cfg.VPN }

// Close drops every connection and returns when nothing of the server runs any more. A mate goes on.
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
	refused := s.closed || s.active != s || len(s.conns) >= s.cfg.MaxConnections ||
		s.strike("", "", FaultRefuseConnection) != nil
	if refused {
		reset(nc)
		return
	}
	if s.cfg.TLS != nil {
		nc = tls.Server(nc, s.cfg.TLS)
	}
	c := newConn(s, nc)
	s.conns[c] = true
	s.counters.Accepted++
	s.running.Go(c.read)
}

// reset closes a connection so that the client sees an error at once, as on a closed port.
func reset(nc net.Conn) {
	if tcp, ok := nc.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = nc.Close()
}

// Counters returns a copy.
func (s *Server) Counters() Counters {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.counters
	out.Connections = int64(len(s.conns))
	for c := range s.conns {
		out.Flows += int64(len(c.flows))
	}
	return out
}

// Clients are the names of the clients that are logged in.
func (s *Server) Clients() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for c := range s.conns {
		if c.client != "" {
			out = append(out, c.client)
		}
	}
	return out
}

// FailOver gives the pair's work to the one that stands by: the active one drops its connections and refuses new ones, and
// what was unacked is delivered again by the other. It does nothing without a running mate. Acknowledgements that the active
// one had not read are lost; FaultLoseAcks beforehand loses more. Faults and hooks are each broker's own.
func (s *Server) FailOver() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pair) < 2 {
		return
	}
	old := s.active
	for _, member := range s.pair {
		if member != old && !member.closed {
			s.active = member
		}
	}
	if s.active != old {
		old.dropAll("")
	}
}

// Active says whether this one of a pair does the work; one without a mate always does.
func (s *Server) Active() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.active == s
}

// DropConnections cuts every connection without a word.
func (s *Server) DropConnections() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropAll("")
}

// dropAll cuts the connections of a client, or all; called with mu held.
func (s *Server) dropAll(client string) {
	for c := range s.conns {
		if client == "" || c.client == client {
			c.cut() // at once, so that who comes back does not meet its own old flows
		}
	}
}

// validName checks a queue's name or a topic.
func validName(kind, name string) error {
	if name == "" || len(name) > maxNameBytes || strings.ContainsRune(name, 0) {
		return fmt.Errorf("%s %.40q needs 1 to %d bytes, none of them zero", kind, name, maxNameBytes)
	}
	return nil
}
