// SPDX-License-Identifier: MPL-2.0

package admit

import "slices"

// Nomad's resources for a task that asks for none.
const (
	defaultCPUMHz    = 100
	defaultMemoryMiB = 300
)

// hostResources is what the group needs of the host at its busiest, as Nomad
// counts it: tasks that run before or after the others do not add to them.
func (g *group) hostResources() (cpuMHz, cores, memoryMiB int64) {
	var before, main, after, beside [3]int64
	for _, t := range g.tasks {
		phase := &main
		if l := t.header.Lifecycle; l != nil {
			switch {
			case l.Sidecar:
				phase = &beside
			case l.Hook == "prestart":
				phase = &before
			case l.Hook == "poststop":
				phase = &after
			}
		}
		for i, n := range t.hostResources() {
			phase[i] += n
		}
	}
	var sum [3]int64
	for i := range sum {
		sum[i] = max(before[i], main[i], after[i]) + beside[i]
	}
	return sum[0], sum[1], sum[2]
}

func (t task) hostResources() [3]int64 {
	h := t.header
	cores := int64(or(h.Cores, 0))
	cpu := int64(or(h.CPU, 0))
	if cpu == 0 && cores == 0 {
		cpu = defaultCPUMHz
	}
	memory := int64(or(h.MemoryMB, 0))
	if memory == 0 {
		memory = defaultMemoryMiB
	}
	return [3]int64{cpu, cores, memory}
}

// drivers are those of the group's tasks.
func (g *group) drivers() []string {
	var names []string
	for _, t := range g.tasks {
		if t.header.Driver != "" {
			names = append(names, t.header.Driver)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// volumes are those that the group mounts.
func (g *group) volumes() []Volume {
	var list []Volume
	for _, name := range sortedKeys(g.header.Volumes) {
		if v := g.header.Volumes[name]; v != nil {
			list = append(list, *v)
		}
	}
	return list
}
