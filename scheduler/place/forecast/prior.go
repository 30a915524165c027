// SPDX-License-Identifier: MPL-2.0

package forecast

// guess is one line of the demand that is assumed in the absence of a
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

// Guess is a shape of task that is assumed, and how often.
type Guess struct {
	Tasks       int64
	GPUs        int
	Milli       int64 // of each GPU
	CPU, Memory int64
}

// Guesses is the demand that is assumed of a cluster with so much CPU and memory
// per GPU.
func Guesses(cpu, memory int64) (out []Guess) {
	for _, g := range guesses {
		n := int64(max(1, g.gpus))
		out = append(out, Guess{g.weight, g.gpus, g.share, g.cpuPerGPU * n * cpu / 1000, g.cpuPerGPU * n * memory / 1000})
	}
	return out
}
