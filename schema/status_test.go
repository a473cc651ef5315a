package schema

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestMovesAreExactlyTheContract(t *testing.T) {
	t.Parallel()
	want := map[[2]Status]bool{
		{"", "pending"}: true, {"", "nothing_due"}: true,
		{"pending", "charging"}: true, {"pending", "voided"}: true, {"pending", "parked"}: true, {"pending", "charged"}: true,
		{"nothing_due", "pending"}: true, {"nothing_due", "charged"}: true,
		{"charging", "charged"}: true, {"charging", "card_declined"}: true, {"charging", "parked"}: true, {"charging", "pending"}: true,
		{"card_declined", "voided"}: true, {"card_declined", "pending"}: true, {"card_declined", "charged"}: true,
		{"voided", "pending"}: true, {"voided", "charged"}: true,
		{"parked", "charging"}: true, {"parked", "charged"}: true, {"parked", "pending"}: true, {"parked", "voided"}: true,
	}
	all := append(Statuses(), "", "unknown")
	for _, from := range all {
		for _, to := range all {
			require.Equal(t, want[[2]Status{from, to}], CanMove(from, to), "%q to %q", from, to)
		}
	}
}

func TestMovesStayInsideTheStatuses(t *testing.T) {
	t.Parallel()
	require.ElementsMatch(t, append(Statuses(), ""), slices.Collect(maps.Keys(moves)))
	rapid.Check(t, func(t *rapid.T) {
		at := Status("")
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			next := slices.DeleteFunc(Statuses(), func(s Status) bool { return !CanMove(at, s) })
			if len(next) == 0 {
				require.True(t, at.Final(), "%s is a dead end but not final", at)
				return
			}
			require.False(t, at.Final())
			if at != "" {
				require.Contains(t, next, StatusCharged, "a success could not be recorded on %s", at)
			}
			at = rapid.SampledFrom(next).Draw(t, "next")
			require.NotEmpty(t, at.Reasons())
		}
	})
}

func TestReasonStandsBesideOneStatusOnly(t *testing.T) {
	t.Parallel()
	owner := map[StatusReason]Status{}
	for _, status := range Statuses() {
		for _, reason := range status.Reasons() {
			require.NotContains(t, owner, reason)
			owner[reason] = status
		}
	}
	require.Len(t, owner, 27)
	require.Nil(t, Status("unknown").Reasons())
}
