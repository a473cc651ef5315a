//go:build cgo

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"chargeonce/deploy/daemon"
	"chargeonce/ingest"
	"chargeonce/ingest/solace"
	"chargeonce/schema"
)

type settings struct {
	DatabaseURL   daemon.Secret `help:"Address of the database." env:"DATABASE_URL" placeholder:"URL"`
	DatabaseConns int32         `help:"Connections to the database." default:"3" env:"DATABASE_CONNS"`

	Host              string        `help:"Addresses of the broker, comma-separated, such as tcps://a:55443,tcps://b:55443." env:"SOLACE_HOST" placeholder:"URLS"`
	VPN               string        `help:"Message VPN." name:"vpn" env:"SOLACE_VPN" placeholder:"NAME"`
	Queue             string        `help:"Durable queue to read; it must exist." env:"SOLACE_QUEUE" placeholder:"NAME"`
	Auth              string        `help:"How to log in: ${enum}." enum:"basic,certificate,oauth" default:"basic" env:"SOLACE_AUTH"`
	User              string        `help:"Client username, for basic." env:"SOLACE_USER" placeholder:"NAME"`
	Password          daemon.Secret `help:"Password of the client username, for basic." env:"SOLACE_PASSWORD" placeholder:"PASSWORD"`
	ClientCert        string        `help:"PEM file of the client certificate, for certificate." env:"SOLACE_CLIENT_CERT" placeholder:"FILE"`
	ClientKey         string        `help:"PEM file of its private key, for certificate." env:"SOLACE_CLIENT_KEY" placeholder:"FILE"`
	ClientKeyPassword daemon.Secret `help:"Password of the private key, if it has one." env:"SOLACE_CLIENT_KEY_PASSWORD" placeholder:"PASSWORD"`
	OAuthToken        daemon.Secret `help:"OAuth 2.0 access token, for oauth." name:"oauth-token" env:"SOLACE_OAUTH_TOKEN" placeholder:"TOKEN"`
	OAuthIssuer       string        `help:"Issuer of the token, where the broker has several OAuth profiles." name:"oauth-issuer" env:"SOLACE_OAUTH_ISSUER" placeholder:"URL"`
	TrustStore        string        `help:"Directory of PEM files with the authorities that may vouch for the broker." default:"${trust_store}" env:"SOLACE_TRUST_STORE" placeholder:"DIR"`

	Namespace             string         `help:"Business stream that the intents belong to, such as usage-billing." env:"BILLING_NAMESPACE" placeholder:"NAME"`
	PeriodFormat          string         `help:"Format of billing periods: ${enum}." enum:"month,day,week,quarter,year" default:"month" env:"BILLING_PERIOD_FORMAT"`
	ManyPerStripeCustomer bool           `help:"Let several intents charge one Stripe customer for one period and currency." env:"BILLING_MANY_PER_STRIPE_CUSTOMER"`
	Map                   []string       `help:"Where a foreign event keeps a field, such as customer_id=/subject; may be repeated." sep:"none" placeholder:"FIELD=/POINTER"`
	MaxBodyBytes          int            `help:"Largest event body, in bytes." default:"1048576" env:"MAX_BODY_BYTES"`
	BatchSize             int            `help:"Events per transaction." default:"1000" env:"BATCH_SIZE"`
	BatchWait             time.Duration  `help:"How long a batch waits for more events after its first." default:"20ms" env:"BATCH_WAIT"`
	ConnectTimeout        time.Duration  `help:"How long one host may take to be connected." default:"10s" env:"SOLACE_CONNECT_TIMEOUT"`
	SilentAfter           time.Duration  `help:"After how long without an event the queue is bound anew." default:"5m" env:"SOLACE_SILENT_AFTER"`
	RestartDelay          time.Duration  `help:"First pause before another session with the broker; later ones are longer." default:"1s" env:"SOLACE_RESTART_DELAY"`
	MaxRestartDelay       time.Duration  `help:"Longest pause before another session with the broker." default:"30s" env:"SOLACE_MAX_RESTART_DELAY"`
	StopGrace             time.Duration  `help:"What the batch in hand gets to commit when told to stop." default:"10s" env:"STOP_GRACE"`
	HTTP                  daemon.HTTP    `embed:""`
	mapping               schema.Mapping `kong:"-"`
}

// Validate is asked before run, and by --check-config.
func (c *settings) Validate() error {
	if err := daemon.CheckDatabaseURL(c.DatabaseURL); err != nil {
		return err
	}
	for _, required := range []struct{ value, setting, cure string }{
		{c.Host, "SOLACE_HOST", "give the broker's address, such as tcps://broker:55443"},
		{c.VPN, "SOLACE_VPN", "name the message VPN"},
		{c.Queue, "SOLACE_QUEUE", "name the durable queue with the billing events"},
		{c.Namespace, "BILLING_NAMESPACE", "name the business stream, such as usage-billing"},
	} {
		if required.value == "" {
			return &daemon.SettingError{Setting: required.setting, Problem: "is not set", Cure: required.cure}
		}
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
	if err := c.checkAuth(); err != nil {
		return err
	}
	if err := c.source().Validate(); err != nil {
		return sourceError(err, c)
	}
	return nil
}

// checkAuth asks for what the chosen way needs.
func (c *settings) checkAuth() error {
	needs := map[solace.Auth][]struct{ value, setting, cure string }{
		solace.AuthBasic: {
			{c.User, "SOLACE_USER", "give the client username, or choose another SOLACE_AUTH"},
			{c.Password.Reveal(), "SOLACE_PASSWORD", "give the password of SOLACE_USER, or choose another SOLACE_AUTH"},
		},
		solace.AuthCertificate: {
			{c.ClientCert, "SOLACE_CLIENT_CERT", "name the PEM file of the client certificate"},
			{c.ClientKey, "SOLACE_CLIENT_KEY", "name the PEM file of the certificate's private key"},
		},
		solace.AuthOAuth: {{c.OAuthToken.Reveal(), "SOLACE_OAUTH_TOKEN", "give the access token, or in SOLACE_OAUTH_TOKEN_FILE a file that is kept fresh"}},
	}
	for _, need := range needs[solace.Auth(c.Auth)] {
		if need.value == "" {
			return &daemon.SettingError{Setting: need.setting, Problem: "is not set", Cure: need.cure}
		}
	}
	return nil
}

// checkNumbers refuses what would otherwise end in a panic, or in a default that nobody asked for.
func (c *settings) checkNumbers() error {
	for _, n := range []struct {
		flag     string
		value    int
		from, to int
		unit     string
	}{
		{"--database-conns", int(c.DatabaseConns), 1, maxDatabaseConns, "connections"},
		{"--max-body-bytes", c.MaxBodyBytes, 1, maxMaxBodyBytes, "bytes"},
		{"--batch-size", c.BatchSize, 1, ingest.MaxBatchDeliveries, "events"},
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
		{"--connect-timeout", c.ConnectTimeout},
		{"--silent-after", c.SilentAfter},
		{"--restart-delay", c.RestartDelay},
		{"--max-restart-delay", c.MaxRestartDelay},
		{"--stop-grace", c.StopGrace},
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
	// maxMaxBodyBytes is above what a broker takes, in bytes.
	maxMaxBodyBytes = 64 << 20
)

func (c *settings) recorder() ingest.Config {
	return ingest.Config{
		Namespace: c.Namespace, Source: solace.SourceName, PeriodFormat: schema.PeriodFormat(c.PeriodFormat), Mapping: c.mapping,
		MaxBodyBytes: c.MaxBodyBytes, ManyPerStripeCustomer: c.ManyPerStripeCustomer,
	}
}

func (c *settings) source() solace.Config {
	secret := fresh("SOLACE_PASSWORD_FILE", c.Password)
	if solace.Auth(c.Auth) == solace.AuthOAuth {
		secret = fresh("SOLACE_OAUTH_TOKEN_FILE", c.OAuthToken)
	}
	return solace.Config{
		Hosts: c.Host, VPN: c.VPN, Queue: c.Queue, Auth: solace.Auth(c.Auth), User: c.User, Secret: secret, OAuthIssuer: c.OAuthIssuer,
		ClientCert: c.ClientCert, ClientKey: c.ClientKey, ClientKeyPassword: c.ClientKeyPassword.Reveal(), TrustStore: c.TrustStore,
		BatchSize: c.BatchSize, Linger: c.BatchWait, ConnectTimeout: c.ConnectTimeout, SilentAfter: c.SilentAfter, StopGrace: c.StopGrace,
		RestartDelay: c.RestartDelay, MaxRestartDelay: c.MaxRestartDelay,
	}
}

// fresh reads the file anew each time, where the secret came from one: it may have been replaced since the start.
func fresh(variable string, given daemon.Secret) func() (string, error) {
	path := os.Getenv(variable)
	if path == "" {
		return func() (string, error) { return given.Reveal(), nil }
	}
	return func() (string, error) {
		content, err := os.ReadFile(path) //nolint:gosec // the user names the file
		if err != nil {
			return "", fmt.Errorf("read %s: %w", variable, err)
		}
		text := strings.TrimSuffix(strings.TrimSuffix(string(content), "\n"), "\r")
		if text == "" {
			return "", fmt.Errorf("%s names %s, which is empty", variable, path)
		}
		return text, nil
	}
}

// plainHost finds an address over which a secret would go unencrypted through a network.
func (c *settings) plainHost() (string, bool) {
	if solace.Auth(c.Auth) == solace.AuthCertificate {
		return "", false
	}
	for host := range strings.SplitSeq(c.Host, ",") {
		host = strings.TrimSpace(host)
		u, err := url.Parse(host)
		if err == nil && (u.Scheme == "tcps" || u.Scheme == "wss" || u.Hostname() == "localhost" || net.ParseIP(u.Hostname()).IsLoopback()) {
			continue
		}
		return host, true
	}
	return "", false
}

// sourceError names the setting that an error of the source is about.
func sourceError(err error, c *settings) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	for _, known := range []struct {
		sentinel      error
		setting, cure string
	}{
		{solace.ErrHosts, "SOLACE_HOST", "give the broker's addresses, such as tcps://a:55443,tcps://b:55443"},
		{solace.ErrVPN, "SOLACE_VPN", "give the name of the message VPN"},
		{solace.ErrUnknownVPN, "SOLACE_VPN", "give a message VPN of that broker, which the user may enter"},
		{solace.ErrQueue, "SOLACE_QUEUE", "give the name of a durable queue"},
		{solace.ErrUnknownQueue, "SOLACE_QUEUE", "create the queue (deploy/solace/setup.sh), or give another"},
		{solace.ErrForbidden, "SOLACE_QUEUE", "give the user the permission to consume from the queue, or make it its owner"},
		{solace.ErrUnauthorized, credential(c), "give one that the broker knows in that message VPN, and check SOLACE_AUTH"},
		{solace.ErrAuth, "SOLACE_AUTH", "give basic, certificate or oauth"},
		{solace.ErrUser, "SOLACE_USER", "give the client username"},
		{solace.ErrSecret, credential(c), "give the secret"},
		{solace.ErrClientCertificate, "SOLACE_CLIENT_CERT and SOLACE_CLIENT_KEY", "name the PEM files of one certificate and its key"},
		{solace.ErrTrustStore, "SOLACE_TRUST_STORE", "name a directory of PEM files, with the authority of the broker's certificate"},
		{solace.ErrBrokerCertificate, "SOLACE_TRUST_STORE", "put the authority of the broker's certificate there, and use the name in SOLACE_HOST that it is for"},
		{solace.ErrNoLibrary, "SOLACE_HOST", "install OpenSSL (libssl3), which tcps:// needs"},
		{solace.ErrLimits, "--batch-size", "give a smaller one"},
	} {
		if errors.Is(err, known.sentinel) {
			return &daemon.SettingError{Setting: known.setting, Problem: "cannot be used (" + err.Error() + ")", Cure: known.cure}
		}
	}
	return err
}

func credential(c *settings) string {
	switch solace.Auth(c.Auth) {
	case solace.AuthOAuth:
		return "SOLACE_OAUTH_TOKEN"
	case solace.AuthCertificate:
		return "SOLACE_CLIENT_CERT"
	case solace.AuthBasic:
	}
	return "SOLACE_USER and SOLACE_PASSWORD"
}
