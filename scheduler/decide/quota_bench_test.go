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
