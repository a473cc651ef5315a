// Package azuritetest gives tests Azure Blob Storage as Azurite plays it, with a proxy before it that makes faults.
package azuritetest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"github.com/stretchr/testify/require"
)

// Start returns a container of the test's own in the Azurite of this test binary, which the first test starts and which ends with the
// binary, however that ends. Without Azurite the test is skipped; under CI it fails.
func Start(tb testing.TB) *Storage {
	tb.Helper()
	program := find(tb)
	shared.once.Do(func() {
		shared.azurite, shared.err = launch(program)
	})
	require.NoError(tb, shared.err, "start Azurite")
	return newStorage(tb, shared.azurite.url)
}

// StartTLS starts an Azurite for one test that speaks TLS with the certificate and key of the given PEM files, and takes tokens of any
// issuer of Microsoft's name whose times and audience are right, whoever signed them. It returns the account's address.
func StartTLS(tb testing.TB, certFile, keyFile string) string {
	tb.Helper()
	azurite, err := launch(find(tb), "--cert", certFile, "--key", keyFile, "--oauth", "basic")
	require.NoError(tb, err, "start Azurite")
	tb.Cleanup(azurite.stop)
	return azurite.url
}

// The one account that Azurite has. The key is public.
const (
	account    = "devstoreaccount1"
	accountKey = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

// ConnectionString is one of an account with that address; the key is Azurite's.
func ConnectionString(accountURL string) string {
	protocol, _, _ := strings.Cut(accountURL, ":")
	return fmt.Sprintf("DefaultEndpointsProtocol=%s;AccountName=%s;AccountKey=%s;BlobEndpoint=%s;", protocol, account, accountKey, accountURL)
}

// Storage is one container.
type Storage struct {
	ConnectionString string
	AccountURL       string
	Container        string
	Client           *container.Client // past any proxy
}

func newStorage(tb testing.TB, accountURL string) *Storage {
	tb.Helper()
	s := &Storage{
		ConnectionString: ConnectionString(accountURL), AccountURL: accountURL, Container: "test-" + strings.ToLower(rand.Text()),
	}
	transport := &http.Transport{}
	tb.Cleanup(transport.CloseIdleConnections)
	var err error
	s.Client, err = container.NewClientFromConnectionString(s.ConnectionString, s.Container, &container.ClientOptions{
		ClientOptions: azcore.ClientOptions{Transport: &http.Client{Transport: transport}},
	})
	require.NoError(tb, err)
	_, err = s.Client.Create(tb.Context(), nil)
	require.NoError(tb, err)
	return s
}

// Blob is what a list shows of one.
type Blob struct {
	Metadata     map[string]string
	LastModified time.Time // in whole seconds
	ETag         string
}

// Blobs returns all of the container by their names.
func (s *Storage) Blobs(ctx context.Context) (map[string]Blob, error) {
	out := map[string]Blob{}
	pages := s.Client.NewListBlobsFlatPager(&container.ListBlobsFlatOptions{Include: container.ListBlobsInclude{Metadata: true}})
	for pages.More() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, fmt.Errorf("list the blobs of container %s: %w", s.Container, err)
		}
		for _, item := range page.Segment.BlobItems {
			b := Blob{Metadata: map[string]string{}, LastModified: *item.Properties.LastModified, ETag: string(*item.Properties.ETag)}
			for name, value := range item.Metadata {
				if value != nil {
					b.Metadata[name] = *value
				}
			}
			out[*item.Name] = b
		}
	}
	return out, nil
}

// Put writes an empty blob with metadata, over one that is there.
func (s *Storage) Put(tb testing.TB, name string, metadata map[string]string) {
	tb.Helper()
	pointers := map[string]*string{}
	for key, value := range metadata {
		pointers[key] = new(value)
	}
	_, err := s.Client.NewBlockBlobClient(name).UploadBuffer(tb.Context(), nil, &blockblob.UploadBufferOptions{Metadata: pointers})
	require.NoError(tb, err)
}

// shared is the one piece of state that outlives a test: Azurite takes a second to start.
var shared struct { //nolint:gochecknoglobals // see above
	once    sync.Once
	azurite *process
	err     error
}

// process is a running Azurite.
type process struct {
	command  *exec.Cmd
	lifeline io.Closer
	url      string // of its account
}

// untilEndOfInput runs a program until the input ends, which it does when the test binary does, even by SIGKILL.
const untilEndOfInput = `"$@" & child=$!; read -r _; kill "$child"; wait "$child"`

// startTimeout is for a machine with little to spare: Azurite reads thousands of files before it listens.
const startTimeout = 3 * time.Minute

func launch(program string, args ...string) (*process, error) {
	log, err := os.CreateTemp("", "azurite-*.log")
	if err != nil {
		return nil, fmt.Errorf("make a log file: %w", err)
	}
	defer log.Close()
	if err := os.Remove(log.Name()); err != nil { // it lives on as long as somebody has it open
		return nil, fmt.Errorf("unlink the log file: %w", err)
	}
	args = append([]string{
		"-c", untilEndOfInput, "sh", program, "--blobPort", "0", "--inMemoryPersistence", "--skipApiVersionCheck", "--silent", "--loose",
		"--disableTelemetry",
	}, args...)
	p := &process{command: exec.Command("sh", args...)} //nolint:gosec,noctx // the program is Azurite, and outlives the test that starts it
	p.command.Dir, p.command.Stdout, p.command.Stderr = os.TempDir(), log, log
	if p.lifeline, err = p.command.StdinPipe(); err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	if err := p.command.Start(); err != nil {
		return nil, fmt.Errorf("start sh: %w", err)
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); time.Since(began) < startTimeout; <-tick.C {
		said, err := io.ReadAll(io.NewSectionReader(log, 0, 1<<20))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("read Azurite's output: %w", err), p.end())
		}
		if _, rest, found := strings.Cut(string(said), "successfully listens on "); found {
			address, _, _ := strings.Cut(rest, "\n")
			p.url = strings.TrimSpace(address) + "/" + account
			return p, nil
		}
	}
	said, _ := io.ReadAll(io.NewSectionReader(log, 0, 1<<20))
	return nil, errors.Join(fmt.Errorf("start %s: after %s it does not listen and says: %s", program, startTimeout, said), p.end())
}

func (p *process) stop() { _ = p.end() }

func (p *process) end() error {
	err := p.lifeline.Close()
	_ = p.command.Wait() // sh ends with the code of a program that was killed
	return err
}

// find returns azurite-blob, or ends the test.
func find(tb testing.TB) string {
	tb.Helper()
	const missing = "no Azurite found: install it with `make azurite` (which needs nodejs and npm), or set AZURITE_PATH to its azurite-blob"
	if path := os.Getenv("AZURITE_PATH"); path != "" {
		return path
	}
	if path, err := exec.LookPath("azurite-blob"); err == nil {
		return path
	}
	if path := filepath.Join(root(tb), ".cache", "azurite", "node_modules", ".bin", "azurite-blob"); isProgram(path) {
		return path
	}
	if ci := os.Getenv("CI"); ci != "" && ci != "false" {
		tb.Fatal(missing)
	}
	tb.Skip(missing)
	return ""
}

func isProgram(path string) bool {
	_, err := exec.LookPath(path)
	return err == nil
}

// root is the folder of go.mod.
func root(tb testing.TB) string {
	tb.Helper()
	at, err := os.Getwd()
	require.NoError(tb, err)
	for {
		if _, err := os.Stat(filepath.Join(at, "go.mod")); err == nil {
			return at
		}
		above := filepath.Dir(at)
		require.NotEqual(tb, at, above, "no go.mod above the tests")
		at = above
	}
}

func hostOf(accountURL string) (*url.URL, error) {
	u, err := url.Parse(accountURL)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", accountURL, err)
	}
	return &url.URL{Scheme: u.Scheme, Host: u.Host}, nil
}
