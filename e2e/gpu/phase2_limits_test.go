// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/device/mps"
)

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

// How much more than its limit NVML shows of a client that has all it can get: the
// watchdog's tolerance must be above that.
func TestNVMLsViewOfAClientAtItsLimit(t *testing.T) {
	g := idle(t)
	c := start(t, g.UUID, daemon(t, g.UUID), limitTo(2048), "hold", "8192")
	holds, free, total := c.held(t)
	figure(t, "a client limited to 2048 MiB gets %d MiB, and sees %d MiB free of %d", holds, free, total)
	if holds > 2048 {
		t.Errorf("it holds %d MiB", holds)
	}
	p, found := inNVML(t, g.UUID, c.cmd.Process.Pid)
	if !found {
		t.Fatal("NVML does not show it")
	}
	figure(t, "NVML shows %d MiB, as an MPS client: %v, not told: %v", p.MemoryMiB, p.MPS, p.MPSUnknown)
}

func TestAClientWithoutItsEnvironment(t *testing.T) {
	g := idle(t)
	s := daemon(t, g.UUID) // whose own limit is 8192 MiB
	t.Run("without limits", func(t *testing.T) {
		holds, _, _ := start(t, g.UUID, s, nil, "hold", "16384").held(t)
		figure(t, "a client that sets no limit gets %d MiB of the daemon's 8192", holds)
		if holds > 8192 {
			t.Errorf("the daemon's own limit does not hold: %d MiB", holds)
		}
	})
	t.Run("with a larger limit", func(t *testing.T) {
		holds, _, _ := start(t, g.UUID, s, limitTo(16384), "hold", "16384").held(t)
		figure(t, "a client that sets 16384 MiB gets %d MiB of the daemon's 8192", holds)
		if holds > 8192 {
			t.Errorf("a client lifts the daemon's limit: %d MiB", holds)
		}
	})
	t.Run("without the pipe directory", func(t *testing.T) {
		c := start(t, g.UUID, mps.Status{}, nil, "hold", "1024")
		holds, _, _ := c.held(t)
		p, found := inNVML(t, g.UUID, c.cmd.Process.Pid)
		figure(t, "beside MPS a program gets %d MiB; NVML shows it: %v, as an MPS client: %v, not told: %v", holds, found, p.MPS, p.MPSUnknown)
		if found && p.MPS {
			t.Error("NVML takes it for a client: what is beside MPS cannot be found")
		}
	})
}

func TestLimitsAfterAChange(t *testing.T) {
	g := idle(t)
	d := supervised(t, g.UUID)
	before := start(t, g.UUID, d.status, nil, "hold", "2048")
	before.held(t)
	d.limit(t, g.UUID, 4096)
	holds, _, _ := start(t, g.UUID, d.status, nil, "hold", "8192").held(t)
	figure(t, "after the daemon's limit went from 8192 to 4096 MiB, a new client gets %d MiB, while one from before runs", holds)
	if holds > 4096 {
		t.Errorf("the new limit does not hold: %d MiB", holds)
	}
	if _, err := fmt.Fprintln(before.in); err != nil {
		t.Fatal(err)
	}
	figure(t, "the memory of the client from before is %s", before.line(t))
}

// What percentages of the threads give: the multiprocessors are dealt in units.
func TestPercentages(t *testing.T) {
	g := idle(t)
	alone := start(t, g.UUID, mps.Status{}, nil, "compute", "2").started(t).rate(t)
	figure(t, "without MPS: %.2f launches a second", alone)
	s := daemon(t, g.UUID)
	for _, percent := range []float64{100, 80, 50, 33.3, 25, 20, 15, 12.5, 10, 8, 6.25, 5, 3, 1} {
		rate := start(t, g.UUID, s, []string{fmt.Sprintf("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=%g", percent)}, "compute", "1").started(t).rate(t)
		figure(t, "under MPS with %g %%: %.2f launches a second, %.3f of it", percent, rate, rate/alone)
	}
}

// A context counts toward the limit: below some limit no program starts.
func TestTheLeastLimit(t *testing.T) {
	g := idle(t)
	s := daemon(t, g.UUID)
	for _, mib := range []int{256, 448, 512, 576, 640, 768, 1024} {
		figure(t, "with a limit of %d MiB: %s", mib, firstLine(start(t, g.UUID, s, limitTo(mib), "hold", "1024")))
	}
}

func firstLine(c *client) string {
	if !c.lines.Scan() {
		return c.outcome()
	}
	return c.lines.Text()
}

// The plugin counts on a number of clients, and closes the device to the next. Sixteen
// start at a time: each takes seconds to make its context.
func TestTheClientBeyondTheLast(t *testing.T) {
	g := idle(t)
	s := daemon(t, g.UUID)
	const together = 16
	for begun := 0; begun < 64; begun += together {
		var batch []*client
		for range together {
			batch = append(batch, start(t, g.UUID, s, limitTo(1024), "hold", "64"))
		}
		refused := 0
		var words string
		for _, c := range batch {
			if !c.lines.Scan() || !strings.HasPrefix(c.lines.Text(), "holds 64 ") {
				refused++
				words = fmt.Sprintf("%q, %s", c.lines.Text(), c.outcome())
			}
		}
		if refused > 0 {
			figure(t, "a server takes %d clients; the next says %s", begun+together-refused, words)
			return
		}
	}
	figure(t, "a server takes 64 clients and more")
}

// The memory of a context comes on top of a program's own; the limit counts it or not.
func TestTheMemoryOfAContext(t *testing.T) {
	g := idle(t)
	alone := start(t, g.UUID, mps.Status{}, nil, "hold", "0")
	_, free, total := alone.held(t)
	figure(t, "a program that allocates nothing sees %d of %d MiB free without MPS; %s", free, total, shown(g.UUID, alone.cmd.Process.Pid))
	alone.in.Close()
	alone.outcome()
	d := supervised(t, g.UUID)
	under := start(t, g.UUID, d.status, limitTo(2048), "hold", "0")
	_, free, total = under.held(t)
	figure(t, "under MPS with a limit of 2048 MiB it sees %d of %d MiB free; %s", free, total, shown(g.UUID, under.cmd.Process.Pid))
	if servers, err := d.control.Servers(t.Context()); err == nil && len(servers) > 0 {
		figure(t, "of the server %s", shown(g.UUID, servers[0]))
	}
	told(t, d, g.UUID, "after a client's start")
}
