package main

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"chargeonce/deploy/daemon"
)

func TestFolderWithoutPostgresIsNotNamedAsTheFault(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	empty := t.TempDir()
	err := run(t.Context(), quiet(&out), &settings{Events: 100, Partitions: 2, BinDir: programs(t), PostgresBinDir: empty})
	setting, ok := errors.AsType[*daemon.SettingError](err)
	require.True(t, ok, "%v", err)
	require.ErrorContains(t, setting, "--postgres-bin-dir (LOCALPG_BIN_DIR) names "+empty+", which cannot be used (")
	require.ErrorContains(t, setting, "no such file or directory")
	require.NotContains(t, out.String(), "logs are kept")
}

func TestSummaryThatCannotBeWrittenIsFoundOutAtTheEnd(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte("kept"), 0o600))
	for path, problem := range map[string]string{
		filepath.Join(t.TempDir(), "absent", "demo.json"): "no such file or directory",
		filepath.Join(file, "demo.json"):                  "not a directory",
		t.TempDir():                                       "it is no regular file",
		"/proc/demo.json":                                 "", // for root too
	} {
		var out bytes.Buffer
		err := run(t.Context(), quiet(&out), &settings{Events: 100, Partitions: 2, BinDir: programs(t), JSON: path})
		setting, ok := errors.AsType[*daemon.SettingError](err)
		require.True(t, ok, "%s: %v", path, err)
		require.ErrorContains(t, setting, "--json (DEMO_JSON) names "+path+", which cannot be written ("+problem)
		require.Empty(t, out.String(), "something was started")
	}
}

func TestTrialOfTheSummarysFileChangesSomething(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "demo.json")
	require.NoError(t, os.WriteFile(file, []byte("yesterday's"), 0o600))
	for _, path := range []string{"", file, filepath.Join(dir, "new.json")} {
		require.NoError(t, (&settings{JSON: path}).checkJSON(), path)
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	content, err := os.ReadFile(file) //nolint:gosec // our own
	require.NoError(t, err)
	require.Equal(t, "yesterday's", string(content))
}

func TestFailedStartKeepsAFolderWithoutLogs(t *testing.T) {
	t.Parallel()
	for said, kept := range map[string]bool{"": false, "cannot work\n": true} {
		var out bytes.Buffer
		d, err := prepare(t.Context(), quiet(&out), &settings{Events: 100, Partitions: 2, BinDir: programs(t)})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, os.RemoveAll(d.dir)) })
		require.NoError(t, os.WriteFile(filepath.Join(d.dir, "once-migrate.log"), []byte(said), 0o600))
		failed := errors.New("no program started")
		require.ErrorIs(t, d.finish(t.Context(), failed), failed)
		if kept {
			require.Contains(t, out.String(), "logs are kept in "+d.dir)
			require.DirExists(t, d.dir)
			continue
		}
		require.NotContains(t, out.String(), "logs are kept")
		require.NoDirExists(t, d.dir)
	}
}

func quiet(out *bytes.Buffer) daemon.Env {
	return daemon.Env{Log: slog.New(slog.DiscardHandler), Stdout: out}
}

// programs is a folder in which all programs are to be found; none of them is started.
func programs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"migrate", "standin", "ingest-eventhubs", "charger"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o700)) //nolint:gosec // a program
	}
	return dir
}
