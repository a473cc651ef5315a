package main

import (
	"log/slog"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"
)

// Not parallel: it sets the environment.
func TestUsersPlacesOfPostgresAreNotHeeded(t *testing.T) {
	t.Setenv("LOCALPG_BIN_DIR", "/opt/pg/bin")
	t.Setenv("LOCALPG_FETCH_URL", "http://mirror/maven2")
	for name, c := range map[string]struct {
		args []string
		url  string
	}{
		"from the environment": {nil, "http://mirror/maven2"},
		"by flag":              {[]string{"--fetch-url", "http://other/maven2"}, "http://other/maven2"},
	} {
		var cfg settings
		parser, err := kong.New(&cfg)
		require.NoError(t, err)
		_, err = parser.Parse(c.args)
		require.NoError(t, err)
		got := cfg.localpg(slog.New(slog.DiscardHandler))
		require.Equal(t, "/opt/pg/bin", got.BinDir, name)
		require.Equal(t, c.url, got.FetchURL, name)
	}
}
