package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// stopGrace is what a program gets to end after SIGTERM, then SIGKILL.
	stopGrace = 10 * time.Second
	// startGrace is what a program gets until it listens; two busy cores are slow.
	startGrace = 60 * time.Second
	logPoll    = 20 * time.Millisecond
	// tailLines of a failed program's log are shown.
	tailLines = 15
	// maxLogBytes are read of a log to find a line in it.
	maxLogBytes = 1 << 20
)

// start starts a program in a process group of its own, so that a Ctrl-C in the terminal reaches this process alone, which
// ends the others in order. What the program writes goes to its log file.
func (f *fleet) start(s spec) (*program, error) {
	path := filepath.Join(f.binDir, s.program)
	log, err := os.OpenFile(filepath.Join(f.dir, s.name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", s.name, err)
	}
	defer log.Close()
	from, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", s.name, err)
	}
	cmd := exec.Command(path, s.args...) //nolint:gosec,noctx // G204: our own programs; they are ended by stop, in order
	cmd.Env = append(ownEnv(), s.env...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = f.dir, log, log
	if s.input != "" {
		input, err := os.Open(s.input)
		if err != nil {
			return nil, fmt.Errorf("open the input of %s: %w", s.name, err)
		}
		defer input.Close()
		cmd.Stdin = input
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)
	if err := f.forker.start(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", s.name, err)
	}
	p := &program{spec: s, cmd: cmd, logPath: log.Name(), logFrom: from, done: make(chan struct{})}
	f.mu.Lock()
	f.running = append(f.running, p)
	f.mu.Unlock()
	go f.watch(p)
	return p, nil
}

// spec says which program to start, and how.
type spec struct {
	name    string // of the log file
	program string
	args    []string
	env     []string
	input   string // file with its standard input
	// last: it is ended after the others, which use it.
	last bool
}

// fleet is the processes of the demonstration. Its methods may be called from any goroutine.
type fleet struct {
	dir, binDir string
	forker      *forker
	// onEnd is told when a program ends that nobody ended.
	onEnd func(error)

	mu      sync.Mutex
	running []*program
}

// program is one process. err may be read after done is closed.
type program struct {
	spec
	cmd     *exec.Cmd
	logPath string
	logFrom int64 // where this process's own lines begin
	done    chan struct{}
	err     error

	mu    sync.Mutex
	ended bool // by us
}

// findPrograms returns the folder in which all programs are, or says what is missing.
func findPrograms(dir string, names ...string) (string, error) {
	if dir == "" {
		self, err := os.Executable()
		if err != nil {
			return "", fmt.Errorf("find the folder of the programs: %w", err)
		}
		dir = filepath.Dir(self)
	}
	var missing []string
	for _, name := range names {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return "", fmt.Errorf("%w in %s: %s", errMissing, dir, strings.Join(missing, ", "))
	}
	return filepath.Abs(dir)
}

var errMissing = errors.New("programs are missing")

// ownEnv leaves out the user's own settings: a DATABASE_URL of the shell must not lead the demonstration to a real database.
func ownEnv() []string {
	var env []string
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "LANG", "TZ", "GOCOVERDIR", "GOMAXPROCS"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return append(env, "LOG_FORMAT=json")
}

func (f *fleet) watch(p *program) {
	p.err = p.cmd.Wait()
	f.mu.Lock()
	f.running = slices.DeleteFunc(f.running, func(r *program) bool { return r == p })
	f.mu.Unlock()
	close(p.done)
	if !p.endedByUs() && !p.once() {
		f.onEnd(&endedError{p.name, p.err, p.tail()})
	}
}

// endedError is a program that should still be running.
type endedError struct {
	name string
	err  error
	tail string
}

func (e *endedError) Error() string {
	how := "exit code 0"
	if e.err != nil {
		how = e.err.Error()
	}
	return fmt.Sprintf("%s ended by itself (%s)", e.name, how)
}

// runOnce runs a program to its end and returns what it wrote to its log.
func (f *fleet) runOnce(ctx context.Context, s spec) (string, error) {
	s.name = "once-" + s.name
	p, err := f.start(s)
	if err != nil {
		return "", err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		p.signal(syscall.SIGKILL)
		<-p.done
		return "", context.Cause(ctx)
	}
	if p.err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", s.program, strings.Join(s.args, " "), p.err, p.tail())
	}
	return strings.TrimSpace(string(p.log())), nil
}

func (p *program) once() bool { return strings.HasPrefix(p.name, "once-") }

// await returns what the first line that matches the pattern shows in its first group, once the program writes it.
func (p *program) await(ctx context.Context, pattern string) (string, error) {
	line := regexp.MustCompile(pattern)
	ctx, cancel := context.WithTimeoutCause(ctx, startGrace, fmt.Errorf("%s did not get ready within %s", p.name, startGrace))
	defer cancel()
	tick := time.NewTicker(logPoll)
	defer tick.Stop()
	for {
		ended := p.isDone()
		if found := line.FindSubmatch(p.log()); found != nil {
			return string(found[1]), nil
		}
		if ended {
			return "", &endedError{p.name, p.err, p.tail()}
		}
		select {
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-tick.C:
		}
	}
}

func (p *program) isDone() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// log is what this process wrote, or its beginning.
func (p *program) log() []byte {
	file, err := os.Open(p.logPath)
	if err != nil {
		return nil
	}
	defer file.Close()
	content, err := io.ReadAll(io.NewSectionReader(file, p.logFrom, maxLogBytes))
	if err != nil {
		return nil
	}
	return content
}

// tail is the end of what this process wrote.
func (p *program) tail() string {
	file, err := os.Open(p.logPath)
	if err != nil {
		return err.Error()
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err.Error()
	}
	from := max(p.logFrom, info.Size()-maxLogBytes)
	content, err := io.ReadAll(io.NewSectionReader(file, from, maxLogBytes))
	if err != nil {
		return err.Error()
	}
	lines := bytes.Split(bytes.TrimSpace(content), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-tailLines):], []byte("\n")))
}

func (p *program) endedByUs() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}

func (p *program) signal(sig syscall.Signal) {
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	if !p.isDone() {
		_ = p.cmd.Process.Signal(sig) // it may just have ended
	}
}

// kill is kill -9, and returns when the process is gone.
func (p *program) kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

// stop ends the program with SIGTERM, or SIGKILL when it takes longer than grace; anything but exit code 0 is an error.
func (p *program) stop(grace time.Duration) error {
	p.signal(syscall.SIGTERM)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		p.kill()
		return fmt.Errorf("%s did not end within %s of SIGTERM", p.name, grace)
	}
	if p.err != nil {
		return fmt.Errorf("%s did not end in good order: %w", p.name, p.err)
	}
	return nil
}

// stopAll ends every program, what others use after those.
func (f *fleet) stopAll(grace time.Duration) error {
	var failed error
	for _, last := range []bool{false, true} {
		f.mu.Lock()
		now := slices.DeleteFunc(slices.Clone(f.running), func(p *program) bool { return p.last != last })
		f.mu.Unlock()
		errs := make([]error, len(now))
		var wg sync.WaitGroup
		for i, p := range now {
			wg.Go(func() { errs[i] = p.stop(grace) })
		}
		wg.Wait()
		failed = errors.Join(failed, errors.Join(errs...))
	}
	f.forker.close()
	return failed
}

// wroteNothing is true when all logs are empty.
func (f *fleet) wroteNothing() bool {
	entries, err := os.ReadDir(f.dir)
	return err == nil && !slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		info, err := e.Info()
		return err != nil || info.Size() > 0
	})
}

// forker starts all processes from one thread that lives as long as this process: Linux sends the parent-death signal when
// the starting *thread* ends, which Go's scheduler does at will with any other.
type forker struct {
	jobs chan forkJob
}

type forkJob struct {
	cmd  *exec.Cmd
	done chan error
}

func newForker() *forker {
	f := &forker{jobs: make(chan forkJob)}
	go func() {
		runtime.LockOSThread() // never unlocked: the thread must not be lent to others, nor end before close
		for job := range f.jobs {
			job.done <- job.cmd.Start()
		}
	}()
	return f
}

func (f *forker) start(cmd *exec.Cmd) error {
	done := make(chan error, 1)
	f.jobs <- forkJob{cmd, done}
	return <-done
}

// close ends the thread; processes that still run are killed by that on Linux.
func (f *forker) close() { close(f.jobs) }
