// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/ledger"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// within is what ran within a time: of the tasks that Nomad remembers, and of those that only
// the ledger has.
func (e *exporter) within(known []exportedTask, o *exportOptions) ([]exportedTask, error) {
	query := url.Values{"by": {string(ledger.ByEntry)}}
	for name, value := range map[string]string{"from": o.from, "to": o.to} {
		if value != "" {
			query.Set(name, value)
		}
	}
	var r ledger.Report
	_, err := e.client.Raw().Query(ledgerPath+"?"+query.Encode(), &r, nil)
	var answer api.UnexpectedResponseError
	if errors.As(err, &answer) && answer.StatusCode() == http.StatusNotFound {
		fmt.Fprintln(o.stderr, "The service keeps no ledger: there is only what Nomad still remembers.")
		return known, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the ledger: %w", err)
	}
	named := map[string]bool{}
	var tasks []exportedTask
	for _, t := range known {
		named[t.name] = true
		if cut(&t, r.From, r.To) {
			tasks = append(tasks, t)
		}
	}
	for _, t := range e.entered(&r) {
		if !named[t.name] {
			tasks = append(tasks, t)
		}
	}
	return tasks, nil
}

// cut takes off what a task ran before a time, and reports whether it ran, or waited, between
// two at all.
func cut(t *exportedTask, from, to time.Time) bool {
	if t.began.IsZero() {
		return t.arrived.Before(to)
	}
	end := t.began.Add(t.run)
	if !t.began.Before(to) || !end.After(from) {
		return false
	}
	if t.began.Before(from) {
		t.arrived, t.began, t.run = from, from, end.Sub(from)
	}
	return true
}

// entered are the allocs of a report by entry. Each is the entries of its tasks and GPUs; of
// allocs whose names are hidden each entry counts alone.
func (e *exporter) entered(r *ledger.Report) []exportedTask {
	at := map[string]int{}
	parts := map[string]share{} // by alloc and GPU
	var tasks []exportedTask
	for i := range r.Rows {
		row := &r.Rows[i]
		name := row.Alloc
		if name == "" {
			name = fmt.Sprintf("%s-%d", view.Hidden, i)
		}
		end := r.To
		if row.To != nil {
			end = *row.To
		}
		if _, found := at[name]; !found {
			at[name] = len(tasks)
			tasks = append(tasks, e.ofEntry(row, name, r.From))
		}
		t := &tasks[at[name]]
		t.run, t.ended = max(t.run, end.Sub(t.began)), t.ended && row.To != nil
		part, found := parts[name+"/"+row.GPU]
		if !found {
			t.gpus++
		}
		compute, memory := e.partsOf(row)
		part.milli, part.memoryMilli = min(gpu.MilliPerGPU, part.milli+compute), min(gpu.MilliPerGPU, part.memoryMilli+memory)
		parts[name+"/"+row.GPU] = part
		t.milli, t.memoryMilli = max(t.milli, part.milli), max(t.memoryMilli, part.memoryMilli)
	}
	return tasks
}

// ofEntry is the task of an alloc, without its GPUs.
func (e *exporter) ofEntry(row *ledger.Row, name string, from time.Time) exportedTask {
	t := exportedTask{
		name: name, job: row.Namespace + "/" + row.Job, arrived: *row.From, began: *row.From, ended: true,
		cpu: row.HostMHz, memory: row.HostMiB, queue: row.Queue, priority: row.Priority, minRun: e.cluster.MinRunS,
	}
	if row.Wanted != nil && row.From.After(from) { // else it ran already when the time begins
		t.arrived = *row.Wanted
	}
	if t.priority == 0 { // an entry of an earlier release
		t.priority = state.DefaultPriority
	}
	for _, q := range e.cluster.Queues {
		if q.Name == row.Queue {
			t.minRun = q.MinRunS
		}
	}
	return t
}

// partsOf are the parts of compute and memory of an entry. A part of the memory is one of its
// GPU, of another of the type as the cluster has it now, or else as that of the compute.
func (e *exporter) partsOf(row *ledger.Row) (compute, memory int64) {
	compute = int64(math.Round(row.AskedGPUs * gpu.MilliPerGPU))
	if compute == 0 { // a turn on a GPU
		part := max(1, row.Milli)
		return part, part
	}
	list := e.those(func(g *place.GPU, _ string) bool { return modelName(g) == row.Type })
	if at := slices.IndexFunc(list, func(g *place.GPU) bool { return g.ID == row.GPU }); at > 0 {
		list = list[at:] // others of the type may have another size
	}
	if len(list) == 0 || list[0].MemoryMiB == 0 || compute == gpu.MilliPerGPU {
		return compute, compute
	}
	mib := row.AskedGiB * 1024
	return compute, min(gpu.MilliPerGPU, max(1, int64(mib*gpu.MilliPerGPU/float64(list[0].MemoryMiB))))
}
