package solacetest

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func call(t *testing.T, s *Server, method, target, body string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	s.ControlHandler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body)))
	return w.Code, w.Body.String()
}

func TestControlPortShowsTheSameLedger(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	put(t, s, 0, 2)
	c := logIn(t, s, "c")
	c.bind(queueName, 1)
	c.receive()
	status, answer := call(t, s, http.MethodGet, "/_standin/ledger", "")
	require.Equal(t, http.StatusOK, status)
	var ledger Ledger
	require.NoError(t, json.Unmarshal([]byte(answer), &ledger))
	require.Equal(t, s.Ledger(false), ledger)
	require.Empty(t, ledger.Queues[0].Messages)
	require.Contains(t, answer, `"violations":[]`)

	_, answer = call(t, s, http.MethodGet, "/_standin/ledger?messages=1", "")
	ledger = Ledger{}
	require.NoError(t, json.Unmarshal([]byte(answer), &ledger))
	require.Equal(t, s.Ledger(true), ledger)
	require.Equal(t, []State{StateUnacked, StateReady}, []State{ledger.Queues[0].Messages[0].State, ledger.Queues[0].Messages[1].State})
	require.Equal(t, 1, ledger.Queues[0].Unacked)
}

func TestFaultScriptIsCarriedOutInOrder(t *testing.T) {
	t.Parallel()
	s := start(t, Config{ReplayLog: true})
	put(t, s, 0, 1)
	mate := start(t, Config{Mate: s})
	c := logIn(t, s, "c")
	c.bind(queueName, 255)
	c.receive()
	status, answer := call(t, s, http.MethodPost, "/_standin/faults",
		`{"faults": [{"kind": "unbind", "queue": "billing", "code": 503, "text": "Queue Deleted"}]}`)
	require.Equal(t, http.StatusOK, status, answer)
	f, _ := c.assured(assuredUnbind)
	_, text := f.response()
	require.Equal(t, "Queue Deleted", text)
	status, answer = call(t, s, http.MethodPost, "/_standin/faults", `{"faults": [
		{"kind": "shut_queue", "queue": "billing"}, {"kind": "open_queue", "queue": "billing"},
		{"kind": "spoil", "spoil": "empty", "times": 1}, {"kind": "clear"}, {"kind": "refuse_login", "code": 403, "text": "Too Many Clients", "times": 1},
		{"kind": "replay", "queue": "billing"}, {"kind": "fail_over"}, {"kind": "fail_over"}, {"kind": "mute"}, {"kind": "drop_connections"}]}`)
	require.Equal(t, http.StatusOK, status, answer)
	c.closed()
	require.True(t, s.Active())
	require.False(t, mate.Active())
	c = dial(t, s)
	c.send(loginFrame("c"))
	_, text = c.next(protoClient).response()
	require.Equal(t, "Too Many Clients", text)
	c.send(loginFrame("c"))
	c.next(protoClient)
	c.bind(queueName, 255)
	require.False(t, c.receive().redelivered, "replayed")

	for _, bad := range []string{
		`{"faults": [{"kind": "explode"}]}`, `{"faults": [{"kind": "shut_queue", "queue": "absent"}]}`, `{"fault": []}`, `{`,
		`{"faults": [{"kind": "spoil"}]}`, `{"faults": [{"kind": "lose_acks", "times": -1}]}`, `{"faults": [{"kind": "replay"}]}`,
		`{"faults": [` + strings.Repeat(`{"kind": "hold_bind"},`, maxStanding) + `{"kind": "hold_bind"}]}`,
	} {
		status, answer = call(t, s, http.MethodPost, "/_standin/faults", bad)
		require.Equal(t, http.StatusBadRequest, status, bad)
		require.Contains(t, answer, "error")
	}
	_, answer = call(t, s, http.MethodPost, "/_standin/faults", `{"kind": "drop_connections"}`)
	require.Contains(t, answer, "faults", "what a script looks like")
	_, answer = call(t, s, http.MethodPost, "/_standin/faults", `{"faults": [{"kind": "explode"}]}`)
	require.Contains(t, answer, "go doc", "where the kinds stand")
	status, _ = call(t, s, http.MethodDelete, "/_standin/faults", "")
	require.Equal(t, http.StatusMethodNotAllowed, status)
}
