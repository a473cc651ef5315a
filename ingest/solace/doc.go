// Package solace reads a durable queue of a Solace PubSub+ broker with Solace's own Go client and records what it delivers; each
// message is acknowledged after the transaction that recorded it has committed.
//
// The client is a C library behind cgo: without cgo this package is empty, so that everything else builds.
//
// # One connection at a time, ours to replace
//
// The client can reconnect by itself, and must not: when the broker refuses to bind the queue again after such a reconnect, the
// client notes it at debug level and goes on as connected and running, without a message for ever (pubsubplus-go-client 1.10.0,
// onFlowEvent, SolClientFlowEventBindFailedError). So its reconnection is off. A [Source] builds the connection and the flow, and on
// any trouble gives up both and builds them anew, for ever, after a pause with jitter. A flow that is silent for long is bound anew
// too, for the client can also lose the news of its end, when that comes while the flow starts.
//
// The client also frees what ends while calls still use it. guard_linux.go stands between it and its C library.
//
// # What an acknowledgement means
//
// The client sends acknowledgements up to a second later, and those under way are lost with the connection. The broker then delivers
// again what was recorded before. That is a redelivery: it is counted and adds nothing. Nothing is ever given back as failed, which
// would have the broker deliver it again at once, in a loop, nor rejected, which older brokers take as leave to delete it: what cannot
// become an intent is quarantined in Postgres and then acknowledged.
package solace
