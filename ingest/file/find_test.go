package file_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"chargeonce/ingest"
	"chargeonce/ingest/file"
	"chargeonce/ingest/file/filetest"
	"chargeonce/sql"
	"chargeonce/sql/sqltest"
)

func write(t *testing.T, folder, name, content string) string {
	t.Helper()
	path := filepath.Join(folder, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func line(customer string, amount int) string {
	return fmt.Sprintf(`{"customer_id":"cus_%s","billing_period":"2026-08","amount_cents":%d}`+"\n", customer, amount)
}

// TestFolderIsImportedInOrderAndEachFileOnce: of two events with one key the earlier file's stays, whatever the folder's order on disk,
// and a file that is named twice, or by its folder too, is read once.
func TestFolderIsImportedInOrderAndEachFileOnce(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	write(t, folder, "hub/0/2026/08/31/23/00/00.ndjson", line("a", 2))
	first := write(t, folder, "hub/0/2026/08/31/09/00/00.ndjson", line("a", 1))
	write(t, folder, "hub/1/2026/08/31/08/00/00.ndjson", line("a", 3))
	write(t, folder, "hub/1/README.md", "not events")
	write(t, folder, "hub/.snapshot/x.ndjson", line("hidden", 1))
	write(t, folder, "hub/.x.ndjson", line("hidden", 1))
	require.NoError(t, os.Symlink(first, filepath.Join(folder, "hub/2.ndjson")))
	require.NoError(t, os.Symlink(folder, filepath.Join(folder, "hub/round")))

	set, err := file.Find([]string{filepath.Join(folder, "hub", "..", "hub"), first}, file.Config{})
	require.NoError(t, err)
	require.Equal(t, 4, set.Files())
	bytes, known := set.Bytes()
	require.True(t, known)
	require.EqualValues(t, 4*len(line("a", 1)), bytes)
	require.Equal(t, []string{folder + "/hub/.snapshot", folder + "/hub/.x.ndjson", folder + "/hub/1/README.md", folder + "/hub/round"}, set.Left)

	db := sqltest.New(t)
	report := importPaths(t, db, filepath.Join(folder, "hub"), first)
	require.Equal(t, ingest.Counts{Intents: 1, Duplicates: 1, Conflicts: 2}, report.Counts)
	require.Equal(t, 4, report.FilesRead)
	var position string
	require.NoError(t, db.Pool(t, "").QueryRow(t.Context(), "SELECT source_position FROM billing.intents").Scan(&position))
	require.Equal(t, first+":1/0", position)
}

func TestFileThatCannotBeImportedIsNamedBeforeAnythingIsRecorded(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	good := write(t, folder, "good.ndjson", line("a", 1))
	require.NoError(t, os.Symlink("/nowhere", filepath.Join(folder, "dangling.ndjson")))
	for title, test := range map[string]struct {
		path string
		cfg  file.Config
		is   error
		want string
	}{
		"missing":         {filepath.Join(folder, "missing"), file.Config{}, os.ErrNotExist, ""},
		"a dangling link": {folder, file.Config{}, os.ErrNotExist, ""},
		"other columns":   {write(t, t.TempDir(), "x.csv", "a,b\n"), file.Config{}, file.ErrHeader, ""},
		"other records":   {write(t, t.TempDir(), "x.avro", string(filetest.Header(`"string"`, "null"))), file.Config{}, file.ErrNotCapture, ""},
		"no format":       {write(t, t.TempDir(), "x", "hello"), file.Config{}, nil, "cannot be told"},
		"no such format":  {good, file.Config{Format: "parquet"}, nil, "none of auto, ndjson, json, csv, avro"},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			_, err := file.Find([]string{good, test.path}, test.cfg)
			var named *file.PathError
			require.ErrorAs(t, err, &named)
			require.Contains(t, err.Error(), named.Path+": "+named.Err.Error())
			if test.is != nil {
				require.ErrorIs(t, err, test.is)
			}
			require.Contains(t, err.Error(), test.want)
		})
	}
}

// A position must fit its column and stay one file's own, however long or strange the path is.
func TestPositionsOfLongAndStrangePathsFitAndDiffer(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	deep := folder
	for range 8 {
		deep = filepath.Join(deep, strings.Repeat("d", 200))
	}
	paths := []string{
		write(t, deep, "a.ndjson", line("a", 1)), write(t, deep, "b.ndjson", line("b", 1)),
		write(t, folder, "strange\xff.ndjson", line("c", 1)), write(t, folder, "strange\xfe.ndjson", line("d", 1)),
		write(t, folder, "new\nline.ndjson", line("e", 1)),
	}
	db := sqltest.New(t)
	require.Equal(t, ingest.Counts{Intents: 5}, importPaths(t, db, paths...).Counts)
	require.Equal(t, ingest.Counts{Redeliveries: 5}, importPaths(t, db, paths...).Counts)
	var positions int
	require.NoError(t, db.Pool(t, "").QueryRow(t.Context(), "SELECT count(DISTINCT source_position) FROM billing.intents").Scan(&positions))
	require.Equal(t, 5, positions)
}

// A file that disappears between the look and the import is the system's matter, and what came before stands.
func TestFileThatDisappearsEndsTheImportWithItsName(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	first, gone := write(t, folder, "a.ndjson", line("a", 1)), write(t, folder, "b.ndjson", line("b", 1))
	db := sqltest.New(t)
	recorder, err := ingest.NewRecorder(ingest.Config{Namespace: "usage", Source: file.SourceName}, db.Pool(t, sql.RoleIngest), nil, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.NoError(t, recorder.Register(t.Context()))
	importer, err := file.New(file.Config{}, recorder)
	require.NoError(t, err)
	set, err := file.Find([]string{first, gone}, file.Config{})
	require.NoError(t, err)
	require.NoError(t, os.Remove(gone))
	report, err := importer.Import(t.Context(), set)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, gone)
	require.Equal(t, ingest.Counts{Intents: 1}, report.Counts)
	require.False(t, report.Complete)
	require.Equal(t, 1, report.FilesRead)
	bytes, objects := importer.Progress()
	require.EqualValues(t, len(line("a", 1)), bytes)
	require.EqualValues(t, 1, objects)
}

// The figures are finance's: they must be exact beyond 64 bits, and in the decimals of each currency.
func TestSumsAreExactInEveryCurrency(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	for i := range 3 {
		fmt.Fprintf(&text, `{"customer_id":"cus_u%d","billing_period":"2026-08","amount_cents":999999999999}`+"\n", i)
		fmt.Fprintf(&text, `{"customer_id":"cus_j%d","billing_period":"2026-08","amount_cents":7,"currency":"JPY"}`+"\n", i)
		fmt.Fprintf(&text, `{"customer_id":"cus_k%d","billing_period":"2026-07","amount_cents":1230,"currency":"kwd"}`+"\n", i)
	}
	report := importPaths(t, sqltest.New(t), write(t, t.TempDir(), "x.ndjson", text.String()))
	var got []string
	for _, p := range report.Periods() {
		got = append(got, fmt.Sprint(p.BillingPeriod, " ", p.Currency, " ", p.New.Count, " ", p.New.Text(p.Currency)))
	}
	require.Equal(t, []string{"2026-07 kwd 3 3.690", "2026-08 jpy 3 21", "2026-08 usd 3 29999999999.97"}, got)

	var sum file.Sum
	sum.Minor.SetString("123456789012345678901234567890", 10)
	require.Equal(t, "1234567890123456789012345678.90", sum.Text("usd"))
	require.Equal(t, "123456789012345678901234567890", sum.Text("jpy"))
}
