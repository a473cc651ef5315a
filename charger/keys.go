package charger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"chargeonce/charger/stripecharge"
	"chargeonce/charger/vaultkey"
	"chargeonce/schema"
	"chargeonce/sql/queries"
)

// KeysConfig says where a run's Stripe key comes from.
type KeysConfig struct {
	Issuer    vaultkey.Issuer  // a spend-cap proxy, or the one given key
	Sealer    *vaultkey.Sealer // encrypts issued keys in the database; nil for a given key, which is not stored
	TTL       time.Duration
	StripeURL string // the proxy or Stripe; empty is Stripe
	Transport *stripecharge.Transport

	// AllowedEndpoints is what an issued key may call; nil is vaultkey.AllowedEndpoints.
	AllowedEndpoints []string

	// AccountUnverified charges although the key may not read its own account, so that nobody can tell whose money it is.
	AccountUnverified bool
}

const (
	defaultKeyTTL = 48 * time.Hour
	// keyExpiryMargin is how long before its end a key is no longer used.
	keyExpiryMargin = 2 * time.Minute
	// endKeysEvery is how often keys of closed runs are looked for.
	endKeysEvery = 10 * time.Second
	// issueLease is how long one process may take to issue a key.
	issueLease = time.Minute
	// accountUnverified stands in frozen requests where the account could not be read.
	accountUnverified = "unverified"
)

// access is the right to call Stripe for one run.
type access struct {
	client     *stripecharge.Client
	account    string
	vaultKeyID *int64
	providerID string    // by which the proxy takes the key back
	expiresAt  time.Time // by this process's clock; zero: never

	// livemode is whether the key moves real money, compared with the run's. Stripe's account object does not say it: the
	// first customer read with the key does, before anything is sent.
	livemode atomic.Pointer[bool]
}

// replaces tells whether the last send was made with another issued key than this one. What a proxy between here and Stripe keeps of a
// key's requests ends with the key: what is in doubt is looked up before it is sent again with another.
func (a *access) replaces(lastVaultKeyID int64) bool {
	return a.vaultKeyID != nil && lastVaultKeyID != 0 && *a.vaultKeyID != lastVaultKeyID
}

// keyError says that a run's key is refused: the run pauses until a person has mended it.
type keyError struct {
	reason string // of the run's pause
	err    error
}

func (e *keyError) Error() string { return e.err.Error() }
func (e *keyError) Unwrap() error { return e.err }

func isKeyError(err error) bool {
	_, ok := errors.AsType[*keyError](err)
	return ok
}

// errIssuing says that another process is issuing the run's key at this moment, or that a person raised the cap meanwhile.
var errIssuing = errors.New("the run's vault key is being issued elsewhere, or anew")

// keys hands out each run's access, and keeps the decrypted keys in this process's memory only.
type keys struct {
	*Charger
	cfg KeysConfig

	mu   sync.Mutex
	runs map[runKey]*runAccess
}

// runKey includes the resume count: a run that a person resumed reads its key anew.
type runKey struct {
	runID       int64
	resumeCount int32
}

// runAccess is what this process knows of one run's key. Its fields belong to whoever holds the turn: one worker opens the
// run for all, and the others wait no longer than a call may take.
type runAccess struct {
	turn      chan struct{}
	access    *access
	failed    error
	failUntil time.Time
}

// failFor is how long a failed opening is remembered: a vault that hangs is not asked anew by every worker that waits.
const failFor = 2 * time.Second

func newKeys(c *Charger, cfg KeysConfig) (*keys, error) {
	if cfg.TTL == 0 {
		cfg.TTL = defaultKeyTTL
	}
	if cfg.AllowedEndpoints == nil {
		cfg.AllowedEndpoints = vaultkey.AllowedEndpoints()
	}
	switch {
	case cfg.Issuer == nil:
		return nil, errors.New("internal error: a charger needs an issuer of vault keys")
	case cfg.Transport == nil:
		cfg.Transport = stripecharge.NewTransport()
	}
	return &keys{Charger: c, cfg: cfg, runs: map[runKey]*runAccess{}}, nil
}

// access returns the verified access of the intent's run. An error that is a *keyError pauses the run; any other passes by
// itself.
func (k *keys) access(ctx context.Context, intent queries.IntentForWorkRow) (*access, error) {
	if intent.RunID == nil {
		return nil, fmt.Errorf("internal error: intent %d has no run", intent.ID)
	}
	key := runKey{*intent.RunID, intent.RunResumeCount}
	k.mu.Lock()
	run, ok := k.runs[key]
	if !ok {
		run = &runAccess{turn: make(chan struct{}, 1)}
		k.runs[key] = run
	}
	k.mu.Unlock()

	ctx, cancel := context.WithTimeoutCause(ctx, k.Charger.cfg.CallTimeout, errors.New("the run's vault key is being opened by another worker"))
	defer cancel()
	select {
	case run.turn <- struct{}{}:
		defer func() { <-run.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if run.access != nil && (run.access.expiresAt.IsZero() || time.Now().Before(run.access.expiresAt.Add(-keyExpiryMargin))) {
		return run.access, nil
	}
	if time.Now().Before(run.failUntil) {
		return nil, run.failed
	}
	run.access, run.failed = k.open(ctx, *intent.RunID)
	if run.failed != nil {
		run.access, run.failUntil = nil, time.Now().Add(failFor)
	}
	return run.access, run.failed
}

// denied forgets a key that was refused. One that the proxy or Stripe no longer knows (401) is ended, so that the run gets
// another one when a person has resumed it; a denial for any other reason leaves the key as it is.
func (k *keys) denied(ctx context.Context, intent queries.IntentForWorkRow, acc *access, httpStatus int) error {
	k.mu.Lock()
	delete(k.runs, runKey{*intent.RunID, intent.RunResumeCount})
	k.mu.Unlock()
	ended, err := k.refused(ctx, acc, httpStatus)
	if err != nil || !ended {
		return err
	}
	k.log.WarnContext(ctx, "the run's vault key is no longer taken; next: another is issued when the run goes on", slog.Int64("run_id", *intent.RunID), slog.Int64("vault_key_id", *acc.vaultKeyID))
	return nil
}

// refused ends a key that a 401 is about, at the proxy first. It tells whether this call did: every worker may be refused with it.
func (k *keys) refused(ctx context.Context, acc *access, httpStatus int) (ended bool, err error) {
	if httpStatus != http.StatusUnauthorized || acc.vaultKeyID == nil {
		return false, nil
	}
	if err := k.revoke(ctx, *acc.vaultKeyID, acc.providerID, false); err != nil {
		return false, err
	}
	rows, err := k.queries.VaultKeyEnd(ctx, k.pool, queries.VaultKeyEndParams{ID: *acc.vaultKeyID, State: "revoked"})
	if err != nil {
		return false, fmt.Errorf("end vault key %d: %w", *acc.vaultKeyID, err)
	}
	return rows > 0, nil
}

// open gets the run's key and sees whose account it leads to, before anything is charged with it.
func (k *keys) open(ctx context.Context, runID int64) (*access, error) {
	run, err := k.queries.RunGetByID(ctx, k.pool, runID)
	if err != nil {
		return nil, fmt.Errorf("read run %d: %w", runID, err)
	}
	acc := &access{}
	secret, err := k.secret(ctx, run, acc)
	if err != nil {
		return nil, err
	}
	acc.client, err = stripecharge.New(stripecharge.Config{
		Transport: k.cfg.Transport, URL: k.cfg.StripeURL, Key: secret, Timeout: k.Charger.cfg.CallTimeout, Logger: k.log,
	})
	if err != nil {
		return nil, &keyError{reason: "vault_denied", err: err}
	}
	if err := k.verify(ctx, run, acc); err != nil {
		return nil, err
	}
	return acc, nil
}

func (k *keys) secret(ctx context.Context, run queries.BillingRun, acc *access) (string, error) {
	if k.cfg.Sealer != nil {
		return k.living(ctx, run, acc)
	}
	given, err := k.cfg.Issuer.Issue(ctx, vaultkey.Request{})
	if err != nil {
		return "", fmt.Errorf("the given vault key of run %d: %w", run.ID, err)
	}
	return given.Secret, nil
}

// verify compares the key's account with the run's; the run's first verified key names it.
func (k *keys) verify(ctx context.Context, run queries.BillingRun, acc *access) error {
	now, err := k.queries.DatabaseNow(ctx, k.pool)
	if err != nil {
		return fmt.Errorf("read the database's clock: %w", err)
	}
	readAt := time.Now()
	info, answer := acc.client.Account(ctx)
	if skew := clockSkew(answer.Date, now, readAt); skew > maxClockSkew {
		// The run is paused, which stops creates; reads and look-ups need this access still.
		detail := fmt.Sprintf("the clocks of Stripe and the database are %s apart", skew.Round(time.Second))
		if _, err := k.queries.RunPause(ctx, k.pool, queries.RunPauseParams{ID: run.ID, StatusReason: "clock_skew", StatusDetail: detail}); err != nil {
			return fmt.Errorf("pause run %d: %w", run.ID, err)
		}
		k.log.ErrorContext(ctx, "run paused", slog.Int64("run_id", run.ID), slog.String("reason", "clock_skew"), slog.String("detail", detail))
	}
	switch answer.Class { //nolint:exhaustive // every other class passes by itself
	case stripecharge.ClassAnswered:
		acc.account = info.ID
	case stripecharge.ClassDenied, stripecharge.ClassUnauthorized, stripecharge.ClassInvalidRequest:
		if !k.cfg.AccountUnverified {
			if _, err := k.refused(ctx, acc, answer.HTTPStatus); err != nil {
				return err
			}
			return &keyError{reason: "vault_denied", err: accountRefused(acc, answer)}
		}
		acc.account = accountUnverified
		return nil
	default:
		return fmt.Errorf("read the key's account: %s", explain(answer))
	}
	if info.Livemode == nil && deref(run.StripeAccount) == acc.account {
		return nil
	}
	return k.bind(ctx, run.ID, acc, info.Livemode)
}

// accountRefused says what to do about a key that may not read its account: one that is not taken at all needs no other right.
func accountRefused(acc *access, answer stripecharge.Answer) error {
	switch {
	case answer.HTTPStatus != http.StatusUnauthorized:
		return fmt.Errorf("the vault key may not read its account (%s): allow GET /v1/account, or start the charger with --account-unverified", explain(answer))
	case acc.vaultKeyID == nil:
		return fmt.Errorf("the given vault key is not taken (%s): restart the chargers with one that is, then `charger run resume`", explain(answer))
	}
	return fmt.Errorf("the vault key is not taken (%s): `charger run resume` issues another; if that is refused too, see whether all chargers have "+
		"the same VAULT_ENCRYPTION_KEY, and whether the key may read its account (else start them with --account-unverified)", explain(answer))
}

// bind compares the key's account and livemode with the run's. What the run's first key showed is the run's for ever.
func (k *keys) bind(ctx context.Context, runID int64, acc *access, livemode *bool) error {
	p := queries.RunBindAccountParams{ID: runID, Livemode: livemode}
	if acc.account != accountUnverified {
		p.StripeAccount = &acc.account
	}
	bound, err := k.queries.RunBindAccount(ctx, k.pool, p)
	if err != nil {
		return fmt.Errorf("compare the account of run %d: %w", runID, err)
	}
	if p.StripeAccount != nil && deref(bound.StripeAccount) != acc.account {
		return &keyError{reason: "wrong_account", err: fmt.Errorf("the vault key leads to Stripe account %s, the run is charged in %s", acc.account, deref(bound.StripeAccount))}
	}
	if livemode == nil {
		return nil
	}
	if *bound.Livemode != *livemode {
		return &keyError{reason: "wrong_account", err: fmt.Errorf("the vault key has livemode %t, the run is charged with livemode %t", *livemode, *bound.Livemode)}
	}
	acc.livemode.Store(livemode)
	return nil
}

// sees compares what a customer read with the key shows of its livemode; most of the time it is known already.
func (k *keys) sees(ctx context.Context, intent queries.IntentForWorkRow, acc *access, info stripecharge.CustomerInfo) error {
	if info.Deleted { // says nothing about livemode
		return nil
	}
	if known := acc.livemode.Load(); known != nil && *known == info.Livemode {
		return nil
	}
	return k.bind(ctx, *intent.RunID, acc, &info.Livemode)
}

// living returns the run's issued key, and issues one if there is none alive.
func (k *keys) living(ctx context.Context, run queries.BillingRun, acc *access) (string, error) {
	stored, err := k.queries.VaultKeyActive(ctx, k.pool, run.ID)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return "", fmt.Errorf("read the vault key of run %d: %w", run.ID, err)
	}
	if err == nil {
		// By the database's clock alone: processes whose clocks differ must agree when a key has come to its end.
		now, err := k.queries.DatabaseNow(ctx, k.pool)
		if err != nil {
			return "", fmt.Errorf("read the database's clock: %w", err)
		}
		if left := stored.ExpiresAt.Sub(now); left > keyExpiryMargin {
			plain, err := k.cfg.Sealer.Open(stored.Ciphertext, deref(stored.EncryptionKeyID), sealedFor(run.ID))
			if err == nil {
				acc.vaultKeyID, acc.providerID, acc.expiresAt = &stored.ID, deref(stored.ProviderKeyID), time.Now().Add(left)
				return string(plain), nil
			}
			k.log.WarnContext(ctx, "the run's vault key cannot be decrypted (is VAULT_ENCRYPTION_KEY the same on every charger?); next: another is issued", slog.Int64("run_id", run.ID), slog.Int64("vault_key_id", stored.ID), slog.Any("error", err))
		}
		if err := k.end(ctx, stored.ID, deref(stored.ProviderKeyID), stored.Alive); err != nil {
			return "", err
		}
	}
	return k.issue(ctx, run, acc)
}

// atItsEnd tells whether the key of an access is not the run's any more, or is about to be replaced. It is revoked at the proxy
// a moment before the database says so: whoever still holds it and is refused learns nothing about the next one.
func (k *keys) atItsEnd(ctx context.Context, runID, vaultKeyID int64) (bool, error) {
	stored, err := k.queries.VaultKeyActive(ctx, k.pool, runID)
	if errors.Is(err, pgx.ErrNoRows) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the vault key of run %d: %w", runID, err)
	}
	now, err := k.queries.DatabaseNow(ctx, k.pool)
	if err != nil {
		return false, fmt.Errorf("read the database's clock: %w", err)
	}
	return stored.ID != vaultKeyID || stored.ExpiresAt.Sub(now) <= keyExpiryMargin, nil
}

// revoke takes a key back at the proxy. One that is over by our clock, or is not taken any more, may live on there all the same, as one
// does after its run's cap was raised: only a proxy that refuses to revoke it is taken at its word, for else no other could be issued.
func (k *keys) revoke(ctx context.Context, id int64, providerID string, alive bool) error {
	if providerID == "" {
		return nil
	}
	err := k.cfg.Issuer.Revoke(ctx, providerID)
	if err != nil && (alive || errors.Is(err, vaultkey.ErrUnavailable)) {
		return fmt.Errorf("revoke vault key %d: %w", id, err)
	}
	if err != nil {
		k.log.WarnContext(ctx, "the proxy does not take a vault key back; next: it is left to its end there", slog.Int64("vault_key_id", id), slog.Any("error", err))
	}
	return nil
}

// end revokes the old key before another one is issued: two living keys would be two caps.
func (k *keys) end(ctx context.Context, id int64, providerID string, alive bool) error {
	if err := k.revoke(ctx, id, providerID, alive); err != nil {
		return err
	}
	if _, err := k.queries.VaultKeyEnd(ctx, k.pool, queries.VaultKeyEndParams{ID: id, State: "expired"}); err != nil {
		return fmt.Errorf("end vault key %d: %w", id, err)
	}
	return nil
}

// endLoop runs in every charger; taking a key back twice is harmless.
func (k *keys) endLoop(ctx context.Context) error {
	ticker := time.NewTicker(endKeysEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if err := k.endOfClosedRuns(ctx); err != nil && ctx.Err() == nil {
			k.log.WarnContext(ctx, "the vault key of a closed run is not taken back yet; next: tried again", slog.Any("error", err))
		}
	}
}

// endOfClosedRuns takes back the keys of runs that were closed: nobody needs them any more.
func (k *keys) endOfClosedRuns(ctx context.Context) error {
	if k.cfg.Sealer == nil { // a given key is not ours to take back
		return nil
	}
	living, err := k.queries.VaultKeyListOfClosedRuns(ctx, k.pool)
	if err != nil {
		return fmt.Errorf("list the vault keys of closed runs: %w", err)
	}
	var failed error
	for _, key := range living {
		if err := k.end(ctx, key.ID, deref(key.ProviderKeyID), key.Alive); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		k.log.InfoContext(ctx, "vault key of a closed run taken back", slog.Int64("run_id", key.RunID), slog.Int64("vault_key_id", key.ID))
	}
	return failed
}

// issue writes a leased row, calls the proxy, and stores the key encrypted. A process that dies in between leaves a row whose
// lease ends, and at worst a key at the proxy that nobody knows.
func (k *keys) issue(ctx context.Context, run queries.BillingRun, acc *access) (string, error) {
	capCents, err := k.usdCap(ctx, run)
	if err != nil {
		return "", err
	}
	if _, err := k.queries.VaultKeyExpireLeases(ctx, k.pool, run.ID); err != nil {
		return "", fmt.Errorf("clear the vault key leases of run %d: %w", run.ID, err)
	}
	label := fmt.Sprintf("%s-billing-run-%s-%s", run.Namespace, run.BillingPeriod, run.Currency)
	row, err := k.queries.VaultKeyBegin(ctx, k.pool, queries.VaultKeyBeginParams{
		RunID: run.ID, ResumeCount: run.ResumeCount, Label: label, UsdCapCents: capCents, LeaseSeconds: issueLease.Seconds(), TtlSeconds: k.cfg.TTL.Seconds(),
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return "", errIssuing
	}
	if err != nil {
		return "", fmt.Errorf("begin a vault key of run %d: %w", run.ID, err)
	}
	issueCtx, cancel := context.WithTimeoutCause(ctx, issueLease/2, errors.New("issue a vault key: the proxy did not answer in time"))
	defer cancel()
	key, err := k.cfg.Issuer.Issue(issueCtx, vaultkey.Request{
		Label: label, CapCents: capCents, AllowedEndpoints: k.cfg.AllowedEndpoints, ExpiresAt: row.ExpiresAt,
	})
	if err != nil {
		_, endErr := k.queries.VaultKeyEnd(context.WithoutCancel(ctx), k.pool, queries.VaultKeyEndParams{ID: row.ID, State: "failed"})
		err = errors.Join(fmt.Errorf("issue the vault key of run %d: %w", run.ID, err), endErr)
		if _, refused := errors.AsType[*vaultkey.RefusedError](err); refused {
			return "", &keyError{reason: "vault_denied", err: err}
		}
		return "", err
	}
	sealed, keyID, err := k.cfg.Sealer.Seal([]byte(key.Secret), sealedFor(run.ID))
	if err != nil {
		return "", fmt.Errorf("encrypt the vault key of run %d: %w", run.ID, err)
	}
	rows, err := k.queries.VaultKeyComplete(ctx, k.pool, queries.VaultKeyCompleteParams{
		ID: row.ID, ProviderKeyID: key.ProviderKeyID, Ciphertext: sealed, EncryptionKeyID: &keyID, GrantedUntil: granted(key),
	})
	if err != nil {
		return "", fmt.Errorf("store the vault key of run %d: %w", run.ID, err)
	}
	if rows != 1 { // its lease ended and another process took over: this key is nobody's
		if key.ProviderKeyID == "" {
			return "", errIssuing
		}
		return "", errors.Join(errIssuing, k.cfg.Issuer.Revoke(ctx, key.ProviderKeyID))
	}
	now, err := k.queries.DatabaseNow(ctx, k.pool)
	if err != nil {
		return "", fmt.Errorf("read the database's clock: %w", err)
	}
	left := row.ExpiresAt.Sub(now)
	if until := granted(key); until != nil {
		left = min(left, until.Sub(now))
	}
	acc.vaultKeyID, acc.providerID, acc.expiresAt = &row.ID, key.ProviderKeyID, time.Now().Add(left)
	k.log.InfoContext(ctx, "vault key issued", slog.Int64("run_id", run.ID), slog.Int64("vault_key_id", row.ID), slog.Int64("usd_cap_cents", capCents), slog.Time("expires_at", acc.expiresAt))
	return key.Secret, nil
}

// granted is until when the proxy says that the key is good, if it says so.
func granted(key vaultkey.Key) *time.Time {
	if key.ExpiresAt.IsZero() {
		return nil
	}
	return &key.ExpiresAt
}

// usdCap is what is left of the run's cap: what is in doubt counts as left. The proxy counts in dollars; a run in another
// currency needs the operator's figure.
func (k *keys) usdCap(ctx context.Context, run queries.BillingRun) (int64, error) {
	inDollars := run.Currency == "usd"
	if !inDollars && run.VaultUsdCapCents == nil {
		return 0, &keyError{reason: "vault_denied", err: fmt.Errorf(
			"the proxy's cap is in dollars: a run in %s needs `charger run raise-cap --cap %s --vault-usd-cap DOLLARS`, then `charger run resume`",
			run.Currency, schema.FormatAmount(run.CapCents, run.Currency))}
	}
	chargedCents, err := k.queries.RunChargedCents(ctx, k.pool, &run.ID)
	if err != nil {
		return 0, fmt.Errorf("sum what run %d charged: %w", run.ID, err)
	}
	left := max(0, run.CapCents-chargedCents)
	switch {
	case run.VaultUsdCapCents == nil:
	case inDollars:
		left = min(*run.VaultUsdCapCents, run.CapCents) - chargedCents
	default: // the same share of the operator's figure; big.Int, since two amounts are multiplied
		share := new(big.Int).Mul(big.NewInt(*run.VaultUsdCapCents), big.NewInt(left))
		left = share.Quo(share, big.NewInt(run.CapCents)).Int64()
	}
	return max(1, left), nil
}

// sealedFor binds a ciphertext to its run: copied into another run's row it cannot be opened.
func sealedFor(runID int64) []byte { return fmt.Appendf(nil, "run:%d", runID) }
