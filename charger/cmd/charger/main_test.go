package main

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

	"chargeonce/sql/sqltest"
)

// testRun lets sqltest stop its server after the scripts; testscript makes the test binary the program itself.
type testRun struct{ m *testing.M }

func (r testRun) Run() int { return sqltest.Run(r.m) }

func TestMain(m *testing.M) {
	testscript.Main(testRun{m}, map[string]func(){"charger": main})
}

// TestScripts shows what an operator types and sees; each script is one story.
func TestScripts(t *testing.T) {
	t.Parallel()
	migrated, empty := sqltest.New(t), sqltest.NewEmpty(t)
	_, err := migrated.Pool(t, "").Exec(t.Context(), `
		INSERT INTO billing.namespaces (namespace, period_format) VALUES ('usage', 'month');
		INSERT INTO billing.intents (namespace, customer_id, billing_period, idempotency_key, stripe_customer_id, amount_cents, currency, source, source_position)
		VALUES ('usage', 'acme', '2026-08', left(encode(sha256('acme:2026-08:usage'), 'hex'), 32), 'cus_1', 2500, 'usd', 'test', '1')`)
	require.NoError(t, err)
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			// exit2 COMMAND runs it and fails unless it exits with 2.
			"exit2": func(ts *testscript.TestScript, _ bool, args []string) {
				exit, ok := errors.AsType[*exec.ExitError](ts.Exec(args[0], args[1:]...))
				if !ok || exit.ExitCode() != 2 {
					ts.Fatalf("%v: want exit code 2, got %v", args, exit)
				}
			},
		},
		Setup: func(env *testscript.Env) error {
			env.Setenv("MIGRATED", migrated.URL)
			env.Setenv("EMPTY", empty.URL)
			env.Setenv("USER", os.Getenv("USER"))
			return nil
		},
	})
}
