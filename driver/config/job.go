// SPDX-License-Identifier: MPL-2.0

package config

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/nomad-gpu/nomad-gpu/driver/spec"
	"github.com/nomad-gpu/nomad-gpu/internal/agentconfig"
)

// DriverName is the driver's name in a task.
const DriverName = "containerd"

// JobMistake is a mistake in the config block of one task of a job.
type JobMistake struct {
	Group, Task string
	Mistake     spec.Mistake
}

func (m JobMistake) Error() string {
	return fmt.Sprintf("group %q, task %q: %s", m.Group, m.Task, m.Mistake)
}

// Job checks the config blocks of a job's tasks for this driver, as far as that can be
// done without a node, by a node's policy. Keys whose values Nomad interpolates when the
// task starts are checked only then. It returns every mistake, and how many tasks are the
// driver's.
func Job(job *api.Job, policy spec.Policy) (mistakes []JobMistake, tasks int) {
	for _, group := range job.TaskGroups {
		for _, task := range group.Tasks {
			if task.Driver != DriverName {
				continue
			}
			tasks++
			for _, m := range jobTask(job, group, task, policy) {
				mistakes = append(mistakes, JobMistake{*group.Name, task.Name, m})
			}
		}
	}
	return mistakes, tasks
}

func jobTask(job *api.Job, group *api.TaskGroup, task *api.Task, policy spec.Policy) []spec.Mistake {
	var open []string // keys with values that are not known yet
	written := known(task.Config, "", &open)
	var m spec.Mistakes
	text, err := json.Marshal(written)
	if err != nil {
		return []spec.Mistake{{Key: "config", Problem: err.Error()}}
	}
	value, found, err := agentconfig.Value(TaskSchema, text)
	if err != nil {
		return []spec.Mistake{{Key: "config", Problem: err.Error()}}
	}
	for _, mistake := range found {
		m.Add(mistake.Key, "%s", mistake.Problem)
	}
	cfg := &drivers.TaskConfig{Name: task.Name, NetworkIsolation: groupNetwork(group)}
	if err := cfg.EncodeDriverConfig(value); err != nil {
		return []spec.Mistake{{Key: "config", Problem: err.Error()}}
	}
	config, err := Task(cfg, policy)
	m.AddErr("config", err)
	if want, err := config.GPURequest(); err == nil && want.Set() && !asksForGPU(job, group, task) {
		m.Add("gpu", "the task has no GPU: add a device block such as device \"nvidia/slice\" { count = 8 } to its resources")
	}
	return slices.DeleteFunc(m.All(), func(mistake spec.Mistake) bool {
		return slices.ContainsFunc(open, func(key string) bool { return key == mistake.Key || strings.HasPrefix(key, mistake.Key+".") })
	})
}

// known puts a word in the place of every text that Nomad interpolates, and notes its key.
func known(value any, key string, open *[]string) any {
	switch v := value.(type) {
	case string:
		if strings.Contains(v, "${") {
			*open = append(*open, key)
			return "x"
		}
	case map[string]any:
		tree := map[string]any{}
		for name, inside := range v {
			tree[name] = known(inside, strings.TrimPrefix(key+"."+name, "."), open)
		}
		return tree
	case []any:
		list := make([]any, len(v))
		for i := range v {
			list[i] = known(v[i], key, open)
		}
		return list
	case []map[string]any:
		list := make([]any, len(v))
		for i := range v {
			list[i] = known(v[i], key, open)
		}
		return list
	}
	return value
}

// groupNetwork is the network namespace that Nomad will make for a group.
func groupNetwork(group *api.TaskGroup) *drivers.NetworkIsolationSpec {
	for _, network := range group.Networks {
		if network.Mode != "" && network.Mode != "host" && network.Mode != "none" {
			return &drivers.NetworkIsolationSpec{Path: "of the group"}
		}
	}
	return nil
}

// asksForGPU reports whether a task has a device block, or the meta that the placement
// service makes one of.
func asksForGPU(job *api.Job, group *api.TaskGroup, task *api.Task) bool {
	const request = "gpu"
	return task.Resources != nil && len(task.Resources.Devices) > 0 || task.Meta[request]+group.Meta[request]+job.Meta[request] != ""
}
