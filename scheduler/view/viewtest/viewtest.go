// SPDX-License-Identifier: MPL-2.0

// Package viewtest has pictures of clusters for tests: a small one in which
// everything occurs once, hostile names too, and a large one.
package viewtest

import (
	"fmt"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Now is the moment of every picture.
var Now = time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC)

// HostileJob is a job's name that a careless page would run.
const HostileJob = `<img src=x onerror=window.hacked=1>"'&amp;`

// Source always hands out the same picture, or the same error.
type Source struct {
	Cluster *view.Cluster
	Err     error
}

// View returns the picture.
func (s Source) View() (*view.Cluster, error) { return s.Cluster, s.Err }

// Small is a cluster of three nodes: whole, sliced, shared and MIG GPUs, faults,
// queues that borrow, work that waits for each of the reasons.
func Small() *view.Cluster {
	return &view.Cluster{
		At: Now, Synced: Now.Add(-2 * time.Second), Index: 4711, Leader: "http://10.0.0.5:4680", Leading: true,
		Nodes: []view.Node{sliced(), migAndShared(), whole()},
		Queues: []view.Queue{
			{Name: "research", Namespaces: []string{"research"}, QuotaMilli: 4000, UsedMilli: 5250, MaxMilli: 8000, BorrowedMilli: 1250, UsedMemoryMiB: 190_000, OwedMilli: 1000, Pending: 1},
			{Name: "serving", Namespaces: []string{"default", "serving"}, QuotaMilli: 6000, UsedMilli: 2500, UsedMemoryMiB: 61_440, Pending: 2},
			{Name: "students", Parent: "research", Namespaces: []string{"students"}, QuotaMilli: 1000, UsedMilli: 0, QuotaMemoryMiB: 40_960},
		},
		Pending: []view.Pending{
			{Namespace: "serving", JobID: "llm-large", Group: "api", Missing: 1, Milli: 4000, Queue: "serving", Priority: 70, Ask: "4(A100)", Since: Now.Add(-12 * time.Minute), Kind: view.WaitsForRoom, Reason: "4 free A100 on one node are needed; at most 2 are free on gpu-node-3",
				Start: &view.Start{Turn: 1, Of: 3, Known: true, Soonest: Now.Add(20 * time.Minute), Likely: Now.Add(time.Hour), Latest: Now.Add(3 * time.Hour)},
				Fits:  &view.Fits{Ask: "2(A100)", Allocs: 1, Nodes: 1}},
			{Namespace: "research", JobID: "sweep", Group: "trial", Missing: 6, Milli: 3000, Queue: "research", Priority: 50, Ask: "0.5", Since: Now.Add(-3 * time.Hour), Kind: view.WaitsForQuota, Reason: "queue research uses 5.25 of its 4 GPUs, and serving has asked for what it lent"},
			{Namespace: "default", JobID: HostileJob, Group: "g", Missing: 1, Milli: 500, Queue: "serving", Priority: 20, Ask: "8G,0.5", Since: Now.Add(-40 * time.Second), Kind: view.WaitsForPriority, Reason: "llm-large goes first: priority 70 against 20", Direct: true},
		},
		OnCPU: []view.FellBack{
			{Namespace: "research", JobID: "tokenize", Group: "prepare", Ask: "8G", Since: Now.Add(-30 * time.Minute), Text: "it waited 10m0s for 8G and runs without a GPU, until it is submitted again"},
		},
		Returning: []view.Returning{
			{Namespace: "research", JobID: "probe", Group: "probe", Allocs: 2, Milli: 1000, Queue: "research", Ask: "0.5", Since: Now.Add(-20 * time.Minute), Text: "Nomad starts it again when the delay of its reschedule block is over; until then queue research keeps 1 GPUs for it"},
		},
		Decisions: decisions(),
		Holds: []view.Hold{
			{ID: "r-7f3a", Namespace: "research", Queue: "research", Owner: "ada", NodeID: "node-0003-id", NodeName: "gpu-node-3", GPUs: []string{"GPU-c0000002-0000"}, Milli: 1000, MemoryMiB: 32_768, ExpiresAt: Now.Add(7 * time.Minute)},
			{ID: "r-b21c", Namespace: "serving", Queue: "serving", NodeID: "node-0001-id", NodeName: "gpu-node-1", GPUs: []string{"GPU-a0000000-0000"}, Milli: 100, MemoryMiB: 4096, ExpiresAt: Now.Add(time.Minute)},
		},
		Events: []view.Event{
			{At: Now.Add(-4 * time.Minute), Kind: "evict", Namespace: "research", JobID: "notebook-9", AllocID: "a9000000-0000", For: "serving/llm", Text: "evicted research/notebook-9 (priority 20) for serving/llm (priority 70): 8 GiB of A100/0 on gpu-node-1 were needed"},
			{At: Now.Add(-25 * time.Minute), Kind: "reclaim", Namespace: "students", JobID: "lab", For: "research/sweep", Text: "research took back 1 GPU that students had borrowed", DryRun: true},
		},
	}
}

func sliced() view.Node {
	n := node(1, "gpu-node-1", 16)
	a := slices("A100", "NVIDIA A100-SXM4-40GB", "GPU-a0000000-0000", 0, 40_960, 40)
	hold(&a, holder("a1", "serving", "llm", "api", "serve", 70, 16, 400, 800), 16)
	notebook := holder("a2", "research", "notebook-3", "nb", "jupyter", 20, 8, 200, 0)
	notebook.Use = &view.Use{At: Now, MemoryMiB: 1900, UnusedSince: Now.Add(-50 * time.Minute), Idle: true, Action: "evict"}
	hold(&a, notebook, 8)
	hold(&a, holder("a3", "default", HostileJob, "g", "t", 50, 4, 100, 0), 4)
	a.Measured = view.Measured{At: Now, Milli: 630, MemoryMiB: 21_300, TemperatureC: 61, PowerW: 243}
	b := slices("A100", "NVIDIA A100-SXM4-40GB", "GPU-a0000001-0000", 1, 40_960, 40)
	b.Healthy, b.Health = false, "XID 79: the GPU has fallen off the bus; drain the node and reset the GPU, then see that it comes back"
	for i := range b.Instances {
		b.Instances[i].Healthy = false
	}
	n.GPUs = []view.GPU{a, b}
	return n
}

func migAndShared() view.Node {
	n := node(2, "gpu-node-2", 32)
	parent := view.GPU{UUID: "GPU-b0000000-0000", Vendor: "nvidia", Model: "NVIDIA H100 80GB HBM3", Type: "H100", Mode: "mig", Grade: "hardware", MemoryMiB: 81_559, Healthy: true, Measured: view.Measured{At: Now, Milli: view.Unmeasured, MemoryMiB: 30_000, TemperatureC: 48, PowerW: 301}}
	n.GPUs = append(n.GPUs, parent)
	for i, profile := range []string{"3g.40gb", "3g.40gb", "1g.10gb"} {
		g := view.GPU{
			UUID: fmt.Sprintf("MIG-b000000%d-0000", i+1), ParentUUID: parent.UUID, Vendor: "nvidia", Model: parent.Model, Type: "H100", Mode: "whole",
			Group: "nvidia/mig/" + profile, Grade: "hardware", Profile: profile, MemoryMiB: 40_448, Healthy: true,
			Instances: []view.Instance{{ID: fmt.Sprintf("MIG-b000000%d-0000", i+1), Healthy: true}}, Measured: unmeasured(),
		}
		if i == 2 {
			g.MemoryMiB = 9_984
		}
		if i == 0 {
			h := holder("b1", "research", "finetune", "train", "train", 50, 1, 1000, 0)
			h.MemoryMiB = g.MemoryMiB
			hold(&g, h, 1)
			g.HeldMilli, g.HeldMemoryMiB = 1000, g.MemoryMiB
		}
		n.GPUs = append(n.GPUs, g)
	}
	shared := view.GPU{UUID: "GPU-b0000009-0000", Vendor: "nvidia", Model: "Tesla T4", Type: "T4", Group: "nvidia/shared/T4/1", Mode: "shared", Sharing: "timeslice", Grade: "none", MemoryMiB: 15_360, Healthy: true, Cordoned: true, Measured: view.Measured{At: Now, Milli: 180, MemoryMiB: 2_048, TemperatureC: 40, PowerW: 28}}
	for i := range 4 {
		shared.Instances = append(shared.Instances, view.Instance{ID: fmt.Sprintf("%s::%d", shared.UUID, i), Healthy: true})
	}
	h := holder("b2", "students", "lab", "lab", "notebook", 10, 1, 0, 0)
	h.MemoryMiB, h.Direct = 0, true
	h.Use = &view.Use{At: Now, Milli: view.Unmeasured, MemoryMiB: 2_048, Seat: "suspended", SeatSince: Now.Add(-12 * time.Minute), SeatFirst: Now.Add(48 * time.Minute), SeatWhy: "a task of higher priority wants the GPU"}
	hold(&shared, h, 1)
	shared.HeldMemoryMiB = 0
	n.GPUs = append(n.GPUs, shared)
	return n
}

func whole() view.Node {
	n := node(3, "gpu-node-3", 64)
	n.Draining, n.Eligible = false, true
	for i := range 4 {
		g := view.GPU{
			UUID: fmt.Sprintf("GPU-c000000%d-0000", i), Vendor: "nvidia", Model: "Tesla V100-SXM2-32GB", Type: "V100", Group: "nvidia/gpu/Tesla V100-SXM2-32GB", Mode: "whole", Grade: "hardware",
			MemoryMiB: 32_510, Healthy: true, Measured: view.Measured{At: Now, Milli: 0, MemoryMiB: 4, TemperatureC: 33, PowerW: 41},
		}
		g.Instances = []view.Instance{{ID: g.UUID, Healthy: true}}
		if i < 2 {
			h := holder("c1", "research", "resnet", "train", "train", 50, 1, 1000, 0)
			h.MemoryMiB = g.MemoryMiB
			hold(&g, h, 1)
			g.HeldMilli, g.HeldMemoryMiB = 1000, g.MemoryMiB
			g.Measured = view.Measured{At: Now, Milli: 970, MemoryMiB: 29_100, TemperatureC: 74, PowerW: 288}
		}
		n.GPUs = append(n.GPUs, g)
	}
	return n
}

func decisions() []view.Decision {
	choice := func(name, id, gpu, group string, score int64) view.Choice {
		return view.Choice{NodeID: id, NodeName: name, GPUs: []string{gpu}, Groups: []string{group}, Score: score, Terms: []view.Term{
			{Name: "gpu utilization", Weight: 400, Value: 530}, {Name: "memory utilization", Weight: 300, Value: 410}, {Name: "cpu utilization", Weight: 200, Value: 250}, {Name: "fragmentation", Weight: 100, Value: 900},
		}}
	}
	behind := func(c view.Choice) view.Choice {
		c.Why = "it would take 0.18 GPU more from later work (fragmentation_weight)"
		return c
	}
	return []view.Decision{
		{At: Now.Add(-90 * time.Second), Namespace: "serving", JobID: "llm", Group: "api", Queue: "serving", Priority: 70, Ask: "16G,0.4", Policy: "PACK", Outcome: view.Placed,
			Choices: []view.Choice{choice("gpu-node-1", "node-0001-id", "GPU-a0000000-0000", "nvidia/slice/A100/0", 612)},
			Explanation: view.Explanation{Summary: "gpu-node-1 has the fullest GPU that still holds 16 GiB", Fits: 2,
				RunnersUp: []view.Choice{behind(choice("gpu-node-2", "node-0002-id", "GPU-b0000000-0000", "nvidia/slice/H100/0", 540))},
				Reasons:   []view.Reason{{Nodes: 1, Why: "no sliced GPU", Never: true}}}},
		{At: Now.Add(-11 * time.Minute), Namespace: "serving", JobID: "llm-large", Group: "api", Queue: "serving", Priority: 70, Ask: "4(A100)", Policy: "SPREAD", Outcome: view.Held,
			Explanation: view.Explanation{Summary: "no node has 4 free A100", Reasons: []view.Reason{{Nodes: 2, Why: "fewer than 4 like GPUs", Never: true}, {Nodes: 1, Why: "no GPU with nothing on it (4 needed)"}}}},
		{At: Now.Add(-50 * time.Minute), Namespace: "default", JobID: HostileJob, Group: "g", Priority: 50, Ask: "64G", Policy: "BALANCED", Outcome: view.Refused,
			Explanation: view.Explanation{Summary: `no GPU of the cluster has 64 GiB in slices <script>window.hacked=1</script>`, Reasons: []view.Reason{{Nodes: 3, Why: "GPU memory", Never: true}}}},
	}
}

// Large is a cluster of nodes with eight sliced GPUs each, three quarters held.
func Large(nodes int) *view.Cluster {
	c := Small()
	c.Nodes = nil
	for i := range nodes {
		n := node(i, fmt.Sprintf("gpu-node-%03d", i), 96)
		for k := range 8 {
			uuid := fmt.Sprintf("GPU-%04d%04d-0000", i, k)
			g := slices("H100", "NVIDIA H100 80GB HBM3", uuid, k, 81_559, 79)
			g.Measured = view.Measured{At: Now, Milli: int64((i*131 + k*97) % 1000), MemoryMiB: int64((i*7919 + k*3571) % 79_000), TemperatureC: int64(40 + (i+k*5)%40), PowerW: int64(100 + (i*37+k*11)%500)}
			for t := range (i + k) % 5 {
				size := 8 + (i*3+k+t*7)%12
				hold(&g, holder(fmt.Sprintf("%04d%d%d", i, k, t), []string{"research", "serving", "default"}[(i+t)%3], fmt.Sprintf("job-%d", (i*8+k+t)%97), "g", "train", 10*(1+t), size, int64(size*12), 0), size)
			}
			if (i*8+k)%211 == 17 {
				g.Healthy, g.Health = false, "XID 48: double-bit ECC error; reset the GPU"
			}
			n.GPUs = append(n.GPUs, g)
		}
		if i%67 == 5 {
			n.Status = "down"
		}
		c.Nodes = append(c.Nodes, n)
	}
	return c
}

func node(i int, name string, cores int64) view.Node {
	return view.Node{
		ID: fmt.Sprintf("node-%04d-id", i), Name: name, Datacenter: "dc1", Pool: "default", Address: fmt.Sprintf("10.0.%d.%d", i/250, i%250+1), Status: "ready", Eligible: true,
		CPUMHz: cores * 2500, CPUUsedMHz: cores * 900, MemoryMiB: cores * 8192, MemoryUsedMiB: cores * 3000,
	}
}

func slices(short, model, uuid string, index int, memory int64, count int) view.GPU {
	g := view.GPU{
		UUID: uuid, Vendor: "nvidia", Model: model, Type: short, Group: fmt.Sprintf("nvidia/slice/%s/%d", short, index), Mode: "slice", Sharing: "mps", Grade: "cooperative",
		MemoryMiB: memory, SliceMemoryMiB: 1024, Healthy: true, Measured: unmeasured(),
	}
	for i := range count {
		g.Instances = append(g.Instances, view.Instance{ID: fmt.Sprintf("%s::%d", uuid, i), Healthy: true})
	}
	return g
}

func unmeasured() view.Measured {
	return view.Measured{Milli: view.Unmeasured, MemoryMiB: view.Unmeasured, TemperatureC: view.Unmeasured, PowerW: view.Unmeasured}
}

func holder(alloc, namespace, job, group, task string, priority, instances int, guarantee, limit int64) view.Holder {
	return view.Holder{
		AllocID: alloc + "000000-0000-4000-8000-000000000000", Namespace: namespace, JobID: job, Group: group, Task: task, Queue: namespace, Priority: priority, Status: "running",
		Instances: instances, MemoryMiB: int64(instances) * 1024, GuaranteeMilli: guarantee, LimitMilli: max(guarantee, limit), Since: Now.Add(-time.Duration(priority) * 3 * time.Minute),
	}
}

// hold gives a task the next free instances.
func hold(g *view.GPU, h view.Holder, count int) {
	h.Instances = count
	for i := range g.Instances {
		if count > 0 && g.Instances[i].AllocID == "" {
			g.Instances[i].AllocID, g.Instances[i].Task = h.AllocID, h.Task
			count--
		}
	}
	g.Holders = append(g.Holders, h)
	g.HeldInstances += h.Instances
	g.HeldMilli += h.GuaranteeMilli
	g.HeldMemoryMiB += h.MemoryMiB
}
