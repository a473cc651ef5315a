package file_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"chargeonce/ingest"
	"chargeonce/ingest/file"
	"chargeonce/ingest/file/filetest"
	"chargeonce/ingest/sourcetest"
)

func TestConformanceOfLines(t *testing.T) {
	t.Parallel()
	sourcetest.Run(t, file.SourceName, func(t *testing.T) sourcetest.Broker {
		t.Helper()
		return &lineBroker{folder{dir: t.TempDir()}}
	})
}

func TestConformanceOfCapture(t *testing.T) {
	t.Parallel()
	sourcetest.Run(t, file.SourceName, func(t *testing.T) sourcetest.Broker {
		t.Helper()
		return &captureBroker{folder: folder{dir: t.TempDir()}}
	})
}

// folder is what files appear in, as those of Capture do in a container.
type folder struct {
	dir string
	mu  sync.Mutex
	n   int
}

// add writes a file that appears at once and whole.
func (f *folder) add(t *testing.T, ending string, content []byte) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n++
	name := filepath.Join(f.dir, fmt.Sprintf("%06d", f.n))
	require.NoError(t, os.WriteFile(name+".part", content, 0o600))
	require.NoError(t, os.Rename(name+".part", name+ending))
}

// Redeliver has nothing to do: each run reads all files again.
func (f *folder) Redeliver(*testing.T, *pgxpool.Pool) {}

// RunSource imports each file once.
func (f *folder) RunSource(ctx context.Context, recorder *ingest.Recorder, _ *pgxpool.Pool, _ *slog.Logger) error {
	cfg := file.Config{StopGrace: time.Second}
	importer, err := file.New(cfg, recorder)
	if err != nil {
		return err
	}
	done := map[string]bool{}
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for {
		paths, err := filepath.Glob(filepath.Join(f.dir, "*.[na]*"))
		if err != nil {
			return err
		}
		paths = slices.DeleteFunc(paths, func(path string) bool { return done[path] })
		set, err := file.Find(paths, cfg)
		if err != nil {
			return err
		}
		report, err := importer.Import(ctx, set)
		switch {
		case errors.Is(err, context.Canceled) || (err != nil && ctx.Err() != nil):
			return nil
		case err != nil:
			return err
		case !report.Complete:
			return errors.New("an import without error was not whole")
		}
		for _, path := range paths {
			done[path] = true
		}
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
		}
	}
}

type lineBroker struct{ folder }

func (b *lineBroker) Timeless() {}

func (b *lineBroker) Publish(t *testing.T, bodies ...string) {
	t.Helper()
	var content []byte
	for _, body := range bodies {
		if body == "" {
			body = `""` // a line that is blank is none
		}
		content = append(append(content, body...), '\n')
	}
	b.add(t, ".ndjson", content)
}

type captureBroker struct {
	folder
	sequence int64
}

func (b *captureBroker) Publish(t *testing.T, bodies ...string) {
	t.Helper()
	events := make([]filetest.Event, len(bodies))
	for i, body := range bodies {
		events[i] = filetest.Event{SequenceNumber: b.sequence, Offset: fmt.Sprint(b.sequence * 100), Enqueued: time.Now(), Body: []byte(body)}
		b.sequence++
	}
	content, err := filetest.Capture([]string{"null", "deflate", "snappy", "zstandard"}[b.sequence%4], 30, events...)
	require.NoError(t, err)
	b.add(t, ".avro", content)
}
