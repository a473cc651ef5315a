//go:build cgo

package clienttest_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"solace.dev/go/messaging"
	"solace.dev/go/messaging/pkg/solace"
	"solace.dev/go/messaging/pkg/solace/config"
	"solace.dev/go/messaging/pkg/solace/subcode"

	"chargeonce/ingest/solace/solacetest"
)

func TestRefusedLoginIsToldByItsText(t *testing.T) {
	t.Parallel()
	s := start(t, solacetest.Config{})
	for _, c := range []struct {
		refusal solacetest.Refusal
		want    subcode.Code
	}{
		{solacetest.Refusal{Code: 403, Text: "Client Name Already In Use"}, subcode.ClientNameAlreadyInUse},
		{solacetest.Refusal{Code: 403, Text: "Message VPN Not Allowed"}, subcode.MsgVpnNotAllowed},
		{solacetest.Refusal{Code: 503, Text: "Message VPN Unavailable"}, subcode.MsgVpnUnavailable},
		{solacetest.Refusal{Code: 503, Text: "Too Many Clients"}, subcode.TooManyClients},
		{solacetest.Refusal{Code: 503, Text: "Subscriber Delete In Progress"}, subcode.ClientDeleteInProgress},
		{solacetest.Refusal{Code: 503, Text: "Service Unavailable"}, subcode.ServiceUnavailable},
	} {
		require.NoError(t, s.Inject(solacetest.Fault{Kind: solacetest.FaultRefuseLogin, Code: c.refusal.Code, Text: c.refusal.Text, Times: 1}))
		err := service(t, properties(s)).Connect()
		require.ErrorContains(t, err, c.refusal.Text)
		require.Equal(t, c.want, subcodeOf(t, err), c.refusal.Text)
	}
	require.EqualValues(t, 6, s.Counters().LoginsRefused)
	connect(t, s)
}

func TestWrongPasswordOrVPNIsRefused(t *testing.T) {
	t.Parallel()
	s := start(t, solacetest.Config{VPN: "billing", Users: map[string]string{"user": "password"}})
	connect(t, s)
	p := properties(s)
	p[config.AuthenticationPropertySchemeBasicPassword] = "guess"
	err := service(t, p).Connect()
	requireError[*solace.AuthenticationError](t, err)
	p = properties(s)
	p[config.AuthenticationPropertySchemeBasicUserName] = "nobody"
	requireError[*solace.AuthenticationError](t, service(t, p).Connect())
	p = properties(s)
	p[config.ServicePropertyVPNName] = "default"
	require.Equal(t, subcode.MsgVpnNotAllowed, subcodeOf(t, service(t, p).Connect()))
}

func TestLoginThatIsNeverAnsweredTimesOutAsSet(t *testing.T) {
	t.Parallel()
	for _, kind := range []solacetest.FaultKind{solacetest.FaultHoldLogin, solacetest.FaultHoldConnection} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := start(t, solacetest.Config{})
			require.NoError(t, s.Inject(solacetest.Fault{Kind: kind}))
			p := properties(s)
			p[config.TransportLayerPropertyConnectionAttemptsTimeout] = 300
			require.Equal(t, subcode.Timeout, subcodeOf(t, service(t, p).Connect()))
			require.Zero(t, s.Counters().Logins)
		})
	}
}

func TestRefusedConnectionFailsAtOnce(t *testing.T) {
	t.Parallel()
	s := start(t, solacetest.Config{})
	require.NoError(t, s.Inject(solacetest.Fault{Kind: solacetest.FaultRefuseConnection, Times: 1}))
	require.Equal(t, subcode.CommunicationError, subcodeOf(t, service(t, properties(s)).Connect()))
	connect(t, s)
}

func TestMuteBrokerIsDetectedByItsKeepAlives(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(*solacetest.Server) error{
		"mute": func(s *solacetest.Server) error { return s.Inject(solacetest.Fault{Kind: solacetest.FaultMute}) },
		"keep-alives held": func(s *solacetest.Server) error {
			return s.Inject(solacetest.Fault{Kind: solacetest.FaultHoldKeepAlive})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, solacetest.Config{})
			p := properties(s)
			p[config.TransportLayerPropertyKeepAliveInterval] = 100
			svc := service(t, p)
			interrupted := make(chan solace.ServiceEvent, 1)
			svc.AddServiceInterruptionListener(func(e solace.ServiceEvent) { interrupted <- e })
			require.NoError(t, svc.Connect())
			t.Cleanup(func() { _ = svc.Disconnect() })
			eventually(t, func() bool { return s.Counters().KeepAlives >= 5 }, "answered ones keep the service up")
			require.True(t, svc.IsConnected())
			require.NoError(t, fault(s))
			require.Equal(t, subcode.KeepAliveFailure, subcodeOf(t, wait(t, interrupted).GetCause()))
			require.False(t, svc.IsConnected())
		})
	}
}

func TestAccessTokenLogsIn(t *testing.T) {
	t.Parallel()
	authority := newAuthority(t)
	s := start(t, solacetest.Config{TLS: authority.server(t), AccessTokens: []string{"good"}})
	login := func(token string) error {
		svc, err := messaging.NewMessagingServiceBuilder().FromConfigurationProvider(authority.properties(s)).
			WithAuthenticationStrategy(config.OAuth2Authentication(token, "", "")).Build()
		require.NoError(t, err)
		t.Cleanup(func() { _ = svc.Disconnect() })
		return svc.Connect()
	}
	require.NoError(t, login("good"))
	requireError[*solace.AuthenticationError](t, login("stale"))
	s.SetAccessTokens([]string{"better"})
	requireError[*solace.AuthenticationError](t, login("good"))
	require.NoError(t, login("better"))
}

func TestClientCertificateLogsIn(t *testing.T) {
	t.Parallel()
	authority := newAuthority(t)
	tlsConfig := authority.server(t)
	tlsConfig.ClientCAs, tlsConfig.ClientAuth = authority.pool, tls.VerifyClientCertIfGiven
	s := start(t, solacetest.Config{TLS: tlsConfig})
	certFile, keyFile := authority.issueFiles(t, "ingestor")
	svc, err := messaging.NewMessagingServiceBuilder().FromConfigurationProvider(authority.properties(s)).
		WithAuthenticationStrategy(config.ClientCertificateAuthentication(certFile, keyFile, "")).Build()
	require.NoError(t, err)
	t.Cleanup(func() { _ = svc.Disconnect() })
	user := make(chan string, 1)
	s.SetHooks(solacetest.Hooks{OnLogin: func(l solacetest.Login) error { user <- l.Scheme + " " + l.User; return nil }})
	require.NoError(t, svc.Connect())
	require.Equal(t, "client certificate ingestor", <-user)

	unasked := start(t, solacetest.Config{TLS: authority.server(t)})
	svc, err = messaging.NewMessagingServiceBuilder().FromConfigurationProvider(authority.properties(unasked)).
		WithAuthenticationStrategy(config.ClientCertificateAuthentication(certFile, keyFile, "")).Build()
	require.NoError(t, err)
	requireError[*solace.AuthenticationError](t, svc.Connect()) // a certificate that the server did not check is none

	stranger, strangerKey := newAuthority(t).issueFiles(t, "stranger")
	svc, err = messaging.NewMessagingServiceBuilder().FromConfigurationProvider(authority.properties(s)).
		WithAuthenticationStrategy(config.ClientCertificateAuthentication(stranger, strangerKey, "")).Build()
	require.NoError(t, err)
	require.Error(t, svc.Connect())
}

func TestMessagesFlowOverTLSAndAnUntrustedBrokerIsRefused(t *testing.T) {
	t.Parallel()
	authority := newAuthority(t)
	s := start(t, solacetest.Config{TLS: authority.server(t)})
	put(t, s, 0, 500)
	svc := service(t, authority.properties(s))
	require.NoError(t, svc.Connect())
	t.Cleanup(func() { _ = svc.Disconnect() })
	r := receiver(t, svc)
	for range 500 {
		require.NoError(t, r.Ack(receive(t, r)))
	}
	acked(t, s, 500)
	s.DropConnections()
	wait(t, r.gone)

	p := authority.properties(s)
	p[config.TransportLayerSecurityPropertyTrustStorePath] = newAuthority(t).folder
	require.Equal(t, subcode.UntrustedCertificate, subcodeOf(t, service(t, p).Connect()))
	p = properties(s)
	p[config.TransportLayerPropertyHost] = "tcp://" + s.Addr()
	require.Error(t, service(t, p).Connect(), "plain text to a TLS port")
}

// authority is a certificate authority of its own, whose certificate is alone in a folder, as the client wants its trust store.
type authority struct {
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
	pool   *x509.CertPool
	folder string
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority of a test"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	a := authority{cert: cert, key: key, pool: x509.NewCertPool(), folder: t.TempDir()}
	a.pool.AddCert(cert)
	writePEM(t, filepath.Join(a.folder, "ca.pem"), "CERTIFICATE", der)
	return a
}

func (a authority) issue(t *testing.T, name string) (der []byte, key *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err = x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, key.Public(), a.key)
	require.NoError(t, err)
	return der, key
}

func (a authority) server(t *testing.T) *tls.Config {
	t.Helper()
	der, key := a.issue(t, "localhost")
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
}

func (a authority) issueFiles(t *testing.T, name string) (certFile, keyFile string) {
	t.Helper()
	der, key := a.issue(t, name)
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	folder := t.TempDir()
	certFile, keyFile = filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem")
	writePEM(t, certFile, "CERTIFICATE", der)
	writePEM(t, keyFile, "PRIVATE KEY", encoded)
	return certFile, keyFile
}

func (a authority) properties(s *solacetest.Server) config.ServicePropertyMap {
	p := properties(s)
	p[config.TransportLayerSecurityPropertyTrustStorePath] = a.folder
	return p
}

func writePEM(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}
