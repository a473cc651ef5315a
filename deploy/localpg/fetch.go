package localpg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

const (
	// DefaultVersion is what is downloaded when the machine has no Postgres.
	DefaultVersion = "17.5.0"

	// fetchTimeout bounds the download of about 30 MB.
	fetchTimeout = 5 * time.Minute
)

// fetch returns the bin folder of the cached download, after downloading and unpacking it if need be. It is safe against
// other processes that do the same, and never leaves a half unpacked version where a complete one is expected.
func fetch(ctx context.Context, cfg Config, a *account, log *slog.Logger) (string, error) {
	version := cmp.Or(cfg.Version, DefaultVersion)
	cache, err := cacheFolder(ctx, cfg.CacheDir, a)
	if err != nil {
		return "", err
	}
	home := filepath.Join(cache, "postgres-"+version)
	bin := filepath.Join(home, "bin")
	unlock, err := lockCache(ctx, home+".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if dir, err := usable(ctx, bin, a); err == nil {
		return dir, nil
	}
	log.InfoContext(ctx, "downloading Postgres, once", slog.String("version", version), slog.String("into", home))
	work, err := os.MkdirTemp(cache, "unpack-")
	if err != nil {
		return "", fmt.Errorf("make a folder to unpack into: %w", err)
	}
	defer os.RemoveAll(work)
	if err := unpack(ctx, cfg.FetchURL, version, work); err != nil {
		return "", err
	}
	if err := errors.Join(os.RemoveAll(home), os.Rename(filepath.Join(work, "home"), home)); err != nil {
		return "", fmt.Errorf("move the download into place: %w", err)
	}
	dir, err := usable(ctx, bin, a)
	if err != nil {
		return "", fmt.Errorf("downloaded Postgres %s does not run here: %w", version, err)
	}
	return dir, nil
}

// unpack lets embedded-postgres download its archive into work and unpack it to work/home. The library exports no such
// step alone, and its server would refuse to run as root. So it is given a data folder that claims to be a cluster and
// is none: it then unpacks, skips initdb and fails at the start of the server, which is how we know it got that far.
func unpack(ctx context.Context, repository, version, work string) error {
	const failedAfterUnpacking = "could not start postgres using"
	data := filepath.Join(work, "no-data")
	if err := os.Mkdir(data, 0o700); err != nil {
		return fmt.Errorf("unpack Postgres: %w", err)
	}
	major, _, _ := strings.Cut(version, ".")
	if err := os.WriteFile(filepath.Join(data, "PG_VERSION"), []byte(major+"\n"), 0o600); err != nil {
		return fmt.Errorf("unpack Postgres: %w", err)
	}
	config := embeddedpostgres.DefaultConfig().
		Version(embeddedpostgres.PostgresVersion(version)).
		CachePath(work).RuntimePath(filepath.Join(work, "runtime")).BinariesPath(filepath.Join(work, "home")).DataPath(data).
		Port(0).Logger(io.Discard) // it looks whether its port is free, and any other may have been taken meanwhile
	if repository != "" {
		config = config.BinaryRepositoryURL(strings.TrimSuffix(repository, "/"))
	}
	result := make(chan error, 1)
	go func() { // the library takes no context; an abandoned download ends with the process
		database := embeddedpostgres.NewDatabase(config)
		err := database.Start()
		removeLibraryLogs()
		runtime.KeepAlive(database) // its log is found by being open
		result <- err
	}()
	var err error
	select {
	case err = <-result:
	case <-ctx.Done():
		removeLibraryLogs()
		return fmt.Errorf("download of Postgres %s: %w", version, context.Cause(ctx))
	}
	if err == nil || !strings.HasPrefix(err.Error(), failedAfterUnpacking) {
		return fmt.Errorf("download of Postgres %s: %w", version, cmp.Or(err, errors.New("an empty folder was taken for a cluster")))
	}
	return nil
}

// removeLibraryLogs removes the log that embedded-postgres makes in the common temporary folder at every start, never closes
// and never removes. Its place cannot be chosen, nor its name asked for; but the files of other processes that use the library
// are not open in this one. A second download in this process does not miss its log: the failure that unpack waits for is
// told by its first words.
func removeLibraryLogs() {
	logs, err := filepath.Glob(filepath.Join(os.TempDir(), "embedded_postgres_log*"))
	if err != nil || len(logs) == 0 {
		return
	}
	const open = "/dev/fd" // on Linux and macOS
	descriptors, err := os.ReadDir(open)
	if err != nil {
		return
	}
	ours := make([]os.FileInfo, 0, len(descriptors))
	for _, d := range descriptors {
		if info, err := os.Stat(filepath.Join(open, d.Name())); err == nil {
			ours = append(ours, info)
		}
	}
	for _, path := range logs {
		info, err := os.Lstat(path)
		if err == nil && slices.ContainsFunc(ours, func(o os.FileInfo) bool { return os.SameFile(o, info) }) {
			_ = os.Remove(path) // no more than a small file is left
		}
	}
}

// cacheFolder is one that the account can read. Root's own cache folder usually is not.
func cacheFolder(ctx context.Context, given string, a *account) (string, error) {
	bases := []string{given}
	if given == "" {
		bases = nil
		if user, err := os.UserCacheDir(); err == nil {
			bases = append(bases, filepath.Join(user, "chargeonce"))
		}
		if a != nil {
			bases = append(bases, "/var/cache/chargeonce")
		}
	}
	problem := errors.New("this user has no cache folder")
	for _, base := range bases {
		if problem = os.MkdirAll(base, 0o755); problem != nil { //nolint:gosec // the account must read it
			continue
		}
		if problem = a.check(ctx, `cd -- "$1"`, base); problem == nil {
			return filepath.Abs(base)
		}
		problem = fmt.Errorf("%s cannot enter %s: %w", a, base, problem)
	}
	return "", fmt.Errorf("no folder to keep the download in: %w", problem)
}

// lockCache waits for other processes that download the same version.
func lockCache(ctx context.Context, path string) (unlock func(), err error) {
	lock, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600) //nolint:gosec // our own cache
	if err != nil {
		return nil, fmt.Errorf("lock the cache: %w", err)
	}
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
			return func() { _ = lock.Close() }, nil
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("lock the cache: %w", context.Cause(ctx)), lock.Close())
		case <-tick.C:
		}
	}
}
