package stripecharge

import "context"

// Listed is the evidence of a complete look-up: how much was read, and the request ids by which Stripe can be asked about it.
type Listed struct {
	PaymentIntents   int    `json:"payment_intents"` // of the customer, whoever's
	Charges          int    `json:"charges"`
	IntentsRequestID string `json:"payment_intents_request_id"` // of the last page
	ChargesRequestID string `json:"charges_request_id"`
}

// LookUpListed is LookUp that also says what it read, for a decision that has to be defended later.
func (c *Client) LookUpListed(ctx context.Context, q LookUp) (Found, Listed, Answer) {
	if err := q.check(); err != nil {
		return Found{}, Listed{}, refusedHere(OpLookUp, err)
	}
	intents, answer := c.list(ctx, "/v1/payment_intents", "data.latest_charge", q)
	if answer.Class != ClassAnswered {
		return Found{}, Listed{}, answer
	}
	listed := Listed{PaymentIntents: len(intents), IntentsRequestID: answer.RequestID}
	charges, answer := c.list(ctx, "/v1/charges", "", q)
	if answer.Class != ClassAnswered {
		return Found{}, listed, answer
	}
	listed.Charges, listed.ChargesRequestID = len(charges), answer.RequestID
	return q.pick(intents, charges), listed, answer
}
