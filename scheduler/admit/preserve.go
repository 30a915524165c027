// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"encoding/json"
	"fmt"
)

// Fields of a submission that have Nomad keep something of the registered job.
const (
	fieldPreserveCounts    = "PreserveCounts"
	fieldPreserveResources = "PreserveResources"
)

// preserved says which of them are set.
type preserved struct{ counts, resources bool }

// registeredGroup and registeredTask are the parts that can be kept of a job that Nomad has.
type registeredGroup struct {
	Name  string
	Count json.RawMessage
	Tasks []registeredTask
}

type registeredTask struct {
	Name      string
	Resources json.RawMessage
}

// Preserves reports whether Nomad is to keep something of the registered job.
func (j *Job) Preserves() bool { return j.preserved != preserved{} }

// Preserve returns the request's body with what Nomad would keep of the registered job
// written into it, in place of the words that have Nomad keep it: what is decided about
// is then what is registered, whatever happens to the registered job meanwhile. Devices
// are not kept: the registered ones were decided for another request.
func (j *Job) Preserve(registered []byte) ([]byte, error) {
	var have struct{ TaskGroups []registeredGroup }
	if err := json.Unmarshal(registered, &have); err != nil {
		return nil, fmt.Errorf("read the registered job: %w", err)
	}
	was := map[string]registeredGroup{}
	for _, g := range have.TaskGroups {
		was[g.Name] = g
	}
	groups := make([]json.RawMessage, len(j.groups))
	for i, g := range j.groups {
		var err error
		if groups[i], err = g.preserve(was[g.name], j.preserved); err != nil {
			return nil, err
		}
	}
	job, envelope := j.job.clone(), j.envelope.clone()
	job.set("TaskGroups", rawArray(groups))
	envelope.set("Job", job.raw())
	envelope.remove(fieldPreserveCounts)
	envelope.remove(fieldPreserveResources)
	return envelope.raw(), nil
}

// preserve is the group with the kept parts of the registered one.
func (g group) preserve(was registeredGroup, p preserved) (json.RawMessage, error) {
	o := g.object.clone()
	if p.counts && !isNull(was.Count) {
		o.set("Count", was.Count)
	}
	if !p.resources || len(was.Tasks) == 0 {
		return o.raw(), nil
	}
	tasks, err := parseArray(o.get("Tasks"))
	if err != nil {
		return nil, err
	}
	for i, t := range g.tasks {
		for _, w := range was.Tasks {
			if w.Name != t.header.Name || isNull(w.Resources) {
				continue
			}
			if tasks[i], err = t.preserve(w.Resources); err != nil {
				return nil, fmt.Errorf("read the registered job: group %q: task %q: %w", g.name, w.Name, err)
			}
		}
	}
	o.set("Tasks", rawArray(tasks))
	return o.raw(), nil
}

// preserve is the task with the registered one's resources, but with devices of its own,
// and with what these say about NUMA.
func (t task) preserve(resources json.RawMessage) (json.RawMessage, error) {
	kept, err := parseObject(resources)
	if err != nil {
		return nil, err
	}
	for _, own := range []string{"Devices", "NUMA"} {
		kept.remove(own)
		if value := t.resources.get(own); value != nil {
			kept.set(own, value)
		}
	}
	o := t.object.clone()
	o.set("Resources", kept.raw())
	return o.raw(), nil
}
