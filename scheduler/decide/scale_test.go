// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
)

// large is a cluster of machines with eight GPUs and ten allocs each.
func large(t testing.TB, text string, nodes int) *servicetest.Service {
	t.Helper()
	var machines []*nomad.Node
	for i := range nodes {
		machines = append(machines, servicetest.Machine(fmt.Sprintf("m%05d", i), 8))
	}
	b := servicetest.New(t, text, machines...)
	for i := range 10 * nodes {
		a := servicetest.Ask(fmt.Sprintf("job-%06d", i), "4G", 1)
		b.Register(a)
		b.Run(a, fmt.Sprintf("%08d-0000-0000-0000-000000000000", i), fmt.Sprintf("m%05d", i%nodes), i/nodes%8, i/nodes/8*4, 4)
	}
	return b
}

// sizes are a large cluster, and one that is ten times as large.
var sizes = []int{1000, 10_000}

// wait has as many groups of eight whole GPUs wait as half of the nodes: none has room.
func wait(b *testing.B, w *servicetest.Service, nodes int) {
	b.Helper()
	for i := range nodes / 2 {
		a := servicetest.Ask(fmt.Sprintf("wait-%d", i), "8", 1)
		w.Submit(b, a)
		w.Register(a)
		w.Block(a, 1)
	}
}

// BenchmarkDecideBesideWhatWaits is one admission into room that there is, while half as
// many groups wait as there are nodes.
func BenchmarkDecideBesideWhatWaits(b *testing.B) {
	for _, nodes := range sizes {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			w := large(b, "", nodes)
			wait(b, w, nodes)
			i := 0
			for b.Loop() {
				a := servicetest.Ask(fmt.Sprintf("new-%d", i), []string{"2G", "4G", "0.25", "1G,0.1"}[i%4], 1)
				w.Submit(b, a)
				w.State.Apply([]nomad.Change{{JobGone: &nomad.JobKey{Namespace: "default", ID: a.JobID}}}, 0)
				i++
			}
		})
	}
}

// BenchmarkChange is one node's change, and the next admission for which there is no room.
func BenchmarkChange(b *testing.B) {
	for _, nodes := range sizes {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			w := large(b, "", nodes)
			wait(b, w, nodes)
			a, i := servicetest.Ask("again", "8", 1), 0
			for b.Loop() {
				n := servicetest.Machine(fmt.Sprintf("m%05d", i%nodes), 8)
				w.Index++
				n.Index, n.Plan.Ineligible = w.Index, i/nodes%2 == 0
				w.State.Apply([]nomad.Change{{Node: n}}, w.Index)
				w.Submit(b, a)
				i++
			}
		})
	}
}

// BenchmarkDecide is one admission on the large cluster, from the ask to the
// recorded decision, without queues and with all work in one.
func BenchmarkDecide(b *testing.B) {
	for name, text := range map[string]string{"free": "", "queue": "queue \"q\" {\n gpus = 8000\n namespaces = [\"default\"]\n}"} {
		b.Run(name, func(b *testing.B) {
			w := large(b, text, 1000)
			i := 0
			for b.Loop() {
				a := servicetest.Ask(fmt.Sprintf("new-%d", i), []string{"2G", "4G", "0.25", "1G,0.1"}[i%4], 1)
				w.Submit(b, a)
				w.State.Apply([]nomad.Change{{JobGone: &nomad.JobKey{Namespace: "default", ID: a.JobID}}}, 0)
				i++
			}
		})
	}
}

// BenchmarkShow is drawing the large cluster for people.
func BenchmarkShow(b *testing.B) {
	w := large(b, "", 1000)
	for b.Loop() {
		w.Cluster(b)
	}
}

// TestMemoryOfALargeCluster bounds what the state of a large cluster takes.
func TestMemoryOfALargeCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a cluster of 1,000 machines")
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	begin := time.Now()
	b := large(t, "", 1000)
	took := time.Since(begin)
	runtime.GC()
	runtime.ReadMemStats(&after)
	mib := (after.HeapAlloc - before.HeapAlloc) >> 20
	t.Logf("1,000 nodes, 8,000 GPUs, 10,000 allocs: %d MiB, built in %s", mib, took.Round(time.Millisecond))
	if mib > 256 {
		t.Errorf("the state takes %d MiB, want at most 256", mib)
	}
	runtime.KeepAlive(b)
}
