package charger

import (
	"testing"

	"github.com/stretchr/testify/require"

	"chargeonce/charger/stripecharge"
	"chargeonce/schema"
)

// TestEndingFollowsTheDecisionTable holds what is done about a create's answer against what the decision table says that it
// proves, for every row, on a first send and on a retry after an unknown.
func TestEndingFollowsTheDecisionTable(t *testing.T) {
	t.Parallel()
	for _, row := range stripecharge.Rows() {
		for name, unresolved := range map[string]int64{"FirstSend": 0, "RetryAfterUnknown": 1} {
			t.Run(string(row.Class)+"/"+name, func(t *testing.T) {
				t.Parallel()
				c := claimed{op: stripecharge.OpCreate}
				c.intent.Unresolved, c.intent.Status, c.intent.StatusReason = unresolved, "charging", "sent"
				answer := stripecharge.Answer{Op: stripecharge.OpCreate, Class: row.Class, Object: &stripecharge.Object{
					Kind: stripecharge.KindPaymentIntent, ID: "pi_1", ChargeID: "ch_1",
				}}
				e := endingOf(c, answer, stripecharge.Found{})

				require.Equal(t, answer.Result(), e.result)
				require.True(t, schema.CanMove(schema.StatusCharging, e.status) || e.status == schema.StatusCharging, e.status)
				require.Contains(t, e.status.Reasons(), e.reason)
				switch row.Money {
				case stripecharge.MoneyMoved:
					require.Equal(t, moved, e.resolution)
				case stripecharge.MoneyNot:
					require.Equal(t, notMoved, e.resolution)
				case stripecharge.MoneyUnknown:
					require.Empty(t, e.resolution, "unknown is not resolved by its own answer")
					require.Equal(t, schema.StatusCharging, e.status, "an unknown stays in flight")
				}
				if !row.Resolves {
					require.Empty(t, e.others, "this answer says nothing about an earlier send")
				}
				if unresolved > 0 && e.others == "" {
					require.Equal(t, schema.StatusCharging, e.status, "doubt is sticky")
					require.False(t, e.giveBack)
				}
				requireNext(t, row.Next, unresolved, e)
			})
		}
	}
}

func requireNext(t *testing.T, next stripecharge.Next, unresolved int64, e ending) {
	t.Helper()
	switch next {
	case stripecharge.NextDone:
		require.Equal(t, schema.StatusCharged, e.status)
	case stripecharge.NextReadByID:
		require.Equal(t, schema.ReasonProcessing, e.reason)
		require.NotEmpty(t, e.objectID)
	case stripecharge.NextDecline, stripecharge.NextCancel:
		if e.reason != schema.ReasonInDoubt { // the rows that no create is answered with
			require.Equal(t, schema.ReasonCancelling, e.reason, "an open payment intent is cancelled before the decline is final")
		}
	case stripecharge.NextPauseRun, stripecharge.NextReissue:
		require.Equal(t, "vault_denied", e.pauseRun)
		require.Equal(t, unresolved == 0, e.dropJob)
	case stripecharge.NextOperator:
		if unresolved == 0 {
			require.Equal(t, schema.StatusParked, e.status)
		}
	case stripecharge.NextSlowDown:
		require.True(t, e.slowDown)
	case stripecharge.NextRetry:
		require.Contains(t, []schema.StatusReason{schema.ReasonQueued, schema.ReasonInDoubt}, e.reason)
	case stripecharge.NextLookUp, stripecharge.NextReview, stripecharge.NextGiveCause:
		require.Equal(t, schema.ReasonInDoubt, e.reason)
	}
}
