package localpg

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Not parallel: the temporary folder is the whole process's.
func TestDownloadLeavesSomethingInTheTemporaryFolder(t *testing.T) {
	missing := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(missing.Close)
	gaveUp := errors.New("gave up")

	for name, c := range map[string]struct{ url, problem string }{
		"good":      {serveRepository(t, scriptArchive(t), "").URL, ""},
		"missing":   {missing.URL, "no version found"},
		"damaged":   {serveRepository(t, scriptArchive(t), strings.Repeat("0", sha256.Size*2)).URL, "checksums do not match"},
		"abandoned": {"", gaveUp.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			temp := t.TempDir()
			t.Setenv("TMPDIR", temp)
			ofAnother := filepath.Join(temp, "embedded_postgres_log1")
			require.NoError(t, os.WriteFile(ofAnother, nil, 0o600))
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if name == "abandoned" {
				c.url = hangingRepository(t, func() { cancel(gaveUp) })
			}
			err := unpack(ctx, c.url, DefaultVersion, reachable(t))
			if c.problem == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.problem)
			}
			left, err := os.ReadDir(temp)
			require.NoError(t, err)
			for _, l := range left {
				if !strings.HasPrefix(l.Name(), "localpg-test-") { // reachable's own
					require.Equal(t, ofAnother, filepath.Join(temp, l.Name()))
				}
			}
			require.FileExists(t, ofAnother, "another process's log")
		})
	}
}

// hangingRepository calls asked and never answers. Downloads wait for each other in one process: the abandoned one ends with
// its test.
func hangingRepository(t *testing.T, asked func()) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked()
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections) // first
	return server.URL
}
