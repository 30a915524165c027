// SPDX-License-Identifier: MPL-2.0

package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/server/peer"
)

// forwardTimeout bounds how long a request that is passed on waits for a connection and for
// its answer.
const forwardTimeout = time.Minute

// forwarded passes a request on to the replica that decides, and reports
// whether it was answered.
func (a *API) forwarded(w http.ResponseWriter, r *http.Request) bool {
	if a.Leadership == nil {
		return false
	}
	address, self := a.Leadership.Leader()
	if self {
		return false
	}
	leader, err := url.Parse(address)
	switch {
	case address == "" || err != nil:
		a.fail(w, r, a.leaderless("no replica of the service leads now"))
		return true
	case r.Header.Get(peer.Forwarded) != "":
		a.fail(w, r, a.leaderless("the replicas disagree about who leads"))
		return true
	}
	text, err := readText(r)
	if err != nil {
		a.fail(w, r, err)
		return true
	}
	ctx, cancel := context.WithTimeout(r.Context(), forwardTimeout)
	defer cancel()
	a.pass(w, withBody(r.WithContext(ctx), text), leader)
	return true
}

// leaderless is the answer while no replica leads, which lasts until another takes over.
func (a *API) leaderless(why string) *problem {
	again := max(5*time.Second, a.Takeover)
	p := problemf(http.StatusServiceUnavailable, "%s; try again in %d seconds", why, int(math.Ceil(again.Seconds())))
	p.again = again
	return p
}

// withBody is a request whose body is all there, so that it holds up no connection, and can
// be sent on another one when the one that was kept has ended.
func withBody(r *http.Request, text []byte) *http.Request {
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil }
	r.Body, _ = r.GetBody()
	r.ContentLength, r.TransferEncoding = int64(len(text)), nil
	return r
}

// pass asks the leader. There are few connections to it: none is kept by a client that
// does not read its answer.
func (a *API) pass(w http.ResponseWriter, r *http.Request, leader *url.URL) {
	proxy := httputil.ReverseProxy{
		Transport: a.Forward,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(leader)
			p.SetXForwarded() // the leader's audit log names the client
			p.Out.Header.Set(peer.Forwarded, a.Leadership.Secret())
		},
		ModifyResponse: peer.ReadWhole,
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			a.Logger.Warn("pass request on to the leader", "leader", leader.String(), "error", err)
			if errors.Is(err, context.DeadlineExceeded) {
				a.fail(w, r, problemf(http.StatusServiceUnavailable, "the replica that leads gives no answer within %s; try again in a few seconds", forwardTimeout))
				return
			}
			a.fail(w, r, a.leaderless("the replica that leads does not answer; another one takes over"))
		},
	}
	proxy.ServeHTTP(w, r)
}
