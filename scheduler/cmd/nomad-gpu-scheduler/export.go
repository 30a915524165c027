package main

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

const exportHelp = `Writes what the cluster has and what it was asked for, as gpu-sim reads it:
nodes.csv, and tasks.csv with what runs, what waits, and what has ended that
Nomad still remembers (job_gc_interval and eval_gc_threshold of its servers say
for how long). gpu-sim replay then tells what would wait how long with more
nodes or under another policy.

A node's GPUs count as those of its most frequent model, a part of a GPU by its
part of the memory. A task that has not ended is taken to run as long as the ended
ones of its job did on average, or else of all jobs, and no shorter than it has.
Constraints of jobs are not written.`

type exportOptions struct {
	online
	out string
	now time.Time
}

func runExport(args []string, stdout, stderr io.Writer) int {
	o := exportOptions{online: online{stdout: stdout, stderr: stderr}, now: time.Now()}
	fs := newFlags("export", exportHelp, stderr)
	fs.StringVar(&o.out, "out", ".", "the `directory` to write to; it must exist")
	if code, done := o.parse(fs, args, 0); done {
		return code
	}
	done, err := o.export()
	return o.finish(done, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "%d nodes in %s, %d tasks in %s\nTry: gpu-sim replay -cluster %[5]s\n", done.Nodes, done.NodesFile, done.Tasks, done.TasksFile, o.out)
		return err
	}, err)
}

// exported is what was written.
type exported struct {
	NodesFile, TasksFile string
	Nodes, Tasks         int
}

func (o *exportOptions) export() (*exported, error) {
	client, err := o.client()
	if err != nil {
		return nil, err
	}
	nodes, err := exportNodes(client)
	if err != nil {
		return nil, err
	}
	tasks, err := exportTasks(client, nodes, o.now)
	if err != nil {
		return nil, err
	}
	waiting, err := o.exportPending(client, nodes)
	if err != nil {
		return nil, err
	}
	tasks = append(tasks, waiting...)
	estimateRuns(tasks)
	out := &exported{filepath.Join(o.out, "nodes.csv"), filepath.Join(o.out, "tasks.csv"), 0, len(tasks)}
	rows := [][]string{{"sn", "cpu_milli", "memory_mib", "gpu", "model", "gpu_memory_mib"}}
	for _, n := range nodes {
		if model, count, memory := commonest(n); count > 0 {
			rows = append(rows, []string{n.Plan.Name, fmt.Sprint(n.Plan.CPUMHz), fmt.Sprint(n.Plan.MemoryMiB), strconv.Itoa(count), model, fmt.Sprint(memory)})
		}
	}
	out.Nodes = len(rows) - 1
	if err := writeCSV(out.NodesFile, rows); err != nil {
		return nil, err
	}
	return out, writeCSV(out.TasksFile, taskRows(tasks))
}

// exportNodes reads the nodes by ID.
func exportNodes(client *api.Client) (map[string]*nomad.Node, error) {
	stubs, _, err := client.Nodes().List(nil)
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	nodes := map[string]*nomad.Node{}
	for _, s := range stubs {
		n, _, err := client.Nodes().Info(s.ID, nil)
		if err != nil {
			return nil, fmt.Errorf("read node %q: %w", s.ID, err)
		}
		nodes[s.ID] = nomad.NewNode(n, nomad.Hardware{})
	}
	return nodes, nil
}

// commonest is the model that most GPUs of a node are of, how many, and their memory. MIG
// instances are GPUs of their own, named with their profile.
func commonest(n *nomad.Node) (model string, count int, memoryMiB int64) {
	counts, memory := map[string]int{}, map[string]int64{}
	for i := range n.Plan.GPUs {
		g := &n.Plan.GPUs[i]
		name := cmp.Or(g.Type, g.Model)
		if g.Profile != "" {
			name += " " + g.Profile
		}
		counts[name]++
		memory[name] = g.MemoryMiB
		if c := counts[name]; c > count || c == count && name < model {
			model, count = name, c
		}
	}
	return model, count, memory[model]
}

// exportedTask is a line of tasks.csv.
type exportedTask struct {
	name, job   string
	arrived     time.Time
	run         time.Duration // so far, or in all
	ended       bool
	cpu, memory int64
	gpus        int
	milli       int64 // of each
}

// exportTasks reads the allocs that have started on nodes with GPUs.
func exportTasks(client *api.Client, nodes map[string]*nomad.Node, now time.Time) ([]exportedTask, error) {
	q := &api.QueryOptions{Namespace: api.AllNamespacesNamespace, Params: map[string]string{"resources": "true", "task_states": "true"}}
	stubs, _, err := client.Allocations().List(q)
	if err != nil {
		return nil, fmt.Errorf("list allocs: %w", err)
	}
	var tasks []exportedTask
	for _, s := range stubs {
		a := nomad.NewAlloc(s)
		start, end := ran(s, now)
		n := nodes[a.NodeID]
		if start.IsZero() || n == nil || len(n.Plan.GPUs) == 0 {
			continue // never started, or not on a node that is written
		}
		t := exportedTask{name: a.ID, job: a.Key().String(), arrived: a.Created, run: end.Sub(start), ended: !a.Holds(), cpu: a.CPUMHz, memory: a.MemoryMiB}
		t.gpus, t.milli = taken(a, n)
		tasks = append(tasks, t)
	}
	return tasks, nil
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

// taken is how many GPUs an alloc holds parts of, and the largest part in milli.
func taken(a *nomad.Alloc, n *nomad.Node) (gpus int, milli int64) {
	held := map[int]int64{}
	for _, d := range a.Devices {
		for _, id := range d.IDs {
			at, ok := n.Links[id]
			if !ok {
				continue
			}
			held[at.GPU]++
		}
	}
	for i, instances := range held {
		g := &n.Plan.GPUs[i]
		milli = max(milli, instances*1000/max(1, g.Slices, g.Replicas))
	}
	return len(held), milli
}

// exportPending reads what waits from the service, and its CPU and memory from
// Nomad.
func (o *exportOptions) exportPending(client *api.Client, nodes map[string]*nomad.Node) ([]exportedTask, error) {
	var c view.Cluster
	if _, err := client.Raw().Query(clusterPath, &c, nil); err != nil {
		return nil, fmt.Errorf("ask the placement service what waits: %w", err)
	}
	var card int64 // memory of the largest GPU
	for _, n := range nodes {
		for i := range n.Plan.GPUs {
			card = max(card, n.Plan.GPUs[i].MemoryMiB)
		}
	}
	var tasks []exportedTask
	for _, p := range c.Pending {
		ask, err := gpu.ParseRequest(p.Ask)
		if err != nil {
			continue // device blocks of the author's own
		}
		t := exportedTask{job: p.Namespace + "/" + p.JobID, arrived: p.Since, gpus: 1, milli: ask.Milli}
		switch {
		case ask.Kind == gpu.KindCount:
			t.gpus, t.milli = ask.Count, 1000
		case t.milli == 0 && card > 0:
			t.milli = min(1000, max(1, ask.MemoryMiB*1000/card))
		}
		job, _, err := client.Jobs().Info(p.JobID, &api.QueryOptions{Namespace: p.Namespace})
		if err != nil {
			return nil, fmt.Errorf("read job %q: %w", p.JobID, err)
		}
		if group := job.LookupTaskGroup(p.Group); group != nil {
			for _, task := range group.Tasks {
				if r := task.Resources; r != nil {
					t.cpu, t.memory = t.cpu+number(r.CPU), t.memory+number(r.MemoryMB)
				}
			}
		}
		for i := range max(1, p.Missing) {
			t.name = fmt.Sprintf("%s/%s/%s/%d", p.Namespace, p.JobID, p.Group, i)
			tasks = append(tasks, t)
		}
	}
	return tasks, nil
}

func number(n *int) int64 {
	if n == nil {
		return 0
	}
	return int64(*n)
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
		t.run = max(t.run, expect)
	}
}

// taskRows are the lines of tasks.csv in order of arrival, in seconds since the
// first.
func taskRows(tasks []exportedTask) [][]string {
	slices.SortFunc(tasks, func(a, b exportedTask) int {
		return cmp.Or(a.arrived.Compare(b.arrived), cmp.Compare(a.name, b.name))
	})
	rows := [][]string{{"name", "job", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "arrival_s", "duration_s"}}
	for _, t := range tasks {
		rows = append(rows, []string{
			t.name, t.job, fmt.Sprint(t.cpu), fmt.Sprint(t.memory), strconv.Itoa(t.gpus), fmt.Sprint(t.milli), "",
			fmt.Sprintf("%.3f", t.arrived.Sub(tasks[0].arrived).Seconds()), fmt.Sprintf("%.0f", max(1, t.run.Seconds())),
		})
	}
	return rows
}

func writeCSV(path string, rows [][]string) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write what was exported: %w", err)
	}
	defer func() {
		if cerr := f.Close(); err == nil && cerr != nil {
			err = fmt.Errorf("write %q: %w", path, cerr)
		}
	}()
	if err := csv.NewWriter(f).WriteAll(rows); err != nil {
		return fmt.Errorf("write %q: %w", path, err)
	}
	return nil
}
