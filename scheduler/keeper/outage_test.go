// SPDX-License-Identifier: MPL-2.0

package keeper

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/ledger"
)

// Recall refuses as the rest of the store does.
func (d disk) Recall(ctx context.Context) ([]ledger.Record, time.Time, error) {
	if d.w.refuse {
		return nil, time.Time{}, errors.New("connection refused")
	}
	return d.Store.Recall(ctx)
}

// TestAStoreThatIsAwayAtTheStartIsWaitedFor: whatever came and went meanwhile is entered with
// its own times when the store answers, once, beside what an earlier process left; also where
// Nomad does not remember it any more.
func TestAStoreThatIsAwayAtTheStartIsWaitedFor(t *testing.T) {
	w := newWorld(t)
	w.boot()
	w.round()
	begin := w.now
	w.run("stays", 0, 0, 2)
	w.run("ends", 0, 2, 2)
	w.run("ends-away", 0, 4, 2)
	w.pass(2 * time.Minute)
	w.kill()
	w.finish("ends-away", false) // while no process runs
	gone := w.now
	w.refuse = true
	w.begin()
	var told Status
	w.keeper.Report = func(s Status) { told = s }
	w.round()
	if told.Since.IsZero() {
		t.Error("it is not said that the store is away")
	}
	since := told.Since
	w.run("short", 1, 0, 2)
	w.pass(10 * time.Minute)
	w.finish("ends", false)
	w.finish("short", false)
	ended := w.now
	w.run("new", 1, 2, 2)
	w.pass(30 * time.Minute)
	if !told.Since.Equal(since) || told.Unstored == 0 {
		t.Errorf("told %+v", told)
	}
	w.refuse = false
	w.pass(time.Minute)
	if !told.Since.IsZero() || told.Unstored != 0 || told.Dropped != 0 {
		t.Errorf("in the end told %+v", told)
	}
	w.want("stays", begin, w.now, "")
	w.want("ends", begin, ended, "complete")
	w.want("ends-away", begin, gone, "complete")
	w.want("short", begin.Add(2*time.Minute), ended, "complete")
	w.want("new", ended, w.now, "")
	w.pass(3 * time.Hour) // Nomad forgets, and a restart changes nothing
	w.boot()
	w.pass(time.Minute)
	w.want("ends", begin, ended, "complete")
	w.want("stays", begin, w.now, "")
}

// TestWhatWaitsForTheStoreIsBounded: what was measured goes first, then what ended, as whole
// entries, of which Nomad is asked again. What is held stays.
func TestWhatWaitsForTheStoreIsBounded(t *testing.T) {
	w := newWorld(t)
	w.boot()
	w.round()
	w.refuse = true
	begin := w.now
	w.run("held", 0, 0, 2)
	w.pass(time.Minute)
	var told Status
	w.keeper.Report = func(s Status) { told = s }
	for i := range mostUnstored {
		key := ledger.Key{Alloc: fmt.Sprint("old-", i), Task: "t", GPU: "GPU"}
		w.keeper.unstored = append(w.keeper.unstored, ledger.Record{Kind: ledger.KindHold, Key: key, At: begin, Hold: &ledger.Hold{}},
			ledger.Record{Kind: ledger.KindUse, Key: key, At: begin}, ledger.Record{Kind: ledger.KindEnd, Key: key, At: begin.Add(time.Second)})
	}
	w.run("ended", 0, 2, 2)
	w.pass(time.Minute)
	w.finish("ended", false)
	w.pass(time.Minute)
	if told.Unstored > mostUnstored || told.Unstored < mostUnstored-2 || told.Dropped < 2*mostUnstored {
		t.Errorf("told %+v", told)
	}
	counts := map[ledger.Kind]int{}
	for _, r := range w.keeper.unstored {
		counts[r.Kind]++
	}
	if counts[ledger.KindUse] > 0 || counts[ledger.KindHold] != counts[ledger.KindEnd]+1 {
		t.Errorf("kept %v", counts)
	}
	w.refuse = false
	w.pass(time.Minute)
	w.want("held", begin, w.now, "")
	w.want("ended", begin.Add(time.Minute), begin.Add(2*time.Minute), "complete")
}
