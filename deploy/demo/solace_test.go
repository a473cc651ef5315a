package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSolaceIsLeftOutWhereItsProgramsDoNotWork(t *testing.T) {
	t.Parallel()
	const works, stub = "#!/bin/sh\necho usage\n", "#!/bin/sh\necho 'this build has no Solace client' >&2\necho more >&2\nexit 2\n"
	for title, test := range map[string]struct {
		programs map[string]string
		want     string
	}{
		"both work":              {map[string]string{solaceProgram: works, publisherOfIt: works}, ""},
		"built without a client": {map[string]string{solaceProgram: stub, publisherOfIt: stub}, "this build has no Solace client"},
		"one built without":      {map[string]string{solaceProgram: works, publisherOfIt: stub}, "this build has no Solace client"},
		"not there":              {map[string]string{solaceProgram: works}, "publish-solace"},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for name, script := range test.programs {
				require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(script), 0o700)) //nolint:gosec // a program
			}
			why := whySolaceIsLeftOut(t.Context(), dir)
			if test.want == "" {
				require.Empty(t, why)
				return
			}
			require.Contains(t, why, test.want)
			require.NotContains(t, why, "\n")
		})
	}
}
