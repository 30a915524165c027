// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/internal/leaktest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// world stands for everything around the loop but the state, and writes down what
// happens.
type world struct {
	*state.State
	due     []*Item
	script  []string
	fails   string // the step that fails
	config  *config.Config
	moves   []Move
	relief  *Item
	saved   int
	told    []view.Event
	stale   bool // the state is not what Nomad says
	assumed bool // something is promised
	reads   int  // of nodes
	revised []decide.Revision
	kept    map[string]int
}

// did notes a step, and before it how promises ended.
func (w *world) did(format string, args ...any) error {
	w.notePromises()
	step := fmt.Sprintf(format, args...)
	w.script = append(w.script, step)
	if step == w.fails {
		return errors.New("it fails")
	}
	return nil
}

func (w *world) notePromises() {
	was := w.assumed
	w.View(func(r *state.Reader) { w.assumed = len(r.Capacity.AllAssumed()) > 0 })
	if was != w.assumed {
		w.script = append(w.script, map[bool]string{true: "assume", false: "forget"}[w.assumed])
	}
}

func (w *world) Next(_ *state.Tx, skip map[string]bool, mayEvict bool) *Item {
	for i, item := range w.due {
		if item.Evict != nil && !mayEvict {
			continue
		}
		if !skip[item.Job.String()] {
			w.due = slices.Delete(w.due, i, i+1)
			return item
		}
	}
	return nil
}

func (w *world) Allocs(context.Context, string) ([]*nomad.Alloc, uint64, error) {
	w.reads++
	if w.fails == "look" {
		return nil, 0, errors.New("it fails")
	}
	if w.stale {
		return []*nomad.Alloc{{ID: "unknown", NodeID: "n1", Status: "running"}}, 1, nil
	}
	return nil, 1, nil
}

func (w *world) Moves(*state.Tx, int) []Move  { return w.moves }
func (w *world) Relief(*state.Tx, int) *Item  { return w.relief }
func (w *world) Purge(context.Context) error  { return w.keep("purge") }
func (w *world) Expire(context.Context) error { return w.keep("expire") }

// keep counts what is done in each round.
func (w *world) keep(what string) error {
	if w.kept == nil {
		w.kept = map[string]int{}
	}
	if w.kept[what]++; w.fails == what {
		return errors.New("it fails")
	}
	return nil
}

func (w *world) Save(context.Context) error {
	w.saved++
	if w.fails == "save" {
		return errors.New("it fails")
	}
	return nil
}

func (w *world) current() *config.Config { return w.config }

func (w *world) Read(_ context.Context, key nomad.JobKey) ([]byte, error) {
	switch w.fails {
	case "read " + key.ID:
		return nil, errors.New("it fails")
	case "body " + key.ID:
		return []byte("{"), nil
	}
	return json.Marshal(map[string]any{"Job": map[string]any{
		"ID": key.ID, "Namespace": key.Namespace, "Type": "service",
		"TaskGroups": []any{map[string]any{"Name": "g", "Tasks": []any{map[string]any{"Name": "t", "Driver": "containerd", "Meta": map[string]any{"gpu": "8G"}}}}},
	}})
}

func (w *world) Register(_ context.Context, key nomad.JobKey, _ []byte) error {
	return w.did("register %s", key.ID)
}

func (w *world) Scale(_ context.Context, key nomad.JobKey, _ uint64, steps []admit.Scaling) error {
	return w.did("scale %s %v", key.ID, steps)
}

func (w *world) Stop(_ context.Context, allocID string, atOnce bool) error {
	if atOnce {
		return w.did("stop %s at once", allocID)
	}
	return w.did("stop %s", allocID)
}

func (w *world) Revise(_ context.Context, asks []admit.Ask, r decide.Revision) ([]admit.Decision, error) {
	if err := w.did("revise %s prefer=%q exclude=%q for=%q", asks[0].JobID, r.Prefer, strings.Join(r.Exclude, " "), r.For); err != nil {
		return nil, err
	}
	if w.revised = append(w.revised, r); w.fails == "nothing changes" {
		return nil, nil
	}
	return []admit.Decision{{Group: "g", Tasks: []admit.TaskDecision{{Task: "t", Devices: []admit.Device{{Name: "nvidia/slice", Count: 8}}}}}}, nil
}

func (w *world) Settle(_ context.Context, asks []admit.Ask, _ []admit.Decision, accepted bool) {
	_ = w.did("settle %s %v", asks[0].JobID, accepted)
}

func newLoop(w *world) *Loop {
	if w.config == nil {
		w.config = config.Default()
	}
	w.State = state.New(w.config, time.Now)
	w.Apply([]nomad.Change{{Node: nomad.NewNode(&api.Node{ID: "n1", Name: "n1", Status: "ready"}, nomad.Hardware{})}}, 1)
	return &Loop{
		State: w.State, Work: w, Decider: w, Keeper: w, Actor: w, Config: w.current, Logger: hclog.NewNullLogger(),
		Audit: func(e view.Event) { w.told = append(w.told, e) },
	}
}

func key(id string) nomad.JobKey { return nomad.JobKey{Namespace: "default", ID: id} }

func eviction() *Item {
	return &Item{
		Job: key("high"), Revision: decide.Revision{Group: "g", Prefer: "n1"},
		Evict: &decide.Eviction{Job: key("high"), Group: "g", Promises: []decide.Promise{{Job: key("high"), Group: "g", Usage: place.Usage{NodeID: "n1"}}}, Text: "low must go for high", Victims: []decide.Victim{
			{AllocID: "a1", Group: "g", Job: key("low"), Node: "n1"}, {AllocID: "a2", Group: "g", Job: key("low"), Node: "n1"},
		}},
	}
}

// run runs the loop for a while.
func run(t *testing.T, w *world, d time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		newLoop(w).Run(ctx)
		w.notePromises()
	})
}

func TestEvictionGoesInAnOrderInWhichTheRoomCannotGoAstray(t *testing.T) {
	w := &world{due: []*Item{eviction()}}
	run(t, w, time.Second)
	want := []string{
		"assume",
		`revise low prefer="" exclude="n1" for="default/high"`, "register low", "settle low true",
		`revise high prefer="n1" exclude="" for=""`, "register high", "settle high true",
		"stop a1", "stop a2",
	}
	if !slices.Equal(w.script, want) {
		t.Errorf("got  %q\nwant %q", w.script, want)
	}
	if len(w.told) != 2 || w.told[0].Kind != "evict" || w.told[0].For != "default/high" || w.told[1].AllocID != "a2" {
		t.Errorf("events %+v", w.told)
	}
}

func TestAnEvictionThatFailsStopsNobody(t *testing.T) {
	for _, job := range []string{"high", "low"} {
		item := eviction()
		w := &world{due: []*Item{item}, fails: "register " + job}
		run(t, w, time.Second)
		if slices.Contains(w.script, "stop a1") || w.script[len(w.script)-1] != "forget" || !slices.Contains(w.script, "settle "+job+" false") {
			t.Errorf("%s: got %q", job, w.script)
		}
		if len(w.told) != 0 {
			t.Errorf("%s: events %+v", job, w.told)
		}
	}
}

// Regression: Nomad does not tell that the allocs of a purged job are gone, and
// running work was evicted for room that was free.
func TestNobodyIsEvictedOnABelief(t *testing.T) {
	for _, w := range []*world{{stale: true}, {fails: "look"}} {
		w.due = []*Item{eviction()}
		run(t, w, time.Second)
		if len(w.script) != 0 || len(w.told) != 0 {
			t.Errorf("did %q, said %+v", w.script, w.told)
		}
	}
}

// What came around the service is held first, so that nothing starts again
// what is then stopped.
func TestWorkIsBroughtBackUnderItsQuota(t *testing.T) {
	due := &Item{
		Job: key("low"), Revision: decide.Revision{Group: "g", Hold: &admit.Hold{Kind: view.WaitsForQuota, Sentence: "queue q is full"}},
		Evict: &decide.Eviction{Text: "low must wait", Victims: []decide.Victim{{AllocID: "a1", Group: "g", Job: key("low"), Text: "low must wait"}}},
	}
	w := &world{due: []*Item{due}}
	run(t, w, time.Second)
	if want := []string{`revise low prefer="" exclude="" for=""`, "register low", "settle low true", "stop a1"}; !slices.Equal(w.script, want) {
		t.Errorf("got  %q\nwant %q", w.script, want)
	}
	if len(w.told) != 1 || w.told[0].Kind != "hold" || w.told[0].For != "" || w.told[0].Text != "low must wait" {
		t.Errorf("events %+v", w.told)
	}
}

func TestDryRunSaysAndDoesNothing(t *testing.T) {
	c := config.Default()
	c.Preemption.DryRun = true
	w := &world{due: []*Item{eviction(), eviction()}, config: c}
	run(t, w, time.Second)
	if len(w.script) != 0 || len(w.told) != 2 || !w.told[0].DryRun {
		t.Errorf("did %q, said %+v", w.script, w.told)
	}
}

func TestEvictionsAreLimited(t *testing.T) {
	c := config.Default()
	c.Preemption.MaxPerMinute = 2
	var due []*Item
	for i := range 5 {
		d := eviction()
		d.Job = key(fmt.Sprintf("high-%d", i))
		due = append(due, d)
	}
	w := &world{due: due, config: c}
	run(t, w, 45*time.Second) // one of two may be evicted again by then
	stops := 0
	for _, s := range w.script {
		if s == "stop a1" || s == "stop a2" {
			stops++
		}
	}
	if stops != 2 {
		t.Errorf("%d allocs were stopped in 45 seconds, want 2", stops)
	}
	if w.reads != 1 {
		t.Errorf("nodes were read %d times, want once: what the rate does not allow needs none", w.reads)
	}
}

// The least rate is one: an alloc is stopped at once, and the next after a minute.
func TestOneEvictionAMinute(t *testing.T) {
	c := config.Default()
	c.Preemption.MaxPerMinute = 1
	w := &world{config: c}
	for i := range 3 {
		d := eviction()
		d.Job, d.Evict.Victims = key(fmt.Sprintf("high-%d", i)), d.Evict.Victims[:1]
		w.due = append(w.due, d)
	}
	run(t, w, 45*time.Second)
	if stops := strings.Count(strings.Join(w.script, "\n"), "stop "); stops != 1 {
		t.Errorf("%d allocs were stopped in 45 seconds, want 1: %q", stops, w.script)
	}
}

func TestAJobThatCannotBeHelpedRests(t *testing.T) {
	retry := &Item{Job: key("stuck"), Revision: decide.Revision{Group: "g", Retry: true}}
	w := &world{due: []*Item{retry, retry, retry, retry}, fails: "register stuck"}
	run(t, w, pause+2*resync)
	tried := 0
	for _, s := range w.script {
		if s == "register stuck" {
			tried++
		}
	}
	if tried != 2 {
		t.Errorf("tried %d times in %s, want 2", tried, pause+2*resync)
	}
}

func TestRebalancingIsOffUntilItIsWanted(t *testing.T) {
	move := Move{Promise: decide.Promise{Job: key("job"), Group: "g", Usage: place.Usage{NodeID: "n1"}}, AllocID: "a1", From: "n1", To: "n2", Text: "it pays"}
	w := &world{moves: []Move{move}}
	run(t, w, time.Hour)
	if len(w.script) != 0 {
		t.Fatalf("did %q", w.script)
	}
	c := config.Default()
	c.Rebalance.Enabled = true
	w = &world{moves: []Move{move}, config: c}
	run(t, w, c.Rebalance.Interval+2*resync)
	want := []string{"assume", `revise job prefer="n2" exclude="n1" for="default/job"`, "register job", "settle job true", "stop a1"}
	if !slices.Equal(w.script, want) || len(w.told) != 1 || w.told[0].Kind != "move" {
		t.Errorf("did %q, said %+v", w.script, w.told)
	}
}

// In each round what is stored is brought up to date, and what of that fails is logged.
func TestEachRoundKeepsWhatIsStored(t *testing.T) {
	for fails, says := range map[string]string{"": "", "purge": "could not purge decisions about jobs that are gone", "expire": "could not forget expired reservations", "save": "could not store what was done"} {
		synctest.Test(t, func(t *testing.T) {
			w := &world{fails: fails}
			l := newLoop(w)
			text := logged(l)
			ctx, cancel := context.WithTimeout(t.Context(), 3*resync-1)
			defer cancel()
			l.Run(ctx)
			if w.kept["purge"] != 3 || w.kept["expire"] != 3 || w.saved != 3 {
				t.Errorf("in three rounds: %v, stored %d times", w.kept, w.saved)
			}
			if logged := strings.Count(text.String(), "could not"); (logged == 1) != (fails != "") || !strings.Contains(text.String(), says) {
				t.Errorf("%s fails: logged %s", fails, text)
			}
		})
	}
}

// The rate of evictions is by the minute, and may be configured anew while the loop runs.
func TestTheRateOfEvictions(t *testing.T) {
	for name, row := range map[string]struct {
		first, then int // evictions a minute; the second after half a minute
		stops       []int
	}{
		"one a minute":  {1, 1, []int{1, 1, 2, 3}},
		"more, and one": {2, 1, []int{2, 3, 3, 4}},
		"one, and many": {1, 60, []int{1, 30, 31, 31}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := config.Default()
				c.Preemption.MaxPerMinute = row.first
				w := &world{config: c}
				for i := range 31 {
					d := eviction()
					d.Job, d.Evict.Victims = key(fmt.Sprintf("high-%d", i)), d.Evict.Victims[:1]
					w.due = append(w.due, d)
				}
				l := newLoop(w)
				l.begin()
				at := 0
				for i, until := range []int{1, 60, 61, 121} { // rounds
					for ; at < until; at++ {
						if at == 30 {
							c.Preemption.MaxPerMinute = row.then
						}
						l.round(t.Context())
						time.Sleep(resync)
					}
					if stops := strings.Count(strings.Join(w.script, "\n"), "stop a1"); stops != row.stops[i] {
						t.Errorf("after %d seconds %d allocs were stopped, want %d", until-1, stops, row.stops[i])
					}
				}
			})
		})
	}
}

// A job rests until its time is over, and is then forgotten.
func TestWhatRests(t *testing.T) {
	now := time.Now()
	l := &Loop{skip: map[string]time.Time{"rests": now.Add(1), "rested": now, "has": now.Add(-time.Hour)}}
	if got := l.skipped(now); len(got) != 1 || !got["rests"] || len(l.skip) != 1 {
		t.Errorf("rest %v, of which is known %v", got, l.skip)
	}
}

// A system group that leaves a node is taken off it, and what runs of it there is stopped.
func TestASystemGroupLeavesANode(t *testing.T) {
	w := &world{due: []*Item{{
		Job: key("agent"), Revision: decide.Revision{Group: "g", Only: []string{"n2"}},
		Evict: &decide.Eviction{Text: "it must leave", Victims: []decide.Victim{{AllocID: "a1", Group: "g", Job: key("agent"), Node: "n1", Text: "it must leave"}}},
	}}}
	run(t, w, time.Second)
	if want := []string{`revise agent prefer="" exclude="" for=""`, "register agent", "settle agent true", "stop a1"}; !slices.Equal(w.script, want) {
		t.Errorf("got  %q\nwant %q", w.script, want)
	}
	if len(w.told) != 1 || w.told[0].Kind != "hold" || w.told[0].For != "" {
		t.Errorf("events %+v", w.told)
	}
}

// Whoever has a group wait hears what could not be done.
func TestWhatIsHeldByHand(t *testing.T) {
	for fails, script := range map[string]string{
		"":               `revise job prefer="" exclude="" for="", register job, settle job true`,
		"read job":       "",
		"body job":       "",
		"register job":   `revise job prefer="" exclude="" for="", register job, settle job false`,
		"revise job":     "",
		"nothing at all": "",
	} {
		w := &world{fails: fails}
		if fails == "revise job" {
			w.fails, script = `revise job prefer="" exclude="" for=""`, `revise job prefer="" exclude="" for=""`
		}
		if fails == "nothing at all" {
			w.fails, script = "nothing changes", `revise job prefer="" exclude="" for=""`
		}
		l := newLoop(w)
		err := l.Hold(t.Context(), "default", "job", "g", admit.Hold{Kind: view.WaitsForQuota})
		if got := strings.Join(w.script, ", "); got != script || (err == nil) != (fails == "" || fails == "nothing at all") {
			t.Errorf("%s: did %s, %v", fails, got, err)
		}
		for _, r := range w.revised {
			if r.Group != "g" || r.Hold == nil || r.Hold.Kind != view.WaitsForQuota {
				t.Errorf("%s: revised %+v", fails, r)
			}
		}
	}
}

// Work that moves for what waits is made to prefer its new place, and leaves the old one.
func TestReliefMovesBeforeWhatWaitsStarts(t *testing.T) {
	relief := eviction()
	relief.Evict.Moves, relief.Evict.Victims = true, relief.Evict.Victims[:1]
	relief.Evict.Victims[0].To = "n2"
	c := config.Default()
	c.Rebalance.Enabled = true
	w := &world{relief: relief, config: c}
	run(t, w, c.Rebalance.Interval+2*resync)
	want := []string{
		"assume",
		`revise low prefer="n2" exclude="n1" for="default/high"`, "register low", "settle low true",
		`revise high prefer="n1" exclude="" for=""`, "register high", "settle high true",
		"stop a1",
	}
	if !slices.Equal(w.script, want) || len(w.told) != 1 || w.told[0].Kind != "move" || w.told[0].For != "default/high" {
		t.Errorf("did %q, said %+v", w.script, w.told)
	}
}

// meters is a book that only measures.
type meters struct {
	asked, told []string
	bursting    []string // nodes
	looks       int
	saved       []map[nomad.JobKey]time.Time
	troubles    []string
}

func (m *meters) GPUNodes(bursting bool) []string {
	if bursting {
		return m.bursting
	}
	return []string{"n1", "n2"}
}

func (m *meters) Measured(node string, _ nomad.Measurements) {
	m.told = append(m.told, node)
}

func (m *meters) Saved(at map[nomad.JobKey]time.Time) { m.saved = append(m.saved, at) }

func (m *meters) Trouble(err error) { m.troubles = append(m.troubles, err.Error()) }

// Checkpoints may be read at first, and then not twice in a row.
func (m *meters) Checkpoints(context.Context) (map[nomad.JobKey]time.Time, error) {
	if m.looks++; m.looks > 1 {
		return nil, errors.New("permission denied")
	}
	return map[nomad.JobKey]time.Time{}, nil
}

func (m *meters) MeasureAll(_ context.Context, nodes []string, each func(string, nomad.Measurements)) {
	m.asked = append(m.asked, nodes...)
	for _, n := range nodes {
		each(n, nomad.Measurements{})
	}
}

func TestMeterMeasuresAtItsInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &meters{}
		ctx, cancel := context.WithTimeout(t.Context(), 95*time.Second)
		defer cancel()
		(&Meter{Reader: m, Meters: m, Config: config.Default}).Run(ctx)
		if len(m.asked) != 6 || len(m.told) != 6 {
			t.Errorf("asked %v, told %v", m.asked, m.told)
		}
		if len(m.saved) != 1 || len(m.troubles) != 1 {
			t.Errorf("heard of checkpoints %d times, of trouble %q; want one each", len(m.saved), m.troubles)
		}
	})
}
