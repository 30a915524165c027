// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/e2e/probe"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// waitsFor names the example that needs the GPU of another: two of the machine's
// GPUs are whole, and one of them is taken.
var waitsFor = map[string]string{"two-gpus": "whole-gpu"}

// admittedJob is the example that the placement service makes a device block for.
const admittedJob = "examples/service/fraction.nomad.hcl"

// show runs every example and prints what came of it; service is the address of the
// placement service. On simulated machines one with devices of every vendor joins.
func show(ctx context.Context, c *cluster.Cluster, service, root string, simulated bool) error {
	files, err := filepath.Glob(filepath.Join(root, "examples", "*.nomad.hcl"))
	if err != nil {
		return err
	}
	// Those that wait for another's room come last.
	sort.SliceStable(files, func(a, b int) bool { return waitsFor[jobOf(files[a])] == "" && waitsFor[jobOf(files[b])] != "" })
	var rows []row
	for _, file := range files {
		job := jobOf(file)
		progress("nomad job run examples/%s", filepath.Base(file))
		if _, err := c.RunFile(ctx, file); err != nil {
			return err
		}
		alloc, reason, err := c.Settled(ctx, job)
		if err != nil {
			return err
		}
		holder := slices.IndexFunc(rows, func(r row) bool { return r.job == waitsFor[job] })
		if alloc == nil && holder >= 0 {
			if alloc, err = makeRoom(ctx, c, job, reason); err != nil {
				return err
			}
			rows[holder].job += " (stopped)"
		}
		if alloc == nil {
			progress("%s waits: %s", job, reason)
			continue
		}
		r, err := describe(ctx, c, alloc)
		if err != nil {
			return err
		}
		rows = append(rows, r)
	}
	r, err := admit(ctx, c, service, root)
	if err != nil {
		return err
	}
	rows = append(rows, r)
	if simulated {
		more, err := showVendors(ctx, c, root)
		if err != nil {
			return err
		}
		rows = append(rows, more...)
	}
	fmt.Println()
	printTable(rows)
	return printBars(c)
}

// admit runs a job through the placement service.
func admit(ctx context.Context, c *cluster.Cluster, service, root string) (row, error) {
	progress("NOMAD_ADDR=%s nomad job run %s", service, admittedJob)
	through, err := cluster.Attach(service)
	if err != nil {
		return row{}, err
	}
	if _, err := through.RunFile(ctx, filepath.Join(root, admittedJob)); err != nil {
		return row{}, err
	}
	alloc, err := c.Running(ctx, jobOf(admittedJob))
	if err != nil {
		return row{}, err
	}
	return describe(ctx, c, alloc)
}

// makeRoom stops the job whose GPU is needed, and returns the allocation that
// starts for it.
func makeRoom(ctx context.Context, c *cluster.Cluster, job, reason string) (*api.Allocation, error) {
	progress("%s waits: %s", job, reason)
	progress("nomad job stop %s, to make room", waitsFor[job])
	if err := c.Stop(ctx, waitsFor[job]); err != nil {
		return nil, err
	}
	return c.Running(ctx, job)
}

func jobOf(file string) string { return strings.TrimSuffix(filepath.Base(file), ".nomad.hcl") }

// row is one task in the table.
type row struct {
	job, alloc, node, gpu, part, memory, compute, sharing, seen string
}

func describe(ctx context.Context, c *cluster.Cluster, alloc *api.Allocation) (row, error) {
	task := alloc.Job.TaskGroups[0].Tasks[0].Name
	r := row{job: alloc.JobID, alloc: alloc.ID[:8], node: alloc.NodeName, gpu: "none", part: "-", memory: "-", compute: "-", sharing: "-"}
	report, err := c.Report(ctx, alloc, task)
	if err != nil {
		return r, err
	}
	r.seen = seen(report)
	states, leases, err := stateOf(c, alloc.NodeName)
	if err != nil {
		return r, err
	}
	for _, lease := range leases {
		if lease.ID == gpu.LeaseID(alloc.ID, task) && len(lease.Holdings) > 0 {
			r.hold(lease.Holdings, states)
		}
	}
	return r, nil
}

// hold fills in what the lease says. All of a task's devices are alike here.
func (r *row) hold(holdings []gpu.Holding, states map[string]gpu.GPUState) {
	first, state := holdings[0], states[holdings[0].UUID]
	names := make([]string, len(holdings))
	for i, h := range holdings {
		names[i] = shortID(h.UUID)
	}
	r.gpu = strings.Join(names, " ")
	r.sharing, r.memory, r.compute = "alone", "all", "all"
	switch {
	case len(first.Slices) > 0:
		r.part = fmt.Sprintf("%d of %d slices", len(first.Slices), state.Slices)
	case state.Profile != "" && state.Vendor == "nvidia":
		r.part = "MIG " + state.Profile
	case state.Profile != "":
		r.part = "part " + state.Profile
	default:
		r.part = fmt.Sprintf("%d whole", len(holdings))
	}
	if first.MemoryMiB > 0 {
		r.memory = gpu.FormatMemory(first.MemoryMiB)
	}
	if len(first.Slices) > 0 && len(first.Slices) < state.Slices {
		r.sharing = fmt.Sprintf("%s, %s", state.Sharing, state.Sharing.Grade())
		r.compute = fmt.Sprintf("%d to %d", first.GuaranteeMilli, first.LimitMilli)
	}
}

// seen says in a few words what the program found.
func seen(r probe.Report) string {
	var open []string
	for _, node := range r.Nodes {
		if node.OpensGPU() || node.OpensOther() {
			open = append(open, filepath.Base(node.Path))
		}
	}
	slices.Sort(open)
	forged := []map[string]string{r.Forged}
	if len(r.Opens()) == 0 && len(open) > 0 { // another vendor's
		forged = append(forged, r.ForgedDRM, r.ForgedNPU, r.ForgedVNPU)
	}
	refused := 0
	for _, answers := range forged {
		for _, answer := range answers {
			if answer == probe.Refused {
				refused++
			}
		}
	}
	text := fmt.Sprintf("opens %s, %d refused", strings.Join(open, " "), refused)
	if len(open) == 0 {
		text = fmt.Sprintf("no GPU, %d refused", refused)
	}
	if r.MemoryLimit != "" {
		text += fmt.Sprintf("; limit %s, threads %s%%", r.MemoryLimit, r.Env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"])
	}
	return text
}

func stateOf(c *cluster.Cluster, node string) (map[string]gpu.GPUState, []gpu.Lease, error) {
	byUUID := map[string]gpu.GPUState{}
	for _, n := range c.Nodes {
		if n.Name != node {
			continue
		}
		dir, err := n.State()
		if err != nil {
			return nil, nil, err
		}
		states, err := dir.GPUs()
		if err != nil {
			return nil, nil, err
		}
		for _, s := range states {
			byUUID[s.UUID] = s
		}
		leases, err := dir.Leases()
		return byUUID, leases, err
	}
	return nil, nil, fmt.Errorf("no node %q", node)
}

// shortID keeps what tells GPUs apart: "GPU-1a2b3c4d-…" gives "GPU-1a2b3c4d".
func shortID(uuid string) string {
	parts := strings.SplitN(uuid, "-", 3)
	return strings.Join(parts[:min(2, len(parts))], "-")
}
