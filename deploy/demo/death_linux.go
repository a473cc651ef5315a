package main

import "syscall"

// dieWithParent has the kernel kill the process when this one dies, however that happens.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
