package stripecharge

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"chargeonce/charger/stripecharge/stripetest"
)

func lookUpOf(r Request, s *standIn) LookUp {
	return LookUp{
		Customer: r.Customer, IntentKey: r.IdempotencyKey, CreatedFrom: s.Now().Add(-24 * time.Hour), FirstSentAt: s.Now().Add(-time.Minute),
		AmountCents: r.AmountCents, Currency: r.Currency,
	}
}

// A look-up finds what either API made, whichever is configured now.
func TestM08LookUpListsBothKinds(t *testing.T) {
	t.Parallel()
	for _, api := range bothAPIs() {
		t.Run(string(api), func(t *testing.T) {
			t.Parallel()
			s := startStandIn(t)
			request := testRequest(t, api, "cus_1")
			found, answer := s.client.LookUp(t.Context(), lookUpOf(request, s))
			require.Equal(t, ClassAnswered, answer.Class)
			require.False(t, found.Any())
			require.Equal(t, "absent", found.Result(answer))

			made := s.client.Create(t.Context(), request, soon())
			require.Equal(t, ClassSucceeded, made.Class)
			before := s.Stats().Requests
			found, answer = s.client.LookUp(t.Context(), lookUpOf(request, s))
			require.Equal(t, ClassAnswered, answer.Class)
			require.EqualValues(t, 2, s.Stats().Requests-before, "one page of each kind")
			require.Len(t, found.Matches, 1, "a payment intent and its charge are one payment")
			require.Empty(t, found.Unmarked)
			require.Equal(t, made.Object.ID, found.Matches[0].ID)
			require.NoError(t, Validate(found.Matches[0], request))
			require.Equal(t, "found", found.Result(answer))
			for _, logged := range s.Requests() {
				require.False(t, logged.Form.Has("created[lte]") || logged.Form.Has("created[lt]"), "no upper bound: %s", logged.Path)
			}
		})
	}
}

func TestM08RefundOfPaymentIntentShows(t *testing.T) {
	t.Parallel()
	for _, api := range bothAPIs() {
		t.Run(string(api), func(t *testing.T) {
			t.Parallel()
			s := startStandIn(t)
			request := testRequest(t, api, "cus_1")
			made := s.client.Create(t.Context(), request, soon())
			require.True(t, s.Refund(made.Object.ChargeID))
			require.True(t, s.Dispute(made.Object.ChargeID))
			found, _ := s.client.LookUp(t.Context(), lookUpOf(request, s))
			require.Len(t, found.Matches, 1)
			require.True(t, found.Matches[0].Refunded)
			require.True(t, found.Matches[0].Disputed)
			read := s.client.Read(t.Context(), made.Object.ID)
			require.Equal(t, ClassSucceeded, Decide(read, request))
			require.True(t, read.Object.Refunded)
			require.True(t, read.Object.Disputed)
		})
	}
}

// The match is by intent key alone: other terms are evidence, not absence.
func TestM08MatchWithOtherTermsIsFound(t *testing.T) {
	t.Parallel()
	s := startStandIn(t)
	request := testRequest(t, APIPaymentIntents, "cus_1")
	require.Equal(t, ClassSucceeded, s.client.Create(t.Context(), request, soon()).Class)
	q := lookUpOf(request, s)
	q.AmountCents++
	found, _ := s.client.LookUp(t.Context(), q)
	require.Len(t, found.Matches, 1)
	request.AmountCents++
	require.Error(t, Validate(found.Matches[0], request))
}

func TestM08DeclinedAndOpenObjectsAreFound(t *testing.T) {
	t.Parallel()
	for _, api := range bothAPIs() {
		t.Run(string(api), func(t *testing.T) {
			t.Parallel()
			s := startStandIn(t)
			request := testRequest(t, api, "cus_1_decline_do_not_honor")
			declined := s.client.Create(t.Context(), request, soon())
			require.Equal(t, ClassDeclined, declined.Class)
			found, _ := s.client.LookUp(t.Context(), lookUpOf(request, s))
			require.Len(t, found.Matches, 1)
			require.Equal(t, declined.Object.ID, found.Matches[0].ID)
			require.Equal(t, api == APICharges, found.Matches[0].Dead(), "a payment intent can still be paid until it is cancelled")
			require.False(t, found.Matches[0].Moved())
		})
	}
}

// Something on the way may drop the metadata: the unmarked charge of these terms is not absence.
func TestM08UnmarkedObjectIsNotAbsence(t *testing.T) {
	t.Parallel()
	now := time.Now()
	object := func(kind, id, extra string, amount int64, created time.Time) string {
		return fmt.Sprintf(`{"id":%q,"object":%q,"status":"succeeded","amount":%d,"currency":"usd","customer":"cus_1","created":%d,"metadata":{}%s}`,
			id, kind, amount, created.Unix(), extra)
	}
	url, _ := countedServer(t, func(w http.ResponseWriter, r *http.Request) {
		items := []string{
			object(KindCharge, "ch_old", "", 12_345, now.Add(-time.Hour)),
			object(KindCharge, "ch_other", "", 1, now),
			object(KindCharge, "ch_new", "", 12_345, now),
			object(KindCharge, "ch_of_pi", `,"payment_intent":"pi_new"`, 12_345, now),
		}
		if strings.HasSuffix(r.URL.Path, "payment_intents") {
			items = []string{object(KindPaymentIntent, "pi_new", "", 12_345, now)}
		}
		_, _ = fmt.Fprintf(w, `{"object":"list","has_more":false,"data":[%s]}`, strings.Join(items, ","))
	})
	client := newTestClient(t, Config{URL: url, Key: testKey})
	found, answer := client.LookUp(t.Context(), LookUp{
		Customer: "cus_1", IntentKey: "k", CreatedFrom: now.Add(-24 * time.Hour), FirstSentAt: now.Add(-10 * time.Minute), AmountCents: 12_345, Currency: "usd",
	})
	require.Equal(t, ClassAnswered, answer.Class)
	require.Empty(t, found.Matches)
	require.Len(t, found.Unmarked, 2)
	require.Equal(t, []string{"pi_new", "ch_new"}, []string{found.Unmarked[0].ID, found.Unmarked[1].ID})
	require.Equal(t, "found", found.Result(answer))
}

// stripe-go's iterators just stop on an error; a look-up that takes that for the end makes the second charge.
func TestM07ErrorOnSecondPageIsNotAbsence(t *testing.T) {
	t.Parallel()
	for _, api := range bothAPIs() {
		t.Run(string(api), func(t *testing.T) {
			t.Parallel()
			s := startStandIn(t)
			var last Request
			for i := range pageSize + 1 {
				params := testParams(api, "cus_1")
				params.IdempotencyKey = fmt.Sprintf("key-%d", i)
				params.Metadata[MetadataIntentKey] = params.IdempotencyKey
				request, err := NewRequest(params)
				require.NoError(t, err)
				require.Equal(t, ClassSucceeded, s.client.Create(t.Context(), request, soon()).Class)
				last = request
			}
			oldest := lookUpOf(last, s)
			oldest.IntentKey = "key-0"
			found, answer := s.client.LookUp(t.Context(), oldest)
			require.Equal(t, ClassAnswered, answer.Class)
			require.Len(t, found.Matches, 1, "on the second page")

			s.fault(t, stripetest.Fault{Do: stripetest.ListPageFails})
			found, answer = s.client.LookUp(t.Context(), oldest)
			require.Equal(t, ClassServerError, answer.Class)
			require.Equal(t, "failed", found.Result(answer))
			require.False(t, found.Any())
		})
	}
}

func TestM07WhatIsNoListIsNotAbsence(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, body := range map[string]string{
		"empty object": `{}`, "null": `null`, "no data": `{"object":"list","has_more":false}`, "no has_more": `{"object":"list","data":[]}`,
		"more of nothing": `{"object":"list","data":[],"has_more":true}`, "other things": `{"object":"list","data":[{"id":"re_1","object":"refund"}],"has_more":false}`,
		"html": `<html>`, "the same page again": `{"object":"list","data":[{"id":"ch_1","object":"charge"}],"has_more":true}`,
		"an object": `{"id":"pi_1","object":"payment_intent"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, calls := countedServer(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) })
			client := newTestClient(t, Config{URL: url, Key: testKey})
			found, answer := client.LookUp(t.Context(), LookUp{Customer: "cus_1", IntentKey: "k", CreatedFrom: now, FirstSentAt: now})
			require.Equal(t, ClassUnparsable, answer.Class)
			require.Equal(t, "failed", found.Result(answer))
			require.LessOrEqual(t, calls.Load(), int64(2))
		})
	}
}

func TestLookUpOfNobodyIsRefused(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := startStandIn(t)
	for _, q := range []LookUp{
		{IntentKey: "k", CreatedFrom: now, FirstSentAt: now},
		{Customer: "cus_1", CreatedFrom: now, FirstSentAt: now},
		{Customer: "cus_1", IntentKey: "k", FirstSentAt: now},
		{Customer: "cus_1", IntentKey: "k", CreatedFrom: now},
		{Customer: "cus_1", IntentKey: "k", CreatedFrom: now.Add(time.Second), FirstSentAt: now},
	} {
		_, answer := s.client.LookUp(t.Context(), q)
		require.Equal(t, ClassLocalError, answer.Class)
	}
	require.Zero(t, s.Stats().Requests)
}

// A payment intent listed before its charge went through does not hide the charge.
func TestM08ChargeThatItsPaymentIntentDoesNotShowYetIsFound(t *testing.T) {
	t.Parallel()
	q := LookUp{IntentKey: "k"}
	intent := Object{Kind: KindPaymentIntent, ID: "pi_1", Status: StatusProcessing, PaymentIntentID: "pi_1", IntentKey: "k"}
	charge := Object{Kind: KindCharge, ID: "ch_1", ChargeID: "ch_1", Status: StatusSucceeded, PaymentIntentID: "pi_1", IntentKey: "k"}
	require.Len(t, q.pick([]Object{intent}, []Object{charge}).Matches, 2)
	require.Len(t, q.pick(nil, []Object{charge}).Matches, 1)
	intent.Status, intent.ChargeID = StatusSucceeded, "ch_1"
	require.Len(t, q.pick([]Object{intent}, []Object{charge}).Matches, 1)
}
