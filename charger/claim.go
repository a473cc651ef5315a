package charger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"chargeonce/charger/stripecharge"
	"chargeonce/schema"
	"chargeonce/sql/queries"
)

// claimed is a claim that stands in the database: the right to make one call.
type claimed struct {
	queries.IntentClaimRow
	intent  queries.IntentForWorkRow
	op      stripecharge.Op
	access  *access
	request stripecharge.Request // the frozen one; of reads too, to hold their answers against
	// sendBefore is when the right to send lapses, by this process's clock: counted from before the claim was made, and so
	// before the lease that the database counts from during it.
	sendBefore time.Time
}

// errRefused says that the claim was refused: the intent, its run or the switch is not as it was read. Read again.
var errRefused = errors.New("claim refused")

// claim raises the intent's fencing number and writes the attempt, in one statement that is committed before any call. With
// the first send of a generation it also freezes the request.
func (w *worker) claim(ctx context.Context, jobID int64, intent queries.IntentForWorkRow, op stripecharge.Op, acc *access, request stripecharge.Request) (claimed, error) {
	began := time.Now()
	reason := intent.StatusReason
	if schema.Status(intent.Status) == schema.StatusPending || op == stripecharge.OpCreate {
		reason = string(schema.ReasonSent)
	}
	row, err := w.queries.IntentClaim(ctx, w.pool, queries.IntentClaimParams{
		Operation:       string(op),
		IdempotencyKey:  request.IdempotencyKey,
		RiverJobID:      &jobID,
		Worker:          w.cfg.ID,
		VaultKeyID:      acc.vaultKeyID,
		IntentID:        intent.ID,
		SeenClaimNumber: intent.ClaimNumber,
		KeyGeneration:   intent.KeyGeneration,
		FirstSend:       op == stripecharge.OpCreate && !intent.Frozen,
		StatusReason:    reason,
		LeaseSeconds:    w.lease().Seconds(),
		StripeAPI:       string(request.API),
		Path:            request.Path,
		Body:            request.Body,
		APIVersion:      request.APIVersion,
		StripeAccount:   acc.account,
		Livemode:        request.Livemode,
		Customer:        request.Customer,
		AmountCents:     request.AmountCents,
		Currency:        request.Currency,
		PaymentMethod:   request.PaymentMethod,
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return claimed{}, errRefused
	}
	if err != nil {
		return claimed{}, fmt.Errorf("claim intent %d: %w", intent.ID, err)
	}
	return claimed{IntentClaimRow: row, intent: intent, op: op, access: acc, request: request, sendBefore: began.Add(w.sendWithin())}, nil
}

// requestFor returns the request that a step sends, or holds what it finds against. A look-up before the first send needs
// the intent's terms alone, whatever the customer pays with.
func (w *worker) requestFor(ctx context.Context, act action, intent queries.IntentForWorkRow, acc *access) (stripecharge.Request, stripecharge.Answer, error) {
	if act != actionLookUp || intent.Frozen {
		return w.requestOf(ctx, intent, acc)
	}
	params := w.paramsOf(intent)
	params.API, params.PaymentMethod = stripecharge.APICharges, "" // which may go without a payment method; it is not sent
	params.Livemode = acc.livemode.Load()
	request, err := newRequest(params)
	return request, stripecharge.Answer{}, err
}

func (w *worker) paramsOf(intent queries.IntentForWorkRow) stripecharge.Params {
	return stripecharge.Params{
		API:            w.cfg.StripeAPI,
		Customer:       intent.StripeCustomerID,
		AmountCents:    intent.AmountCents,
		Currency:       intent.Currency,
		PaymentMethod:  deref(intent.PaymentMethod),
		Description:    describe(intent),
		Metadata:       w.metadata(intent),
		IdempotencyKey: schema.IdempotencyKey(intent.CustomerID, intent.BillingPeriod, intent.Namespace, int(intent.KeyGeneration)),
	}
}

// requestOf returns the generation's frozen request, or makes the one that the first send will freeze. For that, and to learn
// whether the key moves real money before anything is sent with it, it may have to read the customer; the answer to that is
// returned too.
func (w *worker) requestOf(ctx context.Context, intent queries.IntentForWorkRow, acc *access) (stripecharge.Request, stripecharge.Answer, error) {
	if intent.Frozen {
		answer, err := w.sameAccount(ctx, intent, acc)
		return frozenRequest(intent), answer, err
	}
	params := w.paramsOf(intent)
	var answer stripecharge.Answer
	resolve := params.PaymentMethod == "" && params.API == stripecharge.APIPaymentIntents
	if resolve || acc.livemode.Load() == nil {
		var info stripecharge.CustomerInfo
		var err error
		if info, answer, err = w.readCustomer(ctx, intent, acc); err != nil {
			return stripecharge.Request{}, answer, err
		}
		if resolve { // once: what the customer's default was at the first send is frozen with it
			params.PaymentMethod = info.PaymentMethod(params.API)
		}
		if info.Deleted && !resolve {
			return stripecharge.Request{}, answer, fmt.Errorf("%w: customer %s is deleted at Stripe", errUnsendable, intent.StripeCustomerID)
		}
	}
	params.Livemode = acc.livemode.Load()
	request, err := newRequest(params)
	return request, answer, err
}

func frozenRequest(intent queries.IntentForWorkRow) stripecharge.Request {
	return stripecharge.Request{
		API: stripecharge.API(intent.FrozenApi), Path: intent.FrozenPath, Body: intent.FrozenBody,
		IdempotencyKey: intent.FrozenKey, APIVersion: intent.FrozenApiVersion, Customer: intent.FrozenCustomer,
		Currency: intent.FrozenCurrency, PaymentMethod: intent.FrozenPaymentMethod, AmountCents: intent.FrozenAmountCents,
		Livemode: intent.FrozenLivemode,
	}
}

// sameAccount refuses a key that leads to another account or mode than the frozen request went to: there its key is unknown,
// and a look-up that finds nothing proves nothing.
func (w *worker) sameAccount(ctx context.Context, intent queries.IntentForWorkRow, acc *access) (stripecharge.Answer, error) {
	if acc.livemode.Load() == nil {
		_, answer, err := w.readCustomer(ctx, intent, acc)
		if errors.Is(err, errCustomerUnread) && answer.Class == stripecharge.ClassInvalidRequest {
			return answer, &keyError{reason: "wrong_account", err: fmt.Errorf(
				"customer %s was charged before, and the vault key does not lead to it: %s", intent.StripeCustomerID, explain(answer))}
		}
		if err != nil {
			return answer, err
		}
	}
	if intent.FrozenAccount != acc.account && intent.FrozenAccount != accountUnverified && acc.account != accountUnverified {
		return stripecharge.Answer{}, &keyError{reason: "wrong_account", err: fmt.Errorf(
			"intent %d was sent in Stripe account %s, the vault key leads to %s", intent.ID, intent.FrozenAccount, acc.account)}
	}
	if live := acc.livemode.Load(); live != nil && intent.FrozenLivemode != nil && *live != *intent.FrozenLivemode {
		return stripecharge.Answer{}, &keyError{reason: "wrong_account", err: fmt.Errorf(
			"intent %d was sent with livemode %t, the vault key has livemode %t", intent.ID, *intent.FrozenLivemode, *live)}
	}
	return stripecharge.Answer{}, nil
}

// readCustomer reads the intent's customer, and compares what that shows of the key's livemode.
func (w *worker) readCustomer(ctx context.Context, intent queries.IntentForWorkRow, acc *access) (stripecharge.CustomerInfo, stripecharge.Answer, error) {
	if err := w.rate.take(ctx, rateRead); err != nil {
		return stripecharge.CustomerInfo{}, stripecharge.Answer{}, err
	}
	info, answer := acc.client.Customer(ctx, intent.StripeCustomerID)
	if answer.Class != stripecharge.ClassAnswered {
		return info, answer, fmt.Errorf("read customer %s: %w", intent.StripeCustomerID, errCustomerUnread)
	}
	return info, answer, w.keys.sees(ctx, intent, acc, info)
}

func newRequest(params stripecharge.Params) (stripecharge.Request, error) {
	request, err := stripecharge.NewRequest(params)
	if err != nil && !errors.Is(err, stripecharge.ErrNoPaymentMethod) {
		return request, fmt.Errorf("%w: %w", errUnsendable, err)
	}
	return request, err
}

// errUnsendable says that the intent's terms make no request: a person must mend them.
var errUnsendable = errors.New("cannot be sent")

// errCustomerUnread says that the customer's payment method could not be read; the answer beside it says why.
var errCustomerUnread = errors.New("customer unread")

// metadata is what a charge carries home: only values that a restore and a second ingest would reproduce.
func (w *worker) metadata(intent queries.IntentForWorkRow) map[string]string {
	return map[string]string{
		stripecharge.MetadataIntentKey:     intent.IntentKey,
		stripecharge.MetadataKeyGeneration: fmt.Sprint(intent.KeyGeneration),
		"namespace":                        intent.Namespace,
		"customer_id":                      intent.CustomerID,
		"billing_period":                   intent.BillingPeriod,
		"installation":                     w.cfg.Installation,
	}
}

// describe is the text on the customer's receipt.
func describe(intent queries.IntentForWorkRow) string {
	if d := deref(intent.Description); d != "" {
		return d
	}
	return "Usage billing for " + intent.BillingPeriod
}

func deref[T any](p *T) T {
	if p == nil {
		var none T
		return none
	}
	return *p
}
