package device

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/nomad-gpu/nomad-gpu/device/mps"
)

// The test binary stands in for the plugin's, which starts MPS daemons.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == mps.ExecCommand {
		_, _ = os.Stderr.WriteString(mps.Exec(os.Args[2:], os.Environ()).Error() + "\n")
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"))
}
