//go:build cgo

package solace_test

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
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"chargeonce/ingest/solace"
	"chargeonce/ingest/solace/solacetest"
)

// A secret that is rotated while the ingestor runs must not keep it out after the next drop.
func TestRotatedTokenIsTakenUpAtTheNextConnection(t *testing.T) {
	t.Parallel()
	authority := newAuthority(t)
	b := setup(t, solacetest.Config{TLS: authority.server(t), AccessTokens: []string{"first-token"}})
	token := newRotating("first-token")
	cfg := quick(b.Server)
	cfg.Auth, cfg.User, cfg.Secret, cfg.TrustStore = solace.AuthOAuth, "", token.get, authority.folder
	r := b.run(t, cfg)
	b.put(t, "a", 10)
	b.acked(t, 10)
	b.SetAccessTokens([]string{"second-token"})
	b.DropConnections()
	eventually(t, func() bool { return b.Counters().LoginsRefused >= 2 }, "kept out, and trying again")
	require.Error(t, r.Check(t.Context()))
	token.set("second-token")
	b.recovers(t, r, 10, 10)
	require.NotContains(t, b.logs.String(), "-token")
}

type rotating struct {
	mu   sync.Mutex
	text string
}

func newRotating(text string) *rotating { return &rotating{text: text} }

func (r *rotating) get() (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text, nil
}

func (r *rotating) set(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.text = text
}

func TestClientCertificateIsEnough(t *testing.T) {
	t.Parallel()
	authority := newAuthority(t)
	config := authority.server(t)
	config.ClientCAs, config.ClientAuth = authority.pool, tls.RequireAndVerifyClientCert
	b := setup(t, solacetest.Config{TLS: config})
	cfg := quick(b.Server)
	cfg.Auth, cfg.User, cfg.Secret, cfg.TrustStore = solace.AuthCertificate, "", nil, authority.folder
	cfg.ClientCert, cfg.ClientKey = authority.issueFiles(t, "ingestor")
	r := b.run(t, cfg)
	b.recovers(t, r, 0, 100)
	b.DropConnections()
	b.put(t, "again", 10)
	b.acked(t, 110)
}

func TestProbeNamesACertificateThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	authority := newAuthority(t)
	b := setup(t, solacetest.Config{TLS: authority.server(t)})
	_, otherKey := authority.issueFiles(t, "other")
	for title, test := range map[string]struct {
		change func(*solace.Config)
		want   error
	}{
		"broker of a stranger": {func(c *solace.Config) { c.TrustStore = newAuthority(t).folder }, solace.ErrBrokerCertificate},
		"key of another": {func(c *solace.Config) {
			c.Auth = solace.AuthCertificate
			c.ClientCert, _ = authority.issueFiles(t, "ingestor")
			c.ClientKey = otherKey
		}, solace.ErrClientCertificate},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			cfg := quick(b.Server)
			cfg.TrustStore = authority.folder
			test.change(&cfg)
			s, err := solace.New(cfg, b.recorder(t, b.pool), nil, b.logger())
			require.NoError(t, err)
			t.Cleanup(s.Close)
			require.ErrorIs(t, s.Probe(t.Context()), test.want)
		})
	}
}

func TestTokensAndCertificatesNeedEncryptedHosts(t *testing.T) {
	t.Parallel()
	cfg := solace.Config{Hosts: "tcps://a,tcp://b", VPN: "v", Queue: "q", Auth: solace.AuthOAuth, Secret: secret("x")}
	require.ErrorIs(t, cfg.Validate(), solace.ErrHosts)
	cfg.Hosts = "tcps://a,tcps://b"
	require.NoError(t, cfg.Validate())
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

func writePEM(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}
