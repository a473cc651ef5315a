//go:build cgo

package main

import (
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"chargeonce/deploy/daemon"
	"chargeonce/ingest/solace"
	"chargeonce/ingest/solace/solacetest"
)

func TestRateThatNoClockHasIsRefused(t *testing.T) {
	t.Parallel()
	for rate, fine := range map[int]bool{-1: false, 0: true, maxRate: true, 2_000_000_000: false} {
		cfg := settings{Host: "tcp://broker", VPN: "billing", User: "metering", Queue: "billing-events", Rate: rate}
		err := cfg.Validate()
		if fine {
			require.NoError(t, err, rate)
			continue
		}
		var setting *daemon.SettingError
		require.ErrorAs(t, err, &setting, rate)
		require.Equal(t, "--rate", setting.Setting)
	}
}

func TestFirstMessageThatWasNotTakenIsNamedOnce(t *testing.T) {
	t.Parallel()
	broker, err := solacetest.Start(solacetest.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, broker.Close()) })
	for title, test := range map[string]struct {
		cfg  settings
		want string
	}{
		"refused by the broker": {settings{Queue: "nothere"}, "Unknown Queue"},
		"refused by the client": {settings{Topic: strings.Repeat("x", 300)}, "exceeds maximum"},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			test.cfg.Host, test.cfg.VPN, test.cfg.User = broker.URL(), broker.VPN(), "metering"
			err := run(t.Context(), slog.New(slog.DiscardHandler), &test.cfg, strings.NewReader(strings.Repeat("{}\n", 50)), io.Discard)
			require.ErrorIs(t, err, solace.ErrNotTaken)
			require.ErrorContains(t, err, test.want)
			require.Equal(t, 1, strings.Count(err.Error(), "number 1:"), err)
			require.NotContains(t, err.Error(), "answered")
		})
	}
}
