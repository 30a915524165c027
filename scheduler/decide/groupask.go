// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide/blocks"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// groupAsk is the request of a group of a job, and its queue. It does not change: a method that
// narrows it returns another one.
type groupAsk struct {
	tx    *state.Tx
	key   nomad.JobKey
	ask   *admit.Ask
	queue *config.Queue // nil: none pays for it
	parts []blocks.Part
}

func newGroupAsk(tx *state.Tx, key nomad.JobKey, a *admit.Ask) (groupAsk, error) {
	q, err := tx.Config().QueueFor(a.Namespace, a.Queue)
	if err != nil {
		return groupAsk{}, admit.Forbidden("group %q: %s", a.Group, err)
	}
	parts, err := blocks.PartsOf(tx, a, q)
	if err != nil {
		return groupAsk{}, err
	}
	return groupAsk{tx, key, a, q, parts}, nil
}

// oneMore is the request of one more alloc of a recorded group, on the nodes where Nomad may start
// it. With rewrite its device blocks are written again.
func oneMore(tx *state.Tx, key nomad.JobKey, g *record.Group) (a groupAsk, rewrite bool, err error) {
	if a, err = newGroupAsk(tx, key, &g.Ask); err != nil {
		return a, false, err
	}
	stays := tx.Cluster.Unchangeable(key) || g.Decision.Hold == nil && !tx.Queue.Repeats(key).May()
	if rewrite = waitsAsAWhole(tx, key, &g.Ask, g) && !stays; !rewrite {
		a = a.asBefore(g).servedBy(g.Decision.Tasks)
	}
	if stays {
		a = a.among(g.Decision.Candidates)
	}
	return without(without(a, g.Excluded), triedInVain(tx, key, g)), rewrite, nil
}

// places reports whether Nomad starts allocs on registration, on nodes that
// can be preferred.
func places(a *admit.Ask) bool {
	return !a.Later && (a.JobType == "service" || a.JobType == "batch")
}

// everywhere reports whether Nomad starts a group on every node.
func everywhere(a *admit.Ask) bool {
	return a.JobType == "system" || a.JobType == "sysbatch"
}

// waitsAsAWhole reports whether nothing of a group runs while it waits, with blocks that are
// the service's to change.
func waitsAsAWhole(tx *state.Tx, key nomad.JobKey, a *admit.Ask, was *record.Group) bool {
	waiting := was.Decision.Hold != nil || tx.Cluster.Blocked(key).Allocs(a.Group) > 0
	return waiting && !a.Child && tx.Cluster.Live(key, a.Group) == 0 && !slices.ContainsFunc(a.Tasks, admit.TaskAsk.Plain)
}

// asBefore asks for the holdings of a group's device blocks, where they are not
// to be written again.
func (a groupAsk) asBefore(was *record.Group) groupAsk {
	if waitsAsAWhole(a.tx, a.key, a.ask, was) {
		return a
	}
	a.parts = slices.Clone(a.parts)
	for i := range a.parts {
		a.parts[i].Req.Cover = was.Covered
		if a.ask.Sharing == admit.SharingMIG {
			a.parts[i].Req.Profile = profileOf(was.Decision.Tasks)
		}
	}
	return a
}

// profileOf is that of the MIG instances that device blocks name; empty where they name none.
func profileOf(tasks []admit.TaskDecision) string {
	for _, t := range tasks {
		for _, d := range t.Devices {
			if p := (admit.DeviceAsk{Name: d.Name}).Profile(); p != "" {
				return p
			}
		}
	}
	return ""
}

// keeping narrows an ask to the nodes that can serve the device blocks which a group keeps, and
// returns these. Nil means that they are written again: nothing of the group runs that this would
// replace, and it waits with blocks that were right when it came, while the room that there is now
// may be of another form.
func (a groupAsk) keeping(was *record.Group) (groupAsk, []admit.TaskDecision) {
	if waitsAsAWhole(a.tx, a.key, a.ask, was) {
		if anew := without(a, was.Excluded); was.Decision.Hold != nil || fitsNow(anew) {
			return anew, nil
		}
	}
	return without(a.servedBy(was.Decision.Tasks), was.Excluded), was.Decision.Tasks
}

// servedBy leaves only nodes that can serve device blocks which are given.
func (a groupAsk) servedBy(given []admit.TaskDecision) groupAsk {
	room := a.tx.Capacity.RoomFor(blocks.Need(a.tx, a.ask, given))
	if room.Count(state.FitsNow)+room.Count(state.FitsLater)+room.Count(state.FitsWhenBack) == len(a.tx.Cluster.NodeIDs()) {
		return a
	}
	var able []string
	for _, id := range a.tx.Cluster.NodeIDs() {
		if room.On(id) != state.FitsNever {
			able = append(able, id)
		}
	}
	if len(able) == 0 {
		able = []string{blocks.NoNode}
	}
	return a.on(func([]string) []string { return able })
}

// without leaves out the keys of a map from the nodes of an ask, such as those whose room is made for another group.
func without[V any](a groupAsk, nodes map[string]V) groupAsk {
	if len(nodes) == 0 {
		return a
	}
	banned := map[string]bool{}
	for id := range nodes {
		banned[id] = true
	}
	return a.on(func(all []string) []string { return blocks.Cluster(a.tx).Without(all, banned) })
}

// among leaves only nodes that are candidates already, all where none are named.
func (a groupAsk) among(candidates []string) groupAsk {
	if len(candidates) == 0 {
		return a
	}
	others := map[string]bool{}
	for _, id := range a.tx.Cluster.NodeIDs() {
		if !slices.Contains(candidates, id) {
			others[id] = true
		}
	}
	return without(a, others)
}

// on keeps every part to some of its nodes.
func (a groupAsk) on(some func(nodes []string) []string) groupAsk {
	a.parts = slices.Clone(a.parts)
	for i := range a.parts {
		a.parts[i] = a.parts[i].On(some(a.parts[i].Req.Nodes))
	}
	return a
}

func fitsNow(a groupAsk) bool {
	_, err := blocks.Cluster(a.tx).Place(a.parts)
	return err == nil
}

func covered(parts []blocks.Part) bool {
	return slices.ContainsFunc(parts, func(p blocks.Part) bool { return p.Req.Cover })
}
