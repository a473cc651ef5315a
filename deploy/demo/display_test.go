package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReplayLooksLikeMoreThanEverything(t *testing.T) {
	t.Parallel()
	for redeliveries, want := range map[int]string{
		0:    "recorded 2176/2176  finished 1700/1800",
		2176: "recorded 2176/2176 + 2176 read again  finished 1700/1800",
	} {
		var out bytes.Buffer
		newDisplay(&out).progress(state{
			Sent: 2000, Expect: published{Events: 2000, Objects: 2176, Intents: 1800}, Counters: counters{Intents: 1800, Duplicates: 376, Redeliveries: redeliveries},
			Statuses: map[string]int{"charged": 1700},
		})
		require.Contains(t, out.String(), want)
	}
}
