package file

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"unicode/utf8"
)

// Set is the files of one import, in their order.
type Set struct {
	files []*found
	// Left are the paths of files in folders that are not read, for their names are not those of files with events.
	Left []string
}

// found is one file.
type found struct {
	path  string // absolute and cleaned, or stdin
	size  int64  // in bytes; -1 when unknown
	once  bool   // a pipe: what was opened to look at it is what will be read
	input *os.File
	ready reader // of a pipe
}

// Stdin is the name of standard input among the paths.
const Stdin = "-"

// Find lists the files that the paths name, folders with all below them in the order of their names, each file once, and looks at the
// beginning of every one: an error here, such as ErrHeader or ErrNotCapture, says that the import could not be whole, before any of it
// is recorded. It is a *PathError.
func Find(paths []string, cfg Config) (*Set, error) {
	cfg = cfg.withDefaults()
	set := &Set{}
	seen := map[string]bool{}
	for _, path := range paths {
		files, left, err := list(path, cfg)
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			if !seen[f.path] {
				seen[f.path] = true
				set.files = append(set.files, f)
			}
		}
		set.Left = append(set.Left, left...)
	}
	for _, f := range set.files {
		if err := f.look(cfg); err != nil {
			return nil, &PathError{f.path, err}
		}
	}
	return set, nil
}

// PathError says which file cannot be imported, and why.
type PathError struct {
	Path string
	Err  error
}

func (e *PathError) Error() string { return e.Path + ": " + e.Err.Error() }

func (e *PathError) Unwrap() error { return e.Err }

// Files is how many there are.
func (s *Set) Files() int { return len(s.files) }

func (s *Set) hasPipe() bool {
	return slices.ContainsFunc(s.files, func(f *found) bool { return f.once })
}

// Bytes is how large they are together; false when that is unknown, as of a pipe.
func (s *Set) Bytes() (int64, bool) {
	total := int64(0)
	for _, f := range s.files {
		if f.size < 0 {
			return 0, false
		}
		total += f.size
	}
	return total, true
}

func list(path string, cfg Config) (files []*found, left []string, err error) {
	if path == Stdin {
		return []*found{{path: "stdin", size: -1, once: true, input: os.Stdin}}, nil, nil
	}
	path, err = filepath.Abs(path)
	if err != nil {
		return nil, nil, &PathError{path, err}
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, &PathError{path, reason(err)}
	}
	if !info.IsDir() {
		return []*found{newFound(path, info)}, nil, nil
	}
	root := path
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return &PathError{path, reason(err)}
		}
		name := entry.Name()
		hidden := strings.HasPrefix(name, ".")
		switch {
		case entry.IsDir() && hidden && path != root:
			left = append(left, path) // such as a file server's copies of everything
			return fs.SkipDir
		case entry.IsDir():
			return nil
		}
		info, err := os.Stat(path) // a link counts as the file that it leads to
		if err != nil {
			return &PathError{path, reason(err)}
		}
		if !info.Mode().IsRegular() || hidden || (cfg.Format == FormatAuto && !takes(name)) {
			left = append(left, path)
			return nil
		}
		files = append(files, newFound(path, info))
		return nil
	})
	return files, left, err
}

func newFound(path string, info fs.FileInfo) *found {
	f := &found{path: path, size: info.Size()}
	if !info.Mode().IsRegular() {
		f.size, f.once = -1, true
	}
	return f
}

// reason is the system's word without the path, which is said already.
func reason(err error) error {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		return pathErr.Err
	}
	return err
}

// look reads the beginning of a file. A pipe can be opened once alone.
func (f *found) look(cfg Config) error {
	var ignored atomic.Int64
	r, file, err := f.open(cfg, &ignored)
	if err != nil {
		return err
	}
	if f.once {
		f.ready, f.input = r, file
		return nil
	}
	return file.Close()
}

// open returns the file's reader; the bytes that it takes are added to read.
func (f *found) open(cfg Config, read *atomic.Int64) (reader, *os.File, error) {
	if f.ready != nil {
		return f.ready, f.input, nil
	}
	file := f.input
	if file == nil {
		var err error
		if file, err = os.Open(f.path); err != nil {
			return nil, nil, reason(err)
		}
	}
	r, err := newReader(f.path, file, cfg, read)
	if err != nil {
		_ = file.Close() // nothing was written
		return nil, nil, err
	}
	return r, file, nil
}

// newReader takes the content of the file of that path apart.
func newReader(path string, content io.Reader, cfg Config, read *atomic.Int64) (r reader, err error) {
	in, err := newInput(content, read)
	if err != nil {
		return nil, err
	}
	format := cfg.Format
	if detected, err := detect(path, in); detected == formatEmpty {
		format = formatEmpty
	} else if format == FormatAuto {
		if err != nil {
			return nil, err
		}
		format = detected
	}
	switch format {
	case FormatNDJSON:
		r = &ndjson{in: in, limit: cfg.MaxBodyBytes}
	case FormatJSON:
		r = &jsonValues{in: in, limit: cfg.MaxBodyBytes}
	case FormatCSV:
		if cfg.CSVDelimiter == 0 {
			cfg.CSVDelimiter = ','
			if ending(path) == ".tsv" {
				cfg.CSVDelimiter = '\t'
			}
		}
		r, err = newCSV(in, &cfg)
	case FormatCapture:
		r, err = newCapture(path, in)
	case formatEmpty:
		r = &brokenFile{}
	case FormatAuto:
		err = ErrNoFormat
	default:
		err = fmt.Errorf("format %q is none of auto, ndjson, json, csv, avro", format)
	}
	if err != nil {
		return nil, err
	}
	return &placed{reader: r, path: positionOf(path), format: format}, nil
}

// maxPathBytes bounds a path in a position, in bytes: the database takes 1,000 characters, and the place follows.
const maxPathBytes = 900

// positionOf is the path as positions name it. One that is too long or no text is shortened to its end, and told apart by its hash.
func positionOf(path string) string {
	if len(path) <= maxPathBytes && utf8.ValidString(path) && !strings.Contains(path, "\x00") {
		return path
	}
	sum := sha256.Sum256([]byte(path))
	end := strings.ToValidUTF8(path[max(0, len(path)-maxPathBytes/2):], "\uFFFD")
	return "sha256:" + hex.EncodeToString(sum[:8]) + "..." + end
}

// placed completes the records of a file.
type placed struct {
	reader
	path   string
	format Format
}

func (p *placed) next() (record, error) {
	r, err := p.reader.next()
	if err != nil {
		return r, err
	}
	if r.Unreadable != nil && len(r.Body) == 0 {
		r.Body = []byte(p.path) // quarantined events are told apart by their bytes
	}
	r.Partition = string(p.format)
	r.Position = p.path + r.Position
	return r, nil
}
