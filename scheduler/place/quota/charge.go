// SPDX-License-Identifier: MPL-2.0

package quota

import (
	"math"
	"strconv"
)

// Charge is what a quota pays, or the amount of a quota.
type Charge struct {
	Milli     int64 // per GPU the larger of the parts of compute, memory and turns
	MemoryMiB int64 // GPU memory; a turn stands for its part of it
}

// Memory is an amount of memory as people write it: "500 MiB", "1.5 GiB", "80 GiB".
func Memory(mib int64) string {
	if mib < 1024 {
		return strconv.FormatInt(mib, 10) + " MiB"
	}
	return strconv.FormatFloat(math.Round(float64(mib)/1024*1000)/1000, 'f', -1, 64) + " GiB"
}

// String names the amounts that are counted: "2.5 GPUs", "80 GiB".
func (c Charge) String() string {
	memory := Memory(c.MemoryMiB)
	switch {
	case c.MemoryMiB == 0:
		return GPUs(c.Milli) + " GPUs"
	case c.Milli == 0:
		return memory
	}
	return GPUs(c.Milli) + " GPUs and " + memory
}

// Plus is the sum of two charges.
func (c Charge) Plus(d Charge) Charge { return Charge{c.Milli + d.Milli, c.MemoryMiB + d.MemoryMiB} }

// Times is the charge of n of its kind; -1 takes it back.
func (c Charge) Times(n int64) Charge { return Charge{c.Milli * n, c.MemoryMiB * n} }

// Part is an nth of the charge; a bound stays a bound.
func (c Charge) Part(n int) Charge {
	divide := func(v int64) int64 {
		if v == 0 {
			return 0
		}
		return max(1, v/int64(max(1, n)))
	}
	return Charge{divide(c.Milli), divide(c.MemoryMiB)}
}

// Beyond is what exceeds an amount. What the amount has 0 of is not counted.
func (c Charge) Beyond(most Charge) Charge {
	return Charge{above(c.Milli, most.Milli), above(c.MemoryMiB, most.MemoryMiB)}
}

func above(have, most int64) int64 {
	if most == 0 {
		return 0
	}
	return max(0, have-most)
}

// Within reports that nothing exceeds an amount.
func (c Charge) Within(most Charge) bool { return c.Beyond(most) == Charge{} }

// Smaller is of each amount the smaller.
func (c Charge) Smaller(d Charge) Charge {
	return Charge{min(c.Milli, d.Milli), min(c.MemoryMiB, d.MemoryMiB)}
}

// Larger is of each amount the larger.
func (c Charge) Larger(d Charge) Charge {
	return Charge{max(c.Milli, d.Milli), max(c.MemoryMiB, d.MemoryMiB)}
}

// GPUs writes milli as people read it: 2500 is 2.5.
func GPUs(milli int64) string {
	return strconv.FormatFloat(float64(milli)/1000, 'g', -1, 64)
}
