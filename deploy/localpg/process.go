package localpg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	shell = "/bin/sh"

	// logTailBytes of the server's log go into an error.
	logTailBytes = 2048
	// killTimeout bounds the wait for processes that got SIGKILL.
	killTimeout = 10 * time.Second
)

// gateScript waits for one line before it becomes the program. So the keeper knows the process id before the program
// does anything, and an owner killed in between starts nothing: the gate then reads end of file.
const gateScript = `read -r go <&3 || exit 1; exec "$@" 3<&-`

// keeperScript ends the server and removes the temporary folder after its owner died, which it learns from the end of
// its standard input: the kernel closes the owner's end of the pipe however the owner dies. (The parent-death signal of
// Linux would fire when the starting *thread* ends, which Go's scheduler does at will, and macOS has none.)
const keeperScript = `pid=
while read -r verb arg; do
  case $verb in
    watch) pid=$arg ;;
    forget) pid= ;;
    done) exit 0 ;;
  esac
done
if [ -n "$pid" ]; then
  kill -s "$1" -- "-$pid"
  n=0 # tenths of a second
  while kill -0 "$pid" && [ "$n" -lt 100 ]; do sleep 0.1; n=$((n + 1)); done
  kill -s KILL -- "-$pid"
fi
if [ -n "$2" ]; then rm -rf -- "$2"; fi
`

// process is a started initdb or postmaster. err may be read after done is closed.
type process struct {
	pid     int
	done    chan struct{}
	err     error
	logPath string
	logFrom int64
}

// spawn starts a program of binDir under the keeper's eye, as the service account, in a session of its own so that
// Ctrl-C in a terminal does not reach it.
func (s *Server) spawn(ctx context.Context, program string, args ...string) (*process, error) {
	p := &process{done: make(chan struct{}), logPath: filepath.Join(s.dir, "postgres.log")}
	log, err := os.OpenFile(p.logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the server's log: %w", err)
	}
	defer log.Close()
	if p.logFrom, err = log.Seek(0, io.SeekEnd); err != nil {
		return nil, fmt.Errorf("open the server's log: %w", err)
	}
	gateRead, gateWrite, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	defer gateRead.Close()
	defer gateWrite.Close()

	argv := append([]string{"-c", gateScript, program, filepath.Join(s.binDir, program)}, args...)
	cmd := exec.CommandContext(context.WithoutCancel(ctx), shell, argv...) //nolint:gosec // our own arguments
	cmd.Dir, cmd.Env = s.dir, programEnv()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{gateRead}
	s.account.apply(cmd)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	p.pid = cmd.Process.Pid
	s.keeper.tell("watch " + strconv.Itoa(p.pid))
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	if _, err := gateWrite.WriteString("go\n"); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", program, err), p.killTree())
	}
	return p, nil
}

// programEnv leaves out PG* variables, which would change what initdb and postgres do.
func programEnv() []string {
	env := []string{"LC_ALL=C", "PATH=" + os.Getenv("PATH")}
	if path, ok := os.LookupEnv("LD_LIBRARY_PATH"); ok {
		env = append(env, "LD_LIBRARY_PATH="+path)
	}
	return env
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// wait reports whether the process ended before ctx did.
func (p *process) wait(ctx context.Context) bool {
	select {
	case <-p.done:
		return true
	case <-ctx.Done():
		return p.ended()
	}
}

func (p *process) signal(sig syscall.Signal) {
	if !p.ended() {
		_ = syscall.Kill(p.pid, sig)
	}
}

// killTree kills the process and its children with SIGKILL. The parent is stopped first, so that it neither forks nor
// reaps while the children are counted. Where there is no /proc, backends notice by themselves that the postmaster died.
func (p *process) killTree() error {
	p.signal(syscall.SIGSTOP)
	children := childrenOf(p.pid)
	p.signal(syscall.SIGKILL)
	for _, pid := range append(children, -p.pid) { // initdb's helpers share its process group
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(killTimeout):
		return fmt.Errorf("process %d did not end within %s of SIGKILL", p.pid, killTimeout)
	}
}

func childrenOf(parent int) []int {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil
	}
	var pids []int
	for _, path := range stats {
		content, err := os.ReadFile(path) //nolint:gosec // /proc
		if err != nil {
			continue // ended meanwhile
		}
		// pid (name) state ppid ...; the name may hold anything, brackets too.
		_, rest, _ := strings.Cut(string(content[bytes.LastIndexByte(content, ')')+1:]), " ")
		fields := strings.Fields(rest)
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err == nil && len(fields) > 1 && fields[1] == strconv.Itoa(parent) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// logTail is the end of what the process itself wrote.
func (p *process) logTail() string {
	log, err := os.Open(p.logPath)
	if err != nil {
		return "no log: " + err.Error()
	}
	defer log.Close()
	from := p.logFrom
	if info, err := log.Stat(); err == nil {
		from = max(from, info.Size()-logTailBytes)
	}
	tail, err := io.ReadAll(io.NewSectionReader(log, from, logTailBytes))
	if err != nil {
		return "no log: " + err.Error()
	}
	return strings.TrimSpace(string(tail))
}

// keeper is the small shell process that outlives us for as long as it takes to clean up.
type keeper struct {
	cmd *exec.Cmd

	mu   sync.Mutex
	pipe *os.File
}

func startKeeper(ctx context.Context, temporary bool, dir string) (*keeper, error) {
	sig, remove := "INT", ""
	if temporary {
		sig, remove = "QUIT", dir
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start the keeper: %w", err)
	}
	defer read.Close()
	cmd := exec.CommandContext(context.WithoutCancel(ctx), shell, "-c", keeperScript, "localpg-keeper", sig, remove)
	cmd.Dir, cmd.Env, cmd.Stdin = "/", programEnv(), read
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start the keeper: %w", err), write.Close())
	}
	return &keeper{cmd: cmd, pipe: write}, nil
}

// tell ignores errors: they mean that somebody killed the keeper, and the server can be used without one.
func (k *keeper) tell(line string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, _ = k.pipe.WriteString(line + "\n")
}

func (k *keeper) dismiss() error {
	k.tell("done")
	var exit *exec.ExitError
	if err := k.cmd.Wait(); err != nil && !errors.As(err, &exit) {
		return fmt.Errorf("dismiss the keeper: %w", err)
	}
	return k.pipe.Close()
}
