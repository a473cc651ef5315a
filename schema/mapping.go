package schema

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Mapping tells where a foreign shape keeps the fields of a billing event: field name to JSON
// Pointer (RFC 6901), resolved on the object as delivered, for a CloudEvent on its whole envelope.
// A field without an entry is read from the top level under its own name.
type Mapping map[string]string

// maxPointerBytes bounds one pointer, in bytes; maxPointerSteps its reference tokens.
const (
	maxPointerBytes = 512
	maxPointerSteps = maxDepth
)

// ParseMapping reads settings such as "customer_id=/subject" and "amount_cents=/data/total".
func ParseMapping(settings []string) (Mapping, error) {
	m := make(Mapping, len(settings))
	for _, setting := range settings {
		target, pointer, found := strings.Cut(setting, "=")
		if !found {
			return nil, fmt.Errorf("mapping %q: write field=/pointer", cut(setting))
		}
		if _, repeated := m[target]; repeated {
			return nil, fmt.Errorf("mapping %q: field %s is mapped twice", cut(setting), target)
		}
		m[target] = pointer
	}
	if err := m.check(); err != nil {
		return nil, err
	}
	return m, nil
}

// Fingerprint returns 32 hex digits that are equal for equal mappings, whatever the order of the
// settings. The empty and the nil mapping share one.
func (m Mapping) Fingerprint() string {
	h := sha256.New()
	for _, line := range m.Settings() {
		// A pointer may contain anything, so every line carries its length.
		fmt.Fprintf(h, "%d:%s\n", len(line), line)
	}
	return hex.EncodeToString(h.Sum(nil)[:keyDigits/2])
}

// Settings writes the mapping as ParseMapping reads it, sorted by field.
func (m Mapping) Settings() []string {
	settings := make([]string, 0, len(m))
	for _, target := range slices.Sorted(maps.Keys(m)) {
		settings = append(settings, target+"="+m[target])
	}
	return settings
}

func (m Mapping) check() error {
	for _, target := range slices.Sorted(maps.Keys(m)) {
		if fieldIndex([]byte(target)) < 0 {
			return fmt.Errorf("mapping of %q: no such field, use one of %s", cut(target), strings.Join(Fields(), ", "))
		}
		if _, err := pointerSteps(m[target]); err != nil {
			return fmt.Errorf("mapping of %s to %q: %w", target, cut(m[target]), err)
		}
	}
	return nil
}

// pointerSteps splits a JSON Pointer into its unescaped reference tokens.
func pointerSteps(pointer string) ([]string, error) {
	if !strings.HasPrefix(pointer, "/") {
		return nil, fmt.Errorf("a JSON Pointer begins with '/'")
	}
	if len(pointer) > maxPointerBytes {
		return nil, fmt.Errorf("a pointer has at most %d bytes", maxPointerBytes)
	}
	steps := strings.Split(pointer[1:], "/")
	if len(steps) > maxPointerSteps {
		return nil, fmt.Errorf("a pointer has at most %d steps", maxPointerSteps)
	}
	for i, step := range steps {
		for j := range len(step) {
			if step[j] == '~' && (j+1 == len(step) || (step[j+1] != '0' && step[j+1] != '1')) {
				return nil, fmt.Errorf("'~' is written ~0 and '/' inside a name ~1")
			}
		}
		// ~1 first: the other order would read ~01 as '/'.
		steps[i] = strings.ReplaceAll(strings.ReplaceAll(step, "~1", "/"), "~0", "~")
	}
	return steps, nil
}
