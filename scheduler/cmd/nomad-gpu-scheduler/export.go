// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

const exportHelp = `Writes what the cluster has and what it was asked for, as gpu-sim reads it:
nodes.csv, and tasks.csv with what runs, what waits, and what has ended that
Nomad still remembers (job_gc_interval and eval_gc_threshold of its servers say
for how long). gpu-sim replay then tells what would wait how long with more
nodes or under another policy.

A task arrives when its job was submitted, so what it waited for, also while the
service held its job, is part of the replay. It has the queue, the priority and the
models of its job, and its parts of a GPU's compute and memory. Quotas are written to
quotas.csv where the service has queues: gpu-sim replay -quotas reads them.

A node's GPUs count as those of its most frequent model. A task that has not ended is
taken to run as long as the ended ones of its job did on average, or else of all jobs,
no longer than its gpu_time_limit, and no shorter than it has. Other constraints of
jobs are not written.

With -from or -to, what Nomad has forgotten is taken from the service's ledger, which
knows neither the models that a job names nor tasks without GPUs. What ran already
when that time begins arrives then, with what was left of its run.`

type exportOptions struct {
	online
	out      string
	from, to string // days or times; both empty: what Nomad remembers
	now      time.Time
}

func runExport(args []string, stdout, stderr io.Writer) int {
	o := exportOptions{online: online{stdout: stdout, stderr: stderr}, now: time.Now()}
	fs := newFlags("export", exportHelp, stderr)
	fs.StringVar(&o.from, "from", "", "the first `day` or time, such as 2026-10-01 or 2026-10-01T12:00:00Z: with what the service's ledger has (default with -to: 30 days before now)")
	fs.StringVar(&o.to, "to", "", "the `day` or time that it ends with (default with -from: now)")
	fs.StringVar(&o.out, "out", ".", "the `directory` to write to; it must exist")
	if code, done := o.parse(fs, args, 0); done {
		return code
	}
	done, err := o.export()
	return o.finish(done, func(w io.Writer) error {
		try := "gpu-sim replay -cluster " + o.out
		if done.QuotasFile != "" {
			try += " -quotas " + done.QuotasFile
		}
		_, err := fmt.Fprintf(w, "%d nodes in %s, %d tasks in %s\nTry: %s\n", done.Nodes, done.NodesFile, done.Tasks, done.TasksFile, try)
		return err
	}, err)
}

// exported is the written files.
type exported struct {
	NodesFile, TasksFile string
	QuotasFile           string `json:",omitempty"` // where there are queues
	Nodes, Tasks         int
}

func (o *exportOptions) export() (*exported, error) {
	client, err := o.client()
	if err != nil {
		return nil, err
	}
	var c view.Cluster
	if _, err := client.Raw().Query(clusterPath, &c, nil); err != nil {
		return nil, fmt.Errorf("ask the placement service what waits: %w", err)
	}
	nodes, err := exportNodes(client)
	if err != nil {
		return nil, err
	}
	e := &exporter{client: client, cluster: &c, nodes: nodes, models: modelsOf(nodes), now: o.now, jobs: map[nomad.JobKey][]jobVersion{}}
	tasks, err := e.tasks()
	if err == nil && (o.from != "" || o.to != "") {
		tasks, err = e.within(tasks, o)
	}
	if err != nil {
		return nil, err
	}
	estimateRuns(tasks)
	out := &exported{NodesFile: filepath.Join(o.out, "nodes.csv"), TasksFile: filepath.Join(o.out, "tasks.csv"), Tasks: len(tasks)}
	rows := nodeRows(nodes)
	out.Nodes = len(rows) - 1
	if err := writeCSV(out.NodesFile, rows); err != nil {
		return nil, err
	}
	if len(c.Queues) > 0 {
		out.QuotasFile = filepath.Join(o.out, "quotas.csv")
		if err := writeCSV(out.QuotasFile, quotaRows(c.Queues)); err != nil {
			return nil, err
		}
	}
	return out, writeCSV(out.TasksFile, taskRows(tasks))
}

// nodeRows are the lines of nodes.csv: nodes with GPUs, by name.
func nodeRows(nodes map[string]*nomad.Node) [][]string {
	rows := [][]string{{"sn", "cpu_milli", "memory_mib", "gpu", "model", "gpu_memory_mib"}}
	list := slices.SortedFunc(maps.Values(nodes), func(x, y *nomad.Node) int {
		return cmp.Or(cmp.Compare(x.Plan.Name, y.Plan.Name), cmp.Compare(x.Plan.ID, y.Plan.ID))
	})
	for _, n := range list {
		if model, count, memory := commonest(n); count > 0 {
			rows = append(rows, []string{n.Plan.Name, fmt.Sprint(n.Plan.CPUMHz), fmt.Sprint(n.Plan.MemoryMiB), strconv.Itoa(count), model, fmt.Sprint(memory)})
		}
	}
	return rows
}

// quotaRows are the lines of quotas.csv.
func quotaRows(queues []view.Queue) [][]string {
	rows := [][]string{{"queue", "parent", "guarantee_milli", "limit_milli"}}
	for _, q := range queues {
		rows = append(rows, []string{q.Name, q.Parent, fmt.Sprint(q.QuotaMilli), fmt.Sprint(q.MaxMilli)})
	}
	return rows
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

// commonest is the model that most GPUs of a node are of, how many, and their memory: some
// models come in several sizes. MIG instances are GPUs of their own, named with their profile.
func commonest(n *nomad.Node) (model string, count int, memoryMiB int64) {
	type kind struct {
		model  string
		memory int64
	}
	counts := map[kind]int{}
	for i := range n.Plan.GPUs {
		g := &n.Plan.GPUs[i]
		k := kind{modelName(g), g.MemoryMiB}
		counts[k]++
		if c := counts[k]; c > count || c == count && (k.model < model || k.model == model && k.memory < memoryMiB) {
			model, count, memoryMiB = k.model, c, k.memory
		}
	}
	return model, count, memoryMiB
}

// modelName is the model of a GPU as nodes.csv has it.
func modelName(g *place.GPU) string {
	name := cmp.Or(g.Type, g.Model)
	if g.Profile != "" {
		name += " " + g.Profile
	}
	return name
}

// modelsOf are the models in nodes.csv.
func modelsOf(nodes map[string]*nomad.Node) map[string]bool {
	models := map[string]bool{}
	for _, n := range nodes {
		if model, count, _ := commonest(n); count > 0 {
			models[model] = true
		}
	}
	return models
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
