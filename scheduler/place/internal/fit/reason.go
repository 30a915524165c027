// SPDX-License-Identifier: MPL-2.0

package fit

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/scheduler/constraint"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
)

// Refusal is why a node cannot take the shape; no Why when it can. Of several
// pools the one that comes closest speaks for the node; of those that have too few GPUs free, the
// one that has the most; and of those that can never hold it, one that offers what it asks for.
func (sh *Shape) Refusal(s *cluster.Snapshot, n *cluster.NodeState) Reason {
	closest := Verdict(0)
	var at *cluster.Pool
	for _, b := range n.Pools {
		why := sh.Fit(s, b)
		if why == Fits {
			return Reason{}
		}
		if why > closest || at == nil || why == noGPU && sh.Req.GPUs > 1 && sh.freeGPUs(s, b) > sh.freeGPUs(s, at) || why == neverKind && closest == neverKind && sh.tooLarge(s, b) {
			closest, at = why, b
		}
	}
	return sh.describe(s, at, closest)
}

// tooLarge reports whether GPUs of a pool are as the request asks, and only have too little.
func (sh *Shape) tooLarge(s *cluster.Snapshot, b *cluster.Pool) bool {
	return b.Kind >= 0 && mismatch(&sh.Req, &s.Kinds[b.Kind]) == ""
}

// Reason is why a number of nodes cannot take a request.
type Reason struct {
	Nodes     int
	Why       string
	Never     bool // not even when the node is empty
	Preempted int  // of these, nodes that would do after evictions that are allowed
}

// String says it in a sentence.
func (r Reason) String() string {
	text := fmt.Sprintf("%d nodes: %s", r.Nodes, r.Why)
	if r.Nodes == 1 {
		text = "1 node: " + r.Why
	}
	if r.Preempted > 0 {
		text += fmt.Sprintf("; %d of them would do after preempting work of lower priority", r.Preempted)
	}
	return text
}

func (sh *Shape) describe(s *cluster.Snapshot, b *cluster.Pool, why Verdict) Reason {
	r := &sh.Req
	switch why {
	case notEligible:
		return Reason{Why: "not eligible for new work"}
	case notFiltered:
		return Reason{Why: "constraint, datacenter or node pool", Never: true}
	case neverKind:
		if b.Kind < 0 {
			return Reason{Why: "no GPU", Never: true}
		}
		return Reason{Why: sh.Need(s, b.Kind).why, Never: true}
	case neverDevice:
		return Reason{Why: sh.unmet(b), Never: true}
	case neverSize:
		return Reason{Why: fmt.Sprintf("fewer than %d GPUs of one kind, and all have to be on one node", r.GPUs), Never: true}
	case noCPU:
		return tooLittle(fmt.Sprintf("less than %d MHz of CPU", r.CPUMHz), r.CPUMHz > b.Node.Spec.CPUMHz)
	case noMemory:
		return tooLittle(fmt.Sprintf("less than %s of memory", quota.Memory(r.MemoryMiB)), r.MemoryMiB > b.Node.Spec.MemoryMiB)
	}
	return Reason{Why: gpuText(r, sh.freeGPUs(s, b))}
}

// unmet says what of a device block no GPU of a pool meets, and what the GPUs have.
func (sh *Shape) unmet(b *cluster.Pool) string {
	var named []*constraint.Device
	for _, at := range b.Positions {
		if d := b.Node.Spec.GPUs[at].Device; d != nil && (sh.Req.Device == "" || d.Named(sh.Req.Device)) && !slices.Contains(named, d) {
			named = append(named, d)
		}
	}
	if len(named) == 0 {
		return fmt.Sprintf("no device %q", sh.Req.Device)
	}
	for _, c := range sh.Req.Conditions {
		if slices.ContainsFunc(named, c.OnDevice) {
			continue
		}
		var have []string
		for _, d := range named {
			if text := d.Has(c); !slices.Contains(have, text) {
				have = append(have, text)
			}
		}
		return fmt.Sprintf("no GPU meets the device block's constraint %s%s", c, strings.Join(have[:min(len(have), mostValues)], ""))
	}
	return "no GPU meets all of the device block's constraints at once"
}

// mostValues bounds how many values are told of what a constraint is about.
const mostValues = 3

// tooLittle is a lack of something of the node: for now, or for good.
func tooLittle(what string, never bool) Reason {
	if never {
		return Reason{Why: what, Never: true}
	}
	return Reason{Why: what + " free"}
}

// gpuText names the GPUs that the request needs and does not find: free ones would do, and too few are
// on one node.
func gpuText(r *Request, free int) string {
	text := "no GPU with " + freeText(r, "it")
	switch {
	case r.GPUs < 2:
		return text
	case free == 1:
		text = "only 1 GPU with " + freeText(r, "it")
	case free > 1:
		text = fmt.Sprintf("only %d GPUs with %s", free, freeText(r, "them"))
	}
	return fmt.Sprintf("%s, and %d are needed on one node", text, r.GPUs)
}

// freeText says what must be free on a GPU.
func freeText(r *Request, on string) string {
	compute := fmt.Sprintf("%s of the compute free", quota.GPUs(r.ShareMilli))
	switch {
	case r.Whole:
		return "nothing on " + on
	case r.Shared:
		return "a turn free"
	case r.MemoryMiBPerGPU > 0 && r.ShareMilli > 0:
		return fmt.Sprintf("%s and %s", quota.Memory(r.MemoryMiBPerGPU), compute)
	case r.MemoryMiBPerGPU > 0:
		return quota.Memory(r.MemoryMiBPerGPU) + " free"
	}
	return compute
}
