package daemon

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	databaseSetting = "DATABASE_URL"

	// connectWait is how long a starting program waits for a database that is starting too.
	connectWait = 30 * time.Second
	// connectTimeout bounds one try.
	connectTimeout = 5 * time.Second
	connectRetry   = 200 * time.Millisecond
)

// OpenPool connects to Postgres and returns once a connection works, at the latest after 30 s. It acts as role when one
// is given, so that an administrator's URL has no more rights than the program's own role. Commits are durable whatever
// URL or server say (synchronous_commit=on); other parameters of the URL, such as statement_timeout, stay. Settings that
// cannot work end in a SettingError at once. No error holds the password.
func OpenPool(ctx context.Context, url Secret, role string, maxConns int32, appName string) (*pgxpool.Pool, error) {
	cfg, err := poolConfig(url)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = maxConns
	cfg.ConnConfig.ConnectTimeout = connectTimeout
	params := cfg.ConnConfig.RuntimeParams
	params["application_name"] = appName
	params["synchronous_commit"] = "on"
	if role != "" {
		params["role"] = role
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open the pool for Postgres: %w", err)
	}
	if err := awaitDatabase(ctx, pool, role); err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}

// CheckDatabaseURL is for Validate methods: it says what OpenPool would say about the URL without connecting.
func CheckDatabaseURL(url Secret) error {
	_, err := poolConfig(url)
	return err
}

// poolConfig does not pass on the parser's words: for a URL with a bad escape they hold a part of the password.
func poolConfig(url Secret) (*pgxpool.Config, error) {
	const example = "postgres://USER:PASSWORD@HOST:5432/DATABASE" //nolint:gosec // an example
	if strings.TrimSpace(url.Reveal()) == "" {
		return nil, &SettingError{Setting: databaseSetting, Problem: "is not set", Cure: "set it to " + example + ", or " + databaseSetting + fileSuffix + " to a file that holds that"}
	}
	cfg, err := pgxpool.ParseConfig(url.Reveal())
	if err != nil {
		return nil, &SettingError{Setting: databaseSetting, Problem: "cannot be read as the address of a Postgres database", Cure: "write " + example + ", with special characters of the password percent-encoded"}
	}
	return cfg, nil
}

func awaitDatabase(ctx context.Context, pool *pgxpool.Pool, role string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, connectWait, fmt.Errorf("no answer within %s", connectWait))
	defer cancel()
	began := time.Now()
	tick := time.NewTicker(connectRetry)
	defer tick.Stop()
	var last error
	for {
		err := pool.Ping(ctx)
		if err == nil {
			return nil
		}
		if setting := connectionSetting(err, pool.Config().ConnConfig.Config, role); setting != nil {
			return setting
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return newOutage(ctx, began, last, pool.Config().ConnConfig.Config)
		case <-tick.C:
		}
	}
}

// connectionSetting tells refusals that waiting cannot mend; nil means try again.
func connectionSetting(err error, cfg pgconn.Config, role string) *SettingError {
	if noSuchHost(err) {
		return &SettingError{
			Setting: databaseSetting, Problem: fmt.Sprintf("leads to %s, and no such host is known", addresses(cfg)), Cure: "correct the host's name",
		}
	}
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return nil
	}
	switch {
	case role != "" && strings.Contains(pg.Message, fmt.Sprintf("role %q does not exist", role)),
		role != "" && pg.Code == pgerrcode.InvalidParameterValue && strings.Contains(pg.Message, `"role"`):
		return &SettingError{
			Setting: databaseSetting, Problem: fmt.Sprintf("names a database without the role %s", role),
			Cure: "run `migrate up` on it first",
		}
	case role != "" && pg.Code == pgerrcode.InsufficientPrivilege:
		return &SettingError{
			Setting: databaseSetting, Problem: fmt.Sprintf("names user %s, who may not act as %s", cfg.User, role),
			Cure: fmt.Sprintf("GRANT %s TO %s, or use another user", role, cfg.User),
		}
	case pgerrcode.IsInvalidAuthorizationSpecification(pg.Code):
		return &SettingError{
			Setting: databaseSetting, Problem: fmt.Sprintf("is refused by Postgres at %s for user %s (%s)", cfg.Host, cfg.User, pg.Message),
			Cure: "correct user or password",
		}
	case pg.Code == pgerrcode.InvalidCatalogName:
		return &SettingError{
			Setting: databaseSetting, Problem: fmt.Sprintf("names database %s, which does not exist at %s", cfg.Database, cfg.Host),
			Cure: "create it, then run `migrate up`",
		}
	}
	return nil
}
