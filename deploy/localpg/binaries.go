package localpg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// oldestMajor is the oldest Postgres that chargeonce is tested with.
const oldestMajor = 14

// locate finds a folder with initdb and postgres side by side: the given one, else the first usable one of localDirs,
// else a download.
func locate(ctx context.Context, cfg Config, a *account, localDirs []string, log *slog.Logger) (string, error) {
	if cfg.BinDir != "" {
		dir, err := usable(ctx, cfg.BinDir, a)
		if err != nil {
			return "", &BinDirError{Dir: cfg.BinDir, Err: err}
		}
		return dir, nil
	}
	seen := map[string]bool{}
	for _, candidate := range localDirs {
		dir, err := usable(ctx, candidate, a)
		if err == nil {
			return dir, nil
		}
		if !seen[candidate] && !errors.Is(err, os.ErrNotExist) {
			log.WarnContext(ctx, "passing over a Postgres that cannot be used", slog.String("bin_dir", candidate), slog.Any("error", err))
		}
		seen[candidate] = true
	}
	dir, err := fetch(ctx, cfg, a, log)
	if err != nil {
		return "", fmt.Errorf("there is no Postgres %d or newer on this machine and it could not be downloaded (%w): install it, with `apt-get install postgresql` on Debian and Ubuntu or `brew install postgresql@17` on macOS", oldestMajor, err)
	}
	return dir, nil
}

// BinDirError says why the folder given as Config.BinDir cannot be used; Start then has started nothing.
type BinDirError struct {
	Dir string
	Err error
}

func (e *BinDirError) Error() string {
	return fmt.Sprintf("programs of Postgres in %s: %v", e.Dir, e.Err)
}

func (e *BinDirError) Unwrap() error { return e.Err }

// localBinDirs lists where Postgres' programs may be: PATH in its order, then the folders of packages, newest first.
func localBinDirs() []string {
	var dirs []string
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if filepath.IsAbs(dir) {
			dirs = append(dirs, dir)
		}
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin",
		"/opt/homebrew/opt/postgresql@*/bin",
		"/usr/local/opt/postgresql@*/bin",
		"/usr/pgsql-*/bin",
		"/Applications/Postgres.app/Contents/Versions/*/bin",
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			continue // cannot happen: the patterns are constants
		}
		slices.SortFunc(found, func(a, b string) int { return cmp.Compare(pathVersion(b), pathVersion(a)) })
		dirs = append(dirs, found...)
	}
	return dirs
}

// pathVersion is the last number in a path, so that 9 sorts before 17.
func pathVersion(path string) int {
	numbers := regexp.MustCompile(`\d+`).FindAllString(path, -1)
	if len(numbers) == 0 {
		return 0
	}
	n, err := strconv.Atoi(numbers[len(numbers)-1])
	if err != nil {
		return 0
	}
	return n
}

// usable returns the folder where initdb really lies: on PATH it may be a link, and initdb looks for postgres beside
// itself. The version is asked as the account, which shows that the account may run it.
func usable(ctx context.Context, dir string, a *account) (string, error) {
	initdb, err := filepath.EvalSymlinks(filepath.Join(dir, "initdb"))
	if err != nil {
		return "", err
	}
	initdb, err = filepath.Abs(initdb)
	if err != nil {
		return "", err
	}
	dir = filepath.Dir(initdb)
	for _, program := range []string{"initdb", "postgres"} {
		major, err := majorVersion(ctx, filepath.Join(dir, program), a)
		if err != nil {
			return "", err
		}
		if major < oldestMajor {
			return "", fmt.Errorf("%s is version %d, older than %d", program, major, oldestMajor)
		}
	}
	return dir, nil
}

func majorVersion(ctx context.Context, program string, a *account) (int, error) {
	cmd := exec.CommandContext(ctx, program, "--version")
	cmd.Dir, cmd.Env = "/", programEnv()
	a.apply(cmd)
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("ask %s for its version as %s: %w", program, a, err)
	}
	// postgres (PostgreSQL) 17.5 (Debian 17.5-1)
	_, version, found := strings.Cut(string(out), "(PostgreSQL) ")
	digits := strings.IndexFunc(version, func(r rune) bool { return r < '0' || r > '9' })
	if !found || digits < 1 {
		return 0, fmt.Errorf("%s does not say a Postgres version: %.80q", program, out)
	}
	return strconv.Atoi(version[:digits])
}
