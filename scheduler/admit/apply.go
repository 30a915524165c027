// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/framework"
)

// Apply writes one decision per Ask, in the same order, into the job and
// returns the request's new body. The job is not changed.
func (j *Job) Apply(decisions []Decision, link Link) ([]byte, error) {
	if len(decisions) != len(j.Asks) {
		return nil, fmt.Errorf("apply %d decisions to %d asks", len(decisions), len(j.Asks))
	}
	groups := make([]json.RawMessage, len(j.groups))
	next := 0
	for i, g := range j.groups {
		if next < len(j.Asks) && j.Asks[next].Group == g.name {
			changed, err := g.apply(j.Asks[next], decisions[next])
			if err != nil {
				return nil, fmt.Errorf("apply decision to group %q: %w", g.name, err)
			}
			if j.Asks[next].Template() {
				if changed, err = waiting(changed); err != nil {
					return nil, err
				}
			}
			groups[i] = changed
			next++
			continue
		}
		groups[i] = g.raw
	}
	if len(j.Asks) > 0 && j.Asks[0].Template() {
		groups = append(groups, j.holdGroup())
	}
	job := j.job.clone()
	job.set("TaskGroups", rawArray(groups))
	if counts := priority(decisions); counts > 0 && counts < j.Priority {
		job.set("Priority", encode(counts))
	}
	if err := addLink(&job, link); err != nil {
		return nil, err
	}
	envelope := j.envelope.clone()
	envelope.set("Job", job.raw())
	// Nomad would start it before what goes first: the order that is decided by knows the job's
	// own priority.
	envelope.remove("EvalPriority")
	return envelope.raw(), nil
}

// priority is the highest that counts of a job's groups; 0: all of its own. Nomad gives room by the
// priority of jobs, and takes no change of dispatched children: so the bound is in it from the start.
func priority(decisions []Decision) (highest int) {
	for _, d := range decisions {
		if d.Priority == 0 {
			return 0
		}
		highest = max(highest, d.Priority)
	}
	return highest
}

// BoundDispatch returns the body of a dispatch with which the child gets no more than the priority that
// counts. The child is read as it would be without.
func (j *Job) BoundDispatch(body []byte, decisions []Decision) ([]byte, error) {
	counts := priority(decisions)
	if counts == 0 || len(j.Asks) == 0 || j.Asks[0].Priority <= counts {
		return body, nil
	}
	dispatch, err := parseObject(body)
	if err != nil {
		return nil, unreadable(err)
	}
	dispatch.set("Priority", encode(counts))
	return dispatch.raw(), nil
}

func (g group) apply(ask Ask, d Decision) (json.RawMessage, error) {
	if d.Group != g.name || len(d.Tasks) != len(ask.Tasks) {
		return nil, fmt.Errorf("the decision is for group %q with %d tasks, want %d", d.Group, len(d.Tasks), len(ask.Tasks))
	}
	o := g.object.clone()
	if err := g.constrain(&o, ask, d); err != nil {
		return nil, err
	}
	if err := g.prefer(&o, ask, d); err != nil {
		return nil, err
	}
	if d.OnCPU {
		return g.withoutGPU(&o, ask)
	}
	// The limit is that of work on a GPU. An older Nomad does not know the field, and lets the work run on.
	if ask.TimeLimit > 0 && (ask.JobType == "batch" || ask.JobType == "sysbatch") {
		o.set("MaxRunDuration", encode(ask.TimeLimit))
	}
	tasks, err := parseArray(o.get("Tasks"))
	if err != nil {
		return nil, err
	}
	for i, t := range g.tasks {
		at := slices.IndexFunc(ask.Tasks, func(a TaskAsk) bool { return a.Task == t.header.Name })
		if at < 0 {
			continue
		}
		if tasks[i], err = g.applyTask(&o, ask, t, ask.Tasks[at], d.Tasks[at]); err != nil {
			return nil, fmt.Errorf("task %q: %w", t.header.Name, err)
		}
	}
	o.set("Tasks", rawArray(tasks))
	return o.raw(), nil
}

// constrain writes the group's constraints: the user's, then ours. The one on
// the node makes Nomad look at every node by itself, not at one per class. A group that
// waits has none: Nomad would evaluate its job again whenever any room comes free. Nor has one whose
// children wait.
func (g group) constrain(o *object, ask Ask, d Decision) error {
	at, slots := -1, slotsAt(g.header.Constraints)
	list, err := without(o.get("Constraints"), func(raw json.RawMessage) bool {
		var c Constraint
		at++
		return json.Unmarshal(raw, &c) == nil && c.ours() || at == slots
	})
	if err != nil {
		return err
	}
	canaries, err := g.setCanaries(o, d)
	if err != nil {
		return err
	}
	node := Constraint{LTarget: nodeTarget, RTarget: owner, Operand: isNot}
	if len(d.Candidates) > 0 {
		candidates := slices.Compact(slices.Sorted(slices.Values(d.Candidates)))
		if d.limited() {
			candidates = append(candidates, slotsMember+strconv.Itoa(d.Slots))
		}
		node = Constraint{LTarget: nodeTarget, RTarget: markedSet(candidates), Operand: anyOf}
	}
	if canaries > 0 {
		node.RTarget += "," + canariesMember + strconv.Itoa(canaries)
	}
	if d.Hold != nil {
		node = holdConstraint(*d.Hold, canaries)
	}
	var ours []json.RawMessage
	for _, c := range d.Bounds {
		switch c = bound(c); {
		case c.ours():
			ours = append(ours, encode(c))
		case !g.has(c): // it stands where it would be read again as the user's
			list = append(list, encode(c))
		}
	}
	if !d.OnCPU && !ask.Template() { // what asks for no GPU bears no mark
		list = append(list, encode(node))
	}
	if !d.OnCPU {
		list = append(list, ours...)
	}
	if !d.OnCPU && d.limited() {
		list = append(list, encode(slotsConstraint(d.Slots)))
	}
	o.set("Constraints", rawArray(list))
	return nil
}

// limited reports whether a decision says how many allocs each candidate may get.
func (d *Decision) limited() bool { return d.Hold == nil && d.Slots > 0 && len(d.Candidates) > 0 }

// has reports whether the group has a constraint already.
func (g group) has(c Constraint) bool {
	return slices.ContainsFunc(g.header.Constraints, func(have *Constraint) bool { return have != nil && *have == c })
}

// setCanaries sets the author's canaries aside, or brings them back. It returns
// how many are set aside.
func (g group) setCanaries(o *object, d Decision) (int, error) {
	update, err := parseObject(o.get("Update"))
	if err != nil {
		return 0, fmt.Errorf("update: %w", err)
	}
	var canaries int
	if err := update.decode("Canary", &canaries); err != nil {
		return 0, fmt.Errorf("update: %w", err)
	}
	author := canaries
	if was := g.earlier(family{}); was != nil && was.Canaries != nil && canaries == 0 {
		author = *was.Canaries
	}
	now, aside := author, 0
	if d.WithoutCanaries {
		now, aside = 0, author
	}
	if now != canaries {
		update.set("Canary", encode(now))
		o.set("Update", update.raw())
	}
	return aside, nil
}

// prefer writes the group's affinities: the user's, then ours.
func (g group) prefer(o *object, ask Ask, d Decision) error {
	list, err := without(o.get("Affinities"), func(raw json.RawMessage) bool {
		var a affinity
		return json.Unmarshal(raw, &a) == nil && a.ours() && a.LTarget == nodeTarget
	})
	if err != nil {
		return err
	}
	had := len(list)
	if ask.JobType == "service" || ask.JobType == "batch" { // the others allow no affinities
		preferred := d.Preferred[:min(len(d.Preferred), maxPreferred)]
		for i := range preferred {
			list = append(list, encode(Affinity{nodeTarget, markedSet(preferred[:i+1]), anyOf, preferenceWeights[i]}))
		}
	}
	if had == 0 && len(list) == 0 && isNull(o.get("Affinities")) {
		return nil
	}
	o.set("Affinities", rawArray(list))
	return nil
}

// applyTask changes a task, and the group o where the task's framework needs a
// service there.
func (g group) applyTask(o *object, ask Ask, t task, a TaskAsk, d TaskDecision) (json.RawMessage, error) {
	if d.Task != a.Task {
		return nil, fmt.Errorf("the decision is for task %q", d.Task)
	}
	changed, err := t.apply(ask, a, d)
	if err != nil || a.Framework == nil {
		return changed.raw(), err
	}
	standing := g.standing(ask, a)
	setup, err := framework.Plan(*a.Framework, d.Holds, standing)
	if err != nil {
		return nil, refuse(g.name, a.Task, err)
	}
	if err := setUpGroup(o, setup); err != nil {
		return nil, err
	}
	if err := setUpTask(&changed, setup, ask.toldEnv(a, d.Holds, standing)); err != nil {
		return nil, err
	}
	if t.header.Driver == gpu.DriverName {
		err = shareNetwork(&changed, setup)
	}
	return changed.raw(), err
}

func (t task) apply(ask Ask, a TaskAsk, d TaskDecision) (object, error) {
	o := t.object.clone()
	devices, err := t.decided(ask, a, d)
	if err != nil {
		return o, err
	}
	resources := t.resources.clone()
	resources.set("Devices", rawArray(devices))
	o.set("Resources", resources.raw())
	if a.Plain() {
		return o, nil
	}
	return o, t.limit(&o, ask, d)
}

// decided returns the task's device blocks.
func (t task) decided(ask Ask, a TaskAsk, d TaskDecision) ([]json.RawMessage, error) {
	if a.Plain() {
		return t.preferDevices(a, d)
	}
	var list []json.RawMessage
	for i, raw := range t.devices {
		if !slices.ContainsFunc(t.blocks, func(b DeviceAsk) bool { return b.Index == i }) {
			list = append(list, raw)
		}
	}
	if len(d.Devices) == 0 {
		return nil, fmt.Errorf("the decision has no device block")
	}
	for _, device := range d.Devices {
		list = append(list, device.block(ask.Sharing))
	}
	return list, nil
}

// preferDevices adds to the blocks that the user wrote the preferred GPU, and the models
// that their queue may use.
func (t task) preferDevices(a TaskAsk, d TaskDecision) ([]json.RawMessage, error) {
	list := slices.Clone(t.devices)
	for i, block := range a.Devices {
		o, err := parseObject(list[block.Index])
		if err != nil {
			return nil, err
		}
		if block.Alternative { // which of them it will be is not known: no GPU is preferred
			if list[block.Index], err = bindAlternatives(o, block, d.Bound); err != nil {
				return nil, err
			}
			continue
		}
		affinities, err := without(o.get("Affinities"), func(raw json.RawMessage) bool {
			var a affinity
			return json.Unmarshal(raw, &a) == nil && a.ours()
		})
		if err != nil {
			return nil, err
		}
		if d.Bound != nil || boundOf(list[block.Index]) != nil {
			if err := setBound(&o, d.Bound); err != nil {
				return nil, err
			}
			list[block.Index] = o.raw()
		}
		if i < len(d.Devices) && d.Devices[i].Prefer != "" {
			affinities = append(affinities, encode(preferGroup(d.Devices[i].Prefer)))
		} else if preferredGroup(list[block.Index]) == "" {
			continue
		}
		o.set("Affinities", rawArray(affinities))
		list[block.Index] = o.raw()
	}
	return list, nil
}

// bindAlternatives writes a bound into those alternatives of a block that are GPUs.
func bindAlternatives(o object, block DeviceAsk, bound *Constraint) (json.RawMessage, error) {
	var list []json.RawMessage
	var around string
	if err := o.decodeAll(map[string]any{firstAvailable: &list, "Name": &around}); err != nil {
		return nil, err
	}
	changed := false
	for at := range list {
		one, err := parseObject(list[at])
		if err != nil {
			return nil, err
		}
		var name string
		if err := one.decode("Name", &name); err != nil {
			return nil, err
		}
		named := func(d DeviceAsk) bool { return d.Name == firstOf(name, around) }
		if !slices.ContainsFunc(slices.Concat([]DeviceAsk{block}, block.Or), named) || bound == nil && boundOf(list[at]) == nil {
			continue
		}
		if err := setBound(&one, bound); err != nil {
			return nil, err
		}
		list[at], changed = one.raw(), true
	}
	if changed {
		o.set(firstAvailable, rawArray(list))
	}
	return o.raw(), nil
}

// setBound writes a bound into a user's device block, in place of an earlier one.
func setBound(o *object, bound *Constraint) error {
	list, err := without(o.get("Constraints"), func(raw json.RawMessage) bool {
		var c Constraint
		return json.Unmarshal(raw, &c) == nil && c.binds()
	})
	if err != nil {
		return err
	}
	if bound != nil {
		list = append(list, encode(bind(*bound)))
	}
	o.set("Constraints", rawArray(list))
	return nil
}

func preferGroup(name string) Affinity {
	return Affinity{groupTarget, markedSet([]string{name}), anyOf, 100}
}

// block is the device block as Nomad's JSON has it.
func (d Device) block(sharing gpu.Sharing) json.RawMessage {
	constraints := d.Bounds(sharing)
	var affinities []Affinity
	if d.Prefer != "" {
		affinities = append(affinities, preferGroup(d.Prefer))
	}
	for _, a := range d.Rank {
		a.RTarget = markedSet([]string{a.RTarget})
		affinities = append(affinities, a)
	}
	return encode(struct {
		Name        string
		Count       int64
		Constraints []Constraint
		Affinities  []Affinity
	}{d.Name, d.Count, constraints, affinities})
}

// Bounds are the constraints of the block, the sharing last.
func (d Device) Bounds(sharing gpu.Sharing) []Constraint {
	constraints := slices.Clone(d.Constraints)
	if sharing != "" && sharing != SharingMIG && !slices.Contains(constraints, sharingIs(sharing)) {
		constraints = append(constraints, sharingIs(sharing))
	}
	return constraints
}

func sharingIs(s gpu.Sharing) Constraint {
	return Constraint{LTarget: "${device.attr.sharing}", RTarget: string(s), Operand: "="}
}

// limit writes the driver's gpu block. Other drivers have none: their tasks get
// what the device plugin sets for the slices.
func (t task) limit(o *object, ask Ask, d TaskDecision) error {
	config, err := parseMap(o.get("Config"))
	if err != nil {
		return fmt.Errorf("config: %w", err)
	}
	if t.header.Driver != gpu.DriverName {
		return nil
	}
	if config.get("gpu") != nil && ask.Was == nil {
		return malformed("config has a gpu block beside meta " + KeyGPU + "; say it in meta alone, with " + KeyLimit)
	}
	config.remove("gpu")
	if b := driverBlock(&d); b != (shareBlock{}) {
		config.set("gpu", rawArray([]json.RawMessage{encode(b)}))
	}
	o.set("Config", config.raw())
	return nil
}

// shareBlock is the driver's gpu block.
type shareBlock struct {
	Memory  string      `json:"memory,omitempty"`
	Compute thousandths `json:"compute,omitempty"`
	Limit   thousandths `json:"compute_limit,omitempty"`
	// Priority is that of its seat: a word, or a number with or without quotes.
	Priority any `json:"priority,omitempty"`
}

// WrittenShare is the driver's gpu block as an author may have written it: numbers with or
// without quotes, a priority that may be a word.
type WrittenShare struct {
	Memory   any `json:"memory"`
	Compute  any `json:"compute"`
	Limit    any `json:"compute_limit"`
	Priority any `json:"priority"`
}

// ReadShare reads a gpu block of a task's configuration; it is empty where that cannot be read.
// Nomad keeps a block as an object or as a list with one object.
func ReadShare(block []byte) (one WrittenShare) {
	var list []WrittenShare
	if json.Unmarshal(block, &list) == nil && len(list) > 0 {
		return list[0]
	}
	if json.Unmarshal(block, &one) != nil {
		return WrittenShare{}
	}
	return one
}

func (t task) writtenShare() WrittenShare {
	config, err := parseMap(t.object.get("Config"))
	if err != nil {
		return WrittenShare{}
	}
	return ReadShare(config.get("gpu"))
}

// share reads what driverBlock wrote.
func (t task) share() (s gpu.Share, seatPriority int) {
	written := t.writtenShare()
	compute, ok := Milli(written.Compute)
	limit, okay := Milli(written.Limit)
	if !ok || !okay {
		return s, 0
	}
	s = gpu.Share{GuaranteeMilli: compute, LimitMilli: limit}
	text, _ := written.Memory.(string)
	if memory, err := gpu.ParseMemory(text); err == nil {
		s.MemoryMiB = memory
	}
	return s, gpu.SeatPriorityOf(fmt.Sprint(written.Priority))
}

// guarantee is the compute that the author of device blocks asks for in the driver's gpu
// block. Text may become a number when the task starts: Nomad interpolates it.
func (t task) guarantee() (int64, error) {
	written := t.writtenShare().Compute
	milli, ok := Milli(written)
	if !ok {
		return 0, fmt.Errorf("gpu.compute: %v is not valid (a fraction of a GPU such as 0.5, or thousandths such as 500)", written)
	}
	return milli, nil
}

// Milli reads compute as the driver's gpu block has it, a number with or without quotes:
// 0.5 and 500 are half of a GPU. 0 is none.
func Milli(written any) (milli int64, ok bool) {
	text := ""
	switch v := written.(type) {
	case float64:
		text = strconv.FormatFloat(v, 'f', -1, 64)
	case string:
		text = v
	}
	if written == nil || text == "0" {
		return 0, true
	}
	milli, err := gpu.ParseMilli(text)
	return milli, err == nil
}

// thousandths writes compute as [Milli] reads it: 1 would be all of a GPU.
type thousandths int64

// MarshalJSON writes a number.
func (n thousandths) MarshalJSON() ([]byte, error) {
	if n == 1 {
		return []byte(gpu.FormatMilli(1)), nil
	}
	return json.Marshal(int64(n))
}

func driverBlock(d *TaskDecision) shareBlock {
	b := shareBlock{Compute: thousandths(d.Share.GuaranteeMilli), Limit: thousandths(d.Share.LimitMilli)}
	if d.Share.MemoryMiB > 0 {
		b.Memory = gpu.FormatMemory(d.Share.MemoryMiB)
	}
	if d.SeatPriority > 0 {
		b.Priority = strconv.Itoa(d.SeatPriority)
	}
	return b
}
