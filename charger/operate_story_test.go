package charger

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"chargeonce/charger/stripecharge"
	"chargeonce/charger/stripecharge/stripetest"
	"chargeonce/charger/vaultkey/vaultkeytest"
	"chargeonce/schema"
	"chargeonce/sql/queries"
)

// Whoever must explain a charge to a customer, or to a bank, has all of it in one place: where it came from, each call with its
// request id, who decided what; and no key.
func TestStoryIsCompleteForADispute(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	b.stripe.AddCustomer(stripetest.Customer{ID: "cus_1", DefaultPaymentMethod: "pm_old", Decline: "expired_card"})
	id := b.intend(t, 1000, "usd", "cus_1")[0]
	b.exec(t, `UPDATE billing.intents SET source_detail = '{"offset": "77"}', source_enqueued_at = now() - interval '1 hour' WHERE id = $1`, id)
	conflict, _ := b.conflict(t, id, 2000, "cus_1", "3/78")
	require.NoError(t, b.person(t).Keep(t.Context(), conflict))
	b.open(t, "100.00", "usd")
	cfg, proxy := b.behindProxy(t, b.config(t), vaultkeytest.Config{})
	start(t, cfg)
	b.untilStatus(t, schema.StatusCardDeclined, id)
	b.stripe.AddCustomer(stripetest.Customer{ID: "cus_1", DefaultPaymentMethod: "pm_new"})
	_, err := b.person(t).Retry(t.Context(), id)
	require.NoError(t, err)
	b.untilStatus(t, schema.StatusCharged, id)

	story, err := ReadStory(t.Context(), b.person(t).Pool, id)
	require.NoError(t, err)
	var what []string
	for i, e := range story.Events {
		what = append(what, e.What)
		require.True(t, i == 0 || !e.At.Before(story.Events[i-1].At), "in order of time")
		require.NotEmpty(t, e.Text)
	}
	require.Equal(t, []string{"enqueued", "recorded", "conflict", "conflict_keep", "frozen", "create", "cancel", "intent_retry", "frozen", "create", "charged"}, what)
	encoded, err := json.Marshal(story)
	require.NoError(t, err)
	text := string(encoded)
	for _, r := range b.stripe.Requests() {
		if r.Method == "POST" {
			require.Contains(t, text, r.ID, "every call that could move money")
		}
	}
	for _, part := range []string{
		`"source_detail":{"offset":"77"}`, `"source_position":"customer-cus_1-0"`, `"first_position":"3/78"`, `"resolution":"kept_first"`, `"reason":"ticket 7"`,
		"payment_method=pm_old", "payment_method=pm_new", `"vault_key_id":`, `"reserved_cents":1000`, b.stripe.Charges()[0].ID,
	} {
		require.Contains(t, text, part)
	}
	require.Len(t, proxy.Keys(), 1)
	require.NotContains(t, text, "vk_", "the key itself")
	require.NotContains(t, text, "sk_test")
	require.Equal(t, "Nothing: charged is final.", story.Next)
	require.Empty(t, story.Can)
}

func TestStoryOfADoubtSaysWhatComesNext(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	id := b.intend(t, 1000, "usd", "cus_1")[0]
	b.open(t, "100.00", "usd")
	b.doubt(t, id, true)
	read := func() Story {
		story, err := ReadStory(t.Context(), b.person(t).Pool, id)
		require.NoError(t, err)
		return story
	}
	story := read()
	require.Contains(t, story.Why, "Stripe may have charged it: attempt 1 at ")
	require.Contains(t, story.Next, "The key is safe until ")
	require.True(t, slices.ContainsFunc(story.Can, func(can string) bool { return strings.Contains(can, "--charged") }))
	require.False(t, slices.ContainsFunc(story.Can, func(can string) bool { return strings.Contains(can, "--not-charged") }), "not before 72 hours")
	b.later(t, id, 73*time.Hour)
	story = read()
	require.Contains(t, story.Next, "The key is no longer safe since ")
	require.True(t, slices.ContainsFunc(story.Can, func(can string) bool { return strings.Contains(can, "--not-charged") }))
	b.exec(t, `UPDATE billing.charge_requests SET saw_server_error = true`)
	require.Contains(t, read().Next, "only looked up")
	_, err := ReadStory(t.Context(), b.person(t).Pool, 4711)
	requireRefused(t, err, "no intent 4711")
}

// Each status with each of its reasons is explained in whole sentences, however little stands beside it.
func TestStoryExplainsEveryReason(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, status := range schema.Statuses() {
		for _, reason := range status.Reasons() {
			s := Story{Run: &StoryRun{ID: 3, Status: "paused", StatusReason: "vault_denied", CapCents: 1000, AllocatedCents: 900}}
			s.Intent.Status, s.Intent.StatusReason, s.Intent.Currency, s.Intent.AmountCents = string(status), string(reason), "usd", 1000
			s.evidence.Status, s.evidence.StatusReason = string(status), string(reason)
			for _, job := range []*queries.JobGetRow{nil, {ID: 7, State: "retryable", LastError: "in_doubt: timeout"}, {ID: 7, State: "running"}, {ID: 7, State: "discarded"}} {
				s.Job = job
				why, next, _ := s.explain()
				for _, sentence := range []string{why, next} {
					require.Regexp(t, `^[A-Z].*\.$`, sentence, "%s/%s", status, reason)
				}
				if job == nil && status != schema.StatusCharged {
					require.Empty(t, seen[why], "%s/%s is explained like %s", status, reason, seen[why])
					seen[why] = string(status) + "/" + string(reason)
				}
			}
		}
	}
	require.Contains(t, seen, "The customer has no payment method at Stripe that can be charged. Nothing was taken; a retry helps when the customer has one.")
}

func TestInDoubtListIsWhatAPersonNeedsToKnow(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 1000, "usd", "cus_1", "cus_2", "cus_3", "cus_4")
	b.open(t, "100.00", "usd")
	for _, id := range ids[:2] {
		b.doubt(t, id, true)
	}
	h := byHand(t, b, ids[2])
	h.claims(t, ids[2], stripecharge.OpCreate) // on its way is no doubt
	b.later(t, ids[1], 22*time.Hour)
	list := func() []queries.IntentListInDoubtRow {
		doubts, err := queries.New().IntentListInDoubt(t.Context(), b.person(t).Pool, queries.IntentListInDoubtParams{WindowSeconds: Window.Seconds(), MaxRows: 10})
		require.NoError(t, err)
		return doubts
	}
	doubts := list()
	require.Len(t, doubts, 2)
	require.Equal(t, ids[1], doubts[0].ID, "the oldest first")
	require.InDelta(t, (22 * time.Hour).Seconds(), doubts[0].InDoubtSeconds, 60)
	require.InDelta(t, time.Hour.Seconds(), doubts[0].KeySafeSecondsLeft, 60)
	require.Equal(t, "create", doubts[0].LastOperation)
	require.Equal(t, "unknown", *doubts[0].LastResult)
	require.NotNil(t, doubts[0].NextLookAt)
	require.NoError(t, b.person(t).Park(t.Context(), ids[0]))
	doubts = list()
	require.Nil(t, doubts[1].NextLookAt, "nobody looks at what is parked")
	b.later(t, ids[1], 2*time.Hour)
	require.Negative(t, list()[0].KeySafeSecondsLeft)
}

func TestQuarantinedBytesAreReadByTheirOwnRoleAndRecorded(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	var id int64
	require.NoError(t, b.owner.QueryRow(t.Context(), `INSERT INTO billing.quarantined_events (namespace, object_sha256, reason_code, reason, raw, first_source, first_position,
		last_source, last_position) VALUES ('usage', sha256('{"a"'), 'not_json', 'is no JSON', '{"a"', 'test', '1', 'test', '1') RETURNING id`).Scan(&id))
	o := b.person(t)
	_, err := o.QuarantinedRaw(t.Context(), o.Pool, id)
	require.ErrorContains(t, err, "permission denied", "not as the charger")
	pool := b.db.Pool(t, "chargeonce_quarantine")
	_, err = Operator{Actor: "alice"}.QuarantinedRaw(t.Context(), pool, id)
	requireRefused(t, err, "needs a reason")
	raw, err := o.QuarantinedRaw(t.Context(), pool, id)
	require.NoError(t, err)
	require.Equal(t, `{"a"`, string(raw))
	_, err = o.QuarantinedRaw(t.Context(), pool, 4711)
	requireRefused(t, err, "no quarantined event 4711")
	require.NoError(t, o.ResolveQuarantined(t.Context(), id))
	requireRefused(t, o.ResolveQuarantined(t.Context(), id), "resolved already", "ticket 7")
	requireRefused(t, o.ResolveQuarantined(t.Context(), 4711), "no quarantined event 4711")
	var actions []string
	require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT array_agg(action || ' ' || reason || ' ' || (detail ->> 'quarantined_event_id') ORDER BY id) FROM billing.operator_actions`).Scan(&actions))
	require.Equal(t, []string{"quarantine_read ticket 7 1", "quarantine_resolve ticket 7 1"}, actions)
}
