// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

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

// page brings a part of the lists into a mirror, and returns the differences.
type page func(m *Mirror) []Change

// nothing is a page without news: it only says that Nomad answers.
func nothing(*Mirror) []Change { return nil }

// reading is one reading of all lists. Each part is handed over as soon as it was read, so that it is
// kept whatever comes of the others.
type reading struct {
	pages  chan page // closed at the end
	cancel context.CancelCauseFunc

	// Once pages is closed:
	err  error
	at   listed
	rest []page // for after all lists: removals, and allocs that ended before
}

// errStuck is wrapped where nothing comes of the lists.
var errStuck = errors.New("nothing came")

// read begins to read all lists at once, and gives up once nothing has come of any for so long. Known
// objects are not read again.
func (c *Client) read(ctx context.Context, known indexes, patience time.Duration) *reading {
	ctx, cancel := context.WithCancelCause(ctx)
	stuck := time.AfterFunc(patience, func() { cancel(fmt.Errorf("%w for %s", errStuck, patience)) })
	r := &reading{pages: make(chan page, parallel), cancel: cancel, rest: make([]page, 4)}
	add := func(p page) {
		stuck.Stop() // it is not Nomad that is waited for
		select {
		case r.pages <- p:
		case <-ctx.Done():
		}
		stuck.Reset(patience)
	}
	go func() {
		defer close(r.pages)
		defer cancel(nil)
		defer stuck.Stop()
		all := ctx
		group, ctx := errgroup.WithContext(ctx)
		for i, list := range []struct {
			what string
			read func(context.Context, indexes, func(page)) (page, uint64, error)
			at   *uint64
		}{{"nodes", c.listNodes, &r.at.nodes}, {"jobs", c.listJobs, &r.at.jobs}, {"allocations", c.listAllocs, &r.at.allocs}, {"evaluations", c.listEvals, &r.at.evals}} {
			group.Go(func() (err error) {
				if r.rest[i], *list.at, err = list.read(ctx, known, add); err != nil {
					if cause := context.Cause(ctx); errors.Is(cause, errStuck) {
						err = cause
					}
					return fmt.Errorf("list %s: %w", list.what, err)
				}
				return nil
			})
		}
		if r.err = group.Wait(); r.err == nil && !known.complete {
			past := c.listEnded(all, add)
			r.rest = append(r.rest, func(*Mirror) []Change { return past })
		}
	}()
	return r
}

// stop ends a reading, if it goes on, and waits until it does not.
func (r *reading) stop() {
	r.cancel(nil)
	for range r.pages { //nolint:revive // whoever stops it has no use for the rest
	}
}

// finish brings the rest into the mirror.
func (r *reading) finish(m *Mirror) (changes []Change) {
	for _, p := range r.rest {
		changes = append(changes, p(m)...)
	}
	return changes
}

// listPage is how much of a list is read at once.
const listPage = 1000

// turn reads a list page by page. It returns the index of the first: what changes while pages are turned
// comes as an event with a later one.
func turn[T any](q *api.QueryOptions, list func(*api.QueryOptions) ([]T, *api.QueryMeta, error), each func([]T)) (index uint64, err error) {
	for q.PerPage = listPage; ; {
		page, meta, err := list(q)
		if err != nil {
			return 0, err
		}
		if index == 0 {
			index = meta.LastIndex
		}
		each(page)
		if q.NextToken = meta.NextToken; q.NextToken == "" {
			return index, nil
		}
	}
}

func (c *Client) listNodes(ctx context.Context, known indexes, add func(page)) (page, uint64, error) {
	seen := map[string]bool{}
	group, single := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	index, err := turn(query(single), c.api.Nodes().List, func(stubs []*api.NodeListStub) {
		for _, s := range stubs {
			seen[s.ID] = true
			if have, found := known.nodes[s.ID]; found && have >= s.ModifyIndex {
				continue
			}
			group.Go(func() error {
				n, err := c.readNode(single, s.ID)
				if err == nil {
					node := NewNode(n, known.hardware)
					add(func(m *Mirror) []Change { return m.listedNode(node) })
				}
				return ignoreMissing(err)
			})
		}
		add(nothing)
	})
	return goneNodes(seen, index), index, cmp.Or(group.Wait(), err)
}

// listJobs reads the jobs that are new or changed. A job that is gone between
// list and read is left to the next list.
func (c *Client) listJobs(ctx context.Context, known indexes, add func(page)) (page, uint64, error) {
	seen := map[JobKey]bool{}
	group, single := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	index, err := turn(query(single), c.api.Jobs().List, func(stubs []*api.JobListStub) {
		for _, s := range stubs {
			key := JobKey{s.Namespace, s.ID}
			seen[key] = true
			if have, found := known.jobs[key]; found && have >= s.JobModifyIndex {
				continue
			}
			group.Go(func() error {
				q := query(single)
				q.Namespace = key.Namespace
				j, _, err := c.api.Jobs().Info(key.ID, q)
				if err == nil {
					job := NewJob(j, known.hardware)
					add(func(m *Mirror) []Change { return m.listedJob(job) })
				}
				return ignoreMissing(err)
			})
		}
		add(nothing)
	})
	return goneJobs(seen, index), index, cmp.Or(group.Wait(), err)
}

// occupying is Alloc.Holds or Alloc.Returns, as a filter of Nomad's.
const occupying = `ClientStatus != "complete" and ClientStatus != "failed" and ClientStatus != "lost"` +
	` or ClientStatus == "failed" and DesiredStatus == "run" and FollowupEvalID != "" and NextAllocation == ""`

func (c *Client) listAllocs(ctx context.Context, _ indexes, add func(page)) (page, uint64, error) {
	seen := map[string]bool{}
	q := query(ctx, "resources", "true", "task_states", "false")
	q.Filter = occupying
	index, err := turn(q, c.api.Allocations().List, func(stubs []*api.AllocationListStub) {
		list := make([]*Alloc, len(stubs))
		for i, s := range stubs {
			seen[s.ID] = true
			list[i] = NewAlloc(s)
		}
		add(func(m *Mirror) (changes []Change) {
			for _, a := range list {
				changes = append(changes, m.listedAlloc(a)...)
			}
			return changes
		})
	})
	return goneAllocs(seen, index), index, err
}

// endedAlone is what ended by itself, as a filter of Nomad's.
const endedAlone = `ClientStatus == "complete" and DesiredStatus == "run"`

// mostEnded is how many allocs that ended are read.
const mostEnded = 5 * listPage

// listEnded lists allocs that ended by themselves, as far as Nomad remembers them: how long
// they ran says how long others will. Who cannot read them learns from what ends later.
func (c *Client) listEnded(ctx context.Context, add func(page)) (changes []Change) {
	q := query(ctx, "resources", "true", "task_states", "true")
	q.Filter = endedAlone
	enough := errors.New("enough")
	_, _ = turn(q, func(q *api.QueryOptions) ([]*api.AllocationListStub, *api.QueryMeta, error) {
		if len(changes) >= mostEnded {
			return nil, nil, enough
		}
		return c.api.Allocations().List(q)
	}, func(stubs []*api.AllocationListStub) {
		for _, s := range stubs {
			changes = append(changes, Change{Past: NewAlloc(s)})
		}
		add(nothing)
	})
	return changes
}

// over is what holds nothing any more, as a filter of Nomad's.
const over = `ClientStatus == "complete" or ClientStatus == "failed" or ClientStatus == "lost"`

// Ended hands over, by pages, the allocs with devices that ended and that Nomad still
// remembers.
func (c *Client) Ended(ctx context.Context, each func([]*Alloc)) error {
	q := query(ctx, "resources", "true", "task_states", "true")
	q.Filter = over
	_, err := turn(q, c.api.Allocations().List, func(stubs []*api.AllocationListStub) {
		var page []*Alloc
		for _, s := range stubs {
			if a := NewAlloc(s); len(a.Devices) > 0 {
				page = append(page, a)
			}
		}
		each(page)
	})
	if err != nil {
		return fmt.Errorf("list allocations that ended: %w", err)
	}
	return nil
}

func (c *Client) listEvals(ctx context.Context, _ indexes, add func(page)) (page, uint64, error) {
	seen := map[string]bool{}
	q := query(ctx)
	q.Filter = `Status == "blocked"`
	index, err := turn(q, func(q *api.QueryOptions) (evals []*eventEval, meta *api.QueryMeta, err error) {
		meta, err = c.api.Raw().Query("/v1/evaluations", &evals, q)
		return evals, meta, err
	}, func(evals []*eventEval) {
		for _, e := range evals {
			seen[e.ID] = true
		}
		add(func(m *Mirror) (changes []Change) {
			for _, e := range evals {
				changes = append(changes, m.listedEval(e)...)
			}
			return changes
		})
	})
	return goneEvals(seen, index), index, err
}

// goneNodes tells of what the mirror has and a list as of an index has not.
func goneNodes(seen map[string]bool, index uint64) page {
	return func(m *Mirror) (changes []Change) {
		for id := range m.nodes {
			if !seen[id] && !m.since(id, index) {
				changes = append(changes, m.nodeGone(id)...)
			}
		}
		return changes
	}
}

// goneJobs tells of what the mirror has and a list as of an index has not.
func goneJobs(seen map[JobKey]bool, index uint64) page {
	return func(m *Mirror) (changes []Change) {
		for key := range m.jobs {
			if !seen[key] && !m.since(key.String(), index) && !m.later(key, index) {
				changes = append(changes, m.jobGone(key)...)
			}
		}
		return changes
	}
}

// goneAllocs tells of what the mirror has and a list as of an index has not.
func goneAllocs(seen map[string]bool, index uint64) page {
	return func(m *Mirror) (changes []Change) {
		for id := range m.allocs {
			if !seen[id] && !m.since(id, index) {
				delete(m.allocs, id)
				changes = append(changes, Change{AllocGone: id})
			}
		}
		return changes
	}
}

// goneEvals tells of what the mirror has and a list as of an index has not.
func goneEvals(seen map[string]bool, index uint64) page {
	return func(m *Mirror) (changes []Change) {
		for key, evals := range m.evals {
			for id := range evals {
				if !seen[id] && !m.since(id, index) {
					changes = append(changes, m.evalEnded(key, id)...)
				}
			}
		}
		return changes
	}
}
