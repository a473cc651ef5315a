package schema

import "fmt"

// maxNamespaceBytes bounds a namespace, in bytes.
const maxNamespaceBytes = 63

// CheckNamespace reports why ns cannot name a business stream: it must match
// [a-z0-9][a-z0-9-]{0,62}. The alphabet leaves out ':', which separates the parts of a key.
func CheckNamespace(ns string) error {
	if ns == "" {
		return fmt.Errorf("namespace is empty: name the business stream, such as usage-billing")
	}
	if len(ns) > maxNamespaceBytes {
		return fmt.Errorf("namespace has %d bytes, at most %d are allowed", len(ns), maxNamespaceBytes)
	}
	for i := range len(ns) {
		c := ns[i]
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
		case c == '-' && i > 0:
		default:
			return fmt.Errorf("namespace %q: byte %d is not allowed, use a-z, 0-9 and, after the first, '-'", ns, i+1)
		}
	}
	return nil
}
