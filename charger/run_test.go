package charger

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"chargeonce/charger/stripecharge/stripetest"
	"chargeonce/charger/vaultkey/vaultkeytest"
	"chargeonce/schema"
)

// A producer gone wild sends three times what was expected, all of it new customers.
func TestM20ProducerGoneWildIsStoppedAtTheCapAndNamed(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 1000, "usd", customers(300)...)
	b.open(t, "1000.00", "usd")
	cfg, proxy := b.behindProxy(t, b.config(t), vaultkeytest.Config{Denial: "flat"})
	start(t, cfg)
	const fit = 110 // 1,100.00
	b.untilStanding(t, map[string]int{"charged/charged": fit, "pending/run_capped": 300 - fit})
	require.Equal(t, int64(1100_00), b.run(t).AllocatedCents)
	require.Equal(t, "open", b.run(t).Status, "what is charged was meant: nothing has to be stopped")
	require.Len(t, b.stripe.Charges(), fit)

	run, raised, err := b.runs(t).RaiseCap(t.Context(), usdRun(), RaiseCap{Cap: "3000.00", Actor: "test", Reason: "they are real"})
	require.NoError(t, err)
	require.True(t, raised)
	require.Equal(t, int64(3000_00), run.CapCents)
	b.untilStatus(t, schema.StatusCharged, ids...)
	b.once(t, 1000, ids...)
	keys := proxy.Keys()
	require.Len(t, keys, 2, "the key for what was left of the old cap was replaced")
	require.Equal(t, "revoked", keys[0].Status)
	require.Equal(t, int64(1900_00), keys[1].CapCents)
	require.JSONEq(t, `{"cap": "3000.00", "cap_before": "1100.00"}`, b.action(t, "run_raise_cap", "they are real"))
	require.Equal(t, "open", b.run(t).Status, "the end of the old key paused nothing")
	for _, a := range proxy.Audit() {
		require.NotEqual(t, "denied", a.Decision, "%+v: nobody tries the old key once more", a)
	}
}

// A raised cap lets go on what waited for it at the pace of everything else, however many that are and however small the window.
func TestRaisedCapIsUsedRoundByRound(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 1000, "usd", customers(100)...)
	b.open(t, "10.00", "usd")
	cfg := b.config(t)
	cfg.Workers, cfg.Window = 2, 2
	start(t, cfg)
	b.untilStanding(t, map[string]int{"charged/charged": 1, "pending/run_capped": 99})
	_, _, err := b.runs(t).RaiseCap(t.Context(), usdRun(), RaiseCap{Cap: "1000.00", Actor: "test", Reason: "they are real"})
	require.NoError(t, err)
	b.untilStatus(t, schema.StatusCharged, ids...) // two in every ten seconds would take longer than a test waits
	b.once(t, 1000, ids...)
}

// untilStanding waits until the intents stand as they should, none otherwise, as finance sees them.
func (b *bundle) untilStanding(t *testing.T, want map[string]int) {
	t.Helper()
	got := map[string]int{}
	require.Eventuallyf(t, func() bool {
		rows, err := b.owner.Query(t.Context(), `SELECT status || '/' || status_reason, count(*) FROM finance.intents GROUP BY 1`)
		require.NoError(t, err)
		defer rows.Close()
		clear(got)
		for rows.Next() {
			var what string
			var n int
			require.NoError(t, rows.Scan(&what, &n))
			got[what] = n
		}
		return fmt.Sprint(got) == fmt.Sprint(want)
	}, patience, 50*time.Millisecond, "want %v, got %v", want, &got)
}

// action is the detail of the one recorded action of this kind and reason.
func (b *bundle) action(t *testing.T, action, reason string) string {
	t.Helper()
	var detail string
	require.NoError(t, b.owner.QueryRow(t.Context(),
		`SELECT detail::text FROM billing.operator_actions WHERE action = $1 AND reason = $2 AND actor = 'test' AND run_id IS NOT NULL`, action, reason).Scan(&detail))
	return detail
}

func TestM20FourChargersNeverOvershootTheCap(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{Latency: 2 * time.Millisecond})
	random := rand.New(rand.NewPCG(20, 0)) //nolint:gosec // the same sums each time
	var all int64
	for i := range 600 {
		amount := int64(100 + random.IntN(5000))
		all += amount
		kind := ""
		if random.IntN(10) == 0 {
			kind = "_decline_do_not_honor" // gives its room back
		}
		b.intend(t, amount, "usd", fmt.Sprintf("cus_%04d%s", i, kind))
	}
	expected := schema.FormatAmount(all/2, "usd")
	b.open(t, expected, "usd")
	for i := range 4 {
		cfg := b.config(t)
		cfg.ID, cfg.Workers = fmt.Sprintf("%s-%d", cfg.ID, i), 50
		start(t, cfg)
	}
	var capped, room, most int64
	require.Eventually(t, func() bool {
		b.requireAllocated(t)
		var moving int64
		require.NoError(t, b.owner.QueryRow(t.Context(), `
			SELECT count(*) FILTER (WHERE status = 'charging' OR status_reason IN ('queued', 'no_run')),
			       count(*) FILTER (WHERE status_reason = 'run_capped'), (SELECT cap_cents - allocated_cents FROM billing.runs),
			       coalesce(min(amount_cents) FILTER (WHERE status_reason = 'run_capped'), 0)
			FROM billing.intents`).Scan(&moving, &capped, &room, &most))
		return moving == 0 && room < most
	}, patience, 50*time.Millisecond)
	require.Positive(t, capped)
	charged := int64(0)
	for _, c := range b.stripe.Charges() {
		charged += c.Amount
	}
	require.LessOrEqual(t, charged, b.run(t).CapCents)
	require.Equal(t, b.run(t).AllocatedCents, charged)
	require.Empty(t, b.stripe.DoubleCharges())
}

// Terms that the first open did not have are never silently taken for granted, and those that were raised since are no others.
func TestM23TermsOfAnOpenRun(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	terms := OpenRun{Namespace: testNamespace, BillingPeriod: testPeriod, Currency: "jpy", ExpectedTotal: "1000", Headroom: "10%", Actor: "test"}
	key := usdRun()
	key.Currency = "jpy"
	open := func(change func(*OpenRun)) error {
		o := terms
		change(&o)
		_, _, err := b.runs(t).Open(t.Context(), o)
		return err
	}
	zero := int64(0)
	for says, change := range map[string]func(*OpenRun){
		"--stripe-account \"foo\" is no Stripe account": func(o *OpenRun) { o.StripeAccount = "foo" },
		"--expected-count must be more than 0":          func(o *OpenRun) { o.ExpectedCount = &zero },
		"units of the currency, like 12500":             func(o *OpenRun) { o.ExpectedTotal = "12500.00" },
	} {
		err := open(change)
		var refused *RefusedError
		require.ErrorAs(t, err, &refused, says)
		require.ErrorContains(t, err, says)
		require.NotContains(t, refused.Cure, "12500.00", "yen have no decimals")
	}
	require.NoError(t, open(func(*OpenRun) {}))
	require.ErrorContains(t, open(func(o *OpenRun) { o.StripeAccount = "acct_other" }), "Stripe account that of its first key, not acct_other")
	require.ErrorContains(t, open(func(o *OpenRun) { o.VaultUSDCap = "5.00" }), "vault cap in dollars none, not 5.00")
	raise := func(o RaiseCap) {
		o.Actor, o.Reason = "test", "r"
		_, raised, err := b.runs(t).RaiseCap(t.Context(), key, o)
		require.NoError(t, err)
		require.True(t, raised)
	}
	raise(RaiseCap{Cap: "1100", VaultUSDCap: "7.00"})
	require.NoError(t, open(func(*OpenRun) {}), "the terms it was opened with")
	require.NoError(t, open(func(o *OpenRun) { o.VaultUSDCap = "7.00" }))
	require.ErrorContains(t, open(func(o *OpenRun) { o.VaultUSDCap = "6.00" }), "vault cap in dollars 7.00, not 6.00")
	require.ErrorContains(t, open(func(o *OpenRun) { o.VaultUSDCap = "8.00" }), "vault cap in dollars 7.00, not 8.00")
	raise(RaiseCap{Cap: "2000", VaultUSDCap: "14.00"})
	require.NoError(t, open(func(o *OpenRun) { o.VaultUSDCap = "7.00" }), "both were raised since")
}

func TestM23RaiseCapIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	b.open(t, "100.00", "usd")
	_, _, err := b.runs(t).Open(t.Context(), OpenRun{
		Namespace: testNamespace, BillingPeriod: testPeriod, Currency: "eur", ExpectedTotal: "100.00", Headroom: "10%", VaultUSDCap: "120.00", Actor: "test",
	})
	require.NoError(t, err)
	eur := usdRun()
	eur.Currency = "eur"
	jpy := usdRun()
	jpy.Currency = "jpy"
	for name, c := range map[string]struct {
		key  func() (RaiseCap, string)
		says string
	}{
		"lower":             {func() (RaiseCap, string) { return RaiseCap{Cap: "109.99"}, "usd" }, "less than the cap that stands, 110.00"},
		"no sum":            {func() (RaiseCap, string) { return RaiseCap{Cap: "a lot"}, "usd" }, "--cap: "},
		"too exact":         {func() (RaiseCap, string) { return RaiseCap{Cap: "200.001"}, "usd" }, "--cap: "},
		"vault cap unsaid":  {func() (RaiseCap, string) { return RaiseCap{Cap: "200.00"}, "eur" }, "vault cap in dollars of its own, 120.00"},
		"vault cap lowered": {func() (RaiseCap, string) { return RaiseCap{Cap: "200.00", VaultUSDCap: "119.00"}, "eur" }, "less than the one that stands, 120.00"},
		"vault cap no sum":  {func() (RaiseCap, string) { return RaiseCap{Cap: "200.00", VaultUSDCap: "x"}, "eur" }, "no sum in dollars"},
		"no run":            {func() (RaiseCap, string) { return RaiseCap{Cap: "200"}, "jpy" }, "there is no run of usage, 2026-08, jpy"},
	} {
		asked, currency := c.key()
		key := usdRun()
		key.Currency = currency
		_, raised, err := b.runs(t).RaiseCap(t.Context(), key, asked)
		var refused *RefusedError
		require.ErrorAs(t, err, &refused, name)
		require.Contains(t, refused.Problem, c.says, name)
		require.NotEmpty(t, refused.Cure, name)
		require.False(t, raised, name)
	}
	_, raised, err := b.runs(t).RaiseCap(t.Context(), usdRun(), RaiseCap{Cap: "110.00"})
	require.NoError(t, err)
	require.False(t, raised, "it stands already")
	run, raised, err := b.runs(t).RaiseCap(t.Context(), eur, RaiseCap{Cap: "200.00", VaultUSDCap: "230.00", Actor: "test", Reason: "r"})
	require.NoError(t, err)
	require.True(t, raised)
	require.Equal(t, int64(230_00), *run.VaultUsdCapCents)
	require.NoError(t, err)
	_, opened, err := b.runs(t).Open(t.Context(), OpenRun{
		Namespace: testNamespace, BillingPeriod: testPeriod, Currency: "usd", ExpectedTotal: "100.00", Headroom: "10%", Actor: "test",
	})
	require.NoError(t, err)
	require.False(t, opened)
}

func TestM23ClosedRunIsOpenedAgainWithAReasonAndKeepsWhatItCharged(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 1000, "usd", customers(3)...)
	b.open(t, "30.00", "usd")
	cfg, proxy := b.behindProxy(t, b.config(t), vaultkeytest.Config{Denial: "flat"})
	start(t, cfg)
	b.untilStatus(t, schema.StatusCharged, ids...)
	closed, err := b.runs(t).Close(t.Context(), usdRun(), CloseRun{Actor: "test", Reason: "all is charged"})
	require.NoError(t, err)
	require.True(t, closed)
	require.NotNil(t, b.run(t).ClosedAt)
	closed, err = b.runs(t).Close(t.Context(), usdRun(), CloseRun{Actor: "test", Reason: "once more"})
	require.NoError(t, err)
	require.False(t, closed, "it is closed already")
	require.Eventually(t, func() bool { return proxy.Keys()[0].Status == "revoked" }, patience, 20*time.Millisecond, "nobody needs its key any more")

	late := b.intend(t, 300, "usd", "cus_late")
	b.untilStanding(t, map[string]int{"charged/charged": 3, "pending/no_run": 1})
	terms := OpenRun{Namespace: testNamespace, BillingPeriod: testPeriod, Currency: "usd", ExpectedTotal: "30.00", Headroom: "10%", Actor: "test"}
	_, _, err = b.runs(t).RaiseCap(t.Context(), usdRun(), RaiseCap{Cap: "40.00"})
	require.ErrorContains(t, err, "the run is closed")
	_, _, err = b.runs(t).Open(t.Context(), terms)
	require.ErrorContains(t, err, "say with --reason")
	terms.Reason = "a late event"
	run, opened, err := b.runs(t).Open(t.Context(), terms)
	require.NoError(t, err)
	require.True(t, opened)
	require.Equal(t, "reopened", run.StatusReason)
	require.Equal(t, int64(30_00), run.AllocatedCents)
	b.untilStatus(t, schema.StatusCharged, late...)
	require.Equal(t, int64(33_00), b.run(t).AllocatedCents, "the cap is the same, and full")
	require.Len(t, b.stripe.Charges(), 4)
	require.Empty(t, b.stripe.DoubleCharges())
	require.NotEmpty(t, b.action(t, "run_close", "all is charged"))
	require.NotEmpty(t, b.action(t, "run_reopen", "a late event"))
}

// Whatever has no final answer keeps a run open, and is named with its number, its sum and what to do about it.
func TestM23CloseIsRefusedWhileAnythingIsUnaccountedFor(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	count := int64(3)
	_, _, err := b.runs(t).Open(t.Context(), OpenRun{
		Namespace: testNamespace, BillingPeriod: testPeriod, Currency: "usd", ExpectedTotal: "30.00", ExpectedCount: &count, Headroom: "10%", Actor: "test",
	})
	require.NoError(t, err)
	refused := func() []string {
		t.Helper()
		closed, err := b.runs(t).Close(t.Context(), usdRun(), CloseRun{Actor: "test", Reason: "r"})
		require.False(t, closed)
		var open *UnaccountedError
		require.ErrorAs(t, err, &open)
		var lines []string
		for _, u := range open.Open {
			require.NotEmpty(t, u.Cure)
			lines = append(lines, fmt.Sprintf("%s %d", u.What, u.Count))
		}
		require.Contains(t, err.Error(), "usage, 2026-08, usd cannot be closed")
		return lines
	}
	require.Equal(t, []string{"expected and never came 3"}, refused())

	ids := b.intend(t, 1000, "usd", customers(2)...)
	b.exec(t, `INSERT INTO billing.quarantined_events (namespace, object_sha256, reason_code, reason, raw, first_source, first_position, last_source, last_position)
		VALUES ('usage', sha256('x'), 'not_json', 'r', 'x', 's', 'p', 's', 'p')`)
	b.exec(t, `INSERT INTO billing.conflicts (intent_id, stripe_customer_id, amount_cents, currency, first_source, first_position, last_source, last_position)
		VALUES ($1, 'cus_x', 5, 'usd', 's', 'p', 's', 'p')`, ids[0])
	require.Equal(t, []string{
		"pending (conflict) 1", "pending (queued) 1", "open conflicts 1", "events in quarantine, of unknown period 1", "expected and never came 1",
	}, refused())

	require.NoError(t, b.stripe.AddFaults(stripetest.Fault{Do: stripetest.CloseAfterEffect, Match: stripetest.Match{Method: "POST"}}))
	stop := start(t, b.config(t))
	b.until(t, ids[1], func(in intentNow) bool { return in.Reason == "in_doubt" })
	stop()
	require.Equal(t, []string{
		"charging (in_doubt) 1", "pending (conflict) 1", "in doubt 1", "open conflicts 1", "events in quarantine, of unknown period 1", "expected and never came 1",
	}, refused())

	b.stripe.ClearFaults()
	b.exec(t, `UPDATE billing.conflicts SET resolved_at = now(), resolved_by = 'test', resolution = 'kept_first'`)
	b.exec(t, `UPDATE billing.intents SET status_reason = 'queued' WHERE status_reason = 'conflict'`)
	b.exec(t, `UPDATE billing.quarantined_events SET resolved_at = now(), resolved_by = 'test', resolution = 'dismissed'`)
	cfg := b.config(t)
	cfg.ID += "-2"
	start(t, cfg)
	b.untilStatus(t, schema.StatusCharged, ids...)
	require.Equal(t, []string{"expected and never came 1"}, refused())
	closed, err := b.runs(t).Close(t.Context(), usdRun(), CloseRun{AcceptMissing: true, Actor: "test", Reason: "the third has left"})
	require.NoError(t, err)
	require.True(t, closed)
	require.JSONEq(t, `{"accept_missing": true}`, b.action(t, "run_close", "the third has left"))
	b.once(t, 1000, ids...)
}

// A forecast is worth something if the chargers then do just that.
func TestForecastIsWhatTheChargersThenDo(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 1000, "usd", append(customers(9), "cus_0000", "cus_0001")...)
	b.intend(t, 2000, "usd", "cus_large")
	b.intend(t, 500, "usd", "cus_small")
	b.exec(t, `INSERT INTO billing.conflicts (intent_id, stripe_customer_id, amount_cents, currency, first_source, first_position, last_source, last_position)
		VALUES ($1, 'cus_x', 5, 'usd', 's', 'p', 's', 'p')`, ids[2])
	terms := OpenRun{Namespace: testNamespace, BillingPeriod: testPeriod, Currency: "usd"}
	_, err := b.runs(t).Forecast(t.Context(), terms)
	require.ErrorContains(t, err, "there is no run")
	terms.ExpectedTotal, terms.Headroom, terms.Actor = "80.00", "10%", "test"
	before, err := b.runs(t).Forecast(t.Context(), terms)
	require.NoError(t, err)
	require.Zero(t, before.RunID)
	require.Equal(t, Sum{13, 135_00}, before.Ingested)
	require.Equal(t, Sum{9, 85_00}, before.Fits)
	require.Equal(t, Sum{1, 20_00}, before.NoRoom)
	require.Equal(t, Sum{1, 10_00}, before.Conflict)
	require.Equal(t, Sum{2, 20_00}, before.Same)
	require.Len(t, before.Left, 4)
	var runs int
	require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT count(*) FROM billing.runs`).Scan(&runs))
	require.Zero(t, runs, "a forecast opens nothing")

	b.open(t, "80.00", "usd")
	opened, err := b.runs(t).Forecast(t.Context(), OpenRun{Namespace: testNamespace, BillingPeriod: testPeriod, Currency: "usd"})
	require.NoError(t, err)
	require.Equal(t, before.Left, opened.Left)
	start(t, b.config(t))
	b.untilStanding(t, map[string]int{"charged/charged": 9, "pending/run_capped": 1, "pending/conflict": 1, "pending/same_customer": 2})
	for _, out := range before.Left {
		require.Equal(t, string(out.Reason), b.reason(t, out.IntentID))
	}
	after, err := b.runs(t).Forecast(t.Context(), terms)
	require.NoError(t, err)
	require.Equal(t, Sum{9, 85_00}, after.Begun)
	require.Zero(t, after.Fits)
	require.Equal(t, int64(3_00), after.LeftCents)
}

func (b *bundle) reason(t *testing.T, id int64) string {
	t.Helper()
	var reason string
	require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT status_reason FROM finance.intents WHERE id = $1`, id).Scan(&reason))
	return reason
}

// The kill switch holds inside every claim: once it is thrown, not one more is made, on whatever charger.
func TestM15KillSwitchStopsTheClaimsOfAllChargers(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{Latency: 20 * time.Millisecond})
	ids := b.intend(t, 1000, "usd", customers(400)...)
	b.open(t, "4000.00", "usd")
	for i := range 3 {
		cfg := b.config(t)
		cfg.ID, cfg.Workers = fmt.Sprintf("%s-%d", cfg.ID, i), 20
		start(t, cfg)
	}
	require.Eventually(t, func() bool { return len(b.stripe.Charges()) > 50 }, patience, time.Millisecond)
	require.NoError(t, b.runs(t).Switch(t.Context(), true, "test", "somebody reports double charges"))
	// Claims whose statement had begun by then may still stand; they take no second.
	require.Eventually(t, func() bool {
		var begun int
		require.NoError(t, b.owner.QueryRow(t.Context(), `
			SELECT count(*) FROM pg_stat_activity, billing.charging_switch
			WHERE datname = current_database() AND state = 'active' AND query LIKE '%IntentClaim%' AND pid <> pg_backend_pid() AND query_start < changed_at + interval '50 ms'`).Scan(&begun))
		return begun == 0
	}, patience, time.Millisecond)
	var claims int
	count := `SELECT count(*) FROM billing.charge_attempts WHERE operation = 'create'`
	require.NoError(t, b.owner.QueryRow(t.Context(), count).Scan(&claims))
	require.Less(t, claims, 400)
	// Calls on their way end and are recorded; everything else goes back to wait.
	require.Eventually(t, func() bool {
		var moving int
		require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT count(*) FROM billing.intents WHERE status = 'charging' OR river_job_id IS NOT NULL AND status = 'pending'`).Scan(&moving))
		return moving == 0
	}, patience, 20*time.Millisecond)
	var after, charged int
	require.NoError(t, b.owner.QueryRow(t.Context(), count).Scan(&after))
	require.Equal(t, claims, after, "claims after the switch was thrown")
	require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT count(*) FROM billing.intents WHERE status = 'charged'`).Scan(&charged))
	require.Len(t, b.stripe.Charges(), charged)
	require.NoError(t, b.runs(t).Switch(t.Context(), false, "test", "false alarm"))
	b.untilStatus(t, schema.StatusCharged, ids...)
	b.once(t, 1000, ids...)
}

// The cap of the proxy is reached at the 500th of a thousand charges, with a hundred workers at it.
func TestM15CapDenialInTheMiddleOfAThousandCharges(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{Latency: 5 * time.Millisecond})
	ids := b.intend(t, 100, "usd", customers(1000)...)
	_, _, err := b.runs(t).Open(t.Context(), OpenRun{
		Namespace: testNamespace, BillingPeriod: testPeriod, Currency: "usd", ExpectedTotal: "1000.00", Headroom: "10%", VaultUSDCap: "500.00", Actor: "test",
	})
	require.NoError(t, err)
	cfg, proxy := b.behindProxy(t, b.config(t), vaultkeytest.Config{Denial: "flat_402"})
	cfg.Workers, cfg.Window = 100, 400
	start(t, cfg)
	b.untilStanding(t, map[string]int{"charged/charged": 500, "pending/run_paused": 500})
	run := b.run(t)
	require.Equal(t, []string{"paused", "vault_denied"}, []string{run.Status, run.StatusReason})
	require.Zero(t, run.ResumeCount)
	var declined, discarded, pauses int
	require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT count(*) FROM billing.charge_attempts WHERE result = 'declined' OR decline_code IS NOT NULL`).Scan(&declined))
	require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT count(*) FROM river.river_job WHERE state = 'discarded'`).Scan(&discarded))
	require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT count(*) FROM billing.intents WHERE redispatches > 0`).Scan(&pauses))
	require.Zero(t, declined+discarded+pauses)
	_, _, err = b.runs(t).RaiseCap(t.Context(), usdRun(), RaiseCap{Cap: "1100.00", VaultUSDCap: "1100.00", Actor: "test", Reason: "the vault's was too small"})
	require.NoError(t, err)
	require.Equal(t, "paused", b.run(t).Status, "a person paused nothing, a person resumes")
	_, err = b.runs(t).Resume(t.Context(), usdRun(), "test", "goes on")
	require.NoError(t, err)
	b.untilStatus(t, schema.StatusCharged, ids...)
	b.once(t, 100, ids...)
	require.Equal(t, "open", b.run(t).Status)
	require.Len(t, proxy.Keys(), 2)
}

// What happens to a run's key in the middle of its charges, and the vault with it.
func TestM24KeyTroubleInTheMiddleOfARun(t *testing.T) {
	t.Parallel()
	for name, trouble := range map[string]func(t *testing.T, b *bundle, proxy *vaultkeytest.Server){
		"Expiry": func(t *testing.T, _ *bundle, proxy *vaultkeytest.Server) {
			t.Helper()
			require.Eventually(t, func() bool { return len(proxy.Keys()) > 1 }, patience, 20*time.Millisecond)
		},
		"Revocation": func(t *testing.T, _ *bundle, proxy *vaultkeytest.Server) {
			t.Helper()
			require.True(t, proxy.Revoke(proxy.Keys()[0].ID))
		},
		"ProxyAway": func(t *testing.T, b *bundle, proxy *vaultkeytest.Server) {
			t.Helper()
			require.NoError(t, proxy.AddFaults(vaultkeytest.Fault{Do: vaultkeytest.Away}))
			// Away until each of the 150 has met it, several times on average.
			require.Eventually(t, func() bool { return proxy.Faults()[0].Struck > 400 }, patience, 20*time.Millisecond)
			require.Equal(t, "open", b.run(t).Status, "an outage is nobody's decision")
			proxy.ClearFaults()
			b.exec(t, `UPDATE river.river_job SET scheduled_at = now() WHERE state IN ('retryable', 'scheduled')`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripetest.Config{Latency: 5 * time.Millisecond})
			ids := b.intend(t, 1000, "usd", customers(200)...)
			b.open(t, "2000.00", "usd")
			cfg, proxy := b.behindProxy(t, b.config(t), vaultkeytest.Config{Denial: "flat"})
			if name == "Expiry" {
				cfg.Keys.TTL, cfg.RatePerSecond = keyExpiryMargin+3*time.Second, 30
			}
			start(t, cfg)
			require.Eventually(t, func() bool { return len(b.stripe.Charges()) >= 50 }, patience, time.Millisecond)
			trouble(t, b, proxy)
			// Where a person is needed, a person comes.
			require.Eventually(t, func() bool {
				if run := b.run(t); run.Status == "paused" {
					require.Equal(t, []string{"Revocation", "vault_denied"}, []string{name, run.StatusReason})
					_, err := b.runs(t).Resume(t.Context(), usdRun(), "test", "another key")
					require.NoError(t, err)
				}
				var left int
				require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT count(*) FROM billing.intents WHERE status <> 'charged'`).Scan(&left))
				return left == 0
			}, patience, 50*time.Millisecond)
			b.once(t, 1000, ids...)
		})
	}
}

// The key that the doubt was sent with is gone; what the proxy knew of that request went with it.
func TestM24DoubtIsLookedUpBeforeItIsSentWithAnotherKey(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	known := b.intend(t, 1000, "usd", "cus_known") // shows that keys reach Stripe
	b.open(t, "100.00", "usd")
	cfg, proxy := b.behindProxy(t, b.config(t), vaultkeytest.Config{Denial: "flat"})
	start(t, cfg)
	b.untilStatus(t, schema.StatusCharged, known...)
	require.NoError(t, proxy.AddFaults(vaultkeytest.Fault{
		Do: vaultkeytest.Unavailable, Match: stripetest.Match{Method: "POST"}, Trigger: stripetest.Trigger{Nth: 1, Count: 1},
	}))
	id := b.intend(t, 1000, "usd", "cus_doubt")[0]
	b.until(t, id, func(in intentNow) bool { return in.Reason == "in_doubt" })
	_, _, err := b.runs(t).RaiseCap(t.Context(), usdRun(), RaiseCap{Cap: "200.00", Actor: "test", Reason: "r"})
	require.NoError(t, err)
	b.ageRows(t, id, 30*time.Second) // the pause before the next send, and the lease
	b.nudge(t, id)
	in := b.until(t, id, func(in intentNow) bool { return in.Status == "charged" })
	require.Equal(t, []string{"create:unknown", "look_up:absent", "create:charged"}, in.Results)
	require.Len(t, proxy.Keys(), 2)
	b.once(t, 1000, append(known, id)...)
}

// The proxy's cap is for a day and begins anew at midnight UTC; ours is for the run.
func TestM20CapHoldsOverTheMidnightOfTheProxysCap(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	b.intend(t, 1000, "usd", customers(11)...)
	b.open(t, "100.00", "usd")
	cfg, proxy := b.behindProxy(t, b.config(t), vaultkeytest.Config{Denial: "flat"})
	start(t, cfg)
	b.untilStanding(t, map[string]int{"charged/charged": 11})
	proxy.Advance(24 * time.Hour)
	b.intend(t, 1000, "usd", "cus_tomorrow")
	b.untilStanding(t, map[string]int{"charged/charged": 11, "pending/run_capped": 1})
	require.Len(t, b.stripe.Charges(), 11)
}

// Look-ups and reads go on when the cap is reached: a doubt must not wait for money.
func TestM15DoubtIsLookedUpAtTheCap(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	_, _, err := b.runs(t).Open(t.Context(), OpenRun{
		Namespace: testNamespace, BillingPeriod: testPeriod, Currency: "usd", ExpectedTotal: "100.00", Headroom: "0%", VaultUSDCap: "20.00", Actor: "test",
	})
	require.NoError(t, err)
	known := b.intend(t, 1000, "usd", "cus_known") // shows that keys reach Stripe
	cfg, proxy := b.behindProxy(t, b.config(t), vaultkeytest.Config{Denial: "flat"})
	start(t, cfg)
	b.untilStatus(t, schema.StatusCharged, known...)
	require.NoError(t, proxy.AddFaults(vaultkeytest.Fault{
		Do: vaultkeytest.DropAnswer, Match: stripetest.Match{Method: "POST"}, Trigger: stripetest.Trigger{Nth: 1, Count: 1},
	}))
	id := b.intend(t, 1000, "usd", "cus_doubt")[0]
	b.until(t, id, func(in intentNow) bool { return in.Reason == "in_doubt" })
	b.intend(t, 1000, "usd", "cus_denied")
	require.Eventually(t, func() bool { return b.run(t).Status == "paused" }, patience, 20*time.Millisecond)
	b.ageRows(t, id, 2*time.Minute)
	b.nudge(t, id)
	in := b.until(t, id, func(in intentNow) bool { return in.Status == "charged" })
	require.Equal(t, "look_up:found", in.Results[len(in.Results)-1], "%v", in.Results)
	require.True(t, slices.ContainsFunc(b.stripe.Charges(), func(c stripetest.Effect) bool { return c.ID == *in.ChargeID }))
}
