package identitytest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Certificates are those of a host at 127.0.0.1, signed by an authority that no system knows.
type Certificates struct {
	CAFile, CertFile, KeyFile string // PEM; SSL_CERT_FILE makes a program on Linux trust CAFile
}

// NewCertificates writes certificates that are good for a day into a folder of the test.
func NewCertificates(tb testing.TB) Certificates {
	tb.Helper()
	dir := tb.TempDir()
	c := Certificates{CAFile: dir + "/ca.pem", CertFile: dir + "/cert.pem", KeyFile: dir + "/key.pem"}
	require.NoError(tb, c.write())
	return c
}

// TLS is the configuration of a server.
func (c Certificates) TLS(tb testing.TB) *tls.Config {
	tb.Helper()
	pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
	require.NoError(tb, err)
	return &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
}

// Trusting is the configuration of a client that trusts the authority.
func (c Certificates) Trusting(tb testing.TB) *tls.Config {
	tb.Helper()
	ca, err := os.ReadFile(c.CAFile)
	require.NoError(tb, err)
	pool := x509.NewCertPool()
	require.True(tb, pool.AppendCertsFromPEM(ca))
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
}

func (c Certificates) write() error {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make the authority's key: %w", err)
	}
	ca := template("test authority", 1)
	ca.IsCA, ca.BasicConstraintsValid, ca.KeyUsage = true, true, x509.KeyUsageCertSign
	if err := signTo(c.CAFile, ca, ca, &caKey.PublicKey, caKey); err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make the host's key: %w", err)
	}
	host := template("127.0.0.1", 2)
	host.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	host.KeyUsage, host.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	if err := signTo(c.CertFile, host, ca, &key.PublicKey, caKey); err != nil {
		return err
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode the host's key: %w", err)
	}
	return writePEM(c.KeyFile, "PRIVATE KEY", encoded)
}

func template(name string, serial int64) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
	}
}

func signTo(file string, c, parent *x509.Certificate, public *ecdsa.PublicKey, key *ecdsa.PrivateKey) error {
	signed, err := x509.CreateCertificate(rand.Reader, c, parent, public, key)
	if err != nil {
		return fmt.Errorf("sign the certificate of %s: %w", c.Subject.CommonName, err)
	}
	return writePEM(file, "CERTIFICATE", signed)
}

func writePEM(file, kind string, content []byte) error {
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}), 0o600); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return nil
}
