package eventhubstest_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/stretchr/testify/require"

	"chargeonce/ingest/eventhubs/eventhubstest"
)

func call(t *testing.T, h http.Handler, method, target, body string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body)))
	answer, err := io.ReadAll(w.Result().Body)
	require.NoError(t, err)
	require.NoError(t, w.Result().Body.Close())
	return w.Code, string(answer)
}

func TestControlPortShowsTheSameLedger(t *testing.T) {
	t.Parallel()
	s := start(t, eventhubstest.Config{})
	h := s.ControlHandler()
	send(t, producer(t, s), azeventhubs.EventDataBatchOptions{PartitionID: new("2")}, "one", "two")

	status, answer := call(t, h, http.MethodGet, "/_standin/ledger", "")
	require.Equal(t, http.StatusOK, status)
	var ledger eventhubstest.Ledger
	require.NoError(t, json.Unmarshal([]byte(answer), &ledger))
	require.Equal(t, hubName, ledger.Hubs[0].Name)
	require.Equal(t, 2, ledger.Hubs[0].Partitions[2].Count)
	require.Empty(t, ledger.Hubs[0].Partitions[2].Events)
	require.EqualValues(t, 2, ledger.Counters.Stored)

	_, answer = call(t, h, http.MethodGet, "/_standin/ledger?events=1", "")
	require.NoError(t, json.Unmarshal([]byte(answer), &ledger))
	require.Equal(t, "two", string(ledger.Hubs[0].Partitions[2].Events[1].Body))
}

func TestFaultScriptIsCarriedOut(t *testing.T) {
	t.Parallel()
	s := start(t, eventhubstest.Config{})
	h := s.ControlHandler()
	publish(t, s, "0", 4)
	status, answer := call(t, h, http.MethodPost, "/_standin/faults", `{"faults": [
		{"kind": "trim", "hub": "billing", "partition": "0", "sequence_number": 3},
		{"kind": "add_partitions", "hub": "billing", "count": 1},
		{"kind": "lose_ack", "times": 1},
		{"kind": "detach_receivers", "hub": "billing"},
		{"kind": "drop_connections"}]}`)
	require.Equal(t, http.StatusOK, status, answer)
	require.Len(t, s.Events(hubName, "0"), 1)
	send(t, producer(t, s), azeventhubs.EventDataBatchOptions{PartitionID: new("4")}, "x")
	require.Len(t, s.Events(hubName, "4"), 2, "stored twice over the lost acknowledgement")

	for _, bad := range []string{
		`{"faults": [{"kind": "explode"}]}`, `{"faults": [{"kind": "trim", "hub": "billing"}]}`, `{"fault": []}`, `{`,
		`{"faults": [{"kind": "recreate_hub", "hub": "absent"}]}`,
	} {
		status, answer = call(t, h, http.MethodPost, "/_standin/faults", bad)
		require.Equal(t, http.StatusBadRequest, status, bad)
		require.Contains(t, answer, "error")
	}
	status, _ = call(t, h, http.MethodDelete, "/_standin/faults", "")
	require.Equal(t, http.StatusMethodNotAllowed, status)
}
