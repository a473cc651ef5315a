package ingest_test

import (
	"testing"

	"chargeonce/sql/sqltest"
)

func TestMain(m *testing.M) { sqltest.Main(m) }
