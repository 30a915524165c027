package driver

import (
	"os"
	"testing"

	"github.com/hashicorp/go-hclog"
)

func TestMain(m *testing.M) {
	// Nomad's harness logs every line of its own machinery otherwise.
	if os.Getenv("NOMAD_TEST_LOG_LEVEL") == "" {
		_ = os.Setenv("NOMAD_TEST_LOG_LEVEL", "ERROR")
	}
	hclog.SetDefault(hclog.NewNullLogger())
	os.Exit(m.Run())
}
