package api

import (
	"net/http"
	"net/http/httputil"
	"net/url"
)

// forwardedHeader marks a request that another replica passed on, so that two
// replicas who disagree about the leader do not pass it on for ever.
const forwardedHeader = "X-Nomad-Gpu-Forwarded"

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
		a.fail(w, r, problemf(http.StatusServiceUnavailable, "no replica of the service leads now; try again in a few seconds"))
		return true
	case r.Header.Get(forwardedHeader) != "":
		a.fail(w, r, problemf(http.StatusServiceUnavailable, "the replicas disagree about who leads; try again in a few seconds"))
		return true
	}
	proxy := httputil.ReverseProxy{
		Transport: a.Forward,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(leader)
			p.SetXForwarded() // the leader's audit log names the client
			p.Out.Header.Set(forwardedHeader, a.Leadership.Secret())
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			a.Logger.Warn("pass request on to the leader", "leader", address, "error", err)
			a.fail(w, r, problemf(http.StatusServiceUnavailable, "the replica that leads does not answer; another one takes over, try again in a few seconds"))
		},
	}
	proxy.ServeHTTP(w, r)
	return true
}
