package charger

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"chargeonce/charger/stripecharge/stripetest"
	"chargeonce/charger/vaultkey"
	"chargeonce/charger/vaultkey/vaultkeytest"
	"chargeonce/schema"
	"chargeonce/sql/queries"
)

// A key comes to its end in the middle of a run. Workers that took it before and waited for a token are refused with it: that
// says nothing about the next one.
func TestM15KeyRotationDoesNotPauseTheRun(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 1000, "usd", customers(120)...)
	b.open(t, "5000.00", "usd")
	cfg, proxy := b.behindProxy(t, b.config(t), vaultkeytest.Config{Denial: "flat"})
	cfg.RatePerSecond = 15
	cfg.Keys.TTL = keyExpiryMargin + 4*time.Second // the first key is used for four seconds
	start(t, cfg)
	b.untilStatus(t, schema.StatusCharged, ids...)
	require.Equal(t, "open", b.run(t).Status)
	require.Zero(t, b.run(t).ResumeCount)
	require.Greater(t, len(proxy.Keys()), 1, "the key was replaced in the middle")
	b.once(t, 1000, ids...)
}

// Somebody revokes the key at the proxy. The run pauses, and a person's resume gets it another one.
func TestRevokedKeyIsIssuedAnewAfterResume(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	first := b.intend(t, 1000, "usd", "cus_a")
	b.open(t, "5000.00", "usd")
	cfg, proxy := b.behindProxy(t, b.config(t), vaultkeytest.Config{Denial: "flat"})
	start(t, cfg)
	b.untilStatus(t, schema.StatusCharged, first...)
	require.NoError(t, cfg.Keys.Issuer.Revoke(t.Context(), proxy.Keys()[0].ID))
	second := b.intend(t, 1000, "usd", "cus_b")
	require.Eventually(t, func() bool { return b.run(t).Status == "paused" }, patience, 10*time.Millisecond)
	_, err := b.runs(t).Resume(t.Context(), usdRun(), "test", "the key was revoked by mistake")
	require.NoError(t, err)
	b.untilStatus(t, schema.StatusCharged, second...)
	require.Len(t, proxy.Keys(), 2)
	b.once(t, 1000, append(first, second...)...)
}

// What is left is the cap less what was charged, for the second key too.
func TestM24SecondKeyHasOnlyWhatIsLeftOfTheOperatorsCap(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 6000, "usd", "cus_a")
	_, _, err := b.runs(t).Open(t.Context(), OpenRun{
		Namespace: testNamespace, BillingPeriod: testPeriod, Currency: "usd", ExpectedTotal: "100.00", Headroom: "0%", VaultUSDCap: "100.00", Actor: "test",
	})
	require.NoError(t, err)
	cfg, proxy := b.behindProxy(t, b.config(t), vaultkeytest.Config{})
	stop := start(t, cfg)
	b.untilStatus(t, schema.StatusCharged, ids...)
	stop()
	b.exec(t, `UPDATE billing.vault_keys SET expires_at = now() + interval '1 minute'`) // comes to its end
	more := b.intend(t, 3000, "usd", "cus_b")
	again := cfg
	again.ID, again.Registry = cfg.ID+"-2", nil
	start(t, again)
	b.untilStatus(t, schema.StatusCharged, more...)
	keys := proxy.Keys()
	require.Len(t, keys, 2)
	require.LessOrEqual(t, keys[1].CapCents, int64(4000), "60.00 of 100.00 are charged")
}

// shortGrant is a proxy that grants less time than asked for.
type shortGrant struct{ vaultkey.Issuer }

func (s shortGrant) Issue(ctx context.Context, r vaultkey.Request) (vaultkey.Key, error) {
	key, err := s.Issuer.Issue(ctx, r)
	key.ExpiresAt = time.Now().Add(time.Minute)
	return key, err
}

// A proxy may grant less time than was asked for.
func TestShorterGrantedExpiryIsTheKeysExpiry(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 1000, "usd", "cus_a")
	b.open(t, "5000.00", "usd")
	cfg, _ := b.behindProxy(t, b.config(t), vaultkeytest.Config{})
	cfg.Keys.Issuer = shortGrant{cfg.Keys.Issuer}
	start(t, cfg)
	b.untilStatus(t, schema.StatusCharged, ids...)
	var left float64
	require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT extract(epoch FROM expires_at - now())::float8 FROM billing.vault_keys`).Scan(&left))
	require.Less(t, left, 61.0, "the key dies in a minute, the database trusts it for two days")
}

// slowVault answers nothing, late: a vault that hangs.
type slowVault struct{ vaultkey.Issuer }

func (s slowVault) Issue(ctx context.Context, _ vaultkey.Request) (vaultkey.Key, error) {
	select {
	case <-ctx.Done():
	case <-time.After(600 * time.Millisecond): // Keybrake's own is 15 s, against a call's 30 s; here the call's is 2 s
	}
	return vaultkey.Key{}, fmt.Errorf("hangs: %w", errors.Join(vaultkey.ErrUnavailable))
}

// The vault hangs for as long as it takes all workers several times to give up waiting. Nothing was sent, so nobody is parked.
func TestHangingVaultParksNobody(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 1000, "usd", customers(20)...)
	b.open(t, "5000.00", "usd")
	cfg, _ := b.behindProxy(t, b.config(t), vaultkeytest.Config{})
	cfg.Keys.Issuer, cfg.CallTimeout = slowVault{cfg.Keys.Issuer}, 2*time.Second
	start(t, cfg)
	require.Eventually(t, func() bool { // each intent was tried several times
		var tried int
		err := b.owner.QueryRow(t.Context(), `SELECT count(*) FROM river.river_job WHERE attempt >= 3 OR cardinality(errors) >= 3`).Scan(&tried)
		return err == nil && tried >= len(ids)
	}, patience, 50*time.Millisecond)
	for _, id := range ids {
		require.Equal(t, "pending", b.intent(t, id).Status)
	}
}

// active counts the keys that live at the proxy, each with its own cap.
func active(proxy *vaultkeytest.Server) int {
	n := 0
	for _, k := range proxy.Keys() {
		if k.Status == "active" {
			n++
		}
	}
	return n
}

// A proxy that denies its cap (or anything) with a flat 401: the key lives on there.
func TestM24DeniedKeyIsRevokedBeforeAnotherIsIssued(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 1000, "usd", "cus_a")
	b.open(t, "5000.00", "usd")
	cfg, proxy := b.behindProxy(t, b.config(t), vaultkeytest.Config{})
	require.NoError(t, proxy.AddFaults(vaultkeytest.Fault{Do: vaultkeytest.Deny, Style: vaultkeytest.Flat401, Match: stripetest.Match{Method: "POST", Path: "/v1/payment_intents"}, Trigger: stripetest.Trigger{Count: 1}}))
	start(t, cfg)
	require.Eventually(t, func() bool { return b.run(t).Status == "paused" }, patience, 10*time.Millisecond)
	require.Eventually(t, func() bool { return active(proxy) == 0 }, patience, 10*time.Millisecond)
	_, err := b.runs(t).Resume(t.Context(), usdRun(), "test", "mended")
	require.NoError(t, err)
	b.untilStatus(t, schema.StatusCharged, ids...)
	require.Equal(t, 1, active(proxy))
}

// --account-unverified, and a proxy that answers 401 to the account's page.
func TestM11AccountUnverifiedKeepsItsKey(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 1000, "usd", customers(4)...)
	b.open(t, "5000.00", "usd")
	cfg, proxy := b.behindProxy(t, b.config(t), vaultkeytest.Config{})
	cfg.Keys.AccountUnverified = true
	require.NoError(t, proxy.AddFaults(vaultkeytest.Fault{Do: vaultkeytest.Deny, Style: vaultkeytest.Flat401, Match: stripetest.Match{Path: "/v1/account"}}))
	other := cfg
	other.ID, other.Registry = cfg.ID+"-2", nil
	one, err := New(cfg)
	require.NoError(t, err)
	two, err := New(other)
	require.NoError(t, err)
	require.NoError(t, one.dispatchAll(t.Context(), false, false))
	intent, err := one.queries.IntentForWork(t.Context(), one.pool, queries.IntentForWorkParams{ID: ids[0], WindowSeconds: Window.Seconds()})
	require.NoError(t, err)
	acc, err := one.keys.access(t.Context(), intent)
	require.NoError(t, err)
	_, err = two.keys.access(t.Context(), intent)
	require.NoError(t, err)
	var state string
	require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT state FROM billing.vault_keys WHERE id = $1`, *acc.vaultKeyID).Scan(&state))
	require.Equal(t, "active", state)
	require.Equal(t, 1, active(proxy))
}

// The same, and then creates are denied: the run must pause.
func TestM11AccountUnverifiedDenialPausesTheRun(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	b.intend(t, 1000, "usd", customers(2)...)
	b.open(t, "5000.00", "usd")
	cfg, proxy := b.behindProxy(t, b.config(t), vaultkeytest.Config{})
	cfg.Keys.AccountUnverified = true
	require.NoError(t, proxy.AddFaults(
		vaultkeytest.Fault{Do: vaultkeytest.Deny, Style: vaultkeytest.Flat401, Match: stripetest.Match{Path: "/v1/account"}},
		vaultkeytest.Fault{Do: vaultkeytest.Deny, Style: vaultkeytest.Flat403, Match: stripetest.Match{Method: "POST", Path: "/v1/payment_intents"}},
	))
	start(t, cfg)
	require.Eventually(t, func() bool { return b.run(t).Status == "paused" }, patience, 10*time.Millisecond)
	require.Equal(t, "vault_denied", b.run(t).StatusReason)
}

type hangingVault struct{ vaultkey.Issuer }

func (hangingVault) Issue(ctx context.Context, _ vaultkey.Request) (vaultkey.Key, error) {
	<-ctx.Done()
	return vaultkey.Key{}, ctx.Err()
}

// A vault that hangs for as long as the turn lasts: its row must not stand as "issuing" for the rest of its lease.
func TestHangingVaultLeavesNoLease(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	id := b.intend(t, 1000, "usd", "cus_a")[0]
	b.open(t, "5000.00", "usd")
	cfg, _ := b.behindProxy(t, b.config(t), vaultkeytest.Config{})
	cfg.Keys.Issuer, cfg.CallTimeout = hangingVault{cfg.Keys.Issuer}, time.Second
	c, err := New(cfg)
	require.NoError(t, err)
	require.NoError(t, c.dispatchAll(t.Context(), false, false))
	intent, err := c.queries.IntentForWork(t.Context(), c.pool, queries.IntentForWorkParams{ID: id, WindowSeconds: Window.Seconds()})
	require.NoError(t, err)
	_, err = c.keys.access(t.Context(), intent)
	require.Error(t, err)
	var state string
	var left float64
	require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT state, extract(epoch FROM lease_until - now())::float8 FROM billing.vault_keys`).Scan(&state, &left))
	require.Equal(t, "failed", state, "every charger waits for %.0f s more", left)
}

// Some proxies name what a key may call by operation, others by path: with either a key may do all that a charge can need.
func TestKeysMayDoAllThatAChargeNeedsByOperationOrPath(t *testing.T) {
	t.Parallel()
	for style, allowed := range map[string][]string{"operations": vaultkey.AllowedEndpoints(), "paths": vaultkey.AllowedPaths()} {
		t.Run(style, func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripetest.Config{})
			b.open(t, "100.00", "usd")
			cfg, proxy := b.behindProxy(t, b.config(t), vaultkeytest.Config{Denial: "flat"})
			cfg.Keys.AllowedEndpoints = allowed
			require.NoError(t, proxy.AddFaults(vaultkeytest.Fault{
				Do: vaultkeytest.DropAnswer, Match: stripetest.Match{Method: "POST", Path: "/v1/payment_intents"}, Trigger: stripetest.Trigger{Nth: 1, Count: 1},
			}))
			ids := b.intend(t, 1000, "usd", "cus_a", "cus_b_decline_do_not_honor")
			start(t, cfg)
			b.untilStatus(t, schema.StatusCharged, ids[0])
			b.untilStatus(t, schema.StatusCardDeclined, ids[1])
			require.Equal(t, "open", b.run(t).Status, "no call was refused")
			require.Equal(t, allowed, proxy.Keys()[0].AllowedEndpoints)
		})
	}
}

// The cap is raised while the proxy cannot be asked to take the old key back: until it has, there is no other.
func TestM24OldKeyIsRevokedBeforeTheRaisedCapHasOne(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	first := b.intend(t, 1000, "usd", "cus_a")
	b.open(t, "50.00", "usd")
	cfg, proxy := b.behindProxy(t, b.config(t), vaultkeytest.Config{})
	start(t, cfg)
	b.untilStatus(t, schema.StatusCharged, first...)
	require.NoError(t, proxy.AddFaults(vaultkeytest.Fault{
		Do: vaultkeytest.Unavailable, Match: stripetest.Match{Method: "DELETE"}, Trigger: stripetest.Trigger{Count: 1},
	}))
	_, _, err := b.runs(t).RaiseCap(t.Context(), usdRun(), RaiseCap{Cap: "100.00", Actor: "test", Reason: "more came"})
	require.NoError(t, err)
	second := b.intend(t, 1000, "usd", "cus_b")
	b.untilStatus(t, schema.StatusCharged, second...)
	require.Len(t, proxy.Keys(), 2)
	require.Equal(t, 1, active(proxy), "two living keys are two caps")
	b.once(t, 1000, append(first, second...)...)
}

// raisedMeanwhile raises the run's cap while the first key is being issued for what was left of the old one.
type raisedMeanwhile struct {
	vaultkey.Issuer
	raise func()
	once  sync.Once
}

func (r *raisedMeanwhile) Issue(ctx context.Context, req vaultkey.Request) (vaultkey.Key, error) {
	key, err := r.Issuer.Issue(ctx, req)
	r.once.Do(r.raise)
	return key, err
}

func TestM24KeyIssuedWhileTheCapIsRaisedIsNobodys(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	ids := b.intend(t, 1000, "usd", customers(20)...)
	b.open(t, "50.00", "usd")
	cfg, proxy := b.behindProxy(t, b.config(t), vaultkeytest.Config{})
	var stale queries.BillingRun
	cfg.Keys.Issuer = &raisedMeanwhile{Issuer: cfg.Keys.Issuer, raise: func() {
		run, err := queries.New().RunGet(t.Context(), b.owner, usdRun())
		require.NoError(t, err)
		stale = run
		_, _, err = b.runs(t).RaiseCap(t.Context(), usdRun(), RaiseCap{Cap: "200.00", Actor: "test", Reason: "more came"})
		require.NoError(t, err)
	}}
	start(t, cfg)
	b.untilStatus(t, schema.StatusCharged, ids...)
	require.Equal(t, "open", b.run(t).Status, "a key for the old cap would have been denied")
	require.Equal(t, 1, active(proxy))
	b.once(t, 1000, ids...)

	// And one that is about to be issued for a cap that was read before the raise.
	b.exec(t, `UPDATE billing.vault_keys SET state = 'expired' WHERE state = 'active'`)
	other := cfg
	other.ID, other.Registry = cfg.ID+"-2", nil
	c, err := New(other)
	require.NoError(t, err)
	_, err = c.keys.issue(t.Context(), stale, &access{})
	require.ErrorIs(t, err, errIssuing)
	require.Equal(t, 1, active(proxy))
}

// The given key was revoked: the cure is another key, not more rights for this one.
func TestRevokedKeyIsNotToldThatItLacksARight(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	b.intend(t, 1000, "usd", "cus_a")
	b.open(t, "50.00", "usd")
	cfg, proxy := b.behindProxy(t, b.config(t), vaultkeytest.Config{Denial: "flat"})
	require.NoError(t, proxy.AddFaults(vaultkeytest.Fault{Do: vaultkeytest.Deny, Style: vaultkeytest.Flat401, Match: stripetest.Match{Path: "/v1/account"}}))
	start(t, cfg)
	b.untilStanding(t, map[string]int{"pending/run_paused": 1})
	var detail string
	require.NoError(t, b.owner.QueryRow(t.Context(), `SELECT status_detail FROM billing.runs`).Scan(&detail))
	require.Contains(t, detail, "the vault key is not taken")
	require.Contains(t, detail, "`charger run resume` issues another")
}

// withoutRevoking is a proxy that has no way to revoke keys, and says so.
type withoutRevoking struct{ vaultkey.Issuer }

func (withoutRevoking) Revoke(context.Context, string) error {
	return &vaultkey.RefusedError{HTTPStatus: http.StatusMethodNotAllowed, Reason: "no such method"}
}

// A key that is no longer taken is replaced where it cannot be revoked, too.
func TestM24DeniedKeyIsReplacedAtAProxyThatCannotRevoke(t *testing.T) {
	t.Parallel()
	b := setup(t, stripetest.Config{})
	first := b.intend(t, 1000, "usd", "cus_a")
	b.open(t, "50.00", "usd")
	cfg, proxy := b.behindProxy(t, b.config(t), vaultkeytest.Config{Denial: "flat"})
	cfg.Keys.Issuer = withoutRevoking{cfg.Keys.Issuer}
	start(t, cfg)
	b.untilStatus(t, schema.StatusCharged, first...)
	require.True(t, proxy.Revoke(proxy.Keys()[0].ID)) // by hand, on its page
	second := b.intend(t, 1000, "usd", "cus_b")
	require.Eventually(t, func() bool { return b.run(t).Status == "paused" }, patience, 10*time.Millisecond)
	_, err := b.runs(t).Resume(t.Context(), usdRun(), "test", "it was revoked by hand")
	require.NoError(t, err)
	b.untilStatus(t, schema.StatusCharged, second...)
	require.Len(t, proxy.Keys(), 2)
	b.once(t, 1000, append(first, second...)...)
}
