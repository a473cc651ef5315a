package charger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"chargeonce/charger/stripecharge/stripetest"
	"chargeonce/charger/vaultkey"
	"chargeonce/charger/vaultkey/vaultkeytest"
	"chargeonce/schema"
	"chargeonce/sql"
	"chargeonce/sql/queries"
)

const (
	oldEncryptionKey = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f" // behindProxy's
	newEncryptionKey = "f00102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
)

func sealerOf(t *testing.T, keys ...string) *vaultkey.Sealer {
	t.Helper()
	parsed := make([]vaultkey.EncryptionKey, len(keys))
	for i, k := range keys {
		var err error
		parsed[i], err = vaultkey.ParseEncryptionKey(k)
		require.NoError(t, err)
	}
	sealer, err := vaultkey.NewSealer(parsed[0], parsed[1:]...)
	require.NoError(t, err)
	return sealer
}

// The encryption key is replaced between two starts: with the old one behind the new one the vault key goes on, without it the vault
// key counts as expired, and is taken back before another is issued.
func TestM24EncryptionKeyIsReplaced(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		keys  []string
		made  int
		state string
	}{
		"OldOneKept": {[]string{newEncryptionKey, oldEncryptionKey}, 1, "active"},
		"OldOneLost": {[]string{newEncryptionKey}, 2, "revoked"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripetest.Config{})
			first := b.intend(t, 1000, "usd", "cus_a")
			b.open(t, "100.00", "usd")
			cfg, proxy := b.behindProxy(t, b.config(t), vaultkeytest.Config{Denial: "flat"})
			stop := start(t, cfg)
			b.untilStatus(t, schema.StatusCharged, first...)
			stop()
			second := b.intend(t, 1000, "usd", "cus_b")
			again := cfg
			again.ID, again.Registry, again.Keys.Sealer = cfg.ID+"-2", nil, sealerOf(t, c.keys...)
			start(t, again)
			b.untilStatus(t, schema.StatusCharged, second...)
			require.Len(t, proxy.Keys(), c.made)
			require.Equal(t, c.state, proxy.Keys()[0].Status)
			require.Equal(t, 1, active(proxy), "never two caps at once")
			require.Equal(t, "open", b.run(t).Status)
			b.once(t, 1000, append(first, second...)...)
		})
	}
}

// A given key that Stripe takes no more: nobody can issue another, so the run pauses and says so; nothing is declined or parked.
func TestM24GivenKeyRevokedPausesTheRun(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	first := b.intend(t, 1000, "usd", "cus_a")
	b.open(t, "100.00", "usd")
	start(t, b.config(t))
	b.untilStatus(t, schema.StatusCharged, first...)
	require.NoError(t, b.stripe.AddFaults(stripetest.Fault{Do: stripetest.Unauthorized}))
	second := b.intend(t, 1000, "usd", customers(10)...)
	b.untilStanding(t, map[string]int{"charged/charged": 1, "pending/run_paused": 10})
	require.Equal(t, "vault_denied", b.run(t).StatusReason)
	b.stripe.ClearFaults()
	_, err := b.runs(t).Resume(t.Context(), usdRun(), "test", "the key is good again")
	require.NoError(t, err)
	b.untilStatus(t, schema.StatusCharged, second...)
	b.once(t, 1000, append(first, second...)...)
}

// A process that died between its row and the proxy's answer: the row's lease ends, and another process issues. At worst a key that
// nobody knows is left at the proxy.
func TestM24CrashWhileIssuingHoldsUpNobodyForLong(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 1000, "usd", "cus_a")
	run := b.open(t, "100.00", "usd")
	b.exec(t, `INSERT INTO billing.vault_keys (run_id, state, label, usd_cap_cents, lease_until, expires_at)
		VALUES ($1, 'issuing', 'of a dead process', 11000, now() + interval '1 hour', now() + interval '2 days')`, run.ID)
	cfg, proxy := b.behindProxy(t, b.config(t), vaultkeytest.Config{})
	start(t, cfg)
	require.Eventually(t, func() bool { // while the lease lasts the process may still be alive: nobody else issues
		var tried int
		err := b.owner.QueryRow(t.Context(), `SELECT count(*) FROM river.river_job WHERE attempted_at IS NOT NULL AND state <> 'running'`).Scan(&tried)
		return err == nil && tried == 1
	}, patience, 20*time.Millisecond)
	require.Empty(t, proxy.Keys())
	require.Equal(t, "open", b.run(t).Status)
	b.exec(t, `UPDATE billing.vault_keys SET lease_until = now()`)
	b.nudge(t, ids[0])
	b.untilStatus(t, schema.StatusCharged, ids...)
	require.Len(t, proxy.Keys(), 1)
}

// The proxy counts dollars. For a run in yen the operator says what its cap is in dollars, and a key gets the share that is left.
func TestM24RunInAnotherCurrencyHasTheOperatorsShareInDollars(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	terms := OpenRun{Namespace: testNamespace, BillingPeriod: testPeriod, Currency: "jpy", ExpectedTotal: "10000", Headroom: "0%", Actor: "test"}
	_, _, err := b.runs(t).Open(t.Context(), terms)
	require.NoError(t, err)
	b.intend(t, 4000, "jpy", "cus_a")
	cfg, proxy := b.behindProxy(t, b.config(t), vaultkeytest.Config{OtherCurrency: vaultkeytest.IgnoreOther})
	stop := start(t, cfg)
	b.untilStanding(t, map[string]int{"pending/run_paused": 1})
	var detail string
	require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT status_detail FROM billing.runs`).Scan(&detail))
	require.Contains(t, detail, "a run in jpy needs `charger run raise-cap --cap 10000 --vault-usd-cap DOLLARS`")
	require.Empty(t, proxy.Keys())
	key := usdRun()
	key.Currency = "jpy"
	_, _, err = b.runs(t).RaiseCap(t.Context(), key, RaiseCap{Cap: "10000", VaultUSDCap: "70.00", Actor: "test", Reason: "forgotten"})
	require.NoError(t, err)
	_, err = b.runs(t).Resume(t.Context(), key, "test", "with a cap in dollars")
	require.NoError(t, err)
	b.untilStanding(t, map[string]int{"charged/charged": 1})
	require.Equal(t, int64(70_00), proxy.Keys()[0].CapCents)
	stop()
	b.exec(t, `UPDATE billing.vault_keys SET expires_at = now()`)
	b.intend(t, 1000, "jpy", "cus_b")
	again := cfg
	again.ID, again.Registry = cfg.ID+"-2", nil
	start(t, again)
	b.untilStanding(t, map[string]int{"charged/charged": 2})
	require.Equal(t, int64(42_00), proxy.Keys()[1].CapCents, "of 10,000 yen 6,000 are left")
}

// The key may end between the question whether it is the run's and the pause: the statement itself asks again.
func TestM15PauseForAnEndedKeyIsNone(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	run := b.open(t, "100.00", "usd")
	var id int64
	require.NoError(t, b.owner.QueryRow(t.Context(), `INSERT INTO billing.vault_keys (run_id, state, label, usd_cap_cents, lease_until, expires_at, ended_at)
		VALUES ($1, 'revoked', 'l', 1, now(), now(), now()) RETURNING id`, run.ID).Scan(&id))
	rows, err := queries.New().RunPause(t.Context(), b.db.Pool(t, sql.RoleCharger), queries.RunPauseParams{
		ID: run.ID, StatusReason: "vault_denied", ResumeCount: &run.ResumeCount, VaultKeyID: &id,
	})
	require.NoError(t, err)
	require.Zero(t, rows)
	require.Equal(t, "open", b.run(t).Status)
}
