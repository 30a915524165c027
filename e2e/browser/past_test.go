// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view/viewtest"
)

const (
	pastText   = `document.getElementById("past").innerText`
	pastIsOpen = `document.getElementById("past").open`
)

// buttonOf is the first button in a part of the page that shows what was done to a job.
func buttonOf(part, job string) string {
	return `document.querySelector("#` + part + ` button.past[data-job='` + job + `']")`
}

func press(t *testing.T, ctx context.Context, key string) {
	t.Helper()
	do(t, ctx, chromedp.KeyEvent(key))
}

// TestPageShowsWhatWasDoneToAJob opens the events of jobs with the keyboard alone, while the
// page goes on to draw itself anew.
func TestPageShowsWhatWasDoneToAJob(t *testing.T) {
	hostile := "research/" + viewtest.HostileJob
	s := &scene{c: viewtest.Small(), past: map[nomad.JobKey][]view.Event{{Namespace: "research", ID: "notebook-9"}: {
		{At: viewtest.Now.Add(-4 * time.Minute), Kind: "evict", Namespace: "research", JobID: "notebook-9", AllocID: "a9000000-0000", For: "serving/llm", Text: "evicted research/notebook-9 for serving/llm"},
		{At: viewtest.Now.Add(-5 * time.Minute), Kind: "evict", Namespace: "research", JobID: "notebook-9", Text: "could not stop it: Nomad has no leader", Failed: true},
		{At: viewtest.Now.Add(-50 * time.Hour), Kind: "reclaim", Namespace: "research", JobID: "notebook-9", For: hostile, Text: "the queue took it back for " + hostile, DryRun: true},
		{At: viewtest.Now.Add(-200 * time.Hour), Kind: "hold", Namespace: "research", JobID: "notebook-9", For: "secret/plan", Text: "holds research/notebook-9 for secret/plan"},
	}}, left: "secret"}
	ctx := browser(t, 1440, 900)
	open(t, ctx, serve(t, s), "light")
	ask[any](t, ctx, buttonOf("events", "research/notebook-9")+`.focus()`)
	press(t, ctx, "\r")
	within(t, ctx, pastIsOpen+` && document.querySelectorAll("#past-rows tr").length === 5`)
	text := strings.ReplaceAll(ask[string](t, ctx, pastText), "\u00a0", " ")
	for _, want := range []string{
		"Events of research/notebook-9", "4 min ago", "evict", "a9000000", "serving/llm", "could not be done", "Nomad has no leader",
		"2 d ago", "only said, not done", viewtest.HostileJob, "(hidden)", "for a job that the token may not see", "8 d ago",
		"8 GiB of A100/0 on gpu-node-1 were needed", // by the picture alone
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the events do not say %q: %s", want, text)
		}
	}
	if strings.Contains(text, "secret/plan") || ask[bool](t, ctx, `window.hacked === 1`) {
		t.Errorf("a job that may not be read is named, or a name was run as HTML: %s", text)
	}
	shoot(t, ctx, "past", false)

	// The reader comes back to the button, though the page has drawn another meanwhile.
	ask[any](t, ctx, `window.pressed = `+buttonOf("events", "research/notebook-9"))
	changed := viewtest.Small()
	changed.Events[0].Text = "changed"
	s.set(changed, nil)
	within(t, ctx, `document.getElementById("event-rows").innerText.includes("changed") && !window.pressed.isConnected`)
	press(t, ctx, "\x1b")
	within(t, ctx, `!`+pastIsOpen+` && document.activeElement === `+buttonOf("events", "research/notebook-9"))

	// So does one who only stands on it.
	ask[any](t, ctx, `window.pressed = document.activeElement`)
	s.set(viewtest.Small(), nil)
	within(t, ctx, `!window.pressed.isConnected && document.activeElement === `+buttonOf("events", "research/notebook-9"))
}

// TestPageSaysThatNothingWasDoneToAJob tells that from what may not be read, and from a service
// that does not know.
func TestPageSaysThatNothingWasDoneToAJob(t *testing.T) {
	s := &scene{c: viewtest.Small()}
	ctx := browser(t, 390, 844)
	open(t, ctx, serve(t, s), "dark")
	ask[any](t, ctx, buttonOf("pending", "serving/llm-large")+`.click()`)
	within(t, ctx, pastText+`.includes("Nothing was done to it")`)
	if wider := ask[int](t, ctx, `document.documentElement.scrollWidth - document.documentElement.clientWidth`); wider > 0 {
		t.Errorf("the page is %d pixels wider than a phone", wider)
	}
	shoot(t, ctx, "past-none", false)
	// The browser tells of the end of one when the next is open already, of what a dry run would do.
	ask[any](t, ctx, `document.getElementById("past-close").click(); `+buttonOf("pending", "research/sweep")+`.click()`)
	within(t, ctx, pastIsOpen+` && ["students/lab", "only said, not done"].every((s) => `+pastText+`.includes(s))`)
	ask[any](t, ctx, `document.getElementById("past-close").click()`)
	within(t, ctx, `!`+pastIsOpen)
	s.mu.Lock()
	s.left = "default"
	s.mu.Unlock()
	ask[any](t, ctx, `document.querySelectorAll(".decision summary").forEach((s) => s.click())`)
	within(t, ctx, `document.querySelectorAll(".decision button.past").length === 3`)
	ask[any](t, ctx, `[...document.querySelectorAll(".decision button.past")].find((b) => b.dataset.job.startsWith("default/")).click()`)
	within(t, ctx, pastIsOpen+` && `+pastText+`.includes("earlier is not known: permission denied") && !`+pastText+`.includes("Nothing was done")`)
	if ask[bool](t, ctx, `document.querySelector("button.past[data-job*='hidden']") !== null`) {
		t.Error("events of a hidden job are offered")
	}
}
