// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// recheck handles requests that make Nomad run more of a registered job. The
// job has its device blocks since it was admitted, so the request goes to Nomad
// as it came; but what could never be placed, or is above the quota, is refused
// while there is a caller to tell. What Nomad itself refuses is refused with its own
// words, and what is scaled from zero may wait, as a job may. What cannot be checked is
// refused. Children that are born waiting may wait as well.
func (p *proxy) recheck(w http.ResponseWriter, r *http.Request, rt route) {
	s := &submission{w: w, r: r, route: rt, began: time.Now()}
	var err error
	if s.body, err = p.readBody(w, r); err != nil {
		p.refuse(s, err)
		return
	}
	if !rt.payload {
		s.body = firstValue(s.body)
	}
	if !p.ownRegion(s.where().Get("region")) { // its jobs are not seen here
		p.toNomad(s, s.body, nil)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), p.config.Limits.DecideTimeout)
	defer cancel()
	s.job, err = p.registered(ctx, s)
	if err == nil && (s.job == nil || len(s.job.Asks) == 0) {
		p.toNomad(s, s.body, nil)
		return
	}
	if err == nil && p.hand(ctx, s) {
		return
	}
	var decisions []admit.Decision
	if err == nil {
		decisions, err = p.config.Decider.Decide(ctx, s.job.Asks, true)
	}
	if err == nil && s.route.kind == scaled {
		err = p.wait(ctx, s, decisions)
	} else if err == nil && !(s.route.startsChild() && s.job.HoldsChildren()) {
		err = heldRefusal(decisions)
	}
	if err != nil {
		p.refuseRecheck(ctx, s, err)
		return
	}
	if s.route.kind == dispatched && !s.route.payload {
		if s.body, err = s.job.BoundDispatch(s.body, decisions); err != nil {
			p.refuse(s, err)
			return
		}
	}
	decided := time.Now()
	p.toNomad(s, s.body, func(resp *http.Response) error {
		groups := groupsOf(s.job.Asks, decisions)
		p.audit(s, groups, outcomeOf(decisions, resp.StatusCode), decided)
		if rt.kind != scaled || s.blind {
			return nil
		}
		return annotate(resp, notes(registered, decisions), groups)
	})
}

// refuseRecheck refuses, with Nomad's own words where Nomad would refuse as well.
func (p *proxy) refuseRecheck(ctx context.Context, s *submission, err error) {
	var refusal *nomadRefusal
	if errors.As(err, &refusal) || errors.As(p.attempt(ctx, s), &refusal) {
		refusal.write(s.w)
		return
	}
	p.refuse(s, err)
}

// heldRefusal refuses what would have to wait for quota or for reserved room: unlike
// a job, a revert cannot be registered waiting, nor can a child of a job that came around the service.
func heldRefusal(decisions []admit.Decision) error {
	for _, d := range decisions {
		if d.Hold != nil && d.Hold.Kind != view.WaitsForPriority && d.Hold.Kind != view.WaitsForHeadroom {
			return &admit.Refusal{Status: http.StatusConflict,
				Text:    fmt.Sprintf("group %q would wait for %s: %s", d.Group, d.Hold.Kind, d.Hold.Sentence),
				Details: []string{"try again when there is some, or submit a job: that may wait"}}
		}
	}
	return nil
}

// preserve writes into a submission what Nomad would keep of the registered job.
func (p *proxy) preserve(ctx context.Context, s *submission) error {
	if s.job == nil || s.route.kind != registered || !s.job.Preserves() || !p.seesRegion(s.job.Region) {
		return nil
	}
	at := url.Values{"namespace": {s.job.Namespace}}
	got, err := p.nomadGet(ctx, jobPrefix+url.PathEscape(s.job.ID)+"?"+at.Encode(), s.token())
	switch {
	case err != nil:
		return err
	case got.status == http.StatusNotFound:
		return nil // Nomad keeps nothing
	case got.denied():
		return &admit.Refusal{Status: http.StatusForbidden, Text: fmt.Sprintf("what is to be kept of the registered job cannot be read: the Nomad token needs read-job in namespace %q", s.job.Namespace)}
	case got.status != http.StatusOK:
		return fmt.Errorf("read the registered job: Nomad answers %d", got.status)
	}
	if s.body, err = s.job.Preserve(got.body); err != nil {
		return err
	}
	return p.readJob(s)
}
