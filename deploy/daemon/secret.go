package daemon

import (
	"fmt"
	"io"
	"log/slog"
)

// Secret is a setting that no log, error or JSON shows. With the kong tag env:"NAME" it can also be given as NAME_FILE,
// the path of a file with the secret and at most one line end. Keep it in exported fields, and never as the key of
// a map: fmt does not ask the methods of unexported fields, nor encoding/json those of keys.
type Secret string

const redacted = "[redacted]"

// Reveal returns the secret itself, for the one place that must have it.
func (s Secret) Reveal() string { return string(s) }

// String hides the secret; an empty one stays visible as empty, which is what one looks for when it is missing.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return redacted
}

// Format hides the secret under every verb of fmt, %#v, %x and %d too.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// LogValue hides the secret from slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText hides the secret from encoders that ask for text.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalJSON hides the secret from JSON.
func (s Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + s.String() + `"`), nil }
