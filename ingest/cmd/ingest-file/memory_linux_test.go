package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"chargeonce/ingest/file/filetest"
	"chargeonce/sql/sqltest"
)

// TestMemoryDoesNotDependOnTheFile imports files that are large, and such as say that they are.
func TestMemoryDoesNotDependOnTheFile(t *testing.T) {
	t.Parallel()
	const size, maxResident, maxOfBlocks = 128 << 20, 128 << 20, 260 << 20
	mb := strings.Repeat("x", 1<<20-100)
	event := func(n int) string {
		return fmt.Sprintf(`{"customer_id":"cus_%d","billing_period":"2026-08","amount_cents":5,"note":"%s"}`, n, mb)
	}
	db := sqltest.New(t)
	for title, write := range map[string]func(w *bufio.Writer){ //nolint:paralleltest // one after the other: each writes 134 MB
		"one line": func(w *bufio.Writer) {
			for range size >> 20 {
				fmt.Fprint(w, mb)
			}
			fmt.Fprintf(w, "\n%s\n", event(0))
		},
		"an array of large elements": func(w *bufio.Writer) {
			fmt.Fprint(w, "[")
			for i := range size >> 20 {
				fmt.Fprint(w, event(i), ",")
			}
			fmt.Fprint(w, event(0), "]")
		},
		"an element without end": func(w *bufio.Writer) {
			fmt.Fprint(w, `[{"note":"`)
			for range size >> 20 {
				fmt.Fprint(w, mb)
			}
		},
		"a quote that is not closed": func(w *bufio.Writer) {
			fmt.Fprint(w, "customer_id,billing_period,amount_cents\n\"")
			for range size >> 20 {
				fmt.Fprint(w, mb, "\n")
			}
		},
		"a block that says it is large": func(w *bufio.Writer) {
			out := binary.AppendVarint(filetest.Header(filetest.CaptureSchema, "null"), 1<<40)
			_, _ = w.Write(binary.AppendVarint(out, 60<<20)) // a bufio.Writer keeps its error
			for range size >> 20 {
				fmt.Fprint(w, mb)
			}
		},
		"a block that swells": func(w *bufio.Writer) {
			swelling := make([]byte, size)
			content, err := filetest.AppendBlock(filetest.Header(filetest.CaptureSchema, "zstandard"), "zstandard", 1, swelling)
			require.NoError(t, err)
			_, _ = w.Write(content)
		},
	} {
		t.Run(title, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "events")
			ending := map[bool]string{true: ".csv", false: ".json"}[strings.Contains(title, "quote")]
			writeTo(t, path+ending, write)
			p := command(t, db.URL, "--json", path+ending)
			p.measureTo(path + ".kib")
			p.start(t)
			code := p.exit(t)
			require.LessOrEqual(t, code, 1, p.stderr)
			text, err := os.ReadFile(path + ".kib") //nolint:gosec // in the test's own folder
			require.NoError(t, err)
			var kib int64
			_, err = fmt.Sscan(string(text), &kib)
			require.NoError(t, err)
			t.Logf("%d MiB at the most", kib>>10)
			most := int64(maxResident)
			if strings.Contains(title, "block") {
				most = memoryFactor * maxOfBlocks // a block of 64 MiB is read, decompressed, and its buffers grow on the way
			}
			require.Less(t, kib<<10, most)
		})
	}
}

// measureTo makes p a process that runs the program in one of its own, and writes down the most memory that it had, in KiB. The program's
// own parent cannot be asked: what that had at the fork would count too.
func (p *program) measureTo(path string) {
	p.Env = append(p.Env, asMeasure+"="+path)
}

func measure(path string) {
	if err := os.Unsetenv(asMeasure); err != nil { // or the child would measure a child
		panic(err)
	}
	child, err := os.StartProcess("/proc/self/exe", os.Args, &os.ProcAttr{ //nolint:gosec // this very binary
		Env: os.Environ(), Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		panic(err)
	}
	state, err := child.Wait()
	if err != nil {
		panic(err)
	}
	usage, _ := state.SysUsage().(*syscall.Rusage)
	if err := os.WriteFile(path, fmt.Append(nil, usage.Maxrss), 0o600); err != nil { //nolint:gosec // named by the test
		panic(err)
	}
	os.Exit(state.ExitCode())
}
