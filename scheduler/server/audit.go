// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/server/peer"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// AuditVersion is the version of the audit log's records.
const AuditVersion = 1

// Audit writes one JSON object per decision and line. A record names who asked,
// for what, and the answer; it never holds a token.
type Audit struct {
	// Count is told of every record; nil: records are not counted.
	Count func(Record)

	mu  sync.Mutex
	out io.Writer
}

// NewAudit returns an audit log that writes to out.
func NewAudit(out io.Writer) *Audit { return &Audit{out: out} }

// Record is one line of the audit log.
type Record struct {
	Version int       `json:"v"`
	At      time.Time `json:"at"`
	// Action is register, plan, validate, scale, dispatch, revert or force; reserve or
	// release for reservations; evict, reclaim, idle, suspend, move, hold, let_go or fallback for what the
	// service did to a job by itself.
	Action string `json:"action"`
	// Outcome is placed, registered, waits or held (see [view.Decision]), refused, or
	// rejected (by Nomad); done, dry_run or failed for what the service did by itself.
	Outcome string `json:"outcome"`
	Status  int    `json:"status"`
	// Remote is the client's address, Certificate the name in its certificate
	// and Caller its Nomad token's accessor and name. Where another replica
	// handed the job over, Via is that replica's address, and Remote the one
	// that it gives for the client.
	Remote      string  `json:"remote"`
	Via         string  `json:"via,omitempty"`
	Certificate string  `json:"certificate,omitempty"`
	Caller      caller  `json:"caller,omitzero"`
	Namespace   string  `json:"namespace,omitempty"`
	JobID       string  `json:"job_id,omitempty"`
	Reservation string  `json:"reservation,omitempty"`
	Priority    int     `json:"priority,omitempty"`
	Groups      []Group `json:"groups,omitempty"`
	// AllocID and For are of what the service did by itself: the alloc that had to
	// go, and the namespace/job that its room was for.
	AllocID string `json:"alloc_id,omitempty"`
	For     string `json:"for,omitempty"`
	// Reason is why it was refused, or done.
	Reason string `json:"reason,omitempty"`
	// DecideMicros is how long the service took before Nomad was asked.
	DecideMicros int64 `json:"decide_us,omitempty"`
}

// Group is the decision for one task group.
type Group struct {
	Group     string   `json:"group"`
	Queue     string   `json:"queue,omitempty"`
	Ask       string   `json:"ask"`
	Count     int      `json:"count"`
	Preferred []string `json:"preferred,omitempty"`
	Hold      string   `json:"hold,omitempty"`
	Why       []string `json:"why,omitempty"`
}

// Write appends a record.
func (a *Audit) Write(r Record) error {
	if a.Count != nil {
		a.Count(r)
	}
	r.Version = AuditVersion
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write audit record: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, err := a.out.Write(append(text, '\n')); err != nil {
		return fmt.Errorf("write audit record: %w", err)
	}
	return nil
}

var actions = map[routeKind]string{
	registered: "register", planned: "plan", validated: "validate",
	scaled: "scale", dispatched: "dispatch", reverted: "revert", forced: "force",
}

// Outcome is what comes of a job as a whole: where a group waits, the job does.
func Outcome(decisions []admit.Decision) string {
	for _, outcome := range []string{view.Held, view.Waits, view.Registered} {
		if slices.ContainsFunc(decisions, func(d admit.Decision) bool { return d.Outcome == outcome }) {
			return outcome
		}
	}
	return view.Placed
}

// outcomeOf is the outcome of decisions that Nomad answered with status.
func outcomeOf(decisions []admit.Decision, status int) Record {
	r := Record{Status: status, Outcome: Outcome(decisions)}
	if status >= http.StatusMultipleChoices {
		r.Outcome = "rejected"
	}
	return r
}

// groupsOf is the decisions, for people.
func groupsOf(asks []admit.Ask, decisions []admit.Decision) []Group {
	var groups []Group
	for i, d := range decisions {
		ask := asks[i]
		g := Group{Group: d.Group, Queue: ask.Queue, Ask: ask.String(), Count: ask.Count, Preferred: d.Preferred, Why: d.Explanation}
		if d.Hold != nil {
			g.Hold = d.Hold.Kind + ": " + d.Hold.Sentence
		}
		groups = append(groups, g)
	}
	return groups
}

func (p *proxy) audit(s *submission, groups []Group, r Record, decided time.Time) {
	r.DecideMicros, r.Groups = s.took(decided).Microseconds(), groups
	p.write(s, r)
}

func (p *proxy) auditRefusal(s *submission, refusal *admit.Refusal) {
	r := Record{Status: refusal.Status, Outcome: "refused", Reason: refusal.Error()}
	if s.job != nil {
		for _, ask := range s.job.Asks {
			r.Groups = append(r.Groups, Group{Group: ask.Group, Queue: ask.Queue, Ask: ask.String(), Count: ask.Count})
		}
	}
	p.write(s, r)
}

// write completes a record with the submission.
func (p *proxy) write(s *submission, r Record) {
	r.Action = actions[s.route.kind]
	if s.job != nil {
		r.Namespace, r.JobID, r.Priority = s.job.Namespace, s.job.ID, s.job.Priority
	}
	p.note(s.r, s.token(), r)
}

// note completes a record with who asked. A log that cannot be written does
// not stop work; the service's own log says so.
func (p *proxy) note(request *http.Request, token string, r Record) {
	if p.config.Audit == nil {
		return
	}
	r.At, r.Remote = time.Now().UTC(), request.RemoteAddr
	if client := lastOf(request.Header.Values("X-Forwarded-For")); client != "" && p.fromReplica(request) {
		r.Remote, r.Via = client, request.RemoteAddr
	}
	if request.TLS != nil && len(request.TLS.PeerCertificates) > 0 {
		r.Certificate = request.TLS.PeerCertificates[0].Subject.CommonName
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(request.Context()), whoseTimeout)
	defer cancel()
	r.Caller = p.callers.who(ctx, token, r.At)
	if err := p.config.Audit.Write(r); err != nil {
		p.log.Error("audit log is not written", "error", err)
	}
}

// lastOf is the last address of a list: the replica wrote it, and who came before it those
// before.
func lastOf(forwarded []string) string {
	list := strings.Join(forwarded, ",")
	return strings.TrimSpace(list[strings.LastIndexByte(list, ',')+1:])
}

// Did writes a record of what the service did to a job by itself.
func (a *Audit) Did(e view.Event) error {
	r := Record{At: e.At.UTC(), Action: e.Kind, Outcome: "done", Namespace: e.Namespace, JobID: e.JobID, AllocID: e.AllocID, For: e.For, Reason: e.Text}
	if e.Kind == "release" { // of a hold; reservations are released too
		r.Action = "let_go"
	}
	switch {
	case e.DryRun:
		r.Outcome = "dry_run"
	case e.Failed:
		r.Outcome = "failed"
	}
	return a.Write(r)
}

// fromReplica reports whether another replica passed a request on. The header alone
// says nothing: every client can send it.
func (p *proxy) fromReplica(request *http.Request) bool {
	if p.config.Leadership == nil {
		return false
	}
	secret := p.config.Leadership.Secret()
	return secret != "" && subtle.ConstantTimeCompare([]byte(secret), []byte(request.Header.Get(peer.Forwarded))) == 1
}

// Note writes a record of what a registered handler did for a request; who
// asked, and when, is filled in.
func (s *Server) Note(r *http.Request, token string, record Record) { s.proxy.note(r, token, record) }
