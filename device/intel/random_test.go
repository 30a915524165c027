// SPDX-License-Identifier: MPL-2.0

package intel_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/intel"
	"github.com/nomad-gpu/nomad-gpu/device/sim/sysfstest"
	"github.com/nomad-gpu/nomad-gpu/device/sysfs"
)

// Whatever a device's files say, nothing fails or waits, and the other
// devices are what they were.
func TestSpoiledFilesHideOnlyWhatTheyConcern(t *testing.T) {
	k, topology := sysfstest.Kernel(t, "gpu {\n model = \"Flex170\"\n}\ngpu {\n model = \"A770\"\n count = 2\n}")
	whole, err := intel.New(sysfs.Options{Root: k.Root(), Timeout: time.Minute}).Survey()
	if err != nil || len(whole.GPUs) != 3 {
		t.Fatalf("%d GPUs, %v", len(whole.GPUs), err)
	}
	sysfstest.EachTree(func(number uint64, r *rand.Rand) {
		root := t.TempDir()
		for _, part := range []string{"sys", "proc", "etc"} {
			if err := os.Symlink(sysfstest.Copy(t, filepath.Join(k.Root(), part)), filepath.Join(root, part)); err != nil {
				t.Fatal(err)
			}
		}
		sys, err := filepath.EvalSymlinks(filepath.Join(root, "sys"))
		if err != nil {
			t.Fatal(err)
		}
		victim := r.IntN(3)
		files := sysfstest.Files(t, sys, topology.CardPCI(victim))
		for range 1 + r.IntN(8) {
			sysfstest.Spoil(t, r, files[r.IntN(len(files))])
		}
		sysfstest.OnlyItself(t, number, intel.New(sysfs.Options{Root: root, Timeout: time.Minute}), whole, victim)
	})
}

func BenchmarkSurveyOf16(b *testing.B) {
	k, _ := sysfstest.Kernel(b, "gpu {\n model = \"Flex170\"\n count = 16\n}")
	backend := intel.New(sysfs.Options{Root: k.Root(), Timeout: time.Minute})
	b.ReportAllocs()
	for b.Loop() {
		if m, err := backend.Survey(); err != nil || len(m.GPUs) != 16 {
			b.Fatal(err)
		}
	}
}
