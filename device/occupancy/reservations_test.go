// SPDX-License-Identifier: MPL-2.0

package occupancy

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

func reservationOf(uuid string, numbers ...int) gpu.Reservation {
	mode, of := gpu.ModeSlice, 79
	if len(numbers) == 0 {
		mode, of = gpu.ModeWhole, 0
	}
	return gpu.Reservation{Version: gpu.ReservationVersion, Vendor: "nvidia", Devices: []gpu.ReservedDevice{{UUID: uuid, Mode: mode, Slices: numbers, Of: of}}}
}

// A reservation counts while a process has it, for a moment after it was made,
// and, for changes of mode, some time after the last process ended.
func TestReservationsCountAsLongAsTheyAreUsed(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	r, err := OpenReservations(dir, 5*time.Minute, now)
	if err != nil {
		t.Fatal(err)
	}
	var processes [][]byte
	var unreadable error
	r.environments = func(yield func([]byte, error) bool) {
		for _, p := range processes {
			if !yield(p, nil) {
				return
			}
		}
		if unreadable != nil {
			yield(nil, unreadable)
		}
	}
	one := reservationOf("GPU-1", 3, 4)
	value, err := one.EnvValue()
	if err != nil {
		t.Fatal(err)
	}
	process := [][]byte{[]byte("PATH=/bin\x00" + one.EnvKey() + "=" + value + "\x00HOME=/\x00")}
	r.Add(one, now)
	for _, step := range []struct {
		what         string
		after        time.Duration
		processes    [][]byte
		live, recent bool
	}{
		{"it is about to start", time.Second, nil, true, true},
		{"it should have started", 2 * time.Minute, nil, false, true},
		{"it runs after all", time.Minute, process, true, true},
		{"it runs for long", time.Hour, process, true, true},
		{"no process can be looked at", time.Hour, nil, true, true},
		{"it has ended", 4 * time.Minute, nil, false, true},
		{"it ended long ago", 2 * time.Minute, nil, false, false},
	} {
		now, processes, unreadable = now.Add(step.after), step.processes, nil
		if strings.HasPrefix(step.what, "no process") {
			unreadable = syscall.EMFILE
		}
		live, recent, err := r.Look(nil, now)
		if !errors.Is(err, unreadable) {
			t.Fatal(err)
		}
		if live["GPU-1"].Slices[3] != step.live || recent["GPU-1"].Slices[4] != step.recent {
			t.Errorf("%s: live %v, recent %v", step.what, live, recent)
		}
	}
	if again, err := OpenReservations(dir, 5*time.Minute, now); err != nil || len(again.made) != 0 {
		t.Errorf("the file has %+v, %v", again.made, err)
	}
}

func TestReservationsEndWithALeaseOrAnotherReservation(t *testing.T) {
	now := time.Now()
	lease := func(uuid string, started time.Time, numbers ...int) []gpu.Lease {
		return []gpu.Lease{{StartedAt: started, Holdings: []gpu.Holding{{UUID: uuid, Slices: numbers}}}}
	}
	for _, tc := range []struct {
		name   string
		made   gpu.Reservation
		leases []gpu.Lease
		later  gpu.Reservation
		want   bool
	}{
		{"a lease of the slices", reservationOf("GPU-1", 3, 4), lease("GPU-1", now.Add(time.Second), 3, 4), gpu.Reservation{}, false},
		{"an older lease", reservationOf("GPU-1", 3, 4), lease("GPU-1", now.Add(-time.Second), 3, 4), gpu.Reservation{}, true},
		{"a lease of other slices", reservationOf("GPU-1", 3, 4), lease("GPU-1", now.Add(time.Second), 5), gpu.Reservation{}, true},
		{"a lease on another GPU", reservationOf("GPU-1"), lease("GPU-2", now.Add(time.Second)), gpu.Reservation{}, true},
		{"a lease of the GPU", reservationOf("GPU-1"), lease("GPU-1", now.Add(time.Second)), gpu.Reservation{}, false},
		{"the same slice again", reservationOf("GPU-1", 3, 4), nil, reservationOf("GPU-1", 4, 5), false},
		{"another slice", reservationOf("GPU-1", 3, 4), nil, reservationOf("GPU-1", 5), true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := OpenReservations(t.TempDir(), time.Minute, now)
			if err != nil {
				t.Fatal(err)
			}
			r.environments = func(func([]byte, error) bool) {}
			r.Add(tc.made, now)
			if tc.later.Devices != nil {
				r.Add(tc.later, now)
			}
			live, _, err := r.Look(tc.leases, now.Add(time.Second))
			if err != nil {
				t.Fatal(err)
			}
			if h := live["GPU-1"]; (h.All || h.Slices[3]) != tc.want {
				t.Errorf("live are %+v, want it there: %v", live, tc.want)
			}
		})
	}
}

// Nomad does not reserve again after a reboot: the file is all there is.
func TestReservationsOutliveTheMachine(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	r, err := OpenReservations(dir, time.Minute, now)
	if err != nil {
		t.Fatal(err)
	}
	r.Add(reservationOf("GPU-1", 3), now)
	if _, _, err := r.Look(nil, now); err != nil {
		t.Fatal(err)
	}
	later := now.Add(time.Hour)
	again, err := OpenReservations(dir, time.Minute, later)
	if err != nil {
		t.Fatal(err)
	}
	if _, recent := again.Held(later); !recent["GPU-1"].Slices[3] {
		t.Errorf("held are %+v", recent)
	}
	for text, says := range map[string]string{`{"version": 9}`: "version 9, this release reads 1 to 1", `{`: "unexpected end"} {
		if err := os.WriteFile(dir+"/reservations.json", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenReservations(dir, time.Minute, later); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
