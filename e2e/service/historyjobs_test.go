// SPDX-License-Identifier: MPL-2.0

package service

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
)

// job is a random one, with one of the ways to be updated and moved; with around, it has
// devices of its author's own and is to go around the service.
func (h *history) job(about jobKey, around bool) *api.Job {
	rng := h.rng
	kind := "service" // Nomad does not let it change
	if number := about.id[len(about.id)-1]; number%2 == 1 {
		kind = "batch"
	}
	one := job{id: about.id, namespace: about.namespace, kind: kind, priority: 10 + 20*rng.IntN(5), count: 1 + rng.IntN(4)}
	one.meta = map[string]string{"version": strconv.Itoa(rng.IntN(3))}
	recurs := !strings.HasPrefix(about.id, "job")
	if around {
		n := []uint64{14, 7}[rng.IntN(2)]
		one.devices = []*api.RequestedDevice{{Name: "nvidia/slice", Count: &n}}
	} else {
		one.meta["gpu"] = []string{"1", "1", "8G", "4G", "0.5", "2G,0.25"}[rng.IntN(6)]
		if rng.IntN(4) == 0 {
			one.meta["gpu_gang"] = "true"
		}
		if !recurs && rng.IntN(5) == 0 {
			one.meta["gpu_fallback"], one.meta["gpu_fallback_after"] = "cpu", fmt.Sprintf("%ds", 10+rng.IntN(30))
		}
	}
	if one.kind == "batch" && rng.IntN(3) == 0 || recurs {
		one.seconds = 5 + rng.IntN(20)
	}
	var migrate *api.MigrateStrategy
	if one.kind == "service" && !recurs && one.meta["gpu_gang"] == "" && rng.IntN(3) > 0 {
		one.update, migrate = h.update(one.count), h.migrate()
	}
	j := one.api()
	g := j.TaskGroups[0]
	g.Migrate = migrate
	recurring(j)
	return restarted(j)
}

// restarted has what fails be started again soon, and always: a quiet time is short.
func restarted(j *api.Job) *api.Job {
	zero, delay, constant, always := 0, 5*time.Second, "constant", true
	j.TaskGroups[0].ReschedulePolicy = &api.ReschedulePolicy{Attempts: &zero, Interval: new(time.Duration), Delay: &delay, MaxDelay: new(time.Duration), DelayFunction: &constant, Unlimited: &always}
	return j
}

func (h *history) update(count int) *api.UpdateStrategy {
	u := canaries([]int{0, 1, count}[h.rng.IntN(3)])
	deadline, progress, parallel, revert, promote := 20*time.Second, 40*time.Second, h.rng.IntN(3), h.rng.IntN(2) == 0, *u.Canary > 0 && h.rng.IntN(3) == 0
	u.HealthyDeadline, u.ProgressDeadline, u.MaxParallel, u.AutoRevert, u.AutoPromote = &deadline, &progress, &parallel, &revert, &promote
	return u
}

func (h *history) migrate() *api.MigrateStrategy {
	parallel, healthy, deadline, check := h.rng.IntN(3), 100*time.Millisecond, 20*time.Second, "task_states"
	return &api.MigrateStrategy{MaxParallel: &parallel, MinHealthyTime: &healthy, HealthyDeadline: &deadline, HealthCheck: &check}
}

func (h *history) described(j *api.Job) *api.Job {
	g := j.TaskGroups[0]
	text := fmt.Sprintf("%s, priority %d, %d of %v%v", *j.Type, *j.Priority, *g.Count, g.Tasks[0].Meta, g.Tasks[0].Config["args"])
	if u := g.Update; u != nil {
		text += fmt.Sprintf(", update %d canaries, %d at once, revert %v, promote %v", *u.Canary, *u.MaxParallel, *u.AutoRevert, *u.AutoPromote)
	}
	if g.Migrate != nil {
		text += fmt.Sprintf(", migrate %d at once", *g.Migrate.MaxParallel)
	}
	for _, d := range g.Tasks[0].Resources.Devices {
		text += fmt.Sprintf(", %d %s", *d.Count, d.Name)
	}
	h.say("  %s", text)
	return j
}
