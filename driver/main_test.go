package driver

import (
	"fmt"
	"os"
	"testing"

	"github.com/hashicorp/go-hclog"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(victimEnv); path != "" {
		if err := victimMain(path); err != nil {
			fmt.Fprintln(os.Stderr, "victim:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// Nomad's harness logs every line of its own machinery otherwise.
	if os.Getenv("NOMAD_TEST_LOG_LEVEL") == "" {
		_ = os.Setenv("NOMAD_TEST_LOG_LEVEL", "ERROR")
	}
	hclog.SetDefault(hclog.NewNullLogger())
	code := m.Run()
	removeSharedContainerds()
	os.Exit(code)
}
