// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
)

// paid is a tree of queues: work of namespace default is paid for on three levels, and
// beside it is a queue that can pay for nothing more.
const paid = `
queue "top" {
 max_gpus = 40000
}
queue "middle" {
 parent = "top"
 max_gpus = 30000
}
queue "low" {
 parent = "middle"
 gpus = 20000
 namespaces = ["default"]
}
queue "full" {
 parent = "middle"
 gpus = 8
 borrow = false
 allow_namespaces = ["default"]
}
`

// processorTime is what the process has used.
func processorTime(b *testing.B) (ns int64) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// BenchmarkDecideInAQueue is one admission into room that there is, in a queue three levels
// deep, while groups wait for room in it, for quota in the queue beside it, or were admitted
// and are not seen yet. Beside the time it tells that of the processors, which does not
// depend on what else runs.
func BenchmarkDecideInAQueue(b *testing.B) {
	const nodes = 1000
	for _, what := range []string{"room", "quota", "unseen"} {
		for _, groups := range []int{50, 500, 5000} {
			b.Run(fmt.Sprintf("%s=%d", what, groups), func(b *testing.B) {
				w := large(b, paid, nodes)
				full := servicetest.Ask("full", "8", 1)
				full.Queue = "full"
				w.Submit(b, full)
				for i := range groups {
					a := servicetest.Ask(fmt.Sprintf("wait-%d", i), "8", 1)
					switch what {
					case "quota":
						a.Queue, a.Priority = "full", 60
					case "unseen":
						a = servicetest.Ask(fmt.Sprintf("wait-%d", i), "1G", 1)
					}
					w.Submit(b, a)
					w.Register(a)
					if what != "unseen" {
						w.Block(a, 1)
					}
				}
				i, began := 0, processorTime(b)
				for b.Loop() {
					a := servicetest.Ask(fmt.Sprintf("new-%d", i), []string{"2G", "4G", "0.25", "1G,0.1"}[i%4], 1)
					w.Submit(b, a)
					w.State.Apply([]nomad.Change{{JobGone: &nomad.JobKey{Namespace: "default", ID: a.JobID}}}, 0)
					i++
				}
				b.ReportMetric(float64(processorTime(b)-began)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

// BenchmarkDecideWithoutRoom is one admission into a queue for which no node has room, while
// all that runs is in queues: nothing of that gives way to it, all of it would, and the same
// while between two admissions an alloc ends and another starts.
func BenchmarkDecideWithoutRoom(b *testing.B) {
	for _, what := range []struct {
		name     string
		priority int
		changes  bool
	}{{"equal", 50, false}, {"above", 80, false}, {"changes", 80, true}} {
		for _, nodes := range []int{100, 1000, 10_000} {
			b.Run(fmt.Sprintf("%s/nodes=%d", what.name, nodes), func(b *testing.B) {
				w := large(b, paid, nodes)
				admit := func(id string) {
					a := servicetest.Ask(id, "8", 1)
					a.Priority = what.priority
					w.Submit(b, a)
					w.State.Apply([]nomad.Change{{JobGone: &nomad.JobKey{Namespace: "default", ID: a.JobID}}}, 0)
				}
				admit("first")
				i, began := 0, processorTime(b)
				for b.Loop() {
					if n := i % nodes; what.changes { // of the first round of allocs, one on each node
						id := fmt.Sprintf("%08d-0000-0000-0000-%012d", n, i/nodes)
						w.End(id)
						w.Run(servicetest.Ask(fmt.Sprintf("job-%06d", n), "4G", 1), id[:24]+fmt.Sprintf("%012d", i/nodes+1), fmt.Sprintf("m%05d", n), 0, 0, 4)
					}
					admit(fmt.Sprintf("new-%d", i))
					i++
				}
				b.ReportMetric(float64(processorTime(b)-began)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}
