// SPDX-License-Identifier: MPL-2.0

package amd_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/amd"
	"github.com/nomad-gpu/nomad-gpu/device/sim/sysfstest"
	"github.com/nomad-gpu/nomad-gpu/device/sysfs"
)

const twoKinds = `
gpu {
  model = "MI300X"
  mode  = "qpx-nps1"
}
gpu {
  model = "MI210"
  count = 2
}`

// Whatever a device's files say, nothing fails or waits, and the other
// devices are what they were.
func TestSpoiledFilesHideOnlyWhatTheyConcern(t *testing.T) {
	k, topology := sysfstest.Kernel(t, twoKinds)
	whole, err := amd.New(sysfs.Options{Root: k.Root(), Timeout: time.Minute}).Survey()
	if err != nil {
		t.Fatal(err)
	}
	if len(whole.GPUs) != 3 {
		t.Fatalf("%d GPUs", len(whole.GPUs))
	}
	sysfstest.EachTree(func(number uint64, r *rand.Rand) {
		root := sysfstest.Copy(t, filepath.Join(k.Root(), "sys"))
		top := filepath.Join(t.TempDir())
		if err := os.Symlink(root, filepath.Join(top, "sys")); err != nil {
			t.Fatal(err)
		}
		// One device's own files: its PCI device and its nodes. The first node is the CPU's.
		victim := r.IntN(3)
		words := [][]string{{topology.CardPCI(0), "nodes/1/", "nodes/2/", "nodes/3/", "nodes/4/"}, {topology.CardPCI(1), "nodes/5/"}, {topology.CardPCI(2), "nodes/6/"}}[victim]
		files := sysfstest.Files(t, root, words...)
		for range 1 + r.IntN(12) {
			sysfstest.Spoil(t, r, files[r.IntN(len(files))])
		}
		sysfstest.OnlyItself(t, number, amd.New(sysfs.Options{Root: top, Timeout: time.Minute}), whole, victim)
	})
}

// Layout writes what the driver expects, and nothing that the GPU does not know.
func TestLayoutWritesTheDriversFiles(t *testing.T) {
	k, topology := sysfstest.Kernel(t, "gpu {\n model = \"MI300X\"\n}")
	root := sysfstest.Copy(t, filepath.Join(k.Root(), "sys"))
	top := t.TempDir()
	if err := os.Symlink(root, filepath.Join(top, "sys")); err != nil {
		t.Fatal(err)
	}
	b := amd.New(sysfs.Options{Root: top, Timeout: time.Minute})
	if _, err := b.Survey(); err != nil {
		t.Fatal(err)
	}
	uuid := topology.CardUUID(0)
	for _, tc := range []struct {
		profiles []string
		says     string
	}{
		{[]string{"cpx-nps2"}, "NPS2"},
		{[]string{"tpx"}, "TPX"},
		{[]string{"cpx", "dpx"}, "2 profiles"},
		{[]string{"cpx-nps4"}, ""},
	} {
		if err := b.Layout(uuid, tc.profiles); (err == nil) != (tc.says == "") {
			t.Errorf("%v: %v", tc.profiles, err)
		}
	}
	for file, want := range map[string]string{"current_compute_partition": "CPX", "current_memory_partition": "NPS4"} {
		text, err := os.ReadFile(filepath.Join(root, "bus/pci/devices", topology.CardPCI(0), file))
		if err != nil || string(text[:len(want)]) != want {
			t.Errorf("%s is %q, %v", file, text, err)
		}
	}
}

// A machine with sixteen devices is surveyed in no time.
func BenchmarkSurveyOf16(b *testing.B) {
	for name, mode := range map[string]string{"whole": "", "partitions": "mode = \"cpx-nps4\"\n"} {
		b.Run(name, func(b *testing.B) {
			k, _ := sysfstest.Kernel(b, fmt.Sprintf("gpu {\n model = \"MI300X\"\n count = 16\n %s}", mode))
			backend := amd.New(sysfs.Options{Root: k.Root(), Timeout: time.Minute})
			b.ReportAllocs()
			for b.Loop() {
				if m, err := backend.Survey(); err != nil || len(m.GPUs) != 16 {
					b.Fatal(err)
				}
			}
		})
	}
}
