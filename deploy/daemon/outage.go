package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// newOutage says why Postgres was waited for in vain until ctx ended: in one line, whatever pgx says of each address it tried.
// It is no SettingError, because the same setting may work a minute later.
func newOutage(ctx context.Context, began time.Time, last error, cfg pgconn.Config) error {
	cause := context.Cause(ctx)
	if errors.Is(ctx.Err(), context.Canceled) {
		return fmt.Errorf("wait for Postgres at %s: %w", addresses(cfg), cause)
	}
	waited := "in time"
	if deadline, ok := ctx.Deadline(); ok {
		waited = "within " + deadline.Sub(began).Round(outageRound).String()
	}
	problem, cure := "does not answer", "start Postgres or correct the address"
	if _, answered := errors.AsType[*pgconn.PgError](last); answered {
		problem, cure = "accepts no connection", "see the server's log"
	}
	return &outage{
		text: fmt.Sprintf("%s leads to %s for user %s, which %s %s (%s): %s",
			databaseSetting, addresses(cfg), cfg.User, problem, waited, strings.Join(reasons(last), ", "), cure),
		causes: []error{cause, last},
	}
}

// outageRound hides what passes between a caller's deadline and our first try.
const outageRound = 100 * time.Millisecond

type outage struct {
	text   string
	causes []error
}

func (o *outage) Error() string   { return o.text }
func (o *outage) Unwrap() []error { return o.causes }

// addresses are all that the URL leads to, each once: pgx has a second entry for each where TLS is optional.
func addresses(cfg pgconn.Config) string {
	_, first := pgconn.NetworkAddress(cfg.Host, cfg.Port)
	all := []string{first}
	for _, f := range cfg.Fallbacks {
		if _, next := pgconn.NetworkAddress(f.Host, f.Port); !slices.Contains(all, next) {
			all = append(all, next)
		}
	}
	return strings.Join(all, ", ")
}

// reasons are the innermost errors, each once. None of them holds the URL.
func reasons(err error) []string {
	var out []string
	for _, leaf := range leaves(err) {
		text := strings.Join(strings.Fields(leaf.Error()), " ")
		switch e := leaf.(type) { //nolint:errorlint // leaves has unwrapped it
		case *net.DNSError:
			text = e.Err
		case *pgconn.PgError:
			text = e.Message
		default:
			if os.IsTimeout(leaf) {
				text = "no reply"
			}
		}
		if !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return out
}

// noSuchHost is true when the resolver knows none of the URL's hosts. A resolver that is itself away may come back.
func noSuchHost(err error) bool {
	all := leaves(err)
	return len(all) > 0 && !slices.ContainsFunc(all, func(leaf error) bool {
		dns, ok := leaf.(*net.DNSError) //nolint:errorlint // leaves has unwrapped it
		return !ok || !dns.IsNotFound
	})
}

// leaves are the innermost errors of a tree of wrapped and joined ones. What the resolver and Postgres say is not looked into.
func leaves(err error) []error {
	switch e := err.(type) { //nolint:errorlint // it unwraps by itself
	case nil:
		return nil
	case *net.DNSError, *pgconn.PgError:
		return []error{err}
	case interface{ Unwrap() []error }:
		var out []error
		for _, inner := range e.Unwrap() {
			out = append(out, leaves(inner)...)
		}
		return out
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			return leaves(inner)
		}
	}
	return []error{err}
}
