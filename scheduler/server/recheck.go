package server

import (
	"context"
	"encoding/json"
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
// while there is somebody to tell. Whatever cannot be checked passes: Nomad
// counts, and the control loop sees it.
func (p *proxy) recheck(w http.ResponseWriter, r *http.Request, rt route) {
	s := &submission{w: w, r: r, route: rt, began: time.Now()}
	var err error
	if s.body, err = p.readBody(w, r); err != nil {
		p.refuse(s, err)
		return
	}
	if !p.ownRegion(r.URL.Query().Get("region")) { // its jobs are not seen here
		p.toNomad(s, s.body, nil)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), p.config.Limits.DecideTimeout)
	defer cancel()
	s.job = p.registered(ctx, s)
	if s.job == nil || len(s.job.Asks) == 0 {
		p.toNomad(s, s.body, nil)
		return
	}
	if p.hand(ctx, s) {
		return
	}
	decisions, err := p.config.Decider.Decide(ctx, s.job.Asks, true)
	if err == nil {
		err = heldRefusal(decisions)
	}
	if err != nil && refusalOf(err).Status < 500 {
		p.refuse(s, err)
		return
	}
	decided := time.Now()
	p.toNomad(s, s.body, func(resp *http.Response) error {
		p.audit(s, groupsOf(s.job.Asks, decisions), outcomeOf(decisions, resp.StatusCode), decided)
		return nil
	})
}

// heldRefusal refuses what would have to wait for quota or for reserved room:
// unlike a job, a scaling or a dispatch cannot be registered waiting.
func heldRefusal(decisions []admit.Decision) error {
	for _, d := range decisions {
		if d.Hold != nil && d.Hold.Kind != view.WaitsForPriority {
			return &admit.Refusal{Status: http.StatusConflict,
				Text:    fmt.Sprintf("group %q would wait for %s: %s", d.Group, d.Hold.Kind, d.Hold.Sentence),
				Details: []string{"try again when there is some, or submit a job: that may wait"}}
		}
	}
	return nil
}

// registered is the job that the request is about, as it would run; nil where
// nothing has to be checked.
func (p *proxy) registered(ctx context.Context, s *submission) *admit.Job {
	var body struct {
		Count      *int64
		Target     map[string]string
		JobVersion uint64
	}
	if err := json.Unmarshal(s.body, &body); err != nil && s.route.kind != dispatched {
		return nil
	}
	version := int64(-1)
	if s.route.kind == reverted {
		version = int64(body.JobVersion)
	}
	job := p.fetch(ctx, s, version)
	if job == nil {
		return nil
	}
	switch s.route.kind {
	case scaled:
		job.Asks = grown(job.Asks, body.Target["Group"], body.Count)
	case dispatched: // the child runs at once
		for i := range job.Asks {
			job.Asks[i].Later = false
		}
	}
	return job
}

// grown is the ask of the group that gets more allocs; none when it does not.
func grown(asks []admit.Ask, group string, count *int64) []admit.Ask {
	for _, ask := range asks {
		if ask.Group == group && count != nil && *count > int64(ask.Count) {
			ask.Count = int(*count)
			return []admit.Ask{ask}
		}
	}
	return nil
}

// fetch reads a registered job with the caller's token; version -1 is the
// newest.
func (p *proxy) fetch(ctx context.Context, s *submission, version int64) *admit.Job {
	path := jobPrefix + url.PathEscape(s.route.jobID)
	if version >= 0 {
		path += "/versions"
	}
	got, err := p.nomadGet(ctx, path+"?"+s.r.URL.RawQuery, s.token())
	if err != nil || got.status != http.StatusOK {
		return nil
	}
	text := got.body
	if version >= 0 {
		if text = jobVersion(text, version); text == nil {
			return nil
		}
	}
	job, err := admit.Read(wrapJob(text), admit.Query{Namespace: s.r.URL.Query().Get("namespace"), Devices: p.config.Devices})
	if err != nil {
		return nil
	}
	return job
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

// preserveCounts takes the counts of the registered job, as Nomad will.
func (p *proxy) preserveCounts(ctx context.Context, s *submission) {
	registered := *s
	registered.route.jobID = s.job.ID
	job := p.fetch(ctx, &registered, -1)
	if job == nil {
		return
	}
	for i := range s.job.Asks {
		for _, have := range job.Asks {
			if have.Group == s.job.Asks[i].Group {
				s.job.Asks[i].Count = have.Count
			}
		}
	}
}
