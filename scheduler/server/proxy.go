// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/scheduler/trace"
)

// proxy stands in front of Nomad's HTTP API. What carries no job goes through
// as it is and as it comes: websockets of exec, log follow, event streams, the
// UI.
type proxy struct {
	config    Config
	transport *http.Transport // to Nomad
	peers     *http.Transport // to the replica that leads
	through   *httputil.ReverseProxy
	callers   *callers
	turns     *turns
	handing   handing
	log       hclog.Logger
}

func newProxy(c Config) *proxy {
	if c.Traces == nil {
		c.Traces = trace.Off()
	}
	p := &proxy{config: c, transport: NewTransport(c.NomadTLS), peers: NewTransport(c.PeerTLS), turns: newTurns(), handing: newHanding(&c.Limits), log: c.Logger.Named("proxy")}
	// A connection that was kept may be that of a leader that has died since, and then it is
	// unknown whether it took the submission. A new one tells the dead from the slow.
	p.peers.DisableKeepAlives = true
	p.through = p.to(c.Nomad, p.transport, nil)
	p.callers = newCallers(p.nomadGet)
	return p
}

// NewTransport speaks to Nomad or to another replica, with TLS unless c is nil.
// It never adds or undoes a compression: what Nomad and its client
// agree on is theirs. There is no time limit on answers, since blocking queries
// and streams take as long as they take.
func NewTransport(c *tls.Config) *http.Transport {
	return &http.Transport{
		Proxy:                 nil,
		TLSClientConfig:       c,
		DisableCompression:    true,
		MaxIdleConnsPerHost:   256,
		IdleConnTimeout:       90 * time.Second,
		TLSHandshakeTimeout:   10 * time.Second,
		ExpectContinueTimeout: time.Second,
		DialContext:           (&dialer).DialContext,
	}
}

// to returns a reverse proxy to one server. The client's Host is kept, because
// Nomad compares it with the Origin of a browser's websocket.
func (p *proxy) to(target *url.URL, transport http.RoundTripper, modify func(*http.Response) error) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite: func(pr *httputil.ProxyRequest) {
			host := pr.In.Host
			pr.SetURL(target)
			pr.Out.Host = host
			pr.Out.Header["X-Forwarded-For"] = pr.In.Header["X-Forwarded-For"]
			pr.SetXForwarded()
			pr.Out.URL.RawQuery = pr.In.URL.RawQuery // odd ones too
		},
		Transport:      transport,
		FlushInterval:  -1,
		ModifyResponse: modify,
		ErrorHandler:   p.unreachable,
		ErrorLog:       p.log.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
}

// unreachable answers when Nomad does not.
func (p *proxy) unreachable(w http.ResponseWriter, r *http.Request, err error) {
	if late(r, err) {
		http.Error(w, errSlow.Error(), http.StatusRequestTimeout)
		return
	}
	if p.away(r, "Nomad", err) {
		return
	}
	http.Error(w, "the placement service gets no answer from Nomad; check that its servers are up, and try again", http.StatusBadGateway)
}

// comeAgain tells a client after how long to come again: five seconds at least.
func comeAgain(w http.ResponseWriter, after time.Duration) string {
	seconds := max(5, int(math.Ceil(after.Seconds())))
	w.Header().Set("Retry-After", strconv.Itoa(seconds))
	return fmt.Sprintf("%d seconds", seconds)
}

// leaderless answers when the replica that leads does not: another one will
// take over in a moment.
func (p *proxy) leaderless(w http.ResponseWriter, r *http.Request, err error) {
	if p.away(r, "the leading replica", err) {
		return
	}
	again := comeAgain(w, p.config.Takeover)
	http.Error(w, "the replica of the placement service that leads does not answer; another one takes over, try again in "+again, http.StatusServiceUnavailable)
}

// away notes that a server gives no answer, and reports whether it is the
// client who went away.
func (p *proxy) away(r *http.Request, who string, err error) bool {
	if errors.Is(err, context.Canceled) {
		p.log.Debug("client went away", "method", r.Method, "path", r.URL.Path)
		return true
	}
	p.log.Warn("no answer from "+who, "method", r.Method, "path", r.URL.Path, "error", err)
	return false
}

func (p *proxy) close() {
	p.transport.CloseIdleConnections()
}

// ServeHTTP admits what carries a job and passes the rest.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rt := routeOf(r)
	if rt.kind == passed {
		p.through.ServeHTTP(w, r)
		return
	}
	// It names headers that a proxy takes away: what is checked here for a token would be
	// carried out without it, for one in the body.
	r.Header.Del("Connection")
	switch rt.kind {
	case scaled, dispatched, reverted, forced:
		p.recheck(w, r, rt)
	default:
		p.admit(w, r, rt)
	}
}
