// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// exportedTask is a line of tasks.csv.
type exportedTask struct {
	name, job   string
	arrived     time.Time
	began       time.Time     // zero: it waits
	run         time.Duration // so far, or in all
	limit       time.Duration // that its author gives; 0: none
	ended       bool
	cpu, memory int64
	share
	queue    string
	priority int
	minRun   int64 // seconds
}

// share is what a task takes of GPUs.
type share struct {
	gpus               int
	milli, memoryMilli int64    // of each: compute and memory
	models             []string // any of; none: all
}

// exporter collects what the cluster was asked for.
type exporter struct {
	client  *api.Client
	cluster *view.Cluster
	nodes   map[string]*nomad.Node // by ID
	models  map[string]bool        // of nodes.csv
	now     time.Time
	jobs    map[nomad.JobKey][]jobVersion
}

// tasks are the tasks that have started on nodes with GPUs, and those that wait.
func (e *exporter) tasks() ([]exportedTask, error) {
	q := &api.QueryOptions{Namespace: api.AllNamespacesNamespace, Params: map[string]string{"resources": "true", "task_states": "true"}}
	stubs, _, err := e.client.Allocations().List(q)
	if err != nil {
		return nil, fmt.Errorf("list allocs: %w", err)
	}
	evals, _, err := e.client.Evaluations().List(&api.QueryOptions{Namespace: api.AllNamespacesNamespace})
	if err != nil {
		return nil, fmt.Errorf("list evaluations: %w", err)
	}
	came := newArrivals(evals, stubs)
	var tasks []exportedTask
	for _, s := range stubs {
		a := nomad.NewAlloc(s)
		start, end := ran(s, e.now)
		n := e.nodes[a.NodeID]
		if start.IsZero() || n == nil || len(n.Plan.GPUs) == 0 {
			continue // never started, or not on a node that is written
		}
		t := exportedTask{name: a.ID, job: a.Key().String(), began: start, run: end.Sub(start), ended: !a.Holds(), cpu: a.CPUMHz, memory: a.MemoryMiB}
		var versions []jobVersion
		if len(a.Devices) > 0 {
			if versions, err = e.versions(a.Key()); err != nil {
				return nil, err
			}
		}
		var g *nomad.Group
		if v := versionOf(versions, s.JobVersion); v != nil {
			g = v.Group(a.Group)
			t.priority = v.Priority
		}
		t.share = e.taken(a, n, g)
		t.arrived = came.of(a, s.EvalID, versions)
		e.rules(&t, a.Namespace, g)
		tasks = append(tasks, t)
	}
	waiting, err := e.pending(came)
	return append(tasks, waiting...), err
}

// rules fills in what the service goes by: the queue of a group, and its rules.
func (e *exporter) rules(t *exportedTask, namespace string, g *nomad.Group) {
	t.priority, t.minRun = cmp.Or(t.priority, state.DefaultPriority), e.cluster.MinRunS
	if t.gpus == 0 {
		return
	}
	named := ""
	if g != nil {
		named, t.limit = g.Queue, g.TimeLimit
	}
	q := e.queueFor(namespace, named)
	if q == nil {
		return
	}
	t.queue, t.minRun = q.Name, q.MinRunS
	if q.MaxPriority > 0 {
		t.priority = min(t.priority, q.MaxPriority)
	}
	t.models = e.narrowed(t.models, q.Models)
}

// queueFor is the queue that pays, as the service finds it; nil: none.
func (e *exporter) queueFor(namespace, named string) *view.Queue {
	for i := range e.cluster.Queues {
		q := &e.cluster.Queues[i]
		if named != "" && q.Name == named && (slices.Contains(q.Namespaces, namespace) || slices.Contains(q.AllowNamespaces, namespace)) {
			return q
		}
	}
	for i := range e.cluster.Queues {
		if q := &e.cluster.Queues[i]; slices.Contains(q.Namespaces, namespace) {
			return q
		}
	}
	return nil
}

// ran is when the first task of an alloc started and the last ended: now, while it
// runs.
func ran(s *api.AllocationListStub, now time.Time) (start, end time.Time) {
	for _, t := range s.TaskStates {
		if !t.StartedAt.IsZero() && (start.IsZero() || t.StartedAt.Before(start)) {
			start = t.StartedAt
		}
		if t.FinishedAt.After(end) {
			end = t.FinishedAt
		}
		if t.FinishedAt.IsZero() {
			end = now
		}
	}
	return start, end
}

// pending is what waits, as the service says, with the CPU and memory of its job.
func (e *exporter) pending(came *arrivals) ([]exportedTask, error) {
	var tasks []exportedTask
	for _, p := range e.cluster.Pending {
		key := nomad.JobKey{Namespace: p.Namespace, ID: p.JobID}
		versions, err := e.versions(key)
		if err != nil {
			return nil, err
		}
		if len(versions) == 0 {
			continue // it is gone meanwhile
		}
		newest := &versions[0]
		g := newest.Group(p.Group)
		if g == nil {
			continue
		}
		t := exportedTask{job: key.String(), arrived: came.ofPending(&p, versions), share: e.asked(g), priority: newest.Priority}
		if t.gpus == 0 {
			continue
		}
		t.cpu, t.memory = hostOf(newest.from.LookupTaskGroup(p.Group))
		e.rules(&t, p.Namespace, g)
		for i := range max(1, p.Missing) {
			t.name = fmt.Sprintf("%s/%s/%s/%d", p.Namespace, p.JobID, p.Group, i)
			tasks = append(tasks, t)
		}
	}
	return tasks, nil
}

// hostOf is the CPU and memory of a group's tasks together.
func hostOf(g *api.TaskGroup) (cpu, memory int64) {
	number := func(n *int) int64 {
		if n == nil {
			return 0
		}
		return int64(*n)
	}
	if g == nil {
		return 0, 0
	}
	for _, task := range g.Tasks {
		if r := task.Resources; r != nil {
			cpu, memory = cpu+number(r.CPU), memory+number(r.MemoryMB)
		}
	}
	return cpu, memory
}

// unknownRun is how long tasks are taken to run where none has ended.
const unknownRun = time.Hour

// estimateRuns says how long tasks that have not ended will have run.
func estimateRuns(tasks []exportedTask) {
	type sum struct {
		run   time.Duration
		count time.Duration
	}
	byJob, all := map[string]sum{}, sum{}
	for i := range tasks {
		if t := &tasks[i]; t.ended {
			j := byJob[t.job]
			byJob[t.job], all = sum{j.run + t.run, j.count + 1}, sum{all.run + t.run, all.count + 1}
		}
	}
	for i := range tasks {
		t := &tasks[i]
		if t.ended {
			continue
		}
		expect := unknownRun
		if j := byJob[t.job]; j.count > 0 {
			expect = j.run / j.count
		} else if all.count > 0 {
			expect = all.run / all.count
		}
		if t.limit > 0 {
			expect = min(expect, t.limit)
		}
		t.run = max(t.run, expect)
	}
}

// mostPriority is the highest priority that the simulator reads.
const mostPriority = 100

// taskRows are the lines of tasks.csv in order of arrival, in seconds since the
// first.
func taskRows(tasks []exportedTask) [][]string {
	slices.SortFunc(tasks, func(a, b exportedTask) int {
		return cmp.Or(a.arrived.Compare(b.arrived), cmp.Compare(a.name, b.name))
	})
	rows := [][]string{{
		"name", "job", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_memory_milli", "gpu_spec",
		"arrival_s", "duration_s", "time_limit_s", "min_run_s", "priority", "queue",
	}}
	for _, t := range tasks {
		rows = append(rows, []string{
			t.name, t.job, fmt.Sprint(t.cpu), fmt.Sprint(t.memory), strconv.Itoa(t.gpus), fmt.Sprint(t.milli), fmt.Sprint(t.memoryMilli), strings.Join(t.models, "|"),
			fmt.Sprintf("%.3f", t.arrived.Sub(tasks[0].arrived).Seconds()), fmt.Sprintf("%.0f", max(1, t.run.Seconds())),
			fmt.Sprintf("%.0f", t.limit.Seconds()), fmt.Sprint(t.minRun), strconv.Itoa(min(t.priority, mostPriority)), t.queue,
		})
	}
	return rows
}
