//go:build cgo

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"chargeonce/ingest/solace/solacetest"
	"chargeonce/sql/sqltest"
)

// The program's libraries, those that it is linked with and those that it loads, are the ones that the image's definition names: one
// that is missing shows only when a broker is met over TLS, or left. Run as root, the program sees nothing else here, as another user.
func TestImageHasTheLibrariesThatAConnectionOverTLSNeeds(t *testing.T) {
	t.Parallel()
	named := librariesOfTheImage(t)
	certificate, trust := certify(t)
	broker, err := solacetest.Start(solacetest.Config{
		TLS:    &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}},
		Queues: []solacetest.Queue{{Name: queueName}}, Users: map[string]string{"ingest": "topsecret"},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, broker.Close()) })
	db := sqltest.New(t)
	env := rightSettings(broker, db.URL)
	env["SOLACE_TRUST_STORE"], env["SOLACE_RESTART_DELAY"] = "/trust", "10ms"
	p := prepareProgram(t, env)
	root := t.TempDir()
	if os.Getuid() == 0 {
		moveInto(t, root, p.Path, named)
		p.Path, p.Dir = "/program", "/"
		p.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
	} else {
		t.Log("not root: the program sees all of this machine, and not only what the image has")
		p.Env = append(p.Env, "SOLACE_TRUST_STORE="+filepath.Join(root, "trust")) // the later one counts
	}
	require.NoError(t, os.MkdirAll(filepath.Join(root, "trust"), 0o755))                   //nolint:gosec // for another user to read
	require.NoError(t, os.WriteFile(filepath.Join(root, "trust", "ca.pem"), trust, 0o644)) //nolint:gosec // for another user to read
	p.run(t)

	publish(t, broker, 0, 10)
	await(t, db.Pool(t, ""), 10, countIntents)
	broker.DropConnections() // the client's threads end
	publish(t, broker, 10, 10)
	await(t, db.Pool(t, ""), 20, countIntents)
	require.True(t, waitFor(t.Context(), func() bool { return slices.Equal(p.libraries(t), named) }), "loaded: %v, in the image: %v", p.libraries(t), named)
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 0, p.exit(t))
}

// librariesOfTheImage are the files that the image's definition says to be in the packages that it installs.
func librariesOfTheImage(t *testing.T) []string {
	t.Helper()
	content, err := os.ReadFile("../../../deploy/solace/Containerfile")
	require.NoError(t, err)
	installed := regexp.MustCompile(`apt-get install .*--no-install-recommends (.*) \\\n`).FindSubmatch(content)
	require.NotNil(t, installed)
	packages := strings.Fields(string(installed[1]))
	require.Contains(t, packages, "ca-certificates")
	var files []string
	for _, line := range regexp.MustCompile(`(?m)^# ([a-z0-9-]+): ([^(\n]*\.so[^(\n]*)`).FindAllStringSubmatch(string(content), -1) {
		require.Contains(t, packages, line[1])
		files = append(files, strings.Fields(line[2])...)
	}
	slices.Sort(files)
	return files
}

// libraries are the shared libraries in the process's memory.
func (p *program) libraries(t *testing.T) []string {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.Process.Pid))
	require.NoError(t, err)
	found := map[string]bool{}
	for _, path := range regexp.MustCompile(`(?m)/\S+\.so[.0-9]*$`).FindAllString(string(content), -1) {
		found[filepath.Base(path)] = true
	}
	return slices.Sorted(maps.Keys(found))
}

// moveInto copies the program and the libraries into a folder that is to be the program's root.
func moveInto(t *testing.T, root, program string, libraries []string) {
	t.Helper()
	require.NoError(t, os.Chmod(filepath.Dir(root), 0o755)) //nolint:gosec // for another user to enter
	out, err := exec.CommandContext(t.Context(), "/sbin/ldconfig", "-p").Output()
	require.NoError(t, err)
	for _, library := range libraries {
		found := regexp.MustCompile(`(?m)^\s` + regexp.QuoteMeta(library) + ` \(.*x86-64.*\) => (\S+)$`).FindSubmatch(out)
		require.NotNil(t, found, library)
		copyFile(t, string(found[1]), filepath.Join(root, string(found[1])))
		copyFile(t, string(found[1]), filepath.Join(root, "lib64", library))
	}
	copyFile(t, program, filepath.Join(root, "program"))
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from) //nolint:gosec // a library, or ourselves
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755)) //nolint:gosec // for another user to read
	require.NoError(t, os.WriteFile(to, content, 0o755))     //nolint:gosec // for another user to execute
}

// certify makes a certificate for the loopback address that vouches for itself.
func certify(t *testing.T) (certificate tls.Certificate, trust []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
