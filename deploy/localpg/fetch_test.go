package localpg

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

func TestMachineWithoutPostgresDownloadsIt(t *testing.T) {
	t.Parallel()
	repo := serveRepository(t, ownArchive(t), "")
	cfg := Config{FetchURL: repo.URL, CacheDir: reachable(t)}

	for range 2 {
		s, err := start(t.Context(), cfg, []string{"/no/such/bin"})
		require.NoError(t, err)
		require.Equal(t, filepath.Join(cfg.CacheDir, "postgres-"+DefaultVersion, "bin"), s.binDir)
		conn, err := pgconn.Connect(t.Context(), s.URL())
		require.NoError(t, err)
		require.NoError(t, conn.Close(t.Context()))
		require.NoError(t, s.Stop(t.Context()))
	}
	require.Equal(t, 1, repo.count(".jar"), "the second start did not use the cache")
	require.Equal(t, 1, repo.count(".sha256"), "the checksum was not asked for")
	left, err := filepath.Glob(filepath.Join(cfg.CacheDir, "unpack-*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestParallelStartsDownloadOnce(t *testing.T) {
	t.Parallel()
	repo := serveRepository(t, scriptArchive(t), "")
	cfg := Config{FetchURL: repo.URL, CacheDir: reachable(t)}
	account, err := serviceAccount(t.Context())
	require.NoError(t, err)
	var wg sync.WaitGroup
	errs := make([]error, 3)
	for i := range errs {
		wg.Go(func() {
			_, errs[i] = fetch(context.WithoutCancel(t.Context()), cfg, account, slog.New(slog.DiscardHandler))
		})
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.Equal(t, 1, repo.count(".jar"))
}

func TestDamagedDownloadIsRefused(t *testing.T) {
	t.Parallel()
	repo := serveRepository(t, scriptArchive(t), strings.Repeat("0", sha256.Size*2))
	cfg := Config{FetchURL: repo.URL, CacheDir: reachable(t)}
	_, err := start(t.Context(), cfg, nil)
	require.ErrorContains(t, err, "downloaded checksums do not match")
	require.NoDirExists(t, filepath.Join(cfg.CacheDir, "postgres-"+DefaultVersion))
}

func TestNoPostgresAnywhereSaysWhatToInstall(t *testing.T) {
	t.Parallel()
	repo := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(repo.Close)
	_, err := start(t.Context(), Config{FetchURL: repo.URL, CacheDir: reachable(t)}, nil)
	require.EqualError(t, err, "start local Postgres: there is no Postgres 14 or newer on this machine and it could not be downloaded "+
		"(download of Postgres 17.5.0: no version found matching 17.5.0): "+
		"install it, with `apt-get install postgresql` on Debian and Ubuntu or `brew install postgresql@17` on macOS")
}

func TestProgramsThatOnlyLookLikePostgresAreNotUsed(t *testing.T) {
	t.Parallel()
	script := func(program, says string) string {
		dir := reachable(t)
		require.NoError(t, os.WriteFile(filepath.Join(dir, program), []byte("#!/bin/sh\necho '"+says+"'\n"), 0o755)) //nolint:gosec // a program
		return dir
	}
	account, err := serviceAccount(t.Context())
	require.NoError(t, err)
	for name, dir := range map[string]string{
		"no such file":                        "/no/such/bin",
		"does not say a Postgres version":     script("initdb", "busybox 1.36"),
		"version 13, older than 14":           script("initdb", "initdb (PostgreSQL) 13.21"),
		"no such file or directory":           script("postgres", "postgres (PostgreSQL) 17.5"),
		"postgres for its version as ":        script("initdb", "initdb (PostgreSQL) 17.5"),
		"does not say a Postgres version: \"": script("initdb", "initdb (PostgreSQL) devel"),
	} {
		_, err := usable(t.Context(), dir, account)
		require.ErrorContains(t, err, name, dir)
	}
}

func TestLinkOnPathIsFollowedToTheProgramsFolder(t *testing.T) {
	t.Parallel()
	account, err := serviceAccount(t.Context())
	require.NoError(t, err)
	actual := ownBinDir(t)
	link := filepath.Join(reachable(t), "initdb") // no postgres beside the link
	require.NoError(t, os.Symlink(filepath.Join(actual, "initdb"), link))
	dir, err := usable(t.Context(), filepath.Dir(link), account)
	require.NoError(t, err)
	require.Equal(t, actual, dir)
}

func TestNewerPostgresIsPreferred(t *testing.T) {
	t.Parallel()
	require.Greater(t, pathVersion("/usr/lib/postgresql/17/bin"), pathVersion("/usr/lib/postgresql/9/bin"))
	require.Greater(t, pathVersion("/usr/local/opt/postgresql@17/bin"), pathVersion("/usr/local/opt/postgresql@16/bin"))
}

type repository struct {
	*httptest.Server
	mu    sync.Mutex
	paths []string
}

func (r *repository) count(suffix string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, path := range r.paths {
		if strings.HasSuffix(path, suffix) {
			n++
		}
	}
	return n
}

// serveRepository serves the jar under the address that embedded-postgres asks for on any system, with its checksum
// unless another is given.
func serveRepository(t *testing.T, jar []byte, checksum string) *repository {
	t.Helper()
	if checksum == "" {
		sum := sha256.Sum256(jar)
		checksum = hex.EncodeToString(sum[:])
	}
	r := &repository{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		r.paths = append(r.paths, req.URL.Path)
		r.mu.Unlock()
		inLayout := strings.HasPrefix(req.URL.Path, "/io/zonky/test/postgres/embedded-postgres-binaries-") &&
			strings.Contains(req.URL.Path, "/"+DefaultVersion+"/")
		switch {
		case inLayout && strings.HasSuffix(req.URL.Path, "-"+DefaultVersion+".jar"):
			_, _ = w.Write(jar)
		case inLayout && strings.HasSuffix(req.URL.Path, "-"+DefaultVersion+".jar.sha256"):
			_, _ = w.Write([]byte(checksum))
		default:
			http.NotFound(w, req)
		}
	}))
	t.Cleanup(r.Close)
	return r
}

// ownArchive packs this machine's Postgres the way the repository does: a jar with one .txz of bin (and lib and share,
// where the programs look for them beside bin).
func ownArchive(t *testing.T) []byte {
	t.Helper()
	bin := ownBinDir(t)
	var tarball bytes.Buffer
	w := tar.NewWriter(&tarball)
	for _, program := range []string{"initdb", "postgres", "pg_ctl"} {
		addFile(t, w, filepath.Join(bin, program), "bin/"+program)
	}
	home := filepath.Dir(bin)
	for _, folder := range []string{"lib", "share"} {
		err := filepath.WalkDir(filepath.Join(home, folder), func(path string, d fs.DirEntry, err error) error {
			// Programs compiled just in time are the largest part by far and no server needs them.
			if err == nil && d.Type().IsRegular() && !strings.Contains(path, "bitcode") && !strings.Contains(path, "llvmjit") {
				name, err := filepath.Rel(home, path)
				require.NoError(t, err)
				addFile(t, w, path, name)
			}
			return err
		})
		if !errors.Is(err, fs.ErrNotExist) { // packages may keep either elsewhere, where the programs find it too
			require.NoError(t, err)
		}
	}
	require.NoError(t, w.Close())
	return jarOf(t, tarball.Bytes())
}

// scriptArchive is a small one for tests that start no server: its programs only say their version.
func scriptArchive(t *testing.T) []byte {
	t.Helper()
	var tarball bytes.Buffer
	w := tar.NewWriter(&tarball)
	for _, program := range []string{"initdb", "postgres", "pg_ctl"} {
		script := "#!/bin/sh\necho '" + program + " (PostgreSQL) 17.5'\nexit $(($# > 1))\n" // pg_ctl start fails
		require.NoError(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "bin/" + program, Mode: 0o755, Size: int64(len(script))}))
		_, err := w.Write([]byte(script))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return jarOf(t, tarball.Bytes())
}

func jarOf(t *testing.T, tarball []byte) []byte {
	t.Helper()
	var jar bytes.Buffer
	z := zip.NewWriter(&jar)
	entry, err := z.Create("postgres-test.txz")
	require.NoError(t, err)
	_, err = entry.Write(xzStored(tarball))
	require.NoError(t, err)
	require.NoError(t, z.Close())
	return jar.Bytes()
}

func addFile(t *testing.T, w *tar.Writer, path, name string) {
	t.Helper()
	content, err := os.ReadFile(path) //nolint:gosec // this machine's Postgres
	require.NoError(t, err)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.NoError(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(info.Mode().Perm()), Size: int64(len(content))}))
	_, err = w.Write(content)
	require.NoError(t, err)
}

func ownBinDir(t *testing.T) string {
	t.Helper()
	account, err := serviceAccount(t.Context())
	require.NoError(t, err)
	dir, err := locate(t.Context(), Config{}, account, localBinDirs(), slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	return dir
}

// reachable is a folder that the service account may enter; t.TempDir's parents are root's alone.
func reachable(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "localpg-test-") //nolint:usetesting // see above
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755)) //nolint:gosec // see above
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// xzStored wraps data in a valid .xz stream of uncompressed LZMA2 chunks, which the standard library cannot write and
// which spares the tests a compressor.
func xzStored(data []byte) []byte {
	const chunkBytes = 1 << 16
	flags := []byte{0, 0} // no check
	out := append([]byte{0xFD, '7', 'z', 'X', 'Z', 0}, flags...)
	out = binary.LittleEndian.AppendUint32(out, crc32.ChecksumIEEE(flags))

	blockFrom := len(out)
	header := []byte{2, 0, 0x21, 1, 22, 0, 0, 0} // 12 bytes with checksum; one filter: LZMA2 with an 8 MiB dictionary
	out = append(out, header...)
	out = binary.LittleEndian.AppendUint32(out, crc32.ChecksumIEEE(header))
	control := byte(1) // resets the dictionary
	for rest := data; len(rest) > 0; control = 2 {
		n := min(len(rest), chunkBytes)
		out = append(out, control)
		out = binary.BigEndian.AppendUint16(out, uint16(n-1))
		out = append(out, rest[:n]...)
		rest = rest[n:]
	}
	out = append(out, 0)
	unpadded := len(out) - blockFrom
	out = pad4(out)

	index := []byte{0, 1}
	index = binary.AppendUvarint(index, uint64(unpadded)) //nolint:gosec // a length
	index = pad4(binary.AppendUvarint(index, uint64(len(data))))
	out = append(out, index...)
	out = binary.LittleEndian.AppendUint32(out, crc32.ChecksumIEEE(index))

	footer := binary.LittleEndian.AppendUint32(nil, uint32(len(index)/4)) //nolint:gosec // (index with checksum)/4 - 1
	footer = append(footer, flags...)
	out = binary.LittleEndian.AppendUint32(out, crc32.ChecksumIEEE(footer))
	return append(append(out, footer...), 'Y', 'Z')
}

func pad4(b []byte) []byte {
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}
