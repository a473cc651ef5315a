package file

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"chargeonce/sql/sqltest"
)

func TestMain(m *testing.M) {
	code := sqltest.Run(m)
	// The one leak that is let pass is the Event Hubs SDK's, see ingest/eventhubs.
	err := goleak.Find(goleak.IgnoreTopFunction(
		"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2/internal.(*Namespace).startNegotiateClaimRenewer.func3"))
	if code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
