package console_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRunsPageWithoutFigures(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.run(t)
	b.intent(t, "cus_ingested")
	parked := b.intent(t, "cus_parked")
	b.exec(t, "UPDATE billing.intents SET status = 'charging', status_reason = 'sent', run_id = $2, reserved_cents = amount_cents, claim_number = 1, lease_until = now() WHERE id = $1", parked, run)
	b.exec(t, "UPDATE billing.intents SET status = 'parked', status_reason = 'mismatch' WHERE id = $1", parked)
	answer := b.send(t, request{path: "/"})
	require.Equal(t, http.StatusOK, answer.Code)
	page := answer.Body.String()
	for _, want := range []string{
		`<th scope="row">usage 2026-08 usd</th>`, `<strong class="status open">open</strong>`,
		`<td class="n">12500.00<small>500</small></td>`, // expected
		`<td class="n">13750.00</td>`,                   // cap
		`<td class="n">25.00<small>2</small></td>`,      // ingested
		`<td class="n look">12.50<small>1</small></td>`, // parked
		`href="/river/jobs?state=retryable&amp;queue=charge"`, `<html lang="en">`, `<caption>`,
	} {
		require.Contains(t, page, want)
	}
	require.NotContains(t, page, "<script")
	require.NotContains(t, page, "Charging is stopped")
	require.Equal(t, http.StatusOK, b.send(t, request{path: "/style.css"}).Code)
}

func TestMarkupOfRunExecuted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.run(t)
	b.exec(t, "UPDATE billing.runs SET status = 'paused', status_reason = 'vault_denied', status_detail = $2 WHERE id = $1", run, `<script>alert("x")</script>`)
	b.exec(t, "UPDATE billing.charging_switch SET stopped = true, reason = $1, actor = $1", `<img src=x onerror=alert(1)>`)
	page := b.send(t, request{path: "/"}).Body.String()
	require.Contains(t, page, "&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt;")
	require.Contains(t, page, "Charging is stopped by &lt;img")
	require.NotContains(t, page, "<script")
	require.NotContains(t, page, "<img")
}

func TestEmptyListOfRunsSaysNothing(t *testing.T) {
	t.Parallel()
	require.Contains(t, setup(t).send(t, request{path: "/"}).Body.String(), "charger run open")
}

func TestRunsPageHidesThatTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.role.Close()
	answer := b.send(t, request{path: "/"})
	require.Equal(t, http.StatusServiceUnavailable, answer.Code)
	require.Contains(t, answer.Body.String(), "does not answer")
	require.NotContains(t, answer.Body.String(), "charger run open")
	require.Error(t, b.console.Ready(t.Context()))
}

func TestEveryReloadCountsAnew(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.run(t)
	first := b.send(t, request{path: "/"}).Body.String()
	b.intent(t, "cus_later")
	require.Equal(t, first, b.send(t, request{path: "/"}).Body.String(), "figures are kept for some seconds")
}

func (b *bundle) exec(t *testing.T, statement string, args ...any) {
	t.Helper()
	_, err := b.owner.Exec(t.Context(), statement, args...)
	require.NoError(t, err, statement)
}
