// SPDX-License-Identifier: MPL-2.0

package occupancy

import (
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/cgroup"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

func TestTaskGroups(t *testing.T) {
	const alloc, id = "0b8ae3c5-1a2b-3c4d-5e6f-0123456789ab", "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for group, want := range map[string]string{
		"/nomad.slice/share.slice/" + alloc + ".web.scope":         "/nomad.slice/share.slice/" + alloc + ".web.scope",
		"/nomad.slice/share.slice/" + alloc + ".web.scope/child/a": "/nomad.slice/share.slice/" + alloc + ".web.scope",
		"/nomad/" + alloc + ".web":                                 "/nomad/" + alloc + ".web",
		"/system.slice/docker-" + id + ".scope/init":               "/system.slice/docker-" + id + ".scope",
		"/docker/" + id: "/docker/" + id,
		"/machine.slice/libpod-" + id + ".scope/container": "/machine.slice/libpod-" + id + ".scope",
		"/system.slice/nomad.service":                      "", "/": "", "": "", "/user.slice/" + alloc: "", "/docker/0123": "",
	} {
		if got := TaskGroup(group); got != want {
			t.Errorf("%s: %q, not %q", group, got, want)
		}
	}
}

func TestTenantsAreKnownByTheirReservation(t *testing.T) {
	const uuid = "GPU-11111111-2222-3333-4444-555555555555"
	of := func(slices ...int) gpu.Reservation {
		return gpu.Reservation{Version: gpu.ReservationVersion, Vendor: "nvidia", Devices: []gpu.ReservedDevice{
			{UUID: uuid, Mode: gpu.ModeSlice, Slices: slices, Of: 8, MemoryMiB: int64(len(slices)) << 10, Milli: int64(len(slices)) * 125, BurstMilli: 900}}}
	}
	env := func(rs ...gpu.Reservation) func() []byte {
		var all []string
		for _, r := range rs {
			value, err := r.EnvValue()
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, r.EnvKey()+"="+value)
		}
		return func() []byte { return []byte("A=b\x00" + strings.Join(all, "\x00") + "\x00") }
	}
	group := func(n string) string { return "/nomad/0b8ae3c5-1a2b-3c4d-5e6f-0123456789a" + n + ".web" }
	limited := func(limit string, rs ...gpu.Reservation) func() []byte {
		return func() []byte { return append(env(rs...)(), limitKey+"="+limit+"\x00"...) }
	}
	in := func(path string) []cgroup.Group { return []cgroup.Group{{Path: path}} }
	var running []Member
	made := &Reservations{made: []madeReservation{{Reservation: of(0, 1)}, {Reservation: of(2)}}}
	made.Add(of(0, 1, 2, 3, 4, 5, 6, 7), time.Time{})
	made.Add(of(3), time.Time{})
	tenants := &Tenants{Knows: made.Knows, processes: func() []Member { return running }}
	for _, tc := range []struct {
		name, group string
		running     []Member
		memory      int64
		refused     string
	}{
		{"its own", group("a") + "/child", []Member{{in(group("a")), env(of(0, 1))}}, 2048, ""},
		{"without its variables", group("a"), []Member{{in(group("a")), env(of(0, 1))}, {in(group("a") + "/x"), env()}}, 2048, ""},
		{"a neighbor's", group("b"), []Member{{in(group("a")), env(of(0, 1))}, {in(group("b")), env(of(0, 1))}}, 0, "is another task's"},
		{"two", group("b"), []Member{{in(group("b")), env(of(2), of(3))}}, 0, "has 2 reservations"},
		{"one that was never given out", group("b"), []Member{{in(group("b")), env(of(5))}}, 0, "has 0 reservations"},
		{"one that was given out for more", group("b"), []Member{{in(group("b")), env(of(2, 5))}}, 0, "has 0 reservations"},
		{"after its task", group("c"), []Member{{in(group("c")), env(of(0, 1))}}, 2048, ""},
		{"with a limit of its job", group("a"), []Member{{in(group("a")), limited("0.8", of(0, 1))}, {in(group("a")), limited("0.9")}}, 2048, ""},
		{"with a limit below its guarantee", group("a"), []Member{{in(group("a")), limited("0.2", of(0, 1))}}, 0, `meta gpu_limit: "0.2" is below the guarantee, 250`},
		{"with a limit above the operator's", group("a"), []Member{{in(group("a")), limited("950", of(0, 1))}}, 0, "the most that this node's operator allows"},
		{"with a limit that is none", group("a"), []Member{{in(group("a")), limited("80%", of(0, 1))}}, 0, "is not valid"},
		{"the whole GPU", group("d"), []Member{{in(group("d")), env(of(0, 1, 2, 3, 4, 5, 6, 7))}}, 0, "runs without MPS"},
		{"no task's group", "/system.slice/nomad.service", nil, 0, "is of no task"},
	} {
		running = tc.running
		got, err := tenants.Find(uuid, tc.group)
		if tc.refused != "" && (err == nil || !strings.Contains(err.Error(), tc.refused)) || tc.refused == "" && (err != nil || got.Device.MemoryMiB != tc.memory || !strings.HasPrefix(tc.group, got.Group)) {
			t.Errorf("%s: %+v, %v", tc.name, got, err)
		}
		want := int64(0)
		if strings.HasPrefix(tc.name, "with a limit of") {
			want = 800
		}
		if got.LimitMilli != want {
			t.Errorf("%s: the limit is %d, not %d", tc.name, got.LimitMilli, want)
		}
	}
}
