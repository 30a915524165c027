// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/framework"
)

var (
	keys = []string{KeyGPU, KeyLimit, KeyPolicy, KeySharing, KeyQueue, KeyReservation, KeyGang, KeyGangMin, KeyTimeLimit, KeyFallback, KeyFallbackAfter,
		KeyFramework, framework.MetaMemory, framework.MetaFraction, framework.MetaPrecision,
		framework.MetaDistributed, framework.MetaInterface, framework.MetaHelper}
	policies = []string{"SPREAD", "PACK", "BALANCED"}
)

// meta is the merged meta of a task, with what the task itself says apart.
type meta struct {
	merged, own map[string]string
}

func metaOf(job, group, task map[string]string) meta {
	m := meta{merged: map[string]string{}, own: task}
	for _, level := range []map[string]string{job, group, task} {
		for k, v := range level {
			m.merged[k] = v
		}
	}
	return m
}

// readAsks fills in Asks out of the groups.
func (j *Job) readAsks(h header) error {
	if or(h.Stop, false) {
		return nil
	}
	for i := range j.groups {
		g := &j.groups[i]
		ask, err := j.askOf(h, g)
		if err != nil {
			return err
		}
		if ask != nil {
			j.Asks = append(j.Asks, *ask)
		}
	}
	j.startAsOne()
	return j.checkGangFallback()
}

// askOf returns nil for a group without GPUs.
func (j *Job) askOf(h header, g *group) (*Ask, error) {
	was := g.earlier(j.family)
	if err := g.checkInheritance(h.Meta); err != nil {
		return nil, err
	}
	ask := Ask{
		Namespace: j.Namespace, JobID: j.ID, JobType: j.Type, Priority: j.Priority,
		Group: g.name, Count: g.header.count(), Later: (j.periodic || j.parameterized) && !j.family.child, Child: j.family.child,
		NodePool: firstOf(or(h.NodePool, ""), "default"), Datacenters: h.Datacenters, Was: was,
		Constraints: slices.Concat(theirs(h.Constraints), theirs(g.header.Constraints)),
	}
	if len(ask.Datacenters) == 0 {
		ask.Datacenters = []string{"*"}
	}
	ask.Canaries = canariesOf(h.Update, g.header.Update, was)
	switch {
	case distinctHosts(theirs(h.Constraints)):
		ask.Distinct = DistinctInJob
	case distinctHosts(theirs(g.header.Constraints)), g.staticPort():
		ask.Distinct = DistinctInGroup
	}
	for _, t := range g.tasks {
		ask.Constraints = append(ask.Constraints, theirs(t.header.Constraints)...)
		m := metaOf(h.Meta, g.header.Meta, t.header.Meta)
		one, err := t.ask(m, was != nil)
		if err != nil {
			return nil, refuse(g.name, t.header.Name, err)
		}
		if one == nil {
			continue
		}
		if err := ask.common(m); err != nil {
			return nil, refuse(g.name, t.header.Name, err)
		}
		ask.Tasks = append(ask.Tasks, *one)
	}
	if len(ask.Tasks) == 0 {
		return nil, nil
	}
	ask.TimeLimit = gpu.ShorterLimit(ask.TimeLimit, or(g.header.MaxRunDuration, 0))
	if err := ask.limitBy(); err != nil {
		return nil, err
	}
	ask.Gang = ask.Gang || ask.distributed() != nil
	if ask.GangMin > 0 && (!ask.Gang || ask.GangMin > ask.Count) {
		return nil, refuse(g.name, ask.Tasks[0].Task, fmt.Errorf("%s = %q: write a number from 1 to the group's count, %d, beside %s = %q", KeyGangMin, strconv.Itoa(ask.GangMin), ask.Count, KeyGang, "true"))
	}
	if was != nil {
		was.Tasks, was.Ranks = g.readTasks(&ask), g.readRanks(&ask)
	}
	ask.RanksMost = g.ranksMost(&ask)
	if err := ask.checkElastic(); err != nil {
		return nil, err
	}
	if err := g.checkFallback(&ask, !isNull(h.ParameterizedJob)); err != nil {
		return nil, err
	}
	if err := ask.checkReservation(!isNull(h.ParameterizedJob)); err != nil {
		return nil, err
	}
	ask.CPUMHz, ask.Cores, ask.MemoryMiB = g.hostResources()
	ask.Drivers, ask.Volumes = g.drivers(), g.volumes()
	return &ask, nil
}

// checkReservation refuses a claim by work that Nomad places alone: the room stays reserved beside it.
func (a *Ask) checkReservation(parameterized bool) error {
	why := ""
	switch {
	case a.Reservation == "":
		return nil
	case a.JobType == "system" || a.JobType == "sysbatch":
		why = fmt.Sprintf("a %s job starts on every node that can run it", a.JobType)
	case parameterized:
		why = "Nomad places the children of a parameterized job, and each would claim it"
	case a.Later:
		why = "Nomad places the children of a periodic job, and each would claim it"
	default:
		return nil
	}
	return refuse(a.Group, a.Tasks[0].Task, fmt.Errorf("%s = %q is not valid here (a service or batch job claims a reservation): %s", KeyReservation, a.Reservation, why))
}

// distinctHosts reports whether constraints keep allocs on different nodes, as Nomad
// reads them.
func distinctHosts(list []Constraint) bool {
	return slices.ContainsFunc(list, func(c Constraint) bool {
		ofNode := c.LTarget == nodeTarget || c.LTarget == "${node.unique.name}"
		return c.Operand == "distinct_hosts" && c.RTarget != "false" ||
			c.Operand == "distinct_property" && ofNode && (c.RTarget == "" || c.RTarget == "1")
	})
}

// staticPort reports whether an alloc of the group takes a port that no second one on
// its node can have.
func (g *group) staticPort() bool {
	static := func(networks []network) bool {
		return slices.ContainsFunc(networks, func(n network) bool { return len(n.ReservedPorts) > 0 })
	}
	return static(g.header.Networks) || slices.ContainsFunc(g.tasks, func(t task) bool { return static(t.header.Networks) })
}

// checkInheritance refuses a request of the job or group that several tasks
// would inherit: Nomad hands meta down to every task, and a log is not wanted
// shipper to hold a GPU by accident.
func (g *group) checkInheritance(job map[string]string) error {
	inherited := firstOf(g.header.Meta[KeyGPU])
	if _, own := g.header.Meta[KeyGPU]; !own {
		inherited = job[KeyGPU]
	}
	if inherited == "" {
		return nil
	}
	var heirs []string
	for _, t := range g.tasks {
		if _, own := t.header.Meta[KeyGPU]; !own {
			heirs = append(heirs, fmt.Sprintf("%q", t.header.Name))
		}
	}
	if len(heirs) < 2 {
		return nil
	}
	return malformed(fmt.Sprintf("group %q: %d tasks would each inherit %s = %q", g.name, len(heirs), KeyGPU, inherited),
		"these are "+strings.Join(heirs, ", "),
		fmt.Sprintf("write %s into the meta of the task that needs the GPU, and %s = \"\" into the others'", KeyGPU, KeyGPU))
}

// ask returns nil for a task without GPUs. admitted is whether the job was
// admitted before: then device blocks beside a request are the answer to it.
func (t task) ask(m meta, admitted bool) (*TaskAsk, error) {
	text := m.merged[KeyGPU]
	one := TaskAsk{Task: t.header.Name, Driver: t.header.Driver}
	switch {
	case text == "" && len(t.blocks) == 0:
		return nil, m.checkUnused()
	case text == "":
		one.Devices = t.blocks
		if t.header.Driver == gpu.DriverName {
			_, one.SeatPriority = t.share()
			var err error
			if one.ComputeMilli, err = t.guarantee(); err != nil {
				return nil, err
			}
		}
		// The device plugin reads it for the tasks of other drivers.
		if limit := m.own[KeyLimit]; limit != "" && t.header.Driver != gpu.DriverName {
			if _, err := gpu.ParseMilli(limit); err != nil {
				return nil, fmt.Errorf("%s: %w", KeyLimit, err)
			}
		} else if limit != "" {
			return nil, fmt.Errorf("%s goes with %s; beside a device block write compute_limit into the driver's gpu block", KeyLimit, KeyGPU)
		}
	case len(t.blocks) > 0 && !admitted:
		return nil, fmt.Errorf("%s = %q and device %q both ask for GPUs; remove one of the two", KeyGPU, text, t.blocks[0].Name)
	default:
		if err := one.read(m); err != nil {
			return nil, err
		}
	}
	if err := m.checkKeys(); err != nil {
		return nil, err
	}
	return &one, one.readFramework(m)
}

func (t *TaskAsk) readFramework(m meta) error {
	options, named, err := framework.ParseMeta(m.merged)
	if named {
		t.Framework = &options
	}
	return err
}

// read reads the request and its limit.
func (t *TaskAsk) read(m meta) (err error) {
	if t.Request, err = gpu.ParseRequest(m.merged[KeyGPU]); err != nil {
		return err
	}
	limit := m.merged[KeyLimit]
	if limit == "" {
		return nil
	}
	if t.LimitMilli, err = gpu.ParseMilli(limit); err != nil {
		return fmt.Errorf("%s: %w", KeyLimit, err)
	}
	switch {
	case t.Request.Kind == gpu.KindCount:
		return fmt.Errorf("%s = %q: a whole GPU has no limit; remove it, or ask for a share with %s", KeyLimit, limit, KeyGPU)
	case t.LimitMilli < t.Request.Milli:
		return fmt.Errorf("%s = %q is below the guarantee %s", KeyLimit, limit, gpu.FormatFraction(t.Request.Milli))
	}
	return nil
}

// checkUnused refuses GPU settings of a task that asks for no GPU. Settings
// that the task inherits may be meant for another task.
func (m meta) checkUnused() error {
	for _, key := range keys[1:] {
		if m.own[key] != "" {
			return fmt.Errorf("%s = %q has no effect without %s; write what the task needs, such as %s = \"8G\"", key, m.own[key], KeyGPU, KeyGPU)
		}
	}
	return nil
}

// checkKeys refuses meta keys that look like ours and are not.
func (m meta) checkKeys() error {
	for _, key := range sortedKeys(m.merged) {
		if strings.HasPrefix(key, KeyGPU+"_") && !slices.Contains(keys, key) {
			return fmt.Errorf("unknown meta key %q; valid are %s", key, strings.Join(keys, ", "))
		}
	}
	return nil
}

// common reads the settings that hold for the whole group; tasks must agree.
func (a *Ask) common(m meta) error {
	if err := oneOf(KeyPolicy, m.merged[KeyPolicy], policies); err != nil {
		return err
	}
	if s := m.merged[KeySharing]; s != "" {
		if _, err := gpu.ParseSharing(s); err != nil && gpu.Sharing(s) != SharingMIG {
			return fmt.Errorf("%s: %w", KeySharing, err)
		}
	}
	first := len(a.Tasks) == 0
	if err := a.readGang(m, first); err != nil {
		return err
	}
	limit, err := gpu.ParseTimeLimit(m.merged[KeyTimeLimit])
	if err != nil {
		return fmt.Errorf("%s = %w", KeyTimeLimit, err)
	}
	if !first && limit != a.TimeLimit {
		return fmt.Errorf("%s = %q, but an earlier task of the group has %q; a group is placed as one", KeyTimeLimit, limit, a.TimeLimit)
	}
	a.TimeLimit = limit
	after, err := readFallback(m)
	if err != nil {
		return err
	}
	if !first && after != a.FallbackAfter {
		return fmt.Errorf("%s and %s differ from an earlier task's of the group; a group falls back as one", KeyFallback, KeyFallbackAfter)
	}
	a.FallbackAfter = after
	sharing := string(a.Sharing)
	for _, setting := range []struct {
		key string
		at  *string
	}{{KeyPolicy, &a.Policy}, {KeySharing, &sharing}, {KeyQueue, &a.Queue}, {KeyReservation, &a.Reservation}} {
		if value := m.merged[setting.key]; first {
			*setting.at = value
		} else if *setting.at != value {
			return fmt.Errorf("%s = %q, but an earlier task of the group has %q; a group is placed as one", setting.key, value, *setting.at)
		}
	}
	a.Sharing = gpu.Sharing(sharing)
	return nil
}

func (a *Ask) readGang(m meta, first bool) error {
	if err := oneOf(KeyGang, m.merged[KeyGang], []string{"true", "false"}); err != nil {
		return err
	}
	gang, least := m.merged[KeyGang] == "true", 0
	if text := m.merged[KeyGangMin]; text != "" {
		var err error
		if least, err = strconv.Atoi(text); err != nil || least < 1 {
			return fmt.Errorf("%s = %q is not a number from 1 to the group's count", KeyGangMin, text)
		}
	}
	if !first && (a.Gang != gang || a.GangMin != least) {
		return fmt.Errorf("%s and %s differ from an earlier task's of the group; a group is placed as one", KeyGang, KeyGangMin)
	}
	a.Gang, a.GangMin = gang, least
	return nil
}

// limitBy asks for a sharing that can hold a limit on compute, where one is
// asked for: MPS, unless the author wants HAMi-core.
func (a *Ask) limitBy() error {
	for _, t := range a.Tasks {
		switch {
		case t.LimitMilli == 0:
			continue
		case a.Sharing == "":
			a.Sharing = gpu.SharingMPS
		case a.Sharing != gpu.SharingMPS && a.Sharing != gpu.SharingHAMi:
			return refuse(a.Group, t.Task, fmt.Errorf("%s cannot be held where %s is %s; remove one of them, or write %s = %q or %q",
				KeyLimit, KeySharing, a.Sharing, KeySharing, gpu.SharingMPS, gpu.SharingHAMi))
		}
	}
	return nil
}

func oneOf(key, value string, valid []string) error {
	if value == "" || slices.Contains(valid, value) {
		return nil
	}
	hint := ""
	if i := slices.IndexFunc(valid, func(v string) bool { return strings.EqualFold(v, value) }); i >= 0 {
		hint = fmt.Sprintf("; write %q", valid[i])
	}
	return fmt.Errorf("%s: %q is not valid (%s)%s", key, value, strings.Join(valid, ", "), hint)
}

func refuse(group, task string, err error) error {
	return malformed(fmt.Sprintf("group %q, task %q: %s", group, task, err))
}

func sortedKeys[V any](m map[string]V) []string {
	list := make([]string, 0, len(m))
	for k := range m {
		list = append(list, k)
	}
	slices.Sort(list)
	return list
}

// canariesOf is how many canaries a group has by its author: its own update block comes
// before the job's, and an admission may have set them aside.
func canariesOf(job, group *updateHeader, was *Earlier) int {
	canaries := 0
	for _, u := range []*updateHeader{job, group} {
		if u != nil {
			canaries = or(u.Canary, canaries)
		}
	}
	if canaries == 0 && was != nil {
		canaries = or(was.Canaries, 0)
	}
	return canaries
}
