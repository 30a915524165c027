// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

func TestAProgramThatHangsIsKilled(t *testing.T) {
	hangs := gpu.Suspender{Command: []string{"/bin/sh", "-c", "exec sleep 600"}}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := runSuspender(ctx, hangs, nil); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("got %v", err)
	}
	answers := gpu.Suspender{Command: []string{"/bin/sh", "-c", `echo "$WORD$(cat)"`}, Env: []string{"WORD=got "}}
	if out, err := runSuspender(t.Context(), answers, []byte("it")); err != nil || string(out) != "got it\n" {
		t.Errorf("got %q, %v", out, err)
	}
	fails := gpu.Suspender{Command: []string{"/bin/sh", "-c", "echo no CUDA >&2; exit 1"}}
	if _, err := runSuspender(t.Context(), fails, nil); err == nil || !strings.Contains(err.Error(), "no CUDA") {
		t.Errorf("got %v", err)
	}
}

// Files that a task has read are no reason to leave it a raised limit: the kernel gives
// their memory up.
func TestMemoryOfFilesCanBeReclaimed(t *testing.T) {
	if got := reclaimable("anon 100\nfile 70\nshmem 40\ninactive_anon 5\ninactive_file 20\nactive_file 10\nunevictable 3\n"); got != 30 {
		t.Errorf("got %d", got)
	}
}

func TestWhatAStartWithoutASeatWaitsFor(t *testing.T) {
	now := time.Now().UTC()
	mine := gpu.Seat{LeaseID: "mine", StartedAt: now, State: gpu.SeatWaiting}
	resident, away := gpu.Seat{LeaseID: "other", State: gpu.SeatResident}, gpu.Seat{LeaseID: "away", State: gpu.SeatSuspended}
	seated := mine
	seated.State = gpu.SeatResident
	for name, row := range map[string]struct {
		seats  []gpu.Seat
		waits  string
		seated bool
	}{
		"not known yet":       {seats: []gpu.Seat{resident}},
		"of an earlier start": {seats: []gpu.Seat{{LeaseID: "mine", State: gpu.SeatResident}}},
		"none is there":       {seats: []gpu.Seat{away, mine}, waits: "waits for a seat"},
		"one is":              {seats: []gpu.Seat{resident, away, mine}, waits: "waits for a seat: 1 task is on the GPU now"},
		"two are":             {seats: []gpu.Seat{mine, resident, resident}, waits: "waits for a seat: 2 tasks are on the GPU now"},
		"it is":               {seats: []gpu.Seat{seated}, waits: "waits for a seat", seated: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := statedir.Open(t.TempDir(), "boot")
			if err != nil {
				t.Fatal(err)
			}
			if err := dir.WriteSeats(gpu.Seats{UUID: "GPU-1", Seats: row.seats}); err != nil {
				t.Fatal(err)
			}
			waits, seated := seatIn(dir, "GPU-1", gpu.Lease{ID: "mine", StartedAt: now})
			if waits != row.waits || seated != row.seated {
				t.Errorf("got %q, %v; want %q, %v", waits, seated, row.waits, row.seated)
			}
		})
	}
}
