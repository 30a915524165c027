package gpu

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/cuda"
	"github.com/nomad-gpu/nomad-gpu/device/inventory"
)

func TestFingerprint(t *testing.T) {
	all := map[string]inventory.Entry{}
	for _, g := range look(t).Devices {
		all[g.UUID] = g
	}
	rows := smi(t, "--query-gpu=uuid,name,memory.total,pci.bus_id")
	if len(rows) == 0 {
		t.Fatal("nvidia-smi names no GPU")
	}
	for _, row := range rows {
		g, ok := all[row[0]]
		pci := strings.ToLower(row[3])
		if !ok || g.Model != row[1] || strconv.FormatInt(g.MemoryMiB, 10) != row[2] || !strings.HasSuffix(pci, g.PCIBusID) || g.PCIBusID == "" {
			t.Errorf("nvidia-smi says %q, the plugin %+v", row, g)
		}
	}
}

// What jobs can ask for is what nvidia-smi says. A field that this nvidia-smi or
// this GPU does not have is left out.
func TestAttributes(t *testing.T) {
	for field, attribute := range map[string]string{
		"driver_version": "driver_version", "compute_cap": "compute_capability", "persistence_mode": "persistence_mode",
		"enforced.power.limit": "power", "clocks.max.sm": "cores_clock", "clocks.max.memory": "memory_clock",
	} {
		t.Run(attribute, func(t *testing.T) {
			inventory := look(t)
			for _, row := range smi(t, "--query-gpu=name,"+field) {
				for _, g := range inventory.Groups {
					got, _, _ := strings.Cut(g.Attributes[attribute], " ")
					if g.Name == "nvidia/gpu/"+row[0] && got != "" && !same(got, row[1]) {
						t.Errorf("nvidia-smi says %q, the plugin %q", row, g.Attributes[attribute])
					}
				}
			}
		})
	}
}

// same compares words, and numbers up to the part after the point that the
// plugin leaves out.
func same(plugin, smi string) bool {
	a, err1 := strconv.ParseFloat(plugin, 64)
	b, err2 := strconv.ParseFloat(smi, 64)
	return plugin == smi || strings.Contains(smi, "N/A") || err1 == nil && err2 == nil && b-a >= 0 && b-a < 1
}

func TestProbe(t *testing.T) {
	g := plain(t)
	if err := cuda.Probe(self, cuda.Target{UUID: g.UUID, LibraryPath: libraryPath()}, time.Minute); err != nil {
		t.Error(err)
	}
}

func TestShares(t *testing.T) {
	g := idle(t)
	s := daemon(t, g.UUID)
	small := start(t, g.UUID, s, []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30"}, "compute", "8")
	large := start(t, g.UUID, s, []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=60"}, "compute", "8")
	for _, c := range []*client{small, large} {
		if line := c.line(t); line != "started" {
			t.Fatalf("the program says %q", line)
		}
	}
	a, b := small.rate(t), large.rate(t)
	t.Logf("30%% computes %.1f launches per second, 60%% %.1f: ratio %.2f", a, b, b/a)
	if ratio := b / a; ratio < 1.6 || ratio > 2.4 {
		t.Errorf("the ratio is %.2f, from 1.6 to 2.4 is right", ratio)
	}
}

func TestMemoryLimit(t *testing.T) {
	g := idle(t)
	s := daemon(t, g.UUID)
	// Long enough for two other programs: the first context takes seconds on a
	// large machine.
	neighbor := start(t, g.UUID, s, []string{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2048M"}, "compute", "30")
	if line := neighbor.line(t); line != "started" {
		t.Fatalf("the neighbor says %q", line)
	}
	limit := []string{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2048M"}
	if line := start(t, g.UUID, s, limit, "allocate", "512").line(t); line != "allocated" {
		t.Errorf("within the limit: %q", line)
	}
	if line := start(t, g.UUID, s, limit, "allocate", "3072").line(t); line != "out of memory" {
		t.Errorf("above the limit: %q", line)
	}
	if rate := neighbor.rate(t); rate <= 0 {
		t.Errorf("the neighbor computed %.1f launches per second", rate)
	}
}
