// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad/nomadtest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// Nothing is evicted here: fair is what waits, not what runs.
const fairConfig = `
preemption {
  enabled = false
}
queue "greedy" {
  gpus       = %d
  namespaces = ["a"]
}
queue "modest" {
  gpus       = %d
  namespaces = ["b"]
}
`

// whole is a job for a GPU.
func whole(namespace string, i int) json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`{"ID": "j%d", "Name": "j%d", "Namespace": %q, "Type": "batch", "Priority": 50, "Datacenters": ["*"], "TaskGroups": [{"Name": "g", "Count": 1,
		"Tasks": [{"Name": "t", "Driver": "docker", "Meta": {"gpu": "1"}, "Resources": {"CPU": 100, "MemoryMB": 100}}]}]}`, i, i, namespace))
}

// TestTeamsConvergeToTheirShares lets a greedy team fill the cluster and queue far
// more than fits, and a modest one come later, on a model of Nomad, which by itself
// starts what came first. Each then holds its share, whatever the other wants, and
// what one does not use the other has.
func TestTeamsConvergeToTheirShares(t *testing.T) {
	rows := []struct{ greedy, modest int }{{3, 1}, {2, 2}}
	if testing.Short() {
		rows = rows[:1]
	}
	for _, row := range rows {
		t.Run(fmt.Sprintf("%d to %d", row.greedy, row.modest), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, err := config.Parse("fair.hcl", fmt.Appendf(nil, fairConfig, row.greedy, row.modest))
				if err != nil {
					t.Fatal(err)
				}
				h := &modelRun{model: newModel(t, 2, 2), rng: rand.New(rand.NewPCG(1, 7)), store: nomadtest.NewStore(), config: c}
				h.lead(t.Context())
				for i := range 70 {
					h.submit(t.Context(), whole("a", i))
				}
				h.runFor(t, 60, nil)
				if used := h.used("a"); used != 4*16 {
					t.Fatalf("alone, the greedy team holds %d slices of 64", used)
				}
				for i := range 40 {
					h.submit(t.Context(), whole("b", i))
				}
				h.runFor(t, 300, nil)
				var mean [2]int
				h.runFor(t, 500, func() { mean[0], mean[1] = mean[0]+h.used("a"), mean[1]+h.used("b") })
				greedy, modest := float64(mean[0])/500/16, float64(mean[1])/500/16
				revised := 0
				for _, j := range h.jobs {
					revised += len(j.versions) - 1
				}
				t.Logf("in the mean: greedy %.2f GPUs, modest %.2f; %.1f revisions per job", greedy, modest, float64(revised)/float64(len(h.jobs)))
				if revised > 2*len(h.jobs) {
					t.Errorf("%d revisions of %d jobs: what waits is held and let go over and over", revised, len(h.jobs))
				}
				if greedy+modest < 3.7 {
					t.Errorf("only %.2f of 4 GPUs are used while both wait", greedy+modest)
				}
				if modest < float64(row.modest)-0.4 || modest > float64(row.modest)+0.4 {
					t.Errorf("the modest team holds %.2f GPUs of its %d", modest, row.modest)
				}
			})
		})
	}
}

// runFor lets seconds go by; jobs end after a minute and a half in the mean.
func (h *modelRun) runFor(t *testing.T, seconds int, each func()) {
	t.Helper()
	for range seconds {
		h.second(t.Context())
		for _, a := range h.allocs {
			lived := time.Since(time.Unix(0, a.stub.CreateTime))
			if a.stopping == 0 && lived > time.Minute && h.rng.IntN(30) == 0 {
				h.stop(h.jobs[a.stub.Namespace+"/"+a.stub.JobID])
			}
		}
		if each != nil {
			each()
		}
	}
}

// What a team held goes on to count when it holds nothing any more.
func TestWhatATeamHeldCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newRun(t, 1, 1, fmt.Sprintf(fairConfig, 1, 1))
		h.submit(t.Context(), whole("a", 1))
		h.seconds(600)
		h.stop(h.jobs["a/j1"])
		h.seconds(5)
		h.believed.Do(func(tx *state.Tx) {
			first := quota.Turn{ID: "first", Queue: "greedy", Priority: 50, Since: time.Now()}
			then := quota.Turn{ID: "then", Queue: "modest", Priority: 50, Since: time.Now().Add(time.Second)}
			if tx.Planner().Order().Compare(then, first) >= 0 {
				t.Error("the team that held nothing does not go first")
			}
		})
	})
}
