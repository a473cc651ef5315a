//go:build !cgo

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "publish-solace: this build has no Solace client, which is a C library: build it with CGO_ENABLED=1 and a C compiler")
	os.Exit(2)
}
