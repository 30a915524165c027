// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/nomad-gpu/nomad-gpu/scheduler/framework"
)

// distributed is the framework of a group whose allocs are the ranks of one
// training; nil for other groups.
func (a *Ask) distributed() *framework.Options {
	for i := range a.Tasks {
		if f := a.Tasks[i].Framework; f != nil && f.Distributed {
			return f
		}
	}
	return nil
}

// rankBounds are the least and the most allocs of an elastic training; 0, 0 where
// the number is fixed.
func (a *Ask) rankBounds() (least, most int) {
	if a.distributed() == nil || a.GangMin == 0 || a.GangMin >= a.RanksMost {
		return 0, 0
	}
	return a.GangMin, a.RanksMost
}

// checkElastic refuses an elastic training that torchrun could not hold together: it
// tells its allocations apart by address and process number, and those of two
// containers on one node may be the same.
func (a *Ask) checkElastic() error {
	f := a.distributed()
	if f == nil || f.Kind != framework.PyTorch || a.Distinct != "" {
		return nil
	}
	if least, _ := a.rankBounds(); least == 0 {
		return nil
	}
	return malformed(fmt.Sprintf("group %q: %s in a distributed training needs one allocation per node, since torchrun takes two of one node for the same", a.Group, KeyGangMin),
		"write constraint { distinct_hosts = true } into the group",
		fmt.Sprintf("and ask for several GPUs per allocation, such as %s = \"4\", where a node has them", KeyGPU))
}

// ranksMost is how many allocs may join an elastic training: what its ranks were
// told, unless the author changed the minimum; else what the group may be scaled to.
func (g *group) ranksMost(a *Ask) int {
	if a.distributed() == nil || a.GangMin == 0 {
		return 0
	}
	if a.Was != nil {
		var least, most int
		if _, err := fmt.Sscanf(a.Was.Ranks, "%d:%d", &least, &most); err == nil && least == a.GangMin && a.Count <= most {
			return most
		}
	}
	if g.header.Scaling != nil {
		return max(a.Count, or(g.header.Scaling.Max, 0))
	}
	return a.Count
}

// standing are the numbers of a training's ranks, as they shall be told. A group that
// is scaled to nothing keeps those that it had.
func (a *Ask) standing() framework.Group {
	g := framework.Group{Job: a.JobID, Group: a.Group, Count: a.Count}
	g.Least, g.Most = a.rankBounds()
	if a.Count == 0 && a.Was != nil {
		return toldStanding(g, a.Was.Ranks)
	}
	return g
}

// toldStanding are the numbers that the ranks were told: "4", or "2:4".
func toldStanding(g framework.Group, ranks string) framework.Group {
	if _, err := fmt.Sscanf(ranks, "%d:%d", &g.Least, &g.Most); err == nil {
		return g
	}
	g.Least, g.Most = 0, 0
	if count, err := strconv.Atoi(ranks); err == nil {
		g.Count = count
	}
	return g
}

// ranks is how many allocs the ranks of a training shall be told to be; empty
// for other groups.
func (a *Ask) ranks() string {
	if a.distributed() == nil {
		return ""
	}
	return a.standing().Ranks()
}

// toldRanks is how many they were told to be. A count that was changed around the
// service shows as another text.
func (a *Ask) toldRanks() string {
	shall := a.ranks()
	if shall == "" || a.Was.Ranks == "" || a.Was.Ranks == shall {
		return shall
	}
	return a.Was.Ranks + " in place of " + shall
}

// toldEnv is what the ranks of a task were told by an earlier admission, where
// they are told something else now.
func (a *Ask) toldEnv(t TaskAsk, holds framework.Share, g framework.Group) map[string]string {
	if a.Was == nil || a.Was.Ranks == "" || a.Was.Ranks == g.Ranks() {
		return nil
	}
	before, err := framework.Plan(*t.Framework, holds, toldStanding(g, a.Was.Ranks))
	if err != nil {
		return nil // nothing was told
	}
	return before.Env
}

// readRanks reads how many allocs the ranks of a training were told to be.
func (g *group) readRanks(a *Ask) string {
	for _, t := range g.tasks {
		for i := range a.Tasks {
			if f := a.Tasks[i].Framework; f != nil && f.Distributed && a.Tasks[i].Task == t.header.Name {
				return t.env()[framework.EnvRanks]
			}
		}
	}
	return ""
}

// env is the task's environment; nil where it cannot be read, which is for
// Nomad to refuse.
func (t task) env() map[string]string {
	var env map[string]string
	if json.Unmarshal(t.object.get("Env"), &env) != nil {
		return nil
	}
	return env
}

// CheckScale refuses a new count for the allocs of a training whose ranks were
// told another one when they started.
func (a *Ask) CheckScale(count int) error {
	f := a.distributed()
	told := a.Count
	if a.Was != nil {
		told = toldStanding(framework.Group{Count: a.Count}, a.Was.Ranks).Count
	}
	if f == nil || count == told || count == 0 {
		return nil
	}
	refusal := &Refusal{Status: conflict}
	least, most := a.rankBounds()
	switch {
	case least == 0 && f.Kind == framework.PyTorch:
		refusal.Text = fmt.Sprintf("group %q is a distributed training of %d allocations, and its ranks cannot learn another WORLD_SIZE while they run", a.Group, told)
		refusal.Details = []string{"submit the job with the new count, which starts its ranks anew",
			fmt.Sprintf("or start the program with torchrun and write %s: then the count may change from that to the count at submission", KeyGangMin)}
	case least == 0:
		refusal.Text = fmt.Sprintf("group %q is a distributed training of %d allocations, and its workers cannot learn another TF_CONFIG while they run", a.Group, told)
		refusal.Details = []string{"submit the job with the new count, which starts its workers anew"}
	case count < least || count > most:
		refusal.Text = fmt.Sprintf("group %q: count %d is not from %d to %d, which its torchrun was started with", a.Group, count, least, most)
		refusal.Details = []string{"submit the job with the new count, which starts its ranks anew"}
	default:
		return nil
	}
	return refusal
}
