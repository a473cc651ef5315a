// Package clienttest holds the tests of solacetest with the real client, which needs cgo; without cgo it is empty.
package clienttest
