// SPDX-License-Identifier: MPL-2.0

package sysfstest

import (
	"flag"
	"math/rand/v2"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/device/sim/dcmi"
)

var (
	trees = flag.Int("trees", 60, "how many spoiled trees are read")
	seed  = flag.Uint64("seed", 1, "with what they begin")
)

// Kernel simulates the kernel's files of a machine with GPUs that a topology's text
// describes.
func Kernel(t testing.TB, text string) (*sim.Kernel, *sim.Topology) {
	t.Helper()
	topology, err := sim.ParseTopology("test.hcl", []byte("machine \"test\" {}\n"+text))
	if err != nil {
		t.Fatal(err)
	}
	library, err := dcmi.Once()
	if err != nil {
		t.Fatal(err)
	}
	k, err := sim.NewKernel(topology, sim.Options{Dir: t.TempDir(), BootID: "boot", DCMI: library, Report: func(err error) { t.Error(err) }})
	if err != nil {
		t.Fatal(err)
	}
	return k, topology
}

// EachTree calls f with a seed, and the random numbers of it, for each tree that is
// to be spoiled: -trees of them from -seed on.
func EachTree(f func(seed uint64, r *rand.Rand)) {
	for n := range *trees {
		number := *seed + uint64(n)
		f(number, rand.New(rand.NewPCG(number, 0)))
	}
}
