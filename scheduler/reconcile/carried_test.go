// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// brought is a group that has to wait for its quota, and what runs of it.
func brought() *Item {
	return &Item{
		Job: key("low"), Revision: decide.Revision{Group: "g", Hold: &admit.Hold{Kind: view.WaitsForQuota, Sentence: "queue q is full"}},
		Evict: &decide.Eviction{Text: "low must wait", Victims: []decide.Victim{{AllocID: "a1", Group: "g", Job: key("low"), Text: "low must wait"}, {AllocID: "a2", Group: "g", Job: key("low")}}},
	}
}

// A step that fails ends what it belongs to: nothing is told as done, or that it was not, what was
// promised is free again, and the log has it.
func TestAStepThatFailsEndsIt(t *testing.T) {
	c := config.Default()
	c.Rebalance.Enabled = true
	gang := eviction()
	gang.Revision = decide.Revision{Group: "g", RoomMade: gang.Evict.Promises}
	move := []Move{{Promise: decide.Promise{Job: key("job"), Group: "g", Usage: place.Usage{NodeID: "n1"}}, AllocID: "a1", From: "n1", To: "n2"}}
	for name, row := range map[string]struct {
		item  *Item
		moves []Move
		fails string
		last  string
		told  string // of which allocs, in order; !: that it failed
		log   string
	}{
		"a hold is not decided":     {brought(), nil, `revise low prefer="" exclude="" for=""`, `revise low prefer="" exclude="" for=""`, "", "could not hold job default/low"},
		"a hold is not registered":  {brought(), nil, "register low", "settle low false", "", "could not hold job default/low"},
		"a held alloc runs on":      {brought(), nil, "stop a1", "stop a1", "a1 a2 !a1 !a2", "could not hold job default/low"},
		"the second of them":        {brought(), nil, "stop a2", "stop a2", "a1 a2 !a2", "could not hold job default/low"},
		"a victim runs on":          {eviction(), nil, "stop a1", "forget", "a1 a2 !a1 !a2", "could not evict for job default/high"},
		"the second victim":         {eviction(), nil, "stop a2", "forget", "a1 a2 !a2", "could not evict for job default/high"},
		"a gang's room not counted": {gang, nil, "register high", "forget", "", "could not evict for job default/high"},
		"a seat is not decided":     {seat(), nil, `revise high prefer="n1" exclude="" for=""`, "forget", "", "could not take a seat for job default/high"},
		"a move is not registered":  {nil, move, "register job", "forget", "", "could not move an alloc of job default/job"},
		"what is moved runs on":     {nil, move, "stop a1", "forget", "a1 !a1", "could not move an alloc of job default/job"},
		"a revision is not decided": {&Item{Job: key("job"), Revision: decide.Revision{Group: "g", Retry: true}}, nil, `revise job prefer="" exclude="" for=""`, `revise job prefer="" exclude="" for=""`, "", "could not revise job default/job"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &world{moves: row.moves, fails: row.fails, config: c}
				if row.item != nil {
					w.due = []*Item{row.item}
				}
				l := newLoop(w)
				text := logged(l)
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				if row.moves != nil {
					ctx, cancel = context.WithTimeout(t.Context(), c.Rebalance.Interval+resync)
				}
				defer cancel()
				l.Run(ctx)
				w.notePromises()
				if len(w.script) == 0 || w.script[len(w.script)-1] != row.last || whom(w.told) != row.told || strings.Count(text.String(), row.log) != 1 {
					t.Errorf("did %q, told %+v, logged %s", w.script, w.told, text)
				}
			})
		})
	}
}

// whom are the allocs that events tell of, with ! where it failed.
func whom(told []view.Event) string {
	var list []string
	for _, e := range told {
		list = append(list, map[bool]string{true: "!"}[e.Failed]+e.AllocID)
	}
	return strings.Join(list, " ")
}

// What is done is written down before it is: where that fails, no alloc is stopped.
func TestNoAllocIsStoppedUnrecorded(t *testing.T) {
	for name, item := range map[string]*Item{"evicted": eviction(), "held": brought()} {
		synctest.Test(t, func(t *testing.T) {
			w := &world{due: []*Item{item}, fails: "save"}
			l := newLoop(w)
			text := logged(l)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			l.Run(ctx)
			w.notePromises()
			says := map[string]string{"evicted": "could not evict for job default/high: error=\"it fails\"", "held": "could not hold job default/low: error=\"it fails\""}[name]
			if script := strings.Join(w.script, " "); strings.Contains(script, "stop") || w.assumed || !strings.Contains(text.String(), says) {
				t.Errorf("%s: did %s, logged %s", name, script, text)
			}
		})
	}
}

// What comes to nothing since the job is as it should be already is no failure, and rests.
func TestWhatChangesNothingRests(t *testing.T) {
	retry := &Item{Job: key("job"), Revision: decide.Revision{Group: "g", Retry: true}}
	for name, item := range map[string]*Item{"a revision": retry, "a seat": seat()} {
		synctest.Test(t, func(t *testing.T) {
			w := &world{due: []*Item{item, item, item}, fails: "nothing changes"}
			l := newLoop(w)
			text := logged(l)
			ctx, cancel := context.WithTimeout(t.Context(), pause+resync/2)
			defer cancel()
			l.Run(ctx)
			w.notePromises()
			if len(w.revised) != 2 || strings.Contains(text.String(), "could not") || len(w.told) != 0 || w.assumed {
				t.Errorf("%s: revised %d times, told %+v, logged %s", name, len(w.revised), w.told, text)
			}
		})
	}
}

// A dry run tells the same once a minute, whatever it is about.
func TestADryRunIsToldOnceAMinute(t *testing.T) {
	for name, item := range map[string]func() *Item{"an eviction": eviction, "a hold": brought, "a seat": seat} {
		c := config.Default()
		c.Preemption.DryRun = true
		w := &world{config: c}
		for range 100 {
			w.due = append(w.due, item())
		}
		run(t, w, 2*time.Minute+time.Second/2)
		rounds := map[string]int{}
		for _, e := range w.told {
			rounds[e.AllocID]++
			if !e.DryRun {
				t.Errorf("%s: told as done: %+v", name, e)
			}
		}
		if len(w.script) != 0 || rounds["a1"] != 3 {
			t.Errorf("%s: did %q, told %v", name, w.script, rounds)
		}
	}
}

// A dry run of moves tells them too, and does none.
func TestADryRunMovesNothing(t *testing.T) {
	c := config.Default()
	c.Preemption.DryRun, c.Rebalance.Enabled = true, true
	moves := []Move{{Promise: decide.Promise{Job: key("one"), Usage: place.Usage{NodeID: "n1"}}, AllocID: "a1", Text: "it pays"}, {Promise: decide.Promise{Job: key("two")}, AllocID: "a2", Text: "so does it"}}
	w := &world{moves: moves, config: c}
	run(t, w, 3*c.Rebalance.Interval+resync/2)
	if len(w.script) != 0 || len(w.told) != 6 {
		t.Fatalf("did %q, told %+v", w.script, w.told)
	}
	for i, want := range []view.Event{{JobID: "one", AllocID: "a1", For: "default/one", Text: "it pays"}, {JobID: "two", AllocID: "a2", For: "default/two", Text: "so does it"}} {
		got := w.told[i]
		want.At, want.Kind, want.Namespace, want.DryRun = got.At, "move", "default", true
		if got != want {
			t.Errorf("told %+v, want %+v", got, want)
		}
	}
}

// Each node of the victims is read once, and none after one that is not as it was.
func TestEachNodeOfTheVictimsIsReadOnce(t *testing.T) {
	for stale, want := range map[bool]int{false: 2, true: 1} {
		item := eviction()
		item.Evict.Victims = append(item.Evict.Victims, decide.Victim{AllocID: "a3", Group: "g", Job: key("low"), Node: "n2"})
		w := &world{due: []*Item{item}, stale: stale}
		run(t, w, time.Second)
		if w.reads != want || slices.Contains(w.script, "stop a3") == stale {
			t.Errorf("stale %v: read %d nodes, did %q", stale, w.reads, w.script)
		}
	}
}

// What gives up its quota or its room is kept off it once for each group and node: a gang waits as
// one, what has its quota taken waits for that, and what moves is sent elsewhere.
func TestVictimsAreKeptOffWhatTheyLeave(t *testing.T) {
	victim := func(id, job, group, node string) decide.Victim {
		return decide.Victim{AllocID: id, Job: key(job), Group: group, Node: node}
	}
	gang, other := victim("a1", "gang", "g", "n1"), victim("a2", "gang", "h", "n2")
	gang.Gang, other.Gang, gang.Quota = true, true, "q"
	quota, again := victim("a3", "quota", "g", "n1"), victim("a4", "quota", "g", "n2")
	quota.Quota, again.Quota = "q", "q"
	moved := victim("a5", "moved", "g", "n1")
	moved.To = "n2"
	room, elsewhere, sibling := victim("a6", "room", "g", "n1"), victim("a7", "room", "g", "n1"), victim("a8", "room", "h", "n1")
	item := eviction()
	item.Evict.Victims = []decide.Victim{gang, other, quota, again, moved, room, elsewhere, sibling}
	w := &world{due: []*Item{item}}
	run(t, w, time.Second)
	type change struct {
		group, hold, exclude, prefer, whom string
	}
	var got []change
	for _, r := range w.revised[:len(w.revised)-1] { // the last is of the one that waits
		c := change{group: r.Group, exclude: strings.Join(r.Exclude, " "), prefer: r.Prefer, whom: r.For}
		if r.Hold != nil {
			c.hold = r.Hold.Kind
		}
		got = append(got, c)
	}
	want := []change{{group: "g", hold: view.WaitsForRoom}, {group: "g", hold: view.WaitsForQuota}, {"g", "", "n1", "n2", "default/high"}, {"g", "", "n1", "", "default/high"}, {"h", "", "n1", "", "default/high"}}
	if !slices.Equal(got, want) {
		t.Errorf("revised %+v\nwant    %+v", got, want)
	}
	stops := 0
	for _, step := range w.script {
		if strings.HasPrefix(step, "stop ") {
			stops++
		}
	}
	if stops != 8 {
		t.Errorf("%d of 8 victims were stopped", stops)
	}
}

// What waits as one and gets its room in parts is not let go before all of it is there: what was
// done for it is counted last, and it prefers no node.
func TestRoomForAGangIsCountedLast(t *testing.T) {
	item := eviction()
	item.Revision = decide.Revision{Group: "g", RoomMade: item.Evict.Promises}
	w := &world{due: []*Item{item}}
	run(t, w, time.Second)
	var jobs []string
	for _, step := range w.script {
		if name, found := strings.CutPrefix(step, "register "); found {
			jobs = append(jobs, name)
		}
	}
	if want := []string{"low", "high"}; !slices.Equal(jobs, want) {
		t.Errorf("registered %v, want %v", jobs, want)
	}
	if len(w.revised) != 2 || len(w.revised[1].RoomMade) != 1 {
		t.Errorf("revised %+v", w.revised)
	}
}

// People are told what kind of thing was done.
func TestKindsOfEvents(t *testing.T) {
	hold := &admit.Hold{Kind: view.WaitsForQuota}
	for want, item := range map[string]*Item{
		"evict":   {Evict: &decide.Eviction{}},
		"reclaim": {Evict: &decide.Eviction{Reclaim: true}},
		"idle":    {Evict: &decide.Eviction{Idle: true, Reclaim: true}},
		"move":    {Evict: &decide.Eviction{Moves: true, Idle: true}},
		"hold":    {Evict: &decide.Eviction{Moves: true}, Revision: decide.Revision{Hold: hold}},
	} {
		if got := kindOf(item); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if got := kindOf(&Item{Evict: &decide.Eviction{Reclaim: true}, Revision: decide.Revision{Only: []string{"n1"}}}); got != "hold" {
		t.Errorf("held to nodes: %s", got)
	}
}

// A system group that is held to some nodes is changed before what must go is stopped, and that is
// counted against the rate.
func TestAGroupIsHeldToItsNodes(t *testing.T) {
	item := brought()
	item.Revision.Hold, item.Revision.Only = nil, []string{"n2"}
	w := &world{due: []*Item{item}}
	run(t, w, time.Second)
	if want := []string{`revise low prefer="" exclude="" for=""`, "register low", "settle low true", "stop a1", "stop a2"}; !slices.Equal(w.script, want) || w.assumed {
		t.Errorf("got  %q\nwant %q", w.script, want)
	}
	c := config.Default()
	c.Preemption.MaxPerMinute = 2
	w = &world{due: []*Item{brought(), {Job: key("other"), Revision: brought().Revision, Evict: &decide.Eviction{Victims: []decide.Victim{{AllocID: "b1", Job: key("other"), Group: "g"}}}}}, config: c}
	run(t, w, time.Second)
	if !slices.Contains(w.script, "stop a2") || slices.Contains(w.script, "stop b1") {
		t.Errorf("with two a minute: %q", w.script)
	}
}

// The rate of evictions is that of the configuration, also after it was changed; more victims than
// it has at all take all of it.
func TestTheRateFollowsTheConfiguration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := config.Default()
		c.Preemption.MaxPerMinute = 2
		w := &world{config: c}
		l := newLoop(w)
		l.begin()
		e := &decide.Eviction{Victims: make([]decide.Victim, 5)}
		if !l.mayEvict(e) || l.mayEvict(e) {
			t.Error("five victims take the two of a minute, once")
		}
		time.Sleep(time.Minute)
		if !l.mayEvict(e) {
			t.Error("and again a minute later")
		}
		c.Preemption.MaxPerMinute = 120
		l.round(t.Context())
		time.Sleep(2500 * time.Millisecond)
		if l.limiter.Burst() != 120 || l.limiter.Limit() != 2 {
			t.Errorf("%d at once, %v a second", l.limiter.Burst(), l.limiter.Limit())
		}
		if !l.mayEvict(e) || l.mayEvict(e) {
			t.Error("two a second are five in 2.5 seconds")
		}
	})
}

// A round ends, however much there is to do: what is due each second does not starve.
func TestARoundEnds(t *testing.T) {
	w := &world{}
	for range perRound + 5 {
		w.due = append(w.due, &Item{Job: key("job"), Revision: decide.Revision{Group: "g", Retry: true}})
	}
	run(t, w, resync/2)
	if len(w.revised) != perRound || w.saved != 1 {
		t.Errorf("%d revisions in a round, stored %d times", len(w.revised), w.saved)
	}
}

// A replica that ceases to lead begins nothing more, and one that leads again has forgotten
// what it left alone.
func TestANewTimeOfLeadingForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{fails: "register job"}
		l := newLoop(w)
		for range 2 {
			w.due = append(w.due, &Item{Job: key("job"), Revision: decide.Revision{Group: "g", Retry: true}})
			ctx, cancel := context.WithTimeout(t.Context(), resync/2)
			l.Run(ctx)
			cancel()
		}
		if len(w.revised) != 2 {
			t.Errorf("tried %d times, want once in each time of leading", len(w.revised))
		}
		w.due, w.revised = []*Item{{Job: key("job")}}, nil
		over, cancel := context.WithCancel(t.Context())
		cancel()
		l.Run(over)
		if len(w.revised) != 0 {
			t.Error("it went on after its time")
		}
	})
}

// A group is held as the caller says, where Nomad still has the job.
func TestAGroupIsHeldOnRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		l := newLoop(w)
		l.begin()
		if err := l.Hold(t.Context(), "default", "job", "g", admit.Hold{Kind: view.WaitsForRoom, Sentence: "so"}); err != nil || len(w.revised) != 1 || *w.revised[0].Hold != (admit.Hold{Kind: view.WaitsForRoom, Sentence: "so"}) || w.revised[0].Group != "g" {
			t.Errorf("%v, revised %+v", err, w.revised)
		}
		w.fails = "register job"
		if err := l.Hold(t.Context(), "default", "job", "g", admit.Hold{}); err == nil {
			t.Error("a failure is not told")
		}
	})
}

// unreadable is a Nomad that has another answer for a job.
type unreadable struct {
	*world
	body []byte
	err  error
}

func (u unreadable) Read(context.Context, nomad.JobKey) ([]byte, error) { return u.body, u.err }

// A job that cannot be read is not decided about.
func TestAJobThatCannotBeReadIsLeftAlone(t *testing.T) {
	gone := errors.New("job not found")
	for name, u := range map[string]unreadable{"Nomad has none": {&world{}, nil, gone}, "it is no job": {&world{}, []byte("{"), nil}} {
		l := newLoop(u.world)
		l.Actor = u
		l.begin()
		changed, err := l.revise(t.Context(), key("job"), decide.Revision{Group: "g"})
		if changed || err == nil || u.err != nil && !errors.Is(err, gone) || len(u.script) != 0 {
			t.Errorf("%s: %v, %v, did %q", name, changed, err, u.script)
		}
	}
}

// What was done is told without an audit log too, and once.
func TestWithoutAnAuditLogThingsAreStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		l := newLoop(w)
		l.Audit = nil
		l.begin()
		l.State.Do(func(tx *state.Tx) { tx.Note(view.Event{Kind: "hold"}) })
		l.tell(t.Context())
		var left int
		l.State.Do(func(tx *state.Tx) { left = len(tx.Audit.Take()) })
		if w.saved != 1 || left != 0 {
			t.Errorf("stored %d times, %d untold", w.saved, left)
		}
	})
}
