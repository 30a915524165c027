// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"net/http"
	"strings"
)

// CallerToken is the Nomad token of a request, from the headers in which Nomad
// itself looks for it; empty for a request without one.
func CallerToken(h http.Header) string {
	if token := h.Get("X-Nomad-Token"); token != "" {
		return strings.TrimSpace(token)
	}
	scheme, token, _ := strings.Cut(h.Get("Authorization"), " ")
	if strings.EqualFold(scheme, "Bearer") {
		token, _, _ = strings.Cut(strings.TrimSpace(token), " ") // Nomad takes the first as well
		return strings.TrimSpace(token)
	}
	return ""
}
