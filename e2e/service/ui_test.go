package service

import (
	"context"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

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
	browser, stop := chromedp.NewExecAllocator(context.Background(), append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox)...)
	defer stop()
	tab, closeTab := chromedp.NewContext(browser)
	defer closeTab()
	tab, cancel := context.WithTimeout(tab, 3*time.Minute)
	defer cancel()
	for _, page := range []struct {
		path  string
		shows []string
	}{
		{"/ui/jobs/shown@default", []string{"GPU placement", "1 Running", r.URL + "/gpu/?job=shown"}},
		{"/ui/clients", []string{"node-0", "Ready"}},
		{"/ui/servers", []string{"server.global"}},
		{"/ui/topology", []string{"node-0"}},
		{"/ui/allocations/" + alloc.ID, []string{"Allocation shown.g[0]", "RUNNING"}},
	} {
		if _, err := chromedp.Run(tab, chromedp.Navigate(r.URL+page.path)); err != nil {
			t.Fatal(err)
		}
		until(tab, t, "show "+page.path, 40*time.Second, func() (bool, string) {
			text, err := chromedp.Run(tab, chromedp.Evaluate[string](
				`document.body.innerText + [...document.querySelectorAll('a[href*="/gpu/"]')].map(a => a.href).join(" ")`))
			if err != nil {
				return false, err.Error()
			}
			missing := slices.ContainsFunc(page.shows, func(want string) bool { return !strings.Contains(text, want) })
			return !missing, text
		})
	}
}
