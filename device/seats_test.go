// SPDX-License-Identifier: MPL-2.0

package device

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/device"

	"github.com/nomad-gpu/nomad-gpu/device/subcommand"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

const seated = `
mode     = "shared"
sharing  = "suspend"
replicas = 3
suspend {
  host_memory = "200GiB"
  idle        = "2m"
}
`

// A GPU with seats is published with its rules and with the program that moves tasks,
// which works as it is named there; other drivers see no GPU, and why.
func TestAGPUWithSeats(t *testing.T) {
	r := newRig(t)
	topology := filepath.Join(r.dir, "machine.hcl")
	writeFile(t, topology, "machine \"m\" { driver = \"580.82.07\" }\ngpu { model = \"H100\" }\n")
	r.start(topology, seated)
	groups := r.until("all is healthy", allHealthy)
	if len(groups) != 1 || groups[0].Name != "H100/0" || groups[0].Type != "shared" || len(groups[0].Devices) != 3 {
		t.Fatalf("the groups are %+v", groups)
	}
	state := must(r.openState().GPUs())[0]
	rules := state.Seats
	if rules == nil || state.Sharing != gpu.SharingSuspend || rules.HostMemoryMiB != 200<<10 || rules.IdleMS != 120_000 || rules.SwitchPercent != 10 ||
		rules.MaxPriority != 50 || rules.MinTurnMS != 30_000 || rules.MaxWaitMS != 3600_000 || rules.HeadroomMiB != 1024 || rules.Unsuspendable != gpu.UnsuspendableKeep {
		t.Fatalf("the driver is told %+v", rules)
	}
	if told := groups[0].Attributes[gpu.AttrSeatPriority]; told == nil || *told.Int != 50 {
		t.Errorf("the highest priority of a seat is told as %v", told)
	}
	if rules.Suspender.Command[1] != subcommand.Checkpoint {
		t.Fatalf("the program is %q", rules.Suspender.Command)
	}
	var out bytes.Buffer
	if err := subcommand.RunCheckpoint(rules.Suspender.Command[2:], strings.NewReader(`{"version":1,"action":"look","uuid":"`+state.UUID+`","pids":[1]}`), &out); err != nil {
		t.Fatal(err)
	}
	var answer gpu.CheckpointAnswer
	if err := json.Unmarshal(out.Bytes(), &answer); err != nil || answer.Failure != "" || len(answer.Processes) != 0 {
		t.Errorf("the program answers %+v, %v", answer, err)
	}
	given := must(r.Reserve([]string{groups[0].Devices[0].ID}))
	if given.Envs[gpu.EnvNVIDIAVisible] != "void" || !strings.Contains(given.Envs["GPU_REFUSED"], `write driver = "containerd"`) {
		t.Errorf("a task is given %v", given.Envs)
	}
}

func TestADriverThatCannotSuspend(t *testing.T) {
	r := newRig(t)
	topology := filepath.Join(r.dir, "machine.hcl")
	writeFile(t, topology, "machine \"m\" { driver = \"565.57.01\" }\ngpu { model = \"H100\" }\n")
	r.start(topology, seated)
	groups := r.until("the device says what is wrong", func(groups []*device.DeviceGroup) bool {
		return len(groups) == 1 && len(groups[0].Devices) > 0 && !groups[0].Devices[0].Healthy
	})
	if says := groups[0].Devices[0].HealthDesc; !strings.Contains(says, "565.57.01 cannot suspend programs; branch 570 and later can") {
		t.Errorf("it says %q", says)
	}
}

// The statistics of a task with a seat say where it is: what is measured of one that is
// suspended is no sign that it does not want the GPU.
func TestStatisticsSayWhereATaskIs(t *testing.T) {
	r := newRig(t)
	topology := filepath.Join(r.dir, "machine.hcl")
	writeFile(t, topology, "machine \"m\" { driver = \"580.82.07\" }\ngpu { model = \"H100\" }\n")
	r.start(topology, seated)
	uuid := uuidOf(t, r.until("all is healthy", allHealthy), "shared/H100/0")
	state := r.openState()
	var list []gpu.Seat
	since := time.Date(2026, 11, 23, 9, 0, 0, 0, time.UTC)
	for n, s := range []gpu.Seat{{State: gpu.SeatResident}, {State: gpu.SeatSuspended, Since: since, Reason: "its turn is over"}, {State: gpu.SeatSuspended, Idle: true}} {
		s.LeaseID = fmt.Sprintf("alloc-%d.task", n)
		list = append(list, s)
		lease := gpu.Lease{ID: s.LeaseID, AllocID: fmt.Sprintf("alloc-%d", n), Namespace: "default", Job: "j", Task: "task", Cgroup: "/x" + s.LeaseID, Phase: gpu.PhaseRunning,
			Holdings: []gpu.Holding{{UUID: uuid, Mode: gpu.ModeShared, Slices: []int{n}, SeatMiB: 1024}}}
		if err := state.WriteLease(lease); err != nil {
			t.Fatal(err)
		}
	}
	if err := state.WriteSeats(gpu.Seats{UUID: uuid, Seats: list}); err != nil {
		t.Fatal(err)
	}
	r.service.meter.Measure()
	groups := r.service.monitor.Stats()
	for n, want := range []gpu.SeatState{gpu.SeatResident, gpu.SeatSuspended, gpu.SeatIdle} {
		id := gpu.SliceID{UUID: uuid, N: n}
		told := groups[0].InstanceStats[id.String()].Stats.Attributes[gpu.StatTaskSeat]
		if told == nil || *told.StringVal != string(want) {
			t.Errorf("replica %d: %v, want %q", n, told, want)
		}
	}
	suspended := groups[0].InstanceStats[gpu.SliceID{UUID: uuid, N: 1}.String()].Stats.Attributes
	for name, want := range map[string]string{gpu.StatTaskSeatSince: "2026-11-23T09:00:00Z", gpu.StatTaskSeatFirst: "2026-11-23T10:00:00Z", gpu.StatTaskSeatWhy: "its turn is over"} {
		if told := suspended[name]; told == nil || *told.StringVal != want {
			t.Errorf("%s: %v, want %q", name, told, want)
		}
	}
}
