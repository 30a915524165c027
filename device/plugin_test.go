// SPDX-License-Identifier: MPL-2.0

package device

import (
	"flag"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/nomad-gpu/nomad-gpu/device/mps"
	"github.com/nomad-gpu/nomad-gpu/internal/leaktest"
)

// The test binary stands in for the plugin's, which starts MPS daemons.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		var err error
		switch os.Args[1] {
		case mps.ExecCommand:
			err = mps.Exec(os.Args[2:], os.Environ())
		case mps.GateCommand:
			if err = mps.RunGate(os.Args[2:]); err == nil {
				os.Exit(0)
			}
		}
		if err != nil {
			_, _ = os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
	}
	// Tests wait for surveys more than they compute.
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		_ = parallel.Value.Set("6")
	}
	leaktest.Main(m, goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"))
}
