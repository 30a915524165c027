// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/internal/leaktest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/reserve"
	"github.com/nomad-gpu/nomad-gpu/scheduler/server/api"
	"github.com/nomad-gpu/nomad-gpu/scheduler/server/page"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view/viewtest"
)

var screenshots = flag.String("screenshots", "", "directory to write screenshots into")

func TestMain(m *testing.M) {
	flag.Parse()
	leaktest.Main(m)
}

// scene is a service whose picture a test changes.
type scene struct {
	mu    sync.Mutex
	c     *view.Cluster
	err   error
	token string // needed to read; empty: none
	asked int
	books api.Books
	past  map[nomad.JobKey][]view.Event // what was done to jobs, newest first
	left  string                        // a namespace whose jobs may no longer be read; empty: none
}

func (s *scene) View() (*view.Cluster, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	return s.c, s.err
}

func (s *scene) set(c *view.Cluster, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.c, s.err = c, err
}

func (s *scene) MayRead(_ context.Context, token string) error {
	if token != s.token {
		return api.ErrDenied
	}
	return nil
}

func (s *scene) MayReadNamespace(_ context.Context, _, namespace string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if namespace == s.left {
		return fmt.Errorf("%w: list jobs in namespace %q", api.ErrDenied, namespace)
	}
	return nil
}

func (s *scene) MaySubmit(context.Context, string, string) error { return nil }

func (s *scene) Reserve(context.Context, reserve.Want, bool) (view.Hold, error) {
	return view.Hold{}, errors.New("not here")
}
func (s *scene) Held(string) (view.Hold, error)        { return view.Hold{}, reserve.ErrNotFound }
func (s *scene) All() []view.Hold                      { return nil }
func (s *scene) Release(context.Context, string) error { return reserve.ErrNotFound }

func (s *scene) Events(_ context.Context, key nomad.JobKey) ([]view.Event, error) {
	return s.past[key], nil
}

func serve(t *testing.T, s *scene) string {
	t.Helper()
	now := func() time.Time { return viewtest.Now }
	a, err := api.New(api.Config{Books: s.books, Views: s, Keeper: s, Past: s, Gate: s, Now: now, Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	a.Register(mux.Handle)
	if err := page.Register(mux.Handle, a, now); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(mux)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	return server.URL
}

// browser starts Chromium, or skips the test where there is none.
func browser(t *testing.T, width, height int64) context.Context {
	t.Helper()
	tab, stop, err := chromium(context.Background())
	if errors.Is(err, errNone) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	do(t, tab, chromedp.EmulateViewport(width, height))
	return tab
}

func do(t *testing.T, ctx context.Context, steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	if err := chromedp.Do(ctx, steps...); err != nil {
		t.Fatal(err)
	}
}

// ask evaluates an expression in the page.
func ask[T any](t *testing.T, ctx context.Context, expression string) T {
	t.Helper()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		t.Fatalf("evaluate %s: %v", expression, err)
	}
	return value
}

// within waits until an expression of the page is true.
func within(t *testing.T, ctx context.Context, expression string) {
	t.Helper()
	wait := `new Promise((done) => { const check = () => (` + expression + `) ? done(true) : setTimeout(check, 30); check(); })`
	if _, err := chromedp.Run(ctx, chromedp.Evaluate[bool](wait, chromedp.EvalAwaitPromise)); err != nil {
		t.Fatalf("wait for %s: %v", expression, err)
	}
}

// open shows the page, in a color scheme, once it has drawn something.
func open(t *testing.T, ctx context.Context, base, scheme string) {
	t.Helper()
	prefer(t, ctx, scheme)
	do(t, ctx, chromedp.Navigate(base+page.Path))
	within(t, ctx, `document.documentElement.dataset.ready === "yes"`)
}

func prefer(t *testing.T, ctx context.Context, scheme string) {
	t.Helper()
	media := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}
	if _, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, media); err != nil {
		t.Fatal(err)
	}
}

func shoot(t *testing.T, ctx context.Context, name string, full bool) {
	t.Helper()
	if *screenshots == "" {
		return
	}
	action := chromedp.CaptureScreenshot()
	if full {
		action = chromedp.FullScreenshot(100)
	}
	png, err := chromedp.Run(ctx, action)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(*screenshots, name+".png"), png, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestPageShowsEverything(t *testing.T) {
	ctx := browser(t, 1440, 900)
	open(t, ctx, serve(t, &scene{c: viewtest.Small()}), "light")
	shoot(t, ctx, "desktop", false)
	ask[any](t, ctx, `document.querySelectorAll(".decision summary").forEach((s) => s.click())`)
	within(t, ctx, `document.querySelectorAll(".decision .inside").length === 3`)
	shoot(t, ctx, "desktop-light", true)
	if ask[bool](t, ctx, `window.hacked === 1 || document.querySelectorAll("main img, main script").length > 0`) {
		t.Error("a job's name was run as HTML")
	}
	text := strings.ReplaceAll(ask[string](t, ctx, `document.body.innerText`), "\u00a0", " ")
	for _, want := range []string{
		"gpu-node-1", "gpu-node-2", "gpu-node-3", "A100 /0", "MIG 3g.40gb", "T4 /1", "XID 79", "cordoned", // nodes, GPUs and health
		"notebook-3", "jupyter", "finetune", "submitted around the service", // holders
		"suspended 12 min ago · a task of higher priority wants the GPU · comes first in 48 min", // seats
		"Held and not used", "50 min ago", "0.2 GPUs, 8 GiB", "has 1.9 GiB", "it goes when something waits that would get its place", // idle
		"63 %", "61 °C", "243 W", // measurements
		"research", "1.25 borrowed", "5.25 of 4", "at most 8", // queues
		"llm-large", "4 free A100 on one node are needed", "number 1 of 3 that wait · likely to start", "2(A100) would start now on 1 node", "quota", // pending
		"tokenize", "on the CPU", "it waited 10m0s for 8G", // what fell back
		"probe", "started again", "until then queue research keeps", "more for what may start at any time", // what failed
		"the fullest GPU that still holds 16 GiB", "it would take 0.18 GPU more from later work", "fewer than 4 like GPUs", // decisions
		"4 GiB reserved for serving", "8 GiB free", // a part of a GPU
		"r-7f3a", "ada", "evicted research/notebook-9", "only said, not done", // reservations and events
		viewtest.HostileJob, "<script>window.hacked=1</script>", // as text
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
}

// TestPageIsAccessible checks what a screen reader goes by.
func TestPageIsAccessible(t *testing.T) {
	ctx := browser(t, 1440, 900)
	open(t, ctx, serve(t, &scene{c: viewtest.Small()}), "light")
	for what, expression := range map[string]string{
		"one main, one header, one nav":        `["main","header","nav"].every((n) => document.querySelectorAll(n).length === 1)`,
		"a language and a title":               `document.documentElement.lang === "en" && document.title !== ""`,
		"every section is named":               `[...document.querySelectorAll("section")].every((s) => document.getElementById(s.getAttribute("aria-labelledby")).textContent !== "")`,
		"column headers have a scope":          `[...document.querySelectorAll("thead th")].every((h) => h.scope === "col")`,
		"rows have headers":                    `[...document.querySelectorAll("tbody th")].every((h) => h.scope === "row") && document.querySelectorAll("tbody th").length > 5`,
		"pictures have words":                  `[...document.querySelectorAll("[role=img]")].every((e) => e.getAttribute("aria-label").length > 3)`,
		"fields have labels":                   `[...document.querySelectorAll("input, select")].every((e) => document.querySelector("label[for=" + e.id + "]") !== null)`,
		"no ID twice":                          `(() => { const ids = [...document.querySelectorAll("[id]")].map((e) => e.id); return new Set(ids).size === ids.length })()`,
		"the state is announced":               `document.querySelector("[role=status][aria-live=polite]").textContent.includes("live")`,
		"health is in words":                   `[...document.querySelectorAll("main .tag")].every((e) => e.textContent.trim().length > 1)`,
		"holders are told apart without color": `new Set([...document.querySelectorAll(".gpu .seg")].map((e) => e.className)).size >= 4`,
	} {
		if !ask[bool](t, ctx, expression) {
			t.Errorf("not so: %s", what)
		}
	}
}

func TestPageOnAPhone(t *testing.T) {
	ctx := browser(t, 390, 844)
	do(t, ctx, chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile))
	open(t, ctx, serve(t, &scene{c: viewtest.Small()}), "light")
	if wider := ask[int](t, ctx, `document.documentElement.scrollWidth - document.documentElement.clientWidth`); wider > 0 {
		t.Errorf("the page is %d pixels wider than a phone", wider)
	}
	shoot(t, ctx, "phone-light", true)
	prefer(t, ctx, "dark")
	shoot(t, ctx, "phone-dark", false)
}

func TestPageInTheDark(t *testing.T) {
	ctx := browser(t, 1440, 900)
	open(t, ctx, serve(t, &scene{c: viewtest.Small()}), "dark")
	shoot(t, ctx, "desktop-dark", false)
	if background := ask[string](t, ctx, `getComputedStyle(document.body).backgroundColor`); background != "rgb(15, 21, 19)" {
		t.Errorf("background %s", background)
	}
}

// TestPageWithManyNodes draws 200 nodes with 1,600 GPUs and filters them.
func TestPageWithManyNodes(t *testing.T) {
	ctx := browser(t, 1440, 900)
	begin := time.Now()
	open(t, ctx, serve(t, &scene{c: viewtest.Large(200)}), "light")
	t.Logf("drawn after %s", time.Since(begin).Round(10*time.Millisecond))
	if cards := ask[int](t, ctx, `document.querySelectorAll(".node").length`); cards != 200 {
		t.Errorf("%d cards", cards)
	}
	shoot(t, ctx, "many-light", false)
	prefer(t, ctx, "dark")
	shoot(t, ctx, "many-dark", false)
	do(t, ctx, chromedp.SendKeys(chromedp.CSS("#find"), "gpu-node-01"))
	within(t, ctx, `document.getElementById("nodes-count").textContent === "10 of 200"`)
	if shown := ask[int](t, ctx, `document.querySelectorAll(".node:not([hidden])").length`); shown != 10 {
		t.Errorf("%d nodes are shown", shown)
	}
}

// A GPU counts once, whether its node shows it, its parts or both, and parts have their vendor's name.
func TestPageCountsDividedGPUsOnce(t *testing.T) {
	part := func(uuid, vendor, profile string) view.GPU {
		return view.GPU{UUID: uuid, ParentUUID: "GPU-" + vendor + "-0123456789", Vendor: vendor, Type: "X", Group: vendor + "/mig/" + profile, Mode: "mig", Profile: profile, MemoryMiB: 10240, Instances: []view.Instance{{ID: uuid, Healthy: true}}, Healthy: true}
	}
	whole := view.GPU{UUID: "GPU-w", Vendor: "nvidia", Type: "X", Group: "nvidia/gpu/X", Mode: "whole", MemoryMiB: 81920, Instances: []view.Instance{{ID: "GPU-w", Healthy: true}}, Healthy: true}
	ctx := browser(t, 1440, 900)
	open(t, ctx, serve(t, &scene{c: &view.Cluster{At: viewtest.Now, Synced: viewtest.Now, Leader: "a", Nodes: []view.Node{{ID: "n", Name: "n", Status: "ready", Eligible: true,
		GPUs:       []view.GPU{part("a", "nvidia", "1g.10gb"), part("b", "nvidia", "1g.10gb"), part("c", "amd", "cpx"), whole},
		MIGLayouts: []view.MIGLayout{{GPU: "GPU-nvidia-0123456789", Name: "GPU 3", Instances: []string{"1g.10gb@0", "1g.10gb@1"}, Cuts: []time.Time{viewtest.Now.Add(-time.Hour)}, Refused: "too late"}}}}}}), "light")
	if big := ask[string](t, ctx, `document.querySelector("#overview .big").innerText`); !strings.HasPrefix(big, "3") {
		t.Errorf("%q GPUs are counted, not 3", big)
	}
	text := strings.ReplaceAll(ask[string](t, ctx, `document.body.textContent`), "\u00a0", " ")
	for _, want := range []string{"MIG 1g.10gb", "of GPU-nvidia-0", "Layout of GPU 3: 1g.10gb@0, 1g.10gb@1; cut 1 time within a day, last 1 h ago; last order refused: too late", "partition cpx", "of GPU-amd-0123"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	if strings.Contains(text, "MIG cpx") {
		t.Error("another vendor's partition is called MIG")
	}
}

// TestPageLives follows a change, a loss and a return of the service's view,
// and keeps what the reader has opened.
func TestPageLives(t *testing.T) {
	ctx := browser(t, 1440, 900)
	s := &scene{c: viewtest.Small()}
	open(t, ctx, serve(t, s), "light")
	const isOpen = `document.querySelectorAll(".gpu details[open]").length`
	before := ask[int](t, ctx, isOpen)
	do(t, ctx, chromedp.Click(chromedp.CSS(".node:last-child .gpu:last-child summary")))
	within(t, ctx, isOpen+` !== `+strconv.Itoa(before))
	opened := ask[int](t, ctx, isOpen)
	changed := viewtest.Small()
	changed.Nodes[2].GPUs[0].Measured.TemperatureC = 91
	changed.Pending, changed.OnCPU, changed.Returning = nil, nil, nil
	s.set(changed, nil)
	within(t, ctx, `document.body.innerText.includes("91\u00a0°C") && document.body.innerText.includes("Nothing waits.")`)
	if after := ask[int](t, ctx, isOpen); after != opened {
		t.Errorf("%d GPUs were open, %d are after a change", opened, after)
	}
	s.set(nil, errors.New("nomad has not answered yet"))
	within(t, ctx, `document.getElementById("banner").innerText.includes("nomad has not answered yet") && document.getElementById("live").innerText === "not connected"`)
	shoot(t, ctx, "blind", false)
	s.set(changed, nil)
	within(t, ctx, `document.getElementById("banner").hidden && document.getElementById("live").innerText === "live"`)
}

func TestPageAsksForAToken(t *testing.T) {
	ctx := browser(t, 1440, 900)
	open(t, ctx, serve(t, &scene{c: viewtest.Small(), token: "s.e-c-r-e-t"}), "light")
	within(t, ctx, `!document.getElementById("token-form").hidden`)
	if ask[int](t, ctx, `document.querySelectorAll(".node").length`) != 0 {
		t.Error("nodes are shown without a token")
	}
	shoot(t, ctx, "token", false)
	do(t, ctx, chromedp.SendKeys(chromedp.CSS("#token"), "s.e-c-r-e-t\r"))
	within(t, ctx, `document.querySelectorAll(".node").length === 3 && document.getElementById("token-form").hidden`)
}

// TestPageTakesTheTokenOfNomadsUI: Nomad's UI is served at the same address.
func TestPageTakesTheTokenOfNomadsUI(t *testing.T) {
	ctx := browser(t, 1440, 900)
	open(t, ctx, serve(t, &scene{c: viewtest.Small(), token: "from-nomad"}), "light")
	ask[any](t, ctx, `localStorage.setItem("nomadTokenSecret", "from-nomad")`)
	within(t, ctx, `document.querySelectorAll(".node").length === 3`)
}
