// SPDX-License-Identifier: MPL-2.0

package fit

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/constraint"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
)

// ShapeKey identifies requests that every node treats alike: all that matters
// to where a task fits, nothing that says whose it is.
type ShapeKey struct {
	cpu, memory                 int64
	gpus                        int
	whole, shared, close, cover bool
	share, gpuMemory, minMemory int64
	expected                    int64
	vendor, models, not         string
	profile                     string
	sharing, datacenters, pools string
	mode                        gpu.Mode
	nodes, constraints          string
	device, conditions          string
	instances                   int64
	most                        quota.Charge
	Policy                      Policy
	beside                      Beside
	seat                        int
}

// KeyOf is the key of the shape of a request.
func KeyOf(r *Request) ShapeKey {
	seat := 0
	if r.Beside == BesideLower {
		seat = r.SeatPriority
	}
	expected := r.Expected
	if r.Whole || expected <= r.ShareMilli {
		expected = 0 // no more than it is guaranteed
	}
	return ShapeKey{
		beside: r.Beside, seat: seat,
		cpu: r.CPUMHz, memory: r.MemoryMiB, gpus: r.GPUs,
		whole: r.Whole, shared: r.Shared, close: r.Close, cover: r.Cover,
		expected: expected,
		share:    r.ShareMilli, gpuMemory: r.MemoryMiBPerGPU, minMemory: r.MinMemoryMiB,
		vendor: r.Vendor, models: joined(r.Models), not: joined(r.Not), profile: r.Profile,
		sharing: string(r.Sharing), mode: r.Mode, datacenters: joined(r.Datacenters), pools: joined(r.Pools),
		nodes: joined(r.Nodes), constraints: constraintKey(r.Constraints), Policy: r.Policy,
		device: r.Device, conditions: constraintKey(r.Conditions), instances: r.Instances, most: r.Most,
	}
}

// joined is an unambiguous text for a list.
func joined(list []string) string {
	if len(list) == 0 {
		return ""
	}
	var b strings.Builder
	for _, s := range list {
		b.WriteString(strconv.Itoa(len(s)))
		b.WriteByte(':')
		b.WriteString(s)
	}
	return b.String()
}

func constraintKey(cs []constraint.Constraint) string {
	if len(cs) == 0 {
		return ""
	}
	var list []string
	for _, c := range cs {
		list = append(list, c.Left, c.Operand, c.Right)
	}
	return joined(list)
}

// Shape is a request reduced to what decides where it fits, with the answer
// per kind of GPU worked out once.
type Shape struct {
	Req      Request
	needs    []Need         // per kind of the snapshot, grown on demand
	Demand   forecast.Shape // what the forecast knows of it
	filtered bool           // asks more of a node than capacity and GPUs
	apart    bool           // and pools in the same state may differ in it
	// Meets is which device groups meet the conditions, as far as looked at; nil
	// where the shape has none.
	Meets map[*constraint.Device]bool
}

// Need is what a shape takes of one GPU of a kind.
type Need struct {
	OK    bool
	Whole bool         // no other task may hold a part
	Take  cluster.Take // GPU unset
	Share int32        // usable milli it takes away
	Use   int32        // compute that it is expected to use, milli
	least int32        // usable milli of any GPU that holds it, at least
	why   string
}

// NewShape is the shape of a request, for the kinds of GPU that a snapshot knows and will know.
func NewShape(r *Request, s *cluster.Snapshot) *Shape {
	own := *r
	own.ID, own.Job, own.Namespace, own.Queue = "", "", "", ""
	sh := &Shape{Req: own, apart: len(r.Nodes)+len(r.Constraints) > 0 || r.Beside != BesideAny}
	if r.Device != "" || len(r.Conditions) > 0 {
		sh.apart, sh.Meets = true, map[*constraint.Device]bool{}
	}
	sh.Demand = forecast.Shape{
		CPU: r.CPUMHz, Memory: r.MemoryMiB, GPUs: r.GPUs, Milli: r.Milli(), Whole: r.Whole, Bound: len(r.Models)+len(r.Not) > 0,
		Takes: func(kind int32) (int32, bool) { nd := sh.Need(s, kind); return nd.Share, nd.OK },
		Parts: func(kind int32) (int32, int32) { return sh.Need(s, kind).parts(&s.Kinds[kind]) },
	}
	sh.Size(s)
	sh.filtered = sh.apart || len(r.Datacenters)+len(r.Pools) > 0
	return sh
}

// Size works out how much GPU a shape asks for that says it in memory or turns: the mean
// over the kinds that hold it.
func (sh *Shape) Size(s *cluster.Snapshot) {
	if sh.Req.GPUs == 0 || sh.Req.Whole || sh.Req.ShareMilli > 0 {
		return
	}
	var sum, kinds int64
	for id := range s.Kinds {
		if nd := sh.Need(s, int32(id)); nd.OK {
			sum, kinds = sum+int64(nd.Share), kinds+1
		}
	}
	sh.Demand.Milli = int64(sh.Req.GPUs) * max(1, sum/max(1, kinds))
}

// Suits reports whether a GPU of a pool, full or not, is of a device group that
// will do, and, where tasks step aside for each other, beside whom it may sit.
func (sh *Shape) Suits(b *cluster.Pool, index int) bool {
	switch {
	case !sh.sits(b, index):
		return false
	case sh.Meets == nil:
		return true
	}
	d := b.Node.Spec.GPUs[b.Positions[index]].Device
	if d == nil {
		return false
	}
	ok, known := sh.Meets[d]
	if !known {
		ok = (sh.Req.Device == "" || d.Named(sh.Req.Device)) && d.Meets(sh.Req.Conditions)
		sh.Meets[d] = ok
	}
	return ok
}

// suiting counts the GPUs of a pool that will do.
func (sh *Shape) suiting(b *cluster.Pool) int {
	if sh.Meets == nil && sh.Req.Beside == BesideAny {
		return len(b.GPUs)
	}
	n := 0
	for i := range b.GPUs {
		if sh.Suits(b, i) {
			n++
		}
	}
	return n
}

// Need returns what the shape takes of a GPU of the kind.
func (sh *Shape) Need(s *cluster.Snapshot, id int32) *Need {
	for int(id) >= len(sh.needs) {
		sh.needs = append(sh.needs, needOf(&sh.Req, &s.Kinds[len(sh.needs)]))
	}
	return &sh.needs[id]
}

// parts is its shares of compute and of memory, in milli.
func (nd *Need) parts(k *cluster.Kind) (compute, memory int32) {
	if nd.Whole || k.Slices == 0 {
		return nd.Share, nd.Share
	}
	return int32(nd.Take.Milli), int32(ceilDiv(nd.Take.Slices*cluster.GPUMilli, k.Slices))
}

// needOf translates a request into amounts of one GPU of a kind, or says why
// that kind can never hold it.
func needOf(r *Request, k *cluster.Kind) Need {
	if why := mismatch(r, k); why != "" {
		return Need{why: why}
	}
	nd := sliceNeed
	switch {
	case r.Shared:
		nd = turnNeed
	case r.Whole:
		nd = wholeNeed
	}
	n := nd(r, k)
	if n.Take.Expected = r.Expected; n.Take.Burst(k) == 0 {
		n.Take.Expected = 0
	}
	n.Use = int32(n.Take.Promised(k) + n.Take.Burst(k))
	if n.OK && !cluster.ChargeOf(k, n.Take).Within(r.Most) {
		return Need{why: "its queue may not hold as much more as this GPU costs"}
	}
	return n
}

func wholeNeed(_ *Request, k *cluster.Kind) Need {
	return Need{OK: true, Whole: true, Take: cluster.Take{Milli: cluster.GPUMilli, Slices: k.Slices}, Share: cluster.GPUMilli, least: cluster.GPUMilli}
}

func turnNeed(r *Request, k *cluster.Kind) Need {
	turns := max(1, r.Instances)
	if turns > k.Replicas {
		return Need{why: "fewer turns"}
	}
	share := int32(turns * cluster.GPUMilli / k.Replicas)
	return Need{OK: true, Take: cluster.Take{Replicas: turns}, Share: share, least: share}
}

func mismatch(r *Request, k *cluster.Kind) string {
	switch {
	case r.Vendor != "" && !strings.EqualFold(r.Vendor, k.Vendor):
		return "other vendor"
	case len(r.Models) > 0 && !slices.ContainsFunc(r.Models, k.Named):
		return "other model than " + strings.Join(r.Models, " or ")
	case slices.ContainsFunc(r.Not, k.Named):
		return "model " + k.Type + ", which is excluded"
	case !r.Whole && !r.Shared && r.MemoryMiBPerGPU > nominalMiB(k):
		return "GPU memory too small" // in whatever mode
	case r.Device == "" && !strings.EqualFold(r.Profile, k.Profile): // a block's name says it
		return "other MIG profile"
	case r.Sharing != "" && r.Sharing != k.Sharing:
		return "other sharing"
	case r.Mode != "" && r.Mode != k.Mode:
		return fmt.Sprintf("GPUs in mode %s", k.Mode)
	case r.Shared != (k.Replicas > 0):
		return fmt.Sprintf("GPUs in mode %s", k.Mode)
	case r.Whole && r.MinMemoryMiB > k.MemoryMiB, r.Shared && r.MinMemoryMiB > nominalMiB(k):
		return "GPU memory too small"
	case !r.Whole && !r.Shared && k.Slices == 0:
		return "GPUs not sliced"
	}
	return ""
}

// sliceNeed is the need of a fraction or a memory request. Memory beyond the
// last slice but within the card is all slices; all slices are the whole card.
func sliceNeed(r *Request, k *cluster.Kind) Need {
	// Rounded down, so that two halves of 79 slices fit on one GPU.
	count := max(1, r.ShareMilli*k.Slices/cluster.GPUMilli)
	if r.MemoryMiBPerGPU > 0 {
		count = ceilDiv(r.MemoryMiBPerGPU, k.SliceMiB)
		if count > k.Slices && r.MemoryMiBPerGPU <= nominalMiB(k) {
			count = k.Slices
		}
	}
	if r.Instances > 0 {
		count = r.Instances
	}
	if count > k.Slices {
		return Need{why: "GPU memory too small"}
	}
	if r.Cover {
		count = max(count, covering(r.ShareMilli, k.Slices))
	}
	milli := r.ShareMilli
	if milli == 0 {
		// Rounded down, as the device plugin does: rounded up, the last slice of
		// a GPU that is handed out one by one would find no compute left.
		milli = count * cluster.GPUMilli / k.Slices
	}
	return Need{
		OK: true, Take: cluster.Take{Milli: milli, Slices: count},
		Share: int32(max(milli, ceilDiv(count*cluster.GPUMilli, k.Slices))),
		least: int32(min(milli, count*cluster.GPUMilli/k.Slices)),
	}
}

// covering is the fewest slices at which a GPU is out of slices no later than
// out of compute, however many tasks of the share are put on it by a job that
// counts slices only.
func covering(share, slices int64) int64 {
	count := max(1, share*slices/cluster.GPUMilli)
	if slices/count*share > cluster.GPUMilli {
		count++
	}
	return count
}

// nominalMiB is the size that a card is sold with: users ask for the size printed on the box. A MIG
// instance has its memory in full GiB.
func nominalMiB(k *cluster.Kind) int64 {
	if k.Profile != "" {
		return ceilDiv(k.MemoryMiB, 1024) * 1024
	}
	return gpu.NominalMiB(k.MemoryMiB)
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }

// Milli is the GPU that a request asks for, over all its GPUs.
func (r *Request) Milli() int64 {
	switch {
	case r.GPUs == 0:
		return 0
	case r.Whole:
		return int64(r.GPUs) * cluster.GPUMilli
	}
	return int64(r.GPUs) * r.ShareMilli // see Shape.Size where it says none
}

// LeastCharge is the least that a quota would pay for the shape on any kind.
func (sh *Shape) LeastCharge(s *cluster.Snapshot) quota.Charge {
	var least quota.Charge
	found := false
	for id := range s.Kinds {
		nd := sh.Need(s, int32(id))
		if !nd.OK {
			continue
		}
		c := cluster.ChargeOf(&s.Kinds[id], nd.Take).Times(int64(sh.Req.GPUs))
		if found {
			c = c.Smaller(least)
		}
		least, found = c, true
	}
	return least
}
