package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"chargeonce/charger/stripecharge"
	"chargeonce/charger/stripecharge/stripetest"
	"chargeonce/schema"
	"chargeonce/sql/sqltest"
)

// reconciled is a run whose intents are all charged, and its account.
type reconciled struct {
	db     *sqltest.DB
	owner  *pgxpool.Pool
	stripe *stripetest.Server
}

func reconcilable(t *testing.T, intents int) *reconciled {
	t.Helper()
	stripe, err := stripetest.Start(stripetest.Config{AutoCustomers: true})
	require.NoError(t, err)
	t.Cleanup(stripe.Close)
	db := sqltest.New(t)
	r := &reconciled{db: db, owner: db.Pool(t, ""), stripe: stripe}
	r.exec(t, `INSERT INTO billing.namespaces (namespace, period_format) VALUES ('usage', 'month')`)
	r.exec(t, `INSERT INTO billing.runs (namespace, billing_period, currency, expected_total_cents, headroom_percent, cap_cents, opened_by, stripe_account)
		VALUES ('usage', '2026-08', 'usd', 100000000, '0%', 100000000, 'alice', 'acct_standin')`)
	client, err := stripecharge.New(stripecharge.Config{URL: stripe.URL, Key: "sk_test_standin", Transport: stripecharge.NewTransport()})
	require.NoError(t, err)
	for i := range intents {
		customer := fmt.Sprintf("customer-%d", i)
		key := schema.IdempotencyKey(customer, "2026-08", "usage", 1)
		request, err := stripecharge.NewRequest(stripecharge.Params{
			API: stripecharge.APIPaymentIntents, Customer: fmt.Sprintf("cus_%d", i), AmountCents: 1000, Currency: "usd", PaymentMethod: "pm_1", Description: "x", IdempotencyKey: key,
			Metadata: map[string]string{
				stripecharge.MetadataIntentKey: key, stripecharge.MetadataKeyGeneration: "1", "namespace": "usage", "billing_period": "2026-08",
				"customer_id": customer, "installation": "default",
			},
		})
		require.NoError(t, err)
		made := client.Create(t.Context(), request, time.Now().Add(time.Minute))
		require.Equal(t, stripecharge.ClassSucceeded, made.Class)
		r.exec(t, `INSERT INTO billing.intents (namespace, customer_id, billing_period, idempotency_key, stripe_customer_id, amount_cents, currency, source, source_position)
			VALUES ('usage', $1, '2026-08', $2, $3, 1000, 'usd', 'test', $1)`, customer, key, fmt.Sprintf("cus_%d", i))
		r.exec(t, `UPDATE billing.intents SET status = 'charged', status_reason = 'charged', charge_id = $2, payment_intent_id = $3, run_id = 1, reserved_cents = 1000
			WHERE customer_id = $1`, customer, made.Object.ChargeID, made.Object.ID)
	}
	return r
}

func (r *reconciled) exec(t *testing.T, statement string, args ...any) {
	t.Helper()
	_, err := r.owner.Exec(t.Context(), statement, args...)
	require.NoError(t, err)
}

// command is the real program.
func (r *reconciled) command(t *testing.T) (cmd *exec.Cmd, stdout, stderr *bytes.Buffer) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd = exec.CommandContext(context.WithoutCancel(t.Context()), self) //nolint:gosec // this test binary, which is the program by its name
	cmd.Args = []string{"charger", "reconcile", "--namespace", "usage", "--period", "2026-08"}
	cmd.Env = append(os.Environ(), "DATABASE_URL="+r.db.URL, "STRIPE_API_URL="+r.stripe.URL, "VAULT_MODE=static", "KEYBRAKE_VAULT_KEY=sk_test_standin", "CHARGER_ACTOR=alice")
	stdout, stderr = new(bytes.Buffer), new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	return cmd, stdout, stderr
}

// pages counts the pages that were asked for of a list.
func (r *reconciled) pages(path string) (n int) {
	for _, request := range r.stripe.Requests() {
		if request.Method == http.MethodGet && request.Path == path {
			n++
		}
	}
	return n
}

// holdPage keeps the second page of the charges until the stand-in is told.
func (r *reconciled) holdPage(t *testing.T) {
	t.Helper()
	require.NoError(t, r.stripe.AddFaults(stripetest.Fault{
		Do: stripetest.HoldBeforeEffect, Match: stripetest.Match{Method: http.MethodGet, Path: "/v1/charges"}, Trigger: stripetest.Trigger{Nth: 2, Count: 1},
	}))
}

// TestM25KilledReconcileGoesOnWhereItWas kills the program with SIGKILL while it waits for a page. While its lease lasts nobody
// else begins; then the same command goes on at that page and comes to its end.
func TestM25KilledReconcileGoesOnWhereItWas(t *testing.T) {
	t.Parallel()
	r := reconcilable(t, 230)
	r.holdPage(t)
	victim, _, _ := r.command(t)
	require.NoError(t, victim.Start())
	_, err := r.stripe.WaitHeld(t.Context(), 1)
	require.NoError(t, err)

	second, _, said := r.command(t)
	require.Error(t, second.Run())
	require.Equal(t, 2, second.ProcessState.ExitCode())
	require.Regexp(t, `^charger: reconcile is refused \(run 1 is being reconciled by alice \(process \S+, begun at \S+\)\): wait for it; should that process be dead, the same command goes on where it ended in \d+s\n$`, said.String())

	require.NoError(t, victim.Process.Signal(syscall.SIGKILL))
	require.Error(t, victim.Wait())
	r.stripe.Release()
	r.exec(t, `UPDATE billing.reconciliations SET lease_until = now() - interval '1 second'`)
	third, out, said := r.command(t)
	require.NoError(t, third.Run(), "%s", said)
	require.Contains(t, out.String(), "230  payments of this run: 2300.00 usd")
	require.Contains(t, out.String(), "\nclean: ")
	require.Empty(t, said.String())
	require.Equal(t, []int{3, 3 + 1}, []int{r.pages("/v1/payment_intents"), r.pages("/v1/charges")}, "only the page in hand was read twice")
}

// TestM25InterruptedReconcileIsNoVerdict: Ctrl-C ends it at once, the exit code is not that of clean books, and the same command
// goes on without waiting for a lease.
func TestM25InterruptedReconcileIsNoVerdict(t *testing.T) {
	t.Parallel()
	r := reconcilable(t, 130)
	r.holdPage(t)
	victim, out, said := r.command(t)
	require.NoError(t, victim.Start())
	_, err := r.stripe.WaitHeld(t.Context(), 1)
	require.NoError(t, err)
	require.NoError(t, victim.Process.Signal(syscall.SIGINT))
	require.Error(t, victim.Wait())
	require.Equal(t, 1, victim.ProcessState.ExitCode())
	require.Contains(t, said.String(), "charger: stopped before the comparison came to its end: the same command goes on where it was\n")
	require.Empty(t, out.String())
	r.stripe.Release()
	again, out, said := r.command(t)
	require.NoError(t, again.Run(), "%s", said)
	require.Contains(t, out.String(), "\nclean: ")
}
