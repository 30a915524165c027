// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/device/cuda"
	"github.com/nomad-gpu/nomad-gpu/device/mps"
	"github.com/nomad-gpu/nomad-gpu/device/nvidia"
)

// The bundle runs itself as the other programs that the tests need.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == nvidia.HookCommand {
		if err := nvidia.Hook(os.Args); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) < 2 {
		os.Exit(bundle(m))
	}
	var err error
	switch os.Args[1] {
	case mps.ExecCommand:
		err = mps.Exec(os.Args[2:], os.Environ())
	case mps.GateCommand:
		err = mps.RunGate(os.Args[2:])
	case cuda.ProbeCommand:
		err = cuda.Check()
	case workCommand:
		err = work(os.Args[2:])
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

// bundle runs every test, in the order of the phases: what MPS v3 leaves open first, then reading, limits, users,
// partitions, ends, faults, and checkpoints last. Nothing is skipped silently.
func bundle(m *testing.M) int {
	flag.Parse()
	for name, value := range map[string]string{"test.v": "true", "test.timeout": "9m"} {
		if err := flag.Set(name, value); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	for name, value := range map[string]string{requireVariable: "1", figuresVariable: "gpu-figures.txt"} {
		if _, set := os.LookupEnv(name); !set {
			os.Setenv(name, value)
		}
	}
	if err := endLeftovers(); err != nil {
		fmt.Fprintln(os.Stderr, "end what an earlier run left:", err)
		return 1
	}
	return m.Run()
}
