package place

import "slices"

// hotUse is how much a usage seems to use of GPUs that are hot and that it shares with
// others.
func (u *Usage) hotUse(n *nodeState, hot map[string]bool) int64 {
	var sum int64
	for _, t := range u.Takes {
		at := n.where[t.GPU]
		if c := &at.pool.gpus[at.index]; hot[n.spec.GPUs[t.GPU].ID] && c.tasks > 1 {
			sum += c.useBy(t)
		}
	}
	return sum
}

// CoolMilli is up to which measured use a GPU is not hot.
const CoolMilli = 950

// useBy is how much of a GPU a task there seems to use: of what was measured its part by
// what it holds, and what it holds at least.
func (c *gpuState) useBy(t Take) int64 {
	if held := int64(gpuMilli - c.milli); held > 0 {
		return max(t.Milli, int64(c.hot)*t.Milli/held)
	}
	return t.Milli
}

// mostUse is the most that a usage seems to use of any GPU.
func (u *Usage) mostUse(n *nodeState) int64 {
	var most int64
	for _, t := range u.Takes {
		at := n.where[t.GPU]
		most = max(most, at.pool.gpus[at.index].useBy(t))
	}
	return most
}

// staysCool reports whether the GPUs of a placement that are in use would not be hot with it.
func (b *gpuPool) staysCool(u *Usage, use int64) bool {
	return !slices.ContainsFunc(u.Takes, func(t Take) bool {
		at := b.node.where[t.GPU]
		hot := int64(at.pool.gpus[at.index].hot)
		return hot > 0 && hot+use > CoolMilli
	})
}

// heat is by how much of its compute a GPU would be asked for too much by a task that
// takes a share of it, if the tasks there go on using what was measured.
func (c *gpuState) heat(share int32) int64 { return int64(max(0, c.hot+share-gpuMilli)) }
