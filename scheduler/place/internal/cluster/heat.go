// SPDX-License-Identifier: MPL-2.0

package cluster

import "slices"

// The expected use of a GPU is the promise to its tasks. Beyond that count the compute that a
// task was measured to use before ([Take.Expected]), and the use measured on the GPU that none of
// its tasks explains ([GPU.SurplusMilli]). Where nothing is measured nothing is hot: promises
// never add up to more than a GPU.

// Promised is the compute that a take is promised of a GPU: its guarantee, or its part of the turns.
func (t Take) Promised(k *Kind) int64 {
	if k.Replicas > 0 {
		return t.Replicas * GPUMilli / k.Replicas
	}
	return t.Milli
}

// Burst is the compute that a take is expected to use beyond its promise.
func (t Take) Burst(k *Kind) int64 { return max(0, t.Expected-t.Promised(k)) }

// promised is the compute of a GPU that is promised to tasks.
func (c *GPUState) promised(k *Kind) int32 {
	if k.Replicas > 0 {
		return int32((k.Replicas - int64(c.Replicas)) * GPUMilli / k.Replicas)
	}
	return GPUMilli - c.Milli
}

// Heat is by how much of its compute a GPU would be asked for too much by a task that uses so
// much of it.
func (c *GPUState) Heat(use int32) int32 { return max(0, c.Busy+use-GPUMilli) }

// HotUse is how much a usage seems to use of GPUs that are hot and that it shares with
// others.
func (s *Snapshot) HotUse(u *Usage, hot map[string]bool) int64 {
	n := s.Nodes[u.NodeID]
	var sum int64
	for _, t := range u.Takes {
		if hot[n.Spec.GPUs[t.GPU].ID] && n.at(t).Tasks > 1 {
			sum += s.useBy(n, t)
		}
	}
	return sum
}

// CoolMilli is up to which measured use a GPU is not hot.
const CoolMilli = 950

// at is the state of the GPU of a take.
func (n *NodeState) at(t Take) *GPUState {
	at := n.Where[t.GPU]
	return &at.Pool.GPUs[at.Index]
}

// kindAt is the kind of that GPU.
func (s *Snapshot) kindAt(n *NodeState, t Take) *Kind { return &s.Kinds[n.Where[t.GPU].Pool.Kind] }

// useBy is how much of a GPU a task there seems to use: its expected use, and of the use
// measured beyond that on the GPU its part by its promise.
func (s *Snapshot) useBy(n *NodeState, t Take) int64 {
	k := s.kindAt(n, t)
	use := t.Promised(k) + t.Burst(k)
	if all := int64(n.at(t).promised(k)); all > 0 {
		use += n.Spec.GPUs[t.GPU].SurplusMilli * t.Promised(k) / all
	}
	return use
}

// MostUse is the most that a usage seems to use of any GPU.
func (s *Snapshot) MostUse(u *Usage) int64 {
	var most int64
	for _, t := range u.Takes {
		most = max(most, s.useBy(s.Nodes[u.NodeID], t))
	}
	return most
}

// StaysCool reports whether the GPUs of a placement would not be hot with it, if it uses so much
// of each. What keeps to promises, beside others that do, never makes one hot.
func (s *Snapshot) StaysCool(u *Usage, use int64) bool {
	n := s.Nodes[u.NodeID]
	return !slices.ContainsFunc(u.Takes, func(t Take) bool {
		c := n.at(t)
		bursts := c.Hot > 0 || c.Busy > 0 && use > t.Promised(s.kindAt(n, t))
		return bursts && int64(c.Busy)+use > CoolMilli
	})
}
