package daemon

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOutageExitsLikeAWrongSettingOrInManyLines(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := OpenPool(ctx, "postgres://u:hunter2@127.0.0.1:1/d", "", 2, "test")
	var stderr bytes.Buffer
	require.Equal(t, exitWrong, exitCode("example", &stderr, err, false))
	require.Equal(t, "example: DATABASE_URL leads to 127.0.0.1:1 for user u, which does not answer within 300ms (connection refused): "+
		"start Postgres or correct the address\n", stderr.String())
}

func TestErrorOfManyLinesIsShownWithTheirIndents(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"connect:\n\tone: refused\n\t\ttwo:\trefused\n": "example: connect: one: refused; two: refused\n",
		"\r\n one\ntwo": "example:  one; two\n",
	} {
		var stderr bytes.Buffer
		say(&stderr, "example", errors.New(given))
		require.Equal(t, want, stderr.String())
	}
}
