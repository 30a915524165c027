package place

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

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

// Term is one part of a node's score: value times weight, both in thousandths.
type Term struct {
	Name        string
	ValueMilli  int64
	WeightMilli int64
	Note        string
}

// Candidate is a node that could take the request, with its score.
type Candidate struct {
	NodeID string
	Score  int64 // thousandths: the sum of the terms
	Terms  []Term
}

// Explanation is why a request has the answer it has.
type Explanation struct {
	Fits       int         // nodes that can take it now
	Candidates []Candidate // the winner and the runners-up
	Reasons    []Reason    // why the others cannot, most nodes first
	Quota      string      // why the queue's quota forbids it; empty: it does not
}

// Impossible reports that no node could hold the request even when empty.
func (e *Explanation) Impossible() bool {
	return e.Fits == 0 && !slices.ContainsFunc(e.Reasons, func(r Reason) bool { return !r.Never })
}

// explained is how many candidates an explanation lists.
const explained = 5

// Explain says where a request would go and why there, and why the other nodes
// cannot take it.
func (p *Planner) Explain(r *Request, now time.Time) (Explanation, error) {
	if err := r.Validate(); err != nil {
		return Explanation{}, err
	}
	p.prepare()
	sh := p.shapeOf(r)
	var e Explanation
	if p.quotas != nil {
		if err := p.quotas.limited(p.snap, r.Queue, p.leastCharge(sh)); err != nil {
			e.Quota = err.Error()
		}
	}
	e.Candidates = p.candidates(sh)
	p.refusals(&e, r, sh, now)
	return e, nil
}

// candidates are the best banks for the shape, best first.
func (p *Planner) candidates(sh *shape) []Candidate {
	ix := sh.index
	p.sync(ix, sh)
	var best []ranked
	for id := range ix.feed.sets {
		if ix.levels[0][id] == worst {
			continue
		}
		if ix.verdicts[id].known == rough {
			p.refineAt(ix, sh, id)
		}
		pts := ix.levels[0][id]
		for _, bank := range ix.feed.sets[id].banks {
			at, _ := slices.BinarySearchFunc(best, ranked{bank, id}, func(o, r ranked) int {
				return cmp.Or(cmp.Compare(pts, ix.levels[0][o.set]), cmp.Compare(o.bank, r.bank))
			})
			if at == explained {
				break
			}
			best = slices.Insert(best, at, ranked{bank, id})
			best = best[:min(len(best), explained)]
		}
	}
	var out []Candidate
	for _, r := range best {
		out = append(out, p.candidate(sh, p.snap.banks[r.bank], &ix.verdicts[r.set], ix.levels[0][r.set]))
	}
	return out
}

// ranked is a bank and the set that it is in.
type ranked struct {
	bank int32
	set  int
}

func (p *Planner) candidate(sh *shape, b *bank, v *verdict, pts int32) Candidate {
	w, u := &p.weights, p.usageAfter(sh, b)
	sign := int64(1)
	if sh.req.Policy == PolicySpread {
		sign = -1
	}
	frag := Term{Name: "fragmentation", WeightMilli: -w.FragmentationMilli}
	if sh.req.Policy == PolicyBalanced {
		cost, waste := p.charged(v, sh)
		frag.ValueMilli = floorDiv(cost, w.StepMilli) * stepTerm
		frag.Note = fmt.Sprintf("%d milli of waste expected from it, %d of price for scarce models and room for several GPUs", waste, cost-int64(waste))
	} else if w.FragmentationMilli > 0 {
		frag.ValueMilli = int64(v.stranded) * 1000 / w.FragmentationMilli
	}
	return Candidate{NodeID: b.node.spec.ID, Score: int64(pts), Terms: []Term{
		{Name: "gpu", ValueMilli: u.gpu, WeightMilli: sign * w.GPUMilli},
		{Name: "memory", ValueMilli: u.memory, WeightMilli: sign * w.MemoryMilli},
		{Name: "cpu", ValueMilli: u.cpu, WeightMilli: sign * w.CPUMilli},
		frag,
	}}
}

// refusals counts why nodes cannot take the shape and how many of them would
// after evictions.
func (p *Planner) refusals(e *Explanation, r *Request, sh *shape, now time.Time) {
	ev := p.newEviction(r, sh, now, nil)
	at := map[Reason]*Reason{}
	for _, n := range p.snap.nodes {
		why := p.snap.refusal(sh, n)
		if why.Why == "" {
			e.Fits++
			continue
		}
		c := at[why]
		if c == nil {
			c = &Reason{Why: why.Why, Never: why.Never}
			at[why] = c
		}
		c.Nodes++
		if !why.Never && ev.helps(sh, n) {
			c.Preempted++
		}
	}
	for _, c := range at {
		e.Reasons = append(e.Reasons, *c)
	}
	slices.SortFunc(e.Reasons, func(a, b Reason) int {
		return cmp.Or(b.Nodes-a.Nodes, cmp.Compare(a.Why, b.Why))
	})
}

// helps reports whether evictions on the node would make the shape fit.
func (e *eviction) helps(sh *shape, n *nodeState) bool {
	return slices.ContainsFunc(n.banks, func(b *bank) bool {
		_, ok := e.lead(sh, int(b.id))
		return ok && e.p.snap.could(sh, b) && e.room(sh, b).empty(e.candidates(b))
	})
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
	case neverDevice:
		return Reason{Why: "no GPU meets the device block's constraints", Never: true}
	case neverSize:
		return Reason{Why: fmt.Sprintf("fewer than %d like GPUs", r.GPUs), Never: true}
	case noCPU:
		return tooLittle(fmt.Sprintf("less than %d MHz of CPU", r.CPUMHz), r.CPUMHz > b.node.spec.CPUMHz)
	case noMemory:
		return tooLittle(fmt.Sprintf("less than %s of memory", sizeText(r.MemoryMiB)), r.MemoryMiB > b.node.spec.MemoryMiB)
	}
	return Reason{Why: gpuText(r)}
}

// tooLittle is a lack of something of the node: for now, or for good.
func tooLittle(what string, never bool) Reason {
	if never {
		return Reason{Why: what, Never: true}
	}
	return Reason{Why: what + " free"}
}

// gpuText says what GPUs the request needs and does not find.
func gpuText(r *Request) string {
	if r.GPUs > 1 {
		return fmt.Sprintf("fewer than %d GPUs with %s", r.GPUs, freeText(r, "them"))
	}
	return "no GPU with " + freeText(r, "it")
}

// freeText says what must be free on a GPU.
func freeText(r *Request, on string) string {
	compute := fmt.Sprintf("%s of the compute free", gpus(r.ShareMilli))
	switch {
	case r.Whole:
		return "nothing on " + on
	case r.Shared:
		return "a turn free"
	case r.MemoryMiBPerGPU > 0 && r.ShareMilli > 0:
		return fmt.Sprintf("%s and %s", sizeText(r.MemoryMiBPerGPU), compute)
	case r.MemoryMiBPerGPU > 0:
		return sizeText(r.MemoryMiBPerGPU) + " free"
	}
	return compute
}

// sizeText writes an amount of memory as people do.
func sizeText(mib int64) string {
	if mib >= 1024 && mib%1024 == 0 {
		return fmt.Sprintf("%d GiB", mib/1024)
	}
	return fmt.Sprintf("%d MiB", mib)
}
