// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/occupancy"
	"github.com/nomad-gpu/nomad-gpu/device/registry"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// testGPU is an H100 at the n-th PCI address.
func testGPU(uuid string, n int) hardware.GPU {
	return hardware.GPU{UUID: uuid, Vendor: "nvidia", Type: "gpu", Index: n, Minor: n, PCIBusID: fmt.Sprintf("0000:%02x:00.0", 0x10+n),
		Model: "NVIDIA H100 80GB HBM3", MemoryMiB: 81559, Traits: hardware.Traits{NUMANode: -1, ComputeCapability: "9.0"}}
}

func testUUID(n int) string { return fmt.Sprintf("GPU-%08x-0000-0000-0000-000000000000", n+1) }

func testMachine(count int) hardware.Machine {
	m := hardware.Machine{Drivers: map[string]hardware.Driver{"nvidia": {Version: "580.95.05", Platform: "13.0"}}}
	for n := range count {
		m.GPUs = append(m.GPUs, testGPU(testUUID(n), n))
	}
	return m
}

func testConfig(t testing.TB, text string) *config.Config {
	t.Helper()
	path := filepath.Join(t.TempDir(), "test.hcl")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func testRegistry() *registry.Registry {
	return &registry.Registry{Records: map[string]*registry.Record{}}
}

func quiet() Inputs {
	return Inputs{Holders: map[string]occupancy.Holder{}, Recent: map[string]occupancy.Holder{}, Busy: map[string]string{}, Cordons: map[string]string{}, Faults: map[string][]gpu.Fault{}}
}

func faultCodes(faults []gpu.Fault) string {
	var all []string
	for _, f := range faults {
		all = append(all, f.Code)
	}
	return strings.Join(all, " ")
}
