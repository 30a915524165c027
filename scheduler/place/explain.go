package place

import (
	"cmp"
	"fmt"
	"slices"
)

// Reason is why a number of nodes cannot take a request.
type Reason struct {
	Nodes int
	Why   string
	Never bool // not even when the node is empty
}

// Explanation is why a request has the answer it has.
type Explanation struct {
	Fits    int      // nodes that can take it now
	Reasons []Reason // why the others cannot, most nodes first
}

// Impossible reports that no node could hold the request even when empty.
func (e *Explanation) Impossible() bool {
	return e.Fits == 0 && !slices.ContainsFunc(e.Reasons, func(r Reason) bool { return !r.Never })
}

// Explain counts the nodes that can take a request and says why the others
// cannot.
func (p *Planner) Explain(r *Request) (Explanation, error) {
	if err := r.Validate(); err != nil {
		return Explanation{}, err
	}
	sh, _ := p.shapeOf(r)
	var e Explanation
	counts := map[Reason]int{}
	for _, n := range p.snap.nodes {
		if why := p.snap.refusal(sh, n); why.Why == "" {
			e.Fits++
		} else {
			counts[why]++
		}
	}
	for why, n := range counts {
		why.Nodes = n
		e.Reasons = append(e.Reasons, why)
	}
	slices.SortFunc(e.Reasons, func(a, b Reason) int {
		return cmp.Or(b.Nodes-a.Nodes, cmp.Compare(a.Why, b.Why))
	})
	return e, nil
}

// refusal is why a node cannot take the shape; no Why when it can. Of several
// banks the one that comes closest speaks for the node.
func (s *Snapshot) refusal(sh *shape, n *nodeState) Reason {
	closest := reason(0)
	var at *bank
	for _, b := range n.banks {
		why := s.fit(sh, b)
		if why == fitsNow {
			return Reason{}
		}
		if why > closest || at == nil {
			closest, at = why, b
		}
	}
	return s.describe(sh, at, closest)
}

func (s *Snapshot) describe(sh *shape, b *bank, why reason) Reason {
	r := &sh.req
	switch why {
	case notEligible:
		return Reason{Why: "not eligible for new work"}
	case notFiltered:
		return Reason{Why: "constraint, datacenter or node pool", Never: true}
	case neverKind:
		if b.kind < 0 {
			return Reason{Why: "no GPU", Never: true}
		}
		return Reason{Why: sh.need(s, b.kind).why, Never: true}
	case neverSize:
		return Reason{Why: fmt.Sprintf("fewer than %d like GPUs", r.GPUs), Never: true}
	case noCPU:
		return Reason{Why: fmt.Sprintf("less than %d MHz free", r.CPUMHz), Never: r.CPUMHz > b.node.spec.CPUMHz}
	case noMemory:
		return Reason{Why: fmt.Sprintf("less than %d MiB of memory free", r.MemoryMiB), Never: r.MemoryMiB > b.node.spec.MemoryMiB}
	}
	return Reason{Why: "no GPU with " + gpuText(r)}
}

// gpuText says what of a GPU the request needs.
func gpuText(r *Request) string {
	what := ""
	switch {
	case r.Whole:
		what = "nothing on it"
	case r.Shared:
		what = "a turn free"
	case r.MemoryMiBPerGPU > 0 && r.ShareMilli > 0:
		what = fmt.Sprintf("%d MiB and %d milli free", r.MemoryMiBPerGPU, r.ShareMilli)
	case r.MemoryMiBPerGPU > 0:
		what = fmt.Sprintf("%d MiB free", r.MemoryMiBPerGPU)
	default:
		what = fmt.Sprintf("%d milli free", r.ShareMilli)
	}
	if r.GPUs > 1 {
		return fmt.Sprintf("%s (%d needed)", what, r.GPUs)
	}
	return what
}
