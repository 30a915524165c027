package place

// guess is one line of the demand that is assumed where nobody has given a
// history: common shapes of GPU work, CPU in relation to what the cluster has
// per GPU.
type guess struct {
	weight    int64
	gpus      int
	share     int64 // milli; 1000: whole GPUs
	cpuPerGPU int64 // thousandths of the cluster's CPU per GPU; of one GPU's for CPU-only work
}

// guesses is a blunt prior on purpose: it only has to keep the first few
// hundred placements reasonable. Arrivals outweigh it soon (Weights.GuessTasks).
var guesses = [...]guess{
	{weight: 12, gpus: 0, cpuPerGPU: 400},
	{weight: 46, gpus: 1, share: 1000, cpuPerGPU: 500},
	{weight: 8, gpus: 1, share: 750, cpuPerGPU: 400},
	{weight: 14, gpus: 1, share: 500, cpuPerGPU: 400},
	{weight: 10, gpus: 1, share: 250, cpuPerGPU: 250},
	{weight: 4, gpus: 1, share: 125, cpuPerGPU: 150},
	{weight: 3, gpus: 2, share: 1000, cpuPerGPU: 500},
	{weight: 2, gpus: 4, share: 1000, cpuPerGPU: 500},
	{weight: 1, gpus: 8, share: 1000, cpuPerGPU: 500},
}

// request is the guess for a cluster with so much CPU and memory per GPU.
func (g *guess) request(cpu, memory int64) Request {
	n := int64(max(1, g.gpus))
	r := Request{GPUs: g.gpus, CPUMHz: g.cpuPerGPU * n * cpu / 1000, MemoryMiB: g.cpuPerGPU * n * memory / 1000}
	switch g.share {
	case 0:
	case gpuMilli:
		r.Whole = true
	default:
		r.ShareMilli = g.share
	}
	return r
}

// assume sets the guesses as prior demand, for a cluster as it is now.
func (p *Planner) assume() {
	var cpu, memory, gpus int64
	for _, n := range p.snap.nodes {
		if len(n.spec.GPUs) > 0 {
			cpu, memory, gpus = cpu+n.spec.CPUMHz, memory+n.spec.MemoryMiB, gpus+int64(len(n.spec.GPUs))
		}
	}
	if gpus == 0 {
		return
	}
	p.demand.forgetPrior(p.weights.GuessTasks)
	for i := range guesses {
		r := guesses[i].request(cpu/gpus, memory/gpus)
		p.demand.add(p.shapeOf(&r), prior, guesses[i].weight)
	}
	p.demand.thin(p.weights.DemandShapes)
}
