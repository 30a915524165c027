// SPDX-License-Identifier: MPL-2.0

package forecast

// A cluster whose CPU runs out before its GPUs do is not short of GPUs: waste of
// them is inevitable, and CPU is to be left in large pieces for tasks that need such.
// There what a node has to spare after a placement has a price:
//
//	P_spare = δ·s·m·20·left,  left = 800·CPU left / largest node's + 200·GPU left / largest node's
//
// s rises from 0 to 1 while the ratio of CPU to GPU in use, each in parts of what
// GPU nodes have, rises from 0.92 to 1.02; m with the part of the GPUs that tasks of several
// ask for, up to spareSeveral. Where tasks share GPUs, the ratio is as high while GPUs are in
// pieces, and none needs the CPU of a whole node.

// dearestSpare is the most that a thousandth of a node costs, in milli.
const dearestSpare = 20

// spareCPU is the part of CPU in the remaining capacity, in thousandths.
const spareCPU = 800

// spareFrom is the ratio of CPU to GPU in use at which CPU begins to be
// scarce, and spareWithin the range over which it becomes so.
const spareFrom, spareWithin = 0.92, 0.10

// spareSeveral is the part of the GPUs asked for by tasks of several from which the price is
// full.
const spareSeveral = 0.30

// spareSteps is how finely the price is told apart.
const spareSteps = 8

// SparePrice is the price, in milli per thousandth of a node, at a ratio of CPU to GPU
// in use, and where that part of the GPUs is asked for by tasks of several.
func SparePrice(ratio, turnover, several float64) int64 {
	s := min(1, max(0, (ratio-spareFrom)/spareWithin)) * min(1, several/spareSeveral) * turnover
	return int64(s*spareSteps+0.5) * dearestSpare / spareSteps
}

// Left is what a node has to spare with so much CPU and GPU free, in thousandths of
// the largest.
func Left(cpu, milli int64, largest Largest) int16 {
	if largest.CPU == 0 || largest.Milli == 0 {
		return 0
	}
	return int16(min(1000, spareCPU*cpu/largest.CPU+(1000-spareCPU)*milli/largest.Milli))
}

// Largest is the most CPU and GPU milli that a node with GPUs has.
type Largest struct{ CPU, Milli int64 }

// Largest is that of the supply.
func (s *Supply) Largest() (l Largest) {
	for i := range s.Kinds {
		most := &s.Kinds[i].Largest
		l.CPU, l.Milli = max(l.CPU, most.CPU), max(l.Milli, int64(most.GPUs)*gpuMilli)
	}
	return l
}
