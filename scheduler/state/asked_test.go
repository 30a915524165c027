// SPDX-License-Identifier: MPL-2.0

package state_test

import (
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// An alloc counts as asked for where each of its tasks has as many devices as the job asks for now;
// what Nomad chose among several, and what is to end, is not compared.
func TestWhichAllocsHaveWhatIsAsked(t *testing.T) {
	ask := func(counts ...int64) (tasks []nomad.Task) {
		for i, n := range counts {
			one := nomad.Task{Name: string(rune('t' + i)), Request: "1G"}
			if n > 0 {
				one.Devices = []nomad.DeviceAsk{{Name: "nvidia/slice", Count: n}}
			}
			tasks = append(tasks, one)
		}
		return tasks
	}
	for name, row := range map[string]struct {
		tasks []nomad.Task
		want  int
	}{
		"as many":              {ask(2), 1},
		"more":                 {ask(3), 0},
		"fewer":                {ask(1), 0},
		"another task too":     {ask(2, 1), 0},
		"another without any":  {ask(2, 0), 1},
		"in two blocks":        {[]nomad.Task{{Name: "t", Devices: []nomad.DeviceAsk{{Name: "nvidia/slice", Count: 1}, {Name: "nvidia/gpu", Count: 1}}}}, 1},
		"Nomad chose":          {[]nomad.Task{{Name: "t", Devices: []nomad.DeviceAsk{{Count: 1}}}}, 1},
		"Nomad chose, of both": {[]nomad.Task{{Name: "t", Devices: []nomad.DeviceAsk{{Count: 1}, {Name: "nvidia/gpu", Count: 7}}}}, 1},
	} {
		s := servicetest.New(t, "", servicetest.Machine("a", 1))
		a := servicetest.Ask("one", "1G", 1)
		s.Register(a)
		s.Run(a, "stays", "a", 0, 0, 2)
		s.Run(a, "ends", "a", 0, 2, 2)
		s.Stop("ends")
		a.Group = "h"
		s.Run(a, "of another group", "a", 0, 4, 2)
		j := s.Job(one)
		j.Index++
		j.Groups = []nomad.Group{{Name: "g", Count: 1, Tasks: row.tasks}}
		s.State.Apply([]nomad.Change{{Job: &j}}, 99)
		if got := read(s, func(r *state.Reader) int { return r.Cluster.LiveAsAsked(one, "g") }); got != row.want {
			t.Errorf("%s: %d have what is asked, want %d", name, got, row.want)
		}
		for _, live := range []struct {
			key   nomad.JobKey
			group string
			want  int
		}{{one, "h", 1}, {other, "g", 0}} { // of what is not known all count
			if got := read(s, func(r *state.Reader) int { return r.Cluster.LiveAsAsked(live.key, live.group) }); got != live.want {
				t.Errorf("%s: of %v %d count, want %d", name, live, got, live.want)
			}
		}
	}
}

// A job that is as it was recorded but for its count is told from one that was changed otherwise,
// and one that was made smaller from one that was made larger.
func TestWhatWasScaledAroundTheService(t *testing.T) {
	for name, row := range map[string]struct {
		change        func(j *nomad.Job)
		kind          string
		grown, shrunk bool
	}{
		"as recorded":   {func(*nomad.Job) {}, "service", true, false},
		"one more":      {func(j *nomad.Job) { j.Groups[0].Count = 3 }, "service", true, false},
		"one less":      {func(j *nomad.Job) { j.Groups[0].Count = 1 }, "service", true, true},
		"of a batch":    {func(j *nomad.Job) { j.Groups[0].Count = 1 }, "batch", true, true},
		"of a system":   {func(j *nomad.Job) { j.Groups[0].Count = 1 }, "system", true, false},
		"otherwise":     {func(j *nomad.Job) { j.Groups[0].Count, j.Groups[0].Registered = 3, "else" }, "service", false, false},
		"another group": {func(j *nomad.Job) { j.Groups[0].Name = "h" }, "service", false, false},
	} {
		s := servicetest.New(t, "", servicetest.Machine("a", 1))
		a := servicetest.Ask("one", "1G", 2)
		a.JobType = row.kind
		s.Register(a)
		r := recorded(s, one, func(r *record.Record) {
			g := r.Groups["g"]
			g.Ask = a
			r.Groups["g"] = g
		})
		s.Register(a)
		j := s.Job(one)
		j.Index++
		j.Groups = append([]nomad.Group(nil), j.Groups...)
		row.change(&j)
		s.State.Apply([]nomad.Change{{Job: &j}}, 99)
		grown := read(s, func(r *state.Reader) bool { return r.Queue.Outgrown(one) })
		if shrunk := state.Shrunk(r, &j.Groups[0]); shrunk != row.shrunk || grown != row.grown {
			t.Errorf("%s: grown %v, shrunk %v", name, grown, shrunk)
		}
	}
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	if read(s, func(r *state.Reader) bool { return r.Queue.Outgrown(one) }) || state.Shrunk(nil, &nomad.Group{}) || state.AsRecorded(nil, &nomad.Group{}) {
		t.Error("a job that is not known was scaled")
	}
	s.Show(servicetest.Ask("one", "1G", 1), false)
	if read(s, func(r *state.Reader) bool { return r.Queue.Outgrown(one) }) {
		t.Error("a job that is not recorded was scaled")
	}
}
