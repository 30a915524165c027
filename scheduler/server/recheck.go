package server

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/server/peer"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// recheck handles requests that make Nomad run more of a registered job. The
// job has its device blocks since it was admitted, so the request goes to Nomad
// as it came; but what could never be placed, or is above the quota, is refused
// while there is a caller to tell. What Nomad itself refuses is refused with its own
// words, and what is scaled from zero may wait, as a job may. Whatever cannot be
// checked passes: Nomad counts, and the control loop sees it.
func (p *proxy) recheck(w http.ResponseWriter, r *http.Request, rt route) {
	s := &submission{w: w, r: r, route: rt, began: time.Now()}
	var err error
	if s.body, err = p.readBody(w, r); err != nil {
		p.refuse(s, err)
		return
	}
	s.body = firstValue(s.body)
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
	leave := func() {}
	if err == nil {
		leave, err = p.dispatchTurn(ctx, s)
	}
	defer leave()
	var decisions []admit.Decision
	if err == nil {
		decisions, err = p.tryOut(ctx, s)
	}
	if err == nil && s.route.kind == scaled {
		err = p.wait(ctx, s, decisions)
	} else if err == nil {
		err = heldRefusal(decisions)
	}
	if err != nil {
		p.refuseRecheck(ctx, s, err)
		return
	}
	decided := time.Now()
	p.toNomad(s, s.body, func(resp *http.Response) error {
		if err := p.noteDispatch(s, resp); err != nil {
			return err
		}
		leave() // before its client reads the answer
		groups := groupsOf(s.job.Asks, decisions)
		p.audit(s, groups, outcomeOf(decisions, resp.StatusCode), decided)
		if rt.kind != scaled {
			return nil
		}
		return annotate(resp, notes(registered, decisions), groups)
	})
}

// dispatchTurn waits until no other dispatch is under way: each is decided about beside what
// those before it take of the quota. Other requests have no turn.
func (p *proxy) dispatchTurn(ctx context.Context, s *submission) (leave func(), err error) {
	if s.route.kind != dispatched {
		return func() {}, nil
	}
	done, err := p.turns.take(ctx, "dispatch")
	if err != nil {
		return func() {}, err
	}
	return sync.OnceFunc(done), nil
}

// tryOut decides without effect; nothing where the decider cannot.
func (p *proxy) tryOut(ctx context.Context, s *submission) ([]admit.Decision, error) {
	decisions, err := p.config.Decider.Decide(ctx, s.job.Asks, true)
	if err != nil && refusalOf(err).Status >= 500 {
		return nil, nil
	}
	return decisions, err
}

// noteDispatch tells of the child that Nomad has made.
func (p *proxy) noteDispatch(s *submission, resp *http.Response) error {
	if s.route.kind != dispatched || p.config.Dispatched == nil || resp.StatusCode >= http.StatusMultipleChoices {
		return nil
	}
	text, err := io.ReadAll(http.MaxBytesReader(nil, resp.Body, peer.MaxAnswer))
	_ = resp.Body.Close()
	if err != nil {
		return fmt.Errorf("read Nomad's answer: %w", err)
	}
	resp.Body = io.NopCloser(bytes.NewReader(text))
	var made struct{ DispatchedJobID string }
	if json.Unmarshal(text, &made) == nil && made.DispatchedJobID != "" {
		p.config.Dispatched(s.job.Namespace, made.DispatchedJobID, s.job.Asks)
	}
	return nil
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
// a job, a dispatch or a revert cannot be registered waiting, and Nomad takes no
// change of a dispatched job.
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
func (p *proxy) registered(ctx context.Context, s *submission) (*admit.Job, error) {
	// What cannot be read, Nomad refuses.
	var scaling struct {
		Count          *int64
		Target         map[string]string
		JobModifyIndex uint64
	}
	if s.route.kind == scaled && json.Unmarshal(s.body, &scaling) != nil {
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
	if now := modifyIndex(text); text != nil && scaling.JobModifyIndex != 0 && scaling.JobModifyIndex != now {
		// As Nomad does. By the time that it is there the job may be what the index says.
		return nil, &nomadRefusal{answer{http.StatusInternalServerError, fmt.Appendf(nil,
			"%s %d: job exists with conflicting job modify index: %d", api.RegisterEnforceIndexErrPrefix, scaling.JobModifyIndex, now)}}
	}
	job := p.readFetched(s, text)
	if job == nil {
		return nil, nil
	}
	switch s.route.kind {
	case scaled:
		s.gangRuns = othersRun(job.Asks, scaling.Target["Group"])
		var err error
		if job.Asks, err = scaledTo(job.Asks, scaling.Target["Group"], scaling.Count); err != nil {
			return nil, err
		}
	case dispatched:
		if err := becomeChild(job, s.body); err != nil {
			return nil, err
		}
	}
	return job, nil
}

// becomeChild makes the asks of a parameterized job those of a child, which runs at once.
func becomeChild(job *admit.Job, body []byte) error {
	var dispatch struct {
		Meta     map[string]string
		Priority int
	}
	if json.Unmarshal(body, &dispatch) != nil {
		dispatch.Meta, dispatch.Priority = nil, 0 // Nomad refuses it
	}
	for i := range job.Asks {
		job.Asks[i].Later = false
		job.Asks[i].Priority = cmp.Or(dispatch.Priority, job.Asks[i].Priority)
	}
	if len(job.Asks) == 0 {
		return nil
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

// fetchText reads the job that a request is about with the caller's token; version -1 is the
// newest. It is nil where there is none for the caller to read.
func (p *proxy) fetchText(ctx context.Context, s *submission, version int64) ([]byte, error) {
	path := jobPrefix + url.PathEscape(s.route.jobID)
	if version >= 0 {
		path += "/versions"
	}
	got, err := p.nomadGet(ctx, path+"?"+s.where().Encode(), s.token())
	switch {
	case err != nil:
		return nil, err
	case got.denied() || got.status == http.StatusNotFound:
		return nil, nil
	case got.status != http.StatusOK:
		return nil, fmt.Errorf("read job %q: Nomad answers %d", s.route.jobID, got.status)
	case version >= 0:
		return jobVersion(got.body, version), nil
	}
	return got.body, nil
}

// readFetched is a job as Nomad gave it; nil where it cannot be read.
func (p *proxy) readFetched(s *submission, text []byte) *admit.Job {
	if text == nil {
		return nil
	}
	job, err := admit.Read(wrapJob(text), admit.Query{Namespace: s.where().Get("namespace"), Devices: p.config.Devices})
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
