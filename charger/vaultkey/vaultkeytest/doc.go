// Package vaultkeytest is a stand-in for a spend-cap proxy: it issues vault keys and forwards Stripe calls under their caps, and it misbehaves on demand.
//
// # Issuing
//
// All under the admin bearer key:
//
//	POST   /vault/keys             {"vendor":"stripe","label":...,"daily_usd_cap":13750.00 or "cap":...,"allowed_endpoints":[...],"expires_at":...}
//	GET    /vault/keys             every key, the secret shortened; GET /vault/keys/{id} one
//	DELETE /vault/keys/{id}        revokes; also POST /vault/keys/{id}/revoke
//	GET    /vault/audit            every decision; ?key_id=ID
//
// daily_usd_cap begins anew at midnight UTC of the movable clock; cap is for the key's whole life. Both are US dollars
// with at most two decimals. allowed_endpoints takes paths (/v1/charges, with everything below) and operations
// (charges.create, payment_intents.cancel, customers.retrieve, account.retrieve ...); an empty list allows everything.
//
// # Forwarding
//
// /v1/... and /stripe/v1/... go to Config.UpstreamURL with the vault key exchanged for Config.StripeKey and every other
// header, Idempotency-Key first of all, as it came. A create reserves its amount under the cap before it is sent, in one
// step with the check. The answer confirms the reservation, gives it back (decline, refusal, 429) or, when it says
// nothing (5xx, cut off), leaves it. An idempotency key that is known counts once, whatever is sent under it within its
// 24 hours. Reads and cancels are never refused for the cap. A call in another currency than usd is counted in its minor
// unit as if it were cents, refused or left uncounted, as Config.OtherCurrency says.
//
// # Denials
//
// Config.Denial, or a deny fault, picks the shape. The number is that of the reason unless the style names one.
//
//	style        cap reached  endpoint  revoked, expired  body
//	object_402   402          402       402               {"error":{"type":"spend_cap_exceeded","code":...,"message":...}}
//	flat         429          403       401               {"error":"text","policy":...}
//	flat_402     402          402       402               the same
//	flat_429     429          429       429               the same
//	flat_403     403          403       403               the same
//	flat_401     401          401       401               the same
//	empty        402          402       402               no body
//	html         402          402       402               an HTML page
//
// # Faults
//
//	action                 what the client sees                                       at Stripe
//	away                   the connection closed at once                              nothing sent
//	deny                   a denial in style for reason                               nothing sent
//	latency                everything later by delay                                  as usual
//	unavailable            status (default 503) HTML                                  nothing sent
//	drop_answer            the connection closed after Stripe answered                as usual
//	drop_idempotency_key   as usual                                                   sent without its key
//
// # Control pages
//
//	GET  /_standin/ledger   reservations, confirmations and releases in order, and what each key has left
//	POST /_standin/faults   [fault, ...] or {"faults":[...],"replace":true}; GET shows, DELETE ends them
//	POST /_standin/clock    {"advance":"7h"}
package vaultkeytest
