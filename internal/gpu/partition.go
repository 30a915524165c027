// SPDX-License-Identifier: MPL-2.0

package gpu

// EnvMPSPartition names the partition of multiprocessors that a program has under an MPS
// daemon with static partitioning: the device's UUID, "/", and the partition's ID.
const EnvMPSPartition = "CUDA_MPS_SM_PARTITION"

// ComputeEnforced is AttrComputeGrade where every task has multiprocessors of its own.
const ComputeEnforced = "enforced"

// MPSPartitioning is how an MPS daemon with static partitioning divides its device:
// every task on it needs a partition of whole chunks.
type MPSPartitioning struct {
	Chunks          int `json:"chunks"`
	Multiprocessors int `json:"multiprocessors"`
}

// Partition is a task's, of a number of chunks. Its ID may be another's once it is removed.
type Partition struct {
	ID     string `json:"id,omitempty"`
	Chunks int    `json:"chunks,omitempty"`
}

// For is how many chunks a guarantee takes: as many as have it all.
func (p MPSPartitioning) For(guaranteeMilli int64) int {
	return int(max(1, (guaranteeMilli*int64(p.Chunks)+MilliPerGPU-1)/MilliPerGPU))
}

// ChunksOn counts the chunks of a device that the partitions of live leases take.
func ChunksOn(uuid string, leases []Lease) int {
	sum := 0
	for _, l := range leases {
		for _, h := range l.Holdings {
			if l.Live() && h.UUID == uuid && h.Partition != nil {
				sum += h.Partition.Chunks
			}
		}
	}
	return sum
}
