package decide

import (
	"slices"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Who killed a job has an answer that lasts: the next leader has it, and the audit
// log gets each event once.
func TestWhatWasDoneSurvivesAChangeOfLeaders(t *testing.T) {
	b := newBench(t, quick, machine("a", 1))
	b.book.Note(view.Event{Kind: "evict", Namespace: "default", JobID: "low", AllocID: "alloc", For: "default/high", Text: "it had to go"})
	b.book.Note(view.Event{Kind: "move", Namespace: "default", JobID: "other", AllocID: "alloc-2", Text: "it pays", DryRun: true})
	if told := b.book.Untold(); len(told) != 2 || told[0].Text != "it had to go" || len(b.book.Untold()) != 0 {
		t.Errorf("told %+v", told)
	}
	for range 2 { // the second writes nothing
		if err := b.Save(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if index := b.store.items[historyPath].Index; index != 1 {
		t.Errorf("written up to index %d", index)
	}
	next := newBench(t, quick, machine("a", 1))
	next.store, next.Decider.store, next.clock.at = b.store, b.store, b.clock.at.Add(time.Minute)
	next.book.Heard()
	for range 2 { // it may lead twice
		if err := next.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	c, err := next.book.Picture()
	if err != nil || len(c.Events) != 2 || c.Events[1].For != "default/high" || !c.Events[1].At.Equal(b.clock.at) {
		t.Errorf("events %+v, %v", c.Events, err)
	}
	if len(next.book.evicted[nomad.JobKey{Namespace: "default", ID: "low"}]) != 1 || len(next.book.Untold()) != 0 {
		t.Errorf("evicted %v", next.book.evicted)
	}
	next.book.Note(view.Event{Kind: "hold", Text: "more"})
	if err := next.Save(t.Context()); err != nil {
		t.Errorf("the next leader cannot go on writing: %v", err)
	}
}

// A job bears so many evictions within an hour, and no more.
func TestAJobBearsSoManyEvictions(t *testing.T) {
	b := newBench(t, "preemption {\n min_run_time = \"0s\"\n max_per_job = 2\n}", machine("a", 2))
	low, other := b.tenant(t, "low", 20, "a", 0, 0, 16), b.tenant(t, "other", 30, "a", 1, 0, 16)
	b.waits(t, "high", "1", 80)
	victim := func() string {
		due := b.book.NextDue(nil, true)
		if due == nil || due.Evict == nil {
			return ""
		}
		return due.Evict.Victims[0].AllocID
	}
	gone := func(job string) {
		b.book.Note(view.Event{Kind: "evict", Namespace: "default", JobID: job, AllocID: "x"})
	}
	var got []string
	for range 3 {
		v := victim()
		got = append(got, v)
		gone("low")
	}
	if want := []string{"alloc-low", "alloc-low", "alloc-other"}; !slices.Equal(got, want) {
		t.Errorf("victims %v, want %v", got, want)
	}
	gone("other")
	gone("other")
	if v := victim(); v != "" {
		t.Errorf("%s goes although both have gone twice", v)
	}
	b.clock.at = b.clock.at.Add(budgetTime)
	b.book.Heard()
	b.book.Expire()
	if v := victim(); v != "alloc-low" {
		t.Errorf("an hour later %q goes", v)
	}
	_, _ = low, other
}
