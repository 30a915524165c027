// SPDX-License-Identifier: MPL-2.0

package taskconfig

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/hclform"
)

// JobMistake is a mistake in the config block of one task of a job.
type JobMistake struct {
	Group, Task string
	Mistake     Mistake
}

func (m JobMistake) Error() string {
	return fmt.Sprintf("group %q, task %q: %s", m.Group, m.Task, m.Mistake)
}

// Strict judges every task by one node's policy.
func Strict(policy Policy) func(Config) Policy { return func(Config) Policy { return policy } }

// Generous is the policy of a node that allows a task all that it asks for. Nodes differ, and
// by this policy only mistakes are found that no node would take.
func Generous(c Config) Policy {
	p := Policy{
		AllowPrivileged: true, AllowUnconfined: true, AllowCaps: []string{"all"}, AllowRuntimes: []string{c.Runtime}, AllowSnapshotters: []string{c.Snapshotter},
		VolumesEnabled: true, MaxSwapBytes: math.MaxInt64, AllowCDIDevices: c.CDIDevices,
	}
	for _, text := range c.Devices {
		if d, err := ParseDevice(text); err == nil {
			p.AllowDevices = append(p.AllowDevices, d.HostPath)
		}
	}
	return p
}

// job is the part of a job around its tasks' config, as Nomad's API has it.
type job struct {
	Meta       map[string]string
	TaskGroups []*struct {
		Name     string
		Meta     map[string]string
		Networks []*struct{ Mode string }
		Tasks    []*task
	}
}

type task struct {
	Name, Driver string
	Meta         map[string]string
	Config       map[string]any
	Resources    *struct{ Devices []any }
}

// Job checks the config blocks of a job's tasks for this driver, as far as that can be done
// without a node, by the policy of a node that has the task. The job is as it is sent to
// Nomad's API, {"Job": {…}}; other bodies are left to Nomad. Keys whose values Nomad
// interpolates when the task starts are checked only then. It returns every mistake, and how
// many tasks are the driver's.
func Job(body []byte, policy func(Config) Policy) (mistakes []JobMistake, tasks int) {
	var sent struct{ Job job }
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	if decoder.Decode(&sent) != nil {
		return nil, 0
	}
	for _, group := range sent.Job.TaskGroups {
		if group == nil {
			continue
		}
		network := false // a namespace that Nomad makes for the group
		for _, n := range group.Networks {
			network = network || n != nil && n.Mode != "" && n.Mode != "host" && n.Mode != "none"
		}
		for _, t := range group.Tasks {
			if t == nil || t.Driver != gpu.DriverName {
				continue
			}
			tasks++
			const request = "gpu" // of which the placement service makes a device block
			hasGPU := t.Resources != nil && len(t.Resources.Devices) > 0 || t.Meta[request]+group.Meta[request]+sent.Job.Meta[request] != ""
			for _, m := range t.check(network, hasGPU, policy) {
				mistakes = append(mistakes, JobMistake{group.Name, t.Name, m})
			}
		}
	}
	return mistakes, tasks
}

func (t *task) check(network, hasGPU bool, policy func(Config) Policy) []Mistake {
	var open []string // keys with values that are not known yet
	written := known(t.Config, "", &open)
	var m Mistakes
	text, err := json.Marshal(written)
	if err != nil {
		return []Mistake{{Key: "config", Problem: err.Error()}}
	}
	tree, found, err := hclform.ReadJSON(text, Schema())
	if err != nil {
		return []Mistake{{Key: "config", Problem: err.Error()}}
	}
	m.all = append(m.all, found...)
	asked, _ := Decode(tree) // CheckTask tells what is wrong
	config, err := CheckTask(t.Name, tree, network, policy(asked))
	m.AddErr("config", err)
	if want, err := config.GPURequest(); err == nil && want.Set() && !hasGPU {
		m.Add("gpu", "the task has no GPU: add a device block such as device \"nvidia/slice\" { count = 8 } to its resources")
	}
	return slices.DeleteFunc(m.All(), func(mistake Mistake) bool {
		return slices.ContainsFunc(open, func(key string) bool { return key == mistake.Key || strings.HasPrefix(key, mistake.Key+".") })
	})
}

// known puts a word in the place of every text that Nomad interpolates, and notes its key.
func known(value any, key string, open *[]string) any {
	switch v := value.(type) {
	case string:
		if strings.Contains(v, "${") || strings.Contains(v, "%{") {
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
	}
	return value
}
