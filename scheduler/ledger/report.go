// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Grouping is what the rows of a report are about.
type Grouping string

// What rows can be about. Entries are not added up: each is a row.
const (
	ByQueue     Grouping = "queue"
	ByNamespace Grouping = "namespace"
	ByJob       Grouping = "job"
	ByNode      Grouping = "node"
	ByType      Grouping = "type"
	ByEntry     Grouping = "entry"
)

// Groupings are all of them.
var Groupings = []Grouping{ByQueue, ByNamespace, ByJob, ByNode, ByType, ByEntry}

// ParseGrouping reads a grouping; empty is by queue.
func ParseGrouping(text string) (Grouping, error) {
	g := cmp.Or(Grouping(text), ByQueue)
	if !slices.Contains(Groupings, g) {
		names := make([]string, len(Groupings))
		for i, n := range Groupings {
			names[i] = string(n)
		}
		return "", fmt.Errorf("by: %q is not valid (%s)", text, strings.Join(names, ", "))
	}
	return g, nil
}

// Report is the holdings and use within a time.
type Report struct {
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`
	By       Grouping  `json:"by"`
	Currency string    `json:"currency,omitempty"`
	Rows     []Row     `json:"rows"`
	Total    Row       `json:"total"`
}

// Row is what one queue, namespace, job, node, type or entry comes to. Fields that do not
// name what the row is about are empty.
type Row struct {
	Queue     string     `json:"queue,omitempty"`
	Namespace string     `json:"namespace,omitempty"`
	Job       string     `json:"job,omitempty"`
	Group     string     `json:"group,omitempty"`
	Task      string     `json:"task,omitempty"`
	Alloc     string     `json:"alloc,omitempty"`
	Node      string     `json:"node,omitempty"`
	GPU       string     `json:"gpu,omitempty"`
	Type      string     `json:"type,omitempty"`
	From      *time.Time `json:"from,omitempty"`
	To        *time.Time `json:"to,omitempty"` // absent while it is held
	Ended     string     `json:"ended,omitempty"`
	// Of an entry: its holdings as quotas count them, since when its alloc was waited for, with
	// which priority, and the alloc's CPU and memory.
	Milli    int64      `json:"milli,omitempty"`
	Wanted   *time.Time `json:"wanted,omitempty"`
	Priority int        `json:"priority,omitempty"`
	HostMHz  int64      `json:"host_mhz,omitempty"`
	HostMiB  int64      `json:"host_mib,omitempty"`

	Entries  int     `json:"entries"`
	GPUHours float64 `json:"gpu_hours"`
	GiBHours float64 `json:"gib_hours"`
	Cost     float64 `json:"cost"`
	// Asked and Used are of one task on one GPU, in the mean of what tasks held.
	AskedGPUs float64 `json:"asked_gpus"`
	AskedGiB  float64 `json:"asked_gib"`
	// UsedGPUs and UsedGiB are absent where nothing was measured.
	UsedGPUs *Used `json:"used_gpus,omitempty"`
	UsedGiB  *Used `json:"used_gib,omitempty"`
}

// Used is the distribution of what tasks were measured to use.
type Used struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P95  float64 `json:"p95"`
	Max  float64 `json:"max"`
}

// Builder adds entries up.
type Builder struct {
	by     Grouping
	prices Prices
	rows   map[Row]*sums
}

type sums struct {
	entries                              int
	seconds, milliSeconds, mibSeconds    int64
	askedMilliSeconds, askedMiBSeconds   int64
	askedComputeSeconds, askedMemSeconds int64 // of entries that ask for any
	cost                                 int64
	compute, memory                      Sketch
}

// NewBuilder begins a report.
func NewBuilder(by Grouping, prices Prices) *Builder {
	return &Builder{by, prices, map[Row]*sums{}}
}

// Add adds an entry.
func (b *Builder) Add(e *Entry) {
	key := nameOf(b.by, e)
	if b.rows[key] == nil {
		b.rows[key] = &sums{}
	}
	b.rows[key].add(e, b.prices.Cost(e))
}

// nameOf is a row with nothing but its names.
func nameOf(by Grouping, e *Entry) Row {
	switch by {
	case ByQueue:
		return Row{Queue: e.Queue}
	case ByNamespace:
		return Row{Namespace: e.Namespace}
	case ByJob:
		return Row{Queue: e.Queue, Namespace: e.Namespace, Job: cmp.Or(e.Parent, e.Job), Group: e.Group, Task: e.Task}
	case ByNode:
		return Row{Node: e.Node}
	case ByType:
		return Row{Type: strings.TrimSpace(e.Type + " " + e.Profile)}
	}
	r := Row{Queue: e.Queue, Namespace: e.Namespace, Job: e.Job, Group: e.Group, Task: e.Task, Alloc: e.Alloc,
		Node: e.Node, GPU: e.GPU, Type: strings.TrimSpace(e.Type + " " + e.Profile), Ended: e.Why, From: &e.From,
		Milli: e.Milli, Priority: e.Priority, HostMHz: e.HostMHz, HostMiB: e.HostMiB}
	if !e.Wanted.IsZero() {
		r.Wanted = &e.Wanted
	}
	if !e.Open {
		r.To = &e.To
	}
	return r
}

func (s *sums) add(e *Entry, cost int64) {
	t := e.Seconds()
	s.entries++
	s.seconds += t
	s.milliSeconds += e.Milli * t
	s.mibSeconds += e.MemoryMiB * t
	s.cost += cost
	if e.AskedMilli > 0 {
		s.askedMilliSeconds += e.AskedMilli * t
		s.askedComputeSeconds += t
	}
	if e.AskedMiB > 0 {
		s.askedMiBSeconds += e.AskedMiB * t
		s.askedMemSeconds += t
	}
	s.compute.Merge(&e.Compute)
	s.memory.Merge(&e.Memory)
}

func (s *sums) merge(o *sums) {
	s.entries += o.entries
	s.seconds += o.seconds
	s.milliSeconds += o.milliSeconds
	s.mibSeconds += o.mibSeconds
	s.cost += o.cost
	s.askedMilliSeconds += o.askedMilliSeconds
	s.askedComputeSeconds += o.askedComputeSeconds
	s.askedMiBSeconds += o.askedMiBSeconds
	s.askedMemSeconds += o.askedMemSeconds
	s.compute.Merge(&o.compute)
	s.memory.Merge(&o.memory)
}

// Report returns the rows, those that held most GPU hours first, and entries by time.
func (b *Builder) Report(from, to time.Time, currency string) *Report {
	r := &Report{From: from, To: to, By: b.by, Currency: currency, Rows: []Row{}}
	total := &sums{}
	for row, s := range b.rows {
		s.fill(&row)
		total.merge(s)
		r.Rows = append(r.Rows, row)
	}
	total.fill(&r.Total)
	slices.SortFunc(r.Rows, func(x, y Row) int {
		if x.From != nil && y.From != nil {
			return cmp.Or(x.From.Compare(*y.From), strings.Compare(x.name(), y.name()))
		}
		return cmp.Or(cmp.Compare(y.GPUHours, x.GPUHours), strings.Compare(x.name(), y.name()))
	})
	return r
}

func (r *Row) name() string {
	return strings.Join([]string{r.Queue, r.Namespace, r.Job, r.Group, r.Task, r.Alloc, r.Node, r.GPU, r.Type}, "\x00")
}

func (s *sums) fill(r *Row) {
	r.Entries = s.entries
	r.GPUHours = rounded(float64(s.milliSeconds) / 1000 / 3600)
	r.GiBHours = rounded(float64(s.mibSeconds) / 1024 / 3600)
	r.Cost = rounded(float64(s.cost) / 1e6)
	r.AskedGPUs = rounded(per(s.askedMilliSeconds, s.askedComputeSeconds) / 1000)
	r.AskedGiB = rounded(per(s.askedMiBSeconds, s.askedMemSeconds) / 1024)
	r.UsedGPUs, r.UsedGiB = used(&s.compute, 1000), used(&s.memory, 1024)
}

func used(s *Sketch, unit float64) *Used {
	if s.Count() == 0 {
		return nil
	}
	return &Used{rounded(s.Mean() / unit), rounded(s.Quantile(0.5) / unit), rounded(s.Quantile(0.95) / unit), rounded(float64(s.Max()) / unit)}
}

func per(sum, of int64) float64 {
	if of == 0 {
		return 0
	}
	return float64(sum) / float64(of)
}

// rounded keeps three decimals.
func rounded(v float64) float64 { return math.Round(v*1000) / 1000 }
