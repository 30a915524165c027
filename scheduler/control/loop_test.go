package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world stands for everything around the loop, and writes down what happens.
type world struct {
	due    []*decide.Due
	script []string
	fails  string // the step that fails
	config *config.Config
	notes  []view.Event
	moves  []decide.Move
	saved  int
	told   int  // of the notes
	stale  bool // the book is not what Nomad says
}

func (w *world) did(format string, args ...any) error {
	step := fmt.Sprintf(format, args...)
	w.script = append(w.script, step)
	if step == w.fails {
		return errors.New("it fails")
	}
	return nil
}

func (w *world) NextDue(skip map[string]bool, mayEvict bool) *decide.Due {
	for i, d := range w.due {
		if d.Evict != nil && !mayEvict {
			continue
		}
		if !skip[d.Job.String()] {
			w.due = slices.Delete(w.due, i, i+1)
			return d
		}
	}
	return nil
}
func (w *world) Allocs(context.Context, string) ([]*nomad.Alloc, uint64, error) {
	if w.fails == "look" {
		return nil, 0, errors.New("it fails")
	}
	return nil, 1, nil
}
func (w *world) Confirm(string, []*nomad.Alloc, uint64) bool { return !w.stale }

func (w *world) Promise(p decide.Promise)     { _ = w.did("promise %s", p.Job.ID) }
func (w *world) Withdraw(p decide.Promise)    { _ = w.did("withdraw %s", p.Job.ID) }
func (w *world) Note(e view.Event)            { w.notes = append(w.notes, e) }
func (w *world) Expire() []decide.Reservation { return nil }
func (w *world) Moves(int) []decide.Move      { return w.moves }
func (w *world) Purge(context.Context) error  { return nil }
func (w *world) current() *config.Config      { return w.config }

func (w *world) Save(context.Context) error { w.saved++; return nil }
func (w *world) Untold() []view.Event {
	list := w.notes[w.told:]
	w.told = len(w.notes)
	return list
}

func (w *world) Forget(context.Context, decide.Reservation) error { return nil }

func (w *world) Read(_ context.Context, key nomad.JobKey) ([]byte, error) {
	return json.Marshal(map[string]any{"Job": map[string]any{
		"ID": key.ID, "Namespace": key.Namespace, "Type": "service",
		"TaskGroups": []any{map[string]any{"Name": "g", "Tasks": []any{map[string]any{"Name": "t", "Driver": "containerd", "Meta": map[string]any{"gpu": "8G"}}}}},
	}})
}

func (w *world) Register(_ context.Context, key nomad.JobKey, _ []byte) error {
	return w.did("register %s", key.ID)
}

func (w *world) Stop(_ context.Context, allocID string) error { return w.did("stop %s", allocID) }

func (w *world) Revise(_ context.Context, asks []admit.Ask, r decide.Revision) ([]admit.Decision, error) {
	if err := w.did("revise %s prefer=%q exclude=%q for=%q", asks[0].JobID, r.Prefer, r.Exclude, r.For); err != nil {
		return nil, err
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
	return &Loop{Book: w, Decider: w, Actor: w, Config: w.current, Logger: hclog.NewNullLogger()}
}

func key(id string) nomad.JobKey { return nomad.JobKey{Namespace: "default", ID: id} }

func eviction() *decide.Due {
	return &decide.Due{
		Job: key("high"), Revision: decide.Revision{Group: "g", Prefer: "n1"},
		Evict: &decide.Eviction{Job: key("high"), Group: "g", Promises: []decide.Promise{{Job: key("high"), Group: "g"}}, Text: "low must go for high", Victims: []decide.Victim{
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
	})
}

func TestEvictionGoesInAnOrderInWhichTheRoomCannotGoAstray(t *testing.T) {
	w := &world{due: []*decide.Due{eviction()}}
	run(t, w, time.Second)
	want := []string{
		"promise high",
		`revise high prefer="n1" exclude="" for=""`, "register high", "settle high true",
		`revise low prefer="" exclude="n1" for="default/high"`, "register low", "settle low true",
		"stop a1", "stop a2",
	}
	if !slices.Equal(w.script, want) {
		t.Errorf("got  %q\nwant %q", w.script, want)
	}
	if len(w.notes) != 2 || w.notes[0].Kind != "evict" || w.notes[0].For != "default/high" || w.notes[1].AllocID != "a2" {
		t.Errorf("events %+v", w.notes)
	}
}

func TestAnEvictionThatFailsStopsNobody(t *testing.T) {
	w := &world{due: []*decide.Due{eviction()}, fails: "register low"}
	run(t, w, time.Second)
	if slices.Contains(w.script, "stop a1") || w.script[len(w.script)-1] != "withdraw high" || !slices.Contains(w.script, "settle low false") {
		t.Errorf("got %q", w.script)
	}
	if len(w.notes) != 0 {
		t.Errorf("events %+v", w.notes)
	}
}

// Regression: Nomad does not tell that the allocs of a purged job are gone, and
// running work was evicted for room that was free.
func TestNobodyIsEvictedOnABelief(t *testing.T) {
	for _, w := range []*world{{stale: true}, {fails: "look"}} {
		w.due = []*decide.Due{eviction()}
		run(t, w, time.Second)
		if len(w.script) != 0 || len(w.notes) != 0 {
			t.Errorf("did %q, said %+v", w.script, w.notes)
		}
	}
}

// What came around the service is held first, so that nothing starts again
// what is then stopped.
func TestWorkIsBroughtBackUnderItsQuota(t *testing.T) {
	due := &decide.Due{
		Job: key("low"), Revision: decide.Revision{Group: "g", Hold: &admit.Hold{Kind: view.WaitsForQuota, Sentence: "queue q is full"}},
		Evict: &decide.Eviction{Text: "low must wait", Victims: []decide.Victim{{AllocID: "a1", Group: "g", Job: key("low"), Text: "low must wait"}}},
	}
	w := &world{due: []*decide.Due{due}}
	run(t, w, time.Second)
	if want := []string{`revise low prefer="" exclude="" for=""`, "register low", "settle low true", "stop a1"}; !slices.Equal(w.script, want) {
		t.Errorf("got  %q\nwant %q", w.script, want)
	}
	if len(w.notes) != 1 || w.notes[0].Kind != "hold" || w.notes[0].For != "" || w.notes[0].Text != "low must wait" {
		t.Errorf("events %+v", w.notes)
	}
}

func TestDryRunSaysAndDoesNothing(t *testing.T) {
	c := config.Default()
	c.Preemption.DryRun = true
	w := &world{due: []*decide.Due{eviction(), eviction()}, config: c}
	run(t, w, time.Second)
	if len(w.script) != 0 || len(w.notes) != 2 || !w.notes[0].DryRun {
		t.Errorf("did %q, said %+v", w.script, w.notes)
	}
}

func TestEvictionsAreLimited(t *testing.T) {
	c := config.Default()
	c.Preemption.MaxPerMinute = 2
	var due []*decide.Due
	for i := range 5 {
		d := eviction()
		d.Job = key(fmt.Sprintf("high-%d", i))
		due = append(due, d)
	}
	w := &world{due: due, config: c}
	run(t, w, 10*time.Second)
	stops := 0
	for _, s := range w.script {
		if s == "stop a1" || s == "stop a2" {
			stops++
		}
	}
	if stops != 2 {
		t.Errorf("%d allocs were stopped in ten seconds, want 2", stops)
	}
}

func TestAJobThatCannotBeHelpedRests(t *testing.T) {
	retry := &decide.Due{Job: key("stuck"), Revision: decide.Revision{Group: "g", Retry: true}}
	w := &world{due: []*decide.Due{retry, retry, retry, retry}, fails: "register stuck"}
	run(t, w, pause+2*beat)
	tried := 0
	for _, s := range w.script {
		if s == "register stuck" {
			tried++
		}
	}
	if tried != 2 {
		t.Errorf("tried %d times in %s, want 2", tried, pause+2*beat)
	}
}

func TestRebalancingIsOffUntilItIsWanted(t *testing.T) {
	move := decide.Move{Promise: decide.Promise{Job: key("job"), Group: "g"}, AllocID: "a1", From: "n1", To: "n2", Text: "it pays"}
	w := &world{moves: []decide.Move{move}}
	run(t, w, time.Hour)
	if len(w.script) != 0 {
		t.Fatalf("did %q", w.script)
	}
	c := config.Default()
	c.Rebalance.Enabled = true
	w = &world{moves: []decide.Move{move}, config: c}
	run(t, w, c.Rebalance.Interval+2*beat)
	want := []string{"promise job", `revise job prefer="n2" exclude="n1" for="default/job"`, "register job", "settle job true", "stop a1"}
	if !slices.Equal(w.script, want) || len(w.notes) != 1 || w.notes[0].Kind != "move" {
		t.Errorf("did %q, said %+v", w.script, w.notes)
	}
}

// meters is a book that only measures.
type meters struct{ asked, told []string }

func (m *meters) GPUNodes() []string { return []string{"n1", "n2"} }
func (m *meters) Measured(node string, _ nomad.Measurements) {
	m.told = append(m.told, node)
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
		(&Meter{Reader: m, Book: m, Config: config.Default}).Run(ctx)
		if len(m.asked) != 6 || len(m.told) != 6 {
			t.Errorf("asked %v, told %v", m.asked, m.told)
		}
	})
}
