// SPDX-License-Identifier: MPL-2.0

package service

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"testing"
)

// visit is a page for e2e/browser to open, and what it must show.
type visit struct {
	URL   string   `json:"url"`
	Shows []string `json:"shows"`
}

// TestNomadUI opens Nomad's own UI through the service in a browser: the job is
// there and links to the service's page, and so is everything else.
func TestNomadUI(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("chromium"); err != nil {
		t.Skip("no browser:", err)
	}
	ctx, c := start(t, 1)
	if !hasUI(ctx, t, c.URL) {
		t.Skip("this Nomad was built without its UI")
	}
	r := serve(ctx, t, c, "")
	admits(ctx, t, r)
	if err := submit(ctx, r.API, job{id: "shown", meta: map[string]string{"gpu": "1G"}}); err != nil {
		t.Fatal(err)
	}
	alloc := runs(ctx, t, c.API, "shown", 1)[0]
	pages, err := json.Marshal([]visit{
		{r.URL + "/ui/jobs/shown@default", []string{"GPU placement", "1 Running", r.URL + "/gpu/?job=shown"}},
		{r.URL + "/ui/clients", []string{"node-0", "Ready"}},
		{r.URL + "/ui/servers", []string{"server.global"}},
		{r.URL + "/ui/topology", []string{"node-0"}},
		{r.URL + "/ui/allocations/" + alloc.ID, []string{"Allocation shown.g[0]", "RUNNING"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	browser := exec.CommandContext(ctx, "go", "run", "-C", filepath.Join(root, "e2e", "browser"), ".")
	browser.Stdin = bytes.NewReader(pages)
	if out, err := browser.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}
