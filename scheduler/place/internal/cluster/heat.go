package cluster

import "slices"

// HotUse is how much a usage seems to use of GPUs that are hot and that it shares with
// others.
func (u *Usage) HotUse(n *NodeState, hot map[string]bool) int64 {
	var sum int64
	for _, t := range u.Takes {
		at := n.Where[t.GPU]
		if c := &at.Pool.GPUs[at.Index]; hot[n.Spec.GPUs[t.GPU].ID] && c.Tasks > 1 {
			sum += c.useBy(t)
		}
	}
	return sum
}

// CoolMilli is up to which measured use a GPU is not hot.
const CoolMilli = 950

// useBy is how much of a GPU a task there seems to use: of what was measured its part by
// what it holds, and what it holds at least.
func (c *GPUState) useBy(t Take) int64 {
	if held := int64(GPUMilli - c.Milli); held > 0 {
		return max(t.Milli, int64(c.Hot)*t.Milli/held)
	}
	return t.Milli
}

// MostUse is the most that a usage seems to use of any GPU.
func (u *Usage) MostUse(n *NodeState) int64 {
	var most int64
	for _, t := range u.Takes {
		at := n.Where[t.GPU]
		most = max(most, at.Pool.GPUs[at.Index].useBy(t))
	}
	return most
}

// StaysCool reports whether the GPUs of a placement that are in use would not be hot with it.
func (b *Pool) StaysCool(u *Usage, use int64) bool {
	return !slices.ContainsFunc(u.Takes, func(t Take) bool {
		at := b.Node.Where[t.GPU]
		hot := int64(at.Pool.GPUs[at.Index].Hot)
		return hot > 0 && hot+use > CoolMilli
	})
}

// Heat is by how much of its compute a GPU would be asked for too much by a task that
// takes a share of it, if the tasks there go on using what was measured.
func (c *GPUState) Heat(share int32) int64 { return int64(max(0, c.Hot+share-GPUMilli)) }
