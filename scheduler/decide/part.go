package decide

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/constraint"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// part is one device block's worth of an alloc, as the placement core takes it.
type part struct {
	task int // position in Ask.Tasks
	req  place.Request
}

// parts translates an ask. Every part goes to the same node; the first one
// carries the group's CPU and memory.
func (b *Book) parts(a *admit.Ask, q *config.Queue) ([]part, error) {
	base, err := b.base(a, q)
	if err != nil {
		return nil, err
	}
	var list []part
	for i, t := range a.Tasks {
		if !t.Plain() {
			r := base
			r.Ask(t.Request)
			r.Cover = t.Request.Milli > 0 && nomadChooses(a)
			if err := b.resource(&r, t.Request); err != nil {
				return nil, err
			}
			r.LimitMilli = t.LimitMilli
			if r.LimitMilli != 0 && r.LimitMilli < r.ShareMilli {
				r.LimitMilli = 0
			}
			list = append(list, part{i, r})
			continue
		}
		for _, d := range t.Devices {
			r := base
			if err := plain(&r, d); err != nil {
				return nil, err
			}
			list = append(list, part{i, r})
		}
	}
	for i := range list {
		r := &list[i].req
		r.ID = fmt.Sprintf("%s/%s/%s#%d", a.Namespace, a.JobID, a.Group, i)
		if r.Models, err = allowed(r.Models, q); err != nil {
			return nil, err
		}
		if i > 0 {
			r.CPUMHz, r.MemoryMiB = 0, 0
		}
		if why := r.Fault(); why != "" {
			return nil, &admit.Refusal{Status: http.StatusUnprocessableEntity, Text: fmt.Sprintf("group %q asks for %s", a.Group, why)}
		}
	}
	return list, nil
}

// nomadChooses reports whether the GPU of an alloc is Nomad's choice alone: one
// preference cannot be right for several allocs, and for those that start later
// there is none. Nomad counts slices and knows of no compute, so that each must
// hold the slices that go with its compute.
func nomadChooses(a *admit.Ask) bool {
	return a.Count > 1 || a.Later || a.JobType == "system" || a.JobType == "sysbatch"
}

// base is what all parts share.
func (b *Book) base(a *admit.Ask, q *config.Queue) (place.Request, error) {
	policy, err := place.ParsePolicy(a.Policy)
	if err != nil {
		return place.Request{}, err
	}
	r := place.Request{
		Job: a.JobID, Namespace: a.Namespace, Priority: a.Priority, CPUMHz: a.CPUMHz, MemoryMiB: a.MemoryMiB,
		Sharing: a.Sharing, Policy: policy,
	}
	if q != nil {
		r.Queue = q.Name
	}
	if a.NodePool != "" && a.NodePool != "all" {
		r.Pools = []string{a.NodePool}
	}
	r.Datacenters = b.datacenters(a.Datacenters)
	r.Constraints = conditions(a.Constraints)
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

// targetOf is an attribute of a node as constraints name it; queues may leave the
// braces out.
func targetOf(attribute string) string {
	if strings.HasPrefix(attribute, "${") {
		return attribute
	}
	return "${" + attribute + "}"
}

// both is what is in two lists, either of which may be empty for "any".
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
		return nil, forbidden("queue %s may use the %s %s, not %s", queue, what, strings.Join(allowed, ", "), strings.Join(asked, ", "))
	}
	return common, nil
}

// allowed are the models that both the request and its queue want.
func allowed(asked []string, q *config.Queue) ([]string, error) {
	if q == nil || len(q.Models) == 0 {
		return asked, nil
	}
	if len(asked) == 0 {
		return q.Models, nil
	}
	if slices.ContainsFunc(q.Models, func(m string) bool { return strings.EqualFold(m, asked[0]) }) {
		return asked, nil
	}
	return nil, forbidden("queue %s may use GPUs of model %s, not %s", q.Name, strings.Join(q.Models, ", "), asked[0])
}

// resource applies the operator's default resource to a request that names no
// vendor.
func (b *Book) resource(r *place.Request, asked gpu.Request) error {
	word := b.config.DefaultResource
	if asked.Vendor != "" || word == "" || word == "gpu" {
		return nil
	}
	if word == "npu" {
		word = "huawei"
	}
	r.Vendor = word
	return nil
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
	switch deviceType {
	case "slice", "mig-slice":
		r.Mode, r.GPUs, r.Instances = gpu.ModeSlice, 1, d.Count
	case "shared", "mig-shared":
		r.Mode, r.GPUs, r.Shared, r.Instances = gpu.ModeShared, 1, true, d.Count
	default:
		r.Mode, r.GPUs, r.Whole = gpu.ModeWhole, int(min(d.Count, 1<<16)), true
	}
	return nil
}
