// SPDX-License-Identifier: MPL-2.0

package device

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/registry"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

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

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func faultCodes(faults []gpu.Fault) string {
	var all []string
	for _, f := range faults {
		all = append(all, f.Code)
	}
	return strings.Join(all, " ")
}

func sliceIDs(uuid string, numbers ...int) []string {
	var ids []string
	for _, n := range numbers {
		ids = append(ids, gpu.SliceID{UUID: uuid, N: n}.String())
	}
	return ids
}
