package localpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is whom Postgres runs as; nil means ourselves. initdb and postgres refuse root.
type account struct {
	name     string
	uid, gid uint32
}

// serviceAccount is nil unless we are root. It tries the account out, because in some containers and user namespaces
// root may not become anybody else.
func serviceAccount(ctx context.Context) (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil //nolint:nilnil // nil is the account "ourselves"
	}
	problem := errors.New("there is neither a user postgres nor nobody")
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
		if uidErr != nil || gidErr != nil || uid == 0 {
			continue
		}
		a := &account{name: name, uid: uint32(uid), gid: uint32(gid)}
		cmd := exec.CommandContext(ctx, shell, "-c", ":")
		cmd.Dir = "/"
		a.apply(cmd)
		if problem = cmd.Run(); problem == nil {
			return a, nil
		}
	}
	return nil, fmt.Errorf("initdb and postgres refuse to run as root and this process cannot change to another user (%w): run it as an ordinary user", problem)
}

// apply puts cmd into a session of its own, as the account.
func (a *account) apply(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if a != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
	}
}

func (a *account) own(path string) error {
	if a == nil {
		return nil
	}
	if err := os.Lchown(path, int(a.uid), int(a.gid)); err != nil {
		return fmt.Errorf("hand %s to user %s: %w", path, a.name, err)
	}
	return nil
}

// check runs the shell test script as the account with path as $1.
func (a *account) check(ctx context.Context, script, path string) error {
	cmd := exec.CommandContext(ctx, shell, "-c", script, "check", path) //nolint:gosec // our own script
	cmd.Dir = "/"
	a.apply(cmd)
	return cmd.Run()
}

func (a *account) String() string {
	if a == nil {
		return "this user"
	}
	return "user " + a.name
}

// makeFolder makes the server's folder and hands it to the account. A folder given by the user is only taken when it is
// new, empty or ours, because its owner changes.
func makeFolder(ctx context.Context, given string, a *account) (string, error) {
	if given == "" {
		return makeTemporaryFolder(ctx, a)
	}
	dir, err := filepath.Abs(given)
	if err != nil {
		return "", fmt.Errorf("folder %s: %w", given, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make folder: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", fmt.Errorf("folder %s: %w", dir, err)
	}
	if len(entries) > 0 {
		if _, err := os.Stat(filepath.Join(dir, lockName)); err != nil {
			return "", fmt.Errorf("folder %s holds other files: give a new or empty folder", dir)
		}
	}
	if err := a.own(dir); err != nil {
		return "", err
	}
	if a.check(ctx, canWrite, dir) != nil {
		return "", fmt.Errorf("%s cannot reach or write folder %s: choose one whose parents it may enter, such as one under /var/lib or /tmp", a, dir)
	}
	return dir, nil
}

const canWrite = `cd -- "$1" && test -w .`

// makeTemporaryFolder passes over a TMPDIR that the account cannot enter, such as one in root's home.
func makeTemporaryFolder(ctx context.Context, a *account) (string, error) {
	var errs []error
	for _, base := range []string{os.TempDir(), "/tmp", "/var/tmp"} {
		dir, err := os.MkdirTemp(base, "localpg-")
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if err = a.own(dir); err == nil {
			if err = a.check(ctx, canWrite, dir); err == nil {
				return filepath.Abs(dir)
			}
		}
		errs = append(errs, fmt.Errorf("%s cannot use %s: %w", a, base, err), os.Remove(dir))
	}
	return "", fmt.Errorf("no temporary folder for Postgres: %w", errors.Join(errs...))
}

const lockName = "localpg.lock"

// lockFolder keeps two owners off one folder; the kernel drops the lock with its owner.
func lockFolder(dir string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR, 0o600) //nolint:gosec // our own folder
	if err != nil {
		return nil, fmt.Errorf("lock folder: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("folder %s is in use by another running localpg: %w", dir, err), lock.Close())
	}
	return lock, nil
}
