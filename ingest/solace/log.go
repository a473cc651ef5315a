//go:build cgo

package solace

import (
	"context"
	"io"
	"log/slog"
	"regexp"
	"strings"

	"solace.dev/go/messaging/pkg/solace/logging"
)

// RouteLogs sends what the client library logs to logger: its errors as warnings, its warnings, which our own errors repeat, as debug.
// That setting is the whole process's. It is for the program to make, once, before the first connection.
func RouteLogs(logger *slog.Logger) {
	logging.SetLogLevel(logging.LogLevelWarning)
	logging.SetLogOutput(&logWriter{logger})
}

// logWriter takes one message of the library with each Write. It keeps to the first line, and of what the library says about the
// bytes of a message to where it was said: both can hold the text of customers' messages.
type logWriter struct {
	logger *slog.Logger
}

var _ io.Writer = (*logWriter)(nil)

// maxLogBytes bounds what is repeated of a message of the library.
const maxLogBytes = 400

// Write returns len(p) and nil always.
func (w *logWriter) Write(p []byte) (int, error) {
	line, _, _ := strings.Cut(string(p), "\n")
	if len(line) > maxLogBytes {
		line = strings.ToValidUTF8(line[:maxLogBytes], "") + "..."
	}
	level, text := split(line)
	slogLevel := slog.LevelDebug
	if level == "CRITICAL" || level == "ERROR" {
		slogLevel = slog.LevelWarn
	}
	if before, _, found := strings.Cut(text, aboutBytes); found {
		text = before + aboutBytes + ": something about the bytes of a message, which are left out"
	}
	w.logger.LogAttrs(context.Background(), slogLevel, "the client library says", slog.String("text", strings.TrimSpace(text)))
	return len(p), nil
}

// aboutBytes is the source file of the library whose messages show bytes in hexadecimal.
const aboutBytes = "solClientSmf.c"

// split finds the level in a line such as "2026/11/30 15:14:34 log.go:45: WARNING solClientSSL.c:619 ...".
func split(line string) (level, text string) {
	found := regexp.MustCompile(`\b(CRITICAL|ERROR|WARNING|INFO|DEBUG)\b:?\s?`).FindStringSubmatchIndex(line)
	if found == nil {
		return "", line
	}
	return line[found[2]:found[3]], line[found[1]:]
}
