package nomad

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sync/errgroup"
)

// Client reads from Nomad.
type Client struct {
	api *api.Client
}

// NewClient wraps a connection to Nomad.
func NewClient(c *api.Client) *Client { return &Client{api: c} }

// parallel bounds how many single reads are under way at once.
const parallel = 16

func query(ctx context.Context, params ...string) *api.QueryOptions {
	q := &api.QueryOptions{Namespace: api.AllNamespacesNamespace, Params: map[string]string{}}
	for i := 0; i+1 < len(params); i += 2 {
		q.Params[params[i]] = params[i+1]
	}
	return q.WithContext(ctx)
}

// listed is the index at which each list was read. What an event with an
// earlier index says is in the list already.
type listed struct{ nodes, allocs, jobs, evals uint64 }

// rewound reports whether Nomad is at an earlier index than it was: its state
// was restored from a snapshot, or another cluster answers.
func (l listed) rewound(before listed) bool {
	return l.nodes < before.nodes || l.allocs < before.allocs || l.jobs < before.jobs || l.evals < before.evals
}

// relist reads everything and returns what is different from the mirror. After
// a rewind, what the mirror has is no newer than what is read.
func (c *Client) relist(ctx context.Context, m *Mirror) ([]Change, listed, error) {
	changes, at, err := c.lists(ctx, m)
	if err == nil && at.rewound(m.at) {
		m.rewind()
		var more []Change
		more, at, err = c.lists(ctx, m)
		changes = append(changes, more...)
	}
	if err == nil && m.at == (listed{}) {
		changes = append(changes, c.listEnded(ctx)...)
	}
	if err == nil {
		m.at = at
	}
	return changes, at, err
}

// merge brings what was read into the mirror, and returns what is different.
type merge func() []Change

// lists reads all lists at once, and then brings them into the mirror one after the other.
func (c *Client) lists(ctx context.Context, m *Mirror) ([]Change, listed, error) {
	var at listed
	var merges [4]merge
	group, ctx := errgroup.WithContext(ctx)
	for i, list := range []struct {
		what string
		read func(context.Context, *Mirror) (merge, uint64, error)
		at   *uint64
	}{{"nodes", c.listNodes, &at.nodes}, {"jobs", c.listJobs, &at.jobs}, {"allocations", c.listAllocs, &at.allocs}, {"evaluations", c.listEvals, &at.evals}} {
		group.Go(func() (err error) {
			if merges[i], *list.at, err = list.read(ctx, m); err != nil {
				return fmt.Errorf("list %s: %w", list.what, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, at, err
	}
	var changes []Change
	for _, merge := range merges {
		changes = append(changes, merge()...)
	}
	return changes, at, nil
}

func (c *Client) listNodes(ctx context.Context, m *Mirror) (merge, uint64, error) {
	stubs, meta, err := c.api.Nodes().List(query(ctx))
	if err != nil {
		return nil, 0, err
	}
	seen := make(map[string]bool, len(stubs))
	full := make([]*Node, len(stubs))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i, s := range stubs {
		seen[s.ID] = true
		if have := m.nodes[s.ID]; have != nil && have.Index >= s.ModifyIndex {
			continue
		}
		group.Go(func() error {
			n, err := c.readNode(ctx, s.ID)
			if err == nil {
				full[i] = NewNode(n, m.hardware)
			}
			return ignoreMissing(err)
		})
	}
	return func() (changes []Change) {
		for _, n := range full {
			if n != nil {
				changes = append(changes, m.node(n)...)
			}
		}
		for id := range m.nodes {
			if !seen[id] {
				changes = append(changes, m.nodeGone(id)...)
			}
		}
		return changes
	}, meta.LastIndex, group.Wait()
}

// listJobs reads the jobs that are new or changed. A job that is gone between
// list and read is left to the next list.
func (c *Client) listJobs(ctx context.Context, m *Mirror) (merge, uint64, error) {
	stubs, meta, err := c.api.Jobs().List(query(ctx))
	if err != nil {
		return nil, 0, err
	}
	seen := make(map[JobKey]bool, len(stubs))
	full := make([]*Job, len(stubs))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i, s := range stubs {
		key := JobKey{s.Namespace, s.ID}
		seen[key] = true
		if have, known := m.jobs[key]; known && have >= s.JobModifyIndex {
			continue
		}
		group.Go(func() error {
			q := query(ctx)
			q.Namespace = key.Namespace
			j, _, err := c.api.Jobs().Info(key.ID, q)
			if err == nil {
				full[i] = NewJob(j, m.hardware)
			}
			return ignoreMissing(err)
		})
	}
	return func() (changes []Change) {
		for _, j := range full {
			if j != nil {
				changes = append(changes, m.job(j)...)
			}
		}
		for key := range m.jobs {
			if !seen[key] {
				changes = append(changes, m.jobGone(key)...)
			}
		}
		return changes
	}, meta.LastIndex, group.Wait()
}

// allocPage is how many allocs are read at once.
const allocPage = 1000

// occupying is Alloc.Holds or Alloc.Returns, as a filter of Nomad's.
const occupying = `ClientStatus != "complete" and ClientStatus != "failed" and ClientStatus != "lost"` +
	` or ClientStatus == "failed" and DesiredStatus == "run" and FollowupEvalID != "" and NextAllocation == ""`

func (c *Client) listAllocs(ctx context.Context, m *Mirror) (merge, uint64, error) {
	var list []*Alloc
	index := uint64(0)
	for token := ""; ; {
		q := query(ctx, "resources", "true", "task_states", "false")
		q.PerPage, q.NextToken = allocPage, token
		q.Filter = occupying
		stubs, meta, err := c.api.Allocations().List(q)
		if err != nil {
			return nil, 0, err
		}
		if index == 0 {
			index = meta.LastIndex
		}
		for _, s := range stubs {
			list = append(list, NewAlloc(s))
		}
		if token = meta.NextToken; token == "" {
			break
		}
	}
	return func() (changes []Change) {
		seen := make(map[string]bool, len(list))
		for _, a := range list {
			seen[a.ID] = true
			changes = append(changes, m.alloc(a)...)
		}
		for id := range m.allocs {
			if !seen[id] {
				delete(m.allocs, id)
				changes = append(changes, Change{AllocGone: id})
			}
		}
		return changes
	}, index, nil
}

// endedAlone is what ended by itself, as a filter of Nomad's.
const endedAlone = `ClientStatus == "complete" and DesiredStatus == "run"`

// mostEnded is how many allocs that ended are read.
const mostEnded = 5 * allocPage

// listEnded lists allocs that ended by themselves, as far as Nomad remembers them: how long
// they ran says how long others will. Who cannot read them learns from what ends later.
func (c *Client) listEnded(ctx context.Context) (changes []Change) {
	for token := ""; len(changes) < mostEnded; {
		q := query(ctx, "resources", "true", "task_states", "true")
		q.PerPage, q.NextToken = allocPage, token
		q.Filter = endedAlone
		stubs, meta, err := c.api.Allocations().List(q)
		if err != nil {
			return changes
		}
		for _, s := range stubs {
			changes = append(changes, Change{Past: NewAlloc(s)})
		}
		if token = meta.NextToken; token == "" {
			break
		}
	}
	return changes
}

// over is what holds nothing any more, as a filter of Nomad's.
const over = `ClientStatus == "complete" or ClientStatus == "failed" or ClientStatus == "lost"`

// Ended hands over, by pages, the allocs with devices that ended and that Nomad still
// remembers.
func (c *Client) Ended(ctx context.Context, each func([]*Alloc)) error {
	for token := ""; ; {
		q := query(ctx, "resources", "true", "task_states", "true")
		q.PerPage, q.NextToken, q.Filter = allocPage, token, over
		stubs, meta, err := c.api.Allocations().List(q)
		if err != nil {
			return fmt.Errorf("list allocations that ended: %w", err)
		}
		var page []*Alloc
		for _, s := range stubs {
			if a := NewAlloc(s); len(a.Devices) > 0 {
				page = append(page, a)
			}
		}
		each(page)
		if token = meta.NextToken; token == "" {
			return nil
		}
	}
}

func (c *Client) listEvals(ctx context.Context, m *Mirror) (merge, uint64, error) {
	q := query(ctx)
	q.Filter = `Status == "blocked"`
	var evals []*eventEval
	meta, err := c.api.Raw().Query("/v1/evaluations", &evals, q)
	if err != nil {
		return nil, 0, err
	}
	return func() (changes []Change) {
		seen := map[string]bool{}
		for _, e := range evals {
			seen[e.ID] = true
			changes = append(changes, m.eval(e)...)
		}
		for key, b := range m.blocked {
			for _, id := range append(slices.Collect(maps.Keys(m.evals[key])), b.EvalID) {
				if !seen[id] {
					changes = append(changes, m.evalEnded(key, id)...)
				}
			}
		}
		return changes
	}, meta.LastIndex, nil
}
