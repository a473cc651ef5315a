package sql_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"chargeonce/schema"
)

// The table of moves exists twice, in Go and as a trigger; every pair is tried on a real row.
func TestMovesOfTheDatabaseAreThoseOfTheSchema(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	run := f.usualRun(t)
	for _, from := range schema.Statuses() {
		id := f.bring(t, run, owed{}, from, from.Reasons()[0])
		f.resolve(t, id)
		for _, to := range schema.Statuses() {
			if from == to {
				continue
			}
			err := tryMove(t, f, run, id, from, to)
			if schema.CanMove(from, to) {
				require.NoError(t, err, "%s to %s", from, to)
				continue
			}
			// What was sent or charged also refuses the other amount that nothing_due needs.
			require.Contains(t, []string{"intents_moves", "intents_identity"}, constraintOf(err), "%s to %s: %v", from, to, err)
		}
		require.Equal(t, from, f.statusOf(t, id), "every try was rolled back")
	}
}

// tryMove changes all that the target status asks for, in a transaction that is rolled back.
func tryMove(t *testing.T, f *fixture, run, id int64, from, to schema.Status) error {
	t.Helper()
	set := map[string]string{"status": "'" + string(to) + "'", "status_reason": "'" + string(to.Reasons()[0]) + "'"}
	amount := "amount_cents"
	if from == schema.StatusNothingDue {
		amount, set["amount_cents"] = "100", "100"
	}
	switch to {
	case schema.StatusPending, schema.StatusParked:
	case schema.StatusCharging:
		set["claim_number"], set["lease_until"], set["run_id"], set["reserved_cents"] = "claim_number + 1", "now()", fmt.Sprint(run), amount
	case schema.StatusCharged:
		set["charge_id"] = fmt.Sprintf("'ch_%d'", id)
	case schema.StatusCardDeclined, schema.StatusVoided:
		set["reserved_cents"] = "NULL"
	case schema.StatusNothingDue:
		set["reserved_cents"], set["amount_cents"] = "NULL", "0"
	}
	var assignments []string
	for _, column := range slices.Sorted(maps.Keys(set)) {
		assignments = append(assignments, column+" = "+set[column])
	}
	return tryAndRollBack(t, f, fmt.Sprintf("UPDATE billing.intents SET %s WHERE id = %d", strings.Join(assignments, ", "), id))
}

func tryAndRollBack(t *testing.T, f *fixture, statements string) error {
	t.Helper()
	tx, err := f.Begin(t.Context())
	require.NoError(t, err)
	_, execErr := tx.Exec(t.Context(), statements)
	require.NoError(t, tx.Rollback(t.Context()))
	return execErr
}

func constraintOf(err error) string {
	pgErr, ok := err.(*pgconn.PgError) //nolint:errorlint // Exec returns it unwrapped, and a wrapped one would be another error
	if !ok {
		return ""
	}
	return pgErr.ConstraintName
}

func TestIntentsBeginAsTheSchemaSays(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, status := range schema.Statuses() {
		for _, cents := range []int64{0, 100} {
			err := tryAndRollBack(t, f, intentInsert(map[string]string{
				"amount_cents": fmt.Sprint(cents), "status": "'" + string(status) + "'", "status_reason": "'" + string(status.Reasons()[0]) + "'",
			}))
			begins := schema.CanMove("", status) && (cents == 0) == (status == schema.StatusNothingDue)
			if begins {
				require.NoError(t, err, "%s with %d", status, cents)
			} else {
				require.Equal(t, "intents_beginning", constraintOf(err), "%s with %d: %v", status, cents, err)
			}
		}
	}
}

// intentInsert is an INSERT with a correct key; values are SQL.
func intentInsert(values map[string]string) string {
	all := map[string]string{
		"namespace": "'usage'", "customer_id": "'someone'", "billing_period": "'2026-08'", "stripe_customer_id": "'cus_someone'",
		"amount_cents": "100", "currency": "'usd'", "source": "'file'", "source_position": "'1'",
	}
	maps.Copy(all, values)
	if all["idempotency_key"] == "" {
		all["idempotency_key"] = fmt.Sprintf("left(encode(sha256(convert_to(%s || ':' || %s || ':' || %s, 'UTF8')), 'hex'), 32)",
			all["customer_id"], all["billing_period"], all["namespace"])
	}
	columns := slices.Sorted(maps.Keys(all))
	expressions := make([]string, len(columns))
	for i, column := range columns {
		expressions[i] = all[column]
	}
	return fmt.Sprintf("INSERT INTO billing.intents (%s) VALUES (%s)", strings.Join(columns, ", "), strings.Join(expressions, ", "))
}

func TestReasonsOfTheDatabaseAreThoseOfTheSchema(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	run := f.usualRun(t)
	all := map[schema.StatusReason]bool{"": true, "nonsense": true}
	words := map[string]bool{}
	for _, status := range schema.Statuses() {
		words[string(status)] = true
		for _, reason := range status.Reasons() {
			all[reason], words[string(reason)] = true, true
		}
	}
	for _, status := range schema.Statuses() {
		id := f.bring(t, run, owed{}, status, status.Reasons()[0])
		for reason := range all {
			err := tryAndRollBack(t, f, fmt.Sprintf("UPDATE billing.intents SET status_reason = '%s' WHERE id = %d", reason, id))
			if slices.Contains(status.Reasons(), reason) {
				require.NoError(t, err, "%s with %s", status, reason)
			} else {
				require.Equal(t, "intents_status_and_reason", constraintOf(err), "%s with %s: %v", status, reason, err)
			}
		}
	}
	definition := one[string](t, f, "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'intents_status_and_reason'")
	known := map[string]bool{}
	for _, literal := range regexp.MustCompile(`'([a-z_]+)'::text`).FindAllStringSubmatch(definition, -1) {
		known[literal[1]] = true
	}
	require.Equal(t, words, known, "the database knows no status or reason that the schema does not")
}

func TestDecimalsOfTheDatabaseAreThoseOfTheSchema(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const letters = "abcdefghijklmnopqrstuvwxyz"
	var codes []string
	var want []int32
	currencies := 0
	for _, a := range letters {
		for _, b := range letters {
			for _, c := range letters {
				code := string([]rune{a, b, c})
				if _, err := schema.CheckCurrency(code); err == nil {
					currencies++
				}
				codes = append(codes, code)
				want = append(want, int32(schema.Decimals(code))) //nolint:gosec // 0, 2 or 3
			}
		}
	}
	require.Greater(t, currencies, 130)
	got := one[[]int32](t, f, "SELECT array_agg(finance.decimals(code) ORDER BY ordinal) FROM unnest($1::text[]) WITH ORDINALITY AS t(code, ordinal)", codes)
	require.Equal(t, want, got)
}

func TestKeyOfTheDatabaseIsThatOfTheSchema(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	customers := []string{
		"a", `'`, `''`, `"`, `\`, `\\`, `\x41`, `\n`, `$1`, `%s`, `_`, `a b`, "é", "e\u0301", "日本", "👩‍💻", "\u00a0x", "ß", "İ", "\ufeffx", "\U0010ffff",
		"a\tb", strings.Repeat("x", 200), strings.Repeat("é", 100), `{"a"}`, "NULL", "--", "/*", "0", "E'x'",
	}
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // repeatable odd text
	alphabet := []rune(`abcXYZ019'"\%_$ äñ漢🂡` + "\u200d\u0300\u2028")
	for range 500 {
		text := make([]rune, 1+random.IntN(40))
		for i := range text {
			text[i] = alphabet[random.IntN(len(alphabet))]
		}
		customers = append(customers, "r"+string(text)+"r")
	}
	batch := &pgx.Batch{}
	for i, customer := range customers {
		namespace, period := []string{"usage", "n-1"}[i%2], []string{"2026-08", "2026-W35", "2026"}[i%3]
		batch.Queue(`INSERT INTO billing.intents (namespace, customer_id, billing_period, idempotency_key, stripe_customer_id, amount_cents,
			currency, source, source_position) VALUES ($1, $2, $3, $4, 'cus_1', 100, 'usd', 'file', '1') ON CONFLICT DO NOTHING`,
			namespace, customer, period, schema.IdempotencyKey(customer, period, namespace, 1))
	}
	results := f.SendBatch(t.Context(), batch)
	for _, customer := range customers {
		if _, err := results.Exec(); err != nil {
			t.Errorf("customer %q: %v", customer, err)
			break
		}
	}
	require.NoError(t, results.Close())
	require.Greater(t, count(t, f, "SELECT count(*) FROM billing.intents"), int64(500))

	for name, key := range map[string]string{
		"of another namespace": schema.IdempotencyKey("someone", "2026-08", "other", 1),
		"of generation 2":      schema.IdempotencyKey("someone", "2026-08", "usage", 2),
		"in upper case":        strings.ToUpper(schema.IdempotencyKey("someone", "2026-08", "usage", 1)),
		"empty":                "",
	} {
		err := tryAndRollBack(t, f, intentInsert(map[string]string{"idempotency_key": "'" + key + "'"}))
		require.Equal(t, "intents_idempotency_key_formula", constraintOf(err), "key %s: %v", name, err)
	}
}
