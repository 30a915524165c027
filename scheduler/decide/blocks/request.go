// SPDX-License-Identifier: MPL-2.0

package blocks

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/constraint"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// Part is one device block's worth of an alloc, as the placement core takes it.
type Part struct {
	Task int // position in Ask.Tasks
	Req  place.Request
	// Or are what will do as well, in order, where req has no room: the further
	// alternatives of a block "first_available".
	Or []place.Request
}

// On is the part, kept to some nodes.
func (p Part) On(nodes []string) Part {
	p.Or = slices.Clone(p.Or)
	p.Alternatives(func(r *place.Request) { r.Nodes = nodes })
	return p
}

// Alternatives calls a function with every request of the part: the first, and what will do as well.
func (p *Part) Alternatives(f func(r *place.Request)) {
	f(&p.Req)
	for i := range p.Or {
		f(&p.Or[i])
	}
}

// PartsOf translates an ask. Every part goes to the same node; the first one
// carries the group's CPU and memory.
func PartsOf(tx *state.Tx, a *admit.Ask, q *config.Queue) ([]Part, error) {
	base, err := base(tx, a, q)
	if err != nil {
		return nil, err
	}
	var list []Part
	for i := range a.Tasks {
		of, err := partsOf(tx, a, i, base)
		if err != nil {
			return nil, err
		}
		list = append(list, of...)
	}
	for i := range list {
		list[i].Alternatives(func(r *place.Request) {
			r.ID = fmt.Sprintf("%s/%s/%s#%d", a.Namespace, a.JobID, a.Group, i)
			if i > 0 {
				r.CPUMHz, r.MemoryMiB = 0, 0
			}
			why := r.Fault()
			if err == nil && why != "" {
				err = &admit.Refusal{Status: http.StatusUnprocessableEntity, Text: fmt.Sprintf("group %q asks for %s", a.Group, why)}
			}
			if err == nil {
				r.Models, err = allowed(r.Models, q)
			}
		})
	}
	if err != nil {
		return nil, err
	}
	return list, nil
}

// partsOf are the parts of one task: its request in words, or its own device blocks.
func partsOf(tx *state.Tx, a *admit.Ask, task int, base place.Request) (list []Part, err error) {
	t := &a.Tasks[task]
	if !t.Plain() {
		r := base
		r.Ask(t.Request)
		r.Cover = t.Request.Milli > 0 && NomadChooses(a)
		defaultVendor(tx, &r, t.Request)
		if a.Sharing == admit.SharingMIG {
			if r.Vendor = cmp.Or(r.Vendor, "nvidia"); t.Request.Kind == gpu.KindCount || r.Vendor != "nvidia" {
				return nil, &admit.Refusal{Status: http.StatusUnprocessableEntity, Text: fmt.Sprintf("group %q, task %q: gpu = %q is not valid beside %s = %q (memory or a fraction of one GPU of NVIDIA, such as \"8G,0.1\")",
					a.Group, t.Task, t.Request, admit.KeySharing, a.Sharing)}
			}
		}
		if err := possible(t.Request, r.Vendor, r.Sharing); err != nil {
			return nil, err
		}
		if a.Sharing == gpu.SharingSuspend {
			if why := AsSeat(&r, t); why != "" {
				return nil, &admit.Refusal{Status: http.StatusUnprocessableEntity, Text: fmt.Sprintf("group %q, task %q: %s", a.Group, t.Task, why)}
			}
			r.SeatPriority = SeatPriority(tx, &r)
		}
		r.Expected = tx.Cluster.ExpectedUse(nomad.JobKey{Namespace: a.Namespace, ID: a.JobID}, a.Group, t.Task, t.LimitMilli)
		return []Part{{Task: task, Req: r}}, nil
	}
	for n, d := range t.Devices {
		p := Part{Task: task, Req: base, Or: make([]place.Request, len(d.Or))}
		if err := plain(&p.Req, d); err != nil {
			return nil, err
		}
		p.Req.SeatPriority = cmp.Or(t.SeatPriority, writtenSeatPriority(tx, a, task))
		for k := range d.Or {
			p.Or[k] = base
			if err := plain(&p.Or[k], d.Or[k]); err != nil {
				return nil, err
			}
		}
		if n == 0 { // a task has slices of one GPU, whose blocks share the guarantee
			expected := tx.Cluster.ExpectedUse(nomad.JobKey{Namespace: a.Namespace, ID: a.JobID}, a.Group, t.Task, t.LimitMilli)
			p.Alternatives(func(r *place.Request) {
				guarantee(r, t.ComputeMilli)
				r.Expected = expected
			})
		}
		list = append(list, p)
	}
	return list, nil
}

// NomadChooses reports whether the GPU of an alloc is Nomad's choice alone: one
// preference cannot be right for several allocs, and for those that start later
// there is none. Nomad counts slices and knows of no compute, so that each must
// hold the slices that go with its compute.
func NomadChooses(a *admit.Ask) bool {
	return a.Count > 1 || a.Later || a.JobType == "system" || a.JobType == "sysbatch"
}

// base is what all parts share.
func base(tx *state.Tx, a *admit.Ask, q *config.Queue) (place.Request, error) {
	policy, err := place.ParsePolicy(a.Policy)
	if err != nil {
		return place.Request{}, err
	}
	r := place.Request{
		Job: a.JobID, Namespace: a.Namespace, Priority: a.Priority, CPUMHz: a.CPUMHz, MemoryMiB: a.MemoryMiB,
		Sharing: a.Sharing, Policy: policy,
	}
	if a.Sharing == admit.SharingMIG {
		r.Sharing = "" // any, of an instance
	}
	if q != nil {
		r.Queue = q.Name
	}
	if a.NodePool != "" && a.NodePool != "all" {
		r.Pools = []string{a.NodePool}
	}
	r.Datacenters = datacenters(tx, a.Datacenters)
	r.Constraints = slices.Concat(conditions(a.Constraints), feasible(tx, a))
	return r, restrict(&r, q)
}

// restrict adds the rules of a queue.
func restrict(r *place.Request, q *config.Queue) error {
	if q == nil {
		return nil
	}
	var err error
	if r.Pools, err = both(r.Pools, q.NodePools, "node pool", q.Name); err != nil {
		return err
	}
	if r.Datacenters, err = both(r.Datacenters, q.Datacenters, "datacenter", q.Name); err != nil {
		return err
	}
	for _, c := range q.Constraints {
		r.Constraints = append(r.Constraints, constraint.Constraint{Left: targetOf(c.Attribute), Operand: c.Operator, Right: c.Value})
	}
	r.Priority = min(r.Priority, q.MaxPriority)
	return nil
}

// Bind keeps a request that is not a job's, but asks in the same words, to what devices of its
// vendor can do, and to the rules of its queue.
func Bind(tx *state.Tx, r *place.Request, asked gpu.Request, q *config.Queue) (err error) {
	defaultVendor(tx, r, asked)
	if err := possible(asked, r.Vendor, ""); err != nil {
		return err
	}
	if err := restrict(r, q); err != nil {
		return err
	}
	r.Models, err = allowed(r.Models, q)
	return err
}

// Bounds are a queue's rules on nodes as they are written into a job: Nomad chooses the
// node of waiting work, and of work that it starts by itself.
func Bounds(q *config.Queue) []admit.Constraint {
	if q == nil {
		return nil
	}
	var list []admit.Constraint
	for _, rule := range []struct {
		target string
		any    []string
	}{{admit.DatacenterTarget, q.Datacenters}, {admit.PoolTarget, q.NodePools}} {
		if len(rule.any) > 0 {
			list = append(list, admit.Constraint{LTarget: rule.target, Operand: "set_contains_any", RTarget: strings.Join(rule.any, ",")})
		}
	}
	for _, c := range q.Constraints {
		list = append(list, admit.Constraint{LTarget: targetOf(c.Attribute), Operand: c.Operator, RTarget: c.Value})
	}
	return list
}

// targetOf is an attribute of a node as constraints name it; queues may leave the
// braces out.
func targetOf(attribute string) string {
	if strings.HasPrefix(attribute, "${") {
		return attribute
	}
	return "${" + attribute + "}"
}

// both is the intersection of two lists; an empty one means "any".
func both(asked, allowed []string, what, queue string) ([]string, error) {
	switch {
	case len(allowed) == 0:
		return asked, nil
	case len(asked) == 0:
		return allowed, nil
	}
	var common []string
	for _, s := range asked {
		if slices.Contains(allowed, s) {
			common = append(common, s)
		}
	}
	if len(common) == 0 {
		return nil, admit.Forbidden("queue %s may use the %s %s, not %s", queue, what, strings.Join(allowed, ", "), strings.Join(asked, ", "))
	}
	return common, nil
}

// allowed are the models that both the request and its queue want, in the request's order.
func allowed(asked []string, q *config.Queue) ([]string, error) {
	if q == nil || len(q.Models) == 0 {
		return asked, nil
	}
	if len(asked) == 0 {
		return q.Models, nil
	}
	var both []string
	for _, name := range asked {
		if slices.ContainsFunc(q.Models, func(m string) bool { return strings.EqualFold(m, name) }) {
			both = append(both, name)
		}
	}
	if len(both) > 0 {
		return both, nil
	}
	return nil, admit.Forbidden("queue %s may use GPUs of model %s, not %s", q.Name, strings.Join(q.Models, ", "), strings.Join(asked, ", "))
}

// possible refuses what no device of a vendor can do.
func possible(asked gpu.Request, vendor string, sharing gpu.Sharing) error {
	if asked.Vendor = vendor; asked.Unable(sharing) != "" {
		return &admit.Refusal{Status: http.StatusUnprocessableEntity, Text: asked.Unable(sharing)}
	}
	return nil
}

// defaultVendor applies the operator's default resource to a request that names no
// vendor.
func defaultVendor(tx *state.Tx, r *place.Request, asked gpu.Request) {
	switch word := tx.Config().DefaultResource; {
	case asked.Vendor != "" || word == "gpu":
	case word == "npu":
		r.Vendor = "huawei"
	default:
		r.Vendor = word
	}
}

// guarantee has slices come with the compute that the driver's gpu block asks for.
func guarantee(r *place.Request, milli int64) {
	if r.Mode == gpu.ModeSlice {
		r.ShareMilli = min(milli, gpu.MilliPerGPU-1) // the most that goes with a part of a GPU
	}
}

// plain translates a device block that the user wrote. The core evaluates its name
// and constraints as Nomad does.
func plain(r *place.Request, d admit.DeviceAsk) error {
	if d.Count < 1 {
		return &admit.Refusal{Status: http.StatusBadRequest, Text: fmt.Sprintf("device %q: count %d: ask for at least one", d.Name, d.Count)}
	}
	r.Device, r.Conditions = d.Name, conditions(d.Constraints)
	_, deviceType, found := strings.Cut(d.Name, "/")
	if !found {
		deviceType = d.Name
	}
	deviceType, _, _ = strings.Cut(deviceType, "/")
	switch mode, _, _ := gpu.ModeOfType(deviceType); mode {
	case gpu.ModeSlice:
		r.Mode, r.GPUs, r.Instances = gpu.ModeSlice, 1, d.Count
	case gpu.ModeShared:
		r.Mode, r.GPUs, r.Shared, r.Instances = gpu.ModeShared, 1, true, d.Count
	default:
		r.Mode, r.GPUs, r.Whole = gpu.ModeWhole, int(min(d.Count, 1<<16)), true
	}
	return nil
}
