// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
)

// refuse answers with the refusal's text, which the nomad command prints as it
// stands. Other errors are the service's own fault.
func (p *proxy) refuse(s *submission, err error) {
	refusal := refusalOf(err)
	p.auditRefusal(s, refusal)
	if s.blind {
		refusal = s.plain(refusal)
	}
	s.traceOutcome(Record{Outcome: "refused", Status: refusal.Status})
	if refusal.Status >= 500 {
		p.log.Warn("admission failed", "path", s.r.URL.Path, "error", err)
	}
	if s.route.kind == validated && refusal.Status < 500 {
		invalid(s.w, refusal)
		return
	}
	h := s.w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	s.w.WriteHeader(refusal.Status)
	_, _ = s.w.Write([]byte(refusal.Error() + "\n"))
}

// plain is a refusal without what a caller who may not read the job would learn of it.
func (s *submission) plain(refusal *admit.Refusal) *admit.Refusal {
	if refusal.Status >= 500 {
		return &admit.Refusal{Status: refusal.Status, Text: "the placement service cannot decide now; try again in a few seconds"}
	}
	return &admit.Refusal{Status: refusal.Status, Text: fmt.Sprintf("the placement service does not let more of job %.128q start now; the reason is for tokens with read-job in its namespace", s.route.jobID)}
}

// invalid is the refusal as an answer to a validation: an error status would
// make the nomad command believe that it reached no server.
func invalid(w http.ResponseWriter, refusal *admit.Refusal) {
	w.Header().Set("Content-Type", "application/json")
	// The client that cannot be written to is gone.
	_ = json.NewEncoder(w).Encode(api.JobValidateResponse{
		DriverConfigValidated: true, ValidationErrors: []string{refusal.Error()}, Error: refusal.Error()})
}

// refusalOf turns any error into an answer.
func refusalOf(err error) *admit.Refusal {
	if refusal := (*admit.Refusal)(nil); errors.As(err, &refusal) {
		return refusal
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return &admit.Refusal{Status: http.StatusServiceUnavailable, Text: "the placement service could not decide in time; try again"}
	}
	return &admit.Refusal{Status: http.StatusServiceUnavailable, Text: "the placement service cannot decide: " + err.Error()}
}

// refuseDecided refuses on grounds that lie in the cluster. No caller learns them
// who may not submit the job: Nomad is asked first, with the caller's token.
func (p *proxy) refuseDecided(ctx context.Context, s *submission, err error) {
	if refusalOf(err).Status < 500 {
		denied, planErr := p.plan(ctx, s)
		if planErr != nil {
			p.unreachable(s.w, s.r, planErr)
			return
		}
		if denied != nil {
			s.traceOutcome(Record{Outcome: "rejected", Status: denied.status})
			http.Error(s.w, string(denied.body), denied.status)
			return
		}
	}
	p.refuse(s, err)
}

// plan asks Nomad to plan the job as it came, and returns the answer if the
// caller is not allowed to, nor to register it.
func (p *proxy) plan(ctx context.Context, s *submission) (*answer, error) {
	path := jobPrefix + url.PathEscape(s.job.ID) + "/plan?" + s.r.URL.RawQuery
	got, err := p.nomadDo(ctx, http.MethodPut, path, s.token(), s.body)
	if err != nil || !got.denied() {
		return nil, err
	}
	if s.route.kind != registered {
		return &got, nil
	}
	err = p.attempt(ctx, s)
	if refusal := (*nomadRefusal)(nil); errors.As(err, &refusal) {
		if refusal.denied() {
			return &refusal.answer, nil
		}
		return nil, nil
	}
	return nil, err
}

// mayDecide refuses whom Nomad would refuse in the end, before a decision takes time in
// which others wait. To validate a job one need not be allowed to submit it.
func (p *proxy) mayDecide(ctx context.Context, s *submission) error {
	if p.config.Denied == nil || s.route.kind == validated || !p.config.Denied(ctx, s.token(), s.job.Namespace) {
		return nil
	}
	return &admit.Refusal{Status: http.StatusForbidden,
		Text: fmt.Sprintf("the Nomad token may not submit jobs in namespace %.128q; send one that may in the header X-Nomad-Token", s.job.Namespace)}
}

// took is how long the service had the submission before t.
func (s *submission) took(t time.Time) time.Duration { return t.Sub(s.began) }
