// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/ledger"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view/viewtest"
)

// shelf is a ledger with two teams, of which one asks for too much.
type shelf struct{}

func (shelf) Prices() (ledger.Prices, string) {
	return ledger.Prices{{For: ledger.Any, GPUHour: 3_000_000}}, "EUR"
}

func (shelf) Entries(_ context.Context, _, to time.Time, each func(*ledger.Entry)) error {
	for n, team := range []string{"research", viewtest.HostileJob} {
		e := ledger.Entry{Key: ledger.Key{Alloc: fmt.Sprint(n), Task: "t", GPU: "GPU-1"}, From: to.Add(-10 * time.Hour), To: to,
			Hold: ledger.Hold{Namespace: team, Job: "job-" + team, Group: "g", Queue: team, Node: "n1", Type: "H100", Milli: 500, MemoryMiB: 16384, AskedMilli: 500, AskedMiB: 16384}}
		for range 100 * (1 - n) {
			e.Compute.Add(100)
			e.Memory.Add(2048)
		}
		each(&e)
	}
	return nil
}

func TestPageShowsTheLedger(t *testing.T) {
	ctx := browser(t, 1440, 900)
	open(t, ctx, serve(t, &scene{c: viewtest.Small(), books: shelf{}}), "light")
	const said = `document.getElementById("ledger").innerText`
	ask[any](t, ctx, `document.getElementById("ledger-show").click()`)
	within(t, ctx, said+`.includes("In all")`)
	text := strings.ReplaceAll(ask[string](t, ctx, said), "\u00a0", " ")
	for _, want := range []string{"research", viewtest.HostileJob, "0.1 GPU of 0.5 GPU", "2 GiB of 16 GiB", "not measured", "15.00 EUR", "30.00 EUR"} {
		if !strings.Contains(text, want) {
			t.Errorf("the section does not say %q: %s", want, text)
		}
	}
	shoot(t, ctx, "ledger", false)
	ask[any](t, ctx, `(() => { const by = document.getElementById("ledger-by"); by.value = "advice"; by.dispatchEvent(new Event("change")); })()`)
	within(t, ctx, said+`.includes("3G,0.15")`)
	if ask[bool](t, ctx, `window.hacked === 1`) {
		t.Error("a queue's name was run as HTML")
	}
}

func TestPageSaysThatThereIsNoLedger(t *testing.T) {
	ctx := browser(t, 1440, 900)
	open(t, ctx, serve(t, &scene{c: viewtest.Small()}), "light")
	ask[any](t, ctx, `document.getElementById("ledger-show").click()`)
	within(t, ctx, `document.getElementById("ledger").innerText.includes("keeps no ledger")`)
}

func TestPageSaysThatTheLedgerTakesNothing(t *testing.T) {
	c := viewtest.Small()
	c.Ledger = &view.LedgerOutage{Since: c.At, Waiting: 7, Dropped: 3}
	ctx := browser(t, 1440, 900)
	open(t, ctx, serve(t, &scene{c: c}), "light")
	within(t, ctx, `document.getElementById("banner").innerText.includes("Decisions go on; 7 records wait in memory and 3 were dropped.")`)
}
