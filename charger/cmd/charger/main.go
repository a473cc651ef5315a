// Command charger turns recorded billing intents into Stripe charges, and is what operators manage billing runs with.
package main

import (
	"context"

	"github.com/alecthomas/kong"

	"chargeonce/deploy/daemon"
)

// settings are the program's commands; what they share is embedded.
type settings struct {
	Work    work           `cmd:"" help:"Dispatch and charge the intents of open runs until stopped."`
	Console consoleCommand `cmd:"" help:"Serve the operators' page: billing runs, and River UI behind a password."`
	Run     struct {
		Open   runOpen   `cmd:"" help:"Open a billing run, and with it its cap."`
		Status runStatus `cmd:"" help:"Show what a run expected, ingested and charged, and why the rest waits."`
		List   runList   `cmd:"" help:"List billing runs, the newest first."`
		Pause  runPause  `cmd:"" help:"Stop new charges of a run; what is in doubt goes on being looked up."`
		Resume runResume `cmd:"" help:"Let a paused run charge again."`

		Forecast runForecast `cmd:"" help:"Show what a run would charge of what has come so far, and who would not be charged; opens and charges nothing."`
		RaiseCap runRaiseCap `cmd:"" help:"Let a run charge more than was meant when it was opened."`
		Close    runClose    `cmd:"" help:"End a run, once everything of its period has a final answer; its vault key is taken back."`
	} `cmd:"" help:"Billing runs."`
	Intents       intentsCommands    `cmd:"" help:"Billing intents: what each customer owes, and what became of it."`
	Conflicts     conflictsCommands  `cmd:"" help:"Events with the key of an intent but other terms."`
	Quarantine    quarantineCommands `cmd:"" help:"Events that could not become an intent."`
	Reconcile     reconcile          `cmd:"" help:"Hold what Stripe charged for a run against the run's intents, and report every difference."`
	StopCharging  stopCharging       `cmd:"" help:"Stop new charges of all runs, on every charger."`
	StartCharging startCharging      `cmd:"" help:"Let open runs charge again after stop-charging."`
}

func main() {
	about := daemon.About{
		Name: "charger",
		Help: "Charges recorded billing intents through Stripe, each exactly once.",
		Vars: kong.Vars{"work_listen": "127.0.0.1:9102", "console_listen": "127.0.0.1:9103"},
	}
	daemon.Main(about, func(ctx context.Context, env daemon.Env, _ *settings) error {
		env.Kong.BindTo(ctx, (*context.Context)(nil))
		return env.Kong.Run(env)
	})
}
