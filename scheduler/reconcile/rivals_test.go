// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
)

// eventsFor are the evictions for a job.
func (h *modelRun) eventsFor(whom string) (lines []string) {
	for _, line := range h.log {
		if strings.Contains(line, "   evict: ") && strings.Contains(line, "job "+whom+" ") {
			lines = append(lines, line)
		}
	}
	return lines
}

// Room is made once, and the one that it is made for gets it: also where jobs of lower priorities wait for
// the same or for less, Nomad evaluates several of them at once, and the room comes free in parts.
func TestRoomGoesToTheOneThatItIsMadeFor(t *testing.T) {
	for name, row := range map[string]struct {
		schedulers int
		rivals     int
		asks       string // each of them
		stops      map[string]int
		victims    int
	}{
		"one scheduler":                     {1, 8, "1", nil, 1},
		"several schedulers":                {manySchedulers, 8, "1", nil, 1},
		"as many as wait":                   {20, 18, "1", nil, 1},
		"in parts, to one scheduler":        {1, 8, "8G", map[string]int{"victim1": 9}, 2},
		"in parts, to several":              {manySchedulers, 8, "8G", map[string]int{"victim1": 9}, 2},
		"in parts, and what waits is small": {manySchedulers, 30, "2G", map[string]int{"victim1": 9}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(10) {
				synctest.Test(t, func(t *testing.T) {
					h := newRun(t, 1, 1, noMinimum)
					h.schedulers, h.ready, h.stops = row.schedulers, rand.New(rand.NewPCG(seed, 17)), row.stops
					for i := range row.victims {
						h.submit(t.Context(), asking(fmt.Sprint("victim", i), fmt.Sprintf("%dG", 16/row.victims), 50))
					}
					h.seconds(5)
					for i := range row.rivals {
						h.submit(t.Context(), asking(fmt.Sprint("rival", i), row.asks, 20+i))
					}
					h.seconds(5)
					registered := h.registrations()
					h.submit(t.Context(), asking("waits", "1", 90))
					h.seconds(40)
					if events := h.eventsFor("c/waits"); len(events) != row.victims || h.running() != "c/waits" {
						t.Errorf("seed %d: %d evictions of %d, and %s run\n%s", seed, len(events), row.victims, h.running(), strings.Join(h.log, "\n"))
					}
					h.seconds(300)
					for job, n := range h.registrations() {
						if strings.HasPrefix(job, "c/rival") && n != registered[job] || n-registered[job] > 2 {
							t.Errorf("seed %d: %s was registered %d times more", seed, job, n-registered[job])
						}
					}
				})
				if t.Failed() {
					return
				}
			}
		})
	}
}

// registrations are how often each job was registered.
func (h *modelRun) registrations() map[string]int {
	n := map[string]int{}
	for name, j := range h.jobs {
		n[name] = len(j.versions)
	}
	return n
}

// asking is a service of one alloc.
func asking(id, request string, priority int) []byte {
	return []byte(strings.Replace(string(plainly(id, 1, priority, "")), `"gpu": "1"`, fmt.Sprintf(`"gpu": %q`, request), 1))
}

// Where room is made for several jobs one after the other, each gets its own: neither what waits takes it, nor
// what has just been evicted from another node. An eviction registers a victim twice, and what waits not at all.
func TestWhereRoomIsMadeForSeveralEachGetsItsOwn(t *testing.T) {
	for seed := range uint64(10) {
		synctest.Test(t, func(t *testing.T) {
			h := newRun(t, 4, 1, noMinimum)
			h.ready, h.stops = rand.New(rand.NewPCG(seed, 17)), map[string]int{"victim0": 3, "victim1": 9, "victim2": 5, "victim3": 7}
			for i := range 4 {
				h.submit(t.Context(), asking(fmt.Sprint("victim", i), "1", 50))
			}
			h.seconds(5)
			for i := range 8 {
				h.submit(t.Context(), asking(fmt.Sprint("rival", i), "1", 20+i))
			}
			h.seconds(5)
			before := h.registrations()
			for i := range 4 {
				h.submit(t.Context(), asking(fmt.Sprint("waits", i), "1", 90))
			}
			h.seconds(30)
			if n := h.evictions("c/waits", ""); h.running() != "c/waits0 c/waits1 c/waits2 c/waits3" {
				t.Errorf("seed %d: %d evictions, and %s run\n%s", seed, n, h.running(), strings.Join(h.log, "\n"))
			}
			h.seconds(300)
			for job, n := range h.registrations() {
				if strings.HasPrefix(job, "c/rival") && n != before[job] || strings.HasPrefix(job, "c/victim") && n-before[job] > 2 {
					t.Errorf("seed %d: %s was registered %d times more", seed, job, n-before[job])
				}
			}
		})
	}
}

// What is submitted while room is made does not take it either: it is held until the room is taken.
func TestRoomIsNotTakenByWhatComesMeanwhile(t *testing.T) {
	for seed := range uint64(10) {
		synctest.Test(t, func(t *testing.T) {
			h := newRun(t, 1, 1, noMinimum)
			h.schedulers, h.ready, h.stops = 20, rand.New(rand.NewPCG(seed, 17)), map[string]int{"victim": 9}
			h.submit(t.Context(), asking("victim", "1", 50))
			h.seconds(5)
			h.submit(t.Context(), asking("waits", "1", 90))
			h.seconds(4)
			for i := range 12 {
				h.submit(t.Context(), asking(fmt.Sprint("late", i), "1", 20+i))
			}
			h.seconds(40)
			if n := h.evictions("c/waits", ""); n != 1 || h.running() != "c/waits" {
				t.Errorf("seed %d: %d evictions, and %s run\n%s", seed, n, h.running(), strings.Join(h.log, "\n"))
			}
			for job, n := range h.registrations() {
				if strings.HasPrefix(job, "c/late") && n > 1 {
					t.Errorf("seed %d: %s was registered %d times", seed, job, n)
				}
			}
		})
	}
}
