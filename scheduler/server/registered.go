// SPDX-License-Identifier: MPL-2.0

package server

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
)

// registered is the job that the request is about, as it would run; nil where
// nothing has to be checked.
func (p *proxy) registered(ctx context.Context, s *submission) (*admit.Job, error) {
	// What cannot be read, Nomad refuses.
	var scaling struct {
		Count          *int64
		Target         map[string]string
		JobModifyIndex uint64
	}
	if s.route.kind == scaled && (json.Unmarshal(s.body, &scaling) != nil || scaling.Count == nil) {
		return nil, nil
	}
	version := int64(-1)
	if s.route.kind == reverted {
		var revert struct{ JobVersion uint64 }
		if json.Unmarshal(s.body, &revert) != nil {
			return nil, nil
		}
		version = int64(revert.JobVersion)
	}
	text, err := p.fetchText(ctx, s, version)
	if err != nil {
		return nil, err
	}
	if text == nil {
		return nil, noJob(s, version)
	}
	s.index = modifyIndex(text)
	if now := s.index; scaling.JobModifyIndex != 0 && scaling.JobModifyIndex != now {
		// As Nomad does. By the time that it is there the job may be what the index says.
		return nil, &nomadRefusal{answer{http.StatusInternalServerError, fmt.Appendf(nil,
			"%s %d: job exists with conflicting job modify index: %d", api.RegisterEnforceIndexErrPrefix, scaling.JobModifyIndex, now)}}
	}
	job, err := p.readFetched(s, text)
	if err != nil && s.route.kind == scaled && !grows(text, scaling.Target["Group"], *scaling.Count) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if s.route.kind == scaled && job.HasHoldGroup() || s.route.kind == reverted && job.HasHoldGroup() && !job.HoldsChildren() {
		return nil, &admit.Refusal{Status: http.StatusUnprocessableEntity,
			Text:    fmt.Sprintf("the counts of job %q are what its children wait and start by", job.ID),
			Details: []string{"register the job with another count, stop it, or dispatch another one"}}
	}
	switch s.route.kind {
	case scaled:
		s.gangRuns = othersRun(job.Asks, scaling.Target["Group"])
		var err error
		if job.Asks, err = scaledTo(job.Asks, scaling.Target["Group"], scaling.Count); err != nil {
			return nil, err
		}
	case dispatched, forced:
		if err := becomeChild(job, s); err != nil {
			return nil, err
		}
	}
	return job, checkDispatched(job)
}

// checkDispatched refuses more of a job that was dispatched around the service.
func checkDispatched(job *admit.Job) error {
	if !job.Dispatched || len(job.Asks) == 0 {
		return nil
	}
	return &admit.Refusal{Status: http.StatusUnprocessableEntity,
		Text:    fmt.Sprintf("job %q was dispatched, and Nomad lets no such job be changed: more of it could neither wait for its quota nor be taken back", job.ID),
		Details: []string{"dispatch another one, or submit a job"}}
}

// becomeChild makes the asks of a parameterized or periodic job those of a child.
func becomeChild(job *admit.Job, s *submission) error {
	var dispatch struct {
		Meta     map[string]string
		Priority int
	}
	if s.route.payload || json.Unmarshal(s.body, &dispatch) != nil {
		dispatch.Meta, dispatch.Priority = nil, 0 // Nomad refuses it
	}
	for i := range job.Asks {
		job.Asks[i].Priority = cmp.Or(dispatch.Priority, job.Asks[i].Priority)
	}
	if job.BecomeChild(); len(job.Asks) == 0 {
		return nil
	}
	if err := job.CheckChildren(); err != nil {
		return err
	}
	return admit.CheckDispatch(dispatch.Meta)
}

// scaledTo is the ask of the group that gets more allocs, and behind it those that it
// starts together with; none when it does not.
func scaledTo(asks []admit.Ask, group string, count *int64) ([]admit.Ask, error) {
	for i, ask := range asks {
		if ask.Group != group || count == nil {
			continue
		}
		if err := ask.CheckScale(int(*count)); err != nil {
			return nil, err
		}
		if *count <= int64(ask.Count) {
			continue
		}
		fromZero := ask.Count == 0
		ask.Count = int(*count)
		together := []admit.Ask{ask}
		for k, other := range asks {
			if k != i && fromZero && ask.Gang && other.Gang {
				together = append(together, other)
			}
		}
		return together, nil
	}
	return nil, nil
}

// othersRun reports whether a group starts together with others of which some were let go.
func othersRun(asks []admit.Ask, group string) bool {
	gang := slices.ContainsFunc(asks, func(a admit.Ask) bool { return a.Group == group && a.Gang })
	return gang && slices.ContainsFunc(asks, func(a admit.Ask) bool {
		return a.Group != group && a.Gang && a.Count > 0 && (a.Was == nil || a.Was.Hold == "")
	})
}

// fetchText reads the job that a request is about; version -1 is the newest. It is nil where
// there is none. It is read with the caller's token, and with the service's own for a caller
// who may not read it and whom Nomad lets do what the request asks for.
func (p *proxy) fetchText(ctx context.Context, s *submission, version int64) ([]byte, error) {
	path := jobPrefix + url.PathEscape(s.route.jobID)
	if version >= 0 {
		path += "/versions"
	}
	token, err := s.token(), error(nil)
	if s.blind && p.config.Token != nil {
		token, err = p.config.Token()
	}
	if err != nil {
		return nil, err
	}
	got, err := p.nomadGet(ctx, path+"?"+s.where().Encode(), token)
	switch {
	case err != nil:
		return nil, err
	case got.denied() && !s.blind:
		if err := p.attempt(ctx, s); err != nil {
			return nil, err
		}
		s.blind = true
		return p.fetchText(ctx, s, version)
	case got.status == http.StatusNotFound:
		return nil, nil
	case got.status != http.StatusOK:
		return nil, fmt.Errorf("read job %q: Nomad answers %d", s.route.jobID, got.status)
	case version >= 0:
		return jobVersion(got.body, version), nil
	}
	return got.body, nil
}

// noJob is what Nomad says of a job, or of a version, that is not there. It is not asked:
// by the time that it is, there may be one, which was not decided about.
func noJob(s *submission, version int64) *nomadRefusal {
	switch {
	case s.route.kind == dispatched:
		return &nomadRefusal{answer{http.StatusInternalServerError, []byte(noParent)}}
	case s.route.kind == forced:
		return &nomadRefusal{answer{http.StatusInternalServerError, []byte(noPeriodic)}}
	case version >= 0:
		return &nomadRefusal{answer{http.StatusInternalServerError, fmt.Appendf(nil, "job %q at version %d not found", s.route.jobID, version)}}
	}
	return &nomadRefusal{answer{http.StatusNotFound, fmt.Appendf(nil, "job %q not found", s.route.jobID)}}
}

// grows reports whether a group of a job would have more allocs than it is registered with.
func grows(job []byte, group string, count int64) bool {
	var have struct {
		TaskGroups []struct {
			Name  string
			Count *int64
		}
	}
	if json.Unmarshal(job, &have) != nil {
		return true
	}
	for _, g := range have.TaskGroups {
		if g.Name == group {
			return g.Count == nil || count > *g.Count
		}
	}
	return false // Nomad refuses it
}

// readFetched is a job as Nomad gave it.
func (p *proxy) readFetched(s *submission, text []byte) (*admit.Job, error) {
	return admit.Read(wrapJob(text), admit.Query{Namespace: s.where().Get("namespace"), Devices: p.config.Devices, Registered: true})
}

// jobVersion finds one version in the answer of the versions route.
func jobVersion(text []byte, version int64) []byte {
	var answer struct{ Versions []json.RawMessage }
	if err := json.Unmarshal(text, &answer); err != nil {
		return nil
	}
	for _, raw := range answer.Versions {
		var v struct{ Version int64 }
		if json.Unmarshal(raw, &v) == nil && v.Version == version {
			return raw
		}
	}
	return nil
}

func wrapJob(job []byte) []byte {
	return append(append([]byte(`{"Job":`), job...), '}')
}
