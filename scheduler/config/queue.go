// SPDX-License-Identifier: MPL-2.0

package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/gohcl"
	"github.com/hashicorp/hcl/v2/hclparse"

	"github.com/nomad-gpu/nomad-gpu/internal/hcltext"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// Queue is a team's share of the cluster and its rules.
type Queue struct {
	Name   string
	Parent string // whose quota bounds this one; empty: none
	// Namespaces are Nomad's, whose jobs belong here without naming a queue.
	Namespaces []string
	// AllowNamespaces are further namespaces whose jobs may name this queue.
	AllowNamespaces []string

	// QuotaMilli is the guaranteed GPU milli; 0: no promise.
	QuotaMilli int64
	// QuotaMemoryMiB is a guarantee of GPU memory, instead or beside; 0: none.
	QuotaMemoryMiB int64
	// MaxMilli and MaxMemoryMiB bound use with borrowing; 0: the cluster does.
	MaxMilli, MaxMemoryMiB int64
	// Borrow allows use above the quota while others leave theirs idle.
	Borrow bool

	Models      []string // only these GPU models; empty: any
	NodePools   []string
	Datacenters []string
	Constraints []Constraint

	// MaxPriority bounds the priority that counts for work of this queue.
	MaxPriority int
	// Protected work of this queue is never evicted for another's priority;
	// borrowed GPUs can still be reclaimed.
	Protected bool
	// MinRunTime replaces the service's preemption.min_run_time.
	MinRunTime *time.Duration

	// IdleAfter is after how long without use of its GPUs an alloc counts as idle;
	// IdleAction is what happens then. Zero and empty: see [Queue.IdleRule].
	IdleAfter  time.Duration
	IdleAction string
	// Order is the order of what waits in this queue and those below; empty: the parent's.
	Order string
}

// What goes first of what waits in a queue with one priority.
const (
	// OrderArrival is what came first.
	OrderArrival = "arrival"
	// OrderShortest is what is expected to run for the shortest time, within bounds.
	OrderShortest = "shortest"
)

// OrderOf is the order of what waits in a queue, or in none.
func (c *Config) OrderOf(queue string) string {
	for q := c.Queue(queue); q != nil; q = c.Queue(q.Parent) {
		if q.Order != "" {
			return q.Order
		}
	}
	return c.Order
}

// What happens to GPUs that are held and not used.
const (
	// IdleReport lists them in the idle report, and nothing else.
	IdleReport = "report"
	// IdleSuspend has a task with a seat step aside for jobs of any priority: nothing is ended.
	IdleSuspend = "suspend"
	// IdleEvict evicts idle work for work that waits and would get its place.
	IdleEvict = "evict"
)

// DefaultIdleAfter is after how long work counts as idle if its queue does not say.
const DefaultIdleAfter = 30 * time.Minute

// IdleRule is after how long work of the queue, or of no queue, counts as idle, and what happens then.
func (q *Queue) IdleRule() (after time.Duration, action string) {
	if q == nil {
		return DefaultIdleAfter, IdleReport
	}
	return cmp.Or(q.IdleAfter, DefaultIdleAfter), cmp.Or(q.IdleAction, IdleReport)
}

// WatchesIdle reports whether some queue needs to know idle work at all times.
func (c *Config) WatchesIdle() bool {
	return slices.ContainsFunc(c.Queues, func(q Queue) bool { return q.IdleAfter > 0 || q.IdleAction != "" })
}

// Constraint is a condition on a node, as in a job.
type Constraint struct {
	Attribute string `hcl:"attribute"`
	Operator  string `hcl:"operator,optional"`
	Value     string `hcl:"value,optional"`
}

// queueBlock is a queue in the file; the body is read apart, because a Nomad
// Variable holds only that.
type queueBlock struct {
	Name string   `hcl:"name,label"`
	Body hcl.Body `hcl:",remain"`
}

type queueBody struct {
	Parent      string       `hcl:"parent,optional"`
	Namespaces  []string     `hcl:"namespaces,optional"`
	Allow       []string     `hcl:"allow_namespaces,optional"`
	GPUs        *float64     `hcl:"gpus"`
	MemoryGB    *float64     `hcl:"gpu_memory_gb"`
	MaxGPUs     *float64     `hcl:"max_gpus"`
	MaxMemoryGB *float64     `hcl:"max_gpu_memory_gb"`
	Borrow      *bool        `hcl:"borrow"`
	Models      []string     `hcl:"models,optional"`
	NodePools   []string     `hcl:"node_pools,optional"`
	Datacenters []string     `hcl:"datacenters,optional"`
	MaxPriority *int         `hcl:"max_priority"`
	Protected   bool         `hcl:"protected,optional"`
	MinRunTime  *string      `hcl:"min_run_time"`
	IdleAfter   *string      `hcl:"idle_after"`
	IdleAction  *string      `hcl:"idle_action"`
	Order       *string      `hcl:"order"`
	Constraints []Constraint `hcl:"constraint,block"`
}

// maxGPUs bounds quotas; it only catches slips.
const maxGPUs = 1_000_000

// readQueue reads a queue's block out of the text that it stands in.
func readQueue(name string, body hcl.Body, text []byte) (Queue, error) {
	var b queueBody
	diags := gohcl.DecodeBody(body, nil, &b)
	failed := hcltext.Types(text, diags)
	q := Queue{
		Name: name, Parent: b.Parent, Namespaces: b.Namespaces, AllowNamespaces: b.Allow,
		Borrow: true, Models: b.Models, NodePools: b.NodePools, Datacenters: b.Datacenters,
		Constraints: b.Constraints, MaxPriority: 100, Protected: b.Protected,
	}
	r := &reader{errs: hcltext.Mistakes(diags), failed: failed}
	r.milli("gpus", &q.QuotaMilli, b.GPUs, maxGPUs)
	r.milli("max_gpus", &q.MaxMilli, b.MaxGPUs, maxGPUs)
	r.gigabytes("gpu_memory_gb", &q.QuotaMemoryMiB, b.MemoryGB)
	r.gigabytes("max_gpu_memory_gb", &q.MaxMemoryMiB, b.MaxMemoryGB)
	set(&q.Borrow, b.Borrow)
	r.positive("max_priority", &q.MaxPriority, b.MaxPriority)
	if b.MinRunTime != nil {
		q.MinRunTime = new(time.Duration)
		r.duration("min_run_time", q.MinRunTime, b.MinRunTime, 0)
	}
	r.duration("idle_after", &q.IdleAfter, b.IdleAfter, time.Second)
	r.oneOf("idle_action", &q.IdleAction, b.IdleAction, IdleReport, IdleSuspend, IdleEvict)
	r.oneOf("order", &q.Order, b.Order, OrderArrival, OrderShortest)
	q.check(r)
	if len(r.errs) > 0 {
		return Queue{}, fmt.Errorf("queue %q: %w", name, errors.Join(r.errs...))
	}
	return q, nil
}

func (q *Queue) check(r *reader) {
	if q.Name == "" || strings.ContainsAny(q.Name, " \t\n/") {
		r.complain("the name must not be empty or hold white space or \"/\"")
	}
	if q.MaxMilli > 0 && q.MaxMilli < q.QuotaMilli {
		r.complain("max_gpus is below gpus")
	}
	if q.MaxMemoryMiB > 0 && q.MaxMemoryMiB < q.QuotaMemoryMiB {
		r.complain("max_gpu_memory_gb is below gpu_memory_gb")
	}
	if !q.Borrow && q.QuotaMilli == 0 && q.QuotaMemoryMiB == 0 {
		r.complain("borrow = false keeps a queue to its quota; give it gpus or gpu_memory_gb")
	}
	for i := range q.Constraints {
		c := &q.Constraints[i]
		if c.Operator == "" {
			c.Operator = "="
		}
		if !slices.Contains(operators, c.Operator) {
			r.complain("constraint operator %q is not one of %s", c.Operator, strings.Join(operators, ", "))
		}
	}
}

var operators = []string{"=", "!=", "is_set", "is_not_set"}

// checkQueues checks what only all queues together show.
func checkQueues(queues []Queue) []error {
	r := &reader{}
	owner := map[string]string{}
	for _, q := range queues {
		for _, ns := range q.Namespaces {
			if owner[ns] != "" {
				r.complain("namespace %q belongs to the queues %q and %q; one of them should name it in allow_namespaces", ns, owner[ns], q.Name)
			}
			owner[ns] = q.Name
		}
	}
	if _, err := quotas(queues); err != nil {
		r.errs = append(r.errs, err)
	}
	return r.errs
}

// Quotas are the queues as the placement core counts them; nil without queues.
func (c *Config) Quotas() (*place.Quotas, error) {
	if len(c.Queues) == 0 {
		return nil, nil
	}
	return quotas(c.Queues)
}

func quotas(queues []Queue) (*place.Quotas, error) {
	list := make([]place.Queue, len(queues))
	for i, q := range queues {
		list[i] = place.Queue{
			Name: q.Name, Parent: q.Parent, GuaranteeMilli: q.QuotaMilli, GuaranteeMemoryMiB: q.QuotaMemoryMiB, Protected: q.Protected,
		}
		list[i].LimitMilli, list[i].LimitMemoryMiB = q.Limit()
	}
	return place.NewQuotas(list)
}

// Limit is the most that the queue may hold, of GPU milli and of MiB of GPU
// memory; 0: as much as there is.
func (q *Queue) Limit() (milli, memoryMiB int64) {
	if q.Borrow {
		return q.MaxMilli, q.MaxMemoryMiB
	}
	return q.QuotaMilli, q.QuotaMemoryMiB
}

// QueueFromItems reads a queue that lies in a Nomad Variable: the keys of a
// queue block, each with its value as HCL, such as gpus = "4" and
// namespaces = "[\"team-a\"]". Constraints need the file.
func QueueFromItems(name string, items map[string]string) (Queue, error) {
	keys := make([]string, 0, len(items))
	for k, v := range items {
		if strings.ContainsAny(k+v, "\r\n") {
			return Queue{}, fmt.Errorf("queue %q: item %q has a line break", name, k)
		}
		keys = append(keys, k)
	}
	slices.Sort(keys)
	var text strings.Builder
	for _, k := range keys {
		fmt.Fprintf(&text, "%s = %s\n", k, items[k])
	}
	parsed, diags := hclparse.NewParser().ParseHCL([]byte(text.String()), "queue "+name)
	if diags.HasErrors() {
		return Queue{}, fmt.Errorf("parse queue %q: %w", name, hcltext.Error(diags))
	}
	return readQueue(name, parsed.Body, []byte(text.String()))
}

// WithQueues returns the configuration with further queues, such as those of
// Nomad Variables. A queue that c has already wins.
func (c *Config) WithQueues(more []Queue) (*Config, error) {
	out := *c
	out.Queues = slices.Clone(c.Queues)
	for _, q := range more {
		if c.Queue(q.Name) == nil {
			out.Queues = append(out.Queues, q)
		}
	}
	slices.SortFunc(out.Queues, func(a, b Queue) int { return strings.Compare(a.Name, b.Name) })
	if errs := checkQueues(out.Queues); len(errs) > 0 {
		return nil, fmt.Errorf("check queues: %w", errors.Join(errs...))
	}
	return &out, nil
}

// Adopt returns the configuration with further queues as they are next, and these. Where not all of them
// go together, every valid one is taken, and the others stay as they were: one mistake holds no other queue up.
func (c *Config) Adopt(before, next []Queue) (out *Config, taken []Queue, refused []error) {
	if out, err := c.WithQueues(next); err == nil {
		return out, next, nil
	}
	queue := func(list []Queue, name string) int {
		return slices.IndexFunc(list, func(q Queue) bool { return q.Name == name })
	}
	out = c
	for _, q := range before { // those that are left
		if at := queue(next, q.Name); at >= 0 {
			if with, err := c.WithQueues(append(slices.Clone(taken), q)); err == nil {
				out, taken = with, append(slices.Clone(taken), q)
			}
		}
	}
	left := slices.SortedFunc(slices.Values(next), func(a, b Queue) int { return strings.Compare(a.Name, b.Name) })
	for progress := true; progress; { // one may have to let go of what another takes
		progress, refused = false, nil
		for _, q := range slices.Clone(left) {
			trial := slices.Clone(taken)
			if at := queue(trial, q.Name); at >= 0 {
				trial[at] = q
			} else {
				trial = append(trial, q)
			}
			with, err := c.WithQueues(trial)
			if err != nil {
				refused = append(refused, fmt.Errorf("queue %q stays as it was: %w", q.Name, err))
				continue
			}
			out, taken, progress = with, trial, true
			left = slices.DeleteFunc(left, func(l Queue) bool { return l.Name == q.Name })
		}
	}
	return out, taken, refused
}

// Queue returns a queue by name, nil if there is none.
func (c *Config) Queue(name string) *Queue {
	at, ok := slices.BinarySearchFunc(c.Queues, name, func(q Queue, name string) int { return strings.Compare(q.Name, name) })
	if !ok {
		return nil
	}
	return &c.Queues[at]
}

// Within reports whether a queue is another or lies below it.
func (c *Config) Within(queue, top string) bool {
	for q := c.Queue(queue); q != nil; q = c.Queue(q.Parent) {
		if q.Name == top {
			return true
		}
	}
	return false
}

// SharedLimit is the lowest queue whose limit bounds both; empty where none does.
func (c *Config) SharedLimit(x, y string) string {
	for q := c.Queue(x); q != nil; q = c.Queue(q.Parent) {
		milli, memory := q.Limit()
		if (milli > 0 || memory > 0) && c.Within(y, q.Name) {
			return q.Name
		}
	}
	return ""
}

// QueueFor returns the queue that pays for a job: the one it names, if its
// namespace may, else its namespace's. A namespace without a queue has none.
func (c *Config) QueueFor(namespace, named string) (*Queue, error) {
	if named != "" {
		q := c.Queue(named)
		if q == nil {
			return nil, fmt.Errorf("queue %q does not exist", named)
		}
		if !slices.Contains(q.Namespaces, namespace) && !slices.Contains(q.AllowNamespaces, namespace) {
			return nil, fmt.Errorf("namespace %q may not use queue %q; the operator can add it to the queue's allow_namespaces", namespace, named)
		}
		return q, nil
	}
	for i := range c.Queues {
		if slices.Contains(c.Queues[i].Namespaces, namespace) {
			return &c.Queues[i], nil
		}
	}
	return nil, nil
}
