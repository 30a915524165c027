// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"flag"
	"fmt"
	"io"
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
	if dir := os.Getenv(suspenderEnv); dir != "" {
		if err := suspenderMain(dir); err != nil {
			fmt.Fprintln(os.Stderr, "suspender:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// Nomad's harness logs every line of its own machinery otherwise.
	if os.Getenv("NOMAD_TEST_LOG_LEVEL") == "" {
		_ = os.Setenv("NOMAD_TEST_LOG_LEVEL", "ERROR")
	}
	hclog.SetDefault(hclog.NewNullLogger())
	// So do its plugin connections, by loggers that name no output. The driver's has one.
	hclog.DefaultOutput = io.Discard
	os.Exit(runTests(m))
}

// runTests keeps all that tests make in one directory, and leaves nothing: Nomad's
// harness does not remove all of its own.
func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "d")
	if err == nil {
		// Tasks of other users look for their files in it.
		err = errors.Join(os.Chmod(dir, 0o755), os.Setenv("TMPDIR", dir))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	// Tests wait for containers more than they compute.
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		_ = parallel.Value.Set("8")
	}
	defer removeSharedContainerds()
	return m.Run()
}
