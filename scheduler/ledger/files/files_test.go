// SPDX-License-Identifier: MPL-2.0

package files

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/ledger"
)

// desk is a store with a clock, and what it complained of.
type desk struct {
	*Store
	t        *testing.T
	dir      string
	now      time.Time
	options  Options
	troubles []string
}

func newDesk(t *testing.T) *desk {
	d := &desk{t: t, dir: t.TempDir(), now: time.Date(2026, 10, 5, 12, 0, 0, 0, time.UTC)}
	d.options = Options{Keep: 10 * 24 * time.Hour, MaxBytes: 1 << 30, Now: func() time.Time { return d.now },
		Trouble: func(err error) { d.troubles = append(d.troubles, err.Error()) }}
	d.reopen()
	t.Cleanup(func() { d.Close() }) //nolint:errcheck // some tests close it themselves
	return d
}

// reopen is the next process.
func (d *desk) reopen() {
	d.t.Helper()
	if d.Store != nil {
		d.Close() //nolint:errcheck // a killed process closes nothing
	}
	var err error
	if d.Store, err = Open(d.dir, d.options); err != nil {
		d.t.Fatal(err)
	}
}

func key(alloc string) ledger.Key { return ledger.Key{Alloc: alloc, Task: "t", GPU: "GPU-1"} }

func (d *desk) hold(allocs ...string) {
	d.t.Helper()
	for _, a := range allocs {
		d.append(ledger.Record{Kind: ledger.KindHold, At: d.now, Key: key(a), Hold: &ledger.Hold{Namespace: "n", Job: "j", Milli: 500}})
	}
}

func (d *desk) end(alloc string) {
	d.t.Helper()
	d.append(ledger.Record{Kind: ledger.KindEnd, At: d.now, Key: key(alloc), Why: "complete"})
}

func (d *desk) watch() {
	d.t.Helper()
	d.append(ledger.Record{Kind: ledger.KindSeen, At: d.now})
}

func (d *desk) append(r ledger.Record) {
	d.t.Helper()
	if err := d.Append(d.t.Context(), []ledger.Record{r}); err != nil {
		d.t.Fatal(err)
	}
}

// entries are what was held between two times: "a 2h0m0s" for each, with a + if it is held.
func (d *desk) entries(from, to time.Time) string {
	d.t.Helper()
	var list []string
	f := ledger.NewFold(from, to, func(e *ledger.Entry) {
		list = append(list, fmt.Sprintf("%s %s%s", e.Alloc, e.To.Sub(e.From), map[bool]string{true: "+"}[e.Open]))
	})
	if err := d.Read(d.t.Context(), from, to, f.Add); err != nil {
		d.t.Fatal(err)
	}
	f.Close()
	return strings.Join(list, ", ")
}

func (d *desk) want(from, to time.Time, want string) {
	d.t.Helper()
	if got := d.entries(from, to); got != want {
		d.t.Errorf("%s to %s: %q, want %q", from.Format(time.DateTime), to.Format(time.DateTime), got, want)
	}
}

func TestWhatIsHeldSurvivesDaysAndRestarts(t *testing.T) {
	d := newDesk(t)
	start := d.now
	d.hold("long", "short")
	d.now = d.now.Add(time.Hour)
	d.end("short")
	d.watch()
	for range 3 {
		d.reopen()
		d.now = d.now.Add(24 * time.Hour)
		d.watch()
	}
	d.reopen()
	held, seen, err := d.Recall(t.Context())
	if err != nil || len(held) != 1 || held[0].Key != key("long") || !held[0].At.Equal(start) || held[0].Milli != 500 || !seen.Equal(d.now) {
		t.Fatalf("recalled %+v, %s, %v", held, seen, err)
	}
	d.want(start, d.now, "short 1h0m0s, long 73h0m0s+")
	day := time.Date(2026, 10, 7, 0, 0, 0, 0, time.UTC) // of which only the carried entry tells
	d.want(day, day.AddDate(0, 0, 1), "long 24h0m0s+")
	d.end("long")
	d.want(start, d.now.Add(time.Hour), "short 1h0m0s, long 73h0m0s")
	d.want(d.now.Add(time.Hour), d.now.Add(2*time.Hour), "")
}

// What ended on a day and was learned of days later counts for that day.
func TestAnEndThatIsLearnedLateCountsForItsDay(t *testing.T) {
	d := newDesk(t)
	start := d.now
	d.hold("a")
	d.watch()
	d.now = d.now.AddDate(0, 0, 3)
	d.append(ledger.Record{Kind: ledger.KindHold, At: start.AddDate(0, 0, 1), Key: key("unseen"), Hold: &ledger.Hold{}}) // nothing says yet that all was learned
	d.now = d.now.AddDate(0, 0, 1)
	d.append(ledger.Record{Kind: ledger.KindEnd, At: start.Add(2 * time.Hour), Key: key("a")})
	d.append(ledger.Record{Kind: ledger.KindEnd, At: start.AddDate(0, 0, 1).Add(time.Hour), Key: key("unseen")})
	d.watch()
	d.want(start, start.Add(6*time.Hour), "a 2h0m0s")
	d.want(start.AddDate(0, 0, 1), start.AddDate(0, 0, 2), "unseen 1h0m0s")
}

// A crash in the middle of a line takes that line only, and no other is hurt by what is
// appended then.
func TestATornLineIsCutOff(t *testing.T) {
	d := newDesk(t)
	start := d.now
	d.hold("a", "b")
	path := d.path(dayOf(d.now))
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for cut := len(whole) - 1; cut > strings.LastIndex(string(whole[:len(whole)-1]), "\n"); cut-- {
		d.Close() //nolint:errcheck // as above
		if err := os.WriteFile(path, whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		d.reopen()
		d.want(start, start.Add(time.Hour), "a 1h0m0s+")
		d.hold("b")
		d.want(start, start.Add(time.Hour), "a 1h0m0s+, b 1h0m0s+")
	}
	if len(d.troubles) > 0 {
		t.Errorf("said %q", d.troubles)
	}
}

func TestALineThatIsNotValidIsLeftOutAndToldOf(t *testing.T) {
	d := newDesk(t)
	d.hold("a")
	path := d.path(dayOf(d.now))
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	d.Close() //nolint:errcheck // as above
	for spoiled, says := range map[string]string{"spoiled": "is not valid", strings.Repeat("\x00", 2*longest): "is too long"} {
		if err := os.WriteFile(path, append(slices.Clone(text), spoiled+"\n"...), 0o600); err != nil {
			t.Fatal(err)
		}
		d.troubles = nil
		d.reopen()
		d.hold("b")
		d.want(d.now, d.now.Add(time.Hour), "a 1h0m0s+, b 1h0m0s+")
		if len(d.troubles) == 0 || !strings.Contains(d.troubles[0], "line 3 of "+path+" "+says) {
			t.Errorf("said %q", d.troubles)
		}
		d.Close() //nolint:errcheck // as above
	}
}

// What is too old goes, and what is too much; the day in use stays.
func TestTheLedgerIsBounded(t *testing.T) {
	d := newDesk(t)
	start := d.now
	for range 20 {
		d.hold(d.now.Format(time.DateOnly))
		d.end(d.now.Format(time.DateOnly))
		d.now = d.now.AddDate(0, 0, 1)
	}
	days, err := d.days()
	if err != nil || len(days) != 11 || days[10] != "2026-10-24" {
		t.Fatalf("kept %v, %v", days, err)
	}
	d.want(start, start.AddDate(0, 0, 2), "")
	if len(d.troubles) > 0 {
		t.Errorf("said %q", d.troubles)
	}
	d.options.MaxBytes = 1
	d.reopen()
	d.hold("last")
	if days, err = d.days(); err != nil || len(days) != 1 || days[0] != "2026-10-25" {
		t.Fatalf("kept %v, %v", days, err)
	}
	if len(d.troubles) == 0 || !strings.Contains(d.troubles[0], "ledger.max_size_mb") {
		t.Errorf("said %q", d.troubles)
	}
}

func TestOneProcessWrites(t *testing.T) {
	d := newDesk(t)
	if s, err := Open(d.dir, d.options); err == nil || !strings.Contains(err.Error(), "another process writes to "+d.dir) {
		t.Errorf("opened %v, %v", s, err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d.Store = nil
	d.reopen()
}

// A segment of a later release is not read as if it was of this one.
func TestALaterVersionIsRefused(t *testing.T) {
	d := newDesk(t)
	d.hold("a")
	path := d.path(dayOf(d.now))
	d.Close() //nolint:errcheck // as above
	text, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, []byte(strings.Replace(string(text), `"v":1`, `"v":2`, 1)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(d.dir, d.options); err == nil || !strings.Contains(err.Error(), "has version 2") {
		t.Error(err)
	}
}

// A disk that is full takes nothing of a batch, or all of it.
func TestAFullDiskLeavesNothingHalf(t *testing.T) {
	d := newDesk(t)
	d.hold("a")
	d.file.Close()
	read, err := os.Open(d.path(dayOf(d.now))) // writing to it fails
	if err != nil {
		t.Fatal(err)
	}
	d.file = read
	if err := d.Append(t.Context(), []ledger.Record{{Kind: ledger.KindEnd, At: d.now, Key: key("a")}}); err == nil {
		t.Error("it was written")
	}
	if held, _, _ := d.Recall(t.Context()); len(held) != 1 {
		t.Errorf("recalled %+v", held)
	}
	d.reopen()
	d.end("a")
	d.want(d.now.Add(-time.Hour), d.now.Add(time.Hour), "")
}

// Strangers in the folder are left alone.
func TestOtherFilesAreLeftAlone(t *testing.T) {
	d := newDesk(t)
	for _, name := range []string{"notes.txt", "2026-13-01.jsonl", "a.jsonl"} {
		if err := os.WriteFile(filepath.Join(d.dir, name), []byte("spoiled\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d.options.MaxBytes = 1
	d.reopen()
	d.hold("a")
	d.want(d.now, d.now.Add(time.Hour), "a 1h0m0s+")
	if entries, err := os.ReadDir(d.dir); err != nil || len(entries) != 5 {
		t.Errorf("there are %v, %v", entries, err)
	}
}

// A reader that goes away is not read to.
func TestReadingCanBeCanceled(t *testing.T) {
	d := newDesk(t)
	d.hold("a")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.Read(ctx, d.now, d.now, func(*ledger.Record) {}); err != context.Canceled {
		t.Error(err)
	}
}
