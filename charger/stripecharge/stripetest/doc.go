// Package stripetest is a stand-in for Stripe's HTTP API that behaves: payments, idempotency keys, declines, lists, faults and a ledger of effects.
//
// Serve it in a test with Start, or mount New's Server in a program of its own. Clients talk to it as to Stripe: form
// bodies in, Stripe-shaped JSON out. It answers charges and payment intents (create, read, list; cancel for payment
// intents), and the reads of customers, the account and the balance.
//
// # Customers
//
// AddCustomer scripts a customer. With Config.AutoCustomers any cus_ id exists and its text says how its card behaves:
//
//	_decline_CODE       every payment is declined with that decline code, e.g. cus_7_decline_insufficient_funds_01
//	_nocard             no default payment method and no default source
//	_nosource           a default payment method only: payment intents work, charges answer 402 missing
//	_sca                the bank wants the cardholder: authentication_required
//	_processing         payments stay processing until the clock has moved by Config.ProcessingFor, then succeed
//	_processing_fails   the same, then fail
//	_missing            no such customer
//	anything else       succeeds
//
// A payment method or source whose id carries _decline_CODE or _sca behaves so for any customer.
//
// # Idempotency
//
// Keys belong to the account and mode. Kept and replayed: successes, declines, 500s and refusals raised while the
// endpoint ran (no such customer, amounts too small or large, a payment intent in the wrong state, a missing payment
// method). Not kept: 401, 403, 409, 429, and 400s about the parameters' form. A key is dropped 24 h after its first use
// (plus Config.PruneJitter) by the movable clock. Which 400s the real service keeps is not published; the split here is
// an assumption.
//
// # Faults
//
// AddFaults, or POST /_standin/faults, takes a script. Delay, header and should_retry go with any action. "Kept" says
// whether the answer is the one stored under the idempotency key; where it is not, a retry sees the real answer.
//
//	action               what the client sees                                            effect               kept
//	latency              the answer, after delay                                         yes                  yes
//	hold_before_effect   nothing until released or delay is over; meanwhile others get   on release; if the   as usual
//	                     409 idempotency_key_in_use; client gone: nothing happened       client left only
//	                                                                                     with effect=true
//	hold_after_effect    nothing until released or delay is over                         yes                  yes
//	close_before_effect  the connection closed                                           no                   no
//	close_after_effect   the connection closed before the head                           yes                  yes
//	reset_before_effect  the connection reset                                            no                   no
//	reset_after_effect   the connection reset before the head                            yes                  yes
//	cut_body             the head and half of the body                                   yes                  yes
//	rate_limit           429 rate_limit, Stripe-Rate-Limited-Reason from reason          no                   no
//	lock_timeout         429 lock_timeout                                                no                   no
//	key_in_use           409 idempotency_key_in_use                                      no                   no
//	api_error            500 api_error                                                   effect=true          the 500
//	api_error_late       500 api_error                                                   once the clock has   the 500
//	                                                                                     moved by after
//	bad_gateway          502 HTML from an intermediary                                   effect=true          true answer
//	unavailable          503 HTML from an intermediary                                   effect=true          true answer
//	gateway_timeout      504 HTML from an intermediary                                   effect=true          true answer
//	redirect             3xx (status, default 302) to location                           effect=true          true answer
//	empty_object         200 {}                                                          effect=true          true answer
//	wrong_object         the answer with another object and id                           yes                  true answer
//	wrong_amount         the answer with amount+1                                        yes                  true answer
//	alter                the answer with the fields of set overwritten                   yes                  true answer
//	unauthorized         401                                                             no                   no
//	forbidden            403                                                             no                   no
//	flat_denial          status (default 402) and {"error":"text"} without a request id  effect=true          true answer
//	answer               any status and body                                             effect=true          true answer
//	list_page_fails      500 on every page of a list but the first                       no                   no
//	date_skew            the answer with its Date header moved by skew                   yes                  yes
//
// # Control pages
//
//	GET  /_standin/ledger     ?summary=1, ?after=SEQ
//	GET  /_standin/requests   the request log and the counts
//	GET  /_standin/stats      the counts alone
//	POST /_standin/faults     [fault, ...] or {"faults":[...],"replace":true}; GET shows, DELETE ends them
//	POST /_standin/clock      {"advance":"25h"}; GET shows
//	GET  /_standin/held       ?wait=10s&n=1 waits (408 when in vain)
//	POST /_standin/release    {"request_ids":[...]}, or no body for all
//	POST /_standin/customers  {"id":"cus_1","decline":"do_not_honor"}
//	POST /_standin/account    {"id":"acct_other","livemode":true}: another account behind the same address
package stripetest
