//go:build cgo

package solace

// The C library frees a flow without waiting for the calls that use it, and the Go client lets that happen: it destroys flow and
// connection from goroutines of its own as soon as the broker has taken the queue away or is gone, whatever other goroutines are doing
// with them (pubsubplus-go-client 1.10.0, unsolicitedTermination and downEventHandler). A call that is overtaken so, be it an
// acknowledgement or the start of a flow, reads freed memory: it kills the process or never returns.
//
// No order of our own calls prevents it, for the client does not ask before it destroys. So the linker puts guard_linux.c between the
// client and these functions of the library: the end of a flow waits for the calls that use it, and later calls are refused. Elsewhere
// than on Linux, where only developers run this, there is no guard.

// #cgo LDFLAGS: -Wl,--wrap=solClient_session_createFlow -Wl,--wrap=solClient_session_destroy -Wl,--wrap=solClient_flow_destroy
// #cgo LDFLAGS: -Wl,--wrap=solClient_flow_start -Wl,--wrap=solClient_flow_stop -Wl,--wrap=solClient_flow_settleMsg
import "C"
