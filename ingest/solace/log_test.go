//go:build cgo

package solace

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLibraryLogsAreRoutedWithoutBytesOfMessages(t *testing.T) {
	t.Parallel()
	for title, test := range map[string]struct{ in, want string }{
		"warning": {
			"2026/11/30 15:14:34 log.go:45: WARNING solClientSSL.c:619 certificate expires soon\n",
			`level=DEBUG msg="the client library says" text="solClientSSL.c:619 certificate expires soon"` + "\n",
		},
		"error": {
			"2026/11/30 15:14:34 log.go:40: ERROR solClient.c:9 no session\n",
			`level=WARN msg="the client library says" text="solClient.c:9 no session"` + "\n",
		},
		"bytes of a message": {
			"2026/11/30 15:14:34 log.go:40: ERROR solClientSmf.c:77 Bad frame 7b 22 63 {\"customer_id\"\n",
			`level=WARN msg="the client library says" text="solClientSmf.c: something about the bytes of a message, which are left out"` + "\n",
		},
		"further lines": {
			"2026/11/30 15:14:34 log.go:40: ERROR solClient.c:9 dump follows\n7b 22 63 75 {\"cu\n",
			`level=WARN msg="the client library says" text="solClient.c:9 dump follows"` + "\n",
		},
		"unknown": {"something else", `level=DEBUG msg="the client library says" text="something else"` + "\n"},
		"empty":   {"", `level=DEBUG msg="the client library says" text=""` + "\n"},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			w := &logWriter{slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey {
					return slog.Attr{}
				}
				return a
			}}))}
			n, err := w.Write([]byte(test.in))
			require.NoError(t, err)
			require.Equal(t, len(test.in), n)
			require.Equal(t, test.want, out.String())
		})
	}
}
