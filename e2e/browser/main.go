// SPDX-License-Identifier: MPL-2.0

// Command browser looks at pages in Chromium for the end-to-end tests. It reads from
// standard input, as JSON, which pages to open one after the other and what each must
// show,
//
//	[{"url": "http://127.0.0.1:4646/ui/clients", "shows": ["node-0", "Ready"]}]
//
// waits until each shows all of it, and fails saying what a page showed instead. The
// tests beside it look at the placement service's own page.
//
// It is a module of its own: the programs' go.mod does not ask for what drives a browser.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/chromedp/chromedp"
)

// errNone means that the machine has no Chromium.
var errNone = errors.New("no Chromium on this machine; it draws the pages")

// patience is for machines under load.
const patience = 3 * time.Minute

// visit is what to open, and texts or links that it must show.
type visit struct {
	URL   string   `json:"url"`
	Shows []string `json:"shows"`
}

func main() {
	if err := run(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "browser:", err)
		os.Exit(1)
	}
}

func run(in io.Reader) error {
	var pages []visit
	d := json.NewDecoder(in)
	d.DisallowUnknownFields()
	if err := d.Decode(&pages); err != nil {
		return fmt.Errorf("read the pages to open: %w", err)
	}
	tab, stop, err := chromium(context.Background())
	if err != nil {
		return err
	}
	defer stop()
	for _, p := range pages {
		if err := look(tab, p); err != nil {
			return err
		}
	}
	return nil
}

// chromium starts the browser with one tab, for a bounded time.
func chromium(ctx context.Context) (tab context.Context, stop func(), err error) {
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "headless-shell"} {
		if path, err = exec.LookPath(name); err == nil {
			break
		}
	}
	if path == "" {
		return nil, nil, errNone
	}
	allocator, stopAllocator := chromedp.NewExecAllocator(ctx,
		append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.Flag("disable-dev-shm-usage", true))...)
	tab, stopTab := chromedp.NewContext(allocator)
	stopBrowser := func() { stopTab(); stopAllocator() }
	// The browser lives as long as the context that first uses it, so this one has no bound.
	if err := chromedp.Do(tab); err != nil {
		stopBrowser()
		return nil, nil, fmt.Errorf("start %s: %w", path, err)
	}
	tab, cancel := context.WithTimeout(tab, patience)
	return tab, func() { cancel(); stopBrowser() }, nil
}

// look opens a page and waits until it shows what it must.
func look(tab context.Context, p visit) error {
	tab, cancel := context.WithTimeout(tab, patience/4)
	defer cancel()
	if err := chromedp.Do(tab, chromedp.Navigate(p.URL)); err != nil {
		return fmt.Errorf("open %s: %w", p.URL, err)
	}
	const said = `document.body.innerText + " " + [...document.querySelectorAll("a[href]")].map((a) => a.href).join(" ")`
	for text := ""; ; {
		now, err := chromedp.Run(tab, chromedp.Evaluate[string](said))
		if err == nil {
			text = now
		}
		missing := absent(text, p.Shows)
		if len(missing) == 0 {
			return nil
		}
		select {
		case <-tab.Done():
			return fmt.Errorf("%s does not show %q but: %s", p.URL, missing, text)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// absent are the wants that a text has not.
func absent(text string, wants []string) (missing []string) {
	for _, want := range wants {
		if !strings.Contains(text, want) {
			missing = append(missing, want)
		}
	}
	return missing
}
