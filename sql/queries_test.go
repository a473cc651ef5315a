package sql_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"chargeonce/sql"
)

// Postgres checks the rights of a statement when it is explained as when it is run, so every query of a program is
// explained as that program's role.
func TestEveryQueryIsWithinItsRolesRights(t *testing.T) {
	t.Parallel()
	roles := map[string]string{
		"charger.sql.go": sql.RoleCharger, "ingest.sql.go": sql.RoleIngest, "operator.sql.go": sql.RoleCharger, "reconcile.sql.go": sql.RoleCharger,
		"quarantine.sql.go": sql.RoleQuarantine,
	}
	for file, role := range roles {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			conn, err := f.db.Pool(t, role).Acquire(t.Context())
			require.NoError(t, err)
			defer conn.Release()
			found := regexp.MustCompile("(?s)= `-- name: ([A-Za-z]+) :[a-z]+\n(.*?)`\n").FindAllStringSubmatch(readFile(t, "queries/"+file), -1)
			require.NotEmpty(t, found)
			for _, query := range found {
				name := strings.ToLower(query[1])
				prepared, err := conn.Conn().Prepare(t.Context(), name, query[2])
				require.NoError(t, err, query[1])
				explain := "EXPLAIN EXECUTE " + quote(name)
				if n := len(prepared.ParamOIDs); n > 0 {
					explain += "(NULL" + strings.Repeat(", NULL", n-1) + ")"
				}
				_, err = conn.Exec(t.Context(), explain)
				require.NoError(t, err, query[1])
			}
			_, err = conn.Exec(t.Context(), "EXPLAIN UPDATE billing.namespaces SET period_format = 'day'")
			requireForbidden(t, err, "the check itself")
		})
	}
}
