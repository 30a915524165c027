// SPDX-License-Identifier: MPL-2.0

package server

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/server/peer"
	"github.com/nomad-gpu/nomad-gpu/scheduler/trace"
)

// submission is one job on its way through the service.
type submission struct {
	w     http.ResponseWriter
	r     *http.Request
	route route
	body  []byte
	job   *admit.Job
	began time.Time
	span  *trace.Span // nil: it is not traced
	// gangRuns is set where the group that is scaled starts together with others, which
	// were let go: what waits as one would stop them.
	gangRuns bool
	// blind is set where the caller may not read the job that the request is about: it is
	// read with the service's own token, and nothing of it is told.
	blind bool
	// index is when the job that the request is about was registered, for Nomad.
	index uint64
}

// admit reads the job, has it decided, writes the decision into it and hands it
// to Nomad with the caller's own token.
func (p *proxy) admit(w http.ResponseWriter, r *http.Request, rt route) {
	s := &submission{w: w, r: r, route: rt, began: time.Now()}
	if err := p.read(s); err != nil {
		p.refuse(s, err)
		return
	}
	until := time.Now().Add(p.config.Limits.DecideTimeout)
	asking, answered := context.WithDeadline(r.Context(), until)
	defer answered()
	if err := p.preserve(asking, s); err != nil {
		p.refuse(s, err)
		return
	}
	if s.job == nil || len(s.job.Asks) == 0 {
		p.toNomad(s, s.body, nil)
		return
	}
	if err := p.mayDecide(asking, s); err != nil {
		p.refuse(s, err)
		return
	}
	if rt.kind == registered {
		ctx, span := p.config.Traces.Request(r, s.began)
		defer span.End()
		span.Set("nomad.namespace", s.job.Namespace)
		span.Set("nomad.job.id", s.job.ID)
		s.r, s.span = r.WithContext(ctx), span
	}
	ctx, cancel := context.WithDeadline(s.r.Context(), until)
	defer cancel()
	if p.hand(ctx, s) {
		return
	}
	p.decide(ctx, s)
}

// read reads the request's job; s.job is nil where there is none.
func (p *proxy) read(s *submission) error {
	var err error
	if s.body, err = p.readBody(s.w, s.r); err != nil {
		return err
	}
	return p.readJob(s)
}

// readJob reads the job out of the request's body.
func (p *proxy) readJob(s *submission) (err error) {
	query := s.r.URL.Query()
	s.job, err = admit.Read(s.body, admit.Query{Namespace: query.Get("namespace"), Region: query.Get("region"), Devices: p.config.Devices})
	if errors.Is(err, admit.ErrNoJob) {
		s.job = nil
		return nil
	}
	if err != nil {
		return err
	}
	if err := p.checkRegion(s); err != nil {
		return err
	}
	return cmp.Or(s.job.CheckNames(), s.job.CheckChildren(), s.job.CheckHostFiles())
}

// readBody reads a job within the limit on its size.
func (p *proxy) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, p.config.Limits.MaxBodyBytes))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return nil, &admit.Refusal{Status: http.StatusRequestEntityTooLarge,
			Text: fmt.Sprintf("the job is larger than %d bytes, which is the service's limit", tooLarge.Limit)}
	}
	if err != nil {
		return nil, &admit.Refusal{Status: http.StatusRequestTimeout, Text: "the job did not arrive in time or in full"}
	}
	return body, nil
}

// checkRegion refuses what is meant for a region that this service does not
// see. Plain device blocks need no decision and pass.
func (p *proxy) checkRegion(s *submission) error {
	region := s.job.Region
	if p.seesRegion(region) {
		return nil
	}
	for _, ask := range s.job.Asks {
		for _, t := range ask.Tasks {
			if !t.Plain() {
				return &admit.Refusal{Status: http.StatusBadRequest,
					Text: fmt.Sprintf("the job is for region %q, and this placement service decides for %q; submit it to that region's service", region, p.config.Region)}
			}
		}
	}
	s.job.Asks = nil
	return nil
}

// ownRegion reports whether a region that a request names is the one that this
// service decides for.
func (p *proxy) ownRegion(region string) bool {
	return region == "" || p.config.Region == "" || region == p.config.Region
}

// seesRegion is ownRegion for a job, which says "global" by default.
func (p *proxy) seesRegion(region string) bool { return region == "global" || p.ownRegion(region) }

// leaderRetry is how often it is looked for a replica that leads.
const leaderRetry = 500 * time.Millisecond

// hand gives the submission to the replica that decides, and waits for one
// while none can be reached. It returns true when the request is answered.
func (p *proxy) hand(ctx context.Context, s *submission) bool {
	if p.config.Leadership == nil {
		return false
	}
	for {
		address, self := p.config.Leadership.Leader()
		if self {
			return false
		}
		if s.r.Header.Get(peer.Forwarded) != "" { // its replica looks for another leader
			p.leaderless(s.w, s.r, errors.New("another replica takes this one for the leader"))
			return true
		}
		if address != "" && p.handOver(ctx, s, address) {
			return true
		}
		select {
		case <-ctx.Done():
			again := comeAgain(s.w, p.config.Takeover)
			p.refuse(s, &admit.Refusal{Status: http.StatusServiceUnavailable,
				Text: "no replica of the placement service leads; see its job and its log, and try again in " + again})
			return true
		case <-time.After(leaderRetry):
		}
	}
}

// handOver sends the submission to the leader once not too many others are on their way, and
// reports whether the request is answered.
func (p *proxy) handOver(ctx context.Context, s *submission, address string) bool {
	leader, err := url.Parse(address)
	if err != nil {
		return false
	}
	waited, err := p.handing.take(ctx)
	if err != nil {
		again := comeAgain(s.w, 0)
		p.refuse(s, &admit.Refusal{Status: http.StatusServiceUnavailable,
			Text: fmt.Sprintf("this replica of the placement service has %d submissions with the replica that leads, and hands over no more at once; try again in %s", cap(p.handing), again)})
		return true
	}
	leave := sync.OnceFunc(p.handing.leave)
	defer leave()
	if waited {
		if now, self := p.config.Leadership.Leader(); self || now != address {
			return false
		}
	}
	return p.deliver(s, leader, leave)
}

// deliver sends the submission to the leader and reports whether the request is
// answered: not when the leader could not be reached at all. Its place is left before
// the client gets the answer, which it may never read. Once it is reached, a leader has as
// long for its decision as for Nomad's answer; one that needs longer stands still, or is cut off.
func (p *proxy) deliver(s *submission, leader *url.URL, leave func()) bool {
	ctx, cancel := context.WithTimeout(s.r.Context(), dialer.Timeout+2*p.config.Limits.DecideTimeout)
	defer cancel()
	marked := *s
	marked.r = s.r.Clone(ctx)
	marked.r.Header.Set(peer.Forwarded, p.config.Leadership.Secret())
	if s.span != nil {
		ctx, span := p.config.Traces.Begin(s.r.Context(), trace.HandOver)
		defer span.End()
		p.config.Traces.Pass(ctx, marked.r.Header)
	}
	answered := true
	to := p.to(leader, p.peers, func(resp *http.Response) error {
		defer leave()
		return peer.ReadWhole(resp)
	})
	to.ErrorHandler = func(w http.ResponseWriter, r *http.Request, err error) {
		var dial *net.OpError
		if answered = !errors.As(err, &dial) || dial.Op != "dial"; answered {
			p.leaderless(w, r, err)
		}
	}
	p.forward(marked.r.Context(), &marked, to, s.body)
	return answered
}

// checkTasks refuses a job whose tasks would fail on every node: it would wait for GPUs first.
func checkTasks(s *submission) error {
	mistakes, _ := taskconfig.Job(s.body, taskconfig.Generous)
	if len(mistakes) == 0 {
		return nil
	}
	refusal := &admit.Refusal{Status: http.StatusUnprocessableEntity, Text: "the config of tasks is not valid"}
	for _, m := range mistakes {
		refusal.Details = append(refusal.Details, m.Error())
	}
	return refusal
}

// decide asks for a decision and acts on it.
func (p *proxy) decide(ctx context.Context, s *submission) {
	if err := checkTasks(s); err != nil {
		p.refuseDecided(ctx, s, err)
		return
	}
	if err := p.checkBatchQueue(ctx, s); err != nil {
		p.refuseDecided(ctx, s, err)
		return
	}
	dry := s.route.kind != registered
	if !dry {
		done, err := p.turns.take(ctx, s.job.Namespace+"\x00"+s.job.ID)
		if err != nil {
			p.refuse(s, err)
			return
		}
		defer done()
	}
	decisions, err := p.askDecider(ctx, s, dry)
	decided := time.Now()
	if err != nil {
		p.refuseDecided(ctx, s, err)
		return
	}
	body, err := s.job.Apply(decisions, p.link(s.job))
	if err != nil {
		p.settle(ctx, s, decisions, dry, false)
		p.refuse(s, err)
		return
	}
	settled := false
	if s.span != nil {
		_, span := p.config.Traces.Begin(s.r.Context(), trace.Register)
		defer span.End()
	}
	p.toNomad(s, body, func(resp *http.Response) error {
		s.traceOutcome(outcomeOf(decisions, resp.StatusCode))
		// Before the submitter has the answer, and submits the next job.
		p.settle(ctx, s, decisions, dry, resp.StatusCode < 300)
		settled = true
		if index := unchangedAt(resp); !dry && index > 0 {
			p.config.Decider.Unchanged(s.job.Asks, index)
		}
		groups := groupsOf(s.job.Asks, decisions)
		p.audit(s, groups, outcomeOf(decisions, resp.StatusCode), decided)
		return annotate(resp, notes(s.route.kind, decisions), groups)
	})
	if !settled { // Nomad may have the job: the cluster view tells in the end
		p.settle(ctx, s, decisions, dry, true)
	}
}

// askDecider decides, in a span.
func (p *proxy) askDecider(ctx context.Context, s *submission, dry bool) ([]admit.Decision, error) {
	if s.span != nil {
		_, span := p.config.Traces.Begin(ctx, trace.Decide)
		defer span.End()
	}
	return p.config.Decider.Decide(ctx, s.job.Asks, dry)
}

// traceOutcome says what came of the submission.
func (s *submission) traceOutcome(r Record) {
	if s.span != nil {
		s.span.Set("gpu.outcome", r.Outcome)
		s.span.Number("http.response.status_code", r.Status)
	}
}

// settle tells the decider how it went.
func (p *proxy) settle(ctx context.Context, s *submission, decisions []admit.Decision, dry, accepted bool) {
	if dry {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.config.Limits.DecideTimeout)
	defer cancel()
	p.config.Decider.Settle(ctx, s.job.Asks, decisions, accepted)
}

// link points from the job to the service's page.
func (p *proxy) link(j *admit.Job) admit.Link {
	if p.config.PageURL == "" {
		return admit.Link{}
	}
	q := url.Values{"namespace": {j.Namespace}, "job": {j.ID}}
	return admit.Link{Label: "GPU placement", URL: strings.TrimSuffix(p.config.PageURL, "/") + "/?" + q.Encode()}
}

// toNomad sends the request on with this body. With modify the answer is read
// here, and the client may go away meanwhile: a job that was decided is
// submitted all the same.
func (p *proxy) toNomad(s *submission, body []byte, modify func(*http.Response) error) {
	ctx := s.r.Context()
	if modify != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), p.config.Limits.DecideTimeout)
		defer cancel()
		s.r.Header.Set("Accept-Encoding", "identity")
	}
	p.forward(ctx, s, p.to(p.config.Nomad, p.transport, modify), body)
}

func (p *proxy) forward(ctx context.Context, s *submission, to http.Handler, body []byte) {
	r := s.r.Clone(ctx)
	// So that it can be sent on another connection when the one that was kept has ended.
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	r.Body, _ = r.GetBody()
	r.ContentLength = int64(len(body))
	r.TransferEncoding = nil
	r.Header.Set("Content-Length", strconv.Itoa(len(body)))
	to.ServeHTTP(s.w, r)
}
