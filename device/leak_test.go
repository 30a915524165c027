// SPDX-License-Identifier: MPL-2.0

package device

import (
	"os"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/device"
	"go.uber.org/goleak"

	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/internal/leaktest"
)

// resources counts what a leak would add to: goroutines, and open files.
func resources(t *testing.T) (goroutines, files int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return runtime.NumGoroutine(), len(entries)
}

// daemons are the PIDs of the MPS control daemons, by device, with the sum of
// their generations.
func (r *rig) daemons(groups ...string) (pids []int, generations int64) {
	for _, name := range groups {
		s := r.service.reconciler.mps.Status(uuidOf(r.t, r.groups(), name))
		pids, generations = append(pids, s.PID), generations+s.Generation
	}
	return pids, generations
}

// A node runs for months: daemons die, drivers are reloaded, GPUs hang, and none
// of it may add up.
func TestNothingAddsUp(t *testing.T) {
	before := goleak.IgnoreCurrent()
	rounds := 2
	if os.Getenv("NOMAD_GPU_FULL") != "" {
		rounds = 20
	}
	r := nextRig(t)
	const config = "mode = \"slice\"\nslice_memory = \"4GiB\""
	r.start("../e2e/topology/t4.hcl", config)
	r.until("all is healthy", allHealthy)
	gpu := uuidOf(t, r.groups(), "slice/T4/0")
	round := func() {
		// The driver goes away and comes back.
		unhealthy := func(g []*device.DeviceGroup) bool { _, n := find(g, "slice/T4/0"); return n == 0 }
		for _, noNVML := range []bool{true, false} {
			if err := sim.WriteControl(r.dir+"/sim", sim.Control{NoNVML: noNVML}); err != nil {
				t.Fatal(err)
			}
			if noNVML {
				r.until("the driver is away", unhealthy)
			}
		}
		r.until("the driver is back", allHealthy)
		// A call hangs, and comes back.
		r.happen(gpu, func(c *sim.Condition) { c.Hang = []string{"GetMemoryInfo"} })
		r.until("a GPU hangs", unhealthy)
		r.happen(gpu, func(c *sim.Condition) { c.Hang = nil })
		r.until("it does not hang any more", allHealthy)
		// Every daemon dies.
		pids, generations := r.daemons("slice/T4/0", "slice/T4/1")
		for _, pid := range pids {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		for {
			now, sum := r.daemons("slice/T4/0", "slice/T4/1")
			if sum >= generations+int64(len(pids)) && !slices.Contains(now, 0) {
				break
			}
			<-time.After(20 * time.Millisecond)
		}
		r.until("the daemons are back", allHealthy)
	}
	round() // opens what stays open
	goroutines, files := resources(t)
	for range rounds {
		round()
	}
	// What is under way at this moment ends; what leaked stays.
	deadline := time.Now().Add(patience)
	for {
		g, f := resources(t)
		if g <= goroutines+1 && f <= files+1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %d rounds there are %d goroutines and %d files, before there were %d and %d", rounds, g, f, goroutines, files)
		}
		<-time.After(20 * time.Millisecond)
	}
	r.Close()
	if err := leaktest.Find(before); err != nil {
		t.Errorf("after the end: %v", err)
	}
}
