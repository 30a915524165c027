// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// A registered job is known by what was written, so everything that binds must
// come back as it was decided, and any change of it must show.
func TestWhatIsWrittenIsReadBack(t *testing.T) {
	decided := func(change func(*Decision)) Decision {
		d := Decision{
			Group: "g", Candidates: []string{"node-b", "node-a"}, Preferred: []string{"node-a"}, Hold: &Hold{Kind: "quota", Sentence: `queue "ml": 8 of ${8}`},
			Tasks: []TaskDecision{{Task: "t", Devices: []Device{sliced(8, isA100, ofGiB), sliced(8)}, Share: gpu.Share{MemoryMiB: 7000, GuaranteeMilli: 500, LimitMilli: 800}, SeatPriority: 40}},
		}
		if change != nil {
			change(&d)
		}
		return d
	}
	body := jobWith(`"Meta":{"gpu":"2","gpu_sharing":"mps"}`)
	body = strings.Replace(body, `"Name":"g"`, `"Name":"g","Update":{"Canary":2,"MaxParallel":1}`, 1)
	register := func(d Decision) Ask {
		j, err := Read([]byte(body), Query{})
		if err != nil {
			t.Fatal(err)
		}
		again, err := Read(applied(t, j, d), Query{})
		if err != nil {
			t.Fatal(err)
		}
		return again.Asks[0]
	}
	first := decided(nil)
	ask := register(first)
	print := ask.Fingerprint(&first)
	if ask.Registered() != print {
		t.Errorf("registered as %+v, decided %+v", ask.Was, first)
	}
	adopted := ask.Was.Decision("g")
	if ask.Fingerprint(&adopted) != print || *adopted.Hold != (Hold{"quota", `queue "ml": 8 of {8}`}) {
		t.Errorf("adopted as %+v", adopted)
	}
	for name, change := range map[string]func(*Decision){
		"no hold":      func(d *Decision) { d.Hold = nil },
		"another hold": func(d *Decision) { d.Hold = &Hold{Kind: "room", Sentence: "x"} },
		"count":        func(d *Decision) { d.Tasks[0].Devices[0].Count = 7 },
		"constraint":   func(d *Decision) { d.Tasks[0].Devices[0].Constraints = nil },
		"blocks":       func(d *Decision) { d.Tasks[0].Devices = d.Tasks[0].Devices[:1] },
		"seat":         func(d *Decision) { d.Tasks[0].SeatPriority = 50 },
		"share":        func(d *Decision) { d.Tasks[0].Share.GuaranteeMilli = 400 },
	} {
		other := register(decided(change))
		if other.Registered() == print {
			t.Errorf("another %s is not seen", name)
		}
	}
	free := func(candidates ...string) string {
		a := register(decided(func(d *Decision) { d.Hold, d.Candidates = nil, candidates }))
		return a.Registered()
	}
	if free("node-a") == free("node-a", "node-b") || free() == free("node-a") {
		t.Error("other candidates are not seen")
	}
	bare, err := Read([]byte(jobWith(`"Resources":{"Devices":[{"Name":"nvidia/slice","Count":8}]}`)), Query{})
	if err != nil {
		t.Fatal(err)
	}
	plain := Decision{Group: "g", Tasks: []TaskDecision{{Task: "t"}}}
	if bare.Asks[0].Registered() == bare.Asks[0].Fingerprint(&plain) {
		t.Error("a job without a mark counts as admitted")
	}
}

// With canaries a change that moves allocs waits for promotion, and what is
// stopped meanwhile comes back where it was. So they are set aside, and come
// back with the change that lifts it.
func TestCanariesAreSetAside(t *testing.T) {
	for name, candidates := range map[string][]string{"candidates": {"node-a"}, "every node": nil} {
		body := strings.Replace(jobWith(`"Meta":{"gpu":"1"}`), `"Name":"g"`, `"Name":"g","Update":{"Stagger":5,"Canary":2,"AutoRevert":true}`, 1)
		d := Decision{Group: "g", Candidates: candidates, WithoutCanaries: true, Tasks: []TaskDecision{{Task: "t", Devices: []Device{{Name: "nvidia/gpu", Count: 1}}}}}
		for step, want := range []string{`"Canary":0,"AutoRevert":true`, `"Canary":0,"AutoRevert":true`, `"Canary":2,"AutoRevert":true`} {
			d.WithoutCanaries = step < 2
			j, err := Read([]byte(body), Query{})
			if err != nil {
				t.Fatal(err)
			}
			body = string(applied(t, j, d))
			if !strings.Contains(body, want) || strings.Contains(body, "canary=2") != (step < 2) {
				t.Errorf("%s, step %d: %s", name, step, body)
			}
			again, err := Read([]byte(body), Query{})
			if err != nil || len(again.Asks[0].Was.Candidates) != len(candidates) {
				t.Errorf("%s, step %d: read back %+v, %v", name, step, again.Asks[0].Was, err)
			}
		}
	}
}

// A group that waits names no node, and keeps the canaries in its hold. What earlier releases
// registered, with candidates and canaries beside the hold, is the same decision.
func TestWhatWaitsNamesNoNode(t *testing.T) {
	body := strings.Replace(jobWith(`"Meta":{"gpu":"1"}`), `"Name":"g"`, `"Name":"g","Update":{"Canary":2}`, 1)
	d := Decision{Group: "g", Candidates: []string{"node-a"}, WithoutCanaries: true, Hold: &Hold{Kind: "room", Sentence: "none"}, Tasks: []TaskDecision{{Task: "t", Devices: []Device{{Name: "nvidia/gpu", Count: 1}}}}}
	written := string(applied(t, mustRead(t, body), d))
	const hold = `{"LTarget":"nomad-gpu: waits for room: none","RTarget":"admitted,canary=2","Operand":"="}`
	if strings.Contains(written, "unique") || strings.Count(written, hold) != 1 {
		t.Fatalf("it is written as %s", written)
	}
	was := d
	for _, node := range []string{`"RTarget":"nomad-gpu,canary=2","Operand":"!="`, `"RTarget":"nomad-gpu,node-a,canary=2","Operand":"set_contains_any"`} {
		earlier := strings.Replace(written, hold, `{"LTarget":"${node.unique.id}",`+node+`},{"LTarget":"nomad-gpu: waits for room: none","RTarget":"admitted","Operand":"="}`, 1)
		for name, one := range map[string]string{"now": written, "by an earlier release": earlier} {
			a := mustRead(t, one).Asks[0]
			if a.Registered() != a.Fingerprint(&was) || a.Canaries != 2 || a.Was.Hold != "room: none" {
				t.Errorf("written %s: %+v, %d canaries", name, a.Was, a.Canaries)
			}
			again := was
			again.Hold, again.Candidates, again.WithoutCanaries = nil, nil, false
			if free := string(applied(t, mustRead(t, one), again)); strings.Contains(free, "admitted") || !strings.Contains(free, `"Canary":2`) || strings.Count(free, "unique") != 1 {
				t.Errorf("written %s and let go: %s", name, free)
			}
		}
	}
}

// How many allocs each candidate may get is written and read back beside the author's own number and
// canaries, and taken out again with neither of them.
func TestSlotsAreWritten(t *testing.T) {
	const own, ours = `{"LTarget":"${node.unique.id}","RTarget":"2","Operand":"distinct_property"}`, "distinct_property"
	for name, constraints := range map[string]string{"none": "", "the same": own, "another": strings.Replace(own, "2", "3", 1)} {
		body := strings.Replace(jobWith(`"Meta":{"gpu":"1"}`), `"Name":"g"`, `"Name":"g","Update":{"Canary":4},"Constraints":[`+constraints+`]`, 1)
		d := Decision{Group: "g", Candidates: []string{"node-a", "node-b"}, Slots: 2, WithoutCanaries: true, Tasks: []TaskDecision{{Task: "t", Devices: []Device{{Name: "nvidia/gpu", Count: 1}}}}}
		author := strings.Count(body, ours)
		for _, slots := range []int{2, 2, 1, 0} {
			d.Slots = slots
			body = string(applied(t, mustRead(t, body), d))
			a := mustRead(t, body).Asks[0]
			want := author + min(1, slots)
			if n := strings.Count(body, ours); n != want || a.Was.Slots != slots || len(a.Was.Candidates) != 2 || a.Canaries != 4 || len(a.Constraints) != author || a.Distinct != "" {
				t.Errorf("%s, %d slots: %d such constraints, %+v: %s", name, slots, n, a, body)
			}
			if a.Registered() != a.Fingerprint(&d) {
				t.Errorf("%s, %d slots: it is not known again", name, slots)
			}
			other := d
			if other.Slots++; a.Registered() == a.Fingerprint(&other) {
				t.Errorf("%s, %d slots: it passes for another number", name, slots)
			}
		}
		d.Slots, d.Hold = 2, &Hold{Kind: "room", Sentence: "none"}
		body = string(applied(t, mustRead(t, body), d))
		if a := mustRead(t, body).Asks[0]; strings.Count(body, ours) != author || a.Registered() != a.Fingerprint(&d) {
			t.Errorf("%s, held: %s", name, body)
		}
	}
}

// Every golden file of an admission is read back as what was decided.
func TestGoldenJobsAreReadBack(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join("testdata", "*.golden"))
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	for _, path := range paths {
		body, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		j, err := Read(body, Query{})
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range j.Asks {
			if d := a.Was.Decision(a.Group); a.Registered() != a.Fingerprint(&d) {
				t.Errorf("%s: group %s: %+v", path, a.Group, d)
			}
		}
	}
}

// How many canaries a group has stands in its update block or in the job's, and beside the
// candidates where an admission set them aside.
func TestCanariesAreRead(t *testing.T) {
	for body, want := range map[string]int{
		`{"Job":{"ID":"j","TaskGroups":[{"Name":"g","Tasks":[TASK]}]}}`:                                                                                                                     0,
		`{"Job":{"ID":"j","TaskGroups":[{"Name":"g","Update":{"Canary":2},"Tasks":[TASK]}]}}`:                                                                                               2,
		`{"Job":{"ID":"j","Update":{"Canary":3},"TaskGroups":[{"Name":"g","Tasks":[TASK]}]}}`:                                                                                               3,
		`{"Job":{"ID":"j","Update":{"Canary":3},"TaskGroups":[{"Name":"g","Update":{"Canary":1},"Tasks":[TASK]}]}}`:                                                                         1,
		`{"Job":{"ID":"j","Update":{"Canary":3},"TaskGroups":[{"Name":"g","Update":{"MaxParallel":1},"Tasks":[TASK]}]}}`:                                                                    3,
		`{"Job":{"ID":"j","Update":null,"TaskGroups":[{"Name":"g","Update":null,"Tasks":[TASK]}]}}`:                                                                                         0,
		`{"Job":{"ID":"j","TaskGroups":[{"Name":"g","Constraints":[{"LTarget":"${node.unique.id}","Operand":"!=","RTarget":"nomad-gpu,canary=4"}],"Update":{"Canary":0},"Tasks":[TASK]}]}}`: 4,
	} {
		j, err := Read([]byte(strings.Replace(body, "TASK", `{"Name":"t","Driver":"docker","Meta":{"gpu":"1"}}`, 1)), Query{})
		if err != nil {
			t.Errorf("%s: %v", body, err)
			continue
		}
		if got := j.Asks[0].Canaries; got != want {
			t.Errorf("%s: %d canaries, want %d", body, got, want)
		}
	}
}

// What an admission wrote is read again as it was decided, before the next is made.
func TestWhatWasDecidedIsReadAgain(t *testing.T) {
	for _, d := range []Decision{
		{Group: "g", Preferred: []string{"n1"}},
		{Group: "g", Preferred: []string{"n2", "n1"}},
		{Group: "g", Preferred: []string{"n3", "n1", "n2"}, Candidates: []string{"n1", "n2", "n3", "n4"}},
		{Group: "g", Hold: &Hold{Kind: "room", Sentence: "none"}},
	} {
		d.Tasks = []TaskDecision{{Task: "t", Devices: []Device{{Name: "nvidia/gpu", Count: 2}}}}
		j := mustRead(t, jobWith(`"Meta":{"gpu":"2"}`))
		again := mustRead(t, string(applied(t, j, d))).Asks[0].Was
		if again == nil {
			t.Errorf("nothing is read of %+v", d)
			continue
		}
		got := again.Decision("g")
		if !slices.Equal(got.Preferred, d.Preferred) || !slices.Equal(got.Candidates, d.Candidates) || (got.Hold == nil) != (d.Hold == nil) {
			t.Errorf("%+v is read as %+v", d, got)
		}
	}
}

// Of a job, and of a child that is dispatched, Nomad gets no more priority than counts. Nothing else of
// a dispatch changes, and one that asks for less keeps its own.
func TestNomadGetsThePriorityThatCounts(t *testing.T) {
	decisions := func(counts ...int) (list []Decision) {
		for i, n := range counts {
			list = append(list, Decision{Group: string(rune('a' + i)), Priority: n, Tasks: []TaskDecision{{Task: "t", Devices: []Device{{Name: "nvidia/gpu", Count: 1}}}}})
		}
		return list
	}
	for _, row := range []struct {
		job    int
		counts []int
		want   int
	}{{100, []int{20, 0}, 100}, {100, []int{20, 40}, 40}, {100, []int{0, 0}, 100}, {30, []int{20, 40}, 30}} {
		const group = `{"Name":"%","Tasks":[{"Name":"t","Meta":{"gpu":"1"}}]}`
		j := mustRead(t, `{"Job":{"ID":"j","Priority":`+strconv.Itoa(row.job)+`,"TaskGroups":[`+strings.Replace(group, "%", "a", 1)+`,`+strings.Replace(group, "%", "b", 1)+`]}}`)
		body, err := j.Apply(decisions(row.counts...), Link{})
		if err != nil {
			t.Fatal(err)
		}
		if got := mustRead(t, string(body)); got.Priority != row.want {
			t.Errorf("%+v: %d", row, got.Priority)
		}
	}
	for body, row := range map[string]struct {
		asked, counts int
		want          string
	}{
		`{"Meta":{"a":"b"},"Priority":100}`: {100, 20, `{"Meta":{"a":"b"},"Priority":20}`},
		`{"Meta":{"a":"b"},"priority":10}`:  {10, 20, `{"Meta":{"a":"b"},"priority":10}`},
		`{"Meta":{"a":"b"}}`:                {100, 20, `{"Meta":{"a":"b"},"Priority":20}`},
		`{"Priority":90}`:                   {90, 0, `{"Priority":90}`},
	} {
		j := &Job{Asks: []Ask{{Priority: row.asked}}}
		if got, err := j.BoundDispatch([]byte(body), decisions(row.counts)); err != nil || string(got) != row.want {
			t.Errorf("%s of %d where %d counts: %s, %v", body, row.asked, row.counts, got, err)
		}
	}
}
