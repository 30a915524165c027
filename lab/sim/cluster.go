// SPDX-License-Identifier: MPL-2.0

package sim

// cluster is the state that the baselines work on: free capacity per node, and
// a version that changes with it, by which cached scores are found stale.
type cluster struct {
	nodes []machine
}

type machine struct {
	model       string
	cpu, memory int64
	gpus        []int64 // milli free
	gpuMemory   []int64 // milli of their memory free
	version     int32
}

func newCluster(nodes []Node) *cluster {
	c := &cluster{}
	for _, n := range nodes {
		m := machine{model: n.Model, cpu: n.CPUMilli, memory: n.MemoryMiB, gpus: make([]int64, n.GPUs), gpuMemory: make([]int64, n.GPUs), version: 1}
		for i := range m.gpus {
			m.gpus[i], m.gpuMemory[i] = gpuMilli, gpuMilli
		}
		c.nodes = append(c.nodes, m)
	}
	return c
}

// Capacity is the GPU milli of all nodes.
func Capacity(nodes []Node) int64 {
	var sum int64
	for _, n := range nodes {
		sum += int64(n.GPUs) * gpuMilli
	}
	return sum
}

// fits reports whether the machine can take the task.
func (m *machine) fits(t *Task) bool {
	if m.cpu < t.CPUMilli || m.memory < t.MemoryMiB {
		return false
	}
	if t.GPUs == 0 {
		return true
	}
	return mayUse(t, m.model) && m.count(t) >= t.GPUs
}

// count is the number of GPUs with the task's share free.
func (m *machine) count(t *Task) int {
	n := 0
	for i := range m.gpus {
		if m.holds(i, t) {
			n++
		}
	}
	return n
}

// holds reports whether a GPU has the task's share free.
func (m *machine) holds(i int, t *Task) bool {
	return m.gpus[i] >= t.GPUMilli && m.gpuMemory[i] >= t.memoryMilli()
}

func mayUse(t *Task, model string) bool {
	if len(t.Models) == 0 {
		return true
	}
	for _, m := range t.Models {
		if m == model {
			return true
		}
	}
	return false
}

// book takes the task's share of the GPUs.
func (m *machine) book(t *Task, gpus []int) {
	m.cpu -= t.CPUMilli
	m.memory -= t.MemoryMiB
	for _, g := range gpus {
		m.gpus[g] -= t.GPUMilli
		m.gpuMemory[g] -= t.memoryMilli()
	}
	m.version++
}

// free gives back what a task has taken.
func (m *machine) free(t *Task, gpus []int) {
	m.cpu += t.CPUMilli
	m.memory += t.MemoryMiB
	for _, g := range gpus {
		m.gpus[g] += t.GPUMilli
		m.gpuMemory[g] += t.memoryMilli()
	}
	m.version++
}

// tightest returns the GPUs with the least room that fit, lowest index first
// among equals.
func (m *machine) tightest(t *Task) []int {
	var out []int
	used := make([]bool, len(m.gpus))
	for len(out) < t.GPUs {
		best := -1
		for i, g := range m.gpus {
			if !used[i] && m.holds(i, t) && (best < 0 || g < m.gpus[best]) {
				best = i
			}
		}
		used[best] = true
		out = append(out, best)
	}
	return out
}
