//go:build cgo

package solace

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"solace.dev/go/messaging"
	"solace.dev/go/messaging/pkg/solace"
	"solace.dev/go/messaging/pkg/solace/config"

	"chargeonce/ingest"
)

// Config says what to read and how. Zero values take the defaults given.
type Config struct {
	// Hosts are the broker's addresses, comma-separated: tcps://HOST:PORT, or tcp://. The hosts of a redundant pair stand in one list
	// and are tried in turn.
	Hosts string
	VPN   string // message VPN
	Queue string // durable queue, which must exist

	Auth Auth   // default AuthBasic
	User string // with AuthBasic
	// Secret gives the password with AuthBasic and the access token with AuthOAuth. It is asked before every connection, so that one
	// that was replaced is taken up.
	Secret func() (string, error)
	// OAuthIssuer tells the broker which of its OAuth profiles the token belongs to; may be empty.
	OAuthIssuer string
	// ClientCert and ClientKey are PEM files, with AuthCertificate.
	ClientCert, ClientKey, ClientKeyPassword string
	// TrustStore is a directory of PEM files with the authorities that may vouch for the broker; default /etc/ssl/certs.
	TrustStore string

	BatchSize       int           // messages per transaction, 1 to ingest.MaxBatchDeliveries, which is the default
	Linger          time.Duration // how long a batch waits for more messages after its first; default 20 ms
	ConnectTimeout  time.Duration // for each host; default 10 s
	StopGrace       time.Duration // what the batch in hand gets to commit when told to stop; default 10 s
	CloseTimeout    time.Duration // how long the end of a session is waited for; default 5 s
	RestartDelay    time.Duration // first pause before another session, doubled up to MaxRestartDelay, with jitter; default 1 s
	MaxRestartDelay time.Duration // default 30 s
	SilentAfter     time.Duration // after how long without a message the queue is bound anew; default 5 min
}

// Auth is how a client proves who it is.
type Auth string

// Ways to authenticate.
const (
	AuthBasic       Auth = "basic"
	AuthCertificate Auth = "certificate"
	AuthOAuth       Auth = "oauth"
)

// DefaultTrustStore is where Linux distributions keep the authorities that they trust.
const DefaultTrustStore = "/etc/ssl/certs"

func (c Config) withDefaults() Config {
	c.Auth = cmp.Or(c.Auth, AuthBasic)
	c.TrustStore = cmp.Or(c.TrustStore, DefaultTrustStore)
	c.BatchSize = cmp.Or(c.BatchSize, ingest.MaxBatchDeliveries)
	c.Linger = cmp.Or(c.Linger, 20*time.Millisecond)
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, 10*time.Second)
	c.StopGrace = cmp.Or(c.StopGrace, 10*time.Second)
	c.CloseTimeout = cmp.Or(c.CloseTimeout, 5*time.Second)
	c.RestartDelay = cmp.Or(c.RestartDelay, time.Second)
	c.MaxRestartDelay = max(cmp.Or(c.MaxRestartDelay, 30*time.Second), c.RestartDelay)
	c.SilentAfter = cmp.Or(c.SilentAfter, 5*time.Minute)
	return c
}

// What can be wrong with a Config.
var (
	ErrHosts             = errors.New("this is no list of broker addresses")
	ErrVPN               = errors.New("this is no name of a message VPN")
	ErrQueue             = errors.New("this is no name of a queue")
	ErrAuth              = errors.New("this is no way to authenticate")
	ErrUser              = errors.New("there is no user name")
	ErrSecret            = errors.New("there is no secret")
	ErrClientCertificate = errors.New("the client certificate or its key cannot be used")
	ErrTrustStore        = errors.New("the trust store cannot be used")
	ErrLimits            = errors.New("out of limits")
)

// Limits of names, in bytes, as the broker has them.
const (
	maxVPNBytes   = 32
	maxQueueBytes = 200
)

// Validate returns one of the errors above. It connects to nothing, but looks for the files.
func (c Config) Validate() error {
	c = c.withDefaults()
	hosts, err := c.hosts()
	switch {
	case err != nil:
		return err
	case c.VPN == "" || len(c.VPN) > maxVPNBytes:
		return fmt.Errorf("%w: %q, it must have 1 to %d bytes", ErrVPN, c.VPN, maxVPNBytes)
	case c.Queue == "" || len(c.Queue) > maxQueueBytes || strings.ContainsAny(c.Queue, "\x00'<>*?&;"):
		return fmt.Errorf("%w: %q, it must have 1 to %d bytes, none of them in '<>*?&;", ErrQueue, c.Queue, maxQueueBytes)
	case c.BatchSize < 1 || c.BatchSize > ingest.MaxBatchDeliveries:
		return fmt.Errorf("%w: a batch of %d messages, 1 to %d are possible", ErrLimits, c.BatchSize, ingest.MaxBatchDeliveries)
	case min(c.Linger, c.ConnectTimeout, c.StopGrace, c.CloseTimeout, c.RestartDelay, c.MaxRestartDelay, c.SilentAfter) < 0:
		return fmt.Errorf("%w: a time is negative", ErrLimits)
	}
	if err := c.checkAuth(); err != nil {
		return err
	}
	if c.Auth != AuthBasic && slices.ContainsFunc(hosts, isPlain) {
		return fmt.Errorf("%w: the client sends tokens and certificates only over tcps://", ErrHosts)
	}
	if slices.ContainsFunc(hosts, isEncrypted) {
		if info, err := os.Stat(c.TrustStore); err != nil || !info.IsDir() {
			return fmt.Errorf("%w: %q is no directory", ErrTrustStore, c.TrustStore)
		}
	}
	return nil
}

func (c Config) checkAuth() error {
	switch c.Auth {
	case AuthBasic:
		if c.User == "" {
			return ErrUser
		}
		if c.Secret == nil {
			return ErrSecret
		}
	case AuthOAuth:
		if c.Secret == nil {
			return ErrSecret
		}
	case AuthCertificate:
		for _, file := range []string{c.ClientCert, c.ClientKey} {
			if info, err := os.Stat(file); err != nil || info.IsDir() {
				return fmt.Errorf("%w: %q is no file", ErrClientCertificate, file)
			}
		}
	default:
		return fmt.Errorf("%w: %q", ErrAuth, c.Auth)
	}
	return nil
}

// hosts checks the list, for the client takes what it does not understand for a host that is away.
func (c Config) hosts() ([]*url.URL, error) {
	var all []*url.URL
	for host := range strings.SplitSeq(c.Hosts, ",") {
		host = strings.TrimSpace(host)
		if !strings.Contains(host, "://") {
			host = "tcp://" + host // as the client understands it
		}
		u, err := url.Parse(host)
		if err != nil || u.Hostname() == "" || u.Path != "" || u.User != nil || u.RawQuery != "" || !isPort(u) ||
			u.Scheme != "tcp" && u.Scheme != "tcps" && u.Scheme != "ws" && u.Scheme != "wss" {
			return nil, fmt.Errorf("%w: %q, it must look like tcps://HOST:55443,tcps://HOST:55443", ErrHosts, redact(host))
		}
		all = append(all, u)
	}
	return all, nil
}

// isPort says whether the port can be one, where there is one. A second one is taken for a part of the host.
func isPort(u *url.URL) bool {
	if strings.Contains(u.Hostname(), ":") && !strings.HasPrefix(u.Host, "[") {
		return false
	}
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	return u.Port() == "" || err == nil && port > 0
}

// redact cuts what stands before an @, where some write a password.
func redact(host string) string {
	if _, after, found := strings.Cut(host, "@"); found {
		return "...@" + after
	}
	return host
}

func isEncrypted(u *url.URL) bool { return u.Scheme == "tcps" || u.Scheme == "wss" }

func isPlain(u *url.URL) bool { return !isEncrypted(u) }

// build makes a connection that is not connected yet. It resolves the host names, which may take as long as the resolver does.
func (c Config) build(reconnection config.RetryStrategy) (solace.MessagingService, error) {
	hosts, err := c.hosts()
	if err != nil {
		return nil, err
	}
	texts := make([]string, 0, len(hosts))
	for _, u := range hosts {
		texts = append(texts, u.String())
	}
	auth, err := c.authentication()
	if err != nil {
		return nil, err
	}
	builder := messaging.NewMessagingServiceBuilder().FromConfigurationProvider(config.ServicePropertyMap{
		config.TransportLayerPropertyHost:                      strings.Join(texts, ","),
		config.ServicePropertyVPNName:                          c.VPN,
		config.TransportLayerPropertyConnectionAttemptsTimeout: int(c.ConnectTimeout.Milliseconds()),
		config.TransportLayerPropertyConnectionRetries:         0,
		config.TransportLayerPropertyConnectionRetriesPerHost:  0,
		config.ClientPropertyApplicationDescription:            "chargeonce",
	}).WithAuthenticationStrategy(auth).WithReconnectionRetryStrategy(reconnection)
	if slices.ContainsFunc(hosts, isEncrypted) {
		builder = builder.WithTransportSecurityStrategy(config.NewTransportSecurityStrategy().WithCertificateValidation(false, true, c.TrustStore, ""))
	}
	// The client's generated name: a name of our own would have a restarted pod refused, or its predecessor thrown out.
	service, err := builder.Build()
	if err != nil {
		return nil, fmt.Errorf("prepare a connection to %s: %w", c.Hosts, err)
	}
	return service, nil
}

func (c Config) authentication() (config.AuthenticationStrategy, error) {
	if c.Auth == AuthCertificate {
		return config.ClientCertificateAuthentication(c.ClientCert, c.ClientKey, c.ClientKeyPassword), nil
	}
	secret, err := c.Secret()
	if err != nil {
		return config.AuthenticationStrategy{}, fmt.Errorf("%w: %w", ErrSecret, err)
	}
	if c.Auth == AuthOAuth {
		return config.OAuth2Authentication(secret, "", c.OAuthIssuer), nil
	}
	return config.BasicUserNamePasswordAuthentication(c.User, secret), nil
}
