// Package solacetest stands in for a Solace PubSub+ broker: a server that speaks SMF over TCP or TLS, on which the real
// client binds to queues, with a ledger of every message and faults on demand.
//
// Config names the queues; Start serves them. What a client publishes is kept as it came, header parameters and payload,
// and goes on unchanged, so that every encoding a consumer meets is a real publisher's. PublishQueue and PublishTopic do
// without a client. Ledger, Queue and Violations say what happened; Inject, Hooks and FailOver make it happen.
//
// It stands for what a client sees of a broker: logins, binds, windows, acknowledgements, redelivery, hand-over, refusals,
// silence, and a mate that takes over. It proves nothing of a real broker's own doings: how long a fail-over takes and what
// it loses, partitioned queues, quotas, time to live, the eligibility rules of dead message queues, whether a late
// acknowledgement counts, and what OAuth and Kerberos check beyond a token's text.
package solacetest
