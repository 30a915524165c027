package service

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// TestNomadUI opens Nomad's own UI through the service in a browser: the job is
// there, and links to the service's page.
func TestNomadUI(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("chromium"); err != nil {
		t.Skip("no browser:", err)
	}
	ctx, c := start(t, 1)
	r := serve(ctx, t, c, "")
	admits(ctx, t, r)
	if err := submit(ctx, r.API, job{id: "shown", meta: map[string]string{"gpu": "1G"}}); err != nil {
		t.Fatal(err)
	}
	runs(ctx, t, c.API, "shown", 1)
	browser, stop := chromedp.NewExecAllocator(context.Background(), append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox)...)
	defer stop()
	tab, closeTab := chromedp.NewContext(browser)
	defer closeTab()
	tab, cancel := context.WithTimeout(tab, time.Minute)
	defer cancel()
	if _, err := chromedp.Run(tab, chromedp.Navigate(r.URL+"/ui/jobs/shown@default")); err != nil {
		t.Fatal(err)
	}
	until(tab, t, "show the job and its link", 40*time.Second, func() (bool, string) {
		text, err := chromedp.Run(tab, chromedp.Evaluate[string](
			`document.body.innerText + [...document.querySelectorAll('a[href*="/gpu/"]')].map(a => a.href).join(" ")`))
		if err != nil {
			return false, err.Error()
		}
		return strings.Contains(text, "GPU placement") && strings.Contains(text, "1 Running") &&
			strings.Contains(text, r.URL+"/gpu/?job=shown"), text
	})
}
