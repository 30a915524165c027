// SPDX-License-Identifier: MPL-2.0

package amd

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/sysfs"
)

// originals names the folder with the dumps of real machines that AMD publishes with its
// plugin for Kubernetes: its testdata.
const originals = "NOMAD_GPU_ROCM_DUMPS"

// What AMD's machines showed is read as it is: partitions with their GPU, by the IDs and
// addresses that are burned in.
func TestDumpsOfRealMachines(t *testing.T) {
	dumps := os.Getenv(originals)
	if dumps == "" {
		t.Skipf("%s is not set", originals)
	}
	for _, tc := range []struct {
		path             string
		gpus, partitions int // partitions of each
		uuid, pci, model string
		memory           int64 // of the first device that tells
		target           string
		links            int
	}{
		{"topology-parsing/topology", 2, 0, "GPU-c34ec50444dd0a6c", "0000:19:00.0", "AMD Instinct MI25", 0, "", 0},
		{"topo-mi210-xgmi-pcie", 8, 0, "GPU-1901ead3a2ecd4a6", "0000:63:00.0", "AMD Instinct MI210", 0, "gfx90a", 3},
		{"topo-mi300-cpx/topology", 8, 8, "GPU-e3aa140f9a5f9e31", "0000:05:00.0", "AMD Instinct MI300X", 0, "gfx942", 7},
		{"topology-parsing-mi308/topology", 8, 4, "GPU-084cafeae17e7696", "0000:0a:00.0", "AMD Instinct MI308X", 49136, "gfx942", 7},
	} {
		t.Run(tc.path, func(t *testing.T) {
			root := t.TempDir()
			if err := os.MkdirAll(filepath.Join(root, "sys/class/kfd/kfd"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(filepath.Join(dumps, tc.path), filepath.Join(root, "sys/class/kfd/kfd/topology")); err != nil {
				t.Fatal(err)
			}
			m, err := New(sysfs.Options{Root: root, Timeout: time.Minute}).Survey()
			if err != nil {
				t.Fatal(err)
			}
			if len(m.GPUs) != tc.gpus {
				t.Fatalf("%d GPUs", len(m.GPUs))
			}
			seen := map[string]bool{}
			for _, g := range m.GPUs {
				want := tc.partitions
				if g.UUID == "GPU-dd197ad1b50577f6" {
					want-- // this dump ends before its last node
				}
				if seen[g.UUID] || len(g.Partitions) != want || g.PartitionProblem != nil || g.Links.Total() != tc.links {
					t.Errorf("%s at %s: %d partitions, %+v, links %+v", g.UUID, g.PCIBusID, len(g.Partitions), g.PartitionProblem, g.Links)
				}
				seen[g.UUID] = true
			}
			g := m.GPUs[0]
			if g.UUID != tc.uuid || g.PCIBusID != tc.pci || g.Model != tc.model || g.Target != tc.target || len(g.Problems) != 0 {
				t.Errorf("the first is %+v", g)
			}
			if tc.partitions > 0 && (g.Partitions[0].MemoryMiB != tc.memory || g.Partitions[1].Position != 1) {
				t.Errorf("its partitions are %+v", g.Partitions)
			}
		})
	}
}
