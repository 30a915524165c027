// SPDX-License-Identifier: MPL-2.0

package seats

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/seats"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

var rules = seats.Rules{Idle: 20 * time.Second, SwitchPercent: 10, MinTurn: 15 * time.Second, MaxWait: 5 * time.Minute, HeadroomMiB: 1024, HostMiB: 400 << 10}

// Tasks come, grow, rest and go, and whatever moves them is killed in the middle of it,
// call by call: none is lost, none is on the GPU without room, none waits for ever, and
// the host never holds more than it may. In half of the runs tasks step aside and want
// their GPU back by themselves, as often as they like. world.check says so around every call of CUDA.
func TestKillsLoseNobody(t *testing.T) {
	kills := 30
	if text := os.Getenv("NOMAD_GPU_KILLS"); text != "" {
		var err error
		if kills, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, seed, rules)
			w.wishful = seed%2 == 1
			names := 0
			for w.kills < kills {
				if len(w.programs) < 5 && w.random.IntN(20) == 0 {
					declared, most := int64(0), 20<<10+int64(w.random.IntN(50<<10))
					if w.random.IntN(2) == 0 {
						declared = most
					}
					names++
					w.add(fmt.Sprint("task-", names), 25+25*w.random.IntN(3), declared, most, 1+w.random.IntN(3))
				}
				if len(w.programs) > 3 && w.random.IntN(400) == 0 {
					w.end(w.sorted()[0].LeaseID)
				}
				if w.killIn < 0 && w.random.IntN(3) == 0 {
					w.killIn = w.random.IntN(12)
				}
				if w.driverIn < 0 && w.random.IntN(10) == 0 {
					w.driverIn = w.random.IntN(40)
				}
				w.step()
			}
			// Then there are no more kills, and every task gets a turn.
			w.killIn, w.driverIn, w.wishful = -1, -1, false
			before := map[string]int{}
			for id, p := range w.programs {
				before[id] = p.turns
			}
			for since := w.now; w.waits(before) != ""; w.step() {
				if w.now.Sub(since) > 30*time.Minute {
					t.Fatalf("%s has had no turn since %s:\n%s", w.waits(before), since, w.describe())
				}
			}
			t.Logf("%d kills, %d tasks, %d messages", w.kills, names, len(w.said))
		})
	}
}

// Four notebooks share a GPU; a task of higher priority comes, has the GPU within one
// switch, and goes: all four come back.
func TestATaskOfHigherPriorityComesAndGoes(t *testing.T) {
	w := newWorld(t, 1, rules)
	for n := range 4 {
		w.add(fmt.Sprint("notebook-", n), 50, 18<<10, 18<<10, 1)
	}
	for range 120 {
		w.step()
	}
	resident := func() map[string]bool {
		found := map[string]bool{}
		for _, s := range w.controller.Seats() {
			if s.State == gpu.SeatResident {
				found[s.LeaseID] = true
			}
		}
		return found
	}
	if len(resident()) != 4 {
		t.Fatalf("resident are %v", resident())
	}
	w.add("training", 80, 70<<10, 70<<10, 4)
	begun := w.now
	for !resident()["training"] {
		if w.step(); w.now.Sub(begun) > time.Minute {
			t.Fatalf("the training waits:\n%s", w.describe())
		}
	}
	t.Logf("the training began after %s", w.now.Sub(begun))
	for range 200 {
		w.step()
		if !resident()["training"] && w.now.Before(w.programs["training"].busyUntil) {
			t.Fatalf("the training had to leave while it computed:\n%s", w.describe())
		}
	}
	w.end("training")
	for since := w.now; len(resident()) != 4; w.step() {
		// One that was idle comes back when it is tried whether it wants the GPU.
		if w.now.Sub(since) > rules.MaxWait+time.Minute {
			t.Fatalf("resident are %v:\n%s", resident(), w.describe())
		}
	}
}

// waits is a task that has not been on the GPU since it had so many turns.
func (w *world) waits(before map[string]int) string {
	for id, p := range w.programs {
		if p.turns == before[id] && !p.awaySince.IsZero() {
			return id
		}
	}
	return ""
}
