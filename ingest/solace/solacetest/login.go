package solacetest

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// clientCtrl handles a LOGIN, or an UPDATE of it.
func (c *conn) clientCtrl(f frame) error {
	m, err := parseClientCtrl(f.payload)
	if err != nil {
		return err
	}
	if m.kind == clientUpdate && c.client != "" {
		c.server.mu.Lock()
		defer c.server.mu.Unlock()
		c.queue(appendClientCtrl(appendResponse(appendTag(f.tag), 200, "OK"), clientUpdate, nil))
		return nil
	}
	if m.kind != clientLogin || c.client != "" {
		return fmt.Errorf("unexpected ClientCtrl message %d", m.kind)
	}
	l, err := c.parseLogin(f, m)
	if err != nil {
		return err
	}
	refuse := func(r *Refusal) {
		c.server.counters.LoginsRefused++
		c.queue(appendClientCtrl(appendResponse(appendTag(f.tag), r.Code, r.Text), clientLogin, nil))
	}
	if verdict := c.server.onLogin(l.Login); verdict != nil {
		return c.verdict(verdict, refuse)
	}
	if refusal := c.authenticate(l); refusal != nil {
		return c.verdict(refusal, refuse)
	}
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.forgotten {
		return errDropped
	}
	c.client = l.Client
	s.counters.Logins++
	c.queue(appendClientCtrl(appendResponse(appendTag(f.tag), 200, "OK"), clientLogin, c.loginParams()))
	return nil
}

// login is a LOGIN with its secrets.
type login struct {
	Login
	password, token string
}

// Login describes a client that asks to be let in, for Hooks.OnLogin.
type Login struct {
	Client, VPN string
	User        string // of a client certificate, its common name, unless the client gives one
	Scheme      string // basic, client certificate, kerberos, oauth2
	Description string
	Platform    string
}

func (c *conn) parseLogin(f frame, m clientCtrl) (login, error) {
	l := login{Login: Login{
		Client: textOf(m.find(ccClientName)), VPN: textOf(m.find(ccVPN)), Scheme: "basic",
		Description: textOf(m.find(ccDescription)), Platform: textOf(m.find(ccPlatform)),
	}}
	for kind, field := range map[uint16]*string{headUsername: &l.User, headPassword: &l.password} {
		plain, err := base64.StdEncoding.DecodeString(textOf(f.find(kind)))
		if err != nil {
			return login{}, errors.New("user or password of the login is not base64")
		}
		*field = textOf(plain)
	}
	if scheme := m.find(ccAuthScheme); len(scheme) == 1 {
		name, ok := map[byte]string{authClientCert: "client certificate", authKerberos: "kerberos", authOAuth2: "oauth2"}[scheme[0]]
		if !ok {
			name = fmt.Sprintf("scheme %#x", scheme[0])
		}
		l.Scheme = name
	}
	extended, err := parseExtended(f.find(headExtended))
	if err != nil {
		return login{}, fmt.Errorf("login: %w", err)
	}
	l.token = textOf(findParam(extended, extAccessToken))
	if cert := c.certificate(); cert != nil && l.User == "" {
		l.User = cert.Subject.CommonName
	}
	if l.Client == "" {
		l.Client = "client of " + c.nc.RemoteAddr().String()
	}
	return l, nil
}

// authenticate checks who logs in, and to which message VPN.
func (c *conn) authenticate(l login) error {
	unauthorized := &Refusal{Code: 401, Text: "Unauthorized"}
	c.server.mu.Lock()
	cfg := c.server.cfg
	c.server.mu.Unlock()
	switch l.Scheme {
	case "basic":
		if password, ok := cfg.Users[l.User]; cfg.Users != nil && (!ok || password != l.password) {
			return unauthorized
		}
	case "oauth2":
		if l.token == "" || cfg.AccessTokens != nil && !slices.Contains(cfg.AccessTokens, l.token) {
			return unauthorized
		}
	case "client certificate":
		if c.certificate() == nil {
			return unauthorized
		}
	default:
		return unauthorized
	}
	if l.VPN != cfg.VPN {
		return &Refusal{Code: 403, Text: "Message VPN Not Allowed"}
	}
	return nil
}

// certificate is the client's, if the TLS configuration verified one.
func (c *conn) certificate() *x509.Certificate {
	t, ok := c.nc.(*tls.Conn)
	if !ok {
		return nil
	}
	chains := t.ConnectionState().VerifiedChains
	if len(chains) == 0 {
		return nil
	}
	return chains[0][0]
}

// SetAccessTokens replaces the OAuth 2.0 access tokens that are taken; nil takes any.
func (s *Server) SetAccessTokens(tokens []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cfg.AccessTokens = slices.Clone(tokens)
}

// loginParams are what the client is told of the broker.
func (c *conn) loginParams() []byte {
	nt := func(s string) []byte { return append([]byte(s), 0) }
	params := appendClientParam(nil, ccClientName, nt(c.client))
	params = appendClientParam(params, ccVPN, nt(c.server.cfg.VPN))
	params = appendClientParam(params, ccP2PTopic, nt(c.p2pTopic()))
	params = appendClientParam(params, ccRouterName, nt(routerName))
	params = appendClientParam(params, ccCapabilities, c.capabilities())
	return appendClientParam(params, ccExtended, extendedCapabilities())
}

const routerName = "solacetest"

// p2pTopic is the only topic prefix that a client may subscribe to; it does so by itself.
func (c *conn) p2pTopic() string {
	return "#P2P/v:" + routerName + "/" + strings.ReplaceAll(c.client, "/", "_")
}

// capabilities: 27 booleans (guaranteed messages in both directions, queues and their subscriptions, active-flow indication,
// replay, negative acknowledgements, and more, but neither compression nor transactions), then sizes.
func (c *conn) capabilities() []byte {
	out := []byte{27, 0xbf, 0xff, 0xee, 0xe0}
	entry := func(kind byte, value ...byte) {
		out = binary.BigEndian.AppendUint32(append(out, kind), uint32(5+len(value))) //nolint:gosec // four bytes at most
		out = append(out, value...)
	}
	limit := binary.BigEndian.AppendUint32(nil, uint32(c.server.cfg.MaxMessageBytes)) //nolint:gosec // a setting
	entry(0, 0, 0, 3, 0xe8)                                                           // port speed
	entry(1, 0)                                                                       // port type
	entry(2, limit...)                                                                // guaranteed messages
	entry(3, limit...)                                                                // direct messages
	return out
}

func extendedCapabilities() []byte {
	return []byte{0, 4, 0, 0, 0, 7, 2, 3, 5, 0, 0, 0, 7, 1, 1} // AssuredCtrl 2 to 3, transactions 1 to 1
}
