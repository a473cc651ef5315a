package console

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"chargeonce/sql/queries"
)

const (
	// maxBodyBytes bounds an action's body: River UI's longest names 1,000 jobs in some 22 kB.
	maxBodyBytes = 64 << 10
	// maxJobs is River UI's own bound for one action.
	maxJobs = 1000
	// maxPathBytes of a path are kept with an action.
	maxPathBytes = 1024
	// recordTimeout bounds the writing down of one action.
	recordTimeout = 5 * time.Second
)

// auditor writes every action in River UI to billing.operator_actions before River UI sees it.
type auditor struct {
	log     *slog.Logger
	metrics *metrics
	pool    *pgxpool.Pool
	queries *queries.Queries
	jobs    *river.Client[pgx.Tx]
	actor   string
	prefix  string
}

// mount serves River UI: reading as it is, everything else recorded first. The patterns are River UI's own, matched by
// the same kind of mux, so that what is recorded is what River UI does.
func (a *auditor) mount(mux *http.ServeMux, ui http.Handler) {
	mux.Handle("GET "+a.prefix, ui)
	mux.Handle("GET "+a.prefix+"assets/", kept(ui))
	mux.Handle("POST "+a.prefix+"api/jobs/{verb}", a.recorded(ui, func(r *http.Request) string {
		return known("river_job_", r.PathValue("verb"), "cancel", "retry", "delete")
	}))
	mux.Handle("PUT "+a.prefix+"api/queues/{name}/{verb}", a.recorded(ui, func(r *http.Request) string {
		return known("river_queue_", r.PathValue("verb"), "pause", "resume")
	}))
	mux.Handle("PATCH "+a.prefix+"api/queues/{name}", a.recorded(ui, func(*http.Request) string { return "river_queue_update" }))
	mux.Handle(a.prefix, a.recorded(ui, func(*http.Request) string { return otherAction }))
}

// kept lets a browser keep River UI's assets for a while: their names change with their content.
func kept(ui http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "private, max-age=3600")
		ui.ServeHTTP(w, r)
	})
}

// otherAction is what a later River UI can do and this package has no name for.
const otherAction = "river_other"

// known keeps the names of actions a closed list.
func known(prefix, verb string, verbs ...string) string {
	if slices.Contains(verbs, verb) {
		return prefix + verb
	}
	return otherAction
}

func (a *auditor) recorded(ui http.Handler, name func(*http.Request) string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, action := r.Context(), name(r)
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBodyBytes))
		if err != nil {
			a.refuse(w, r, action, bodyStatus(err), "The action's body cannot be read.", err)
			return
		}
		jobIDs, err := jobIDsIn(body)
		if err != nil {
			a.refuse(w, r, action, http.StatusBadRequest, "The action's body does not name jobs as River UI does.", err)
			return
		}
		if err := a.record(ctx, r, action, jobIDs); err != nil {
			a.metrics.actions.WithLabelValues(action, "not_recorded").Inc()
			a.log.ErrorContext(ctx, "an action could not be recorded and was refused", slog.String("action", action), slog.Any("error", err))
			refuse(w, http.StatusServiceUnavailable, "The action could not be recorded, so it was not done. Try again.")
			return
		}
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		answer := &statusWriter{ResponseWriter: w}
		ui.ServeHTTP(answer, r)
		a.tell(ctx, action, jobIDs, answer.status)
	})
}

func (a *auditor) refuse(w http.ResponseWriter, r *http.Request, action string, status int, message string, err error) {
	a.metrics.actions.WithLabelValues(action, "refused").Inc()
	a.log.WarnContext(r.Context(), "refused an action", slog.String("action", action), slog.String("actor", a.actor), slog.Any("error", err))
	refuse(w, status, message)
}

func (a *auditor) tell(ctx context.Context, action string, jobIDs []int64, status int) {
	result := "done"
	if status >= http.StatusBadRequest {
		result = "refused"
	}
	a.metrics.actions.WithLabelValues(action, result).Inc()
	a.log.InfoContext(ctx, "operator's action", slog.String("action", action), slog.String("actor", a.actor),
		slog.Int("jobs", len(jobIDs)), slog.Int("http_status", status))
}

func bodyStatus(err error) int {
	if _, tooLong := errors.AsType[*http.MaxBytesError](err); tooLong {
		return http.StatusRequestEntityTooLarge
	}
	return http.StatusBadRequest
}

// jobIDsIn reads a body by the rules of River UI's decoder (encoding/json; ids as numbers or as strings), and refuses
// what that would refuse: the record names exactly the jobs that River UI will find in it.
func jobIDsIn(body []byte) ([]int64, error) {
	if len(body) == 0 {
		return nil, nil
	}
	var action struct {
		IDs []jobID `json:"ids"`
	}
	if err := json.Unmarshal(body, &action); err != nil {
		return nil, fmt.Errorf("read the action's body: %w", err)
	}
	if len(action.IDs) > maxJobs {
		return nil, fmt.Errorf("%d jobs in one action, more than %d", len(action.IDs), maxJobs)
	}
	ids, seen := []int64(nil), map[jobID]bool{}
	for _, id := range action.IDs {
		if !seen[id] {
			seen[id], ids = true, append(ids, int64(id))
		}
	}
	return ids, nil
}

type jobID int64

// UnmarshalJSON takes 12 and "12".
func (id *jobID) UnmarshalJSON(data []byte) error {
	text := string(data)
	if len(text) > 1 && text[0] == '"' {
		text = text[1 : len(text)-1]
	}
	parsed, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return errors.New("a job id is not a number")
	}
	*id = jobID(parsed)
	return nil
}

// actionDetail is billing.operator_actions.detail of these actions.
type actionDetail struct {
	Method string   `json:"method"`
	Path   string   `json:"path"`
	JobIDs []string `json:"job_ids,omitempty"`
}

// record writes one row for each job, with its intent, so that an intent's story shows who moved its job; or one row
// where no job is named. All of them stand, or none.
func (a *auditor) record(ctx context.Context, r *http.Request, action string, jobIDs []int64) error {
	ctx, cancel := context.WithTimeoutCause(ctx, recordTimeout, fmt.Errorf("recording the action took longer than %s", recordTimeout))
	defer cancel()
	intents, err := a.intentsOf(ctx, jobIDs)
	if err != nil {
		return fmt.Errorf("find the jobs' intents: %w", err)
	}
	err = a.insert(ctx, r, action, jobIDs, intents)
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == pgerrcode.ForeignKeyViolation {
		// A job that names an intent which is not there must still be possible to delete.
		err = a.insert(ctx, r, action, jobIDs, nil)
	}
	return err
}

func (a *auditor) insert(ctx context.Context, r *http.Request, action string, jobIDs []int64, intents map[int64]int64) error {
	path := r.URL.EscapedPath()
	detail := actionDetail{Method: r.Method, Path: path[:min(len(path), maxPathBytes)]}
	row := queries.OperatorActionAddParams{Actor: a.actor, Action: action}
	return pgx.BeginFunc(ctx, a.pool, func(tx pgx.Tx) error {
		if len(jobIDs) == 0 {
			return a.insertRow(ctx, tx, row, detail)
		}
		for _, id := range jobIDs {
			row.IntentID, detail.JobIDs = nil, []string{strconv.FormatInt(id, 10)}
			if intent, ok := intents[id]; ok {
				row.IntentID = &intent
			}
			if err := a.insertRow(ctx, tx, row, detail); err != nil {
				return fmt.Errorf("job %d: %w", id, err)
			}
		}
		return nil
	})
}

func (a *auditor) insertRow(ctx context.Context, tx pgx.Tx, row queries.OperatorActionAddParams, detail actionDetail) error {
	encoded, err := json.Marshal(detail)
	if err != nil {
		return fmt.Errorf("encode the action: %w", err)
	}
	row.Detail = encoded
	if err := a.queries.OperatorActionAdd(ctx, tx, row); err != nil {
		return fmt.Errorf("insert the action: %w", err)
	}
	return nil
}

// intentsOf maps those of the jobs that work on an intent to it. Jobs that are gone have none.
func (a *auditor) intentsOf(ctx context.Context, jobIDs []int64) (map[int64]int64, error) {
	intents := map[int64]int64{}
	if len(jobIDs) == 0 {
		return intents, nil
	}
	found, err := a.jobs.JobList(ctx, river.NewJobListParams().IDs(jobIDs...).First(len(jobIDs)))
	if err != nil {
		return nil, err
	}
	for _, job := range found.Jobs {
		var args struct {
			IntentID int64 `json:"intent_id"`
		}
		if err := json.Unmarshal(job.EncodedArgs, &args); err == nil && args.IntentID > 0 {
			intents[job.ID] = args.IntentID
		}
	}
	return intents, nil
}

// statusWriter remembers what River UI answered.
type statusWriter struct {
	http.ResponseWriter

	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(b)
}

// refuse answers in the form of River UI's own errors, which its pages show.
func refuse(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"message": message}) // the client is gone
}
