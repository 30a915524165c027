// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/url"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
)

// nomadRefusal is Nomad's refusal of a request, to be passed on as it is.
type nomadRefusal struct{ answer }

func (r *nomadRefusal) Error() string { return fmt.Sprintf("Nomad answers %d: %s", r.status, r.body) }

// write answers as Nomad did.
func (r *nomadRefusal) write(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(r.status)
	_, _ = w.Write(r.body) // the client that cannot be written to is gone
}

// never is an index, and a version, that no job has: a registration, a scaling or a revert
// that is to happen only there changes nothing, after Nomad has looked at the caller's rights.
const never = math.MaxUint64

// noJobsID is an ID that Nomad lets no job have, and noParent and noPeriodic its answers to a
// dispatch and to a force of a job that is not there, once it has looked at the caller's rights.
const (
	noJobsID   = "no job"
	noParent   = "parameterized job not found"
	noPeriodic = "job not found"
)

// attempt asks Nomad what it would answer, and changes nothing. The error is a
// *nomadRefusal where Nomad refuses; nil where it would do what it was asked for. Of a
// dispatch and a force it is asked whether the caller may, and nothing else.
func (p *proxy) attempt(ctx context.Context, s *submission) error {
	body, wouldDo, err := attemptOf(s)
	if err != nil || body == nil {
		return err
	}
	path := jobPrefix + url.PathEscape(s.route.jobID) + "/scale?" + s.where().Encode()
	switch s.route.kind {
	case registered:
		path = "/v1/jobs?" + s.r.URL.RawQuery
	case reverted:
		path = jobPrefix + url.PathEscape(s.route.jobID) + "/revert?" + s.where().Encode()
	case dispatched:
		path = jobPrefix + url.PathEscape(noJobsID) + "/dispatch?" + s.where().Encode()
	case forced:
		path = jobPrefix + url.PathEscape(noJobsID) + "/periodic/force?" + s.where().Encode()
	}
	got, err := p.nomadDo(ctx, http.MethodPut, path, s.token(), body)
	if err != nil {
		return err
	}
	if got.status < http.StatusMultipleChoices || strings.Contains(string(got.body), wouldDo) {
		return nil
	}
	return &nomadRefusal{got}
}

// attemptOf is the request as it changes nothing, and by what Nomad's answer is known
// when it would have carried out the request.
func attemptOf(s *submission) (body []byte, wouldDo string, err error) {
	switch s.route.kind {
	case registered:
		var r map[string]json.RawMessage
		if err := json.Unmarshal(s.body, &r); err != nil {
			return nil, "", nil
		}
		maps.DeleteFunc(r, func(key string, _ json.RawMessage) bool {
			return strings.EqualFold(key, "EnforceIndex") || strings.EqualFold(key, "JobModifyIndex")
		})
		r["EnforceIndex"], r["JobModifyIndex"] = json.RawMessage("true"), json.RawMessage(fmt.Sprint(uint64(never)))
		body, err = json.Marshal(r)
		return body, api.RegisterEnforceIndexErrPrefix, err
	case scaled:
		var r api.ScalingRequest
		if err := json.Unmarshal(s.body, &r); err != nil {
			return nil, "", malformed("the scaling", err)
		}
		r.JobModifyIndex = never
		body, err = json.Marshal(r)
		return body, api.RegisterEnforceIndexErrPrefix, err
	case reverted:
		var r api.JobRevertRequest
		if err := json.Unmarshal(s.body, &r); err != nil {
			return nil, "", malformed("the revert", err)
		}
		r.EnforcePriorVersion = new(uint64)
		*r.EnforcePriorVersion = never
		body, err = json.Marshal(r)
		return body, fmt.Sprintf("enforcing version %d", uint64(never)), err
	case dispatched:
		return []byte("{}"), noParent, nil
	case forced:
		return []byte("{}"), noPeriodic, nil
	}
	return nil, "", nil
}

// wait has a group without running allocs wait before it is scaled, where the new
// count has to. It refuses where that cannot be.
func (p *proxy) wait(ctx context.Context, s *submission, decisions []admit.Decision) error {
	if len(decisions) == 0 || decisions[0].Hold == nil {
		return nil
	}
	if p.config.Hold == nil || s.gangRuns {
		return heldRefusal(decisions)
	}
	if err := p.attempt(ctx, s); err != nil {
		return err
	}
	done, err := p.turns.take(ctx, s.job.Namespace+"\x00"+s.job.ID)
	if err != nil {
		return err
	}
	defer done()
	if err := p.config.Hold(ctx, s.job.Namespace, s.job.ID, s.job.Asks[0].Group, *decisions[0].Hold); err != nil {
		return fmt.Errorf("have group %q wait before it is scaled: %w", s.job.Asks[0].Group, err)
	}
	return p.renewIndex(ctx, s)
}

// renewIndex replaces the index that a scaling is bound to, where it is, by that which
// the hold gave the job. Where that cannot be read Nomad finds another one and refuses.
func (p *proxy) renewIndex(ctx context.Context, s *submission) error {
	var r api.ScalingRequest
	if err := json.Unmarshal(s.body, &r); err != nil || r.JobModifyIndex == 0 {
		return err
	}
	text, err := p.fetchText(ctx, s, -1)
	if now := modifyIndex(text); err == nil && now != 0 {
		r.JobModifyIndex = now
	}
	s.body, err = json.Marshal(r)
	return err
}

// modifyIndex is the index of a job's last change; 0 where it cannot be read.
func modifyIndex(job []byte) uint64 {
	var head struct{ JobModifyIndex uint64 }
	if json.Unmarshal(job, &head) != nil {
		return 0
	}
	return head.JobModifyIndex
}
