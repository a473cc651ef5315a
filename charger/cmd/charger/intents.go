package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"chargeonce/charger"
	"chargeonce/charger/stripecharge"
	"chargeonce/deploy/daemon"
	"chargeonce/schema"
	"chargeonce/sql"
	"chargeonce/sql/queries"
)

// intentsCommands are what people do with intents.
type intentsCommands struct {
	List    intentsList    `cmd:"" help:"List intents, or those that Stripe may or may not have charged."`
	Show    intentsShow    `cmd:"" help:"Show one intent's whole story: where it came from, every call to Stripe, and why it stands where it stands."`
	Retry   intentsRetry   `cmd:"" help:"Charge a declined, voided or parked intent again, with the next key generation."`
	Correct intentsCorrect `cmd:"" help:"Give an intent other terms; one that was sent gets the next key generation."`
	Void    intentsVoid    `cmd:"" help:"Take an obligation back: nothing will be charged."`
	Park    intentsPark    `cmd:"" help:"Take an intent out of charging until a person decides."`
	Unpark  intentsUnpark  `cmd:"" help:"Give a parked intent back to charging as it was, under the same key."`
	Resolve intentsResolve `cmd:"" help:"Say, with evidence, what became of a doubt."`
}

// asPerson connects as the charger's role, and makes a refusal one sentence and exit code 1: the command was understood, and what it
// found forbids it.
func asPerson(ctx context.Context, env daemon.Env, db database, do func(pool *pgxpool.Pool) error) error {
	pool, err := daemon.OpenPool(ctx, db.DatabaseURL, sql.RoleCharger, 4, env.Name)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := migrated(ctx, pool); err != nil {
		return err
	}
	err = do(pool)
	if _, refused := errors.AsType[*charger.RefusedError](err); refused {
		command, _, _ := strings.Cut(env.Command, " <")
		return fmt.Errorf("%s is refused: %w", command, err)
	}
	return err
}

func (w who) operator(pool *pgxpool.Pool) charger.Operator {
	return charger.Operator{Pool: pool, Actor: w.actor(), Reason: w.Reason}
}

// result is what became of one of the named intents.
type result struct {
	IntentID int64  `json:"intent_id"`
	Done     bool   `json:"done"`
	Said     string `json:"said"` // what was done, or why it was refused and the cure
	Intent   any    `json:"intent,omitempty"`
}

// each does one thing with every intent, each in a transaction of its own. One intent's refusal is the command's; of several, each
// is a line, and the exit code tells that there was one.
func each(env daemon.Env, ids []int64, asJSON bool, do func(id int64) (said string, intent any, err error)) error {
	results := make([]result, 0, len(ids))
	refusals := 0
	for _, id := range ids {
		r := result{IntentID: id, Done: true}
		var err error
		r.Said, r.Intent, err = do(id)
		if refused, ok := errors.AsType[*charger.RefusedError](err); ok && len(ids) > 1 {
			refusals++
			r = result{IntentID: id, Said: "refused: " + refused.Error()}
		} else if err != nil {
			return err
		}
		results = append(results, r)
		if !asJSON {
			fmt.Fprintf(env.Stdout, "intent %d %s\n", id, r.Said)
		}
	}
	if asJSON {
		if err := printJSON(env.Stdout, results); err != nil {
			return err
		}
	}
	if refusals > 0 {
		return daemon.ErrFound
	}
	return nil
}

// change is embedded by the commands that change intents by their ids.
type change struct {
	database
	who
	JSON bool `help:"Print JSON."`
}

// does runs the command for every id.
func (c change) does(ctx context.Context, env daemon.Env, ids []int64, do func(ctx context.Context, o charger.Operator, id int64) (string, any, error)) error {
	if err := c.needReason(); err != nil {
		return err
	}
	return asPerson(ctx, env, c.database, func(pool *pgxpool.Pool) error {
		return each(env, ids, c.JSON, func(id int64) (string, any, error) { return do(ctx, c.operator(pool), id) })
	})
}

type intentsVoid struct {
	change
	ID []int64 `arg:"" help:"The intents' numbers."`
}

func (v *intentsVoid) Run(ctx context.Context, env daemon.Env) error {
	return v.does(ctx, env, v.ID, func(ctx context.Context, o charger.Operator, id int64) (string, any, error) {
		return "voided: nothing will be charged for it", nil, o.Void(ctx, id)
	})
}

type intentsPark struct {
	change
	ID []int64 `arg:"" help:"The intents' numbers."`
}

func (p *intentsPark) Run(ctx context.Context, env daemon.Env) error {
	return p.does(ctx, env, p.ID, func(ctx context.Context, o charger.Operator, id int64) (string, any, error) {
		return "parked: nothing is called for it until it is unparked", nil, o.Park(ctx, id)
	})
}

type intentsUnpark struct {
	change
	ID []int64 `arg:"" help:"The intents' numbers."`
}

func (u *intentsUnpark) Run(ctx context.Context, env daemon.Env) error {
	return u.does(ctx, env, u.ID, func(ctx context.Context, o charger.Operator, id int64) (string, any, error) {
		inDoubt, err := o.Unpark(ctx, id)
		if inDoubt {
			return "is in doubt and goes on being looked up", nil, err
		}
		return "goes on: it is sent under its key when its run is open", nil, err
	})
}

type intentsRetry struct {
	change
	ID          []int64 `arg:"" optional:"" help:"The intents' numbers."`
	AllDeclined bool    `help:"Instead of numbers: all declined intents of --namespace and --period. Without --yes they are only listed."`
	Namespace   string  `help:"With --all-declined: the business stream." env:"BILLING_NAMESPACE"`
	Period      string  `help:"With --all-declined: the billing period."`
	ReasonIs    string  `help:"With --all-declined: only those declined for this reason." placeholder:"card_declined"`
	DryRun      bool    `help:"With --all-declined: only list them."`
	Yes         bool    `help:"With --all-declined: do it."`
}

func (r *intentsRetry) Run(ctx context.Context, env daemon.Env) error {
	switch {
	case r.AllDeclined == (len(r.ID) > 0):
		return &daemon.SettingError{Setting: "intents retry", Problem: "needs the intents' numbers, or --all-declined", Cure: "give one of them"}
	case r.AllDeclined && (r.Namespace == "" || r.Period == ""):
		return &daemon.SettingError{Setting: "--all-declined", Problem: "needs --namespace and --period", Cure: "give both"}
	case r.AllDeclined && (r.DryRun || !r.Yes):
		return asPerson(ctx, env, r.database, func(pool *pgxpool.Pool) error {
			declined, err := r.declined(ctx, pool)
			if err != nil {
				return err
			}
			return printDeclined(env.Stdout, declined, r.JSON)
		})
	case r.AllDeclined:
		err := asPerson(ctx, env, r.database, func(pool *pgxpool.Pool) error {
			declined, err := r.declined(ctx, pool)
			for _, in := range declined {
				r.ID = append(r.ID, in.ID)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return r.does(ctx, env, r.ID, func(ctx context.Context, o charger.Operator, id int64) (string, any, error) {
		renewed, err := o.Retry(ctx, id)
		return renewedText("is charged again", renewed), renewed, err
	})
}

// declined reads all declined intents, a page at a time.
func (r *intentsRetry) declined(ctx context.Context, pool *pgxpool.Pool) ([]queries.IntentListRow, error) {
	var all []queries.IntentListRow
	p := queries.IntentListParams{Namespace: r.Namespace, BillingPeriod: r.Period, Status: string(schema.StatusCardDeclined), StatusReason: r.ReasonIs, MaxRows: 1000}
	for {
		page, err := queries.New().IntentList(ctx, pool, p)
		if err != nil {
			return nil, fmt.Errorf("list declined intents: %w", err)
		}
		all = append(all, page...)
		if len(page) < int(p.MaxRows) {
			return all, nil
		}
		p.AfterID = page[len(page)-1].ID
	}
}

func printDeclined(w io.Writer, declined []queries.IntentListRow, asJSON bool) error {
	if asJSON {
		return printJSON(w, map[string]any{"would_retry": declined})
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tCUSTOMER\tAMOUNT\tREASON\tDECLINE CODE")
	sums, order := map[string]int64{}, []string(nil)
	for _, in := range declined {
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\n", in.ID, in.CustomerID, money(in.AmountCents, in.Currency), in.StatusReason, orDash(in.DeclineCode))
		if _, seen := sums[in.Currency]; !seen {
			order = append(order, in.Currency)
		}
		sums[in.Currency] += in.AmountCents
	}
	if err := table.Flush(); err != nil {
		return err
	}
	var total []string
	for _, currency := range order {
		total = append(total, money(sums[currency], currency))
	}
	_, err := fmt.Fprintf(w, "%d intents would be charged again: %s; nothing was changed, --yes does it\n", len(declined), orNothing(strings.Join(total, ", ")))
	return err
}

func renewedText(what string, r charger.Renewed) string {
	text := fmt.Sprintf("%s: %s for %s, generation %d, key %s", what, money(r.AmountCents, r.Currency), r.StripeCustomer, r.KeyGeneration, r.IdempotencyKey)
	if r.OpenConflicts > 0 {
		text += fmt.Sprintf("; it waits until its open conflicts (%d) are decided", r.OpenConflicts)
	}
	return text
}

type intentsCorrect struct {
	change
	ID             int64   `arg:"" help:"The intent's number."`
	Amount         *string `help:"The new amount, in units of the currency." placeholder:"12.50"`
	Currency       *string `help:"The new currency; --amount must be given with it." placeholder:"usd"`
	StripeCustomer *string `help:"The Stripe customer to charge instead." placeholder:"cus_..."`
	PaymentMethod  *string `help:"What to charge; default is whatever the customer's default at Stripe is then." placeholder:"pm_..."`
	Description    *string `help:"The text on the customer's receipt."`
}

func (c *intentsCorrect) Run(ctx context.Context, env daemon.Env) error {
	terms := charger.NewTerms{
		Amount: c.Amount, Currency: c.Currency, StripeCustomer: c.StripeCustomer, PaymentMethod: c.PaymentMethod, Description: c.Description,
	}
	if terms == (charger.NewTerms{}) {
		return &daemon.SettingError{Setting: "intents correct", Problem: "needs new terms", Cure: "give --amount, --currency, --stripe-customer, --payment-method or --description"}
	}
	return c.does(ctx, env, []int64{c.ID}, func(ctx context.Context, o charger.Operator, id int64) (string, any, error) {
		renewed, err := o.Correct(ctx, id, terms)
		return renewedText("is charged with its new terms", renewed), renewed, err
	})
}

type intentsResolve struct {
	change
	stripeAccess
	ID         int64  `arg:"" help:"The intent's number."`
	Charged    string `help:"It was charged: the id of the charge or payment intent, which is read at Stripe and held against what was sent." placeholder:"ch_..." xor:"what"`
	NotCharged bool   `help:"It was not charged: Stripe's lists are read, and must show nothing, 72 hours after the last send." xor:"what"`
}

// Validate is called by kong.
func (r intentsResolve) Validate() error {
	if err := r.database.Validate(); err != nil {
		return err
	}
	if r.Charged == "" && !r.NotCharged {
		return &daemon.SettingError{Setting: "intents resolve", Problem: "needs --charged ID or --not-charged", Cure: "say which it was"}
	}
	return r.stripeAccess.Validate()
}

func (r *intentsResolve) Run(ctx context.Context, env daemon.Env) error {
	keys, err := r.keys()
	if err != nil {
		return err
	}
	id, err := processID()
	if err != nil {
		return err
	}
	return r.does(ctx, env, []int64{r.ID}, func(ctx context.Context, o charger.Operator, intentID int64) (string, any, error) {
		c, err := charger.New(charger.Config{
			Pool: o.Pool, RiverPool: o.Pool, Keys: keys, StripeAPI: stripecharge.APIPaymentIntents, Installation: r.Installation,
			RatePerSecond: r.StripeRatePerSecond, CallTimeout: r.CallTimeout, ID: id, Logger: env.Log, Registry: env.Registry,
		})
		if err != nil {
			return "", nil, err
		}
		var resolved charger.Resolved
		if r.NotCharged {
			resolved, err = c.ResolveNotCharged(ctx, o, intentID)
		} else {
			resolved, err = c.ResolveCharged(ctx, o, intentID, r.Charged)
		}
		return strings.TrimSpace(fmt.Sprintf("is %s %s", resolved.Status, resolved.ChargeID)) + ": " + resolved.Detail, resolved, err
	})
}

type intentsList struct {
	database
	Namespace string `help:"Only of this business stream." env:"BILLING_NAMESPACE"`
	Period    string `help:"Only of this billing period."`
	Currency  string `help:"Only in this currency."`
	Status    string `help:"Only with this status." enum:",pending,nothing_due,charging,charged,card_declined,voided,parked" default:""`
	ReasonIs  string `help:"Only standing so for this reason." placeholder:"in_doubt"`
	InDoubt   bool   `help:"Only what Stripe may or may not have charged, the oldest doubt first: since when, the last call, and what comes next."`
	Customer  string `help:"Only of this customer, or this Stripe customer."`
	Limit     int32  `help:"How many at most." default:"50"`
	After     int64  `help:"Only intents with a higher number: the last one of the page before."`
	JSON      bool   `help:"Print JSON."`
}

func (l *intentsList) Run(ctx context.Context, env daemon.Env) error {
	switch {
	case l.Limit < 1 || l.Limit > 10_000:
		return &daemon.SettingError{Setting: "--limit", Problem: fmt.Sprintf("is %d", l.Limit), Cure: "give 1 to 10000"}
	case l.InDoubt && l.After != 0:
		return &daemon.SettingError{Setting: "--after", Problem: "goes by number, and --in-doubt shows the oldest doubt first", Cure: "give a higher --limit"}
	}
	return asPerson(ctx, env, l.database, func(pool *pgxpool.Pool) error {
		if l.InDoubt {
			return l.printInDoubt(ctx, env.Stdout, pool)
		}
		intents, err := queries.New().IntentList(ctx, pool, queries.IntentListParams{
			Namespace: l.Namespace, BillingPeriod: l.Period, Currency: strings.ToLower(l.Currency), Status: l.Status, StatusReason: l.ReasonIs,
			Customer: l.Customer, AfterID: l.After, MaxRows: l.Limit,
		})
		if err != nil {
			return fmt.Errorf("list intents: %w", err)
		}
		var next *int64
		if len(intents) == int(l.Limit) {
			next = &intents[len(intents)-1].ID
		}
		if l.JSON {
			return printJSON(env.Stdout, map[string]any{"intents": notNil(intents), "next_after": next})
		}
		return printIntents(env.Stdout, intents, next)
	})
}

func notNil[T any](rows []T) []T {
	if rows == nil {
		return []T{}
	}
	return rows
}

func printIntents(w io.Writer, intents []queries.IntentListRow, next *int64) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tNAMESPACE\tPERIOD\tCUSTOMER\tSTRIPE CUSTOMER\tAMOUNT\tSTATUS\tGEN\tCHARGE\tNOTE")
	for _, in := range intents {
		var notes []string
		if in.InDoubt {
			notes = append(notes, "in doubt")
		}
		if in.OpenConflict {
			notes = append(notes, "open conflict")
		}
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\t%s\t%s (%s)\t%d\t%s\t%s\n", in.ID, in.Namespace, in.BillingPeriod, in.CustomerID, in.StripeCustomerID,
			money(in.AmountCents, in.Currency), in.Status, in.StatusReason, in.KeyGeneration, orDash(in.ChargeID), strings.Join(notes, ", "))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if next != nil {
		_, err := fmt.Fprintf(w, "there may be more: --after %d\n", *next)
		return err
	}
	return nil
}

func (l *intentsList) printInDoubt(ctx context.Context, w io.Writer, pool *pgxpool.Pool) error {
	doubts, err := queries.New().IntentListInDoubt(ctx, pool, queries.IntentListInDoubtParams{
		WindowSeconds: charger.Window.Seconds(), Namespace: l.Namespace, BillingPeriod: l.Period, Currency: strings.ToLower(l.Currency),
		Status: l.Status, StatusReason: l.ReasonIs, Customer: l.Customer, MaxRows: l.Limit,
	})
	if err != nil {
		return fmt.Errorf("list intents in doubt: %w", err)
	}
	if l.JSON {
		return printJSON(w, map[string]any{"in_doubt": notNil(doubts)})
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tNAMESPACE\tPERIOD\tCUSTOMER\tAMOUNT\tSTATUS\tIN DOUBT SINCE (UTC)\tFOR\tLAST CALL\tKEY SAFE FOR\tNEXT LOOK (UTC)")
	for _, d := range doubts {
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\t%s (%s)\t%s\t%s\t%s\t%s\t%s\n", d.ID, d.Namespace, d.BillingPeriod, d.CustomerID,
			money(d.AmountCents, d.Currency), d.Status, d.StatusReason, utc(d.InDoubtSince), seconds(d.InDoubtSeconds), lastCall(d), keySafe(d), nextLook(d))
	}
	return table.Flush()
}

func lastCall(d queries.IntentListInDoubtRow) string {
	text := d.LastOperation + " " + orNone(d.LastResult, "without a result")
	if d.LastHttpStatus != nil {
		text += fmt.Sprintf(" http %d", *d.LastHttpStatus)
	}
	return strings.TrimSpace(text + " " + orNone(d.LastRequestID, ""))
}

func keySafe(d queries.IntentListInDoubtRow) string {
	switch {
	case d.SawServerError:
		return "only looked up: Stripe answered 5xx"
	case d.KeySafeSecondsLeft <= 0:
		return "no longer"
	}
	return seconds(d.KeySafeSecondsLeft)
}

func nextLook(d queries.IntentListInDoubtRow) string {
	switch {
	case d.NextLookAt != nil:
		return utc(*d.NextLookAt)
	case d.Status == string(schema.StatusParked):
		return "a person must decide"
	case d.JobState == "running":
		return "now"
	}
	return "when it has a job"
}

func money(cents int64, currency string) string {
	return schema.FormatAmount(cents, currency) + " " + currency
}

func utc(at time.Time) string { return at.UTC().Format("2006-01-02 15:04:05") }

// seconds says how long something is, to the minute from an hour on.
func seconds(s float64) string {
	d := time.Duration(s) * time.Second
	if d < time.Hour {
		return d.String()
	}
	return strings.TrimSuffix(d.Truncate(time.Minute).String(), "0s")
}

func orDash(text *string) string { return orNone(text, "-") }

func orNone(text *string, none string) string {
	if text == nil || *text == "" {
		return none
	}
	return *text
}

func orNothing(text string) string {
	if text == "" {
		return "nothing"
	}
	return text
}

// intentsShow takes a number, a key, an id at Stripe, or a customer and a period.
type intentsShow struct {
	database
	Which     []string `arg:"" name:"intent" help:"The intent's number, its idempotency key (of any generation), its ch_... or pi_..., or a customer and a billing period."`
	Namespace string   `help:"With a customer and a period: only of this business stream." env:"BILLING_NAMESPACE"`
	JSON      bool     `help:"Print JSON: everything, for a dispute."`
}

func (s *intentsShow) Run(ctx context.Context, env daemon.Env) error {
	if len(s.Which) > 2 {
		return &daemon.SettingError{Setting: "intents show", Problem: fmt.Sprintf("got %d words", len(s.Which)), Cure: "give a number, a key, an id at Stripe, or a customer and a period"}
	}
	return asPerson(ctx, env, s.database, func(pool *pgxpool.Pool) error {
		id, several, err := s.find(ctx, pool)
		if err != nil {
			return err
		}
		if len(several) > 0 {
			return s.printSeveral(env.Stdout, several)
		}
		story, err := charger.ReadStory(ctx, pool, id)
		if err != nil {
			return err
		}
		if s.JSON {
			return printJSON(env.Stdout, story)
		}
		return printStory(env.Stdout, story)
	})
}

// maxIDDigits tells an intent's number from a key: a key has 32 digits.
const maxIDDigits = 18

// find names the one intent that is meant, or the several that may be.
func (s *intentsShow) find(ctx context.Context, pool *pgxpool.Pool) (id int64, several []queries.IntentFindByKeyRow, err error) {
	if number, err := strconv.ParseInt(s.Which[0], 10, 64); err == nil && len(s.Which) == 1 && len(s.Which[0]) <= maxIDDigits {
		return number, nil, nil
	}
	var found []queries.IntentFindByKeyRow
	what := "with key or id at Stripe " + s.Which[0]
	if len(s.Which) == 1 {
		found, err = queries.New().IntentFindByKey(ctx, pool, s.Which[0])
	} else {
		what = fmt.Sprintf("of customer %s in %s", s.Which[0], s.Which[1])
		if s.Namespace != "" {
			what += " in namespace " + s.Namespace
		}
		var rows []queries.IntentFindByCustomerRow
		rows, err = queries.New().IntentFindByCustomer(ctx, pool, queries.IntentFindByCustomerParams{Customer: s.Which[0], BillingPeriod: s.Which[1], Namespace: s.Namespace})
		for _, row := range rows {
			found = append(found, queries.IntentFindByKeyRow(row))
		}
	}
	switch {
	case err != nil:
		return 0, nil, fmt.Errorf("find the intent: %w", err)
	case len(found) == 0:
		return 0, nil, &charger.RefusedError{Problem: "there is no intent " + what, Cure: "see `charger intents list`"}
	case len(found) > 1:
		return 0, found, nil
	}
	return found[0].ID, nil, nil
}

func (s *intentsShow) printSeveral(w io.Writer, several []queries.IntentFindByKeyRow) error {
	if s.JSON {
		if err := printJSON(w, map[string]any{"several": several}); err != nil {
			return err
		}
		return daemon.ErrFound
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tNAMESPACE\tPERIOD\tCUSTOMER\tSTATUS")
	for _, in := range several {
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\n", in.ID, in.Namespace, in.BillingPeriod, in.CustomerID, in.Status)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w, "several intents may be meant: give one's number, or --namespace")
	return daemon.ErrFound
}

func printStory(w io.Writer, s charger.Story) error {
	in := s.Intent
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(what, format string, args ...any) {
		fmt.Fprintf(table, "%s\t%s\n", what, fmt.Sprintf(format, args...))
	}
	fmt.Fprintf(w, "intent %d  %s %s %s  %s  %s (%s)\n", in.ID, in.Namespace, in.BillingPeriod, in.CustomerID, money(in.AmountCents, in.Currency), in.Status, in.StatusReason)
	row("Stripe customer", "%s, %s", in.StripeCustomerID, "payment method "+orNone(in.PaymentMethod, "the customer's default"))
	row("key", "%s, generation %d", in.IdempotencyKey, in.KeyGeneration)
	switch {
	case s.Run == nil:
		row("run", "none is open for it")
	case in.ReservedCents != nil:
		row("run", "run %d is %s (%s); %s reserved of its cap", s.Run.ID, s.Run.Status, s.Run.StatusReason, money(*in.ReservedCents, in.Currency))
	default:
		row("run", "run %d is %s (%s); nothing reserved", s.Run.ID, s.Run.Status, s.Run.StatusReason)
	}
	switch {
	case in.RiverJobID == nil:
		row("job", "none")
	case s.Job == nil:
		row("job", "%d, no longer there", *in.RiverJobID)
	default:
		row("job", "%d is %s, try %d of %d, due %s", s.Job.ID, s.Job.State, s.Job.Attempt, s.Job.MaxAttempts, utc(s.Job.ScheduledAt))
	}
	if len(in.AlsoInNamespaces) > 0 {
		row("also in", "%s: perhaps one obligation billed twice", strings.Join(in.AlsoInNamespaces, ", "))
	}
	if in.ChargeID != nil {
		row("charge", "%s", *in.ChargeID)
	}
	fmt.Fprintln(table)
	row("UTC", "")
	for _, e := range s.Events {
		row(utc(e.At), "%s %s", e.What, e.Text)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nwhy: %s\nnext: %s\n", s.Why, s.Next)
	for _, can := range s.Can {
		fmt.Fprintf(w, "a person can: %s\n", can)
	}
	return nil
}
