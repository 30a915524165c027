// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// The end-to-end tests rely on the command: it must see what comes late, and say what
// is missing.
func TestPagesAreLookedAt(t *testing.T) {
	browser(t, 800, 600) // skips without Chromium
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, `<title>x</title><a href="/there">a link</a><p id="late"></p>
<script>setTimeout(() => document.getElementById("late").textContent = "now " + location.pathname, 200)</script>`)
	}))
	defer server.Close()
	asks := func(wants string) string { return `[{"url":"` + server.URL + `/a","shows":[` + wants + `]}]` }
	if err := run(strings.NewReader(asks(`"a link","now /a","` + server.URL + `/there"`))); err != nil {
		t.Error(err)
	}
	if err := run(strings.NewReader(`[{"address":"x"}]`)); err == nil || !strings.Contains(err.Error(), "address") {
		t.Errorf("an unknown key: %v", err)
	}
	if missing := absent("now /a", []string{"now", "never"}); len(missing) != 1 || missing[0] != "never" {
		t.Errorf("missing %q", missing)
	}
}
