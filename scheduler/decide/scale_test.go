package decide

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

// large is a cluster of 1,000 machines with eight GPUs and 10,000 allocs.
func large(t testing.TB, text string) *bench {
	t.Helper()
	var machines []*nomad.Node
	for i := range 1000 {
		machines = append(machines, machine(fmt.Sprintf("m%04d", i), 8))
	}
	b := newBench(t, text, machines...)
	for i := range 10_000 {
		a := ask(fmt.Sprintf("job-%05d", i), "4G", 1)
		b.register(a)
		b.run(a, fmt.Sprintf("%08d-0000-0000-0000-000000000000", i), fmt.Sprintf("m%04d", i%1000), i/1000%8, i/8000*4, 4)
	}
	return b
}

// BenchmarkDecide is one admission on the large cluster, from the ask to the
// recorded decision, without queues and with all work in one.
func BenchmarkDecide(b *testing.B) {
	for name, text := range map[string]string{"free": "", "queue": "queue \"q\" {\n gpus = 8000\n namespaces = [\"default\"]\n}"} {
		b.Run(name, func(b *testing.B) {
			w := large(b, text)
			i := 0
			for b.Loop() {
				a := ask(fmt.Sprintf("new-%d", i), []string{"2G", "4G", "0.25", "1G,0.1"}[i%4], 1)
				w.decide(b, a)
				w.book.Apply([]nomad.Change{{JobGone: &nomad.JobKey{Namespace: "default", ID: a.JobID}}}, 0)
				i++
			}
		})
	}
}

// BenchmarkPicture is drawing the large cluster for people.
func BenchmarkPicture(b *testing.B) {
	w := large(b, "")
	for b.Loop() {
		if _, err := w.book.Picture(); err != nil {
			b.Fatal(err)
		}
	}
}

// TestMemoryOfALargeCluster bounds what the book of the large cluster takes.
func TestMemoryOfALargeCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a cluster of 1,000 machines")
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	begin := time.Now()
	b := large(t, "")
	took := time.Since(begin)
	runtime.GC()
	runtime.ReadMemStats(&after)
	mib := (after.HeapAlloc - before.HeapAlloc) >> 20
	t.Logf("1,000 nodes, 8,000 GPUs, 10,000 allocs: %d MiB, built in %s", mib, took.Round(time.Millisecond))
	if mib > 256 {
		t.Errorf("the book takes %d MiB, want at most 256", mib)
	}
	runtime.KeepAlive(b)
}
