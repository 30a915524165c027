// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// maxRedirects is as many as Go's own client follows.
const maxRedirects = 10

// ErrLoginRedirected means that a token server wanted a login sent to another server.
var ErrLoginRedirected = errors.New("a login is sent nowhere else")

// keepLogins decides about a redirect of a registry's. Go's client sends a login along to
// other ports of the same host, to its subdomains and from HTTPS to HTTP, and to every host
// what stands in a body or in other headers, such as the operator's in hosts.toml. Another
// server gets nothing that could be a secret.
func keepLogins(req *http.Request, via []*http.Request) error {
	if len(via) >= maxRedirects {
		return fmt.Errorf("%d redirects are too many", len(via))
	}
	if serverOf(req.URL) == serverOf(via[0].URL) {
		return nil
	}
	if req.Body != nil && req.Body != http.NoBody {
		return fmt.Errorf("%s redirects a request for a token to %s: %w", serverOf(via[0].URL), serverOf(req.URL), ErrLoginRedirected)
	}
	for name := range req.Header {
		if !slices.Contains([]string{"Accept", "Range", "User-Agent"}, name) {
			req.Header.Del(name)
		}
	}
	return nil
}

// serverOf is the scheme, host and port of a URL.
func serverOf(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return u.Scheme + "://" + strings.ToLower(u.Hostname()) + ":" + port
}
