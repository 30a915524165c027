package place

import "strconv"

// Charge is what a quota pays, or the amount of a quota.
type Charge struct {
	Milli     int64 // per GPU the larger of the parts of compute, memory and turns
	MemoryMiB int64 // GPU memory; a turn stands for its part of it
}

// String names the amounts that are counted: "2.5 GPUs", "81920 MiB".
func (c Charge) String() string {
	memory := strconv.FormatInt(c.MemoryMiB, 10) + " MiB"
	switch {
	case c.MemoryMiB == 0:
		return gpus(c.Milli) + " GPUs"
	case c.Milli == 0:
		return memory
	}
	return gpus(c.Milli) + " GPUs and " + memory
}

// Plus is the sum of two charges.
func (c Charge) Plus(d Charge) Charge { return Charge{c.Milli + d.Milli, c.MemoryMiB + d.MemoryMiB} }

// Times is the charge of n of its kind; -1 takes it back.
func (c Charge) Times(n int64) Charge { return Charge{c.Milli * n, c.MemoryMiB * n} }

// part is an nth of the charge; what is bounded stays so.
func (c Charge) part(n int) Charge {
	divide := func(v int64) int64 {
		if v == 0 {
			return 0
		}
		return max(1, v/int64(max(1, n)))
	}
	return Charge{divide(c.Milli), divide(c.MemoryMiB)}
}

// beyond is what exceeds an amount. What the amount has 0 of is not counted.
func (c Charge) beyond(most Charge) Charge {
	return Charge{above(c.Milli, most.Milli), above(c.MemoryMiB, most.MemoryMiB)}
}

func above(have, most int64) int64 {
	if most == 0 {
		return 0
	}
	return max(0, have-most)
}

// within reports that nothing exceeds an amount.
func (c Charge) within(most Charge) bool { return c.beyond(most) == Charge{} }

func (c Charge) smaller(d Charge) Charge {
	return Charge{min(c.Milli, d.Milli), min(c.MemoryMiB, d.MemoryMiB)}
}

func (c Charge) larger(d Charge) Charge {
	return Charge{max(c.Milli, d.Milli), max(c.MemoryMiB, d.MemoryMiB)}
}

// Charge is what a quota pays for takes on a node; nothing where the node is
// not there.
func (s *Snapshot) Charge(nodeID string, takes []Take) Charge {
	n := s.nodes[nodeID]
	if n == nil {
		return Charge{}
	}
	return s.charge(n, takes)
}

func (s *Snapshot) charge(n *nodeState, takes []Take) Charge {
	var sum Charge
	for _, t := range takes {
		sum = sum.Plus(chargeOf(&s.kinds[n.where[t.GPU].bank.kind], t))
	}
	return sum
}

// chargeOf rounds down, as compute in proportion to slices does: all slices of
// a GPU, handed out one by one, cost no more than the GPU.
func chargeOf(k *kind, t Take) Charge {
	switch {
	case k.Slices > 0:
		return Charge{max(t.Milli, t.Slices*gpuMilli/k.Slices), t.Slices * k.SliceMiB}
	case k.Replicas > 0:
		return Charge{t.Replicas * gpuMilli / k.Replicas, t.Replicas * k.MemoryMiB / k.Replicas}
	}
	return Charge{t.Milli, k.MemoryMiB}
}

// gpus writes milli as people read it: 2500 is 2.5.
func gpus(milli int64) string {
	return strconv.FormatFloat(float64(milli)/gpuMilli, 'g', -1, 64)
}
