package place

// A cluster whose CPU runs out before its GPUs do is not short of GPUs: waste of
// them is inevitable, and what counts is that CPU is left in large pieces. There
// what a node has to spare after a placement has a price:
//
//	P_spare = δ·s·20·left,  left = 800·CPU left / largest node's + 200·GPU left / largest node's
//
// s rises from 0 to 1 while the ratio of CPU to GPU in use, each in parts of what
// GPU nodes have, rises from 0.92 to 1.02.

// sparePrice is the most that a thousandth of a node costs, in milli.
const sparePrice = 20

// spareCPU is the part of CPU in what is left, in thousandths.
const spareCPU = 800

// spareFrom is the ratio of CPU to GPU in use at which CPU begins to be what is
// scarce, and spareWithin the range over which it becomes so.
const spareFrom, spareWithin = 0.92, 0.10

// spareSteps is how finely the price is told apart.
const spareSteps = 8

// spareAt is the price, in milli per thousandth of a node, at a ratio of CPU to GPU
// in use.
func spareAt(ratio, turnover float64) int64 {
	s := min(1, max(0, (ratio-spareFrom)/spareWithin)) * turnover
	return int64(s*spareSteps+0.5) * sparePrice / spareSteps
}

// cpuPerGPU is the part of the CPU of GPU nodes that is in use, over the part of the
// GPUs; 0 where no GPU is.
func (s *Snapshot) cpuPerGPU() float64 {
	var cpu, cpus, used, gpus float64
	for _, n := range s.nodes {
		if len(n.spec.GPUs) == 0 || n.spec.Ineligible {
			continue
		}
		cpu += float64(n.spec.CPUMHz - n.cpu)
		cpus += float64(n.spec.CPUMHz)
		gpus += float64(len(n.spec.GPUs)) * gpuMilli
		for _, b := range n.banks {
			used += float64(b.used)
		}
	}
	if used == 0 || cpus == 0 {
		return 0
	}
	return cpu / cpus * gpus / used
}

// largestNode is the most CPU and GPU milli that a node with GPUs has.
func (s *Snapshot) largestNode() (cpu, milli int64) {
	for id := range s.kinds {
		most := s.biggest(int32(id))
		cpu, milli = max(cpu, most.cpu), max(milli, int64(most.gpus)*gpuMilli)
	}
	return cpu, milli
}

// left is what a node has to spare after a placement, in thousandths of the largest.
func (p *Planner) left(sh *shape, b *bank) int16 {
	if p.largest.cpu == 0 || p.largest.milli == 0 {
		return 0
	}
	free := b.free
	if sh.req.GPUs > 0 {
		free -= int64(sh.need(p.snap, b.kind).share) * int64(sh.req.GPUs)
	}
	return int16(min(1000, spareCPU*(b.node.cpu-sh.req.CPUMHz)/p.largest.cpu+(1000-spareCPU)*free/p.largest.milli))
}
