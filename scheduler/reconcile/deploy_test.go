// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"encoding/json"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/constraint"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

// How Nomad goes from one version of a service to the next. What changes in place, does.
// Where the tasks differ, or the node is left out now, an alloc is replaced: where there
// is room for the new one, in one plan, and else it stays. With canaries, so many of the
// new version start beside the old one, and it goes no further until they are promoted: a
// higher count is for later. What is lost of the old version meanwhile comes back as it was, unless
// a canary of the group finds no room in the same pass; then only what has failed does, in
// a later one. (Nomad 1.11.3; TestWhatNomadStartsBesideCanaries sees it there.)

// specOf is what of a group cannot change in place.
func specOf(g *api.TaskGroup) string {
	t := g.Tasks[0]
	text, _ := json.Marshal([]any{t.Resources.Devices, t.Env})
	return string(text)
}

// admitted reports whether a group's constraints allow a node.
func admitted(g *api.TaskGroup, n *api.Node) bool {
	return !slices.ContainsFunc(g.Constraints, func(c *api.Constraint) bool {
		return !constraint.Constraint{Left: c.LTarget, Operand: c.Operand, Right: c.RTarget}.OnNode(targets(n))
	})
}

func (a *modelAlloc) canary() bool {
	return a.stub.DeploymentStatus != nil && a.stub.DeploymentStatus.Canary
}

func (m *model) node(id string) *api.Node {
	return m.nodes[slices.IndexFunc(m.nodes, func(n *api.Node) bool { return n.ID == id })]
}

// canariesOf is how many canaries the update of a group has.
func canariesOf(j *modelJob, g *api.TaskGroup) int {
	if *j.job.Type != "service" || g.Update == nil || g.Update.Canary == nil {
		return 0
	}
	return *g.Update.Canary
}

// place starts what is missing of a group and returns how many find no room.
func (m *model) place(j *modelJob, g *api.TaskGroup) (missing int) {
	want := *g.Count - j.done[*g.Name]
	if j.job.Stop != nil && *j.job.Stop || j.job.IsParameterized() || j.job.IsPeriodic() {
		want = 0
	}
	if *j.job.Type == "system" || *j.job.Type == "sysbatch" {
		return m.placeEverywhere(j, g, want > 0)
	}
	var present, old, canaries []*modelAlloc
	for _, a := range m.allocs {
		switch {
		case a.stub.JobID != j.key.ID || a.stub.Namespace != j.key.Namespace || a.stub.TaskGroup != *g.Name || a.stopping > 0:
		case a.canary() && a.deployed != j.index: // of a version that was not promoted
			m.end(a)
		case a.spec != specOf(g) || !admitted(g, m.node(a.stub.NodeID)):
			old = append(old, a)
		case a.canary():
			canaries = append(canaries, a)
		default:
			m.bringUp(j, a, g)
			present = append(present, a)
		}
	}
	if len(old) > 0 && want > 0 && canariesOf(j, g) > 0 && j.promoted != j.index && j.deploymentOf(g) == nil {
		j.deploying[*g.Name] = &modelDeployment{j.index, old[0].group}
	}
	if d := j.deploymentOf(g); d != nil && want > 0 && j.promoted != j.index {
		return m.deployCanaries(j, d, g, present, old, canaries)
	}
	later := m.later(j, g)
	j.lost[*g.Name], j.broken[*g.Name] = 0, 0
	for _, a := range canaries {
		m.promoteOne(a)
		present = append(present, a)
	}
	for _, a := range m.beyond(slices.Concat(present, old), want) {
		old = slices.DeleteFunc(old, func(o *modelAlloc) bool { return o == a })
		present = slices.DeleteFunc(present, func(o *modelAlloc) bool { return o == a })
		m.end(a)
	}
	for range want - len(present) - len(old) - later {
		if !m.start(j, g, false, nil) {
			missing++
		}
	}
	for _, a := range old {
		if !m.start(j, g, false, a) {
			missing++
			continue
		}
		m.end(a)
	}
	if want > 0 && missing == 0 {
		j.stable = j.versions[len(j.versions)-1]
	}
	return missing
}

// bringUp brings an alloc that can go on up to the version that is registered.
func (m *model) bringUp(j *modelJob, a *modelAlloc, g *api.TaskGroup) {
	a.group = g
	if a.stub.JobVersion == *j.job.Version {
		return
	}
	m.index++
	a.stub.JobVersion, a.stub.ModifyIndex = *j.job.Version, m.index
	m.tell(nomad.Change{Alloc: nomad.NewAlloc(&a.stub)})
}

// beyond is what is too much of the allocs of a group, the old ones first.
func (m *model) beyond(list []*modelAlloc, want int) []*modelAlloc {
	if len(list) <= want {
		return nil
	}
	return list[want:]
}

// deploymentOf is the deployment with canaries of the version that is registered.
func (j *modelJob) deploymentOf(g *api.TaskGroup) *modelDeployment {
	if d := j.deploying[*g.Name]; d != nil && d.index == j.index {
		return d
	}
	return nil
}

// noteLost remembers that an alloc ended by no fault of its own, which Nomad replaces at once
// or, beside canaries, never.
func (m *model) noteLost(a *modelAlloc) {
	if j := m.jobs[a.stub.Namespace+"/"+a.stub.JobID]; j != nil && !a.canary() {
		j.lost[a.stub.TaskGroup]++
	}
}

// deployCanaries starts canaries beside the old version, and again what was lost of that.
func (m *model) deployCanaries(j *modelJob, d *modelDeployment, g *api.TaskGroup, present, old, canaries []*modelAlloc) (missing int) {
	name := *g.Name
	for _, a := range m.beyond(slices.Concat(present, old), *g.Count) {
		old = slices.DeleteFunc(old, func(o *modelAlloc) bool { return o == a })
		present = slices.DeleteFunc(present, func(o *modelAlloc) bool { return o == a })
		m.end(a)
	}
	for range canariesOf(j, g) - len(canaries) {
		if len(old) > 0 && j.failed != j.index && !m.start(j, g, true, nil) {
			missing++
		}
	}
	room := missing == 0
	again := func(n int) (left int) {
		for range n {
			if room = room && m.start(j, d.before, false, nil); !room {
				missing++
				left++
			}
		}
		return left
	}
	free := max(0, *g.Count-len(present)-len(old))
	due := m.due(j, g)
	n := min(free, j.broken[name]+due)
	j.broken[name] = max(0, again(n)-due)
	again(min(free-n, j.lost[name]))
	j.lost[name] = 0
	return missing
}

// promote has the new version of a job replace the old one.
func (m *model) promote(j *modelJob) {
	j.promoted = j.index
	for _, a := range m.allocs {
		if a.stub.JobID == j.key.ID && a.stub.Namespace == j.key.Namespace && a.canary() {
			m.promoteOne(a)
		}
	}
	m.schedule()
}

func (m *model) promoteOne(a *modelAlloc) {
	m.index++
	a.stub.DeploymentStatus, a.stub.ModifyIndex = &api.AllocDeploymentStatus{}, m.index
	m.tell(nomad.Change{Alloc: nomad.NewAlloc(&a.stub)})
}

// promoteByItself promotes the canaries of a job with auto_promote once all run.
func (m *model) promoteByItself(j *modelJob) {
	g, n := j.job.TaskGroups[0], 0
	if g.Update == nil || g.Update.AutoPromote == nil || !*g.Update.AutoPromote {
		return
	}
	for _, a := range m.allocs {
		if a.stub.JobID == j.key.ID && a.stub.Namespace == j.key.Namespace && a.canary() && a.stopping == 0 {
			n++
		}
	}
	if n > 0 && n == canariesOf(j, g) {
		m.promote(j)
	}
}

// fail ends a deployment as one that failed: its canaries go, and with auto_revert the
// version that was deployed last is registered again.
func (m *model) fail(j *modelJob) {
	g := j.job.TaskGroups[0]
	j.failed = j.index
	for _, a := range m.allocs {
		if a.stub.JobID == j.key.ID && a.stub.Namespace == j.key.Namespace && a.canary() && a.stopping == 0 {
			m.end(a)
		}
	}
	if g.Update != nil && g.Update.AutoRevert != nil && *g.Update.AutoRevert && j.stable != nil {
		m.register(j.stable)
		return
	}
	m.schedule()
}
