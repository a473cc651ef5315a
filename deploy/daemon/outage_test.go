package daemon_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"chargeonce/deploy/daemon"
)

func TestRefusedConnectionNamesNoSetting(t *testing.T) {
	t.Parallel()
	address := closedPort(t)
	for name, url := range map[string]string{
		"without TLS":              "postgres://someone:hunter2@" + address + "/d?sslmode=disable",
		"TLS tried first":          "postgres://someone:hunter2@" + address + "/d?sslmode=prefer",
		"same address given twice": "postgres://someone:hunter2@" + address + "," + address + "/d?sslmode=disable",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := daemon.OpenPool(ctx, daemon.Secret(url), "", 2, "test")
			require.EqualError(t, err, "DATABASE_URL leads to "+address+" for user someone, which does not answer within 1s (connection refused): "+
				"start Postgres or correct the address")
			require.ErrorIs(t, err, context.DeadlineExceeded)
		})
	}
}

func TestUnknownHostIsWaitedFor(t *testing.T) {
	t.Parallel()
	began := time.Now()
	_, err := daemon.OpenPool(t.Context(), "postgres://someone:hunter2@no..such.host:5433/d", "", 2, "test") // refused before any server is asked
	require.EqualError(t, err, "DATABASE_URL leads to no..such.host:5433, and no such host is known: correct the host's name")
	requireSetting(t, err)
	require.Less(t, time.Since(began), 20*time.Second, "waiting cannot mend this")
}

func TestSecondHostIsNotTriedForTheFirstOnesName(t *testing.T) {
	t.Parallel()
	address := closedPort(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := daemon.OpenPool(ctx, daemon.Secret("postgres://u@no..such.host:5433,"+address+"/d?sslmode=disable"), "", 2, "test")
	require.EqualError(t, err, "DATABASE_URL leads to no..such.host:5433, "+address+" for user u, which does not answer within 1s "+
		"(no such host, connection refused): start Postgres or correct the address")
}

func TestSilentServerIsCalledByAnInnerName(t *testing.T) {
	t.Parallel()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = daemon.OpenPool(ctx, daemon.Secret("postgres://u@"+l.Addr().String()+"/d?sslmode=disable"), "", 2, "test")
	require.ErrorContains(t, err, "which does not answer within 1s (no reply): ")
}

func TestEndWhileWaitingLooksLikeAnOutage(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := daemon.OpenPool(ctx, daemon.Secret("postgres://u@"+closedPort(t)+"/d"), "", 2, "test")
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "wait for Postgres at ")
}

func closedPort(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}
