package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

	"chargeonce/charger/stripecharge"
	"chargeonce/charger/stripecharge/stripetest"
	"chargeonce/schema"
	"chargeonce/sql/sqltest"
)

// TestOperatorScripts shows what people see and decide about intents, conflicts and quarantined events, word for word. Each script has
// a database of its own, with the same rows, and a stand-in for Stripe. UPDATE_SCRIPTS=1 writes what is printed now into the scripts.
func TestOperatorScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:           "testdata/operator",
		UpdateScripts: os.Getenv("UPDATE_SCRIPTS") != "",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":  exits,
			"masked": masked,
			// sql STATEMENT changes what no command can: the time.
			"sql": func(ts *testscript.TestScript, _ bool, args []string) {
				conn, err := pgx.Connect(t.Context(), ts.Getenv("DATABASE_URL"))
				ts.Check(err)
				defer func() { ts.Check(conn.Close(context.WithoutCancel(t.Context()))) }()
				_, err = conn.Exec(t.Context(), strings.Join(args, " "))
				ts.Check(err)
			},
		},
		Setup: func(env *testscript.Env) error {
			db := sqltest.New(t)
			standin, err := stripetest.Start(stripetest.Config{AutoCustomers: true})
			if err != nil {
				return err
			}
			env.Defer(standin.Close)
			for name, value := range map[string]string{
				"DATABASE_URL": db.URL, "STRIPE_API_URL": standin.URL, "VAULT_MODE": "static", "KEYBRAKE_VAULT_KEY": "sk_test_standin", "CHARGER_ACTOR": "alice",
			} {
				env.Setenv(name, value)
			}
			return operatorsRows(t, db.Pool(t, ""), env, standin.URL)
		},
	})
}

// exits CODE COMMAND... runs the command and fails unless it exits with the code.
func exits(ts *testscript.TestScript, _ bool, args []string) {
	code := 0
	if exit, ok := errors.AsType[*exec.ExitError](ts.Exec(args[1], args[2:]...)); ok {
		code = exit.ExitCode()
	}
	if fmt.Sprint(code) != args[0] {
		ts.Fatalf("%v: want exit code %s, got %d", args[1:], args[0], code)
	}
}

// masked writes the last command's output into the file masked, without what differs from run to run.
func masked(ts *testscript.TestScript, _ bool, _ []string) {
	text := ts.ReadFile("stdout") + ts.ReadFile("stderr")
	for _, mask := range []struct{ pattern, with string }{
		{`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*(Z|[+-]\d\d:\d\d)`, "TIME"},
		{`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d`, "DATE AND TIME"},
		{`req_\w+`, "req_ID"},
		{`\b(ch|pi)_[0-9a-f]{10,}\b`, "${1}_ID"},
		{`after \d+m?s`, "after N ms"},
		{`(_seconds[_a-z]*": )-?[\d.]+`, "${1}N"},
		{`\d+h\d+m`, "N HOURS"},
		{` +\n`, "\n"},
	} {
		text = regexp.MustCompile(mask.pattern).ReplaceAllString(text, mask.with)
	}
	ts.Check(os.WriteFile(ts.MkAbs("masked"), []byte(text), 0o600))
}

// operatorsRows are intents that stand everywhere a person meets them:
//
//	1 acme     waits                               5 epsilon  parked: Stripe refused the request
//	2 beta     declined, its payment intent dead   6 zeta     waits, two conflicts open
//	3 gamma    in doubt; nothing is at Stripe      7 acme     the same customer and period in another namespace
//	4 delta    in doubt; its charge is at Stripe   8 eta      nothing due
func operatorsRows(t *testing.T, db *pgxpool.Pool, env *testscript.Env, stripeURL string) error {
	t.Helper()
	run := func(statement string, args ...any) {
		_, err := db.Exec(t.Context(), statement, args...)
		require.NoError(t, err, statement)
	}
	run(`INSERT INTO billing.namespaces (namespace, period_format) VALUES ('usage', 'month'), ('support', 'month')`)
	run(`INSERT INTO billing.runs (namespace, billing_period, currency, expected_total_cents, headroom_percent, cap_cents, allocated_cents, opened_by, stripe_account)
		VALUES ('usage', '2026-08', 'usd', 100000, '10%', 110000, 12000, 'alice', 'acct_standin')`)
	for i, in := range []struct {
		namespace, customer string
		cents               int64
	}{
		{"usage", "acme", 1000},
		{"usage", "beta", 2000},
		{"usage", "gamma", 3000},
		{"usage", "delta", 4000},
		{"usage", "epsilon", 5000},
		{"usage", "zeta", 6000},
		{"support", "acme", 1000},
		{"usage", "eta", 0},
	} {
		status, reason := "pending", "no_run"
		if in.cents == 0 {
			status, reason = "nothing_due", "zero_amount"
		}
		run(`INSERT INTO billing.intents (namespace, customer_id, billing_period, idempotency_key, stripe_customer_id, amount_cents, currency, status, status_reason, source, source_position, source_detail, created_at)
			VALUES ($1, $2, '2026-08', $3, $4, $5, 'usd', $6, $7, 'eventhubs', $8, '{"offset": "12"}', now() - interval '81 hours')`,
			in.namespace, in.customer, schema.IdempotencyKey(in.customer, "2026-08", in.namespace, 1), fmt.Sprintf("cus_%d", i+1), in.cents, status, reason, fmt.Sprintf("0/%d/0", i+1))
	}
	for _, how := range []struct {
		id                                int64
		attempt, reserved, status, reason string
	}{
		{2, "'declined', 402, 'req_1', 'card_error', 'expired_card'", "NULL", "card_declined", "card_declined"},
		{3, "'unknown', NULL, NULL, NULL, NULL", "amount_cents", "charging", "in_doubt"},
		{4, "'unknown', NULL, NULL, NULL, NULL", "amount_cents", "charging", "in_doubt"},
		{5, "'invalid', 400, 'req_2', 'invalid_request_error', NULL", "amount_cents", "parked", "invalid_request"},
	} {
		id := how.id
		request := sentRequest(t, db, id)
		run(`UPDATE billing.intents SET status = 'charging', status_reason = 'sent', run_id = 1, reserved_cents = amount_cents, guards_customer = true, claim_number = 1, lease_until = now() WHERE id = $1`, id)
		run(`INSERT INTO billing.charge_requests (intent_id, key_generation, idempotency_key, stripe_api, path, body, api_version, stripe_account, customer, amount_cents, currency, payment_method, first_sent_at)
			VALUES ($1, 1, $2, $3, $4, $5, $6, 'acct_standin', $7, $8, 'usd', $9, now() - interval '80 hours')`,
			id, request.IdempotencyKey, request.API, request.Path, request.Body, request.APIVersion, request.Customer, request.AmountCents, request.PaymentMethod)
		run(`INSERT INTO billing.charge_attempts (intent_id, key_generation, claim_number, operation, idempotency_key, worker, run_resume_count, started_at, lease_until, finished_at, result, http_status,
				request_id, error_type, decline_code)
			VALUES ($1, 1, 1, 'create', $2, 'charger-1', 0, now() - interval '80 hours', now() - interval '79 hours', now() - interval '80 hours', `+how.attempt+`)`, id, request.IdempotencyKey)
		if how.status != "charging" {
			run(`UPDATE billing.charge_attempts SET resolved_at = finished_at, resolution = 'not_moved' WHERE intent_id = $1`, id)
		}
		run(`UPDATE billing.intents SET status = $2, status_reason = $3, reserved_cents = `+how.reserved+`, lease_until = now() WHERE id = $1`, id, how.status, how.reason)
		if id == 4 {
			env.Setenv("DELTAS_CHARGE", post(t, stripeURL, request))
		}
	}
	run(`UPDATE billing.charge_requests SET object_id = 'pi_dead', object_canceled_at = first_sent_at, decline_code = 'expired_card' WHERE intent_id = 2`)
	run(`INSERT INTO billing.conflicts (intent_id, amount_cents, currency, stripe_customer_id, description, deliveries, first_source, first_position, first_detail, last_source, last_position)
		VALUES (6, 6600, 'usd', 'cus_6', 'corrected', 3, 'eventhubs', '1/7/0', '{"offset": "9"}', 'solace', 'q:77'), (6, 7700, 'usd', 'cus_6', NULL, 1, 'file', 'august.ndjson:3', NULL, 'file', 'august.ndjson:3')`)
	run(`INSERT INTO billing.quarantined_events (namespace, object_sha256, reason_code, field, reason, raw, first_source, first_position, last_source, last_position)
		VALUES ('usage', sha256('{"customer_id": "secret"'), 'not_json', '', 'is no JSON: it ends too early', '{"customer_id": "secret"', 'eventhubs', '0/9/0', 'eventhubs', '0/9/0')`)
	return nil
}

// sentRequest is the request that a charger froze for the intent.
func sentRequest(t *testing.T, db *pgxpool.Pool, id int64) stripecharge.Request {
	t.Helper()
	p := stripecharge.Params{API: stripecharge.APIPaymentIntents, Currency: "usd", PaymentMethod: "pm_card", Description: "Usage billing for 2026-08"}
	require.NoError(t, db.QueryRow(t.Context(), `SELECT stripe_customer_id, amount_cents, idempotency_key FROM billing.intents WHERE id = $1`, id).
		Scan(&p.Customer, &p.AmountCents, &p.IdempotencyKey))
	p.Metadata = map[string]string{stripecharge.MetadataIntentKey: p.IdempotencyKey, stripecharge.MetadataKeyGeneration: "1"}
	request, err := stripecharge.NewRequest(p)
	require.NoError(t, err)
	return request
}

// post sends the request to Stripe and returns the charge's id, which its sender never learnt.
func post(t *testing.T, stripeURL string, r stripecharge.Request) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, stripeURL+r.Path, bytes.NewReader(r.Body))
	require.NoError(t, err)
	request.Header = http.Header{
		"Authorization": {"Bearer sk_test_standin"}, "Content-Type": {"application/x-www-form-urlencoded"}, "Idempotency-Key": {r.IdempotencyKey}, "Stripe-Version": {r.APIVersion},
	}
	answer, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer func() { require.NoError(t, answer.Body.Close()) }()
	require.Equal(t, http.StatusOK, answer.StatusCode)
	var body bytes.Buffer
	_, err = body.ReadFrom(answer.Body)
	require.NoError(t, err)
	id := regexp.MustCompile(`"latest_charge": ?"(ch_\w+)"`).FindStringSubmatch(body.String())
	require.Len(t, id, 2, body.String())
	return id[1]
}
