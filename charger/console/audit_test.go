package console_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"
)

// recorded is a row of billing.operator_actions.
type recorded struct {
	Actor    string
	Action   string
	IntentID *int64
	Detail   struct {
		Method string   `json:"method"`
		Path   string   `json:"path"`
		JobIDs []string `json:"job_ids"`
	}
}

func (b *bundle) recorded(t *testing.T) []recorded {
	t.Helper()
	rows, err := b.owner.Query(t.Context(), "SELECT actor, action, intent_id, detail FROM billing.operator_actions ORDER BY id")
	require.NoError(t, err)
	actions, err := pgx.CollectRows(rows, pgx.RowToStructByPos[recorded])
	require.NoError(t, err)
	return actions
}

func TestActionNotRecorded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	job := b.job(t, "cus_moved")
	for _, step := range []struct {
		verb  string
		state rivertype.JobState
	}{{"cancel", rivertype.JobStateCancelled}, {"retry", rivertype.JobStateAvailable}} {
		answer := b.send(t, b.action(step.verb, job.ID))
		require.Equal(t, http.StatusOK, answer.Code, answer.Body.String())
		require.Equal(t, step.state, b.state(t, job.ID))
	}
	require.Equal(t, http.StatusOK, b.send(t, b.action("delete", job.ID)).Code)
	require.Zero(t, b.count(t, "SELECT count(*) FROM river.river_job"))

	intent := b.count(t, "SELECT id FROM billing.intents")
	actions := b.recorded(t)
	require.Len(t, actions, 3)
	for i, verb := range []string{"cancel", "retry", "delete"} {
		require.Equal(t, user, actions[i].Actor)
		require.Equal(t, "river_job_"+verb, actions[i].Action)
		require.Equal(t, &intent, actions[i].IntentID)
		require.Equal(t, http.MethodPost, actions[i].Detail.Method)
		require.Equal(t, "/river/api/jobs/"+verb, actions[i].Detail.Path)
		require.Equal(t, []string{strconv.FormatInt(job.ID, 10)}, actions[i].Detail.JobIDs)
	}
}

func TestQueuePausedWithoutRecord(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, err := b.owner.Exec(t.Context(), "INSERT INTO river.river_queue (name, created_at, updated_at) VALUES ('charge', now(), now())")
	require.NoError(t, err)
	for verb, paused := range map[string]int64{"pause": 1, "resume": 0} {
		answer := b.send(t, request{method: http.MethodPut, path: "/river/api/queues/charge/" + verb})
		require.Equal(t, http.StatusOK, answer.Code, answer.Body.String())
		require.Equal(t, paused, b.count(t, "SELECT count(*) FROM river.river_queue WHERE paused_at IS NOT NULL"))
		actions := b.recorded(t)
		require.Equal(t, "river_queue_"+verb, actions[len(actions)-1].Action)
		require.Equal(t, "/river/api/queues/charge/"+verb, actions[len(actions)-1].Detail.Path)
	}
}

func TestActionDoneThoughNotRecorded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	job := b.job(t, "cus_kept")
	_, err := b.owner.Exec(t.Context(), "REVOKE INSERT ON billing.operator_actions FROM chargeonce_console")
	require.NoError(t, err)
	for _, verb := range []string{"cancel", "delete"} {
		require.Equal(t, http.StatusServiceUnavailable, b.send(t, b.action(verb, job.ID)).Code)
	}
	require.Equal(t, rivertype.JobStateAvailable, b.state(t, job.ID))
	require.Contains(t, b.log.String(), "could not be recorded")
}

func TestSecondJobOfActionNotRecorded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, second := b.job(t, "cus_first"), b.job(t, "cus_second")
	gone := second.ID + 1000
	require.Equal(t, http.StatusOK, b.send(t, b.action("cancel", first.ID, second.ID, second.ID)).Code)
	require.Equal(t, rivertype.JobStateCancelled, b.state(t, second.ID))
	b.send(t, b.action("delete", gone))
	actions := b.recorded(t)
	require.Len(t, actions, 3)
	require.NotEqual(t, actions[0].IntentID, actions[1].IntentID)
	require.Nil(t, actions[2].IntentID, "a job that is gone has no intent any more")
	require.Equal(t, []string{strconv.FormatInt(gone, 10)}, actions[2].Detail.JobIDs)
}

func TestJobOfMissingIntentCannotBeDeleted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	job := b.insert(t, chargeArgs{IntentID: 4711, CustomerID: "cus_nowhere"})
	require.Equal(t, http.StatusOK, b.send(t, b.action("delete", job.ID)).Code)
	require.Zero(t, b.count(t, "SELECT count(*) FROM river.river_job"))
	require.Equal(t, "river_job_delete", b.recorded(t)[0].Action)
}

func TestActionFromAnotherSite(t *testing.T) {
	t.Parallel()
	b := setup(t)
	job := b.job(t, "cus_attacked")
	for name, header := range map[string]http.Header{
		"origin":     {"Origin": {"https://evil.example"}},
		"fetch site": {"Sec-Fetch-Site": {"cross-site"}},
		"same site":  {"Sec-Fetch-Site": {"same-site"}},
		"both":       {"Origin": {"https://evil.example"}, "Sec-Fetch-Site": {"cross-site"}, "Content-Type": {"text/plain"}},
		"null":       {"Origin": {"null"}},
	} {
		attack := b.action("delete", job.ID)
		attack.header = header
		require.Equal(t, http.StatusForbidden, b.send(t, attack).Code, name)
	}
	require.Equal(t, rivertype.JobStateAvailable, b.state(t, job.ID))
	require.Empty(t, b.recorded(t))

	own := b.action("delete", job.ID)
	own.header = http.Header{"Origin": {"http://example.com"}, "Sec-Fetch-Site": {"same-origin"}}
	require.Equal(t, http.StatusOK, b.send(t, own).Code, "River UI's own actions go through")
}

// What is recorded must be what River UI does, whatever the spelling.
func TestRecordNamesOtherJobsThanMoved(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, body := range []string{
		`{"IDS":["%d"]}`, `{"ids":[%d]}`, `{"ids":["999999"],"ids":["%d"]}`, `{"ids":["999999"],"Ids":["%d"]}`, ` { "ids" : [ "%d" ] } `,
	} {
		job := b.job(t, fmt.Sprintf("cus_%x", body))
		before := len(b.recorded(t))
		answer := b.send(t, request{method: http.MethodPost, path: "/river/api/jobs/cancel", body: fmt.Sprintf(body, job.ID)})
		require.Equal(t, http.StatusOK, answer.Code, body)
		require.Equal(t, rivertype.JobStateCancelled, b.state(t, job.ID), body)
		actions := b.recorded(t)
		require.Len(t, actions, before+1, body)
		require.Equal(t, []string{strconv.FormatInt(job.ID, 10)}, actions[before].Detail.JobIDs, body)
	}
}

func TestActionUnderAnotherSpellingOfItsPath(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, path := range []string{
		"/river/api/jobs/canc%65l", "/river/api/jobs/%63ancel", "/river/api/%6Aobs/cancel", "/river//api/jobs/cancel", "/river/x/../api/jobs/cancel",
		"/river/api/jobs/cancel/", "/river/api/jobs/CANCEL", "/river/api/jobs%2Fcancel", "/%72iver/api/jobs/cancel",
	} {
		job := b.job(t, fmt.Sprintf("cus_%x", path))
		before := len(b.recorded(t))
		b.send(t, request{method: http.MethodPost, path: path, body: fmt.Sprintf(`{"ids":["%d"]}`, job.ID)})
		actions := b.recorded(t)[before:]
		if b.state(t, job.ID) == rivertype.JobStateAvailable {
			continue // River UI did nothing
		}
		require.Len(t, actions, 1, path)
		require.Equal(t, "river_job_cancel", actions[0].Action, path)
		require.Equal(t, []string{strconv.FormatInt(job.ID, 10)}, actions[0].Detail.JobIDs, path)
	}
}

func TestBodyThatRiverUICannotReadForwarded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	job := b.job(t, "cus_unmoved")
	tooLong := `{"ids":["` + strconv.FormatInt(job.ID, 10) + `"],"x":"` + strings.Repeat("x", 64<<10) + `"}`
	tooMany, err := json.Marshal(map[string]any{"ids": make([]int64, 1001)})
	require.NoError(t, err)
	for body, status := range map[string]int{
		tooLong: http.StatusRequestEntityTooLarge, string(tooMany): http.StatusBadRequest, `{"ids":["x"]}`: http.StatusBadRequest,
		`{"ids":"1"}`: http.StatusBadRequest, `[1]`: http.StatusBadRequest, `{"ids":["1"`: http.StatusBadRequest, `{"ids":[null]}`: http.StatusBadRequest,
	} {
		answer := b.send(t, request{method: http.MethodPost, path: "/river/api/jobs/cancel", body: body})
		require.Equal(t, status, answer.Code, body[:min(len(body), 80)])
		require.Contains(t, answer.Body.String(), `"message"`)
	}
	require.Empty(t, b.recorded(t))
	require.Equal(t, rivertype.JobStateAvailable, b.state(t, job.ID))
}

func TestUnknownWriteNotRecorded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, target := range []string{"DELETE /river/api/jobs/1", "POST /river/api/new/thing", "PUT /river/api/queues/charge/erase", "PURGE /river/"} {
		method, path, _ := strings.Cut(target, " ")
		before := len(b.recorded(t))
		b.send(t, request{method: method, path: path})
		actions := b.recorded(t)
		require.Len(t, actions, before+1, target)
		require.Equal(t, "river_other", actions[before].Action)
		require.Equal(t, path, actions[before].Detail.Path)
		require.Equal(t, method, actions[before].Detail.Method)
	}
}

func TestVaultKeyOrMoneyShownToOperators(t *testing.T) {
	t.Parallel()
	b := setup(t)
	job := b.job(t, "cus_shown")
	run := b.run(t)
	_, err := b.owner.Exec(t.Context(), `INSERT INTO billing.vault_keys (run_id, state, label, provider_key_id, ciphertext, encryption_key_id,
		usd_cap_cents, lease_until, issued_at, expires_at) VALUES ($1, 'active', 'label-of-key', 'provider-key', 'cipher-text', 'k1', 1, now(), now(), now())`, run)
	require.NoError(t, err)
	for _, path := range []string{
		"/", "/river/", fmt.Sprintf("/river/api/jobs/%d", job.ID), "/river/api/jobs?state=available", "/river/api/queues", "/river/api/features",
		"/river/api/states", "/river/api/autocomplete?facet=job_kind&match=c", "/river/api/version",
	} {
		answer := b.send(t, request{path: path})
		require.Less(t, answer.Code, http.StatusInternalServerError, path)
		for _, secret := range []string{"label-of-key", "provider-key", "cipher-text", password, "cus_stripe_"} {
			require.NotContains(t, answer.Body.String(), secret, path)
		}
	}
	var args map[string]any
	require.NoError(t, json.Unmarshal(job.EncodedArgs, &args))
	require.ElementsMatch(t, []string{"intent_id", "namespace", "billing_period", "customer_id", "idempotency_key"}, keysOf(args))

	for _, statement := range []string{
		"SELECT * FROM billing.vault_keys", "SELECT * FROM billing.charge_requests", "SELECT raw FROM billing.quarantined_events",
		"UPDATE billing.intents SET status = 'voided'", "UPDATE billing.charging_switch SET stopped = false", "DELETE FROM billing.operator_actions",
		"UPDATE billing.operator_actions SET actor = 'nobody'", "INSERT INTO river.river_job (args, kind) VALUES ('{}', 'charge_intent')",
		"INSERT INTO river.river_leader (elected_at, expires_at, leader_id) VALUES (now(), now() + interval '1 minute', 'console')",
	} {
		_, err := b.role.Exec(t.Context(), statement)
		var refused *pgconn.PgError
		require.ErrorAs(t, err, &refused, statement)
		require.Equal(t, pgerrcode.InsufficientPrivilege, refused.Code, statement)
	}
}

func keysOf(m map[string]any) (keys []string) {
	for key := range m {
		keys = append(keys, key)
	}
	return keys
}
