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
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
