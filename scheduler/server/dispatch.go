// SPDX-License-Identifier: MPL-2.0

package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"

	"github.com/nomad-gpu/nomad-gpu/scheduler/server/peer"
)

// dispatchTurn waits until no other dispatch or force is under way: each is decided about beside
// what those before it take of the quota. Other requests have no turn.
func (p *proxy) dispatchTurn(ctx context.Context, s *submission) (leave func(), err error) {
	if !s.route.startsChild() {
		return func() {}, nil
	}
	done, err := p.turns.take(ctx, "dispatch")
	if err != nil {
		return func() {}, err
	}
	return sync.OnceFunc(done), nil
}

// ofDispatch handles Nomad's answer to a dispatch or a force that asks for no GPU;
// nil for other requests.
func (p *proxy) ofDispatch(s *submission) func(*http.Response) error {
	if !s.route.startsChild() {
		return nil
	}
	return func(resp *http.Response) error { return p.noteDispatch(s, resp) }
}

// noteDispatch tells of the child that Nomad has made. Where its parent was registered again
// after it was looked at, the child may be another than was decided about: it is taken back.
func (p *proxy) noteDispatch(s *submission, resp *http.Response) error {
	if !s.route.startsChild() || resp.StatusCode >= http.StatusMultipleChoices {
		return nil
	}
	text, err := io.ReadAll(http.MaxBytesReader(nil, resp.Body, peer.MaxAnswer))
	_ = resp.Body.Close()
	if err != nil {
		return fmt.Errorf("read Nomad's answer: %w", err)
	}
	resp.Body = io.NopCloser(bytes.NewReader(text))
	var made struct{ DispatchedJobID, EvalID string }
	if json.Unmarshal(text, &made) != nil || made.DispatchedJobID == "" && s.route.kind != forced {
		return nil
	}
	anew := made.EvalID != "" && p.registeredAnew(s) // without one it is a child that there was
	if !anew && len(s.job.Asks) == 0 {
		return nil
	}
	if s.route.kind == forced {
		if made.DispatchedJobID = p.forcedChild(s, made.EvalID); made.DispatchedJobID == "" {
			return nil // the loop finds it
		}
	}
	if anew {
		return p.takeBack(s, resp, made.DispatchedJobID)
	}
	if p.config.Dispatched != nil {
		p.config.Dispatched(s.job.Namespace, made.DispatchedJobID, s.job.Asks)
	}
	return nil
}

// forcedChild is the child that Nomad made of a periodic job, whose answer names an evaluation
// only; empty where it cannot be read.
func (p *proxy) forcedChild(s *submission, evalID string) string {
	ctx, cancel := p.afterwards(s)
	defer cancel()
	token, err := p.ownToken()
	if err != nil {
		return ""
	}
	got, err := p.nomadGet(ctx, "/v1/evaluation/"+url.PathEscape(evalID)+"?"+s.where().Encode(), token)
	var eval struct{ JobID string }
	if err != nil || got.status != http.StatusOK || json.Unmarshal(got.body, &eval) != nil {
		return ""
	}
	return eval.JobID
}

// ownToken is the service's own token; empty where it has none.
func (p *proxy) ownToken() (string, error) {
	if p.config.Token == nil {
		return "", nil
	}
	return p.config.Token()
}

// registeredAnew reports whether the job that a request is about is another than was looked at.
func (p *proxy) registeredAnew(s *submission) bool {
	ctx, cancel := p.afterwards(s)
	defer cancel()
	text, err := p.fetchText(ctx, s, -1)
	return err == nil && modifyIndex(text) != s.index
}

// takeBack stops a child that was started a moment ago, with the service's own token, and
// answers so.
func (p *proxy) takeBack(s *submission, resp *http.Response, child string) error {
	ctx, cancel := p.afterwards(s)
	defer cancel()
	token, err := p.ownToken()
	if err != nil {
		return err
	}
	got, err := p.nomadDo(ctx, http.MethodDelete, jobPrefix+url.PathEscape(child)+"?"+s.where().Encode(), token, nil)
	if err == nil && got.status != http.StatusOK {
		err = fmt.Errorf("stop job %q: Nomad answers %d", child, got.status)
	}
	if err != nil {
		return err
	}
	text := fmt.Sprintf("job %.128q was registered anew while it was dispatched; dispatch it again\n", s.route.jobID)
	if s.route.kind == forced {
		text = fmt.Sprintf("job %.128q was registered anew while a child of it was forced; force it again\n", s.route.jobID)
	}
	resp.StatusCode, resp.Status = http.StatusConflict, ""
	resp.Header.Set("Content-Type", "text/plain; charset=utf-8")
	resp.Header.Set("Content-Length", fmt.Sprint(len(text)))
	resp.ContentLength, resp.TransferEncoding = int64(len(text)), nil
	resp.Body = io.NopCloser(bytes.NewReader([]byte(text)))
	return nil
}

// afterwards is the time for what follows Nomad's answer, also where the client is gone.
func (p *proxy) afterwards(s *submission) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(s.r.Context()), p.config.Limits.DecideTimeout)
}
