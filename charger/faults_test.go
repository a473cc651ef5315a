package charger

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"chargeonce/charger/stripecharge/stripetest"
	"chargeonce/charger/vaultkey"
	"chargeonce/charger/vaultkey/vaultkeytest"
	"chargeonce/deploy/localpg"
	"chargeonce/schema"
	"chargeonce/sql"
	"chargeonce/sql/queries"
	"chargeonce/sql/sqltest"
)

func (b *bundle) runs(t *testing.T) Runs {
	t.Helper()
	return Runs{Pool: b.db.Pool(t, sql.RoleCharger)}
}

func usdRun() queries.RunGetParams {
	return queries.RunGetParams{Namespace: testNamespace, BillingPeriod: testPeriod, Currency: "usd"}
}

func (b *bundle) run(t *testing.T) queries.BillingRun {
	t.Helper()
	run, err := queries.New().RunGet(t.Context(), b.owner, usdRun())
	require.NoError(t, err)
	return run
}

func (b *bundle) creates() int {
	n := 0
	for _, r := range b.stripe.Requests() {
		if r.Method == "POST" {
			n++
		}
	}
	return n
}

// behindProxy puts the spend-cap proxy's stand-in between charger and Stripe, and has it issue the run's key.
func (b *bundle) behindProxy(t *testing.T, cfg Config, proxy vaultkeytest.Config) (Config, *vaultkeytest.Server) {
	t.Helper()
	proxy.AdminKeys, proxy.UpstreamURL, proxy.StripeKey = []string{"admin"}, b.stripe.URL, "sk_test_real"
	server, err := vaultkeytest.Start(proxy)
	require.NoError(t, err)
	t.Cleanup(server.Close)
	issuer, err := vaultkey.NewKeybrake(vaultkey.KeybrakeConfig{URL: server.URL, APIKey: "admin"})
	require.NoError(t, err)
	key, err := vaultkey.ParseEncryptionKey("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f")
	require.NoError(t, err)
	sealer, err := vaultkey.NewSealer(key)
	require.NoError(t, err)
	cfg.Keys = KeysConfig{Issuer: issuer, Sealer: sealer, StripeURL: server.URL + "/stripe"}
	return cfg, server
}

func TestM24VaultKeyIsIssuedOncePerRunByTwoChargers(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 2500, "usd", customers(40)...)
	b.open(t, "1000.00", "usd")
	cfg, proxy := b.behindProxy(t, b.config(t), vaultkeytest.Config{})
	second := cfg
	second.ID += "-second"
	second.Registry = nil
	start(t, cfg)
	start(t, second)
	b.untilStatus(t, schema.StatusCharged, ids...)
	b.once(t, 2500, ids...)
	require.Len(t, proxy.Keys(), 1)
	var plain int
	require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT count(*) FROM billing.vault_keys WHERE state = 'active' AND position('vk_'::bytea IN ciphertext) > 0`).Scan(&plain))
	require.Zero(t, plain, "the key is stored encrypted")
}

func TestProxyDenialPausesTheRunOnceAndDeclinesNobody(t *testing.T) {
	t.Parallel()
	for _, style := range []vaultkeytest.Style{"object_402", "flat_402", "flat_429", "flat_403", "flat_401", "empty", "html"} {
		t.Run(string(style), func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripetest.Config{})
			ids := b.intend(t, 1000, "usd", customers(30)...)
			b.open(t, "1000.00", "usd")
			cfg, proxy := b.behindProxy(t, b.config(t), vaultkeytest.Config{Denial: style})
			require.NoError(t, proxy.AddFaults(vaultkeytest.Fault{
				Do: vaultkeytest.Deny, Style: style, Match: stripetest.Match{Method: "POST", Path: "/v1/payment_intents"}, Trigger: stripetest.Trigger{Nth: 11},
			}))
			start(t, cfg)
			require.Eventually(t, func() bool { return b.run(t).Status == "paused" }, patience, 10*time.Millisecond)
			require.Equal(t, "vault_denied", b.run(t).StatusReason)
			for _, id := range ids {
				in := b.until(t, id, func(in intentNow) bool {
					return in.Status == "charged" || in.Reason == "run_paused" || in.Reason == "no_run"
				})
				require.Zero(t, in.Unresolved, "%v", in)
			}
			require.NotEmpty(t, b.stripe.Charges())
			require.LessOrEqual(t, len(b.stripe.Charges()), 10, "a denial of the key itself may reach some of the first ten, too")
			proxy.ClearFaults()
			resumed, err := b.runs(t).Resume(t.Context(), usdRun(), "test", "the cap was raised")
			require.NoError(t, err)
			require.True(t, resumed)
			b.untilStatus(t, schema.StatusCharged, ids...)
			b.once(t, 1000, ids...)
		})
	}
}

func TestM15PauseAndKillSwitchStopCreatesAndNothingElse(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	require.NoError(t, b.stripe.AddFaults(stripetest.Fault{Do: stripetest.HoldAfterEffect, Match: stripetest.Match{Method: "POST"}, Trigger: stripetest.Trigger{Count: 1}}))
	doubtful := b.intend(t, 1000, "usd", "cus_doubt")
	b.open(t, "1000.00", "usd")
	cfg := b.config(t)
	cfg.CallTimeout = 4 * time.Second
	start(t, cfg)
	require.Eventually(t, func() bool { return len(b.stripe.Held()) == 1 }, patience, 10*time.Millisecond)
	require.NoError(t, b.runs(t).Switch(t.Context(), true, "test", "something is wrong"))
	b.until(t, doubtful[0], func(in intentNow) bool { return in.Reason == string(schema.ReasonInDoubt) })
	waiting := b.intend(t, 1000, "usd", "cus_new1", "cus_new2")
	b.later(t, doubtful[0], 2*time.Minute) // the first look-up is due
	b.nudge(t, doubtful[0])
	in := b.until(t, doubtful[0], func(in intentNow) bool { return in.Status == "charged" })
	require.Equal(t, []string{"create:unknown", "look_up:found"}, in.Results)
	require.Equal(t, 1, b.creates())
	for _, id := range waiting {
		require.Equal(t, "pending", b.intent(t, id).Status)
	}
	require.NoError(t, b.runs(t).Switch(t.Context(), false, "test", "mended"))
	b.untilStatus(t, schema.StatusCharged, waiting...)
	b.once(t, 1000, append(doubtful, waiting...)...)
}

func TestM17ConflictAndSameCustomerWaitForAPerson(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 1000, "usd", "cus_conflict", "cus_twice", "cus_twice", "cus_plain")
	b.exec(t, `INSERT INTO billing.conflicts (intent_id, amount_cents, currency, stripe_customer_id, first_source, first_position, last_source, last_position)
		VALUES ($1, 2000, 'usd', 'cus_conflict', 'test', 'x', 'test', 'x')`, ids[0])
	b.open(t, "1000.00", "usd")
	start(t, b.config(t))
	b.untilStatus(t, schema.StatusCharged, ids[1], ids[3])
	in := b.until(t, ids[0], func(in intentNow) bool { return in.Reason == string(schema.ReasonConflict) })
	require.Nil(t, in.Reserved, "what waits takes nothing from the cap, and no job")
	b.until(t, ids[2], func(in intentNow) bool { return in.Reason == string(schema.ReasonSameCustomer) })
	b.once(t, 1000, ids[1], ids[3])
}

func TestM14JobsLostInRiverUIAreTakenUpAgainOrParked(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 1000, "usd", "cus_deleted", "cus_cancelled", "cus_discarded")
	b.open(t, "1000.00", "usd")
	cfg := b.config(t)
	c, err := New(cfg)
	require.NoError(t, err)
	require.NoError(t, c.dispatchAll(t.Context(), false, false)) // jobs exist, nobody works yet
	b.exec(t, `DELETE FROM river.river_job WHERE (args->>'intent_id')::bigint = $1`, ids[0])
	b.exec(t, `UPDATE river.river_job SET state = 'cancelled', finalized_at = now() WHERE (args->>'intent_id')::bigint = $1`, ids[1])
	b.exec(t, `UPDATE river.river_job SET state = 'discarded', finalized_at = now() WHERE (args->>'intent_id')::bigint = $1`, ids[2])
	start(t, b.config(t))
	b.untilStatus(t, schema.StatusCharged, ids[0], ids[2])
	in := b.until(t, ids[1], func(in intentNow) bool { return in.Status == "parked" })
	require.Equal(t, string(schema.ReasonCancelledByOperator), in.Reason)
	b.once(t, 1000, ids[0], ids[2])
}

func TestM13LateSuccessOnAVoidedIntentIsRecordedAndPausesTheRun(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 1000, "usd", "cus_late")
	b.open(t, "1000.00", "usd")
	cfg := b.config(t)
	cfg.Hold = nil
	require.NoError(t, b.stripe.AddFaults(stripetest.Fault{Do: stripetest.HoldAfterEffect, Match: stripetest.Match{Method: "POST"}}))
	start(t, cfg)
	require.Eventually(t, func() bool { return len(b.stripe.Held()) == 1 }, patience, 10*time.Millisecond)
	// A restored database and a person's decision: the intent is voided while the answer is on its way.
	tx, err := b.owner.Begin(t.Context())
	require.NoError(t, err)
	for _, statement := range []string{
		`SET LOCAL session_replication_role = replica`,
		`UPDATE billing.charge_attempts SET resolved_at = now(), resolution = 'superseded'`,
		`UPDATE billing.intents SET status = 'voided', status_reason = 'by_operator', reserved_cents = NULL, lease_until = NULL`,
		`UPDATE billing.runs SET allocated_cents = 0`,
	} {
		_, err := tx.Exec(t.Context(), statement)
		require.NoError(t, err)
	}
	require.NoError(t, tx.Commit(t.Context()))
	b.stripe.Release()
	b.untilStatus(t, schema.StatusCharged, ids...)
	b.once(t, 1000, ids...)
	require.Eventually(t, func() bool { return b.run(t).Status == "paused" }, patience, 10*time.Millisecond)
	require.Equal(t, "late_success", b.run(t).StatusReason)
	require.Equal(t, int64(1000), b.run(t).AllocatedCents)
}

func TestM10Stripe5xxIsLookedUpAndNotSentAgain(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	require.NoError(t, b.stripe.AddFaults(stripetest.Fault{Do: stripetest.APIError, Effect: true, Match: stripetest.Match{Method: "POST"}}))
	ids := b.intend(t, 1000, "usd", "cus_5xx")
	b.open(t, "1000.00", "usd")
	start(t, b.config(t))
	b.until(t, ids[0], func(in intentNow) bool { return in.Reason == string(schema.ReasonInDoubt) })
	b.later(t, ids[0], 20*time.Second) // any other doubt is sent again by now
	b.nudge(t, ids[0])
	b.nudge(t, ids[0]) // comes when the job has been worked and waits again
	require.Equal(t, 1, b.creates())
	b.later(t, ids[0], 2*time.Minute)
	b.nudge(t, ids[0])
	in := b.until(t, ids[0], func(in intentNow) bool { return in.Status == "charged" })
	require.Equal(t, []string{"create:server_error", "look_up:found"}, in.Results)
	require.Equal(t, string(schema.ReasonAdopted), in.Reason)
	b.once(t, 1000, ids...)
}

func TestM10Stripe5xxWithoutEffectIsParkedAfterTheWindow(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	require.NoError(t, b.stripe.AddFaults(stripetest.Fault{Do: stripetest.APIError, Match: stripetest.Match{Method: "POST"}}))
	ids := b.intend(t, 1000, "usd", "cus_5xx")
	b.open(t, "1000.00", "usd")
	start(t, b.config(t))
	b.until(t, ids[0], func(in intentNow) bool { return in.Reason == string(schema.ReasonInDoubt) })
	b.later(t, ids[0], 25*time.Hour)
	b.nudge(t, ids[0])
	in := b.until(t, ids[0], func(in intentNow) bool { return in.Status == "parked" })
	require.Equal(t, string(schema.ReasonDoubtExpired), in.Reason)
	require.Equal(t, []string{"create:server_error", "look_up:absent"}, in.Results)
	require.NotNil(t, in.Reserved, "parking in doubt gives nothing back")
	require.Empty(t, b.stripe.Charges())
}

func TestAmountsReachStripeUnchangedInEveryKindOfCurrency(t *testing.T) {
	t.Parallel()
	for currency, amount := range map[string]int64{"jpy": 5000, "kwd": 5000, "isk": 50000, "usd": 5001} {
		t.Run(currency, func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripetest.Config{})
			ids := b.intend(t, amount, currency, customers(2)...)
			b.open(t, "1000000", currency)
			stop := start(t, b.config(t))
			b.untilStatus(t, schema.StatusCharged, ids...)
			b.once(t, amount, ids...)
			stop()
		})
	}
}

func TestM11WrongAccountPausesTheRunBeforeAnythingIsCharged(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 1000, "usd", customers(3)...)
	b.open(t, "1000.00", "usd")
	b.exec(t, `UPDATE billing.runs SET stripe_account = 'acct_other'`)
	start(t, b.config(t))
	require.Eventually(t, func() bool { return b.run(t).Status == "paused" }, patience, 10*time.Millisecond)
	require.Equal(t, "wrong_account", b.run(t).StatusReason)
	require.Zero(t, b.creates())
	for _, id := range ids {
		b.until(t, id, func(in intentNow) bool { return in.Status == "pending" })
	}
}

func TestDatabaseAwayInTheMiddleLosesNothing(t *testing.T) {
	t.Parallel()
	server, err := localpg.Start(t.Context(), localpg.Config{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop(t.Context())) })
	_, err = sql.Migrate(t.Context(), server.URL(), slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	stripe, err := stripetest.Start(stripetest.Config{AutoCustomers: true, Latency: 50 * time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(stripe.Close)
	db := &sqltest.DB{URL: server.URL()}
	b := &bundle{db: db, owner: db.Pool(t, ""), stripe: stripe}
	b.exec(t, `INSERT INTO billing.namespaces (namespace, period_format) VALUES ($1, 'month')`, testNamespace)
	ids := b.intend(t, 1000, "usd", customers(150)...)
	b.open(t, "5000.00", "usd")
	cfg := b.config(t)
	cfg.CallTimeout = time.Second
	start(t, cfg)
	require.Eventually(t, func() bool { return len(stripe.Charges()) > 20 }, patience, 5*time.Millisecond)
	require.NoError(t, server.Kill())
	// Away for longer than a claim's lease: finishes give up, and their intents are in doubt.
	away := time.NewTimer(5 * time.Second)
	<-away.C
	require.NoError(t, server.StartAgain(t.Context()))
	require.Eventually(t, func() bool {
		var left int
		err := b.owner.QueryRow(t.Context(), `SELECT count(*) FROM billing.intents WHERE status <> 'charged'`).Scan(&left)
		return err == nil && left == 0
	}, patience, 100*time.Millisecond)
	b.once(t, 1000, ids...)
}

func TestRateIsSharedByAllChargers(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	pool := b.db.Pool(t, sql.RoleCharger)
	taken := make(chan struct{}, 200)
	began := secondOf(t, pool)
	for range 4 {
		r := newRate(pool, queries.New(), 50, 10*time.Second, nil)
		go func() {
			for range 50 {
				if r.take(t.Context(), rateCreate) != nil {
					return
				}
				taken <- struct{}{}
			}
		}()
	}
	for range 200 {
		<-taken
	}
	// 200 tokens at 50 a second come from at least four seconds, whoever asks.
	require.GreaterOrEqual(t, secondOf(t, pool)-began, int64(3))
}

func secondOf(t *testing.T, pool *pgxpool.Pool) int64 {
	t.Helper()
	var second int64
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT floor(extract(epoch FROM clock_timestamp()))::bigint`).Scan(&second))
	return second
}

func TestM23OpenAgainWithOtherTermsIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	first := b.open(t, "1000.00", "usd")
	require.Equal(t, int64(110000), first.CapCents)
	again, opened, err := b.runs(t).Open(t.Context(), OpenRun{
		Namespace: testNamespace, BillingPeriod: testPeriod, Currency: "usd", ExpectedTotal: "1000", Headroom: "10%", Actor: "test",
	})
	require.NoError(t, err)
	require.False(t, opened)
	require.Equal(t, first.ID, again.ID)
	for name, o := range map[string]OpenRun{
		"other total":     {Namespace: testNamespace, BillingPeriod: testPeriod, ExpectedTotal: "2000", Headroom: "10%"},
		"other headroom":  {Namespace: testNamespace, BillingPeriod: testPeriod, ExpectedTotal: "1000", Headroom: "20%"},
		"other namespace": {Namespace: "usagge", BillingPeriod: testPeriod, ExpectedTotal: "1000", Headroom: "10%"},
		"other format":    {Namespace: testNamespace, BillingPeriod: "2026-08-01", ExpectedTotal: "1000", Headroom: "10%"},
		"no total":        {Namespace: testNamespace, BillingPeriod: "2026-09", ExpectedTotal: "0", Headroom: "10%"},
		"bad headroom":    {Namespace: testNamespace, BillingPeriod: "2026-09", ExpectedTotal: "1000", Headroom: "lots"},
	} {
		o.Currency, o.Actor = "usd", "test"
		_, _, err := b.runs(t).Open(t.Context(), o)
		refused := &RefusedError{}
		require.ErrorAs(t, err, &refused, name)
		require.NotEmpty(t, refused.Cure)
	}
	require.Equal(t, fmt.Sprint(first.CapCents), fmt.Sprint(b.run(t).CapCents))
}
