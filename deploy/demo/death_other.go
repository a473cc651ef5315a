//go:build !linux

package main

import "syscall"

// dieWithParent can do nothing where there is no parent-death signal: there the processes outlive a kill -9 of this one.
func dieWithParent(*syscall.SysProcAttr) {}
