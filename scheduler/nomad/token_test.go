// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"net/http"
	"testing"
)

// The token is the one that Nomad takes (command/agent, parseToken).
func TestCallerToken(t *testing.T) {
	for name, row := range map[string]struct{ token, authorization, want string }{
		"none":             {"", "", ""},
		"Nomad's header":   {" a ", "Bearer b", "a"},
		"bearer":           {"", "Bearer b", "b"},
		"lower case":       {"", "bearer  b ", "b"},
		"more than one":    {"", "Bearer b extra", "b"},
		"another scheme":   {"", "Basic b", ""},
		"no scheme at all": {"", "b", ""},
	} {
		h := http.Header{"X-Nomad-Token": {row.token}, "Authorization": {row.authorization}}
		if got := CallerToken(h); got != row.want {
			t.Errorf("%s: %q, want %q", name, got, row.want)
		}
	}
}
