package stripecharge

import (
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"chargeonce/charger/stripecharge/stripetest"
)

func ledgerOf(s *standIn, kind string) LedgerQuery {
	return LedgerQuery{Kind: kind, CreatedFrom: s.Now().Add(-24 * time.Hour), Limit: LedgerPageMost}
}

// charges makes n charges, each for a customer of its own, and returns their ids, oldest first.
func (s *standIn) charges(t *testing.T, n int) []string {
	t.Helper()
	ids := make([]string, n)
	for i := range ids {
		p := testParams(APIPaymentIntents, fmt.Sprintf("cus_%d", i))
		p.IdempotencyKey = fmt.Sprintf("key-%d", i)
		request, err := NewRequest(p)
		require.NoError(t, err)
		made := s.client.Create(t.Context(), request, soon())
		require.Equal(t, ClassSucceeded, made.Class)
		ids[i] = made.Object.ChargeID
	}
	return ids
}

func TestM25LedgerIsReadPageByPageToItsEnd(t *testing.T) {
	t.Parallel()
	s := startStandIn(t)
	made := s.charges(t, 25)
	q := ledgerOf(s, KindCharge)
	q.Limit = 10
	var listed []string
	for pages := 1; ; pages++ {
		page, answer := s.client.LedgerPage(t.Context(), q)
		require.Equal(t, ClassAnswered, answer.Class, "%v", answer.Err)
		for _, e := range page.Entries {
			listed = append(listed, e.ID)
		}
		q.After = page.Next
		if !page.More {
			require.Equal(t, 3, pages)
			break
		}
	}
	require.ElementsMatch(t, made, listed)
	for _, r := range s.Requests() {
		require.False(t, r.Method == http.MethodGet && (r.Form.Has("customer") || r.Form.Has("created[lte]")), "the whole account, up to now: %v", r.Form)
	}
}

// What is not a whole page of the list that was asked for is an error: read as its end, it would hide charges.
func TestM25BrokenPageIsNotTheEndOfTheLedger(t *testing.T) {
	t.Parallel()
	charge := `{"id":"ch_1","object":"charge","status":"succeeded"}`
	for name, body := range map[string]string{
		"EmptyObject":       `{}`,
		"NoData":            `{"object":"list","has_more":false}`,
		"NoMore":            `{"object":"list","data":[]}`,
		"EmptyWithMore":     `{"object":"list","has_more":true,"data":[]}`,
		"OtherKind":         `{"object":"list","has_more":false,"data":[{"id":"pi_1","object":"payment_intent"}]}`,
		"Null":              `{"object":"list","has_more":false,"data":[null]}`,
		"RepeatsItself":     `{"object":"list","has_more":false,"data":[{"id":"ch_0","object":"charge"}]}`,
		"LongerThanAsked":   `{"object":"list","has_more":false,"data":[` + charge + `,` + charge + `,` + charge + `]}`,
		"CutShort":          `{"object":"list","has_more":false,"data":[` + charge,
		"Html":              `<html>`,
		"ForeignObjectOnly": charge,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, _ := countedServer(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) })
			client := newTestClient(t, Config{URL: url, Key: testKey})
			page, answer := client.LedgerPage(t.Context(), LedgerQuery{Kind: KindCharge, CreatedFrom: time.Now(), After: "ch_0", Limit: 2})
			require.NotEqual(t, ClassAnswered, answer.Class)
			require.Error(t, answer.Err)
			require.Empty(t, page.Entries)
		})
	}
}

func TestLedgerQueryThatWouldListSomethingElseIsRefused(t *testing.T) {
	t.Parallel()
	s := startStandIn(t)
	fine := ledgerOf(s, KindCharge)
	for name, spoil := range map[string]func(*LedgerQuery){
		"NoKind":  func(q *LedgerQuery) { q.Kind = "" },
		"NoTime":  func(q *LedgerQuery) { q.CreatedFrom = time.Time{} },
		"NoLimit": func(q *LedgerQuery) { q.Limit = 0 },
		"TooMany": func(q *LedgerQuery) { q.Limit = LedgerPageMost + 1 },
		"BadID":   func(q *LedgerQuery) { q.After = "ch_1&customer=cus_1" },
	} {
		q := fine
		spoil(&q)
		_, answer := s.client.LedgerPage(t.Context(), q)
		require.Equal(t, ClassLocalError, answer.Class, name)
	}
	require.Empty(t, s.Requests())
}

// A payment intent carries its charge's story; a charge by itself carries its own.
func TestM25LedgerEntryTellsWhatMovedAndWhatCameBack(t *testing.T) {
	t.Parallel()
	for _, api := range bothAPIs() {
		t.Run(string(api), func(t *testing.T) {
			t.Parallel()
			s := startStandIn(t)
			kind := map[API]string{APIPaymentIntents: KindPaymentIntent, APICharges: KindCharge}[api]
			read := func(id string) LedgerEntry {
				page, answer := s.client.LedgerPage(t.Context(), ledgerOf(s, kind))
				require.Equal(t, ClassAnswered, answer.Class)
				e, known, answer := s.client.LedgerEntry(t.Context(), id)
				require.Equal(t, ClassAnswered, answer.Class)
				require.True(t, known)
				require.Equal(t, page.Entries[0], e, "listed as it is read")
				return e
			}
			made := s.client.Create(t.Context(), testRequest(t, api, "cus_1"), soon()).Object
			e := read(made.ID)
			require.True(t, e.Moved())
			require.False(t, e.Pending())
			require.Equal(t, made.ChargeID, e.ChargeID)
			require.Equal(t, made.PaymentIntentID, e.PaymentIntentID)
			require.EqualValues(t, 12_345, e.AmountCents)
			require.Equal(t, "acme", e.Metadata["customer_id"])
			require.True(t, s.RefundPart(made.ChargeID, 345))
			require.True(t, s.Dispute(made.ChargeID))
			e = read(made.ID)
			require.EqualValues(t, 345, e.RefundedCents)
			require.False(t, e.Refunded)
			require.True(t, e.Disputed)
			require.True(t, s.Refund(made.ChargeID))
			e = read(made.ID)
			require.EqualValues(t, 12_345, e.RefundedCents)
			require.True(t, e.Refunded)
			require.True(t, e.Moved(), "it moved, and was given back")
		})
	}
}

func TestLedgerEntryOfAPaymentOnItsWayIsPending(t *testing.T) {
	t.Parallel()
	s := startStandIn(t)
	made := s.client.Create(t.Context(), testRequest(t, APIPaymentIntents, "cus_1_processing"), soon()).Object
	e, _, answer := s.client.LedgerEntry(t.Context(), made.ID)
	require.Equal(t, ClassAnswered, answer.Class)
	require.True(t, e.Pending())
	require.False(t, e.Moved())
	// An authorisation is no payment either, although its status says succeeded.
	require.True(t, LedgerEntry{Kind: KindCharge, Status: StatusSucceeded}.Pending())
	require.False(t, LedgerEntry{Kind: KindCharge, Status: StatusSucceeded}.Moved())
}

// Only Stripe's own word says that there is no such object.
func TestM25UnreadObjectIsNotAnAbsentOne(t *testing.T) {
	t.Parallel()
	s := startStandIn(t)
	_, known, answer := s.client.LedgerEntry(t.Context(), "ch_nowhere")
	require.False(t, known)
	require.Equal(t, ClassInvalidRequest, answer.Class)
	for _, fault := range []stripetest.Fault{
		{Do: stripetest.APIError},
		{Do: stripetest.FlatDenial, Status: http.StatusNotFound, Body: "no such charge"},
		{Do: stripetest.EmptyObject},
		{Do: stripetest.Unauthorized},
		{Do: stripetest.CutBody},
		{Do: stripetest.CloseBeforeEffect},
		{Do: stripetest.Answer, Status: http.StatusNotFound, Body: `{"error":{"type":"invalid_request_error","code":"resource_missing"}}`},
	} {
		s.ClearFaults()
		s.fault(t, fault)
		_, known, answer := s.client.LedgerEntry(t.Context(), "ch_nowhere")
		if fault.Do == stripetest.Answer { // an answer without a request id is not Stripe's
			require.Empty(t, answer.RequestID)
		}
		require.True(t, known, "%s: nothing was learnt", fault.Do)
		require.NotEqual(t, ClassAnswered, answer.Class, string(fault.Do))
	}
}

// Texts of foreign objects must fit into the database, which takes no NUL.
func TestLedgerEntryHoldsNoNUL(t *testing.T) {
	t.Parallel()
	url, _ := countedServer(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"object":"list","has_more":false,"data":[{"id":"ch_1","object":"charge","status":"succeeded","captured":true,
			"amount":5,"currency":"usd","metadata":{"intent_key":"a\u0000b"}}]}`)
	})
	page, answer := newTestClient(t, Config{URL: url, Key: testKey}).LedgerPage(t.Context(), LedgerQuery{Kind: KindCharge, CreatedFrom: time.Now(), Limit: 1})
	require.Equal(t, ClassAnswered, answer.Class)
	require.NotContains(t, page.Entries[0].Metadata[MetadataIntentKey], "\x00")
}
