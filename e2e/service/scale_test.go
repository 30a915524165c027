// SPDX-License-Identifier: MPL-2.0

package service

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// size is a cluster to measure.
type size struct{ nodes, allocs, pending, admissions int }

// sizes are what make bench-service measures; the first is looked at in every run of the tests.
var sizes = []size{
	{nodes: 1000, allocs: 10_000, pending: 500, admissions: 500},
	{nodes: 10_000, allocs: 100_000, pending: 5000, admissions: 500},
}

// measured is what one size cost.
type measured struct {
	size
	fresh, again, change time.Duration // start, lost stream, one node's change
	freshCPU             time.Duration
	p50, p99             time.Duration
	admissionCPU         time.Duration
	perSecond            float64
	quietRequests        float64 // per second
	quietCPU, changeCPU  time.Duration
	peakMiB              int64
}

// TestLargeCluster measures the service as a process on a simulated Nomad: its memory,
// how long it takes until it decides, how long an admission takes, and what it costs
// when little or nothing happens while thousands wait.
func TestLargeCluster(t *testing.T) {
	if os.Getenv("NOMAD_GPU_SCALE") != "full" { // what it costs at rest is measured with the machine to itself
		t.Parallel()
		if m := measure(t, sizes[0], false); m.peakMiB > mostMiB {
			t.Errorf("the service took %d MiB for 1,000 nodes, want at most %d", m.peakMiB, mostMiB)
		}
		return
	}
	t.Logf("| nodes | GPUs | allocs | waiting | first decision, CPU | fresh after a lost stream | one node's change: seen, CPU | admissions/s | p50 | p99 | CPU of one | quiet: requests/s, CPU | memory |")
	var all []measured
	for _, s := range sizes {
		m := measure(t, s, true)
		t.Logf("| %d | %d | %d | %d | %.1f s, %.1f s | %.1f s | %d ms, %.1f ms | %.0f | %.1f ms | %.1f ms | %.1f ms | %.2f, %.1f %% | %d MiB |",
			m.nodes, m.nodes*8, m.allocs, m.pending, m.fresh.Seconds(), m.freshCPU.Seconds(), m.again.Seconds(), m.change.Milliseconds(), 1000*m.changeCPU.Seconds(),
			m.perSecond, 1000*m.p50.Seconds(), 1000*m.p99.Seconds(), 1000*m.admissionCPU.Seconds(), m.quietRequests, 100*m.quietCPU.Seconds(), m.peakMiB)
		all = append(all, m)
	}
	if all[0].peakMiB > mostMiB {
		t.Errorf("the service took %d MiB for 1,000 nodes, want at most %d", all[0].peakMiB, mostMiB)
	}
	growsSlower(t, all[0], all[1])
}

// mostMiB is what the service may take for a thousand nodes.
const mostMiB = 512

// growsSlower compares two sizes: what is done per admission, per change and in a quiet
// minute must not grow as the cluster does. The first view does: every node and job is read.
func growsSlower(t *testing.T, small, large measured) {
	t.Helper()
	const firstView = 1.3
	factor := float64(large.nodes) / float64(small.nodes)
	for what, ratio := range map[string]float64{
		"the median of an admission":      float64(large.p50) / float64(small.p50),
		"the CPU time of an admission":    float64(large.admissionCPU) / float64(small.admissionCPU),
		"the CPU time until a decision":   float64(large.freshCPU) / float64(small.freshCPU) / firstView,
		"the CPU time of a node's change": float64(large.changeCPU) / float64(small.changeCPU),
		"requests when nothing happens":   large.quietRequests / small.quietRequests,
		"CPU time when nothing happens":   float64(large.quietCPU) / float64(small.quietCPU),
		"memory":                          float64(large.peakMiB) / float64(small.peakMiB),
	} {
		if ratio > factor {
			t.Errorf("%s grew by %.1f in a cluster %.0f times as large", what, ratio, factor)
		}
	}
}

// measure looks at one size, and with rest also at what it costs while little or nothing happens.
func measure(t *testing.T, s size, rest bool) measured {
	t.Helper()
	m := measured{size: s}
	nomad := startLargeNomad(t, s.nodes, s.allocs)
	client, err := api.NewClient(&api.Config{Address: nomad.URL})
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	r := serve(t.Context(), t, &cluster.Cluster{URL: nomad.URL, API: client}, "listen {\n requests_per_second = 100000\n burst = 100000\n}")
	until(t.Context(), t, "decide", 10*time.Minute, func() (bool, string) {
		err := submit(t.Context(), r.API, job{id: "first", meta: map[string]string{"gpu": "8G"}})
		return err == nil, fmt.Sprint(err)
	})
	m.fresh, m.freshCPU = time.Since(begin), cpuTime(t, r)

	wait(t, r, s.pending)
	m.admissions(t, r)
	if rest {
		m.quiet(t, r, nomad)
		m.changes(t, r, nomad)
	}

	nomad.breakStreams()
	begin = time.Now()
	nomad.mark(1, "after")
	seen(t, r, "after")
	m.again = time.Since(begin)
	m.peakMiB = peak(t, r)
	nomad.mu.Lock()
	defer nomad.mu.Unlock()
	if nomad.refused > 0 {
		t.Errorf("the service opened more connections than Nomad allows, %d times", nomad.refused)
	}
	r.kill(syscall.SIGKILL)
	return m
}

// wait submits jobs of eight whole GPUs, for which no node has room.
func wait(t *testing.T, r *replica, count int) {
	t.Helper()
	var group sync.WaitGroup
	next := make(chan int)
	for range 8 {
		group.Go(func() {
			for i := range next {
				if err := submit(t.Context(), r.API, job{id: fmt.Sprintf(waiting+"%d", i), meta: map[string]string{"gpu": "8"}}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range count {
		next <- i
	}
	close(next)
	group.Wait()
}

// admissions submits one job after the other.
func (m *measured) admissions(t *testing.T, r *replica) {
	t.Helper()
	var took []time.Duration
	begin, cpu := time.Now(), cpuTime(t, r)
	for i := range m.size.admissions {
		at := time.Now()
		if err := submit(t.Context(), r.API, job{id: fmt.Sprintf("new-%d", i), meta: map[string]string{"gpu": []string{"8G", "0.5", "4G", "16G,0.1"}[i%4]}}); err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(at))
	}
	m.perSecond, m.admissionCPU = float64(len(took))/time.Since(begin).Seconds(), (cpuTime(t, r)-cpu)/time.Duration(len(took))
	slices.Sort(took)
	m.p50, m.p99 = took[len(took)/2], took[len(took)*99/100]
}

// quiet counts what the service asks Nomad, and how long it computes, while nothing
// happens.
func (m *measured) quiet(t *testing.T, r *replica, nomad *largeNomad) {
	t.Helper()
	const pause = 30 * time.Second
	time.Sleep(pause) // what was submitted settles
	nomad.asked()
	cpu := cpuTime(t, r)
	time.Sleep(pause)
	m.quietCPU = (cpuTime(t, r) - cpu) / time.Duration(pause.Seconds())
	asked, sum := nomad.asked(), 0
	for _, path := range slices.Sorted(maps.Keys(asked)) {
		t.Logf("%d nodes, quiet for %s: %s %d times", m.nodes, pause, path, asked[path])
		sum += asked[path]
	}
	m.quietRequests = float64(sum) / pause.Seconds()
}

// changes changes one node after the other.
func (m *measured) changes(t *testing.T, r *replica, nomad *largeNomad) {
	t.Helper()
	const count = 50
	cpu := cpuTime(t, r)
	for i := range count {
		nomad.mark(i, "busy")
	}
	begin := time.Now()
	nomad.mark(0, "change")
	seen(t, r, "change")
	m.change = time.Since(begin)
	time.Sleep(5 * time.Second)
	m.changeCPU = (cpuTime(t, r) - cpu) / (count + 1)
}

// seen waits until the service knows of a node with a mark: no other is one that could
// ever hold a job that asks for it.
func seen(t *testing.T, r *replica, mark string) {
	t.Helper()
	j := job{id: "probe", meta: map[string]string{"gpu": "1G"}}.api()
	j.Constraints = []*api.Constraint{{LTarget: "${meta.mark}", RTarget: mark, Operand: "="}}
	until(t.Context(), t, "see a change", 5*time.Minute, func() (bool, string) {
		answer, _, err := r.API.Jobs().Validate(j, nil) // a refusal is not an error
		if err != nil {
			return false, err.Error()
		}
		return len(answer.ValidationErrors) == 0, fmt.Sprint(answer.ValidationErrors)
	})
}

// cpuTime is how long the service has computed.
func cpuTime(t *testing.T, r *replica) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(text)[strings.LastIndex(string(text), ")"):])
	var ticks int64
	for _, field := range fields[12:14] { // utime and stime, in hundredths of a second
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// peak is the most memory that the service has had, in MiB.
func peak(t *testing.T, r *replica) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if kib, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			n, _ := strconv.ParseInt(strings.Fields(kib)[0], 10, 64)
			return n >> 10
		}
	}
	t.Fatal("the kernel does not tell the memory of a process")
	return 0
}
