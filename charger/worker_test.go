package charger

import (
	"errors"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"
)

// River takes a next retry that has passed for none, and waits attempt^4 seconds: a doubt at its 30th error would sleep for
// nine days.
func TestNextRetryIsNeverInThePast(t *testing.T) {
	t.Parallel()
	w := &worker{}
	job := &river.Job[ChargeArgs]{JobRow: &rivertype.JobRow{ID: 1}}
	_ = w.later(job, -time.Hour, errors.New("in_doubt"))
	now := time.Now() // River takes this before it asks
	require.True(t, w.NextRetry(job).After(now))
}
