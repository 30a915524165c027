// SPDX-License-Identifier: MPL-2.0

package state_test

import (
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

var (
	one   = nomad.JobKey{Namespace: "default", ID: "one"}
	other = nomad.JobKey{Namespace: "default", ID: "other"}
)

// on is a usage of so many slices of a machine's first GPU.
func on(machine string, n int64) place.Usage {
	return place.Usage{NodeID: "id-" + machine, Job: "x", Takes: []place.Take{{GPU: 0, Slices: n, Milli: n * 1000 / 16}}}
}

// bookedOn counts what is booked on a machine.
func bookedOn(s *servicetest.Service, machine string) (n int64) {
	s.State.View(func(r *state.Reader) {
		for _, u := range r.Capacity.UsagesOn("id-" + machine) {
			for _, t := range u.Takes {
				n += t.Slices
			}
		}
	})
	return n
}

// wantSlices fails unless so many slices are booked on a machine.
func wantSlices(t *testing.T, s *servicetest.Service, machine string, want int64, when string) {
	t.Helper()
	if got := bookedOn(s, machine); got != want {
		t.Errorf("%s: %d slices are booked on %s, want %d", when, got, machine, want)
	}
}

// recorded keeps a record of a job with one group.
func recorded(s *servicetest.Service, key nomad.JobKey, change func(*record.Record)) *record.Record {
	a := servicetest.Ask(key.ID, "1G", 1)
	r := record.New(key)
	r.At = s.Clock.At
	r.Groups["g"] = record.Group{Key: a.Key(), Ask: a, Decision: admit.Decision{Group: "g"}}
	if change != nil {
		change(r)
	}
	s.State.Do(func(tx *state.Tx) { tx.Keep(r) })
	return r
}

// read is what a reader says.
func read[T any](s *servicetest.Service, f func(*state.Reader) T) (out T) {
	s.State.View(func(r *state.Reader) { out = f(r) })
	return out
}

func minutes(n int) time.Duration { return time.Duration(n) * time.Minute }
