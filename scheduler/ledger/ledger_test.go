// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 10, 5, 12, 0, 0, 0, time.UTC)

func at(hours float64) time.Time { return noon.Add(time.Duration(hours * float64(time.Hour))) }

func hold(alloc string, from float64, change func(*Hold)) Record {
	h := &Hold{Namespace: "research", Job: "train", Group: "g", Queue: "vision", Node: "n1", Type: "H100", Mode: "slice",
		Milli: 500, MemoryMiB: 16384, AskedMilli: 500, AskedMiB: 16384}
	if change != nil {
		change(h)
	}
	return Record{Kind: KindHold, At: at(from), Key: Key{alloc, "t", "GPU-1"}, Hold: h}
}

func end(alloc string, when float64) Record {
	return Record{Kind: KindEnd, At: at(when), Key: Key{alloc, "t", "GPU-1"}, Why: "complete"}
}

func use(alloc string, when float64, milli, mib int64, times int) Record {
	r := Record{Kind: KindUse, At: at(when), Key: Key{alloc, "t", "GPU-1"}}
	for range times {
		r.Compute.Add(milli)
		r.Memory.Add(mib)
	}
	return r
}

func folded(from, to float64, records ...Record) (list []Entry) {
	f := NewFold(at(from), at(to), func(e *Entry) { list = append(list, *e) })
	for i := range records {
		f.Add(&records[i])
	}
	f.Close()
	return list
}

// A quantile of many values is within 2 percent of the one that sorting them gives, also
// when they were counted apart and stored between.
func TestQuantilesAreClose(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, most := range []int64{3, 1000, 100_000} {
		var parts [3]Sketch
		var all []int64
		for i := range 3000 {
			v := r.Int64N(most + 1)
			parts[i%3].Add(v)
			all = append(all, v)
		}
		var sum Sketch
		for i := range parts {
			text, err := json.Marshal(parts[i])
			if err != nil {
				t.Fatal(err)
			}
			var read Sketch
			if err := json.Unmarshal(text, &read); err != nil {
				t.Fatal(err)
			}
			sum.Merge(&read)
		}
		slices.Sort(all)
		for _, q := range []float64{0.01, 0.5, 0.95, 1} {
			want := float64(all[max(0, int(q*float64(len(all)))-1)])
			if got := sum.Quantile(q); got < want*0.98-0.001 || got > want*1.02+0.001 {
				t.Errorf("up to %d: quantile %g is %g, want %g", most, q, got, want)
			}
		}
		if sum.Count() != 3000 || sum.Max() != all[2999] {
			t.Errorf("counted %d, most %d", sum.Count(), sum.Max())
		}
	}
}

func TestASketchThatIsNoneIsRefused(t *testing.T) {
	for _, text := range []string{`{"b":[1]}`, `{"b":[-7,1]}`, `{"b":[1,-1]}`, `[]`} {
		var s Sketch
		if err := json.Unmarshal([]byte(text), &s); err == nil {
			t.Errorf("%s was read as %+v", text, s)
		}
	}
}

// Records that come twice count once, whatever order a crash left them in.
func TestWhatIsStoredTwiceCountsOnce(t *testing.T) {
	got := folded(0, 10,
		hold("a", 1, nil), hold("a", 1, nil), end("a", 3), end("a", 4), hold("a", 1, nil), // again, after its end
		end("b", 2), // whose hold was removed with its day
		hold("c", 5, nil), use("c", 6, 100, 1024, 3))
	if len(got) != 2 || got[0].Alloc != "a" || got[0].Seconds() != 2*3600 || got[0].Open || got[0].Why != "complete" {
		t.Fatalf("got %+v", got)
	}
	if c := got[1]; c.Alloc != "c" || !c.Open || !c.To.Equal(at(10)) || c.Compute.Count() != 3 {
		t.Errorf("got %+v", c)
	}
}

// A line of a release that did not keep what an alloc waited for is read, and one that says
// nothing of that is as it was.
func TestLinesOfAnEarlierRelease(t *testing.T) {
	const line = `{"k":"hold","at":"2026-10-05T12:00:00Z","alloc":"a","task":"t","gpu":"GPU-1","ns":"research","job":"train","group":"g","node":"n1","mode":"slice","milli":500,"mib":16384}`
	var r Record
	if err := json.Unmarshal([]byte(line), &r); err != nil || !r.Wanted.IsZero() || r.Priority != 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	if text, err := json.Marshal(r); err != nil || string(text) != line {
		t.Errorf("%s, %v", text, err)
	}
	r.Wanted, r.Priority, r.HostMHz, r.HostMiB = noon.Add(-time.Hour), 70, 500, 256
	text, err := json.Marshal(r)
	var again Record
	if err == nil {
		err = json.Unmarshal(text, &again)
	}
	if err != nil || *again.Hold != *r.Hold {
		t.Errorf("%s is read as %+v, %v", text, again.Hold, err)
	}
	f := folded(0, 10, r)
	b := NewBuilder(ByEntry, nil)
	b.Add(&f[0])
	if row := b.Report(at(0), at(10), "").Rows[0]; !row.Wanted.Equal(r.Wanted) || row.Priority != 70 || row.HostMHz != 500 || row.HostMiB != 256 || row.Milli != 500 {
		t.Errorf("the row is %+v", row)
	}
}

// What is asked about is cut to the time, and nothing outside of it counts.
func TestEntriesAreCutToTheTime(t *testing.T) {
	records := []Record{hold("before", -5, nil), end("before", -1), hold("into", -2, nil), use("into", -1, 900, 9, 50), use("into", 1, 100, 1, 5), end("into", 2),
		hold("over", -1, nil), end("over", 20), hold("after", 11, nil), end("after", 12)}
	got := folded(0, 10, records...)
	names := ""
	for _, e := range got {
		names += e.Alloc + " "
	}
	if names != "into over " || got[0].Seconds() != 2*3600 || got[0].Compute.Max() != 100 || got[1].Seconds() != 10*3600 || !got[1].Open {
		t.Errorf("got %+v", got)
	}
}

func TestCosts(t *testing.T) {
	prices := Prices{
		{For: "H100", GPUHour: 2_000_000, GiBHour: 10_000}, {For: "H100", From: at(2), GPUHour: 3_000_000, GiBHour: 10_000},
		{For: "1g.10gb", GPUHour: 500_000}, {For: Any, GPUHour: 1_000_000},
	}
	for name, tc := range map[string]struct {
		change func(*Hold)
		to     float64
		want   int64
	}{
		"half a GPU and 16 GiB for an hour":  {nil, 1, 1_160_000},
		"the price goes up in the middle":    {nil, 4, 2*1_160_000 + 2*1_660_000},
		"a MIG instance has its own price":   {func(h *Hold) { h.Profile, h.Milli = "1g.10gb", 1000 }, 1, 500_000},
		"a type without a price has another": {func(h *Hold) { h.Type = "T4" }, 1, 500_000},
	} {
		e := folded(0, 10, hold("a", 0, tc.change), end("a", tc.to))[0]
		if got := prices.Cost(&e); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
		if got := (Prices{}).Cost(&e); got != 0 {
			t.Errorf("%s costs %d without prices", name, got)
		}
	}
}

// A price that begins later than an entry leaves the time before it free.
func TestNoPriceYet(t *testing.T) {
	e := folded(0, 10, hold("a", 0, nil), end("a", 4))[0]
	if got := (Prices{{For: "H100", From: at(3), GPUHour: 1_000_000}}).Cost(&e); got != 500_000 {
		t.Errorf("got %d", got)
	}
}

func report(by Grouping, entries []Entry) *Report {
	b := NewBuilder(by, Prices{{For: Any, GPUHour: 1_000_000}})
	for i := range entries {
		b.Add(&entries[i])
	}
	return b.Report(at(0), at(10), "EUR")
}

func TestReports(t *testing.T) {
	child := func(h *Hold) {
		h.Job, h.Parent, h.Queue, h.Milli, h.AskedMilli = "nightly/periodic-1", "nightly", "=cmd()", 1000, 1000
	}
	entries := folded(0, 10, hold("a", 0, nil), use("a", 1, 100, 2048, 95), use("a", 1.5, 400, 4096, 5), end("a", 2),
		hold("b", 0, child), end("b", 1), hold("c", 1, child))
	for by, want := range map[Grouping]string{
		ByQueue:     "queue,entries,gpu_hours,gib_hours,asked_gpus,used_gpus_p50,used_gpus_p95,asked_gib,used_gib_p50,used_gib_p95,used_gib_max,cost\n'=cmd(),2,10,160,1,,,16,,,,10\nvision,1,1,32,0.5,0.1,0.1,16,2.007,2.007,4,1\n",
		ByNamespace: "research,3,11,192,0.917,",
		ByNode:      "n1,3,11,192,",
		ByType:      "H100,3,11,192,",
		ByJob:       "'=cmd(),research,nightly,g,t,2,10,",
		ByEntry:     "2026-10-05T12:00:00Z,2026-10-05T13:00:00Z,complete,'=cmd(),research,nightly/periodic-1,g,t,b,n1,GPU-1,H100,1,1,16,1,,,16,,,,1\n2026-10-05T12:00:00Z,2026-10-05T14:00:00Z,complete,vision,research,train,g,t,a,n1,GPU-1,H100,1,1,32,0.5,0.1,0.1,16,2.007,2.007,4,1\n2026-10-05T13:00:00Z,,,'=cmd(),",
	} {
		var text strings.Builder
		r := report(by, entries)
		if err := r.WriteCSV(&text); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(text.String(), want) {
			t.Errorf("by %s:\n%swant\n%s", by, text.String(), want)
		}
		if r.Total.GPUHours != 11 || r.Total.Entries != 3 || r.Total.Cost != 11 {
			t.Errorf("by %s: total %+v", by, r.Total)
		}
	}
	if _, err := ParseGrouping("team"); err == nil || err.Error() != `by: "team" is not valid (queue, namespace, job, node, type, entry)` {
		t.Error(err)
	}
}

func TestAdvice(t *testing.T) {
	for name, tc := range map[string]struct {
		records []Record
		want    string
	}{
		"much less of both": {[]Record{hold("a", 0, nil), use("a", 1, 120, 3000, 100), hold("b", 0, nil), end("b", 2), end("a", 8)},
			"asked for 16G,0.5; its 95th percentile was 2.9 GiB of memory (at most 2.9 GiB) and 0.12 of a GPU's compute, in 10.0 h of 2 runs; 4G,0.15 would do | 3.5 120"},
		"one peak of memory counts":     {[]Record{hold("a", 0, nil), use("a", 1, 500, 1000, 100), use("a", 2, 500, 16000, 1)}, ""},
		"measured too little":           {[]Record{hold("a", 0, nil), use("a", 1, 10, 10, 5)}, ""},
		"as much as it asked for":       {[]Record{hold("a", 0, nil), use("a", 1, 450, 15000, 100)}, ""},
		"nothing was promised":          {[]Record{hold("a", 0, func(h *Hold) { h.AskedMilli, h.AskedMiB = 0, 0 }), use("a", 1, 10, 10, 100)}, ""},
		"a whole GPU for a small model": {[]Record{hold("a", 0, func(h *Hold) { h.AskedMilli, h.AskedMiB, h.Milli = 1000, 81920, 1000 }), use("a", 1, 0, 900, 100)}, "asked for 1; its 95th percentile was 0.9 GiB of memory (at most 0.9 GiB) and 0.00 of a GPU's compute, in 10.0 h of 1 run; 2G,0.05 would do | 9.5 780"},
	} {
		a := NewAdviser()
		for _, e := range folded(0, 10, tc.records...) {
			a.Add(&e)
		}
		got := ""
		for _, one := range a.Advise() {
			got += one.Text + " | " + number(one.FreedGPUHours) + " " + number(one.FreedGiBHours)
		}
		if got != tc.want {
			t.Errorf("%s:\n%q, want\n%q", name, got, tc.want)
		}
	}
}

// The dearest price, of a large GPU, for a year.
func TestCostOfMuch(t *testing.T) {
	e := Entry{From: noon, To: noon.Add(8760 * time.Hour)}
	e.Type, e.Milli, e.MemoryMiB = "H200", 1000, 144<<10
	p := Prices{{For: Any, GPUHour: 1e12, GiBHour: 1e12}}
	if got, want := p.Cost(&e), int64(8760*145)*1e12; got != want {
		t.Errorf("%d, want %d", got, want)
	}
}

// Spreadsheets take texts for formulas, also where a separator of another country's CSV,
// which is none in ours, makes a cell of the middle of a name.
func TestNamesAreNoFormulas(t *testing.T) {
	for name, want := range map[string]string{
		"=1+1": "'=1+1", "-1": "'-1", "@SUM": "'@SUM", "+1": "'+1", " =1": " '=1", "\t=1": "\t'=1", "\r\n=1": "\r\n'=1",
		"a;=1": "a;'=1", "a\t-1": "a\t'-1", `a"=1`: `a"'=1`, "a, =1": "a, '=1", "＝1": "'＝1",
		"train-1": "train-1", "a=b": "a=b", "2026-10-05T12:00:00Z": "2026-10-05T12:00:00Z", "H100 1g.10gb": "H100 1g.10gb",
	} {
		if got := harmless(name); got != want {
			t.Errorf("%q is %q, want %q", name, got, want)
		}
	}
}
