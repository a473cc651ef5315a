package main

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestProgramsDoNotOutliveAKilledDemo(t *testing.T) {
	t.Parallel()
	f, _ := self(t)
	s := selfAs("parent")
	s.env = append(s.env, "DEMO_TEST_DIR="+t.TempDir())
	parent, err := f.start(s)
	require.NoError(t, err)
	text, err := parent.await(t.Context(), `(?m)^child (\d+)$`)
	require.NoError(t, err)
	child, err := strconv.Atoi(text)
	require.NoError(t, err)
	require.False(t, gone(child))

	parent.kill()
	require.Eventually(t, func() bool { return gone(child) }, 10*time.Second, 5*time.Millisecond)
	require.NoError(t, f.stopAll(10*time.Second))
}
