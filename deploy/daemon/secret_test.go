package daemon_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/lmittmann/tint"
	"github.com/stretchr/testify/require"

	"chargeonce/deploy/daemon"
)

func TestSecretIsNeverShown(t *testing.T) {
	t.Parallel()
	const plain = "hunter2"
	secret := daemon.Secret(plain)
	holder := struct {
		Plain   daemon.Secret
		Pointer *daemon.Secret
		List    []daemon.Secret
		Map     map[string]daemon.Secret
	}{secret, &secret, []daemon.Secret{secret}, map[string]daemon.Secret{"key": secret}}

	var shown []string
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%10s"} {
		shown = append(shown, fmt.Sprintf(verb, secret), fmt.Sprintf(verb, &secret), fmt.Sprintf(verb, holder), fmt.Sprintf(verb, &holder))
	}
	encoded, err := json.Marshal(holder)
	require.NoError(t, err)
	shown = append(shown, string(encoded), fmt.Sprint(secret), fmt.Errorf("with %w and %v", errors.New("x"), secret).Error())
	var log bytes.Buffer
	for _, handler := range []slog.Handler{slog.NewJSONHandler(&log, nil), slog.NewTextHandler(&log, nil), tint.NewTextHandler(&log, nil)} {
		slog.New(handler).Info("m", slog.Any("secret", secret), slog.Any("pointer", &secret), slog.Any("holder", holder), slog.Any("to_holder", &holder))
	}
	shown = append(shown, log.String())
	for _, text := range shown {
		require.NotContains(t, text, plain)
		require.NotContains(t, text, "68756e7465723") // in hexadecimal
		require.NotEmpty(t, text)
	}
	require.Equal(t, plain, secret.Reveal())
	require.Equal(t, "[redacted]", secret.String())
	require.Empty(t, daemon.Secret("").String())
}
