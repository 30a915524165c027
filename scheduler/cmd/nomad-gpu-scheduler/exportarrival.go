// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// jobVersion is a job as it was registered once.
type jobVersion struct {
	*nomad.Job
	from      *api.Job
	submitted time.Time
}

// versions are the versions of a job that Nomad remembers, the newest first; none where the
// job is gone.
func (e *exporter) versions(key nomad.JobKey) ([]jobVersion, error) {
	if known, found := e.jobs[key]; found {
		return known, nil
	}
	list, _, _, err := e.client.Jobs().Versions(key.ID, false, &api.QueryOptions{Namespace: key.Namespace})
	var answer api.UnexpectedResponseError
	if err != nil && !(errors.As(err, &answer) && answer.StatusCode() == http.StatusNotFound) {
		return nil, fmt.Errorf("read job %q: %w", key, err)
	}
	var out []jobVersion
	for _, j := range list {
		v := jobVersion{Job: nomad.NewJob(j, nomad.Hardware{}), from: j}
		if j.SubmitTime != nil {
			v.submitted = time.Unix(0, *j.SubmitTime)
		}
		out = append(out, v)
	}
	slices.SortFunc(out, func(x, y jobVersion) int { return int(y.Version) - int(x.Version) })
	e.jobs[key] = out
	return out, nil
}

// versionOf is a version of a job, or the newest where Nomad remembers that one no more; nil:
// the job is gone.
func versionOf(versions []jobVersion, version uint64) *jobVersion {
	if len(versions) == 0 {
		return nil
	}
	if i := slices.IndexFunc(versions, func(v jobVersion) bool { return v.Version == version }); i >= 0 {
		return &versions[i]
	}
	return &versions[0]
}

// arrivals say since when allocs were wanted: since the evaluation that began to look for
// their room or, where the service held their job before that, since it was submitted.
type arrivals struct {
	evals   map[string]*api.Evaluation
	blocked map[nomad.JobKey]*api.Evaluation
	// replaces are the allocs that stand in for others, which failed or had to go: their
	// job was submitted long before.
	replaces map[string]bool
}

func newArrivals(evals []*api.Evaluation, allocs []*api.AllocationListStub) *arrivals {
	r := &arrivals{map[string]*api.Evaluation{}, map[nomad.JobKey]*api.Evaluation{}, map[string]bool{}}
	for _, e := range evals {
		r.evals[e.ID] = e
		if e.Status == "blocked" {
			r.blocked[nomad.JobKey{Namespace: e.Namespace, ID: e.JobID}] = e
		}
	}
	for _, a := range allocs {
		r.replaces[a.NextAllocation] = true
	}
	return r
}

// again are the triggers of evaluations that go on with an earlier one.
var again = []string{"queued-allocs", "max-plan-attempts", "failed-follow-up"}

// root is the evaluation that one goes on with; nil: it is not known.
func (r *arrivals) root(id string) *api.Evaluation {
	e := r.evals[id]
	for range len(r.evals) {
		if e == nil || r.evals[e.PreviousEval] == nil || !slices.Contains(again, e.TriggeredBy) {
			break
		}
		e = r.evals[e.PreviousEval]
	}
	return e
}

// of is when an alloc was asked for first.
func (r *arrivals) of(a *nomad.Alloc, evalID string, versions []jobVersion) time.Time {
	at, registered := a.Created, true
	if e := r.root(evalID); e != nil && !began(e).After(at) { // else it is forgotten, or that of a later change in place
		at, registered = began(e), registers(e)
	}
	if r.replaces[a.ID] || !registered {
		return at
	}
	return submitted(versions, a.Group, at)
}

// began is when an evaluation began to look for room: after the delay of a reschedule block.
func began(e *api.Evaluation) time.Time {
	at := time.Unix(0, e.CreateTime)
	if e.WaitUntil.After(at) {
		return e.WaitUntil
	}
	return at
}

// ofPending is when something that waits was asked for first.
func (r *arrivals) ofPending(p *view.Pending, versions []jobVersion) time.Time {
	e := r.blocked[nomad.JobKey{Namespace: p.Namespace, ID: p.JobID}]
	if e == nil {
		return p.Since
	}
	at := p.Since
	if e = r.root(e.ID); began(e).Before(at) {
		at = began(e)
	}
	if !registers(e) {
		return at
	}
	return submitted(versions, p.Group, at)
}

// registers reports whether an evaluation comes of a registration, as far as that is known.
func registers(e *api.Evaluation) bool {
	return e.TriggeredBy == "job-register" || slices.Contains(again, e.TriggeredBy)
}

// submitted is when a group was submitted that was registered as it is at a time: the service
// registers a job that it holds, and again when it lets it go.
func submitted(versions []jobVersion, group string, at time.Time) time.Time {
	i := slices.IndexFunc(versions, func(v jobVersion) bool { return !v.submitted.IsZero() && !v.submitted.After(at) })
	for ; i >= 0 && i+1 < len(versions) && versions[i+1].holds(group); i++ {
		if before := versions[i+1].submitted; before.Before(at) {
			at = before
		}
	}
	return at
}

// holds reports whether a version has a group wait for the service.
func (v *jobVersion) holds(group string) bool {
	g := v.Group(group)
	return g != nil && g.Was != nil && g.Was.Hold != ""
}
