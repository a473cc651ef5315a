package charger

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"chargeonce/charger/stripecharge"
	"chargeonce/charger/stripecharge/stripetest"
	"chargeonce/charger/vaultkey"
	"chargeonce/schema"
	"chargeonce/sql"
)

// The test binary is also a charger process with a hold point: that is the only program that has one.
const (
	holdProcessEnv = "CHARGEONCE_TEST_DATABASE"
	holdPointEnv   = "CHARGEONCE_TEST_HOLD"
	holdStripeEnv  = "CHARGEONCE_TEST_STRIPE"
)

// holdProcess is the charger that a test kills: at the hold point it says so on its output and waits for ever.
func holdProcess(databaseURL string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err := func() error {
		pool, err := pgxpool.New(ctx, databaseURL)
		if err != nil {
			return err
		}
		riverPool, err := pgxpool.New(ctx, databaseURL)
		if err != nil {
			return err
		}
		given, err := vaultkey.NewStatic("sk_test_standin")
		if err != nil {
			return err
		}
		c, err := New(Config{
			Pool: pool, RiverPool: riverPool, ID: fmt.Sprintf("held-%d", os.Getpid()), Workers: 4, RatePerSecond: 10_000,
			CallTimeout: 5 * time.Second, DispatchEvery: 20 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
			Keys: KeysConfig{Issuer: given, StripeURL: os.Getenv(holdStripeEnv), Transport: stripecharge.NewTransport()},
			Hold: holdUntilTold(os.Getenv(holdPointEnv)),
		})
		if err != nil {
			return err
		}
		return c.Run(ctx)
	}()
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// holdUntilTold holds at the point, says so on the output, and goes on when a line comes in; at the input's end it holds for ever.
func holdUntilTold(at string) func(context.Context, string, int64) {
	told := make(chan struct{})
	go func() {
		if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err == nil {
			close(told)
		}
	}()
	return func(_ context.Context, point string, intentID int64) {
		if point == at {
			_, _ = fmt.Fprintf(os.Stdout, "held %s %d\n", point, intentID)
			<-told
		}
	}
}

// spawn starts a charger process of its own that holds at the point, and returns it with a channel of its output's lines.
func (b *bundle) spawn(t *testing.T, point string) (*exec.Cmd, <-chan string) {
	t.Helper()
	cmd, lines, _ := b.spawnHeld(t, point)
	return cmd, lines
}

// spawnHeld is spawn, with the process's input: a line lets it go on.
func (b *bundle) spawnHeld(t *testing.T, point string) (*exec.Cmd, <-chan string, io.Writer) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self) //nolint:gosec // this test binary itself
	cmd.Env = append(os.Environ(), holdProcessEnv+"="+b.db.As(sql.RoleCharger), holdPointEnv+"="+point, holdStripeEnv+"="+b.stripe.URL)
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		scanner := bufio.NewScanner(out)
		for scanner.Scan() {
			lines <- scanner.Text()
		}
		_, _ = io.Copy(io.Discard, out)
	}()
	return cmd, lines, in
}

func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	require.NoError(t, cmd.Process.Signal(syscall.SIGKILL))
	err := cmd.Wait()
	exit, ok := errors.AsType[*exec.ExitError](err)
	require.True(t, ok, "the process should have been killed: %v", err)
	require.False(t, exit.Success())
}

// TestChargeSurvivesKill kills a charger process with SIGKILL at each step of an intent's way, lets another charger take over,
// and holds the result against the stand-in's ledger: one charge each.
func TestChargeSurvivesKill(t *testing.T) {
	t.Parallel()
	const amount = 1234
	for name, c := range map[string]struct {
		hold  string           // point in the process
		fault stripetest.Fault // or the stand-in holds the request
	}{
		"AfterClaim":   {hold: HoldAfterClaim},
		"BeforeEffect": {fault: stripetest.Fault{Do: stripetest.HoldBeforeEffect, Match: stripetest.Match{Method: "POST"}}},
		"AfterEffect":  {fault: stripetest.Fault{Do: stripetest.HoldAfterEffect, Match: stripetest.Match{Method: "POST"}}},
		"AfterCall":    {hold: HoldAfterCall},
		"AfterFinish":  {hold: HoldAfterFinish},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripetest.Config{})
			if c.hold == "" {
				require.NoError(t, b.stripe.AddFaults(c.fault))
			}
			ids := b.intend(t, amount, "usd", customers(3)...)
			b.open(t, "1000.00", "usd")
			victim, lines := b.spawn(t, c.hold)
			if c.hold != "" {
				for range ids {
					line := <-lines
					require.True(t, strings.HasPrefix(line, "held "+c.hold), line)
				}
			} else {
				require.Eventually(t, func() bool { return len(b.stripe.Held()) == len(ids) }, patience, 10*time.Millisecond)
			}
			kill(t, victim)
			b.stripe.ClearFaults()
			b.stripe.Release()
			cfg := b.config(t)
			cfg.CallTimeout = 4 * time.Second
			start(t, cfg)
			b.untilStatus(t, schema.StatusCharged, ids...)
			b.once(t, amount, ids...)
			for _, id := range ids {
				require.Zero(t, b.intent(t, id).Unresolved)
			}
		})
	}
}

// freeze stops the process with SIGSTOP and returns when it stands still.
func freeze(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))
	var status syscall.WaitStatus
	_, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
	require.NoError(t, err)
	require.True(t, status.Stopped())
}

// TestM04ProcessStoppedPastItsClaimSendsNothing stops a charger process as a frozen machine would, between its claim and its
// send, or between Stripe's answer and its finish. Another one takes the intent over, Stripe forgets the key, and the first
// process wakes up: there is one charge.
func TestM04ProcessStoppedPastItsClaimSendsNothing(t *testing.T) {
	t.Parallel()
	for point, results := range map[string][]string{
		HoldAfterClaim: {"create:not_sent", "look_up:absent", "create:charged"},
		HoldAfterCall:  {"create:charged", "look_up:found"},
	} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripetest.Config{})
			id := b.intend(t, 1234, "usd", "cus_1")[0]
			b.open(t, "1000.00", "usd")
			stale, lines, goOn := b.spawnHeld(t, point)
			require.True(t, strings.HasPrefix(<-lines, "held "+point))
			freeze(t, stale)
			_, err := io.WriteString(goOn, "go on\n") // read when it wakes up
			require.NoError(t, err)
			cfg := b.config(t)
			cfg.CallTimeout = 4 * time.Second // how soon it takes over what a dead process left
			stop := start(t, cfg)
			b.untilStatus(t, schema.StatusCharged, id)
			stop()
			b.stripe.Advance(25 * time.Hour) // the key is forgotten: another send would charge again
			require.NoError(t, stale.Process.Signal(syscall.SIGCONT))
			in := b.until(t, id, func(in intentNow) bool { return in.Results[0] != "create:-" })
			require.Equal(t, results, in.Results)
			b.once(t, 1234, id)
			require.Equal(t, 1, b.creates(), "requests to create that reached Stripe")
			require.Zero(t, in.Unresolved)
			require.Equal(t, "open", b.run(t).Status)
		})
	}
}
