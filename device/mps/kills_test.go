// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// superviseCommand runs the test binary as a plugin that can be killed.
const superviseCommand = "supervise"

// supervise keeps a daemon until it is killed: args are the state directory, the
// program and the memory of the device, and a control group that is a task's.
func supervise(args []string) {
	mib, err := strconv.ParseInt(args[2], 10, 64)
	if err != nil {
		panic(err)
	}
	o := benchOptions(args[0], args[1])
	o.timeout = impatient
	if len(args) > 3 {
		o.Tenant = tenantIn(args[3])
	}
	s, err := New(o)
	if err != nil {
		panic(err)
	}
	s.Want([]Spec{{UUID: device, MemoryMiB: mib, Percent: 80, MaxClients: 48}})
	select {}
}

// kills is how many processes TestNothingIsLeftAfterKills kills with each program, at least.
func kills(t *testing.T) int {
	if n, err := strconv.Atoi(os.Getenv("NOMAD_GPU_KILLS")); err == nil {
		return n
	}
	if os.Getenv("NOMAD_GPU_FULL") != "" {
		return 100
	}
	return 5
}

// What was started always ends, whoever is killed at whatever moment: plugin,
// daemon, server or gate.
func TestNothingIsLeftAfterKills(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		b.Close()
		b.timeout = impatient
		random := rand.New(rand.NewPCG(1, uint64(len(b.String()))))
		c := b.control(device)
		var plugin *exec.Cmd
		end := func() {
			if plugin != nil {
				_, _ = plugin.Process.Kill(), plugin.Wait()
				plugin = nil
			}
		}
		defer end()
		killed := map[string]int{}
		var dying []process
		for killed["plugin"]+killed["daemon, server or gate"] < kills(t) {
			if plugin == nil {
				plugin = exec.Command("/proc/self/exe", superviseCommand, b.dir, b.program, fmt.Sprint(b.spec().MemoryMiB))
				if err := plugin.Start(); err != nil {
					t.Fatal(err)
				}
			}
			// From before the daemon starts until after it is ready.
			<-time.After(time.Duration(random.IntN(250)) * time.Millisecond)
			var victims []process
			switch random.IntN(4) {
			case 0:
				end()
				killed["plugin"]++
			case 3:
				victims = c.running(roleGate)
			case 1:
				victims = c.running(roleDaemon)
			case 2:
				victims = c.running(roleServer)
			}
			for _, p := range victims {
				_ = unix.Kill(p.PID, syscall.SIGKILL)
				dying = append(dying, p)
				killed["daemon, server or gate"]++
			}
			// One, and the process that it forks or that is about to become it. Killed ones may take a while to end.
			daemons := slices.DeleteFunc(c.running(roleDaemon), func(p process) bool { return slices.Contains(dying, p) })
			if len(daemons) > 2 {
				t.Fatalf("%d daemons run", len(daemons))
			}
		}
		end()
		b.untilEnded(dying)
		b.start()
		b.Want([]Spec{b.spec()})
		b.until("the daemon is ready after all", ready)
		b.oneOfEach()
		b.Want(nil)
		b.Close()
		if left := c.running(roleDaemon, roleServer, roleGate); len(left) > 0 {
			t.Errorf("%v are left", left)
		}
		b.start()
		t.Logf("killed %v", killed)
	})
}

// untilEnded waits until what was killed has ended, by which it is found until then.
func (b *bench) untilEnded(dying []process) {
	b.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); slices.ContainsFunc(dying, process.Alive); <-tick.C {
		if time.Now().After(deadline) {
			b.t.Fatalf("of %v some run", dying)
		}
	}
}
