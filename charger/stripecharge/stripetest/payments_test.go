package stripetest_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v76"
	"github.com/tidwall/gjson"

	"chargeonce/charger/stripecharge/stripetest"
)

func TestDeclineIsReplayedEvenAfterTheCardIsMended(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{Customers: []stripetest.Customer{{ID: "cus_1", DefaultSource: "card_1", Decline: "insufficient_funds"}}})
	_, err := b.api.Charges.New(chargeParams("key-1", "cus_1", 1999))
	e := stripeError(t, err)
	require.Equal(t, http.StatusPaymentRequired, e.HTTPStatusCode)
	require.Equal(t, stripe.ErrorTypeCard, e.Type)
	require.Equal(t, stripe.ErrorCodeCardDeclined, e.Code)
	require.Equal(t, stripe.DeclineCodeInsufficientFunds, e.DeclineCode)
	require.True(t, strings.HasPrefix(e.ChargeID, "ch_"))
	require.True(t, strings.HasPrefix(e.RequestID, "req_"))
	require.Equal(t, "try_again_later", gjson.GetBytes(e.LastResponse.RawJSON, "error.advice_code").String())

	b.AddCustomer(stripetest.Customer{ID: "cus_1", DefaultSource: "card_2"})
	_, err = b.api.Charges.New(chargeParams("key-1", "cus_1", 1999))
	again := stripeError(t, err)
	require.Equal(t, e.ChargeID, again.ChargeID)
	require.Equal(t, "true", again.LastResponse.Header.Get("Idempotent-Replayed"))
	_, err = b.api.Charges.New(chargeParams("key-2", "cus_1", 1999))
	require.NoError(t, err)
	require.Len(t, b.Charges(), 1)

	failed, err := b.api.Charges.Get(e.ChargeID, nil)
	require.NoError(t, err)
	require.Equal(t, stripe.ChargeStatusFailed, failed.Status)
	require.False(t, failed.Paid)
	require.Equal(t, "card_declined", failed.FailureCode)
}

func TestCustomerTextPicksTheDecline(t *testing.T) {
	t.Parallel()
	for customer, want := range map[string][2]string{
		"cus_1_decline_insufficient_funds": {"card_declined", "insufficient_funds"},
		"cus_decline_do_not_honor_0042":    {"card_declined", "do_not_honor"},
		"cus_9_decline_lost_card":          {"card_declined", "lost_card"},
		"cus_9_decline_expired_card":       {"expired_card", "expired_card"},
		"cus_9_decline_anything_else":      {"card_declined", "anything_else"},
		"cus_9_decline_processing_errorX":  {"processing_error", "processing_error"},
		"cus_9_sca":                        {"authentication_required", "authentication_required"},
		"cus_nocard_1":                     {"missing", ""},
		"cus_nosource_1":                   {"missing", ""},
	} {
		t.Run(customer, func(t *testing.T) {
			t.Parallel()
			b := setup(t, auto())
			_, err := b.api.Charges.New(chargeParams("key-1", customer, 1999))
			e := stripeError(t, err)
			require.Equal(t, stripe.ErrorTypeCard, e.Type)
			require.Equal(t, want, [2]string{string(e.Code), string(e.DeclineCode)})
			require.Empty(t, b.Charges())
		})
	}
}

func TestSucceededPaymentIntentIsListedAsAChargeWithItsMetadata(t *testing.T) {
	t.Parallel()
	b := setup(t, auto())
	p, err := b.api.PaymentIntents.New(intentParams("key-1", "cus_1", "pm_card_1", 4200))
	require.NoError(t, err)
	require.Equal(t, stripe.PaymentIntentStatusSucceeded, p.Status)
	require.Equal(t, int64(4200), p.AmountReceived)
	require.Equal(t, "pm_card_1", p.PaymentMethod.ID)

	params := &stripe.ChargeListParams{Customer: new("cus_1")}
	it := b.api.Charges.List(params)
	require.True(t, it.Next())
	c := it.Charge()
	require.Equal(t, p.LatestCharge.ID, c.ID)
	require.Equal(t, p.ID, c.PaymentIntent.ID)
	require.Equal(t, "key-1", c.Metadata["intent_key"])
	require.False(t, it.Next())
	require.NoError(t, it.Err())
	require.Equal(t, p.ID, b.Charges()[0].PaymentIntent)

	get := &stripe.PaymentIntentParams{}
	get.AddExpand("latest_charge")
	got, err := b.api.PaymentIntents.Get(p.ID, get)
	require.NoError(t, err)
	require.Equal(t, int64(4200), got.LatestCharge.AmountCaptured)

	_, err = b.api.PaymentIntents.Cancel(p.ID, nil)
	e := stripeError(t, err)
	require.Equal(t, stripe.ErrorCodePaymentIntentUnexpectedState, e.Code)
	require.Equal(t, stripe.PaymentIntentStatusSucceeded, e.PaymentIntent.Status)
}

func TestDeclinedPaymentIntentStaysOpenUntilCancelled(t *testing.T) {
	t.Parallel()
	b := setup(t, auto())
	_, err := b.api.PaymentIntents.New(intentParams("key-1", "cus_1_decline_do_not_honor", "pm_card_1", 4200))
	e := stripeError(t, err)
	require.Equal(t, http.StatusPaymentRequired, e.HTTPStatusCode)
	require.Equal(t, stripe.PaymentIntentStatusRequiresPaymentMethod, e.PaymentIntent.Status)
	require.Equal(t, "key-1", e.PaymentIntent.Metadata["intent_key"])
	require.NotEmpty(t, e.ChargeID)

	p, err := b.api.PaymentIntents.Get(e.PaymentIntent.ID, nil)
	require.NoError(t, err)
	require.Equal(t, stripe.DeclineCode("do_not_honor"), p.LastPaymentError.DeclineCode)
	require.Nil(t, p.PaymentMethod)

	p, err = b.api.PaymentIntents.Cancel(p.ID, &stripe.PaymentIntentCancelParams{CancellationReason: new("abandoned")})
	require.NoError(t, err)
	require.Equal(t, stripe.PaymentIntentStatusCanceled, p.Status)
	require.NotZero(t, p.CanceledAt)
	_, err = b.api.PaymentIntents.Cancel(p.ID, nil)
	require.Contains(t, stripeError(t, err).Msg, "status of canceled")

	var kinds []stripetest.Kind
	for _, effect := range b.Ledger() {
		kinds = append(kinds, effect.Kind)
	}
	require.Equal(t, []stripetest.Kind{
		stripetest.IntentCreated, stripetest.ChargeFailed, stripetest.IntentDeclined, stripetest.IntentCanceled,
	}, kinds)
}

func TestConfirmWithoutAPaymentMethodIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, auto())
	_, err := b.api.PaymentIntents.New(intentParams("key-1", "cus_1", "", 4200))
	e := stripeError(t, err)
	require.Equal(t, http.StatusBadRequest, e.HTTPStatusCode)
	require.Equal(t, stripe.ErrorCodePaymentIntentUnexpectedState, e.Code)
	require.Contains(t, e.Msg, "missing a payment method")
	require.Empty(t, b.Ledger())
}

func TestOffSessionAuthenticationIsADecline(t *testing.T) {
	t.Parallel()
	b := setup(t, auto())
	_, err := b.api.PaymentIntents.New(intentParams("key-1", "cus_1_sca", "pm_card_1", 4200))
	e := stripeError(t, err)
	require.Equal(t, stripe.ErrorCodeAuthenticationRequired, e.Code)
	require.Equal(t, stripe.PaymentIntentStatusRequiresPaymentMethod, e.PaymentIntent.Status)

	onSession := intentParams("key-2", "cus_1_sca", "pm_card_1", 4200)
	onSession.OffSession, onSession.ErrorOnRequiresAction = nil, nil
	p, err := b.api.PaymentIntents.New(onSession)
	require.NoError(t, err)
	require.Equal(t, stripe.PaymentIntentStatusRequiresAction, p.Status)
	require.Empty(t, b.Charges())
}

func TestProcessingEndsOnlyWhenTheClockMoves(t *testing.T) {
	t.Parallel()
	b := setup(t, auto())
	good, err := b.api.PaymentIntents.New(intentParams("key-1", "cus_1_processing", "pm_card_1", 4200))
	require.NoError(t, err)
	require.Equal(t, stripe.PaymentIntentStatusProcessing, good.Status)
	bad, err := b.api.PaymentIntents.New(intentParams("key-2", "cus_1_processing_fails", "pm_card_1", 4200))
	require.NoError(t, err)
	require.Empty(t, b.Charges())
	b.Advance(time.Hour + time.Second)
	good, err = b.api.PaymentIntents.Get(good.ID, nil)
	require.NoError(t, err)
	require.Equal(t, stripe.PaymentIntentStatusSucceeded, good.Status)
	bad, err = b.api.PaymentIntents.Get(bad.ID, nil)
	require.NoError(t, err)
	require.Equal(t, stripe.PaymentIntentStatusRequiresPaymentMethod, bad.Status)
	require.Len(t, b.Charges(), 1)

	replay, err := b.api.PaymentIntents.New(intentParams("key-1", "cus_1_processing", "pm_card_1", 4200))
	require.NoError(t, err)
	require.Equal(t, stripe.PaymentIntentStatusProcessing, replay.Status, "a replay is a snapshot")
}

func TestCancelledProcessingPaymentNeverSucceeds(t *testing.T) {
	t.Parallel()
	b := setup(t, auto())
	p, err := b.api.PaymentIntents.New(intentParams("key-1", "cus_1_processing", "pm_card_1", 4200))
	require.NoError(t, err)
	_, err = b.api.PaymentIntents.Cancel(p.ID, nil)
	require.NoError(t, err)
	b.Advance(48 * time.Hour)
	p, err = b.api.PaymentIntents.Get(p.ID, nil)
	require.NoError(t, err)
	require.Equal(t, stripe.PaymentIntentStatusCanceled, p.Status)
	require.Empty(t, b.Charges())
}

func TestBadParametersAreRefusedAndNotKept(t *testing.T) {
	t.Parallel()
	b := setup(t, auto())
	long := strings.Repeat("x", 501)
	for name, c := range map[string]struct {
		change func(*stripe.ChargeParams)
		code   string
		param  string
	}{
		"zero":           {func(p *stripe.ChargeParams) { p.Amount = stripe.Int64(0) }, "parameter_invalid_integer", "amount"},
		"negative":       {func(p *stripe.ChargeParams) { p.Amount = stripe.Int64(-5) }, "parameter_invalid_integer", "amount"},
		"absent":         {func(p *stripe.ChargeParams) { p.Amount = nil }, "parameter_missing", "amount"},
		"not a number":   {func(p *stripe.ChargeParams) { p.Amount = nil; p.AddExtra("amount", "12.5") }, "parameter_invalid_integer", "amount"},
		"currency":       {func(p *stripe.ChargeParams) { p.Currency = new("zzz") }, "", "currency"},
		"unknown":        {func(p *stripe.ChargeParams) { p.AddExtra("colour", "red") }, "parameter_unknown", "colour"},
		"metadata value": {func(p *stripe.ChargeParams) { p.AddMetadata("a", long) }, "", "metadata[a]"},
		"metadata key":   {func(p *stripe.ChargeParams) { p.AddMetadata(long[:41], "a") }, "", "metadata"},
		"too many entries": {func(p *stripe.ChargeParams) {
			for i := range 51 {
				p.AddMetadata(fmt.Sprintf("k%d", i), "v")
			}
		}, "", "metadata"},
		"expand": {func(p *stripe.ChargeParams) { p.AddExpand("nonsense") }, "", "expand"},
	} {
		p := chargeParams("key-1", "cus_1", 1999)
		c.change(p)
		_, err := b.api.Charges.New(p)
		e := stripeError(t, err)
		require.Equal(t, http.StatusBadRequest, e.HTTPStatusCode, name)
		require.Equal(t, stripe.ErrorTypeInvalidRequest, e.Type, name)
		require.Equal(t, c.code, string(e.Code), name)
		require.Equal(t, c.param, e.Param, name)
	}
	made, err := b.api.Charges.New(chargeParams("key-1", "cus_1", 1999))
	require.NoError(t, err, "a refused 400 must leave its key free")
	require.Empty(t, made.LastResponse.Header.Get("Idempotent-Replayed"))
}

func TestAmountRulesOfTheCurrencies(t *testing.T) {
	t.Parallel()
	b := setup(t, auto())
	for i, c := range []struct {
		currency string
		amount   int64
		code     string
	}{
		{"usd", 49, "amount_too_small"},
		{"usd", 50, ""},
		{"usd", 99_999_999, ""},
		{"usd", 100_000_000, "amount_too_large"},
		{"jpy", 50, ""},
		{"jpy", 49, "amount_too_small"},
		{"jpy", 9_999_999_999, ""},
		{"idr", 999_999_999_999, ""},
		{"isk", 150, "invalid_charge_amount"},
		{"isk", 500, ""},
		{"ugx", 501, "invalid_charge_amount"},
		{"kwd", 1001, "invalid_charge_amount"},
		{"kwd", 1000, ""},
		{"gbp", 30, ""},
		{"gbp", 29, "amount_too_small"},
	} {
		p := chargeParams(fmt.Sprintf("key-%d", i), "cus_1", c.amount)
		p.Currency = new(c.currency)
		made, err := b.api.Charges.New(p)
		if c.code == "" {
			require.NoError(t, err, "%v", c)
			require.Equal(t, c.currency, string(made.Currency))
			continue
		}
		require.Equal(t, c.code, string(stripeError(t, err).Code), "%v", c)
	}
}

func TestUnknownCustomerIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{Customers: []stripetest.Customer{{ID: "cus_known", DefaultPaymentMethod: "pm_1"}, {ID: "cus_gone", Deleted: true}}})
	for _, id := range []string{"cus_other", "cus_gone"} {
		_, err := b.api.PaymentIntents.New(intentParams("key-"+id, id, "pm_1", 999))
		e := stripeError(t, err)
		require.Equal(t, stripe.ErrorCodeResourceMissing, e.Code)
		require.Equal(t, "customer", e.Param)
	}
	_, err := b.api.Customers.Get("cus_other", nil)
	require.Equal(t, http.StatusNotFound, stripeError(t, err).HTTPStatusCode)
	gone, err := b.api.Customers.Get("cus_gone", nil)
	require.NoError(t, err)
	require.True(t, gone.Deleted)
	known, err := b.api.Customers.Get("cus_known", nil)
	require.NoError(t, err)
	require.Equal(t, "pm_1", known.InvoiceSettings.DefaultPaymentMethod.ID)
}

func TestListPagesThroughEverythingNewestFirst(t *testing.T) {
	t.Parallel()
	b := setup(t, auto())
	var ids []string
	for i := range 7 {
		p, err := b.api.PaymentIntents.New(intentParams(fmt.Sprintf("key-%d", i), "cus_1", "pm_1", 999))
		require.NoError(t, err)
		_, err = b.api.PaymentIntents.New(intentParams(fmt.Sprintf("other-%d", i), "cus_2", "pm_1", 999))
		require.NoError(t, err)
		ids = append([]string{p.ID}, ids...)
		b.Advance(time.Hour)
	}
	params := &stripe.PaymentIntentListParams{Customer: new("cus_1")}
	params.Limit = stripe.Int64(3)
	var got []string
	it := b.api.PaymentIntents.List(params)
	for it.Next() {
		got = append(got, it.PaymentIntent().ID)
	}
	require.NoError(t, it.Err())
	require.Equal(t, ids, got)
	pages := 0
	for _, r := range b.Requests() {
		if r.Method == http.MethodGet {
			pages++
		}
	}
	require.Equal(t, 3, pages)

	since := &stripe.ChargeListParams{
		Customer:     new("cus_1"),
		CreatedRange: &stripe.RangeQueryParams{GreaterThanOrEqual: b.Now().Add(-150 * time.Minute).Unix()},
	}
	charges := b.api.Charges.List(since)
	n := 0
	for charges.Next() {
		n++
	}
	require.NoError(t, charges.Err())
	require.Equal(t, 2, n)
}

func TestRefundAndDisputeShowOnTheCharge(t *testing.T) {
	t.Parallel()
	b := setup(t, auto())
	c, err := b.api.Charges.New(chargeParams("key-1", "cus_1", 1999))
	require.NoError(t, err)
	require.True(t, b.Refund(c.ID))
	require.True(t, b.Dispute(c.ID))
	require.False(t, b.Refund("ch_none"))
	c, err = b.api.Charges.Get(c.ID, nil)
	require.NoError(t, err)
	require.True(t, c.Refunded && c.Disputed)
	require.Equal(t, int64(1999), c.AmountRefunded)
}

func TestWrongOrMissingKeyIsRefusedBeforeAnything(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{AutoCustomers: true, Keys: []string{"sk_test_right_000000001"}})
	_, err := b.api.Charges.New(chargeParams("key-1", "cus_1", 1999))
	e := stripeError(t, err)
	require.Equal(t, http.StatusUnauthorized, e.HTTPStatusCode)
	require.Equal(t, stripe.ErrorTypeInvalidRequest, e.Type)
	right := newClient(t, b.URL, "sk_test_right_000000001")
	_, err = right.Charges.New(chargeParams("key-1", "cus_1", 1999))
	require.NoError(t, err)
	p := chargeParams("key-2", "cus_1", 1999)
	p.SetStripeAccount("acct_foreign")
	_, err = right.Charges.New(p)
	require.Equal(t, http.StatusForbidden, stripeError(t, err).HTTPStatusCode)
}
