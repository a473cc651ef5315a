package azuritetest_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"chargeonce/ingest/eventhubs/azuritetest"
)

// asBinary makes this binary a test binary that starts Azurite and then waits to be killed.
const asBinary = "AZURITETEST_WAIT_FOR_DEATH"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestContainersAreTheTestsOwn(t *testing.T) {
	t.Parallel()
	a, b := azuritetest.Start(t), azuritetest.Start(t)
	a.Put(t, "x/y", map[string]string{"offset": "7"})
	blobs, err := a.Blobs(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[string]string{"offset": "7"}, blobs["x/y"].Metadata)
	blobs, err = b.Blobs(t.Context())
	require.NoError(t, err)
	require.Empty(t, blobs)
}

// Nobody can clean up behind a test binary that was killed.
func TestAzuriteEndsWithItsTestBinary(t *testing.T) {
	t.Parallel()
	if os.Getenv(asBinary) != "" {
		fmt.Println("azurite at", azuritetest.Start(t).AccountURL) //nolint:forbidigo // for the test that started this one
		<-t.Context().Done()
		return
	}
	azuritetest.Start(t) // skips here, and not in the child, where it is missing
	self, err := os.Executable()
	require.NoError(t, err)
	child := exec.CommandContext(t.Context(), self, "-test.run=^TestAzuriteEndsWithItsTestBinary$") //nolint:gosec // this very binary
	child.Env = append(os.Environ(), asBinary+"=1")
	output, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	var address string
	for lines := bufio.NewScanner(output); address == "" && lines.Scan(); {
		_, address, _ = strings.Cut(lines.Text(), "azurite at ")
	}
	u, err := url.Parse(address)
	require.NoError(t, err)
	require.NoError(t, dial(t.Context(), u.Host))
	require.NoError(t, child.Process.Kill())
	_ = child.Wait() // killed
	require.Eventually(t, func() bool { return dial(t.Context(), u.Host) != nil }, 30*time.Second, 20*time.Millisecond)
}

func dial(ctx context.Context, host string) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", host)
	if err != nil {
		return err
	}
	return conn.Close()
}

func TestProxyMakesTheFaultsThatItIsTold(t *testing.T) {
	t.Parallel()
	p := azuritetest.Start(t).Through(t)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	client, err := container.NewClientFromConnectionString(p.ConnectionString, p.Container, &container.ClientOptions{
		ClientOptions: azcore.ClientOptions{Retry: policy.RetryOptions{MaxRetries: -1}, Transport: &http.Client{Transport: transport}},
	})
	require.NoError(t, err)
	write := func(name string) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := client.NewBlockBlobClient(name).UploadBuffer(ctx, nil, nil)
		return err
	}
	require.NoError(t, write("ns/hub/g/checkpoint/0"))

	for _, test := range []struct {
		title string
		fault azuritetest.Fault
		said  string
	}{
		{"refused", azuritetest.Fault{Status: http.StatusServiceUnavailable, Code: "ServerBusy"}, "503"},
		{"held", azuritetest.Fault{Hold: true}, "deadline"},
		{"lost", azuritetest.Fault{Lose: true}, "EOF"},
	} {
		p.Fail(func(r *http.Request) azuritetest.Fault {
			if azuritetest.IsCheckpointWrite(r, "1") {
				return test.fault
			}
			return azuritetest.Fault{}
		})
		require.NoError(t, write("ns/hub/g/checkpoint/0"), test.title)
		require.NoError(t, write("ns/hub/g/ownership/1"), test.title)
		require.ErrorContains(t, write("ns/hub/g/checkpoint/1"), test.said, test.title)
		require.Equal(t, 1, p.Met(), test.title)
		blobs, err := p.Blobs(t.Context())
		require.NoError(t, err)
		_, written := blobs["ns/hub/g/checkpoint/1"]
		require.Equal(t, test.fault.Lose, written, test.title)
	}
	p.Fail(nil)
	require.NoError(t, write("ns/hub/g/checkpoint/1"))

	p.SetClock(10 * time.Minute)
	var response *http.Response
	properties, err := client.NewBlobClient("ns/hub/g/checkpoint/1").GetProperties(policy.WithCaptureResponse(t.Context(), &response), nil)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(10*time.Minute), *properties.LastModified, time.Minute)
	date, err := http.ParseTime(response.Header.Get("Date"))
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(10*time.Minute), date, time.Minute)
	page, err := client.NewListBlobsFlatPager(nil).NextPage(t.Context())
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(10*time.Minute), *page.Segment.BlobItems[0].Properties.LastModified, time.Minute)
}
