// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Node is a machine of a trace.
type Node struct {
	Name      string
	CPUMilli  int64
	MemoryMiB int64
	GPUs      int
	Model     string
	// GPUMemoryMiB is the memory of a GPU; 0: not known.
	GPUMemoryMiB int64
	// Layout is how its GPUs are cut into MIG instances; nil: they are not.
	Layout *Layout
}

// Task is a task of a trace.
type Task struct {
	Name      string
	CPUMilli  int64
	MemoryMiB int64
	GPUs      int
	GPUMilli  int64 // share of each GPU, 1000 = whole; 0 without GPUs
	// GPUMemoryMilli is the share of each GPU's memory where it is another than that of
	// its compute, GPUMilli; 0: the same.
	GPUMemoryMilli int64
	Models         []string // any of; empty: all

	// The columns below are for [Live] replays; zero in the published traces.
	ArriveSecond  float64
	RunSeconds    float64
	Priority      int
	Queue         string
	MinRunSeconds int64
	// Gang names tasks that start together or not at all; empty: it starts by itself.
	Gang string
	// LimitSeconds is how long its author says that it runs at most; 0: nothing is said.
	// Estimates of starts go by it.
	LimitSeconds float64
}

// Demand is the GPU milli that the task asks for.
func (t *Task) Demand() int64 { return int64(t.GPUs) * t.GPUMilli }

// memoryDemand is the milli of GPU memory that the task asks for.
func (t *Task) memoryDemand() int64 { return int64(t.GPUs) * t.memoryMilli() }

// memoryMilli is the share of each GPU's memory.
func (t *Task) memoryMilli() int64 { return cmp.Or(t.GPUMemoryMilli, t.GPUMilli) }

// taskKey identifies tasks that every node treats alike.
type taskKey struct {
	cpu, memory, milli, gpuMemory int64
	gpus                          int
	models                        string
}

func keyOf(t *Task) taskKey {
	return taskKey{t.CPUMilli, t.MemoryMiB, t.GPUMilli, t.memoryMilli(), t.GPUs, strings.Join(t.Models, "|")}
}

// gpuMilli is one GPU.
const gpuMilli = 1000

// Limits of what a trace may say, so that sums cannot overflow.
const (
	maxAmount = 1 << 40
	maxGPUs   = 64
)

// ErrTrace is wrapped by errors about the content of a trace file.
var ErrTrace = errors.New("malformed trace")

// table is a CSV file with named columns, read row by row.
type table struct {
	csv  *csv.Reader
	cols map[string]int
	row  []string
	err  error
}

// byteOrderMark is what spreadsheets write before a file.
const byteOrderMark = "\ufeff"

func newTable(r io.Reader, need ...string) (*table, error) {
	return readTable(csv.NewReader(r), need...)
}

func readTable(c *csv.Reader, need ...string) (*table, error) {
	t := &table{csv: c, cols: map[string]int{}}
	head, err := t.csv.Read()
	if err == io.EOF {
		return nil, fmt.Errorf("read header: %w: the file is empty; its first line names the columns %s", ErrTrace, strings.Join(need, ", "))
	}
	if err != nil {
		return nil, fmt.Errorf("read header: %w: %w", ErrTrace, err)
	}
	head[0] = strings.TrimPrefix(head[0], byteOrderMark)
	for i, name := range head {
		if _, twice := t.cols[name]; twice && name != "" {
			return nil, fmt.Errorf("read header: %w: column %q is there twice", ErrTrace, name)
		}
		t.cols[name] = i
	}
	for _, name := range need {
		if _, ok := t.cols[name]; !ok {
			return nil, fmt.Errorf("read header: %w: no column %q among %s", ErrTrace, name, strings.Join(head, ", "))
		}
	}
	return t, nil
}

// next reads a row; false at the end or on the first error.
func (t *table) next() bool {
	if t.err != nil {
		return false
	}
	row, err := t.csv.Read()
	if err == io.EOF {
		return false
	}
	if err != nil {
		t.err = fmt.Errorf("%w: %w", ErrTrace, err)
		return false
	}
	t.row = row
	return true
}

// has reports whether the file has all of some columns.
func (t *table) has(names ...string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { _, ok := t.cols[name]; return !ok })
}

// text returns a column's value; empty when the file has no such column.
func (t *table) text(name string) string {
	i, ok := t.cols[name]
	if !ok {
		return ""
	}
	return t.row[i]
}

// number reads a whole number from 0 to limit; an empty value is 0.
func (t *table) number(name string, limit int64) int64 {
	s := t.text(name)
	if s == "" {
		return 0
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || v != math.Trunc(v) || v < 0 || v > float64(limit) {
		t.fail(fmt.Errorf("%w: line %d: column %q is %q, want a whole number from 0 to %d", ErrTrace, t.line(name), name, s, limit))
		return 0
	}
	return int64(v)
}

// decimal reads a number from 0 to maxAmount; an empty value is 0.
func (t *table) decimal(name string) float64 {
	s := t.text(name)
	if s == "" {
		return 0
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || !(v >= 0 && v <= maxAmount) {
		t.fail(fmt.Errorf("%w: line %d: column %q is %q, want a number from 0 to %d", ErrTrace, t.line(name), name, s, int64(maxAmount)))
		return 0
	}
	return v
}

// line is where a column of the present row stands.
func (t *table) line(name string) int {
	line, _ := t.csv.FieldPos(t.cols[name])
	return line
}

func (t *table) fail(err error) {
	if t.err == nil {
		t.err = err
	}
}

// ReadNodes reads the columns sn, cpu_milli, memory_mib, gpu, model.
func ReadNodes(r io.Reader) ([]Node, error) {
	t, err := newTable(r, "sn", "cpu_milli", "memory_mib", "gpu", "model")
	if err != nil {
		return nil, err
	}
	var nodes []Node
	seen := map[string]bool{}
	for t.next() {
		n := Node{
			Name: t.text("sn"), CPUMilli: t.number("cpu_milli", maxAmount), MemoryMiB: t.number("memory_mib", maxAmount),
			GPUs: int(t.number("gpu", maxGPUs)), Model: t.text("model"),
			GPUMemoryMiB: t.number("gpu_memory_mib", maxAmount),
		}
		if n.Name == "" || seen[n.Name] {
			t.fail(fmt.Errorf("%w: line %d: node name %q is empty or listed twice", ErrTrace, t.line("sn"), n.Name))
		}
		seen[n.Name] = true
		nodes = append(nodes, n)
	}
	if len(nodes) == 0 {
		t.fail(fmt.Errorf("%w: no node below the header", ErrTrace))
	}
	return nodes, t.err
}

// ReadTasks reads arrivals or a pod list: the columns cpu_milli, memory_mib,
// num_gpu, gpu_milli, a name (pod_name or name), and where present
// gpu_memory_milli, gpu_spec,
// arrival_s, duration_s (or creation_time and deletion_time), time_limit_s, min_run_s,
// priority, queue, gang.
func ReadTasks(r io.Reader) ([]Task, error) {
	t, err := newTable(r, "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
	if err != nil {
		return nil, err
	}
	var tasks []Task
	for t.next() {
		tasks = append(tasks, t.task())
	}
	if len(tasks) == 0 {
		t.fail(fmt.Errorf("%w: no task below the header", ErrTrace))
	}
	return tasks, t.err
}

// ReadArrivals reads tasks that come and go, as ReadTasks does, in order of arrival whatever
// that of the file is. The file must say when each comes and how long it runs: arrival_s and
// duration_s, or creation_time and deletion_time. Times of a calendar, whose beginning is
// longer ago than the file is long, count from the first arrival.
func ReadArrivals(r io.Reader) ([]Task, error) {
	t, err := newTable(r, "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
	if err != nil {
		return nil, err
	}
	created := t.has("creation_time", "deletion_time")
	switch {
	case !t.has("arrival_s") && !t.has("creation_time"):
		return nil, fmt.Errorf("read header: %w: neither arrival_s nor creation_time says when tasks arrive", ErrTrace)
	case !t.has("duration_s") && !created:
		return nil, fmt.Errorf("read header: %w: neither duration_s nor creation_time and deletion_time say how long tasks run", ErrTrace)
	}
	var tasks []Task
	last, runs := 0.0, false
	for t.next() {
		k := t.task()
		if !t.has("arrival_s") {
			k.ArriveSecond = t.decimal("creation_time")
			t.require("creation_time", k.Name)
		} else {
			t.require("arrival_s", k.Name)
		}
		if t.text("duration_s") == "" {
			if !created {
				t.require("duration_s", k.Name)
			} else {
				t.require("creation_time", k.Name)
				t.require("deletion_time", k.Name)
			}
		}
		runs = runs || k.RunSeconds > 0
		last = max(last, k.ArriveSecond)
		tasks = append(tasks, k)
	}
	if len(tasks) == 0 {
		t.fail(fmt.Errorf("%w: no task below the header", ErrTrace))
	} else if !runs {
		t.fail(fmt.Errorf("%w: no task runs for longer than 0 s", ErrTrace))
	}
	if t.err != nil {
		return nil, t.err
	}
	slices.SortStableFunc(tasks, func(a, b Task) int { return cmp.Compare(a.ArriveSecond, b.ArriveSecond) })
	if first := tasks[0].ArriveSecond; first > last-first {
		for i := range tasks {
			tasks[i].ArriveSecond -= first
		}
	}
	return tasks, nil
}

// require fails where a column of a task is empty.
func (t *table) require(name, task string) {
	if t.text(name) == "" {
		t.fail(fmt.Errorf("%w: line %d: %s of task %q is empty", ErrTrace, t.line(name), name, task))
	}
}

func (t *table) task() Task {
	k := Task{
		Name: t.text("pod_name"), CPUMilli: t.number("cpu_milli", maxAmount), MemoryMiB: t.number("memory_mib", maxAmount),
		GPUs: int(t.number("num_gpu", maxGPUs)), GPUMilli: t.number("gpu_milli", gpuMilli), GPUMemoryMilli: t.number("gpu_memory_milli", gpuMilli),
		ArriveSecond: t.decimal("arrival_s"), RunSeconds: t.decimal("duration_s"), LimitSeconds: t.decimal("time_limit_s"),
		MinRunSeconds: t.number("min_run_s", maxAmount), Priority: int(t.number("priority", 100)), Queue: t.text("queue"), Gang: t.text("gang"),
	}
	if k.Name == "" {
		k.Name = t.text("name")
	}
	if created := t.text("creation_time"); created != "" && t.text("deletion_time") != "" {
		k.RunSeconds = t.decimal("deletion_time") - t.decimal("creation_time")
		if k.RunSeconds < 0 {
			t.fail(fmt.Errorf("%w: line %d: task %q is deleted before it is created", ErrTrace, t.line("deletion_time"), k.Name))
		}
	}
	if k.GPUs == 0 {
		k.GPUMilli, k.GPUMemoryMilli = 0, 0
		return k
	}
	if k.GPUMilli == 0 {
		t.fail(fmt.Errorf("%w: line %d: task %q asks for %d GPUs with a share of 0", ErrTrace, t.line("gpu_milli"), k.Name, k.GPUs))
	}
	for _, m := range strings.Split(t.text("gpu_spec"), "|") {
		if m != "" {
			k.Models = append(k.Models, m)
		}
	}
	return k
}

// ReadOrder reads the columns node_name and rank and returns the nodes sorted
// by rank. Every node must have a rank.
func ReadOrder(r io.Reader, nodes []Node) ([]Node, error) {
	t, err := newTable(r, "node_name", "rank")
	if err != nil {
		return nil, err
	}
	rank := map[string]int64{}
	for t.next() {
		rank[t.text("node_name")] = t.number("rank", maxAmount)
	}
	if t.err != nil {
		return nil, t.err
	}
	for _, n := range nodes {
		if _, ok := rank[n.Name]; !ok {
			return nil, fmt.Errorf("%w: node %q has no rank", ErrTrace, n.Name)
		}
	}
	out := slices.Clone(nodes)
	slices.SortStableFunc(out, func(a, b Node) int { return int(rank[a.Name] - rank[b.Name]) })
	return out, nil
}
