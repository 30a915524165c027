package device

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/device"

	"github.com/nomad-gpu/nomad-gpu/device/registry"
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
	r, err := openReservations(dir, 5*time.Minute, now)
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
	one := reservationOf(testUUID(0), 3, 4)
	value, err := one.EnvValue()
	if err != nil {
		t.Fatal(err)
	}
	process := [][]byte{[]byte("PATH=/bin\x00" + one.EnvKey() + "=" + value + "\x00HOME=/\x00")}
	r.add(one, now)
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
		live, recent, err := r.look(nil, now)
		if !errors.Is(err, unreadable) {
			t.Fatal(err)
		}
		if live[testUUID(0)].slices[3] != step.live || recent[testUUID(0)].slices[4] != step.recent {
			t.Errorf("%s: live %v, recent %v", step.what, live, recent)
		}
	}
	if again, err := openReservations(dir, 5*time.Minute, now); err != nil || len(again.made) != 0 {
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
		{"a lease of the slices", reservationOf(testUUID(0), 3, 4), lease(testUUID(0), now.Add(time.Second), 3, 4), gpu.Reservation{}, false},
		{"an older lease", reservationOf(testUUID(0), 3, 4), lease(testUUID(0), now.Add(-time.Second), 3, 4), gpu.Reservation{}, true},
		{"a lease of other slices", reservationOf(testUUID(0), 3, 4), lease(testUUID(0), now.Add(time.Second), 5), gpu.Reservation{}, true},
		{"a lease on another GPU", reservationOf(testUUID(0)), lease(testUUID(1), now.Add(time.Second)), gpu.Reservation{}, true},
		{"a lease of the GPU", reservationOf(testUUID(0)), lease(testUUID(0), now.Add(time.Second)), gpu.Reservation{}, false},
		{"the same slice again", reservationOf(testUUID(0), 3, 4), nil, reservationOf(testUUID(0), 4, 5), false},
		{"another slice", reservationOf(testUUID(0), 3, 4), nil, reservationOf(testUUID(0), 5), true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := openReservations(t.TempDir(), time.Minute, now)
			if err != nil {
				t.Fatal(err)
			}
			r.environments = func(func([]byte, error) bool) {}
			r.add(tc.made, now)
			if tc.later.Devices != nil {
				r.add(tc.later, now)
			}
			live, _, err := r.look(tc.leases, now.Add(time.Second))
			if err != nil {
				t.Fatal(err)
			}
			if h := live[testUUID(0)]; (h.all || h.slices[3]) != tc.want {
				t.Errorf("live are %+v, want it there: %v", live, tc.want)
			}
		})
	}
}

// A task of docker or raw_exec writes no lease. Its GPU is not empty all the
// same: it keeps its mode, and its slices are spared by a cordon, over a restart
// of the plugin too.
func TestTasksOfOtherDriversAreSeen(t *testing.T) {
	r := dgx(t)
	groups := r.groups()
	uuid := uuidOf(t, groups, "slice/H100/0")
	given, err := r.Reserve(sliceIDs(uuid, 3))
	if err != nil {
		t.Fatal(err)
	}
	task := exec.Command("sleep", "600")
	for key, value := range given.Envs {
		task.Env = append(task.Env, key+"="+value)
	}
	if err := task.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = task.Process.Kill()
		_ = task.Wait()
	})
	if err := registry.OpenCordons(r.dir+"/data").Add(uuid, "new fan"); err != nil {
		t.Fatal(err)
	}
	groups = r.until("one slice is left", func(g []*device.DeviceGroup) bool { _, n := find(g, "slice/H100/0"); return n == 1 })
	if g, _ := find(groups, "slice/H100/0"); !g.Devices[3].Healthy {
		t.Errorf("the task's slice is %q", g.Devices[3].HealthDesc)
	}
	if err := registry.OpenCordons(r.dir + "/data").Remove(uuid); err != nil {
		t.Fatal(err)
	}
	r.start("../e2e/topology/dgx-h100.hcl", `mode_change_delay = "0s"`)
	// The daemon of the slices is adopted meanwhile.
	groups = r.until("the others have changed", func(g []*device.DeviceGroup) bool {
		_, others := find(g, "slice/H100/1")
		_, n := find(g, "slice/H100/0")
		return others == -1 && n == 1
	})
	if g, _ := find(groups, "slice/H100/0"); !strings.Contains(g.Devices[0].HealthDesc, "waits for its tasks to end") {
		t.Errorf("the first slice is %q", g.Devices[0].HealthDesc)
	}
}

// Nomad does not reserve again after a reboot: the file is all there is.
func TestReservationsOutliveTheMachine(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	r, err := openReservations(dir, time.Minute, now)
	if err != nil {
		t.Fatal(err)
	}
	r.add(reservationOf(testUUID(0), 3), now)
	if _, _, err := r.look(nil, now); err != nil {
		t.Fatal(err)
	}
	later := now.Add(time.Hour)
	again, err := openReservations(dir, time.Minute, later)
	if err != nil {
		t.Fatal(err)
	}
	if _, recent := again.held(later); !recent[testUUID(0)].slices[3] {
		t.Errorf("held are %+v", recent)
	}
	for text, says := range map[string]string{`{"version": 9}`: "version 9, this release reads 1 to 1", `{`: "unexpected end"} {
		writeFile(t, dir+"/reservations.json", text)
		if _, err := openReservations(dir, time.Minute, later); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestEnvironmentsOfProcesses(t *testing.T) {
	mine := strings.Join(os.Environ(), "\x00")
	found := false
	for env, err := range readEnvironments {
		if err != nil {
			t.Fatal(err)
		}
		found = found || mine != "" && strings.Contains(string(env), mine[:len(mine)/2])
	}
	if !found {
		t.Error("this process is not among them")
	}
}
